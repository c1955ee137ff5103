"""A model as a graph of ATen's operators, before any of them is decomposed."""

from __future__ import annotations

import copy
import inspect
import operator
import warnings
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn
from torch.export import ExportedProgram
from torch.fx import Graph, GraphModule, Node

from pycutlass.calls import shown
from pycutlass.errors import ArgumentError, ArgumentTypeError
from pycutlass.pytorch.regions.few import unlike
from pycutlass.pytorch.regions.guards import refuse, with_guards
from pycutlass.pytorch.regions.members import norm_of
from pycutlass.pytorch.regions.pointwise import name_of
from pycutlass.pytorch.regions.products import value_of
from pycutlass.pytorch.regions.traceable import check_traceable
from pycutlass.pytorch.regions.uncaptured import uncaptured

__all__ = ["captured", "with_input_extents", "with_own_statistics"]
_aten: Any = torch.ops.aten


def _prelu(x: torch.Tensor, slopes: torch.Tensor) -> Any:
    """Give slopes of axis 1 the shape by which they broadcast."""
    extents = [1, -1, *(1 for _ in x.shape[2:])]
    return _aten._prelu_kernel.default(x, _aten.view.default(slopes, extents[: x.dim()] if x.dim() > 1 else [-1]))


#: Batch norms whose further results follow from their statistics in eval mode.
_WITH_STATISTICS = ("native_batch_norm", "_native_batch_norm_legit_no_training")


def _taken_apart(program: ExportedProgram) -> dict[Any, Any]:
    """Return operators that are taken apart: what goes not element by element, and what has products inside."""
    einsum = _aten.einsum.default
    graphs = (each.graph for each in program.graph_module.modules() if isinstance(each, GraphModule))
    has_products = any(node.target is einsum for graph in graphs for node in graph.nodes)
    apart = {einsum: torch.export.default_decompositions()[einsum]} if has_products else {}  # a table of 0.1 s
    return {_aten.prelu.default: _prelu, **apart}


def captured(model: Any, example_inputs: Any, dynamic: Any) -> GraphModule:
    """Return a model as a graph module that has its parameters and changes nothing but its buffers, at the end.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        No model, or one that torch.export cannot capture.
    """
    check_traceable(model, example_inputs)
    if isinstance(model, ExportedProgram) and dynamic is not None:
        raise ArgumentError(
            "an ExportedProgram says itself which extents may change: pass dynamic_shapes to torch.export.export, and"
            " no dynamic to partition"
        )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of torch about torch
        program = model if isinstance(model, ExportedProgram) else _exported(model, example_inputs, dynamic)
        try:
            made: Any = _detached(program).run_decompositions(_taken_apart(program)).module()
        except Exception as error:
            raise ArgumentError(f"torch.export cannot take views and changes out of the model: {error}") from error
    for node in list(made.graph.nodes):  # what it asserts of types was so when it was captured, and would read results
        if node.op == "call_function" and node.target is torch.ops.aten._assert_tensor_metadata.default:
            made.graph.erase_node(node)
    with_input_extents(made.graph)
    found: GraphModule = made
    with_guards(found)
    if dynamic is not None and dynamic is not False:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the model has its say when it is called for its results
            refuse(found, unlike(model, found, *_inputs(example_inputs)))
    return found


def _detached(program: ExportedProgram) -> ExportedProgram:
    """Return a program in which results of `torch.no_grad` are detached, since decompositions inline such blocks."""
    block: Any = torch.ops.higher_order.wrap_with_set_grad_enabled
    if not any(_is_without_grad(node, block) for node in program.graph.nodes):
        return program
    graph = copy.deepcopy(program.graph)
    for node in list(graph.nodes):
        is_result = node.target is operator.getitem and _is_without_grad(node.args[0], block)
        if is_result and isinstance(value_of(node), torch.Tensor):
            with graph.inserting_after(node):
                made = graph.call_function(_aten.detach.default, (node,))
            made.meta = dict(node.meta)
            node.replace_all_uses_with(made, delete_user_cb=lambda user, made=made: user is not made)
            node.name, made.name = made.name, node.name  # by which the program knows its results
    module = GraphModule(program.graph_module, graph)
    module.meta.update(program.graph_module.meta)
    return program._update(module, program.graph_signature)


def _is_without_grad(node: Node, block: Any) -> bool:
    return node.target is block and node.args[0] is False


def _exported(model: Any, example_inputs: Any, dynamic: Any) -> ExportedProgram:
    if not isinstance(model, nn.Module):
        raise ArgumentTypeError(f"model must be a torch.nn.Module or an ExportedProgram, got {shown(model)}")
    args, named = _inputs(example_inputs)
    if dynamic is not None and dynamic is not False:
        args, named = torch.utils._pytree.tree_map(_packed, (args, named))
    try:
        return torch.export.export(model, args, named, dynamic_shapes=_shapes(dynamic, model, args, named))
    except Exception as error:  # of any kind, since the model is the user's
        raise uncaptured(error, model, args, named, dynamic) from error


def _packed(value: Any) -> Any:
    """Return an example that lies packed, in the order of its axes: torch guards strides of part of a larger tensor."""
    is_plain = type(value) in (torch.Tensor, nn.Parameter) and value.layout is torch.strided
    if not is_plain or value.is_nested or value.is_quantized or 0 in value.stride():
        return value
    is_packed = torch.empty_like(value, device="meta").stride() == value.stride()
    return value if is_packed else torch.empty_like(value, requires_grad=value.requires_grad)


def _inputs(given: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return what a model is called with, by position and by name."""
    if isinstance(given, Mapping):
        return (), dict(given)
    if isinstance(given, tuple | list):
        return tuple(given), {}
    if isinstance(given, torch.Tensor):
        return (given,), {}
    raise ArgumentTypeError(
        f"example_inputs must be a tuple of what the model is called with, or a dict by name; got {shown(given)}"
    )


def _shapes(dynamic: Any, model: nn.Module, args: tuple[Any, ...], named: dict[str, Any]) -> Any:
    """Return the dynamic_shapes of torch.export: True for the first axis of every tensor."""
    if not isinstance(dynamic, bool):
        return dynamic
    if not dynamic:
        return None

    def first(value: Any) -> Any:
        return {0: torch.export.Dim.AUTO} if isinstance(value, torch.Tensor) and value.dim() else None

    tree: Any = torch.utils._pytree
    given = inspect.signature(model.forward).bind(*args, **named).arguments
    return {name: tree.tree_map(first, value) for name, value in given.items()}


def with_input_extents(graph: Graph) -> None:
    """Let extents be read from inputs of the graph where they are the same, so that no result is kept for its shape."""
    found = dict[Any, Node]()
    known = [node for node in graph.nodes if node.op == "placeholder"]
    inputs = {node: value_of(node) for node in known}
    symbols = {value.node.expr: node for node, value in inputs.items() if isinstance(value, torch.SymInt)}
    for node in list(graph.nodes):
        if node.op != "call_function" or node.target is not torch.ops.aten.sym_size.int:
            continue
        value = value_of(node)
        if not isinstance(value, torch.SymInt) or node.args[0] in inputs:
            continue
        expression = value.node.expr
        source = symbols.get(expression) or found.get(expression) or _read(graph, inputs, expression, known)
        if source is not None:
            found[expression] = source
            node.replace_all_uses_with(source)
            graph.erase_node(node)


def with_own_statistics(graph: Graph) -> None:
    """Let backward read what batch norms in eval mode leave for it from their statistics, where they have it.

    Then a norm has one result that is used, and can be part of a region in training as well.
    """
    for node in list(graph.nodes):
        source = node.args[0] if node.target is operator.getitem else None
        norm = norm_of(source) if isinstance(source, Node) and name_of(source.target) in _WITH_STATISTICS else None
        if norm is None or node.args[1] not in (1, 2) or norm["mean"] is None or norm["var"] is None:
            continue
        value, of_norm = value_of(node), norm["mean"] if node.args[1] == 1 else norm["var"]
        with graph.inserting_before(source):
            if value.numel() == 0:  # as on the host
                made = graph.call_function(_aten.new_zeros.default, (of_norm, [0]), {"dtype": value.dtype})
            else:
                made = graph.call_function(_aten._to_copy.default, (of_norm,), {"dtype": value.dtype})
                if node.args[1] == 2:
                    made.meta = dict(node.meta)
                    made = graph.call_function(_aten.add.Scalar, (made, norm["eps"]))
                    made.meta = dict(node.meta)
                    made = graph.call_function(_aten.rsqrt.default, (made,))
        made.meta = dict(node.meta)
        node.replace_all_uses_with(made)
        graph.erase_node(node)


def _read(graph: Graph, inputs: Mapping[Node, Any], expression: Any, placeholders: list[Node]) -> Node | None:
    """Return a new node behind the inputs that reads an extent of one of them."""
    for node, value in inputs.items():
        if not isinstance(value, torch.Tensor):
            continue
        for axis, extent in enumerate(value.shape):
            if isinstance(extent, torch.SymInt) and extent.node.expr == expression:
                with graph.inserting_before(placeholders[-1].next):
                    made: Node = graph.call_function(torch.ops.aten.sym_size.int, (node, axis))
                made.meta["val"] = extent
                return made
    return None
