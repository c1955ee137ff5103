"""Arguments of the reduction that ends a parallel split-K."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, overload

import numpy as np

from pycutlass import _core, device
from pycutlass.arguments.base import Arguments
from pycutlass.arguments.given import check_operation, refuse_unknown
from pycutlass.calls import public
from pycutlass.epilogue import Epilogue, EpilogueScalars
from pycutlass.epilogue.fast_clamp import for_any_sums
from pycutlass.errors import ArgumentError, ArgumentTypeError, PyCutlassError
from pycutlass.imported import imported
from pycutlass.kernel import PreparedReduction, prepared_on
from pycutlass.launch import DeviceLaunch
from pycutlass.launch.reduction import ReductionProblem
from pycutlass.launch.split_k import Planes, planes_at
from pycutlass.library import TensorDescription
from pycutlass.operands import (
    Matrix,
    Operand,
    check_bias,
    check_dtype,
    check_writable,
    empty_matrix,
    is_vector,
    matrix,
    vector,
)
from pycutlass.operands.epilogue import given_ports, port_operand
from pycutlass.operands.overlaps import check_overlap
from pycutlass.operation import ReductionOperation
from pycutlass.operation.problems import ReductionProblemSize, reduction_size
from pycutlass.operation.reduction import check_size, partial_sums
from pycutlass.tensor import wrap

__all__ = ["ReductionArguments"]


@partial(public, but=("update",))
class ReductionArguments(Arguments):
    """The arguments of one reduction of split-K partial sums.

    Parameters
    ----------
    operation : ReductionOperation
        Compiled together with the GEMM or convolution.
    problem_size : ReductionProblemSize or sequence of 2 int
        M, N of the destination. A ReductionProblemSize brings the partitions along.
    partitions : int
        Number of partial sums: the `split_k_slices` of the GEMM.
    workspace : int or tensor
        ``arguments.ptr_D`` of a GEMM in ``Mode.GemmSplitKParallel``: one packed plane a partition, in the
        accumulator's type and the layout of C. The GEMM's arguments must live until these are made. On a GPU also
        planes of the user's own, as an address or a tensor of (partitions, M, N).
    destination, source : tensor
        D and C. `source` may be None where beta is 0, and may be a bias vector.
    output_op : EpilogueScalars, optional
        ``reduction.epilogue_type(alpha, beta, ...)``; by default alpha=1 and beta=0; passing a source
        then raises.
    bias : bool, optional
        Take `source` as a bias; recognised by its number of elements without it.
    launch_priority : int, optional
        Priority of the kernel among work that waits for multiprocessors, as the streams of CUDA have it: of two, the
        lower number goes first, and 0 is the usual one. Left out, that of the stream counts.
    epilogue : mapping, optional
        Tensors that the operation's epilogue has beside C and D, by their names. Epilogue functors have none.

    Raises
    ------
    ArgumentError, ArgumentTypeError, AlignmentError, NotCompiledError
        As for `GemmArguments`.

    Examples
    --------
    >>> import numpy as np, pycutlass
    >>> from pycutlass import cutlass
    >>> Mode = cutlass.gemm.Mode
    >>> instruction = pycutlass.MathInstruction([1, 1, 1], cutlass.float32, cutlass.float32, cutlass.float32)
    >>> tile = pycutlass.TileDescription([128, 128, 8], 4, [4, 2, 1], instruction)
    >>> row = pycutlass.TensorDescription(cutlass.float32, cutlass.RowMajor)
    >>> functor = pycutlass.LinearCombination(cutlass.float32, 1)
    >>> gemm = pycutlass.GemmOperationUniversal(80, tile, row, row, row, functor)
    >>> reduction = pycutlass.ReductionOperation(cutlass.MatrixCoord(4, 32), row, cutlass.float32)
    >>> pycutlass.compiler.add_module([gemm, reduction])  # doctest: +SKIP
    >>> A, B, D = np.ones((4, 64), np.float32), np.ones((64, 5), np.float32), np.empty((4, 5), np.float32)
    >>> arguments = pycutlass.GemmArguments(gemm, (4, 5, 64), A, B, None, D, Mode.GemmSplitKParallel, split_k_slices=2)
    >>> reduction_arguments = pycutlass.ReductionArguments(reduction, [4, 5], 2, arguments.ptr_D, D, None)
    >>> gemm.run(arguments)
    >>> reduction.run(reduction_arguments)
    >>> reduction_arguments.sync()
    >>> float(D[0, 0])
    64.0
    """

    operation: ReductionOperation
    _SOURCE = "source"
    _SHOWN, _LAST_NEEDED = ("problem_size", "partitions"), "destination"

    @overload
    def __init__(
        self,
        operation: ReductionOperation,
        problem_size: _core.MatrixCoord | Sequence[int],
        partitions: int,
        workspace: Any,
        destination: Any,
        source: Any = None,
        *,
        output_op: EpilogueScalars | None = None,
        bias: bool | None = None,
        launch_priority: int | None = None,
        epilogue: Mapping[str, Any] | None = None,
    ) -> None: ...

    @overload
    def __init__(
        self,
        operation: ReductionOperation,
        problem_size: ReductionProblemSize | _core.MatrixCoord | Sequence[int],
        partitions: int = 1,
        *,
        workspace: Any,
        destination: Any,
        source: Any = None,
        output_op: EpilogueScalars | None = None,
        bias: bool | None = None,
        launch_priority: int | None = None,
        epilogue: Mapping[str, Any] | None = None,
    ) -> None: ...

    def __init__(
        self,
        operation: ReductionOperation,
        problem_size: ReductionProblemSize | _core.MatrixCoord | Sequence[int],
        partitions: int = 1,
        workspace: Any = None,  # both are required, as the two forms above say: Python asks for a default behind
        destination: Any = None,  # that of `partitions`
        source: Any = None,
        *,
        output_op: EpilogueScalars | None = None,
        bias: bool | None = None,
        launch_priority: int | None = None,
        epilogue: Mapping[str, Any] | None = None,
        **unknown: Any,
    ) -> None:
        tensors, extents = (workspace, destination, source), _plain(problem_size, partitions)
        ordinary = not unknown and epilogue is None and launch_priority is None
        if ordinary and self._start_ordinary(operation, extents, tensors, output_op, bias):
            return
        refuse_unknown("ReductionArguments", unknown, _KEYWORDS)
        self.operation = operation = check_operation(operation, ReductionOperation)
        size = reduction_size(problem_size, partitions)
        check_size(operation, size)
        self.problem_size, self.partitions = (size.rows, size.columns), size.partitions
        self.bias = check_bias(bias)
        self._share(launch_priority)
        self._planes: Planes | None = None
        given = {"A": workspace, "C": source, "D": destination}
        given |= given_ports(operation.epilogue_functor, {} if epilogue is None else epilogue)
        self._start(operation, given, output_op)
        del self._run  # until the first launch, which is that of the class

    def _start_ordinary(
        self,
        operation: Any,
        extents: tuple[int, int, int] | None,
        tensors: tuple[Any, Any, Any],
        output_op: Any,
        bias: Any,
    ) -> bool:
        """Make the launch for sums of this process and tensors that C++ sees are right; False of all others."""
        workspace, destination, source = tensors
        if type(operation) is not ReductionOperation or extents is None or type(workspace) is not int:
            return False
        if operation.epilogue_functor.is_tree:
            return False
        planes = planes_at(workspace)
        if planes is None or planes.view.device is None or planes.shape != extents or "_execution" in self.__dict__:
            return False
        try:
            self.operation = operation
            check_size(operation, ReductionProblemSize(extents[1], extents[2], extents[0]))
            prepared = prepared_on(operation, planes.view.device, PreparedReduction)
            check_dtype("workspace", prepared.sums, planes.view)
            self._check_planes(planes)
        except PyCutlassError:  # which is raised again, where it is its turn
            return False
        partitions, rows, columns = extents
        memory = planes.view.owner
        how = (planes.view.pointer, rows, columns, partitions, bias)
        made = DeviceLaunch.of(operation, prepared, prepared.make, (memory, None, source, destination), output_op, how)
        if made is None:
            return False
        execution, self.output_op = made
        execution.hold("sums A", memory)
        self._try_exchange = execution.try_exchange
        self.problem_size, self.partitions, self.bias = (rows, columns), partitions, bias
        self._planes, self._launched = planes, operation
        self._given = {"A": workspace, "C": source, "D": destination}
        self._execution = execution
        return True

    def _run(self, stream: Any = None) -> None:
        """Launch for the first time: partial sums that no launch has written would be taken for zeros."""
        if self._planes is not None and not self._planes.written:
            raise ArgumentError(
                "the partial sums have not been computed yet: run the operation that makes them before its reduction, "
                "gemm.run(arguments) and then reduction.run(reduction_arguments)"
            )
        self.__dict__["_run"] = self._execution.run
        self._run(stream)

    def update(
        self,
        *further: Any,
        A: Any = None,
        B: Any = None,
        C: Any = None,
        D: Any = None,
        output_op: EpilogueScalars | None = None,
        epilogue: Mapping[str, Any] | None = None,
        **unknown: Any,
    ) -> None:
        """Exchange tensors of the same shapes, or the scalars, without rebuilding.

        Nothing changes where an error is raised. numpy operands are copied to the GPU again.

        Parameters
        ----------
        A : int, optional
            Another workspace.
        B : None
            A reduction has none.
        C, D : tensor, optional
            Another source and destination.
        output_op : EpilogueScalars, optional
            Other scalars. Beta may become non-zero only where there is a source.
        epilogue : mapping, optional
            What takes the place of tensors that the epilogue has beside C and D, by their names.

        Raises
        ------
        ArgumentError, ArgumentTypeError, AlignmentError
            As for the constructor.
        """
        if B is not None:
            raise ArgumentTypeError(
                "a reduction has no operand B: update takes A (the workspace), C (the source), D (the destination) and "
                "output_op"
            )
        planes = self._planes
        try:
            super().update(*further, A=A, C=C, D=D, output_op=output_op, epilogue=epilogue, **unknown)
        except BaseException:
            self._planes = planes
            raise
        self.__dict__.pop("_run", None)  # which may be of other partial sums now

    def _problem(self, given: dict[str, Any], scalars: EpilogueScalars) -> ReductionProblem:
        operation, (rows, columns) = self.operation, self.problem_size
        if given["D"] is None:
            raise ArgumentError(f"destination is missing: give a tensor of {rows} x {columns}")
        if not rows or not columns:
            target = empty_matrix("destination", operation.C, given["D"], rows, columns)
            return ReductionProblem(operation, rows, columns, self.partitions, {"D": target}, scalars)
        target = matrix("destination", operation.C, given["D"], rows, columns)
        operands: dict[str, Operand] = {"A": self._workspace(given["A"], rows, columns), "D": target}
        if scalars.needs_source:
            if given["C"] is None and self._functor.reads_source:
                raise ArgumentError(f"source is None, and the epilogue {self._functor!r} reads it: give a source")
            if given["C"] is None:
                raise ArgumentError("source is None, and beta is not 0: give a source, or epilogue_type(alpha, 0)")
            operands["C"] = self._source(given["C"], rows, columns)
        written = [target]
        for port in self._functor.ports:
            is_output = port in self._functor.outputs
            made = port_operand(port, given.get(port.name), rows, columns, 1, written=is_output)
            operands[port.name] = made
            written += [made] if is_output else []
        for each, other in itertools.product(written, operands.values()):
            assert isinstance(other, Matrix)
            if other is each:
                check_writable(each)
            elif each is not target or other in written or not _reads_what_it_writes(target, other):
                check_overlap(each, other)
        return ReductionProblem(operation, rows, columns, self.partitions, operands, scalars)

    def _workspace(self, workspace: Any, rows: int, columns: int) -> Matrix:
        description = partial_sums(self.operation)
        if workspace is None:
            raise ArgumentError(
                "workspace is missing: give the ptr_D of GemmArguments in Mode.GemmSplitKParallel, or of "
                "Conv2dArguments in SplitKMode.Parallel"
            )
        if isinstance(workspace, Arguments):
            raise ArgumentTypeError(
                f"workspace must be the address of partial sums, got {type(workspace).__name__}: pass their ptr_D"
            )
        if isinstance(workspace, np.integer):  # an address that has been through an array
            workspace = int(workspace)
        planes = planes_at(wrap("workspace", workspace).pointer)
        if planes is None and device.available():
            return self._own_planes(description, workspace, rows, columns)
        if planes is None or planes.shape != (self.partitions, rows, columns):
            known = "" if planes is None else "; this one has {} planes of {} x {}".format(*planes.shape)
            raise ArgumentError(
                "workspace must be the ptr_D of GemmArguments in Mode.GemmSplitKParallel with the same problem size "
                f"and {self.partitions} slices{known}"
            )
        check_dtype("workspace", description, planes.view)
        self._check_planes(planes)
        self._planes = planes  # which go where nobody has them
        line = columns if description.is_row_major else rows
        return Matrix("workspace", description, planes.view, rows, columns, line, self.partitions, rows * columns)

    def _own_planes(self, description: TensorDescription, workspace: Any, rows: int, columns: int) -> Matrix:
        """Return a workspace of the user's own making, of which nothing is known but what it says itself."""
        planes = matrix("workspace", description, workspace, rows, columns, self.partitions)
        if self.partitions > 1 and not planes.batch_stride:  # elsewhere one matrix may be shared by a whole batch
            shape = (self.partitions, rows, columns)
            raise ArgumentError(
                f"workspace must have a plane of its own for each of the {self.partitions} partitions, in shape "
                f"{shape} or flat with {self.partitions * rows * columns} elements; got one plane for all of them, of "
                f"shape {planes.view.shape}. Pass all planes, or partitions=1."
            )
        return planes

    def _check_planes(self, planes: Planes) -> None:
        """Check what is known of partial sums that a GEMM or convolution of this process makes."""
        made, described, functor = planes.operand().description.order, self.operation.C.order, self._functor
        if made.is_row_major != described.is_row_major:
            raise ArgumentError(
                f"the partial sums are {made}, as C of the operation that makes them, and the reduction describes C as "
                f"{described}: describe both with the same layout"
            )
        if functor.max_k is not None and planes.k > functor.max_k:
            raise ArgumentError(
                f"{type(functor).__name__} holds for K of at most {functor.max_k}, the partial sums are of K="
                f"{planes.k}: use {for_any_sums(functor)}"
            )

    @property
    def _functor(self) -> Epilogue:
        return self.operation.epilogue_functor

    def _source(self, source: Any, rows: int, columns: int) -> Matrix:
        wanted = is_vector(self.operation.C, source, rows, columns) if self.bias is None else self.bias
        return (vector if wanted else matrix)("source", self.operation.C, source, rows, columns)


def _reads_what_it_writes(target: Matrix, source: Matrix) -> bool:
    """Return whether each thread reads of `source` the very elements that it writes then, in one of its planes."""
    behind, step = target.view.pointer - source.view.pointer, source.description.type.bytes_of(source.batch_stride)
    plane, within = divmod(behind, step) if step else (0, behind)
    return (
        source.description.type == target.description.type
        and source.ld == target.ld
        and within == 0
        and 0 <= plane < source.matrices
    )


def _plain(size: Any, partitions: Any) -> tuple[int, int, int] | None:
    """Return partitions, rows and columns where these are plainly integers."""
    if type(size) is ReductionProblemSize:
        return (size.partitions, size.rows, size.columns) if type(partitions) is int and partitions == 1 else None
    known = (tuple, list, _core.MatrixCoord, imported("torch", "Size"))  # a class of the user's own may raise anything
    if type(size) not in known or len(size) != 2:
        return None
    found = (partitions, *size)
    return found if all(type(each) is int for each in found) else None


_KEYWORDS = (
    "operation",
    "problem_size",
    "partitions",
    "workspace",
    "destination",
    "source",
    "launch_priority",
    "output_op",
    "bias",
    "epilogue",
)
