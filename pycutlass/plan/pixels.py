"""How tensors of four dimensions are read as pixels with adjacent channels, which kernels take without a copy."""

from __future__ import annotations

from typing import Any

from pycutlass.errors import ArgumentError
from pycutlass.integers import shape_of
from pycutlass.operands.conv_operand import Extent
from pycutlass.plan.forms import as_strided, new_tensor, seen_as
from pycutlass.tensor import TensorView, wrap

__all__ = [
    "aligned",
    "as_pixels",
    "can_be_copied",
    "check_shape",
    "checked_step",
    "copied_pixels",
    "extent_of",
    "matrix_of_filters",
    "matrix_of_pixels",
    "new_pixels",
    "pixel_step",
    "rank_of",
    "through_cupy",
]

_ACCESS = 16  # bytes of the widest access of a kernel
_NCHW = (0, 2, 3, 1)  # where N, H, W and C are in torch's order


def _in_order(view: TensorView, axes: tuple[int, ...] | None) -> tuple[int, ...]:
    """Return what there is for each axis, as (N, H, W, C)."""
    values = axes or ()
    return tuple(values[axis] for axis in _NCHW) if view.library == "torch" else values


def extent_of(name: str, view: TensorView) -> Extent:
    """Return the extent of a tensor as (N, H, W, C), or (K, R, S, C) of weights; raise unless it has four dimensions.

    Tensors of torch are (N, C, H, W), all others (N, H, W, C).
    """
    if view.shape is None or len(view.shape) != 4:
        order = "(N, C, H, W)" if view.library == "torch" else "(N, H, W, C)"
        one = f": pass {name}[None] for a single image" if view.shape is not None and len(view.shape) == 3 else ""
        raise ArgumentError(f"{name} must have four dimensions, {order}; got shape {view.shape}{one}")
    n, h, w, c = _in_order(view, view.shape)
    return n, h, w, c


def pixel_step(name: str, view: TensorView) -> int | None:
    """Return how many elements pixels are apart; None where channels are not adjacent, or pixels not evenly spaced."""
    n, h, w, c = extent_of(name, view)
    of_images, of_rows, of_pixels, of_channels = _in_order(view, view.strides)
    if 0 in (n, h, w, c):  # whose strides mean nothing
        return c
    step = of_pixels if w > 1 else of_rows if h > 1 else of_images if n > 1 else c
    is_even = (h == 1 or of_rows == w * step) and (n == 1 or of_images == h * w * step)
    return step if is_even and step >= c and (c == 1 or of_channels == 1) else None


def checked_step(name: str, view: TensorView) -> int:
    """Return how many elements pixels are apart, or raise with the remedy."""
    found = pixel_step(name, view)
    if found is not None:
        return found
    what = f"{name} of shape {view.shape} has strides {view.strides}, and kernels take adjacent channels"
    if view.library == "torch":
        if name == "out":
            made = f"torch.empty({view.shape}, ..., memory_format=torch.channels_last)"
            raise ArgumentError(f"{what}, torch's memory format channels_last: pass out={made}, or allow_copy=True")
        raise ArgumentError(
            f"{what}, torch's memory format channels_last: pass {name}.to(memory_format=torch.channels_last), or "
            f"allow_copy=True"
        )
    if view.library == "dlpack":
        raise ArgumentError(f"{what} and evenly spaced pixels of (N, H, W, C): {_of_dlpack(name, view)}")
    module = {"cupy": "cupy"}.get(view.library, "np")
    remedy = {"spec": "leave the strides out"}.get(view.library, f"pass {module}.ascontiguousarray({name})")
    raise ArgumentError(
        f"{what} and evenly spaced pixels of (N, H, W, C): {remedy}, or allow_copy=True; if it is (N, C, H, W), "
        f"transpose it to (0, 2, 3, 1) first"
    )


def _of_dlpack(name: str, view: TensorView) -> str:
    """Return what serves in the place of images whose library is known by DLPack alone, and does not copy them."""
    if name == "out":
        return "nothing is written back by a library that is known by DLPack alone: pass an out that lies so"
    module = "np" if can_be_copied(view) else "cupy"
    turned = f"if it is (N, C, H, W), pass {module}.from_dlpack({name}).transpose(0, 2, 3, 1)"
    if can_be_copied(view):
        return f"pass np.ascontiguousarray(np.from_dlpack({name})), or allow_copy=True; {turned}"
    return f"a library that is known by DLPack alone copies nothing: pass {through_cupy(name)}; {turned}"


def check_shape(name: str, view: TensorView, extent: Extent) -> None:
    """Raise unless C or D has the shape of the result."""
    if extent_of(name, view) != extent:
        n, h, w, c = extent
        shape = (n, c, h, w) if view.library == "torch" else extent
        raise ArgumentError(f"{name} must have the shape of the result, {shape}; got {view.shape}")


def aligned(view: TensorView, bits: int, channels: int, step: int, pixels: int) -> int:
    """Return how many elements a kernel can load at once: channels, pixels and the address are multiples of them."""
    alignment = _ACCESS * 8 // bits
    steps = [channels, *([step] if pixels > 1 else [])]
    while alignment > 1 and (any(each % alignment for each in steps) or view.pointer % max(1, alignment * bits // 8)):
        alignment //= 2
    return alignment


def as_pixels(tensor: Any, view: TensorView) -> Any:
    """Return packed memory of (N, H, W, C) as its library has images: torch as (N, C, H, W), without a copy."""
    return tensor.permute(0, 3, 1, 2) if view.library == "torch" else tensor


def new_pixels(like: Any, view: TensorView, extent: tuple[int, ...], dtype_name: str) -> Any:
    """Return packed memory for images of (N, H, W, C), in the library of `like` and where that is."""
    made = new_tensor(like, view, extent, dtype_name)
    return seen_as(made, lambda each: as_pixels(each, view)) if view.library == "torch" else made


def copied_pixels(name: str, tensor: Any, view: TensorView) -> Any:
    """Return a packed copy of images, or raise where nothing copies them."""
    if can_be_copied(view):
        made = new_pixels(tensor, view, extent_of(name, view), str(view.dtype_name))
        made[...] = view.owner[0] if view.library == "dlpack" else tensor
        return made
    raise ArgumentError(
        f"{name} cannot be copied by its library, which is known by DLPack alone: pass {through_cupy(name)}"
    )


def can_be_copied(view: TensorView) -> bool:
    """Return whether a tensor can be copied: of a library that is known by DLPack alone NumPy does so, on the host."""
    return view.library in ("torch", "cupy", "numpy") or (view.library == "dlpack" and view.device is None)


def through_cupy(name: str) -> str:
    """Return code that makes a packed copy of a tensor of which there is DLPack alone, in the same order."""
    return f'cupy.array(cupy.from_dlpack({name}), order="C")'


def matrix_of_pixels(name: str, tensor: Any, view: TensorView) -> Any:
    """Return images as the matrix of their pixels by their channels, in the same memory."""
    n, h, w, c = extent_of(name, view)
    return as_strided(name, tensor, view, (n * h * w, c), (checked_step(name, view), 1))


def matrix_of_filters(name: str, tensor: Any, view: TensorView) -> Any:
    """Return weights as a matrix with a row for each of K, in the same memory, which must have no gaps."""
    k, r, s, c = extent_of(name, view)
    step = checked_step(name, view)
    if step != c and k * r * s > 1:
        raise ArgumentError(
            f"{name}, a gradient of weights, must be packed, and its pixels of {c} channels are {step} elements apart: "
            f"give memory of its own"
        )
    return as_strided(name, tensor, view, (k, r * s * c), (r * s * c, 1))


def rank_of(name: str, tensor: Any) -> int:
    """Return how many dimensions a tensor has."""
    shape = shape_of(tensor)
    return len(wrap(name, tensor).shape or ()) if shape is None else len(shape)
