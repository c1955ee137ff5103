"""What `explain` says of a model: as text, as a page, and from where it has its numbers."""

from __future__ import annotations

import dataclasses
import itertools
import re
from collections import Counter
from html.parser import HTMLParser
from typing import Any

import pytest

pytest.importorskip("torch")

import torch
from explained_models import Everything, explained

import pycutlass.pytorch
from pycutlass.cache import Artifact, KernelCache, make_key
from pycutlass.compiler.choice import portable_fields
from pycutlass.errors import ArgumentError, ArgumentTypeError, NotCompiledError
from pycutlass.plan.roofline import Roofline
from pycutlass.pytorch import tables
from pycutlass.pytorch.explained import facts
from pycutlass.pytorch.explained.facts import facts_of
from pycutlass.pytorch.explained.layout import HEIGHT, laid_out
from pycutlass.pytorch.explained.markup import Markup, tag
from pycutlass.pytorch.explained.picture import Box
from pycutlass.pytorch.explained.texts import epilogue_lines
from pycutlass.pytorch.regions.plans import gpu_of, plan_of
from pycutlass.report import BuildReport
from pycutlass.toolkit import own_headers_digest
from pycutlass.trials import Database, Machine, Trial
from pycutlass.tuning.problems import problems_of

GPU = gpu_of(90)


@pytest.fixture(scope="module")
def made() -> Any:
    return explained()


@pytest.fixture(autouse=True)
def cache_of_its_own(tmp_path, monkeypatch):
    monkeypatch.setenv("PYCUTLASS_CACHE_DIR", str(tmp_path / "cache"))


class Page(HTMLParser):
    """A page with its elements, links and text; elements that are not closed in order are an error."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: Counter[str] = Counter()
        self.ids: list[str] = []
        self.links: list[str] = []
        self.attributes: list[tuple[str, str]] = []
        self.texts: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.tags[tag] += 1
        self.attributes += attrs
        self.ids += [value for name, value in attrs if name == "id"]
        self.links += [value for name, value in attrs if name == "href"]
        if tag != "meta":
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def test_every_link_leads_somewhere(made):
    page = Page(made.html)
    assert len(page.ids) == len(set(page.ids))
    assert all(link.startswith("#") and link[1:] in page.ids for link in page.links)
    regions = {f"#region-{each.region.name}" for each in made.regions}
    assert regions <= set(page.links) and len(regions) == 6
    assert {f"left-{name}" for name in made.left} <= set(page.ids)


def test_the_page_needs_nothing_else(made):
    page = Page(made.html)
    assert not {"script", "link", "img", "iframe"} & set(page.tags)
    assert not [name for name, _ in page.attributes if name.startswith("on") or name == "src"]
    style = made.html.partition("<style>")[2].partition("</style>")[0]
    assert "box" in style and not re.search(r"url\(|@import|http", style)


def test_text_of_the_model_is_text(made):
    page = Page(made.html)
    assert any("<script>evil = 1</script>" in each for each in page.texts)
    assert "<script>" not in made.html


def test_markup_escapes_text_and_attributes():
    made = tag("p", "<b> & 'x'", tag("b", "y"), None, title='"<')
    assert made == '<p title="&quot;&lt;">&lt;b&gt; &amp; &#x27;x&#x27;<b>y</b></p>'
    assert isinstance(made, Markup)


def test_each_region_can_be_opened(made):
    texts = Counter(Page(made.html).texts)
    for name in ("Epilogue", "Inputs and results", "Kernels that were considered", "Description", "Generated C++"):
        assert texts[name] >= len(made.regions), name
    assert all(
        "PYCUTLASS_" in kernel.source and kernel.name in kernel.source
        for each in made.regions
        for kernel in each.kernels
    )
    assert "not compiled yet" in made.html


def test_the_text_has_regions_and_reasons(made):
    text = str(made)
    assert text.splitlines()[0].startswith("Everything: 6 regions, for NVIDIA H200 (not here), s")
    for each in made.regions:
        assert each.region.name in text and each.kernel in text and each.problem in text
    assert "ends before softmax: softmax.int normalises rows" in text
    assert "it has a product of its own, and a kernel computes one" in text
    assert re.search(r"left layer_norm: layer_norm normalises rows", text)


def test_numbers_are_those_of_the_plan(made):
    for each in made.regions:
        [problem] = problems_of(plan_of(each.region, made.sizes))
        chosen = problem.picked(GPU)
        ranked = problem.ranked(GPU)
        assert each.kernel == chosen.name and each.candidates == len(ranked)
        assert each.predicted == next(one.microseconds for one in ranked if one.candidate == chosen)
        assert each.measured is None and each.microseconds == each.predicted
        instruction = chosen.operation.tile_description.math_instruction
        least = Roofline.of(instruction, problem.operations, problem.bytes, GPU)
        assert each.roofline == least and each.share == least.microseconds / each.predicted
        assert each.gflops == pytest.approx(problem.operations / each.predicted / 1e3)


def test_a_region_is_planned_as_its_operator_plans(made, monkeypatch):
    """The kernel that is explained is that of the operator's own plan."""
    from pycutlass.plan import matmul as module

    plans = []
    make = module._plan_of

    def kept(*given: Any) -> Any:
        plans.append(make(*given))
        return plans[-1]

    monkeypatch.setattr(module, "_plan_of", kept)
    torch.manual_seed(0)
    x = torch.randn(64, 32, dtype=torch.float16)
    model = torch.nn.Sequential(torch.nn.Linear(32, 48), torch.nn.GELU()).half()
    partition = pycutlass.pytorch.partition(model, x, options={"min_gain": 0})
    with torch.no_grad():
        partition(x)
    [region], [own] = partition.regions, plans
    assert plan_of(region, {}).kind == own.kind


def test_sizes_are_those_of_the_example_or_given(made):
    [(symbol, number)] = made.sizes.items()
    assert number == 4
    other = explained(sizes={symbol: 64})
    assert other.sizes == {symbol: 64} and f"{symbol} = 64" in str(other)
    assert other.regions[0].operations == 16 * made.regions[0].operations


def test_one_row_is_explained_as_it_is_computed(made):
    [symbol] = made.sizes
    one = explained(sizes={symbol: 1})
    assert one.sizes == {symbol: 1} and not any(each.refusal for each in one.regions)
    assert one.regions[0].operations * 4 == made.regions[0].operations
    model, x = torch.nn.Linear(8, 8), torch.ones(4, 8)
    partition = pycutlass.pytorch.partition(model, x, True, {"min_gain": 0})
    torch.testing.assert_close(partition(x[:1]), model(x[:1]))
    with pytest.raises(ArgumentError, match="must be at least 3 and at most 8, got 2"):
        rows = {0: torch.export.Dim("rows", min=3, max=8)}
        bounded = pycutlass.pytorch.partition(model, x, (rows,), {"min_gain": 0})
        pycutlass.pytorch.explain(bounded, sizes={bounded.regions[0].problem.symbols[0]: 2})
    single = pycutlass.pytorch.partition(model, x[:1], True, {"min_gain": 0})
    with pytest.raises(ArgumentError, match="with an example that has 2 or more"):
        single(x)


@pytest.mark.parametrize(
    ("sizes", "error", "words"),
    [
        ({"x": 4}, ArgumentError, "sizes has 'x', which is no symbol: there are s"),
        ({"symbol": 0}, ArgumentError, "must be at least"),
        ({"symbol": "4"}, ArgumentTypeError, "must be an integer"),
        ([4], ArgumentTypeError, "sizes must be a dict"),
    ],
    ids=str,
)
def test_wrong_sizes_are_refused(made, sizes, error, words):
    if isinstance(sizes, dict):
        sizes = {next(iter(made.sizes)) if name == "symbol" else name: value for name, value in sizes.items()}
    with pytest.raises(error, match=words):
        explained(sizes=sizes)


def test_a_partition_is_explained_as_it_is():
    x = torch.ones(8, 64)
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU())
    partition = pycutlass.pytorch.partition(model, x, options={"min_gain": 0})
    assert [each.region for each in pycutlass.pytorch.explain(partition).regions] == list(partition.regions)


def test_a_partition_is_explained_with_its_own_options():
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU())
    partition = pycutlass.pytorch.partition(model, torch.ones(8, 64), options={"min_gain": 0, "sm": 80})
    assert "for NVIDIA A100" in str(pycutlass.pytorch.explain(partition))
    assert "for NVIDIA H200" in str(pycutlass.pytorch.explain(partition, options={"sm": 90}))


def test_a_model_without_products():
    made = pycutlass.pytorch.explain(torch.nn.ReLU(), torch.ones(4), options={"sm": 80})
    page = Page(made.html)
    assert made.regions == () and "No product of the model was taken." in page.texts
    assert str(made) == "ReLU: 0 regions, for NVIDIA A100 (not here)" or "A100" in str(made)


def kernel_in_the_cache(region: Any, sizes: Any) -> None:
    [problem] = problems_of(plan_of(region, sizes))
    for operation in problem.picked(GPU).kernels:
        source = operation.source()
        fields = dict(portable_fields(source, "sm_90a" if source.native else "sm_90", own_headers_digest()))
        report = BuildReport(168, 0, 0, 0, 1024, 2000, False, (), 17.5, 3.0, 4242, "nvcc 13.0.88")
        about = {**report.as_json(), "source": source.text}
        KernelCache().put(Artifact(make_key(fields), source.name, fields["target"], fields, b"cubin", b"host", about))


def test_compiled_kernels_are_shown(made, monkeypatch):
    region = made.regions[-1].region
    kernel_in_the_cache(region, made.sizes)
    monkeypatch.setattr(facts, "disassembled", lambda cubin: f"HGMMA of {cubin.decode()} <R1>")
    monkeypatch.setattr(facts, "ptx_of", lambda operation, target: f".target {target}")
    shown = facts_of(region, made.sizes, GPU, is_here=False, compile=False)
    [kernel] = shown.kernels
    assert dict(kernel.report)["registers"] == "168" and dict(kernel.report)["warnings"] == "none"
    assert kernel.sass == "HGMMA of cubin <R1>" and kernel.ptx == "" and "PTX is not kept" in kernel.missing
    [kernel] = facts_of(region, made.sizes, GPU, is_here=False, compile=True).kernels
    assert kernel.ptx == ".target sm_90a" and kernel.missing == ""
    whole = pycutlass.pytorch.Explanation("x", GPU, False, made.sizes, (shown,), made.left, made.boxes[:2])
    html = whole.html
    assert "SASS, sm_90a" in html and "Build report, sm_90a" in html and "&lt;R1&gt;" in html


def test_what_cannot_be_shown_is_said(made, monkeypatch):
    region = made.regions[0].region
    monkeypatch.setenv("PYCUTLASS_NO_COMPILE", "1")
    [kernel] = facts_of(region, made.sizes, GPU, is_here=False, compile=True).kernels
    assert kernel.source and not kernel.sass and "PYCUTLASS_NO_COMPILE" in kernel.missing
    with pytest.raises(NotCompiledError, match="the PTX of"):
        facts.ptx_of(problems_of(plan_of(region, made.sizes))[0].picked(GPU).operation, "sm_90")


def test_measured_times_come_from_the_database(made, monkeypatch, tmp_path):
    region = made.regions[-1].region
    monkeypatch.setenv("PYCUTLASS_TARGET", "sm_90")
    machine = Machine(GPU.name, GPU.sm_count, 90, "4.2.0", "nvcc 13.0.88", "0.1.0", 700)
    monkeypatch.setattr(facts, "machine_of", lambda ordinal: machine)
    monkeypatch.setattr(facts.device, "current", lambda: 0)
    plan = plan_of(region, made.sizes)
    [problem] = problems_of(plan)
    database = Database(tmp_path / "trials.db")
    given = {"machine": machine, "low": 6.0, "high": 8.0, "rounds": 9, "time": 7.0}
    database.add(Trial(problem.record(), plan.candidate.choice(), **given))
    shown = facts_of(region, made.sizes, GPU, is_here=True, compile=False, database=database)
    assert shown.measured == 7.0 and shown.microseconds == 7.0 and shown.predicted != 7.0
    assert shown.gflops == pytest.approx(problem.operations / 7.0 / 1e3)
    whole = pycutlass.pytorch.Explanation("x", GPU, True, made.sizes, (shown,), {}, ())
    assert "7.00 us measured" in str(whole) and "1 of 1 measured" in whole.html
    database.close()


def test_a_region_without_a_kernel_says_why(made, monkeypatch):
    def refuse(*_: Any) -> Any:
        raise ArgumentError("no kernel takes <this>")

    monkeypatch.setattr(facts, "plan_of", refuse)
    shown = facts_of(made.regions[0].region, made.sizes, GPU, is_here=False, compile=False)
    whole = pycutlass.pytorch.Explanation("x", GPU, False, made.sizes, (shown,), made.left, made.boxes)
    assert "none: no kernel takes <this>" in str(whole) and "no kernel takes &lt;this&gt;" in whole.html


def test_epilogues_are_written_out(made):
    gated = next(each.region for each in made.regions if any(name.startswith("silu") for name in each.region.fused))
    lines = epilogue_lines(gated.function)
    assert any("silu(" in line for line in lines) and lines[-1].startswith("D = v")


def test_pages_are_saved(made, tmp_path):
    assert made.save(tmp_path / "page.html").read_text(encoding="utf-8") == made.html
    with pytest.raises(ArgumentError, match="cannot be written"):
        made.save(tmp_path / "none" / "page.html")
    with pytest.raises(ArgumentTypeError, match="path must be a path"):
        made.save(3)


def test_what_is_no_flag_is_refused():
    with pytest.raises(ArgumentTypeError, match="compile must be True or False"):
        pycutlass.pytorch.explain(Everything(), compile=1)


@pytest.mark.parametrize("given", [{"inputs": torch.ones(8, 64)}, {"dynamic": True}], ids=["inputs", "dynamic"])
def test_a_partition_takes_no_other_inputs(given):
    made = pycutlass.pytorch.partition(torch.nn.Linear(64, 64), torch.ones(8, 64))
    with pytest.raises(ArgumentError, match="a Partition was made for inputs"):
        pycutlass.pytorch.explain(made, **given)


def test_boxes_stand_below_what_they_read_and_beside_each_other(made):
    layout = laid_out(made.boxes)
    y_of = {place.box.name: place.y for layer in layout.layers for place in layer if place.box}
    assert set(y_of) == {box.name for box in made.boxes}
    assert all(y_of[source] + HEIGHT < y_of[box.name] for box in made.boxes for source in box.sources)
    for layer in layout.layers:
        edges = [(place.x - place.width / 2, place.x + place.width / 2) for place in layer]
        assert all(end < begin for (_, end), (begin, _) in itertools.pairwise(edges))
        assert all(begin > -1e-6 and end < layout.width + 1e-6 for begin, end in edges)


def test_long_lines_pass_every_layer():
    chain = [Box(f"b{at}", "operator", "x", "", (f"b{at - 1}",) if at else ()) for at in range(5)]
    last = Box("last", "operator", "x", "", ("b0", "b4"))
    layout = laid_out([*chain, last])
    assert [sum(place.box is None for place in layer) for layer in layout.layers] == [0, 1, 1, 1, 1, 0]


def test_names_of_operators_are_those_that_people_use(made):
    region = dataclasses.replace(
        made.regions[0].region,
        product="conv2d_3",
        fused=("_native_batch_norm_legit_no_training_3", "getitem_9", "add_1", "relu"),
    )
    assert ": conv2d_3 + batch_norm_3 + add_1 + relu, " in str(region)
    assert tables.computed(region) == "conv2d_3 + batch_norm_3 + add_1 + relu"
    assert tables.operators(region) == "conv2d + batch_norm + add + relu"
    assert tables.followers(region)[0] == "_native_batch_norm_legit_no_training_3"


def test_constants_of_epilogues_are_written_as_decimals():
    @pycutlass.epilogue_function
    def clipped(accum):
        return pycutlass.epilogue.maximum(accum * 0.5, -2.25)

    lines = "\n".join(epilogue_lines(clipped))
    assert "0.5" in lines and "-2.25" in lines and "0x" not in lines
