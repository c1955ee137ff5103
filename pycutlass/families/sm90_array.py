"""What Hopper-native kernels for arrays of problems, ``Mode.Array``, lack of what a single GEMM takes."""

from __future__ import annotations

from pycutlass import _core
from pycutlass.errors import DescriptionError
from pycutlass.families.other_family import listed
from pycutlass.families.parts import Gemm
from pycutlass.families.sm90_copies import TMA_BYTES
from pycutlass.families.sm90_register_a import loads_a
from pycutlass.families.sm90_swap import parts_in_kernel

__all__ = ["check_array"]


def check_array(kernel: Gemm, stages: int, by_tma: bool) -> None:
    """Raise DescriptionError where tables cannot say where the tensors of the GEMM are, or too few `stages` fit.

    `by_tma` says whether TMA copies all operands.
    """
    functor, C, D = kernel.epilogue_functor, kernel.C, kernel.D
    if not by_tma:
        operands = {"A": kernel.A, "B": kernel.B, "C": C, "D": D}
        narrow = listed(
            f"{name} with alignment {operand.alignment}, not {8 * TMA_BYTES // operand.type.bits}"
            for name, operand in operands.items()
            if operand.alignment_bytes < TMA_BYTES
        )
        raise DescriptionError(
            f"Hopper-native kernels for Mode.Array copy all operands by TMA, from addresses that are multiples of "
            f"{TMA_BYTES} bytes; got {narrow}: describe what is aligned so, or use Mode.Batched"
        )
    if kernel.swizzling_functor is _core.ThreadblockSwizzleStreamK:
        raise DescriptionError(
            "Hopper-native kernels for Mode.Array have whole tiles, not those of stream-K: use "
            "swizzling_functor=cutlass.IdentitySwizzle1"
        )
    parts = parts_in_kernel(kernel)
    if loads_a(parts.A, parts.B):
        raise DescriptionError(
            f"Hopper-native kernels for Mode.Array multiply A and B of {parts.A.type} from shared memory, where both "
            f"lie along K: describe A as cutlass.RowMajor and B as cutlass.ColumnMajor, or use Mode.Batched"
        )
    if C.layout is not D.layout and functor.reads_source is not False:
        raise DescriptionError(
            f"Hopper-native kernels for Mode.Array store D in the order in which C comes, got C of {C.order} and D of "
            f"{D.order}: describe both alike, or use Mode.Batched"
        )
    if not functor.takes_lists:
        raise DescriptionError(
            f"the epilogue {functor!r} reads no tables of addresses, which Mode.Array has: use Mode.Batched, or write "
            f"it as a function with pycutlass.epilogue_function"
        )
    if stages < 2:
        raise DescriptionError(
            f"beside the tensor maps of Mode.Array fewer than 2 stages of "
            f"{list(kernel.tile_description.threadblock_shape)} fit: use a smaller threadblock_shape"
        )
