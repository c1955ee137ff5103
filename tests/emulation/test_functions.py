"""Kernels with epilogue functions read and write the right elements, by their own C++ on the host."""

from __future__ import annotations

from typing import Any

import pytest
from convolutions import UNITY, conv, dgrad, fprop, wgrad
from descriptions import COLUMN, ROW, native_parts, parts
from emulator import Emulator
from epilogue_functions import EVERY, gated_tiles, in_other_layouts, selecting, tile_sums
from marks import thorough

from pycutlass import (
    GemmOperationGrouped,
    GemmOperationUniversal,
    KernelSchedule,
    ReductionOperation,
    SchedulerMode,
    TensorDescription,
    cutlass,
    epilogue,
    epilogue_function,
)

pytestmark = pytest.mark.compile


@pytest.mark.parametrize(
    ("name", "kind", "alignment", "tile"),
    [
        thorough("linear", "f16", None, (64, 64, 32)),
        ("several", "f16", None, (128, 64, 32)),
        thorough("several", "f32", None, (64, 64, 16)),
        thorough("scaled", "f16", 2, (64, 128, 32)),
        ("residual", "f16", 1, (64, 64, 32)),
        ("several", "f16_acc16", None, (64, 64, 32)),
        thorough("reduced", "f16", None, (64, 64, 32)),
        ("reduced", "f32", None, (128, 64, 16)),
        ("reduced", "f16", 2, (64, 128, 32)),
        ("of_batch", "f16", None, (64, 64, 32)),
        thorough("gated", "f16", None, (64, 64, 32)),
        thorough("gated", "f32", None, (128, 64, 16)),
        thorough("gated", "f16", 2, (64, 128, 32)),
        thorough("gated_several", "f16", None, (64, 64, 32)),
        thorough("gated_several", "f32", None, (128, 64, 16)),
        ("gated_several", "f16", 2, (64, 128, 32)),
        ("gated_reduced", "f16", None, (64, 128, 32)),
        thorough("gated_reduced", "f32", None, (64, 64, 16)),
    ],
)
def test_all_elements_are_where_they_belong(
    name: str, kind: str, alignment: int | None, tile: tuple[int, int, int], emulator: Emulator
) -> None:
    described = parts(kind, tile=tile, alignment=alignment, stages=2 if alignment == 1 else 3)
    types = {port: cutlass.float32 for port in ("T", "second") if port in dict(EVERY[name].graph.outputs)}
    accumulator = described["tile_description"].math_instruction.accumulator.tag
    functor = EVERY[name](described["C"].element, described["C"].alignment, accumulator, **types)
    right, said = emulator.run_function(GemmOperationUniversal(**described | {"epilogue_functor": functor}))
    assert right, said


@pytest.mark.parametrize(
    ("name", "kind", "layouts", "tile", "is_stream_k"),
    [
        thorough("several", "f16", (ROW, COLUMN, COLUMN), (64, 128, 32), False),
        thorough("reduced", "f32", (ROW, ROW, COLUMN), (128, 64, 16), False),
        ("reduced", "f16", (COLUMN, COLUMN, COLUMN), (64, 64, 32), True),
    ],
)
def test_a_column_major_d_is_that_of_the_transposed_problem(
    name: str,
    kind: str,
    layouts: tuple[Any, Any, Any],
    tile: tuple[int, int, int],
    is_stream_k: bool,
    emulator: Emulator,
) -> None:
    described = parts(kind, layouts, tile=tile)
    if is_stream_k:
        described["swizzling_functor"] = cutlass.ThreadblockSwizzleStreamK
    functor = EVERY[name](described["C"].element, described["C"].alignment, cutlass.float32)
    right, said = emulator.run_function(GemmOperationUniversal(**described | {"epilogue_functor": functor}))
    assert right, said


@pytest.mark.parametrize(("layout_of_d", "layout"), [(ROW, COLUMN), (COLUMN, ROW)])
def test_tensors_that_lie_otherwise_than_d(layout_of_d: Any, layout: Any, emulator: Emulator) -> None:
    described = parts("f16", (ROW, COLUMN, layout_of_d), tile=(64, 64, 32))
    functor = in_other_layouts(cutlass.float16, 8, cutlass.float32, layout)
    operation = GemmOperationUniversal(**described | {"epilogue_functor": functor})
    assert operation.emit().count("pycutlass::ColumnMajorMatrix<") == 2
    right, said = emulator.run_function(operation)
    assert right, said


@pytest.mark.parametrize(
    ("name", "kind", "tile"),
    [
        thorough("several", "f16", (64, 64, 32)),
        thorough("reduced", "f16", (64, 64, 32)),
        ("residual", "f32", (64, 64, 16)),
        ("of_batch", "f16", (64, 64, 32)),
        thorough("gated", "f16", (64, 64, 32)),
        ("gated_reduced", "f16", (64, 64, 32)),
    ],
)
def test_where_several_threadblocks_add_up_a_tile(
    name: str, kind: str, tile: tuple[int, int, int], emulator: Emulator
) -> None:
    """Kernels of stream-K, with problems of less tiles than there are multiprocessors."""
    described = parts(kind, tile=tile) | {"swizzling_functor": cutlass.ThreadblockSwizzleStreamK}
    functor = EVERY[name](described["C"].element, described["C"].alignment, cutlass.float32)
    right, said = emulator.run_function(GemmOperationUniversal(**described | {"epilogue_functor": functor}))
    assert right, said


@pytest.mark.parametrize(
    ("name", "kind", "count", "at_once"),
    [
        ("several", cutlass.float16, 8, 4),
        ("scaled", cutlass.float32, 4, 1),
        ("residual", cutlass.float16, 1, 3),
        ("reduced", cutlass.float16, 8, 4),
        ("reduced", cutlass.float32, 1, 2),
        ("of_batch", cutlass.float16, 8, 2),
    ],
)
def test_reductions_of_partial_sums(name: str, kind: Any, count: int, at_once: int, emulator: Emulator) -> None:
    functor = EVERY[name](kind, count, cutlass.float32)
    C = TensorDescription(kind, cutlass.RowMajor, count)
    operation = ReductionOperation((4, 32 * count), C, cutlass.float32, None, None, functor, count, at_once)
    right, said = emulator.run_reduction(operation)
    assert right, said


@pytest.mark.parametrize(
    ("name", "kind", "mode"),
    [
        thorough("several", "f16", SchedulerMode.Host),
        thorough("scaled", "f32", SchedulerMode.Device),
        ("reduced", "f16", SchedulerMode.Device),
        thorough("reduced", "f32", SchedulerMode.Host),
        ("of_batch", "f16", SchedulerMode.Device),
        thorough("gated", "f16", SchedulerMode.Device),
        ("gated", "f32", SchedulerMode.Host),
        ("gated_several", "f16", SchedulerMode.Device),
        thorough("gated_reduced", "f16", SchedulerMode.Host),
    ],
)
def test_groups(name: str, kind: str, mode: SchedulerMode, emulator: Emulator) -> None:
    by_columns = mode is SchedulerMode.Device and not name.startswith("gated")  # whose pairs lie side by side
    layouts = (ROW, COLUMN, COLUMN if by_columns else ROW)
    described = parts(kind, layouts, tile=(64, 64, 32 if kind == "f16" else 16))
    functor = EVERY[name](described["C"].element, described["C"].alignment, cutlass.float32)
    operation = GemmOperationGrouped(**described | {"epilogue_functor": functor}, precompute_mode=mode)
    right, said = emulator.run_group(operation)
    assert right, said


@pytest.mark.parametrize(
    ("kind", "tile", "warps"),
    [
        ("f16", (64, 128, 32), (2, 2, 1)),
        ("f32", (128, 64, 16), (2, 2, 1)),
        # What plans have for results of tiles of other extents:
        ("f16", (16, 64, 32), (1, 2, 1)),
        thorough("f16", (112, 64, 32), (1, 2, 1)),
        ("f16", (192, 64, 32), (4, 2, 1)),
        thorough("f16", (64, 256, 32), (1, 4, 1)),
        thorough("f16", (256, 64, 32), (4, 1, 1)),
    ],
)
def test_results_of_tiles(
    kind: str, tile: tuple[int, int, int], warps: tuple[int, int, int], emulator: Emulator
) -> None:
    described = parts(kind, tile=tile, warps=warps)
    C = described["C"]
    types = {"row_sums": cutlass.float16} if kind == "f16" else {}
    functor = tile_sums(*tile[:2])(C.element, C.alignment, cutlass.float32, **types)
    right, said = emulator.run_function(GemmOperationUniversal(**described | {"epilogue_functor": functor}))
    assert right, said


@pytest.mark.parametrize(
    ("name", "kind", "alignment", "tile", "kernel"),
    [
        thorough("routed", "f16", None, (64, 64, 32), "gemm"),
        thorough("routed", "f32", None, (128, 64, 16), "gemm"),
        ("routed", "f16", 1, (64, 128, 32), "gemm"),
        thorough("routed", "f64", None, (64, 64, 16), "gemm"),
        ("routed", "f16", None, (64, 64, 32), "stream-K"),
        thorough("routed", "f16", None, (64, 64, 32), "group"),
        ("routed", "f16", None, (64, 64, 32), "convolution"),
        ("gated_routed", "f16", None, (64, 128, 32), "gemm"),
        *(thorough(k, "f16", None, (64, 64, 32), "gemm") for k in range(1, 9)),
    ],
)
def test_top_k(
    name: str | int, kind: str, alignment: int | None, tile: tuple[int, int, int], kernel: str, emulator: Emulator
) -> None:
    """Of many equal values, NaN and infinities, in rows of a whole tile and of less."""
    function: Any = selecting(name) if isinstance(name, int) else EVERY[name]
    if kernel == "convolution":
        operation: Any = conv(fprop, "optimized", shape=tile, functor=lambda *types: function(*types))
        right, said = emulator.run_convolution(operation)
        assert right, said
        return
    described = parts(kind, tile=tile, alignment=alignment, stages=2 if alignment == 1 else 3)
    if kernel == "stream-K":
        described["swizzling_functor"] = cutlass.ThreadblockSwizzleStreamK
    accumulator = described["tile_description"].math_instruction.accumulator.tag
    functor = function(described["C"].element, described["C"].alignment, accumulator)
    operation = (GemmOperationGrouped if kernel == "group" else GemmOperationUniversal)(
        **described | {"epilogue_functor": functor}
    )
    right, said = (emulator.run_group if kernel == "group" else emulator.run_function)(operation)
    assert right, said


@pytest.mark.parametrize(
    ("name", "schedule", "tile", "is_group"),
    [
        thorough("routed", "Cooperative", (256, 64, 64), False),
        thorough("routed", "Pingpong", (64, 128, 64), False),
        ("routed", "Pingpong", (128, 48, 64), True),
        thorough("gated_routed", "Cooperative", (128, 64, 64), False),
        thorough(8, "Pingpong", (64, 96, 64), False),
        *(thorough(k, "Pingpong", (64, 64, 64), False) for k in range(1, 8)),
    ],
)
def test_top_k_in_hopper_native_kernels(
    name: str | int, schedule: str, tile: tuple[int, int, int], is_group: bool, emulator: Emulator
) -> None:
    described = native_parts(tile=tile, cluster=(1, 1), schedule=KernelSchedule[schedule])
    function: Any = selecting(name) if isinstance(name, int) else EVERY[name]
    functor = function(described["C"].element, described["C"].alignment, cutlass.float32)
    kind: Any = GemmOperationGrouped if is_group else GemmOperationUniversal
    right, said = emulator.run_hopper(kind(**described | {"epilogue_functor": functor}))
    assert right, said


@pytest.mark.parametrize(
    ("name", "schedule", "tile", "is_group"),
    [
        thorough("several", "Pingpong", (64, 128, 64), False),
        thorough("reduced", "Cooperative", (128, 64, 64), False),
        ("in_other_layouts", "Cooperative", (128, 96, 64), False),
        ("several", "Cooperative", (192, 96, 64), False),
        thorough("several", "Cooperative", (128, 96, 64), True),
        ("reduced", "Cooperative", (128, 64, 64), True),
        thorough("of_batch", "Cooperative", (128, 64, 64), False),
        thorough("of_batch", "Pingpong", (64, 64, 64), True),
        thorough("reduced", "Pingpong", (128, 64, 64), False),
        thorough("residual", "Pingpong", (64, 48, 64), True),
    ],
)
def test_what_hopper_native_kernels_call(
    name: str, schedule: str, tile: tuple[int, int, int], is_group: bool, emulator: Emulator
) -> None:
    described = native_parts(tile=tile, cluster=(1, 1), schedule=KernelSchedule[schedule])
    if name == "in_other_layouts":
        described |= {"C": TensorDescription(cutlass.float16, COLUMN, 8)}
        functor = in_other_layouts(cutlass.float16, 8, cutlass.float32, ROW)
    else:
        types = {port: cutlass.float32 for port in ("T", "second") if port in dict(EVERY[name].graph.outputs)}
        functor = EVERY[name](described["C"].element, described["C"].alignment, cutlass.float32, **types)
    kind: Any = GemmOperationGrouped if is_group else GemmOperationUniversal
    right, said = emulator.run_hopper(kind(**described | {"epilogue_functor": functor}))
    assert right, said


@pytest.mark.parametrize(("schedule", "tile"), [("Pingpong", (64, 32, 64)), thorough("Cooperative", (128, 32, 64))])
def test_rows_whose_tiles_have_no_barrier_but_the_last(
    schedule: str, tile: tuple[int, int, int], emulator: Emulator
) -> None:
    """Warps that are late read what they should of a tile, though others are in the next one inside of D by then."""

    @epilogue_function
    def rows(accum: Any) -> Any:
        return {"D": accum, "sums": epilogue.sum(accum, axis=1)}

    described = native_parts(tile=tile, cluster=(1, 1), schedule=KernelSchedule[schedule])
    operation = GemmOperationUniversal(**described | {"epilogue_functor": rows(cutlass.float16, 8, cutlass.float32)})
    for seed in range(4):
        right, said = emulator.run_hopper(operation, seed)
        assert right, (seed, said)


@pytest.mark.parametrize(
    ("name", "output", "schedule", "tile", "is_group"),
    [
        thorough("gated", "f16", "Pingpong", (64, 128, 64), False),
        thorough("gated", "f32", "Pingpong", (128, 64, 64), False),
        thorough("gated", "bf16", "Cooperative", (256, 96, 64), False),
        thorough("gated", "f16", "Cooperative", (128, 48, 64), False),
        thorough("gated", "f16", "Cooperative", (128, 128, 64), True),
        thorough("gated", "f32", "Pingpong", (64, 48, 64), True),
        thorough("gated_several", "f16", "Cooperative", (256, 64, 64), False),
        ("gated_several", "f32", "Pingpong", (64, 48, 64), False),
        thorough("gated_several", "f16", "Pingpong", (64, 64, 64), True),
        thorough("gated_reduced", "f16", "Cooperative", (256, 64, 64), False),
        thorough("gated_reduced", "bf16", "Pingpong", (64, 96, 64), False),
        ("gated_reduced", "f16", "Cooperative", (128, 64, 64), True),
    ],
)
def test_pairs_of_columns_in_hopper_native_kernels(
    name: str, output: str, schedule: str, tile: tuple[int, int, int], is_group: bool, emulator: Emulator
) -> None:
    """Subtiles of 32 columns, of which four threads exchange a row, and others."""
    described = native_parts(tile=tile, cluster=(1, 1), schedule=KernelSchedule[schedule], output=output)
    functor = EVERY[name](described["C"].element, described["C"].alignment, cutlass.float32)
    kind: Any = GemmOperationGrouped if is_group else GemmOperationUniversal
    right, said = emulator.run_hopper(kind(**described | {"epilogue_functor": functor}))
    assert right, said


@pytest.mark.parametrize("kernel", ["ampere", *map(thorough, ("ampere group", "hopper", "hopper group"))])
def test_results_of_tiles_of_pairs(kernel: str, emulator: Emulator) -> None:
    tile = (64, 128, 32) if kernel.startswith("ampere") else (64, 64, 64)
    described = parts("f16", tile=tile)
    if not kernel.startswith("ampere"):
        described = native_parts(tile=tile, cluster=(1, 1), schedule=KernelSchedule.Pingpong)
    functor = gated_tiles(*tile[:2])(cutlass.float16, 8, cutlass.float32, scales=cutlass.float16)
    kind: Any = GemmOperationGrouped if kernel.endswith("group") else GemmOperationUniversal
    operation = kind(**described | {"epilogue_functor": functor})
    run = {"ampere": emulator.run_function, "ampere group": emulator.run_group}.get(kernel, emulator.run_hopper)
    right, said = run(operation)
    assert right, said


E4M3, E5M2 = cutlass.float_e4m3, cutlass.float_e5m2


BY_COLUMNS = {
    "T": TensorDescription(cutlass.float16, COLUMN, 1),
    "second": TensorDescription(cutlass.float32, COLUMN, 1),
    "pre": TensorDescription(cutlass.float16, COLUMN, 1),
    "other": TensorDescription(cutlass.float16, ROW, 2),
    "x": TensorDescription(cutlass.float16, ROW, 1),
}
OF_BYTES = {"T": cutlass.int8, "pre": E5M2, "shift": cutlass.float32, "other": cutlass.float64}
OF_WORDS = {"T": cutlass.float32, "pre": cutlass.int8, "residual": cutlass.float32, "other": E4M3}


@pytest.mark.parametrize(
    ("kernel", "types"),
    [
        ("ampere", BY_COLUMNS),
        ("hopper", OF_BYTES),
        thorough("ampere", OF_BYTES),
        thorough("ampere", OF_WORDS),
        thorough("hopper", BY_COLUMNS),
        thorough("hopper", OF_WORDS),
    ],
)
def test_tensors_beside_pairs_of_other_types_and_layouts(
    kernel: str, types: dict[str, Any], emulator: Emulator
) -> None:
    functor = EVERY["gated_several"](cutlass.float16, 8, cutlass.float32, **types)
    if kernel == "ampere":
        operation = GemmOperationUniversal(**parts("f16", tile=(64, 64, 32)) | {"epilogue_functor": functor})
        right, said = emulator.run_function(operation)
    else:
        described = native_parts(tile=(64, 64, 64), cluster=(1, 1), schedule=KernelSchedule.Pingpong)
        right, said = emulator.run_hopper(GemmOperationUniversal(**described | {"epilogue_functor": functor}))
    assert right, said


ROWS, COLUMNS = (TensorDescription(cutlass.float16, layout, 1) for layout in (cutlass.RowMajor, cutlass.ColumnMajor))


@pytest.mark.parametrize(
    ("kernel", "types"),
    [
        thorough("gemm", {"x": COLUMNS, "y": ROWS, "first": COLUMNS, "second": ROWS}),
        ("stream-K", {"y": COLUMNS, "second": TensorDescription(cutlass.float32, cutlass.ColumnMajor)}),
        thorough("reduction", {"x": COLUMNS, "second": COLUMNS}),
        ("group", {"x": COLUMNS, "y": ROWS, "first": COLUMNS}),
        thorough("hopper", {"x": COLUMNS, "y": ROWS, "first": COLUMNS, "second": ROWS}),
        thorough("hopper group", {"x": COLUMNS, "second": COLUMNS}),
    ],
)
def test_matrices_by_columns_and_of_less_alignment(kernel: str, types: dict[str, Any], emulator: Emulator) -> None:
    small = parts("f16", tile=(64, 64, 32))
    native = native_parts(tile=(64, 64, 64), cluster=(1, 1), schedule=KernelSchedule.Pingpong)
    given = {"epilogue_functor": EVERY["several"](cutlass.float16, 8, cutlass.float32, **types)}
    if kernel == "gemm":
        right, said = emulator.run_function(GemmOperationUniversal(**small | given))
    elif kernel == "stream-K":
        swizzle = {"swizzling_functor": cutlass.ThreadblockSwizzleStreamK}
        right, said = emulator.run_function(GemmOperationUniversal(**small | given | swizzle))
    elif kernel == "reduction":
        right, said = emulator.run_reduction(
            ReductionOperation((4, 256), small["C"], cutlass.float32, **given, count=8, partitions_per_stage=2)
        )
    elif kernel == "group":
        right, said = emulator.run_group(GemmOperationGrouped(**small | given))
    else:
        kind: Any = GemmOperationUniversal if kernel == "hopper" else GemmOperationGrouped
        right, said = emulator.run_hopper(kind(**native | given))
    assert right, said


CONVOLUTIONS = {
    "fprop": {"kind": fprop, "algorithm": "optimized"},
    "fprop, analytic": {"kind": fprop, "algorithm": "analytic", "alignments": (8, 4, 2)},
    "dgrad": {"kind": dgrad, "algorithm": "optimized", "stride": UNITY},
    "wgrad": {"kind": wgrad, "algorithm": "optimized"},
}


@pytest.mark.parametrize(
    ("kernel", "name"),
    [
        *((kernel, "several") for kernel in CONVOLUTIONS),
        ("fprop", "reduced"),
        ("fprop", "of_batch"),
        *(thorough(kernel, "reduced") for kernel in CONVOLUTIONS if kernel != "fprop"),
    ],
)
def test_convolutions_as_well(kernel: str, name: str, emulator: Emulator) -> None:
    def functor(output: Any, alignment: int, accumulator: Any, compute: Any) -> Any:
        return EVERY[name](output, alignment, accumulator, compute)

    operation = conv(**CONVOLUTIONS[kernel], shape=(64, 64, 32), functor=functor)
    right, said = emulator.run_convolution(operation)
    assert right, said
