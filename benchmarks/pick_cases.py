"""Which kernels are measured for the problems of pick_shapes.py, and those kernels made on another machine."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path

from benchmarks.pick_shapes import FITTED, HELD_OUT, LIKELY_FITTED, MORE_FITTED, Shape
from pycutlass import cutlass
from pycutlass.cache import KernelCache
from pycutlass.compiler import compile_many
from pycutlass.device import Device
from pycutlass.errors import NotCompiledError, ToolkitError
from pycutlass.operation import Operation, ReductionOperation
from pycutlass.plan import GemmKind, ranking
from pycutlass.plan.forms import Form
from pycutlass.plan.kinds import Wanted, kind_of
from pycutlass.plan.pick import Ranked
from pycutlass.types import element

__all__ = [
    "FACTOR",
    "GPU",
    "MORE",
    "PARTS",
    "build",
    "chosen",
    "compiled",
    "considered",
    "kernels",
    "kind",
    "sampled",
    "shapes_of",
]

#: What is picked for where a bundle is made without a GPU.
GPU = Device(0, "NVIDIA H200", 90, 132)
#: Candidates that are predicted to take longer than so many times the best are not measured.
FACTOR = 1.5
_TYPES = {
    "f16": cutlass.float16,
    "bf16": cutlass.bfloat16,
    "tf32": cutlass.float32,
    "f32": cutlass.float32,
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
MORE = {
    part: [each for each in (*MORE_FITTED, *LIKELY_FITTED) if f"{each.operands}-{each.layouts}" == part]
    for part in PARTS
}
_WHOLE, _OF_LIKELY = frozenset((*HELD_OUT, *FITTED)), frozenset(LIKELY_FITTED)
#: How many: the likely fastest, and others by chance; and how many of the likely ones where these are alone.
_LIKELY, _OTHERS, _LIKELY_ALONE = 8, 24, 16


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
    if shape in _OF_LIKELY:
        return every[:_LIKELY_ALONE]
    others = every[_LIKELY:]
    return every[:_LIKELY] + random.Random(f"{shape}").sample(others, min(_OTHERS, len(others)))


def kernels(shapes: Iterable[Shape], gpu: Device = GPU) -> list[Operation]:
    """Return the kernels of all that is measured on a GPU, one for each text."""
    found: dict[str, Operation] = {}
    for shape in shapes:
        for each in considered(shape, gpu) if shape in _WHOLE else sampled(shape, gpu):
            for kernel in each.candidate.kernels:
                found.setdefault(kernel.source().text, kernel)
    return list(found.values())


def compiled(made: Sequence[Operation], *, is_known: bool = False) -> list[str]:
    """Compile kernels for an H100 or H200, and return what failed; where they are `is_known`, take what the cache has.

    Reductions are compiled apart: beside one, each GEMM gets a kernel of partial sums as well, which most do not need.
    """
    failures: list[str] = []
    native = [each for each in made if each.source().native]
    reductions = [each for each in made if isinstance(each, ReductionOperation)]
    others = [each for each in made if each not in native and each not in reductions]
    for target, chosen in (("sm_90a", native), ("sm_90", others), ("sm_90", reductions)):
        for each in ([kernel] for kernel in chosen) if is_known else (chosen,):
            try:
                results = [done.result for done in compile_many(each, target=target)]
            except (NotCompiledError, ToolkitError) as error:  # the others are measured all the same
                results = [error]
            failures += [str(result)[:2000] for result in results if isinstance(result, Exception)]
    return failures


def chosen(shapes: Sequence[Shape], problems: Sequence[str]) -> list[Shape]:
    """Return the problems of these names, or all where none is named."""
    return [shape for shape in shapes if not problems or shape.name in problems]


def build(parts: Sequence[str], bundle: Path, problems: Sequence[str] = ()) -> list[str]:
    """Compile the kernels of some parts for an H200, write them to `bundle`, and return what failed."""
    every = kernels(chosen([*shapes_of(parts), *(shape for part in parts for shape in MORE[part])], problems))
    failures = compiled(every)
    KernelCache().export(bundle, {artifact.key for each in every for artifact in each.artifacts.values()})
    return failures
