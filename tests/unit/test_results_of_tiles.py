"""Results of tiles: there are candidates wherever descriptions take a tile of the extents that a function says."""

from __future__ import annotations

import itertools
import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import pycutlass
from pycutlass import TensorSpec, TileDescription, cutlass, epilogue
from pycutlass.device import Device
from pycutlass.enums import KernelSchedule
from pycutlass.errors import ArgumentError, DescriptionError
from pycutlass.log import silent
from pycutlass.plan import GemmKind, candidates, group_candidates, pick

pytestmark = pytest.mark.usefixtures("without_gpu")

AXES = ("rows", "columns")
#: Depths, warps and stages of Ampere-style tiles that descriptions are asked for.
WARPS = ((1, 2, 1), (2, 1, 1), (1, 4, 1), (2, 2, 1), (4, 2, 1), (2, 4, 1))
SHAPES = (((16, 8, 32), True), ((16, 8, 16), True), ((1, 1, 1), False))


def sums(axis: int, tile: int) -> Any:
    """Return a function with the sums of each tile of so many rows, along axis 0, or columns."""
    return pycutlass.epilogue_function(lambda accum: {"D": accum, "sums": epilogue.sum(accum, axis=axis, tile=tile)})


def kind_of(axis: int, tile: int, dtype: str = "float16", by_columns: bool = False) -> GemmKind:
    out = TensorSpec((512, 512), dtype, (1, 512)) if by_columns else None
    operands = TensorSpec((512, 512), dtype), TensorSpec((512, 512), dtype, (1, 512))
    plain = pycutlass.Gemm(*operands, epilogue=sums(axis, 64), out=out).kind
    typed = plain.epilogue
    assert isinstance(typed, epilogue.FunctionEpilogue)
    return replace(plain, epilogue=replace(typed, function=sums(axis, tile)))


def is_described(kind: GemmKind, capability: int) -> bool:
    """Return whether there is a description for such a GPU, of those that are tried."""
    with silent():
        return any(map(kind_takes(kind), native(kind) if capability == 90 else ampere(kind)))


def kind_takes(kind: GemmKind) -> Any:
    def takes(described: tuple[TileDescription, bool]) -> bool:
        try:
            kind.operation(described[0], swap_ab=described[1])
        except DescriptionError:
            return False
        return True

    return takes


def ampere(kind: GemmKind) -> Any:
    for (shape, is_tensor_op), extent in itertools.product(SHAPES, (64, 128)):
        if is_tensor_op and kind.is_full_f32:
            continue
        try:
            instruction = kind.instruction(shape, cutlass.OpClass.TensorOp if is_tensor_op else cutlass.OpClass.Simt)
        except DescriptionError:
            continue
        tile = next(port.tile for port in kind.epilogue.outputs if port.tile)
        for plane, warps, stages in itertools.product(((tile, extent), (extent, tile)), WARPS, (3, 2)):
            try:
                yield TileDescription((*plane, 512 // instruction.a.bits), stages, warps, instruction), False
            except DescriptionError:
                continue


def native(kind: GemmKind) -> Any:
    try:
        instruction = kind.instruction(None)
    except DescriptionError:
        return
    tile = next(port.tile for port in kind.epilogue.outputs if port.tile)
    places = itertools.product(KernelSchedule, ((tile, 64), (64, tile), (tile, 128), (128, tile)), (False, True))
    for schedule, plane, swap_ab in places:
        try:
            made = TileDescription((*plane, 1024 // instruction.a.bits), None, None, instruction, (1, 1, 1), schedule)
        except DescriptionError:
            continue
        yield made, swap_ab


@pytest.mark.parametrize(("dtype", "capability"), [("float16", 80), ("float16", 90), ("float32", 80)])
@pytest.mark.parametrize("by_columns", [False, True])
@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("tile", [16, 32, 48, 64, 96, 112, 128, 192, 256])
def test_there_are_candidates_where_there_are_descriptions(
    axis: int, tile: int, by_columns: bool, capability: int, dtype: str
) -> None:
    kind = kind_of(axis, tile, dtype, by_columns)
    found = candidates(kind, capability)
    if is_described(kind, capability):
        assert found
    assert all(tile in each.operation.tile_description.threadblock_shape[:2] for each in found)


@pytest.mark.parametrize(("axis", "tile"), [(0, 32), (0, 192), (0, 256), (1, 256)])
def test_groups_and_plans_have_them(axis: int, tile: int) -> None:
    kind = kind_of(axis, tile)
    assert group_candidates(kind, 80)
    function, a, b = sums(axis, tile), np.ones((300, 16), np.float16), np.ones((16, 520), np.float16)
    tiles = -(-(a.shape[0], b.shape[1])[axis] // tile)
    found = np.zeros(tiles * (b.shape[1], a.shape[0])[axis], np.float32)
    pycutlass.matmul(a, b, epilogue=function, epilogue_inputs={"sums": found})
    np.testing.assert_array_equal(found, np.ravel(function.numpy(np.full((300, 520), 16.0))["sums"]))


@pytest.mark.parametrize(("axis", "tile", "capability"), [(1, 192, 80), (1, 48, 80), (0, 17, 80), (0, 264, 90)])
def test_extents_that_no_tile_has_are_told_from_those_that_tiles_have(axis: int, tile: int, capability: int) -> None:
    kind, gpu = kind_of(axis, tile), Device(0, "a GPU", capability, 108)
    assert not candidates(kind, capability)
    with pytest.raises(ArgumentError, match="no kernel of this kind has such tiles") as caught:
        pick(kind, 512, 512, 512, gpu=gpu)
    assert f"of {tile} {AXES[axis]}" in str(caught.value)
    said = re.search(rf"write tile= with {AXES[axis]} \(axis={axis}\) that kernels have: ([\d, ]+);", str(caught.value))
    assert said is not None, caught.value
    for extent in map(int, said[1].split(", ")):
        assert candidates(kind_of(axis, extent), capability), extent
