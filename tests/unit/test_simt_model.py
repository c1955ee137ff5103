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
from pycutlass.families.sm90_products import accumulator_registers
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
            if tile.split("x")[1] == "32":
                continue  # for few columns
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


def test_tiles_of_few_columns_are_for_few_columns_alone() -> None:
    """They were not measured: the model would prefer them to those that were."""
    asked = PARTS["both"]

    def columns(m: int, n: int, k: int) -> list[int]:
        """Return those of the tiles, the likely fastest first."""
        ranked = (each.candidate.operation.tile_description for each in ranking(asked, m, n, k, gpu=GPU))
        return [tile.threadblock_shape[1] for tile in ranked if not tile.is_gemv]

    assert columns(100_000, 32, 512)[0] == 32
    for size in ((1000, 1000, 1000), (4096, 64, 512), (333, 555, 777), (100_000, 33, 512)):
        found = columns(*size)
        few = found.count(32)
        assert few and found[-few:] == [32] * few, size


def test_loads_of_single_elements_are_those_of_the_transposed_problem() -> None:
    """Of A and B of other alignments, where D is column-major: the kernel exchanges them."""
    f16, f32 = cutlass.float16, cutlass.float32
    row, column = cutlass.RowMajor, cutlass.ColumnMajor

    def of(a: object, b: object, d: object, alignments: tuple[int, int]) -> GemmKind:
        A, B, D = (
            pycutlass.TensorDescription(f16, layout, alignment)
            for layout, alignment in zip((a, b, d), (*alignments, 8), strict=True)
        )
        functor = pycutlass.LinearCombination(f16, 8, f32, f32)
        return GemmKind(A, B, D, D, f16, f16, f32, pycutlass.MathOperation.multiply_add, functor)

    written, mirrored = of(row, row, row, (1, 8)), of(column, column, column, (8, 1))
    times = ranking(written, 4096, 512, 1024, gpu=GPU), ranking(mirrored, 512, 4096, 1024, gpu=GPU)
    assert [each.microseconds for each in times[0]] == pytest.approx([each.microseconds for each in times[1]])


def test_groups_are_not_predicted_by_times_of_products() -> None:
    """Those were measured of kernels that are held to 128 registers, which kernels of groups are not."""
    from pycutlass.plan.group_pick import _model

    _, model = _model(PARTS["one"], 80, constants_of(GPU))
    assert len(model.candidates) > 4 and not any(model.features.simt_tiles)
    assert not any(each.operation.tile_description.num_threads > 256 for each in model.candidates)


def test_a_tile_that_spills_a_little_is_picked_and_not_listed() -> None:
    """Two warp groups that share the work and turn words around have 128 sums, and are the fastest."""
    asked = kind(Shape("tf32", "ntt", 4096, 4096, 4096))
    picked = ranking(asked, 4096, 4096, 4096, gpu=GPU)[0].candidate.operation
    tile, listed = picked.tile_description, pycutlass.tile_descriptions(picked)
    assert tile.kernel_schedule is pycutlass.KernelSchedule.Cooperative and accumulator_registers(tile) == 128
    assert listed and tile not in listed
    considered = {each.operation.tile_description for each in candidates(asked, 90) if each.operation.is_sm90}
    alone = [each for each in considered if each.kernel_schedule is pycutlass.KernelSchedule.Pingpong]
    assert alone and max(accumulator_registers(each) for each in alone) <= 112


def test_messages_about_words_that_are_turned_recommend_what_helps(caplog: pytest.LogCaptureFixture) -> None:
    asked, schedules = kind(Shape("tf32", "ntt", 4096, 4096, 4096)), pycutlass.KernelSchedule

    def said(columns: int, rows: int, schedule: pycutlass.KernelSchedule) -> str:
        caplog.clear()
        instruction = asked.instruction(None)
        tile = pycutlass.TileDescription((rows, columns, 32), None, None, instruction, (1, 1, 1), schedule)
        asked.operation(tile)
        return " ".join(record.getMessage() for record in caplog.records)

    assert "at most 96 columns do not spill" in said(192, 256, schedules.Cooperative)
    assert said(96, 256, schedules.Cooperative) == ""
    assert "a smaller tile has fewer" in said(160, 256, schedules.Cooperative)
    assert "or KernelSchedule.Cooperative, has fewer" in said(128, 128, schedules.Pingpong)
    assert said(128, 128, schedules.Cooperative) == ""
