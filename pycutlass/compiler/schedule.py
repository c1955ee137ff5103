"""Many kernels at once: as many compilers as cores and memory allow, and every failure told."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, as_completed, wait
from pathlib import Path
from typing import TypeVar

from pycutlass import config
from pycutlass.calls import counted
from pycutlass.errors import ArgumentError, CompileError
from pycutlass.toolchain import Processes

__all__ = ["Job", "make_processes", "run_all", "run_each"]

_Result = TypeVar("_Result")
#: What is to be done, under the name that a progress bar shows.
Job = tuple[str, Callable[[Processes], _Result]]
_PATIENCE = 2.0  # seconds without a progress bar, and for jobs that were stopped to end
_UNLIMITED = 1 << 62
_CONTROL_GROUP = Path("/sys/fs/cgroup")


def make_processes() -> Processes:
    """Return the compilers' places: ``PYCUTLASS_JOBS``, or as many as there are cores, and memory for them.

    Raises
    ------
    ArgumentError
        If ``PYCUTLASS_JOBS`` is not a positive number.
    """
    text = config.text("PYCUTLASS_JOBS")
    if text is None:
        return Processes(len(os.sched_getaffinity(0)), _available_memory())
    if not text.isdecimal() or len(text) > 9 or int(text) == 0:  # Python reads no more than 4300 digits
        raise ArgumentError(f"PYCUTLASS_JOBS is the most compilers to run at once, 1 to 999999999; it is {text!r}")
    return Processes(int(text), _UNLIMITED)


def run_all(jobs: Sequence[Job[_Result]], processes: Processes) -> list[_Result]:
    """Run every named job and return what they return, in order; where some fail, the others are finished first.

    Raises
    ------
    CompileError
        The one that a job failed with, or one that tells of all of them. Other exceptions pass as they are.
    """
    with _started(jobs, processes) as futures:
        _wait_for(futures, [name for name, _ in jobs])
    errors = [error for future in futures if (error := future.exception())]
    if errors:
        raise _one_of(errors, len(jobs))
    return [future.result() for future in futures]


def run_each(
    jobs: Sequence[Job[_Result]], processes: Processes
) -> Generator[tuple[int, _Result | CompileError], None, None]:
    """Run every named job and yield each as it gets done: its number, and what it returns or the CompileError.

    The jobs begin with the first `next` and go on while the caller looks at what is done. Where the caller closes the
    iterator, or a job fails with anything but a CompileError, which is raised, the others are stopped.
    """
    with _started(jobs, processes) as futures:
        numbers = {future: number for number, future in enumerate(futures)}
        for future in as_completed(futures):
            error = future.exception()
            if error is not None and not isinstance(error, CompileError):
                raise error
            yield numbers[future], error or future.result()


@contextlib.contextmanager
def _started(jobs: Sequence[Job[_Result]], processes: Processes) -> Iterator[list[Future[_Result]]]:
    """Have the jobs run. Where the body ends with an exception they are stopped: no compiler may outlive the call."""
    pool = ThreadPoolExecutor(min(len(jobs), processes.jobs), "pycutlass")
    futures: list[Future[_Result]] = []
    try:
        futures += (pool.submit(job, processes) for _, job in jobs)
        yield futures
    except BaseException:  # KeyboardInterrupt and GeneratorExit above all
        processes.stop()
        pool.shutdown(wait=False, cancel_futures=True)
        wait([future for future in futures if not future.cancelled()], timeout=_PATIENCE)
        raise
    pool.shutdown()


def _wait_for(futures: Sequence[Future[_Result]], names: Sequence[str]) -> None:
    """Wait for all `futures`, with a progress bar on a terminal if it takes a while."""
    _, pending = wait(futures, timeout=_PATIENCE)
    if not pending:
        return
    with _progress_bar(len(futures)) as show:
        while pending:
            show(len(futures) - len(pending), next(n for n, f in zip(names, futures, strict=True) if f in pending))
            _, pending = wait(pending, return_when=FIRST_COMPLETED)


@contextlib.contextmanager
def _progress_bar(total: int) -> Iterator[Callable[[int, str], None]]:
    """Give a function to call with the number that is done and a name that is not, shown on a terminal."""
    if not sys.stderr.isatty():
        yield lambda done, name: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    bar = (TextColumn("compiling"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*bar, TextColumn("{task.description}"), console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("", total=total)
        yield lambda done, name: progress.update(task, completed=done, description=name)


def _one_of(errors: Sequence[BaseException], total: int) -> BaseException:
    """Return what to raise for `errors`: the only one, or the first that is not a CompileError, or one for all."""
    other = next((error for error in errors if not isinstance(error, CompileError)), None)
    if other is not None or len(errors) == 1:
        return other or errors[0]
    refused = [error for error in errors if isinstance(error, CompileError)]
    summary = "\n\n".join(f"({number}) {error}" for number, error in enumerate(refused, 1))
    first = refused[0]
    failure = CompileError(f"{len(refused)} of {counted(total, 'kernel')} cannot be compiled.\n\n{summary}")
    failure.log, failure.source, failure.command = first.log, first.source, first.command
    failure.__cause__ = ExceptionGroup("all that failed", refused)
    return failure


def _available_memory() -> int:
    """Return the bytes that this process may still take: of the machine, or of its container where that is less."""
    return min(_machine_memory(), _container_memory())


def _machine_memory() -> int:
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) << 10
    return _UNLIMITED


def _container_memory() -> int:
    for limit, used in (
        ("memory.max", "memory.current"),
        ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes"),
    ):
        with contextlib.suppress(OSError, ValueError):  # no such control group, or "max"
            return int((_CONTROL_GROUP / limit).read_text()) - int((_CONTROL_GROUP / used).read_text())
    return _UNLIMITED
