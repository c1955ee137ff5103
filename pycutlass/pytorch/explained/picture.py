"""The graph of a partition as boxes: one for each region, and one for each operator that is left to torch."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import Graph, Node

from pycutlass.pytorch.regions.extents import extents_of
from pycutlass.pytorch.regions.pointwise import name_of
from pycutlass.pytorch.regions.products import value_of
from pycutlass.pytorch.regions.region import Region
from pycutlass.pytorch.tables import computed

__all__ = ["Box", "Neighbour", "boxes_of", "neighbours_of"]


@dataclass(frozen=True)
class Box:
    """A node of the drawing.

    Attributes
    ----------
    name : str
        Of the node, or of the region.
    kind : str
        ``"input"``, ``"region"``, ``"operator"``, ``"left"`` (a product, or a neighbour of one) or ``"output"``.
    title : str
        What is computed.
    shape : str
        Of the first result, with its type; "" where there is none.
    sources : tuple of str
        Names of the boxes whose results it reads.
    reason : str
        Why torch computes it, of those that were left.
    """

    name: str
    kind: str
    title: str
    shape: str
    sources: tuple[str, ...]
    reason: str = ""


@dataclass(frozen=True)
class Neighbour:
    """What reads a region's result and is not part of it.

    Attributes
    ----------
    name : str
        Of its box.
    reason : str
        Why its kernel is another one, or torch's.
    """

    name: str
    reason: str


def boxes_of(graph: Graph, regions: Mapping[str, Region], left: Mapping[str, str]) -> tuple[Box, ...]:
    """Return the boxes of a graph in its order; parameters, extents and results taken apart have none.

    Parameters
    ----------
    graph : Graph
        Of a partition.
    regions : mapping
        By the names of the submodules.
    left : mapping
        Why nodes were left, by name.
    """
    boxes: list[Box] = []
    stands_for: dict[Node, tuple[str, ...]] = {}
    for node in graph.nodes:
        sources = tuple(dict.fromkeys(each for given in node.all_input_nodes for each in stands_for[given]))
        box = _box(node, regions, left, sources)
        if box is not None:
            boxes.append(box)
        # What has no box, such as one of several results, is drawn as what it is taken from.
        stands_for[node] = sources if box is None else (box.name,)
    return tuple(boxes)


def _box(node: Node, regions: Mapping[str, Region], left: Mapping[str, str], sources: tuple[str, ...]) -> Box | None:
    if node.op == "output":
        return Box("output", "output", "output", "", sources)
    if node.op == "call_module" and node.target in regions:
        region = regions[str(node.target)]
        made = region.outputs[0]
        return Box(region.name, "region", computed(region), _shape(made), sources)
    value = value_of(node)
    if node.op == "placeholder":
        return Box(node.name, "input", node.name, _shown(value), ())
    if node.op == "get_attr" or node.op == "call_module" or node.target is operator.getitem:
        return None
    if not isinstance(value, torch.Tensor | tuple | list):  # an extent, or an assertion about one
        return None
    first = value if isinstance(value, torch.Tensor) else next((x for x in value if isinstance(x, torch.Tensor)), None)
    name, reason = name_of(node.target).partition(".")[0], left.get(node.name, "")
    return Box(node.name, "left" if reason else "operator", name, _shown(first), sources, reason)


def _shape(output: Any) -> str:
    return f"{'x'.join(map(str, output.shape))} {output.dtype}"


def _shown(value: Any) -> str:
    if not isinstance(value, torch.Tensor):
        return ""
    return f"{'x'.join(map(str, extents_of(value.shape))) or 'number'} {str(value.dtype).removeprefix('torch.')}"


def neighbours_of(name: str, boxes: tuple[Box, ...]) -> tuple[Neighbour, ...]:
    """Return what reads the results of a region, and why it is not part of it."""
    readers = (each for each in boxes if name in each.sources and each.kind != "output")
    return tuple(Neighbour(each.name, _reason(each)) for each in readers)


def _reason(box: Box) -> str:
    if box.kind == "region":
        return "it has a product of its own, and a kernel computes one"
    return box.reason or "it is left to torch, as it reads what this kernel does not"
