"""What Hopper-native groups lack of what a single GEMM takes."""

from __future__ import annotations

from pycutlass import _core
from pycutlass.errors import DescriptionError
from pycutlass.families.agreement import check_alignments
from pycutlass.families.other_family import as_ampere
from pycutlass.families.parts import Gemm
from pycutlass.families.sm90_copies import TMA_BYTES

__all__ = ["check_grouped"]

_OPERANDS = ("f16", "bf16", "e4m3", "e5m2", "s8")
#: What groups write, by accumulator: TMA has larger subtiles for 8 bits than the epilogue stores.
_WRITTEN = {"f32": ("f16", "bf16", "f32"), "s32": ("s32", "f32", "f16", "bf16")}


def check_grouped(kernel: Gemm) -> None:
    """Raise DescriptionError where the GEMM is none that the problems of a group can be."""
    tile, math = kernel.tile_description, kernel.tile_description.math_instruction
    operands = {"A": kernel.A, "B": kernel.B, "C": kernel.C}
    wanted = {name: (operand, 8 * TMA_BYTES // operand.type.bits) for name, operand in operands.items()}
    check_alignments(f"Hopper-native groups need {TMA_BYTES}-byte alignment, for TMA", wanted)
    m, n, _ = tile.cluster_shape or (1, 1, 1)
    written = _WRITTEN.get(math.accumulator.short, ())
    changes = as_ampere(tile, kernel)
    or_ampere = f", or for an Ampere-style kernel {changes}" if changes else ""
    for lacks, rule, remedy in (
        (
            not {math.a.short, math.b.short} <= {*_OPERANDS} or math.accumulator.short not in _WRITTEN,
            f"multiply f16, bf16 or 8-bit floats and accumulate in f32, or int8 in int32; got {math.a} by {math.b} and "
            f"{math.accumulator}",
            "describe a GEMM for each problem",
        ),
        (
            (kernel.A.layout, kernel.B.layout) != (_core.RowMajor, _core.ColumnMajor),
            f"take A RowMajor and B ColumnMajor, got A of {kernel.A.order} and B of {kernel.B.order}",
            "describe A as cutlass.RowMajor and B as cutlass.ColumnMajor",
        ),
        (
            not kernel.epilogue_functor.is_tree and not kernel.D.is_row_major,
            f"write D RowMajor, got {kernel.D.order}",
            "describe C, which D follows, as cutlass.RowMajor",
        ),
        (
            kernel.D.type.short not in written,
            f"write {', '.join(written)}, got {kernel.D.type}",
            f"describe C, which D follows, and the functor's output, with one of these, or a GEMM for each problem"
            f"{or_ampere}",
        ),
        (
            max(m, n) > 2,
            f"have 1 or 2 threadblocks along M and N in a cluster, got {[m, n]}",
            f"use cluster_shape={[min(m, 2), min(n, 2)]}",
        ),
        (
            tile.threadblock_shape[1] == 8,
            "have at least 16 columns in a tile, got threadblock_shape N=8",
            "use threadblock_shape N=16",
        ),
    ):
        if lacks:
            raise DescriptionError(f"Hopper-native groups {rule}: {remedy}")
