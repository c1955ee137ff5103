"""tools/fuzz: what it draws, and that it finds what it is there to find, planted on the host."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT))  # the tools are not installed with the package

torch = pytest.importorskip("torch")

from pycutlass import (  # noqa: E402
    LinearCombination,
    LinearCombinationGeneric,
    MathInstruction,
    MathOperation,
    cutlass,
    gelu,
    gelu_tanh,
    hardswish,
    sigmoid,
    silu,
    tanh,
)
from pycutlass.errors import AlignmentError, ArgumentTypeError, DescriptionError, DriverError  # noqa: E402
from pycutlass.families import AMPERE  # noqa: E402
from pycutlass.types import ELEMENTS  # noqa: E402
from tools.fuzz import kernels, outcome, session, tally  # noqa: E402
from tools.fuzz.cases import draw_case, run_case  # noqa: E402
from tools.fuzz.conv_cases import launch_conv  # noqa: E402
from tools.fuzz.gemm_cases import launch_gemm  # noqa: E402
from tools.fuzz.group_cases import launch_group  # noqa: E402
from tools.fuzz.kernels import FAMILIES, draw_kernel  # noqa: E402
from tools.fuzz.outcome import Outcome  # noqa: E402
from tools.fuzz.truth import compare, expected  # noqa: E402

TAG = {row.short: row.tag for row in ELEMENTS}
LAUNCH = {"grouped": launch_group, "conv": launch_conv, "gemm": launch_gemm}


def launched(family: str, **wanted: Any) -> tuple[list[Any], dict[str, Any]]:
    """Return Ds and operands after a launch on the host, of a problem whose attributes are as wanted."""
    for index in range(400):
        kernel = draw_kernel(7, index, [family])
        case = draw_case(kernel, 0, small=True)
        if all(getattr(case.problem, name, None) in values for name, values in wanted.items()):
            kind = "grouped" if "grouped" in family else "conv" if "prop" in family or "grad" in family else "gemm"
            parts = [kernel.operation] if kind == "grouped" else [kernel.operation, kernel.reduction]
            launch, targets, places = LAUNCH[kind](case.problem, *parts, "cpu")
            launch()
            if all(target.truth.value.numel() > 1 for target in targets):
                return targets, places
    raise AssertionError(f"no problem of {family} has {wanted}")


# Drawing


@pytest.fixture(scope="module", params=[(7, 600), pytest.param((3, 1500), marks=pytest.mark.thorough)], ids=str)
def drawn(request: pytest.FixtureRequest) -> list[kernels.Kernel]:
    seed, count = request.param
    return [draw_kernel(seed, index) for index in range(count)]


def test_every_family_is_drawn(drawn: list[kernels.Kernel]) -> None:
    assert {kernel.family for kernel in drawn} == set(FAMILIES)


def test_kernels_differ(drawn: list[kernels.Kernel]) -> None:
    assert len({kernel.name for kernel in drawn}) > 0.95 * len(drawn)


def test_every_math_instruction_is_drawn(drawn: list[kernels.Kernel]) -> None:
    seen = {kernel.operation.tile_description.math_instruction for kernel in drawn}
    rows = {(m.opcode_class, m.a.short, m.accumulator.short, m.instruction_shape, m.math_operation) for m in seen}
    wanted = {
        (row.opcode_class, row.a, row.accumulator, row.shape, operation)
        for row in AMPERE.products
        for operation in row.operations
    }
    assert wanted <= rows


def test_every_choice_is_drawn(drawn: list[kernels.Kernel]) -> None:
    gemms = [kernel.operation for kernel in drawn if kernel.family.startswith("gemm")]
    layouts = Counter((each.A.layout, each.B.layout, each.C.layout) for each in gemms)
    assert len(layouts) == 9  # all of rows and columns, and interleaved ones
    assert {each.C.alignment for each in gemms} == {each.A.alignment for each in gemms} == {1, 2, 4, 8, 16}
    assert any(each.A.alignment != each.B.alignment != each.C.alignment for each in gemms)
    assert {(each.tile_description.warp_count or (1, 1, 1))[2] for each in gemms} >= {1, 2, 4}
    functors = {type(each.epilogue_functor).__name__ for each in gemms}
    assert len(functors) == 4
    assert len({type(each.epilogue_functor.activation) for each in gemms}) == 10  # nine, and none
    assert len({each.swizzling_functor for each in gemms}) == 7
    assert {each.tile_description.kernel_schedule for each in gemms} > set(
        kernels.gemm_kernels.pycutlass.KernelSchedule
    )


def test_every_mode_is_drawn(drawn: list[kernels.Kernel]) -> None:
    cases = [draw_case(kernel, number) for kernel in drawn[:600] for number in range(2)]
    assert {case.mode for case in cases} == {*("gemm", "serial", "parallel", "batched", "array", "grouped", "conv")}
    assert {case.problem.source for case in cases} == {
        *("none", "nan", "nan in place", "matrix", "shared", "bias", "biases", "in place")
    }


def test_equal_seeds_draw_equal_cases() -> None:
    for index in range(40):
        first, second = (draw_case(draw_kernel(11, index), 2) for _ in range(2))
        assert first.kernel.name == second.kernel.name
        assert repr(first.problem) == repr(second.problem)
    assert draw_kernel(11, 0).name != draw_kernel(12, 0).name


def test_what_is_always_refused_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(random: Any) -> None:
        raise DescriptionError("never")

    monkeypatch.setattr(kernels, "FAMILIES", {"nothing": (1, refuse)})
    with pytest.raises(kernels.ExhaustedError, match="nothing"):
        draw_kernel(1, 1)


@pytest.mark.parametrize("family", FAMILIES)
def test_the_reference_computes_what_torch_does(family: str) -> None:
    for index in range(2):
        for number in range(3):
            ended = run_case(draw_case(draw_kernel(5, index, [family]), number, small=True), "cpu")
            assert ended.verdict in ("right", "refused"), ended


# Finding

_GEMM = {"mode": ("gemm",), "source": ("none", "matrix")}
_PLACES = [("gemm f16 bf16", _GEMM), ("gemm int8", _GEMM), ("grouped", {}), ("fprop", {"mode": ("conv",)})]


@pytest.mark.parametrize(("family", "wanted"), _PLACES, ids=[family for family, _ in _PLACES])
def test_nothing_is_found_where_nothing_is_wrong(family: str, wanted: dict[str, Any]) -> None:
    assert outcome.judge(*launched(family, **wanted)) == ""


@pytest.mark.parametrize(("family", "wanted"), _PLACES, ids=[family for family, _ in _PLACES])
def test_one_wrong_element_is_found(family: str, wanted: dict[str, Any]) -> None:
    targets, places = launched(family, **wanted)
    corner = targets[-1].place.view.flatten()[-1:]
    view = targets[-1].place.view
    place = tuple(extent - 1 for extent in view.shape)
    view[place] = 3 if float(corner) != 3 else 5
    assert "1 of" in outcome.judge(targets, places)


@pytest.mark.parametrize("family", ["gemm f16 bf16", "gemm int8", "gemm f64", "gemm dp4a"])
def test_an_element_that_is_not_written_is_found(family: str) -> None:
    targets, places = launched(family, mode=("gemm",), source=("none", "matrix"))
    view = targets[0].place.view
    written = view[0, 0].clone()
    targets[0].poison()
    poison = view[0, 0].clone()
    view.copy_(targets[0].truth.rounded())
    assert outcome.judge(targets, places) == ""
    assert written.dtype == poison.dtype
    view[0, 0] = poison
    assert "1 of" in outcome.judge(targets, places)


@pytest.mark.parametrize("family", ["gemm f16 bf16", "gemm int8 interleaved", "fprop"])
def test_a_guard_zone_that_is_written_is_found(family: str) -> None:
    targets, places = launched(family)
    memory = targets[0].place._bytes
    for byte in (0, len(memory) - 1):
        before = int(memory[byte])
        memory[byte] = 7
        assert "1 bytes around it" in outcome.judge(targets, places)
        memory[byte] = before
    assert outcome.judge(targets, places) == ""


def test_a_guard_zone_between_the_rows_of_D_is_found() -> None:
    for index in range(200):
        case = draw_case(draw_kernel(2, index, ["gemm simt"]), 0, small=True)
        if case.mode != "gemm":
            continue
        launch, targets, places = launch_gemm(case.problem, case.kernel.operation, None, "cpu")
        view = targets[0].place.view
        ld, line = max(view.stride()), view.shape[1] if view.stride(1) == 1 else view.shape[0]
        if min(view.shape) > 1 and ld > line:
            launch()
            assert outcome.judge(targets, places) == ""
            view.as_strided((1,), (1,), view.storage_offset() + line).fill_(1)
            assert "bytes around it" in outcome.judge(targets, places)
            return
    raise AssertionError("no D has rows that are apart")


def test_a_C_that_is_read_where_beta_is_0_is_found() -> None:
    targets, places = launched("gemm f32", mode=("gemm",), source=("nan",))
    assert outcome.judge(targets, places) == ""
    targets[0].place.view.add_(0 * places["C"].view)
    assert "are NaN" in outcome.judge(targets, places)


def test_an_operand_that_is_written_is_found() -> None:
    targets, places = launched("gemm f32", mode=("gemm",))
    places["B"].view[0, 0] += 1
    assert "operand B" in outcome.judge(targets, places)


def test_sums_of_integers_are_compared_to_the_bit() -> None:
    """One unit in the last place of f16 is found."""
    targets, places = launched("gemm f16 bf16", mode=("gemm",), source=("none",))
    for index in range(300):
        case = draw_case(draw_kernel(7, index, ["gemm f16 bf16"]), 1, small=True)
        functor = case.kernel.operation.epilogue_functor
        if not case.problem.numbers.integers or case.mode != "gemm" or functor.activation is not None:
            continue
        _, targets, places = launch_gemm(case.problem, case.kernel.operation, None, "cpu")
        if case.problem.source == "in place" or float(targets[0].truth.error.max()) > 0:
            continue
        view = targets[0].place.view
        view.copy_(targets[0].truth.rounded())
        assert outcome.judge(targets, places) == ""
        flat = view.view({2: torch.int16, 4: torch.int32, 1: torch.int8}[view.element_size()])
        flat[0, 0] ^= 1
        assert "1 of" in outcome.judge(targets, places)
        return
    raise AssertionError("no case is exact")


def test_bounds_are_far_below_the_results() -> None:
    """A bound by which a wrong element could pass would be as large as what sums usually are."""
    for index in range(60):
        case = draw_case(draw_kernel(9, index, ["gemm f16 bf16"]), 0)
        if case.mode != "gemm" or case.problem.numbers.scalars[0] == 0:
            continue
        _, targets, _ = launch_gemm(case.problem, case.kernel.operation, case.kernel.reduction, "cpu")
        truth = targets[0].truth
        if truth.output.is_integer or case.kernel.operation.epilogue_functor.activation is not None:
            continue
        usual = float(truth.value.square().mean().sqrt())
        assert float(truth.error.max()) <= 0.1 * usual, case


_SERIAL = [("s32", 0.3), ("s32", 0.5), ("f16", 0.7), ("bf16", 1.0)]


@pytest.mark.parametrize(("output", "alpha"), _SERIAL)
def test_serial_slices_may_round_each(output: str, alpha: float) -> None:
    """What three slices make, each of which is rounded to D's type, passes; what is further off does not."""
    if output == "s32":
        operand, accumulator, shape, operation = "s8", "s32", (16, 8, 32), MathOperation.multiply_add_saturate
    else:
        operand, accumulator, shape, operation = "f16", "f32", (16, 8, 16), MathOperation.multiply_add
    types = (TAG[operand], TAG[operand], TAG[accumulator])
    math = MathInstruction(shape, *types, cutlass.OpClass.TensorOp, operation)
    functor = LinearCombination(TAG[output], 4, TAG[accumulator], cutlass.float32)
    generator = torch.Generator().manual_seed(5)
    A, B = (torch.randint(-9, 10, each, generator=generator).double() for each in ((40, 96), (96, 48)))
    how = {"integers": True, "products": 96, "slices": 3}
    truth = expected(math, functor, torch.matmul, (A, B), None, (alpha, 0.0), serial=True, **how)
    dtype, D = truth.rounded().dtype, torch.zeros((40, 48), dtype=torch.float64)
    for begin in range(0, 96, 32):
        D = D + alpha * (A[:, begin : begin + 32] @ B[begin : begin + 32])
        D = (D.round() if output == "s32" else D).to(dtype).double()
    assert compare(truth, D.to(dtype)) == ""
    worst = int(truth.value.abs().argmin())
    D.view(-1)[worst] += 100
    assert "1 of" in compare(truth, D.to(dtype))


@pytest.mark.parametrize("kind", [gelu, gelu_tanh, hardswish, sigmoid, silu, tanh])
def test_an_approximate_activation_is_wrong(kind: Any) -> None:
    """What is rounded once passes; what is off by as much as the GPU's own approximation of tanh does not."""
    float32 = cutlass.float32
    math = MathInstruction((16, 8, 16), cutlass.float16, cutlass.float16, float32, cutlass.OpClass.TensorOp)
    functor = LinearCombinationGeneric(kind(float32), float32, 4, float32, float32)
    A, B = (torch.arange(1, 9).double().reshape(each) / 8 for each in ((8, 1), (1, 8)))
    truth = expected(math, functor, torch.matmul, (A, B), None, (1.0, 0.0), integers=True, products=1)
    assert compare(truth, truth.value.float()) == ""
    assert "64 of 64" in compare(truth, (truth.value * (1 + 2.0**-11)).float())


def test_only_our_refusals_are_no_failures() -> None:
    assert outcome.refused(AlignmentError("a"))
    assert not outcome.refused(ArgumentTypeError("b"))
    assert not outcome.refused(DriverError("cuLaunchKernel", 1, "c"))
    assert not outcome.refused(ValueError("d"))


# Counting


def test_a_process_that_dies_fails_its_case_alone(capsys: pytest.CaptureFixture[str]) -> None:
    options = session.Options(1, 60, 5, [], None, False, 0, 1)
    running = session.Session(options)
    running._waiting, running._dead_starts = session.deque(), 0
    kernel = draw_kernel(1, 4)
    restarted = []
    runner = SimpleNamespace(task=session._Work(kernel, []), since=0.0, restart=lambda: restarted.append(1))
    running._hear_runner(runner, ("begun", 4, 2))
    running._lose(runner, "it died")
    assert restarted == [1]
    assert [failure["case"] for failure in running.tally.failures] == ["1:4:2"]
    assert running._waiting[0].first == 3
    assert not running.well
    assert "1:4:2" in capsys.readouterr().out


def test_what_does_not_build_is_a_failure(capsys: pytest.CaptureFixture[str]) -> None:
    running = session.Session(session.Options(1, 60, 5, [], None, True, 1, 1))
    running._waiting = session.deque()
    kernel = draw_kernel(1, 4)
    running._hear_builder(SimpleNamespace(task=kernel), (4, [], "CompileError: static assertion"))
    assert running.tally.total("not built") == 1
    assert running.tally.failures[0]["reason"] == "CompileError: static assertion"
    assert eval(running.tally.failures[0]["operation"], vars(kernels.gemm_kernels.pycutlass)) == kernel.operation
    assert not running.well
    capsys.readouterr()


def test_a_family_whose_problems_are_all_refused_is_told() -> None:
    counted = tally.Tally()
    kernel = draw_kernel(1, 4)
    counted.count(kernel.family, "kernels", 3)
    counted.add_case(kernel, 0, "gemm", ["K=3 is odd"], Outcome("refused", "p", "K=3 is odd"))
    assert counted.idle() == [kernel.family]
    counted.add_case(kernel, 1, "gemm", [], Outcome("right", "p"))
    assert counted.idle() == []


def test_the_digest_follows_what_makes_and_checks_kernels(tmp_path: Path) -> None:
    for name in (
        "pycutlass/families/table.py",
        "pycutlass/reference/gemm.py",
        "csrc/launch.cpp",
        "tools/fuzz/truth.py",
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("1\n")
    before = tally.code_digest(tmp_path)
    (tmp_path / "pycutlass/reference/gemm.py").write_text("2\n")
    assert tally.code_digest(tmp_path) == before
    for name in ("pycutlass/families/table.py", "csrc/launch.cpp", "tools/fuzz/truth.py"):
        (tmp_path / name).write_text("2\n")
        assert tally.code_digest(tmp_path) != before
        before = tally.code_digest(tmp_path)


def test_a_run_without_a_gpu(tmp_path: Path) -> None:
    words = ["--dry", "--no-compile", "--kernels", "3", "--minutes", "1.5", "--runners", "1", "--seed", "6"]
    command = [sys.executable, "-m", "tools.fuzz", *words, "--out", str(tmp_path)]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=170, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    result = json.loads((tmp_path / "fuzz-6.json").read_text(encoding="utf-8"))
    assert sum(counts["kernels"] for counts in result["families"].values()) == 3
    assert sum(counts["cases"] for counts in result["families"].values()) == sum(result["modes"].values()) == 15
    assert result["digest"] == tally.code_digest()
    assert ended.stdout.splitlines()[-2].split()[:4] == ["all", "3", "15", "0"]
