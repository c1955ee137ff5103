"""One run of the fuzz: kernels are drawn and built while others run, until time is up."""

from __future__ import annotations

import json
import os
import tempfile
import time
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks import common
from pycutlass import config
from tools.fuzz import bundles
from tools.fuzz.cases import needed, parts
from tools.fuzz.kernels import ExhaustedError, Kernel, draw_kernel
from tools.fuzz.outcome import Outcome
from tools.fuzz.processes import Member, Pool, build, run
from tools.fuzz.tally import Tally, code_digest, table

__all__ = ["Options", "Session"]

_BUILD_LIMIT = 240.0  # seconds, of each that is compiled for a kernel; what takes longer is a failure
_CASE_LIMIT = 60.0
_START_LIMIT = 180.0  # for a runner: imports, and the GPU's context
_MOST_DEAD_STARTS = 5  # runners that die before their first case, one after the other
_MOST_WAITING = 200  # kernels that are built and not yet run, beyond which none are built
_MOST_FINDERS = 4  # processes that look for kernels, of which each finds dozens in a second
_MOST_PASSED_OVER = 50  # kernels at once that a bundle lacks, before others are listened to
_SHOWN_FAILURES = 20
_TICK = 0.05


@dataclass(frozen=True)
class Options:
    """What is asked for; see the command line."""

    seed: int
    seconds: float
    problems: int
    gpus: list[str]
    target: str | None
    compiles: bool
    builders: int
    runners: int
    most_kernels: int | None = None
    families: tuple[str, ...] = ()
    bundle: Path | None = None


@dataclass
class _Work:
    """A kernel whose cases run."""

    kernel: Kernel
    artifacts: list[Any]
    first: int = 0
    current: int | None = None


@dataclass
class Session:
    """A run, and what it found."""

    options: Options
    tally: Tally = field(default_factory=Tally)
    seconds: float = 0.0

    def run(self) -> None:
        """Do it."""
        self._begun = time.monotonic()
        self._index, self._names, self._built = 0, set[str](), set[str]()
        self._waiting: deque[_Work] = deque()
        self._dead_starts, self._told = 0, self._begun
        options = self.options
        with tempfile.TemporaryDirectory(prefix="pycutlass-fuzz-", ignore_cleanup_errors=True) as directory:
            named = os.environ.get("PYCUTLASS_CACHE_DIR")
            self._cache = config.cache_directory() if named else Path(directory)
            self._content = bundles.unpack(options.bundle, self._cache) if options.bundle else None
            self._start()
            try:
                while not self._finished():
                    self._step()
            finally:
                self._end_builders()
                self._runners.end()
                self.seconds = time.monotonic() - self._begun
                self._keep()

    def _start(self) -> None:
        """Start the processes."""
        options = self.options
        what = (options.seed, options.families, options.problems)
        count = options.builders if options.compiles else 0
        count = min(count, _MOST_FINDERS) if options.bundle else count
        where = (options.target, str(self._cache), options.bundle is not None)
        places: list[str | None] = [gpu for gpu in options.gpus for _ in range(options.runners)]
        places = places or [None] * options.runners
        self._builders = Pool(build, [(*what, *where)] * count)
        self._runners = Pool(run, ((*what, place) for place in places))
        for runner in self._runners.members:
            runner.task = "starting"

    def _keep(self) -> None:
        """Keep what was built, before the cache that it is in may go."""

    # Time

    @property
    def _left(self) -> float:
        return self.options.seconds - (time.monotonic() - self._begun)

    @property
    def _draws(self) -> bool:
        """Whether there is time for another kernel."""
        most = self.options.most_kernels
        margin = min(45.0, 0.15 * self.options.seconds)
        if self._content is not None and self._content.is_exhausted:
            return False
        return self._left > margin and (most is None or len(self._names) < most)

    def _finished(self) -> bool:
        if self._left < min(4.0, 0.02 * self.options.seconds):
            return True
        busy = any(member.task is not None for member in (*self._builders.members, *self._runners.members))
        return not self._draws and not busy and not self._waiting

    def _step(self) -> None:
        if self._left < min(15.0, 0.05 * self.options.seconds):
            self._end_builders()  # what is built by then is run
        if self._draws and len(self._waiting) < _MOST_WAITING:
            self._feed_builders()
        for member, said in self._builders.heard(_TICK):
            self._hear_builder(member, said)
        for runner in self._runners.idle():
            if self._waiting:
                work = self._waiting.popleft()
                runner.give(work, (work.kernel.index, work.artifacts, work.first))
        for member, said in self._runners.heard(_TICK):
            self._hear_runner(member, said)
        self._end_late()
        self._tell()

    # Building

    def _feed_builders(self) -> None:
        if not self.options.compiles:
            if len(self._waiting) < 2 * len(self._runners.members) and (kernel := self._next_kernel()):
                self._accept(kernel, [])
            return
        for builder in self._builders.idle():
            kernel = self._next_kernel() if self._draws else None
            if kernel:
                builder.give(kernel, kernel.index)

    def _next_kernel(self) -> Kernel | None:
        """Return the next kernel that there has not been; of a bundle, the next that is in it."""
        for _ in range(_MOST_PASSED_OVER):
            kernel = self._draw() if self._draws else None
            if kernel is None or self._content is None or self._content.has(self._compiled(kernel)):
                return kernel
            self.tally.count(kernel.family, "passed over")
        return None

    def _compiled(self, kernel: Kernel) -> list[str]:
        """Return the names of all that is compiled for a kernel."""
        return [part.procedural_name() for part in parts(needed(kernel, range(self.options.problems)))]

    def _draw(self) -> Kernel | None:
        """Return the next kernel, unless there has been an equal one."""
        index, self._index = self._index, self._index + 1
        try:
            kernel = draw_kernel(self.options.seed, index, self.options.families)
        except ExhaustedError as error:
            print(f"== {error}", flush=True)
            self.tally.failures.append({"case": f"{self.options.seed}:{index}", "kind": "failed", "reason": str(error)})
            return None
        self.tally.count(kernel.family, "redrawn", kernel.refused)
        if kernel.name in self._names:
            return None
        self._names.add(kernel.name)
        return kernel

    def _hear_builder(self, builder: Member, said: Any) -> None:
        kernel: Kernel = builder.task
        if said is None:
            self._fail_build(kernel, f"the process that built it ended with {builder.process.exitcode}")
            builder.restart()
            return
        _, artifacts, error = said
        builder.task = None
        if error:
            self._fail_build(kernel, error)
        elif artifacts is None:
            self.tally.count(kernel.family, "passed over")
        else:
            self._accept(kernel, artifacts)

    def _accept(self, kernel: Kernel, artifacts: list[Any]) -> None:
        self.tally.count(kernel.family, "kernels")
        self._built.add(kernel.name)
        self._waiting.append(_Work(kernel, artifacts))

    def _fail_build(self, kernel: Kernel | None, reason: str) -> None:
        if kernel is not None:
            self.tally.count(kernel.family, "not built")
            self.tally.add_failure(kernel, "", "not built", reason)
            print(f"== not built: {kernel.seed}:{kernel.index} {kernel.name}", flush=True)

    def _end_builders(self) -> None:
        for builder in self._builders.members:
            if builder.task is not None:
                self.tally.count(builder.task.family, "unfinished")
        self._builders.end()
        self._builders.members.clear()

    # Running

    def _hear_runner(self, runner: Member, said: Any) -> None:
        if said is None:
            runner.process.join(1)
            self._lose(runner, f"its process died with {runner.process.exitcode}")
            return
        what, *rest = said
        runner.since = time.monotonic()
        if what in ("ready", "done"):
            runner.task, self._dead_starts = None, 0
        elif what == "begun":
            runner.task.current = rest[1]
        else:
            _, number, mode, refusals, outcome = rest
            work: _Work = runner.task
            work.current, work.first = None, number + 1
            self._add(work.kernel, number, mode, refusals, outcome)

    def _lose(self, runner: Member, reason: str) -> None:
        """Replace a runner, count the case that it was at as failed, and have another go on with the rest."""
        work, begun = runner.task, isinstance(runner.task, _Work)
        if begun and work.current is not None:
            self._add(work.kernel, work.current, "?", [], Outcome("failed", "", reason))
            work.first, work.current = work.current + 1, None
        elif runner.task == "starting":
            self._dead_starts += 1
            if self._dead_starts > _MOST_DEAD_STARTS:
                raise SystemExit(f"no process that runs cases can start: the last one, {reason}")
        if begun and work.first < self.options.problems:
            self._waiting.appendleft(work)
        runner.restart()
        runner.task, runner.since = "starting", time.monotonic()

    def _add(self, kernel: Kernel, number: int, mode: str, refusals: list[str], outcome: Outcome) -> None:
        self.tally.add_case(kernel, number, mode, refusals, outcome)
        if outcome.verdict in ("wrong", "failed"):
            last = outcome.reason.strip().splitlines()[-1]
            print(f"== {outcome.verdict}: {kernel.seed}:{kernel.index}:{number} {kernel.name}\n   {last}", flush=True)

    def _end_late(self) -> None:
        now = time.monotonic()
        for builder in self._builders.members:
            if builder.task is None or now - builder.since <= _BUILD_LIMIT:
                continue
            limit = _BUILD_LIMIT * len(self._compiled(builder.task))
            if now - builder.since > limit:
                self._fail_build(builder.task, f"it was not built after {limit:.0f} s")
                builder.restart()
        for runner in self._runners.members:
            limit = _START_LIMIT if runner.task == "starting" else _CASE_LIMIT
            if runner.task is not None and now - runner.since > limit:
                self._lose(runner, f"it took longer than {limit:.0f} s")

    def _tell(self) -> None:
        if time.monotonic() - self._told > 20:
            self._told = time.monotonic()
            bad = len(self.tally.failures)
            counts = f"{self.tally.total('kernels')} kernels, {self.tally.total('cases')} cases, {bad} failures"
            print(f"{self._left:.0f} s left: {counts}, {len(self._waiting)} kernels wait", flush=True)

    # Results

    @property
    def well(self) -> bool:
        """Whether nothing was found, something was run, and no family was left out."""
        return not self.tally.failures and self.tally.total("cases") > 0 and not self._idle

    @property
    def _idle(self) -> list[str]:
        return self.tally.idle()

    def show(self) -> None:
        """Print failures, refusals, and last the table."""
        for failure in self.tally.failures[:_SHOWN_FAILURES]:
            dry = "" if self.options.gpus else " --dry"
            print(f"\n{failure['kind']}: python -m tools.fuzz --case {failure['case']}{dry}")
            print(*(f"  {name}: {text}" for name, text in failure.items() if name not in ("case", "kind")), sep="\n")
        if len(self.tally.failures) > _SHOWN_FAILURES:
            print(f"\nand {len(self.tally.failures) - _SHOWN_FAILURES} failures more")
        for name in self._idle:
            print(f"\n{name}: every problem was refused")
        if passed_over := self.tally.total("passed over"):
            print(f"\n{passed_over} kernels were passed over, which {self.options.bundle} lacks")
        print(f"\nseed {self.options.seed}, {self.seconds:.0f} s, {self._where}, code {code_digest()}")
        print(", ".join(f"{mode} {count}" for mode, count in sorted(self.tally.modes.items())))
        print(*table(self.tally.families), sep="\n", flush=True)

    @property
    def _where(self) -> str:
        return f"{len(self.options.gpus)} GPUs" if self.options.gpus else "the host's reference"

    def write(self, out: Path, commit: str = "") -> Path:
        """Write the counts and failures as JSON, and return where."""
        out.mkdir(parents=True, exist_ok=True)
        environment = common.environment()
        if commit:
            environment["commit"] = commit
        result = {
            "environment": environment,
            "seed": self.options.seed,
            "digest": code_digest(),
            "seconds": round(self.seconds, 1),
            "gpus": len(self.options.gpus),
            "families": {name: dict(counts) for name, counts in self.tally.families.items()},
            "kernels": " ".join(sorted(name[-12:] for name in self._built)),
            "modes": dict(self.tally.modes),
            "refusals": dict(self.tally.refusals.most_common(40)),
            "failures": self.tally.failures,
        }
        path = out / f"fuzz-{self.options.seed}.json"
        path.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
        return path
