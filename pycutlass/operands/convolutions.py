"""Tensor operands of convolutions, and the problem that two tensors make.

A tensor is held as the matrix of its pixels by its channels: its leading dimension is the step between pixels, which
may be larger than the number of channels, as in a slice of the channels of another tensor. Tensors in groups of 32
channels are batches of interleaved matrices.

Which dimension is which is told by the extents, for torch first in the order (N, C, H, W) that its convolutions use,
for everyone else first in the order (N, H, W, C). Where both orders fit (C = H = W), it is the first of them, and what
does not lie so is refused: by its strides alone, images would be taken for others.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from pycutlass import _core
from pycutlass.calls import member_meant, public, shown
from pycutlass.errors import ArgumentError, ArgumentTypeError
from pycutlass.integers import as_int, several, shape_of
from pycutlass.interleave import reorder_column
from pycutlass.library import TensorDescription
from pycutlass.log import silent
from pycutlass.operands import Matrix, check_count, vector_of
from pycutlass.operands.conv_operand import ConvOperand, Extent
from pycutlass.operands.conv_refusals import check_conv_element, conv_refusal
from pycutlass.operands.refusals import viewed
from pycutlass.spec import view_of
from pycutlass.tensor import TensorView

__all__ = [
    "channel_bias",
    "channel_bias_of",
    "conv2d_problem_size",
    "conv_tensor",
    "conv_tensor_of",
    "is_channel_bias",
    "logical",
    "pair_of",
    "reorder_filter",
]

_Tensor = TypeVar("_Tensor")

_NHWC, _NCHW = (0, 1, 2, 3), (0, 2, 3, 1)  # where N, H, W and C are in a tensor's shape


def conv_tensor(wanted: ConvOperand, tensor: Any) -> Matrix:
    """Return an operand, checked.

    Parameters
    ----------
    wanted : ConvOperand
        What it is to be.
    tensor : object
        Of four dimensions with channels adjacent, flat, or a raw pointer. Interleaved layouts: flat, a raw pointer, or
        of five dimensions, (N, C / 32, H, W, 32) or (C / 32, R, S, K, 32). Of one without elements, neither its address
        nor its strides mean anything.

    Raises
    ------
    ArgumentTypeError
        Another element type, or no tensor at all.
    ArgumentError
        Extents or strides that do not fit, such as torch's default memory format, or more than a kernel can address.
    AlignmentError
        Pointer or step between pixels less aligned than described.
    """
    return conv_tensor_of(wanted, viewed(wanted.name, wanted.description, tensor, wanted.extent))


def conv_tensor_of(wanted: ConvOperand, view: TensorView) -> Matrix:
    """Return the operand whose tensor, in memory or to come, looks like `view`: as `conv_tensor` does."""
    operand, broken = wanted.check(view)
    check_conv_element(wanted, operand, broken)
    if broken and not (broken == "empty" and wanted.name == "C"):  # which may also be a bias
        raise conv_refusal(wanted, operand, broken)
    return operand


def channel_bias(name: str, description: TensorDescription, tensor: Any, extent: Extent) -> Matrix:
    """Return a bias: one element for each channel, which stands for all pixels of `extent`.

    Raises
    ------
    ArgumentTypeError, ArgumentError, AlignmentError
        As for `conv_tensor`.
    """
    return channel_bias_of(name, description, viewed(name, description, tensor, extent[3:]), extent)


def channel_bias_of(name: str, description: TensorDescription, view: TensorView, extent: Extent) -> Matrix:
    """Return the bias whose tensor, in memory or to come, looks like `view`: as `channel_bias` does."""
    return vector_of(name, description, view, extent[0] * extent[1] * extent[2], extent[3])


def is_channel_bias(tensor: Any, extent: Extent) -> bool:
    """Return whether `tensor` has one element for each channel, and not one for each element of `extent`."""
    shape = shape_of(tensor)
    if shape is None:
        return False
    elements = math.prod(shape)
    return elements == extent[3] != extent[0] * extent[1] * extent[2] * extent[3]


def logical(operand: Matrix, extent: Extent) -> NDArray[Any]:
    """Return host memory as an array of `extent`; a bias as one of its channels."""
    array = operand.host_array()
    if operand.ld == 0:
        return np.asarray(array[0])
    if operand.description.layout is _core.TensorC32RSK32:
        k, r, s, c = extent
        return array.reshape(r, s, k, c).transpose(2, 0, 1, 3)
    return array.reshape(extent)


@public
def reorder_filter(tensor: _Tensor) -> _Tensor:
    """Return a filter of TensorC32RSK32 with its K permuted as interleaved kernels read it; twice is no change.

    Their epilogue writes straight from registers, where eight neighbouring columns of the product are four threads
    with two each: within 32 channels, (4, 4, 2) becomes (4, 4, 2) with the first two exchanged.

    Parameters
    ----------
    tensor : array of torch, numpy or cupy
        Shape (C / 32, R, S, K, 32), or flat.

    Returns
    -------
    array of the same library and shape
        A copy.
    """
    permuted: _Tensor = reorder_column(tensor)
    return permuted


@public
def conv2d_problem_size(
    x: Any,
    w: Any,
    *,
    stride: int | Sequence[int] = 1,
    padding: int | Sequence[int] = 0,
    dilation: int | Sequence[int] = 1,
    groups: int = 1,
    mode: _core.ConvMode = _core.ConvMode.cross_correlation,
    split_k_slices: int = 1,
) -> _core.Conv2dProblemSize:
    """Return the problem of convolving activation `x` with filter `w`.

    Parameters
    ----------
    x, w : tensor
        Of torch with shapes (N, C, H, W) and (K, C / groups, R, S) as its convolutions take them, whatever their
        memory format; of anyone else, and as TensorSpecs, with shapes (N, H, W, C) and (K, R, S, C / groups). They need
        no memory: tensors of torch's meta device are taken as well.
    stride, padding, dilation : int or pair of int
        For both axes, or for height and width.
    groups : int
        Groups of channels.
    mode : cutlass.conv.Mode
        Whether the filter is flipped.
    split_k_slices : int
        Slices of split-K.

    Raises
    ------
    ArgumentTypeError, ArgumentError
        Something else than two tensors of four dimensions, or than one or two integers; tensors that do not fit each
        other, or a filter that does not fit the padded activation.

    Examples
    --------
    >>> import numpy as np, pycutlass
    >>> x, w = np.zeros((1, 8, 8, 16), np.float16), np.zeros((32, 3, 3, 16), np.float16)
    >>> size = pycutlass.conv2d_problem_size(x, w, stride=2, padding=1)
    >>> size.P, size.Q, size.K
    (4, 4, 32)
    """
    input_size = _core.Tensor4DCoord(*_logical_extent("x", x))
    filter_size = _core.Tensor4DCoord(*_logical_extent("w", w))
    if as_int(groups) == 1 and filter_size.c() != input_size.c():
        raise ArgumentError(
            f"w must have the channels of x, {input_size.c()}, divided by groups=1; got {filter_size.c()}"
            f"{_orders(x, w)}"
        )
    pad_h, pad_w = pair_of("padding", padding, 0)
    groups, split_k_slices = check_count("groups", groups), check_count("split_k_slices", split_k_slices)
    if not isinstance(mode, _core.ConvMode):
        near = member_meant(mode, _core.ConvMode, "cutlass.conv.Mode")
        raise ArgumentTypeError(f"mode must be a cutlass.conv.Mode, got {shown(mode)}{near}")
    given = (
        input_size,
        filter_size,
        _core.Tensor4DCoord(pad_h, pad_h, pad_w, pad_w),
        _core.MatrixCoord(*pair_of("stride", stride)),
        _core.MatrixCoord(*pair_of("dilation", dilation)),
        mode,
        split_k_slices,
        groups,
    )
    try:
        return _core.Conv2dProblemSize(*given)
    except ArgumentError as error:
        plain = (*given[:4], _core.MatrixCoord(1, 1), mode, split_k_slices, 1)
        turned = [_core.Tensor4DCoord(size.n(), size.w(), size.c(), size.h()) for size in given[:2]]
        if all(view_of(name, each).library == "torch" for name, each in (("x", x), ("w", w))):
            turned = [_core.Tensor4DCoord(size.n(), size.c(), size.h(), size.w()) for size in given[:2]]
        is_of_order = not _makes(plain) or _makes((*turned, *given[2:]))
        raise ArgumentError(f"{error}{_orders(x, w) if is_of_order else ''}") from None


def _makes(parts: Any) -> bool:
    """Whether these parts make a problem."""
    try:
        with silent():  # nobody asked for it
            _core.Conv2dProblemSize(*parts)
    except ArgumentError:
        return False
    return True


def _orders(x: Any, w: Any) -> str:
    """Return in which order the dimensions of two tensors were read: the other one is the usual mistake."""
    texts = []
    for name, last, first, tensor in (
        ("x", "(N, H, W, C)", "(N, C, H, W)", x),
        ("w", "(K, R, S, C)", "(K, C, R, S)", w),
    ):
        view = view_of(name, tensor)
        is_torch = view.library == "torch"
        read, other = (first, last) if is_torch else (last, first)
        moved = f"{name}.permute(0, 3, 1, 2)" if is_torch else f"{name}.transpose(0, 2, 3, 1)"
        if view.library == "spec":
            moved = f"a TensorSpec of shape {tuple((view.shape or ())[axis] for axis in _NCHW)}"
        texts.append(f"{name} was read as {read}; if it is {other}, pass {moved}")
    return ". " + ", and ".join(texts)


def _logical_extent(name: str, tensor: Any) -> Extent:
    shape = several(tensor, 4) if isinstance(tensor, list | tuple) else None
    if shape is not None:
        text = f"{name} must be a tensor, got the shape {shape}: pass {name}, or TensorSpec({shape}, dtype)"
        raise ArgumentTypeError(text)
    view = view_of(name, tensor)
    if view.shape is None or len(view.shape) != 4:
        raise ArgumentError(f"{name} must have four dimensions, got shape {view.shape}")
    n, h, w, c = (view.shape[axis] for axis in (_NCHW if view.library == "torch" else _NHWC))
    return n, h, w, c


def pair_of(name: str, value: int | Sequence[int], least: int = 1) -> tuple[int, int]:
    """Return an option for height and width, given once for both or for each; raise where it is something else."""
    number = as_int(value)
    pair = several(value, 2) if number is None else (number, number)
    if pair is None:
        raise ArgumentTypeError(f"{name} must be an integer, or two for height and width; got {shown(value)}")
    for number in pair:
        check_count(name, number, least)
    return pair[0], pair[1]
