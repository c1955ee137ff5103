"""A candidate with tensors: the arguments of its kernels, which take other tensors of the same shapes."""

from __future__ import annotations

import math
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

from pycutlass import _core
from pycutlass.allocators import allocating_with
from pycutlass.arguments import GemmArguments, ReductionArguments
from pycutlass.epilogue import EpilogueScalars
from pycutlass.imported import is_of
from pycutlass.integers import shape_of
from pycutlass.launch import DeviceLaunch
from pycutlass.memory import DeviceBuffer
from pycutlass.operation import GemmProblemSize
from pycutlass.plan.candidate import Candidate

__all__ = ["Launch", "PlanLaunch", "Waitable", "scalars_of", "workspace_of"]

#: Operands of a launch that a kernel takes, as bits: all, or those of split-K's kernel and of its reduction.
_ALL, _FACTORS = (1 << 32) - 1, 0b0011


def scalars_of(candidate: Any, scalars: Mapping[str, Any]) -> EpilogueScalars:
    """Return the scalars of a launch, checked: they are a value, which many launches may share."""
    last = candidate.operation if candidate.reduction is None else candidate.reduction
    found: EpilogueScalars = last.epilogue_type(**scalars)
    return found


def _is_of_torch(tensor: Any) -> bool:
    """Whether a tensor is torch's, on a GPU: launches with it take their memory from torch as well."""
    return is_of(tensor, "torch", "Tensor") and bool(tensor.is_cuda)


def workspace_of(takes_torch_memory: bool) -> AbstractContextManager[None]:
    """Return where memory beside the operands comes from while arguments are made.

    While torch captures a graph, memory belongs to that, for as long as it is replayed.
    """
    return allocating_with("torch") if takes_torch_memory else nullcontext()


class _Memory:
    """Device memory of a launch that waits for tensors; it goes back behind the last launch.

    Parameters
    ----------
    call : Call
        The first of the launch: wherever it was launched last, memory was used last.
    buffers : tuple of DeviceBuffer
        The memory.
    """

    __slots__ = ("_buffers", "_call")

    def __init__(self, call: _core.Call, buffers: tuple[DeviceBuffer, ...]) -> None:
        self._call, self._buffers = call, buffers

    def __del__(self, _is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        if not _is_finalizing():
            for each in self._buffers:
                each.stream = self._call.last_stream


class Waitable(NamedTuple):
    """A launch as it may wait for other tensors: what `LaunchPool` keeps.

    Parameters
    ----------
    steps : list
        Calls in the order in which they are launched, each with which operands of the launch it takes, as bits.
    memory : _Memory or None
        What the launch has beside its operands.
    size : int
        Bytes of that.
    """

    steps: list[tuple[_core.Call, int]]
    memory: _Memory | None
    size: int


class PlanLaunch(ABC):
    """A candidate with tensors.

    It belongs to one thread: arguments have one set of operands at a time.
    """

    __slots__ = ("_current_before", "_ends", "_steps", "_takes_torch_memory")

    #: Kernels with their arguments, in the order in which they are launched, and the arguments that write D.
    _steps: list[tuple[Any, Any]]
    _ends: list[Any]
    #: The stream that was current at the last run, where a kernel leaves partial sums for another.
    _current_before: _core.Stream | None

    def __init__(self, candidate: Any, out: Any) -> None:
        self._takes_torch_memory = candidate.has_workspace and _is_of_torch(out)
        self._current_before = None

    @abstractmethod
    def exchange(self, a: Any, b: Any, c: Any, out: Any, ports: Mapping[str, Any]) -> None:
        """Take other tensors of the same shapes, types and layouts, or raise and change nothing that is launched."""

    def run(self, stream: Any) -> None:
        """Launch the kernels on `stream`, or on the current stream of the tensors' library."""
        first = self._steps[0][1]
        if first._partials is not None and isinstance(first._execution, DeviceLaunch):
            self._current_before = first._execution.call.current_stream
        for operation, arguments in self._steps:
            operation.run(arguments, stream)

    @property
    def memory(self) -> tuple[DeviceBuffer, ...] | None:
        """What it has beside its operands; None where other tensors need more than C++ does for them.

        That is so of copies of host memory.
        """
        found: dict[int, DeviceBuffer] = {}
        for _, arguments in self._steps:
            execution = arguments._execution
            own = execution.own_memory if isinstance(execution, DeviceLaunch) else None
            if own is None:
                return None
            found |= {each.pointer: each for each in own}  # sums are of two kernels
        return tuple(found.values())

    def waitable(self, tensors: tuple[Any, Any, Any, Any]) -> Waitable | None:
        """Return what may wait for tensors like those that it has; None where there is no such thing."""
        memory = self.memory
        if memory is None or len(self._steps) > 2:
            return None
        if memory and (not self._takes_torch_memory or self.is_of_graph(None)):
            return None
        calls = [arguments._execution.call for _, arguments in self._steps]
        taken = (_ALL,) if len(calls) == 1 else (_FACTORS, _ALL - _FACTORS)
        kept = _Memory(calls[0], memory) if memory else None
        return Waitable(list(zip(calls, taken, strict=True)), kept, sum(each.size for each in memory))

    def hand_over(self) -> None:
        """Leave its memory to what waits now, which the launch does not come back from."""
        for _, arguments in self._steps:
            arguments._execution.hand_over()

    def may_run(self, stream: Any) -> bool:
        """Whether it may be launched on `stream` now with the memory that it has.

        Memory from before a capture could be given back while the graph is replayed, or used beside it; what belongs
        to a graph, likewise, is for no launch outside of it. And sums of an earlier run may still be read on another
        stream.
        """
        if self.is_of_graph(stream):
            return False
        return self._current_before is None or self._current_before == self._steps[0][1]._execution.call.current_stream

    def is_of_graph(self, stream: Any) -> bool:
        """Whether a launch on `stream` would be captured, and needs memory that belongs to the graph."""
        execution = self._steps[0][1]._execution
        if not self._takes_torch_memory or not isinstance(execution, DeviceLaunch):
            return False
        current = execution.call.current_stream
        return (current if stream is None else _core.named_stream(stream, current.ordinal)).is_capturing()

    def finish(self) -> None:
        """Wait for a result in host memory, and bring it back; nothing for others."""
        for arguments in self._ends:
            execution = arguments._execution
            if not isinstance(execution, DeviceLaunch) or execution.writes_to_host:
                arguments.sync()


class Launch(PlanLaunch):
    """A candidate of GEMMs with tensors.

    Parameters
    ----------
    candidate : Candidate
        The kernel, compiled where there is a GPU.
    size : GemmProblemSize
        The problem.
    tensors : tuple
        A, B, C and D, as the candidate's kind describes them; C may be None.
    scalars : mapping or EpilogueScalars
        Those of the epilogue, by name, or as `scalars_of` has made them.
    ports : mapping
        Tensors that the epilogue has beside C and D, by name.
    """

    __slots__ = ("_arguments", "_reduction")

    def __init__(
        self,
        candidate: Candidate,
        size: GemmProblemSize,
        tensors: tuple[Any, Any, Any, Any],
        scalars: Mapping[str, Any] | EpilogueScalars,
        ports: Mapping[str, Any],
    ) -> None:
        super().__init__(candidate, tensors[3])
        with workspace_of(self._takes_torch_memory):
            self._make(candidate, size, tensors, scalars, ports)

    def _make(
        self,
        candidate: Candidate,
        size: GemmProblemSize,
        tensors: tuple[Any, Any, Any, Any],
        scalars: Mapping[str, Any] | EpilogueScalars,
        ports: Mapping[str, Any],
    ) -> None:
        a, b, c, out = tensors
        output_op = scalars if isinstance(scalars, EpilogueScalars) else scalars_of(candidate, scalars)
        operation, reduction = candidate.operation, candidate.reduction
        further: dict[str, Any] = {"epilogue": dict(ports)} if ports else {}
        if reduction is None:
            how: dict[str, Any] = {"output_op": output_op, "raster_order": candidate.raster_order}
            if size.batch > 1 and size.m == size.batch and math.prod(shape_of(c) or ()) == size.m * size.n:
                how["bias"] = False  # of as many rows as matrices it might be a bias of each, whatever its shape
            self._arguments = GemmArguments(operation, size, a, b, c, out, **how, **further)
            self._reduction = None
            self._steps, self._ends = [(operation, self._arguments)], [self._arguments]
            return
        self._arguments = GemmArguments(operation, size, a, b, raster_order=candidate.raster_order)
        self._reduction = ReductionArguments(
            reduction,
            [size.m, size.n],
            size.split_k_slices,
            self._arguments.ptr_D,
            out,
            c,
            output_op=output_op,
            **further,
        )
        self._steps = [(operation, self._arguments), (reduction, self._reduction)]
        self._ends = [self._reduction]

    def exchange(self, a: Any, b: Any, c: Any, out: Any, ports: Mapping[str, Any]) -> None:
        """Take other tensors of the same shapes, types and layouts, or raise and change nothing that is launched."""
        if self._reduction is None:
            if ports:
                self._arguments.update(A=a, B=b, C=c, D=out, epilogue=ports)
            else:
                self._arguments.update(A=a, B=b, C=c, D=out)
            return
        self._arguments.update(A=a, B=b)
        further: dict[str, Any] = {"epilogue": ports} if ports else {}
        self._reduction.update(C=c, D=out, **further)
