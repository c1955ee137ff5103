"""What all launches of one GEMM operation on one GPU share, so that arguments of ordinary tensors are made at once."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

import numpy as np

from pycutlass import _core, kernel
from pycutlass.enums import RasterOrder
from pycutlass.epilogue import EpilogueScalars
from pycutlass.epilogue.protocol import check_scalars
from pycutlass.errors import ArgumentError, PyCutlassError
from pycutlass.library import TensorDescription
from pycutlass.operands import LARGEST_EXTENT, say_without_gradient
from pycutlass.operation import GemmOperationUniversal
from pycutlass.operation.gemm_support import slice_step
from pycutlass.operation.support import GRID_LIMIT, check_serial_sums
from pycutlass.tensor import current_stream_source, wrap

if TYPE_CHECKING:
    from pycutlass.cache import Artifact

__all__ = ["PreparedGemm", "prepare"]

#: Scalars as an operation takes them, as bytes, and whether C is read.
Packed = tuple[EpilogueScalars, bytes, bool]


class PreparedGemm:
    """The kernel of an operation on one GPU with all that is checked of any tensor.

    It says what is fixed by the operation and its compiled kernel alone, is made once, and never changes: threads may
    use it at the same time, each for arguments of its own. An operation keeps those that it has, and so its kernels.

    Attributes
    ----------
    artifacts : dict
        What had been compiled when it was made. Of anything else, another kernel may be the right one.
    ordinal : int
        The GPU.
    make : callable
        Makes a call for ordinary tensors, or returns None (`_core.PreparedGemm.make`).

    Raises
    ------
    NotCompiledError, CacheError, DeviceError
        The operation has no kernel that runs on the GPU.
    """

    def __init__(self, operation: GemmOperationUniversal, ordinal: int) -> None:
        self.artifacts: dict[str, Artifact] = dict(operation.artifacts)
        self.ordinal = ordinal
        loaded = kernel.load(operation, ordinal)
        self._functor, self._layout = operation.epilogue_functor, kernel.epilogue_layout(loaded)
        # What scalars were found to be before, and those of no output_op. They are values, which many launches share.
        self._known: weakref.WeakKeyDictionary[EpilogueScalars, tuple[EpilogueScalars | None, bytes, bool]]
        self._known = weakref.WeakKeyDictionary()
        self._default: Packed | None = None
        self.make = _core.PreparedGemm(
            kernel=loaded,
            operands=(_operand(operation.A), _operand(operation.B), _operand(operation.C), _operand(operation.D)),
            most=_most(operation),
            steps=_steps(operation),
            slice=_slice(operation),
            in_place=not operation.is_apart,
            swizzle=operation.swizzle_size,
            wrap=wrap,
            stream_source=current_stream_source,
            raster_type=RasterOrder,
            say_followed=lambda *tensors: say_without_gradient(dict(zip("ABC", tensors, strict=True))),
        ).make

    def packed(self, output_op: Any) -> Packed | None:
        """Return what is known of the scalars that were given; None where they need a look."""
        if output_op is None:
            self._default = self._default or self._pack(None)
            return self._default
        if type(output_op) is not EpilogueScalars:
            return None
        known = self._known.get(output_op)
        if known is not None:
            return known[0] or output_op, known[1], known[2]
        packed = self._pack(output_op)
        if packed is not None:  # an entry must not keep its own key
            self._known[output_op] = (None if packed[0] is output_op else packed[0], *packed[1:])
        return packed

    def _pack(self, output_op: EpilogueScalars | None) -> Packed | None:
        try:
            scalars = check_scalars(self._functor, output_op)
            if any(scalars.pointers):  # memory that is watched
                return None
            return scalars, self._functor.pack(self._layout, scalars), scalars.needs_source
        except PyCutlassError:  # which is raised again, where it is its turn
            return None


def prepare(operation: GemmOperationUniversal, D: Any, tried: tuple[PreparedGemm, ...]) -> PreparedGemm | None:
    """Return what is prepared for launches that write `D`, for the operation to keep.

    None where that has been `tried`, or Python has to look.
    """
    ordinal = _core.gpu_of(D, wrap)
    described = (operation.A, operation.B, operation.C, operation.D)
    if ordinal is None or operation.epilogue_functor.ports or not all(map(_is_plain, described)):
        return None
    present: tuple[PreparedGemm, ...] = operation._prepared
    for each in present:
        if each.ordinal == ordinal and each.artifacts == operation.artifacts:
            return None if each in tried else each  # which another thread has prepared meanwhile
    try:
        prepared = PreparedGemm(operation, ordinal)
    except PyCutlassError:  # which is raised again, behind what else is wrong
        return None
    operation._prepared = (prepared, *(each for each in present if each.ordinal != ordinal))
    return prepared


def _is_plain(described: TensorDescription) -> bool:
    return described.order.interleave == 1 and described.type.bits >= 8


def _operand(described: TensorDescription) -> tuple[_core.OperandRule, int, str, Any]:
    """Return the rule of an operand, and its type: as a number, as tensors say it, and NumPy's where there is one."""
    element = described.type
    rule = _core.OperandRule(described.is_row_major, element.bits // 8, described.alignment, True, False)
    return rule, element.code, element.dtype_name, element.dtype if hasattr(np, element.dtype_name) else None


def _most(operation: GemmOperationUniversal) -> tuple[int, int, int, int]:
    """Return the largest M, N, K and batch that need no look at the grid, nor at what the operands hold."""
    tile = operation.tile_description.threadblock_shape
    extent, k, batch = LARGEST_EXTENT + 1 - max(tile[:2]), LARGEST_EXTENT + 1 - tile[2], LARGEST_EXTENT
    if not operation.is_sm90:
        extent, batch = min(extent, GRID_LIMIT * min(tile[:2])), GRID_LIMIT
    max_k = operation.epilogue_functor.max_k
    return extent, extent, k if max_k is None else min(k, max_k), batch


def _steps(operation: GemmOperationUniversal) -> tuple[int, int]:
    """Return what M and N must be multiples of, whatever the tensors are: a tensor map of C asks for it."""
    if not operation.is_apart:
        return 1, 1
    return (1, operation.C.alignment) if operation.C.is_row_major else (operation.C.alignment, 1)


def _slice(operation: GemmOperationUniversal) -> int:
    """Return the least of K that a slice takes; 0 where K is not split, or sums would be clamped on the way."""
    try:
        check_serial_sums(operation, 2)
    except ArgumentError:
        return 0
    return slice_step(operation) if operation.family.splits_k else 0
