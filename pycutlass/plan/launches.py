"""A candidate with tensors: the arguments of its kernels, which take other tensors of the same shapes."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from pycutlass import _core
from pycutlass.allocators import allocating_with
from pycutlass.arguments import GemmArguments, ReductionArguments
from pycutlass.epilogue import EpilogueScalars
from pycutlass.imported import is_of
from pycutlass.integers import shape_of
from pycutlass.launch import DeviceLaunch
from pycutlass.operation import GemmProblemSize
from pycutlass.plan.candidate import Candidate

__all__ = ["Launch", "PlanLaunch", "scalars_of", "workspace_of"]


def scalars_of(candidate: Any, scalars: Mapping[str, Any]) -> EpilogueScalars:
    """Return the scalars of a launch, checked: they are a value, which many launches may share."""
    last = candidate.operation if candidate.reduction is None else candidate.reduction
    found: EpilogueScalars = last.epilogue_type(**scalars)
    return found


def workspace_of(takes_torch_memory: bool) -> AbstractContextManager[None]:
    """Return where memory beside the operands comes from while arguments are made.

    While torch captures a graph, memory belongs to that, for as long as it is replayed.
    """
    return allocating_with("torch") if takes_torch_memory else nullcontext()


class PlanLaunch(ABC):
    """A candidate with tensors.

    It belongs to one thread: arguments have one set of operands at a time.
    """

    __slots__ = ("_ends", "_steps", "_takes_torch_memory")

    #: Kernels with their arguments, in the order in which they are launched, and the arguments that write D.
    _steps: list[tuple[Any, Any]]
    _ends: list[Any]

    def __init__(self, candidate: Any, out: Any) -> None:
        self._takes_torch_memory = candidate.has_workspace and is_of(out, "torch", "Tensor") and out.is_cuda

    @abstractmethod
    def exchange(self, a: Any, b: Any, c: Any, out: Any, ports: Mapping[str, Any]) -> None:
        """Take other tensors of the same shapes, types and layouts, or raise and change nothing that is launched."""

    def run(self, stream: Any) -> None:
        """Launch the kernels on `stream`, or on the current stream of the tensors' library."""
        for operation, arguments in self._steps:
            operation.run(arguments, stream)

    @property
    def call(self) -> _core.Call | None:
        """What launches it, where that is all that does: else None, as where there are copies of host memory."""
        execution = self._steps[0][1]._execution
        if len(self._steps) > 1 or not isinstance(execution, DeviceLaunch) or not execution.is_call_alone:
            return None
        return execution.call

    def is_of_graph(self, stream: Any) -> bool:
        """Whether a launch on `stream` would be captured, and needs memory that belongs to the graph.

        Memory from before the capture could be given back while the graph is replayed, or used beside it; what belongs
        to the graph, likewise, is for no launch outside of it.
        """
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
        self._reduction.update(source=c, destination=out, **further)
