"""What is explained, as lines of text: epilogues, and the whole of a model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pycutlass.epilogue import EpilogueFunction
from pycutlass.pytorch.explained.drawing import time_of
from pycutlass.pytorch.explained.facts import RegionFacts
from pycutlass.pytorch.explained.picture import Neighbour
from pycutlass.pytorch.tables import computed, lines_of

__all__ = ["epilogue_lines", "table_of", "text_of"]

_TITLES = ("region", "computes", "size", "kernel", "time", "% of roofline", "GFLOP/s")


def epilogue_lines(function: EpilogueFunction) -> list[str]:
    """Return what an epilogue function computes, a line for each value and each output."""
    graph = function.graph
    names: list[str] = []
    lines: list[str] = []
    for number, value in enumerate(graph.values):
        if value.node == "input":
            names.append(str(value.data[0]))
            continue
        given = [names[each] for each in value.operands] + [_written(each) for each in value.data]
        called = f"{value.node}({', '.join(given)})"
        if value.node == "constant":
            names.append(given[0])
            continue
        names.append(f"v{number}")
        lines.append(f"v{number} = {called}")
    return lines + [f"{name} = {names[number]}" for name, number in graph.outputs]


def _written(data: Any) -> str:
    """Return a number of a graph, which keeps exact ones in hexadecimal digits, for people."""
    text = str(data)
    return f"{float.fromhex(text):g}" if text.lstrip("-").startswith("0x") else text


def table_of(regions: Sequence[RegionFacts]) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Return the titles of a table of regions, and its rows."""
    return _TITLES, [_row(each) for each in regions]


def _row(facts: RegionFacts) -> tuple[str, ...]:
    region = facts.region
    what = region.name, computed(region), facts.problem
    if facts.refusal:
        return (*what, f"none: {facts.refusal}", "", "", "")
    share = "" if facts.share is None else f"{100 * facts.share:.0f}"
    speed = "" if facts.gflops is None else f"{facts.gflops:,.0f}"
    return (*what, facts.kernel, time_of(facts), share, speed)


def text_of(
    title: str,
    regions: Sequence[RegionFacts],
    neighbours: Mapping[str, Sequence[Neighbour]],
    left: Mapping[str, str],
) -> str:
    """Return a page as text."""
    titles, rows = table_of(regions)
    lines = [title, *(lines_of(titles, rows) if rows else ())]
    for facts in regions:
        for each in neighbours.get(facts.region.name, ()):
            lines.append(f"{facts.region.name} ends before {each.name}: {each.reason}")
    lines += [f"left {name}: {reason}" for name, reason in left.items()]
    return "\n".join(lines)
