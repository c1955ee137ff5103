"""Exported programs and libraries on a GPU: built as their README says, run with an empty environment."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

import pycutlass
from pycutlass import TensorSpec, device, toolkit
from pycutlass.epilogue import fusions

torch = pytest.importorskip("torch")


def _spec(*shape: int, dtype: str = "float16") -> TensorSpec:
    return TensorSpec(shape, dtype)


def _by_columns(rows: int, columns: int, dtype: str = "float16") -> TensorSpec:
    return TensorSpec((rows, columns), dtype, (1, rows))


PLANS = {
    "f32": lambda: pycutlass.Gemm(_spec(256, 192, dtype="float32"), _spec(192, 320, dtype="float32")),
    "f16": lambda: pycutlass.Gemm(_spec(512, 1024), _by_columns(1024, 768)),
    "f16, few rows and much to add up": lambda: pycutlass.Gemm(_spec(64, 8192), _by_columns(8192, 128)),
    "one row": lambda: pycutlass.Gemm(_spec(1, 2048), _by_columns(2048, 1024)),
    "bf16 with C and an activation": lambda: pycutlass.Gemm(
        _spec(256, 512, dtype="bfloat16"),
        _spec(512, 256, dtype="bfloat16"),
        _spec(256, 256, dtype="bfloat16"),
        beta=0.5,
        alpha=0.25,
        epilogue=pycutlass.relu,
    ),
    "a bias": lambda: pycutlass.Gemm(_spec(256, 128), _spec(128, 256), bias=_spec(256)),
    "a function": lambda: pycutlass.Gemm(
        _spec(512, 256), _spec(256, 512), epilogue=fusions.ALL["bias_gelu"], epilogue_inputs={"bias": _spec(512)}
    ),
    "int8": lambda: pycutlass.Gemm(_spec(256, 512, dtype="int8"), _by_columns(512, 256, "int8")),
    "a batch": lambda: pycutlass.Gemm(_spec(3, 128, 256), _spec(3, 256, 192)),
    "fprop": lambda: pycutlass.Conv2d(_spec(2, 20, 24, 32), _spec(64, 3, 3, 32), padding=1, bias=_spec(64)),
    "dgrad": lambda: pycutlass.Conv2d(
        _spec(2, 10, 12, 64), _spec(64, 3, 3, 32), kind="dgrad", padding=1, stride=2, result_size=(2, 20, 24, 32)
    ),
    "wgrad": lambda: pycutlass.Conv2d(
        _spec(2, 20, 24, 64), _spec(2, 20, 24, 32), kind="wgrad", padding=1, result_size=(64, 3, 3, 32)
    ),
}


def build(folder: Path) -> None:
    commands = re.findall(r"^    (\S*(?:gcc|g\+\+|nvcc) .*)$", (folder / "README.txt").read_text(), re.MULTILINE)
    environment = {"PATH": os.environ["PATH"]}
    if any("nvcc" in command for command in commands):
        cutlass, nvcc = toolkit.find_cutlass().includes[0].parent, toolkit.find_nvcc().nvcc
        environment |= {"CUTLASS": str(cutlass), "CUDA": str(Path(str(nvcc)).parents[1])}
    for command in commands:
        done = subprocess.run(command, shell=True, cwd=folder, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr


def ends_well(folder: Path, *arguments: str) -> None:
    library_path = os.environ.get("LD_LIBRARY_PATH")  # where the driver is, on some machines
    environment = {} if library_path is None else {"LD_LIBRARY_PATH": library_path}
    done = subprocess.run(
        [str(folder / "program"), *arguments], env=environment, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "compared with plain loops: right" in done.stdout and "GFLOP/s" in done.stdout


@pytest.mark.parametrize("name", PLANS)
def test_a_program_of_compiled_kernels_is_right(name: str, tmp_path: Path) -> None:
    pycutlass.export(PLANS[name](), tmp_path, format="cubin")
    build(tmp_path)
    ends_well(tmp_path)


@pytest.mark.parametrize("m", ["1", "77", "300"])
def test_it_takes_another_m(m: str, tmp_path: Path) -> None:
    pycutlass.export(PLANS["f16"](), tmp_path, format="cubin")
    build(tmp_path)
    ends_well(tmp_path, m)


@pytest.mark.parametrize("name", ["f32", "f16", "a function", "fprop"])
def test_a_program_of_text_is_right(name: str, tmp_path: Path) -> None:
    try:
        toolkit.find_nvcc()
    except pycutlass.PyCutlassError as error:
        pytest.skip(f"nvcc is not installed: {error}")
    pycutlass.export(PLANS[name](), tmp_path, format="cpp")
    build(tmp_path)
    ends_well(tmp_path)


def _tensor(rows: int, columns: int, dtype: Any = torch.float16) -> Any:
    return torch.randint(-4, 5, (rows, columns), device="cuda").to(dtype) / 4


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Any:
    path = tmp_path_factory.mktemp("library") / "kernels.so"
    plans = {
        "linear": PLANS["f16"](),
        "function": PLANS["a function"](),
        "split": PLANS["f16, few rows and much to add up"](),
    }
    pycutlass.export_library(plans, path, extents=(1, 16, 512))
    return pycutlass.load_library(path)


@pytest.mark.parametrize("m", [1, 7, 16, 100, 512, 1000])
def test_a_library_computes_any_m(library: Any, m: int) -> None:
    a, b = _tensor(m, 1024), _tensor(768, 1024).mT
    out = torch.full((m, 768), torch.nan, device="cuda", dtype=torch.float16)
    library["linear"].run(a=a, b=b, out=out)
    torch.testing.assert_close(out.float(), (a.double() @ b.double()).to(torch.float16).float(), rtol=1e-3, atol=1e-3)


def test_a_library_has_epilogue_functions(library: Any) -> None:
    a, b, bias = _tensor(512, 256), _tensor(256, 512), _tensor(1, 512)[0]
    out = torch.empty(512, 512, device="cuda", dtype=torch.float16)
    library["function"].run(a=a, b=b, bias=bias, out=out)
    expected = torch.nn.functional.gelu(a.double() @ b.double() + bias.double())
    torch.testing.assert_close(out.double(), expected, rtol=2e-3, atol=2e-3)


def test_a_workspace_may_be_full_of_anything(library: Any) -> None:
    """Launches one after the other get memory that others have used."""
    a, b = _tensor(64, 8192), _tensor(128, 8192).mT
    expected = (a.double() @ b.double()).to(torch.float16)
    for _ in range(5):
        torch.full((1 << 22,), torch.nan, device="cuda")
        out = torch.empty(64, 128, device="cuda", dtype=torch.float16)
        library["split"].run(a=a, b=b, out=out)
        torch.testing.assert_close(out, expected, rtol=2e-3, atol=2e-3)


def test_a_library_goes_to_the_current_stream_and_is_captured(library: Any) -> None:
    a, b = _tensor(512, 1024), _tensor(768, 1024).mT
    out = torch.zeros(512, 768, device="cuda", dtype=torch.float16)
    library["linear"].load()
    graph = torch.cuda.CUDAGraph()
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.graph(graph, stream=stream):
        library["linear"].run(a=a, b=b, out=out)
    a.copy_(_tensor(512, 1024))
    graph.replay()
    torch.testing.assert_close(out.float(), (a.double() @ b.double()).float(), rtol=1e-2, atol=1e-2)


def test_another_architecture_is_named(tmp_path: Path) -> None:
    other = "sm_90a" if device.compute_capability() != 90 else "sm_86"
    plan = pycutlass.Gemm(_spec(64, 64, dtype="float32"), _spec(64, 64, dtype="float32"))
    pycutlass.export_library([plan], tmp_path / "kernels.so", target=other.removesuffix("a"))
    with pytest.raises(pycutlass.PyCutlassError, match=rf"compiled for {other.removesuffix('a')}.*sm_"):
        pycutlass.load_library(tmp_path / "kernels.so")["plan_0"].load()


def test_the_example_runs_the_whole_way(tmp_path: Path) -> None:
    example = Path(__file__).parents[2] / "examples" / "embed_in_cpp"
    shutil.copytree(example, tmp_path / "embed", ignore=shutil.ignore_patterns("build"))
    import sys

    paths = [str(Path(pycutlass.__file__).parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    done = subprocess.run(
        ["make", f"PYTHON={sys.executable}"], cwd=tmp_path / "embed", env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "PyCUTLASS" in done.stdout and "cuBLAS" in done.stdout
