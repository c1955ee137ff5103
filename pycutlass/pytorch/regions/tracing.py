"""A region as an epilogue function: what its nodes compute, and what the function is given."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.fx import Node

from pycutlass import epilogue
from pycutlass.epilogue import EpilogueFunction
from pycutlass.epilogue.function_types import check_names
from pycutlass.epilogue.graph import Input
from pycutlass.epilogue.parameters import traced
from pycutlass.pytorch.regions.extents import Form, form_of
from pycutlass.pytorch.regions.growth import Grown
from pycutlass.pytorch.regions.members import (
    applied,
    arguments_of,
    constant_of,
    is_symbol,
    is_view,
    norm_of,
    tensors_of,
)
from pycutlass.pytorch.regions.pointwise import truth
from pycutlass.pytorch.regions.products import Product, value_of
from pycutlass.pytorch.regions.reductions import is_reduction, reduced
from pycutlass.types import element

__all__ = ["Beside", "Epilogue", "epilogue_of"]

_NAME = "region"  # of every function: those that compute the same are equal, and have one kernel
_TENSORS = {"row": "row", "column": "column", "matrix": "tensor", "number": "number"}


@dataclass(frozen=True)
class Beside:
    """What a function is given beside the product.

    Attributes
    ----------
    name : str
        Of the parameter.
    node : Node
        Where it comes from: a tensor, a symbol, or a batch norm.
    form : Form or None
        How the kernel takes it; None of numbers of each launch.
    dtype : torch.dtype
        In which it is given.
    part : str
        Of a batch norm ``"scale"`` or ``"shift"``, else "".
    """

    name: str
    node: Node
    form: Form | None
    dtype: torch.dtype
    part: str = ""


@dataclass(frozen=True)
class Epilogue:
    """A region's epilogue function.

    Attributes
    ----------
    function : EpilogueFunction
        What is computed of the product.
    inputs : tuple of Beside
        What it is given, in the order of its parameters.
    outputs : tuple of (str, Node)
        What is written, D first, each with the last node that has this value.
    same : mapping
        For each output of the region, the name of the function's output that it is.
    """

    function: EpilogueFunction
    inputs: tuple[Beside, ...]
    outputs: tuple[tuple[str, Node], ...]
    same: dict[Node, str]

    @property
    def types(self) -> dict[str, torch.dtype]:
        """Types of outputs by name; reductions have that of the accumulator."""
        return {name: value_of(node).dtype for name, node in self.outputs if not is_reduction(node)}


@dataclass
class _Inputs:
    """The parameters of a function, in the order in which they are first needed."""

    product: Product
    found: dict[Any, Beside] = field(default_factory=dict)
    _count: dict[str, int] = field(default_factory=dict)

    def add(self, node: Node, form: Form | None, dtype: torch.dtype, part: str = "") -> Beside:
        """Return the parameter that stands for a tensor in a form."""
        key = (node, None if form is None else (form.name, form.shape and len(form.shape)), part)
        if key not in self.found:
            kind = "scalar" if form is None else _TENSORS[form.name]
            number = self._count[kind] = self._count.get(kind, -1) + 1
            self.found[key] = Beside(f"{kind}{number}", node, form, dtype, part)
        return self.found[key]


def epilogue_of(region: Grown, fast: bool = False) -> Epilogue:
    """Return the epilogue function of a region.

    Parameters
    ----------
    region : Grown
        A product with its neighbours.
    fast : bool
        Whether gelu may be computed by its approximation with tanh.

    Raises
    ------
    DescriptionError
        No function computes it.
    """
    inputs = _Inputs(region.product)
    _look(region, inputs)
    parameters = tuple(inputs.found.values())
    names: dict[Node, str] = {}
    last: dict[str, Node] = {}

    def function(accum: Any, *values: Any) -> Any:
        given = {each.name: value for each, value in zip(parameters, values, strict=True)}
        made = _computed(region, inputs, accum, given, fast)
        returned: dict[str, Any] = {}
        by_memory: dict[Node, str] = {}
        # What is computed last is D, but for reductions, which come behind.
        last_first = region.outputs[::-1]
        for node in sorted(last_first, key=is_reduction):
            key = _memory_of(node, made)
            if key not in by_memory:
                by_memory[key] = "D" if not returned else f"output{len(returned)}"
                returned[by_memory[key]] = made[node]
                last[by_memory[key]] = node
            names[node] = by_memory[key]
        return returned

    given = [Input("accum", "accumulator")]
    for each in parameters:
        if each.form is None:
            given.append(Input(each.name, "scalar"))
        else:
            given.append(Input(each.name, each.form.name, None, element(_stored(each.dtype)).short))
    graph = traced(function, tuple(given), _NAME)
    check_names(_NAME, graph)
    outputs = tuple((name, last[name]) for name, _ in graph.outputs)
    return Epilogue(EpilogueFunction(_NAME, graph), parameters, outputs, names)


def _memory_of(node: Node, members: Mapping[Node, Any]) -> Node:
    """Return the member whose memory a member shares in the model: only what views each other may be one output."""
    while is_view(node) and node.args[0] in members:
        node = node.args[0]  # type: ignore[assignment]
    return node


def _stored(dtype: torch.dtype) -> torch.dtype:
    """Return the type in which kernels read elements: truth values are bytes."""
    return torch.int8 if dtype is torch.bool else dtype


def _look(region: Grown, inputs: _Inputs) -> None:
    """Find what a region reads, in the order of its members."""
    product, inside = region.product, set(region.members)
    for each in product.extras:
        _extra(inputs, product, each)
    for node in region.members[1:]:
        norm = norm_of(node)
        if norm is not None:
            channels = value_of(norm["x"]).shape[1]
            dtype = torch.float64 if value_of(norm["x"]).dtype is torch.float64 else torch.float32
            for part in ("scale", "shift"):
                inputs.add(node, Form("row", (channels,)), dtype, part)
            continue
        for each in tensors_of(node):
            if each not in inside and constant_of(each) is None:
                _beside(inputs, product, each, node)
        for each in arguments_of(node):
            if is_symbol(value_of(each)):
                inputs.add(each, None, torch.float64)


def _beside(inputs: _Inputs, product: Product, tensor: Node, node: Node) -> Beside:
    value = value_of(tensor)
    form = form_of(product.kind, tuple(value.shape), tuple(value_of(node).shape))
    assert form is not None  # or the node had not been taken
    return inputs.add(tensor, form, value.dtype)


def _extra(inputs: _Inputs, product: Product, tensor: Node) -> Beside:
    value = value_of(tensor)
    shape = tuple(value.shape)
    if product.kind == "grouped" and len(shape) == 2:
        return inputs.add(tensor, Form("row", None), value.dtype)
    form = form_of(product.kind, (*shape, 1, 1) if product.kind == "conv2d" else shape, product.shape)
    assert form is not None
    return inputs.add(tensor, form, value.dtype)


def _computed(region: Grown, inputs: _Inputs, accum: Any, given: dict[str, Any], fast: bool) -> dict[Node, Any]:
    """Return the value of each member, of those of the function's parameters."""
    product = region.product

    def read(beside: Beside) -> Any:
        value = given[beside.name]
        return truth(value) if beside.dtype is torch.bool else value

    start = accum if product.alpha == 1 else accum * product.alpha
    for each in product.scales:
        start = start * read(_extra(inputs, product, each))
    if product.addend is not None:
        added = read(_extra(inputs, product, product.addend))
        start = start + (added if product.beta == 1 else added * product.beta)
    made: dict[Node, Any] = {product.node: start}
    for node in region.members[1:]:

        def of(each: Node, node: Node = node) -> Any:
            if each in made:
                return made[each]
            if is_symbol(value_of(each)):
                return given[inputs.add(each, None, torch.float64).name]
            number = constant_of(each)
            if number is not None:
                return number
            return read(_beside(inputs, product, each, node))

        def of_norm(norm: Node) -> tuple[Any, Any]:
            channels = Form("row", (0,))
            parts = (inputs.add(norm, channels, torch.float32, part) for part in ("scale", "shift"))
            scale, shift = (given[each.name] for each in parts)
            return scale, shift

        if is_reduction(node):
            made[node] = reduced(node, product, of(node.args[0]))  # type: ignore[arg-type]
            continue
        made[node] = _fast_gelu(node, of) if fast and _is_gelu(node) else applied(node, of, of_norm)
    return made


def _is_gelu(node: Node) -> bool:
    return node.target is torch.ops.aten.gelu.default


def _fast_gelu(node: Node, of: Callable[[Node], Any]) -> Any:
    kind: Any = epilogue.gelu_tanh
    return kind(of(node.args[0]))  # type: ignore[arg-type]
