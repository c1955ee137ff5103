"""What the parts of a GEMM must be to make a kernel: one function a rule, shared by all GEMM operations.

Each raises DescriptionError with the rule, the two values that disagree, and what to change.
"""

from __future__ import annotations

from typing import Any, TypeVar

from pycutlass import _core
from pycutlass.epilogue import EpilogueFunctor, LinearCombinationClamp
from pycutlass.errors import DescriptionError
from pycutlass.instruction import MathInstruction
from pycutlass.library import TensorDescription, TileDescription
from pycutlass.operation.base import SHARED_MEMORY_LIMIT
from pycutlass.operation.mainloop import check_mainloop
from pycutlass.operation.outputs import check_output

__all__ = [
    "check_ampere",
    "check_epilogue",
    "check_native",
    "check_operand_types",
    "check_shared_memory",
    "expect",
]

_Kind = TypeVar("_Kind")

#: Types that an epilogue can compute in and write, by the accumulator's type.
_COMPUTED = {"f64": ("f64",), "f32": ("f32", "f16"), "f16": ("f16", "f32"), "s32": ("f32", "s32")}
_WRITTEN = {
    "f64": ("f64",),
    "f32": ("f32", "f16", "bf16", "s8"),
    "f16": ("f16", "f32", "bf16"),
    "s32": ("s32", "s8", "f32", "f16", "bf16"),
}


def expect(name: str, value: Any, kind: type[_Kind]) -> _Kind:
    """Return `value`, which must be a `kind`."""
    if isinstance(value, kind):
        return value
    raise DescriptionError(f"{name} must be a {kind.__name__}, got {value!r}")


def check_operand_types(math: MathInstruction, A: TensorDescription, B: TensorDescription) -> None:
    """Check that the operands are what the instruction multiplies."""
    for name, operand in (("A", A), ("B", B)):
        _check_matrix(name, operand)
        if operand.type is not math.a:
            raise DescriptionError(
                f"operand {name} is {operand.type}, the math instruction multiplies {math.a}: make them the same"
            )


def check_epilogue(math: MathInstruction, C: TensorDescription, functor: EpilogueFunctor) -> None:
    """Check that the epilogue takes the accumulator, and writes C."""
    _check_matrix("C", C)
    accumulator = math.accumulator
    if functor.accumulator is not accumulator:
        raise DescriptionError(
            f"the epilogue functor expects an accumulator of {functor.accumulator}, the math instruction makes "
            f"{accumulator}: give the functor element_accumulator={accumulator}"
        )
    if functor.output is not C.type:
        raise DescriptionError(f"the epilogue functor writes {functor.output}, operand C is {C.type}")
    if functor.epilogue_vector_length != C.alignment:
        raise DescriptionError(
            f"epilogue_vector_length={functor.epilogue_vector_length} must equal the alignment of C, {C.alignment}"
        )
    for what, chosen, allowed in (
        ("compute in", functor.compute, _COMPUTED[accumulator.short]),
        ("write", functor.output, _WRITTEN[accumulator.short]),
    ):
        if chosen.short not in allowed:
            raise DescriptionError(
                f"an epilogue of an accumulator of {accumulator} can {what} {', '.join(allowed)}; got {chosen}"
            )
    if functor.output.short == "s8" and not isinstance(functor, LinearCombinationClamp):
        raise DescriptionError(
            f"{type(functor).__name__} does not limit its result to the range of cutlass.int8: use "
            f"LinearCombinationClamp or FastLinearCombinationClamp"
        )


def check_native(
    compute_capability: int, math: MathInstruction, A: TensorDescription, B: TensorDescription, C: TensorDescription
) -> None:
    """Check the parts of a Hopper-native kernel."""
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
    if (A.layout, B.layout, C.layout) != (_core.RowMajor, _core.ColumnMajor, _core.RowMajor):
        raise DescriptionError(
            f"Hopper-native kernels take A RowMajor, B ColumnMajor and C RowMajor; got {A.order}, {B.order} and "
            f"{C.order}"
        )
    for name, operand in (("A", A), ("B", B), ("C", C)):
        if operand.alignment_bytes != 16:
            raise DescriptionError(
                f"TMA needs 16-byte alignment: operand {name} of {operand.type} needs alignment "
                f"{128 // operand.type.bits}, got {operand.alignment}"
            )


def check_ampere(
    compute_capability: int,
    tile: TileDescription,
    A: TensorDescription,
    B: TensorDescription,
    C: TensorDescription,
) -> None:
    """Check the parts of an Ampere-style (or Turing) kernel."""
    check_mainloop(compute_capability, tile, A, B, C)

    def loads(other: TileDescription) -> bool:
        """Whether `other` could be recommended in place of `tile`."""
        try:
            check_mainloop(compute_capability, other, A, B, C)
        except DescriptionError:
            return False
        return True

    check_output(tile, C, loads)


def check_shared_memory(compute_capability: int, tile: TileDescription) -> None:
    """Check that the pipeline's stages fit in the shared memory of the target."""
    limit = SHARED_MEMORY_LIMIT[compute_capability]
    needed = tile.stage_bytes() * (tile.stages or 2)
    if needed > limit:
        raise DescriptionError(
            f"{tile.stages or 2} stages of {list(tile.threadblock_shape)} need {needed:,} bytes of shared memory, "
            f"compute capability {compute_capability} has {limit:,} for one threadblock: use at most "
            f"{limit // tile.stage_bytes()} stages, or a smaller threadblock_shape"
        )


def _check_matrix(name: str, operand: TensorDescription) -> None:
    if operand.order.rank != 2:
        raise DescriptionError(f"operand {name} of a GEMM is a matrix, RowMajor or ColumnMajor; got {operand.order}")
