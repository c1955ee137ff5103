"""Lists of tiles: in a fixed order, each once, each valid."""

from __future__ import annotations

from typing import Any

import pytest
from convolutions import OPERATIONS
from descriptions import ampere, hopper, native_parts
from hopper_classes import CLASSES

import pycutlass
from pycutlass import GemmOperationUniversal, KernelSchedule, TileDescription, cutlass
from pycutlass.epilogue import Row, Tensor, relu
from pycutlass.errors import ArgumentTypeError, DescriptionError
from pycutlass.families.sm90_products import clean_registers
from pycutlass.families.sm90_register_a import spills


def with_tile(like: GemmOperationUniversal, capability: int, tile: TileDescription) -> GemmOperationUniversal:
    parts = (like.A, like.B, like.C, like.epilogue_functor, like.swizzling_functor, like.D)
    return GemmOperationUniversal(capability, tile, *parts, like.swap_ab and tile.is_sm90)


def one_row(accum: Any, bias: Row) -> Any:
    return relu(accum + bias)


def row_and_matrix(accum: Any, bias: Row, residual: Tensor) -> Any:
    return relu(accum + bias) + residual


def four_rows(accum: Any, mean: Row, scale: Row, weight: Row, bias: Row) -> Any:
    return relu((accum - mean) * scale * weight + bias)


@pytest.mark.parametrize("name", CLASSES)
def test_each_is_a_description_and_none_spills(name: str) -> None:
    like = CLASSES[name]
    tiles = pycutlass.tile_descriptions(like)
    assert tiles == pycutlass.tile_descriptions(like, 90) and len(set(tiles)) == len(tiles)
    assert len(tiles) > (10 if "neither along K" in name and like.A.type.bits == 8 else 40)
    parts = like.family.parts_of(like)
    assert all(tile.accumulator_registers <= clean_registers(tile, parts.D) for tile in tiles)
    assert not any(spills(tile, parts) for tile in tiles)
    made = [with_tile(like, 90, tile) for tile in tiles]
    assert len({each.procedural_name() for each in made}) == len(tiles)
    areas = [tile.threadblock_shape[0] * tile.threadblock_shape[1] for tile in tiles]
    first = [area for area, tile in zip(areas, tiles, strict=True) if _is_of_first_list(tile, tiles[0])]
    assert first == sorted(first, reverse=True)


@pytest.mark.parametrize(
    ("function", "output", "pingpong", "cooperative"),
    [
        (lambda accum: relu(accum), "f16", 192, 192),
        (one_row, "f16", 192, 176),
        (row_and_matrix, "f16", 176, 160),
        (four_rows, "f16", 144, 160),
        (lambda accum: relu(accum), "f32", 168, 160),
        (one_row, "f32", 128, 112),
        (row_and_matrix, "f32", 104, 112),
    ],
)
def test_functions_leave_their_sums_fewer_registers(
    function: Any, output: str, pingpong: int, cooperative: int
) -> None:
    """As builds without spills had."""
    parts = native_parts(output=output)
    C = parts["C"]
    functor = pycutlass.epilogue_function(function)(C.element, C.alignment)
    like = GemmOperationUniversal(**parts | {"epilogue_functor": functor})
    most = dict.fromkeys(KernelSchedule, 0)
    for tile in pycutlass.tile_descriptions(like):
        most[tile.kernel_schedule] = max(most[tile.kernel_schedule], tile.accumulator_registers)
    assert (most[KernelSchedule.Pingpong], most[KernelSchedule.Cooperative]) == (pingpong, cooperative)


def _is_of_first_list(tile: TileDescription, first: TileDescription) -> bool:
    return (tile.kernel_schedule, tile.threadblock_shape[2]) == (first.kernel_schedule, first.threadblock_shape[2])


def test_stream_k_has_cooperative_tiles_alone() -> None:
    assert {tile.kernel_schedule for tile in pycutlass.tile_descriptions(CLASSES["stream-K"])} == {
        KernelSchedule.Cooperative
    }


def test_one_family_lists_tiles_of_the_other() -> None:
    like = ampere("f16")
    assert like.tile_description in pycutlass.tile_descriptions(like)
    native = pycutlass.tile_descriptions(like, 90)
    assert native == pycutlass.tile_descriptions(hopper()) and all(tile.is_sm90 for tile in native)
    back = pycutlass.tile_descriptions(hopper(), 80)
    assert back and not any(tile.is_sm90 for tile in back)
    assert all(with_tile(hopper(), 80, tile) for tile in back)


def test_what_a_family_lacks_has_no_tiles() -> None:
    assert pycutlass.tile_descriptions(ampere("f64"), 90) == ()
    assert pycutlass.tile_descriptions(CLASSES["e4m3 x e5m2"], 80) == ()


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ((None,), "like must be a GemmOperationUniversal or a Conv2dOperation, got NoneType"),
        ((cutlass.float16,), "like must be a GemmOperationUniversal"),
    ],
)
def test_what_is_no_operation_is_refused(given: Any, said: str) -> None:
    with pytest.raises(ArgumentTypeError, match=said):
        pycutlass.tile_descriptions(*given)


@pytest.mark.parametrize("capability", ["90", 100, 70])
def test_a_gpu_without_kernels_has_no_tiles(capability: Any) -> None:
    with pytest.raises(DescriptionError, match=f"compute_capability must be one of 75, 80, .*, got '?{capability}"):
        pycutlass.tile_descriptions(hopper(), capability)


@pytest.mark.parametrize("name", ["f16_fprop_optimized", "f16_dgrad_strided_optimized", "f16_wgrad_align1"])
def test_those_of_convolutions_are_ampere_style(name: str) -> None:
    like = OPERATIONS[name]
    tiles = pycutlass.tile_descriptions(like)
    assert len(tiles) == len(set(tiles)) > 10
    larger = pycutlass.tile_descriptions(like, 90)  # which has more shared memory
    assert set(tiles) <= set(larger) and not any(tile.is_sm90 for tile in larger)
    smaller = pycutlass.tile_descriptions(like, 86)
    assert set(smaller) <= set(tiles)
    for capability, listed in ((80, tiles), (86, smaller), (90, larger)):
        made = [like.replace(tile_description=tile, compute_capability=capability) for tile in listed]
        assert len({each.procedural_name() for each in made}) == len(listed)
