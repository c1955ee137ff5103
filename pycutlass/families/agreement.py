"""How parts of a description that disagree are made to agree: what messages tell to do, all at once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pycutlass.enums import MathOperation
from pycutlass.errors import DescriptionError
from pycutlass.families.other_family import listed
from pycutlass.families.parts import Epilogue, Math, Tensor, changed
from pycutlass.types import Element

__all__ = ["check_alignments", "mended", "or_instruction", "or_upcast", "retyped", "with_alignments"]

_UPCAST = MathOperation.multiply_add_mixed_input_upcast


def retyped(operand: Tensor, kind: Element) -> str:
    """Return what to describe an operand with to have it of another type, its accesses as wide if they can be."""
    return f"{kind} and alignment {max(1, operand.alignment_bytes * 8 // kind.bits)}"


def or_instruction(math: Math, A: Tensor, B: Tensor) -> str:
    """Return what to give the instruction instead, if there is one of the operands' type."""
    try:
        changed(math, element_a=A.type.tag, element_b=B.type.tag)
    except DescriptionError:
        return ""
    return f", or give the math instruction element_a={A.type} and element_b={B.type}"


def or_upcast(math: Math) -> str:
    """Return what Ampere-style instruction to give for operands of which one is converted to the other's type."""
    kinds = {math.a.short, math.b.short}
    if not (kinds & {"f16", "bf16"} and kinds & {"s8", "u8"}):
        return ""
    return (
        f", or give instruction_shape=[16, 8, 16], opcode_class=cutlass.OpClass.TensorOp and "
        f"math_operation={_UPCAST!r} for an Ampere-style kernel that converts it in registers"
    )


def mended(
    name: str, C: Tensor, functor: Epilogue, fields: Mapping[str, Any], alignment: int, written: tuple[str, ...]
) -> str:
    """Return how functor and C are made to agree; C may be of the functor's type if as many bytes are moved at once."""
    text = ""
    if fields:
        text = f"give the functor {listed(f'{field}={value}' for field, value in fields.items())}"
    try:
        changed(functor, **{field: getattr(value, "tag", value) for field, value in fields.items()})
    except DescriptionError:  # it cannot write that, say
        kinds = [fields.get(f"element_{each}") for each in ("output", "accumulator", "epilogue")]
        output, accumulator, compute = (
            known or own
            for known, own in zip(kinds, (functor.output, functor.accumulator, functor.compute), strict=True)
        )
        text = f"use LinearCombination({output}, {alignment}, {accumulator}, {compute})"
    if C.alignment != alignment:
        text = f"describe {name} with alignment {alignment}{f' and {text}' if text else ''}"
    length = functor.epilogue_vector_length
    if (
        "element_output" in fields
        and fields.keys() <= {"element_output", "epilogue_vector_length"}
        and functor.output.short in written
        and length * functor.output.bits == alignment * C.type.bits
    ):
        text += f", or describe {name} with {functor.output} and alignment {length}"
    return text


def with_alignments(alignments: Mapping[str, int], written: str = "C") -> str:
    """Return how to describe operands with these alignments; that of the one that is `written` is the functor's."""
    by_alignment: dict[int, list[str]] = {}
    for name, alignment in alignments.items():
        by_alignment.setdefault(alignment, []).append(name)
    text = "describe " + " and ".join(
        f"{' and '.join(names)} with alignment {alignment}" for alignment, names in by_alignment.items()
    )
    if written not in alignments:
        return text
    return f"{text} and give the epilogue functor epilogue_vector_length={alignments[written]}"


def check_alignments(
    rule: str, wanted: Mapping[str, tuple[Tensor, int]], instead: str = "", written: str = "C"
) -> None:
    """Check that operands have the alignments that they need, and say at once of all what they have."""
    wrong = {name: (operand, least) for name, (operand, least) in wanted.items() if operand.alignment != least}
    if wrong:
        found = "; ".join(
            f"operand {name} of {operand.type} needs alignment {least}, got {operand.alignment}"
            for name, (operand, least) in wrong.items()
        )
        mended = with_alignments({name: least for name, (_, least) in wrong.items()}, written)
        raise DescriptionError(f"{rule}: {found}; {mended}{instead}")
