"""cuBLAS and cuDNN beside candidates: what torch is asked to compute, in which rounds, and why there may be none."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterator
from typing import Any

import fake_gpu
import numpy as np
import pytest
from tuned import GPU, PROBLEM, Instantly, Noisy, contestants

from pycutlass import reference
from pycutlass.errors import ArgumentError
from pycutlass.trials import Database
from pycutlass.tuning import TuningOptions, conv2d_problem_of, group_problem_of, problem_of, vendor
from pycutlass.tuning.known import Known
from pycutlass.tuning.measuring import FailedError
from pycutlass.tuning.race import Race
from pycutlass.tuning.tuner import tune_problem
from pycutlass.tuning.vendor import Vendor, vendor_work

torch = pytest.importorskip("torch")


@pytest.fixture
def memory(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Let torch's CPU stand for its GPU: memory is arrays, by addresses that are made up."""
    kept: dict[int, Any] = {}

    def bytes_at(library: Any, address: int, size: int) -> Any:
        found = torch.from_numpy(kept[address].reshape(-1).view(np.uint8))
        assert len(found) == size
        return found

    def put(values: Any) -> int:
        kept[len(kept) + 1] = np.ascontiguousarray(values)
        return len(kept)

    monkeypatch.setattr(vendor, "_bytes_at", bytes_at)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    settings = (matmul, "allow_tf32"), (cudnn, "allow_tf32"), (cudnn, "benchmark")
    before = [(of, name, getattr(of, name)) for of, name in settings]
    yield put
    for each in before:  # which the process that measures has for itself
        setattr(*each)


def operands(problem: Any, number: int, seed: int = 0) -> tuple[Any, Any]:
    """Return A and B of a product, of small integers, as arrays by rows."""
    random, shapes, kind = np.random.default_rng(seed + number), problem.work().shapes[number], problem.kind
    a, b = (random.integers(-3, 4, shape) for shape in (shapes.a, shapes.b))
    return a.astype(kind.A.type.dtype), b.astype(kind.B.type.dtype)


def packed(values: Any, described: Any) -> Any:
    return values if described.is_row_major else values.swapaxes(-1, -2)


PRODUCTS: dict[str, Any] = {
    "f16": lambda: problem_of(24, 16, 32),
    "bf16 by other layouts": lambda: problem_of(24, 16, 32, dtype="bfloat16", layout="nt"),
    "f32": lambda: problem_of(24, 16, 32, dtype="float32", layout="nn"),
    "tf32 of a batch": lambda: problem_of(24, 16, 32, 3, dtype="tf32"),
    "int8": lambda: problem_of(24, 16, 32, dtype="int8"),
    "without an epilogue of pairs": lambda: problem_of(24, 16, 32, epilogue="bias_swiglu"),
    "a group": lambda: group_problem_of([8, 24, 16], 16, 32),
}


@pytest.mark.parametrize("name", PRODUCTS)
def test_torch_computes_the_product_of_the_same_operands(name: str, memory: Any) -> None:
    problem = PRODUCTS[name]()
    kind, count = problem.kind, len(problem.work().shapes)
    pairs = [operands(problem, number) for number in range(count)]
    A, B = ([memory(packed(each, of)) for each in side] for side, of in zip(zip(*pairs, strict=True), (kind.A, kind.B),
                                                                          strict=True))  # fmt: skip
    found = vendor_work(problem, A, B)()
    for (a, b), d in zip(pairs, found if count > 1 else [found], strict=True):
        exact = a.astype(np.float64) @ b.astype(np.float64)
        np.testing.assert_array_equal(d.double().numpy(), exact)
    assert torch.backends.cuda.matmul.allow_tf32 == name.startswith("tf32")


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("kind", ["fprop", "dgrad", "wgrad"])
def test_torch_computes_the_same_convolution(kind: str, groups: int, memory: Any) -> None:
    geometry: dict[str, Any] = {"stride": (2, 1), "padding": (1, 0), "dilation": (1, 1), "groups": groups}
    geometry |= {} if kind == "dgrad" else {"dilation": (1, 2)}
    problem = conv2d_problem_of(2, 9, 8, 8, 16, 3, 2, kind, dtype="float32", **geometry)
    a, b = operands(problem, 0)
    result = vendor_work(problem, [memory(a)], [memory(b)])()
    found = result if kind == "fprop" else result[0 if kind == "dgrad" else 1]
    candidate = problem.ranked(GPU)[0].candidate
    exact = reference.conv2d(candidate.operation, problem.problem_size, a, b, None, exact=True)
    np.testing.assert_array_equal(found.permute(0, 2, 3, 1).double().numpy(), exact)
    assert Vendor.of(problem).name == "cuDNN"


def test_what_torch_does_not_compute_is_said(memory: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    refused = {
        "torch does not multiply float16 and float16 to int8": problem_of(16, 16, 16, out_dtype="int8"),
        "torch has no batches of products of int8": problem_of(24, 16, 32, 2, dtype="int8"),
        "torch does not convolve int8 to int32": conv2d_problem_of(2, 8, 8, 16, 16, 3, 3, dtype="int8"),
        "torch does not compute it: ": problem_of(24, 16, 32, out_dtype="float32"),  # of the CPU
    }
    for said, problem in refused.items():
        a, b = operands(problem, 0)
        with pytest.raises(ArgumentError, match=f"^{said}"):
            vendor_work(problem, [memory(packed(a, problem.kind.A))], [memory(packed(b, problem.kind.B))])
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ArgumentError, match=r"it is called by torch, and torch .* sees no GPU"):
        vendor_work(PROBLEM, [1], [2])
    monkeypatch.setattr(vendor, "imported", lambda name: None)
    with pytest.raises(ArgumentError, match="it is called by torch, which is not installed"):
        vendor_work(PROBLEM, [1], [2])


class Beside(Noisy):
    """Measures the vendor's library, too."""

    def __init__(self, times: Any, vendor_time: float | str) -> None:
        super().__init__(times)
        self.vendor_time = vendor_time

    def measure_vendor(self, seconds: float) -> list[float]:
        self.asked.append(-1)
        if isinstance(self.vendor_time, str):
            raise FailedError("failed", self.vendor_time)
        return [self.vendor_time * self.drift] * 3


def raced(measurer: Beside) -> tuple[Vendor, list[Any]]:
    beside, given = Vendor("cuBLAS"), contestants(3)
    options = TuningOptions(vendor=True, most_rounds=30)
    race = Race(given, Instantly(given), measurer, options, time.monotonic() + 20, lambda each: None, vendor=beside)
    race.run()
    return beside, given


def test_it_is_measured_once_in_each_round_and_at_another_place() -> None:
    measurer = Beside([10.0, 10.1, 10.2], 11.0)
    beside, given = raced(measurer)
    rounds = max(len(each.times) for each in given) // 3
    assert measurer.asked.count(-1) == rounds == len(beside.times) // 3 and not beside.reason
    places = [turn % 3 for turn, number in enumerate(measurer.asked) if number == -1]
    assert len(set(places)) > 1


def test_what_it_lacks_is_said_once_and_costs_no_candidate_anything() -> None:
    measurer = Beside([10.0, 11.0, 12.0], "torch has none")
    beside, given = raced(measurer)
    assert measurer.asked.count(-1) == 1 and beside.reason == "torch has none" and not beside.times
    assert all(each.status == "ok" for each in given)


def test_reports_compare_with_what_was_measured_in_the_same_rounds_alone(tmp_path: Any) -> None:
    from tuned import MACHINE

    database, options = Database(tmp_path / "trials.db"), TuningOptions(most_candidates=3, vendor=True)

    def tuned(measurer: Any) -> Any:
        known, until = Known(database, MACHINE, options), time.monotonic() + 20
        return tune_problem(
            PROBLEM, contestants(3), GPU, options, until, known, measurer=lambda *_: measurer, compiling=Instantly
        )

    report = tuned(Beside([10.0, 20.0, 30.0], 15.0))
    best = report.measured[0]
    assert report.vendor_speed(best) == pytest.approx(report.vendor_time / best.median)
    assert "cuBLAS, by torch" in str(report) and report.titles[-1] == "% of cuBLAS"
    again = tuned(Beside([10.0, 20.0, 30.0], 15.0))
    assert again.vendor_speed(again.measured[0]) is None
    assert "cuBLAS is not in the table: the candidates' times were known before; measure them" in str(again)
    known = dataclasses.replace(report.measured[1], is_known=True)
    mixed = dataclasses.replace(report, contestants=(report.contestants[0], known))
    assert mixed.vendor_speed(known) is None and [row[-1] for row in mixed.rows()] == ["100", mixed.rows()[1][-1], ""]
    assert [each["vendor_speed"] is None for each in mixed.facts()] == [False, False, True]
    none = dataclasses.replace(report, vendor=None)
    assert none.remark == "" and len(none.titles) == 8 and len(none.facts()) == 3
    alone = dataclasses.replace(report, problem=dataclasses.replace(PROBLEM, source="bias"))
    assert alone.remark.endswith("computes the same product, without what the epilogue does")
    database.close()


def test_the_process_that_measures_says_what_torch_lacks() -> None:
    fake_gpu.run("""
from pycutlass import timing
from pycutlass.errors import ArgumentError
from pycutlass.plan import GemmKind
from pycutlass.tuning import Problem, TuningOptions
from pycutlass.tuning.bench import GpuBench
timing._LEAST_FLUSHED_BYTES = 3000
operation = gemm()
math = operation.tile_description.math_instruction
kind = GemmKind(operation.A, operation.B, operation.C, operation.D, math.element_a, math.element_b,
                math.element_accumulator, math.math_operation, operation.epilogue_functor)
made = GpuBench(Problem(kind, 20, 12, 16), TuningOptions())
try:
    made.measure_vendor()
except ArgumentError as error:
    assert "it is called by torch" in str(error), error
else:
    raise AssertionError("not said")
from pycutlass.tuning import bench
bench.vendor_work = lambda problem, a, b: lambda: None
assert len(made.measure_vendor()) == 3
""")
