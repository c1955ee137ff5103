"""What the parts of a GEMM must be to make a kernel: one function a rule, shared by all GEMM operations.

Each raises DescriptionError with the rule, the two values that disagree, and what to change.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from enum import EnumMeta
from typing import Any, TypeVar

from pycutlass import _core
from pycutlass.calls import member_meant, shown
from pycutlass.enums import SchedulerMode
from pycutlass.epilogue import Epilogue, EpilogueFunctor, Family, LinearCombination, LinearCombinationClamp
from pycutlass.errors import DescriptionError
from pycutlass.instruction import MathInstruction
from pycutlass.library import CLEAN_ACCUMULATORS, TensorDescription, TileDescription
from pycutlass.log import say_once
from pycutlass.operation.base import SHARED_MEMORY_LIMIT
from pycutlass.operation.mainloop import check_mainloop
from pycutlass.operation.outputs import check_output, with_other_warps, writes
from pycutlass.operation.shared_memory import (
    ampere_bytes,
    epilogue_bytes,
    grouped_bytes,
    mainloop_bytes,
    native_bytes,
    native_stages,
)

__all__ = [
    "check_ampere",
    "check_apart",
    "check_epilogue",
    "check_family",
    "check_native",
    "check_operand_types",
    "check_shared_memory",
    "check_tree",
    "expect",
    "expect_epilogue",
    "warn_of_spills",
]

_Kind = TypeVar("_Kind")

#: Other tiles that are tried for a message: it should come at once where many tiles are tried for other reasons.
_TRIED = 40

#: Types that an epilogue can compute in and write, by the accumulator's type.
_COMPUTED = {"f64": ("f64",), "f32": ("f32", "f16"), "f16": ("f16", "f32"), "s32": ("f32", "s32")}
_WRITTEN = {
    "f64": ("f64",),
    "f32": ("f32", "f16", "bf16", "s8"),
    "f16": ("f16", "f32", "bf16"),
    "s32": ("s32", "s8", "f32", "f16", "bf16"),
}

#: Types of C and D where they are described apart.
_APART = ("f16", "bf16", "f32")


def expect(name: str, value: Any, kind: type[_Kind]) -> _Kind:
    """Return `value`, which must be a `kind`."""
    if isinstance(value, kind):
        return value
    article = "an" if kind.__name__[0] in "AEIO" else "a"
    if isinstance(value, type) and issubclass(value, kind):
        raise DescriptionError(f"{name} is the class {value.__name__}; call it: {value.__name__}(...)")
    near = member_meant(value, kind, kind.__name__) if isinstance(kind, EnumMeta) else ""
    raise DescriptionError(f"{name} must be {article} {kind.__name__}, got {shown(value)}{near}")


def expect_epilogue(value: Any) -> Epilogue:
    """Return `value`, which must be an epilogue."""
    return value if isinstance(value, Epilogue) else expect("epilogue_functor", value, EpilogueFunctor)


def check_family(functor: Epilogue, family: Family) -> None:
    """Check that kernels of a family can have this epilogue."""
    reason = functor.why_not(family)
    if reason:
        raise DescriptionError(reason)


def check_tree(math: MathInstruction, C: TensorDescription, is_stream_k: bool) -> None:
    """Check that an Ampere-style kernel can have a tree of visitors."""
    if math.is_tensor_op and C.layout is _core.RowMajor and not is_stream_k:
        return
    what = "stream-K" if is_stream_k else f"{math.opcode_class.name} kernels and a C of {C.order}"
    raise DescriptionError(
        f"an Ampere-style epilogue that is a tree of visitors is for tensor cores (OpClass.TensorOp), a C of RowMajor "
        f"and no stream-K; got {what}"
    )


def check_operand_types(math: MathInstruction, A: TensorDescription, B: TensorDescription) -> None:
    """Check that the operands are what the instruction multiplies."""
    for name, operand in (("A", A), ("B", B)):
        _check_matrix(name, operand)
        if operand.type is not math.a:
            raise DescriptionError(
                f"operand {name} is {operand.type}, the math instruction multiplies {math.a}: make them the same"
            )
    if math.is_fast and math.a.short != "f32":
        raise DescriptionError(
            f"{math.math_operation.name} rounds operands of cutlass.float32, got {A.type}, which need no rounding: use "
            f"multiply_add"
        )


def check_epilogue(math: MathInstruction, C: TensorDescription, functor: Epilogue, name: str = "C") -> None:
    """Check that the epilogue takes the accumulator, and writes operand `name`, `C` or a D that is described apart."""
    _check_matrix(name, C)
    accumulator = math.accumulator
    if functor.accumulator is not accumulator:
        raise DescriptionError(
            f"the epilogue functor expects an accumulator of {functor.accumulator}, the math instruction makes "
            f"{accumulator}: give the functor element_accumulator={accumulator}"
        )
    if functor.output is not C.type:
        raise DescriptionError(
            f"the epilogue functor writes {functor.output}, operand {name} is {C.type}: give the functor "
            f"element_output={C.type}, or describe {name} with {functor.output}"
        )
    if functor.epilogue_vector_length != C.alignment:
        raise DescriptionError(
            f"epilogue_vector_length={functor.epilogue_vector_length} must equal the alignment of {name}, {C.alignment}"
        )
    for what, chosen, allowed in (
        ("compute in", functor.compute, _COMPUTED[accumulator.short]),
        ("write", functor.output, _WRITTEN[accumulator.short]),
    ):
        if chosen.short not in allowed:
            raise DescriptionError(
                f"an epilogue of an accumulator of {accumulator} can {what} {', '.join(allowed)}; got {chosen}"
            )
    limits = isinstance(functor, LinearCombination | LinearCombinationClamp) or not isinstance(functor, EpilogueFunctor)
    if functor.output.short == "s8" and not limits:
        raise DescriptionError(
            f"{type(functor).__name__} does not limit its result to the range of cutlass.int8: use "
            f"LinearCombinationClamp or FastLinearCombinationClamp"
        )


def check_native(
    compute_capability: int,
    math: MathInstruction,
    A: TensorDescription,
    B: TensorDescription,
    C: TensorDescription,
    *,
    apart: bool = False,
) -> None:
    """Check the parts of a Hopper-native kernel. Where D is described `apart`, `check_apart` looks at C."""
    if compute_capability != 90:
        raise DescriptionError(
            f"a tile with a cluster_shape makes a Hopper-native kernel, which needs compute_capability=90; got "
            f"{compute_capability}. Leave out cluster_shape for an Ampere-style kernel."
        )
    if math.a.short not in ("f16", "bf16") or math.accumulator.short != "f32":
        raise DescriptionError(
            f"Hopper-native kernels multiply f16 or bf16 and accumulate in f32; got {math.a} and {math.accumulator}. "
            f"Leave out cluster_shape for an Ampere-style kernel."
        )
    layouts = (_core.RowMajor, _core.ColumnMajor, C.layout if apart else _core.RowMajor)
    if (A.layout, B.layout, C.layout) != layouts:
        raise DescriptionError(
            f"Hopper-native kernels take A RowMajor, B ColumnMajor and C RowMajor; got {A.order}, {B.order} and "
            f"{C.order}"
        )
    for name, operand in (("A", A), ("B", B), *([] if apart else [("C", C)])):
        if operand.alignment_bytes != 16:
            raise DescriptionError(
                f"TMA needs 16-byte alignment: operand {name} of {operand.type} needs alignment "
                f"{128 // operand.type.bits}, got {operand.alignment}"
            )


def check_apart(is_native: bool, C: TensorDescription, D: TensorDescription) -> None:
    """Check a D that is described apart from C."""
    if not is_native:
        raise DescriptionError(
            f"D is described apart from C, {D.order} of {D.type} and {C.order} of {C.type}, and the epilogue of an "
            f"Ampere-style kernel writes D as it reads C: leave out D, or describe a Hopper-native kernel"
        )
    for name, operand in (("C", C), ("D", D)):
        _check_matrix(name, operand)
        if operand.order.interleave > 1 or operand.type.short not in _APART:
            raise DescriptionError(
                f"where D is described apart from C, both are RowMajor or ColumnMajor, of {', '.join(_APART)}; got "
                f"{name} {operand.order} of {operand.type}"
            )
        if operand.alignment_bytes != 16:
            raise DescriptionError(
                f"TMA needs 16-byte alignment: operand {name} of {operand.type} needs alignment "
                f"{128 // operand.type.bits}, got {operand.alignment}"
            )


def warn_of_spills(tile: TileDescription, C: TensorDescription) -> None:
    """Log a warning where a Hopper-native tile leaves the epilogue too few registers."""
    clean = CLEAN_ACCUMULATORS - (24 if C.type.bits > 16 else 0)
    if tile.accumulator_registers > clean:
        columns = clean * tile.threadblock_shape[1] // tile.accumulator_registers // 16 * 16
        m, n, _ = tile.threadblock_shape
        say_once(
            f"a {m}x{n} tile needs {tile.accumulator_registers} accumulator registers in each thread under "
            f"{tile.kernel_schedule!r}, and beyond {clean} of them for C of {C.type} the kernel may be slower: "
            f"registers spill, and from 216 on instructions wait for each other; {columns} columns are the most that "
            f"do not"
        )


def check_ampere(
    compute_capability: int,
    tile: TileDescription,
    A: TensorDescription,
    B: TensorDescription,
    C: TensorDescription,
) -> None:
    """Check the parts of an Ampere-style (or Turing) kernel."""
    limit = SHARED_MEMORY_LIMIT[compute_capability]

    def loads(other: TileDescription) -> bool:
        """Whether `other` could be recommended in place of `tile`."""
        try:
            check_mainloop(compute_capability, other, A, B, C)
        except DescriptionError:
            return False
        return ampere_bytes(other, A, B, C) <= limit

    def works(other: TileDescription) -> bool:
        return loads(other) and writes(other, C)

    try:
        check_mainloop(compute_capability, tile, A, B, C)
    except DescriptionError as error:
        near = [text for text in _near(tile, works) if text not in str(error)]
        raise DescriptionError(f"{error}; for example {' or '.join(near)}" if near else str(error)) from None
    check_output(tile, C, loads)


def _near(tile: TileDescription, works: Callable[[TileDescription], bool]) -> Iterator[str]:
    """Yield other warps and another shape of which each alone makes a tile that works, if there are such near by."""
    for other in itertools.islice(filter(works, itertools.islice(with_other_warps(tile), _TRIED)), 1):
        yield f"warp_count {list(other.warp_count or ())}"
    for other in itertools.islice(filter(works, itertools.islice(_with_other_extents(tile), _TRIED)), 1):
        yield f"threadblock_shape {list(other.threadblock_shape)}"


def _with_other_extents(tile: TileDescription) -> Iterator[TileDescription]:
    """Yield the tile with one or two of its extents changed to usual ones, the nearest first."""

    def distance(shape: tuple[int, int, int]) -> float:
        return sum(abs(math.log2(new / old)) for new, old in zip(shape, tile.threadblock_shape, strict=True))

    m, n, k = tile.threadblock_shape
    rows = (32, 64, 96, 128, 192, 256)
    shapes = {(a, b, c) for a in (m, *rows) for b in (n, *rows) for c in (k, 8, 16, 32, 64, 128)}
    for shape in sorted(
        (shape for shape in shapes if distance(shape) <= 3), key=lambda shape: (distance(shape), shape)
    ):
        try:
            yield replace(tile, threadblock_shape=shape)
        except DescriptionError:
            continue


def check_shared_memory(
    compute_capability: int,
    tile: TileDescription,
    A: TensorDescription,
    B: TensorDescription,
    C: TensorDescription,
    group: SchedulerMode | None = None,
    D: TensorDescription | None = None,
    epilogue: Epilogue | None = None,
) -> None:
    """Check that a kernel, or one for a `group` of problems, fits in the shared memory of the target."""
    limit = SHARED_MEMORY_LIMIT[compute_capability]
    needed = _shared_bytes(tile, A, B, C, group, D, epilogue)
    if needed <= limit:
        return

    def works(other: TileDescription) -> bool:
        """Whether `other` can be recommended in place of `tile`."""
        if _shared_bytes(other, A, B, C, group, D, epilogue) > limit:
            return False
        return other.is_native or _is_ampere(compute_capability, other, A, B, C)

    stages = tile.stages or 2
    shape = list(tile.threadblock_shape)
    what = f"{stages} stages of {shape} need"
    if not tile.is_native and epilogue_bytes(tile, C) > mainloop_bytes(tile, A, B):
        what = f"the epilogue of threadblock_shape {shape}, warp_count {list(tile.warp_count or ())}, needs"
    beside = ", those of the epilogue included," if tile.is_native else ""
    raise DescriptionError(
        f"{what} {needed:,} bytes of shared memory{beside} and compute capability {compute_capability} has {limit:,} "
        f"for one threadblock: use {' or '.join(_that_fit(tile, works)) or 'a smaller threadblock_shape'}"
    )


def _shared_bytes(
    tile: TileDescription,
    A: TensorDescription,
    B: TensorDescription,
    C: TensorDescription,
    group: SchedulerMode | None,
    D: TensorDescription | None,
    epilogue: Epilogue | None,
) -> int:
    """Return the bytes of shared memory of a kernel; of one that has 2 stages where fewer than that would fit."""
    family = Family.SM90_GEMM if tile.is_native else Family.AMPERE_GEMM
    beside = 0 if epilogue is None else epilogue.shared_bytes(family, tile)
    if tile.is_native:
        stages = max(2, native_stages(tile, C, grouped=group is not None, D=D))
        if beside and tile.stages is None:
            stages = 2  # CUTLASS takes as many as fit
        return native_bytes(tile, C, stages, grouped=group is not None, D=D) + beside
    kernel = ampere_bytes(tile, A, B, C) + beside
    return kernel if group is None else grouped_bytes(kernel, tile.num_threads, group is SchedulerMode.Host)


def _is_ampere(
    compute_capability: int, tile: TileDescription, A: TensorDescription, B: TensorDescription, C: TensorDescription
) -> bool:
    try:
        check_ampere(compute_capability, tile, A, B, C)
    except DescriptionError:
        return False
    return True


def _that_fit(tile: TileDescription, works: Callable[[TileDescription], bool]) -> Iterator[str]:
    """Yield changes of which each is enough: fewer stages, other warps, a smaller tile."""
    fewer = (replace(tile, stages=stages) for stages in range((tile.stages or 2) - 1, 1, -1))
    for other in itertools.islice(filter(works, fewer), 1):
        yield f"at most {other.stages} stages" if other.stages != 2 else "2 stages"
    if not tile.is_native:
        for other in itertools.islice(filter(works, with_other_warps(tile)), 1):
            yield f"warp_count {list(other.warp_count or ())}"
    for other in itertools.islice(filter(works, _smaller(tile)), 1):
        yield f"threadblock_shape {list(other.threadblock_shape)}"


def _smaller(tile: TileDescription) -> Iterator[TileDescription]:
    """Yield the tile with its extents divided by powers of two, the largest first."""
    m, n, k = tile.threadblock_shape
    divided = ((m // a, n // b, k // c) for a, b, c in itertools.product((1, 2, 4, 8, 16), repeat=3))
    for shape in sorted(divided, key=lambda shape: -math.prod(shape)):
        try:
            yield replace(tile, threadblock_shape=shape)
        except DescriptionError:
            continue


def _check_matrix(name: str, operand: TensorDescription) -> None:
    if operand.order.rank != 2:
        raise DescriptionError(f"operand {name} of a GEMM is a matrix, RowMajor or ColumnMajor; got {operand.order}")
