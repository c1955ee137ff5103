"""What a node of a region computes of traced values, and which nodes can be part of one."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch
from torch.fx import Node

from pycutlass.epilogue.graph import Input, Value
from pycutlass.epilogue.traced import Trace, Traced
from pycutlass.errors import PyCutlassError
from pycutlass.pytorch.regions.extents import form_of, is_whole, same, without_ones
from pycutlass.pytorch.regions.pointwise import POINTWISE, UnfusedError, name_of
from pycutlass.pytorch.regions.products import Product, unlike_tensor, value_of
from pycutlass.pytorch.regions.reductions import REDUCTIONS, is_reduction, unlike_reduction

__all__ = [
    "NORMS",
    "applied",
    "arguments_of",
    "constant_of",
    "is_symbol",
    "is_view",
    "norm_of",
    "tensors_of",
    "unfused",
]

_VIEWS = {
    "view": None,
    "reshape": None,
    "_unsafe_view": None,
    "unsqueeze": None,
    "squeeze": None,
    "squeeze.dim": None,
    "squeeze.dims": None,
    "flatten.using_ints": None,
    "unflatten.int": None,
    "expand": None,
    "alias": None,
    "detach": None,
}
#: Batch norms, with the place of `training` where they have it.
NORMS: dict[str, int | None] = {
    "batch_norm": 5,
    "native_batch_norm": 5,
    "cudnn_batch_norm": 5,
    "_native_batch_norm_legit_no_training": None,
}
#: What makes tensors of one number, and where it has that.
_FILLED = {"full": 1, "scalar_tensor": 0}
_ROUNDING = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
_COMPUTED = (torch.float16, torch.bfloat16, torch.float32)
_READ = (*_COMPUTED, torch.float64, torch.bool, torch.int8, torch.uint8, torch.float8_e4m3fn, torch.float8_e5m2)
#: Well-known neighbours, and why they are not part of a region.
_REASONS = {
    "softmax.int": "normalises rows, whose sums are complete only when the kernel is",
    "_softmax": "normalises rows, whose sums are complete only when the kernel is",
    "log_softmax.int": "normalises rows, whose sums are complete only when the kernel is",
    "_log_softmax": "normalises rows, whose sums are complete only when the kernel is",
    "layer_norm": "normalises rows, whose sums are complete only when the kernel is",
    "native_layer_norm": "normalises rows, whose sums are complete only when the kernel is",
    "rms_norm": "normalises rows, whose sums are complete only when the kernel is",
    "_fused_rms_norm": "normalises rows, whose sums are complete only when the kernel is",
    "group_norm": "normalises groups of channels, whose sums are complete only when the kernel is",
    "native_group_norm": "normalises groups of channels, whose sums are complete only when the kernel is",
    "_native_batch_norm_legit": "normalises by the batch itself, whose sums are complete only when the kernel is",
    "_native_batch_norm_legit_functional": "normalises by the batch itself, whose sums are complete only when the "
    "kernel is",
    "permute": "moves axes, and a region has rows and columns in the order of the product",
    "transpose.int": "moves axes, and a region has rows and columns in the order of the product",
    "t": "moves axes, and a region has rows and columns in the order of the product",
    "native_dropout": "is random in training",
    "bernoulli.p": "is random",
}


def is_view(node: Node) -> bool:
    """Return whether a node computes nothing: it is another view of a value, or one of several results."""
    return node.target is operator.getitem or name_of(node.target) in _VIEWS


def constant_of(node: Node) -> float | None:
    """Return the number that all elements of a tensor are, which the graph itself has; None of other tensors."""
    name = name_of(node.target) if node.op == "call_function" else ""
    if name not in _FILLED or not isinstance(value_of(node), torch.Tensor):
        return None
    value = node.args[_FILLED[name]]
    if isinstance(value, bool) or not isinstance(value, int | float) or value_of(node).dtype not in _ROUNDING:
        return None
    return float(torch.tensor(value, dtype=value_of(node).dtype))


def is_symbol(value: Any) -> bool:
    """Return whether this is a number that is known when a graph runs."""
    return isinstance(value, torch.SymInt | torch.SymFloat)


def norm_of(node: Node) -> dict[str, Any] | None:
    """Return weight, bias, mean, var and eps of a batch norm with constant statistics; None of all else."""
    if node.op != "call_function" or name_of(node.target) not in NORMS:
        return None
    name, args = name_of(node.target), node.args
    place = NORMS[name]
    if node.kwargs or (place is not None and (len(args) <= place or args[place] is not False)):
        return None
    eps = args[7] if place is not None else args[6]
    return dict(zip(("weight", "bias", "mean", "var"), args[1:5], strict=True)) | {"eps": eps, "x": args[0]}


def arguments_of(node: Node) -> tuple[Node, ...]:
    """Return what a node reads of a graph: of views the tensor alone, whose extents follow from it."""
    if node.op == "call_function" and name_of(node.target) in _VIEWS:
        return (node.args[0],)  # type: ignore[return-value]
    return tuple(node.all_input_nodes)


def tensors_of(node: Node) -> tuple[Node, ...]:
    """Return the tensors that a node reads."""
    return tuple(each for each in arguments_of(node) if not is_symbol(value_of(each)))


def applied(node: Node, of: Callable[[Node], Any], of_norm: Callable[[Node], tuple[Any, Any]]) -> Any:
    """Return what a node makes of the values of others.

    Parameters
    ----------
    node : Node
        Of the region.
    of : function
        Returns the value of a node.
    of_norm : function
        Returns what a batch norm multiplies by, and what it adds.

    Raises
    ------
    UnfusedError
        No epilogue function computes it.
    """
    name = name_of(node.target)
    if node.target is operator.getitem or name in _VIEWS:
        return of(node.args[0])  # type: ignore[arg-type]
    if name in NORMS:
        scale, shift = of_norm(node)
        return of(node.args[0]) * scale + shift  # type: ignore[arg-type]

    def given(value: Any) -> Any:
        if isinstance(value, Node):
            return of(value)
        if isinstance(value, list | tuple | complex):
            raise UnfusedError(f"is given {value!r}, which epilogue functions cannot compute with")
        return value

    args = [given(each) for each in node.args]
    return POINTWISE[name](*args, **{key: given(each) for key, each in node.kwargs.items()})


def unfused(node: Node, product: Product, members: set[Node]) -> str:
    """Return why a node that reads members of a region is none itself; "" where it can be one."""
    if node.op != "call_function":
        return "leaves the graph" if node.op == "output" else "is no operator"
    name = name_of(node.target)
    if any(each in members and is_reduction(each) for each in node.all_input_nodes):
        return "reads a reduction, which is complete only when the kernel is"
    if node.target is operator.getitem:
        of_norm = norm_of(node.args[0]) is not None  # type: ignore[arg-type]
        return "" if of_norm and node.args[1] == 0 else "takes one of several results"
    if name in REDUCTIONS:
        return unlike_reduction(node, product)
    if name not in POINTWISE and name not in _VIEWS and name not in NORMS:
        return _REASONS.get(name, "is no operator that an epilogue function computes")
    if name in NORMS:
        return _unlike_norm(node, product, members)
    return _unlike_value(node, product) or _unlike_shapes(node, product, members) or _untraced(node)


def _unlike_value(node: Node, product: Product) -> str:
    """Return why a result is none that kernels write."""
    made, first = value_of(node), value_of(product.node)
    reason = unlike_tensor(made)
    if reason:
        return reason
    if made.device != first.device:
        return f"moves to {made.device}"
    allowed = (torch.float64,) if first.dtype is torch.float64 else _COMPUTED
    if made.dtype not in allowed and made.dtype is not torch.bool:
        computed = "float64" if first.dtype is torch.float64 else "float32"
        return f"is of {made.dtype}, and the epilogue of such a product is computed in {computed}"
    return ""


def _unlike_shapes(node: Node, product: Product, members: set[Node]) -> str:
    """Return why tensors do not lie upon each other, element by element."""
    shape = tuple(value_of(node).shape)
    if not is_whole(product.kind, shape, product.shape):
        return f"is of shape {_shown(shape)}, which no longer has the rows and columns of the product"
    if name_of(node.target) in _VIEWS:
        return "drops axes of 1, which an extent that changes may be" if _may_drop(node) else ""
    for each in tensors_of(node):
        value = value_of(each)
        if each in members:
            own, whole = without_ones(tuple(value.shape)), without_ones(shape)
            if len(own) != len(whole) or not all(map(same, own, whole)):
                return "repeats the region's own values"
            continue
        reason = unlike_tensor(value) or _unlike_input(each, product)
        if reason:
            return reason
        if form_of(product.kind, tuple(value.shape), shape) is None:
            return (
                f"reads {each.name} of shape {_shown(tuple(value.shape))}, which kernels do not repeat to "
                f"{_shown(shape)}"
            )
    return ""


def _may_drop(node: Node) -> bool:
    """Return whether it depends on an extent that changes how many axes a result has."""
    if not name_of(node.target).startswith("squeeze"):
        return False
    shape = value_of(node.args[0]).shape
    axes: Any = node.args[1] if len(node.args) > 1 else range(len(shape))
    return any(type(shape[axis]) is not int for axis in ((axes,) if isinstance(axes, int) else axes))


def _unlike_input(node: Node, product: Product) -> str:
    """Return why an epilogue cannot read a tensor; "" where it can."""
    value, first = value_of(node), value_of(product.node)
    if value.device != first.device:
        return f"reads {node.name} on {value.device}, and the product is on {first.device}"
    if value.dtype not in _READ:
        return f"reads {node.name} of {value.dtype}, which epilogue functions cannot"
    if value.dtype is torch.float64 and first.dtype is not torch.float64:
        return f"reads {node.name} of {value.dtype}, and the epilogue is computed in float32"
    return ""


def _untraced(node: Node) -> str:
    """Return why no epilogue function computes what a node does, of numbers in the place of its tensors."""
    inputs = Input("accum", "accumulator"), Input("x", "matrix"), Input("s", "scalar")
    trace = Trace(inputs)
    some = {each.name: Traced(trace, trace.add(Value("input", (), (each.name,)))) for each in inputs}

    def of(each: Node) -> Any:
        value = value_of(each)
        if is_symbol(value) or not isinstance(value, torch.Tensor):
            return some["s"]
        return some["x"] != 0.0 if value.dtype is torch.bool else some["x"]

    try:
        made = applied(node, of, lambda _: (some["x"], some["x"]))
    except UnfusedError as reason:
        return str(reason)
    except (PyCutlassError, TypeError, ValueError, OverflowError) as error:
        return f"is given what epilogue functions cannot compute with: {error}"
    if not isinstance(made, Traced):
        return "is a constant"
    is_truth = trace.is_truth(made._number)
    if is_truth is not (value_of(node).dtype is torch.bool):
        return (
            f"is of {value_of(node).dtype}, and the epilogue function makes {'a condition' if is_truth else 'a number'}"
        )
    return ""


def _unlike_norm(node: Node, product: Product, members: set[Node]) -> str:
    """Return why a batch norm is not part of a region."""
    norm = norm_of(node)
    if norm is None:
        return "normalises by the batch itself, whose sums are complete only when the kernel is"
    if norm["x"] not in members:
        return "normalises another tensor by the region's values"
    shape = tuple(value_of(norm["x"]).shape)
    if product.kind != "conv2d" and (product.kind == "bmm" or len(shape) != 2):
        return f"normalises axis 1 of shape {_shown(shape)}, which is not that of the product's columns"
    has_several = not isinstance(value_of(node), torch.Tensor)
    if has_several and any(user.target is not operator.getitem or user.args[1] != 0 for user in node.users):
        return "has results beside the normalised tensor, which are used"
    for name in ("weight", "bias", "mean", "var"):
        given = norm[name]
        if given is None:
            if name in ("mean", "var"):
                return "has no statistics"
            continue
        reason = unlike_tensor(value_of(given)) or _unlike_input(given, product)
        if reason:
            return reason
        if given in members:
            return "normalises by the region's own values"
    return ""


def _shown(shape: tuple[Any, ...]) -> str:
    return f"({', '.join(map(str, shape))})"
