"""How a region grows from its product: through all that follows it and that its kernel can compute."""

from __future__ import annotations

import heapq
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch.fx import Graph, Node

from pycutlass.pytorch.regions.extents import form_of
from pycutlass.pytorch.regions.members import arguments_of, unfused
from pycutlass.pytorch.regions.products import Product, unlike_tensor, value_of
from pycutlass.pytorch.regions.zeros import unlike_zeros

__all__ = ["Grown", "Order", "grown"]


class Order:
    """The places of a graph's nodes, and the nodes that change memory, behind which no region grows."""

    def __init__(self, graph: Graph) -> None:
        self.nodes = list(graph.nodes)
        self.place = {node: place for place, node in enumerate(self.nodes)}
        self._writing = [place for place, node in enumerate(self.nodes) if _writes(node)]

    def barrier(self, node: Node) -> int:
        """Return the place of the first node behind this one that changes memory."""
        start = self.place[node]
        return next((place for place in self._writing if place > start), len(self.nodes))


def _writes(node: Node) -> bool:
    if node.op in ("placeholder", "get_attr", "output"):
        return False
    if isinstance(node.target, torch._ops.OpOverload):
        return bool(node.target._schema.is_mutable)
    return node.op == "call_function" and isinstance(node.target, torch._ops.HigherOrderOperator)


@dataclass(frozen=True)
class Grown:
    """A product with the nodes that its kernel computes as well.

    Attributes
    ----------
    product : Product
        Where it grew from.
    members : tuple of Node
        The product and the others, in the order of the graph.
    left : mapping
        Why neighbours are not among them.
    """

    product: Product
    members: tuple[Node, ...]
    left: Mapping[Node, str]

    @property
    def outputs(self) -> tuple[Node, ...]:
        """Members that are used outside."""
        inside = set(self.members)
        return tuple(node for node in self.members if any(user not in inside for user in node.users))


def grown(product: Product, order: Order, barred: Mapping[Node, str]) -> Grown | str:
    """Return what a product becomes with its neighbours, or why it is none that kernels compute.

    Parameters
    ----------
    product : Product
        Where to begin.
    order : Order
        Of its graph.
    barred : mapping
        Nodes that are not to be taken, and why.
    """
    reason = _unlike_extras(product)
    if reason:
        return reason
    first = product.node
    members, left, barrier = {first}, dict[Node, str](), order.barrier(first)
    waiting, seen = [(order.place[user], user) for user in first.users], set(first.users)
    heapq.heapify(waiting)
    depends = _Dependence(members, order, order.place[first])
    while waiting:
        place, node = heapq.heappop(waiting)
        reason = barred.get(node, "")
        if not reason and place > barrier:
            reason = "comes behind an operator that changes memory"
        reason = reason or unfused(node, product, members) or unlike_zeros(node, product, members)
        if not reason:
            cyclic = next((each for each in arguments_of(node) if each not in members and depends.on(each)), None)
            reason = "" if cyclic is None else f"reads {cyclic.name}, which is computed from the region's own result"
        if reason:
            left[node] = reason
            continue
        members.add(node)
        depends.forget()
        for user in node.users:
            if user not in seen:
                seen.add(user)
                heapq.heappush(waiting, (order.place[user], user))
    return Grown(product, tuple(sorted(members, key=order.place.__getitem__)), left)


def _unlike_extras(product: Product) -> str:
    """Return why what a product adds, or multiplies by, is nothing that its epilogue reads."""
    for each in product.extras:
        value = value_of(each)
        reason = unlike_tensor(value)
        if reason:
            return reason
        if value.device != value_of(product.node).device:
            return f"{each.name} is on {value.device}, and the product on {value_of(product.node).device}"
        shape = tuple(value.shape)
        if product.kind == "conv2d":
            shape = (1, *shape, 1, 1)
        if product.kind == "grouped" and len(shape) == 2:  # a bias of each group
            continue
        if form_of(product.kind, shape, product.shape) is None:
            return f"{each.name} of shape {tuple(value.shape)} is repeated as no kernel repeats it"
    return ""


class _Dependence:
    """Which nodes are computed from members of a region."""

    def __init__(self, members: set[Node], order: Order, start: int) -> None:
        self._members, self._order, self._start = members, order, start
        self._free = set[Node]()

    def forget(self) -> None:
        """Forget what was found: another member was added, from which others may be computed."""
        self._free.clear()

    def on(self, node: Node) -> bool:
        """Return whether a node is computed from a member; nodes before the product are not."""
        stack, seen = [node], set[Node]()
        while stack:
            each = stack.pop()
            if each in self._members:
                return True
            if each in seen or each in self._free or self._order.place[each] < self._start:
                continue
            seen.add(each)
            stack.extend(each.all_input_nodes)
        self._free |= seen
        return False
