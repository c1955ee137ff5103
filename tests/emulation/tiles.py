"""Kernels with tiles that somebody might describe. Run as a program, it emulates them until time is up."""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "unit"))  # for descriptions.py
from descriptions import COLUMN, KINDS, LAYOUTS, ROW, TAG, mixed_parts, parts
from emulator import Emulator

from pycutlass import (
    GemmOperationUniversal,
    LinearCombination,
    LinearCombinationClamp,
    LinearCombinationGeneric,
    MathOperation,
    TensorDescription,
    relu,
)
from pycutlass.errors import DescriptionError

EXTENTS = (16, 32, 48, 64, 64, 96, 128, 128, 160, 192, 256)
WARPS = (1, 1, 2, 2, 3, 4)
#: Extents along K, and alignments, by the kind of kernel.
DEPTHS = {"f16": (16, 32, 64), "tf32": (16, 32), "f32": (16, 32), "f64": (8, 16, 32), "simt": (8, 16, 32)}
INT8, DP4A, MIXED, TURING = "int8", "int8_simt", "mixed", {"capability": 75, "stages": 2}
#: Types of A and B of which one is converted to the other.
PAIRS = [pair for wide in ("f16", "bf16") for narrow in ("s8", "u8") for pair in ((wide, narrow), (narrow, wide))]
#: What an epilogue may write, by the type of the accumulator.
WRITTEN = {
    "f64": ("f64",),
    "f32": ("f32", "f16", "bf16", "s8"),
    "f16": ("f16", "f32", "bf16"),
    "s32": ("s32", "s8", "f32", "f16", "bf16"),
}

Layouts = tuple[Any, Any, Any]


def draw(random: random.Random) -> GemmOperationUniversal:
    """Return a kernel that is accepted."""
    while True:
        try:
            return _drawn(random)
        except DescriptionError:
            continue


def _drawn(random: random.Random) -> GemmOperationUniversal:
    kind, layouts = random.choice([*KINDS, INT8, DP4A, MIXED]), random.choice(LAYOUTS)
    options: dict[str, Any] = {
        "warps": (random.choice(WARPS), random.choice(WARPS), random.choice((1, 1, 1, 2))),
        "stages": random.choice((2, 3, 4)),
    }
    rows, columns = random.choice(EXTENTS), random.choice(EXTENTS)
    if kind in (INT8, DP4A):
        options["tile"] = (rows, columns, random.choice((32, 64, 128)))
        made = _drawn_int8(random, kind, layouts, options)
    elif kind == MIXED:
        options |= {"tile": (rows, columns, random.choice((32, 64))), "stages": random.choice((3, 4))}
        a, b = random.choice(PAIRS)
        along_k = (ROW, *layouts[1:]) if a in ("s8", "u8") else (layouts[0], COLUMN, layouts[2])
        made = mixed_parts(a, b, along_k, **options, alignment=random.choice((4, 8, None)))
    else:
        family = "simt" if kind.endswith("simt") else "f16" if "f16" in kind else kind
        options["tile"] = (rows, columns, random.choice(DEPTHS[family]))
        if family in ("f16", "tf32", "f32"):
            options["alignment"] = random.choice((1, 2, 4, None))
        if family == "f16":
            options |= random.choice(({}, {}, {"instruction": (16, 8, 8)}))
        if family == "f16" and kind != "bf16" and "instruction" in options:
            options |= random.choice(({}, TURING))
        if kind == "f32":
            options["math"] = random.choice(list(MathOperation))
        made = parts(kind, layouts, **options)
    return GemmOperationUniversal(**made | _writing(random, made))


def _drawn_int8(random: random.Random, kind: str, layouts: Layouts, options: dict[str, Any]) -> dict[str, Any]:
    if kind == DP4A:
        return int8_parts(4, layouts, "f32_simt", **options | {"instruction": (1, 1, 4), "stages": 2})
    options |= random.choice(({"instruction": (16, 8, 32)}, {"instruction": (8, 8, 16), **TURING}))
    saturating = {"math": MathOperation.multiply_add_saturate}
    return int8_parts(random.choice((1, 2, 4, 16)), (ROW, COLUMN, layouts[2]), **options | saturating)


def _writing(random: random.Random, made: dict[str, Any]) -> dict[str, Any]:
    """Return another C, of any type and alignment, and a functor that writes it."""
    math = made["tile_description"].math_instruction
    accumulator = math.accumulator.short
    output = random.choice(WRITTEN[accumulator])
    C = TensorDescription(TAG[output], made["C"].layout, random.choice((1, 2, 4, 8, 16)) if math.is_tensor_op else 1)
    types = C.element, C.alignment, TAG[accumulator], TAG[accumulator if accumulator in ("f16", "f64") else "f32"]
    plain = (LinearCombination, lambda *types: LinearCombinationGeneric(relu, *types))
    functor = LinearCombinationClamp if output == "s8" else random.choice(plain)
    return {"C": C, "epilogue_functor": functor(*types)}


def int8(
    alignment: int, layouts: Layouts = (ROW, COLUMN, ROW), like: str = "f16", **options: Any
) -> GemmOperationUniversal:
    """Return an int8 kernel; `alignment` is that of A and B."""
    return GemmOperationUniversal(**int8_parts(alignment, layouts, like, **options))


def int8_parts(
    alignment: int, layouts: Layouts = (ROW, COLUMN, ROW), like: str = "f16", **options: Any
) -> dict[str, Any]:
    """Return the parts of an int8 kernel."""
    made = parts(like, layouts, types=("s8", "s32", "s32"), **options)
    return made | {name: TensorDescription(TAG["s8"], made[name].layout, alignment) for name in "AB"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--seed", type=int, default=None)
    given = parser.parse_args()
    drawn, until, wrong, count = random.Random(given.seed), time.monotonic() + 60 * given.minutes, 0, 0
    with tempfile.TemporaryDirectory() as directory:
        emulator = Emulator(Path(directory))
        while time.monotonic() < until:
            operation = draw(drawn)
            right, said = emulator.run(operation, drawn.randrange(2**30))
            count, wrong = count + 1, wrong + (not right)
            print("right" if right else "WRONG", operation.procedural_name(), flush=True)
            if not right:
                print(operation, said, sep="\n", flush=True)
    print(f"{count} kernels, {wrong} wrong")
    sys.exit(wrong != 0)


if __name__ == "__main__":
    main()
