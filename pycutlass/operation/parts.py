"""What users give as parts of an operation: of the right kind, and in the words of the original's scripts.

Those are taken as what they mean, which is said once where it matters.
"""

from __future__ import annotations

from dataclasses import replace
from enum import EnumMeta
from typing import Any, TypeVar

from pycutlass import _core
from pycutlass.calls import member_meant, shown
from pycutlass.epilogue import Epilogue, EpilogueFunctor
from pycutlass.errors import DescriptionError
from pycutlass.instruction import MathInstruction
from pycutlass.library import TensorDescription, TileDescription
from pycutlass.log import say_once
from pycutlass.types import element

__all__ = [
    "expect",
    "over_f32",
    "single_loads",
    "single_stores",
    "take_further",
]

_Kind = TypeVar("_Kind")


def expect(name: str, value: Any, kind: type[_Kind]) -> _Kind:
    """Return `value`, which must be a `kind`."""
    if isinstance(value, kind):
        return value
    article = "an" if kind.__name__[0] in "AEIO" else "a"
    if isinstance(value, type) and issubclass(value, kind):
        raise DescriptionError(f"{name} is the class {value.__name__}; call it: {value.__name__}(...)")
    near = member_meant(value, kind, kind.__name__) if isinstance(kind, EnumMeta) else ""
    raise DescriptionError(f"{name} must be {article} {kind.__name__}, got {shown(value)}{near}")


def over_f32(tile: TileDescription, A: TensorDescription, B: TensorDescription) -> TileDescription:
    """Return the tile with the instruction that multiplies these operands.

    Where they are f32, an instruction of the type that they are rounded to is another name for one of f32.
    """
    math = tile.math_instruction
    if not A.type.short == B.type.short == "f32" or math.math_operation not in math.product.over_f32:
        return tile
    f32 = _core.float32
    return replace(tile, math_instruction=replace(math, element_a=f32, element_b=f32))


def single_loads(math: MathInstruction, name: str, operand: TensorDescription) -> TensorDescription:
    """Return an operand as a SIMT kernel loads it: f32 and f64 by single elements, whatever its alignment is."""
    if math.is_tensor_op or operand.type.is_integer or operand.alignment == 1:
        return operand
    say_once(
        f"SIMT kernels of {operand.type} load single elements: operand {name}, described with alignment "
        f"{operand.alignment}, is taken with alignment 1"
    )
    return replace(operand, alignment=1)


def single_stores(
    math: MathInstruction, activation: TensorDescription, C: TensorDescription, functor: EpilogueFunctor
) -> tuple[TensorDescription, EpilogueFunctor]:
    """Return the filter gradient of wgrad, and what writes it, as its channels allow: they are the activation's."""
    if not math.is_tensor_op or activation.alignment > 1 or C.alignment == 1:
        return C, functor
    if functor.epilogue_vector_length != C.alignment:
        return C, functor  # which is refused
    say_once(
        f"the filter gradient has the channels of the activation, which is described with alignment 1: wgrad takes "
        f"operand C, described with alignment {C.alignment}, with alignment 1 as well"
    )
    return replace(C, alignment=1), replace(functor, epilogue_vector_length=1)


def take_further(operation: str, functor: Epilogue, direct_store: bool, element_epilogue: Any) -> None:
    """Take keywords that the original's scripts give, and that change nothing: said once."""
    if direct_store:
        say_once(f"{operation}: direct_store is ignored, results are written through shared memory")
    if element_epilogue is None:
        return
    if element(element_epilogue) is not functor.compute:
        raise DescriptionError(
            f"element_epilogue={element(element_epilogue)} disagrees with the epilogue functor, which computes in "
            f"{functor.compute}: leave it out, or make the functor with it"
        )
    say_once(f"{operation}: element_epilogue is ignored, the epilogue functor says what to compute in")
