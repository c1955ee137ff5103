"""Epilogue functors: what happens to an accumulator on its way to D.

The one with an activation is in `generic`, the one that converts by a trick in `fast_clamp`.

A functor is one object that checks itself, spells its C++, makes its scalars and carries its reference.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from pycutlass.calls import public, shown
from pycutlass.epilogue.activations import activation_named
from pycutlass.epilogue.protocol import Epilogue, Family, Port, Scalar
from pycutlass.epilogue.scalars import EpilogueScalars
from pycutlass.errors import DescriptionError
from pycutlass.families.parts import changed
from pycutlass.integers import as_int
from pycutlass.library import Value
from pycutlass.log import say_once
from pycutlass.types import Element, computed, element

__all__ = [
    "EpilogueFunctor",
    "LinearCombination",
    "LinearCombinationClamp",
    "for_activation",
    "for_activation_of",
]

_LINEAR = (Scalar("alpha", 1.0, on_device=True), Scalar("beta", 0.0, on_device=True))
#: Beta where it is left out: 0, as help shows, and another object than any 0 that somebody gives.
_NO_BETA: Any = float(0)
#: Functors that CUTLASS has, and where they are.
_FUNCTORS = ("LinearCombination", "LinearCombinationClamp", "FastLinearCombinationClamp", "LinearCombinationGeneric")
_MODULES = (__name__, "pycutlass.epilogue.fast_clamp", "pycutlass.epilogue.generic")
_COMPUTE = ("f16", "f32", "f64", "s32")

Array = NDArray[Any]


def for_activation(written: str = "pycutlass.relu()") -> str:
    """Return what to use for an activation."""
    return f"For an activation, use LinearCombinationGeneric({written}, element_output, epilogue_vector_length, ...)."


def for_activation_of(value: Any) -> str:
    """Return what to use for `value`, for the end of a message; nothing where that is no activation."""
    written = activation_named(value)
    return f" {for_activation(written)}" if written else ""


#: What stands in the class before the properties of `Epilogue`; each functor has its own.
_OF_EACH: Any = None


@public
@dataclass(frozen=True)
class EpilogueFunctor(Value, Epilogue):
    """What all functors share: types of output, accumulator and computation, and alpha * accumulator + beta * C.

    Parameters
    ----------
    element_output : element type of ``cutlass``
        Type of C and D.
    epilogue_vector_length : int
        Elements of one memory access; the alignment of C.
    element_accumulator : element type, optional
        Type of the accumulator; by default `element_output`.
    element_epilogue : element type, optional
        Type that alpha, beta and the sum are computed in (f16, f32, f64 or s32); by default `element_output`.

    Raises
    ------
    DescriptionError
        A class derived outside PyCUTLASS, an unknown type, a compute type that CUTLASS does not compute in, integers
        that are to become bfloat16, or a length that is not a power of two.
    """

    element_output: Any
    epilogue_vector_length: int
    element_accumulator: Any = None
    element_epilogue: Any = None

    #: The types of C and D, of the accumulator, and of scalars and sum: what follows from the fields.
    output: Element = field(init=False, repr=False, compare=False, default=_OF_EACH)
    accumulator: Element = field(init=False, repr=False, compare=False, default=_OF_EACH)
    compute: Element = field(init=False, repr=False, compare=False, default=_OF_EACH)

    #: Whether it is a tree of visitors, which CUTLASS has no functor for, and whether it limits narrow integers.
    is_tree: ClassVar[bool] = False
    reads_source: ClassVar[bool | None] = None
    saturates: ClassVar[bool] = False
    #: CUTLASS's functors have no tensors beside C and D.
    inputs: ClassVar[tuple[Port, ...]] = ()
    outputs: ClassVar[tuple[Port, ...]] = ()
    ports: ClassVar[tuple[Port, ...]] = ()
    _ELSEWHERE: ClassVar[Mapping[str, str]] = dict.fromkeys(("activation", "activation_functor"), for_activation())
    _MISPLACED: ClassVar[Callable[[Any], str]] = staticmethod(for_activation_of)
    #: Whether CUTLASS's 3.x API has it as a fusion.
    _is_fusion: ClassVar[bool] = False

    def __init_subclass__(cls) -> None:
        """Refuse a class of a user's own: its meaning would be run on the host, and CUTLASS has no functor of it."""
        if cls.__module__ not in _MODULES:
            base, known = cls.__mro__[1].__name__, ", ".join(_FUNCTORS)
            raise DescriptionError(
                f"class {cls.__name__} derives from {base}, and CUTLASS has no functor of that name: use {known} "
                f"as it is, for an activation LinearCombinationGeneric(relu(...), ...)"
            )

    def __post_init__(self) -> None:
        if type(self) is EpilogueFunctor:
            raise DescriptionError(f"EpilogueFunctor is what functors share: use one of {', '.join(_FUNCTORS)}")
        for name in ("element_accumulator", "element_epilogue"):
            if getattr(self, name) is None:
                object.__setattr__(self, name, self.element_output)
        try:
            output, accumulator = element(self.element_output), element(self.element_accumulator)
            compute = element(self.element_epilogue)
        except DescriptionError:
            self._refuse_activations()
            raise
        self.__dict__.update(
            output=output,
            accumulator=accumulator,
            compute=compute,
            element_output=output.tag,
            element_accumulator=accumulator.tag,
            element_epilogue=compute.tag,
        )
        if self.compute.short not in _COMPUTE:
            raise DescriptionError(
                f"element_epilogue must be one of f16, f32, f64 and s32, got {self.compute}: give the functor "
                f"element_accumulator={'cutlass.int32' if output.is_integer else 'cutlass.float32'} and "
                f"element_epilogue=cutlass.float32"
            )
        length = as_int(self.epilogue_vector_length)
        if length is None:
            self._refuse_activations()
        if length is None or length < 1 or length & (length - 1) or length * self.output.bits > 128:
            raise DescriptionError(
                f"epilogue_vector_length must be a power of two of at most 128 bits, which is "
                f"{128 // self.output.bits} elements of {self.output}; got {shown(self.epilogue_vector_length)}"
            )
        object.__setattr__(self, "epilogue_vector_length", length)
        if self.compute.is_integer and self.output.short == "bf16":
            raise DescriptionError(
                f"an epilogue that computes in {self.compute} cannot write {self.output}: CUTLASS truncates "
                f"integers there instead of rounding them; compute in cutlass.float32 (element_epilogue)"
            )

    def _refuse_activations(self) -> None:
        """Raise DescriptionError where a field is an activation."""
        for name in ("element_output", "epilogue_vector_length", "element_accumulator", "element_epilogue"):
            value = getattr(self, name)
            if hint := for_activation_of(value):
                raise DescriptionError(f"{name} of {type(self).__name__} is an activation, {shown(value)}.{hint}")

    @property
    def scalar_table(self) -> tuple[Scalar, ...]:
        """Alpha and beta, which may be in device memory, and what the activation needs."""
        extra = () if self.activation is None else self.activation.extra
        return (*_LINEAR, *(Scalar(name, default) for name, default in extra))

    def why_not(self, family: Family) -> str:
        """Return why kernels of `family` cannot have this functor; nothing where they can."""
        if not self._is_fusion and family.is_sm90:
            generic = "" if self.output.is_byte else " or LinearCombinationGeneric"
            return f"{type(self).__name__} has no Hopper-native counterpart; use LinearCombination{generic}"
        return ""

    def cpp(self, family: Family, source: Element | None = None) -> str:
        """Return the functor's C++ type for kernels of `family`, with a C of type `source`."""
        if family is Family.GEMV:
            single: EpilogueFunctor = changed(self, epilogue_vector_length=1)
            return f"pycutlass::GemvFunctor<{single.emit()}>"
        return self.emit_fusion(source) if family.is_sm90 else self.emit()

    def emit(self) -> str:
        """Return the functor's C++ type for kernels of CUTLASS's 2.x API."""
        return (
            f"cutlass::epilogue::thread::{type(self).__name__}<{self.output.cpp}, {self.epilogue_vector_length}, "
            f"{self.accumulator.cpp}, {self.compute.cpp}>"
        )

    def emit_fusion(self, source: Element | None = None) -> str:
        """Return the fusion's C++ type for kernels of CUTLASS's 3.x API, of a C of type `source` or of the output's.

        Raises
        ------
        DescriptionError
            The functor has no counterpart there.
        """
        raise DescriptionError(self.why_not(Family.SM90_GEMM))

    def _fused_types(self, source: Element | None) -> str:
        types = [self.output, self.compute, *([source] if source not in (None, self.output) else [])]
        return ", ".join(each.cpp for each in types if each is not None)

    def epilogue_type(self, alpha: Any = 1.0, beta: Any = _NO_BETA, *extra: Any, **named: Any) -> EpilogueScalars:
        """Return the scalars of one launch.

        Parameters
        ----------
        alpha, beta : number or device memory
            A number, an element value such as ``cutlass.float32(1)``, a ``CUdeviceptr``, or a device tensor with
            one element of the compute type, for Hopper-native kernels also with one for each matrix of a batch, one
            behind the other. Integers of int32 where the epilogue computes in int32.
            Arguments with a C ask for a beta: one that is left out is 0, and a C would not be read.
        *extra : number
            What the activation needs, in the order of its ``extra``; its defaults where left out. More are ignored,
            which is said once.
        **named : number
            The same by name, as ``leaky_alpha=0.1``.

        Raises
        ------
        ArgumentError
            A device tensor of another type, or of more dimensions, or a number that the compute type lacks.
        ArgumentTypeError
            Neither a number nor device memory, or device memory for an activation's scalar.
        """
        wanted = () if self.activation is None else self.activation.extra
        if len(extra) > len(wanted):
            # The original's scripts hand an activation's scalars to the GEMM of parallel split-K as well.
            names = ", ".join(self.scalar_names)
            say_once(f"{self!r} takes the scalars {names}; got {2 + len(extra)}, and ignores what is more")
        if beta is _NO_BETA:
            return super().epilogue_type(alpha, **named)
        return super().epilogue_type(alpha, beta, *extra[: len(wanted)], **named)

    def reference(
        self, accumulator: Array, source: Array | None, scalars: tuple[float, ...], compute: np.dtype[Any] | None = None
    ) -> Array:
        """Return D before it is rounded to the output type.

        Parameters
        ----------
        accumulator, source : array
            The accumulator and C, which broadcasts against it; `source` is not read where beta is 0. A functor that
            computes in integers makes integers of them first, as its kernel does.
        scalars : tuple of float
            In the order of `scalar_names`.
        compute : dtype, optional
            Type to compute in; by default the functor's own.
        """
        dtype = compute or self.compute.dtype
        alpha, beta, *extra = scalars
        result = np.asarray(alpha, dtype) * self._converted(accumulator, self.accumulator).astype(dtype)
        if computed(self.compute, beta) != 0:
            assert source is not None
            result = result + np.asarray(beta, dtype) * self._converted(source, self.output).astype(dtype)
        return self.finish(np.asarray(result), *extra)

    def evaluate(
        self,
        accumulator: Array,
        source: Array | None,
        scalars: Mapping[str, float],
        inputs: Mapping[str, Array],
        compute: np.dtype[Any] | None = None,
    ) -> dict[str, Array]:
        """Return D by its name, before it is rounded to the output type; see `Epilogue.evaluate`."""
        return {"D": self.reference(accumulator, source, tuple(scalars.values()), compute)}

    def finish(self, values: Array, *extra: float) -> Array:
        """Return what becomes of alpha * accumulator + beta * C."""
        return values

    def _converted(self, values: Array, kind: Element) -> Array:
        """Return `values` of type `kind` as integers, where that is what the kernel computes with.

        f32 is rounded to nearest even, everything else cut off (numeric_conversion.h; the operator int() of half.h).
        """
        if not self.compute.is_integer or kind.is_integer:
            return values
        return self.compute.round(values if kind.short == "f32" else np.trunc(np.asarray(values, np.float64)))

    def without_activation(self) -> EpilogueFunctor:
        """Return the functor that stops before the activation."""
        return LinearCombination(
            self.element_output, self.epilogue_vector_length, self.element_accumulator, self.element_epilogue
        )

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}({self.output}, {self.epilogue_vector_length}, {self.accumulator}, {self.compute})"
        )


@public
@dataclass(frozen=True, repr=False)
class LinearCombination(EpilogueFunctor):
    """D = alpha * accumulator + beta * C (``cutlass::epilogue::thread::LinearCombination``).

    Takes the parameters of `EpilogueFunctor`. Written to int8 or uint8 it is `LinearCombinationClamp`.

    Examples
    --------
    >>> import pycutlass
    >>> from pycutlass import cutlass
    >>> pycutlass.LinearCombination(cutlass.float16, 8, cutlass.float32, cutlass.float32)
    LinearCombination(cutlass.float16, 8, cutlass.float32, cutlass.float32)
    """

    _is_fusion: ClassVar[bool] = True
    saturates: ClassVar[bool] = True

    def emit(self) -> str:
        """Return the functor's C++ type for kernels of CUTLASS's 2.x API."""
        return self._clamped.emit() if self.output.is_byte else super().emit()

    def emit_fusion(self, source: Element | None = None) -> str:
        """Return the fusion's C++ type for kernels of CUTLASS's 3.x API."""
        return f"cutlass::epilogue::fusion::LinearCombination<{self._fused_types(source)}>"

    def finish(self, values: Array, *extra: float) -> Array:
        """Return `values`, limited to the range of int8 or uint8 where that is written."""
        return self._clamped.finish(values) if self.output.is_byte else values

    @property
    def _clamped(self) -> LinearCombinationClamp:
        """The functor that this one stands for where it writes bytes: none but values in range would be right."""
        return LinearCombinationClamp(
            self.element_output, self.epilogue_vector_length, self.element_accumulator, self.element_epilogue
        )


@public
@dataclass(frozen=True, repr=False)
class LinearCombinationClamp(EpilogueFunctor):
    """D = clamp(alpha * accumulator + beta * C) to the range of the output type.

    ``cutlass::epilogue::thread::LinearCombinationClamp``. Takes the parameters of `EpilogueFunctor`; the output is an
    integer type, float16 or bfloat16, and an integer type where an accumulator of int32 is computed in float32.

    NaN does not arrive in D: it becomes the least value of the output, since CUTLASS's maximum takes the other operand
    (computed in float16, only from compute capability 8.0 on). Where an accumulator of int32 is computed in float32, it
    becomes 0: there, the conversion alone sets the limits.

    Raises
    ------
    DescriptionError
        As for `EpilogueFunctor`, and for an output that CUTLASS's clamp does not compile for.

    Examples
    --------
    >>> import pycutlass
    >>> from pycutlass import cutlass
    >>> pycutlass.LinearCombinationClamp(cutlass.int8, 16, cutlass.int32, cutlass.float32)
    LinearCombinationClamp(cutlass.int8, 16, cutlass.int32, cutlass.float32)
    """

    saturates: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        name = type(self).__name__
        if not self.output.is_integer and self.output.bits > 16:
            # cutlass::platform::numeric_limits has no lowest() of float, and nothing of double.
            raise DescriptionError(
                f"{name} limits to the range of an integer type, cutlass.float16 or cutlass.bfloat16, got "
                f"{self.output}: use LinearCombination"
            )
        if self._converts_only and not self.output.is_integer:
            raise DescriptionError(
                f"{name} of an accumulator of {self.accumulator}, computed in {self.compute}, writes integers alone, "
                f"got {self.output}: use LinearCombination"
            )

    @property
    def _converts_only(self) -> bool:
        """Whether CUTLASS leaves the limits to the conversion, which saturates: its specialisation of int and float."""
        return (self.accumulator.short, self.compute.short) == ("s32", "f32")

    def finish(self, values: Array, *extra: float) -> Array:
        """Return `values` limited to what the output type holds."""
        low, high = self.output.limits
        with np.errstate(over="ignore"):  # limits beyond the compute type become infinite
            if self._converts_only:
                return np.asarray(np.clip(values, low, high))  # NaN stays, and is 0 when it is rounded
            return np.asarray(np.fmin(np.fmax(values, low), high))
