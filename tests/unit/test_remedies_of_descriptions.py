"""Descriptions that are refused: what the message tells to change is read from it, changed, and accepted at once."""

from __future__ import annotations

import re
from dataclasses import fields, replace
from typing import Any

import pytest
from descriptions import COLUMN, ROW, native_parts, parts
from rule_baselines import BASELINES

import pycutlass
from pycutlass import (
    GemmOperationGrouped,
    GemmOperationUniversal,
    LinearCombination,
    LinearCombinationClamp,
    LinearCombinationGeneric,
    MathInstruction,
    SchedulerMode,
    TensorDescription,
    TileDescription,
    cutlass,
    relu,
)
from pycutlass.errors import DescriptionError

Parts = dict[str, Any]

f16, bf16, f32, f64, s8, s32 = (
    getattr(cutlass, name) for name in ("float16", "bfloat16", "float32", "float64", "int8", "int32")
)
TENSOR_OP = cutlass.OpClass.TensorOp
NAMES = {"cutlass": cutlass, "TensorDescription": TensorDescription, "SchedulerMode": SchedulerMode, **vars(pycutlass)}
GIVEN = re.compile(
    r"\b(\w+)=(TensorDescription\(.*?\)|\[[\d, ]+\]|None|\d+|cutlass(?:\.\w+)+|(?:SchedulerMode|MathOperation)\.\w+)",
)
TILE = ("threadblock_shape", "stages", "warp_count", "cluster_shape", "kernel_schedule")


def fields_of(made: Parts) -> Parts:
    """Return the parts with the fields of tile and instruction, which may be refused themselves."""
    tile = made.pop("tile_description")
    made |= {name: getattr(tile, name) for name in TILE}
    math = {each.name: getattr(tile.math_instruction, each.name) for each in fields(MathInstruction) if each.init}
    return made | math


def construct(made: Parts) -> Any:
    given = dict(made)
    math = MathInstruction(*(given.pop(each.name) for each in fields(MathInstruction) if each.init))
    tile = TileDescription(**{name: given.pop(name) for name in TILE}, math_instruction=math)
    return given.pop("kind", GemmOperationUniversal)(**given, tile_description=tile)


def changed(made: Parts, remedy: str) -> Parts:
    """Return the parts with all changes that one alternative of a message names."""
    made, before = dict(made), dict(made)
    if match := re.search(r"leave out (cluster_shape|kernel_schedule)(?: and (\w+))?", remedy):
        made |= {name: None for name in match.groups() if name}
    for names, alignment in re.findall(r"\b([ABCD](?: and [ABCD])*) with alignment (\d+)", remedy):
        for name in names.split(" and "):
            made[name] = replace(made[name], alignment=int(alignment))
    for name, kind, alignment in re.findall(r"\b([ABCD]) with (cutlass\.\w+) and alignment (\d+)", remedy):
        made[name] = replace(made[name], element=eval(kind, NAMES), alignment=int(alignment))
    for name, layout in re.findall(r"\b([ABCD]) as (cutlass\.\w+)", remedy):
        made[name] = replace(made[name], layout=eval(layout, NAMES))
    if "describe C so and leave out D" in remedy:
        made["C"] = made.pop("D")
    given = {name: eval(text, NAMES) for name, text in GIVEN.findall(remedy)}
    of_functor = {name: value for name, value in given.items() if name.startswith(("element_", "epilogue_vector"))}
    if of_functor and "give the math instruction" not in remedy:
        made["epilogue_functor"] = replace(made["epilogue_functor"], **of_functor)
        given = {name: value for name, value in given.items() if name not in of_functor}
    made |= given
    for name, extents in re.findall(r"(threadblock_shape|warp_count) (\[[\d, ]+\])", remedy):
        made[name] = eval(extents)
    if match := re.search(r"use (LinearCombination\w*)(\(.*?\))?", remedy):
        functor = made["epilogue_functor"]
        kinds = functor.element_output, functor.epilogue_vector_length
        sums = functor.element_accumulator, functor.element_epilogue
        kind = getattr(pycutlass, match[1])
        activation = [relu()] if kind is LinearCombinationGeneric else []
        again = eval(match[0].removeprefix("use "), NAMES) if match[2] else kind(*activation, *kinds, *sums)
        made["epilogue_functor"] = again
    if match := re.search(r"\bOpClass\.\w+", remedy):
        made["opcode_class"] = eval("cutlass." + match[0], NAMES)
    assert made != before, f"nothing that a program could do: {remedy}"
    return made


def native(**changes: Any) -> Parts:
    return fields_of(native_parts()) | changes


def ampere(kind: str = "f16", **changes: Any) -> Parts:
    return fields_of(parts(kind)) | changes


def integers(baseline: str = "int8", **changes: Any) -> Parts:
    return fields_of(dict(BASELINES[baseline])) | changes


def operand(element: Any, layout: Any = ROW, alignment: int = 8) -> TensorDescription:
    return TensorDescription(element, layout, alignment)


def simt_of(made: Parts) -> Parts:
    return made | {name: replace(made[name], layout=COLUMN) for name in "AB"}


IR, IC = cutlass.RowMajorInterleaved32, cutlass.ColumnMajorInterleaved32
#: Parts, and how many ways out the message has.
REFUSED: dict[str, tuple[Parts, int]] = {
    # Types, functor and operands
    "A": (ampere(A=operand(bf16)), 1),
    "A and B": (ampere(A=operand(bf16), B=operand(bf16, COLUMN)), 2),
    "f32 among f16": (native(A=operand(f32, ROW, 4)), 1),
    "accumulator": (ampere(epilogue_functor=LinearCombination(f16, 8)), 1),
    "output": (ampere(epilogue_functor=LinearCombination(f32, 4, f32, f32)), 2),
    "length": (ampere(epilogue_functor=LinearCombination(f16, 4, f32, f32)), 1),
    "all of the functor": (ampere(epilogue_functor=LinearCombination(f32, 4, f16, f64)), 1),
    "f64 functor": (ampere(epilogue_functor=LinearCombination(f16, 8, f32, f64)), 1),
    "functor of integers": (integers(epilogue_functor=LinearCombination(f16, 8)), 1),
    "clamped f32": (
        ampere(C=operand(f32, ROW, 4), epilogue_functor=LinearCombinationClamp(f16, 8, f32, f32)),
        2,
    ),
    "native length": (native(C=operand(f16, ROW, 4)), 1),
    "native, A": (native(A=operand(f16, ROW, 4)), 2),
    "native, A and B": (native(A=operand(f16, ROW, 4), B=operand(f16, COLUMN, 1)), 2),
    "SIMT, C": (ampere("f32_simt", C=operand(f32, ROW, 4), epilogue_functor=LinearCombination(f32, 4)), 1),
    "SIMT, length": (ampere("f32_simt", C=operand(f32, ROW, 4)), 1),
    "SIMT, functor": (ampere("f32_simt", epilogue_functor=LinearCombination(f32, 4)), 1),
    "f64, A and B": (ampere("f64", A=operand(f64, ROW, 2), B=operand(f64, COLUMN, 2)), 1),
    "cp.async": (ampere(A=operand(f16, ROW, 1), B=operand(f16, COLUMN, 1)), 2),
    "int8 SIMT": (integers("int8 simt", A=operand(s8, ROW, 16), B=operand(s8, ROW, 16)), 1),
    "interleaved": (integers("interleaved", A=operand(s8, IC, 8), B=operand(s8, IR, 8)), 1),
    "int8 by columns": (integers(A=operand(s8, COLUMN, 16)), 1),
    "half a line of int8 to f16": (
        integers(C=operand(f16, ROW, 4), epilogue_functor=LinearCombination(f16, 4, s32, f32)),
        1,
    ),
    "256 columns": (ampere(threadblock_shape=(64, 256, 32)), 2),
    "relu to int8": (
        ampere(C=operand(s8, ROW, 16), epilogue_functor=LinearCombinationGeneric(relu(), s8, 16, f32, f32)),
        2,
    ),
    # One family or the other
    "native clamp": (native(epilogue_functor=LinearCombinationClamp(f16, 8, f32, f32)), 3),
    "native on 80": (native(compute_capability=80), 1),
    "native, int8 by columns": (
        native(
            **{"element_a": s8, "element_b": s8, "element_accumulator": s32, "threadblock_shape": (128, 128, 64)},
            **{"A": operand(s8, COLUMN, 16), "B": operand(s8, COLUMN, 16), "C": operand(s32, ROW, 4)},
            epilogue_functor=LinearCombination(s32, 4, s32, s32),
        ),
        2,
    ),
    "instruction and warps": (ampere(cluster_shape=[2, 1], compute_capability=90), 2),
    "instruction": (native(instruction_shape=[16, 8, 16], threadblock_shape=(128, 128, 64)), 2),
    "warps": (native(warp_count=[2, 2, 1], threadblock_shape=(128, 128, 64)), 2),
    "SIMT in a cluster": (ampere("f32_simt", cluster_shape=[1, 1], compute_capability=90), 1),
    "no warps": (ampere(warp_count=None, compute_capability=90), 2),
    "no instruction": (ampere(instruction_shape=None, compute_capability=90), 2),
    "neither": (native(cluster_shape=None, kernel_schedule=None, threadblock_shape=(128, 128, 32)), 2),
    "a schedule alone": (ampere(kernel_schedule=pycutlass.KernelSchedule.Pingpong, compute_capability=90), 2),
    "f32 in a cluster": (native(element_a=f32, element_b=f32, A=operand(f32, ROW, 4), B=operand(f32, COLUMN, 4)), 0),
    "SIMT without a shape": (native(opcode_class=cutlass.OpClass.Simt), 1),
    "D apart": (ampere(D=operand(f32, ROW, 4)), 2),
    "D apart, by columns": (ampere(D=operand(f16, COLUMN)), 2),
    "D apart, f64": (ampere("f64", D=operand(f64, COLUMN, 1)), 1),
    # Groups
    "a native group": (native(kind=GemmOperationGrouped, precompute_mode=SchedulerMode.Host), 1),
    "and its swizzle": (
        native(
            kind=GemmOperationGrouped,
            precompute_mode=SchedulerMode.Host,
            swizzling_functor=cutlass.IdentitySwizzle4,
        ),
        1,
    ),
    # Older GPUs
    "Turing": (ampere(compute_capability=75), 2),
    "Turing's stages": (ampere(compute_capability=75, instruction_shape=[16, 8, 8]), 2),
    "Turing's int8": (integers(instruction_shape=[8, 8, 16]), 2),
}


def ways_of(message: str) -> list[str]:
    """Return the alternatives of a message: all that it names behind its rule."""
    remedy = re.split(
        r"; (?=describe )|: (?=describe |give |use |leave |D=)|\. (?=For |Give |Describe )"
        r"|; (?=use )|got \S+ by \w+ and \w+\. ",
        message,
        maxsplit=1,
    )[-1]
    remedy = re.sub(r"^Describe them so, or ", "", remedy)
    found = [
        part
        for each in re.split(r",? or (?=describe|give|for|leave|use|C as|stages|compute|instruction|Lin)", remedy)
        for part in [each]
    ]
    first = re.match(r"(?:describe [AB] as cutlass\.\w+(?: and [AB] as cutlass\.\w+)?, and )", found[0])
    for_all = re.match(r"(?:give the functor .*, and )either ", remedy)
    for number, each in enumerate(found):
        if first and each.startswith("C as"):
            found[number] = first[0] + each
        elif for_all and number:
            found[number] = for_all[0] + each
    return [_as_use(each) for each in found]


def _as_use(text: str) -> str:
    return f"use {text}" if re.match(r"Lin", text) else text


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_told_about_a_description_is_all_that_it_needs(name: str) -> None:
    made, count = REFUSED[name]
    with pytest.raises(DescriptionError) as caught:
        construct(made)
    message = str(caught.value)
    if not count:
        return
    ways = ways_of(message)
    assert len(ways) == count, (message, ways)
    for way in ways:
        try:
            assert construct(changed(made, way)).emit()
        except DescriptionError as error:
            raise AssertionError(f"{message}\n{way}\n{error}") from None
