"""What was measured of GEMMs on an H200, read from docs/gpu-results, in the words of candidates."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pycutlass
from pycutlass import KernelSchedule, MathOperation, cutlass
from pycutlass.plan import Candidate, GemmKind
from pycutlass.types import element

__all__ = ["Recorded", "recorded_ways", "recorded_winners", "tnt", "way_of"]

RESULTS = Path(__file__).resolve().parents[2] / "docs" / "gpu-results"
Size = tuple[int, int, int]


@dataclass(frozen=True)
class Recorded:
    """A kernel that was the fastest of all, or of one way to divide the work, with its microseconds."""

    words: str
    size: Size
    way: str
    tile: Size
    microseconds: float
    cluster: tuple[int, int] | None = None


def described(operand: Any, output: Any, letters: str = "tnt", math: MathOperation | None = None) -> GemmKind:
    """Return the kind that the benchmarks measure: the widest accesses, sums of f32 or s32, a linear combination."""
    layouts = [cutlass.RowMajor if letter == "t" else cutlass.ColumnMajor for letter in letters]
    sums = cutlass.int32 if operand is cutlass.int8 else cutlass.float32
    wide, stored = 128 // element(operand).bits, 128 // element(output).bits
    A, B = (pycutlass.TensorDescription(operand, layout, wide) for layout in layouts[:2])
    D = pycutlass.TensorDescription(output, layouts[2], stored)
    computed = sums if output is cutlass.int32 else cutlass.float32
    functor = pycutlass.LinearCombination(output, stored, sums, computed)
    return GemmKind(A, B, D, D, operand, operand, sums, math or MathOperation.multiply_add, functor)


def tnt() -> GemmKind:
    """Return the kind of the benchmark of throughput: f16, A row-major, B column-major."""
    return described(cutlass.float16, cutlass.float16)


def kind_of(words: str) -> GemmKind | None:
    """Return the kind that a line of the table of all types and layouts is about; None for scales of rows."""
    if "scale per row" in words:
        return None
    math = MathOperation.multiply_add_fast_accum if "fast" in words or "few rows" in words else None
    letters = words.split()[-1] if re.fullmatch(r"[tn]{3}", words.split()[-1]) else "tnt"
    types = {
        "f16": (cutlass.float16, cutlass.float16),
        "bf16": (cutlass.bfloat16, cutlass.bfloat16),
        "tf32": (cutlass.tfloat32, cutlass.float32),
        "int8": (cutlass.int8, cutlass.int32),
        "e4m3": (cutlass.float_e4m3, cutlass.bfloat16),
    }
    return described(*types[re.split(r"[ ,]", words)[0]], letters, math)


def way_of(candidate: Candidate) -> str:
    """Return how a candidate divides the work, as benchmarks/gemm_choices.py calls it."""
    operation, tile = candidate.operation, candidate.operation.tile_description
    if tile.is_gemv:
        return "GEMV"
    swapped = ", swapped" if operation.swap_ab else ""
    if candidate.is_parallel:
        return f"parallel split-K{swapped}"
    if operation.is_stream_k:
        return f"{'stream-K' if candidate.split_k_slices == 1 else 'split-K'}{swapped}"
    schedule = KernelSchedule.Cooperative if tile.kernel_schedule is None else tile.kernel_schedule
    return f"{schedule.name}{swapped}"


def recorded_winners() -> Iterator[tuple[GemmKind, Recorded]]:
    """Yield the fastest kernel of each problem, of calls that are alone, or of launches back to back.

    Kinds are predicted as one or the other: tf32 and fast accumulation as launches back to back.
    """
    for row in _rows("gemm", "Hopper kernels against cuBLAS"):
        yield tnt(), Recorded("f16 tnt", _size(row[0]), *_named(row[12]), _number(row[9]), _cluster(row[12]))
    for row in _rows("gemm_classes", "Against cuBLAS"):
        kind = kind_of(row[0])
        if kind is not None:
            is_fast = kind.math_operation is MathOperation.multiply_add_fast_accum
            is_alone = kind.A.type.short != "tf32" and not is_fast
            ours, named = (8, 11) if is_alone else (3, 6)
            way, (rows, columns, depth) = _named(row[named])
            tile = rows, columns, depth * 16 // kind.A.type.bits  # the table has the K of operands of 16 bits
            yield kind, Recorded(row[0], _size(row[1]), way, tile, _number(row[ours]), _cluster(row[named]))


def recorded_ways() -> Iterator[Recorded]:
    """Yield the fastest kernel of each way to divide the work, of launches back to back."""
    best = {_size(row[0]): _number(row[3]) for row in _rows("gemm", "Hopper kernels against cuBLAS")}
    columns = _table("gemm", "Ways to divide the work")["columns"][1:]
    for row in _rows("gemm", "Ways to divide the work"):
        size = _size(row[0])
        for way, cell in zip(columns, row[1:], strict=True):
            if cell:
                ratio, tile = re.fullmatch(r"([\d.]+) \(([\dx]+)\)", cell).groups()  # type: ignore[union-attr]
                yield Recorded("f16 tnt", size, way, _size(tile), float(ratio) * best[size])


def _table(file: str, title: str) -> dict[str, Any]:
    tables = json.loads((RESULTS / f"{file}.json").read_text())["tables"]
    (found,) = (table for table in tables if table["title"] == title)
    return dict(found)


def _rows(file: str, title: str) -> list[list[str]]:
    return list(_table(file, title)["rows"])


def _size(text: str) -> Size:
    m, n, k = map(int, text.split("x"))
    return m, n, k


def _number(text: str) -> float:
    return float(text.replace(",", ""))


def _named(name: str) -> tuple[str, Size]:
    """Return the way and the tile of a name in the tables."""
    swapped = ", swapped" if name.startswith("swapped ") else ""
    schedule, tile = name.removeprefix("swapped ").split(",")[0].split()
    split = re.search(r"(parallel )?(split-K \d+|stream-K)", name)
    schedule = "GEMV" if schedule == "Gemv" else schedule
    way = schedule if split is None else f"{split[1] or ''}{split[2].split()[0]}"
    return f"{way}{swapped}", _size(tile)


def _cluster(name: str) -> tuple[int, int] | None:
    found = re.search(r", (\d+)x(\d+)(,|$)", name)
    return (int(found[1]), int(found[2])) if found else None
