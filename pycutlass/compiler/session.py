"""The story of one `add_module`: what is asked for, what the cache has, what is compiled, what becomes of it.

`compile_many` tells the same story, kernel by kernel (``many``).
"""

from __future__ import annotations

import functools
import logging
import threading
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from pycutlass import config
from pycutlass.cache import Artifact, KernelCache, make_key
from pycutlass.calls import counted, public, shown
from pycutlass.compiler.build import build
from pycutlass.compiler.choice import Choice, Wanted, choose_target, portable_fields, recall, several_targets
from pycutlass.compiler.installed import InstalledKernels
from pycutlass.compiler.missing import at_hand, forbidden, forbidden_without_compilers
from pycutlass.compiler.schedule import Job, make_processes, run_all
from pycutlass.compiler.tools import Tools, find_device_compiler, search
from pycutlass.errors import ArgumentError, ArgumentTypeError, BuildReportError, PyCutlassError, ToolkitError
from pycutlass.integers import attribute
from pycutlass.log import logger, say_once
from pycutlass.report import NO_PROBLEMS, BuildReport
from pycutlass.source import Compilable, KernelSource
from pycutlass.toolchain import Processes
from pycutlass.toolkit import own_headers_digest, sweep_scratch

__all__ = ["Request", "Supply", "add_module", "backend", "checked", "judge", "nvcc", "nvrtc", "requests", "strictly"]


@public
def add_module(
    operations: Iterable[Compilable], *, target: str | Sequence[str] | None = None, strict: bool | None = None
) -> list[Artifact]:
    """Give every operation its compiled kernel, from the cache where it is there, else from the compilers.

    Equal operations are compiled once, different ones in parallel. Kernels that compile stay in the cache even if
    others of the same call do not.

    Parameters
    ----------
    operations : iterable of operations
        What to compile; the result is also kept in ``operation.artifacts[target]``.
    target : str or sequence of str, optional
        What to build for, for example ``"sm_80"``, or several, ``["sm_80", "sm_90"]``. Default: ``PYCUTLASS_TARGET``,
        else the present GPU, else what the operation was written for (a reduction is built for what the others of the
        call are built for).
    strict : bool, optional
        Whether register spills, a stack frame or serialised wgmma are errors. Default: ``PYCUTLASS_STRICT``.

    Returns
    -------
    list[Artifact]
        One for each operation, in order; of several targets, one for each target of the first operation, then of the
        second, and so on.

    Raises
    ------
    ArgumentError
        If an operation cannot be built for a target, there is none in a list of them, or a variable says what it
        cannot.
    ArgumentTypeError
        If `operations` holds something else, `target` is neither a string nor a list of them, or `strict` neither True
        nor False.
    BuildReportError
        In strict mode, if a kernel is not as fast as it should be.
    CompileError
        If a compiler refuses a kernel.
    NotCompiledError
        If something would have to be compiled and ``PYCUTLASS_NO_COMPILE`` is set.
    ToolkitError
        If there is no compiler, and the cache does not have every kernel.
    """
    asked = requests(checked(operations, "add_module"), target, "add_module")
    refuses_problems = strictly(strict)
    artifacts = _obtain({want: None for each in asked for request in each for _, want in request.kernels})
    judge(artifacts.values(), refuses_problems)
    for each in asked:
        for request in each:
            for operation, want in request.kernels:
                operation.artifacts[want.target] = artifacts[want]
    several = target is not None and not isinstance(target, str)
    return [artifacts[request.kernels[0][1]] for each in asked for request in each[0 if several else -1 :]]


@public
def backend() -> str:
    """Return the device compiler that `add_module` would use, ``"nvcc"`` or ``"nvrtc"``.

    Raises
    ------
    ArgumentError
        If ``PYCUTLASS_BACKEND`` is neither.
    ToolkitError
        If it is not there.
    """
    return find_device_compiler(_session.backend, _session.cache().memo)[0]


@public
def nvcc() -> None:
    """Compile with nvcc from now on, in this process."""
    _session.backend = "nvcc"


@public
def nvrtc() -> None:
    """Compile with NVRTC from now on, in this process; no nvcc is needed."""
    _session.backend = "nvrtc"


class _Session:
    """What stays between two calls: the chosen backend, the open cache, and the package of kernels."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._cache: KernelCache | None = None
        self.backend: str | None = None
        self.installed = InstalledKernels()

    def cache(self) -> KernelCache:
        """Return the kernel cache of the directory that is configured now."""
        directory = config.cache_directory()
        with self._lock:
            if self._cache is None or self._cache.path.parent != directory:
                self._cache = KernelCache(directory)
            return self._cache


# One per process, since a script chooses its backend once for all modules, as `pycutlass.compiler.nvrtc()` says, and
# every thread shares the cache. Each method guards what it changes.
_session = _Session()


@dataclass(frozen=True, eq=False)
class Request:
    """One operation for one target.

    Attributes
    ----------
    position : int
        Of the operation in the list that was given.
    operation : operation
        The operation itself.
    kernels : list of pairs
        What is launched for it, with what is compiled for that: itself first, then kernels that it launches besides.
    """

    position: int
    operation: Compilable
    kernels: list[tuple[Compilable, Wanted]]


def checked(operations: Iterable[Compilable], who: str) -> list[Compilable]:
    """Return `operations` as a list, or say what is wrong with them; `who` is the function that they were given to."""
    if attribute(operations, "artifacts") is not None:
        raise ArgumentTypeError(f"{who} takes a list of operations: write {who}([operation])")
    if not isinstance(operations, Iterable):
        raise ArgumentTypeError(f"{who} takes a list of operations, got {shown(operations)}: write {who}([operation])")
    listed: list[Compilable] = []
    try:
        for operation in operations:  # which may have no end: each is looked at when it comes
            if isinstance(operation, type):
                raise ArgumentTypeError(
                    f"{who} takes a list of operations, and item {len(listed)} is the class {operation.__name__}: "
                    f"describe an operation with it, {operation.__name__}(...)"
                )
            if attribute(operation, "artifacts") is None or not callable(attribute(operation, "source")):
                raise ArgumentTypeError(
                    f"{who} takes a list of operations, and item {len(listed)} is {shown(operation)}"
                )
            listed += (operation,)
    except PyCutlassError:
        raise
    except Exception as error:  # of whoever walks along them
        raise ArgumentTypeError(f"{who} takes a list of operations, got {shown(operations)}") from error
    return listed


def requests(operations: Sequence[Compilable], target: str | Sequence[str] | None, who: str) -> list[list[Request]]:
    """Return what is asked for of each of `operations`: one request for each of its targets.

    Raises
    ------
    ArgumentError
        An operation cannot be built for a target, or there is none in a list of them.
    ArgumentTypeError
        `target` is neither a string nor a list of them.
    """
    # What each needs compiled beside the others: itself, and kernels that it launches besides.
    each_parts = [
        [operation] if (parts := getattr(operation, "parts", None)) is None else parts(operations)
        for operation in operations
    ]
    built_for = iter(_built_for(checked([part for group in each_parts for part in group], who), target))
    made = []
    for position, (operation, group) in enumerate(zip(operations, each_parts, strict=True)):
        rows = [[(part, want) for want in next(built_for)] for part in group]
        rows.sort(key=lambda row: row[0][0] is not operation)  # itself first
        made.append([Request(position, operation, list(kernels)) for kernels in zip(*rows, strict=True)])
    return made


def _built_for(parts: Sequence[Compilable], target: str | Sequence[str] | None) -> list[list[Wanted]]:
    """Return what each of `parts` is built for: the targets that are named, or else one, or those that it follows."""
    sources = [part.source() for part in parts]
    if target is not None and not isinstance(target, str):
        targets = several_targets(target)
        return [[Wanted(source, choose_target(source, one)) for one in targets] for source in sources]
    try:
        wants = [[Wanted(source, choose_target(source, target))] for source in sources]
    except ArgumentError:
        _refuse_hardest(sources, target)
        raise
    follows = [getattr(part, "follows", False) for part in parts]
    leading = {
        want.target
        for source, each, behind in zip(sources, wants, follows, strict=True)
        for want in each
        if not (behind or source.native)  # what one architecture alone runs has no kernels behind it
    }
    return [
        [Wanted(source, one) for one in sorted(leading)] if behind and leading else each
        for source, each, behind in zip(sources, wants, follows, strict=True)
    ]


def _refuse_hardest(sources: Sequence[KernelSource], target: str | None) -> None:
    """Raise what is said of the most demanding kernel: what does for it does for all."""
    for source in sorted(sources, key=lambda each: (each.compute_capability, each.native), reverse=True):
        choose_target(source, target)


def strictly(strict: bool | None) -> bool:
    """Return whether kernels with a problem are refused."""
    if strict is not None and not isinstance(strict, bool):
        raise ArgumentTypeError(
            f"strict must be True, False or None for what PYCUTLASS_STRICT says; got {shown(strict)}"
        )
    return config.flag("PYCUTLASS_STRICT") if strict is None else strict


def judge(artifacts: Collection[Artifact], strict: bool) -> None:
    """Warn of kernels with a problem, also those that come from the cache; refuse them in strict mode."""
    judged = []
    for artifact in artifacts:
        if NO_PROBLEMS.items() <= artifact.report.items():  # as almost all are
            continue
        try:
            problems = BuildReport.from_json(artifact.report).problems(is_native=artifact.target.endswith("a"))
        except ValueError as error:
            problems = [f"its build report in the cache is not whole, so nothing is known of it: {error}"]
        judged.append((artifact, problems))
    listed = [f"  {artifact.name}: {problem}" for artifact, problems in judged for problem in problems]
    if strict and listed:
        bad = sum(bool(problems) for _, problems in judged)
        raise BuildReportError(
            "\n".join([f"{_refused(bad, len(artifacts))}:", *listed])
            + "\nDescribe them differently, or pass strict=False to use them as they are."
        )
    for artifact, problems in judged:
        for problem in problems:  # once per process: whoever uses it should know, not only who compiled it
            say_once(f"{artifact.name} for {artifact.target}: {problem}")


def _refused(bad: int, kernels: int) -> str:
    return "strict mode refuses the kernel" if kernels == 1 else f"strict mode refuses {bad} of {kernels:,} kernels"


def _obtain(wanted: Iterable[Wanted]) -> dict[Wanted, Artifact]:
    """Return every kernel that is wanted: from the cache, and what it lacks from the compilers."""
    supply = Supply()
    found = {want: supply.look_up(want) for want in wanted}
    if not supply.confirmed():
        found = {want: supply.look_up(want) for want in wanted}
    found = {want: artifact or supply.installed(want) for want, artifact in found.items()}
    missing = [want for want, artifact in found.items() if artifact is None]
    built = dict(zip(missing, run_all(supply.jobs(missing), make_processes()), strict=True)) if missing else {}
    return {want: artifact or built[want] for want, artifact in found.items()}


class Supply:
    """Where the kernels of one call come from: the cache, the installed package and the compilers, as far as there are.

    What another search has found is taken at first, while other threads look whether that still holds; so what
    `look_up` returns is only to be used once it is `confirmed`.
    """

    def __init__(self) -> None:
        self._forbids = config.flag("PYCUTLASS_NO_COMPILE")  # read here: junk in it is refused whatever the cache has
        self._cache = _session.cache()
        self._tools: Tools | None = None
        self._recalled = recall(_session.backend, self._cache)
        if self._recalled:
            self._choice: Choice | None = self._recalled.choice
        else:
            self._search()

    def _search(self) -> None:
        self._recalled = self._choice = None
        try:
            self._choice = self._tools = _find_tools(self._cache)
        except ToolkitError as error:
            if not error.absent:  # something that was named, or that is installed, does not work
                raise
            self._absence, self._headers = error, own_headers_digest()
            say_once(f"kernels come from the cache alone: {error}", logging.INFO)
        else:
            _say_who_compiles(self._choice)

    def look_up(self, want: Wanted) -> Artifact | None:
        """Return what the cache has; without compilers, what was built elsewhere from the same text and headers."""
        if self._choice is None:
            return self._cache.find(**self._portable(want))
        return self._cache.get(make_key(self._choice.key_fields(want.source, want.target)))

    def installed(self, want: Wanted) -> Artifact | None:
        """Return what the installed package has; ask once it is `confirmed` what is here."""
        here = {} if self._choice is None else {"cutlass": self._choice.fields["cutlass"]}
        return _session.installed.find(self._portable(want) | here, _session.backend)

    def confirmed(self) -> bool:
        """Return whether what was looked up is right; else search anew, for everything to be looked up once more."""
        if self._recalled is None:
            return True
        if self._recalled.holds():
            _say_who_compiles(self._recalled.choice)
            self._recalled = None
            return True
        self._search()
        return False

    def _portable(self, want: Wanted) -> dict[str, str]:
        headers = self._headers if self._choice is None else self._choice.fields["headers"]
        return portable_fields(want.source, want.target, headers)

    def jobs(self, missing: Sequence[Wanted]) -> list[Job[Artifact]]:
        """Return what builds the kernels that the cache and the package lack.

        Raises
        ------
        NotCompiledError
            Nothing may be compiled.
        ToolkitError
            There is no compiler.
        """
        forbids = self._forbids
        if self._choice and not self._tools and not forbids:
            self._search()  # for the compilers themselves
        cache, choice, tools = self._cache, self._choice, self._tools
        if tools is not None and not forbids:
            logger.info("compiling %s", counted(len(missing), "kernel"))
            sweep_scratch()
            return [(want.source.name, functools.partial(_build_once, want, tools, cache)) for want in missing]
        package = _session.installed.said(self._portable(missing[0])["headers"], _session.backend)
        if choice is not None:
            raise forbidden(cache, package, missing, choice)
        if forbids:
            raise forbidden_without_compilers(cache, package, missing, self._headers, self._absence) from self._absence
        names = ", ".join(f"{want.source.name} for {want.target}" for want in missing)
        message = f"{self._absence}\nAnd the cache {cache.path} does not have {names}."
        raise ToolkitError(message + at_hand(cache, missing, self._headers) + package, absent=True) from self._absence


def _find_tools(cache: KernelCache) -> Tools:
    return search(_session.backend, cache)


def _say_who_compiles(choice: Choice) -> None:
    if logger.isEnabledFor(logging.INFO):
        compilers = f"{choice.fields['device_compiler']} and {choice.fields['host_compiler']}"
        say_once(f"kernels are compiled by {compilers}", logging.INFO)
    for note in choice.notes:
        say_once(note)


def _build_once(want: Wanted, tools: Tools, cache: KernelCache, processes: Processes) -> Artifact:
    """Build a kernel, unless another thread or process does so at this moment: then take what it made."""
    key = make_key(tools.key_fields(want.source, want.target))
    with cache.building(key):
        artifact = cache.get(key)
        if artifact is None:
            artifact = build(want.source, want.target, tools, processes)
            cache.put(artifact)
            report = BuildReport.from_json(artifact.report)
            logger.info("compiled %s for %s: %s", want.source.name, want.target, report.summary())
            judge([artifact], strict=False)
    return artifact
