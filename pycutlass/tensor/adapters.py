"""One adapter for each tensor library.

An adapter looks at attributes only: it neither copies nor waits nor changes the current device.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np

from pycutlass import _core
from pycutlass.calls import shown
from pycutlass.errors import ArgumentTypeError, PyCutlassError
from pycutlass.imported import imported, is_of
from pycutlass.integers import as_int, several, shape_of
from pycutlass.remedies import converted, copied, empty, is_target, typed
from pycutlass.tensor.capsule import CUDA, read_capsule
from pycutlass.tensor.tangents import has_tangent
from pycutlass.tensor.view import TensorView

__all__ = ["NoViewError", "look_at", "wrap"]


class NoViewError(ArgumentTypeError):
    """What was given as an operand cannot be viewed; whoever knows the operand says what to pass in its place.

    Parameters
    ----------
    name, rule : str
        The operand, and what is wrong with it.
    library : str
        Whose tensor is to be passed.
    shape : tuple of int
        What it has, as far as it has one.
    given : str or None
        Its element type.
    plain : str
        Code that makes a tensor of its values; "" where there are none.
    further : str
        What else is to be known of that.
    device : str
        Where it is to be, as code; "" for where it is.
    """

    def __init__(
        self,
        name: str,
        rule: str,
        library: str,
        shape: tuple[int, ...],
        given: str | None,
        plain: str = "",
        further: str = "",
        device: str = "",
    ) -> None:
        self.name, self.rule, self.library, self.shape, self.given = name, rule, library, shape, given
        self.plain, self.further, self.device = plain, further, device
        super().__init__(self.text(shape, given, None))

    def text(self, shape: tuple[int, ...], dtype: str | None, row_major: bool | None) -> str:
        """Return the message for an operand of `shape` and `dtype`, with adjacent rows, columns, or either (None)."""
        if self.given is None and not self.plain:
            of_shape = f" of shape {shape}" if shape else ""
            zeros = ", of zeros where nothing is to be added" if self.name[0] == "C" else ""
            return f"{self.rule}: give a tensor{of_shape}{zeros}"
        made = empty(self.name, self.library, shape, dtype, row_major is not False)
        if self.device:
            made = made.replace(f"{self.name}.device", self.device)
        written = is_target(self.name)
        if dtype is None:
            return f"{self.rule}. Pass {f'memory for the result, of shape {shape}' if written else self.plain}."
        cast = None if dtype == self.given and self.plain != self.name else dtype
        code = copied(self.plain, self.library, len(self.shape or shape), row_major is not False, cast)
        code = code.replace(f"array(np.asarray({self.name}), ", f"array({self.name}, ")  # which take lists as well
        if row_major is None:  # either is right, and stays
            code = self.plain if cast is None else f"{self.plain}.{'to' if self.library == 'torch' else 'astype'}"
            code += "" if cast is None else f"({typed(self.library, cast)})"
        remedy = converted(self.name, self.library, dtype, self.given, made, code)
        return f"{self.rule}. {remedy}{'' if written else self.further}."


def wrap(name: str, tensor: Any) -> TensorView:
    """Return a view of `tensor`, which the user gave as operand `name`.

    Parameters
    ----------
    name : str
        Operand, for messages.
    tensor : object
        torch.Tensor, numpy.ndarray, cupy.ndarray, an object with ``__dlpack__``, or a ``CUdeviceptr`` or integer
        address.

    Raises
    ------
    ArgumentTypeError
        Anything else.
    """
    try:
        return look_at(name, tensor)
    except NoViewError as error:  # which only those know who say what to pass
        raise ArgumentTypeError(str(error)) from error.__cause__


def look_at(name: str, tensor: Any) -> TensorView:
    """Do what `wrap` does, and raise NoViewError where something else can be passed in the place of `tensor`."""
    try:
        for matches, adapt in _ADAPTERS:
            if matches(tensor):
                return adapt(name, tensor)
    except PyCutlassError:
        raise
    except Exception as error:  # whatever the library, or a class of the user's, says where it has no memory to show
        raise ArgumentTypeError(
            f"operand {name}, a {type(tensor).__name__}, cannot be read as a tensor in memory: {shown(error)}"
        ) from error
    rule = (
        f"operand {name} must be a tensor of torch, numpy or cupy, an object with __dlpack__, or a CUdeviceptr; "
        f"got {type(tensor).__name__}"
    )
    if type(tensor).__name__ == "TensorSpec":
        rule += ", which has no memory. It is for operation.supports, and operation.output returns one"
    if tensor is None:
        raise NoViewError(name, rule, "numpy", (), None)
    if _has_numbers(tensor):
        raise NoViewError(name, rule, "numpy", np.shape(tensor), None, f"np.asarray({name})")
    raise ArgumentTypeError(rule)


def _has_numbers(values: Any) -> bool:
    """Whether these are numbers in lists, which NumPy makes an array of."""
    if type(values) not in (list, tuple) or not values or shape_of(values[0]):
        return False
    try:
        return np.asarray(values).dtype.kind in "iuf"
    except Exception:  # rows of different lengths, or of whoever wrote the class of one
        return False


def _is_torch(tensor: Any) -> bool:
    return is_of(tensor, "torch", "Tensor")


def _is_fake(tensor: Any) -> bool:
    """Whether this stands for a tensor while torch traces: reading its address only warns."""
    return is_of(tensor, "torch._subclasses.fake_tensor", "FakeTensor")


def _is_of_transform(tensor: Any) -> bool:
    """Whether this stands for a tensor inside of vmap, grad, jvp or functionalize of torch.func."""
    is_wrapped = imported("torch._C", "_functorch", "is_functorch_wrapped_tensor")
    return callable(is_wrapped) and bool(is_wrapped(tensor))


def _from_torch(name: str, tensor: Any) -> TensorView:
    own = "torch", tuple(tensor.shape), str(tensor.dtype).removeprefix("torch.")
    if _is_of_transform(tensor):
        raise ArgumentTypeError(
            f"operand {name} is a tensor inside of a transform of torch.func, which has no memory of its own. Of vmap, "
            f"call an operator of torch.ops.pycutlass instead; take gradients with backward() of these operators"
        )
    if tensor.layout is not imported("torch", "strided"):
        rule = f"operand {name} must be a dense tensor, got layout {tensor.layout}"
        raise NoViewError(name, rule, *own, f"{name}.to_dense()")
    if tensor.is_conj() or tensor.is_neg():
        rule = f"operand {name} is a lazy conjugate or negative view"
        raise NoViewError(name, rule, *own, f"{name}.resolve_conj().resolve_neg()")
    device = tensor.device
    if _is_fake(tensor):
        raise ArgumentTypeError(
            f"operand {name} is a {type(tensor).__name__}, which stands for a tensor and has no memory: kernels are "
            f"launched outside of tracing"
        )
    if device.type == "meta":
        raise ArgumentTypeError(
            f"operand {name} is a tensor of the meta device, which has a shape and no memory: make it on "
            f"{'a CUDA device' if _core.device_count() else 'the CPU, since this machine has no GPU'}"
        )
    if device.type not in ("cuda", "cpu"):
        rule = f"operand {name} must be on a CUDA device, got {device}"
        raise NoViewError(name, rule, *own, f"{name}.cuda()", device="'cuda'")
    ordinal = device.index if device.type == "cuda" else None
    dtype_name, pointer = str(tensor.dtype).removeprefix("torch."), tensor.data_ptr()
    if not pointer and tensor.numel():
        raise ArgumentTypeError(
            f"operand {name} has shape {tuple(tensor.shape)} and no memory: its storage was freed, or never made"
        )
    shape, strides = tuple(tensor.shape), tuple(tensor.stride())
    elements = (
        tensor.storage_offset() + sum((extent - 1) * step for extent, step in zip(shape, strides, strict=True)) + 1
    )
    held = tensor.untyped_storage().nbytes()
    if tensor.numel() and elements * tensor.element_size() > held:
        raise ArgumentTypeError(
            f"operand {name} has shape {shape} and strides {strides}, and its storage holds {held} bytes of the "
            f"{elements * tensor.element_size()} up to its end: it was freed or resized below the tensor"
        )
    followed = {"requires_grad": bool(tensor.requires_grad), "has_tangent": has_tangent(tensor)}
    return TensorView(pointer, dtype_name, shape, strides, ordinal, "torch", tensor, **followed)


def _is_numpy(tensor: Any) -> bool:
    return isinstance(tensor, np.ndarray)


def _from_numpy(name: str, tensor: Any) -> TensorView:
    own = "numpy", tensor.shape, tensor.dtype.name
    if is_of(tensor, "numpy.ma", "MaskedArray"):
        rule = f"operand {name} is a masked array, and kernels know no masks: they would take what lies below"
        filled = ", or fill in another value than 0"
        raise NoViewError(name, rule, *own, f"{name}.filled(0)", filled)
    if tensor.dtype.byteorder == ">":
        rule = f"operand {name} is big-endian ({tensor.dtype.str})"
        raise NoViewError(name, rule, *own, name)
    strides = _element_strides(name, tensor.strides, tensor.dtype.itemsize)
    writable = bool(tensor.flags.writeable)
    return TensorView(tensor.ctypes.data, tensor.dtype.name, tensor.shape, strides, None, "numpy", tensor, writable)


def _is_cupy(tensor: Any) -> bool:
    return is_of(tensor, "cupy", "ndarray")


def _from_cupy(name: str, tensor: Any) -> TensorView:
    strides = _element_strides(name, tensor.strides, tensor.dtype.itemsize)
    device = int(tensor.data.device_id)
    return TensorView(int(tensor.data.ptr), tensor.dtype.name, tensor.shape, strides, device, "cupy", tensor)


def _is_pointer(tensor: Any) -> bool:
    return type(tensor).__name__ == "CUdeviceptr" or (isinstance(tensor, int) and not isinstance(tensor, bool))


def _from_pointer(name: str, tensor: Any) -> TensorView:
    address = as_int(int(tensor)) or 0
    if not 0 < address < 2**64:
        raise ArgumentTypeError(f"operand {name} is the address {address}, which is no device memory")
    return TensorView(address, None, None, None, -1, "pointer", tensor)


def _is_dlpack(tensor: Any) -> bool:
    return hasattr(tensor, "__dlpack__") and hasattr(tensor, "__dlpack_device__")


def _from_dlpack(name: str, tensor: Any) -> TensorView:
    """View an object of an unknown library through the tensor library that can hold it.

    The exporting library is asked for the legacy default stream's view (stream=1), which is where a launch without a
    stream goes.
    """
    said = tensor.__dlpack_device__()
    device = several(said, 2)
    if device is None or device[1] < 0:
        raise ArgumentTypeError(
            f"operand {name}, a {type(tensor).__name__}, is on {shown(said)} as its __dlpack_device__ says, and that "
            f"must be two integers, the type of the device and its number from 0: pass a tensor of torch or CuPy"
        )
    kind, ordinal = device
    if kind == CUDA:
        return read_capsule(tensor, ordinal)
    try:
        array = np.from_dlpack(tensor)
    except (BufferError, RuntimeError, TypeError) as error:
        raise ArgumentTypeError(f"operand {name} cannot be read through DLPack: {error}") from error
    view = _from_numpy(name, array)
    return dataclasses.replace(view, library="dlpack", owner=(array, tensor))


def _element_strides(name: str, strides: tuple[int, ...], itemsize: int) -> tuple[int, ...]:
    if any(step % itemsize for step in strides):
        raise ArgumentTypeError(
            f"operand {name} has strides {strides} that are no multiple of its {itemsize}-byte elements"
        )
    return tuple(step // itemsize for step in strides)


_ADAPTERS: tuple[tuple[Callable[[Any], bool], Callable[[str, Any], TensorView]], ...] = (
    (_is_torch, _from_torch),
    (_is_cupy, _from_cupy),
    (_is_numpy, _from_numpy),
    (_is_pointer, _from_pointer),
    (_is_dlpack, _from_dlpack),
)
