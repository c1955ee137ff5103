"""Tiles of Hopper-native kernels with epilogue functions, stored by the kernel's own C++ on the host.

What brings C and what stores D runs as a kernel has it, with its pipelines, barriers and tensor maps (sm90_store.h).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from descriptions import COLUMN, ROW, native_parts
from emulator import Emulator
from epilogue_functions import EVERY
from hopper import replaced
from marks import thorough

import pycutlass
from pycutlass import (
    GemmOperationUniversal,
    KernelSchedule,
    TensorDescription,
    cutlass,
    epilogue,
    epilogue_function,
)
from pycutlass.epilogue import Row, Source

pytestmark = pytest.mark.compile


@epilogue_function
def reduced_with_source(accum: Any, c: Source, bias: Row) -> Any:
    t = accum + c
    return {
        "D": t + bias,
        "row_sum": epilogue.sum(t, axis=1),
        "column_most": epilogue.max(t, axis=0),
        "column_sum": epilogue.sum(t * 0.5, axis=0),
        "total": epilogue.sum(t),
        "least": epilogue.min(accum),
    }


FUNCTIONS = EVERY | {"reduced_with_source": reduced_with_source}
#: C and D as a kernel sees them, which may compute the transposed problem.
ROWS, COLUMNS = {"layout": ROW}, {"layout": ROW, "swap_ab": True}
TRANSPOSED = {"layout": COLUMN}


def make(
    name: str, output: str, schedule: str, tile: tuple[int, int], layout: Any, **options: Any
) -> GemmOperationUniversal:
    described = native_parts(tile=(*tile, 64), cluster=(1, 1), schedule=KernelSchedule[schedule], output=output)
    C = TensorDescription(described["C"].element, layout, described["C"].alignment)
    functor = FUNCTIONS[name](C.element, C.alignment, cutlass.float32)
    return GemmOperationUniversal(**described | {"C": C, "epilogue_functor": functor} | options)


@pytest.mark.parametrize(
    ("name", "output", "schedule", "tile", "how"),
    [
        ("biased", "bf16", "Pingpong", (64, 256), ROWS),  # whose warp groups have half of the buffers each
        thorough("reduced", "bf16", "Pingpong", (128, 128), ROWS),
        thorough("reduced", "f32", "Cooperative", (128, 256), ROWS),
        thorough("reduced", "f16", "Cooperative", (128, 128), COLUMNS),
        ("reduced", "bf16", "Cooperative", (192, 64), ROWS),  # which is computed before it is stored
        thorough("reduced_with_source", "f16", "Cooperative", (192, 96), COLUMNS),
        thorough("reduced_with_source", "bf16", "Pingpong", (128, 128), ROWS),
        thorough("reduced_with_source", "f16", "Pingpong", (128, 128), COLUMNS),
        ("reduced_with_source", "e4m3", "Cooperative", (128, 128), ROWS),  # C and D have buffers of their own
        thorough("gated_reduced", "bf16", "Pingpong", (128, 128), ROWS),  # whose threads write D
        thorough("reduced", "e4m3", "Pingpong", (64, 256), ROWS),
        thorough("reduced", "bf16", "Cooperative", (128, 256), TRANSPOSED),
        thorough("reduced_with_source", "f16", "Cooperative", (128, 256), ROWS),
        thorough("reduced_with_source", "f32", "Cooperative", (128, 128), COLUMNS),
        thorough("reduced_with_source", "e4m3", "Pingpong", (64, 96), COLUMNS),
        thorough("reduced_with_source", "f16", "Pingpong", (64, 256), TRANSPOSED),
        thorough("several", "bf16", "Pingpong", (64, 256), COLUMNS),
        thorough("gated_reduced", "f16", "Cooperative", (128, 256), ROWS),
    ],
)
def test_tiles_are_stored(
    name: str, output: str, schedule: str, tile: tuple[int, int], how: dict[str, Any], emulator: Emulator
) -> None:
    right, said = emulator.run_hopper(make(name, output, schedule, tile, **how))
    assert right, said


SOURCE = ("reduced_with_source", "bf16", "Pingpong", (128, 64))
ALONE = ("reduced", "bf16", "Pingpong", (128, 64))


@pytest.mark.parametrize(
    ("case", "pattern", "by", "said"),
    [
        # Asked of the callbacks of a tile and not of the fusion, no kernel shared columns: threads waited forever.
        thorough(ALONE, r"shares_columns<Fusion>\(\)", "shares_columns<Callbacks>()", "a partial result is missing"),
        thorough(SOURCE, r"(shares_columns<FusionCallbacks>\(\) &&)", r"false && \1", "a partial result is missing"),
        # A buffer is written before TMA has read it.
        (
            ("biased", "bf16", "Pingpong", (64, 128)),
            r"tma_store_wait<kBuffers - 1>",
            "tma_store_wait<kBuffers>",
            "wrong",
        ),
        thorough(SOURCE, r"waited\.phase_ \^= 1;", "", "threads wait for what never comes"),
        thorough(SOURCE, r"row \+ first_row, column, batch", "row, column, batch", "wrong"),
        # Columns of a subtile are written where a warp still reads those of the one before.
        thorough((*SOURCE[:3], (64, 128)), r"(between\(\);\s*)synchronize\(mma\);", r"\1", "wrong"),
    ],
)
def test_what_is_wrong_is_seen(
    case: tuple[Any, ...], pattern: str, by: str, said: str, emulator: Emulator, tmp_path: Path
) -> None:
    header = Path(pycutlass.__file__).parent / "include" / "pycutlass" / "epilogue_sm90.h"
    changed = tmp_path / "pycutlass" / header.name
    changed.parent.mkdir()
    changed.write_text(replaced(header.read_text(), pattern, by))
    right, found = emulator.run_hopper(make(*case, **ROWS), headers=tmp_path)
    assert not right and said in found, found
