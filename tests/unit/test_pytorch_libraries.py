"""`build` and `load`: which plans a library gets, and that regions hand the library what its kernels take.

The library is a stand-in that computes on the host; tests/compile has a real one.
"""

from __future__ import annotations

import functools
import logging
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("torch")

import torch
from explained_models import Everything
from torch import nn

import pycutlass.pytorch
from pycutlass.errors import ArgumentError, ArgumentTypeError, CacheError
from pycutlass.exports.library import described
from pycutlass.pytorch import libraries, library_kernels
from pycutlass.pytorch.native import Embedded
from pycutlass.pytorch.regions import plans
from pycutlass.pytorch.regions.gain import planned_for
from pycutlass.pytorch.regions.plans import gpu_of
from pycutlass.tuning.problems import problems_of

#: What stands for the bytes of a library.
CARRIED = Embedded(torch.arange(5, dtype=torch.uint8), "its digest")


class Built:
    """What `export_library` was given."""

    def __init__(self) -> None:
        self.plans: dict[str, Any] = {}
        self.extents: tuple[int, ...] = ()
        self.target = ""


@pytest.fixture
def built(monkeypatch) -> Built:
    made = Built()

    def export(plans: Any, path: Any, *, extents: Any = (), target: str | None = None) -> None:
        made.plans, made.extents, made.target = plans, tuple(extents), str(target)

    monkeypatch.setattr(libraries, "export_library", export)
    monkeypatch.setattr(libraries, "embedded", lambda path: CARRIED)
    return made


class Plan:
    """A plan of a library on the host: it computes by the operator's meaning, of tensors by name."""

    target = "sm_80"

    def __init__(self, region: Any, described: Any) -> None:
        self._region, self._described, self.runs = region, described, 0
        self.name, self.tensors = described.name, tuple(each.name for each in described.tensors)
        self.scalars = {each.name: 1.0 for each in region.inputs if each.form == "scalar"}
        self.writes = {"out", *(name for name, _ in region.function.graph.outputs)}

    def check(self, tensors: dict[str, torch.Tensor]) -> None:
        """Compare shapes with those that a library checks: of vectors one may stand for all matrices of a batch."""
        assert set(tensors) == {each.name for each in self._described.tensors}
        for each in self._described.tensors:
            given = tensors[each.name]
            shape = tuple(given.permute(0, 2, 3, 1).shape if each.layout == "pixels" else given.shape)
            fits = [len(shape) == len(of) and all(e in (-1, x) for x, e in zip(shape, of, strict=True))
                    for of in (each.extents, each.extents[1:] if each.shared else each.extents)]  # fmt: skip
            assert any(fits), (each, shape)

    def run(self, *, scalars: Any, out: torch.Tensor, **tensors: torch.Tensor) -> None:
        self.check({"out": out, **tensors})
        self.runs += 1
        region = self._region
        handle = region.handle
        inputs = [
            tensors.pop(each.name).flatten() if each.form == "number" else tensors.pop(each.name)
            for each in region.inputs
            if each.form != "scalar"
        ]
        numbers = [scalars[each.name] for each in region.inputs if each.form == "scalar"]
        a, b, problem = tensors.pop("a"), tensors.pop("b"), region.problem
        if region.kind == "conv2d":
            geometry = (list(getattr(problem, name)) for name in ("stride", "padding", "dilation"))
            results = torch.ops.pycutlass.fused_conv2d(a, b, *geometry, problem.groups, handle, inputs, numbers)
        else:
            results = torch.ops.pycutlass.fused_mm(a, b, handle, inputs, numbers)
        written = {"D": out, **tensors}
        names = [name for name, _ in region.function.graph.outputs]
        assert set(names) == set(written)
        for name, result in zip(names, results, strict=True):
            assert written[name].shape == result.shape and written[name].dtype == result.dtype
            written[name].copy_(result)


class Library(dict[str, Any]):
    """A library on the host, with a manifest as real ones have it."""

    path = Path("kernels.so")

    def __init__(self, model: Any, plans: dict[str, Any]) -> None:
        made = [described(plan, name) for name, plan in plans.items()]
        by_name = {each.name: each for each in made}
        names = {libraries.plan_name(region): region for region in model.regions}
        super().__init__({name: Plan(region, by_name[name]) for name, region in names.items()})
        tensors = [[{"name": each.name, "layout": each.layout} for each in plan.tensors] for plan in made]
        self.manifest = {"plans": [{"name": p.name, "tensors": t} for p, t in zip(made, tensors, strict=True)]}


@functools.cache  # to capture it takes seconds
def everything(**options: Any) -> tuple[Any, torch.Tensor]:
    torch.manual_seed(0)
    images = torch.randn(4, 8, 6, 6, dtype=torch.bfloat16).to(memory_format=torch.channels_last)
    model = Everything().to(torch.bfloat16).eval()
    options = {"sm": 80, "min_gain": 0, **options}
    return pycutlass.pytorch.partition(model, (images,), options=options), images


@functools.cache
def layers(dynamic: Any = None, **options: Any) -> Any:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 8)).half().eval()
    x = torch.randn(16, 32, dtype=torch.float16)
    return pycutlass.pytorch.partition(model, x, dynamic, options={"sm": 80, "min_gain": 0, **options})


def test_a_library_has_equal_kernels_once(built):
    assert pycutlass.pytorch.build(layers(), path="kernels.so") == Path("kernels.so")
    assert len(built.plans) == 2 and built.target == "sm_80" and built.extents == ()
    assert all(described(plan, name).tensors[-1].name == "row0" for name, plan in built.plans.items())


@pytest.mark.parametrize("sm", [80, 90])
def test_kernels_are_those_of_the_gpu_that_is_named(built, sm):
    model = layers()
    pycutlass.pytorch.build(model, {"sm": sm})
    assert built.target == f"sm_{sm}"
    for plan in built.plans.values():
        assert plan.candidate == problems_of(plan)[0].picked(gpu_of(sm))


def test_names_are_the_same_in_every_partition_and_differ_by_what_is_computed():
    first, second, other = layers(), layers.__wrapped__(), layers(use_fast_math=True)
    names = [[libraries.plan_name(region) for region in each.regions] for each in (first, second, other)]
    assert names[0] == names[1] == names[2] and len(set(names[0])) == 2
    torch.manual_seed(0)
    gelu = pycutlass.pytorch.partition(
        nn.Sequential(nn.Linear(32, 32), nn.GELU()).half(), torch.ones(16, 32).half(), options={"min_gain": 0}
    )
    assert libraries.plan_name(gelu.regions[0]) not in names[0]


@pytest.fixture
def set_precision():
    """What sets how torch multiplies float32, until the test ends."""
    setting = torch.backends.cuda.matmul
    before = setting.fp32_precision
    yield lambda precision: setattr(setting, "fp32_precision", precision)
    setting.fp32_precision = before


def test_kernels_of_float32_are_those_of_torchs_setting(set_precision):
    """A library of TF32 is none for float32, when it is loaded and at each call."""
    model = nn.Sequential(nn.Linear(32, 32), nn.ReLU()).eval()
    [region] = pycutlass.pytorch.partition(model, torch.ones(16, 32), options={"sm": 80, "min_gain": 0}).regions
    kernels, names = {}, []
    for precision in ("ieee", "tf32"):
        set_precision(precision)
        kernels[precision] = libraries.LibraryKernel(None, {"a": "rows"}, libraries._precision_of(region))
        names.append(libraries.plan_name(region))
    assert names[0] != names[1]
    on_gpu = SimpleNamespace(is_cuda=True, dtype=torch.float32)
    assert kernels["tf32"].is_for(on_gpu) and not kernels["ieee"].is_for(on_gpu)
    set_precision("ieee")
    assert kernels["ieee"].is_for(on_gpu) and not kernels["tf32"].is_for(on_gpu)


@pytest.mark.parametrize("order", [("sm_80", "sm_90a"), ("sm_90a", "sm_80")], ids=str)
def test_gains_are_those_of_the_current_target(order, monkeypatch):
    for target in order:
        monkeypatch.setenv("PYCUTLASS_TARGET", target)
        assert planned_for(None).compute_capability == {"sm_80": 80, "sm_90a": 90}[target]


def test_a_loaded_model_runs_the_librarys_kernels(built, monkeypatch):
    model, images = everything()
    pycutlass.pytorch.build(model)
    library = Library(model, built.plans)
    monkeypatch.setattr(libraries, "load_library", lambda path: library)
    loaded = pycutlass.pytorch.load("kernels.so", model)
    with torch.no_grad():
        wanted = model(images)
        torch.testing.assert_close(loaded(images), wanted)
        assert not any(plan.runs for plan in library.values())  # the host has the operators' meaning
        monkeypatch.setattr(libraries.LibraryKernel, "is_for", lambda self, tensor: True)
        torch.testing.assert_close(loaded(images), wanted)
        assert all(plan.runs == 1 for plan in library.values())
        model(images)
    assert all(plan.runs == 1 for plan in library.values()), "the model itself stays as it was"
    assert {id(each) for each in loaded.parameters()} == {id(each) for each in model.parameters()}
    assert loaded.regions == model.regions and dict(loaded.left) == dict(model.left)


class Batches(nn.Module):
    """Numbers for each matrix and for all, conditions, several results, and sums of rows."""

    def forward(
        self, x: torch.Tensor, y: torch.Tensor, each: torch.Tensor, one: torch.Tensor, mask: torch.Tensor
    ) -> Any:
        """Return results of four products."""
        scaled = (x @ y) * each
        chosen = torch.where(mask, (x[0] @ y[0]) * one, 0.0)
        positive = (x @ y + 1.0).relu()
        single = x[:1] @ y[:1] * 0.5
        return scaled, chosen, positive, positive.sum(-1), single


def test_whatever_an_epilogue_reads_and_writes_is_handed_over(built, monkeypatch):
    torch.manual_seed(0)
    x, y = torch.randn(4, 16, 32).half(), torch.randn(4, 32, 24).half()
    inputs = x, y, torch.randn(4, 1, 1).half(), torch.randn(1).half(), torch.rand(16, 24) > 0.5
    model = pycutlass.pytorch.partition(Batches(), inputs, options={"sm": 80, "min_gain": 0})
    assert len(model.regions) == 4 and {"number", "matrix"} == {e.form for r in model.regions for e in r.inputs}
    pycutlass.pytorch.build(model)
    library = Library(model, built.plans)
    monkeypatch.setattr(libraries, "load_library", lambda path: library)
    monkeypatch.setattr(libraries.LibraryKernel, "is_for", lambda self, tensor: True)
    loaded = pycutlass.pytorch.load("kernels.so", model)
    with torch.no_grad():
        for found, wanted in zip(loaded(*inputs), Batches()(*inputs), strict=True):
            torch.testing.assert_close(found, wanted, atol=2e-2, rtol=2e-2)
    assert sum(plan.runs for plan in library.values()) == 4


def test_programs_that_are_exported_run_the_library_without_python(built, monkeypatch):
    """By the operator in C++, for which one of the same schema stands here."""
    model, images = everything()
    pycutlass.pytorch.build(model)
    library = Library(model, built.plans)
    monkeypatch.setattr(libraries, "load_library", lambda path: library)
    monkeypatch.setattr(libraries.LibraryKernel, "is_for", lambda self, tensor: True)
    loaded = pycutlass.pytorch.load("kernels.so", model)
    of_kernels = [each for each in loaded.modules() if isinstance(each, libraries.LibraryKernel)]
    assert len(of_kernels) == len(model.regions)
    assert all(each.to("meta").library is CARRIED.library for each in of_kernels)
    assert not [name for name in loaded.state_dict() if "library" in name]
    with torch.no_grad(), pytest.raises(ArgumentError, match=r"call pycutlass\.pytorch\.load_native\(\) before"):
        torch.export.export(loaded, (images,))

    def run(carried: Any, digest: str, name: str, read: Any, written: Any, scalars: Any = ()) -> None:
        plan = library[name]
        assert torch.equal(carried, CARRIED.library) and digest == CARRIED.digest
        given, results = iter(read), iter(written)
        tensors = {each: next(results if each in plan.writes else given) for each in plan.tensors}
        plan.run(**tensors, scalars=dict(zip(plan.scalars, scalars, strict=True)))

    kept = torch.library.Library("pycutlass_of_a_test", "DEF")
    kept.define(
        "run(Tensor library, str digest, str plan, Tensor[] read, Tensor(a!)[] written, float[] scalars=[]) -> ()"
    )
    kept.impl("run", run, "CPU")
    torch.library.register_fake("pycutlass_of_a_test::run", lambda *_: None, lib=kept)
    operator = torch.ops.pycutlass_of_a_test.run.default
    monkeypatch.setattr(library_kernels, "native_run", lambda: operator)
    with torch.no_grad():
        program = torch.export.export(loaded, (images,))
        targets = [node.target for node in program.graph.nodes if node.op == "call_function"]
        assert targets.count(operator) == len(model.regions)
        assert not [each for each in targets if getattr(each, "namespace", "") == "pycutlass"]
        assert {each.data_ptr() for each in program.constants.values()} == {CARRIED.library.data_ptr()}
        torch.testing.assert_close(program.module()(images), model(images))
    assert all(plan.runs == 1 for plan in library.values())


def test_operands_that_lie_otherwise_are_copied(built, monkeypatch):
    model = layers()
    pycutlass.pytorch.build(model)
    library = Library(model, built.plans)
    monkeypatch.setattr(libraries, "load_library", lambda path: library)
    monkeypatch.setattr(libraries.LibraryKernel, "is_for", lambda self, tensor: True)
    loaded = pycutlass.pytorch.load("kernels.so", model)
    x = torch.randn(32, 16, dtype=torch.float16).T
    seen = []
    monkeypatch.setattr(Plan, "run", lambda self, **tensors: seen.append(tensors))
    with torch.no_grad():
        loaded(x)
    for tensors in seen:
        assert tensors["a"].stride(-1) == 1 and tensors["b"].stride(-2) == 1
    torch.testing.assert_close(seen[0]["a"], x)


@pytest.mark.parametrize("layout", ["rows", "columns"])
def test_matrices_lie_as_kernels_load_them(layout):
    whole = torch.arange(200.0).reshape(10, 20)
    odd = whole.flatten()[1:193].view(8, 24)  # begins where no 16 bytes begin
    for given in (whole, whole.T.contiguous().T, whole[:, ::2], odd, whole[:1].expand(4, 20)):
        made = library_kernels._lying(given, layout)
        torch.testing.assert_close(made, given)
        rows = made if layout == "rows" else made.T
        assert rows.stride(-1) == 1 and rows.data_ptr() % 16 == 0
    assert library_kernels._lying(whole, "rows") is whole


def test_any_number_of_rows(built, monkeypatch):
    model = layers(dynamic=True)
    pycutlass.pytorch.build_vm(model, sizes={model.regions[0].problem.symbols[0]: 64})
    assert built.extents == tuple(1 << at for at in range(15))
    for plan in built.plans.values():
        assert len(described(plan, "p", built.extents).variants) >= 10
    library = Library(model, built.plans)
    monkeypatch.setattr(libraries, "load_library", lambda path: library)
    monkeypatch.setattr(libraries.LibraryKernel, "is_for", lambda self, tensor: True)
    loaded = pycutlass.pytorch.load("kernels.so", model)
    with torch.no_grad():
        for rows in (2, 37):
            x = torch.randn(rows, 32, dtype=torch.float16)
            torch.testing.assert_close(loaded(x), model(x))


def test_extents_that_libraries_do_not_take_are_refused(built):
    class Scores(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x @ x.mT

    x = torch.randn(4, 16, 32, dtype=torch.float16)
    model = pycutlass.pytorch.partition(Scores(), x, dynamic=True, options={"sm": 80, "min_gain": 0})
    with pytest.raises(ArgumentError, match="that changes, and kernels of libraries are for fixed ones of the number"):
        pycutlass.pytorch.build(model)


@pytest.mark.parametrize("dynamic", [None, True])
def test_extents_are_positive_integers(built, dynamic):
    x = torch.ones(16, 64, dtype=torch.float16)
    model = pycutlass.pytorch.partition(nn.Linear(64, 64).half(), x, dynamic, {"sm": 80, "min_gain": 0})
    for wrong in (0, -1, 1.5, "a", True, 2**40):
        with pytest.raises(ArgumentError, match=rf"extents must be positive integers, .* got {wrong!r}: leave it out"):
            pycutlass.pytorch.build(model, extents=[16, wrong])
    for wrong in (5, "16", None):
        with pytest.raises(ArgumentError, match=rf"extents must be a list .* got {wrong!r}: pass such as"):
            pycutlass.pytorch.build(model, extents=wrong)


def test_a_path_in_the_place_of_options_is_refused():
    with pytest.raises(ArgumentTypeError, match=r"options must be .* got 'some/kernels\.so': pass path="):
        pycutlass.pytorch.build(layers(), "some/kernels.so")


def test_a_library_of_another_model_is_refused(built, monkeypatch):
    model, _ = everything()
    other = layers()
    pycutlass.pytorch.build(other)
    library = Library(other, built.plans)
    monkeypatch.setattr(libraries, "load_library", lambda path: library)
    with pytest.raises(ArgumentError, match=r"kernels.so has no kernel for pycutlass_0.*Build it again"):
        pycutlass.pytorch.load("kernels.so", model)


@pytest.mark.parametrize(("target", "sm", "others"), [
    ("sm_80", 80, ""), ("sm_80", 86, ""), ("sm_90, sm_90a", 90, ""), ("sm_80", None, ""),
    ("sm_80", 90, "sm_80"), ("sm_86", 80, "sm_86"), ("sm_90a", 80, "sm_90a"), ("sm_90, sm_90a", 91, "sm_90a"),
])  # fmt: skip
def test_kernels_for_another_gpu_than_the_partition_names_are_told_when_they_are_loaded(
    built, monkeypatch, caplog, target, sm, others
):
    """A library may be built for another GPU than the one that gains were predicted for."""
    model = layers(sm=sm)
    pycutlass.pytorch.build(model, {"sm": 80})
    library = Library(model, built.plans)
    monkeypatch.setattr(libraries, "load_library", lambda path: library)
    monkeypatch.setattr(Plan, "target", target)
    with caplog.at_level(logging.WARNING, "pycutlass"):
        pycutlass.pytorch.load("kernels.so", model)
    rule = rf"kernels\.so has kernels for {others}, and the model was partitioned with sm={sm}: .*\"sm\": {sm}"
    assert bool(re.search(rule, caplog.text)) == bool(others)
    assert ("was partitioned with" in caplog.text) == bool(others)
    library.clear()
    other, _ = everything(sm=sm)
    library["another"] = SimpleNamespace(target=target)
    with pytest.raises(ArgumentError, match="has no kernel for") as refused:
        pycutlass.pytorch.load("kernels.so", other)
    assert (f"Its kernels are for {others}, and the partition is for sm={sm}." in str(refused.value)) == bool(others)


def test_compilers_are_as_many_as_options_say(built, monkeypatch, tmp_path):
    asked = []

    class Compiling:
        is_done = True

        def __init__(self, candidates: Any, target: str, jobs: Any, tmp_dir: Any) -> None:
            asked.append((len(candidates), target, jobs, tmp_dir))

        def close(self) -> None:
            return

    monkeypatch.setattr(plans, "LocalCompiling", Compiling)
    pycutlass.pytorch.build(layers(), {"sm": 80, "threads": 3, "tmp_dir": tmp_path})
    pycutlass.pytorch.build(layers(), {"sm": 80, "use_multiprocessing": False})
    pycutlass.pytorch.build(layers(), {"sm": 80})
    assert asked == [(2, "sm_80", 3, tmp_path), (2, "sm_80", 1, None)]


def test_what_is_no_partition_or_path_is_refused(built):
    for function in (pycutlass.pytorch.build, pycutlass.pytorch.build_vm):
        with pytest.raises(ArgumentTypeError, match="partition the model first"):
            function(nn.Linear(2, 2))
    with pytest.raises(ArgumentTypeError, match="partition the model first"):
        pycutlass.pytorch.load("kernels.so", nn.Linear(2, 2))
    with pytest.raises(ArgumentTypeError, match="path must be a path"):
        pycutlass.pytorch.build(layers(), path=3)
    with pytest.raises(ArgumentError, match="has no region"):
        pycutlass.pytorch.build(pycutlass.pytorch.partition(nn.ReLU(), torch.ones(4)))
    with pytest.raises(ArgumentError, match="partitioned with use_fast_math=False"):
        pycutlass.pytorch.build(layers(), {"use_fast_math": True})
    with pytest.raises(CacheError, match="there is no such file"):
        pycutlass.pytorch.load("/nowhere/kernels.so", layers())


def test_a_directory_that_is_not_there_is_told_before_kernels_are_compiled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = pycutlass.pytorch.partition(torch.nn.Linear(8, 8), torch.ones(4, 8), options={"min_gain": 0})
    monkeypatch.setattr(libraries, "plan_of", lambda *_: pytest.fail("planned"))
    with pytest.raises(CacheError, match=r"there is no directory .*absent: make it first"):
        pycutlass.pytorch.build(made, {"sm": 90}, tmp_path / "absent" / "kernels.so")
