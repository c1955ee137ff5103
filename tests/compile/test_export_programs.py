"""Exported programs, built as their README.txt says, and run where there is no driver, or a stand-in for it."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import fake_gpu
import pytest
from exported_c import ldd
from marks import thorough, thorough_but

import pycutlass
from pycutlass import TensorSpec, toolkit
from pycutlass.epilogue import fusions
from pycutlass.errors import ArgumentError, ArgumentTypeError

pytestmark = pytest.mark.compile


def _gemm(dtype="float32", m=64, n=128, k=96, **options):
    added = {name: TensorSpec((n,), dtype) for name in ("bias",) if options.pop(name, False)}
    inputs = {"bias": TensorSpec((n,), dtype)} if "epilogue_inputs" in options else None
    options["epilogue_inputs"] = inputs
    return pycutlass.Gemm(TensorSpec((m, k), dtype), TensorSpec((k, n), dtype), **added, **options)


PLANS = {
    "f32 with an activation": lambda: _gemm(epilogue=pycutlass.silu),
    "f16 with a bias": lambda: _gemm("float16", bias=True),
    "a function": lambda: _gemm("float16", epilogue=fusions.ALL["bias_gelu"], epilogue_inputs=True),
    "a batch": lambda: pycutlass.Gemm(TensorSpec((2, 40, 64), "float32"), TensorSpec((64, 48), "float32")),
    "a convolution": lambda: pycutlass.Conv2d(
        TensorSpec((2, 9, 9, 16), "float16"), TensorSpec((24, 3, 3, 16), "float16"), padding=1, stride=2
    ),
}
#: Those that are built each time. CMake's test builds text.
COMPILED = ("a function", "a convolution")


def commands(folder: Path) -> list[str]:
    """Return what README.txt says to type."""
    return re.findall(r"^    (\S*(?:gcc|g\+\+|nvcc) .*)$", (folder / "README.txt").read_text(), re.MULTILINE)


def built(folder: Path, *further: str) -> Path:
    """Run the commands of README.txt, with more warnings than it asks for."""
    cutlass, nvcc = toolkit.find_cutlass().includes[0].parent, toolkit.find_nvcc().nvcc
    environment = {"PATH": os.environ["PATH"], "CUDA": str(Path(str(nvcc)).parents[1]), "CUTLASS": str(cutlass)}
    for command in commands(folder):
        strict = command.replace("gcc ", "gcc -Wall -Wextra -Werror ", 1) if command.startswith("gcc") else command
        words = [strict, *further]
        done = subprocess.run(
            " ".join(words), shell=True, cwd=folder, env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, f"{shlex.join(words)}\n{done.stdout}{done.stderr}"
    return folder / "program"


def says_that_there_is_no_driver(program: Path) -> None:
    done = subprocess.run([str(program)], env={}, capture_output=True, text=True, check=False)
    assert done.returncode == 2, done
    assert "the CUDA driver could not be loaded" in done.stderr
    assert "Install an NVIDIA driver of release 580" in done.stderr and not done.stdout


@pytest.mark.parametrize("name", thorough_but(COMPILED, PLANS))
def test_a_c_compiler_alone_builds_what_is_compiled(name, tmp_path, quick_host_sides):
    pycutlass.export(PLANS[name](), tmp_path / "out", format="cubin", target="sm_80")
    program = built(tmp_path / "out")
    assert len(commands(tmp_path / "out")) == 1
    assert ldd(program) <= {"libc", "libm"}
    says_that_there_is_no_driver(program)


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["f32 with an activation", "a function", "a convolution"])
def test_nvcc_and_cutlass_build_what_is_text(name, tmp_path, quick_host_sides):
    pycutlass.export(PLANS[name](), tmp_path / "out", format="cpp", target="sm_80")
    assert not list((tmp_path / "out").rglob("*.cubin"))
    program = built(tmp_path / "out")
    assert ldd(program) <= {"libc", "libm"}
    says_that_there_is_no_driver(program)
    assert '"pycutlass/' not in (tmp_path / "out/kernels/kernel_0.cuh").read_text()


@pytest.mark.thorough
@pytest.mark.skipif(shutil.which("cmake") is None, reason="CMake is not installed")
def test_cmake_builds_it_as_well(tmp_path, quick_host_sides):
    pycutlass.export(PLANS["f32 with an activation"](), tmp_path / "out", format="cpp", target="sm_80")
    cutlass, nvcc = toolkit.find_cutlass().includes[0].parent, toolkit.find_nvcc().nvcc
    options = [f"-DCUTLASS={cutlass}", f"-DCUDAToolkit_ROOT={Path(str(nvcc)).parents[1]}"]
    for command in (["cmake", "-B", "build", *options], ["cmake", "--build", "build"]):
        environment = {"PATH": os.environ["PATH"]}
        done = subprocess.run(
            command, cwd=tmp_path / "out", env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
    says_that_there_is_no_driver(tmp_path / "out" / "build" / "program")


def test_the_example_builds_without_a_gpu(tmp_path, monkeypatch, quick_host_sides):
    example = Path(__file__).parents[2] / "examples" / "embed_in_cpp"
    folder = shutil.copytree(example, tmp_path / "embed", ignore=shutil.ignore_patterns("build"))
    environment = {**os.environ, "PYTHONPATH": str(Path(pycutlass.__file__).parents[1])}
    command = ["make", "build", f"PYTHON={sys.executable}", "TARGET=sm_80", "CXX=g++ -Werror"]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert ldd(folder / "build" / "kernels.so") == {"libc"}
    done = subprocess.run([str(folder / "build" / "main")], env={}, capture_output=True, text=True, check=False)
    assert done.returncode == 2 and "the CUDA driver could not be loaded" in done.stderr


@pytest.mark.parametrize("form", [thorough("cpp"), "cubin"])
def test_a_hopper_kernel_is_a_program_as_well(form, tmp_path, monkeypatch, quick_host_sides):
    monkeypatch.setenv("PYCUTLASS_TARGET", "sm_90a")
    plan = pycutlass.Gemm(TensorSpec((512, 256), "float16"), TensorSpec((256, 512), "float16", (1, 256)))
    assert plan.operation.is_sm90
    pycutlass.export(plan, tmp_path / form, format=form)
    says_that_there_is_no_driver(built(tmp_path / form))


def test_an_operation_is_exported_with_a_problem(tmp_path, quick_host_sides):
    operation = _gemm().operation
    with pytest.raises(ArgumentError, match=r"give problem_size=\(M, N, K\)"):
        pycutlass.export(operation, tmp_path / "out", format="cubin")
    pycutlass.export(operation, tmp_path / "out", format="cubin", problem_size=(64, 128, 96), target="sm_80")
    says_that_there_is_no_driver(built(tmp_path / "out"))


def test_a_bundle_is_what_the_cache_takes_in(tmp_path, monkeypatch, quick_host_sides):
    from pycutlass.cache import KernelCache

    plan = _gemm(epilogue=pycutlass.silu)
    pycutlass.export(plan, tmp_path / "kernels.zip", format="bundle", target="sm_80")
    cache = KernelCache(tmp_path / "cache")
    assert len(cache.import_(tmp_path / "kernels.zip").added) == len(plan.candidate.kernels)
    assert {entry.name for entry in cache.entries()} == {each.procedural_name() for each in plan.candidate.kernels}
    cache.close()


@pytest.mark.parametrize(
    ("plan", "words"),
    [
        (lambda: 3, "what is exported is a plan"),
        (
            lambda: pycutlass.GroupedGemm([TensorSpec((8, 16), "float16")], [TensorSpec((16, 8), "float16")]),
            "format='bundle'",
        ),
        (
            lambda: pycutlass.Conv2d(
                TensorSpec((1, 6, 6, 32), "float16"),
                TensorSpec((32, 3, 3, 16), "float16"),
                groups=2,
                kind="dgrad",
                result_size=(1, 8, 8, 32),
            ),
            "group of channels",
        ),
    ],
)
def test_what_is_no_program_is_refused(plan, words, tmp_path):
    with pytest.raises((ArgumentError, ArgumentTypeError), match=re.escape(words)):
        pycutlass.export(plan(), tmp_path / "out", format="cubin")
    assert not (tmp_path / "out").exists()


def test_a_library_is_no_format_of_a_program(tmp_path):
    with pytest.raises(ArgumentError, match=r"got 'library'\. pycutlass\.export_library writes libraries"):
        pycutlass.export(_gemm(), tmp_path / "out", format="library")


def test_another_format_is_refused(tmp_path):
    with pytest.raises(ArgumentError, match="format must be one of cpp, cubin, bundle"):
        pycutlass.export(_gemm(), tmp_path / "out", format="ptx")


_ON_THE_STAND_IN = """
import subprocess
import sys
from pathlib import Path
from pycutlass.exports.library import described
from pycutlass.exports.program import _cubin
from pycutlass.exports.reference import reference

operation = gemm()
plan = described(operation, "kernel", problem_size=(33, 20, 17))
files = _cubin(plan, {operation: operation.artifacts["sm_80"]})
text = reference(plan)
folder = Path(FOLDER)
for name, content in {**files, "kernels/reference.c": CHANGE(text).encode()}.items():
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    (folder / name).write_bytes(content)
subprocess.run(["make", "program"], cwd=folder, check=True, capture_output=True)
import os
place = os.environ["LD_LIBRARY_PATH"]
environment = {**os.environ, "LD_PRELOAD": f"{place}/libcuda.so.1 {place}/gemm.so"}
for arguments in ([], ["7"]):
    done = subprocess.run(["./program", *arguments], cwd=folder, env=environment, capture_output=True, text=True)
    print(done.returncode, done.stdout, done.stderr)
"""


def _on_the_stand_in(folder: Path, change: str) -> str:
    return fake_gpu.run(_ON_THE_STAND_IN.replace("FOLDER", repr(str(folder))).replace("CHANGE", f"({change})"))


def test_the_program_runs_and_compares(tmp_path):
    said = _on_the_stand_in(tmp_path, "lambda text: text")
    assert said.count("elements compared with plain loops: right") == 2 and said.count("GFLOP/s") == 2
    assert "660 of 660 elements" in said and "140 of 140 elements" in said
    assert re.findall(r"^\d", said, re.MULTILINE)[0] == "0"


def test_the_program_ends_with_1_where_a_result_is_wrong(tmp_path):
    said = _on_the_stand_in(tmp_path, "lambda text: text.replace('* sum', '* sum + 1')")
    assert said.startswith("1 ") and "WRONG" in said and "out at (0, 0, 0, 0) is" in said
