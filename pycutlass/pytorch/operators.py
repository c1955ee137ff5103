"""How an operator is registered: what it computes, what it would return, and its gradient.

Kernels in Python are put into the dispatcher by ``define`` and ``impl``. ``torch.library.custom_op`` makes an operator
of the same behaviour from a function, and each of its calls costs several microseconds more.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from pycutlass.errors import ArgumentError, PyCutlassError

__all__ = ["NAMESPACE", "below_autograd", "define", "differentiable", "library", "needs_gradient", "plain"]

_untyped: Any = torch.library  # as it is to type checkers
NAMESPACE = "pycutlass"
#: The operators live for as long as this object does.
library = _untyped.Library(NAMESPACE, "DEF")

_after_autograd = torch._C._after_autograd_keyset


def define(schema: str, compute: Callable[..., Any], fake: Callable[..., Any]) -> Any:
    """Define an operator and return its overload.

    Parameters
    ----------
    schema : str
        Name, parameters and results, as torch writes them.
    compute : function
        What it does with tensors of a GPU, or of the host, where operations are executed without a GPU.
    fake : function
        What it does with tensors that have no memory.
    """
    name = schema.partition("(")[0]
    library.define(schema, tags=(torch.Tag.pt2_compliant_tag,))
    for key in ("CPU", "CUDA"):
        library.impl(name, _kernel(compute, fake), key)
    torch.library.register_fake(f"{NAMESPACE}::{name}", fake, lib=library)
    packet, _, overload = name.partition(".")
    return getattr(getattr(torch.ops.pycutlass, packet), overload or "default")


def _kernel(compute: Callable[..., Any], fake: Callable[..., Any]) -> Callable[..., Any]:
    """Return what computes, and calls tensors that do not fit by the names that they have in torch."""

    def kernel(*args: Any, **named: Any) -> Any:
        try:
            return compute(*args, **named)
        except PyCutlassError:  # of products in one line, which have names of their own
            try:
                fake(*args, **named)
            except PyCutlassError as error:
                raise error from None
            raise

    return kernel


def differentiable(operator: Any, function: Any, arranged: Callable[..., tuple[Any, ...]]) -> None:
    """Let an ``autograd.Function`` compute an operator where one of its tensors requires a gradient.

    Parameters
    ----------
    operator : overload
        What `define` returned.
    function : class
        The function, whose `forward` calls the operator `below_autograd`.
    arranged : function
        Takes what the operator takes and returns what the function takes.
    """

    def autograd(keyset: Any, *args: Any, **named: Any) -> Any:
        if not needs_gradient(*args, *named.values()):
            return operator.redispatch(keyset & _after_autograd, *args, **named)
        if torch._C._are_functorch_transforms_active():
            raise ArgumentError(
                f"{operator} is differentiated by a transform of torch.func, which looks into no operator: take "
                f"gradients with backward() or torch.autograd.grad"
            )
        return function.apply(*arranged(*args, **named))

    library.impl(operator.name().partition("::")[2], autograd, "Autograd", with_keyset=True)


def below_autograd() -> Any:
    """Return a context in which calls of operators go to what computes them, past autograd."""
    return torch._C._AutoDispatchBelowAutograd()


def needs_gradient(*values: Any) -> bool:
    """Return whether autograd is to see what is made of these values."""
    return torch.is_grad_enabled() and torch._C._any_requires_grad(*values)


def plain(tensor: Any) -> Any:
    """Return a tensor as one without a gradient, and no parameter: products of such are found again the quickest."""
    if tensor is None or (type(tensor) is torch.Tensor and not tensor.requires_grad):
        return tensor
    return tensor.detach()
