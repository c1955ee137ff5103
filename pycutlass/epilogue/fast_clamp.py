"""FastLinearCombinationClamp: the epilogue functor that converts integers by a trick, which holds for short sums."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from pycutlass import _core
from pycutlass.calls import public
from pycutlass.epilogue.functors import LinearCombinationClamp
from pycutlass.epilogue.protocol import Family
from pycutlass.errors import DescriptionError
from pycutlass.types import element

__all__ = ["FastLinearCombinationClamp", "for_any_sums"]


@public
@dataclass(frozen=True, repr=False)
class FastLinearCombinationClamp(LinearCombinationClamp):
    """LinearCombinationClamp of an s32 accumulator that converts to float by a trick which holds for K <= 256.

    ``cutlass::epilogue::thread::FastLinearCombinationClamp``: accumulator s32, computed in f32, int8 output. A larger K
    is refused with the arguments. NaN becomes -128.

    Parameters
    ----------
    element_output : element type of ``cutlass``
        int8. CUTLASS makes the limits by a shift, which overflows in int32: each element of D would be its least value.
    epilogue_vector_length : int
        Elements of one memory access; the alignment of C. At least 4, which the trick converts at a time.

    Raises
    ------
    DescriptionError
        Another type, or another length.

    Examples
    --------
    >>> import pycutlass
    >>> from pycutlass import cutlass
    >>> pycutlass.FastLinearCombinationClamp(cutlass.int8, 16)
    FastLinearCombinationClamp(cutlass.int8, 16, cutlass.int32, cutlass.float32)
    """

    max_k: ClassVar[int | None] = 256

    def __post_init__(self) -> None:
        for name, only in (("element_accumulator", _core.int32), ("element_epilogue", _core.float32)):
            if getattr(self, name) is None:
                object.__setattr__(self, name, only)
            elif getattr(self, name) is not only:
                raise DescriptionError(
                    f"FastLinearCombinationClamp accumulates in cutlass.int32 and computes in cutlass.float32; got "
                    f"{name}={element(getattr(self, name))}. Use {self._for_other_types()} for other types."
                )
        output = element(self.element_output)
        if output.short != "s8":
            other = "LinearCombinationClamp" if output.is_integer else "LinearCombination"
            raise DescriptionError(f"FastLinearCombinationClamp writes cutlass.int8 alone, got {output}: use {other}")
        super().__post_init__()
        if self.epilogue_vector_length < 4:
            raise DescriptionError(
                f"FastLinearCombinationClamp converts 4 elements at a time, got epilogue_vector_length="
                f"{self.epilogue_vector_length}: use {for_any_sums(self)}"
            )

    def why_not(self, family: Family) -> str:
        """Return why kernels of `family` cannot have this functor; nothing where they can."""
        if family is Family.GEMV:
            return (
                f"{type(self).__name__} converts 4 elements at a time, and threads of {family.value} have single ones: "
                f"use {for_any_sums(self)}"
            )
        return super().why_not(family)

    def _for_other_types(self) -> str:
        """Return the functor that takes the types that were given."""
        output = self.element_output
        others = (other or output for other in (self.element_accumulator, self.element_epilogue))
        try:
            LinearCombinationClamp(output, self.epilogue_vector_length, *others)
        except DescriptionError:
            return "LinearCombination"
        return "LinearCombinationClamp"

    @property
    def _converts_only(self) -> bool:
        """False: this one has limits of its own."""
        return False

    def emit(self) -> str:
        """Return the functor's C++ type for kernels of CUTLASS's 2.x API."""
        return (
            f"cutlass::epilogue::thread::FastLinearCombinationClamp<{self.output.cpp}, {self.epilogue_vector_length}>"
        )


def for_any_sums(functor: Any) -> str:
    """Return the functor that serves in the place of this one, for a message, whatever the sums are."""
    length = functor.epilogue_vector_length
    return f"LinearCombinationClamp(cutlass.int8, {length}, cutlass.int32, cutlass.float32)"
