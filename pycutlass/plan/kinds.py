"""Which kind of GEMM tensors ask for: what is multiplied, summed up and written."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from pycutlass import cutlass
from pycutlass.calls import counted, shown
from pycutlass.enums import MathOperation
from pycutlass.epilogue import (
    Activation,
    Epilogue,
    EpilogueFunction,
    EpilogueFunctor,
    EpilogueVisitTree,
    LinearCombination,
    LinearCombinationGeneric,
    VisitorEpilogue,
)
from pycutlass.epilogue.handles import is_handle
from pycutlass.errors import ArgumentError, ArgumentTypeError, DescriptionError
from pycutlass.integers import attribute
from pycutlass.library import TensorDescription
from pycutlass.plan.composed import Composed, TypedFunction
from pycutlass.plan.forms import Columns, Form
from pycutlass.plan.kind import GemmKind
from pycutlass.types import ELEMENTS, Element, element

__all__ = [
    "Wanted",
    "accumulator_of",
    "check_columns",
    "check_epilogue",
    "check_types",
    "columns_of",
    "decisive",
    "epilogue_of",
    "is_gated",
    "is_upcast",
    "kind_of",
    "loads_singly",
    "multiplied",
    "why_unwritten",
]

_PAIR = 2  # columns
_HALF = 16  # bits
_PRECISIONS = ("float32", "tf32", "3xtf32")


@dataclass(frozen=True)
class Wanted:
    """What a caller wants beside the tensors.

    Attributes
    ----------
    epilogue : Epilogue, EpilogueFunction, Activation, class of one, or None
        What happens to the sums.
    out_dtype, accumulator_dtype : element type, or None for the usual one
        What is written and summed up in.
    precision : str or None
        How float32 is multiplied: ``"float32"``, ``"tf32"`` or ``"3xtf32"``.
    """

    epilogue: Any = None
    out_dtype: Any = None
    accumulator_dtype: Any = None
    precision: str | None = None

    def output(self, a: Element) -> Element:
        """Return the type of the result of operands of type `a`."""
        if self.out_dtype is not None:
            return element(self.out_dtype)
        if isinstance(self.epilogue, Epilogue):
            return self.epilogue.output
        return element(cutlass.bfloat16) if a.is_float8 else element(cutlass.int32) if a.is_integer else a

    def into(self, out: Element, name: str = "out") -> Wanted:
        """Return what is wanted where the result goes into a tensor of type `out`, which the caller calls `name`.

        Raises
        ------
        ArgumentError
            `out_dtype` says another type.
        """
        if self.out_dtype is None:  # an epilogue with types has its own
            return self if hasattr(self.epilogue, "output") else replace(self, out_dtype=out.tag)
        asked = element(self.out_dtype)
        if asked.dtype_name != out.dtype_name:
            raise ArgumentError(
                f"{name} is of {out.dtype_name} and out_dtype is {asked}, and the result has one type: leave out_dtype "
                f"out, or pass an {name} of {asked.dtype_name}"
            )
        return self


def kind_of(
    a: Element,
    b: Element,
    forms: tuple[Form, Form, Form | None, Form],
    wanted: Wanted,
    names: tuple[str, str] = ("a", "b"),
) -> GemmKind:
    """Return the kind of GEMM of operands of types `a` and `b`.

    Parameters
    ----------
    a, b : Element
        Types of A and B.
    forms : tuple of Form
        Of A, B, C and D; the C of None is like D.
    wanted : Wanted
        What the caller asks for.
    names : tuple of 2 str
        What the caller calls A and B.

    Raises
    ------
    ArgumentError
        Types that are not multiplied with each other.
    DescriptionError
        An epilogue that cannot be computed or written so.
    """
    check_types(a, b, names, upcast=True)
    check_epilogue(wanted.epilogue)
    of_a, of_b, of_c, of_d = forms
    if is_gated(wanted.epilogue) and not of_d.is_row_major:
        raise ArgumentError(
            f"the epilogue {shown(wanted.epilogue)} combines pairs of columns, which threads have side by side where "
            f"elements of rows are adjacent, and those of out are not: pass an out whose rows are adjacent"
        )
    of = decisive(a, b)
    out, accumulator = wanted.output(of), accumulator_of(of, wanted)
    element_a, element_b, math = multiplied(a, b, wanted.precision)
    singly = loads_singly(a, element_a, math)
    if singly:
        of_a, of_b = replace(of_a, alignment=1), replace(of_b, alignment=1)
        if not is_gated(wanted.epilogue):
            of_d = replace(of_d, alignment=1)
        elif a.short == "f32":  # of f64, tensor cores store pairs
            raise ArgumentError(
                f"the epilogue {shown(wanted.epilogue)} combines pairs of columns, and kernels of float32 store single "
                f"elements: pass precision='3xtf32' or 'tf32', whose kernels store pairs"
            )
    D = _description(out, of_d)
    C = D if of_c is None else _description(out, of_c)
    length, of_singles = min(C.alignment, D.alignment), a.dtype_name if singly else ""
    epilogue, written = epilogue_of(wanted.epilogue, out, length, accumulator, of_singles)
    C, D = (TensorDescription(each.element, each.layout, written) for each in (C, D))
    A, B = _description(a, of_a), _description(b, of_b)
    return GemmKind(A, B, C, D, element_a, element_b, accumulator.tag, math, epilogue)


def loads_singly(a: Element, multiplied_as: Any, math: MathOperation) -> bool:
    """Return whether kernels load single elements, whatever the alignment is, and store such where they need no pairs.

    CUDA cores do, and tensor cores of f64.
    """
    plain = multiplied_as is not cutlass.tfloat32 and math is MathOperation.multiply_add
    return a.short in ("f32", "f64") and plain


def _description(of: Element, form: Form) -> TensorDescription:
    layout = cutlass.RowMajor if form.is_row_major else cutlass.ColumnMajor
    return TensorDescription(of.tag, layout, min(form.alignment, 128 // of.bits))


def check_types(a: Element, b: Element, names: tuple[str, str] = ("a", "b"), *, upcast: bool = False) -> None:
    """Raise ArgumentError for types that are not multiplied with each other; `names` are the caller's.

    With `upcast`, kernels are considered that convert one operand to the type of the other one.
    """
    if a is b or (a.is_byte and b.is_byte) or (a.is_float8 and b.is_float8) or (upcast and is_upcast(a, b)):
        return
    wider = a if a.bits > b.bits else b
    also = ", float16 or bfloat16 with int8 or uint8" if upcast else ""
    raise ArgumentError(
        f"{names[0]} is {a.dtype_name} and {names[1]} is {b.dtype_name}: kernels multiply equal types, int8 with "
        f"uint8{also}, and one float of 8 bits with another. Convert one, for example to {wider.dtype_name}"
    )


def is_upcast(a: Element, b: Element) -> bool:
    """Return whether one of two operands is an integer of 8 bits, and is converted to the other one's 16-bit float."""
    wide, narrow = (a, b) if a.bits > b.bits else (b, a)
    return narrow.is_byte and wide.bits == _HALF and not wide.is_integer


def decisive(a: Element, b: Element) -> Element:
    """Return the operands' type by which those of sums and result are chosen: the float's, where one is an integer."""
    return b if a.is_integer and not b.is_integer else a


def accumulator_of(a: Element, wanted: Wanted) -> Element:
    """Return what is summed up in."""
    usual = cutlass.int32 if a.is_integer else cutlass.float64 if a.short == "f64" else cutlass.float32
    return element(usual if wanted.accumulator_dtype is None else wanted.accumulator_dtype)


def multiplied(a: Element, b: Element, precision: str | None) -> tuple[Any, Any, MathOperation]:
    """Return what is multiplied, and how: float32 as it is unless something else is asked for."""
    if precision is not None and not (type(precision) is str and precision in _PRECISIONS):
        raise ArgumentError(f"precision must be one of {', '.join(map(repr, _PRECISIONS))}, got {shown(precision)}")
    if a.short != "f32":
        if precision is not None:
            raise ArgumentError(f"precision={precision!r} is for operands of float32, and these are {a.dtype_name}")
        upcast = MathOperation.multiply_add_mixed_input_upcast
        return a.tag, b.tag, upcast if is_upcast(a, b) else MathOperation.multiply_add
    if precision == "tf32":
        return cutlass.tfloat32, cutlass.tfloat32, MathOperation.multiply_add
    if precision == "3xtf32":
        return cutlass.float32, cutlass.float32, MathOperation.multiply_add_fast_f32
    return cutlass.float32, cutlass.float32, MathOperation.multiply_add


_ACTIVATIONS = ("relu", "leaky_relu", "tanh", "sigmoid", "silu", "hardswish", "gelu", "gelu_tanh")


def check_epilogue(given: Any, name: str = "epilogue") -> None:
    """Raise ArgumentTypeError unless this is an epilogue functor, an activation or an epilogue function, or None.

    Messages call it `name`.
    """
    is_class = isinstance(given, type) and issubclass(given, Activation | EpilogueFunctor)
    kinds = Activation | Composed | EpilogueFunction | TypedFunction | Epilogue
    if isinstance(given, EpilogueVisitTree | VisitorEpilogue):
        raise ArgumentTypeError(
            f"{name} is an EpilogueVisitTree, which has the tile of one kernel, got {shown(given)}: describe that "
            f"kernel as GemmOperationUniversal, or write what is computed as an epilogue function, which is for any"
        )
    if given is not None and not is_class and not isinstance(given, kinds):
        called = given if type(given) is str else attribute(given, "__name__")
        how = "decorate a function of your own with pycutlass.epilogue_function"
        if type(called) is str and called in _ACTIVATIONS:
            how = f"pass pycutlass.{called}"
        elif is_handle(given):
            how = "pass the function itself, pycutlass.pytorch.epilogue_of(handle)"
        elif type(given) is str:
            how = "pass the activation or the function itself, such as pycutlass.gelu or fusions.bias_gelu"
        raise ArgumentTypeError(
            f"{name} must be an epilogue functor, an activation or an epilogue function, got {shown(given)}: {how}"
        )


def why_unwritten(a: Element, accumulator: Element, out: Element, *, of_integers: bool = True) -> str:
    """Return why no kernel of operands of type `a` has such sums, or writes such a type; "" where some may.

    Without `of_integers`, none writes integers of 8 bits.
    """
    usual = accumulator_of(a, Wanted())
    if accumulator is not usual and not (accumulator.short == a.short == "f16"):
        return f". Kernels of {a} sum up in {usual}, and none does in {accumulator}: leave accumulator_dtype out"
    written = ["f64"] if a.short == "f64" else ["f16", "bf16", "f32", *(["s8"] if of_integers else [])]
    written += ["s32"] if a.is_integer else []
    if out.short in written:
        return ""
    named = ", ".join(each.name for each in ELEMENTS if each.short in written)
    return f". Kernels of {a} write {named}, and none writes {out} here: pass another out_dtype"


def columns_of(epilogue: Any) -> Columns:
    """Return what says how many columns D has, of an epilogue with or without its types."""
    return (lambda n: n // 2) if is_gated(epilogue) else (lambda n: n)


def is_gated(epilogue: Any) -> bool:
    """Return whether an epilogue combines pairs of columns, so that D has half as many."""
    return bool(getattr(getattr(epilogue, "graph", None), "is_gated", False))


def check_columns(epilogue: Any, columns: int, right: str = "b", *, are_written: bool = True) -> None:
    """Raise ArgumentError where an epilogue combines pairs of columns, and a product of `right` has an odd number.

    So too where half as many are `are_written`, two at once, and are an odd number.
    """
    if is_gated(epilogue) and columns % (2 * _PAIR if are_written else _PAIR):
        added = -columns % (2 * _PAIR)
        raise ArgumentError(
            f"the epilogue combines pairs of columns, which are written together: the product must have a multiple of "
            f"4 columns, and has {counted(columns, 'column')}. Pad {right} with {counted(added, 'column')} of zeros, "
            f"for an out of {(columns + added) // 2} columns"
        )


def epilogue_of(
    given: Any, out: Element, length: int, accumulator: Element, of_singles: str = ""
) -> tuple[Epilogue, int]:
    """Return the epilogue with its types, a linear combination where none is given, and how much it writes at once.

    `of_singles` is the type of operands whose kernels store single elements, whatever the alignment is.

    Raises
    ------
    ArgumentError
        It writes more elements at once than `length`, to which C and D are aligned, or it is of other types.
    DescriptionError
        It computes in fractions, and the result is of integers that nothing else is said of.
    """
    if is_gated(given) and length < _PAIR:
        raise ArgumentError(
            f"the epilogue {shown(given)} combines pairs of columns, which are written together: addresses and rows of "
            f"out must be multiples of 2 elements. Pass an out that is aligned so"
        )
    epilogue = _with_types(given, out, length, accumulator)
    _check_types_of(epilogue, out, accumulator)
    written = int(getattr(epilogue, "epilogue_vector_length", length))
    if written > length:
        why, how = f"c and out are aligned to {counted(length, 'element')}", ""
        if of_singles:
            why = f"kernels of {of_singles} store single elements"
            how = ", or pass precision='3xtf32' or 'tf32', whose kernels store several" * (of_singles == "float32")
        raise ArgumentError(
            f"the epilogue {epilogue!r} writes {written} elements at once, and {why}: make it with "
            f"epilogue_vector_length={length}, or leave its types to the plan{how}"
        )
    return epilogue, written


def _check_types_of(epilogue: Epilogue, out: Element, accumulator: Element) -> None:
    """Raise ArgumentError for an epilogue with types of its own that are not those of the sums and of the result."""
    if epilogue.accumulator is not accumulator:
        raise ArgumentError(
            f"the epilogue {epilogue!r} expects sums of {epilogue.accumulator}, and those of these operands are of "
            f"{accumulator}: make it with element_accumulator={accumulator}, or leave its types to the plan"
        )
    if epilogue.output is not out:
        raise ArgumentError(
            f"the epilogue {epilogue!r} writes {epilogue.output}, and the result is of {out}, as out or out_dtype "
            f"says: make it with element_output={out}, or leave its types to the plan"
        )


def _check_fractions(given: Any, out: Element, length: int, accumulator: Element) -> None:
    """Raise DescriptionError for what computes in fractions, where the result is of integers."""
    types = f"cutlass.{out.dtype_name}, {length}, {accumulator}, cutlass.float32"
    if isinstance(given, EpilogueFunction | TypedFunction):
        name = (given.function if isinstance(given, TypedFunction) else given).name
        typed = f"{name}({types})"
    elif isinstance(given, Activation) and not given.of_integers:
        name = type(given).__name__
        typed = f"LinearCombinationGeneric(pycutlass.{name}, {types})"
    else:
        return
    raise DescriptionError(
        f"the result is of {out.dtype_name}, and {name} is computed in fractions: pass out_dtype=cutlass.float32, say, "
        f"or an out of such a type; or, for {out.dtype_name}, the epilogue with its types, {typed}"
    )


def _with_types(given: Any, out: Element, length: int, accumulator: Element) -> Epilogue:
    """Return the epilogue with its types."""
    compute = cutlass.int32 if out.short == "s32" else accumulator.tag
    if accumulator.is_integer and out.short != "s32":
        compute = cutlass.float32
    types = (out.tag, length, accumulator.tag, compute)
    if given is None or given is LinearCombination:
        return LinearCombination(*types)
    if isinstance(given, type) and issubclass(given, Activation):
        given = given()
    if element(compute).is_integer:
        _check_fractions(given, out, length, accumulator)
    if isinstance(given, Activation):
        return LinearCombinationGeneric(given, *types)
    if isinstance(given, Composed | TypedFunction):
        typed: Epilogue = given.typed(out, length, accumulator, compute)
        return typed
    if isinstance(given, EpilogueFunction):
        return given(*types)
    if isinstance(given, type) and issubclass(given, EpilogueFunctor):
        return given(*types)
    assert isinstance(given, Epilogue)
    return given
