"""Hopper-native groups of 8-bit types against sums that are exact."""

from __future__ import annotations

import pytest
import torch
from hopper_classes import FAST, PINGPONG, described, of_tma, to_int32
from hopper_launches import TORCH, integers, matrix

import pycutlass
from pycutlass import GemmGroupedArguments, GemmOperationGrouped

GROUPS = {
    "int8": described("s8", None, "s32", functor=to_int32()),
    "e4m3 x e5m2": described("e4m3", "e5m2", C=of_tma("bf16")),
    "e4m3, pingpong": described("e4m3", C=of_tma("bf16"), shape=(64, 128, 128), schedule=PINGPONG),
    "e5m2, halves": described("e5m2", C=of_tma("bf16"), shape=(64, 192, 128), schedule=PINGPONG),
    "e4m3, one result": described("e4m3", C=of_tma("bf16"), shape=(128, 192, 128)),
    "e4m3, fast, pingpong": described("e4m3", C=of_tma("f16"), schedule=PINGPONG, operation=FAST),
    "e5m2, fast, cluster of 4": described("e5m2", C=of_tma("f32"), cluster=(2, 2), operation=FAST),
}
GROUPED = {name: GemmOperationGrouped(*each._value()[:7]) for name, each in GROUPS.items()}


@pytest.fixture(scope="module", autouse=True)
def compiled() -> None:
    pycutlass.compiler.add_module(list(GROUPED.values()))


@pytest.mark.parametrize("count", [1, 7, 80])
@pytest.mark.parametrize("name", GROUPED)
def test_every_element_of_every_problem_is_exact(name: str, count: int) -> None:
    operation = GROUPED[name]
    extents = [
        (1, 16, 16),
        (144, 80, 400),
        (40, 272, 0),
        (0, 16, 32),
        (300, 128, 1024),
        (17, 544, 144),
        (128, 128, 128),
    ]
    sizes = [extents[i % len(extents)] for i in range(count)]
    a, b, c = (
        [integers(*each, most=most) for each in shapes]
        for shapes, most in (
            ([(m, k) for m, _, k in sizes], 1),
            ([(k, n) for _, n, k in sizes], 1),
            ([(m, n) for m, n, _ in sizes], 2),
        )
    )
    A, B, C = (
        [matrix(description, each) for each in values]
        for description, values in ((operation.A, a), (operation.B, b), (operation.C, c))
    )
    D = [matrix(operation.C, torch.full_like(each, 99.0)) for each in c]
    scalars = operation.epilogue_type(1.0, -1.0)
    arguments = GemmGroupedArguments(operation, sizes, A, B, C, D, output_op=scalars)
    for _ in range(2):
        operation.run(arguments)
        arguments.sync()
        for one, other, added, made in zip(a, b, c, D, strict=True):
            assert torch.equal(made.double(), (one @ other - added).to(TORCH[operation.C.type.short]).double())
