"""Which regions a graph has: the longest first, each put in the place of its nodes at once."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import torch
from torch.fx import Graph, Node

from pycutlass.errors import PyCutlassError
from pycutlass.pytorch.options import Options
from pycutlass.pytorch.regions.description import described
from pycutlass.pytorch.regions.gain import gain_of
from pycutlass.pytorch.regions.growth import Grown, Order, grown
from pycutlass.pytorch.regions.joined import recomputable
from pycutlass.pytorch.regions.pointwise import name_of
from pycutlass.pytorch.regions.products import Product, is_product, product_of, runs_graphs, value_of
from pycutlass.pytorch.regions.reductions import is_reduction
from pycutlass.pytorch.regions.region import Region
from pycutlass.pytorch.regions.tracing import Epilogue, epilogue_of
from pycutlass.pytorch.regions.writing import Unwritable, Written, replaced, written

__all__ = ["Found", "found_in"]

_MOST_OUTPUTS = 4  # of one kernel: each takes registers, and the memory that it writes


@dataclass
class Found:
    """What a partition has found.

    Attributes
    ----------
    regions : list of Region
        In the order in which they were found.
    left : dict
        For each product that was left, and each neighbour of a region, by its name, why.
    """

    regions: list[Region] = field(default_factory=list)
    left: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class _Candidate:
    region: Grown
    epilogue: Epilogue
    written: Written
    described: Region


def found_in(
    graph: Graph,
    options: Options,
    call: Callable[[Graph, Region, Written], list[Node]],
    *,
    is_compiled: bool = False,
) -> Found:
    """Put regions in the place of their nodes, and return which.

    Parameters
    ----------
    graph : Graph
        Of ATen's operators, with what tracing knows of each value; it changes nothing but memory that nobody reads
        afterwards.
    options : Options
        Which regions are taken.
    call : function
        Writes what computes a region into the graph, where nodes are inserted, and returns a node for each output.
    is_compiled : bool
        Whether a compiler joins what is left, so that what follows from an output is read rather than written.
    """
    graph.eliminate_dead_code()
    found, order = Found(), Order(graph)
    barred: dict[Node, str] = {}
    reasons: dict[Node, str] = {}
    waiting: list[tuple[int, int, Node]] = []
    for place, node in enumerate(order.nodes):
        if is_product(node):
            product = product_of(node)
            region = product if isinstance(product, str) else grown(product, order, barred)
            if isinstance(region, str):
                reasons[node] = region
            else:
                waiting.append((-len(region.members), place, node))
        elif why := runs_graphs(node):
            reasons[node] = why
    heapq.heapify(waiting)
    while waiting:
        _, place, node = heapq.heappop(waiting)
        made = _candidate(node, order, barred, reasons, options, len(found.regions), is_compiled)
        if made is None:
            continue
        length = -len(made.region.members)
        if waiting and length > waiting[0][0]:  # another one may be longer
            heapq.heappush(waiting, (length, place, node))
            continue
        try:
            replaced(graph, made.region, made.written, order, partial(call, graph, made.described))
        except Unwritable as reason:
            barred[made.region.members[-1]] = str(reason)
            heapq.heappush(waiting, (length, place, node))
            continue
        found.regions.append(made.described)
        reasons |= {each: runs_graphs(each) or why for each, why in made.region.left.items() if not is_product(each)}
        order = Order(graph)
    still = set(order.nodes)
    left = {node: reason for node, reason in reasons.items() if node in still and _is_said(node)}
    ordered = sorted(left, key=order.place.__getitem__)
    found.left = {node.name: f"{name_of(node.target)} {left[node]}" for node in ordered}
    graph.eliminate_dead_code()
    graph.lint()
    return found


def _is_said(node: Node) -> bool:
    """Return whether it is of interest why a node is not part of a region: it computes something."""
    if not isinstance(node.target, torch._ops.OpOverload):
        return bool(runs_graphs(node))
    return node.target.namespace != "pycutlass" or is_product(node)


def _candidate(
    node: Node,
    order: Order,
    barred: dict[Node, str],
    reasons: dict[Node, str],
    options: Options,
    number: int,
    is_compiled: bool,
) -> _Candidate | None:
    """Return the region of a product as large as it can be; None, with the reason noted, where there is none."""
    product = product_of(node)
    if isinstance(product, str):
        reasons[node] = product
        return None
    own: dict[Node, str] = dict(barred)
    while True:
        region = grown(product, order, own)
        if isinstance(region, str):
            reasons[node] = region
            return None
        needless = recomputable(region) if is_compiled else None
        if needless is not None:
            own[needless] = "follows from another output of the region, which a compiler reads with what else needs it"
            continue
        made = _made(region, product, order, options, number, is_compiled)
        if isinstance(made, _Candidate):
            return made
        at, reason = made
        if at is node:
            reasons[node] = reason
            return None
        own[at] = reason


def _made(
    region: Grown, product: Product, order: Order, options: Options, number: int, is_compiled: bool
) -> _Candidate | tuple[Node, str]:
    """Return a region that can be taken, or the node without which it may be, and why."""
    node, outputs = product.node, region.outputs
    if not outputs:
        return node, "has a result that is unused"
    for each in outputs:
        dtype = value_of(each).dtype if isinstance(value_of(each), torch.Tensor) else None
        if dtype is torch.bool:
            return each, "is a condition that is used outside of the region, and kernels write numbers"
        if dtype is torch.int32:
            return each, "has sums that are used as integers, and epilogue functions compute in fractions"
    if all(map(is_reduction, outputs)):
        return outputs[-1], "is all that is used of the region, and a kernel writes all of its result beside it"
    last = region.members[-1]
    try:
        epilogue = epilogue_of(region, options.use_fast_math)
        symbol = next((each.node for each in epilogue.inputs if each.form is None), None)
        if is_compiled and symbol is not None:  # operators take floats, and symbols become such by a guard
            at = next(each for each in region.members if symbol in each.all_input_nodes)
            return at, "reads a number that changes from call to call, for each of which the graph would be compiled"
        if len(epilogue.outputs) > _MOST_OUTPUTS:
            return outputs[
                -1
            ], f"would be output {len(epilogue.outputs)} of one kernel, and {_MOST_OUTPUTS} are the most"
        made = written(region, epilogue, order)
    except (Unwritable, PyCutlassError) as error:
        return last, str(error)
    gain = gain_of(region, epilogue, options, is_compiled)
    if gain.refusal:
        return last, gain.refusal
    if gain.share < options.min_gain:
        return node, (
            f"would take {gain.fused:.1f} us as a region {'as measured' if gain.is_measured else 'by prediction'}, and "
            f"{gain.apart:.1f} us as torch's operators: "
            f"less is gained than min_gain={options.min_gain:g}"
        )
    share = gain.share if options.min_gain else None
    what = described(region, epilogue, made, f"pycutlass_{number}", share, is_measured=gain.is_measured)
    return _Candidate(region, epilogue, made, what)
