"""Many kernels of which some may not compile: each has its result as soon as that is known."""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Iterable, Mapping, Sequence
from typing import NamedTuple

from pycutlass.cache import Artifact
from pycutlass.calls import public
from pycutlass.compiler.choice import Wanted
from pycutlass.compiler.schedule import make_processes, run_each
from pycutlass.compiler.session import Request, Supply, checked, judge, requests, strictly
from pycutlass.errors import BuildReportError, CompileError
from pycutlass.source import Compilable

__all__ = ["Compiled", "compile_many"]


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
        As for `add_module`; of several targets, each operation has a result for each. Every operation must be one that
        can be built for every target.
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
        At once, as for `add_module`, also where a single operation cannot be built for a target: nothing begins then.
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
    return _stream([request for each in asked for request in each], strictly(strict))


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
    supply, missing = Supply(), []
    supply.confirmed()
    for want in wanted:
        artifact = supply.look_up(want) or supply.installed(want)
        if artifact is None:
            missing.append(want)
        else:
            yield want, _judged(artifact, strict)
    if missing:
        with contextlib.closing(run_each(supply.jobs(missing), make_processes())) as done:
            for number, result in done:
                yield missing[number], result if isinstance(result, CompileError) else _judged(result, strict)


def _judged(artifact: Artifact, strict: bool) -> Artifact | CompileError:
    try:
        judge([artifact], strict)
    except BuildReportError as error:
        return error
    return artifact
