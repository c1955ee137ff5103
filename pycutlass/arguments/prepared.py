"""What all launches of one GEMM operation on one GPU share, so that arguments of ordinary tensors are made at once."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

from pycutlass import _core, kernel
from pycutlass.enums import RasterOrder
from pycutlass.epilogue import EpilogueScalars
from pycutlass.epilogue.protocol import check_scalars
from pycutlass.errors import PyCutlassError
from pycutlass.launch import DeviceLaunch
from pycutlass.launch.gemm import GemmProblem
from pycutlass.library import TensorDescription
from pycutlass.operands import LARGEST_EXTENT, say_without_gradient
from pycutlass.operation import GemmOperationUniversal
from pycutlass.operation.support import GRID_LIMIT

if TYPE_CHECKING:
    from pycutlass.cache import Artifact

__all__ = ["PreparedGemm", "prepare"]

_MODES = (_core.GemmMode.Gemm, _core.GemmMode.Batched)


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
    scalars : EpilogueScalars or None
        Those of a launch without an output_op; None where some have no default.
    """

    def __init__(self, operation: GemmOperationUniversal, loaded: _core.DeviceKernel) -> None:
        functor = self._functor = operation.epilogue_functor
        self.artifacts: dict[str, Artifact] = dict(operation.artifacts)
        self.ordinal = loaded.ordinal
        self._layout = kernel.epilogue_layout(loaded)
        self.scalars: EpilogueScalars | None = None
        epilogue = None
        if all(scalar.default is not None for scalar in functor.scalar_table):
            self.scalars = functor.epilogue_type()
            epilogue = functor.pack(self._layout, self.scalars)
        # What the same scalars were found to be before. They are values, which many launches share.
        self._known: weakref.WeakKeyDictionary[EpilogueScalars, tuple[EpilogueScalars | None, bytes, bool]]
        self._known = weakref.WeakKeyDictionary()
        self.make = _core.PreparedGemm(
            kernel=loaded,
            operands=(_rule(operation.A), _rule(operation.B), _rule(operation.C), _rule(operation.D)),
            most=_most(operation),
            steps=_steps(operation),
            in_place=not operation.is_apart,
            swizzle=operation.swizzle_size,
            epilogue=epilogue,
            reads_source=self.scalars is not None and self.scalars.needs_source,
            raster_type=RasterOrder,
            say_followed=lambda *tensors: say_without_gradient(dict(zip("ABC", tensors, strict=True))),
        ).make

    def packed(self, output_op: Any) -> tuple[EpilogueScalars, bytes, bool] | None:
        """Return scalars as the operation takes them, as bytes, and whether C is read; None where they need a look."""
        if type(output_op) is not EpilogueScalars:
            return None
        known = self._known.get(output_op)
        if known is None:
            try:
                scalars = check_scalars(self._functor, output_op)
            except PyCutlassError:  # which is raised again, where it is its turn
                return None
            if any(scalars.pointers):  # memory that is watched
                return None
            same = None if scalars is output_op else scalars  # an entry must not keep its own key
            known = same, self._functor.pack(self._layout, scalars), scalars.needs_source
            self._known[output_op] = known
        return known[0] or output_op, known[1], known[2]


def prepare(problem: GemmProblem, launch: DeviceLaunch) -> None:
    """Have an operation know what a launch has shown to be right, for others like it."""
    operation = problem.operation
    described = (operation.A, operation.B, operation.C, operation.D)
    if (
        problem.mode not in _MODES
        or operation.epilogue_functor.ports
        or any(each.order.interleave > 1 for each in described)
    ):
        return
    for operand in problem.operands.values():
        if operand.view.library == "torch" and operand.view.device is not None:
            _core.learn_tensor(operand.view.owner, operand.description.type.code, operand.view.device)
    known: tuple[PreparedGemm, ...] = operation._prepared
    others = tuple(each for each in known if each.ordinal != launch.ordinal)
    if len(others) < len(known) and all(each.artifacts == operation.artifacts for each in known):
        return
    operation._prepared = (PreparedGemm(operation, kernel.load(operation, launch.ordinal)), *others)


def _rule(described: TensorDescription) -> tuple[_core.OperandRule, int]:
    size = described.type.bits // 8
    return _core.OperandRule(described.is_row_major, size, described.alignment, True, False), described.type.code


def _most(operation: GemmOperationUniversal) -> tuple[int, int, int, int]:
    """Return the largest M, N, K and batch that need no look at the grid, nor at what the operands hold."""
    tile = operation.tile_description.threadblock_shape
    extent, k, batch = LARGEST_EXTENT + 1 - max(tile[:2]), LARGEST_EXTENT + 1 - tile[2], LARGEST_EXTENT
    if not operation.is_sm90:
        extent, batch = min(extent, GRID_LIMIT * min(tile[:2])), GRID_LIMIT
    max_k = operation.epilogue_functor.max_k
    return extent, extent, k if max_k is None else min(k, max_k), batch


def _steps(operation: GemmOperationUniversal) -> tuple[int, int]:
    """Return what M and N must be multiples of, whatever the tensors are."""
    if not operation.is_apart:
        return 1, 1
    return (1, operation.C.alignment) if operation.C.is_row_major else (operation.C.alignment, 1)
