"""Problems and measurers for the tests of the tuner."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Sequence
from multiprocessing.connection import Connection
from typing import Any

import pycutlass
from pycutlass import cutlass
from pycutlass.device import Device
from pycutlass.errors import ArgumentError, DriverError
from pycutlass.plan import GemmKind, ranking
from pycutlass.trials import Machine
from pycutlass.tuning import Problem
from pycutlass.tuning.measuring import FailedError, WrongResultError, serve
from pycutlass.tuning.race import Contestant

__all__ = [
    "GPU",
    "HERE",
    "MACHINE",
    "PROBLEM",
    "At",
    "Instantly",
    "Noisy",
    "candidates",
    "contestants",
    "kind",
    "serve_fake",
    "serve_unable",
]

HERE = "tuned"
GPU = Device(0, "NVIDIA H200", 90, 132)
MACHINE = Machine(GPU.name, GPU.sm_count, 90, "4.2.0", "nvcc 13.0.88", "0.1.0", 700)


def kind(alignment: int = 8) -> GemmKind:
    f16, f32 = cutlass.float16, cutlass.float32
    row = pycutlass.TensorDescription(f16, cutlass.RowMajor, alignment)
    functor = pycutlass.LinearCombination(f16, alignment, f32, f32)
    return GemmKind(row, row, row, row, f16, f16, f32, pycutlass.MathOperation.multiply_add, functor)


PROBLEM = Problem(kind(), 1024, 1024, 1024)


def candidates(count: int) -> list[Any]:
    return [each.candidate for each in ranking(PROBLEM.kind, *PROBLEM.extents, gpu=GPU)[:count]]


def contestants(count: int) -> list[Contestant]:
    return [Contestant(each, PROBLEM.kind, 1.0 + number) for number, each in enumerate(candidates(count))]


class Instantly:
    """Compiles all at once; those in `broken` do not compile."""

    def __init__(self, candidates: Sequence[Any], *rest: Any, broken: Sequence[int] = ()) -> None:
        self._left = list(range(len(candidates)))
        self._broken, self.closed = set(broken), False

    @property
    def is_done(self) -> bool:
        return not self._left

    def ready(self, seconds: float) -> list[Any]:
        found = [(number, "error: it does not compile" if number in self._broken else []) for number in self._left]
        self._left.clear()
        return found

    def close(self) -> None:
        self.closed = True


class At(Instantly):
    """Gives a kernel at each moment that is asked for one."""

    def ready(self, seconds: float) -> list[Any]:
        return [(self._left.pop(0), [])] if self._left else []


class Noisy:
    """Measures by rolling dice: a time of each candidate, with noise that has a long tail to one side."""

    def __init__(self, times: Sequence[float], seed: int = 0, noise: float = 0.02, rate: float = 1.0005) -> None:
        self.times, self._noise, self._random = times, noise, random.Random(seed)
        self.asked: list[int] = []
        self.wrong: set[int] = set()
        self.drift, self._rate = 1.0, rate

    def check(self, number: int, candidate: Any, artifacts: Any) -> None:
        if number in self.wrong:
            raise FailedError("wrong", "1 of 4 elements is wrong")

    def measure(self, number: int, seconds: float) -> list[float]:
        self.asked.append(number)
        self.drift *= self._rate  # the clock goes down as the GPU gets warm
        return [self.times[number] * self.drift * (1 + self._random.expovariate(1 / self._noise)) for _ in range(3)]

    def close(self) -> None:
        return


class _Fake:
    """What a child measures with here: the split of K says how a candidate behaves."""

    def __init__(self, problem: Problem, options: Any) -> None:
        self._number: dict[int, Any] = {}

    def expect(self, candidate: Any) -> None:
        return

    def prepare(self, number: int, candidate: Any, artifacts: Any, is_checked: bool) -> None:
        self._number[number] = artifacts
        behaviour = artifacts
        if is_checked and behaviour == "wrong":
            raise WrongResultError("D is wrong")
        if is_checked and behaviour == "refused":
            raise ArgumentError("it does not take these operands")

    def measure(self, number: int) -> list[float]:
        behaviour = self._number[number]
        if behaviour == "hangs":
            time.sleep(1000)
        if behaviour == "crashes":
            os.kill(os.getpid(), signal.SIGSEGV)
        if behaviour == "breaks":
            raise DriverError("cuStreamSynchronize", 700, "an illegal memory access")
        return [10.0 + number, 10.1 + number, 10.2 + number]


def serve_fake(connection: Connection) -> None:
    serve(connection, _Fake)


def serve_unable(connection: Connection) -> None:
    def make(problem: Problem, options: Any) -> Any:
        raise ArgumentError("it has no memory for operands")

    serve(connection, make)
