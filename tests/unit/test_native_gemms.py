"""The GEMMs in C++ that the benchmarks compare with: the same kernels, as far as that shows without a GPU."""

from __future__ import annotations

import dataclasses
import re
import sys
from concurrent.futures import Future
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT))  # the benchmarks and the tools are not installed with the package

from benchmarks import (  # noqa: E402
    builds,
    common,
    gemm_cases,
    native_gemms,
)
from pycutlass import GemmOperationGrouped, device  # noqa: E402
from pycutlass.errors import ToolkitError  # noqa: E402


@pytest.mark.parametrize("name", gemm_cases.CASES)
def test_a_kernel_in_cpp_is_told_what_the_operation_emits(name):
    operation = gemm_cases.CASES[name].operation
    macros, text = builds.definitions(operation), operation.emit()
    family = "grouped" if isinstance(operation, GemmOperationGrouped) else "universal"
    source = (ROOT / "benchmarks" / "native" / f"gemm_{family}_sm80.cu").read_text()
    assert all(re.search(rf"\b{macro}\b", source) for macro in macros)
    for operand in "AB":
        described = [macros[f"{field}_{operand}"] for field in ("ELEMENT", "LAYOUT", "ALIGNMENT")]
        assert f"Tensor<{', '.join(described)}>" in text
    assert f"Tensor<{macros['ELEMENT_C']}, {macros['LAYOUT_C']}, " in text
    assert f"{macros['ACCUMULATOR']}, {macros['OP_CLASS']}, cutlass::arch::Sm80," in text
    assert f"{macros['TILE']}, {macros['WARP']},\n    {macros['INSTRUCTION']},\n    {macros['EPILOGUE']},\n" in text
    assert f"{macros['SWIZZLE']}, {macros['STAGES']}, {macros['MATH']}>;" in text


def test_the_command_of_a_kernel_in_cpp(tmp_path):
    try:
        command = builds.same_command(gemm_cases.CASES["f16"].operation, tmp_path / "out.so", "90")
    except ToolkitError:
        pytest.skip("there is no nvcc")
    assert r"-DTILE=cutlass::gemm::GemmShape<128\, 128\, 32>" in command
    assert {"-shared", "-gencode=arch=compute_90,code=sm_90"} <= set(command)


def test_both_languages_agree_about_a_problem():
    source = (ROOT / "benchmarks" / "native" / "gemm_universal_sm80.cu").read_text()
    fields = re.search(r"struct Problem \{(.*?)\};", source, re.DOTALL)[1]
    assert re.findall(r"(\w+)(?:\[4\])?[,;]", fields) == [name for name, _ in builds.NativeProblem._fields_]
    assert builds.NativeProblem.lds.offset == 24 + 2 * 8 + 2 * 32


def small_operands(name):
    import torch

    case = gemm_cases.CASES[name]
    small = dataclasses.replace(case, size=(96, 64, 128), count=min(case.count, 3))
    return gemm_cases.Operands(small, torch.Generator().manual_seed(1))


UNIVERSAL = [name for name, case in gemm_cases.CASES.items() if isinstance(case, gemm_cases.Case)]


@pytest.mark.parametrize("name", UNIVERSAL)
def test_operands_and_reference_of_a_case(name):
    if device.available():
        pytest.skip("there is a GPU, for which the kernels would be compiled")
    operands = small_operands(name)
    operands.check({"on the host": [operands.pycutlass()]})
    with pytest.raises(common.BenchmarkError, match=r"nothing, .* is wrong"):
        operands.check({"nothing": [lambda: None]})


def test_the_problem_that_the_kernel_in_cpp_gets():
    batched, biased = small_operands("batched").native(), small_operands("bias-gelu").native()
    assert (batched.mode, batched.m, batched.n, batched.k, batched.count) == (2, 96, 64, 128, 3)
    assert list(batched.lds) == [96, 128, 0, 96]  # all column-major, without C
    assert list(batched.batch_strides) == [96 * 128, 128 * 64, 0, 96 * 64]
    assert batched.pointers[2] is None
    assert list(biased.lds) == [128, 128, 0, 64]
    assert (biased.alpha, biased.beta) == (1, 1)
    assert all(biased.pointers)


@pytest.fixture
def report(tmp_path):
    return common.Report("trial", "A trial", "What it is about.", tmp_path)


@pytest.mark.parametrize(("ours", "passed"), [([2.0, 2.04, 2.08], True), ([2.2, 2.2, 2.2], False)], ids=str)
def test_ours_may_take_so_much_longer(ours, passed, report, monkeypatch):
    case = gemm_cases.CASES["f16"]
    monkeypatch.setattr(gemm_cases.Case, "loops", lambda self, library: {})
    times = {gemm_cases.NATIVE: [2.0, 2.0, 2.0], gemm_cases.OURS: ours}
    monkeypatch.setattr(native_gemms, "device_times", lambda loops, seconds: times)
    built: Future[Path] = Future()
    built.set_result(Path("built.so"))
    row = native_gemms.compare(report, case, {case.operation: built}, 1.0)
    (check,) = report.result["checks"]
    assert check["value"] == pytest.approx(ours[1] / 2)
    assert check["passed"] is passed
    assert row[1:5] == ("4096x4096x4096", common.number(ours[1]), "2", f"{ours[1] / 2:.3f}")


def test_the_loop_in_c_says_why_it_cannot_launch(tmp_path):
    if device.available():
        pytest.skip("there is a GPU, on which this would launch nonsense")
    floor = builds.LaunchFloor(tmp_path)
    with pytest.raises(common.BenchmarkError, match=r"libcuda|CUresult"):
        floor.launch(0, (1,) * 9, 0, False, 0, 0, 1)
