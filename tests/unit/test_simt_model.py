"""What the model of the pick knows of kernels of CUDA cores, and of loads of single elements."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import pycutlass
from benchmarks import simt
from benchmarks.pick_cases import GPU, kind
from benchmarks.pick_shapes import Shape
from pycutlass import cutlass
from pycutlass.plan import Conv2dKind, GemmKind, candidates, ranking
from pycutlass.plan.constants import constants_of, shipped
from pycutlass.plan.features import Features, simt_tile
from pycutlass.plan.forms import Form
from pycutlass.plan.kinds import Wanted, kind_of
from pycutlass.plan.model import Model
from pycutlass.plan.simt import SimtShares, loads_of_depth, loads_words, operands_along_k, turns_words
from pycutlass.types import element
from tools import fit_simt

PARTS = {part: kind(simt.problems([part])[0]) for part in simt.PARTS}


def tiles_of(asked: GemmKind) -> dict[str, int]:
    """Return places of candidates by the tile, of kernels that divide nothing."""
    found: dict[str, int] = {}
    for place, each in enumerate(candidates(asked, 90)):
        if not each.operation.tile_description.is_gemv and each.split_k_slices == 1 and not each.is_stream_k:
            found.setdefault(simt_tile(each.operation.tile_description), place)
    return found


@pytest.mark.parametrize(("part", "count"), [("none", 0), ("one", 1), ("both", 2)])
def test_each_listed_tile_is_known_for_its_layouts(part: str, count: int) -> None:
    assert operands_along_k(PARTS[part]) == count
    for gpu in shipped():
        for tile in tiles_of(PARTS[part]):
            share, cycles = gpu.simt[tile][count]
            assert 0.05 < share <= 1.02 and 50 < cycles < 10000, (gpu.name, tile)


def test_what_is_unknown_is_not_a_number() -> None:
    features = Features.of(candidates(PARTS["both"], 90), 90)
    name = next(name for name in features.simt_tiles if name)
    found = SimtShares.of(features, 2, {name: [None, None, (0.5, 300.0)]})
    known = np.array([each == name for each in features.simt_tiles])
    assert (found.share[known] == 0.5).all() and (found.cycles[known] == 300.0).all()
    assert np.isnan(found.share[~known]).all() and np.isnan(found.cycles[~known]).all()
    assert np.isnan(SimtShares.of(features, 0, {name: [None, None, (0.5, 300.0)]}).share).all()


def test_a_kernel_that_is_unknown_is_predicted_as_others_are() -> None:
    asked = PARTS["one"]
    several, usual = candidates(asked, 90), constants_of(GPU)
    found = Model(asked, several, replace(usual, simt={})).predict(512, 512, 512)
    assert np.isfinite(found.microseconds).all()


def test_full_tiles_are_predicted_by_their_share() -> None:
    asked, usual = PARTS["both"], constants_of(GPU)
    place = tiles_of(asked)["256x128x8 512 2"]
    share, _ = usual.simt["256x128x8 512 2"][2]
    found = Model(asked, candidates(asked, 90), usual).predict(8192, 8448, 8192)  # 2112 tiles, 16 on each
    ideal = 8192 * 8448 * 8192 / (128 * 132 * usual.clock_ghz * 1e3)
    assert found.multiplying[place] == pytest.approx(ideal / share, rel=0.02)


def test_single_elements_are_loaded_by_threads_and_others_are_not() -> None:
    def unaligned(alignment: int) -> GemmKind:
        forms = (Form(True, alignment), Form(True, alignment), None, Form(True, alignment))
        return kind_of(element(cutlass.float16), element(cutlass.float16), forms, Wanted())

    for alignment, is_single in ((1, True), (2, False), (8, False)):
        asked = unaligned(alignment)
        features = Features.of(candidates(asked, 80), 80)
        loads = loads_of_depth(features, asked)
        ampere = ~features.is_native & ~features.is_gemv
        least = (features.rows + features.columns) * features.depth / features.threads
        assert (loads[ampere] >= least[ampere]).all() if is_single else (loads[ampere] == 0.0).all()
        assert (loads[~ampere] == 0.0).all()


def test_convolutions_have_their_layouts() -> None:
    conv = cutlass.conv.Operator
    f32 = cutlass.float32
    nhwc = pycutlass.TensorDescription(f32, cutlass.TensorNHWC, 1)
    functor = pycutlass.LinearCombination(f32, 1, f32, f32)
    for direction, count in ((conv.fprop, 2), (conv.dgrad, 1), (conv.wgrad, 0)):
        math = pycutlass.MathOperation.multiply_add
        asked = Conv2dKind(direction, nhwc, nhwc, nhwc, f32, f32, f32, math, functor)
        assert operands_along_k(asked) == count and not turns_words(asked)


def test_words_are_turned_around_where_neither_operand_lies_along_k() -> None:
    assert turns_words(kind(Shape("tf32", "ntt", 512, 512, 512)))
    assert not turns_words(kind(Shape("tf32", "ttt", 512, 512, 512)))
    assert not turns_words(kind(Shape("bf16", "ntt", 512, 512, 512)))
    turned, straight = (
        ranking(kind(Shape("tf32", layouts, 4096, 4096, 4096)), 4096, 4096, 4096, gpu=GPU)[0]
        for layouts in ("ntt", "nnt")
    )
    assert turned.microseconds > 1.2 * straight.microseconds


def test_a_fit_finds_the_numbers_that_times_were_made_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Times that the model predicts with other numbers than the shipped ones."""
    tile, made = "128x64x8 128 2", (0.5, 1200.0)
    usual = constants_of(GPU)
    changed = replace(usual, simt={tile: [made] * 3})
    times = {}
    for part, asked in PARTS.items():
        several = candidates(asked, 90)
        for shape in simt.problems([part]):
            found = Model(asked, several, changed).predict(shape.m, shape.n, shape.k).microseconds
            times[shape.name] = {
                each.name: float(one)
                for each, one in zip(several, found, strict=True)
                if not each.operation.tile_description.is_gemv and simt_tile(each.operation.tile_description) == tile
            }
    written, folder = tmp_path / "simt.json", tmp_path / "gpus"
    folder.mkdir()
    (folder / "h200.json").write_text(json.dumps({"name": "made up", "simt": {}}))
    (folder / "h100-correction.json").write_text("untouched")
    written.write_text(json.dumps({"raw": {"times": times}}))
    monkeypatch.setattr(fit_simt, "_FILES", folder)
    assert fit_simt.main(str(written)) == 0
    found = json.loads((folder / "h200.json").read_text())
    assert found["name"] == "made up" and list(found["simt"]) == [tile]
    for share, cycles in found["simt"][tile]:
        assert share == pytest.approx(made[0], abs=0.02) and cycles == pytest.approx(made[1], rel=0.1)
    assert (folder / "h100-correction.json").read_text() == "untouched"


def test_of_tiles_that_load_a_to_registers_wide_ones_are_preferred() -> None:
    assert [loads_words(kind(Shape("tf32", layouts, 512, 512, 512))) for layouts in ("ttt", "nnt", "tnt", "ntt")] == [
        *(True, True, False, False)
    ]
    best = ranking(kind(Shape("tf32", "ttt", 4096, 4096, 4096)), 4096, 4096, 4096, gpu=GPU)[0].candidate
    assert best.operation.tile_description.threadblock_shape == (128, 256, 32)


def test_loads_that_spill_and_those_of_stream_k_count_more() -> None:
    forms = (Form(True, 1), Form(True, 1), None, Form(True, 1))
    asked = kind_of(element(cutlass.float16), element(cutlass.float16), forms, Wanted())
    several = candidates(asked, 90)
    names = [each.name.split(", swizzle")[0] for each in several]
    loads = dict(zip(names, loads_of_depth(Features.of(several, 90), asked), strict=True))
    name = "Ampere-style 128x128x32, 2 stages, 2x2x1 warps"
    assert loads[name] == pytest.approx(64 * (1 + 64 / 320))
    assert loads[f"{name}, stream-K"] == pytest.approx(1.4 * loads[name])
    assert loads["Ampere-style 64x64x32, 2 stages, 2x2x1 warps"] == 32
