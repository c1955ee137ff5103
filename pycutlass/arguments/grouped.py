"""Arguments of a grouped GEMM."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from functools import partial
from typing import Any, overload

from pycutlass import device
from pycutlass.arguments.base import Arguments
from pycutlass.arguments.given import check_operation, refuse_unknown
from pycutlass.arguments.group import exceeds, group_problem, listed, table_problem
from pycutlass.calls import public
from pycutlass.enums import SchedulerMode
from pycutlass.epilogue import EpilogueScalars
from pycutlass.errors import AlignmentError, ArgumentError
from pycutlass.integers import items_of
from pycutlass.kernel import PreparedGrouped, prepare
from pycutlass.launch import USUAL, DeviceLaunch, HostLaunch, NoLaunch, check_on_host, ordinal_of
from pycutlass.launch.grouped import GroupedLaunch, GroupProblem, TableProblem
from pycutlass.operands import check_bias, check_count
from pycutlass.operands.epilogue import given_ports, taken_apart
from pycutlass.operands.reordered import Reordering
from pycutlass.operation.group_support import check_sizes, count_tiles
from pycutlass.operation.grouped import GemmOperationGrouped

__all__ = ["GemmGroupedArguments"]

_KEYWORDS = (
    *("operation", "problem_sizes", "A", "B", "C", "D", "output_op", "bias", "sm_count", "launch_priority"),
    *("reordered", "epilogue"),
)


@partial(public, but=("update",))
class GemmGroupedArguments(Arguments):
    """The arguments of a grouped GEMM: D[i] = epilogue(A[i] x B[i], C[i]) for every problem i.

    Everything is checked here, before any launch. Addresses, leading dimensions and sizes of all problems are packed
    into one table, which goes to the GPU in one copy with the launch; ``operation.run`` may then be called any number
    of times. The tensors are kept alive as long as the arguments, and until the last launch with them has finished.

    Parameters
    ----------
    operation : GemmOperationGrouped
        Compiled with ``pycutlass.compiler.add_module`` where there is a GPU.
    problem_sizes : list of cutlass.gemm.GemmCoord, or of three int
        M, N, K of each problem; or integers of shape (problems, 3) in host memory, of numpy or torch. A problem may be
        empty: with M or N of 0 there is nothing to do, with K of 0 the product is zero. Reductions of an epilogue
        function need elements, unless their results have none either.
    A, B, C, D : list of tensor
        One of each problem, as for `GemmArguments`: shapes (M, K), (K, N), (M, N), (M, N), or flat; D of (M, N / 2)
        where the epilogue combines `pairs` of columns. Where all are alike, one tensor of three dimensions may hold
        them. `C` may be None where beta is 0, C[i] may be D[i] itself, and may be a bias: a vector of N elements
        (row-major C) or M elements (column-major C).
    output_op : EpilogueScalars, optional
        ``operation.epilogue_type(alpha, beta)``, for all problems; by default alpha=1 and beta=0; passing C then
        raises.
    bias : bool, optional
        Take every C[i] as a bias. A tensor with just the elements of one is recognised without it.
    sm_count : int, optional
        On how many multiprocessors the kernel may run at most: others have the rest.
    launch_priority : int, optional
        Priority of the kernel among work that waits for multiprocessors, as the streams of CUDA have it: of two, the
        lower number goes first, and 0 is the usual one. Left out, that of the stream counts.
    reordered : bool, optional
        Interleaved kernels: whether every B[i] is what `reorder_column` returned. Left out, their memory tells,
        and copies are refused. What is not is reordered here: host memory when it is read, tensors on a GPU into
        copies, which `update` renews.
    epilogue : mapping, optional
        Lists of the tensors that the operation's epilogue has beside C and D, one of each problem, by their names.
        Epilogue functors have none.

    Raises
    ------
    ArgumentError, ArgumentTypeError, AlignmentError
        Something does not fit; the message names the operand and the problem, the value, what is needed and the remedy.
    NotCompiledError
        There is a GPU and the operation has not been compiled for it.
    PoolError
        No memory for the table or for the buffers of numpy operands.

    Examples
    --------
    >>> import numpy as np, pycutlass
    >>> from pycutlass import cutlass
    >>> instruction = pycutlass.MathInstruction([1, 1, 1], cutlass.float32, cutlass.float32, cutlass.float32)
    >>> tile = pycutlass.TileDescription([128, 128, 8], 4, [4, 2, 1], instruction)
    >>> row = pycutlass.TensorDescription(cutlass.float32, cutlass.RowMajor)
    >>> functor = pycutlass.LinearCombination(cutlass.float32, 1)
    >>> operation = pycutlass.GemmOperationGrouped(80, tile, row, row, row, functor)
    >>> sizes = [(4, 5, 3), (7, 2, 6)]
    >>> A = [np.ones((m, k), np.float32) for m, n, k in sizes]
    >>> B = [np.ones((k, n), np.float32) for m, n, k in sizes]
    >>> D = [np.empty((m, n), np.float32) for m, n, k in sizes]
    >>> pycutlass.compiler.add_module([operation])  # doctest: +SKIP
    >>> arguments = pycutlass.GemmGroupedArguments(operation, sizes, A, B, None, D)
    >>> operation.run(arguments)
    >>> arguments.sync()
    >>> float(D[0][0, 0]), float(D[1][6, 1])
    (3.0, 6.0)
    """

    operation: GemmOperationGrouped
    _SIZE = "problem_sizes"
    _SHOWN, _LAST_NEEDED = ("problem_count",), "D"

    @overload
    def __init__(
        self,
        operation: GemmOperationGrouped,
        problem_sizes: Any,
        A: Any,
        B: Any,
        C: Any,
        D: Any,
        *,
        output_op: EpilogueScalars | None = None,
        bias: bool | None = None,
        sm_count: int | None = None,
        launch_priority: int | None = None,
        reordered: bool | None = None,
        epilogue: Mapping[str, Any] | None = None,
    ) -> None: ...

    @overload
    def __init__(
        self,
        operation: GemmOperationGrouped,
        problem_sizes: Any,
        A: Any,
        B: Any,
        C: Any = None,
        *,
        D: Any,
        output_op: EpilogueScalars | None = None,
        bias: bool | None = None,
        sm_count: int | None = None,
        launch_priority: int | None = None,
        reordered: bool | None = None,
        epilogue: Mapping[str, Any] | None = None,
    ) -> None: ...

    def __init__(
        self,
        operation: GemmOperationGrouped,
        problem_sizes: Any,
        A: Any,
        B: Any,
        C: Any = None,  # which no launch reads where beta is 0
        D: Any = None,  # required, as the two forms above say: Python asks for a default behind that of C
        *,
        output_op: EpilogueScalars | None = None,
        bias: bool | None = None,
        sm_count: int | None = None,
        launch_priority: int | None = None,
        reordered: bool | None = None,
        epilogue: Mapping[str, Any] | None = None,
        **unknown: Any,
    ) -> None:
        refuse_unknown("GemmGroupedArguments", unknown, _KEYWORDS)
        self.operation = check_operation(operation, GemmOperationGrouped)
        self.bias = check_bias(bias)
        self._share(launch_priority, sm_count, is_persistent=True)
        self._reordering = Reordering(self.operation.B, reordered)
        self._most_tiles: int | None = None
        sizes = check_sizes(self.operation.single, problem_sizes)
        self.problem_count = len(sizes)
        tensors = {name: listed(name, operand) for name, operand in (("A", A), ("B", B), ("C", C), ("D", D))}
        given = {"problem_sizes": sizes, **tensors, **self._listed_ports({} if epilogue is None else epilogue)}
        if self._options != USUAL or not self._start_ordinary(given, output_op):
            self._start(self.operation, given, output_op)

    def _listed_ports(self, epilogue: Mapping[str, Any]) -> dict[str, Any]:
        """Return the tensors of the epilogue that are given, as tuples, which their owner cannot change.

        One tensor may hold those of all problems along its first dimension.
        """
        functor = self.operation.epilogue_functor
        ports = {port.name: port for port in functor.ports}

        def apart(name: str, given: Any) -> Any:
            if isinstance(given, list):
                return items_of(given, sys.maxsize - 1)
            if isinstance(given, tuple) or self._most_tiles is not None:
                return given
            taken = taken_apart(ports[name], given, written=ports[name] in functor.outputs)
            return given if taken is None else taken

        return {name: apart(name, given) for name, given in given_ports(functor, epilogue).items()}

    def _start_ordinary(self, given: dict[str, Any], output_op: Any) -> bool:
        """Make the launch of tensors that C++ sees are right; False, and nothing has changed, of all others."""
        operation, sizes, D = self.operation, given["problem_sizes"], given["D"]
        if type(operation) is not GemmOperationGrouped or type(D) is not tuple or exceeds(operation, sizes):
            return False
        prepared = prepare(operation, D[0], (), PreparedGrouped) if D else None
        if prepared is None:
            return False
        tensors = given["A"], given["B"], given["C"], D
        made = GroupedLaunch.of(operation, prepared, prepared.make, tensors, output_op, (sizes, self.bias))
        if made is None:
            return False
        execution, self.output_op = made
        self._run, self._try_exchange = execution.run, execution.try_exchange
        self._launched, self._given, self._execution = operation, given, execution
        return True

    @classmethod
    def from_device(
        cls,
        operation: GemmOperationGrouped,
        problem_count: int,
        problem_sizes: Any,
        ptr_A: Any,
        ptr_B: Any,
        ptr_C: Any,
        ptr_D: Any,
        lda: Any,
        ldb: Any,
        ldc: Any,
        ldd: Any,
        *,
        output_op: EpilogueScalars | None = None,
        most_tiles: int = 0,
        sm_count: int | None = None,
        launch_priority: int | None = None,
        epilogue: Mapping[str, Any] | None = None,
    ) -> GemmGroupedArguments:
        """Return arguments whose sizes, addresses and leading dimensions are on the device, read when the kernel runs.

        For groups that a kernel makes, as in a mixture of experts: nothing comes back to the host, and a captured graph
        follows whatever the tables hold when it is replayed.

        The tables are checked: element type, shape, contiguity, one GPU; they are kept alive like other operands. What
        they hold cannot be: whoever writes them vouches that extents and leading dimensions are multiples of the
        alignments, that an interleaved B is reordered, that addresses are aligned and point at as much memory as the
        sizes say, that this memory lives until the launch has finished, that no D lies over another D or over what is
        read, that M, N and K are not negative, that FastLinearCombinationClamp gets no K above 256, and that N is even
        where the epilogue combines `pairs` of columns.

        Parameters
        ----------
        operation : GemmOperationGrouped
            With ``SchedulerMode.Device``.
        problem_count : int
            Entries of each table. Problems with M or N of 0 are skipped, so it may be an upper bound.
        problem_sizes : int32 tensor of shape (problem_count, 3)
            M, N, K of each problem.
        ptr_A, ptr_B, ptr_C, ptr_D : int64 tensor of shape (problem_count,)
            Addresses. `ptr_C` may be None where beta is 0.
        lda, ldb, ldc, ldd : int64 tensor of shape (problem_count,)
            Leading dimensions in elements: the step between rows (RowMajor) or columns (ColumnMajor). 0 in `ldc` makes
            C a bias. `ldc` may be None where beta is 0.
        output_op : EpilogueScalars, optional
            As for the constructor.
        most_tiles : int
            Output tiles of all problems at most: more threadblocks than that are not launched. 0, where nobody knows,
            launches as many as the GPU holds, which Hopper-native groups always do.
        sm_count, launch_priority : int, optional
            As for the constructor.
        epilogue : mapping, optional
            Of the tensors that the operation's epilogue has beside C and D, by their names: a table of addresses of
            each vector, of each matrix the two tables (addresses, leading dimensions), and of each `PerBatch` a table
            of addresses or the numbers themselves.

        Raises
        ------
        ArgumentError, ArgumentTypeError
            A table does not fit, the operation's schedule is made on the host, or its epilogue has reductions.
        """
        arguments = cls.__new__(cls)
        arguments.operation = check_operation(operation, GemmOperationGrouped)
        if operation.precompute_mode is not SchedulerMode.Device:
            raise ArgumentError(
                "from_device needs an operation with SchedulerMode.Device: the host does not know the sizes, and "
                "cannot make a schedule of them"
            )
        arguments.bias = None
        arguments._share(launch_priority, sm_count, is_persistent=True)
        arguments._most_tiles = check_count("most_tiles", most_tiles, 0)
        arguments.problem_count = check_count("problem_count", problem_count)
        tables = {"problem_sizes": problem_sizes, "A": ptr_A, "B": ptr_B, "C": ptr_C, "D": ptr_D}
        strides = {"lda": lda, "ldb": ldb, "ldc": ldc, "ldd": ldd}
        ports = arguments._listed_ports({} if epilogue is None else epilogue)
        arguments._start(operation, {**tables, **strides, **ports}, output_op)
        return arguments

    def update(
        self,
        *further: Any,
        problem_sizes: Any = None,
        A: Any = None,
        B: Any = None,
        C: Any = None,
        D: Any = None,
        output_op: EpilogueScalars | None = None,
        epilogue: Mapping[str, Any] | None = None,
        **unknown: Any,
    ) -> None:
        """Exchange tensors, sizes or scalars without recompiling.

        With new tensors alone, of the same shapes and of a library on the GPU, this costs little more than a look at
        each. New sizes may be any, also of more or fewer problems; the operands that they do not fit come with them.
        With tensors of torch that costs little more, until the group outgrows its table. Nothing changes where an error
        is raised. numpy operands are copied to the GPU again.

        Parameters
        ----------
        problem_sizes : list, optional
            M, N, K of each problem. For arguments made `from_device`, another table.
        A, B, C, D : list of tensor, optional
            What takes the place of an operand, for all problems; None leaves it. For arguments made `from_device`,
            other tables of addresses.
        output_op : EpilogueScalars, optional
            Other scalars. Beta may become non-zero only where there is a C.
        epilogue : mapping, optional
            What takes the place of tensors that the epilogue has beside C and D, by their names.

        Raises
        ------
        ArgumentError, ArgumentTypeError, AlignmentError
            As for the constructor.
        """
        if further or unknown:
            refuse_unknown("update", unknown, ("problem_sizes", "A", "B", "C", "D", "output_op", "epilogue"), further)
        # Tuples, which their owner cannot change behind our back. Written out, for this is in the way of every launch.
        if A is not None and type(A) is not tuple:
            A = listed("A", A)
        if B is not None and type(B) is not tuple:
            B = listed("B", B)
        if C is not None and type(C) is not tuple:
            C = listed("C", C)
        if D is not None and type(D) is not tuple:
            D = listed("D", D)
        if output_op is None and epilogue is None and problem_sizes is None and self._try_exchange(A, B, C, D):
            given = self._given
            if self._execution.ends_elsewhere:
                self._execution.defer_release(tuple(given[name] for name in "ABCD"))
            if A is not None:
                given["A"] = A
            if B is not None:
                given["B"] = B
            if C is not None:
                given["C"] = C
            if D is not None:
                given["D"] = D
            return
        tensors = {name: t for name, t in (("A", A), ("B", B), ("C", C), ("D", D)) if t is not None}
        self._check_use(tensors, output_op)
        merged = {**self._given, **tensors, **self._listed_ports({} if epilogue is None else epilogue)}
        if problem_sizes is not None:
            on_device = self._most_tiles is not None
            merged["problem_sizes"] = problem_sizes if on_device else check_sizes(self.operation.single, problem_sizes)
            if output_op is None and not on_device and self._try_resize(merged, A, B, C, D):
                return
        try:
            self._replace(merged, self.output_op if output_op is None else self._check_scalars(output_op))
        except ArgumentError as error:
            kept = [name for name in "ABCD" if name not in tensors and self._given[name] is not None]
            refused = re.search(r"\b(?:operand|bias) ([ABCD])\b", str(error))
            if problem_sizes is None or refused is None or refused[1] not in kept:
                raise
            kind = AlignmentError if isinstance(error, AlignmentError) else ArgumentError
            raise kind(
                f"{str(error).removesuffix('.')}. {', '.join(kept)} are still those of before: pass what fits the new "
                f"sizes along, update(problem_sizes=..., {', '.join(f'{name}=...' for name in kept)})"
            ) from None

    @property
    def sm_count(self) -> int | None:
        """Multiprocessors that a launch may use at most; None for all."""
        return self._options.sm_count

    @property
    def problem_sizes(self) -> Any:
        """M, N, K of each problem: a copy, as an int32 array of shape (problems, 3); or the table on the device."""
        sizes = self._given["problem_sizes"]
        return sizes.copy() if self._most_tiles is None else sizes

    @property
    def total_tiles(self) -> int:
        """Output tiles of all problems; for arguments made `from_device`, the bound that was given."""
        return count_tiles(self.operation.single, self.problem_sizes) if self._most_tiles is None else self._most_tiles

    def _addresses(self, operand: str) -> Any:
        """Return where an operand is: a list with one entry for each problem, or the table on the device."""
        return self._entries(operand, 0) if self._most_tiles is None else self._given[operand]

    def _leading_dimensions(self, operand: str) -> Any:
        """Return its leading dimensions in elements, likewise."""
        return self._entries(operand, 1) if self._most_tiles is None else self._given[f"ld{operand.lower()}"]

    def _entries(self, operand: str, which: int) -> list[int]:
        placed = self._placed()
        return [placed.operand(f"{operand}[{number}]")[which] for number in range(self.problem_count)]

    def _problem(self, given: Mapping[str, Any], scalars: EpilogueScalars) -> GroupProblem | TableProblem:
        """Return the problems with every operand checked."""
        if self._most_tiles is None:
            self._reordering.begin()
            return group_problem(self.operation, given, scalars, self.bias, self._reordering)
        return table_problem(self.operation, given, scalars, self.problem_count, self._most_tiles)

    def _try_resize(self, given: dict[str, Any], A: Any, B: Any, C: Any, D: Any) -> bool:
        """Go over to other sizes and tensors where these are plainly right; False leaves everything as it was."""
        execution = self._execution
        sizes = given["problem_sizes"]
        functor = self.operation.epilogue_functor
        if exceeds(self.operation, sizes) or functor.ports or functor.columns(2) < 2:  # D has other extents there
            return False
        if not isinstance(execution, GroupedLaunch) or not execution.resize(sizes, A, B, C, D):
            return False
        if execution.ends_elsewhere:
            execution.defer_release(tuple(self._given[name] for name in "ABCD"))
        self.__dict__.update(_given=given, problem_count=len(given["problem_sizes"]))
        return True

    def _replace(self, given: dict[str, Any], scalars: EpilogueScalars) -> None:
        """Go over to other operands and scalars."""
        problem = self._checked_problem(given, scalars)
        self._check_place(problem)
        self._execution.update(problem)
        self._execution.defer_release((*self._given.values(), self.output_op))
        self._run = self._reordering.guarded(self._execution.run)
        self.__dict__.update(_given=given, output_op=scalars)
        if self._most_tiles is None:
            self.__dict__["problem_count"] = len(given["problem_sizes"])

    def _prepare(self, problem: Any) -> DeviceLaunch | HostLaunch | NoLaunch:
        if device.available():
            return GroupedLaunch(self.operation, problem, ordinal_of(problem.operands), self._options)
        check_on_host(problem)
        return HostLaunch(self.operation, problem)
