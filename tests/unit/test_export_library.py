"""Libraries of kernels, loaded from Python and from C, on a stand-in for the driver."""

from __future__ import annotations

import subprocess
from pathlib import Path

import fake_gpu
import pytest
from exported_c import any_plan, compiled, ldd

import pycutlass
from pycutlass import TensorSpec
from pycutlass.errors import ArgumentError, ArgumentTypeError, CacheError

#: A library with one GEMM of the stand-in, `kernels`, in a folder.
_MADE = """
import ctypes, json, os, tempfile
from dataclasses import replace
from pathlib import Path
from pycutlass import errors
from pycutlass.exports.library import described, linked
from pycutlass.exports.loaded import load_library

def made(change=lambda artifact: artifact, operation=None, size=(5, 6, 7), alter=lambda plan: plan, name="kernels"):
    operation = operation or gemm()
    folder = Path(tempfile.mkdtemp())
    plan = alter(described(operation, "product", problem_size=size))
    artifacts = {kernel: change(kernel.artifacts["sm_80"]) for kernel in plan.kernels}
    path = folder / f"{name}.so"
    path.write_bytes(linked(folder, [plan], artifacts, name))
    return path

def drawn(m, n, k, ordinal=0):
    a, b = on_host(m, k, 1), on_host(k, n, 2, "F")
    return {"a": Array(ordinal, a), "b": Array(ordinal, b), "out": Array(ordinal, np.zeros((m, n), np.float32))}

def is_right(tensors):
    driver.fake_run()
    return (tensors["out"].now() == tensors["a"].now() @ tensors["b"].now()).all()

def refusal(error, call):
    try:
        call()
    except error as raised:
        return str(raised)
    raise AssertionError("nothing was refused")
"""


def run(program: str, **options: int) -> str:
    return fake_gpu.run(_MADE + program, **options)


def test_a_library_computes_what_the_operation_computes():
    run(
        """
library = load_library(made())
plan = library["product"]
assert list(library) == ["product"] and plan.tensors == ("a", "b", "out") and plan.scalars == {"alpha": 1, "beta": 0}
for m in (5, 1, 300):  # any M
    tensors = drawn(m, 6, 7)
    assert plan.run(**tensors) is tensors["out"]
    assert is_right(tensors)
tensors = drawn(5, 6, 7)
plan.run(**tensors, scalars={"alpha": -2})
driver.fake_run()
assert (tensors["out"].now() == -2 * (tensors["a"].now() @ tensors["b"].now())).all()
assert library.manifest["record"] == _core_version() and library.manifest["plans"][0]["name"] == "product"
""".replace("_core_version()", "__import__('pycutlass')._core.ABI_VERSION")
    )


def test_each_gpu_loads_its_own_kernels():
    run("""
library = load_library(made())
for ordinal in (0, 1):
    tensors = drawn(5, 6, 7, ordinal)
    library["product"].run(**tensors)
    assert is_right(tensors)
assert driver.fake_libraries() == 2 and current() is None
""")


def test_it_goes_to_the_stream_that_is_named():
    run("""
library = load_library(made())
stream, tensors = Stream(0), drawn(5, 6, 7)
library["product"].run(**tensors, stream=stream.ptr)
with current_device(0):
    driver.cuStreamSynchronize(None)
assert not tensors["out"].now().any()
with current_device(0):
    driver.cuStreamSynchronize(ctypes.c_void_p(stream.ptr))
assert (tensors["out"].now() == tensors["a"].now() @ tensors["b"].now()).all()
""")


def test_what_was_loaded_is_not_loaded_again():
    run("""
library = load_library(made())
library["product"].load()
log()
tensors = drawn(5, 6, 7)
library["product"].run(**tensors)
assert not [line for line in log() if "Library" in line]
assert is_right(tensors)
""")


def test_each_library_finds_its_own_kernels():
    """Host sides come from memory, by paths: libraries, and this package, must not have one of them twice."""
    run("""
operations = [gemm(), gemm("stream_k"), gemm(), gemm("stream_k")]
libraries = [load_library(made(operation=operation, name=f"kernels_{number}"))
             for number, operation in enumerate(operations)]
for library in libraries:
    tensors = drawn(5, 6, 7)
    library["product"].run(**tensors)
    assert is_right(tensors)
lines = Path("/proc/self/maps").read_text().splitlines()
hosts = {line.split()[4] for line in lines if "pycutlass-host" in line}  # by the number of the file
assert len(hosts) >= len(operations), lines
""")


def test_a_workspace_is_zeroed_for_each_launch():
    """The kernel of stream-K leaves its semaphores as they are, and finds zeros again."""
    run("""
library = load_library(made(operation=gemm("stream_k")))
for _ in range(2):
    tensors = drawn(5, 6, 7)
    library["product"].run(**tensors)
    assert is_right(tensors)
""")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("t['a'] = Array(0, on_host(5, 8, 1))", ["dimension 1 of a must be 7", "got 8"]),
        ("t['b'] = Array(0, on_host(7, 6, 1))", ["b must be adjacent along its columns", "contiguous copy"]),
        ("t['out'] = Array(0, np.zeros((4, 6), np.float32))", ["dimension 0 of out must be 5", "got 4"]),
        ("t['out'] = Array(0, np.zeros((5, 6), np.float16))", ["out must be of float32", "got float16"]),
        ("t['out'] = Array(0, np.zeros(30, np.float32))", ["out must have 2 dimensions", "got 1"]),
        ("t['out'] = t['a'] = Array(0, np.zeros((5, 6), np.float32))", ["dimension 1 of a must be 7"]),
    ],
)
def test_tensors_that_do_not_fit_are_refused(change, words):
    said = run(f"""
plan, t = load_library(made())["product"], drawn(5, 6, 7)
{change}
print(refusal(errors.ArgumentError, lambda: plan.run(**t)))
assert not [line for line in log() if "Launch" in line]
""")
    assert all(word in said for word in words), said


def test_a_result_over_an_operand_is_refused():
    said = run("""
plan, t = load_library(made(size=(6, 6, 6)))["product"], drawn(6, 6, 6)
t["out"] = t["a"]
print(refusal(errors.ArgumentError, lambda: plan.run(**t)))
""")
    assert "out is written and shares memory with a" in said


def test_a_beta_without_c_is_refused():
    said = run("""
plan, t = load_library(made())["product"], drawn(5, 6, 7)
print(refusal(errors.ArgumentError, lambda: plan.run(**t, scalars={"beta": 1})))
print(refusal(errors.ArgumentTypeError, lambda: plan.run(**t, scalars={"gamma": 1})))
print(refusal(errors.ArgumentTypeError, lambda: plan.run(a=t["a"], b=t["b"])))
""")
    assert "the plan has no c that it could scale" in said
    assert "takes the scalars alpha, beta, got gamma" in said and "out missing" in said


def test_another_gpu_is_named():
    said = run(
        """
print(refusal(errors.DeviceError, lambda: load_library(made())["product"].load()))
""",
        capability=90,
    )
    assert "was compiled for sm_80, and GPU 0 (stand-in) is sm_90: export it for that GPU" in said


def test_code_of_one_architecture_runs_on_that_alone():
    said = run("""
native = lambda artifact: replace(artifact, target="sm_90a")
print(refusal(errors.DeviceError, lambda: load_library(made(native))["product"].load()))
""")
    assert "was compiled for sm_90a, and GPU 0 (stand-in) is sm_80" in said


@pytest.mark.parametrize("side", ["cubin", "host"])
def test_a_changed_kernel_is_found(side):
    said = run(f"""
path = made()
content, kernel = path.read_bytes(), gemm().artifacts["sm_80"]
at = content.index(kernel.{side}) + len(kernel.{side}) // 2
path.write_bytes(content[:at] + bytes([content[at] ^ 1]) + content[at + 1:])
library = load_library(path)
print(refusal(errors.CacheError, lambda: library["product"].run(**drawn(5, 6, 7))))
""")
    assert "was changed: its digest is" in said and "copy it again" in said


def test_a_kernel_of_another_record_is_refused():
    said = run("""
import ctypes, subprocess
from pycutlass import toolkit
text = '''
#include "pycutlass/abi.h"
int pycutlass_describe(pycutlass_kernel_info *info) { info->abi_version = 3; return 0; }
unsigned pycutlass_describe_epilogue(void) { return 0; }
int pycutlass_plan(void) { return 0; }
void pycutlass_bind(void) {}
'''
folder = Path(tempfile.mkdtemp())
(folder / "older.c").write_text(text)
command = ["gcc", "-shared", "-fPIC", f"-I{toolkit.own_include()}", "older.c", "-o", "older.so"]
subprocess.run(command, cwd=folder, check=True)
older = lambda artifact: replace(artifact, host=(folder / "older.so").read_bytes())
print(refusal(errors.CacheError, lambda: load_library(made(older))["product"].load()))
""")
    assert "was built for call record version 3, and this library has version" in said


def test_a_file_that_is_no_library_is_refused(tmp_path):
    with pytest.raises(CacheError, match="there is no such file"):
        pycutlass.load_library(tmp_path / "none.so")
    (tmp_path / "text.so").write_text("no library" * 100)
    with pytest.raises(CacheError, match=r"invalid ELF header.*export_library"):
        pycutlass.load_library(tmp_path / "text.so")
    other = compiled("int one(void);\nint one(void) { return 1; }\n", tmp_path, "-shared", "-fPIC")
    with pytest.raises(CacheError, match="pycutlass_get_library"):
        pycutlass.load_library(other)


def test_a_library_of_another_interface_is_refused(tmp_path):
    text = '#include "library.h"\nstatic pycutlass_library const made = {.version = 7, .struct_size = sizeof made};\n'
    text += "pycutlass_library const* pycutlass_get_library(void) { return &made; }\n"
    with pytest.raises(CacheError, match=r"has version 7 of the interface.*has version 1"):
        pycutlass.load_library(compiled(text, tmp_path, "-shared", "-fPIC"))


def test_without_a_driver_the_reason_is_said(tmp_path):
    """From C, in an empty environment, where no libcuda is found."""
    path = Path(
        run(
            """
path = made()
Path("PLACE").write_bytes(path.read_bytes())
print("PLACE")
""".replace("PLACE", str(tmp_path / "kernels.so"))
        ).strip()
    )
    assert ldd(path) == {"libc"}
    text = """
#include <stdio.h>
#include "library.h"
pycutlass_library const* kernels(void);
int main(void) {
  if (!pycutlass_is_compatible(kernels()) || kernels()->find("product") != 0) return 9;
  if (kernels()->find("other") != -1) return 8;
  puts(kernels()->message());
  int const code = kernels()->load(0);
  puts(kernels()->message());
  return code;
}
"""
    program = compiled(text, tmp_path, str(path), f"-Wl,-rpath,{tmp_path}")
    done = subprocess.run([str(program)], env={}, capture_output=True, text=True, check=False)
    assert done.returncode == 2, done
    first, second = done.stdout.splitlines()
    assert first == "there is no plan other: the library has 1, the first is product"
    assert "the CUDA driver could not be loaded" in second and "Install an NVIDIA driver" in second


def test_a_program_in_c_launches_it(tmp_path):
    """It is linked with the library, and finds the stand-in in the place of the driver."""
    text = """
#include <stdio.h>
#include <stdlib.h>
#include "kernels.h"
int cuDevicePrimaryCtxRetain(void**, int);
int cuCtxSetCurrent(void*);
int cuMemAlloc_v2(unsigned long long*, size_t);
int cuStreamSynchronize(void*);
static void* memory(size_t bytes) {
  unsigned long long address = 0;
  cuMemAlloc_v2(&address, bytes);
  return (void*)(size_t)address;
}
int main(void) {
  void* context = 0;
  pycutlass_library const* const library = kernels();
  pycutlass_plan_info const* const plan = &library->plans[KERNELS_PRODUCT];
  cuDevicePrimaryCtxRetain(&context, 0);
  cuCtxSetCurrent(context);
  enum { M = 3, N = 6, K = 7 };
  float *a = memory(4 * M * K), *b = memory(4 * K * N), *d = memory(4 * M * N);
  for (int i = 0; i < M * K; ++i) a[i] = (float)(i % 5 - 2);
  for (int i = 0; i < K * N; ++i) b[i] = (float)(i % 7 - 3);
  pycutlass_tensor const tensors[] = {{a, {M, K}, {K, 1}, 2, PYCUTLASS_F32, {0}},
                                      {b, {K, N}, {1, K}, 2, PYCUTLASS_F32, {0}},
                                      {d, {M, N}, {N, 1}, 2, PYCUTLASS_F32, {0}}};
  if (pycutlass_tensor_index(plan, "out") != KERNELS_PRODUCT_OUT) return 3;
  pycutlass_launch launch = {sizeof launch, 1, tensors, NULL, NULL, 0, NULL};
  uint64_t bytes = 1;
  if (library->workspace_size(KERNELS_PRODUCT, &launch, &bytes) || bytes) return puts(library->message()), 4;
  if (library->run(KERNELS_PRODUCT, &launch)) return puts(library->message()), 5;
  cuStreamSynchronize(NULL);
  for (int i = 0; i < M * N; ++i) {
    float sum = 0;
    for (int k = 0; k < K; ++k) sum += a[i / N * K + k] * b[i % N * K + k];
    if (sum != d[i]) return 6;
  }
  launch.struct_size = 8;
  if (!library->run(KERNELS_PRODUCT, &launch)) return 7;
  puts(library->message());
  library->unload();
  return 0;
}
"""
    said = run(f"""
import subprocess
from exported_c import compiled
from pycutlass.exports.header import library_header
folder = Path({str(tmp_path)!r})
operation = gemm()
(folder / "kernels.so").write_bytes(made(operation=operation).read_bytes())
(folder / "kernels.h").write_text(library_header("kernels", [described(operation, "product", problem_size=(5, 6, 7))]))
place = os.environ["LD_LIBRARY_PATH"]
options = [str(folder / "kernels.so"), f"-Wl,-rpath,{{folder}}", f"-I{{folder}}", f"{{place}}/libcuda.so.1"]
program = compiled({text!r}, folder, *options)
environment = {{**os.environ, "LD_PRELOAD": f"{{place}}/libcuda.so.1 {{place}}/gemm.so"}}
done = subprocess.run([str(program)], env=environment, capture_output=True, text=True)
assert done.returncode == 0, (done.returncode, done.stdout, done.stderr)
print(done.stdout)
""")
    assert "struct_size of 8" in said and "sizeof(pycutlass_launch)" in said


def test_kernels_are_chosen_by_m():
    """Ranges with a kernel of their own, the next larger where there is none, and the last for all that is larger."""
    said = run("""
small, large = gemm(), gemm("stream_k")
def ranges(plan):
    one = plan.variants[0]
    two = described(large, "product", problem_size=(5, 6, 7)).variants[0]
    return replace(plan, variants=(replace(one, least=3, most=4), replace(two, least=5, most=8)))
library = load_library(made(operation=small, alter=ranges))
names = {small.procedural_name(): "small", large.procedural_name(): "large"}
for m in (1, 3, 4, 5, 8, 9, 100):
    log()
    tensors = drawn(m, 6, 7)
    library["product"].run(**tensors)
    print(m, "large" if any("Memset" in line for line in log()) else "small")
    assert is_right(tensors)
""")
    chosen = dict(line.split() for line in said.splitlines())
    assert chosen == dict.fromkeys(("1", "3", "4"), "small") | dict.fromkeys(("5", "8", "9", "100"), "large")


def test_what_cannot_be_exported_is_refused(tmp_path):
    path = tmp_path / "kernels.so"
    with pytest.raises(ArgumentTypeError, match=r"export_library\(\[plan\], path\)"):
        pycutlass.export_library(any_plan(), path)
    with pytest.raises(ArgumentError, match="one plan at least"):
        pycutlass.export_library([], path)
    with pytest.raises(ArgumentTypeError, match="what is exported is a plan"):
        pycutlass.export_library([3], path)
    with pytest.raises(ArgumentError, match=r"the plans a\.b and a-b have one name in C"):
        pycutlass.export_library({"a.b": any_plan(), "a-b": any_plan()}, path)
    with pytest.raises(ArgumentError, match="letters, digits"):
        pycutlass.export_library({"a b": any_plan()}, path)
    with pytest.raises(ArgumentError, match="becomes the name of a function in C"):
        pycutlass.export_library([any_plan()], tmp_path / "my-kernels.so")
    with pytest.raises(ArgumentError, match="values of M"):
        pycutlass.export_library([any_plan()], path, extents=[0])
    with pytest.raises(ArgumentError, match=r"whose name ends with \.so"):
        pycutlass.export_library([any_plan()], tmp_path / "kernels.dll")
    group = pycutlass.GroupedGemm([TensorSpec((8, 16), "float16")], [TensorSpec((16, 8), "float16")])
    with pytest.raises(ArgumentError, match=r"tables of addresses.*format='bundle'"):
        pycutlass.export_library([group], path)
    assert list(tmp_path.iterdir()) == []
