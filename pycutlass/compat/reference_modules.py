"""The original's reference modules: what a GEMM and a convolution are, in float64 on the host."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pycutlass import _core
from pycutlass.calls import public, shown
from pycutlass.errors import ArgumentError, ArgumentTypeError
from pycutlass.integers import as_int, attribute, real, several
from pycutlass.library import TensorDescription
from pycutlass.operands import check_count
from pycutlass.reference.conv2d import implicit_gemm
from pycutlass.types import Layout

__all__ = ["Conv2dReferenceModule", "ReferenceModule"]

Array = NDArray[Any]

_Operator = _core.ConvOperator
_CHANNELS = 32


@public
class ReferenceModule:
    """D = alpha * A x B + beta * C of matrices that are packed in the described layouts.

    Parameters
    ----------
    A, B, C : TensorDescription
        Operands; D shares everything with C.

    Examples
    --------
    >>> import numpy as np
    >>> from pycutlass import *
    >>> row = TensorDescription(cutlass.float32, cutlass.RowMajor)
    >>> ones = np.ones(4, np.float32)
    >>> ReferenceModule(row, row, row).run(ones, ones, ones, cutlass.gemm.GemmCoord(2, 2, 2), 1.0, 0.5)
    array([2.5, 2.5, 2.5, 2.5], dtype=float32)
    """

    def __init__(self, A: TensorDescription, B: TensorDescription, C: TensorDescription) -> None:
        self._descriptions = _descriptions(A, B, C)

    def run(
        self,
        A: Any,
        B: Any,
        C: Any,
        problem_size: Any,
        alpha: float = 1.0,
        beta: float = 0.0,
        bias: bool = False,
        batch: int = 1,
    ) -> Any:
        """Return D, flat and packed in the layout of C: an array, or a tensor of torch where A is one.

        Parameters
        ----------
        A, B, C : array or tensor of torch
            Packed in the described layouts, one matrix after another. `C` is not read where `beta` is 0.
        problem_size : cutlass.gemm.GemmCoord
            M, N, K.
        alpha, beta : float
            Scalars.
        bias : bool
            Whether C is a vector for each matrix: of N elements (row-major C) or M elements (column-major C).
        batch : int
            Number of matrices.

        Raises
        ------
        ArgumentError, ArgumentTypeError
            Operands that do not have the elements of the problem.
        """
        m, n, k = _sizes("problem_size", problem_size)
        alpha, beta, batch = _scalar("alpha", alpha), _scalar("beta", beta), check_count("batch", batch, least=0)
        bias = _flag("bias", bias)
        described = self._descriptions
        left = _matrices("A", A, described[0].order, m, k, batch)
        right = _matrices("B", B, described[1].order, k, n, batch)
        product = alpha * (left @ right)
        order = described[2].order
        if beta != 0 and bias:
            shape = (batch, 1, n) if order.is_row_major else (batch, m, 1)
            product = product + beta * _values("C", C, math.prod(shape)).reshape(shape)
        elif beta != 0:
            product = product + beta * _matrices("C", C, order, m, n, batch)
        return _returned(_packed(product, order), described[2], A)


@public
class Conv2dReferenceModule:
    """D = alpha * convolution of A and B + beta * C, of tensors that are packed in the described layouts.

    Parameters
    ----------
    A, B, C : TensorDescription
        Operands; D shares everything with C.
    kind : cutlass.conv.Operator
        ``fprop``, ``dgrad`` or ``wgrad``.

    Examples
    --------
    >>> import numpy as np
    >>> from pycutlass import *
    >>> nhwc = TensorDescription(cutlass.float32, cutlass.TensorNHWC)
    >>> size = cutlass.conv.Conv2dProblemSize(N=1, H=3, W=3, C=2, K=1, R=2, S=2)
    >>> x, w = np.ones(18, np.float32), np.ones(8, np.float32)
    >>> Conv2dReferenceModule(nhwc, nhwc, nhwc, cutlass.conv.Operator.fprop).run(x, w, None, size)
    array([8., 8., 8., 8.], dtype=float32)
    """

    def __init__(self, A: TensorDescription, B: TensorDescription, C: TensorDescription, kind: Any) -> None:
        self._descriptions = _descriptions(A, B, C)
        if not isinstance(kind, _Operator):
            raise ArgumentTypeError(f"kind must be a cutlass.conv.Operator, got {shown(kind)}")
        self.kind = kind

    def run(
        self, A: Any, B: Any, C: Any, problem_size: Any, alpha: float = 1.0, beta: float = 0.0, bias: bool = False
    ) -> Any:
        """Return D, flat and packed in the layout of C: an array, or a tensor of torch where A is one.

        Parameters
        ----------
        A, B, C : array or tensor of torch
            Packed in the described layouts. `C` is not read where `beta` is 0.
        problem_size : cutlass.conv.Conv2dProblemSize
            Extents, padding, stride, dilation and mode, of one group of channels.
        alpha, beta : float
            Scalars.
        bias : bool
            Whether C has one element for each channel.

        Raises
        ------
        ArgumentError, ArgumentTypeError
            Operands that do not have the elements of the problem, or several groups of channels.
        """
        if not isinstance(problem_size, _core.Conv2dProblemSize):
            raise ArgumentTypeError(
                f"problem_size must be a cutlass.conv.Conv2dProblemSize, got {type(problem_size).__name__}"
            )
        if problem_size.groups != 1:
            raise ArgumentError(f"Conv2dReferenceModule computes one group of channels, got {problem_size.groups}")
        alpha, beta, bias = _scalar("alpha", alpha), _scalar("beta", beta), _flag("bias", bias)
        described, kind = self._descriptions, self.kind
        extents = [
            tuple(extent(kind, problem_size))
            for extent in (_core.implicit_gemm_tensor_a_extent, _core.implicit_gemm_tensor_b_extent)
        ]
        left = _tensor("A", A, described[0].order, extents[0])
        right = _tensor("B", B, described[1].order, extents[1])
        rows, columns = implicit_gemm(kind, problem_size, left, right)
        extent = tuple(_core.implicit_gemm_tensor_c_extent(kind, problem_size))
        result = alpha * (rows @ columns).reshape(extent)
        if beta != 0 and bias:
            result = result + beta * _values("C", C, extent[3])
        elif beta != 0:
            result = result + beta * _tensor("C", C, described[2].order, extent)
        if described[2].order.interleave > 1:
            n, h, w, c = extent
            result = result.reshape(n, h, w, c // _CHANNELS, _CHANNELS).transpose(0, 3, 1, 2, 4)
        return _returned(result, described[2], A)


def _descriptions(*operands: Any) -> tuple[TensorDescription, ...]:
    for name, operand in zip("ABC", operands, strict=True):
        if not isinstance(operand, TensorDescription):
            raise ArgumentTypeError(f"{name} must be a TensorDescription, got {type(operand).__name__}")
    return operands


def _scalar(name: str, value: Any) -> float:
    number = real(value, name)
    if number is None:
        raise ArgumentTypeError(f"{name} must be a number, got {shown(value)}")
    return number


def _flag(name: str, value: Any) -> bool:
    if isinstance(value, bool | np.bool_) or as_int(value) in (0, 1):
        return bool(value)
    raise ArgumentTypeError(f"{name} must be True or False, got {shown(value)}")


def _sizes(name: str, size: Any) -> tuple[int, int, int]:
    extents = several(size, 3)
    if extents is None:
        raise ArgumentTypeError(f"{name} must be cutlass.gemm.GemmCoord(M, N, K) or three integers, got {shown(size)}")
    m, n, k = (check_count(name, extent, least=0) for extent in extents)
    return m, n, k


def _values(name: str, tensor: Any, count: int) -> Array:
    """Return the elements of an operand, of any library, in float64."""
    try:
        if attribute(tensor, "detach") is not None:
            tensor = tensor.detach().cpu()
            tensor = tensor if tensor.is_complex() else tensor.double()
        elif attribute(tensor, "__cuda_array_interface__") is not None:
            tensor = tensor.get()
        values = np.asarray(tensor)
        if values.dtype.kind == "c":
            raise TypeError("complex numbers")  # NumPy would warn, and leave the imaginary parts out
        values = values.astype(np.float64).reshape(-1)
    except Exception as error:  # whatever an object raises that is none
        raise ArgumentTypeError(f"operand {name} must be an array of numbers, got {type(tensor).__name__}") from error
    if values.size != count:
        raise ArgumentError(f"operand {name} must have {count} elements for this problem size, got {values.size}")
    return values


def _matrices(name: str, tensor: Any, order: Layout, rows: int, columns: int, batch: int) -> Array:
    """Return a packed operand as matrices of (batch, rows, columns)."""
    values, group = _values(name, tensor, batch * rows * columns), order.interleave
    across, along = (rows, columns) if order.is_row_major else (columns, rows)
    if across % group:
        raise ArgumentError(f"operand {name} is {order}: {across} lines are no multiple of {group}")
    lines = values.reshape(batch, across // group, along, group).transpose(0, 1, 3, 2).reshape(batch, across, along)
    return lines if order.is_row_major else lines.transpose(0, 2, 1)


def _packed(matrices: Array, order: Layout) -> Array:
    """Return matrices packed in a layout, flat."""
    lines = matrices if order.is_row_major else matrices.transpose(0, 2, 1)
    batch, across, along = lines.shape
    group = order.interleave
    return lines.reshape(batch, across // group, group, along).transpose(0, 1, 3, 2).reshape(-1)


def _tensor(name: str, tensor: Any, order: Layout, extent: tuple[int, ...]) -> Array:
    """Return a packed operand as a tensor of (N, H, W, C), or a filter as one of (K, R, S, C)."""
    values, (n, h, w, c) = _values(name, tensor, math.prod(extent)), extent
    if order.tag is _core.TensorC32RSK32:
        return values.reshape(c // _CHANNELS, h, w, n, _CHANNELS).transpose(3, 1, 2, 0, 4).reshape(extent)
    if order.tag is _core.TensorNC32HW32:
        return values.reshape(n, c // _CHANNELS, h, w, _CHANNELS).transpose(0, 2, 3, 1, 4).reshape(extent)
    return values.reshape(extent)


def _returned(values: Array, description: TensorDescription, like: Any) -> Any:
    """Return values rounded to the described type, as an array or as a tensor of torch where `like` is one."""
    with np.errstate(over="ignore"):
        rounded = description.type.round(np.ascontiguousarray(values).reshape(-1))
    if not hasattr(like, "detach"):
        return rounded
    import torch

    if description.type.short == "bf16":
        return torch.from_numpy(rounded.astype(np.float32)).to(torch.bfloat16).to(like.device)
    return torch.from_numpy(rounded).to(like.device)
