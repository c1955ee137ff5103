"""The story of one `add_module`: what is asked for, what the cache has, what is compiled, what becomes of it."""

from __future__ import annotations

import functools
import logging
import sys
import threading
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from pycutlass import config
from pycutlass.cache import Artifact, KernelCache, make_key
from pycutlass.calls import counted, public, shown
from pycutlass.compiler.build import build
from pycutlass.compiler.schedule import make_processes, run_all
from pycutlass.compiler.target import choose_target, meant_target
from pycutlass.compiler.tools import Tools, find_device_compiler, find_tools, portable_fields
from pycutlass.errors import ArgumentError, ArgumentTypeError, BuildReportError, NotCompiledError, ToolkitError
from pycutlass.integers import attribute, items_of
from pycutlass.log import logger, say_once
from pycutlass.report import BuildReport
from pycutlass.source import Compilable, KernelSource
from pycutlass.toolchain import Processes
from pycutlass.toolkit import own_headers_digest, sweep_scratch

__all__ = ["add_module", "backend", "nvcc", "nvrtc"]


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
    operations = _checked(operations)
    if strict is not None and not isinstance(strict, bool):
        raise ArgumentTypeError(
            f"strict must be True, False or None for what PYCUTLASS_STRICT says; got {shown(strict)}"
        )
    parts = _checked([part for operation in operations for part in _parts(operation, operations)])
    wanted = _wanted(parts, target)
    artifacts = _obtain(list(dict.fromkeys(want for wants in wanted for want in wants)))
    _judge(artifacts.values(), config.flag("PYCUTLASS_STRICT") if strict is None else strict)
    made: dict[int, list[Artifact]] = {}
    for part, wants in zip(parts, wanted, strict=True):
        part.artifacts.update((want.target, artifacts[want]) for want in wants)
        made[id(part)] = [artifacts[want] for want in wants]
    several = target is not None and not isinstance(target, str)
    return [artifact for operation in operations for artifact in made[id(operation)][0 if several else -1 :]]


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


def _parts(operation: Compilable, operations: Sequence[Compilable]) -> Sequence[Compilable]:
    """Return what `operation` needs compiled beside the others: itself, and kernels that it launches besides."""
    parts = getattr(operation, "parts", None)
    return [operation] if parts is None else parts(operations)


@dataclass(frozen=True)
class _Wanted:
    """A kernel and what it is built for."""

    source: KernelSource
    target: str


def _wanted(parts: Sequence[Compilable], target: str | Sequence[str] | None) -> list[list[_Wanted]]:
    """Return what each of `parts` is built for: the targets that are named, or else one, or those that it follows."""
    sources = [part.source() for part in parts]
    if target is not None and not isinstance(target, str):
        targets = _listed(target)
        return [[_Wanted(source, choose_target(source, one)) for one in targets] for source in sources]
    wanted = [[_Wanted(source, choose_target(source, target))] for source in sources]
    follows = [getattr(part, "follows", False) for part in parts]
    leading = {
        want.target
        for source, wants, behind in zip(sources, wanted, follows, strict=True)
        for want in wants
        if not (behind or source.native)  # what one architecture alone runs has no kernels behind it
    }
    return [
        [_Wanted(source, one) for one in sorted(leading)] if behind and leading else wants
        for source, wants, behind in zip(sources, wanted, follows, strict=True)
    ]


def _listed(targets: Sequence[str]) -> list[str]:
    """Return several targets as a list, or say what is wrong with it."""
    given = items_of(targets, sys.maxsize - 1) if isinstance(targets, list | tuple) else None
    if given is None or not all(isinstance(one, str) for one in given):
        raise ArgumentTypeError(
            f"target must be a string such as 'sm_80', a list of them, or None for the present GPU; got "
            f"{shown(targets)}{meant_target(targets)}"
        )
    if not given:
        raise ArgumentError("target is an empty list: name what to build for, or leave target out")
    return list(dict.fromkeys(given))


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


def _checked(operations: Iterable[Compilable]) -> list[Compilable]:
    """Return `operations` as a list, or say what is wrong with them."""
    if attribute(operations, "artifacts") is not None:
        raise ArgumentTypeError("add_module takes a list of operations: write add_module([operation])")
    if not isinstance(operations, Iterable):
        raise ArgumentTypeError(
            f"add_module takes a list of operations, got {shown(operations)}: write add_module([operation])"
        )
    listed: list[Compilable] = []
    for position, operation in enumerate(_walk(operations)):
        listed.append(operation)
        if isinstance(operation, type):
            raise ArgumentTypeError(
                f"add_module takes a list of operations, and item {position} is the class {operation.__name__}: "
                f"describe an operation with it, {operation.__name__}(...)"
            )
        if attribute(operation, "artifacts") is None or not callable(attribute(operation, "source")):
            raise ArgumentTypeError(f"add_module takes a list of operations, and item {position} is {shown(operation)}")
    return listed


def _walk(operations: Iterable[Any]) -> Iterator[Any]:
    """Yield what `operations` has; what it raises meanwhile is the cause of an exception of ours."""
    try:
        yield from operations
    except Exception as error:
        raise ArgumentTypeError(f"add_module takes a list of operations, got {shown(operations)}") from error


def _obtain(wanted: Sequence[_Wanted]) -> dict[_Wanted, Artifact]:
    """Return every kernel that is wanted: from the cache, and what it lacks from the compilers."""
    cache = _session.cache()
    try:
        tools = _find_tools(cache)
    except ToolkitError as error:
        if not error.absent:  # something that was named, or that is installed, does not work
            raise
        return _find_without_compiler(wanted, cache, error)
    found = {want: cache.get(make_key(tools.key_fields(want.source, want.target))) for want in wanted}
    missing = [want for want, artifact in found.items() if artifact is None]
    if missing and config.flag("PYCUTLASS_NO_COMPILE"):
        raise _forbidden(missing, tools)
    if missing:
        logger.info("compiling %d of %d kernels", len(missing), len(wanted))
        sweep_scratch()
    jobs = [(want.source.name, functools.partial(_build_once, want, tools, cache)) for want in missing]
    built = dict(zip(missing, run_all(jobs, make_processes()), strict=True)) if jobs else {}
    return {want: artifact or built[want] for want, artifact in found.items()}


def _find_tools(cache: KernelCache) -> Tools:
    tools = find_tools(_session.backend, cache.memo)
    say_once(
        f"kernels are compiled by {tools.fields['device_compiler']} and {tools.fields['host_compiler']}", logging.INFO
    )
    for note in tools.notes:
        say_once(note)
    return tools


def _build_once(want: _Wanted, tools: Tools, cache: KernelCache, processes: Processes) -> Artifact:
    """Build a kernel, unless another thread or process does so at this moment: then take what it made."""
    key = make_key(tools.key_fields(want.source, want.target))
    with cache.building(key):
        artifact = cache.get(key)
        if artifact is None:
            artifact = build(want.source, want.target, tools, processes)
            cache.put(artifact)
            report = BuildReport.from_json(artifact.report)
            logger.info("compiled %s for %s: %s", want.source.name, want.target, report.summary())
            _warn(artifact, report.problems())
    return artifact


def _find_without_compiler(
    wanted: Sequence[_Wanted], cache: KernelCache, error: ToolkitError
) -> dict[_Wanted, Artifact]:
    """Return kernels that were built elsewhere from the same text and headers, whatever compiled them."""
    headers = own_headers_digest()
    found = {want: cache.find(**portable_fields(want.source, want.target, headers)) for want in wanted}
    missing = [f"{want.source.name} for {want.target}" for want, artifact in found.items() if artifact is None]
    if missing:
        at_hand = _at_hand(cache, [want for want, artifact in found.items() if artifact is None], headers)
        message = f"{error}\nAnd the cache {cache.path} does not have {', '.join(missing)}.{at_hand}"
        raise ToolkitError(message, absent=True) from error
    say_once(f"kernels come from the cache alone. {error}", logging.INFO)
    return {want: artifact for want, artifact in found.items() if artifact}


def _at_hand(cache: KernelCache, missing: Sequence[_Wanted], headers: str) -> str:
    """Return a sentence for each kernel that the cache has for other targets, or from other compilers."""
    entries, sentences = cache.entries(), []
    for want in missing:
        fields = portable_fields(want.source, want.target, headers)
        del fields["target"]
        targets = sorted({entry.target for entry in entries if fields.items() <= entry.fields.items()})
        if targets:
            other = " (made by other compilers)" if want.target in targets else ""
            sentences.append(f" It has {want.source.name} for {', '.join(targets)}{other}.")
    return "".join(sentences)


def _forbidden(missing: Sequence[_Wanted], tools: Tools) -> NotCompiledError:
    first, cache = missing[0], _session.cache()
    fields = tools.key_fields(first.source, first.target)
    listed = "\n".join(f"  {label}: {text}" for label, text in sorted(fields.items()))
    names = ", ".join(f"{want.source.name} for {want.target}" for want in missing)
    return NotCompiledError(
        f"PYCUTLASS_NO_COMPILE is set and the cache {cache.path} lacks {counted(len(missing), 'kernel')}: {names}."
        f"{_at_hand(cache, missing, fields['headers'])} The first would have the key {make_key(fields)}, made from\n"
        f"{listed}\nUnset the variable to compile them, or import a cache that has them."
    )


def _judge(artifacts: Iterable[Artifact], strict: bool) -> None:
    """Warn of kernels with a problem, also those that come from the cache; refuse them in strict mode."""
    judged = [(artifact, _problems(artifact)) for artifact in artifacts]
    listed = [f"  {artifact.name}: {problem}" for artifact, problems in judged for problem in problems]
    if strict and listed:
        bad = sum(bool(problems) for _, problems in judged)
        raise BuildReportError(
            "\n".join([f"strict mode refuses {bad} of {counted(len(judged), 'kernel')}:", *listed])
            + "\nDescribe them differently, or pass strict=False and unset PYCUTLASS_STRICT to use them as they are."
        )
    for artifact, problems in judged:
        _warn(artifact, problems)


def _warn(artifact: Artifact, problems: Iterable[str]) -> None:
    """Say what is wrong with a kernel, once per process: whoever uses it should know, not only who compiled it."""
    for problem in problems:
        say_once(f"{artifact.name} for {artifact.target}: {problem}")


def _problems(artifact: Artifact) -> list[str]:
    try:
        return BuildReport.from_json(artifact.report).problems()
    except ValueError as error:
        return [f"its build report in the cache is not whole, so nothing is known of it: {error}"]
