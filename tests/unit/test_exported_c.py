"""The C of exported programs and libraries: headers, structures, the driver's declarations, stored numbers."""

from __future__ import annotations

import ctypes
import subprocess

import numpy as np
import pytest
from exported_c import any_plan, compiled

from pycutlass.exports import interface
from pycutlass.exports.building import SOURCES, include_flags
from pycutlass.exports.header import library_header
from pycutlass.exports.library import described


def test_the_header_is_c_and_cpp(tmp_path):
    (tmp_path / "kernels.h").write_text(library_header("kernels", [described(any_plan(), "a.linear")]))
    text = '#include "kernels.h"\nint main(void) { return KERNELS_A_LINEAR + KERNELS_A_LINEAR_OUT - 2; }\n'
    both = text.replace("\n", '\n#include "other.h"\n', 1)
    (tmp_path / "other.h").write_text(library_header("other", [described(any_plan(), "plan")]))
    for language in ("c", "c++"):
        assert subprocess.run([str(compiled(text, tmp_path, language=language))], check=False).returncode == 0
        compiled(both, tmp_path, language=language)  # two libraries in one program


@pytest.mark.parametrize("name", ["TensorInfo", "ScalarInfo", "PlanInfo", "Tensor", "ScalarValue", "Launch", "Library"])
def test_structures_lie_as_in_c(name, tmp_path):
    called = {"ScalarValue": "scalar"}.get(name, "".join(f"_{each}" if each.isupper() else each for each in name)[1:])
    structure, of = getattr(interface, name), f"pycutlass_{called.lower()}"
    fields = [field for field, *_ in structure._fields_]
    lines = "".join(f'  printf("%zu ", offsetof({of}, {field}));\n' for field in fields)
    text = f'#include <stddef.h>\n#include <stdio.h>\n#include "library.h"\nint main(void) {{\n{lines}'
    program = compiled(f'{text}  printf("%zu", sizeof({of}));\n  return 0;\n}}\n', tmp_path)
    said = subprocess.run([str(program)], capture_output=True, text=True, check=True).stdout
    assert said.split() == [*(str(getattr(structure, field).offset) for field in fields), str(ctypes.sizeof(structure))]


def test_the_c_compiles_without_a_warning(tmp_path):
    for source in sorted(SOURCES.glob("*.c")):
        command = ["gcc", "-std=gnu11", "-O2", "-Wall", "-Wextra", "-Werror", *include_flags(), "-c", str(source)]
        done = subprocess.run([*command, "-o", str(tmp_path / "object.o")], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr


def test_what_is_declared_of_the_driver_is_what_cuda_declares(tmp_path):
    from pycutlass import toolkit

    numbers = {
        "DRV_SUCCESS": "CUDA_SUCCESS",
        "DRV_NOT_FOUND": "CUDA_ERROR_NOT_FOUND",
        "DRV_CAPTURE_UNSUPPORTED": "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED",
        "DRV_INVALID_CLUSTER_SIZE": "CUDA_ERROR_INVALID_CLUSTER_SIZE",
        "DRV_MULTIPROCESSOR_COUNT": "CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT",
        "DRV_COMPUTE_CAPABILITY_MAJOR": "CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR",
        "DRV_COMPUTE_CAPABILITY_MINOR": "CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR",
        "DRV_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN": "CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN",
        "DRV_MAX_DYNAMIC_SHARED_SIZE_BYTES": "CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES",
        "DRV_NON_PORTABLE_CLUSTER_SIZE_ALLOWED": "CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED",
        "DRV_CLUSTER_DIMENSION": "CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION",
        "DRV_PROGRAMMATIC_STREAM_SERIALIZATION": "CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION",
        "sizeof(drv_launch_config)": "sizeof(CUlaunchConfig)",
        "offsetof(drv_launch_config, stream)": "offsetof(CUlaunchConfig, hStream)",
        "offsetof(drv_launch_config, attributes)": "offsetof(CUlaunchConfig, attrs)",
        "offsetof(drv_launch_config, attribute_count)": "offsetof(CUlaunchConfig, numAttrs)",
        "sizeof(drv_launch_attribute)": "sizeof(CUlaunchAttribute)",
        "offsetof(drv_launch_attribute, value)": "offsetof(CUlaunchAttribute, value)",
    }
    lines = [f'_Static_assert((long)({ours}) == (long)({theirs}), "{ours}");' for ours, theirs in numbers.items()]
    text = "\n".join(
        ["#include <cuda.h>", "#include <stddef.h>", '#include "driver.h"', *lines, "int main(void) { return 0; }", ""]
    )
    compiled(text, tmp_path, "-isystem", str(toolkit.find_nvrtc().include))


def test_numbers_are_stored_as_numpy_stores_them(tmp_path):
    import ml_dtypes

    types = {4: np.float16, 5: ml_dtypes.bfloat16, 9: ml_dtypes.float8_e4m3fn, 10: ml_dtypes.float8_e5m2, 7: np.int8}
    values = np.concatenate([np.random.default_rng(0).standard_normal(300) * 2.0**e for e in (-20, -8, -2, 0, 3, 6)])
    values = values[np.abs(values) < 400]
    text = '#include <stdio.h>\n#include "numbers.h"\nint main(void) {\n  int element;\n  double value;\n'
    text += '  while (scanf("%d %lf", &element, &value) == 2) printf("%a\\n", rounded_to(element, value));\n'
    text += "  return 0;\n}\n"
    program = compiled(text, tmp_path, "-std=gnu11", "-lm")
    for code, dtype in types.items():
        taken = np.clip(values, -128, 127) if dtype is np.int8 else values
        taken = np.concatenate([taken, [0.0, 0.5, 1.5, 2.5, -0.5]]).astype(np.float32)
        given = "".join(f"{code} {value.hex()}\n" for value in taken.tolist())
        said = subprocess.run([str(program)], input=given, capture_output=True, text=True, check=True).stdout
        expected = np.rint(taken).astype(np.int8) if dtype is np.int8 else taken.astype(np.float64).astype(dtype)
        assert [float.fromhex(line) for line in said.split()] == expected.astype(np.float64).tolist(), dtype
