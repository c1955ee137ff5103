"""C++ text that kernels of several kinds share, and parts of their names."""

from __future__ import annotations

from typing import Any, Protocol

from pycutlass.enums import MathOperation
from pycutlass.epilogue import Epilogue, Family
from pycutlass.library import TensorDescription, TileDescription

__all__ = ["ampere_arguments", "math_name", "shape_text", "static_shape", "tensor_text"]

_MATH_TAGS = {
    MathOperation.multiply_add_fast_f16: "f16",
    MathOperation.multiply_add_fast_bf16: "bf16",
    MathOperation.multiply_add_fast_f32: "3xtf32",
}


class _Ampere(Protocol):
    """What is read of an Ampere-style operation."""

    tile_description: TileDescription
    A: TensorDescription
    B: TensorDescription
    C: TensorDescription
    epilogue_functor: Epilogue
    swizzling_functor: Any

    @property
    def family(self) -> int:
        """Compute capability that the kernel's C++ is tagged with."""


def ampere_arguments(operation: _Ampere) -> str:
    """Return the template arguments of every Ampere-style kernel, from operand A to the math operation."""
    tile, math = operation.tile_description, operation.tile_description.math_instruction
    return (
        f"    {tensor_text(operation.A)},\n"
        f"    {tensor_text(operation.B)},\n"
        f"    {tensor_text(operation.C)},\n"
        f"    {math.accumulator.cpp}, cutlass::arch::OpClass{math.opcode_class.name}, "
        f"cutlass::arch::Sm{operation.family},\n"
        f"    {shape_text(tile.threadblock_shape)}, {shape_text(tile.warp_shape)},\n"
        f"    {shape_text(math.instruction_shape or (1, 1, 1))},\n"
        f"    {operation.epilogue_functor.cpp(Family.AMPERE_GEMM)},\n"
        f"    {operation.swizzling_functor.tag()}, {tile.stages}, {math.operator_cpp}"
    )


def math_name(tile: TileDescription) -> str:
    """Return accumulator, instruction and math operation as in CUTLASS's kernel names: ``s16816`` or ``s1688bf16``."""
    math = tile.math_instruction
    shape = "".join(map(str, math.instruction_shape or ())) if math.is_tensor_op else ""
    return f"{math.accumulator.letter}{shape}{_MATH_TAGS.get(math.math_operation, '')}"


def tensor_text(operand: TensorDescription) -> str:
    """Return an operand's description in C++."""
    return f"pycutlass::Tensor<{operand.type.cpp}, {operand.order.cpp}, {operand.alignment}>"


def shape_text(shape: tuple[int, int, int]) -> str:
    """Return a shape in C++."""
    return f"cutlass::gemm::GemmShape<{', '.join(map(str, shape))}>"


def static_shape(shape: tuple[int, int, int]) -> str:
    """Return a shape in CuTe's C++."""
    return f"cute::Shape<{', '.join(f'cute::Int<{extent}>' for extent in shape)}>"
