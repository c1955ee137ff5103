"""Matrices of int8 in interleaved layouts: 32 columns (or rows) stored together, as the interleaved kernels read them.

The functions take and return arrays of numpy, cupy or torch, on the host or on a GPU, and always copy.
"""

from __future__ import annotations

from typing import Any

__all__ = ["deinterleave_columns", "interleave_columns", "interleave_rows", "reorder_column"]

_GROUP = 32


def interleave_columns(matrix: Any) -> Any:
    """Return a matrix of (rows, columns) packed as ``cutlass.ColumnMajorInterleaved32``, flat.

    Parameters
    ----------
    matrix : array of shape (rows, columns)
        Columns must be a multiple of 32.
    """
    rows, columns = matrix.shape
    return matrix.reshape(rows, columns // _GROUP, _GROUP).swapaxes(0, 1).reshape(-1)


def deinterleave_columns(packed: Any, rows: int, columns: int) -> Any:
    """Return what `interleave_columns` packed, as a matrix of (rows, columns)."""
    return packed.reshape(columns // _GROUP, rows, _GROUP).swapaxes(0, 1).reshape(rows, columns)


def interleave_rows(matrix: Any) -> Any:
    """Return a matrix of (rows, columns) packed as ``cutlass.RowMajorInterleaved32``, flat.

    Parameters
    ----------
    matrix : array of shape (rows, columns)
        Rows must be a multiple of 32.
    """
    rows, columns = matrix.shape
    return matrix.reshape(rows // _GROUP, _GROUP, columns).swapaxes(1, 2).reshape(-1)


def reorder_column(packed: Any) -> Any:
    """Return B of an interleaved GEMM with its columns permuted as the kernel reads them; twice is no change.

    The epilogue writes straight from registers, where eight neighbouring columns of the product are four threads with
    two each: within 32 columns, (4, 4, 2) becomes (4, 4, 2) with the first two exchanged
    (cutlass/util/host_reorder.h).

    Parameters
    ----------
    packed : array
        B packed as ``cutlass.RowMajorInterleaved32``: what `interleave_rows` returns, or shape (K / 32, N, 32). The
        filter of an interleaved convolution, (C / 32, R, S, K, 32), is reordered alike.
    """
    return packed.reshape(-1, 4, 4, 2, _GROUP).swapaxes(1, 2).reshape(packed.shape)
