"""The kernel of Hopper-native GEMMs that tables of addresses list: ``Mode.Array`` of a description."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from pycutlass.operation.base import Operation

__all__ = ["GemmArrayPart"]


class GemmArrayPart(Operation):
    """What is compiled for ``Mode.Array`` of a Hopper-native GEMM, beside the kernel of its other modes.

    It is `GemmOperationUniversal.array`, is compiled like an operation, and is launched by the operation.

    Parameters
    ----------
    single : GemmOperationUniversal
        The GEMM that each problem is.

    Raises
    ------
    DescriptionError
        There is no such kernel.
    """

    _FIELDS: ClassVar[tuple[str, ...]] = ("single",)
    _FURTHER: ClassVar[tuple[str, ...]] = ("compute_capability", "epilogue_functor")

    def __init__(self, single: Any) -> None:
        #: The GEMM that each problem is.
        self.single = single
        self.compute_capability = single.compute_capability
        self.epilogue_functor = single.epilogue_functor
        single.family.check_array(single)

    @property
    def is_sm90(self) -> bool:
        """Whether the kernel uses features of exactly one architecture: true."""
        return bool(self.single.is_sm90)

    @property
    def is_bounded(self) -> bool:
        """Whether the compiler is told how many threads will run."""
        return bool(self.single.is_bounded)

    def configuration_name(self) -> str:
        """Return the readable part of the kernel's name: that of each problem's kernel."""
        name: str = self.single.configuration_name()
        return name.replace("gemm_", "gemm_array_", 1)

    def body(self) -> str:
        """Return the generated C++ without the line that names the kernel."""
        text: str = self.single.family.array_text(self.single)
        return text

    def parts(self, operations: Sequence[Any]) -> list[Any]:
        """Return what has to be compiled: the kernel itself."""
        return [self]
