"""Rows behind the last of our groups, which are zero: regions of such groups end where these would be anything else."""

from __future__ import annotations

from collections.abc import Set

from torch.fx import Node

from pycutlass.pytorch.regions.pointwise import name_of
from pycutlass.pytorch.regions.products import Product

__all__ = ["unlike_zeros"]

#: Operators that make zero of zero, whatever else they are given.
_KEEPING = {
    *("relu", "relu6", "leaky_relu", "silu", "gelu", "tanh", "hardswish", "elu", "selu", "celu", "mish", "erf"),
    *("neg", "abs", "floor", "ceil", "round", "square", "sqrt", "clone", "contiguous", "alias", "detach", "dropout"),
    *("view", "reshape", "_unsafe_view", "unsqueeze", "squeeze", "squeeze.dim", "squeeze.dims", "expand"),
    *("flatten.using_ints", "unflatten.int", "_to_copy", "to.dtype", "prims::convert_element_type"),
    *("mul.Tensor", "mul.Scalar"),
}
#: Those that do so where all that they read is zero.
_JOINING = ("add.Tensor", "sub.Tensor", "minimum", "maximum")


def unlike_zeros(node: Node, product: Product, members: Set[Node]) -> str:
    """Return why rows behind the last group would not be zero in a result; "" where they are, or are undefined.

    Parameters
    ----------
    node : Node
        What reads members.
    product : Product
        Groups of ours, whose results are zero there; those of torch are undefined there.
    members : set of Node
        All of a region so far, which are zero there.
    """
    if product.offs is None or product.is_of_torch:
        return ""
    name = name_of(node.target)
    if name in _KEEPING or (name in _JOINING and all(each in members for each in node.args)):
        return ""
    return (
        "may be another number than zero in rows behind the last group, where grouped_mm of pycutlass is zero: "
        "torch.nn.functional.grouped_mm leaves these undefined, and has larger regions"
    )
