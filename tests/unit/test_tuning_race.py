"""Candidates in turns: who is found, who is given up, and that time is kept. No GPU: the times are made up."""

from __future__ import annotations

import math
import random
import time
from typing import Any

import pytest
from tuned import At, Instantly, Noisy, candidates, contestants

from pycutlass.tuning import TuningOptions
from pycutlass.tuning.race import Contestant, Race


def race(
    measurer: Any, count: int, seconds: float = 20.0, compiling: Any = None, **options: Any
) -> tuple[list[Contestant], list[Contestant]]:
    found, kept = contestants(count), []
    kernels = compiling or Instantly(candidates(count))
    Race(found, kernels, measurer, TuningOptions(**options), time.monotonic() + seconds, kept.append).run()
    return found, kept


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("how", [Instantly, At])
def test_the_fastest_is_found_in_noise(seed, how):
    times = [100 * (1 + 0.04 * number) for number in range(12)]
    random.Random(seed).shuffle(times)
    found, _ = race(Noisy(times, seed), 12, compiling=how(candidates(12)), seed=seed)
    best = min(found, key=lambda each: each.median)
    assert times[found.index(best)] == 100


def test_a_clock_that_goes_down_favours_nobody():
    """Measured one after the other, the first would win: each visit finds the clock one percent slower."""
    measurer = Noisy([104.0, 100.0], noise=0.002, rate=1.01)
    found, _ = race(measurer, 2, least_rounds=30)
    assert measurer.drift > 1.1
    assert found[1].median < found[0].median


def test_hopeless_candidates_are_given_up_early():
    measurer = Noisy([100.0, 101.0, 400.0, 130.0])
    found, _ = race(measurer, 4)
    asked = [measurer.asked.count(number) for number in range(4)]
    assert asked[2] == 1 and asked[3] < asked[0] and asked[0] > 3
    assert [each.status for each in found] == ["ok"] * 4


def test_the_order_changes_from_round_to_round():
    measurer = Noisy([100.0] * 4, noise=0.2)
    race(measurer, 4, least_rounds=30)
    rounds = {tuple(measurer.asked[at : at + 4]) for at in range(0, 40, 4)}
    assert len(rounds) > 2 and all(sorted(each) == [0, 1, 2, 3] for each in rounds)


def test_wrong_results_disqualify_the_fastest():
    measurer = Noisy([1.0, 100.0])
    measurer.wrong = {0}
    found, kept = race(measurer, 2)
    assert (found[0].status, found[0].reason) == ("wrong", "1 of 4 elements is wrong")
    assert found[0].timing is None and 0 not in measurer.asked
    assert found[0] in kept and found[1].median > 100


def test_what_does_not_compile_is_told():
    found, kept = race(Noisy([1.0, 100.0]), 2, compiling=Instantly(candidates(2), broken=[0]))
    assert (found[0].status, found[0].reason) == ("failed", "error: it does not compile")
    assert not any(each is found[0] for each in kept) and found[1].status == "ok"


def test_the_budget_is_kept():
    class Slow(Noisy):
        def measure(self, number: int, seconds: float) -> list[float]:
            time.sleep(0.02)
            return super().measure(number, seconds)

    begun = time.monotonic()
    found, kept = race(Slow([100.0] * 16), 16, seconds=0.5, most_rounds=100_000)
    assert 0.4 < time.monotonic() - begun < 1.0
    assert all(each.times for each in found) and len(kept) >= 16


def test_the_budget_is_kept_while_nothing_compiles():
    class Never(Instantly):
        def ready(self, seconds: float) -> list[Any]:
            time.sleep(seconds)
            return []

    begun = time.monotonic()
    found, kept = race(Noisy([100.0]), 1, seconds=0.5, compiling=Never(candidates(1)))
    assert 0.4 < time.monotonic() - begun < 1.0
    assert found[0].status == "waiting" and not kept


def test_an_interrupt_loses_nothing_that_was_measured():
    class Interrupted(Noisy):
        def measure(self, number: int, seconds: float) -> list[float]:
            if len(self.asked) == 7:
                raise KeyboardInterrupt
            return super().measure(number, seconds)

    found, kept = contestants(3), []
    with pytest.raises(KeyboardInterrupt):
        Race(
            found,
            Instantly(candidates(3)),
            Interrupted([100.0] * 3),
            TuningOptions(),
            time.monotonic() + 20,
            kept.append,
        ).run()
    assert {id(each) for each in kept} == {id(each) for each in found}
    assert sum(len(each.times) for each in found) == 21


def test_what_is_measured_often_enough_is_kept_at_once():
    """A process that is killed cannot keep anything any more."""
    found, kept = contestants(2), []

    class Watched(Noisy):
        def measure(self, number: int, seconds: float) -> list[float]:
            if len(self.asked) == 4:
                assert len(kept) == 2 and all(len(each.times) == 6 for each in kept)
            return super().measure(number, seconds)

    measurer = Watched([100.0, 100.0])
    Race(found, Instantly(candidates(2)), measurer, TuningOptions(), time.monotonic() + 20, kept.append).run()
    assert len(measurer.asked) > 4


def test_the_first_valid_one_is_enough():
    measurer = Noisy([300.0, 200.0, 100.0])
    measurer.wrong = {0}
    found, _ = race(measurer, 3, find_first_valid=True)
    assert set(measurer.asked) == {1} and len(measurer.asked) == 2
    assert found[1].status == "ok" and found[2].status == "waiting"


@pytest.mark.parametrize("seed", range(3))
def test_the_interval_has_the_median_as_often_as_it_says(seed):
    draw, hits, each = random.Random(seed), 0, contestants(1)[0]
    for _ in range(400):
        each.times = [draw.expovariate(1.0) for _ in range(30)]
        low, high = each.interval
        hits += low <= math.log(2) <= high
    assert 0.93 <= hits / 400 < 1.0
