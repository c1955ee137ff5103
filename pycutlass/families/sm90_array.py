"""What Hopper-native kernels for arrays of problems, ``Mode.Array``, lack of what a single GEMM takes."""

from __future__ import annotations

from pycutlass import _core
from pycutlass.errors import DescriptionError
from pycutlass.families.parts import Gemm

__all__ = ["check_array"]


def check_array(kernel: Gemm, stages: int) -> None:
    """Raise DescriptionError where tables cannot say where the tensors of the GEMM are, or too few `stages` fit."""
    functor, C, D = kernel.epilogue_functor, kernel.C, kernel.D
    if kernel.swizzling_functor is _core.ThreadblockSwizzleStreamK:
        raise DescriptionError(
            "Hopper-native kernels for Mode.Array have whole tiles, not those of stream-K: use "
            "swizzling_functor=cutlass.IdentitySwizzle1"
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
