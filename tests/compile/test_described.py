"""What a kernel says of its operands and of its epilogue, against what it was described with."""

from __future__ import annotations

from typing import Any

import pytest
from convolutions import OPERATIONS
from descriptions import ROW, TAG, native_parts, parts

import pycutlass
from pycutlass import _core, cutlass
from pycutlass.epilogue.scalars import EpilogueLayout
from pycutlass.operation import GemmOperationGrouped, GemmOperationUniversal, ReductionOperation
from pycutlass.toolchain import HostCompiler, Processes

pytestmark = pytest.mark.compile


def leaky(output: str, compute: str = "f32") -> Any:
    tags = (TAG[output], 128 // pycutlass.types.element(TAG[output]).bits, TAG["f32"], TAG[compute])
    return pycutlass.LinearCombinationGeneric(pycutlass.leaky_relu(), *tags)


ROW_F16 = pycutlass.TensorDescription(TAG["f16"], ROW, 8)
DESCRIBED = {
    "ampere": GemmOperationUniversal(**parts("f16") | {"epilogue_functor": leaky("f16")}),
    "tf32": GemmOperationUniversal(**parts("tf32")),
    "computes in f16": GemmOperationUniversal(**parts("f16_acc16")),
    "int8": GemmOperationUniversal(
        80,
        pycutlass.TileDescription(
            [128, 128, 64],
            3,
            [2, 2, 1],
            pycutlass.MathInstruction([16, 8, 32], TAG["s8"], TAG["s8"], TAG["s32"], cutlass.OpClass.TensorOp),
        ),
        pycutlass.TensorDescription(TAG["s8"], ROW, 16),
        pycutlass.TensorDescription(TAG["s8"], cutlass.ColumnMajor, 16),
        pycutlass.TensorDescription(TAG["s8"], ROW, 16),
        pycutlass.LinearCombinationClamp(TAG["s8"], 16, TAG["s32"], TAG["f32"]),
    ),
    "reduction": ReductionOperation(cutlass.MatrixCoord(4, 256), ROW_F16, cutlass.float32, count=8),
    "hopper": GemmOperationUniversal(
        **native_parts(operand="bf16", output="bf16") | {"epilogue_functor": leaky("bf16")}
    ),
    "hopper group": GemmOperationGrouped(**native_parts()),
    "convolution": OPERATIONS["f16_wgrad_swizzle2"],
}


@pytest.fixture(scope="module", params=DESCRIBED)
def described(request: pytest.FixtureRequest, host_compiler: HostCompiler) -> tuple[Any, _core.HostLibrary]:
    """An operation and its host side."""
    operation = DESCRIBED[request.param]
    target = "sm_90a" if operation.is_sm90 else "sm_80"
    return operation, _core.HostLibrary(host_compiler.compile(operation.source(), target, Processes(1, 8 << 30)).binary)


def test_a_kernel_knows_the_types_of_its_operands(described: Any) -> None:
    operation, host = described
    if isinstance(operation, ReductionOperation):
        assert host.elements == {"A": "f32", "C": "f16", "D": "f16"}
        return
    A, B, C = (operation.A.type.short, operation.B.type.short, operation.C.type.short)
    assert host.elements == {"A": A, "B": B, "C": C, "D": C}


def test_a_kernel_takes_the_scalars_of_its_functor(described: Any) -> None:
    operation, host = described
    functor, layout = operation.epilogue_functor, EpilogueLayout(host.epilogue_bytes, host.epilogue_fields)
    assert layout.scalars == {*functor.scalar_names}
    steps = [field for field in layout.fields if field.kind == "stride"]  # from one matrix of a batch to the next
    assert [field.name for field in steps] == ["alpha", "beta"] * bool(steps) and {f.element for f in steps} <= {"s64"}
    assert bool(steps) == operation.is_sm90
    assert {field.element for field in layout.fields if field not in steps} == {functor.compute.short}
    assert {field.name for field in layout.fields if field.kind == "address"} == {"alpha", "beta"}
    ends = [field.offset + field.bytes for field in layout.fields]
    assert all(end <= field.offset for end, field in zip(ends, layout.fields[1:], strict=False))
    assert ends[-1] <= layout.size
    packed = functor.epilogue_type(1.5, -2.0).packed(layout)
    assert len(packed) == host.epilogue_bytes
