"""A model with the parts that kernels take as submodules: what they are, and why the rest is left."""

from __future__ import annotations

import operator
import threading
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import Any, Self

import torch
from torch import nn
from torch.autograd import forward_ad
from torch.fx import Graph, GraphModule, Node

from pycutlass.calls import counted, public, shown
from pycutlass.errors import ArgumentError, ArgumentTypeError
from pycutlass.log import say_once
from pycutlass.pytorch.options import Options
from pycutlass.pytorch.regions.capture import captured
from pycutlass.pytorch.regions.partitioner import found_in
from pycutlass.pytorch.regions.products import value_of
from pycutlass.pytorch.regions.region import Region
from pycutlass.pytorch.regions.writing import Written
from pycutlass.pytorch.shared import check_shared, places_of, shared_with
from pycutlass.tensor import has_tangent

__all__ = ["Partition", "RegionModule", "check_partitioned", "partition", "report"]

#: Where a graph module keeps what is to go with its copies.
_REGIONS, _LEFT, _TRAINING = "pycutlass_regions", "pycutlass_left", "pycutlass_training"
_OPTIONS, _NAME, _SHARED = "pycutlass_options", "pycutlass_name", "pycutlass_shared"
_one_at_a_time = threading.RLock()  # torch.export, and what it knows of extents, is not for several threads


class RegionModule(nn.Module):
    """A region of a model, computed by one operator; by torch's own for gradients, and under another autocast.

    Parameters
    ----------
    region : Region
        What it is.
    fused, plain : GraphModule
        What computes it, and what it was in the model.
    """

    def __init__(self, region: Region, fused: GraphModule, plain: GraphModule) -> None:
        super().__init__()
        self.region, self.fused, self.plain = region, fused, plain
        known = [node for node in fused.graph.nodes if node.op == "placeholder"]
        values = [value_of(node) for node in known]
        #: Of each input its name and type; None of numbers.
        self.types = [
            (node.name, value.dtype) if isinstance(value, torch.Tensor) else None
            for node, value in zip(known, values, strict=True)
        ]
        self.device_type = next(value.device.type for value in values if isinstance(value, torch.Tensor))
        #: Devices such as meta have none. Asked here, since Dynamo before torch 2.13 does not follow the question.
        self.has_autocast = torch.amp.is_autocast_available(self.device_type)
        self.captured_under = self._autocast_type()
        #: Whether the operator is given numbers that change, which are floats there and no symbols.
        self.has_numbers = any(each.form == "scalar" for each in region.inputs)

    def forward(self, *inputs: Any) -> Any:
        """Return the region's results.

        Raises
        ------
        ArgumentError
            A tensor of another type than it had when the model was partitioned, which the kernel is for.
        """
        plain = self._why_plain(inputs)
        if plain:
            if not torch.compiler.is_compiling():  # which follows no log
                reason, remedy = plain
                what = f"{self.region.name} runs as it was in the model, as all regions do where {reason}"
                say_once(f"{what}: {remedy}", cause=reason)
            return self.plain(*inputs)
        for known, given in zip(self.types, inputs, strict=True):
            if known is not None and given.dtype is not known[1]:
                name, dtype = known
                raise ArgumentError(
                    f"{name} is of {given.dtype}, and was of {dtype} when the model was partitioned, for which "
                    f"{self.region.name} has a kernel: convert the model itself, and partition it again"
                )
        return self.fused(*inputs)

    def _why_plain(self, inputs: tuple[Any, ...]) -> tuple[str, str] | None:
        """Return why these inputs are not for the kernel, and what to do about it; None if they are for it."""
        if torch.is_grad_enabled() and any(isinstance(each, torch.Tensor) and each.requires_grad for each in inputs):
            return (
                "an input or a parameter requires a gradient",
                "call the partition under torch.no_grad(), or train by torch.compile(model, backend='pycutlass')",
            )
        if not torch.compiler.is_compiling() and forward_ad._current_level >= 0 and any(map(has_tangent, inputs)):
            return "an input has a tangent", "kernels have no derivative in forward mode"
        if self.has_numbers and torch.compiler.is_compiling():  # which would make a constant of each, or refuse it
            return "a number of the region changes from call to call", "call the partition itself"
        now, known = self._autocast_type(), self.captured_under
        if now in (None, known):  # casts of the capture are in the graph
            return None
        was = "off" if known is None else f"to {known}"
        return (
            f"autocast is to {now}, and was {was} when the model was partitioned",
            "partition it under that autocast",
        )

    def _autocast_type(self) -> torch.dtype | None:
        """Return the type of the autocast that is on, None without one."""
        if not self.has_autocast or not torch.is_autocast_enabled(self.device_type):
            return None
        return torch.get_autocast_dtype(self.device_type)

    def extra_repr(self) -> str:
        """Return what is computed."""
        return str(self.region)


@public
class Partition(GraphModule):
    """A model whose regions are submodules ``pycutlass_<n>``, each computed by one kernel.

    `partition` makes it. It is called as the model is, and has the model's own parameters.

    Attributes
    ----------
    regions : tuple of Region
        What was taken, in the order of the submodules.
    left : mapping
        For each product that was left to torch, and for each neighbour of a region that its kernel does not compute, by
        the name of its node, why.

    Examples
    --------
    >>> import torch, pycutlass.pytorch
    >>> model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.GELU())
    >>> made = pycutlass.pytorch.partition(model, torch.ones(8, 64), options={"min_gain": 0})
    >>> made.counts
    {'mm': 1}
    >>> print(made)
    1 region, nothing left
      pycutlass_0: linear + gelu, 8x64x64 float32
    """

    @property
    def regions(self) -> tuple[Region, ...]:
        """What was taken, in the order of the submodules."""
        regions: tuple[Region, ...] = self.meta.get(_REGIONS, ())
        return regions

    @property
    def left(self) -> Mapping[str, str]:
        """Why each product that was left, and each neighbour that no kernel computes, is none of a region."""
        return MappingProxyType(self.meta.get(_LEFT, {}))

    @property
    def model_name(self) -> str:
        """Class of the model."""
        return str(self.meta.get(_NAME, "model"))

    @property
    def options(self) -> Options:
        """What it was partitioned with."""
        options: Options = self.meta.get(_OPTIONS) or Options()
        return options

    @property
    def counts(self) -> dict[str, int]:
        """How many regions there are of each kind."""
        return dict(Counter(each.kind for each in self.regions))

    def __call__(self, *args: Any, **named: Any) -> Any:
        """Return what the model returns.

        Raises
        ------
        ArgumentError
            A parameter of the model was replaced by another tensor, which the partition does not have, or an input is
            not as it was when the model was partitioned.
        """
        if not torch.compiler.is_compiling():
            places = self.__dict__.get("_pycutlass_places")
            if places is None:
                places = self.__dict__["_pycutlass_places"] = places_of(self, self.meta.get(_SHARED, ()))
            check_shared(places)
        return super().__call__(*args, **named)

    def __repr__(self) -> str:
        """Return a line for each region, and for each node that was left."""
        return report(self.regions, self.left)

    __str__ = __repr__

    def train(self, mode: bool = True) -> Self:
        """Refuse another mode than the one that was captured, which dropout and batch norms are computed by.

        Raises
        ------
        ArgumentError
            The other mode.
        """
        captured_in = self.meta.get(_TRAINING, mode)
        if mode != captured_in:
            now, wanted = ("train" if each else "eval" for each in (captured_in, mode))
            raise ArgumentError(
                f"the model was partitioned in {now} mode, and {wanted} mode is another graph: call model.{wanted}() "
                f"and partition it again"
            )
        return super().train(mode)

    def __reduce__(self) -> Any:
        """Refuse to be pickled: graphs hold what tracing knows of their values, which cannot be.

        Raises
        ------
        ArgumentError
            Always.
        """
        raise ArgumentError(
            "a partition cannot be pickled, since its graphs hold what tracing knows of their values: keep the model, "
            "or its state_dict, and partition it again, or save torch.export.export(partitioned, inputs) by "
            "torch.export.save"
        )


def check_partitioned(who: str, given: Any) -> None:
    """Raise ArgumentTypeError unless a function was given a partition."""
    if not isinstance(given, Partition):
        raise ArgumentTypeError(
            f"{who} takes what pycutlass.pytorch.partition returns, got {shown(given)}: partition the model first"
        )


def report(regions: tuple[Region, ...], left: Mapping[str, str]) -> str:
    """Return a line for each region, and for each node that was left."""
    lines = [f"{counted(len(regions), 'region')}, {counted(len(left), 'node') if left else 'nothing'} left"]
    lines += [f"  {each}" for each in regions]
    lines += [f"  left {name}: {reason}" for name, reason in left.items()]
    return "\n".join(lines)


@public
def partition(model: Any, example_inputs: Any = None, dynamic: Any = None, options: Any = None) -> Partition:
    """Find what kernels can take in a model, and return the model with these regions as submodules.

    The model is captured by ``torch.export``. A region is a product, or a convolution, with what follows it, which one
    kernel computes: biases, activations, residuals, scales, casts, batch norms in eval mode.

    Parameters
    ----------
    model : Module or ExportedProgram
        In the mode, train or eval, in which it is to run. It stays as it is, and shares its parameters with the result.
    example_inputs : tuple, dict or Tensor, optional
        What the model is called with. An ExportedProgram needs none.
    dynamic : optional
        Which extents may change from call to call: the ``dynamic_shapes`` of ``torch.export``, or True for the first
        axis of every tensor. By default none. An ExportedProgram says so itself, and takes none.
    options : Options or dict, optional
        Which regions are taken.

    Returns
    -------
    Partition
        What computes the same as the model.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        A model that cannot be captured as one graph, options that are none, or a call while torch traces.

    Notes
    -----
    Values inside of a region are not rounded to the types that tensors between torch's operators would have, but to
    those that the model converts to. Where a gradient is asked for, regions run as they were in the model; and under
    another autocast than that of the capture. Partition a model under the autocast that it is to have.

    With `dynamic`, copies of the model are called with 0 and 1 elements of the example along axes that change, since
    ``torch.export`` takes these for 2 or more. Such inputs are refused later if the graph computes something else, or
    if that cannot be seen, since the model or its example has no values.

    Examples
    --------
    >>> import torch, pycutlass.pytorch
    >>> model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU())
    >>> made = pycutlass.pytorch.partition(model, torch.ones(2, 8), options={"min_gain": 0})
    >>> [region.fused for region in made.regions]
    [('relu',)]
    """
    chosen = Options.of(options)
    is_training = model.training if isinstance(model, nn.Module) else False
    with _one_at_a_time:
        module = captured(model, example_inputs, dynamic)
        found = found_in(module.graph, chosen, partial(_as_submodule, module))
    regions = _numbered(module, found.regions)
    made = Partition(module, module.graph)
    made.meta.update({_REGIONS: regions, _LEFT: found.left, _TRAINING: is_training})
    made.meta.update({_OPTIONS: chosen, _NAME: type(model).__name__, _SHARED: shared_with(model, made)})
    nn.Module.train(made, is_training)
    return made


def _as_submodule(module: GraphModule, graph: Graph, region: Region, made: Written) -> list[Node]:
    """Call a region as a submodule, and return its results."""
    fused = GraphModule({}, made.graph)
    module.add_submodule(region.name, RegionModule(region, fused, GraphModule({}, made.plain)))
    call = graph.call_module(region.name, made.inputs)
    return [graph.call_function(operator.getitem, (call, at)) for at in range(len(made.outputs))]


def _numbered(module: GraphModule, regions: list[Region]) -> tuple[Region, ...]:
    """Return regions with numbers in the order of the graph, by which their submodules are called as well."""
    found = {each.name: each for each in regions}
    calls = [node for node in module.graph.nodes if node.op == "call_module" and node.target in found]
    submodules: list[Any] = [module.get_submodule(str(node.target)) for node in calls]
    for node in calls:
        module.delete_submodule(node.target)
    numbered = []
    for number, (node, submodule) in enumerate(zip(calls, submodules, strict=True)):
        region = replace(found[node.target], name=f"pycutlass_{number}")
        submodule.region = region
        node.target = region.name
        module.add_submodule(region.name, submodule)
        numbered.append(region)
    module.recompile()
    return tuple(numbered)
