"""Grouped GEMM: many problems of any sizes in one launch, described and turned into text."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, ClassVar

from pycutlass import _core
from pycutlass.calls import member_meant, public, shown
from pycutlass.enums import SchedulerMode
from pycutlass.epilogue import Epilogue, EpilogueVisitTree
from pycutlass.epilogue.visit_tree import of_function
from pycutlass.errors import ArgumentError, DescriptionError
from pycutlass.families import KernelFamily
from pycutlass.families.table import check_family, swizzle_meant
from pycutlass.library import TensorDescription, TileDescription
from pycutlass.operation.base import EARLIER, MAX_UNBOUNDED_THREADS, Operation
from pycutlass.operation.gemm import GemmOperationUniversal
from pycutlass.operation.group_support import check_operands, check_sizes, epilogue_outputs, outputs
from pycutlass.operation.support import Support, named_operands, supported
from pycutlass.spec import TensorSpec
from pycutlass.types import Element

__all__ = ["GemmOperationGrouped"]

_SWIZZLES = (
    _core.IdentitySwizzle1,
    _core.IdentitySwizzle2,
    _core.IdentitySwizzle4,
    _core.IdentitySwizzle8,
    _core.HorizontalSwizzle,
    _core.BatchedIdentitySwizzle,
)


@partial(public, also=EARLIER)
class GemmOperationGrouped(Operation):
    """A kernel for a group of GEMMs: D[i] = epilogue(A[i] x B[i], C[i]), each with its own M, N and K.

    A launch has as many threadblocks as the GPU holds at once; each takes tile after tile from all problems.

    Parameters
    ----------
    compute_capability, tile_description, A, B, C, epilogue_functor
        As for `GemmOperationUniversal`: what each problem would be alone, Ampere-style or Hopper-native.
    swizzling_functor : class of ``cutlass``
        ``IdentitySwizzle1``, ``2``, ``4``, ``8``, ``HorizontalSwizzle`` or ``BatchedIdentitySwizzle``. Tiles are
        visited problem by problem and row by row whichever it is. Hopper-native kernels, which visit them column by
        column, take ``IdentitySwizzle1``.
    precompute_mode : SchedulerMode
        Who finds out which tiles are whose: ``Device``, the kernel as it goes, or ``Host``, a schedule made with the
        arguments, which saves the kernel the search where problems are many and small. Hopper-native kernels find
        their tiles themselves: ``Device``.
    element_epilogue : optional
        As for `GemmOperationUniversal`.

    Raises
    ------
    DescriptionError
        The parts do not make a kernel; the message says which two disagree and what to change.
    ArgumentTypeError
        An unknown keyword.

    Examples
    --------
    >>> import pycutlass
    >>> from pycutlass import cutlass
    >>> instruction = pycutlass.MathInstruction(
    ...     [16, 8, 16], cutlass.float16, cutlass.float16, cutlass.float32, cutlass.OpClass.TensorOp
    ... )
    >>> tile = pycutlass.TileDescription([128, 128, 32], 3, [2, 2, 1], instruction)
    >>> A = pycutlass.TensorDescription(cutlass.float16, cutlass.RowMajor, 8)
    >>> B = pycutlass.TensorDescription(cutlass.float16, cutlass.ColumnMajor, 8)
    >>> functor = pycutlass.LinearCombination(cutlass.float16, 8, cutlass.float32, cutlass.float32)
    >>> operation = pycutlass.GemmOperationGrouped(
    ...     80, tile, A, B, A, functor, cutlass.IdentitySwizzle1, precompute_mode=pycutlass.SchedulerMode.Host
    ... )
    >>> operation.procedural_name()[:66]
    'cutlass_sm80_tensorop_s16816gemm_grouped_f16_f16_128x128_32x3_tnt_'
    """

    _FURTHER = ("single",)
    _FIELDS: ClassVar[tuple[str, ...]] = (
        *GemmOperationUniversal._FIELDS[:-2],
        "precompute_mode",
    )  # without D and swap_ab

    def __init__(
        self,
        compute_capability: int,
        tile_description: TileDescription,
        A: TensorDescription,
        B: TensorDescription,
        C: TensorDescription,
        epilogue_functor: Epilogue | EpilogueVisitTree,
        swizzling_functor: Any = _core.IdentitySwizzle1,
        precompute_mode: SchedulerMode = SchedulerMode.Device,
        *,
        element_epilogue: Any = None,
        **unknown: Any,
    ) -> None:
        if unknown:
            self._refuse(unknown, "arch", "element_epilogue")
        #: The GEMM that each problem of a group is.
        self.single = GemmOperationUniversal(
            *(compute_capability, tile_description, A, B, C, of_function(epilogue_functor), swizzling_functor),
            element_epilogue=element_epilogue,
        )
        self.compute_capability = self.single.compute_capability
        self.tile_description = self.single.tile_description
        self.A, self.B, self.C = self.single.A, self.single.B, self.single.C
        self.epilogue_functor = self.single.epilogue_functor
        self.swizzling_functor = self.single.swizzling_functor
        self.precompute_mode = precompute_mode
        self._check()

    @property
    def family(self) -> KernelFamily:
        """The family of kernels, with its rules."""
        return self.single.family

    @property
    def is_sm90(self) -> bool:
        """Whether this is a Hopper-native kernel."""
        return self.single.is_sm90

    def supports(self, problem_sizes: Any, operands: Mapping[str, Any] | None = None) -> Support:
        """Return whether the kernel can compute a group: something true, or something false with a `reason`.

        Nothing has to be compiled for that, and no memory is needed.

        Parameters
        ----------
        problem_sizes : sequence of 3 int each
            M, N, K of each problem, as for `GemmGroupedArguments`.
        operands : mapping, optional
            Shapes, types and strides that are to be checked as well: lists of TensorSpecs or tensors, one for each
            problem, under some of A, B, C and D. Tensors need no memory; what is left out is taken as packed.

        Raises
        ------
        ArgumentTypeError
            `problem_sizes` or `operands` are something else.
        """
        given = {} if operands is None else named_operands(operands)
        try:
            sizes = check_sizes(self.single, problem_sizes)
        except ArgumentError as error:
            return Support(str(error))
        return supported(self, lambda: check_operands(self.single, sizes, given), given)

    def outputs(self, problem_sizes: Any) -> list[TensorSpec]:
        """Return the shape, type and strides of D for each problem, packed, without memory for it; of pairs (M, N / 2).

        Raises
        ------
        ArgumentError
            `supports` refuses the problems; the message is its reason.
        ArgumentTypeError
            `problem_sizes` is something else.
        """
        self.supports(problem_sizes).require()
        return outputs(self.single, check_sizes(self.single, problem_sizes))

    def epilogue_outputs(self, problem_sizes: Any) -> dict[str, list[TensorSpec]]:
        """Return the same of all that an epilogue function writes beside D: a list by name, empty for other functors.

        Raises
        ------
        ArgumentError
            `supports` refuses the problems; the message is its reason.
        ArgumentTypeError
            `problem_sizes` is something else.
        """
        self.supports(problem_sizes).require()
        return epilogue_outputs(self.single, check_sizes(self.single, problem_sizes))

    def accumulator_type(self) -> Element:
        """Return the accumulator's element type."""
        return self.single.accumulator_type()

    @property
    def is_bounded(self) -> bool:
        """Whether the compiler is told how many threads will run."""
        return self.single.tile_description.num_threads > MAX_UNBOUNDED_THREADS

    def configuration_name(self) -> str:
        """Return the readable part of the kernel's name: that of each problem's kernel, and the scheduler."""
        name = self.single.configuration_name().replace("gemm_", "gemm_grouped_", 1)
        return f"{name}_{self.precompute_mode.name.lower()}"

    def body(self) -> str:
        """Return the generated C++ without the line that names the kernel."""
        return self.family.group_text(self.single, self.precompute_mode)

    def _check(self) -> None:
        check_family(self.epilogue_functor, self.family.group)
        if not any(self.swizzling_functor is each for each in _SWIZZLES):  # others may raise where compared
            known = ", ".join(f"cutlass.{swizzle.__name__}" for swizzle in _SWIZZLES)
            given = self.swizzling_functor
            near = swizzle_meant(given, _SWIZZLES)
            raise DescriptionError(f"swizzling_functor of a group must be one of {known}; got {shown(given)}{near}")
        if not isinstance(self.precompute_mode, SchedulerMode):
            known = " or ".join(map(repr, SchedulerMode))
            near = member_meant(self.precompute_mode, SchedulerMode, "SchedulerMode")
            raise DescriptionError(f"precompute_mode must be {known}, got {shown(self.precompute_mode)}{near}")
        self.family.check_group(self.single, self.precompute_mode)
        self.family.check_shared_memory(
            *(self.compute_capability, self.tile_description, self.A, self.B, self.C),
            group=self.precompute_mode,
            epilogue=self.epilogue_functor,
        )
