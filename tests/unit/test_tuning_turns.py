"""Several problems in turns: the kernels of the next are compiled while one is measured, and nothing is left behind."""

from __future__ import annotations

import functools
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from tuned import GPU, MACHINE, PROBLEM, Instantly, Noisy, candidates

from pycutlass import compiler, device
from pycutlass.errors import ToolkitError
from pycutlass.trials import Database
from pycutlass.tuning import TuningOptions, compiling, tune, tuner
from pycutlass.tuning.known import Known
from pycutlass.tuning.race import Contestant
from pycutlass.tuning.turns import Early, Turn, Turns

PROBLEMS = [PROBLEM, replace(PROBLEM, m=2048), replace(PROBLEM, m=512)]


@pytest.fixture
def database(tmp_path):
    made = Database(tmp_path / "trials.db")
    yield made
    made.close()


class Scene:
    """Whoever compiles and measures, and what they did in which order."""

    def __init__(self) -> None:
        self.events: list[str] = []
        self.open: set[str] = set()

    def compiling(self, name: str, candidates: Sequence[Any], error: Exception | None = None) -> Any:
        scene = self

        class Compiling(Instantly):
            def ready(self, seconds: float) -> Any:
                if error is not None:
                    raise error
                found = super().ready(seconds)
                scene.events += [f"{name} compiled"] if found else []
                return found

            def close(self) -> None:
                scene.open.discard(f"compiling {name}")

        scene.events.append(f"{name} begun")
        scene.open.add(f"compiling {name}")
        return Compiling(candidates)

    def measurer(self, name: str) -> Any:
        scene = self

        class Measuring(Noisy):
            def measure(self, number: int, seconds: float) -> list[float]:
                if f"{name} measured" not in scene.events:
                    scene.events.append(f"{name} measured")
                return super().measure(number, seconds)

            def close(self) -> None:
                scene.open.discard(f"measuring {name}")

        scene.open.add(f"measuring {name}")
        return Measuring([10.0, 11.0, 20.0])


def turns() -> list[Turn]:
    return [
        Turn(each, [Contestant(candidate, each.kind, 1.0 + number) for number, candidate in enumerate(candidates(3))])
        for each in PROBLEMS
    ]


def raced(database: Database, scene: Scene, broken: str = "") -> list[Any]:
    options = TuningOptions(most_rounds=6)
    known = Known(database, MACHINE, options)

    def begin(turn: Turn) -> None:
        name = f"m={turn.problem.m}"
        error = ToolkitError("there is no compiler") if name == broken else None
        turn.begin(known, lambda several: scene.compiling(name, several, error), lambda _: scene.measurer(name))

    with Turns(turns()) as prepared:
        return [
            tuner._measured(prepared.take(begin), GPU, options, time.monotonic() + 20, known, lambda _: None)
            for _ in PROBLEMS
        ]


def test_the_next_kernels_are_compiled_while_one_is_measured(database):
    scene = Scene()
    reports = raced(database, scene)
    assert all(len(each.measured) == 3 for each in reports)
    assert scene.events.index("m=2048 begun") < scene.events.index("m=1024 measured")
    assert scene.events.index("m=2048 compiled") < scene.events.index("m=2048 measured")
    assert scene.events.index("m=1024 measured") < scene.events.index("m=512 begun"), "one problem ahead, no more"
    assert scene.open == set()


def test_what_cannot_be_compiled_is_said_in_its_turn(database):
    """The problem before it has been measured to the end."""
    scene = Scene()
    with pytest.raises(ToolkitError, match="there is no compiler"):
        raced(database, scene, broken="m=2048")
    assert len({each.candidate for each in database.trials(problem=PROBLEM.record())}) == 3
    assert scene.open == set()
    for candidate in candidates(3):  # and nothing stays claimed
        with database.claim(PROBLEMS[1].record(), candidate.choice(), MACHINE) as mine:
            assert mine


def test_what_another_tuner_claims_ahead_is_left_to_it(database):
    """The second problem is claimed as soon as it is compiled for, and not before."""
    scene = Scene()
    record = PROBLEMS[2].record()
    with database.claim(record, candidates(1)[0].choice(), MACHINE) as mine:
        assert mine
        reports = raced(database, scene)
    assert reports[2].elsewhere == 1 and len(reports[2].measured) == 2


def test_kernels_that_came_early_are_kept():
    class Slowly(Instantly):
        def ready(self, seconds: float) -> Any:
            return [(self._left.pop(0), [])] if self._left else []

    done: list[int] = []
    early = Early(Slowly(candidates(3)))
    early.when_done = lambda: done.append(1)
    early.collect()
    early.collect()
    assert not early.is_done and not done
    assert [number for number, _ in early.ready(0.0)] == [0, 1, 2] and early.is_done and done


def test_a_tuner_of_several_problems_prepares_them(database, monkeypatch):
    scene = Scene()
    monkeypatch.setattr(device, "require", lambda: None)
    monkeypatch.setattr(tuner, "_first_gpu", lambda: GPU)
    monkeypatch.setattr(tuner, "machine_of", lambda ordinal: MACHINE)
    monkeypatch.setattr(tuner, "_compiling", lambda several, *_: scene.compiling(f"of {len(several)}", several))

    tuned = functools.partial(tuner.tune_problem, measurer=lambda problem, _: scene.measurer(f"m={problem.m}"))
    monkeypatch.setattr(tuner, "tune_problem", tuned)
    report = tune(PROBLEMS, 20, database=database, most_candidates=3, most_rounds=6)
    assert [len(each.measured) for each in report] == [3, 3, 3] and scene.open == set()
    assert [event for event in scene.events if "compiled" not in event] == [
        *("of 3 begun", "of 3 begun", "m=1024 measured"),
        *("of 3 begun", "m=2048 measured", "m=512 measured"),
    ]


def test_no_kernel_is_compiled_for_the_sake_of_a_reduction(monkeypatch):
    """Beside one, `compile_many` makes a kernel of partial sums of each GEMM."""
    ranked = PROBLEM.ranked(GPU)
    divided = next(each.candidate for each in ranked if each.candidate.is_parallel)
    whole = next(each.candidate for each in ranked if not each.candidate.is_parallel)
    kernels = [kernel for each in (divided, whole) for kernel in compiling._alone(each)]
    asked = compiler.session.requests(kernels, "sm_90", "compile_many")
    assert [len(request.kernels) for each in asked for request in each] == [1, 1, 1]
    assert [each.source() for each in kernels] == [
        *(kernel.source() for kernel in divided.kernels),
        whole.operation.source(),
    ]
