"""Why an operand of a convolution is refused, in words: `_core.ConvRule` decides, and names the rule that is broken."""

from __future__ import annotations

import math
from collections.abc import Callable

from pycutlass.errors import ArgumentError, PyCutlassError
from pycutlass.operands.checks import check_dtype
from pycutlass.operands.conv_operand import ConvOperand, is_ambiguous
from pycutlass.operands.operand import Matrix
from pycutlass.operands.refusals import refusal
from pycutlass.operands.vector_refusals import otherwise
from pycutlass.remedies import empty, is_target, laid_out, typed
from pycutlass.tensor import TensorView

__all__ = ["CONV_SENTENCES", "check_conv_element", "conv_refusal"]

#: Rules that a packed copy keeps.
_OF_COPIES = ("gaps", "reach", "ld alignment", "address alignment")


def conv_refusal(wanted: ConvOperand, operand: Matrix, broken: str) -> PyCutlassError:
    """Return the exception for a tensor that breaks a rule; `operand` has the leading dimension that was found."""
    sentence = CONV_SENTENCES.get(broken)
    return refusal(operand, broken) if sentence is None else ArgumentError(sentence(wanted, operand))


def check_conv_element(wanted: ConvOperand, operand: Matrix, broken: str) -> None:
    """Raise where the tensor has another element type than described, with what else is wrong with it."""
    view, kind = operand.view, wanted.description.type
    if view.dtype_name is None or (view.dtype_name == kind.dtype_name and kind.bits >= 8):
        return
    is_kept = broken in _OF_COPIES or is_target(wanted.name) or (broken == "empty" and wanted.name == "C")
    remains = broken and not is_kept
    besides = str(conv_refusal(wanted, operand, broken)) if remains else ""
    check_dtype(wanted.name, wanted.description, view, _made(wanted, view, kind.dtype_name), None, besides)


def _elements(wanted: ConvOperand, operand: Matrix) -> str:
    times, elements = " x ".join(map(str, wanted.extent)), math.prod(wanted.extent)
    return (
        f"a flat operand {wanted.name} must have exactly {times} = {elements} elements, packed in the declared "
        f"layout, for this problem size{wanted.or_bias}; got {_shape(operand.view)[0]}{otherwise(operand)}"
    )


def _extents(wanted: ConvOperand, operand: Matrix) -> str:
    n, h, w, c = wanted.extent
    return (
        f"operand {wanted.name} must have shape {wanted.extent}, or {(n, c, h, w)} with channels last, or be flat with "
        f"{n * h * w * c} elements, for this problem size{wanted.or_bias}; got shape {_shape(operand.view)}"
        f"{otherwise(operand)}"
    )


def _pixels(wanted: ConvOperand, operand: Matrix) -> str:
    name, view, shape = wanted.name, operand.view, _shape(operand.view)
    n, h, w, c = wanted.extent
    found = f"the tensor of shape {shape} has strides {_strides(view)}"
    if view.library != "torch":
        # An array that may be (N, H, W, C) is that.
        moved = name if shape == wanted.extent or is_target(name) else f"{name}.transpose(0, 2, 3, 1)"
        remedy = laid_out(moved, view.library, wanted.extent, True)
        if _turns(wanted, view):
            remedy = f"{remedy}. If its dimensions are (N, C, H, W), pass {name}.transpose(0, 2, 3, 1)"
        return f"operand {name} must be packed pixel by pixel, with channels adjacent; {found}. To fix it, {remedy}."
    if shape != (n, c, h, w):
        remedy = laid_out(name, view.library, wanted.extent, True)
        return f"operand {name} must be contiguous as (N, H, W, C); {found}. To fix it, {remedy}."
    if is_target(name):
        return (
            f"operand {name} must be in torch's channels_last memory format; {found}. To fix it, {_anew(wanted, view)}."
        )
    either = ""
    if shape == wanted.extent:
        either = f" If its dimensions are (N, H, W, C), pass {name}.permute(0, 3, 1, 2)."
    return (
        f"operand {name} must be in torch's channels_last memory format; {found}. Pass "
        f"{name}.contiguous(memory_format=torch.channels_last).{either}"
    )


def _turns(wanted: ConvOperand, view: TensorView) -> bool:
    """Return whether an array that was read as (N, H, W, C) lies well as (N, C, H, W), of the same extents."""
    if view.library not in ("numpy", "cupy") or _shape(view) != wanted.extent or not is_ambiguous(wanted.extent):
        return False
    return wanted.rule.check(view.pointer, view.shape, view.strides, wanted.extent, True)[2] != "pixels"


def _no_elements(wanted: ConvOperand, operand: Matrix) -> str:
    return (
        f"operand {wanted.name} must have shape {wanted.shape}, and so no elements, for this problem size; got shape "
        f"{_shape(operand.view)}"
    )


def _group_extents(wanted: ConvOperand, operand: Matrix) -> str:
    return (
        f"operand {wanted.name} is {wanted.description.order.name}: it must have shape {wanted.shape}, or be flat, for "
        f"this problem size; got shape {_shape(operand.view)}"
    )


def _group_steps(wanted: ConvOperand, operand: Matrix) -> str:
    view = operand.view
    return (
        f"operand {wanted.name} of shape {wanted.shape} must be contiguous, got strides {_strides(view)}; "
        f"{laid_out(wanted.name, view.library, wanted.shape, True)}"
    )


def _reach(wanted: ConvOperand, operand: Matrix) -> str:
    dense = "make it anew, without gaps" if is_target(wanted.name) else "pass a copy"
    return (
        f"operand {wanted.name}, the {wanted.role}, spans {operand.bytes:,} bytes, and must span less than "
        f"{wanted.byte_limit:,}: {dense}, or split the batch"
    )


def _gaps(wanted: ConvOperand, operand: Matrix) -> str:
    return (
        f"operand {wanted.name}, the {wanted.role}, must be packed; its pixels are {operand.ld} elements apart, with "
        f"{wanted.extent[3]} channels: {_anew(wanted, operand.view) if is_target(wanted.name) else 'pass a copy'}"
    )


def _anew(wanted: ConvOperand, view: TensorView) -> str:
    """Return how to make an output without gaps: nobody would read a copy."""
    if view.library == "spec":
        return laid_out(wanted.name, view.library, wanted.extent, True)
    return f"make {wanted.name} as {_made(wanted, view)} and read the result from there"


def _made(wanted: ConvOperand, view: TensorView, dtype: str | None = None) -> str:
    """Return code that makes an operand anew, in the order of dimensions that it has."""
    n, h, w, c = wanted.extent
    if view.library != "torch" or _shape(view) != (n, c, h, w):
        return empty(wanted.name, view.library, wanted.shape, dtype, True)
    name, kind = wanted.name, f"{wanted.name}.dtype" if dtype is None else typed("torch", dtype)
    return f"torch.empty({_shape(view)}, dtype={kind}, device={name}.device, memory_format=torch.channels_last)"


def _shape(view: TensorView) -> tuple[int, ...]:
    return tuple(view.shape or ())


def _strides(view: TensorView) -> tuple[int, ...]:
    return tuple(view.strides or ())


#: A sentence for each rule of convolutions alone, by the name that `_core.ConvRule` has for it.
CONV_SENTENCES: dict[str, Callable[[ConvOperand, Matrix], str]] = {
    "elements": _elements,
    "extents": _extents,
    "pixels": _pixels,
    "empty": _no_elements,
    "group extents": _group_extents,
    "group steps": _group_steps,
    "reach": _reach,
    "gaps": _gaps,
}
