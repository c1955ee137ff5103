"""Shapes and memory of images, (N, C, H, W) in torch's memory format channels_last."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch

from pycutlass.errors import ArgumentError
from pycutlass.pytorch.shapes import check_bias

__all__ = ["Geometry", "as_rows", "check_gradient", "is_product", "new_images", "spread", "takes_stride"]

_ACCESS = 16  # bytes that kernels of products copy at once
_ALIGNED_BITS = 32  # what kernels for strides above 1 load at once, at the least


@dataclass(frozen=True)
class Geometry:
    """How filters go over images, as torch's functions take it: pairs for height and width.

    torch's dispatcher leaves out what is the default.
    """

    stride: Any = (1, 1)
    padding: Any = (0, 0)
    dilation: Any = (1, 1)
    groups: Any = 1

    @property
    def given(self) -> tuple[Any, ...]:
        """What operators take."""
        return self.stride, self.padding, self.dilation, self.groups

    @property
    def options(self) -> dict[str, Any]:
        """What convolutions in one line take, as numbers."""
        pairs = {name: tuple(int(each) for each in getattr(self, name)) for name in ("stride", "padding", "dilation")}
        return {**pairs, "groups": int(self.groups)}

    def output(
        self,
        images: Any,
        filters: Any,
        bias: torch.Tensor | None = None,
        dtype: Any = None,
        names: tuple[str, str] = ("input of shape", "weight of shape"),
    ) -> tuple[Any, ...]:
        """Return the shape of the convolution of images and filters of these shapes, to whose type a bias is added.

        Messages call both by `names`.

        Raises
        ------
        ArgumentError
            Shapes that do not fit each other, or a filter that is larger than the padded images.
        """
        orders = ("(N, C, H, W)", "(K, C / groups, R, S)")
        for called, shape, order in zip(names, (images, filters), orders, strict=True):
            name, _, what = called.partition(" of ")
            if len(shape) != 4:
                got = f"{what} {tuple(shape)}".strip()
                raise ArgumentError(f"{name} must have four dimensions, {order}; got {got}")
        self._check()
        n, channels = images[0], images[1]
        k, of_group = filters[0], filters[1]
        if channels != of_group * self.groups or k % self.groups != 0:
            raise ArgumentError(
                f"{names[0]} {tuple(images)} and {names[1]} {tuple(filters)} do not fit groups={self.groups}: "
                f"C must be {self.groups} times the weight's second extent, and K a multiple of {self.groups}"
            )
        extents = []
        axes = zip(images[2:], filters[2:], self.stride, self.padding, self.dilation, strict=True)
        for extent, taps, stride, padding, dilation in axes:
            room = extent + 2 * padding - dilation * (taps - 1) - 1
            if room < 0:
                raise ArgumentError(
                    f"{names[0]} {tuple(images)} with padding={tuple(self.padding)} is smaller than {names[1]} "
                    f"{tuple(filters)} with dilation={tuple(self.dilation)}: pad the input"
                )
            extents.append(room // stride + 1)
        check_bias(bias, k, dtype)
        return (n, k, *extents)

    def _check(self) -> None:
        """Raise ArgumentError for numbers that no convolution has."""
        for name, least in (("stride", 1), ("padding", 0), ("dilation", 1)):
            pair = getattr(self, name)
            if len(pair) != 2 or any(each < least for each in pair):
                raise ArgumentError(f"{name} must be two integers of {least} or more, got {tuple(pair)}")
        if self.groups < 1:
            raise ArgumentError(f"groups must be 1 or more, got {self.groups}")


def check_gradient(
    geometry: Geometry, images: Any, filters: Any, grad_output: torch.Tensor, names: tuple[str, str], swapped: str
) -> None:
    """Raise ArgumentError unless a gradient is that of the output of a convolution of these shapes.

    `names` are those of both shapes, and `swapped` that of the operand that a gradient is often taken for.
    """
    given = tuple(grad_output.shape)
    try:
        shape = geometry.output(images, filters, names=names)
        if given != shape:
            raise ArgumentError(f"grad_output must be of {shape}, the output of such a convolution; got {given}")
    except ArgumentError as error:
        other = (given, filters, images) if swapped == "input" else (images, given, filters)
        if _is_gradient(geometry, *other):
            raise ArgumentError(f"{error}. The other way round they fit: swap {swapped} and grad_output") from None
        raise


def _is_gradient(geometry: Geometry, images: Any, filters: Any, grad_output: Any) -> bool:
    try:
        return geometry.output(images, filters) == tuple(grad_output)
    except ArgumentError:
        return False


def new_images(like: torch.Tensor, shape: tuple[Any, ...], dtype: torch.dtype) -> torch.Tensor:
    """Return memory for images of (N, C, H, W), channels_last, also where an extent of 1 leaves strides open."""
    n, c, h, w = shape
    return like.new_empty((n, h, w, c), dtype=dtype).permute(0, 3, 1, 2)


def is_product(geometry: Geometry, weight: torch.Tensor) -> bool:
    """Return whether a convolution is computed as the product of its pixels and filters.

    With filters of one pixel it is one, for which there are kernels for Hopper, too. Channels must be aligned, since
    products have no kernels for very few of them.
    """
    channels, filters = weight.shape[1], weight.shape[0]
    is_single = all(each == 1 for each in weight.shape[2:])
    is_plain = all(each == 1 for each in (*geometry.stride, geometry.groups)) and not any(geometry.padding)
    is_aligned = all(each and each * weight.element_size() % _ACCESS == 0 for each in (channels, filters))
    return is_single and is_plain and is_aligned


def as_rows(images: torch.Tensor) -> torch.Tensor:
    """Return the pixels of images as rows of their channels: a view of images in channels_last."""
    return images.permute(0, 2, 3, 1).reshape(-1, images.shape[1])


def takes_stride(geometry: Geometry, input_size: Any, weight: torch.Tensor) -> bool:
    """Return whether there is a kernel for the gradient of the input with the stride of its convolution.

    With a stride above 1 they have a dilation of 1, and load several channels at once of types below 32 bits.
    """
    if all(each == 1 for each in geometry.stride):
        return True
    if any(each != 1 for each in geometry.dilation):
        return False
    together = max(1, _ALIGNED_BITS // (8 * weight.element_size()))
    channels = (input_size[1] // geometry.groups, weight.shape[0] // geometry.groups)
    return all(each % together == 0 for each in channels)


def spread(geometry: Geometry, input_size: Any, filters: Any, grad: torch.Tensor) -> tuple[torch.Tensor, Geometry]:
    """Return the gradient of an output with stride - 1 zeros between its pixels, for which the stride is 1."""
    dense = replace(geometry, stride=(1, 1))
    made = new_images(grad, dense.output(input_size, filters), grad.dtype).zero_()
    rows, columns = (
        slice(0, (extent - 1) * step + 1, step) for extent, step in zip(grad.shape[2:], geometry.stride, strict=True)
    )
    made[:, :, rows, columns] = grad
    return made, dense
