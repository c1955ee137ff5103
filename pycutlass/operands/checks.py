"""What every operand must fulfil: counts, extents, element type, alignment."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

from pycutlass.calls import counted, shown
from pycutlass.errors import ArgumentError, ArgumentTypeError
from pycutlass.imported import imported
from pycutlass.integers import as_int, attribute
from pycutlass.library import TensorDescription
from pycutlass.log import say_once
from pycutlass.operands.operand import Matrix
from pycutlass.remedies import converted
from pycutlass.tensor import TensorView
from pycutlass.types import element_of_dtype

__all__ = [
    "LARGEST_EXTENT",
    "check_alike",
    "check_count",
    "check_dtype",
    "check_extents",
    "check_listed",
    "check_writable",
    "say_without_gradient",
]

LARGEST_EXTENT = 2**31 - 1  # CUTLASS keeps coordinates in 32 bits


def check_count(name: str, value: Any, least: int = 1) -> int:
    """Return `value`, the number of something, as an integer of at least `least`.

    Raises
    ------
    ArgumentError
        It is out of range.
    ArgumentTypeError
        Anything but an integer.
    """
    count = as_int(value)
    if count is None:
        raise ArgumentTypeError(f"{name} must be an integer, got {shown(value)}")
    if not least <= count <= LARGEST_EXTENT:
        raise ArgumentError(f"{name} must be from {least} to {LARGEST_EXTENT:,}, got {count:,}")
    return count


def check_extents(name: str, size: Sequence[int], tile: Sequence[int]) -> None:
    """Raise ArgumentError where M, N or K, rounded up to whole tiles, leave the 32 bits that kernels count in."""
    for letter, extent, step in zip("MNK", size, (max(tile[:2]), max(tile[:2]), tile[2]), strict=True):
        most = LARGEST_EXTENT + 1 - step
        if extent > most:
            raise ArgumentError(
                f"{name} has {letter}={extent:,}: rounded up to tiles of {step} it leaves the 32 bits that kernels "
                f"count in; use at most {most:,}"
            )


def check_listed(name: str, tensors: Sequence[Any], batch: int) -> None:
    """Raise ArgumentError unless there is one tensor for each problem."""
    if len(tensors) != batch:
        raise ArgumentError(
            f"operand {name} has {counted(len(tensors), 'tensor')} for batch={batch}: give one for each problem"
        )


def check_alike(name: str, matrices: Sequence[Matrix]) -> None:
    """Raise ArgumentError unless the matrices of an operand in ``Mode.Array`` have one leading dimension and place."""
    for what, values in (
        ("leading dimension", {each.ld for each in matrices}),
        ("place", {each.view.device for each in matrices}),
    ):
        if len(values) > 1:
            raise ArgumentError(
                f"all tensors of operand {name} must have one {what} in Mode.Array, got "
                f"{sorted(map(str, values))}: make them alike, or use a grouped GEMM"
            )


def check_writable(target: Matrix) -> None:
    """Raise ArgumentError where the result must not be written: to a read-only array, or to what autograd follows."""
    name = target.name
    if target.view.requires_grad:
        raise ArgumentError(
            f"operand {name} requires grad, and a launch is nothing that autograd could follow: the gradient of what "
            f"{name} holds then would be wrong. Pass {name}.detach(), which has the same memory, or another tensor."
        )
    if not target.view.writable:
        raise ArgumentError(
            f"operand {target.name} is a read-only {target.view.library} array, and the result is written to it: pass "
            f"np.empty(({target.rows}, {target.columns}), {target.description.type.dtype_name!r})"
        )


def say_without_gradient(given: Mapping[str, Any]) -> None:
    """Say that D has no gradient where an operand asks for one."""
    if "torch" not in sys.modules:  # the usual way is one step
        return
    grad_is_enabled = imported("torch", "is_grad_enabled")
    if not callable(grad_is_enabled) or not grad_is_enabled():
        return
    for name in ("A", "B", "C"):
        tensors: Any = given.get(name)
        for tensor in tensors if type(tensors) in (list, tuple) else (tensors,):
            if attribute(tensor, "requires_grad") is True:
                say_once(
                    f"operand {name} requires a gradient, and D has none: autograd does not see what kernels do. Pass "
                    f"{name}.detach(), work under torch.no_grad(), or write a torch.autograd.Function around the call.",
                    cause="no gradient",
                )
                return


def check_dtype(name: str, description: TensorDescription, view: TensorView) -> None:
    """Raise ArgumentTypeError where a tensor has another element type than described."""
    wanted = description.type.dtype_name
    if description.type.bits < 8 and view.device is None and view.dtype_name is not None:
        raise ArgumentTypeError(
            f"operand {name} is described as {description.type}, of {description.type.bits} bits, and an array in host "
            f"memory keeps each element in bytes of its own: pass packed elements in device memory, by their address"
        )
    if view.dtype_name is None or view.dtype_name == wanted:
        return
    whose = _whose(name) if element_of_dtype(view.dtype_name) else ""
    describe = f", or describe {whose} with its type" if whose else ""
    raise ArgumentTypeError(
        f"operand {name} must be {wanted}, as the operation describes it ({description.type}); got "
        f"{_kind(view)} of {view.dtype_name}. {converted(name, view.library, wanted, view.dtype_name)}{describe}."
    )


def _kind(view: TensorView) -> str:
    """Return what kind of tensor a view is of; a TensorSpec is no library's."""
    return "a TensorSpec" if view.library == "spec" else f"a {view.library} tensor"


def _whose(name: str) -> str:
    """Return whose description says what operand `name` is: D follows C unless it is described apart.

    Nothing of tensors of an epilogue, whose types are not the user's choice.
    """
    if name in ("source", "destination"):
        return "C of the reduction, and its functor's output,"
    letter = name.partition("[")[0]
    return {"A": name, "B": name, "C": name, "D": "C, and the functor's output,"}.get(letter, "")
