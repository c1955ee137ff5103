"""A candidate with tensors: the arguments of its kernels, which take other tensors of the same shapes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from pycutlass.allocators import allocating_with
from pycutlass.arguments import GemmArguments, ReductionArguments
from pycutlass.imported import is_of
from pycutlass.operation import GemmProblemSize
from pycutlass.plan.candidate import Candidate

__all__ = ["Launch", "PlanLaunch", "workspace_of"]


def workspace_of(candidate: Any, out: Any) -> AbstractContextManager[None]:
    """Return where memory beside the operands comes from while arguments of `candidate` are made.

    While torch captures a graph, memory belongs to that, for as long as it is replayed.
    """
    if candidate.has_workspace and is_of(out, "torch", "Tensor") and out.is_cuda:
        return allocating_with("torch")
    return nullcontext()


class PlanLaunch(ABC):
    """A candidate with tensors.

    It belongs to one thread: arguments have one set of operands at a time.
    """

    __slots__ = ("_ends", "_steps")

    #: Kernels with their arguments, in the order in which they are launched, and the arguments that write D.
    _steps: list[tuple[Any, Any]]
    _ends: list[Any]

    @abstractmethod
    def exchange(self, a: Any, b: Any, c: Any, out: Any, ports: Mapping[str, Any]) -> None:
        """Take other tensors of the same shapes, types and layouts, or raise and change nothing that is launched."""

    def run(self, stream: Any) -> None:
        """Launch the kernels on `stream`, or on the current stream of the tensors' library."""
        for operation, arguments in self._steps:
            operation.run(arguments, stream)

    def sync(self) -> None:
        """Wait for the result, and bring one in host memory back."""
        for arguments in self._ends:
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
    scalars : mapping
        Those of the epilogue, by name.
    ports : mapping
        Tensors that the epilogue has beside C and D, by name.
    """

    __slots__ = ("_arguments", "_reduction")

    def __init__(
        self,
        candidate: Candidate,
        size: GemmProblemSize,
        tensors: tuple[Any, Any, Any, Any],
        scalars: Mapping[str, Any],
        ports: Mapping[str, Any],
    ) -> None:
        with workspace_of(candidate, tensors[3]):
            self._make(candidate, size, tensors, scalars, ports)

    def _make(
        self,
        candidate: Candidate,
        size: GemmProblemSize,
        tensors: tuple[Any, Any, Any, Any],
        scalars: Mapping[str, Any],
        ports: Mapping[str, Any],
    ) -> None:
        a, b, c, out = tensors
        operation, reduction = candidate.operation, candidate.reduction
        further: dict[str, Any] = {"epilogue": dict(ports)} if ports else {}
        if reduction is None:
            output_op = operation.epilogue_type(**scalars)
            how: dict[str, Any] = {"output_op": output_op, "raster_order": candidate.raster_order}
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
            output_op=reduction.epilogue_type(**scalars),
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
