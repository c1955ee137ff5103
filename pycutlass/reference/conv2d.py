"""What a convolution means, in NumPy: a matrix product that `reference.gemm` computes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy.typing import NDArray

from pycutlass import _core
from pycutlass.reference.gemm import gemm

if TYPE_CHECKING:
    from pycutlass.operation.conv2d import Conv2dOperation

__all__ = ["conv2d", "implicit_gemm"]

Array = NDArray[Any]

_Operator = _core.ConvOperator


def conv2d(
    operation: Conv2dOperation,
    problem_size: _core.Conv2dProblemSize,
    A: Array,
    B: Array,
    C: Array | None,
    alpha: float = 1.0,
    beta: float = 0.0,
    *extra: float,
    exact: bool = False,
    serial: bool = False,
) -> Array:
    """Return D = epilogue(convolution of A and B, C).

    Parameters
    ----------
    operation : Conv2dOperation
        The description.
    problem_size : cutlass.conv.Conv2dProblemSize
        Extents, padding, stride, dilation and mode.
    A, B, C : array
        fprop: activation (N, H, W, C), filter (K, R, S, C), source (N, P, Q, K). dgrad: output gradient, filter, source
        (N, H, W, C). wgrad: output gradient, activation, source (K, R, S, C). `C` may be a bias of one element for each
        channel, and is not read where `beta` is 0.
    alpha, beta, *extra : float
        Scalars of the epilogue.
    exact : bool
        Sum in f64 and leave D unrounded in f64: the oracle.
    serial : bool
        Let the slices of `problem_size` take turns, each adding its sum to what those before it have left in D, in D's
        type. The oracle has no slices.

    Returns
    -------
    array of the shape of D
        In the type of C, or f64 where `exact`.
    """
    if problem_size.groups > 1:
        return _grouped(operation, problem_size, A, B, C, (alpha, beta, *extra), exact)
    rows, columns = implicit_gemm(operation.conv_kind, problem_size, A, B)
    source = C if C is None or C.ndim == 1 else C.reshape(rows.shape[0], columns.shape[1])
    slices = _serial_slices(operation, problem_size) if serial else []
    product = gemm(cast(Any, operation), rows, columns, source, alpha, beta, *extra, exact=exact, slices=slices)
    return product.reshape(tuple(_core.implicit_gemm_tensor_c_extent(operation.conv_kind, problem_size)))


def implicit_gemm(kind: _core.ConvOperator, p: _core.Conv2dProblemSize, A: Array, B: Array) -> tuple[Array, Array]:
    """Return the two matrices whose product the convolution is: (N P Q, R S C) and (R S C, K) for fprop."""
    if kind is _Operator.fprop:
        return _gathered(A, *_taps(p)), B.reshape(p.K, -1).T
    if kind is _Operator.dgrad:
        return _gathered(A, *_sources(p)), B.transpose(1, 2, 0, 3).reshape(-1, p.C)
    return A.reshape(-1, p.K).T, _gathered(B, *_taps(p))


def _serial_slices(operation: Conv2dOperation, p: _core.Conv2dProblemSize) -> list[Array]:
    """Return the indices of K that each slice of a serial split-K sums up; [] where there is one slice.

    The slices deal out the channels of all taps, and for wgrad the pixels, by the K of a tile at a time
    (cutlass/conv/conv2d_problem_size.h, implicit_gemm_k_iterations).
    """
    count, step = p.split_k_slices, operation.tile_description.threadblock_shape[2]
    if count == 1:
        return []
    if operation.conv_kind is _Operator.wgrad:
        dealt = np.arange(p.N * p.P * p.Q) // step
    else:
        dealt = np.tile(np.arange(p.C if operation.conv_kind is _Operator.fprop else p.K) // step, p.R * p.S)
    return [np.flatnonzero(dealt % count == number) for number in range(count)]


def _grouped(
    operation: Conv2dOperation,
    p: _core.Conv2dProblemSize,
    A: Array,
    B: Array,
    C: Array | None,
    scalars: tuple[float, ...],
    exact: bool,
) -> Array:
    """Return a convolution of channels in groups, group by group."""
    one = _core.Conv2dProblemSize(
        *(p.N, p.H, p.W, p.C // p.groups, p.K // p.groups, p.R, p.S, p.P, p.Q, p.pad_h, p.pad_w),
        *(p.stride_h, p.stride_w, p.dilation_h, p.dilation_w, p.mode),
    )
    # A filter has the channels of one group, and the groups along K.
    along_b, along_d = (3, 0) if operation.conv_kind is _Operator.wgrad else (0, 3)
    outputs = []
    for group in range(p.groups):
        a, b = _part(A, 3, group, p.groups), _part(B, along_b, group, p.groups)
        c = C if C is None else _part(C, min(along_d, C.ndim - 1), group, p.groups)
        outputs.append(conv2d(operation, one, a, b, c, *scalars, exact=exact))
    return np.concatenate(outputs, axis=along_d)


def _part(tensor: Array, axis: int, group: int, groups: int) -> Array:
    """Return what belongs to one of the groups."""
    count = tensor.shape[axis] // groups
    return tensor[(slice(None),) * axis + (slice(group * count, (group + 1) * count),)]


def _gathered(tensor: Array, rows: Array, columns: Array) -> Array:
    """Return a matrix of one row for each (n, x, y), and in it tensor[n, rows[x, r], columns[y, s], :] for each (r, s).

    Index -1 stands for zeros.
    """
    padded = np.pad(tensor, ((0, 0), (0, 1), (0, 1), (0, 0)))
    taken = padded[:, rows[:, None, :, None], columns[None, :, None, :]]
    return taken.reshape(tensor.shape[0] * rows.shape[0] * columns.shape[0], -1)


def _taps(p: _core.Conv2dProblemSize) -> tuple[Array, Array]:
    """Return which row (column) of the activation each output row (column) reads at each tap of the filter."""
    return (
        _inside(_offsets(p.P, p.stride_h, p.R, p.dilation_h, p.pad_h, p.mode), p.H),
        _inside(_offsets(p.Q, p.stride_w, p.S, p.dilation_w, p.pad_w, p.mode), p.W),
    )


def _sources(p: _core.Conv2dProblemSize) -> tuple[Array, Array]:
    """Return which row (column) of the output gradient reaches each activation row (column) through each tap."""
    return (
        _inside(_divided(-_offsets(p.H, -1, p.R, p.dilation_h, p.pad_h, p.mode), p.stride_h), p.P),
        _inside(_divided(-_offsets(p.W, -1, p.S, p.dilation_w, p.pad_w, p.mode), p.stride_w), p.Q),
    )


def _offsets(size: int, stride: int, taps: int, dilation: int, pad: int, mode: _core.ConvMode) -> Array:
    tap = np.arange(taps)
    if mode == _core.ConvMode.convolution:
        tap = tap[::-1]
    return np.arange(size)[:, None] * stride - pad + tap * dilation


def _divided(indices: Array, stride: int) -> Array:
    return np.where(indices % stride == 0, indices // stride, -1)


def _inside(indices: Array, size: int) -> Array:
    return np.where((indices >= 0) & (indices < size), indices, -1)
