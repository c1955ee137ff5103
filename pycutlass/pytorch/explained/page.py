"""What is explained, as one HTML file that needs nothing else: no script, no network."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import resources

from pycutlass.pytorch.explained.drawing import drawn, time_of
from pycutlass.pytorch.explained.facts import KernelFacts, RegionFacts
from pycutlass.pytorch.explained.layout import laid_out
from pycutlass.pytorch.explained.markup import Markup, joined, tag
from pycutlass.pytorch.explained.picture import Box, Neighbour
from pycutlass.pytorch.explained.texts import epilogue_lines, table_of
from pycutlass.pytorch.tables import computed, followers

__all__ = ["page_of"]

_KINDS = {"mm": "a product", "bmm": "a batch of products", "conv2d": "a convolution", "grouped": "a group"}


def page_of(
    title: str,
    about: str,
    boxes: Sequence[Box],
    regions: Sequence[RegionFacts],
    neighbours: Mapping[str, Sequence[Neighbour]],
    left: Mapping[str, str],
) -> str:
    """Return the page.

    Parameters
    ----------
    title, about : str
        What the model is, and what kernels were chosen for.
    boxes : sequence of Box
        The graph.
    regions : sequence of RegionFacts
        In the order of the graph.
    neighbours : mapping
        By the name of a region.
    left : mapping
        Why nodes were left to torch, by name.
    """
    by_name = {each.region.name: each for each in regions}
    boxed = {each.name for each in boxes}
    style = resources.files("pycutlass.pytorch.explained").joinpath("style.css").read_text(encoding="utf-8")
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("title", title),
        tag("style", Markup(style)),
    )
    links = ("graph", "Graph"), ("regions", "Regions"), ("left", "Left to torch")
    body = tag(
        "body",
        tag("header", tag("h1", title), tag("p", about, class_="faint")),
        tag("nav", *(tag("a", text, href=f"#{name}") for name, text in links)),
        tag("h2", "Graph", id="graph"),
        _legend(regions, left),
        tag("div", drawn(laid_out(boxes), by_name), class_="graph scroll"),
        tag("h2", "Regions", id="regions"),
        _summary(regions),
        *(_article(each, neighbours.get(each.region.name, ()), left, boxed) for each in regions),
        tag("h2", "Left to torch", id="left"),
        _left(left),
    )
    return f"<!DOCTYPE html>\n{tag('html', head, body, lang='en')}\n"


def _legend(regions: Sequence[RegionFacts], left: Mapping[str, str]) -> Markup:
    there = dict.fromkeys(each.region.kind for each in regions)
    items = [tag("li", f"region: {_KINDS[kind]} with what follows it", class_=kind) for kind in there]
    items += [tag("li", "could not be part of a region", class_="left")] if left else []
    return tag("ul", *items, tag("li", "torch's operator"), class_="legend")


def _table(titles: Sequence[str], rows: Sequence[Markup]) -> Markup:
    head = tag("thead", tag("tr", *(tag("th", each) for each in titles)))
    return tag("div", tag("table", head, tag("tbody", *rows)), class_="scroll")


def _summary(regions: Sequence[RegionFacts]) -> Markup:
    if not regions:
        return tag("p", "No product of the model was taken.")
    titles, table = table_of(regions)
    rows = []
    for facts, (name, what, size, kernel, time, _, speed) in zip(regions, table, strict=True):
        first = tag("a", name, href=f"#region-{name}")
        cells = [tag("td", each) for each in (first, what, size, kernel)]
        cells += [tag("td", time, class_="whole"), tag("td", _bar(facts), class_="whole")]
        rows.append(tag("tr", *cells, tag("td", speed, class_="number whole")))
    return _table(titles, rows)


def _bar(facts: RegionFacts) -> Markup | None:
    if facts.share is None:
        return None
    share = f"{100 * facts.share:.0f}"
    width = f"width:{min(100.0, 100 * facts.share):.0f}%"
    return joined(tag("span", tag("span", style=width), class_="bar"), share)


def _article(facts: RegionFacts, neighbours: Sequence[Neighbour], left: Mapping[str, str], boxed: set[str]) -> Markup:
    region = facts.region
    content = [
        tag("h3", f"{region.name}: {computed(region)}"),
        tag("p", tag("code", region.source), class_="faint") if region.source else None,
        _rows(_lines(facts)),
        tag("h4", "Fused"),
        tag("p", _fused(facts)),
        tag("h4", "Not fused"),
        _unfused(neighbours, left),
        _details("Epilogue", tag("pre", "\n".join(epilogue_lines(region.function)))),
        _details("Inputs and results", _operands(facts)),
    ]
    if not facts.refusal:
        content.append(_details("Kernels that were considered", _considered(facts)))
        content.append(_details("Description", _rows(facts.description)))
    content += [piece for kernel in facts.kernels for piece in _kernel(kernel, several=len(facts.kernels) > 1)]
    return tag("article", *content, id=f"region-{region.name}", class_=region.kind)


def _lines(facts: RegionFacts) -> list[tuple[str, object]]:
    """Return what is said of a region in a table."""
    lines: list[tuple[str, object]] = [("size", facts.problem)]
    if facts.refusal:
        return [*lines, ("kernel", f"none: {facts.refusal}")]
    lines += [("kernel", facts.kernel), ("time", time_of(facts))]
    if facts.measured is not None and facts.predicted is not None:
        lines.append(("predicted", f"{facts.predicted:.2f} us"))
    if facts.roofline is not None:
        least = facts.roofline
        bar = _bar(facts)
        parts = f"{least.multiplying:.2f} us of multiplying, {least.moving:.2f} us of moving memory"
        said = f"at least {least.microseconds:.2f} us: {parts}"
        lines.append(("roofline", said if bar is None else joined(bar, " % of it, ", said)))
    lines += [("operations", f"{facts.operations:,.0f}")]
    lines += [("speed", f"{facts.gflops:,.0f} GFLOP/s")] if facts.gflops is not None else []
    lines += [("prediction", facts.limit)] if facts.limit else []
    if facts.region.gain is not None:
        lines.append(
            ("beside torch", f"{facts.region.gain:.0%} of the time of its operators saved, {facts.region.gain_from}")
        )
    return lines


def _fused(facts: RegionFacts) -> str:
    region = facts.region
    others = ", ".join(followers(region))
    if not others:
        return f"Nothing follows {region.product} that its kernel computes as well."
    return f"The kernel of {region.product} computes {others} as well, before anything is written."


def _unfused(neighbours: Sequence[Neighbour], left: Mapping[str, str]) -> Markup:
    if not neighbours:
        return tag("p", "Nothing reads its results but the outputs of the model.")
    items = []
    for each in neighbours:
        is_region = each.name not in left and each.name.startswith("pycutlass_")
        target = f"#left-{each.name}" if each.name in left else f"#region-{each.name}" if is_region else None
        name = tag("a", each.name, href=target) if target else each.name
        items.append(tag("li", name, f": {each.reason}"))
    return tag("ul", *items)


def _operands(facts: RegionFacts) -> Markup:
    problem = facts.region.problem
    rows = [(name, form.dtype, form.shape, "operand") for name, form in (("A", problem.a), ("B", problem.b))]
    rows += [(each.name, each.dtype, each.shape, f"{each.form}, from {each.node}") for each in facts.region.inputs]
    rows += [(each.name, each.dtype, each.shape, f"written, as {each.node}") for each in facts.region.outputs]
    said = [(name, dtype, "x".join(map(str, shape)), what) for name, dtype, shape, what in rows]
    return _table(("name", "type", "shape", "what"), [tag("tr", *(tag("td", x) for x in row)) for row in said])


def _considered(facts: RegionFacts) -> Markup:
    rows = [tag("tr", tag("td", name), tag("td", f"{time:.2f} us", class_="whole")) for name, time in facts.considered]
    more = facts.candidates - len(facts.considered)
    note = f"And {more:,} that are predicted to take longer." if more > 0 else ""
    return joined(_table(("kernel", "predicted"), rows), tag("p", note, class_="faint") if note else None)


def _kernel(kernel: KernelFacts, *, several: bool) -> list[Markup]:
    """Return what can be opened of a kernel."""
    what = f" of {kernel.name}" if several else ""
    pieces = [_details(f"Generated C++{what}", tag("pre", kernel.source))]
    if kernel.report:
        pieces.append(_details(f"Build report{what}, {kernel.target}", _rows(kernel.report)))
    if kernel.ptx:
        pieces.append(_details(f"PTX{what}, {kernel.target}", tag("pre", kernel.ptx)))
    if kernel.sass:
        pieces.append(_details(f"SASS{what}, {kernel.target}", tag("pre", kernel.sass)))
    if kernel.missing:
        pieces.append(tag("p", kernel.missing, class_="faint"))
    return pieces


def _details(summary: str, content: Markup) -> Markup:
    return tag("details", tag("summary", summary), content)


def _rows(lines: Sequence[tuple[str, object]]) -> Markup:
    rows = (tag("tr", tag("th", name), tag("td", said)) for name, said in lines)
    return tag("table", tag("tbody", *rows), class_="facts")


def _left(left: Mapping[str, str]) -> Markup:
    if not left:
        return tag("p", "Every product was taken, with all that follows it and that its kernel can compute.")
    rows = [tag("tr", tag("td", name), tag("td", why), id=f"left-{name}") for name, why in left.items()]
    return _table(("node", "why"), rows)
