"""The parts that operations are described with, checked to be of the right kind.

What the original's scripts give in other words is taken as what it means, which is said once where it matters.
"""

from __future__ import annotations

from dataclasses import replace
from enum import EnumMeta
from types import FunctionType
from typing import Any, TypeVar

from pycutlass import _core
from pycutlass.calls import member_meant, shown
from pycutlass.epilogue import Epilogue, EpilogueFunction, EpilogueFunctor
from pycutlass.epilogue.functors import for_activation_of
from pycutlass.errors import DescriptionError
from pycutlass.families import AMPERE, SHARED_MEMORY_LIMIT
from pycutlass.families.parts import changed
from pycutlass.integers import as_int
from pycutlass.library import MathInstruction, TensorDescription, TileDescription
from pycutlass.log import say_once
from pycutlass.operation.hints import capability_meant
from pycutlass.types import element

__all__ = ["check_capability", "expect", "over_f32", "single_loads", "single_stores", "take_further"]

_Kind = TypeVar("_Kind")


def expect(name: str, value: Any, kind: type[_Kind]) -> _Kind:
    """Return `value`, which must be a `kind`."""
    if isinstance(value, kind):
        return value
    article = "an" if kind.__name__[0] in "AEIO" else "a"
    if isinstance(value, type) and issubclass(value, kind):
        raise DescriptionError(f"{name} is the class {value.__name__}; call it: {value.__name__}(...)")
    near = member_meant(value, kind, kind.__name__) if isinstance(kind, EnumMeta) else ""
    if kind is EpilogueFunctor:
        near = for_activation_of(value).replace(" For", ". For")
        if isinstance(value, EpilogueFunction):
            near = f": call it with types, as in {value.name}(cutlass.float16, 8)"
        elif isinstance(value, FunctionType):
            near = ": decorate it with pycutlass.epilogue_function, and call that with types"
    if name == "C" and value is None:
        near = ": describe D by it, and leave C out of a launch that has none"
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
    if math.is_tensor_op or math.family is not AMPERE or operand.type.is_integer or operand.alignment == 1:
        return operand
    say_once(
        f"SIMT kernels of {operand.type} load single elements: operand {name}, described with alignment "
        f"{operand.alignment}, is taken with alignment 1"
    )
    return replace(operand, alignment=1)


def single_stores(
    math: MathInstruction, activation: TensorDescription, C: TensorDescription, functor: Epilogue
) -> tuple[TensorDescription, Epilogue]:
    """Return the filter gradient of wgrad, and what writes it, as its channels allow: they are the activation's."""
    if not math.is_tensor_op or activation.alignment > 1 or C.alignment == 1:
        return C, functor
    if functor.epilogue_vector_length != C.alignment:
        return C, functor  # which is refused
    say_once(
        f"the filter gradient has the channels of the activation, which is described with alignment 1: wgrad takes "
        f"operand C, described with alignment {C.alignment}, with alignment 1 as well"
    )
    return replace(C, alignment=1), changed(functor, epilogue_vector_length=1)


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


def check_capability(value: Any) -> int:
    """Return a compute capability that kernels are described with, or raise with the ones that exist."""
    capability = as_int(value)
    if capability in SHARED_MEMORY_LIMIT:
        return capability
    known = ", ".join(map(str, SHARED_MEMORY_LIMIT))
    raise DescriptionError(
        f"compute_capability must be one of {known}, got {shown(value)}.{capability_meant(capability, value)}"
    )
