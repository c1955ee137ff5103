"""A candidate with tensors: the arguments of its kernels, which take other tensors of the same shapes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pycutlass.allocators import allocating_with
from pycutlass.arguments import GemmArguments, ReductionArguments
from pycutlass.imported import is_of
from pycutlass.operation import GemmProblemSize
from pycutlass.plan.candidate import Candidate

__all__ = ["Launch"]


class Launch:
    """A candidate with tensors.

    It belongs to one thread: arguments have one set of operands at a time.

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

    __slots__ = ("_arguments", "_ends", "_operation", "_reduction")

    def __init__(
        self,
        candidate: Candidate,
        size: GemmProblemSize,
        tensors: tuple[Any, Any, Any, Any],
        scalars: Mapping[str, Any],
        ports: Mapping[str, Any],
    ) -> None:
        self._operation, self._reduction = candidate.operation, candidate.reduction
        if candidate.has_workspace and is_of(tensors[3], "torch", "Tensor") and tensors[3].is_cuda:
            # While torch captures a graph, memory belongs to that, for as long as it is replayed.
            with allocating_with("torch"):
                self._make(candidate, size, tensors, scalars, ports)
        else:
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
        further: dict[str, Any] = {"epilogue": dict(ports)} if ports else {}
        if self._reduction is None:
            output_op = self._operation.epilogue_type(**scalars)
            how: dict[str, Any] = {"output_op": output_op, "raster_order": candidate.raster_order}
            self._arguments = GemmArguments(self._operation, size, a, b, c, out, **how, **further)
            self._ends = None
            return
        self._arguments = GemmArguments(self._operation, size, a, b, raster_order=candidate.raster_order)
        self._ends = ReductionArguments(
            self._reduction,
            [size.m, size.n],
            size.split_k_slices,
            self._arguments.ptr_D,
            out,
            c,
            output_op=self._reduction.epilogue_type(**scalars),
            **further,
        )

    def exchange(self, a: Any, b: Any, c: Any, out: Any, ports: Mapping[str, Any]) -> None:
        """Take other tensors of the same shapes, types and layouts, or raise and change nothing that is launched."""
        if self._ends is None:
            if ports:
                self._arguments.update(A=a, B=b, C=c, D=out, epilogue=ports)
            else:
                self._arguments.update(A=a, B=b, C=c, D=out)
            return
        self._arguments.update(A=a, B=b)
        further: dict[str, Any] = {"epilogue": ports} if ports else {}
        self._ends.update(source=c, destination=out, **further)

    def run(self, stream: Any) -> None:
        """Launch the kernels on `stream`, or on the current stream of the tensors' library."""
        self._operation.run(self._arguments, stream)
        if self._reduction is not None:
            self._reduction.run(self._ends, stream)

    def sync(self) -> None:
        """Wait for the result, and bring one in host memory back."""
        (self._arguments if self._ends is None else self._ends).sync()
