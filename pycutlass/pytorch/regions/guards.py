"""What a captured model checks of its inputs: that they have the extents that it was captured with."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from torch.fx import GraphModule

from pycutlass.errors import ArgumentError
from pycutlass.pytorch.regions.few import Unlike
from pycutlass.pytorch.regions.products import value_of

__all__ = ["InputGuards", "refuse", "with_guards"]

_NAME = "_guards_fn"  # by which torch.export has it
_REMEDY = "partition the model again with such inputs, or say with dynamic= which extents may change"


class InputGuards(nn.Module):
    """Checks inputs: extents that may not change, and what torch.export asks for beside these.

    Parameters
    ----------
    extents : tuple
        Of each input its name and its extents, None where they may change; None of what is no tensor.
    further : Module or None
        The check of torch.export, which raises AssertionError.

    Attributes
    ----------
    unlike : tuple of Unlike
        Inputs for which the graph computes something else than the model, or may do so.
    """

    _is_impure = True  # nobody reads its result, and torch.fx is to keep its calls

    def __init__(self, extents: tuple[Any, ...], further: nn.Module | None) -> None:
        super().__init__()
        self.extents, self.further = extents, further
        self.unlike: tuple[Unlike, ...] = ()

    def forward(self, *inputs: Any) -> None:
        """Raise ArgumentError for inputs that the model was not captured for."""
        for known, given in zip(self.extents, inputs, strict=True):
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
        for each in self.unlike:
            if each.holds(inputs):
                raise ArgumentError(self._refusal(each))
            if torch.compiler.is_exporting():  # which takes extents for 2 or more, and so forgets the line above
                torch._assert_async(torch.full((), each.distance(inputs), device="cpu"), self._refusal(each))
        if self.further is None:
            return
        try:
            self.further(*inputs)
        except AssertionError as error:
            condition = str(error).partition("Guard failed: ")[2] or str(error)
            raise ArgumentError(f"the model was partitioned for inputs with {condition}: {_REMEDY}") from None

    def _refusal(self, unlike: Unlike) -> str:
        """Return what inputs have that are refused, why, and the remedy."""
        said = []
        for at, axis, extent in unlike.extents:
            known = self.extents[at]
            name = f"input {at}" if known is None else known[0]
            said.append(f"{name} is {extent}" if axis is None else f"axis {axis} of {name} has {extent} elements")
        return (
            f"{' and '.join(said)}, and {unlike.reason}. Partition the model once more with such an example, and call "
            f"that partition for such inputs"
        )


def refuse(module: GraphModule, unlike: Sequence[Unlike]) -> None:
    """Let a captured model raise ArgumentError for more inputs."""
    guards: Any = getattr(module, _NAME, None)
    if unlike:
        guards.unlike = tuple(unlike)


def with_guards(module: GraphModule) -> None:
    """Let a captured model raise errors of ours for other inputs than it was captured for.

    Parameters
    ----------
    module : GraphModule
        The captured model.
    """
    known = [node for node in module.graph.nodes if node.op == "placeholder"]
    if not known:
        return
    guards = InputGuards(tuple(map(_extents_of, known)), getattr(module, _NAME, None))
    setattr(module, _NAME, guards)
    if guards.further is None:
        with module.graph.inserting_after(known[-1]):
            module.graph.call_module(_NAME, tuple(known))


def _extents_of(node: Any) -> tuple[str, tuple[int | None, ...]] | None:
    value = value_of(node)
    if not isinstance(value, torch.Tensor):
        return None
    return str(node.target), tuple(each if type(each) is int else None for each in value.shape)
