"""Epilogue functors: what happens to an accumulator on its way to D.

A functor is one object that checks itself, spells its C++, packs its scalars and carries its reference.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from pycutlass import _core
from pycutlass.epilogue.activations import Activation, check_activation
from pycutlass.epilogue.scalars import EpilogueScalars, pack
from pycutlass.errors import ArgumentTypeError, DescriptionError
from pycutlass.types import Element, element

__all__ = [
    "EpilogueFunctor",
    "FastLinearCombinationClamp",
    "LinearCombination",
    "LinearCombinationClamp",
    "LinearCombinationGeneric",
]

_COMPUTE = ("f16", "f32", "f64", "s32")

Array = NDArray[Any]


@dataclass(frozen=True)
class EpilogueFunctor:
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
        An unknown type, a compute type that CUTLASS does not compute in, or a length that is not a power of two.
    """

    element_output: Any
    epilogue_vector_length: int
    element_accumulator: Any = None
    element_epilogue: Any = None

    #: Largest K that the arithmetic is right for, where there is one.
    most_k: ClassVar[int | None] = None

    def __post_init__(self) -> None:
        for name in ("element_accumulator", "element_epilogue"):
            if getattr(self, name) is None:
                object.__setattr__(self, name, self.element_output)
        if self.compute.short not in _COMPUTE:
            raise DescriptionError(
                f"element_epilogue must be one of f16, f32, f64 and s32, got {self.compute}; "
                f"cutlass.float32 serves every 16-bit output"
            )
        length = self.epilogue_vector_length
        if not isinstance(length, int) or length < 1 or length & (length - 1) or length * self.output.bits > 128:
            raise DescriptionError(
                f"epilogue_vector_length must be a power of two of at most 128 bits, which is "
                f"{128 // self.output.bits} elements of {self.output}; got {length!r}"
            )
        element(self.element_accumulator)

    @property
    def output(self) -> Element:
        """Type of C and D."""
        return element(self.element_output)

    @property
    def accumulator(self) -> Element:
        """Type of the accumulator."""
        return element(self.element_accumulator)

    @property
    def compute(self) -> Element:
        """Type that scalars and sum are computed in."""
        return element(self.element_epilogue)

    @property
    def activation(self) -> Activation | None:
        """The activation, where there is one."""
        return None

    @property
    def scalar_names(self) -> tuple[str, ...]:
        """Names of the scalars of a launch, in order."""
        extra = () if self.activation is None else self.activation.extra
        return ("alpha", "beta", *(name for name, _ in extra))

    def emit(self) -> str:
        """Return the functor's C++ type for kernels of CUTLASS's 2.x API."""
        return (
            f"cutlass::epilogue::thread::{type(self).__name__}<{self.output.cpp}, {self.epilogue_vector_length}, "
            f"{self.accumulator.cpp}, {self.compute.cpp}>"
        )

    def emit_fusion(self) -> str:
        """Return the fusion's C++ type for kernels of CUTLASS's 3.x API.

        Raises
        ------
        DescriptionError
            The functor has no counterpart there.
        """
        raise DescriptionError(
            f"{type(self).__name__} has no Hopper-native counterpart; use LinearCombination or "
            f"LinearCombinationGeneric, or leave out cluster_shape for an Ampere-style kernel"
        )

    @property
    def epilogue_type(self) -> Callable[..., EpilogueScalars]:
        """What makes the scalars of a launch: ``epilogue_type(alpha, beta=0)``."""
        return self.scalars

    def scalars(self, alpha: Any = 1.0, beta: Any = 0.0, *extra: Any) -> EpilogueScalars:
        """Return the scalars of one launch.

        Parameters
        ----------
        alpha, beta : number or device memory
            A number, an element value such as ``cutlass.float32(1)``, a ``CUdeviceptr``, or a device tensor with
            exactly one element of the compute type.
        *extra : number
            What the activation needs, in the order of its ``extra``; its defaults where left out.

        Raises
        ------
        ArgumentError
            A device tensor with more than one element or another type.
        ArgumentTypeError
            Neither a number nor device memory, or more scalars than the functor has.
        """
        wanted = () if self.activation is None else self.activation.extra
        if len(extra) > len(wanted):
            names = ", ".join(self.scalar_names)
            raise ArgumentTypeError(f"{self!r} takes the scalars {names}; got {2 + len(extra)} of them")
        given = [(name, extra[i] if i < len(extra) else default) for i, (name, default) in enumerate(wanted)]
        return pack(self.compute, ("alpha", alpha), ("beta", beta), *given)

    def reference(
        self,
        accumulator: Array,
        source: Array | None,
        scalars: tuple[float, ...],
        compute: np.dtype[Any] | None = None,
    ) -> Array:
        """Return D before it is rounded to the output type.

        Parameters
        ----------
        accumulator, source : array
            The accumulator and C, which broadcasts against it; `source` is not read where beta is 0.
        scalars : tuple of float
            In the order of `scalar_names`.
        compute : dtype, optional
            Type to compute in; by default the functor's own.
        """
        dtype = compute or self.compute.dtype
        alpha, beta, *extra = scalars
        result = np.asarray(alpha, dtype) * accumulator.astype(dtype)
        if beta != 0:
            assert source is not None
            result = result + np.asarray(beta, dtype) * source.astype(dtype)
        return self.finish(np.asarray(result), *extra)

    def finish(self, values: Array, *extra: float) -> Array:
        """Return what becomes of alpha * accumulator + beta * C."""
        return values

    def without_activation(self) -> EpilogueFunctor:
        """Return the functor that stops before the activation."""
        return LinearCombination(
            self.element_output, self.epilogue_vector_length, self.element_accumulator, self.element_epilogue
        )

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}({self.output}, {self.epilogue_vector_length}, {self.accumulator}, {self.compute})"
        )


@dataclass(frozen=True, repr=False)
class LinearCombination(EpilogueFunctor):
    """D = alpha * accumulator + beta * C (``cutlass::epilogue::thread::LinearCombination``).

    Takes the parameters of `EpilogueFunctor`.

    Examples
    --------
    >>> import pycutlass
    >>> from pycutlass import cutlass
    >>> pycutlass.LinearCombination(cutlass.float16, 8, cutlass.float32, cutlass.float32)
    LinearCombination(cutlass.float16, 8, cutlass.float32, cutlass.float32)
    """

    def emit_fusion(self) -> str:
        """Return the fusion's C++ type for kernels of CUTLASS's 3.x API."""
        return f"cutlass::epilogue::fusion::LinearCombination<{self.output.cpp}, {self.compute.cpp}>"


@dataclass(frozen=True, repr=False)
class LinearCombinationClamp(EpilogueFunctor):
    """D = clamp(alpha * accumulator + beta * C) to the range of the output type.

    ``cutlass::epilogue::thread::LinearCombinationClamp``. Takes the parameters of `EpilogueFunctor`.

    Examples
    --------
    >>> import pycutlass
    >>> from pycutlass import cutlass
    >>> pycutlass.LinearCombinationClamp(cutlass.int8, 16, cutlass.int32, cutlass.float32)
    LinearCombinationClamp(cutlass.int8, 16, cutlass.int32, cutlass.float32)
    """

    def finish(self, values: Array, *extra: float) -> Array:
        """Return `values` limited to what the output type holds."""
        low, high = self.output.limits
        with np.errstate(over="ignore"):  # limits beyond the compute type become infinite
            return np.asarray(np.clip(values, low, high))


@dataclass(frozen=True, repr=False)
class FastLinearCombinationClamp(LinearCombinationClamp):
    """LinearCombinationClamp of an s32 accumulator that converts to float by a trick which holds for K <= 256.

    ``cutlass::epilogue::thread::FastLinearCombinationClamp``: accumulator s32, computed in f32, integer output. A
    larger K is refused with the arguments.

    Parameters
    ----------
    element_output : element type of ``cutlass``
        An integer type.
    epilogue_vector_length : int
        Elements of one memory access; the alignment of C.

    Examples
    --------
    >>> import pycutlass
    >>> from pycutlass import cutlass
    >>> pycutlass.FastLinearCombinationClamp(cutlass.int8, 16)
    FastLinearCombinationClamp(cutlass.int8, 16, cutlass.int32, cutlass.float32)
    """

    most_k: ClassVar[int | None] = 256

    def __post_init__(self) -> None:
        for name, only in (("element_accumulator", _core.int32), ("element_epilogue", _core.float32)):
            if getattr(self, name) is None:
                object.__setattr__(self, name, only)
            elif getattr(self, name) is not only:
                raise DescriptionError(
                    f"FastLinearCombinationClamp accumulates in cutlass.int32 and computes in cutlass.float32; got "
                    f"{name}={element(getattr(self, name))}. Use LinearCombinationClamp for other types."
                )
        super().__post_init__()
        if not self.output.is_integer:
            raise DescriptionError(f"FastLinearCombinationClamp writes integers, got {self.output}")

    def emit(self) -> str:
        """Return the functor's C++ type for kernels of CUTLASS's 2.x API."""
        return (
            f"cutlass::epilogue::thread::FastLinearCombinationClamp<{self.output.cpp}, {self.epilogue_vector_length}>"
        )


@dataclass(frozen=True, repr=False)
class LinearCombinationGeneric(EpilogueFunctor):
    """D = activation(alpha * accumulator + beta * C) (``cutlass::epilogue::thread::LinearCombinationGeneric``).

    Parameters
    ----------
    activation_functor : Activation
        For example ``relu(cutlass.float32)``.
    element_output, epilogue_vector_length, element_accumulator, element_epilogue
        As for `EpilogueFunctor`.

    Examples
    --------
    >>> import pycutlass
    >>> from pycutlass import cutlass
    >>> pycutlass.LinearCombinationGeneric(pycutlass.relu(), cutlass.float16, 8, cutlass.float32, cutlass.float32)
    LinearCombinationGeneric(relu(), cutlass.float16, 8, cutlass.float32, cutlass.float32)
    """

    activation_functor: Any = None

    def __init__(
        self,
        activation_functor: Any,
        element_output: Any,
        epilogue_vector_length: int,
        element_accumulator: Any = None,
        element_epilogue: Any = None,
    ) -> None:
        for name, value in (
            ("activation_functor", check_activation(activation_functor)),
            ("element_output", element_output),
            ("epilogue_vector_length", epilogue_vector_length),
            ("element_accumulator", element_accumulator),
            ("element_epilogue", element_epilogue),
        ):
            object.__setattr__(self, name, value)
        self.__post_init__()
        named = self.activation_functor.element_compute
        if named is not None and element(named) is not self.compute:
            raise DescriptionError(
                f"the activation is to compute in {element(named)}, the epilogue in {self.compute}: make them the same"
            )
        # relu() and relu(cutlass.float32) are the same kernel here, so they are the same value.
        object.__setattr__(self, "activation_functor", type(self.activation_functor)())

    @property
    def activation(self) -> Activation:
        """The activation."""
        activation: Activation = self.activation_functor
        return activation

    def emit(self) -> str:
        """Return the functor's C++ type for kernels of CUTLASS's 2.x API."""
        return (
            f"cutlass::epilogue::thread::LinearCombinationGeneric<{self.activation.emit()}, {self.output.cpp}, "
            f"{self.epilogue_vector_length}, {self.accumulator.cpp}, {self.compute.cpp}>"
        )

    def emit_fusion(self) -> str:
        """Return the fusion's C++ type for kernels of CUTLASS's 3.x API."""
        return (
            f"cutlass::epilogue::fusion::LinCombEltAct<{self.activation.emit()}, {self.output.cpp}, {self.compute.cpp}>"
        )

    def finish(self, values: Array, *extra: float) -> Array:
        """Return the activation of `values`."""
        return self.activation.numpy(values, *extra)

    def __repr__(self) -> str:
        return f"LinearCombinationGeneric({self.activation!r}, {super().__repr__().split('(', 1)[1]}"
