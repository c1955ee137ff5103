"""Random epilogue functions in random kernels: what `tools.fuzz_functions` runs."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from typing import Any

from pycutlass import (
    GemmOperationGrouped,
    GemmOperationUniversal,
    ReductionOperation,
    SchedulerMode,
    TensorDescription,
    cutlass,
)
from pycutlass.errors import DescriptionError
from pycutlass.types import ELEMENTS
from tools.fuzz import gemm_kernels
from tools.fuzz.drawn_functions import Drawn, drawn_function

__all__ = ["COLUMN", "Kernel", "draw"]

KINDS = {"half": 8, "tf32": 3, "int8": 3, "f64": 2, "f32": 2, "hopper": 3}
COMPUTE = {"f32": 24, "f16": 11, "bf16": 8, "f64": 24}
COLUMN = cutlass.ColumnMajor
TAGS = {row.short: row.tag for row in ELEMENTS}


@dataclass
class Kernel:
    """A random function, a GEMM that has it, and what is launched: it, a group of such, or a reduction of its sums."""

    index: int
    kind: str
    drawn: Drawn
    alone: Any
    operation: Any


def described(chance: random.Random, alone: Any, fields: dict[str, Any]) -> Any:
    """Return the operation: a GEMM as it is, a group of such, or a reduction of its partial sums."""
    way, functor = chance.choices(["gemm", "group", "sums"], [6, 2, 1])[0], alone.epilogue_functor
    if way == "group":
        parts = {name: each for name, each in fields.items() if name not in ("D", "swap_ab")}
        schedule = SchedulerMode.Device if alone.is_sm90 else chance.choice([*SchedulerMode])
        return GemmOperationGrouped(**parts, epilogue_functor=functor, precompute_mode=schedule)
    if way == "sums" and alone.splits_in_parallel:
        count = functor.epilogue_vector_length
        shape, at_once = (chance.choice([1, 2, 4, 8]), 32 * count), chance.choice([1, 2, 4])
        return ReductionOperation(shape, alone.C, functor.accumulator.tag, None, None, functor, count, at_once)
    return alone


def draw(seed: int, index: int) -> Kernel:
    """Return kernel `index` of `seed`."""
    chance = random.Random(f"functions:{seed}:{index}")
    (kind,) = chance.choices([*KINDS], [*KINDS.values()])
    while True:
        try:
            plain = getattr(gemm_kernels, kind)(chance)
            accumulator = plain.accumulator_type()
            wide = "f64" if accumulator.short == "f64" else chance.choice(["f32", "f32", "f32", "f16", "bf16"])
            number = chance.randrange(10**9)
            drawn = drawn_function(number, COMPUTE[wide])
            graph = drawn.function.graph
            forms = {each.name: each.form for each in graph.of_form("matrix", "row", "column", "number")}
            names = [*forms]
            names += [name for name, _ in graph.outputs if name != "D"]
            reduced = dict(graph.reductions)
            kinds = ["f16", "bf16", "f32", "s8", "s32", "e4m3", "e5m2"]
            types = {name: TAGS[chance.choice(kinds)] for name in names}
            types |= dict.fromkeys(reduced, TAGS["f64" if wide == "f64" else "f32"])
            types |= {name: TAGS["s32"] for each in graph.selections for name in each.indices}
            matrices = [name for name in names if name not in graph.of_many and forms.get(name, "matrix") == "matrix"]
            types |= {name: other_layout(chance, types[name]) for name in matrices if chance.random() < 0.2}
            fields = {name: getattr(plain, name) for name in plain._FIELDS if name != "epilogue_functor"}
            written = plain.D
            if accumulator.short == "f32" and not plain.is_sm90 and chance.random() < 0.2:
                kind_of_D = TAGS[chance.choice(["e4m3", "e5m2"])]
                written = TensorDescription(kind_of_D, cutlass.RowMajor, 2 ** chance.randint(0, 4))
                fields |= {"C": written, "D": None}
            if chance.random() < 0.25:  # column-major
                turned = {name: replace(each, layout=COLUMN) for name in "CD" if (each := fields.get(name))}
                written, fields = turned.get("D") or turned["C"], fields | turned
            functor = drawn.function(written.element, written.alignment, accumulator.tag, TAGS[wide], **types)
            drawn = drawn_function(number, COMPUTE[wide], right_to=activations_right_to(functor))
            alone = GemmOperationUniversal(**fields, epilogue_functor=functor)
            return Kernel(index, kind, drawn, alone, described(chance, alone, fields))
        except DescriptionError:
            continue


def activations_right_to(functor: Any) -> float:
    """Return what activations are right to, of their results: less than they are computed in where all is narrow."""
    kinds = {functor.output.short, *(port.type.short for port in functor.outputs)}
    if functor.compute.short == "f64" or not kinds <= {"f16", "bf16", "e4m3", "e5m2"}:
        return 0.0
    return 6e-5 if "f16" in kinds else 2.0**-11


def other_layout(chance: random.Random, tag: Any) -> TensorDescription:
    """Return a matrix column by column, or one that is little aligned."""
    return TensorDescription(tag, chance.choice([cutlass.ColumnMajor, cutlass.RowMajor]), chance.choice([1, 2]))
