"""Reduction of the partial sums of parallel split-K."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

from pycutlass import _core
from pycutlass.calls import public, shown
from pycutlass.epilogue import Epilogue, EpilogueFunctor, FunctionEpilogue, LinearCombination
from pycutlass.epilogue.visit_tree import of_function
from pycutlass.errors import ArgumentError, DescriptionError
from pycutlass.families import AMPERE, Family
from pycutlass.families.parts import changed
from pycutlass.families.table import check_family
from pycutlass.integers import as_int, several
from pycutlass.library import TensorDescription, TileDescription
from pycutlass.operands import Matrix, empty_matrix_of, is_vector, matrix_of, vector_of
from pycutlass.operation.base import MAX_UNBOUNDED_THREADS, Operation
from pycutlass.operation.checked_parts import expect
from pycutlass.operation.problems import ReductionProblemSize, reduction_size
from pycutlass.operation.support import GRID_LIMIT, Support, named_operands, supported
from pycutlass.spec import TensorSpec, nowhere, view_of
from pycutlass.tensor import TensorView
from pycutlass.types import element

__all__ = ["ReductionOperation", "check_size", "partial_sums", "unscaled"]

#: What GEMMs and convolutions accumulate in.
_SUMS = ("f16", "f32", "f64", "s32")
_MAX_REGISTERS = 255  # that one thread can have, of 32 bits each
_SHARED_MEMORY = 48 << 10  # in bytes, which a kernel has on every GPU


@public
class ReductionOperation(Operation):
    """D = epilogue(sum of the partial sums, C): the second kernel of parallel split-K.

    Compile it together with the operation that makes the partial sums: ``add_module([gemm, reduction])``.

    Parameters
    ----------
    shape : cutlass.MatrixCoord
        Rows and columns of D that one threadblock covers.
    C : TensorDescription
        Source and destination, in the layout of the C that the partial sums are made with; not interleaved.
    element_accumulator : element type of ``cutlass``
        Type of the sums.
    element_workspace : element type, optional
        Type of the partial sums; by default, and always, that of the sums.
    element_compute : element type, optional
        Type that the epilogue computes in, where no functor says so.
    epilogue_functor : Epilogue, optional
        LinearCombination by default. An activation belongs here, not into the GEMM.
    count : int
        Elements of one memory access.
    partitions_per_stage : int
        Partial sums that are loaded at once, `count` elements of each, into the registers of a thread.

    Raises
    ------
    DescriptionError
        The parts do not make a kernel.

    Examples
    --------
    >>> import pycutlass
    >>> from pycutlass import cutlass
    >>> C = pycutlass.TensorDescription(cutlass.float16, cutlass.RowMajor, 8)
    >>> reduction = pycutlass.ReductionOperation(cutlass.MatrixCoord(4, 256), C, cutlass.float32, count=8)
    >>> reduction.procedural_name()[:44]
    'cutlass_reduce_split_k_f32_f32_f32_f16_4x256'
    """

    _FIELDS: ClassVar[tuple[str, ...]] = (
        "shape",
        "C",
        "element_accumulator",
        "element_workspace",
        "element_compute",
        "epilogue_functor",
        "count",
        "partitions_per_stage",
    )

    compute_capability = 75
    #: It runs behind a GEMM or convolution, so `add_module` builds it for what those of the same call are built for.
    follows: ClassVar[bool] = True

    def __init__(
        self,
        shape: _core.MatrixCoord | Sequence[int],
        C: TensorDescription,
        element_accumulator: Any,
        element_workspace: Any = None,
        element_compute: Any = None,
        epilogue_functor: Epilogue | None = None,
        count: int = 1,
        partitions_per_stage: int = 4,
        **unknown: Any,
    ) -> None:
        if unknown:
            self._refuse(unknown)
        self.shape = _shape(shape)
        self.C = expect("C", C, TensorDescription)
        self.count = count = _positive("count", count)
        self.partitions_per_stage = _positive("partitions_per_stage", partitions_per_stage)
        self.element_accumulator = element(element_accumulator).tag
        self.element_workspace = (
            self.element_accumulator if element_workspace is None else element(element_workspace).tag
        )
        if epilogue_functor is None:
            compute = element_accumulator if element_compute is None else element_compute
            epilogue_functor = LinearCombination(self.C.element, count, element_accumulator, compute)
        epilogue_functor = of_function(epilogue_functor)
        if not isinstance(epilogue_functor, Epilogue):
            epilogue_functor = expect("epilogue_functor", epilogue_functor, EpilogueFunctor)
        self.epilogue_functor: Epilogue = epilogue_functor
        check_family(self.epilogue_functor, Family.REDUCTION)
        self.element_compute = self.epilogue_functor.compute.tag
        self._check(element_compute)

    def supports(
        self,
        problem_size: ReductionProblemSize | _core.MatrixCoord | Sequence[int],
        operands: Mapping[str, Any] | None = None,
    ) -> Support:
        """Return whether the kernel can compute `problem_size`: something true, or something false with a `reason`.

        Nothing has to be compiled for that, and no memory is needed.

        Parameters
        ----------
        problem_size : ReductionProblemSize or sequence of 2 int
            The problem; two integers are M and N of one partial sum.
        operands : mapping, optional
            Shapes, types and strides that are to be checked as well: a TensorSpec or a tensor under ``"source"`` and
            ``"destination"``. Tensors need no memory; what is left out is taken as packed.

        Raises
        ------
        ArgumentTypeError
            `problem_size` or `operands` are something else.
        """
        given = {} if operands is None else named_operands(operands, ("source", "destination"))
        if not isinstance(problem_size, ReductionProblemSize) and several(problem_size, 2) is None:
            reduction_size(problem_size)  # raises: this is no problem

        def check() -> None:
            size = reduction_size(problem_size)
            check_size(self, size)
            for name in ("destination", "source"):
                view = view_of(name, given[name]) if name in given else nowhere()
                self._check_operand(name, view, size)

        return supported(self, check, given)

    def output(self, problem_size: ReductionProblemSize | _core.MatrixCoord | Sequence[int]) -> TensorSpec:
        """Return the shape, type and strides of D for `problem_size`, packed, without memory for it.

        Raises
        ------
        ArgumentError
            `supports` refuses the problem; the message is its reason.
        ArgumentTypeError
            `problem_size` is something else.
        """
        self.supports(problem_size).require()
        size = reduction_size(problem_size)
        strides = (size.columns, 1) if self.C.order.is_row_major else (1, size.rows)
        return TensorSpec((size.rows, size.columns), self.C.type.dtype_name, strides)

    def _check_operand(self, name: str, view: TensorView, size: ReductionProblemSize) -> None:
        rows, columns = size.rows, size.columns
        make: Callable[..., Matrix] = matrix_of
        if not rows or not columns:
            make = empty_matrix_of
        elif name == "source" and is_vector(self.C, view, rows, columns):
            make = vector_of
        make(name, self.C, view, rows, columns)

    @property
    def is_sm90(self) -> bool:
        """False: this is plain CUDA."""
        return False

    @property
    def is_bounded(self) -> bool:
        """Whether the compiler is told how many threads will run."""
        rows, columns = self.shape
        return rows * columns // self.count > MAX_UNBOUNDED_THREADS

    def configuration_name(self) -> str:
        """Return the readable part of the kernel's name."""
        workspace, accumulator = element(self.element_workspace), element(self.element_accumulator)
        rows, columns = self.shape
        return (
            f"cutlass_reduce_split_k_{workspace.short}_{accumulator.short}_{self.epilogue_functor.compute.short}_"
            f"{self.C.type.short}_{rows}x{columns}"
        )

    def body(self) -> str:
        """Return the generated C++ without the line that names the kernel."""
        rows, columns = self.shape
        functor, sums = self.epilogue_functor, element(self.element_accumulator)
        if functor.is_tree:
            return (
                f"{functor.definitions(Family.REDUCTION)}"
                "using Operation = pycutlass::ReduceFunction<\n"
                f"    cutlass::MatrixShape<{rows}, {columns}>, {functor.cpp(Family.REDUCTION)}, {sums.cpp},\n"
                f"    {self.C.type.cpp}, {self.count}, {self.partitions_per_stage}>;\n"
            )
        return (
            '#include "pycutlass/reduction.h"\n\n'
            "using Operation = pycutlass::ReduceSplitK<\n"
            f"    cutlass::MatrixShape<{rows}, {columns}>,\n"
            f"    {self.epilogue_functor.cpp(Family.REDUCTION)},\n"
            f"    {element(self.element_accumulator).cpp}, {element(self.element_workspace).cpp}, "
            f"{self.partitions_per_stage}>;\n"
        )

    def _check(self, element_compute: Any) -> None:
        functor, accumulator = self.epilogue_functor, element(self.element_accumulator)
        if accumulator.short not in _SUMS:
            raise DescriptionError(
                f"element_accumulator must be what a GEMM or convolution accumulates in, {', '.join(_SUMS)}; got "
                f"{accumulator}"
            )
        if self.element_workspace is not self.element_accumulator:
            raise DescriptionError(
                f"partial sums are kept in the accumulator's type, {accumulator}; got element_workspace="
                f"{element(self.element_workspace)}"
            )
        if element_compute is not None and element(element_compute) is not functor.compute:
            raise DescriptionError(
                f"element_compute={element(element_compute)} disagrees with the epilogue functor, which computes in "
                f"{functor.compute}"
            )
        if functor.output is not self.C.type or functor.accumulator is not accumulator:
            length = min(self.count, 128 // self.C.type.bits)
            count = "" if length == self.count else f"give count={length}, and "
            raise DescriptionError(
                f"the epilogue functor turns {functor.accumulator} into {functor.output}, the reduction {accumulator} "
                f"into {self.C.type}: {count}give the functor element_output={self.C.type}, epilogue_vector_length="
                f"{length} and element_accumulator={accumulator}, to make them the same"
            )
        if functor.epilogue_vector_length != self.count:
            raise DescriptionError(
                f"count={self.count} must equal the functor's epilogue_vector_length={functor.epilogue_vector_length}: "
                f"{self._as_many_at_a_time()}"
            )
        if self.C.alignment % self.count:
            raise DescriptionError(
                f"count={self.count} elements are moved at a time, operand C is described with alignment "
                f"{self.C.alignment}: {self._fewer_at_a_time()}describe C with alignment {self.count}"
            )
        if self.C.order.interleave > 1:
            raise DescriptionError(
                f"no kernel with interleaved operands makes partial sums, so a reduction has none to add up: C must be "
                f"RowMajor, ColumnMajor or TensorNHWC, as in the operation that makes them; got {self.C.order}"
            )
        self._check_epilogue()
        rows, columns = self.shape
        if columns % (32 * self.count) or rows * columns // self.count > 1024:
            raise DescriptionError(
                f"shape must have columns that are a multiple of 32 * count = {32 * self.count}, and at most 1024 "
                f"threads of {self.count} elements; got {rows} x {columns}: use 4 x {32 * self.count}"
            )
        self._check_reductions()
        most = _MAX_REGISTERS * 32 // (self.count * accumulator.bits)
        if self.partitions_per_stage > most:
            raise DescriptionError(
                f"a thread loads count={self.count} sums of {accumulator} from each of partitions_per_stage="
                f"{self.partitions_per_stage:,} partial sums into at most {_MAX_REGISTERS} registers: use "
                f"partitions_per_stage of at most {most}"
            )

    def _check_reductions(self) -> None:
        """Check that the threads of a tile can bring together what an epilogue function reduces."""
        functor, (rows, columns) = self.epilogue_functor, self.shape
        reduced = ", ".join(port.name for port in functor.outputs if port.form != "matrix")
        if not reduced:
            return
        if columns != 32 * self.count:
            raise DescriptionError(
                f"the epilogue {functor!r} reduces D to {reduced}, for which a warp has a row of the tile: use a shape "
                f"of {rows} x {32 * self.count}, which are 32 * count columns; got {rows} x {columns}"
            )
        assert isinstance(functor, FunctionEpilogue)  # others have no reductions
        if (needed := functor.reduced_bytes(columns, rows)) > _SHARED_MEMORY:
            least = functor.reduced_bytes(columns, 1)
            fewer = f"use a shape of 1 x {columns}" if least <= _SHARED_MEMORY else "leave some of them out"
            raise DescriptionError(
                f"the epilogue {functor!r} reduces D to {reduced}, for which {rows} rows of a tile need {needed:,} "
                f"bytes of shared memory, and there are {_SHARED_MEMORY:,}: {fewer}"
            )

    def _fewer_at_a_time(self) -> str:
        """Return the count that fits the alignment of C, if there is such a reduction."""
        count = self.C.alignment
        functor = self._functor_of(count)
        takes = functor is not None and self._takes(functor, count)
        return f"use count={count} and give the functor epilogue_vector_length={count}, or " if takes else ""

    def _as_many_at_a_time(self) -> str:
        """Return the count that the functor has, if there is such a reduction, and what else can be changed."""
        length = self.epilogue_functor.epilogue_vector_length
        count = f"give count={length}"
        if self._functor_of(self.count) is None:
            return count
        functor = f"give the functor epilogue_vector_length={self.count}"
        return f"{count}, or {functor}" if self._takes(self.epilogue_functor, length) else functor

    def _functor_of(self, count: int) -> Epilogue | None:
        """Return the functor that moves so many elements at a time; None where there is none."""
        try:
            functor: Epilogue = changed(self.epilogue_functor, epilogue_vector_length=count)
        except (DescriptionError, TypeError):  # TypeError: an epilogue of the user's, which is no dataclass
            return None
        return functor

    def _takes(self, functor: Epilogue, count: int) -> bool:
        """Return whether there is this reduction with another functor and count."""
        sums = self.element_accumulator, self.element_workspace, None
        try:
            ReductionOperation(self.shape, self.C, *sums, functor, count, self.partitions_per_stage)
        except DescriptionError:
            return False
        return True

    def _check_epilogue(self) -> None:
        """Check that the functor can turn sums into C: as that of a GEMM, to which C is a matrix."""
        if self.epilogue_functor.is_tree and not self.C.order.is_row_major:
            raise DescriptionError(
                f"a reduction whose epilogue is a tree of visitors, as epilogue functions are, is for a C of RowMajor "
                f"or TensorNHWC; got {self.C.order}: describe C with one of these, here and in what makes the partial "
                f"sums"
            )
        matrix = TensorDescription(self.C.element, _core.RowMajor, self.count)
        AMPERE.check_epilogue(element(self.element_accumulator), matrix, self.epilogue_functor)


def check_size(operation: ReductionOperation, size: ReductionProblemSize) -> None:
    """Raise ArgumentError where a reduction cannot compute `size` whatever the tensors are."""
    reduced = ", ".join(port.name for port in operation.epilogue_functor.outputs if port.form != "matrix")
    if reduced and not (size.rows and size.columns):
        raise ArgumentError(
            f"the epilogue {operation.epilogue_functor!r} reduces D to {reduced}, and D of {size.rows} x "
            f"{size.columns} has no elements: leave such problems out"
        )
    lines, line = (size.rows, size.columns) if operation.C.order.is_row_major else (size.columns, size.rows)
    rows, columns = operation.shape
    grid = (-(-lines // rows), -(-line // columns), 1)
    if grid[1] > GRID_LIMIT:
        raise ArgumentError(
            f"a reduction of {size.rows} x {size.columns} needs a grid of {grid} threadblocks, CUDA has at most "
            f"{GRID_LIMIT} along y: use a shape with more columns"
        )


def partial_sums(operation: ReductionOperation) -> TensorDescription:
    """Return what a reduction takes its workspace for: sums in the layout of C."""
    sums = element(operation.element_workspace)
    return TensorDescription(sums.tag, operation.C.layout, min(operation.count, 128 // sums.bits))


def unscaled(tile: TileDescription, C: TensorDescription) -> tuple[TensorDescription, LinearCombination]:
    """Return the C and the functor of a kernel that writes its sums as they are, in the accumulator's type."""
    sums = tile.math_instruction.accumulator
    most = 128 // sums.bits
    by_tma = tile.is_sm90 and C.alignment_bytes == 16  # which takes no less of the sums
    C = TensorDescription(sums.tag, C.layout, most if by_tma else min(C.alignment, most))
    return C, LinearCombination(sums.tag, C.alignment, sums.tag, sums.tag)


def _shape(shape: Any) -> tuple[int, int]:
    extents = several(shape, 2)
    if extents is None:
        raise DescriptionError(f"shape must be cutlass.MatrixCoord(rows, columns), got {shown(shape)}")
    rows, columns = extents
    if rows < 1 or columns < 1:
        raise DescriptionError(f"shape must have rows and columns of at least 1, got {rows} x {columns}")
    return rows, columns


def _positive(name: str, value: Any) -> int:
    number = as_int(value)
    if number is None:
        raise DescriptionError(f"{name} must be an integer of at least 1, got {shown(value)}")
    if number < 1:
        raise DescriptionError(f"{name} must be at least 1, got {number}")
    return number
