"""What users give as scalars of a launch: numbers of any library, or device memory, of the compute type."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from pycutlass import _core
from pycutlass.calls import counted, shown
from pycutlass.errors import ArgumentError, ArgumentTypeError, PyCutlassError
from pycutlass.imported import is_of
from pycutlass.integers import attribute, real, shape_of
from pycutlass.tensor import wrap
from pycutlass.types import Element, computed
from pycutlass.types import element as element_of

__all__ = ["address_now", "check_frozen", "checked_scalar", "frozen", "is_address", "scalar_key"]

_EXACT = 2**53  # below which float64 has all integers


def checked_scalar(compute: Element, name: str, value: Any, readable: tuple[str, ...]) -> tuple[float, int, Any, int]:
    """Return value, device pointer (0 for a number), what keeps the pointer alive, and how many elements are there."""
    on_device = _is_on_device(value)
    if on_device and name not in readable:
        raise ArgumentTypeError(
            f"{name} must be a number: kernels read {' and '.join(readable) or 'no scalar'} alone from device memory, "
            f"got {type(value).__name__}. Copy it to the host first."
        )
    if on_device:
        pointer, count = (int(value), 1) if is_address(value) else _device_scalar(compute, name, value)
        if not 0 < pointer < 2**64:
            raise ArgumentTypeError(f"{name} is the address {pointer}, which is no device memory; pass a number")
        return 0.0, pointer, value, count
    number = _number(name, value, readable)
    if compute.is_integer:
        _check_integer(compute, name, number)
    elif math.isfinite(number) and math.isinf(computed(compute, number)):
        raise ArgumentError(
            f"{name}={number} is beyond {compute}, which the epilogue computes in: it would be infinite there, and "
            f"the largest number is {compute.limits[1]:g}.{_wider(compute, number)}"
        )
    return number, 0, None, 0


def is_address(value: Any) -> bool:
    """Return whether a scalar is an address in device memory, and no tensor, which may go over to other memory."""
    return type(value).__name__ == "CUdeviceptr"


def address_now(compute: Element, name: str, tensor: Any, count: int, ordinal: int) -> int:
    """Return where a tensor is now that was found to be a scalar, for a launch on GPU `ordinal`.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        It is no such scalar any more, or on another GPU.
    """
    if not _is_on_device(tensor):
        raise ArgumentError(
            f"{name} was in device memory when the launch was prepared, and is on the host now: move it back, or give "
            f"it anew, to the call or to a new plan"
        )
    _, pointer, _, found = checked_scalar(compute, name, tensor, (name,))
    if found != count:
        raise ArgumentError(
            f"{name} had {counted(count, 'element')} when the launch was prepared, and has {found} now: give it anew, "
            f"to the call or to a new plan"
        )
    where = attribute(tensor, "device")
    index = attribute(where, "index" if is_of(tensor, "torch", "Tensor") else "id")
    if isinstance(index, int) and index != ordinal:
        raise ArgumentError(
            f"{name} is on GPU {index}, and the operands are on GPU {ordinal}, where the kernel reads it: move it there"
        )
    return pointer


def frozen(value: Any) -> Any:
    """Return a scalar as whoever keeps it needs it: a number on the host as a float, which nobody can change.

    Scalars in device memory, and what is no number at all, are returned as they are.
    """
    if value is None or type(value) in (int, float) or _is_on_device(value):
        return value
    if isinstance(value, np.ndarray) and value.shape:  # which NumPy may warn of
        return value
    try:
        number = real(value)
    except PyCutlassError:  # about which `checked_scalar` says more
        return value
    return value if number is None else number


def check_frozen(name: str, value: Any) -> None:
    """Raise ArgumentTypeError or ArgumentError where a `frozen` scalar is neither a number nor in device memory."""
    is_plain = type(value) is float or (type(value) is int and abs(value) < _EXACT)
    if value is not None and not is_plain and not _is_on_device(value):
        _number(name, value, (name,))


def scalar_key(value: Any) -> Any:
    """Return what tells scalars apart that are `frozen`: 0.0 and -0.0 are equal and two scalars, as are 1 and 1+0j."""
    is_number = type(value) is float or (type(value) is int and abs(value) < _EXACT)
    return float(value).hex() if is_number else (type(value), value)


def _is_on_device(value: Any) -> bool:
    """Return whether a scalar is an address, or a tensor, in device memory."""
    interface = hasattr(type(value), "__cuda_array_interface__")  # torch's raises where a tensor is not on a GPU
    of_torch = attribute(value, "is_cuda")
    return is_address(value) or bool(interface if of_torch is None else of_torch)


def _wider(compute: Element, number: float) -> str:
    """Return where to compute with a number that `compute` lacks: of f16, f32; nothing is as wide as f64 everywhere."""
    if compute.bits > 16 or math.isinf(computed(element_of(_core.float32), number)):
        return " Scale the operands instead: no epilogue of these operands computes in a wider type."
    return " For more, compute in cutlass.float32 (element_epilogue)."


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
        shape = shape_of(value)
        of_shape = f" of shape {shape}" if shape else ""
        single = f": pass {name}.item()" if shape and set(shape) == {1} else ""
        if type(value) in (list, tuple) and len(value) == 1:
            single = f": pass {name}[0]"
        raise ArgumentTypeError(
            f"{name} must be {kinds}, got {type(value).__name__}{of_shape}{single or _for_batch(name, value, shape)}"
        ) from cause
    return number


def _for_batch(name: str, value: Any, shape: tuple[int, ...] | None) -> str:
    """Return how a launch gets several numbers, one for each matrix of a batch, for the end of a message."""
    if not shape and not (type(value) in (list, tuple) and all(isinstance(each, int | float) for each in value)):
        return ""
    return (
        f". For one number for each matrix of a batch, write an epilogue function with {name}: "
        f"pycutlass.epilogue.PerBatch, which kernels of every family read"
    )


def _check_integer(compute: Element, name: str, number: float) -> None:
    """Check that C++ can convert the number: what it makes of another one is undefined."""
    if not number.is_integer():  # NaN and infinities are none either
        raise ArgumentError(
            f"{name}={number} must be an integer: the epilogue computes in {compute}. For fractions, compute in "
            f"cutlass.float32 (element_epilogue), or pass out_dtype=cutlass.float32 to functions in one line and plans."
        )
    least, greatest = compute.limits
    if not least <= number <= greatest:
        raise ArgumentError(
            f"{name}={number:.0f} must be {least:.0f} to {greatest:.0f}: the epilogue computes in {compute}. For more, "
            f"compute in cutlass.float32 (element_epilogue)."
        )


def _device_scalar(compute: Element, name: str, tensor: Any) -> tuple[int, int]:
    """Return the address and the number of elements of a tensor: one, or one behind the other for a batch."""
    if is_of(tensor, "torch", "Tensor"):
        wrap(name, tensor)  # which refuses those that are not in memory as they read
    try:
        dtype = str(tensor.dtype).removeprefix("torch.")
        size = tensor.numel() if hasattr(tensor, "numel") else tensor.size
        pointer = int(tensor.data_ptr() if hasattr(tensor, "data_ptr") else tensor.data.ptr)
    except Exception as error:  # of a library that only looks like torch or cupy
        raise ArgumentTypeError(
            f"{name} on the device must be a tensor of torch or cupy, got {type(tensor).__name__}"
        ) from error
    if dtype != compute.dtype_name or size < 1:
        raise ArgumentError(
            f"{name} on the device must be one element of {compute.dtype_name}, the epilogue's compute type, or one "
            f"for each matrix of a batch; got {size} of {dtype}. Make it with that dtype, or compile the epilogue with "
            f"another element_epilogue."
        )
    if size > 1 and not _is_line(tensor):
        raise ArgumentError(
            f"{name} on the device has {size} elements, which must lie one behind the other in one dimension, one for "
            f"each matrix of a batch; got shape {shape_of(tensor)}: pass {name}.reshape(-1), contiguous"
        )
    return pointer, size


def _is_line(tensor: Any) -> bool:
    """Return whether a tensor has one dimension, in which its elements lie one behind the other."""
    shape = shape_of(tensor)
    stride = attribute(tensor, "stride")
    steps = stride() if callable(stride) else attribute(tensor, "strides")
    itemsize = 1 if callable(stride) else attribute(tensor, "itemsize")
    return shape is not None and len(shape) == 1 and (steps is None or tuple(steps) == (itemsize,))
