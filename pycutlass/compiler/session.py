"""The story of one `add_module`: what is asked for, what the cache has, what is compiled, what becomes of it.

`compile_many` tells the same story, kernel by kernel.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import threading
from collections.abc import Collection, Generator, Iterable, Mapping, Sequence
from typing import NamedTuple

from pycutlass import config
from pycutlass.cache import Artifact, KernelCache, make_key
from pycutlass.calls import counted, public, shown
from pycutlass.compiler.build import build
from pycutlass.compiler.missing import at_hand, forbidden
from pycutlass.compiler.schedule import Job, make_processes, run_all, run_each
from pycutlass.compiler.tools import Choice, Tools, find_device_compiler, portable_fields, recall, search
from pycutlass.compiler.wanted import Request, Wanted, checked, requests
from pycutlass.errors import ArgumentTypeError, BuildReportError, CompileError, ToolkitError
from pycutlass.log import logger, say_once
from pycutlass.report import NO_PROBLEMS, BuildReport
from pycutlass.source import Compilable
from pycutlass.toolchain import Processes
from pycutlass.toolkit import own_headers_digest, sweep_scratch

__all__ = ["Compiled", "add_module", "backend", "compile_many", "nvcc", "nvrtc"]


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
        If an operation cannot be built for a target, or there is none in a list of them.
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
    strictly = _strictly(strict)
    artifacts = _obtain({want: None for each in asked for request in each for _, want in request.kernels})
    _judge(artifacts.values(), strictly)
    for each in asked:
        for request in each:
            for operation, want in request.kernels:
                operation.artifacts[want.target] = artifacts[want]
    several = target is not None and not isinstance(target, str)
    return [artifacts[request.kernels[0][1]] for each in asked for request in each[0 if several else -1 :]]


class Compiled(NamedTuple):
    """What has become of one operation for one target.

    Attributes
    ----------
    position : int
        Of the operation in the list that was given.
    operation : operation
        The operation.
    target : str
        What it was built for, for example ``"sm_90a"``.
    result : Artifact or CompileError
        The kernel, or why there is none.
    """

    position: int
    operation: Compilable
    target: str
    result: Artifact | CompileError


@public
def compile_many(
    operations: Iterable[Compilable], *, target: str | Sequence[str] | None = None, strict: bool | None = None
) -> Generator[Compiled, None, None]:
    """Give operations their compiled kernels, and say of each what has become of it as soon as that is known.

    Where `add_module` waits for all and raises for any, this takes failures as results: for candidates of which some
    may not compile. Those in the cache come first, in the order of `operations`, then the others as they get done.
    Equal operations are compiled once, and each has its result. As many compilers run at once as cores and memory
    carry (``PYCUTLASS_JOBS``), also while the caller looks at what is done.

    Nothing begins before the first `next`. Closing the iterator, or dropping it, stops the compilers; what has compiled
    stays in the cache.

    Parameters
    ----------
    operations : iterable of operations
        As for `add_module`. Successful results are also kept in ``operation.artifacts[target]``.
    target : str or sequence of str, optional
        As for `add_module`; of several targets, each operation has a result for each.
    strict : bool, optional
        As for `add_module`; a kernel that is not as fast as it should be has a BuildReportError as its result.

    Returns
    -------
    generator of Compiled
        With fields ``position``, ``operation``, ``target`` and ``result``, an Artifact or a CompileError. An operation
        that needs several kernels has a result when all are done; of those that fail, the first.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        At once, as for `add_module`.
    NotCompiledError
        While iterating, behind those in the cache: something would have to be compiled and ``PYCUTLASS_NO_COMPILE`` is
        set.
    ToolkitError
        While iterating: there is no compiler, behind those in the cache, or one cannot be started.

    Examples
    --------
    >>> from pycutlass import compiler
    >>> for done in compiler.compile_many([]):
    ...     print(done.operation.procedural_name(), done.result)
    """
    asked = requests(checked(operations, "compile_many"), target, "compile_many")
    return _stream([request for each in asked for request in each], _strictly(strict))


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
    """What stays between two calls: the chosen backend and the open cache."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._cache: KernelCache | None = None
        self.backend: str | None = None

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


def _strictly(strict: bool | None) -> bool:
    """Return whether kernels with a problem are refused."""
    if strict is not None and not isinstance(strict, bool):
        raise ArgumentTypeError(
            f"strict must be True, False or None for what PYCUTLASS_STRICT says; got {shown(strict)}"
        )
    return config.flag("PYCUTLASS_STRICT") if strict is None else strict


def _stream(asked: Sequence[Request], strict: bool) -> Generator[Compiled, None, None]:
    """Yield the result of every request when all of its kernels are done."""
    waiting: dict[Wanted, list[Request]] = {}
    for request in asked:
        for want in dict.fromkeys(want for _, want in request.kernels):
            waiting.setdefault(want, []).append(request)
    results: dict[Wanted, Artifact | CompileError] = {}
    with contextlib.closing(_results(list(waiting), strict)) as arriving:
        for want, result in arriving:
            results[want] = result
            for request in waiting[want]:
                if all(each in results for _, each in request.kernels):
                    yield _compiled(request, results)


def _compiled(request: Request, results: Mapping[Wanted, Artifact | CompileError]) -> Compiled:
    """Return what has become of a request, and give the operation its kernels where all of them are there."""
    own = request.kernels[0][1]
    made = {want: result for _, want in request.kernels if isinstance(result := results[want], Artifact)}
    failures = (results[want] for _, want in request.kernels if want not in made)
    if failure := next(failures, None):
        return Compiled(request.position, request.operation, own.target, failure)
    for operation, want in request.kernels:
        operation.artifacts[want.target] = made[want]
    return Compiled(request.position, request.operation, own.target, made[own])


def _results(wanted: Sequence[Wanted], strict: bool) -> Generator[tuple[Wanted, Artifact | CompileError], None, None]:
    """Yield every kernel that is wanted or why there is none: what the cache has, then what the compilers make."""
    if not wanted:
        return
    supply, missing = _Supply(), []
    supply.confirmed()
    for want in wanted:
        artifact = supply.look_up(want)
        if artifact is None:
            missing.append(want)
        else:
            yield want, _judged(artifact, strict)
    if missing:
        with contextlib.closing(run_each(supply.jobs(missing), make_processes())) as done:
            for number, result in done:
                yield missing[number], result if isinstance(result, CompileError) else _judged(result, strict)


def _judge(artifacts: Collection[Artifact], strict: bool) -> None:
    """Warn of kernels with a problem, also those that come from the cache; refuse them in strict mode."""
    judged = []
    for artifact in artifacts:
        if NO_PROBLEMS.items() <= artifact.report.items():  # as almost all are
            continue
        try:
            problems = BuildReport.from_json(artifact.report).problems()
        except ValueError as error:
            problems = [f"its build report in the cache is not whole, so nothing is known of it: {error}"]
        judged.append((artifact, problems))
    listed = [f"  {artifact.name}: {problem}" for artifact, problems in judged for problem in problems]
    if strict and listed:
        bad = sum(bool(problems) for _, problems in judged)
        raise BuildReportError(
            "\n".join([f"strict mode refuses {bad} of {counted(len(artifacts), 'kernel')}:", *listed])
            + "\nDescribe them differently, or pass strict=False and unset PYCUTLASS_STRICT to use them as they are."
        )
    for artifact, problems in judged:
        for problem in problems:  # once per process: whoever uses it should know, not only who compiled it
            say_once(f"{artifact.name} for {artifact.target}: {problem}")


def _judged(artifact: Artifact, strict: bool) -> Artifact | CompileError:
    try:
        _judge([artifact], strict)
    except BuildReportError as error:
        return error
    return artifact


def _obtain(wanted: Iterable[Wanted]) -> dict[Wanted, Artifact]:
    """Return every kernel that is wanted: from the cache, and what it lacks from the compilers."""
    supply = _Supply()
    found = {want: supply.look_up(want) for want in wanted}
    if not supply.confirmed():
        found = {want: supply.look_up(want) for want in wanted}
    missing = [want for want, artifact in found.items() if artifact is None]
    built = dict(zip(missing, run_all(supply.jobs(missing), make_processes()), strict=True)) if missing else {}
    return {want: artifact or built[want] for want, artifact in found.items()}


class _Supply:
    """Where the kernels of one call come from: the cache and, where there are any, the compilers.

    What another search has found is taken at first, while other threads look whether that still holds; so what
    `look_up` returns is only to be used once it is `confirmed`.
    """

    def __init__(self) -> None:
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
            say_once(f"kernels come from the cache alone. {error}", logging.INFO)
        else:
            _say_who_compiles(self._choice)

    def look_up(self, want: Wanted) -> Artifact | None:
        """Return what the cache has; without compilers, what was built elsewhere from the same text and headers."""
        if self._choice is None:
            return self._cache.find(**portable_fields(want.source, want.target, self._headers))
        return self._cache.get(make_key(self._choice.key_fields(want.source, want.target)))

    def confirmed(self) -> bool:
        """Return whether what was looked up is right; else search anew, for everything to be looked up once more."""
        if self._recalled is None:
            return True
        if self._recalled.glimpse.is_the_same():
            _say_who_compiles(self._recalled.choice)
            self._recalled = None
            return True
        self._search()
        return False

    def jobs(self, missing: Sequence[Wanted]) -> list[Job[Artifact]]:
        """Return what builds the kernels that the cache lacks.

        Raises
        ------
        NotCompiledError
            Nothing may be compiled.
        ToolkitError
            There is no compiler.
        """
        if self._choice and not self._tools and not config.flag("PYCUTLASS_NO_COMPILE"):
            self._search()  # for the compilers themselves
        cache, choice, tools = self._cache, self._choice, self._tools
        if choice is None:
            names = ", ".join(f"{want.source.name} for {want.target}" for want in missing)
            message = f"{self._absence}\nAnd the cache {cache.path} does not have {names}."
            message += at_hand(cache, missing, self._headers)
            raise ToolkitError(message, absent=True) from self._absence
        if tools is None or config.flag("PYCUTLASS_NO_COMPILE"):
            raise forbidden(cache, missing, choice)
        logger.info("compiling %s", counted(len(missing), "kernel"))
        sweep_scratch()
        return [(want.source.name, functools.partial(_build_once, want, tools, cache)) for want in missing]


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
            _judge([artifact], strict=False)
    return artifact
