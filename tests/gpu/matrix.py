"""The generated matrix: types x layouts x alignments x modes x swizzles x epilogues, each with several problems."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from functools import partial
from typing import Any

from cases import COLUMN, LAYOUTS, ROW, SIMT, Math, ampere, bf16, f16, f32, f64, s8, s32, tf32

import pycutlass
from pycutlass import cutlass
from pycutlass.epilogue import Activation
from pycutlass.operation import GemmOperationUniversal, ReductionOperation

Mode = cutlass.gemm.Mode
SHORT = {ROW: "t", COLUMN: "n"}
ACTIVATIONS = tuple(each for each in Activation.__subclasses__() if each.__module__.startswith("pycutlass."))
SCALARS = [(1.0, 0.0), (0.0, 1.0), (-1.25, 1.0), (1.0, -1.25), (0.0, 0.0)]


@dataclass(frozen=True)
class Case:
    """One kernel on one problem."""

    kernel: str
    mode: Any
    size: tuple[int, int, int]
    count: int
    scalars: tuple[float, ...]
    bias: bool = False

    def __str__(self) -> str:
        m, n, k = self.size
        words = [self.kernel, self.mode.name, f"{m}x{n}x{k}", f"count{self.count}", "x".join(map(str, self.scalars))]
        return "-".join(words + (["bias"] if self.bias else []))


def _tensor_core() -> dict[str, GemmOperationUniversal]:
    tf32_tile: dict[str, Any] = {"instruction": (16, 8, 8), "tile": (128, 128, 16)}
    kinds: dict[str, dict[str, Any]] = {
        "f16-f16": {"types": (f16, f32, f16)},
        "f16-bf16": {"types": (f16, f32, bf16)},
        "f16acc-f32": {"types": (f16, f16, f32)},
        "f16k8-f16": {"types": (f16, f32, f16), "instruction": (16, 8, 8)},
        "bf16-f16": {"types": (bf16, f32, f16)},
        "bf16k8-f32": {"types": (bf16, f32, f32), "instruction": (16, 8, 8)},
        "tf32-f32": {"types": (tf32, f32, f32), **tf32_tile},
        "tf32-f16": {"types": (tf32, f32, f16), **tf32_tile},
        "fast_f16": {"types": (f32, f32, f32), **tf32_tile, "math": Math.multiply_add_fast_f16},
        "fast_bf16": {"types": (f32, f32, f32), **tf32_tile, "math": Math.multiply_add_fast_bf16},
        "fast_f32": {
            "types": (f32, f32, f32),
            "instruction": (16, 8, 8),
            "tile": (64, 64, 16),
            "math": Math.multiply_add_fast_f32,
        },
        "f64": {"types": (f64, f64, f64), "instruction": (8, 8, 4), "tile": (64, 64, 16), "stages": 4},
    }
    kernels = {}
    for name, kind in kinds.items():
        options = {option: value for option, value in kind.items() if option != "types"}
        for layouts in LAYOUTS:
            kernels[f"{name}-{''.join(SHORT[layout] for layout in layouts)}"] = ampere(
                *kind["types"], layouts, **options
            )
    return kernels


def _simt() -> dict[str, GemmOperationUniversal]:
    options: dict[str, Any] = {"instruction": (1, 1, 1), "tile": (64, 128, 8), "warps": (2, 2, 1), "opcode": SIMT}
    kernels = {}
    for layouts in LAYOUTS:
        short = "".join(SHORT[layout] for layout in layouts)
        kernels[f"simt-f32-{short}"] = ampere(f32, f32, f32, layouts, stages=3, **options)
        kernels[f"simt-f64-{short}"] = ampere(f64, f64, f64, layouts, stages=3, **{**options, "tile": (64, 64, 8)})
        dp4a = {**options, "instruction": (1, 1, 4), "tile": (64, 64, 32), "stages": 2, "alignments": (4, 4, 1)}
        kernels[f"simt-s8-{short}"] = ampere(s8, s32, s32, layouts, **dp4a)
    return kernels


def _integer() -> dict[str, GemmOperationUniversal]:
    common: dict[str, Any] = {
        "instruction": (16, 8, 32),
        "tile": (128, 128, 64),
        "math": Math.multiply_add_saturate,
    }
    clamp, fast = pycutlass.LinearCombinationClamp, pycutlass.FastLinearCombinationClamp
    kernels = {}
    for C in (ROW, COLUMN):
        layouts = (ROW, COLUMN, C)
        short = SHORT[C]
        kernels[f"s8-s32-tn{short}"] = ampere(s8, s32, s32, layouts, **common)
        kernels[f"s8-s8-tn{short}"] = ampere(s8, s32, s8, layouts, functor=clamp, **common)
        kernels[f"s8-s8-fast-tn{short}"] = ampere(
            s8, s32, s8, layouts, functor=lambda output, length, *_: fast(output, length), **common
        )
        kernels[f"s8-f32-tn{short}"] = ampere(s8, s32, f32, layouts, **common)
        kernels[f"s8-f16-tn{short}"] = ampere(s8, s32, f16, layouts, **common)
        kernels[f"s8-bf16-tn{short}"] = ampere(s8, s32, bf16, layouts, **common)
    for alignment, stages in ((1, 2), (2, 2), (4, 3), (8, 3)):
        kernels[f"s8-s32-align{alignment}"] = ampere(
            s8, s32, s32, (ROW, COLUMN, ROW), alignments=(alignment, alignment, 4), stages=stages, **common
        )
    return kernels


def _alignments() -> dict[str, GemmOperationUniversal]:
    kernels = {}
    for a, b, c in ((8, 8, 1), (8, 2, 4), (4, 8, 2), (2, 4, 8), (2, 2, 1)):
        kernels[f"f16-align{a}x{b}x{c}"] = ampere(f16, f32, f16, alignments=(a, b, c))
    kernels["f16-align1"] = ampere(f16, f32, f16, alignments=(1, 1, 1), stages=2)
    kernels["bf16-align1-nn"] = ampere(bf16, f32, bf16, (COLUMN, COLUMN, ROW), alignments=(1, 1, 1), stages=2)
    kernels["tf32-2-stages"] = ampere(
        tf32, f32, f32, (COLUMN, ROW, ROW), instruction=(16, 8, 8), tile=(128, 128, 16), stages=2
    )
    for a, b, c in ((1, 1, 1), (2, 4, 1), (4, 1, 2)):
        kernels[f"f32-align{a}x{b}x{c}"] = ampere(
            f32, f32, f32, instruction=(16, 8, 8), tile=(128, 128, 16), alignments=(a, b, c)
        )
    return kernels


def _swizzles() -> dict[str, GemmOperationUniversal]:
    swizzles = {
        "identity2": cutlass.IdentitySwizzle2,
        "identity4": cutlass.IdentitySwizzle4,
        "identity8": cutlass.IdentitySwizzle8,
        "horizontal": cutlass.HorizontalSwizzle,
        "batched": cutlass.BatchedIdentitySwizzle,
        "streamk": cutlass.ThreadblockSwizzleStreamK,
    }
    kernels = {}
    for name, swizzle in swizzles.items():
        kernels[f"f16-{name}"] = ampere(f16, f32, f16, swizzle=swizzle, tile=(64, 64, 32))
        kernels[f"f16-{name}-nnn"] = ampere(f16, f32, f32, (COLUMN,) * 3, swizzle=swizzle, tile=(64, 64, 32))
    kernels["f32-simt-streamk"] = ampere(
        f32,
        f32,
        f32,
        instruction=(1, 1, 1),
        tile=(64, 128, 8),
        opcode=SIMT,
        swizzle=cutlass.ThreadblockSwizzleStreamK,
    )
    return kernels


def _epilogues() -> dict[str, GemmOperationUniversal]:
    kernels = {}
    for activation in ACTIVATIONS:
        functor = partial(pycutlass.LinearCombinationGeneric, activation())
        name = activation.__name__
        kernels[f"{name}-f16"] = ampere(f16, f32, f16, functor=functor)
        kernels[f"{name}-f32-nnn"] = ampere(bf16, f32, f32, (COLUMN,) * 3, functor=functor)
        if name in ("relu", "gelu", "leaky_relu"):
            kernels[f"{name}-f64"] = ampere(
                f64, f64, f64, instruction=(8, 8, 4), tile=(64, 64, 16), stages=4, functor=functor
            )
    kernels["clamp-f16"] = ampere(f16, f32, f16, functor=pycutlass.LinearCombinationClamp)
    return kernels


INTERLEAVED = (
    cutlass.ColumnMajorInterleaved32,
    cutlass.RowMajorInterleaved32,
    cutlass.ColumnMajorInterleaved32,
)


def _interleaved() -> GemmOperationUniversal:
    return ampere(
        s8,
        s32,
        s8,
        INTERLEAVED,
        instruction=(16, 8, 32),
        tile=(64, 64, 64),
        stages=6,
        math=Math.multiply_add_saturate,
        alignments=(16, 16, 8),
        functor=pycutlass.LinearCombinationClamp,
    )


#: int8 in interleaved layouts, which needs operands of its own making.
INTERLEAVED_KERNEL = _interleaved()

KERNELS: dict[str, GemmOperationUniversal] = {
    **_tensor_core(),
    **_simt(),
    **_integer(),
    **_alignments(),
    **_swizzles(),
    **_epilogues(),
}

#: Kernels that run in parallel split-K, each with the reduction that ends it.
SPLIT = ["f16-f16-tnt", "f16-f16-nnn", "f16acc-f32-tnt", "tf32-f32-tnt", "f64-tnt", "simt-f32-ttn", "s8-s32-tnt"]


def reduction_of(operation: GemmOperationUniversal, activation: Any = None) -> ReductionOperation:
    """Return the reduction that ends a parallel split-K of `operation`."""
    accumulator = operation.tile_description.math_instruction.element_accumulator
    compute = operation.epilogue_functor.element_epilogue
    types = (operation.C.element, operation.C.alignment, accumulator, compute)
    functor = (
        pycutlass.LinearCombination(*types)
        if activation is None
        else pycutlass.LinearCombinationGeneric(activation, *types)
    )
    shape = cutlass.MatrixCoord(4, 32 * operation.C.alignment)
    return ReductionOperation(shape, operation.C, accumulator, epilogue_functor=functor, count=operation.C.alignment)


REDUCTIONS = {name: reduction_of(KERNELS[name]) for name in SPLIT}
REDUCTIONS["f16-f16-ntt"] = reduction_of(KERNELS["f16-f16-ntt"], pycutlass.relu())


def step_of(operation: GemmOperationUniversal) -> int:
    """Return what every extent of a problem must be a multiple of."""
    return max(operand.alignment for operand in (operation.A, operation.B, operation.C))


def _sizes(operation: GemmOperationUniversal) -> list[tuple[int, int, int]]:
    step = step_of(operation)
    return [
        (128, 128, 64),
        (160 + step, 96 + 3 * step, 40 + step - 40 % step),
        (step, 264 // step * step, 200 // step * step),
        (33 * step, step, step),
        (step, step, 256 + step),
    ]


def _extra(operation: GemmOperationUniversal) -> tuple[float, ...]:
    activation = operation.epilogue_functor.activation
    return () if activation is None else tuple(value for _, value in activation.extra)


def _cases() -> list[Case]:
    cases = []
    rotation = itertools.count()
    for name, operation in KERNELS.items():
        max_k = operation.epilogue_functor.max_k or 2**31
        for size in _sizes(operation)[next(rotation) % 2 :: 2]:
            alpha, beta = SCALARS[next(rotation) % len(SCALARS)]
            if operation.C.type.is_integer and operation.epilogue_functor.compute.is_integer:
                alpha, beta = float(int(alpha)), float(int(beta))
            if size[2] <= max_k:
                cases.append(Case(name, Mode.Gemm, size, 1, (alpha, beta, *_extra(operation))))
    for name in ("f16-f16-tnt", "f16-f16-nnn", "bf16-f16-ttn", "f64-ntn", "simt-f32-tnt", "s8-s32-tnt", "gelu-f16"):
        extra = _extra(KERNELS[name])
        cases += [
            Case(name, Mode.Gemm, (144, 80, 320), slices, (1.0, 2.0, *extra)) for slices in (2, 3, 5)
        ]  # serial split-K
    for name in SPLIT:
        cases += [
            Case(name, Mode.GemmSplitKParallel, (144, 80, 336), slices, (-1.25, 1.0)) for slices in (1, 2, 3, 5, 7)
        ]
    cases += [
        Case("f16-f16-ntt", Mode.GemmSplitKParallel, (144, 80, 336), slices, (1.0, 0.5), bias=True) for slices in (2, 4)
    ]
    batched = ["f16-f16-tnt", "f16-f16-nnn", "f64-tnt", "simt-f32-nnt", "s8-s32-tnn", "f16-batched", "f16-identity4"]
    batched += ["relu-f16", "f16-horizontal-nnn", "f16-streamk"]
    for name, mode, count in itertools.product(batched, (Mode.Batched, Mode.Array), (1, 3, 17)):
        if mode == Mode.Array and name == "f16-streamk":
            continue
        cases.append(Case(name, mode, (80, 48, 64), count, (1.0, -1.25, *_extra(KERNELS[name]))))
    for name in [name for name in KERNELS if name.endswith(("-f16", "-f32-nnn"))] + ["f16-f16-tnn", "f32-align4x1x2"]:
        cases.append(Case(name, Mode.Gemm, (72, 136, 64), 1, (0.5, 1.0, *_extra(KERNELS[name])), bias=True))
    cases.append(Case("relu-f16", Mode.Batched, (72, 136, 64), 5, (1.0, 1.0), bias=True))
    cases.append(Case("f16-batched", Mode.Batched, (16, 8, 8), 70_000, (1.0, 0.0)))
    return cases


CASES = _cases()
