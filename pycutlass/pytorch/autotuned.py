"""Products of ours as choices of Inductor, beside ATen's and its own, of which it measures and takes the fastest."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import torch

from pycutlass.calls import public, shown
from pycutlass.errors import ArgumentError, ArgumentTypeError, PyCutlassError
from pycutlass.integers import as_int, items_of, real
from pycutlass.log import say_once
from pycutlass.plan.gemm import Gemm
from pycutlass.plan.pick import pick
from pycutlass.plan.shortcut import precision_of
from pycutlass.pytorch.products import MATMUL
from pycutlass.pytorch.regions.extents import packed_spec
from pycutlass.pytorch.regions.gain import planned_for
from pycutlass.pytorch.sums import ADDMM

__all__ = ["register_autotuning"]

Tensor = torch.Tensor
_MOST_POINTS, _MOST_ROWS = 64, 2**31 - 1
_TAG = "pycutlass"  # of graphs in Inductor's cache, which call operators of ours


def _pycutlass_mm(a: Tensor, b: Tensor) -> Any:  # its name is in logs of Inductor
    """Compute what ``aten.mm`` and ``aten.bmm`` do."""
    return MATMUL(a, b)


def _pycutlass_addmm(c: Tensor, a: Tensor, b: Tensor, *, beta: Any = 1, alpha: Any = 1) -> Any:
    """Compute what ``aten.addmm`` does."""
    return ADDMM(c, a, b, beta=beta, alpha=alpha)


#: What computes each operator, and which axis of its first tensor is M. Inductor asks no other tensor for its range.
_CHOICES: dict[str, tuple[Callable[..., Any], int | None]] = {
    "mm": (_pycutlass_mm, 0),
    "bmm": (_pycutlass_mm, 1),
    "addmm": (_pycutlass_addmm, None),
}


@public
def register_autotuning(split_points: Sequence[int] | None = None, *, min_speedup: float = 1.0) -> bool:
    """Let Inductor measure products of ours beside its own, for every ``mm``, ``bmm`` and ``addmm`` on a GPU.

    It is for models that are compiled by ``torch.compile`` with Inductor, which does everything else as before. The
    choice is between ATen's product and ours: with ``mode="max-autotune"``, those that Inductor would write in Triton
    are no longer among them. What is fused with a product is not a part of it either: the backend ``"pycutlass"`` is
    for that. Graphs that are compiled from now on have the choice.

    Parameters
    ----------
    split_points : sequence of int, optional
        Where ranges of M end: of ``mm`` and ``bmm`` each range has a choice of its own, by a branch in the compiled
        code. Otherwise the choice is that of the M that a graph is compiled for.
    min_speedup : float
        How many times as fast a product of ours must be to be taken.

    Returns
    -------
    bool
        Whether it was registered: a torch that takes no choices for ATen's operators is left as it is, with a warning.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        Split points that do not increase, or a speedup that is no positive number.

    Examples
    --------
    >>> import pycutlass.pytorch
    >>> pycutlass.pytorch.register_autotuning(split_points=[64, 1024])  # doctest: +SKIP
    True
    """
    points, speedup = _points(split_points), _speedup(min_speedup)
    return _register(points, speedup, ("cuda",))


def _register(points: list[int] | None, speedup: float, devices: tuple[str, ...]) -> bool:
    hook = _hook()
    if hook is None:
        say_once(
            f"torch {torch.__version__} takes no choices for ATen's operators, so Inductor keeps its own products: "
            f"upgrade torch, or compile with torch.compile(model, backend='pycutlass')"
        )
        return False
    for name, (choice, axis) in _CHOICES.items():

        def choices(given: dict[str, Tensor], choice: Callable[..., Any] = choice) -> list[Any]:
            return [hook.CustomOpConfig(choice)] if _is_taken(choice, list(given.values()), devices) else []

        ranges: dict[str, Any] = {}
        if points is not None and axis is not None:
            ranges = {"dispatch_on": {"tensor_name": "self", "dim": axis}, "split_points": points}
        operator = getattr(torch.ops.aten, name).default
        hook.register_custom_op_autotuning(
            operator, config_generator=choices, name=f"pycutlass_{name}", min_speedup_threshold=speedup, **ranges
        )
    _tell_apart()
    return True


def _hook() -> Any:
    """Return the module of torch that takes choices, None where it takes none for operators of ATen.

    Inductor has to remember what it is choosing for, since one of the choices is the operator itself.
    """
    try:
        from torch._inductor.kernel import custom_op
        from torch._inductor.virtualized import V
    except ImportError:
        return None
    return custom_op if hasattr(V, "active_user_lowering_ops") else None


def _is_taken(choice: Callable[..., Any], tensors: list[Tensor], devices: tuple[str, ...]) -> bool:
    """Return whether there is a kernel for a product, of tensors without memory."""
    if any(each.device.type not in devices for each in tensors):
        return False
    a, b = tensors[-2:]
    try:
        made = choice(*tensors)
        plan = Gemm(packed_spec(a), packed_spec(b), precision=precision_of(a))
        pick(plan.kind, *plan.size, plan.batch, planned_for(None))
    except PyCutlassError:
        return False
    return bool(made.dtype is a.dtype)


def _tell_apart() -> None:
    """Keep compiled graphs that may call operators of ours from processes that have not registered them."""
    tags: Any = torch.compiler.config
    if _TAG not in tags.cache_key_tag.split("+"):
        tags.cache_key_tag = "+".join(filter(None, (tags.cache_key_tag, _TAG)))


def _points(given: Any) -> list[int] | None:
    if given is None:
        return None
    items = items_of(given, _MOST_POINTS) if isinstance(given, Sequence) else None
    if items is None:
        raise ArgumentTypeError(f"split_points must be a sequence of integers, got {shown(given)}")
    points = [as_int(each) for each in items]
    for each, point in zip(items, points, strict=True):
        if point is None:
            raise ArgumentTypeError(f"split_points must be integers, got {shown(each)}")
    found = [point for point in points if point is not None]
    if not found or found[0] < 1 or found[-1] > _MOST_ROWS or any(x >= y for x, y in pairwise(found)):
        raise ArgumentError(
            f"split_points must increase, from 1 to {_MOST_ROWS:,} at most, got {shown(given)}: omit them for none"
        )
    if len(found) > _MOST_POINTS:
        raise ArgumentError(f"split_points are {_MOST_POINTS} at most, since each is a branch in compiled code")
    return found


def _speedup(given: Any) -> float:
    number = None if isinstance(given, bool) else real(given, "min_speedup")
    if number is None:
        raise ArgumentTypeError(f"min_speedup must be a number, got {shown(given)}")
    if not 0 < number < float("inf"):
        raise ArgumentError(f"min_speedup must be positive and finite, got {given}: 1.1 asks for ten per cent")
    return number
