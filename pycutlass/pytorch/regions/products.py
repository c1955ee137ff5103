"""Products in a graph of ATen: what is multiplied, and why some are left to torch."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch.fx import GraphModule, Node

from pycutlass.pytorch.regions.extents import Shape, same
from pycutlass.pytorch.regions.pointwise import name_of

__all__ = ["Product", "is_product", "product_of", "runs_graphs", "value_of"]

#: Products that no kernel here computes in a graph, and why.
_OTHERS = {
    "mv": "multiplies by a vector",
    "dot": "multiplies two vectors",
    "addmv": "multiplies by a vector",
    "conv_transpose1d": "is a transposed convolution, without a region",
    "conv_transpose2d.input": "is a transposed convolution, without a region",
    "conv_transpose3d.input": "is a transposed convolution, without a region",
    "convolution_backward": "computes several gradients at once",
    "_addmm_activation": "applies its activation itself: call addmm, and the activation behind it",
    "addbmm": "adds up a batch of products",
    **dict.fromkeys(("bilinear", "_trilinear", "cdist", "_cdist_forward"), "is no product of two matrices"),
    **dict.fromkeys(("vdot", "linalg_vecdot", "outer", "ger", "addr"), "multiplies two vectors"),
    **dict.fromkeys(
        ("inner", "tensordot", "linalg_multi_dot", "chain_matmul"),
        "is taken apart into products when it runs: write it by matmul",
    ),
    **dict.fromkeys(
        ("_scaled_grouped_mm", "_scaled_grouped_mm_v2"), "has groups with scales of their own, without a region"
    ),
    **dict.fromkeys(
        ("_weight_int8pack_mm", "_weight_int4pack_mm", "_weight_int4pack_mm_for_cpu", "_mixed_dtypes_linear"),
        "multiplies by weights that are packed, or of another type: torch.ops.pycutlass.mixed_mm takes those of int8",
    ),
    **dict.fromkeys(
        ("_sparse_mm", "_sparse_mm.reduce", "_sparse_addmm", "sparse_sampled_addmm", "smm", "hspmm", "sspaddmm"),
        "multiplies a sparse tensor, and kernels take strided ones",
    ),
    **dict.fromkeys(("conv1d", "conv1d.padding", "conv_tbc"), "convolves along one axis, and kernels convolve images"),
    **dict.fromkeys(("conv3d", "conv3d.padding"), "convolves along three axes, and kernels convolve images"),
    **dict.fromkeys(
        (
            "scaled_dot_product_attention",
            *(f"_scaled_dot_product_{kind}_attention" for kind in ("flash", "efficient", "cudnn")),
            *("_scaled_dot_product_flash_attention_for_cpu", "_scaled_dot_product_fused_attention_overrideable"),
            *("_flash_attention_forward", "_efficient_attention_forward", "_native_multi_head_attention"),
        ),
        "is attention, which torch computes in one kernel",
    ),
    **dict.fromkeys(
        (
            *(f"{name}.{form}" for name in ("lstm", "gru", "rnn_tanh", "rnn_relu") for form in ("input", "data")),
            *("lstm_cell", "gru_cell", "rnn_tanh_cell", "rnn_relu_cell"),
        ),
        "is a recurrent layer, whose steps torch computes together",
    ),
    **dict.fromkeys(
        (
            *("pycutlass::addmm", "pycutlass::mixed_mm", "pycutlass::scaled_mm"),
            *("pycutlass::conv2d_input", "pycutlass::conv2d_weight"),
            *("pycutlass::swiglu", "pycutlass::interleaved_swiglu"),
            *("pycutlass::fused_mm", "pycutlass::fused_conv2d", "pycutlass::fused_grouped_mm"),
        ),
        "is an operator of PyCUTLASS already, which is computed as it is",
    ),
}
#: Operators of ours that are torch's where they have no activation, as in layers that `convert` has replaced.
_OURS = {f"pycutlass::{name}": name for name in ("linear", "matmul", "conv2d")}
_MATRICES = (
    *("mm", "addmm", "bmm", "baddbmm", "linear", "matmul", "_int_mm", "_scaled_mm", "_scaled_mm_v2"),
    *("mm.dtype", "addmm.dtype", "bmm.dtype"),
)
#: Groups of products, torch's own and ours.
_GROUPS = ("_grouped_mm", "pycutlass::grouped_mm")
_IMAGES = ("conv2d", "conv2d.padding", "convolution")
_LINES = (0, 1)  # of torch's ScalingType: a number for a tensor, and one for each row or column
_TYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.int8)
_FLOATS8 = (torch.float8_e4m3fn, torch.float8_e5m2)


@dataclass(frozen=True)
class Product:
    """A product, with what it adds and multiplies by itself.

    Attributes
    ----------
    node : Node
        Of the graph.
    kind : str
        ``"mm"``, ``"bmm"``, ``"conv2d"`` or ``"grouped"``.
    a, b : Node
        The operands.
    is_turned : bool
        Whether `b` is (N, K), as weights of linear layers are.
    shape : tuple
        Of the result, as torch has it.
    scales : tuple of Node
        What the product is multiplied by.
    addend : Node or None
        What is added, `beta` times; the product counts `alpha` times.
    geometry : dict
        Of a convolution.
    offs : Node or None
        Where the rows of each group end.
    """

    node: Node
    kind: str
    a: Node
    b: Node
    shape: Shape
    is_turned: bool = False
    scales: tuple[Node, ...] = ()
    addend: Node | None = None
    alpha: Any = 1
    beta: Any = 1
    geometry: dict[str, Any] = field(default_factory=dict)
    offs: Node | None = None

    @property
    def is_of_torch(self) -> bool:
        """Whether torch computes it, and no operator of ours."""
        return not name_of(self.node.target).startswith("pycutlass::")

    @property
    def extras(self) -> tuple[Node, ...]:
        """What it reads beside its operands."""
        return (*self.scales, *(() if self.addend is None else (self.addend,)))


def value_of(node: Any) -> Any:
    """Return what tracing knows of a node: a tensor without memory, a symbol, or None."""
    return node.meta.get("val") if isinstance(node, Node) else None


def is_product(node: Node) -> bool:
    """Return whether a node is a product that could be a region, or is known to be none."""
    if node.op != "call_function" or not isinstance(node.target, torch._ops.OpOverload):
        return False
    name = name_of(node.target)
    return any(name in each for each in (_MATRICES, _IMAGES, _GROUPS, _OURS, _OTHERS))


def runs_graphs(node: Node) -> str:
    """Return why a node is left that runs graphs of its own, such as ``torch.cond``; "" where it runs none."""
    module = node.graph.owning_module
    if not isinstance(node.target, torch._ops.HigherOrderOperator) or module is None:
        return ""
    held = [each.target for each in node.all_input_nodes if each.op == "get_attr"]
    if not any(isinstance(getattr(module, str(each), None), GraphModule) for each in held):
        return ""
    if name_of(node.target).startswith("flex_attention"):
        return "is attention, which torch computes in one kernel"
    return "runs graphs of its own, in which no regions are looked for"


def product_of(node: Node) -> Product | str:
    """Return the product that a node is, or why it is left to torch."""
    name = name_of(node.target)
    if name in _OTHERS:
        return _OTHERS[name]
    value = value_of(node)
    if not isinstance(value, torch.Tensor):
        return "nothing is known of its result: trace the graph with tensors of torch.fx's FakeTensorMode"
    given = _arguments(node)
    if isinstance(given, str):
        return given
    if given.get("activation") is not None:
        return "is an operator of PyCUTLASS already, which computes its activation in the same kernel"
    name = _OURS.get(name, name)
    of_name = _convolution if name in _IMAGES else _groups if name in _GROUPS else _matrices
    found = of_name(node, name, given)
    if isinstance(found, str):
        return found
    return _unlike(found) or found


def _arguments(node: Node) -> dict[str, Any] | str:
    """Return the arguments by name, with those that were left out."""
    schema: Any = node.target._schema  # type: ignore[union-attr]
    given = {each.name: each.default_value for each in schema.arguments if each.has_default_value()}
    given |= {each.name: value for each, value in zip(schema.arguments, node.args, strict=False)}
    return given | dict(node.kwargs)


def _matrices(node: Node, name: str, given: dict[str, Any]) -> Product | str:
    shape = tuple(value_of(node).shape)
    if name == "linear":
        a, b = given["input"], given["weight"]
        if value_of(b).dim() != 2:
            return "its weight is a vector"
        return Product(node, "mm", a, b, shape, is_turned=True, addend=given["bias"])
    if name in ("addmm", "addmm.dtype", "baddbmm"):
        a, b = (given["mat1"], given["mat2"]) if "mat1" in given else (given["batch1"], given["batch2"])
        kind = "mm" if "mat1" in given else "bmm"
        alpha, beta = given["alpha"], given["beta"]
        if isinstance(alpha, Node) or isinstance(beta, Node):
            return "its alpha or beta is known only when it runs"
        if alpha == 0:
            return "its alpha is 0, for which torch leaves the product out"
        addend = given["self"] if beta != 0 else None
        return Product(node, kind, a, b, shape, addend=addend, alpha=alpha, beta=beta)
    first, second = ("self" if "self" in given else "input"), ("other" if name == "matmul" else "mat2")
    a, b = given[first], given[second]
    if name.startswith("_scaled_mm"):
        scales = _scales(given, shape)
        return (
            scales if isinstance(scales, str) else Product(node, "mm", a, b, shape, scales=scales, addend=given["bias"])
        )
    if name != "matmul":
        return Product(node, "bmm" if name.startswith("bmm") else "mm", a, b, shape)
    of_a, of_b = value_of(a), value_of(b)
    if of_b.dim() == 1 or of_a.dim() == 1:
        return "multiplies by a vector"
    if of_b.dim() == 2:
        return Product(node, "mm", a, b, shape)
    batches = tuple(of_a.shape[:-2]), tuple(of_b.shape[:-2])
    if len(batches[0]) != len(batches[1]) or not all(map(same, *batches)):
        return f"its batches {_shown(batches[0])} and {_shown(batches[1])} are repeated for each other"
    return Product(node, "bmm", a, b, shape)


def _scales(given: dict[str, Any], shape: Shape) -> tuple[Node, ...] | str:
    """Return the scales of a product of 8 bits, or why they are none that an epilogue multiplies by."""
    if given.get("scale_result") is not None:
        return "it scales its result for a type of 8 bits"
    if given.get("contraction_dim"):
        return "it says along which axes it sums up"
    # Of the second version lists, beside lists of what each of them is.
    each_list = [each if isinstance(each, list | tuple) else [each] for each in (given["scale_a"], given["scale_b"])]
    recipes = [*given.get("recipe_a", ()), *given.get("recipe_b", ())]
    scales = [each for several in each_list for each in several]
    lines = (shape[0], 1), (1, shape[1])  # other shapes are of blocks, though they may broadcast as well
    if (
        len(scales) != len(lines)
        or any(each not in _LINES for each in recipes)
        or any(value_of(each).dtype is not torch.float32 for each in scales)
        or not all(_is_of(line, value_of(each)) for line, each in zip(lines, scales, strict=True))
    ):
        return "its scales are those of blocks, which no epilogue multiplies by"
    return tuple(scales)


def _is_of(line: Shape, scale: torch.Tensor) -> bool:
    """Return whether scales are one number, or one for each row or column."""
    shape = tuple(scale.shape)
    return all(same(each, 1) for each in shape) or (len(shape) == len(line) and all(map(same, shape, line)))


def _groups(node: Node, name: str, given: dict[str, Any]) -> Product | str:
    first, second = ("self", "mat2") if name == "_grouped_mm" else ("mat_a", "mat_b")
    a, b, offs, bias = given[first], given[second], given["offs"], given["bias"]
    shape, ranks = tuple(value_of(node).shape), (value_of(a).dim(), value_of(b).dim())
    if ranks == (3, 3) and bias is None:
        return Product(node, "bmm", a, b, shape)
    if ranks != (2, 3):
        return "divides other axes than the rows of its result among groups, and regions are of divided rows"
    return Product(node, "grouped", a, b, shape, addend=bias, offs=offs)


def _convolution(node: Node, name: str, given: dict[str, Any]) -> Product | str:
    value = value_of(node)
    if value.dim() != 4:
        return f"convolves tensors of {value.dim()} dimensions, and kernels convolve images of four"
    if given.get("transposed"):
        return "is a transposed convolution, without a region"
    padding: Any = given["padding"]
    stride, dilation = (_pair(given[each]) for each in ("stride", "dilation"))
    if isinstance(padding, str):
        found = _padding(padding, stride, dilation, tuple(value_of(given["weight"]).shape))
        if found is None:
            return "its padding='same' pads more behind than before, and kernels pad both sides alike"
        padding = found
    geometry = {"stride": stride, "padding": _pair(padding), "dilation": dilation, "groups": given["groups"]}
    if any(not isinstance(each, int) for pair in geometry.values() for each in _pair(pair)):
        return "its stride, padding or dilation is known only when it runs"
    if given["groups"] != 1:
        return f"has {given['groups']} groups of channels, and epilogue functions are for one"
    shape = tuple(value.shape)
    return Product(node, "conv2d", given["input"], given["weight"], shape, addend=given["bias"], geometry=geometry)


def _padding(name: str, stride: Any, dilation: Any, filters: Shape) -> tuple[int, int] | None:
    if name == "valid":
        return 0, 0
    whole = [step * (taps - 1) for step, taps in zip(dilation, filters[2:], strict=True)]
    if any(each % 2 for each in whole):
        return None
    return whole[0] // 2, whole[1] // 2


def _pair(given: Any) -> tuple[Any, Any]:
    if isinstance(given, int):
        return given, given
    return (given[0], given[0]) if len(given) == 1 else (given[0], given[1])


def _unlike(product: Product) -> str:
    """Return why operands are none that kernels multiply; "" where they are."""
    nodes = (product.a, product.b, product.node, *product.extras)
    for each in nodes:
        reason = unlike_tensor(value_of(each))
        if reason:
            return reason
    a, b, made = (value_of(each) for each in nodes[:3])
    if a.dtype != b.dtype and not (a.dtype in _FLOATS8 and b.dtype in _FLOATS8):
        return f"multiplies {a.dtype} by {b.dtype}"
    if a.dtype not in _TYPES and a.dtype not in _FLOATS8:
        return f"multiplies {a.dtype}, for which there is no kernel"
    if a.dtype is torch.int8 and made.dtype is not torch.int32:
        return f"multiplies {a.dtype} to {made.dtype}, and kernels sum up in int32"
    if product.offs is not None and value_of(product.offs).device != made.device:
        return f"has offs on {value_of(product.offs).device}, and is computed on {made.device}"
    if any(same(each, 0) for value in (a, b, made) for each in value.shape):
        return "has no elements"
    return ""


def unlike_tensor(value: Any) -> str:
    """Return why a tensor is none that kernels take; "" where it is."""
    if not isinstance(value, torch.Tensor):
        return "one of its tensors is unknown to tracing"
    if value.is_sparse or value.layout is not torch.strided:
        return f"one of its tensors is of {value.layout}, and kernels take strided ones"
    if value.is_nested:
        return "one of its tensors is nested, and kernels take those of one shape"
    if value.is_complex():
        return f"one of its tensors is of {value.dtype}, for which there is no kernel"
    if value.is_quantized:
        return "one of its tensors is quantised by torch: dequantise it"
    return ""


def _shown(shape: Shape) -> str:
    return f"({', '.join(map(str, shape))})"
