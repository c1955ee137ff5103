"""A region as a graph of its own, which calls one operator, and in the place of its nodes in the graph of a model."""

from __future__ import annotations

import operator
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch._guards import detect_fake_mode
from torch.fx import Graph, GraphModule, Interpreter, Node
from torch.utils._pytree import tree_map_only

from pycutlass.errors import PyCutlassError
from pycutlass.pytorch.handles import epilogue_handle
from pycutlass.pytorch.regions.extents import Shape, same, tensor_form
from pycutlass.pytorch.regions.growth import Grown, Order
from pycutlass.pytorch.regions.members import norm_of
from pycutlass.pytorch.regions.products import Product, value_of
from pycutlass.pytorch.regions.reductions import is_reduction, reduction_of
from pycutlass.pytorch.regions.tracing import Beside, Epilogue

__all__ = ["Unwritable", "Written", "replaced", "written"]

_aten: Any = torch.ops.aten
_NATURAL = (0, 2, 3, 1)  # of images in the memory format channels_last


class Unwritable(Exception):  # noqa: N818
    """A region that cannot be put into its graph; the text says why."""


@dataclass(frozen=True)
class Written:
    """A region as a graph.

    Attributes
    ----------
    graph : Graph
        What computes it, of its inputs, by one operator.
    plain : Graph
        What computes it as the model does.
    inputs : tuple of Node
        What it is given, of the model's graph, in the order of its placeholders.
    outputs : tuple of Node
        The nodes of the model's graph that its results stand for, in their order.
    handle : str
        The text by which the operator takes the epilogue.
    """

    graph: Graph
    plain: Graph
    inputs: tuple[Node, ...]
    outputs: tuple[Node, ...]
    handle: str


def written(region: Grown, epilogue: Epilogue, order: Order) -> Written:
    """Return a region as a graph of its own.

    Raises
    ------
    Unwritable
        Extents that follow from no input.
    """
    writer = _Writer(region, order)
    handle = epilogue_handle(epilogue.function, **epilogue.types)
    product = region.product
    a, b = writer.operands()
    tensors = [writer.tensor(each) for each in epilogue.inputs if each.form is not None]
    scalars = [writer.scalar(each.node) for each in epilogue.inputs if each.form is None]
    ops: Any = torch.ops.pycutlass
    if product.kind == "conv2d":
        geometry = (list(product.geometry[each]) for each in ("stride", "padding", "dilation"))
        call = writer.call(
            ops.fused_conv2d.default, a, b, *geometry, product.geometry["groups"], handle, tensors, scalars
        )
    elif product.offs is not None:
        # Rows behind the last group are undefined in torch, and zero in results of our operator.
        offs, how = writer.of(product.offs), {"fill": not product.is_of_torch}
        call = writer.call(ops.fused_grouped_mm.default, a, b, offs, handle, tensors, scalars, **how)
    else:
        call = writer.call(ops.fused_mm.default, a, b, handle, tensors, scalars)
    results = {name: writer.call(operator.getitem, call, at) for at, (name, _) in enumerate(epilogue.outputs)}
    outputs = region.outputs
    made = tuple(writer.result(results[epilogue.same[node]], node) for node in outputs)
    writer.graph.output(made)
    for node in region.members:
        for each in node.all_input_nodes:
            if each not in writer.inside:
                writer.of(each)  # such as extents of views
    writer.finish()
    inputs = tuple(writer.inputs)
    _check(writer.graph, inputs, outputs)
    return Written(writer.graph, _plain(region, inputs), inputs, outputs, handle)


def _check(graph: Graph, inputs: tuple[Node, ...], outputs: tuple[Node, ...]) -> None:
    """Note what tracing knows of each value, and raise Unwritable unless results are those of the model's graph."""
    values = [value_of(node) for node in inputs]
    try:
        with torch.no_grad(), detect_fake_mode(values) or nullcontext():
            made = _Noting(GraphModule({}, graph)).run(*values)
    except (PyCutlassError, RuntimeError, TypeError, ValueError) as error:
        reason = str(error).partition("\n")[0]  # torch adds where its interpreter was
        raise Unwritable(f"cannot be put as one operator: {reason}") from error
    for node, got in zip(outputs, made, strict=True):
        wanted = value_of(node)
        if got.dtype is not wanted.dtype or len(got.shape) != len(wanted.shape):
            raise Unwritable(f"would be of {got.dtype} and {tuple(got.shape)}, and is {wanted.dtype} in the model")
        if not all(map(same, got.shape, wanted.shape)):
            raise Unwritable(f"would be of shape {tuple(got.shape)}, and is {tuple(wanted.shape)} in the model")


class _Noting(Interpreter):
    """Computes a graph of values without memory, and notes them."""

    def run_node(self, n: Node) -> Any:
        made = super().run_node(n)
        if n.op == "call_function":
            n.meta["val"] = made
        return made

    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
        """Call an operator; those of ours take floats, of which a symbol becomes one by a guard on its value."""
        if getattr(target, "namespace", "") == "pycutlass":
            args, kwargs = tree_map_only(torch.SymFloat, lambda _: 1.0, (args, kwargs))
        return super().call_function(target, args, kwargs)


def _plain(region: Grown, inputs: tuple[Node, ...]) -> Graph:
    """Return a graph of a region's own nodes."""
    graph = Graph()
    made = {node: graph.placeholder(node.name) for node in inputs}
    for node in region.members:
        made[node] = graph.node_copy(node, made.__getitem__)
    graph.output(tuple(made[node] for node in region.outputs))
    return graph


class _Writer:
    """Writes the graph of a region, with a placeholder for each input where it is first needed."""

    def __init__(self, region: Grown, order: Order) -> None:
        self.graph, self.inputs = Graph(), dict[Node, Node]()
        self._region, self._order = region, order
        self.inside = set(region.members)
        self._begin = self.graph.create_node("placeholder", "begin")
        self._sizes: dict[Any, Node] = {}
        self._scales: dict[Node, Node] = {}

    def of(self, node: Node) -> Node:
        """Return the placeholder of a node of the model's graph."""
        if node not in self.inputs:
            with self.graph.inserting_before(self._begin):
                made = self.graph.placeholder(node.name)
            made.meta = dict(node.meta)
            self.inputs[node] = made
        return self.inputs[node]

    def call(self, target: Any, *args: Any, **named: Any) -> Node:
        """Return a new node that calls a function."""
        return self.graph.call_function(target, args, named)

    def operands(self) -> tuple[Node, Node]:
        """Return A and B as kernels multiply them."""
        product = self._region.product
        a, b = self.of(product.a), self.of(product.b)
        if product.kind in ("conv2d", "grouped"):
            return a, b
        axes = 2 if product.kind == "mm" else 3
        if value_of(product.a).dim() != axes:
            a = self._folded(a, tuple(value_of(product.a).shape), axes)
        if product.is_turned:
            b = self.call(_aten.t.default, b)
        elif value_of(product.b).dim() != axes:
            b = self._folded(b, tuple(value_of(product.b).shape), axes)
        return a, b

    def _folded(self, node: Node, shape: Shape, axes: int) -> Node:
        return self.reshaped(node, (-1, *shape[len(shape) - axes + 1 :]))

    def tensor(self, beside: Beside) -> Node:
        """Return a tensor as the operator takes it beside the product."""
        if beside.part:
            return self._of_norm(beside)
        node = self.of(beside.node)
        assert beside.form is not None
        if beside.form.shape is None or _has_shape(value_of(beside.node), beside.form.shape):
            return node
        return self.reshaped(node, beside.form.shape)

    def _of_norm(self, beside: Beside) -> Node:
        """Return what a batch norm multiplies by, or adds, which follows from its tensors whenever it runs."""
        norm = norm_of(beside.node)
        assert norm is not None
        dtype = torch.float64 if value_of(norm["x"]).dtype is torch.float64 else torch.float32

        def of(name: str) -> Node | None:
            given = norm[name]
            if given is None:
                return None
            made = self.of(given)
            return made if value_of(given).dtype is dtype else self.call(_aten._to_copy.default, made, dtype=dtype)

        if beside.node not in self._scales:
            var, weight = of("var"), of("weight")
            scale = self.call(_aten.rsqrt.default, self.call(_aten.add.Scalar, var, norm["eps"]))
            self._scales[beside.node] = scale if weight is None else self.call(_aten.mul.Tensor, scale, weight)
        scale = self._scales[beside.node]
        if beside.part == "scale":
            return scale
        bias, mean = of("bias"), of("mean")
        if bias is None:
            return self.call(_aten.neg.default, self.call(_aten.mul.Tensor, mean, scale))
        return self.call(_aten.addcmul.default, bias, mean, scale, value=-1)

    def scalar(self, node: Node) -> Node:
        """Return a number that is known when the graph runs, as a float."""
        made = self.of(node)
        return self.call(torch.sym_float, made) if isinstance(value_of(node), torch.SymInt) else made

    def result(self, made: Node, node: Node) -> Node:
        """Return a result as the model's graph has it: of its shape, and as it lies in memory."""
        value, product = value_of(node), self._region.product
        shape = tuple(value.shape)
        if is_reduction(node):
            return self._reduced(made, node)
        if product.kind != "conv2d" and not _has_rank(product, len(shape)):
            made = self.reshaped(made, shape)
        return self._laid(made, value, _NATURAL if product.kind == "conv2d" else tuple(range(len(shape))))

    def _reduced(self, made: Node, node: Node) -> Node:
        """Return a reduction in its shape and type, of a mean divided."""
        found, value = reduction_of(node, self._region.product), value_of(node)
        assert found is not None
        for each in found.divided_by:
            count = each if type(each) is int else self._size(each)
            made = self.call(_aten.div.Tensor, made, count)
        made = self.reshaped(made, tuple(value.shape))
        kept = torch.float64 if value_of(self._region.product.node).dtype is torch.float64 else torch.float32
        return made if value.dtype is kept else self.call(_aten._to_copy.default, made, dtype=value.dtype)

    def _laid(self, made: Node, value: torch.Tensor, natural: tuple[int, ...]) -> Node:
        """Return a result with the order of axes in memory that tracing has seen, copied where it is another."""
        axes = tensor_form(value).order
        if _lies(value, natural):
            # Strides of axes of one element say nothing of memory, but torch chooses memory formats by them.
            if _lies(value, natural, ones=True) or not _lies(value, axes, ones=True):
                return made
            made = self.reshaped(self.call(_aten.permute.default, made, list(natural)), (-1,))
            made = self.reshaped(made, tuple(value.shape[axis] for axis in axes))
            return self.call(_aten.permute.default, made, [axes.index(axis) for axis in range(len(axes))])
        if not _lies(value, axes):
            raise Unwritable(
                f"lies in memory with strides {tuple(value.stride())}, which are those of no packed tensor"
            )
        if list(axes) == sorted(axes):  # a view of a view more, whose symbolic strides Inductor cannot order
            return self.call(_aten.clone.default, made, memory_format=torch.contiguous_format)
        turned = self.call(_aten.permute.default, made, list(axes))
        packed = self.call(_aten.clone.default, turned, memory_format=torch.contiguous_format)
        return self.call(_aten.permute.default, packed, [axes.index(axis) for axis in range(len(axes))])

    def reshaped(self, node: Node, shape: Shape) -> Node:
        """Return a node in a shape, of which one extent may be left to torch, unless another one may be 0."""
        unknown = [at for at, each in enumerate(shape) if type(each) is not int]
        extents: list[Any] = list(shape)
        if -1 not in shape and len(unknown) == 1 and not any(each == 0 for each in shape if type(each) is int):
            extents[unknown.pop(0)] = -1
        for at in unknown:
            extents[at] = self._size(shape[at])
        return self.call(_aten.reshape.default, node, extents)

    def _size(self, extent: Any) -> Node:
        """Return a node for an extent that is known when the graph runs."""
        expression = extent.node.expr
        if expression in self._sizes:
            return self._sizes[expression]
        read = (*self.inputs, self._region.product.a, self._region.product.b)
        found = _axis_of(expression, read)
        if found is not None:
            made = self.call(_aten.sym_size.int, self.of(found[0]), found[1])
        else:
            made = self.of(self._symbol(expression))
        self._sizes[expression] = made
        return made

    def _symbol(self, expression: Any) -> Node:
        """Return the node of the model's graph that is an extent, and is no result of the region."""
        last = self._order.place[self._region.members[-1]]
        for node in self._order.nodes[:last]:
            value = value_of(node)
            is_it = isinstance(value, torch.SymInt) and value.node.expr == expression
            if is_it and not self.inside.intersection(node.all_input_nodes):
                found: Node = node
                return found
        raise Unwritable(f"has an extent {expression}, which follows from none of the region's inputs")

    def finish(self) -> None:
        """Take out the mark behind the placeholders."""
        self.graph.erase_node(self._begin)


def _axis_of(expression: Any, nodes: tuple[Node, ...]) -> tuple[Node, int] | None:
    for node in nodes:
        value = value_of(node)
        if isinstance(value, torch.Tensor):
            for axis, each in enumerate(value.shape):
                if isinstance(each, torch.SymInt) and each.node.expr == expression:
                    return node, axis
    return None


def _has_shape(value: torch.Tensor, shape: Shape) -> bool:
    if value.dim() != len(shape):
        return False
    return all(each == -1 or same(each, own) for each, own in zip(shape, value.shape, strict=True))


def _has_rank(product: Product, rank: int) -> bool:
    return rank == (3 if product.kind == "bmm" else 2)


def _lies(value: torch.Tensor, axes: tuple[int, ...], *, ones: bool = False) -> bool:
    """Return whether a tensor is packed, with its axes in this order from the outermost to the adjacent one.

    Strides of axes of one element count where `ones` says so.
    """
    step: Any = 1
    for axis in reversed(axes):
        if ones or not same(value.shape[axis], 1):
            if not same(value.stride(axis), step):
                return False
            step = step * value.shape[axis]
    return True


def replaced(graph: Graph, region: Grown, made: Written, order: Order, call: Callable[[Written], list[Node]]) -> None:
    """Put a region in the place of its nodes.

    Parameters
    ----------
    graph : Graph
        Of the model.
    region : Grown
        What is replaced.
    made : Written
        What computes it.
    order : Order
        Of the graph, which is another one afterwards.
    call : function
        Called where the new nodes belong, with what is computed and its inputs; returns a node for each output.

    Raises
    ------
    Unwritable
        Nodes would have to change places that must not.
    """
    last = region.members[-1]
    inside = set(region.members)
    moved: list[Node] = []
    tainted = set(region.members)
    for node in order.nodes[order.place[region.product.node] : order.place[last] + 1]:
        if node not in inside and tainted.intersection(node.all_input_nodes):
            tainted.add(node)
            moved.append(node)
    if any(_is_ordered(node) for node in moved):
        raise Unwritable("stands behind an operator whose place in the order must stay, such as a random one")
    behind = last.next
    with graph.inserting_before(behind):
        results = call(made)
    for node in moved:
        behind.prepend(node)
    for node, result in zip(made.outputs, results, strict=True):
        result.meta.update(node.meta)
        node.replace_all_uses_with(result, delete_user_cb=lambda user: user not in inside)
    for node in reversed(region.members):
        graph.erase_node(node)


def _is_ordered(node: Node) -> bool:
    if isinstance(node.target, torch._ops.OpOverload):
        tags = node.target.tags
        return torch.Tag.nondeterministic_seeded in tags or node.target._schema.is_mutable
    return node.op not in ("call_function", "get_attr", "placeholder") or node.is_impure()
