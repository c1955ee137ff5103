"""What a database has measured, and the names that problems, epilogues and machines have there."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import pycutlass
from pycutlass import MathOperation, cutlass, device
from pycutlass.epilogue import Row
from pycutlass.plan import Candidate, GemmKind
from pycutlass.plan.measured import Recorded, fastest_measured, machine_of
from pycutlass.plan.records import name_of, problem_record
from pycutlass.trials import Database, Machine, Trial

F16, F32 = cutlass.float16, cutlass.float32
ROW = pycutlass.TensorDescription(F16, cutlass.RowMajor, 8)
H200 = Machine("NVIDIA H200", 132, 90, "4.2.0", "nvcc 13.0.88", "0.1.0")
SIZE = (256, 512, 128)


def kind(epilogue: Any = None, **changes: Any) -> GemmKind:
    functor = pycutlass.LinearCombination(F16, 8, F32, F32) if epilogue is None else epilogue
    made = GemmKind(ROW, ROW, ROW, ROW, F16, F16, F32, MathOperation.multiply_add, functor)
    return dataclasses.replace(made, **changes)


def candidate(described: GemmKind, m: int, **options: Any) -> Candidate:
    tile = pycutlass.TileDescription([m, 128, 32], 3, [2, 2, 1], described.instruction((16, 8, 16)))
    return Candidate(described.operation(tile), **options)


def measured(database: Database, described: GemmKind, choice: Any, time: float | None, size: Any = SIZE) -> None:
    times = {"status": "failed", "reason": "x"} if time is None else {"time": time, "low": time, "high": time}
    record = problem_record(described, *size)
    database.add(Trial(record, choice, H200, rounds=None if time is None else 9, **times))


def asked(described: GemmKind, size: Any = SIZE) -> Recorded[Candidate]:
    return Recorded(
        problem_record(described, *size),
        lambda choice: Candidate.of(described, choice),
        lambda each: each.operation.supports(each.size(*size)),
    )


def test_the_fastest_that_runs_here_is_found(tmp_path: Path) -> None:
    database, described = Database(tmp_path / "trials.db"), kind()
    assert fastest_measured(database, H200, asked(described)) is None
    small, large = candidate(described, 64), candidate(described, 128, split_k_slices=2)
    measured(database, described, small.choice(), 9.0)
    measured(database, described, large.choice(), 7.0)
    measured(database, described, {"tile": "of a later version"}, 1.0)
    measured(database, described, {**small.choice(), "threadblock": [96, 96, 32]}, 2.0)  # no kernel is described so
    measured(database, described, {**large.choice(), "split_k_slices": -1}, 3.0)
    found = fastest_measured(database, H200, asked(described))
    assert found is not None and found[0] == large and found[1].time == 7.0
    assert fastest_measured(database, H200, asked(described, (256, 512, 136))) is None
    assert fastest_measured(database, dataclasses.replace(H200, sm_count=131), asked(described)) is None
    measured(database, described, large.choice(), None)  # the latest trial of a candidate counts
    found = fastest_measured(database, H200, asked(described))
    assert found is not None and found[0] == small


def test_one_that_does_not_take_the_problem_is_passed_over(tmp_path: Path) -> None:
    database, described = Database(tmp_path / "trials.db"), kind()
    size = (256, 515, 128)  # rows of 515 elements are not aligned to 16 bytes
    measured(database, described, candidate(described, 64).choice(), 9.0, size)
    assert fastest_measured(database, H200, asked(described, size)) is None


@pycutlass.epilogue_function
def scaled(accum: Any, bias: Row) -> Any:
    return accum * 2.0 + bias


first = scaled


@pycutlass.epilogue_function  # type: ignore[no-redef]
def scaled(accum: Any, bias: Row) -> Any:
    return accum * 3.0 + bias


def test_whatever_a_time_depends_on_is_told_apart() -> None:
    column = dataclasses.replace(ROW, layout=cutlass.ColumnMajor)
    kinds = [
        kind(),
        kind(first(F16, 8)),
        kind(scaled(F16, 8)),
        kind(pycutlass.LinearCombination(F16, 4, F32, F32)),
        kind(A=column),
        kind(B=column),
        kind(A=pycutlass.TensorDescription(F16, cutlass.RowMajor, 4)),
        kind(element_accumulator=F16),
        kind(math_operation=MathOperation.multiply_add_fast_accum),
    ]
    records = [problem_record(each, *SIZE) for each in kinds]
    records += [problem_record(kinds[0], *size) for size in ((1, 512, 128), (256, 1, 128), (256, 512, 1))]
    records += [problem_record(kinds[0], *SIZE, batch) for batch in (1, 2)]
    texts = [repr(record) for record in records]
    assert len({*texts}) == len(texts)
    assert problem_record(kind(first(F16, 8)), *SIZE) == records[1]


def test_the_words_of_a_problem() -> None:
    record = problem_record(kind(), 1, 2, 3, 4)
    assert record == {
        **{"product": "gemm", "m": 1, "n": 2, "k": 3, "batch": 4},
        **dict.fromkeys("ABCD", "f16 t align 8"),
        "multiplied": "f16 x f16 -> f32, multiply_add",
        "epilogue": "LinearCombination(cutlass.float16, 8, cutlass.float32, cutlass.float32)",
    }


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    described = device.Device(1, "NVIDIA H200", 90, 132)
    monkeypatch.setattr(device, "describe", lambda ordinal=0: described)
    machine_of.cache_clear()


def libraries(monkeypatch: pytest.MonkeyPatch, address: Any, watts: Any) -> list[str]:
    """Stand in for the two modules of cuda.bindings that say which GPU it is, and what it may take."""
    driver, nvml = ModuleType("driver"), ModuleType("nvml")
    asked: list[str] = []
    driver.CUresult = type("CUresult", (), {"CUDA_SUCCESS": 0})  # type: ignore[attr-defined]
    driver.cuDeviceGetPCIBusId = lambda length, ordinal: address  # type: ignore[attr-defined]
    nvml.init_v2 = lambda: asked.append("init")  # type: ignore[attr-defined]
    nvml.shutdown = lambda: asked.append("shutdown")  # type: ignore[attr-defined]
    nvml.device_get_handle_by_pci_bus_id_v2 = lambda bus: asked.append(bus) or 7  # type: ignore[attr-defined]
    nvml.device_get_enforced_power_limit = watts  # type: ignore[attr-defined]
    bindings = ModuleType("cuda.bindings")
    bindings.driver, bindings.nvml = driver, nvml  # type: ignore[attr-defined]
    monkeypatch.setitem(__import__("sys").modules, "cuda.bindings", bindings)
    return asked


def test_functions_of_other_names_share_their_trials(tmp_path: Path) -> None:
    """A graph is what a kernel computes; tables say the name that was measured."""

    def doubled(accum: Any) -> Any:
        return accum * 2

    functions = [
        pycutlass.epilogue_function(each) for each in (doubled, lambda accum: accum * 2, lambda accum: accum * 3)
    ]
    kinds = [kind(each(F16, 8, F32, F32)) for each in functions]
    database = Database(tmp_path / "trials.db")
    choice = candidate(kinds[0], 64).choice()
    measured(database, kinds[0], choice, 9.0)
    found = [fastest_measured(database, H200, asked(each)) for each in kinds]
    assert [each is not None for each in found] == [True, True, False]
    [trial] = database.trials()
    for of in ({}, {"machine": H200}):
        same, other = (database.trials(problem=problem_record(each, *SIZE), **of) for each in kinds[1:])
        assert (same, other) == ([trial], [])
    with database.claim(problem_record(kinds[1], *SIZE), choice, H200) as mine:
        assert not mine  # it is known
    assert str(name_of(json.loads(trial.problem))).endswith(", doubled")
    assert trial.key == Trial({**json.loads(trial.problem), "epilogue_name": "y"}, choice, H200, 9.0, 9.0, 9.0, 9).key


def test_the_power_limit_is_that_of_the_same_gpu(monkeypatch: pytest.MonkeyPatch, gpu: None) -> None:
    asked = libraries(monkeypatch, (0, b"0000:3B:00.0\0\0\0"), lambda handle: 700_000)
    assert device.power_limit(1) == 700.0
    assert asked == ["init", "0000:3B:00.0", "shutdown"]
    machine = machine_of(1)
    assert (machine.gpu, machine.sm_count, machine.power_limit) == ("NVIDIA H200", 132, 700.0)
    assert machine.compiler.startswith(("nvcc ", "nvrtc "))


def test_without_nvml_the_power_limit_is_not_known(monkeypatch: pytest.MonkeyPatch, gpu: None) -> None:
    def refuses(handle: int) -> int:
        raise RuntimeError("Not Supported")

    asked = libraries(monkeypatch, (0, b"0000:3B:00.0\0"), refuses)
    assert device.power_limit(1) is None and asked[-1] == "shutdown"
    libraries(monkeypatch, (100, None), refuses)
    assert device.power_limit(1) is None
    monkeypatch.setitem(__import__("sys").modules, "cuda.bindings", None)
    assert device.power_limit(1) is None
