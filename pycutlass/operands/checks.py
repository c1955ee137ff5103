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
from pycutlass.remedies import EpilogueName, converted, is_target, laid_out, typed
from pycutlass.tensor import TensorView, has_tangent, in_forward_mode

__all__ = [
    "LARGEST_EXTENT",
    "OtherTypeError",
    "check_alike",
    "check_count",
    "check_dtype",
    "check_extents",
    "check_listed",
    "check_writable",
    "say_without_gradient",
]

LARGEST_EXTENT = 2**31 - 1  # CUTLASS keeps coordinates in 32 bits


class OtherTypeError(ArgumentTypeError):
    """An operand has another element type; whoever knows the operation says whether it can be described with it.

    Parameters
    ----------
    name : str
        The operand.
    view : TensorView
        The tensor that was given.
    rule, remedy : str
        What is wrong, and what to do about the tensor.
    besides : str
        What else is wrong with it.
    """

    def __init__(self, name: str, view: TensorView, rule: str, remedy: str, besides: str = "") -> None:
        self.name, self.view, self.rule, self.remedy, self.besides = name, view, rule, remedy, besides
        super().__init__(self.text())

    def text(self, described: str = "") -> str:
        """Return the message, with the description that would do."""
        besides = f" Besides, {self.besides.removesuffix('.')}." if self.besides else ""
        return f"{self.rule}. {self.remedy}{f', or {described}' if described else ''}.{besides}"


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
        instead = f"give batch={len(tensors)}" if tensors and batch == 1 else "give one for each problem"
        one = f"{name}[0]" if isinstance(tensors, list | tuple) else name
        shared = f", or [{one}] * {batch} for one that all share" if name in "ABC" and len(tensors) == 1 else ""
        raise ArgumentError(
            f"operand {name} has {counted(len(tensors), 'tensor')} for batch={batch}: {instead}{shared}"
        )


def check_alike(name: str, matrices: Sequence[Matrix]) -> None:
    """Raise ArgumentError unless the matrices of an operand in ``Mode.Array`` have one leading dimension and place."""
    for what, values, instead in (
        ("leading dimension", {each.ld for each in matrices}, ", or use a grouped GEMM"),
        ("place", {each.view.device for each in matrices}, ""),
    ):
        if len(values) > 1:
            raise ArgumentError(
                f"all tensors of operand {name} must have one {what} in Mode.Array, got "
                f"{sorted(map(str, values))}: make them alike{instead}"
            )


def check_writable(target: Matrix) -> None:
    """Raise ArgumentError where the result must not be written: to a read-only array, or to what autograd follows."""
    name = target.name
    if target.view.has_tangent:
        raise ArgumentError(
            f"operand {name} has a tangent, of torch's forward mode, which would be that of what it held before: pass "
            f"torch.autograd.forward_ad.unpack_dual({name}).primal, which has the same memory, or another tensor"
        )
    if target.view.requires_grad:
        raise ArgumentError(
            f"operand {name} requires grad, and a launch is nothing that autograd could follow: the gradient of what "
            f"{name} holds then would be wrong. Pass {name}.detach(), which has the same memory, or another tensor."
        )
    if not target.view.writable:
        raise ArgumentError(
            f"operand {name} is a read-only {target.view.library} array, and the result is written to it: "
            f"{laid_out(name, 'numpy', tuple(target.view.shape or ()), target.description.is_row_major)}"
        )


def say_without_gradient(given: Mapping[str, Any]) -> None:
    """Say that D has no gradient where an operand asks for one, and no tangent where one has a tangent."""
    if "torch" not in sys.modules:  # the usual way is one step
        return
    grad_is_enabled = imported("torch", "is_grad_enabled")
    asks, may_be_dual = callable(grad_is_enabled) and grad_is_enabled(), in_forward_mode()
    if not asks and not may_be_dual:
        return
    for name in ("A", "B", "C"):
        tensors: Any = given.get(name)
        for number, tensor in enumerate(tensors if type(tensors) in (list, tuple) else (tensors,)):
            label = name if tensor is tensors else f"{name}[{number}]"
            if asks and attribute(tensor, "requires_grad") is True:
                what = "requires a gradient, and D has none"
                remedy = f"{label}.detach(), work under torch.no_grad()"
            elif may_be_dual and has_tangent(tensor):
                what = "has a tangent, of torch's forward mode, and D has none"
                remedy = f"torch.autograd.forward_ad.unpack_dual({label}).primal"
            else:
                continue
            say_once(
                f"operand {label} {what}: autograd does not see what kernels do. Pass {remedy}, or write a "
                f"torch.autograd.Function around it.",
                cause="no gradient",
            )
            return


def check_dtype(
    name: str,
    description: TensorDescription,
    view: TensorView,
    made: str = "",
    copied: str | None = None,
    besides: str = "",
) -> None:
    """Raise OtherTypeError where a tensor has another element type than described.

    `made` and `copied` are code that makes the operand anew, and a copy of it, with the right type; `besides` is what
    else is wrong with it.
    """
    wanted = description.type.dtype_name
    if description.type.bits < 8 and view.device is None and view.dtype_name is not None:
        raise ArgumentTypeError(
            f"operand {name} is described as {description.type}, of {description.type.bits} bits, and an array in host "
            f"memory keeps each element in bytes of its own: pass packed elements in device memory, by their address"
        )
    if view.dtype_name is None or view.dtype_name == wanted:
        return
    rule = (
        f"operand {name} must be {wanted}, as the operation describes it ({description.type}); got "
        f"{_kind(view)} of {view.dtype_name}"
    )
    remedy = _of_flags(name, view, wanted) or converted(name, view.library, wanted, view.dtype_name, made, copied)
    raise OtherTypeError(name, view, rule, remedy, besides)


def _of_flags(name: str, view: TensorView, wanted: str) -> str:
    """Return how an epilogue reads flags where floats are described: as bytes of the same memory; "" for others."""
    if not isinstance(name, EpilogueName) or is_target(name) or view.dtype_name != "bool" or "float" not in wanted:
        return ""
    if view.library not in ("torch", "numpy", "cupy"):
        return ""
    of_bytes, of_floats = typed(view.library, "uint8"), typed(view.library, wanted)
    port = name.partition("[")[0]
    cast = f"{name}.{'to' if view.library == 'torch' else 'astype'}({of_floats})"
    return (
        f"Declare the type, in the function as in {port}: {name.marker}(cutlass.uint8), or when that is given its "
        f"types, {port}=cutlass.uint8, and pass {name}.view({of_bytes}), which has the same memory; or pass {cast}"
    )


def _kind(view: TensorView) -> str:
    """Return what kind of tensor a view is of; a TensorSpec is no library's."""
    return "a TensorSpec" if view.library == "spec" else f"a {view.library} tensor"
