"""What a compiler joins of the operators around regions: what it reads and writes for them, and what regions leave it.

A compiler such as Inductor computes pointwise operators and reductions in the kernel of what needs them. It reads a
value once for all of these, so what follows from a value that it reads anyway costs nothing there.
"""

from __future__ import annotations

import math
from collections.abc import Set

import torch
from torch.fx import Graph, Node

from pycutlass.pytorch.regions.extents import hint_of
from pycutlass.pytorch.regions.growth import Grown
from pycutlass.pytorch.regions.members import is_view, tensors_of
from pycutlass.pytorch.regions.pointwise import name_of
from pycutlass.pytorch.regions.products import is_product, value_of
from pycutlass.pytorch.regions.reductions import is_reduction

__all__ = ["bytes_of", "bytes_saved", "recomputable", "split_casts"]


def split_casts(graph: Graph) -> None:
    """Give each user of a cast to a wider type a cast of its own.

    A region takes those that it needs. The others are computed where they are read, from the narrower value.
    """
    for node in list(graph.nodes):
        if not _is_widening(node):
            continue
        for user in list(node.users)[1:]:
            with graph.inserting_after(node):
                own = graph.node_copy(node)
            own.meta = dict(node.meta)
            user.replace_input_with(node, own)


def recomputable(region: Grown) -> Node | None:
    """Return an output that a compiler makes of others where it is needed, which saves writing and reading it."""
    outputs, inside = set(region.outputs), set(region.members)
    for node in reversed(region.outputs):
        if node is region.product.node or any(user in inside for user in node.users):
            continue
        if is_reduction(node):
            if _is_read_anyway(node, region):
                return node
        elif all(map(_is_joined, node.users)) and (_is_widening(node) or not _needs_sums(node, region, outputs)):
            return node
    return None


def bytes_saved(region: Grown) -> tuple[int, bool]:
    """Return the bytes that a compiler would move more without a region, and whether it saves a kernel.

    Without the region, one kernel reads the product's result and what is read beside it. Where it would compute more
    than the region, such as a norm of its result, that kernel is there in any case, and reads the region's results.
    """
    inside = set(region.members)
    nodes = [node for node in region.members[1:] if not is_view(node)]
    read = dict.fromkeys(each for node in nodes for each in tensors_of(node) if each not in inside)
    before = sum(map(bytes_of, (region.product.node, *read)))
    written = [each for each in region.outputs if each is not region.product.node]
    following = [each for each in region.outputs if any(_is_joined(user) for user in each.users if user not in inside)]
    if not following:
        return before + sum(map(bytes_of, written)), True
    kept = sum(bytes_of(each) for each in written if any(map(_is_elsewhere, each.users)))
    return before + kept - sum(map(bytes_of, following)), False


def bytes_of(node: Node) -> int:
    """Return the size of a node's result; symbols count as their examples."""
    value = value_of(node)
    if not isinstance(value, torch.Tensor):
        return 0
    return int(value.element_size() * math.prod(map(hint_of, value.shape)))


def _is_widening(node: Node) -> bool:
    """Return whether a node casts to a type of more bytes, and does nothing else."""
    if node.op != "call_function" or name_of(node.target) not in ("_to_copy", "convert_element_type"):
        return False
    value, source = value_of(node), value_of(node.args[0])
    if not (isinstance(value, torch.Tensor) and isinstance(source, torch.Tensor)):
        return False
    both_float = value.dtype.is_floating_point and source.dtype.is_floating_point
    return both_float and value.device == source.device and value.element_size() > source.element_size()


def _is_joined(user: Node) -> bool:
    """Return whether a compiler computes what a node reads in the same kernel."""
    if user.op != "call_function" or is_product(user):
        return False
    return isinstance(user.target, torch._ops.OpOverload) and user.target.namespace in ("aten", "prims")


def _is_elsewhere(user: Node) -> bool:
    """Return whether a node is computed in another kernel than what follows the region at once."""
    return not _is_joined(user) or any(map(is_product, user.all_input_nodes))


def _is_read_anyway(reduction: Node, region: Grown) -> bool:
    """Return whether what is reduced follows from an output that a compiler reads outside of the region."""
    inside = set(region.members)
    return any(
        any(_is_joined(user) for user in each.users if user not in inside)
        for each in _before(reduction, inside)
        if each in region.outputs and not is_reduction(each)
    )


def _needs_sums(node: Node, region: Grown, outputs: Set[Node]) -> bool:
    """Return whether a node is computed from the product, or a reduction, by other ways than through outputs."""
    inside = set(region.members)
    return any(
        each not in outputs and (each is region.product.node or is_reduction(each))
        for each in _before(node, inside, outputs)
    )


def _before(node: Node, inside: Set[Node], ends: Set[Node] = frozenset()) -> list[Node]:
    """Return the members that a node is computed from, as far as those at which to end."""
    found, waiting = dict[Node, None](), list(tensors_of(node))
    while waiting:
        each = waiting.pop()
        if each in inside and each not in found:
            found[each] = None
            if each not in ends:
                waiting.extend(tensors_of(each))
    return list(found)
