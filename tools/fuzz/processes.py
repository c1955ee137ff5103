"""Processes that build kernels and processes that run cases: whichever hangs or dies takes its own work along alone."""

from __future__ import annotations

import contextlib
import logging
import multiprocessing
import os
import signal
import time
import traceback
from collections.abc import Callable, Iterable, Sequence
from multiprocessing import connection
from typing import Any

from pycutlass.errors import NotCompiledError
from tools.fuzz import bundles
from tools.fuzz.cases import draw_case, needed, parts, run_case
from tools.fuzz.kernels import Kernel, draw_kernel
from tools.fuzz.outcome import Outcome

__all__ = ["Member", "Pool", "build", "give_artifacts", "run", "run_number"]

_SPAWN = multiprocessing.get_context("spawn")
_MOST_ATTEMPTS = 8  # problems in a row that may be refused
_PATIENCE = 5.0  # seconds between an interrupt and the end


class Member:
    """One process, what it works on and since when."""

    def __init__(self, work: Callable[..., None], arguments: tuple[Any, ...]) -> None:
        self._work, self._arguments = work, arguments
        self.task: Any = None
        self.since = time.monotonic()
        self._start()

    def _start(self) -> None:
        self.link, far = _SPAWN.Pipe()
        self.process = _SPAWN.Process(target=self._work, args=(far, *self._arguments), daemon=True)
        self.process.start()
        far.close()

    def give(self, task: Any, message: Any) -> None:
        """Have the process do something."""
        self.task, self.since = task, time.monotonic()
        with contextlib.suppress(OSError):  # it has died, which whoever waits for it will see
            self.link.send(message)

    def restart(self) -> None:
        """Replace a process that is dead, or hangs."""
        self.interrupt()
        self.end()
        self.task = None
        self._start()

    def interrupt(self) -> None:
        """Ask the process to end, and the compilers that it started."""
        if self.process.is_alive():
            os.kill(self.process.pid or 0, signal.SIGINT)

    def end(self) -> None:
        """Wait until an interrupted process has ended, and end it by force where that takes long."""
        self.process.join(_PATIENCE)
        if self.process.is_alive():
            self.process.kill()
            self.process.join()
        self.link.close()


class Pool:
    """Some members that do the same."""

    def __init__(self, work: Callable[..., None], arguments: Iterable[tuple[Any, ...]]) -> None:
        self.members = [Member(work, each) for each in arguments]

    def idle(self) -> list[Member]:
        """Return who has nothing to do."""
        return [member for member in self.members if member.task is None]

    def heard(self, seconds: float) -> list[tuple[Member, Any]]:
        """Return what members have said, or None where one has died; wait at most so many seconds for it."""
        links = {member.link: member for member in self.members}
        said: list[tuple[Member, Any]] = []
        for link in connection.wait(list(links), seconds):
            member = links[link]  # type: ignore[index]
            try:
                said.append((member, member.link.recv()))
            except (EOFError, OSError):
                said.append((member, None))
        return said

    def end(self) -> None:
        """End all members at once."""
        for member in self.members:
            member.interrupt()
        for member in self.members:
            member.end()


# What builders do


def build(
    link: Any,
    seed: int,
    families: Sequence[str],
    problems: int,
    target: str | None,
    directory: str,
    only_finds: bool = False,
) -> None:
    """Compile the kernels whose numbers arrive, in the cache `directory`, and send back what was made.

    One that `only_finds` looks for them in the cache, whoever compiled them, and sends None where they are not there.
    """
    logging.getLogger("pycutlass").setLevel(logging.ERROR)  # spills of tiles that nobody would choose
    os.environ |= {"CUDA_VISIBLE_DEVICES": "", "PYCUTLASS_JOBS": "1", "PYCUTLASS_CACHE_DIR": directory}
    if only_finds:
        os.environ["PYCUTLASS_NO_COMPILE"] = "1"
        bundles.hide_compilers()
    os.nice(5)  # those that run cases come first: they are few, and what they do not run was built in vain
    with contextlib.suppress(KeyboardInterrupt, EOFError):
        while True:
            index = link.recv()
            try:
                kernel = draw_kernel(seed, index, families)
                link.send((index, _built(kernel, problems, target), ""))
            except Exception as error:
                passed_over = only_finds and isinstance(error, NotCompiledError)
                link.send((index, None, "") if passed_over else (index, [], traceback.format_exc()))
    os._exit(0)  # at once: what other libraries do at exit takes seconds, and may be interrupted once more


def _built(kernel: Kernel, problems: int, target: str | None) -> list[Any]:
    from pycutlass import compiler

    operations = needed(kernel, range(problems))
    compiler.add_module(operations, target=target)
    return [artifact for part in parts(operations) for artifact in part.artifacts.values()]


def give_artifacts(kernel: Kernel, artifacts: Iterable[Any], problems: int) -> None:
    """Hand over what another process has compiled for the first `problems` of a kernel."""
    by_name = {artifact.name: artifact for artifact in artifacts}
    for part in parts(needed(kernel, range(problems))):
        artifact = by_name.get(part.procedural_name())
        if artifact is not None:
            part.artifacts[artifact.target] = artifact


# What runners do


def run(link: Any, seed: int, families: Sequence[str], problems: int, gpu: str | None) -> None:
    """Run the cases of the kernels that arrive; `gpu` is None for the host."""
    logging.getLogger("pycutlass").setLevel(logging.ERROR)
    os.environ["CUDA_VISIBLE_DEVICES"] = gpu or ""
    with contextlib.suppress(KeyboardInterrupt, EOFError):
        _warm_up(gpu is not None)
        link.send(("ready",))
        while True:
            index, artifacts, first = link.recv()
            kernel = draw_kernel(seed, index, families)
            give_artifacts(kernel, artifacts, problems)
            for number in range(first, problems):
                link.send(("begun", index, number))
                refusals, mode, outcome = run_number(kernel, number, on_gpu=gpu is not None)
                link.send(("ended", index, number, mode, refusals, outcome))
                if outcome.verdict == "failed" and gpu is not None and _broken():
                    os._exit(1)
            link.send(("done", index))
    os._exit(0)


def run_number(kernel: Kernel, number: int, *, on_gpu: bool) -> tuple[list[str], str, Outcome]:
    """Run problem `number` of a kernel, or the first that is not refused; return the refusals, the mode and the end."""
    refusals: list[str] = []
    for attempt in range(_MOST_ATTEMPTS):
        case = draw_case(kernel, number, attempt, small=not on_gpu)
        try:
            outcome = run_case(case, "cuda" if on_gpu else "cpu")
        except Exception:
            outcome = Outcome("failed", repr(case.problem), traceback.format_exc())
        if outcome.verdict != "refused":
            break
        refusals.append(outcome.reason)
    return refusals, case.mode, outcome


def _warm_up(on_gpu: bool) -> None:
    import torch

    torch.set_num_threads(1)
    if on_gpu:
        A = torch.ones((8, 8), dtype=torch.float64, device="cuda")
        torch.cuda.synchronize()
        assert float((A @ A)[0, 0]) == 8


def _broken() -> bool:
    """Return whether this process can no longer use its GPU, as after an illegal address."""
    import torch

    try:
        torch.cuda.synchronize()
        torch.ones(1, device="cuda").add_(1).cpu()
    except Exception:
        return True
    return False
