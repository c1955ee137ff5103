"""What torch differentiates, and no kernel does: operands and scalars whose gradients, or tangents, would be lost."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pycutlass.epilogue.given_scalars import check_frozen, frozen
from pycutlass.errors import ArgumentError
from pycutlass.imported import imported, is_of
from pycutlass.integers import attribute
from pycutlass.tensor import TensorView, has_tangent

__all__ = ["check_gradients", "frozen_scalars", "kept_scalars", "tensors_among"]


@dataclass(frozen=True)
class _Scalar:
    """What torch does with a scalar."""

    requires_grad: bool
    has_tangent: bool


def check_gradients(views: Mapping[str, TensorView | _Scalar], what: str) -> None:
    """Refuse tensors whose gradients, or tangents, would be lost."""
    dual = [name for name, view in views.items() if view.has_tangent]
    if dual:
        raise ArgumentError(
            f"{dual[0]} has a tangent, of torch's forward mode, and the {what} has no derivative in that mode: pass "
            f"torch.autograd.forward_ad.unpack_dual({dual[0]}).primal, or take gradients with backward()"
        )
    asking = [name for name, view in views.items() if view.requires_grad]
    is_enabled = imported("torch", "is_grad_enabled")
    if asking and callable(is_enabled) and is_enabled():
        names = f"{asking[0]} requires" if len(asking) == 1 else f"{', '.join(asking)} require"
        raise ArgumentError(
            f"{names} a gradient, and the {what} has none: pass {asking[0]}.detach(), or call it under torch.no_grad()"
        )


def kept_scalars(scalars: Mapping[str, Any], what: str) -> dict[str, Any]:
    """Return scalars as `frozen_scalars` does, of numbers and of tensors in device memory alone.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        As of `frozen_scalars`; or something is neither.
    """
    kept = frozen_scalars(scalars, what)
    for name, value in kept.items():
        check_frozen(name, value)
    return kept


def frozen_scalars(scalars: Mapping[str, Any], what: str) -> dict[str, Any]:
    """Return scalars as who keeps them needs them: numbers on the host as floats, which nobody can change.

    Raises
    ------
    ArgumentError
        A tensor whose gradient, or tangent, would be lost.
    ArgumentTypeError
        What is no scalar, such as several numbers.
    """
    tensors = tensors_among(scalars)
    if tensors:
        followed = {
            name: _Scalar(attribute(tensor, "requires_grad") is True, has_tangent(tensor))
            for name, tensor in tensors.items()
        }
        check_gradients(followed, what)
    return {name: frozen(value) for name, value in scalars.items()}


def tensors_among(scalars: Mapping[str, Any]) -> dict[str, Any]:
    """Return the scalars that are tensors of torch; of those that are kept, all in device memory."""
    return {name: value for name, value in scalars.items() if is_of(value, "torch", "Tensor")}
