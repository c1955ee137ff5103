"""C++ text that kernels of several kinds share, and parts of their names."""

from __future__ import annotations

from typing import Any, Protocol

from pycutlass.enums import KernelSchedule, MathOperation, SchedulerMode
from pycutlass.epilogue import Epilogue
from pycutlass.families import AMPERE, SM90, Family, sm90
from pycutlass.library import TensorDescription, TileDescription

__all__ = ["ampere_arguments", "gemm_text", "grouped_text", "math_name", "shape_text"]

_MATH_TAGS = {
    MathOperation.multiply_add_fast_f16: "f16",
    MathOperation.multiply_add_fast_bf16: "bf16",
    MathOperation.multiply_add_fast_f32: "3xtf32",
}


_GROUP_SCHEDULES = {
    SchedulerMode.Device: "cutlass::gemm::kernel::GroupScheduleMode::kDeviceOnly",
    SchedulerMode.Host: "cutlass::gemm::kernel::GroupScheduleMode::kHostPrecompute",
}


class _Described(Protocol):
    """What is read of an operation."""

    tile_description: TileDescription
    A: TensorDescription
    B: TensorDescription
    C: TensorDescription
    epilogue_functor: Epilogue
    swizzling_functor: Any
    compute_capability: int


class _Gemm(_Described, Protocol):
    """What is read of a GEMM."""

    D: TensorDescription


def gemm_text(operation: _Gemm) -> str:
    """Return the C++ of a GEMM, without the line that names the kernel."""
    if operation.tile_description.family is SM90:
        return _sm90_text(operation, operation.tile_description.stages, "gemm_sm90.h", "GemmSm90")
    is_tree = operation.epilogue_functor.is_tree
    header, template = ("gemm_visitor.h", "GemmVisitor") if is_tree else ("gemm_universal.h", "GemmUniversal")
    return (
        f'#include "pycutlass/{header}"\n\n'
        f"{operation.epilogue_functor.definitions(Family.AMPERE_GEMM)}"
        f"using Operation = pycutlass::{template}<\n{ampere_arguments(operation)}>;\n"
    )


def grouped_text(operation: _Gemm, mode: SchedulerMode) -> str:
    """Return the C++ of a group of which each problem is a GEMM, without the line that names the kernel."""
    tile = operation.tile_description
    if tile.family is SM90:
        # CUTLASS may choose one stage too many for a group.
        stages = sm90.stages_of(tile, operation.C, grouped=True)
        chosen = tile.stages is None and stages == sm90.chosen_stages(tile, operation.C, grouped=True)
        return _sm90_text(operation, None if chosen else stages, "gemm_grouped_sm90.h", "GemmGroupedSm90")
    each = gemm_text(operation).replace("using Operation =", "using Problem =")
    return (
        '#include "pycutlass/gemm_grouped.h"\n'
        f"{each}\n"
        f"using Operation = pycutlass::GemmGrouped<Problem, {_GROUP_SCHEDULES[mode]}>;\n"
    )


def _sm90_text(operation: _Gemm, stages: int | None, header: str, template: str) -> str:
    """Return the C++ of a Hopper-native kernel; without `stages`, CUTLASS chooses how many there are."""
    tile = operation.tile_description
    schedule = tile.kernel_schedule or KernelSchedule.Cooperative
    written = "" if operation.D == operation.C else f",\n    {_tensor_text(operation.D)}"
    return (
        f'#include "pycutlass/{header}"\n\n'
        f"{operation.epilogue_functor.definitions(Family.SM90_GEMM)}"
        f"using Operation = pycutlass::{template}<\n"
        f"    {_tensor_text(operation.A)},\n"
        f"    {_tensor_text(operation.B)},\n"
        f"    {_tensor_text(operation.C)},\n"
        f"    {tile.math_instruction.accumulator.cpp}, {_static_shape(tile.threadblock_shape)},\n"
        f"    {_static_shape(tile.cluster_shape or (1, 1, 1))},\n"
        f"    {operation.epilogue_functor.cpp(Family.SM90_GEMM, operation.C.type)},\n"
        f"    pycutlass::{schedule.name}, {stages or 0}{written}>;\n"
    )


def ampere_arguments(operation: _Described) -> str:
    """Return the template arguments of every Ampere-style kernel, from operand A to the math operation."""
    tile, math = operation.tile_description, operation.tile_description.math_instruction
    return (
        f"    {_tensor_text(operation.A)},\n"
        f"    {_tensor_text(operation.B)},\n"
        f"    {_tensor_text(operation.C)},\n"
        f"    {math.accumulator.cpp}, cutlass::arch::OpClass{math.opcode_class.name}, "
        f"cutlass::arch::Sm{AMPERE.tag(operation.compute_capability)},\n"
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


def _tensor_text(operand: TensorDescription) -> str:
    """Return an operand's description in C++."""
    return f"pycutlass::Tensor<{operand.type.cpp}, {operand.order.cpp}, {operand.alignment}>"


def shape_text(shape: tuple[int, int, int]) -> str:
    """Return a shape in C++."""
    return f"cutlass::gemm::GemmShape<{', '.join(map(str, shape))}>"


def _static_shape(shape: tuple[int, int, int]) -> str:
    """Return a shape in CuTe's C++."""
    return f"cute::Shape<{', '.join(f'cute::Int<{extent}>' for extent in shape)}>"
