"""A kernel of convolutions with the options of its launch: everything that is chosen for a problem."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from pycutlass import _core, cutlass
from pycutlass.calls import public
from pycutlass.enums import GroupMode, StrideSupport
from pycutlass.errors import ArgumentError
from pycutlass.library import TileDescription
from pycutlass.operation import Conv2dOperation, Operation, ReductionOperation
from pycutlass.operation.conv2d_support import Conv2dSupport
from pycutlass.plan.alignments import kind_of_choice
from pycutlass.plan.conv_kind import Conv2dKind

__all__ = ["GROUPED_PORTS", "Conv2dCandidate", "one_group"]

_Operator = _core.ConvOperator
#: Along which axis, as (N, H, W, C), groups of channels follow one another in tensors of an epilogue, by their forms:
#: D of a weight gradient has them along K. All others are for every group.
GROUPED_PORTS: Mapping[_core.ConvOperator, Mapping[str, int]] = {
    _Operator.fprop: {"matrix": 3, "row": 0},
    _Operator.dgrad: {"matrix": 3, "row": 0},
    _Operator.wgrad: {"matrix": 0, "column": 0},
}


@public
@dataclass(frozen=True)
class Conv2dCandidate:
    """A kernel of convolutions with the options of its launch.

    Parameters
    ----------
    operation : Conv2dOperation
        The kernel.
    split_k_slices : int
        Into how many slices the sums are divided.
    is_parallel : bool
        Whether a second kernel adds up the partial sums of the slices.
    is_by_group : bool
        Whether it is launched once for each group of channels.

    Examples
    --------
    >>> import pycutlass
    >>> from pycutlass import cutlass
    >>> from pycutlass.plan import Conv2dCandidate, Conv2dKind
    >>> f16, f32, conv = cutlass.float16, cutlass.float32, cutlass.conv
    >>> nhwc = pycutlass.TensorDescription(f16, cutlass.TensorNHWC, 8)
    >>> functor = pycutlass.LinearCombination(f16, 8, f32, f32)
    >>> math = pycutlass.MathOperation.multiply_add
    >>> kind = Conv2dKind(conv.Operator.wgrad, nhwc, nhwc, nhwc, f16, f16, f32, math, functor)
    >>> tile = pycutlass.TileDescription([128, 128, 32], 3, [2, 2, 1], kind.instruction([16, 8, 16]))
    >>> candidate = Conv2dCandidate(kind.operation(tile, conv.IteratorAlgorithm.optimized), 4, True)
    >>> candidate.name
    'wgrad optimized 128x128x32, 3 stages, 2x2x1 warps, swizzle 1, parallel split-K 4'
    >>> Conv2dCandidate.of(kind, candidate.choice()) == candidate
    True
    """

    operation: Conv2dOperation
    split_k_slices: int = 1
    is_parallel: bool = False
    is_by_group: bool = False

    @cached_property
    def name(self) -> str:
        """How tables call it."""
        operation, tile = self.operation, self.operation.tile_description
        shape, warps = ("x".join(map(str, each)) for each in (tile.threadblock_shape, tile.warp_count or ()))
        strided = "strided " if operation.is_strided_dgrad else ""
        what = f"{strided}{operation.conv_kind.name} {operation.iterator_algorithm.name}"
        parts = [f"{what} {shape}", f"{tile.stages} stages", f"{warps} warps", f"swizzle {operation.swizzle_size}"]
        if self.split_k_slices > 1:
            parts.append(f"{'parallel ' if self.is_parallel else ''}split-K {self.split_k_slices}")
        if operation.group_mode is not None:
            parts.append(operation.group_mode.name)
        return ", ".join([*parts, *(["group by group"] if self.is_by_group else [])])

    @cached_property
    def reduction(self) -> ReductionOperation | None:
        """What adds up the partial sums; None where no other kernel does."""
        if not self.is_parallel:
            return None
        C, functor = self.operation.C, self.operation.epilogue_functor
        shape, sums = _core.MatrixCoord(4, 32 * C.alignment), self.operation.accumulator_type().tag
        return ReductionOperation(shape, C, sums, epilogue_functor=functor, count=C.alignment)

    @property
    def kernels(self) -> tuple[Operation, ...]:
        """What has to be compiled for it."""
        return (self.operation,) if self.reduction is None else (self.operation.partial, self.reduction)

    @property
    def has_workspace(self) -> bool:
        """Whether a launch may need memory beside its operands: for partial sums, semaphores or reductions."""
        return self.split_k_slices > 1 or self.operation.epilogue_functor.is_tree

    @property
    def is_transposed(self) -> bool:
        """False: no kernel computes the transposed problem."""
        return False

    @property
    def is_stream_k(self) -> bool:
        """False: convolutions divide no tiles."""
        return False

    @property
    def shared_bytes(self) -> int:
        """Bytes of shared memory of a threadblock."""
        operation, (A, B, C) = self.operation, self.operation.product
        return operation.family.shared_bytes(
            operation.tile_description, A, B, C, C, epilogue=operation.epilogue_functor
        )

    @property
    def is_held(self) -> bool:
        """False: the compiler is told of no kernel that it has few threads."""
        return False

    def size(self, problem: _core.Conv2dProblemSize) -> _core.Conv2dProblemSize:
        """Return the problem of one of its launches: where it is launched once for each group, of one group."""
        size = problem.reset_split_k_slices(self.split_k_slices)
        return one_group(size) if self.is_by_group else size

    def supports(self, problem: _core.Conv2dProblemSize) -> Conv2dSupport:
        """Return whether it can compute a problem: something true, or something false with a `reason`."""
        if self.is_by_group and problem.groups == 1:
            return Conv2dSupport("it is launched once for each group, and there is one: use the same kernel without")
        return self.operation.supports(self.size(problem))

    def choice(self) -> dict[str, Any]:
        """Return what is chosen beside the kind of convolution, in JSON's types, in a fixed order."""
        operation, tile = self.operation, self.operation.tile_description
        math = tile.math_instruction
        return {
            "threadblock": list(tile.threadblock_shape),
            "stages": tile.stages,
            "warps": list(tile.warp_count or ()),
            "instruction": None if math.instruction_shape is None else list(math.instruction_shape),
            "opcode": math.opcode_class.name,
            "algorithm": operation.iterator_algorithm.name,
            "stride_support": operation.stride_support.name,
            "swizzle": operation.swizzling_functor.__name__,
            "group_mode": None if operation.group_mode is None else operation.group_mode.name,
            "split_k_slices": self.split_k_slices,
            "parallel": self.is_parallel,
            "by_group": self.is_by_group,
        }

    @classmethod
    def of(cls, kind: Conv2dKind, choice: Mapping[str, Any]) -> Conv2dCandidate:
        """Return the candidate for a kind of convolution that `choice` describes.

        Raises
        ------
        ArgumentError
            `choice` is none that `choice()` returns.
        DescriptionError
            There is no such kernel for this kind of convolution.
        """
        try:
            kind = kind_of_choice(kind, choice)
            instruction = kind.instruction(choice["instruction"], _core.OpClass.__members__[choice["opcode"]])
            tile = TileDescription(choice["threadblock"], choice["stages"], choice["warps"], instruction)
            operation = kind.operation(
                tile,
                _core.IteratorAlgorithm.__members__[choice["algorithm"]],
                StrideSupport[choice["stride_support"]],
                getattr(cutlass, choice["swizzle"]),
                None if choice["group_mode"] is None else GroupMode[choice["group_mode"]],
            )
            return cls(operation, choice["split_k_slices"], choice["parallel"], choice["by_group"])
        except (KeyError, AttributeError, TypeError) as error:
            raise ArgumentError(f"this is no choice of a kernel: {error}; got {dict(choice)}") from error


def one_group(problem: _core.Conv2dProblemSize) -> _core.Conv2dProblemSize:
    """Return the problem of one of the groups of channels."""
    size = problem.reset_split_k_slices(problem.split_k_slices)
    size.C, size.K, size.groups = size.C // size.groups, size.K // size.groups, 1
    return size
