"""Epilogue functors: what happens to an accumulator on its way to D.

A functor is one object that checks itself, spells its C++, packs its scalars and carries its reference.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pycutlass.errors import ArgumentError, ArgumentTypeError, DescriptionError
from pycutlass.types import Element, element

__all__ = ["EpilogueScalars", "LinearCombination"]

_COMPUTE = ("f16", "f32", "f64", "s32")


@dataclass(frozen=True, eq=False)
class EpilogueScalars:
    """The scalars of one launch: what ``operation.epilogue_type(alpha, beta)`` returns.

    Each is a number, or device memory that holds one element of the functor's compute type: a ``CUdeviceptr`` or a
    device tensor with one element. Device scalars are read when the kernel runs.

    Examples
    --------
    >>> import pycutlass
    >>> from pycutlass import cutlass
    >>> functor = pycutlass.LinearCombination(cutlass.float16, 8, cutlass.float32, cutlass.float32)
    >>> functor.epilogue_type(2.0, 0.5).values
    (2.0, 0.5)
    """

    values: tuple[float, ...]
    pointers: tuple[int, ...]
    owners: tuple[Any, ...] = ()

    @property
    def alpha_is_known(self) -> bool:
        """Whether alpha is a number on the host."""
        return not self.pointers[0]

    @property
    def needs_source(self) -> bool:
        """Whether C may be read: beta is not the number zero."""
        return bool(self.pointers[1]) or self.values[1] != 0


@dataclass(frozen=True)
class LinearCombination:
    """D = alpha * accumulator + beta * C (``cutlass::epilogue::thread::LinearCombination``).

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

    Examples
    --------
    >>> import pycutlass
    >>> from pycutlass import cutlass
    >>> pycutlass.LinearCombination(cutlass.float16, 8, cutlass.float32, cutlass.float32)
    LinearCombination(cutlass.float16, 8, cutlass.float32, cutlass.float32)
    """

    element_output: Any
    epilogue_vector_length: int
    element_accumulator: Any = None
    element_epilogue: Any = None

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

    def emit(self) -> str:
        """Return the functor's C++ type for kernels of CUTLASS's 2.x API."""
        return (
            f"cutlass::epilogue::thread::LinearCombination<{self.output.cpp}, {self.epilogue_vector_length}, "
            f"{self.accumulator.cpp}, {self.compute.cpp}>"
        )

    def emit_fusion(self) -> str:
        """Return the fusion's C++ type for kernels of CUTLASS's 3.x API."""
        return f"cutlass::epilogue::fusion::LinearCombination<{self.output.cpp}, {self.compute.cpp}>"

    @property
    def epilogue_type(self) -> Callable[..., EpilogueScalars]:
        """What makes the scalars of a launch: ``epilogue_type(alpha, beta=0)``."""
        return self.scalars

    def scalars(self, alpha: Any = 1.0, beta: Any = 0.0) -> EpilogueScalars:
        """Return the scalars of one launch.

        Parameters
        ----------
        alpha, beta : number or device memory
            A number, an element value such as ``cutlass.float32(1)``, a ``CUdeviceptr``, or a device tensor with
            exactly one element of the compute type.

        Raises
        ------
        ArgumentError
            A device tensor with more than one element or another type.
        ArgumentTypeError
            Neither a number nor device memory.
        """
        return _pack(self.compute, ("alpha", alpha), ("beta", beta))

    def reference(
        self,
        accumulator: NDArray[Any],
        source: NDArray[Any] | None,
        alpha: float,
        beta: float,
        compute: np.dtype[Any] | None = None,
    ) -> NDArray[Any]:
        """Return D before it is rounded to the output type.

        Parameters
        ----------
        accumulator, source : (M, N) array
            The accumulator and C; `source` is not read where `beta` is 0.
        compute : dtype, optional
            Type to compute in; by default the functor's own.
        """
        dtype = compute or self.compute.dtype
        result = np.asarray(alpha, dtype) * accumulator.astype(dtype)
        if beta != 0:
            assert source is not None
            result = result + np.asarray(beta, dtype) * source.astype(dtype)
        return np.asarray(result)

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}({self.output}, {self.epilogue_vector_length}, {self.accumulator}, {self.compute})"
        )


def _pack(compute: Element, *named: tuple[str, Any]) -> EpilogueScalars:
    packed = [_scalar(compute, name, value) for name, value in named]
    values, pointers, owners = zip(*packed, strict=True)
    return EpilogueScalars(values, pointers, owners)


def _scalar(compute: Element, name: str, value: Any) -> tuple[float, int, Any]:
    """Return value, device pointer (0 for a number) and what keeps the pointer alive."""
    if type(value).__name__ == "CUdeviceptr":
        return 0.0, int(value), value
    if hasattr(value, "__cuda_array_interface__") or getattr(value, "is_cuda", False):
        return 0.0, _device_scalar(compute, name, value), value
    try:
        number = float(value)
    except (TypeError, ValueError):
        raise ArgumentTypeError(
            f"{name} must be a number, a CUdeviceptr or a device tensor with one element, got {type(value).__name__}"
        ) from None
    if compute.is_integer and number != int(number):
        raise ArgumentError(f"{name}={number} must be an integer: the epilogue computes in {compute}")
    return number, 0, None


def _device_scalar(compute: Element, name: str, tensor: Any) -> int:
    dtype = str(tensor.dtype).removeprefix("torch.")
    size = tensor.numel() if hasattr(tensor, "numel") else tensor.size
    if dtype != compute.dtype_name or size != 1:
        raise ArgumentError(
            f"{name} on the device must be one element of {compute.dtype_name}, the epilogue's compute type; "
            f"got {size} of {dtype}. Make it with that dtype, or compile the epilogue with another element_epilogue."
        )
    return int(tensor.data_ptr() if hasattr(tensor, "data_ptr") else tensor.data.ptr)
