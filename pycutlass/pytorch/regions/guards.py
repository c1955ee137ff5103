"""What a captured model checks of its inputs: that they have the extents that it was captured with."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.fx import GraphModule

from pycutlass.errors import ArgumentError
from pycutlass.pytorch.regions.asked import Asked
from pycutlass.pytorch.regions.products import value_of

__all__ = ["InputGuards", "with_guards"]

_NAME = "_guards_fn"  # by which torch.export has it
_REMEDY = "partition the model again with such inputs, or say with dynamic= which extents may change"


class InputGuards(nn.Module):
    """Checks inputs: extents that may not change, and what torch.export asks for beside these.

    Parameters
    ----------
    extents : tuple
        Of each input its name and its extents, None where they may change; None of what is no tensor.
    asked : tuple
        Of each input the axes on which the model asks for 0 or 1: axis, the extent that means it, and where it asks.
    further : Module or None
        The check of torch.export, which raises AssertionError.
    """

    _is_impure = True  # nobody reads its result, and torch.fx is to keep its calls

    def __init__(self, extents: tuple[Any, ...], asked: tuple[Any, ...], further: nn.Module | None) -> None:
        super().__init__()
        self.extents, self.asked, self.further = extents, asked, further

    def forward(self, *inputs: Any) -> None:
        """Raise ArgumentError for inputs that the model was not captured for."""
        for known, asked, given in zip(self.extents, self.asked, inputs, strict=True):
            if known is None:
                continue
            name, extents = known
            if not isinstance(given, torch.Tensor) or given.dim() != len(extents):
                got = f"shape {tuple(given.shape)}" if isinstance(given, torch.Tensor) else type(given).__name__
                raise ArgumentError(
                    f"{name} was a tensor of {len(extents)} dimensions when the model was partitioned, got {got}: "
                    f"partition the model again with such inputs"
                )
            for axis, extent in enumerate(extents):
                if extent is not None and given.shape[axis] != extent:
                    of_one = ", with an example that has 2 or more of them: torch fixes 1" if extent == 1 else ""
                    raise ArgumentError(
                        f"axis {axis} of {name} had {extent} elements when the model was partitioned, and now has "
                        f"{given.shape[axis]}: {_REMEDY}{of_one}"
                    )
            for axis, extent, place in asked:
                if given.shape[axis] == extent:
                    raise ArgumentError(
                        f"axis {axis} of {name} has {extent} elements, and the model, in {place}, computes something "
                        f"else there than with the example that it was partitioned with: partition it once more with "
                        f"an example that has {extent}, and call that one for such inputs"
                    )
        if self.further is None:
            return
        try:
            self.further(*inputs)
        except AssertionError as error:
            condition = str(error).partition("Guard failed: ")[2] or str(error)
            raise ArgumentError(f"the model was partitioned for inputs with {condition}: {_REMEDY}") from None


def with_guards(module: GraphModule, asked: Asked) -> None:
    """Let a captured model raise errors of ours for other inputs than it was captured for.

    Parameters
    ----------
    module : GraphModule
        The captured model.
    asked : mapping
        Where the model asks whether a symbol is 0 or 1.
    """
    known = [node for node in module.graph.nodes if node.op == "placeholder"]
    if not known:
        return
    of_few = tuple(_asked_of(node, asked) for node in known)
    guards = InputGuards(tuple(map(_extents_of, known)), of_few, getattr(module, _NAME, None))
    setattr(module, _NAME, guards)
    if guards.further is None:
        with module.graph.inserting_after(known[-1]):
            module.graph.call_module(_NAME, tuple(known))


def _extents_of(node: Any) -> tuple[str, tuple[int | None, ...]] | None:
    value = value_of(node)
    if not isinstance(value, torch.Tensor):
        return None
    return str(node.target), tuple(each if type(each) is int else None for each in value.shape)


def _asked_of(node: Any, asked: Asked) -> tuple[tuple[int, int, str], ...]:
    value, found = value_of(node), list[tuple[int, int, str]]()
    extents: Any = value.shape if asked and isinstance(value, torch.Tensor) else ()
    for axis, extent in enumerate(extents):
        symbols = () if type(extent) is int else tuple(extent.node.expr.free_symbols)
        for (symbol, few), place in asked.items():
            if [symbol] == list(map(str, symbols)):
                found.append((axis, int(extent.node.expr.subs(symbols[0], few)), place))
    return tuple(found)
