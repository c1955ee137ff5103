"""Operators in C++ with a real library of kernels, on a stand-in for the driver.

Its device memory is host memory, so the operators are compiled to take tensors of the host.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

import fake_gpu
import pytest
from native_operators import of_host_tensors, shipped
from prepared_arguments import TORCH

_LOADED = """
import tempfile
from pathlib import Path
from pycutlass.exports.library import described, linked
from pycutlass.pytorch import load_native

operation = gemm()
plan = described(operation, "product", problem_size=(5, 6, 7))
artifacts = {kernel: kernel.artifacts["sm_80"] for kernel in plan.kernels}
path = str(Path(tempfile.mkdtemp()) / "kernels.so")
Path(path).write_bytes(linked(Path(tempfile.mkdtemp()), [plan], artifacts, "kernels"))
load_native(OPERATORS)
ops = torch.ops.pycutlass_kernels
"""
_PROGRAM = """
def there(values):
    array = Array(0, np.ascontiguousarray(values))
    tensor = torch.from_numpy(memory_at(array.data.ptr, array.shape))
    tensor.array = array
    return tensor

a, b = there(on_host(5, 7, 1)), there(on_host(6, 7, 2))
out = there(np.full((5, 6), np.nan, np.float32))
use(0)
ops.load(path, "product")
for call in range(3):
    ops.run(path, "product", [a, b.T], [out])
    driver.fake_run()
    assert torch.equal(out, a @ b.T)
    out.fill_(float("nan"))
assert '"format": "pycutlass library"' in ops.manifest(path)
refused = {
    "dimension 1 of a must be 7": [a[:4, :6], b.T],
    "a must be of float32; got float64": [a.double(), b.T],
    "dimension 1 of b must be 6": [a, b.T[:, :5]],
}
for message, tensors in refused.items():
    try:
        ops.run(path, "product", tensors, [out])
    except RuntimeError as error:
        assert message in str(error), error
    else:
        raise AssertionError(message)
assert out.isnan().all()
"""
#: What a build of torch with CUDA has of the runtime and of its own, on the stand-in.
_RUNTIME = """
int cuDevicePrimaryCtxRetain(void**, int);
int cuCtxSetCurrent(void*);
static _Thread_local int current = 1;
int cudaGetDevice(int* device) { return *device = current, 0; }
int cudaSetDevice(int device) {
  void* context = 0;
  current = device;
  return cuDevicePrimaryCtxRetain(&context, device) || cuCtxSetCurrent(context);
}
int aoti_torch_get_current_cuda_stream(int device, void** stream) { return (void)device, *stream = 0, 0; }
"""
_AS_IT_SHIPS = """
assert current() is None
for _ in range(2):
    log()
    ops.load(path, "product")
    loaded = [line for line in log() if "LibraryLoadData" in line]
    assert current() == 1
    assert driver.fake_libraries() == 1, loaded
"""


def test_a_library_is_run(tmp_path_factory: pytest.TempPathFactory) -> None:
    made = of_host_tensors(tmp_path_factory)
    fake_gpu.run(TORCH + _LOADED.replace("OPERATORS", repr(str(made))) + _PROGRAM, seconds=120)


def test_its_kernels_are_loaded_for_the_current_gpu(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    """By the operators as they ship, which ask the CUDA runtime."""
    made, runtime = shipped(tmp_path_factory), tmp_path / "runtime.so"
    (tmp_path / "runtime.c").write_text(_RUNTIME)
    command = ["gcc", "-Wall", "-Werror", "-fPIC", "-shared", "-Wl,-z,lazy", str(tmp_path / "runtime.c")]
    subprocess.run([*command, "-o", str(runtime)], check=True)
    program = "import torch\n" + _LOADED.replace("OPERATORS", repr(str(made))) + _AS_IT_SHIPS
    fake_gpu.run(program, seconds=120, LD_PRELOAD=str(runtime))
