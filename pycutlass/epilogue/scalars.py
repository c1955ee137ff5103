"""The scalars of a launch: alpha, beta and what an activation needs."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from pycutlass.calls import shown, suggestion
from pycutlass.errors import ArgumentError, ArgumentTypeError, UnknownNameError
from pycutlass.integers import attribute, real
from pycutlass.types import Element

__all__ = ["EpilogueScalars", "computed", "pack"]

#: The scalars that kernels read from device memory; include/pycutlass/epilogue.h passes all others by value.
_ON_DEVICE = ("alpha", "beta")


@dataclass(frozen=True, eq=False)
class EpilogueScalars:
    """The scalars of one launch: what ``operation.epilogue_type(alpha, beta)`` returns.

    Alpha and beta are numbers, or device memory that holds one element of the functor's compute type: a ``CUdeviceptr``
    or a device tensor with one element. Device scalars are read when the kernel runs. What an activation needs is a
    number.

    Examples
    --------
    >>> import pycutlass
    >>> from pycutlass import cutlass
    >>> functor = pycutlass.LinearCombination(cutlass.float16, 8, cutlass.float32, cutlass.float32)
    >>> scalars = functor.epilogue_type(2.0, beta=0.5)
    >>> scalars.values, scalars["beta"]
    ((2.0, 0.5), 0.5)
    """

    values: tuple[float, ...]
    pointers: tuple[int, ...]
    owners: tuple[Any, ...]
    compute: Element
    names: tuple[str, ...] = ("alpha", "beta")
    #: Whether somebody has said what beta is; a default of 0 would drop a C without a word.
    beta_is_given: bool = True

    def __repr__(self) -> str:
        texts = [
            f"address {pointer:#x}" if pointer else repr(value)
            for value, pointer in zip(self.values, self.pointers, strict=True)
        ]
        return f"EpilogueScalars({', '.join(texts)}, computed in {self.compute})"

    @property
    def alpha_is_known(self) -> bool:
        """Whether alpha is a number on the host."""
        return not self._pointer("alpha")

    def __getitem__(self, name: str) -> Any:
        """Return a scalar by its name: a number, or the device memory that was given.

        Raises
        ------
        UnknownNameError
            There is none of that name.
        """
        if name not in self.names:
            near = suggestion(name, self.names) if isinstance(name, str) else ""
            raise UnknownNameError(f"output_op has no scalar {shown(name)}; it has {', '.join(self.names)}.{near}")
        index = self.names.index(name)
        return self.owners[index] if self.pointers[index] else self.values[index]

    def _pointer(self, name: str) -> int:
        return self.pointers[self.names.index(name)] if name in self.names else 0

    def sync(self, stream_sync: bool = True) -> None:
        """Do nothing: scalars bring nothing back. The original's scripts ask for it."""

    @property
    def needs_source(self) -> bool:
        """Whether C may be read: beta is in device memory, or a number that is not zero in the compute type."""
        if "beta" not in self.names:
            return False
        return bool(self._pointer("beta")) or computed(self.compute, self.values[self.names.index("beta")]) != 0

    @property
    def drops_source(self) -> bool:
        """Whether C is not read merely because beta was left out: who gives a C then has forgotten beta."""
        return "beta" in self.names and not self.beta_is_given and not self.needs_source


def pack(
    compute: Element, *named: tuple[str, Any], on_device: tuple[str, ...] = _ON_DEVICE, beta_is_given: bool = True
) -> EpilogueScalars:
    """Return the scalars of one launch from pairs of name and value, checked against the compute type.

    Those named in `on_device` may be in device memory. `beta_is_given` is False where beta is a default.
    """
    packed = [_scalar(compute, name, value, on_device) for name, value in named]
    values, pointers, owners = zip(*packed, strict=True)
    return EpilogueScalars(values, pointers, owners, compute, tuple(name for name, _ in named), beta_is_given)


def computed(compute: Element, number: float) -> float:
    """Return a scalar as kernels have it: rounded to the compute type, by way of f32 to f16 (include/.../epilogue.h).

    So a beta of 1e-60 is 0 where an epilogue computes in f32, and C is not read.
    """
    with np.errstate(over="ignore"):
        if compute.bits <= 16:
            number = float(np.float32(number))
        return float(compute.dtype.type(number)) if not compute.is_integer else number


def _scalar(compute: Element, name: str, value: Any, readable: tuple[str, ...]) -> tuple[float, int, Any]:
    """Return value, device pointer (0 for a number) and what keeps the pointer alive."""
    is_pointer = type(value).__name__ == "CUdeviceptr"
    interface = hasattr(type(value), "__cuda_array_interface__")  # torch's raises where a tensor is not on a GPU
    of_torch = attribute(value, "is_cuda")
    on_device = is_pointer or (interface if of_torch is None else of_torch)
    if on_device and name not in readable:
        raise ArgumentTypeError(
            f"{name} must be a number: kernels read {' and '.join(readable) or 'no scalar'} alone from device memory, "
            f"got {type(value).__name__}. Copy it to the host first."
        )
    if on_device:
        pointer = int(value) if is_pointer else _device_scalar(compute, name, value)
        if not 0 < pointer < 2**64:
            raise ArgumentTypeError(f"{name} is the address {pointer}, which is no device memory; pass a number")
        return 0.0, pointer, value
    number = _number(name, value, readable)
    if compute.is_integer:
        _check_integer(compute, name, number)
    elif math.isfinite(number) and math.isinf(computed(compute, number)):
        raise ArgumentError(
            f"{name}={number} is beyond {compute}, which the epilogue computes in: it would be infinite there, and "
            f"the largest number is {compute.limits[1]:g}. For more, compute in a wider type (element_epilogue)."
        )
    return number, 0, None


def _number(name: str, value: Any, readable: tuple[str, ...]) -> float:
    """Return a real number of any library."""
    if isinstance(value, complex) or "complex" in str(attribute(value, "dtype")):
        raise ArgumentTypeError(
            f"{name} must be a number without an imaginary part, got {type(value).__name__} {shown(value)}: epilogues "
            f"compute in real numbers. Pass {name}.real if that is what is meant."
        )
    cause = None
    try:
        number = real(value)
    except ArgumentTypeError as error:
        number, cause = None, error.__cause__
    except ArgumentError:  # of an int, which may have any number of digits
        raise ArgumentError(f"{name} is beyond float64, the type that scalars are handed over in") from None
    if number is None:
        kinds = "a number, a CUdeviceptr or a device tensor with one element" if name in readable else "a number"
        raise ArgumentTypeError(f"{name} must be {kinds}, got {type(value).__name__}") from cause
    return number


def _check_integer(compute: Element, name: str, number: float) -> None:
    """Check that C++ can convert the number: what it makes of another one is undefined."""
    if not number.is_integer():  # NaN and infinities are none either
        raise ArgumentError(
            f"{name}={number} must be an integer: the epilogue computes in {compute}. For fractions, compute in "
            f"cutlass.float32 (element_epilogue)."
        )
    least, greatest = compute.limits
    if not least <= number <= greatest:
        raise ArgumentError(
            f"{name}={number:.0f} must be {least:.0f} to {greatest:.0f}: the epilogue computes in {compute}. For more, "
            f"compute in cutlass.float32 (element_epilogue)."
        )


def _device_scalar(compute: Element, name: str, tensor: Any) -> int:
    try:
        dtype = str(tensor.dtype).removeprefix("torch.")
        size = tensor.numel() if hasattr(tensor, "numel") else tensor.size
        pointer = int(tensor.data_ptr() if hasattr(tensor, "data_ptr") else tensor.data.ptr)
    except Exception as error:  # of a library that only looks like torch or cupy
        raise ArgumentTypeError(
            f"{name} on the device must be a tensor of torch or cupy, got {type(tensor).__name__}"
        ) from error
    if dtype != compute.dtype_name or size != 1:
        raise ArgumentError(
            f"{name} on the device must be one element of {compute.dtype_name}, the epilogue's compute type; "
            f"got {size} of {dtype}. Make it with that dtype, or compile the epilogue with another element_epilogue."
        )
    return pointer
