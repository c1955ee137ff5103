"""Whether torch differentiates a tensor in forward mode."""

from __future__ import annotations

from typing import Any

from pycutlass.imported import imported, is_of

__all__ = ["has_tangent", "in_forward_mode"]


def in_forward_mode() -> bool:
    """Return whether tensors may have tangents now: inside of ``dual_level`` of torch."""
    level = imported("torch.autograd.forward_ad", "_current_level")
    return isinstance(level, int) and level >= 0


def has_tangent(tensor: Any) -> bool:
    """Return whether a tensor has a tangent now: a derivative that torch computes beside it, in forward mode.

    It is so for tensors of ``torch.autograd.forward_ad.make_dual`` and what was computed from them, inside of
    ``dual_level``. Unlike ``requires_grad``, ``torch.no_grad`` does not turn it off; inference mode does, and what runs
    below autograd has none.
    """
    if not in_forward_mode() or not is_of(tensor, "torch", "Tensor"):
        return False
    is_enabled = imported("torch.autograd.forward_ad", "_is_fwd_grad_enabled")
    if callable(is_enabled) and not is_enabled():
        return False
    is_excluded = imported("torch._C", "_dispatch_tls_is_dispatch_key_excluded")
    if is_excluded(imported("torch._C", "DispatchKey", "AutogradFunctionality")):  # below autograd, in an operator
        return False
    return imported("torch.autograd.forward_ad", "unpack_dual")(tensor).tangent is not None
