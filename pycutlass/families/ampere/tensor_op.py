"""Kernels of tensor cores: whether they load their tiles, multiply them by their instruction and write all of C.

CUTLASS derives who loads, reads and writes what from tile, warps, layouts and stages. Where that does not work out, it
fails to compile, in words about iterations; or it compiles, and leaves elements out, takes others, mixes them up, or
multiplies in another type.
"""

from __future__ import annotations

from pycutlass.calls import counted
from pycutlass.enums import MathOperation
from pycutlass.errors import DescriptionError
from pycutlass.families.agreement import check_alignments, with_alignments
from pycutlass.families.ampere.products import INTERLEAVED
from pycutlass.families.ampere.simt import check_accesses, check_steps, described, refuse_sliced_k, sides
from pycutlass.families.parts import Tensor, Tile, changed

__all__ = [
    "can_be_newer",
    "check_integer_layouts",
    "check_tensor_op",
    "check_turing",
    "check_upcast",
    "shares_evenly",
    "why_not_written",
]

#: Bytes along K of a line of which four share 128 bytes of shared memory (tensor_op_multiplicand_sm75.h).
_QUARTER_LINE = 32
#: Operations that convert their operands on the way to the tensor cores.
_HALVED = (MathOperation.multiply_add_fast_f16, MathOperation.multiply_add_fast_bf16)
_LANES = 32
#: Adjacent rows of a warp's tile that are written at a time: half of an instruction's 16.
_ROWS = 8
#: Bytes of a row that one access of a warp covers at most, where its lanes can be spread over several rows.
_LINE_BYTES = 256
#: The instructions of Turing's tensor cores.
_TURING = {"f16": (16, 8, 8), "s8": (8, 8, 16)}
#: Elements in one access, by what tensor-core epilogues write from s32 (default_epilogue_tensor_op.h).
_FROM_S32 = {"s8": (4, 8, 16), "f16": (8,), "bf16": (8,)}


#: What takes int8 in every layout.
_SIMT_INT8 = (
    "for every layout use OpClass.Simt with instruction_shape=[1, 1, 4], math_operation=MathOperation.multiply_add, "
    "threadblock_shape=[128, 128, 32], stages=2 and warp_count=[4, 2, 1], and "
    f"{with_alignments({'A': 4, 'B': 4, 'C': 1})}"
)


def check_tensor_op(tile: Tile, A: Tensor, B: Tensor, C: Tensor) -> None:
    """Check that tensor cores can load and multiply the tile."""
    _check_loads(tile, A, B)
    for name, operand, axis, along_k in sides(A, B, C):
        if operand.order.interleave == 1:
            _check_operand_tile(name, operand, tile, axis, along_k)
        if operand.type.short == "f64":
            _check_f64(name, tile, axis, along_k)
        elif not along_k and operand.order.interleave == 1:
            _check_warp_tile(name, operand, tile, axis)
        else:
            _check_matrices(name, operand, tile, axis)
        _check_shares(name, operand, tile, axis, along_k)
    check_steps(tile)


def shares_evenly(beside: int, lines: int, lanes: int, warps: int, *, striped: bool = False) -> bool:
    """Return whether warps of `lanes` x 32 / `lanes` threads load `beside` x `lines` accesses, each of them once.

    As PitchLinearWarpRakedThreadMap divides them, or PitchLinearWarpStripedThreadMap where `striped`
    (cutlass/transform/pitch_linear_thread_map.h): lines first, then what is side by side.
    """
    if beside % lanes or lines % (32 // lanes):
        return False
    across, down = beside // lanes, lines // (32 // lanes)
    if down >= warps:
        return not down % warps
    warps_down = warps // down if striped else down
    warps_across = across // warps_down if striped else warps // warps_down
    even = warps_across > 0 and not across % warps_across and not down % warps_down
    return even and warps == warps_across * warps_down


def check_turing(tile: Tile) -> None:
    """Check what Turing asks of a tile."""
    math, wrong, given = tile.math_instruction, [], []
    if math.a is not math.b:
        raise DescriptionError(
            f"Turing's tensor cores (compute_capability=75) multiply operands of one type, got {math.a} and {math.b}: "
            f"describe compute_capability=80"
        )
    shape = _TURING.get(math.a.short)
    if math.is_tensor_op and math.instruction_shape != shape:
        wrong.append(
            f"Turing's tensor cores (compute_capability=75) multiply f16 with instruction_shape [16, 8, 8] and int8 "
            f"with [8, 8, 16], got {math.a} with {list(math.instruction_shape or ())}"
        )
        given += [f"instruction_shape={list(shape)}"] if shape else []
    if tile.stages != 2:
        wrong.append(f"Turing has no asynchronous copies: stages must be 2, got {tile.stages}")
        given.append("stages=2")
    if wrong:
        ways = [f"give {' and '.join(given)}"] if given else []
        ways += [] if math.instruction_shape == (8, 8, 16) else ["describe compute_capability=80"]
        raise DescriptionError(f"{'; '.join(wrong)}: {' or '.join(ways)}")


def can_be_newer(tile: Tile) -> bool:
    """Return whether a tile of Turing's int8 instruction can have that of newer GPUs."""
    try:
        changed(tile, math_instruction=changed(tile.math_instruction, instruction_shape=(16, 8, 32)))
    except DescriptionError:
        return False
    return True


def check_integer_layouts(tile: Tile, A: Tensor, B: Tensor, C: Tensor) -> None:
    """Check the layouts of int8 on tensor cores, and of whatever is interleaved."""
    math = tile.math_instruction
    layouts = (A.layout, B.layout, C.layout)
    allowed = math.product.layouts
    if any(layout in INTERLEAVED for layout in layouts):
        if layouts != INTERLEAVED or INTERLEAVED[:2] not in allowed:
            raise DescriptionError(
                f"interleaved layouts go together: A and C ColumnMajorInterleaved32, B RowMajorInterleaved32, int8 by "
                f"TensorOp; got {A.order}, {B.order} and {C.order} of {math.a}"
            )
        if C.type.short != "s8" or C.alignment != 8:  # a lane writes 8 bytes of a row of 32 (default_gemm.h)
            raise DescriptionError(
                f"interleaved layouts are written 8 bytes at a time, as 8 elements: operand C must be cutlass.int8 "
                f"with alignment 8, got {C.type} with {C.alignment}: {with_alignments({'C': 8})}"
            )
        check_alignments("interleaved operands are loaded 16 elements at a time", {"A": (A, 16), "B": (B, 16)})
        warps, k = tile.num_threads // 32, tile.threadblock_shape[2]
        if k > 32 * warps:  # the transposed map of default_mma_core_sm80.h has one line of 32 for each warp
            raise DescriptionError(
                f"each warp loads 32 of an interleaved tile's K: threadblock_shape K={k} needs "
                f"{counted(k // 32, 'warp')}, warp_count makes {warps}"
            )
        return
    if layouts[:2] not in allowed:
        raise DescriptionError(
            f"int8 tensor-core kernels take A RowMajor and B ColumnMajor, both contiguous along K, since ldmatrix "
            f"cannot transpose 8-bit elements; got {A.order} and {B.order}. Describe them so, or {_SIMT_INT8}"
        )


def check_upcast(tile: Tile, A: Tensor, B: Tensor) -> None:
    """Check what a mainloop asks for that converts one operand to the other's type (mma_mixed_input_tensor_op.h)."""
    narrow, operand, layout = ("A", A, "RowMajor") if A.type.bits < B.type.bits else ("B", B, "ColumnMajor")
    wide = B.type if operand is A else A.type
    if (A.layout, B.layout) not in tile.math_instruction.product.layouts:
        raise DescriptionError(
            f"kernels that convert operand {narrow} of {operand.type} to {wide} take it contiguous along K, since "
            f"ldmatrix cannot transpose 8-bit elements: describe {narrow} as cutlass.{layout}, got {operand.order}; or "
            f"convert it to {wide} before"
        )
    if (tile.stages or 0) < 3:
        raise DescriptionError(
            f"kernels that convert operand {narrow} of {operand.type} to {wide} are pipelines of cp.async: they need 3 "
            f"stages or more, got {tile.stages}"
        )


def _check_loads(tile: Tile, A: Tensor, B: Tensor) -> None:
    math = tile.math_instruction
    if math.math_operation in _HALVED and tile.warp_shape[0] % 32:
        # mma_tensor_op.h converts a warp's fragment of A in two halves, each of whole instructions.
        raise DescriptionError(
            f"{math.math_operation.name} needs an even number of instructions along M for each warp: its tile's "
            f"M={tile.warp_shape[0]} must be a multiple of 32; use another threadblock_shape or warp_count"
        )
    if math.a.short == "f32" and tile.stages == 2:
        # default_mma.h has one such mainloop for GEMM, whatever the operation is; for convolution there is none.
        raise DescriptionError(
            "f32 TensorOp kernels need 3 stages or more, got 2, with which CUTLASS rounds f32 to f16; operands of "
            "cutlass.tfloat32 can have 2"
        )
    operands = {"A": A, "B": B}
    if math.a.short == "f64":
        if not A.alignment == B.alignment == 1:
            # The 64-bit shared-memory layouts are filled element by element (default_mma_core_sm80.h).
            single = {name: (operand, 1) for name, operand in operands.items()}
            check_alignments("f64 TensorOp kernels load single elements", single)
        if tile.stages == 2:
            raise DescriptionError("f64 TensorOp kernels are pipelines of cp.async: they need 3 stages or more, got 2")
    if min(A.alignment_bytes, B.alignment_bytes) < 4 and (tile.stages or 0) > 2:
        check_alignments(
            "pipelines of more than 2 stages use cp.async, which moves at least 4 bytes",
            {name: (each, 32 // each.type.bits) for name, each in operands.items() if each.alignment_bytes < 4},
            ", or use stages=2",
        )


def _check_f64(name: str, tile: Tile, axis: int, along_k: bool) -> None:
    """Check what the shared-memory layouts of 64-bit elements ask for (tensor_op_multiplicand_sm80.h)."""
    if tile.num_threads < 64:
        raise DescriptionError("f64 TensorOp kernels have two warps or more: use another warp_count")
    m, n, _ = tile.warp_shape
    if m % 16 or n % 16:
        raise DescriptionError(
            f"a warp tile of f64 is a multiple of 16 along M and N, got {m}x{n}: use another threadblock_shape or "
            f"warp_count"
        )
    refuse_sliced_k(tile)
    rows, k = tile.threadblock_shape[axis], tile.threadblock_shape[2]
    if not along_k:
        warps = tile.num_threads // 32
        if warps & (warps - 1):  # regular_tile_access_iterator_tensor_op_sm80.h: the store would write to wrong places
            raise DescriptionError(
                f"operand {name} of f64 is not contiguous along K: as many warps as a power of two can store it, "
                f"warp_count {list(tile.warp_count or ())} makes {warps}; use another warp_count"
            )
        return
    if k % 16:
        raise DescriptionError(
            f"operand {name} of f64 is contiguous along K: threadblock_shape K={k} must be a multiple of 16"
        )
    # Each warp stores a part of the tile, and its permutation comes round every 16 rows
    # (regular_tile_access_iterator_tensor_op_sm80.h).
    of_warp = rows * 32 / tile.num_threads
    if of_warp not in (2, 4, 8) and of_warp % 16:
        raise DescriptionError(
            f"operand {name} of f64 is contiguous along K: each of {tile.num_threads // 32} warps loads {of_warp:g} of "
            f"threadblock_shape {'MN'[axis]}={rows}, which must be 2, 4, 8 or a multiple of 16; use another of the two"
        )


def _check_operand_tile(name: str, operand: Tensor, tile: Tile, axis: int, along_k: bool) -> None:
    """Check one operand's tile, of extent `axis` (0 for M, 1 for N) and K, against CUTLASS's shared-memory layouts.

    The contiguous extent of a tile fills or divides a 128-byte line where it runs along K
    (cutlass/layout/tensor_op_multiplicand_sm75.h, crosswise), and is a multiple of it otherwise (congruous).
    """
    rows, k = tile.threadblock_shape[axis], tile.threadblock_shape[2]
    line = 1024 // operand.type.bits
    if along_k and (k > line or line % k):
        raise DescriptionError(
            f"operand {name} is contiguous along K: threadblock_shape K={k} must divide the {line} elements of a "
            f"128-byte line"
        )
    lines = 2 if tile.stages == 2 and operand.type.bits == 32 else 1  # a warp loads two (default_mma_core_sm75.h)
    if not along_k and operand.type.bits != 64 and rows % (lines * line):
        raise DescriptionError(
            f"operand {name} is not contiguous along K: threadblock_shape {'MN'[axis]}={rows} must be a multiple of "
            f"the {lines * line} elements of {'a' if lines == 1 else 'two'} 128-byte line{'s' * (lines - 1)}"
        )
    check_accesses(name, operand, tile, axis)


def _check_warp_tile(name: str, operand: Tensor, tile: Tile, axis: int) -> None:
    """Check that each warp's part of an operand that is not contiguous along K begins where warps can read it.

    Shared memory is permuted within lines of 128 bytes. CUTLASS finds where a warp's part begins by adding whole lines,
    or half a line where parts are that long (congruous layouts of warp/mma_tensor_op_tile_iterator.h).
    """
    extent, line = tile.warp_shape[axis], 1024 // operand.type.bits
    if extent % line and extent != line // 2:
        raise DescriptionError(
            f"operand {name} is not contiguous along K: a warp tile's {'MN'[axis]} must be {line // 2} or a multiple "
            f"of {line}, got {extent}; use another threadblock_shape or warp_count"
        )


def _check_matrices(name: str, operand: Tensor, tile: Tile, axis: int) -> None:
    """Check that each warp reads its part of an operand that is stored along K by whole ldmatrix instructions.

    One reads four matrices of 8 lines x 16 bytes: as many side by side as an instruction's K takes, the others one
    below the other; or 1 or 2 where the part has no more lines. CUTLASS rounds the number of instructions down, and
    leaves the other lines unread (crosswise layouts of warp/mma_tensor_op_tile_iterator.h).
    """
    extent, k = tile.warp_shape[axis], (tile.math_instruction.instruction_shape or (1, 1, 1))[2]
    rows = 8 * 4 * 128 // (k * operand.type.bits)
    least = 8
    if (tile.warp_count or (1, 1, 1))[axis] > 1 and _depth_bytes(operand, tile) == _QUARTER_LINE:
        least = 16  # the order of accesses in a line of 128 bytes comes round every four lines, of four rows each
    few = [each for each in (8, 16) if least <= each < rows]
    if extent % rows and extent not in few:
        allowed = ", ".join(map(str, few))
        raise DescriptionError(
            f"operand {name} is read by ldmatrix along K, {rows} lines at a time: a warp tile's {'MN'[axis]} must be "
            f"{allowed + ' or ' if few else ''}a multiple of {rows}, got {extent}; use another threadblock_shape or "
            f"warp_count"
        )


def _depth_bytes(operand: Tensor, tile: Tile) -> int:
    """Return how many bytes of one line of the tile are side by side in shared memory."""
    k = operand.order.interleave if operand.order.interleave > 1 else tile.threadblock_shape[2]
    return operand.type.bytes_of(k)


def _check_shares(name: str, operand: Tensor, tile: Tile, axis: int, along_k: bool) -> None:
    """Check that the warps load the tile of an operand once, and all of it (default_mma_core_sm80.h, ..._sm75.h).

    Where that does not come out even CUTLASS rounds down, and leaves the rest alone without a word.
    """
    rows, k = tile.threadblock_shape[axis], tile.threadblock_shape[2]
    wide = operand.type.bits == 64
    each = 1 if wide else 128 // operand.type.bits
    if operand.order.interleave > 1:
        beside, lines, lanes = rows * operand.order.interleave // each, k // operand.order.interleave, 32
    else:
        beside, lines = (k // each, rows) if along_k else (rows // each, k)
        lanes = 16 if wide else beside if along_k else min(beside, 8)
    warps = tile.num_threads // 32
    if not shares_evenly(beside, lines, lanes, warps, striped=wide and not along_k):
        raise DescriptionError(
            f"the {rows}x{k} tile of operand {name} is {beside} x {lines} accesses, which {tile.num_threads} threads, "
            f"{counted(warps, 'warp')} of {lanes} x {32 // lanes}, cannot share evenly: use fewer warps, or extents "
            f"that are powers of two"
        )


def why_not_written(tile: Tile, C: Tensor) -> str:
    """Return why the epilogue of a tensor-core kernel cannot write the tile to C; nothing where it can."""
    if C.order.interleave > 1:
        return _why_not_interleaved(tile, C.order.interleave)
    return _why_not_vectors(tile, C) or _why_not_shared(tile, C) or _why_not_rearranged(tile, C)


def _why_not_interleaved(tile: Tile, columns: int) -> str:
    """Each warp writes what it has, in whole groups of columns (interleaved_epilogue.h)."""
    if (tile.warp_count or (1, 1, 1))[2] > 1:
        return f"operand C is interleaved, which warps that share K cannot write: {described(tile)}"
    if tile.warp_shape[1] % columns:
        return (
            f"operand C is interleaved, and each warp must have whole groups of its {columns} columns, not "
            f"{tile.warp_shape[1]}: {described(tile)}"
        )
    return ""


def _why_not_vectors(tile: Tile, C: Tensor) -> str:
    if tile.math_instruction.accumulator.short != "s32":
        return ""
    allowed = _FROM_S32.get(C.type.short, (C.alignment,))
    if C.alignment in allowed:
        return ""
    return (
        f"tensor-core epilogues write {C.type} from cutlass.int32 {' or '.join(map(str, allowed))} elements at a time: "
        f"operand C has alignment {C.alignment}"
    )


def _why_not_shared(tile: Tile, C: Tensor) -> str:
    """All lanes must have work, and no two the same (output_tile_thread_map.h, OutputTileOptimalThreadMap)."""
    columns, (_, n, k) = tile.threadblock_shape[1], tile.warp_count or (1, 1, 1)
    sharing = n * k  # warps that write the same rows
    if columns % C.alignment == 0 and _covers(columns // C.alignment, C.alignment_bytes, sharing):
        return ""
    return (
        f"operand C of {C.type} with alignment {C.alignment} makes {columns / C.alignment:g} accesses of a row, and "
        f"{counted(sharing, 'warp')} along N and K, of {_LANES} accesses each, cannot share {_ROWS} such rows evenly: "
        f"{described(tile)}"
    )


def _covers(accesses: int, size: int, warps: int) -> bool:
    """Return whether `warps` cover 8 rows of so many accesses, each of `size` bytes, exactly."""
    if warps >= _ROWS:
        return warps == _ROWS and accesses % _LANES == 0
    if _ROWS % warps:
        return False
    rows, widest = _ROWS // warps, _LINE_BYTES // size
    if _LANES // widest > rows:
        width, height = _LANES // rows, rows
    else:
        width = min(accesses, _LANES, widest)
        height = min(_ROWS, _LANES // width)
    return width * height == _LANES and accesses % width == 0 and rows % height == 0


def _why_not_rearranged(tile: Tile, C: Tensor) -> str:
    """Accumulators of 32 bits pass through shared memory in another order (tile_iterator_tensor_op_mixed.h)."""
    columns, width = tile.threadblock_shape[1], tile.warp_shape[1]
    kinds = tile.math_instruction.accumulator.short, C.type.short
    if kinds == ("s32", "s8") and C.alignment > 4 and columns != 256 and (columns, C.alignment) != (128, 8):
        alone = width == columns <= 64
        fits = alone or (width == 64 and columns <= 128) or (width == 32 and columns <= 64 and C.alignment == 8)
    elif kinds in (("f32", "f16"), ("s32", "f16"), ("s32", "bf16")) and C.alignment == 8:
        fits = width == 64 or 32 % width == 0
    else:
        return ""
    if fits:
        return ""
    return (
        f"known CUTLASS bug, refused: operand C of {C.type} with alignment {C.alignment} gets wrong elements where "
        f"warps have {width} of {columns} columns: {described(tile)}"
    )
