"""What arguments are given: an operation, tensors, and a C that has to be read."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any, TypeVar

from pycutlass.calls import mistaken, unknown_keywords
from pycutlass.epilogue import Epilogue, EpilogueScalars
from pycutlass.errors import ArgumentError, ArgumentTypeError
from pycutlass.integers import items_of
from pycutlass.operation import Operation
from pycutlass.operation.base import ARGUMENTS_OF

__all__ = ["ELSEWHERE", "check_beta", "check_operation", "check_source", "kept", "refuse_unknown"]

_Operation = TypeVar("_Operation", bound=Operation)
#: Keywords that belong to another call.
ELSEWHERE: Mapping[str, str] = {
    **dict.fromkeys(("alpha", "beta"), "Scalars are given as output_op=operation.epilogue_type(alpha, beta)."),
    "stream": "A stream is given to operation.run(arguments, stream).",
}
#: What arguments keep from their constructor on.
_FIXED = (
    *("operation", "problem_size", "gemm_mode", "split_k_slices", "split_k_mode", "batch", "bias", "raster_order"),
    *("launch_with_pdl", "reordered", "partitions", "sm_count", "launch_priority"),
)


def kept(tensors: Any) -> Any:
    """Return a list as a tuple, which its owner cannot change behind our back; anything else as it is."""
    return items_of(tensors, sys.maxsize - 1) if isinstance(tensors, list) else tensors


def check_beta(
    name: str,
    source: Any,
    functor: Epilogue,
    present: EpilogueScalars | None,
    output_op: EpilogueScalars | None,
) -> None:
    """Refuse a C that would not be read merely because nobody has said what beta is.

    Parameters
    ----------
    name : str
        What users call C.
    source : tensor
        C.
    functor : Epilogue
        Of the operation.
    present, output_op : EpilogueScalars or None
        The scalars that the arguments have, and those that are given now.
    """
    if functor.reads_source is not None:
        if not functor.reads_source:
            names = ", ".join(f"{port.name!r}: ..." for port in functor.inputs)
            named = f". What it reads is given by name: epilogue={{{names}}}" if names else ""
            raise ArgumentError(
                f"{name} is given, and the epilogue {functor!r} does not read it: pass "
                f"{name}=None, or give the function a parameter of Source{named}"
            )
        return
    scalars = present if output_op is None else output_op
    if scalars is not None and not (isinstance(scalars, EpilogueScalars) and scalars.drops_source):
        return
    alpha: Any = 1.0 if scalars is None else scalars.values[0] if scalars.alpha_is_known else "alpha"
    how = "without output_op" if output_op is None else f"with output_op=operation.epilogue_type({alpha})"
    without = f"{name}=None" if present is None else f"leave {name} out"
    if output_op is not None:
        without += f"; epilogue_type({alpha}, 0.0) says that it is not to be read"
    added = f"output_op=operation.epilogue_type({alpha}, 1.0) to add it, or "
    if type(source) is int and source == 0:  # the address of nothing
        added = ""
    raise ArgumentError(f"{name} is given {how}, and beta is 0 then: it would not be read. Pass {added}{without}.")


def check_source(source: Any, functor: Epilogue | None = None) -> None:
    """Raise ArgumentError where the C that the scalars, or an epilogue function, need is missing."""
    if source is None and functor is not None and functor.reads_source:
        raise ArgumentError(f"C is None, and the epilogue {functor!r} reads it: give C")
    if source is None:
        raise ArgumentError("C is None, and beta is not 0: give C, or output_op=operation.epilogue_type(alpha, 0)")


def refuse_unknown(who: str, unknown: dict[str, Any], known: tuple[str, ...], further: tuple[Any, ...] = ()) -> None:
    """Raise ArgumentTypeError for keywords that `who` does not have, and for what was `further` given without one."""
    if further:
        raise mistaken(who, further, {}, known, named=True)
    if unknown:
        fixed = {name: f"Make new arguments for another {name}." for name in _FIXED} if who == "update" else {}
        near = {name for name in fixed if f"{name}s" in known}  # problem_size in place of problem_sizes
        fixed = {name: hint for name, hint in fixed.items() if name not in near}
        raise unknown_keywords(who, unknown, known, {**fixed, **ELSEWHERE})


def check_operation(operation: Any, kind: type[_Operation]) -> _Operation:
    """Return the operation that arguments are made for; raise ArgumentTypeError unless it is of their kind."""
    if isinstance(operation, kind):
        return operation
    if operation is None:
        raise ArgumentTypeError(f"operation is missing: give a {kind.__name__}")
    if isinstance(operation, type) and issubclass(operation, Operation):
        got, hint = f"the class {operation.__name__}", ": make an operation of it first"
    else:
        got = type(operation).__name__
        hint = f": its arguments are {ARGUMENTS_OF[got]}" if got in ARGUMENTS_OF else ""
    raise ArgumentTypeError(f"operation must be a {kind.__name__}, got {got}{hint}")
