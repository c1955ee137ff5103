"""Whether a captured model computes what the model does of 0 and 1 elements along an axis that changes.

`torch.export` takes an extent that changes for 2 or more: what a model asks of it, and what torch's own code does, is
answered as for the example, and not all of these answers are guarded. So the model and its graph are called with parts
of the example, and their results compared. Zeros hide differences: where inputs or parameters are all zeros, other
numbers take their place. Where there is nothing to compare, few elements are refused.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx import GraphModule

from pycutlass.errors import ArgumentError
from pycutlass.pytorch.regions.products import value_of

__all__ = ["Unlike", "unlike"]

_tree: Any = torch.utils._pytree
_VALUES, _LEAST = (1, 0), 2  # what is tried, and the least that torch captures for
_LARGE = 1 << 26  # bytes of a buffer, such as quantised weights, that is not copied where the graph writes to none
_MOST_SYMBOLS = 3  # of which all combinations are tried: beyond, each alone, pairs, and all together
_MOST_PAIRS = 60  # as many as 6 symbols have, with each of the values
_PACKED = torch.float4_e2m1fn_x2  # two numbers in a byte, to which torch converts nothing
_Places = dict[Any, list[tuple[int, int | None, Any]]]


@dataclass(frozen=True)
class Unlike:
    """Inputs for which a graph computes something else than the model, or may do so.

    Attributes
    ----------
    extents : tuple
        What all of these inputs have: number of the input, axis, or None of an integer, and extent.
    reason : str
        What differs, or why that is not known.
    """

    extents: tuple[tuple[int, int | None, int], ...]
    reason: str

    def holds(self, inputs: Sequence[Any]) -> bool:
        """Return whether inputs are such."""
        return all(_extent(inputs[at], axis) == few for at, axis, few in self.extents)

    def distance(self, inputs: Sequence[Any]) -> Any:
        """Return 0 for such inputs alone, by arithmetic that torch traces, where it would answer a question at once."""
        return sum((_extent(inputs[at], axis) - few) ** 2 for at, axis, few in self.extents)


def _extent(value: Any, axis: int | None) -> Any:
    return value if axis is None else value.shape[axis]


def unlike(model: nn.Module, module: GraphModule, args: tuple[Any, ...], named: Mapping[str, Any]) -> list[Unlike]:
    """Return for which few elements a graph computes something else than the model that it was captured from, or may.

    Parameters
    ----------
    model, module : Module
        The model, and its graph. Both keep their buffers as they are.
    args, named
        The example.
    """
    leaves, form = _tree.tree_flatten((args, dict(named)))
    places = _places(module, leaves)
    if not places:
        return []
    if reason := _uncompared(model, leaves, places):
        said = f"whether the partition computes the same there as the model is not known, since {reason}"
        return [Unlike(extents, said) for few in _alone(places) if (extents := tuple(_extents(places, few)))]
    found, bare = list[Unlike](), _Bare(module)
    is_writing = any(node.target is torch.ops.aten.copy_.default for node in module.graph.nodes)
    shared = {id(each) for each in model.buffers() if _is_large(each) and not is_writing}
    drawn = _drawn(model.parameters())
    for few in _combinations(places):
        extents = tuple(_extents(places, few))
        if any(set(each.extents) <= set(extents) for each in found):
            continue
        # Beside what the example has along other axes that change, the least that torch captures for.
        least = {symbol: few.get(symbol, _LEAST) for symbol in places}
        for tried in (few, least) if len(few) < len(places) else (few,):
            given = _with_few(leaves, tuple(_extents(places, tried)))
            of_graph = None if given is None else _called(bare, form, given, shared, drawn)
            if given is None or isinstance(of_graph, ArgumentError):  # it refuses such inputs already
                continue
            if differs := _difference(_called(_copied(model, shared), form, given, shared, drawn), of_graph):
                said = f"the partition would compute something else there than the model: {differs}"
                found.append(Unlike(extents, said))
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


def _is_large(value: torch.Tensor) -> bool:
    return value.numel() * value.element_size() >= _LARGE  # nbytes is not defined for sparse tensors


def _uncompared(model: nn.Module, leaves: Sequence[Any], places: _Places) -> str:
    """Return why results of few elements cannot be compared, or "" where they can."""
    cut = {at for found in places.values() for at, _, _ in found}
    for at, value in enumerate(leaves):
        if at in cut and isinstance(value, torch.Tensor) and not _is_plain(value) and not _is_empty(value):
            return f"the example is a {type(value).__name__} of {value.layout}, of which no part can be taken"
    given = {f"input {at}": each for at, each in enumerate(leaves) if isinstance(each, torch.Tensor)}
    for name, value in [*given.items(), *model.named_parameters(), *model.named_buffers()]:
        if _is_empty(value):
            kind = "fake" if isinstance(value, FakeTensor) else "meta"
            return f"{name} is a {kind} tensor, which has no values to compare: an example and a model with values have"
    return ""


def _is_empty(value: torch.Tensor) -> bool:
    """Return whether a tensor has a shape and no values."""
    return isinstance(value, FakeTensor) or value.is_meta


def _is_plain(value: torch.Tensor) -> bool:
    """Return whether a tensor has its values in strided memory, and not in others, as those of some subclasses have."""
    is_own = type(value).__torch_dispatch__ is torch.Tensor.__torch_dispatch__
    return is_own and value.layout is torch.strided and not value.is_nested and not value.is_quantized


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


def _alone(symbols: Iterable[Any]) -> Iterator[dict[Any, int]]:
    """Yield values of each symbol alone."""
    return ({symbol: value} for symbol in symbols for value in _VALUES)


def _combinations(symbols: Collection[Any]) -> Iterator[dict[Any, int]]:
    """Yield values of some symbols, of few symbols first."""
    if len(symbols) <= _MOST_SYMBOLS:
        for count in range(1, len(symbols) + 1):
            yield from _together(symbols, count)
        return
    yield from _alone(symbols)
    yield from itertools.islice(_together(symbols, 2), _MOST_PAIRS)
    yield from (dict.fromkeys(symbols, value) for value in _VALUES)


def _together(symbols: Iterable[Any], count: int) -> Iterator[dict[Any, int]]:
    """Yield all values of any so many symbols."""
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
    generator = torch.Generator().manual_seed(0)
    return [_random(each, generator) if _is_zero(each) else each for each in made]


def _drawn(parameters: Iterable[torch.Tensor]) -> dict[int, torch.Tensor]:
    """Return what takes the place of parameters that are all zeros, as the last ones of branches often are at first."""
    generator = torch.Generator().manual_seed(1)
    return {id(each): _random(each, generator) for each in parameters if _is_zero(each)}


def _is_zero(value: Any) -> bool:
    """Return whether all floating-point numbers of a tensor are zeros, which hide what they are multiplied by."""
    if not isinstance(value, torch.Tensor) or not _is_plain(value) or not value.numel():
        return False
    if not (value.is_floating_point() or value.is_complex()) or value.dtype is _PACKED:
        return False
    return not bool((value.to(torch.float32) if value.itemsize == 1 else value).detach().any())


def _random(value: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Return a tensor like another, of positive numbers below 1, for which functions such as logarithms are defined."""
    numbers = torch.rand(value.shape, generator=generator, device="cpu")
    made = torch.empty_like(value, requires_grad=False).copy_(numbers)
    return made.requires_grad_(value.requires_grad)


def _called(
    module: nn.Module, form: Any, leaves: Sequence[Any], shared: Collection[int], drawn: Mapping[int, torch.Tensor]
) -> Any:
    """Return what a module makes of inputs, or what it raises, and leave its buffers and random numbers as they are."""
    copies = [_copy(each) if isinstance(each, torch.Tensor) else each for each in leaves]
    args, named = _tree.tree_unflatten(copies, form)
    state = {name: each.clone() for name, each in module.named_buffers() if id(each) not in shared}
    state |= {name: drawn[id(each)] for name, each in module.named_parameters() if id(each) in drawn}
    tensors = [*module.parameters(), *(each for each in leaves if isinstance(each, torch.Tensor))]
    devices = sorted({each.get_device() for each in tensors if each.is_cuda})
    generators: list[Any] = [torch.default_generator, *(torch.cuda.default_generators[each] for each in devices)]
    call: Callable[..., Any] = torch.func.functional_call
    with torch.random.fork_rng(devices):
        for each in generators:  # torch.manual_seed would seed those of other devices as well
            each.manual_seed(0)
        try:
            return call(module, state, args, named)
        except Exception as error:  # of any kind, since the model is the user's
            return error


def _copy(value: torch.Tensor) -> torch.Tensor:
    return value.detach().clone().requires_grad_(value.requires_grad)


def _difference(expected: Any, found: Any) -> str:
    """Return how the results of a model and of its graph differ, or "" where they do not."""
    if isinstance(expected, Exception) and isinstance(found, Exception) and not isinstance(expected, ArgumentError):
        return ""  # of a partition its own refusals are kept
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
    if one.layout is not torch.strided and one.layout is other.layout:
        one, other = one.to_dense(), other.to_dense()
    if not one.numel() or not _is_plain(one) or not _is_plain(other) or _is_empty(one):
        return True
    one, other = one.as_subclass(torch.Tensor), other.as_subclass(torch.Tensor)
    if one.dtype is _PACKED:
        one, other = one.view(torch.uint8), other.view(torch.uint8)
    if not one.dtype.is_floating_point and not one.dtype.is_complex:
        return torch.equal(one, other)
    small = torch.finfo(one.dtype).eps ** 0.5 / 4
    wide = torch.complex128 if one.dtype.is_complex else torch.float64
    one, other = one.detach().to(wide), other.detach().to(wide)
    largest = float(torch.where(one.isfinite(), one, 0).abs().max())
    return torch.allclose(one, other, rtol=small, atol=small * largest, equal_nan=True)


def _said(value: torch.Tensor) -> str:
    return f"{tuple(value.shape)} {str(value.dtype).removeprefix('torch.')}"
