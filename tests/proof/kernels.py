"""Kernels drawn at random, and the text of several in one program."""

from __future__ import annotations

import random
import re
from typing import Any

import tiles
from convolutions import STRIDED, UNITY, Algorithm, conv, dgrad, f16, f32, f64, fprop, s8, s32, tf32, wgrad
from descriptions import SIMT

from pycutlass import GemmOperationGrouped, SchedulerMode, cutlass
from pycutlass.errors import DescriptionError


def text_of(operations: list[Any]) -> str:
    """Return a program with all the kernels, as Operation0, Operation1, ..."""
    includes: set[str] = set()
    bodies = []
    for i, operation in enumerate(operations):
        lines = operation.body().splitlines()
        includes.update(line for line in lines if line.startswith("#include"))
        body = "\n".join(line for line in lines if not line.startswith("#include"))
        bodies.append(re.sub(r"\b(Operation|Problem)(?= =|,)", rf"\g<1>{i}", body))
    return "\n".join([*sorted(includes), *bodies])


def draw_ampere(drawn: random.Random) -> Any:
    operation = tiles.draw(drawn)
    if drawn.random() < 0.7:
        return operation
    value = (*operation._value()[:6], cutlass.IdentitySwizzle1, drawn.choice(list(SchedulerMode)))
    try:
        return GemmOperationGrouped(*value)
    except DescriptionError:
        return draw_ampere(drawn)


def draw_convolution(drawn: random.Random) -> Any:
    while True:
        types = drawn.choice(((f16, f32, f16), (f16, f32, f32), (tf32, f32, f32), (f64,) * 3, (s8, s32, s8)))
        simt = drawn.choice((False, True))  # CUDA cores multiply f32 and f64
        types = drawn.choice((types, (f32,) * 3)) if not simt else drawn.choice(((f32,) * 3, (f64,) * 3))
        try:
            return conv(
                drawn.choice((fprop, dgrad, wgrad)),
                drawn.choice([algorithm.name for algorithm in Algorithm]),
                types,
                stride=drawn.choice((STRIDED, UNITY)),
                opcode=SIMT if simt else cutlass.OpClass.TensorOp,
                shape=(drawn.choice((32, 64, 128, 256)), drawn.choice((32, 64, 128, 256)), drawn.choice((8, 16, 32))),
                warps=(drawn.choice((1, 2, 4)), drawn.choice((1, 2, 4)), 1),
                stages=drawn.choice((2, 3, 4)),
            )
        except DescriptionError:
            continue
