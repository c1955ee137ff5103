"""How Hopper-native kernels copy their operands: by TMA what is aligned to 16 bytes, else by their threads.

Threads bring A and B to shared memory by cp.async, 4 or 8 bytes at a time. The threads that have the sums read C and
write D, however these are aligned.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from pycutlass import _core
from pycutlass.errors import DescriptionError
from pycutlass.families.agreement import with_alignments
from pycutlass.families.other_family import as_ampere, listed
from pycutlass.families.parts import Gemm, Shape, Tensor, Tile, changed
from pycutlass.families.sm90_products import accumulator_registers, is_fast, most_registers
from pycutlass.families.sm90_warp_groups import warp_groups

__all__ = ["TMA_BYTES", "check_loads", "check_stores", "is_cp_async", "is_direct", "is_divided"]

#: What TMA copies is aligned to, and what cp.async at least, in bytes.
TMA_BYTES, _CP_ASYNC_BYTES = 16, 4
#: Threads of the warp group that loads.
_LOADERS = 128


def is_cp_async(A: Tensor, B: Tensor) -> bool:
    """Return whether A and B are loaded by cp.async, since TMA cannot copy both."""
    return min(A.alignment_bytes, B.alignment_bytes) < TMA_BYTES


def is_direct(A: Tensor, B: Tensor, C: Tensor, D: Tensor) -> bool:
    """Return whether threads read C and write D; `C` is what is loaded as such.

    They do beside cp.async as well: CUTLASS's kernels of that do not tell TMA how many bytes of C it has to wait for.
    """
    return is_cp_async(A, B) or min(C.alignment_bytes, D.alignment_bytes) < TMA_BYTES


def check_loads(kernel: Gemm, A: Tensor, B: Tensor) -> None:
    """Check that A and B, as they are in the kernel, can be loaded."""
    if not is_cp_async(A, B):
        return
    wrong, changes = _wrong_of_cp_async(kernel, A, B)
    narrow = [each for each in (("A", kernel.A), ("B", kernel.B)) if each[1].alignment_bytes < TMA_BYTES]
    for_tma = with_alignments({name: _for_tma(operand) for name, operand in narrow})
    _check_bytes(kernel, for_tma if wrong else "")
    if wrong:
        found = listed(
            f"operand {name} of {operand.type} needs alignment {_for_tma(operand)}, got {operand.alignment}"
            for name, operand in narrow
        )
        raise DescriptionError(
            f"TMA needs {TMA_BYTES}-byte alignment: {found}. Then A and B are loaded by cp.async, "
            f"{', and '.join(wrong)}: use {listed(changes)}, or {for_tma}"
        )


def _wrong_of_cp_async(kernel: Gemm, A: Tensor, B: Tensor) -> tuple[list[str], list[str]]:
    """Return what else of a kernel there is not with cp.async, and what to use instead."""
    tile, wrong, changes = kernel.tile_description, [], []
    m, n, k = tile.threadblock_shape
    of_two = changed(tile, threadblock_shape=(128, n, k)) if warp_groups(tile) == 3 else tile
    if of_two != tile:
        wrong.append(f"which three warp groups that share M={m} do not")
    most, registers = most_registers(of_two, cp_async=True), accumulator_registers(of_two)
    divided = is_divided(of_two, A, B)
    if not divided:
        wrong.append(f"among whose {_LOADERS} threads a tile of {[m, n, k]} cannot be divided")
    if not divided or registers > most:
        others = (changed(of_two, threadblock_shape=shape) for shape in _shapes(of_two))
        fits = (each for each in others if is_divided(each, A, B) and accumulator_registers(each) <= most)
        other = next(fits, None)
        changes.append("another tile" if other is None else f"threadblock_shape {list(other.threadblock_shape)}")
    elif of_two != tile:
        changes.append(f"threadblock_shape {list(of_two.threadblock_shape)}")
    if tile.cluster_shape != (1, 1, 1):
        wrong.append(f"which shares nothing among the threadblocks of cluster_shape={list(tile.cluster_shape or ())}")
        changes.append("cluster_shape=[1, 1]")
    if tile.math_instruction.a.is_float8 and not is_fast(tile):
        wrong.append("whose kernels leave sums of 8-bit floats to the tensor cores")
        changes.append("MathOperation.multiply_add_fast_accum")
    if kernel.swizzling_functor is _core.ThreadblockSwizzleStreamK:
        wrong.append("which loads what K leaves over of its tiles first, and so all of K in one threadblock")
        changes.append("swizzling_functor=cutlass.IdentitySwizzle1, which takes Mode.GemmSplitKParallel")
    return wrong, changes


def check_stores(kernel: Gemm, A: Tensor, B: Tensor, C: Tensor, D: Tensor) -> None:
    """Check that the epilogue can be computed by a kernel that has no TMA for C and D, where it is one."""
    functor = kernel.epilogue_functor
    if functor.is_tree and functor.reads_source is None and is_direct(A, B, C, D):
        needed = {"A": kernel.A, "B": kernel.B, "C": kernel.C, "D": kernel.D}
        aligned = listed(f"{name} with alignment {_for_tma(operand)}" for name, operand in needed.items())
        raise DescriptionError(
            f"{functor!r} consists of CUTLASS's visitors, whose tiles come and go by TMA, from addresses that are "
            f"multiples of {TMA_BYTES} bytes: describe {aligned}, or use an epilogue function"
        )


def _check_bytes(kernel: Gemm, instead: str) -> None:
    """Check that cp.async, which moves 4 bytes at least, can move elements of A and B.

    The message tells to describe what it can move, or `instead`.
    """
    wrong = {
        name: operand
        for name, operand in (("A", kernel.A), ("B", kernel.B))
        if operand.alignment_bytes < _CP_ASYNC_BYTES
    }
    if not wrong:
        return
    found = "; ".join(
        f"operand {name} of {operand.type} with alignment {operand.alignment} is aligned to {operand.alignment_bytes}"
        for name, operand in wrong.items()
    )
    least = {name: _CP_ASYNC_BYTES * 8 // operand.type.bits for name, operand in wrong.items()}
    ampere = as_ampere(kernel.tile_description, kernel)
    raise DescriptionError(
        f"Hopper-native kernels load A and B by TMA, from addresses that are multiples of {TMA_BYTES} bytes, or by "
        f"cp.async, from multiples of {_CP_ASYNC_BYTES}: {found}; {instead or with_alignments(least)}"
        f"{f', or for an Ampere-style kernel {ampere}' if ampere else ''}"
    )


def _for_tma(operand: Tensor) -> int:
    return 8 * TMA_BYTES // operand.type.bits


def is_divided(tile: Tile, A: Tensor, B: Tensor) -> bool:
    """Return whether threads copy equal parts of a tile, each line by as many as it takes (sm90_common.inl)."""
    m, n, k = tile.threadblock_shape
    for operand, lines, length in (
        (A, m, k) if A.is_row_major else (A, k, m),
        (B, k, n) if B.is_row_major else (B, n, k),
    ):
        across = min(_LOADERS, length // operand.alignment)
        if length % operand.alignment or not across or _LOADERS % across or lines % (_LOADERS // across):
            return False
        if length // operand.alignment % across:
            return False
    return True


def _shapes(tile: Tile) -> Iterator[Shape]:
    """Yield extents that can be tried in place of a tile's, those first that change the least."""
    m, n, k = tile.threadblock_shape
    of_rows = itertools.product((n, *(2**i for i in range(3, 9))), (k, *(2**i for i in range(3, 8))))
    by_change = sorted(of_rows, key=lambda each: (abs(each[0] - n) / n + abs(each[1] - k) / k, each))
    for rows, (columns, depth) in itertools.product(dict.fromkeys((m, 128)), by_change):
        shape = (rows, columns, depth)
        try:
            changed(tile, threadblock_shape=shape)
        except DescriptionError:
            continue
        yield shape
