"""Descriptions drawn at random: what the message about a refused one tells to change is changed, and is accepted."""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import fields, replace
from typing import Any

import pytest
from convolutions import conv, dgrad, fprop, wgrad
from descriptions import LAYOUTS, native_parts, parts
from rule_baselines import BASELINES, functor

import pycutlass
from pycutlass import (
    Conv2dOperation,
    GemmOperationGrouped,
    GemmOperationUniversal,
    KernelSchedule,
    SchedulerMode,
    TensorDescription,
    TileDescription,
)
from pycutlass.errors import DescriptionError

Parts = dict[str, Any]

#: What a change is called in a message, and what it does to the parts of a description.
SPELLED = {
    "threadblock_shape": re.compile(r"threadblock_shape \[(\d+), (\d+), (\d+)\]"),
    "warp_count": re.compile(r"warp_count \[(\d+), (\d+), (\d+)\]"),
    "stages": re.compile(r"(?:at most )?(\d+) stages"),
    "alignment": re.compile(
        r"describe C with alignment (\d+) and give the epilogue functor epilogue_vector_length=\1$"
    ),
}
#: Advice that names no number: there is nothing near that works.
VAGUE = ("a smaller threadblock_shape", "another threadblock_shape")


def changed(made: Parts, change: str) -> Parts:
    """Return the parts with a change of a message, such as ``use warp_count [2, 2, 1]``."""
    found = 0
    for name, pattern in SPELLED.items():
        if (match := pattern.search(change)) is None:
            continue
        found += 1
        numbers = [int(number) for number in match.groups()]
        if name == "alignment":
            C = made["C"]
            again = type(made["epilogue_functor"])(C.element, numbers[0], *_computed(made))
            made = made | {"C": replace(C, alignment=numbers[0]), "epilogue_functor": again}
        else:
            value = numbers if name != "stages" else numbers[0]
            made = made | {"tile": made["tile"] | {name: value}}
    assert found, f"nothing that a program could do: {change}"
    return made


def _computed(made: Parts) -> tuple[Any, Any]:
    return made["epilogue_functor"].element_accumulator, made["epilogue_functor"].element_epilogue


def advised(made: Parts, message: str) -> tuple[str, list[Parts]]:
    """Return the kind of advice in a message, and what it makes of a description; each is enough by itself."""
    if "; for example " in message:
        return "example", [changed(made, each) for each in message.rpartition("; for example ")[2].split(" or ")]
    if "bytes of shared memory" in message:
        offered = message.rpartition(": use ")[2].split(" or ")
        return "memory", [changed(made, each) for each in offered if each not in VAGUE]
    if match := re.search(r"threadblock_shape (\w)=\d+ .*the nearest is (\d+)$", message):
        shape = list(made["tile"]["threadblock_shape"])
        shape["MNK".index(match[1])] = int(match[2])
        return f"nearest {match[1]}", [_with_tile(made, threadblock_shape=shape)]
    if match := re.search(r"; (KernelSchedule\.\w+) takes \d+$", message):
        return "schedule", [_with_tile(made, kernel_schedule=eval(match[1], {"KernelSchedule": KernelSchedule}))]
    if match := re.search(r"use at most (\d+) columns$", message):
        m, _, k = made["tile"]["threadblock_shape"]
        return "columns", [_with_tile(made, threadblock_shape=[m, int(match[1]), k])]
    if match := re.search(r"use threadblock_shape K=(\d+)$", message):
        m, n, _ = made["tile"]["threadblock_shape"]
        return "depth", [_with_tile(made, threadblock_shape=[m, n, int(match[1])])]
    if (match := re.search(r"; use ((?:warp_count|threadblock_shape) \[[\d, ]+\])$", message)) and "times" in message:
        return "warps" if "warp_count [" in match[1] else "shape", [changed(made, match[1])]
    if match := re.search(r": use (threadblock_shape \[[\d, ]+\])$", message):
        return "shape", [changed(made, match[1])]
    if match := re.search(
        r"needs alignment .*; describe (?:(A)(?: and (B))?|(B)) with alignment (\d+), or use stages=2$", message
    ):
        described = {name: replace(made[name], alignment=int(match[4])) for name in match.groups()[:3] if name}
        return "loads", [made | described, _with_tile(made, stages=2)]
    if match := re.search(r"; ((?:use|describe C) .*(?:epilogue_vector_length=\d+|\]))$", message):
        return "output", [changed(made, each) for each in match[1].split(", or ")]
    return "none", []


def _with_tile(made: Parts, **changes: Any) -> Parts:
    return made | {"tile": made["tile"] | changes}


def construct(made: Parts) -> Any:
    described = {name: part for name, part in made.items() if name not in ("tile", "kind")}
    return made.get("kind", GemmOperationUniversal)(**described, tile_description=TileDescription(**made["tile"]))


def taken_apart(made: Parts) -> Parts:
    """Return parts with the fields of the tile in place of the tile, which may then be refused itself."""
    tile = made.pop("tile_description")
    return made | {"tile": {field.name: getattr(tile, field.name) for field in fields(tile) if field.init}}


#: Advice that mends one rule of several: the next message says what else there is.
STEPS = {"nearest M", "nearest N", "nearest K", "columns", "schedule", "depth", "warps", "shape", "loads"}


def follow(made: Parts, seen: Counter[str], steps: int = 5) -> None:
    """Do what messages say until the description is accepted, on every way that they offer."""
    try:
        assert construct(made).emit()
        return
    except DescriptionError as error:
        message = str(error)
    kind, offered = advised(made, message)
    seen[kind] += len(offered)
    for each in offered:
        if kind in STEPS or "kind" in made:  # what is said of one problem leaves no room for the schedule of a group
            assert steps, f"no end of advice: {message}"
            follow(each, seen, steps - 1)
        else:
            assert construct(each).emit(), message


def ampere_tiles(drawn: random.Random) -> Iterator[Parts]:
    kind = drawn.choice(["f16", "f16_acc16", "f16_out32", "bf16", "tf32", "f32", "f32_simt", "f64", "f64_simt"])
    made = taken_apart(parts(kind, drawn.choice(LAYOUTS)))
    extents = [16, 24, 32, 40, 48, 64, 80, 96, 100, 128, 160, 192, 224, 256]
    shape = [drawn.choice(extents), drawn.choice(extents), drawn.choice([8, 12, 16, 24, 32, 48, 64, 128])]
    warps = [drawn.choice([1, 2, 2, 3, 4, 8]), drawn.choice([1, 2, 2, 3, 4]), drawn.choice([1, 1, 1, 2, 4])]
    made = _with_tile(made, threadblock_shape=shape, warp_count=warps, stages=drawn.choice([2, 3, 3, 4, 6, 9]))
    if not kind.endswith("simt"):
        alignment = drawn.choice([1, 2, 4, 8])
        C = TensorDescription(made["C"].element, made["C"].layout, min(alignment, made["C"].alignment))
        again = pycutlass.LinearCombination(C.element, C.alignment, *_computed(made))
        made |= {"C": C, "epilogue_functor": again}
    yield made


def groups(drawn: random.Random) -> Iterator[Parts]:
    for made in ampere_tiles(drawn):
        made.pop("swizzling_functor")
        yield made | {"kind": GemmOperationGrouped, "precompute_mode": drawn.choice(list(SchedulerMode))}


def convolutions(drawn: random.Random) -> Iterator[Parts]:
    kind, algorithm = drawn.choice([fprop, dgrad, wgrad]), drawn.choice(["optimized", "analytic"])
    operation = conv(kind, algorithm, alignments=(8, 8, drawn.choice([1, 2, 4, 8])))
    names = ("conv_kind", "iterator_algorithm", "compute_capability", "tile_description", *"ABC")
    made = taken_apart({name: getattr(operation, name) for name in (*names, "stride_support", "epilogue_functor")})
    shape = [drawn.choice([16, 32, 48, 64, 96, 128, 256]) for _ in "MN"] + [drawn.choice([16, 32, 64, 128])]
    warps = [drawn.choice([1, 2, 3, 4]), drawn.choice([1, 2, 4]), drawn.choice([1, 1, 2])]
    made = _with_tile(made, threadblock_shape=shape, warp_count=warps, stages=drawn.choice([3, 3, 4, 8]))
    yield made | {"kind": Conv2dOperation}


def integer_tiles(drawn: random.Random) -> Iterator[Parts]:
    made = taken_apart(dict(BASELINES[drawn.choice(["int8", "int8 clamped", "int8 simt", "interleaved"])]))
    shape = [drawn.choice([16, 32, 48, 64, 96, 128, 256]) for _ in "MN"] + [drawn.choice([16, 32, 64, 128])]
    warps = [drawn.choice([1, 2, 3, 4]), drawn.choice([1, 2, 4]), drawn.choice([1, 1, 2])]
    yield _with_tile(made, threadblock_shape=shape, warp_count=warps, stages=drawn.choice([2, 2, 3, 6]))


def native_tiles(drawn: random.Random) -> Iterator[Parts]:
    made = taken_apart(native_parts(output=drawn.choice(["f16", "f32"])))
    if made["C"].type.short == "f32":
        made["epilogue_functor"] = functor("f32", made["C"].alignment)
    yield _with_tile(
        made,
        threadblock_shape=[
            drawn.choice([64, 96, 128, 192, 256]),
            drawn.choice([8, 16, 40, 64, 96, 128, 144, 192, 208, 224, 240, 256, 300]),
            drawn.choice([8, 16, 24, 40, 64, 96, 128, 256]),
        ],
        cluster_shape=[drawn.choice([1, 2]), drawn.choice([1, 2])],
        kernel_schedule=drawn.choice([None, KernelSchedule.Pingpong, KernelSchedule.Cooperative]),
        stages=drawn.choice([None, 2, 3, 4, 6, 10]),
    )


DRAWN: dict[str, tuple[Any, int, set[str]]] = {
    "Ampere-style": (
        ampere_tiles,
        500,
        {"example", "memory", "output", "nearest M", "nearest N", "depth", "warps", "shape"},
    ),
    "groups": (groups, 300, {"example", "memory", "output"}),
    "convolutions": (convolutions, 300, {"example", "memory", "output"}),
    "integers": (integer_tiles, 200, {"example", "output"}),
    "Hopper-native": (native_tiles, 500, {"memory", "nearest N", "nearest K", "schedule", "columns", "shape"}),
}


@pytest.mark.parametrize("name", DRAWN)
def test_what_is_said_of_a_description_is_done_and_accepted(name: str) -> None:
    draw, count, kinds = DRAWN[name]
    seen: Counter[str] = Counter()
    for seed in range(count):
        for made in draw(random.Random(seed)):
            follow(made, seen)
    assert all(seen[kind] > 4 for kind in kinds), seen
