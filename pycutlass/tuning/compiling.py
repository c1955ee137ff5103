"""Kernels compiled while others are measured: in a process beside this one, or on a farm behind an Executor."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from pycutlass import compiler
from pycutlass.cache import KernelCache
from pycutlass.errors import CacheError, PyCutlassError, ToolkitError
from pycutlass.source import WrittenKernel
from pycutlass.tuning.child import Child, ChildEndedError, ChildHangsError
from pycutlass.tuning.farm import check_executor, submitted, told_by
from pycutlass.tuning.measuring import Artifacts
from pycutlass.tuning.tunable import AnyCandidate

__all__ = ["FarmCompiling", "LocalCompiling", "compiled", "serve_compiler"]


class LocalCompiling:
    """Compiles in a child process, which can be stopped at any moment with all of its compilers.

    Parameters
    ----------
    candidates : sequence of Candidate, Conv2dCandidate or GroupCandidate
        The first are compiled first.
    target : str
        What they are built for.
    jobs : int, optional
        How many compilers run at once. Default: as ``PYCUTLASS_JOBS``, cores and memory say.
    tmp_dir : Path, optional
        Where the child's messages are kept.
    """

    def __init__(
        self, candidates: Sequence[AnyCandidate], target: str, jobs: int | None = None, tmp_dir: Path | None = None
    ) -> None:
        self._missing = len(candidates)
        environment = {} if jobs is None else {"PYCUTLASS_JOBS": str(jobs)}
        self._child = Child("pycutlass.tuning.compiling:serve_compiler", tmp_dir=tmp_dir, environment=environment)
        try:
            self._child.send((list(candidates), target))
        except ChildEndedError as error:
            self._child.end()
            raise ToolkitError(f"the process that compiles candidates has ended: {error}") from None

    @property
    def is_done(self) -> bool:
        """Whether every candidate has its result."""
        return not self._missing

    def ready(self, seconds: float) -> list[tuple[int, Artifacts | str]]:
        """Return what is done since the last time, waiting so long for the first.

        Raises
        ------
        ToolkitError
            There is no compiler, or the process that compiles has ended.
        """
        found: list[tuple[int, Artifacts | str]] = []
        try:
            while self._missing:
                result = self._child.receive(0.0 if found else seconds)
                if isinstance(result, PyCutlassError):
                    raise result
                found.append(result)
                self._missing -= 1
        except ChildHangsError:  # it has nothing yet
            pass
        except ChildEndedError as error:
            raise ToolkitError(f"the process that compiles candidates has ended: {error}") from None
        return found

    def close(self) -> None:
        """Stop compiling; what has compiled stays in the cache."""
        self._child.end()


class FarmCompiling:
    """Compiles behind a `concurrent.futures.Executor`; what comes back is kept in the cache here.

    Parameters
    ----------
    candidates : sequence of Candidate, Conv2dCandidate or GroupCandidate
        A job each.
    target : str
        What they are built for.
    executor : Executor
        Where jobs go.

    Raises
    ------
    ArgumentTypeError, ToolkitError
        It is no executor, or takes no jobs.
    """

    def __init__(self, candidates: Sequence[AnyCandidate], target: str, executor: Any) -> None:
        self._cache = KernelCache()
        check_executor(executor)
        self._futures: dict[Future[Artifacts | str], int] = {}
        try:
            for number, candidate in enumerate(candidates):
                self._futures[submitted(executor, compiled, candidate, target)] = number
        except PyCutlassError:
            self.close()
            raise

    @property
    def is_done(self) -> bool:
        """Whether every job has its result."""
        return not self._futures

    def ready(self, seconds: float) -> list[tuple[int, Artifacts | str]]:
        """Return what is done since the last time, waiting so long for the first."""
        done, _ = wait(self._futures, timeout=seconds, return_when=FIRST_COMPLETED)
        return [(self._futures.pop(future), self._result(future)) for future in done]

    def close(self) -> None:
        """Give up the jobs that have not begun."""
        for future in self._futures:
            future.cancel()
        self._futures.clear()

    def _result(self, future: Future[Artifacts | str]) -> Artifacts | str:
        try:
            made = future.result()
        except Exception as error:  # of the farm, whatever library it is
            return f"its job failed: {told_by(error)}"
        if not isinstance(made, str):
            with contextlib.suppress(CacheError):  # kernels are here all the same
                for by_target in made:
                    for artifact in by_target.values():
                        self._cache.put(artifact)
        return made


def compiled(candidate: AnyCandidate, target: str) -> Artifacts | str:
    """Return the kernels of a candidate for a target, or why there are none: a job that any machine can do.

    It needs compilers and no GPU. Kernels are bytes, which any executor carries.
    """
    kernels = _alone(candidate)
    try:
        compiler.add_module(kernels, target=target)
    except PyCutlassError as error:
        return str(error).partition("\n")[0]
    return [dict(kernel.artifacts) for kernel in kernels]


def _alone(candidate: AnyCandidate) -> list[WrittenKernel]:
    """Return the kernels of a candidate as text.

    Beside what adds up partial sums, GEMMs and convolutions would get a kernel of such sums, which those candidates
    that divide K have themselves, and the others do not need.
    """
    return [WrittenKernel(each.source(), getattr(each, "follows", False)) for each in candidate.kernels]


def serve_compiler(connection: Connection) -> None:
    """Compile in a process that `LocalCompiling` has started, and send each result as soon as it is there."""
    candidates, target = connection.recv()
    made = [_alone(candidate) for candidate in candidates]
    kernels = [kernel for each in made for kernel in each]
    owner = [number for number, each in enumerate(made) for _ in each]
    missing = [len(each) for each in made]
    failed: set[int] = set()
    try:
        for done in compiler.compile_many(kernels, target=target):
            number = owner[done.position]
            missing[number] -= 1
            if isinstance(done.result, Exception):
                if number not in failed:
                    connection.send((number, str(done.result).partition("\n")[0]))
                failed.add(number)
            elif not missing[number] and number not in failed:
                connection.send((number, [dict(kernel.artifacts) for kernel in made[number]]))
    except PyCutlassError as error:
        connection.send(error)
    while True:  # until the parent has read it all
        time.sleep(3600)
