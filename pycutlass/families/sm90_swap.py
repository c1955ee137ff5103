"""Hopper-native kernels of the transposed problem: D^T = B^T x A^T, with the epilogue transposed as well.

The tile has rows of the transposed D then, so that a problem with few rows takes tiles with few columns. Nothing is
copied: the transposed matrix of a row-major one is column-major, at the same place.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from pycutlass import _core
from pycutlass.errors import DescriptionError
from pycutlass.families.epilogues import in_kernel
from pycutlass.families.parts import Epilogue, Gemm, Parts, Tensor, Tile, changed
from pycutlass.families.sm90_products import is_fast
from pycutlass.families.sm90_register_a import is_only_straight, is_only_transposed, nearest_shape

__all__ = ["check_swap", "is_swapped", "parts_in_kernel"]


def check_swap(kernel: Gemm) -> None:
    """Check that the epilogue of a transposed problem can be transposed."""
    functor, A, B = kernel.epilogue_functor, kernel.A, kernel.B
    if is_only_straight(A, B):
        raise DescriptionError(
            f"swap_ab=True computes the transposed problem, and of {A.type} there is none of A and B by columns, which "
            f"would be by rows then: use swap_ab=False{_also_straight(kernel.tile_description, B)}, or describe one of "
            f"them as cutlass.RowMajor"
        )
    if functor.is_tree and functor.transposed() is None:
        forced = is_only_transposed(A, B)
        asked = f"A and B of {A.type} by rows are multiplied as" if forced else "swap_ab=True computes"
        remedy = "describe one of them as cutlass.ColumnMajor" if forced else "use swap_ab=False"
        raise DescriptionError(
            f"{asked} the transposed problem, and {functor!r} cannot be transposed: an epilogue that combines pairs of "
            f"columns, or selects from rows, has them side by side in the tile; {remedy}"
        )


def _also_straight(tile: Tile, B: Tensor) -> str:
    """Return what else a kernel needs that loads A to registers, for a message, behind what comes before."""
    precise = tile.math_instruction.a.is_float8 and not is_fast(tile)
    shape = nearest_shape(tile, B)
    needs = ["MathOperation.multiply_add_fast_accum"] * precise
    needs += [f"threadblock_shape {list(shape)}"] * (shape != tile.threadblock_shape)
    return "".join(f" and {each}" for each in needs)


def is_swapped(functor: Epilogue, A: Tensor, B: Tensor, D: Tensor) -> bool:
    """Return whether a kernel computes the transposed problem even if that is not asked for."""
    if is_only_straight(A, B):  # a column-major D is stored by columns then
        return False
    return is_only_transposed(A, B) or in_kernel(functor, D) is not functor


def parts_in_kernel(kernel: Gemm) -> Parts:
    """Return the epilogue and the operands as the C++ of a kernel has them."""
    functor, A, B, C, D = kernel.epilogue_functor, kernel.A, kernel.B, kernel.C, kernel.D
    if kernel.swap_ab:
        functor = _transposed_epilogue(functor)
        A, B, C, D = _transposed(B), _transposed(A), _transposed(C), _transposed(D)
    if functor.is_tree and not D.is_row_major:
        functor = functor.by_columns() or functor
    return Parts(functor, A, B, C, D)


def _transposed_epilogue(functor: Epilogue) -> Epilogue:
    transposed: Epilogue | None = functor.transposed() if functor.is_tree else None
    return transposed or functor


def _turned(operand: Tensor) -> Tensor:
    """Return what describes the transposed matrix."""
    layout = {_core.RowMajor: _core.ColumnMajor, _core.ColumnMajor: _core.RowMajor}.get(operand.layout, operand.layout)
    return changed(operand, layout=layout)


#: Hundreds of candidates have the same operands, which are hashable, though `Tensor` does not say so.
_transposed: Any = lru_cache(maxsize=128)(_turned)
