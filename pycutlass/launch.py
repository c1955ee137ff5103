"""Two ways to execute an operation on checked operands: on a GPU, and on the host where there is none."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from pycutlass import _core, device, kernel, reference
from pycutlass.epilogue import EpilogueScalars
from pycutlass.errors import ArgumentError
from pycutlass.library import RasterOrder
from pycutlass.memory import DeviceBuffer, retire
from pycutlass.operands import Matrix
from pycutlass.operation import GemmOperationUniversal
from pycutlass.tensor import current_stream_source

__all__ = ["DeviceLaunch", "GemmProblem", "HostLaunch", "ordinal_of"]

_OPERANDS = ("A", "B", "C", "D")
_GRID_LIMIT = 65535  # along y and z

_log = logging.getLogger("pycutlass")


@dataclass(frozen=True)
class GemmProblem:
    """Everything that one GEMM is about, checked.

    Attributes
    ----------
    mode : int
        Number of the ``gemm.Mode``.
    size : tuple of 3 int
        M, N, K.
    batch_count : int
        Batches, or slices of split-K.
    operands : dict
        By name; C is absent where it is not read.
    scalars : EpilogueScalars
        alpha and beta.
    raster_order : RasterOrder
        Hopper-native kernels only.
    """

    mode: int
    size: tuple[int, int, int]
    batch_count: int
    operands: dict[str, Matrix]
    scalars: EpilogueScalars
    raster_order: RasterOrder


class DeviceLaunch:
    """A GEMM on a GPU: kernel, call record, buffers of host operands and workspace."""

    def __init__(self, operation: GemmOperationUniversal, problem: GemmProblem, ordinal: int) -> None:
        self.ordinal = ordinal
        self.call = _core.GemmCall(kernel.load(operation, ordinal))
        self._operation = operation
        self._buffers: dict[str, DeviceBuffer] = {}
        self._host_D: Matrix | None = None
        self._joined = self._follow_streams(problem)
        # Both are looked up once: they are the hot path.
        self.run: Callable[[Any], None] = self._run_joined if self._joined else self.call.run
        self.try_exchange: Callable[[Any, Any, Any, Any], bool] = self.call.update
        self.update(problem)

    def update(self, problem: GemmProblem) -> None:
        """Bring a problem of the same size into the call record and make the kernel's parameters."""
        call = self.call
        call.set_problem(problem.mode, *problem.size, problem.batch_count)
        call.set_scalars(problem.scalars.values, problem.scalars.pointers)
        call.set_schedule(self._operation.swizzle_size, int(problem.raster_order))
        for name, operand in problem.operands.items():
            self._place(name, operand)
        self._plan(problem)
        if call.workspace_bytes and "workspace" not in self._buffers:
            self._make_workspace(call.workspace_bytes)
            self._plan(problem)

    def sync(self) -> None:
        """Wait for the stream of the last launch; bring D back where it is host memory."""
        stream = self.call.last_stream
        if self._host_D is None or not self.call.launched:
            _core.synchronize(stream)
            return
        buffer = self._buffers["D"]
        packed = np.empty(buffer.size, np.uint8)
        _core.copy_to_host(packed, buffer.pointer, stream)
        _core.synchronize(stream)
        self._host_D.unpack(packed)

    def give_up(self, owners: tuple[Any, ...]) -> None:
        """Let go of `owners` and, at the end, of the buffers: not before the last launch has finished with them."""
        if self.call.explicit_end is not None:
            retire(owners, self.call.explicit_end)

    def release(self, owners: tuple[Any, ...]) -> None:
        """Let go of everything, ordered behind the last launch."""
        self.give_up((*owners, *self._buffers.values()))
        for buffer in self._buffers.values():
            if self.call.launched and self.call.explicit_end is None:
                buffer.stream = self.call.last_stream

    def operand(self, name: str) -> tuple[int, int]:
        """Return the address and the leading dimension that the kernel gets for an operand."""
        pointer, ld, _ = self.call.operand(_OPERANDS.index(name))
        return pointer, ld

    def _place(self, name: str, operand: Matrix) -> None:
        """Point the record at an operand. Host memory gets a buffer, and is copied to it unless it is D."""
        index, alignment = _OPERANDS.index(name), operand.description.alignment_bytes
        if operand.view.device is not None:
            self.call.set_operand(index, operand.view.pointer, operand.ld, 0, operand.bytes, alignment)
            self.call.remember(index, operand.view.owner)
            return
        size = operand.rows * operand.columns * operand.description.type.bits // 8
        stream = self.call.current_stream
        if name not in self._buffers:
            _core.activate(self.ordinal)
            self._buffers[name] = DeviceBuffer(self.ordinal, size, stream)
        pointer = self._buffers[name].pointer
        if name == "D":
            self._host_D = operand
        else:
            _core.copy_to_device(pointer, operand.packed(), stream)
        self.call.set_operand(index, pointer, operand.contiguous_extent, 0, size, alignment)

    def _plan(self, problem: GemmProblem) -> None:
        status = self.call.plan()
        if status != 0:
            raise ArgumentError(
                f"CUTLASS cannot implement problem {problem.size} with {self._operation.procedural_name()}: "
                f"cutlass::Status {status}"
            )
        _, y, z = self.call.grid
        if y > _GRID_LIMIT or z > _GRID_LIMIT:
            raise ArgumentError(
                f"problem {problem.size} needs a grid of {self.call.grid} threadblocks, CUDA has at most "
                f"{_GRID_LIMIT} along y and z: use a larger threadblock_shape"
            )

    def _make_workspace(self, size: int) -> None:
        stream = self.call.current_stream
        buffer = self._buffers["workspace"] = DeviceBuffer(self.ordinal, size, stream)
        _core.fill(buffer.pointer, 0, size, stream)
        self.call.set_workspace(buffer.pointer)

    def _follow_streams(self, problem: GemmProblem) -> list[Callable[[], int]]:
        """Make the call follow the current stream of the operands' library; return those of further libraries."""
        owners = {operand.view.library: operand.view.owner for operand in problem.operands.values()}
        known = [name for name in ("torch", "cupy") if name in owners]
        if not known:
            return []
        tensor_type = type(owners[known[0]])
        if hasattr(tensor_type, "__dlpack_c_exchange_api__"):
            self.call.follow_library(tensor_type)
        else:
            self.call.follow_callable(current_stream_source(known[0], self.ordinal))
        return [current_stream_source(name, self.ordinal) for name in known[1:]]

    def _run_joined(self, stream: Any = None) -> None:
        """Launch on the first library's stream, ordered against the current streams of the others."""
        launched = self.call.current_stream if stream is None else _core.stream_handle(stream)
        others = [handle for handle in (source() for source in self._joined) if handle != launched]
        for handle in others:
            _core.order(handle, launched)
        self.call.run(stream)
        for handle in others:
            _core.order(launched, handle)


class HostLaunch:
    """A GEMM on the host, by its reference: what there is without a GPU."""

    _said = False  # the sentence below is worth saying once a process, not once a launch

    def __init__(self, operation: GemmOperationUniversal, problem: GemmProblem) -> None:
        self._operation = operation
        self._problem = problem

    def run(self, stream: Any = None) -> None:
        """Compute D. There are no streams here; `stream` is ignored."""
        if not HostLaunch._said:
            HostLaunch._said = True
            reason = _core.driver_problem() or "the driver sees no GPU"
            _log.warning("no GPU (%s): operations are executed on the host by pycutlass.reference", reason)
        operands, scalars = self._problem.operands, self._problem.scalars
        source = operands["C"].host_array() if "C" in operands else None
        result = reference.gemm(
            self._operation, operands["A"].host_array(), operands["B"].host_array(), source, *scalars.values
        )
        operands["D"].host_array()[...] = result

    def operand(self, name: str) -> tuple[int, int]:
        """Return the address and the leading dimension of an operand."""
        operand = self._problem.operands.get(name)
        return (0, 0) if operand is None else (operand.view.pointer, operand.ld)

    def try_exchange(self, *operands: Any) -> bool:
        """Return False: on the host there is no shortcut around `update`."""
        return False

    def update(self, problem: GemmProblem) -> None:
        """Take other operands of the same shapes."""
        self._problem = problem

    def sync(self) -> None:
        """Do nothing: `run` has finished when it returns."""

    def give_up(self, owners: tuple[Any, ...]) -> None:
        """Do nothing: nothing is in flight."""

    release = give_up


def ordinal_of(operands: dict[str, Matrix]) -> int:
    """Return the GPU that all operands are on; the current one where none says so.

    Raises
    ------
    ArgumentError
        Operands on different GPUs, or host tensors of torch.
    """
    places: dict[str, int] = {}
    for name, operand in operands.items():
        view = operand.view
        if view.library == "torch" and view.device is None:
            raise ArgumentError(f"operand {name} is a torch tensor on the CPU; move it with {name}.cuda()")
        if view.library == "pointer":
            known = _core.pointer_device(view.pointer)
            if known < 0:
                raise ArgumentError(f"operand {name} is {view.pointer:#x}, which is no memory that a GPU can reach")
            places[name] = known
        elif view.device is not None:
            places[name] = view.device
    if len(set(places.values())) > 1:
        listed = ", ".join(f"{name} on GPU {ordinal}" for name, ordinal in places.items())
        raise ArgumentError(f"all operands must be on one GPU, got {listed}; move them with .to()")
    return next(iter(places.values())) if places else device.current()
