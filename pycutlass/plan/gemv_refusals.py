"""Operands that GEMV kernels alone multiply, beside an epilogue that those do not have: what to change about them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from pycutlass import _core
from pycutlass.epilogue import Family, FunctionEpilogue
from pycutlass.plan.kind import GemmKind

__all__ = ["why_no_gemv"]


def why_no_gemv(kind: GemmKind, has_kernels: Callable[[GemmKind], bool]) -> str:
    """Return how to lay out operands for tensor cores, where an epilogue needs these; "" where that is not the reason.

    Parameters
    ----------
    kind : GemmKind
        Of which there are no kernels.
    has_kernels : callable
        Says whether there are kernels of a kind.
    """
    epilogue, (A, B) = kind.epilogue, (kind.A, kind.B)
    if not isinstance(epilogue, FunctionEpilogue) or not epilogue.why_not(Family.GEMV):
        return ""
    by_rows, by_columns = replace(A, layout=_core.RowMajor), replace(B, layout=_core.ColumnMajor)
    copies = {} if A.is_row_major else {"A": "a.copy() of NumPy, or a.contiguous() of torch"}
    if B.is_row_major:
        copies["B"] = "b.swapaxes(-1, -2).copy().swapaxes(-1, -2) of NumPy, or b.mT.contiguous().mT of torch"
    if A.type.is_float8:  # of which `remedy_of` says how they must lie
        aligned = replace(by_rows, alignment=128 // A.type.bits), replace(by_columns, alignment=128 // B.type.bits)
        if has_kernels(replace(kind, A=aligned[0], B=aligned[1])):
            return ""
        return (
            f". {epilogue.name} needs more of D than one element, which of 8-bit floats Hopper-native kernels "
            f"alone have, on compute capability 9.0: leave that to another kernel, or pass both operands as float16"
        )
    if not copies or not has_kernels(
        replace(kind, A=replace(by_rows, alignment=1), B=replace(by_columns, alignment=1))
    ):
        return ""
    types = A.type.name if A.type is B.type else f"{A.type.name} and {B.type.name}"
    passed = " and ".join(f"as {name} {code}" for name, code in copies.items())
    return (
        f". {epilogue.name} needs more of D than one element, which of {types} kernels of tensor cores alone have, "
        f"and they multiply A by rows and B by columns, where elements of K are adjacent: pass {passed}"
    )
