"""The figures of the page of GPU results, drawn from the raw numbers of the benchmarks with matplotlib."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tools.gpu_page import Figure, Result

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["FOLDER", "SPEEDS", "draw"]

FOLDER = "images"  # beside the page
#: Where benchmarks/conv.py has the numbers among its raw results.
SPEEDS = "speed of cuDNN's"

#: Blue, orange and green that those who are blind to some colours tell apart as well.
_COLORS = ("#0072b2", "#e69f00", "#009e73")
_WIDTH = 0.27  # of a bar; layers are 1 apart
#: Text stays text, and nothing in the file depends on when or where it was drawn.
_STYLE: dict[Any, Any] = {"svg.fonttype": "none", "svg.hashsalt": "pycutlass", "font.size": 9}
_NO_METADATA: dict[str, str | None] = {"Date": None, "Creator": None}


def draw(results: Mapping[str, Result], page: Path) -> dict[str, Figure]:
    """Write the figures of results that have numbers for one, beside `page`, and return them by part.

    Without matplotlib there are none, which is said on stderr.
    """
    speeds = results.get("conv", {}).get("raw", {}).get(SPEEDS)
    if not speeds:
        return {}
    try:
        import matplotlib
    except ImportError:
        print("matplotlib is not installed: the page is written without its figures", file=sys.stderr)
        return {}
    file = page.parent / FOLDER / "conv.svg"
    file.parent.mkdir(parents=True, exist_ok=True)
    with matplotlib.rc_context(_STYLE):
        _draw_conv(speeds, file)
    return {"conv": Figure(f"{FOLDER}/{file.name}", "Speed of convolutions relative to cuDNN's, by layer")}


def _draw_conv(speeds: Sequence[Mapping[str, Any]], file: Path) -> None:
    """Draw a row of bars for each batch: all layers, and for each of them the directions."""
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure as Canvas

    batches = sorted({entry["batch"] for entry in speeds})
    canvas = Canvas(figsize=(11, 1.2 + 3.2 * len(batches)), layout="constrained")
    FigureCanvasSVG(canvas)
    layers = _distinct(speeds, "layer")
    rows = canvas.subplots(len(batches), 1, sharex=True, sharey=True, squeeze=False)[:, 0]
    for axes, batch in zip(rows, batches, strict=True):
        _draw_batch(axes, layers, _distinct(speeds, "direction"), [each for each in speeds if each["batch"] == batch])
        axes.set_title(f"N={batch}", loc="left")
    rows[-1].set_xticks(range(len(layers)), layers, rotation=35, ha="right")
    canvas.legend(*rows[0].get_legend_handles_labels(), loc="outside upper right", ncols=4)
    canvas.savefig(file, format="svg", metadata=_NO_METADATA)


def _draw_batch(
    axes: Axes, layers: Sequence[str], directions: Sequence[str], speeds: Sequence[Mapping[str, Any]]
) -> None:
    axes.axhline(1.0, color="black", linewidth=0.8)
    axes.grid(axis="y", linewidth=0.4)
    axes.set_axisbelow(True)
    axes.margins(x=0.01)
    axes.set_ylabel("speed of cuDNN's")
    for number, (direction, color) in enumerate(zip(directions, _COLORS, strict=False)):
        measured = [entry for entry in speeds if entry["direction"] == direction]
        places = [layers.index(entry["layer"]) + (number - 1) * _WIDTH for entry in measured]
        alone, queued = ([entry[way] for entry in measured] for way in ("alone", "queued"))
        axes.bar(places, alone, _WIDTH, color=color, label=f"{direction}, each call alone")
        label = "" if number else "queued back to back"
        axes.scatter(places, queued, s=60, c="black", marker="_", label=label, zorder=3)


def _distinct(entries: Iterable[Mapping[str, Any]], field: str) -> list[Any]:
    return list(dict.fromkeys(entry[field] for entry in entries))
