"""Which kernels are measured for the problems of pick_shapes.py, and those kernels made on another machine."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path

from benchmarks.pick_shapes import FITTED, HELD_OUT, MORE_FITTED, Shape
from pycutlass import cutlass
from pycutlass.cache import KernelCache
from pycutlass.compiler import compile_many
from pycutlass.device import Device
from pycutlass.operation import Operation
from pycutlass.plan import GemmKind, ranking
from pycutlass.plan.forms import Form
from pycutlass.plan.kinds import Wanted, kind_of
from pycutlass.plan.pick import Ranked
from pycutlass.types import element

__all__ = ["FACTOR", "GPU", "MORE", "PARTS", "build", "considered", "kernels", "kind", "sampled", "shapes_of"]

#: What is picked for where a bundle is made without a GPU.
GPU = Device(0, "NVIDIA H200", 90, 132)
#: Candidates that are predicted to take longer than so many times the best are not measured.
FACTOR = 1.5
_TYPES = {
    "f16": cutlass.float16,
    "bf16": cutlass.bfloat16,
    "tf32": cutlass.float32,
    "e4m3": cutlass.float_e4m3,
    "s8": cutlass.int8,
}


def _parts() -> dict[str, list[Shape]]:
    found: dict[str, list[Shape]] = {}
    for shape in (*HELD_OUT, *FITTED):
        found.setdefault(f"{shape.operands}-{shape.layouts}", []).append(shape)
    return dict(sorted(found.items(), key=lambda item: -len(item[1])))


#: The problems by types and layouts, which share kernels: most problems first.
PARTS = _parts()
#: Problems of which some candidates are measured, by types and layouts.
MORE = {part: [each for each in MORE_FITTED if f"{each.operands}-{each.layouts}" == part] for part in PARTS}
_WHOLE = frozenset((*HELD_OUT, *FITTED))
#: How many: the likely fastest, and others by chance.
_LIKELY, _OTHERS = 8, 24


def shapes_of(parts: Iterable[str]) -> list[Shape]:
    """Return the problems of some parts."""
    return [shape for part in parts for shape in PARTS[part]]


@cache  # one for each part
def _kind(operands: str, layouts: str) -> GemmKind:
    of = element(_TYPES[operands])
    wanted = Wanted(precision="tf32" if operands == "tf32" else None)
    a, b, d = (
        Form(layout == "t", 128 // each.bits) for layout, each in zip(layouts, (of, of, wanted.output(of)), strict=True)
    )
    return kind_of(of, of, (a, b, None, d), wanted)


def kind(shape: Shape) -> GemmKind:
    """Return what `pycutlass.matmul` computes for tensors of a shape."""
    return _kind(shape.operands, shape.layouts)


def considered(shape: Shape, gpu: Device = GPU, factor: float = FACTOR) -> list[Ranked]:
    """Return what is measured for a problem: candidates that are not predicted to be far slower than the best."""
    ranked = ranking(kind(shape), shape.m, shape.n, shape.k, shape.batch, gpu)
    most = factor * ranked[0].microseconds
    return [each for each in ranked if each.microseconds <= most]


def sampled(shape: Shape, gpu: Device = GPU) -> list[Ranked]:
    """Return what is measured for a problem of `MORE`."""
    every = considered(shape, gpu)
    others = every[_LIKELY:]
    return every[:_LIKELY] + random.Random(f"{shape}").sample(others, min(_OTHERS, len(others)))


def kernels(shapes: Iterable[Shape]) -> list[Operation]:
    """Return the kernels of all that is measured, one for each text."""
    found: dict[str, Operation] = {}
    for shape in shapes:
        for each in considered(shape) if shape in _WHOLE else sampled(shape):
            for kernel in each.candidate.kernels:
                found.setdefault(kernel.source().text, kernel)
    return list(found.values())


def build(parts: Sequence[str], bundle: Path) -> list[str]:
    """Compile the kernels of some parts for an H200, write them to `bundle`, and return what failed."""
    failures: list[str] = []
    keys: set[str] = set()
    every = kernels([*shapes_of(parts), *(shape for part in parts for shape in MORE[part])])
    for target, native in (("sm_90a", True), ("sm_90", False)):
        chosen = [each for each in every if each.source().native is native]
        for done in compile_many(chosen, target=target):
            if isinstance(done.result, Exception):
                failures.append(str(done.result)[:2000])
        keys |= {artifact.key for each in chosen for artifact in each.artifacts.values()}
    KernelCache().export(bundle, keys)
    return failures
