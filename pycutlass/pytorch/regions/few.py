"""Whether a captured model computes what the model does of 0 and 1 elements along an axis that changes.

`torch.export` takes an extent that changes for 2 or more: what a model asks of it, and what torch's own code does, is
answered as for the example, and not all of these answers are guarded. So the model and its graph are called with parts
of the example, and their results compared.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.fx import GraphModule

from pycutlass.errors import ArgumentError
from pycutlass.pytorch.regions.products import value_of

__all__ = ["Unlike", "unlike"]

_tree: Any = torch.utils._pytree
_VALUES, _LEAST = (1, 0), 2  # what is tried, and the least that torch captures for
_LARGE = 1 << 26  # bytes of a buffer, such as quantised weights, that is not copied where the graph writes to none
_MOST_SYMBOLS = 3  # of which all combinations are tried: beyond, each alone and all together
_Places = dict[Any, list[tuple[int, int | None, Any]]]


@dataclass(frozen=True)
class Unlike:
    """Inputs for which a graph computes something else than the model.

    Attributes
    ----------
    extents : tuple
        What all of these inputs have: number of the input, axis, or None of an integer, and extent.
    reason : str
        What differs.
    """

    extents: tuple[tuple[int, int | None, int], ...]
    reason: str

    def holds(self, inputs: Sequence[Any]) -> bool:
        """Return whether inputs are such."""
        return all((inputs[at] if axis is None else inputs[at].shape[axis]) == few for at, axis, few in self.extents)


def unlike(model: nn.Module, module: GraphModule, args: tuple[Any, ...], named: Mapping[str, Any]) -> list[Unlike]:
    """Return for which few elements a graph computes something else than the model that it was captured from.

    Parameters
    ----------
    model, module : Module
        The model, and its graph. Both keep their buffers as they are.
    args, named
        The example.
    """
    leaves, form = _tree.tree_flatten((args, dict(named)))
    places = _places(module, leaves)
    if not places or any(isinstance(each, torch.Tensor) and not _is_plain(each) for each in leaves):
        return []
    found, bare = list[Unlike](), _Bare(module)
    is_writing = any(node.target is torch.ops.aten.copy_.default for node in module.graph.nodes)
    shared = {id(each) for each in model.buffers() if each.nbytes >= _LARGE and not is_writing}
    for few in _combinations(list(places)):
        extents = tuple(_extents(places, few))
        if any(set(each.extents) <= set(extents) for each in found):
            continue
        # Beside what the example has along other axes that change, the least that torch captures for.
        least = {symbol: few.get(symbol, _LEAST) for symbol in places}
        for tried in (few, least) if len(few) < len(places) else (few,):
            given = _with_few(leaves, tuple(_extents(places, tried)))
            of_graph = None if given is None else _called(bare, form, given, shared)
            if given is None or isinstance(of_graph, ArgumentError):  # it refuses such inputs already
                continue
            if reason := _difference(_called(_copied(model, shared), form, given, shared), of_graph):
                found.append(Unlike(extents, reason))
                break
    return found


class _Bare(nn.Module):
    """A graph that is called without torch.fx, which prints where a line of it raises."""

    def __init__(self, graph: GraphModule) -> None:
        super().__init__()
        self.graph = graph

    def forward(self, *args: Any, **named: Any) -> Any:
        return nn.Module.__call__(self.graph, *args, **named)


def _copied(model: nn.Module, shared: Collection[int]) -> nn.Module:
    """Return a model with the same parameters, whose attributes may change; the same one where it has no copies."""
    kept = [*model.parameters(), *(each for each in model.buffers() if id(each) in shared)]
    try:
        return copy.deepcopy(model, {id(each): each for each in kept})
    except Exception:  # of any kind, since the model is the user's
        return model


def _is_plain(value: torch.Tensor) -> bool:
    """Return whether a tensor has values that others are computed of, not those of a subclass."""
    return type(value) in (torch.Tensor, nn.Parameter) and value.layout is torch.strided


def _places(module: GraphModule, leaves: Sequence[Any]) -> _Places:
    """Return where each symbol is read: number of the input, axis, and the expression of its extent."""
    found: _Places = {}
    known = [node for node in module.graph.nodes if node.op == "placeholder"]
    if len(known) != len(leaves):
        return {}
    for at, node in enumerate(known):
        value = value_of(node)
        extents = enumerate(value.shape) if isinstance(value, torch.Tensor) else [(None, value)]
        for axis, extent in extents:
            if isinstance(extent, torch.SymInt):
                for symbol in extent.node.expr.free_symbols:
                    found.setdefault(symbol, []).append((at, axis, extent.node.expr))
    return found


def _combinations(symbols: list[Any]) -> Iterator[dict[Any, int]]:
    """Yield values of some symbols, of few symbols first."""
    if len(symbols) > _MOST_SYMBOLS:
        yield from ({symbol: value} for symbol in symbols for value in _VALUES)
        yield from (dict.fromkeys(symbols, value) for value in _VALUES)
        return
    for count in range(1, len(symbols) + 1):
        for chosen in itertools.combinations(symbols, count):
            yield from (dict(zip(chosen, values, strict=True)) for values in itertools.product(_VALUES, repeat=count))


def _extents(places: _Places, few: Mapping[Any, int]) -> Iterator[tuple[int, int | None, int]]:
    """Yield the extents of the inputs where symbols have some values."""
    for at, axis, expression in {place[:2]: place for symbol in few for place in places[symbol]}.values():
        extent = expression.subs(few)
        if not extent.free_symbols:
            yield at, axis, int(extent)


def _with_few(leaves: Sequence[Any], extents: Sequence[tuple[int, int | None, int]]) -> list[Any] | None:
    """Return parts of what a model is called with, of such extents; None where the example has fewer elements."""
    made = list(leaves)
    for at, axis, extent in extents:
        if axis is None:
            made[at] = extent
        elif not 0 <= extent <= made[at].shape[axis]:
            return None
        else:
            made[at] = made[at].detach().narrow(axis, 0, extent)
    return made


def _called(module: nn.Module, form: Any, leaves: Sequence[Any], shared: Collection[int]) -> Any:
    """Return what a module makes of inputs, or what it raises, and leave its buffers and random numbers as they are."""
    copies = [_copy(each) if isinstance(each, torch.Tensor) else each for each in leaves]
    args, named = _tree.tree_unflatten(copies, form)
    buffers = {name: each.clone() for name, each in module.named_buffers() if id(each) not in shared}
    tensors = [*module.parameters(), *(each for each in leaves if isinstance(each, torch.Tensor))]
    devices = sorted({each.get_device() for each in tensors if each.is_cuda})
    generators: list[Any] = [torch.default_generator, *(torch.cuda.default_generators[each] for each in devices)]
    call: Callable[..., Any] = torch.func.functional_call
    with torch.random.fork_rng(devices):
        for each in generators:  # torch.manual_seed would seed those of other devices as well
            each.manual_seed(0)
        try:
            return call(module, buffers, args, named)
        except Exception as error:  # of any kind, since the model is the user's
            return error


def _copy(value: torch.Tensor) -> torch.Tensor:
    return value.detach().clone().requires_grad_(value.requires_grad)


def _difference(expected: Any, found: Any) -> str:
    """Return how the results of a model and of its graph differ, or "" where they do not."""
    if isinstance(expected, Exception) and isinstance(found, Exception):
        return ""
    if isinstance(expected, Exception):
        return f"the model raises {type(expected).__name__} ({expected})"
    if isinstance(found, Exception):
        return f"the graph raises {type(found).__name__} ({found})"
    (wanted, form), (made, other_form) = _tree.tree_flatten(expected), _tree.tree_flatten(found)
    if form != other_form:
        return f"the model returns {len(wanted)} results, and the graph {len(made)}, in another structure"
    for one, other in zip(wanted, made, strict=True):
        if not isinstance(one, torch.Tensor) or not isinstance(other, torch.Tensor):
            if type(one) is not type(other) or one != other:
                return f"the model returns {one!r}, and the graph {other!r}"
        elif one.shape != other.shape or one.dtype != other.dtype:
            return f"the model returns {_said(one)}, and the graph {_said(other)}"
        elif not _is_close(one, other):
            return f"the values of {_said(one)} differ"
    return ""


def _is_close(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Return whether tensors are the same but for rounding."""
    if not one.numel() or not _is_plain(one) or one.is_meta:
        return True
    if not one.dtype.is_floating_point and not one.dtype.is_complex:
        return torch.equal(one, other)
    small = torch.finfo(one.dtype).eps ** 0.5 / 4
    wide = torch.complex128 if one.dtype.is_complex else torch.float64
    one, other = one.detach().to(wide), other.detach().to(wide)
    largest = float(torch.where(one.isfinite(), one, 0).abs().max())
    return torch.allclose(one, other, rtol=small, atol=small * largest, equal_nan=True)


def _said(value: torch.Tensor) -> str:
    return f"{tuple(value.shape)} {str(value.dtype).removeprefix('torch.')}"
