"""Arguments of a GEMM, in all its modes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property, partial
from typing import Any

import numpy as np

from pycutlass import _core
from pycutlass.arguments.base import SLOTS, Arguments
from pycutlass.arguments.gemm_options import check_flag, check_raster_order, launched_kernel
from pycutlass.arguments.given import check_operation, check_source, kept, refuse_unknown
from pycutlass.calls import counted, public
from pycutlass.enums import RasterOrder
from pycutlass.epilogue import EpilogueScalars, VisitorArguments
from pycutlass.errors import ArgumentError, ArgumentTypeError
from pycutlass.integers import shape_of
from pycutlass.kernel import PreparedGemm, prepare
from pycutlass.launch import DeviceLaunch
from pycutlass.launch.gemm import GemmProblem
from pycutlass.launch.split_k import new_planes
from pycutlass.log import say_once
from pycutlass.operands import Matrix, Operand, check_bias, check_listed, empty_matrix, is_vector, matrix, vector
from pycutlass.operands.epilogue import check_sums, for_batches, given_ports, listed_port, port_operand
from pycutlass.operands.overlaps import check_target
from pycutlass.operands.pointers import PointerArray, PointerTable, check_no_table, pointer_operand
from pycutlass.operands.reordered import UNCHANGED, Reordering
from pycutlass.operation import GemmOperationUniversal
from pycutlass.operation.gemm_support import check_size, launched_k
from pycutlass.operation.problems import GemmProblemSize, gemm_size
from pycutlass.tensor import TensorView, wrap

__all__ = ["GemmArguments"]

_Mode = _core.GemmMode
_GEMM = _Mode.Gemm
_LETTERS = ("A", "B", "C", "D")
_set_operation, _set_run, _set_exchange = SLOTS


@partial(public, but=("update",))
class GemmArguments(Arguments):
    """The arguments of one GEMM launch.

    Everything is checked here, before any launch, and packed into the kernel's parameters once; ``operation.run`` may
    then be called any number of times. The tensors are kept alive as long as the arguments, and until the last launch
    with them has finished.

    Parameters
    ----------
    operation : GemmOperationUniversal
        Compiled with ``pycutlass.compiler.add_module`` where there is a GPU.
    problem_size : GemmProblemSize, cutlass.gemm.GemmCoord or sequence of 3 int
        M, N, K. A GemmProblemSize brings mode, batch and slices of split-K along.
    A, B, C, D : tensor
        Shapes (M, K), (K, N), (M, N), (M, N), or flat with as many elements, packed in the declared layout. Tensors of
        torch, cupy and numpy, objects with ``__dlpack__``, and device pointers may be mixed. numpy arrays are copied to
        the GPU here, and D comes back with `sync`. `C` may be None where beta is 0, may be D itself, and may be a bias:
        a vector of N elements (row-major C) or M elements (column-major C).
        ``Mode.Batched``: shapes (batch, M, K) and so on, with any step between the matrices; a two-dimensional A, B or
        C is shared by all. ``Mode.Array``: a sequence of `batch` tensors each, or an int64 device tensor of addresses;
        the tensors of C are all matrices or all biases.
    gemm_mode : cutlass.gemm.Mode
        ``Gemm`` (with serial split-K where `split_k_slices` > 1), ``GemmSplitKParallel``, ``Batched`` or ``Array``.
    output_op : EpilogueScalars, optional
        ``operation.epilogue_type(alpha, beta)``; by default alpha=1 and beta=0; passing C then raises.
        ``GemmSplitKParallel`` leaves C, D and the scalars to the reduction.
    split_k_slices : int
        Slices of K, for ``Gemm`` and ``GemmSplitKParallel``.
    batch : int
        Number of problems, for ``Batched`` and ``Array``.
    bias : bool
        Take `C` as a bias. A tensor with just the elements of one is recognised without it.
    raster_order : RasterOrder
        Hopper-native kernels: the order in which output tiles are visited.
    launch_with_pdl : bool
        Hopper-native kernels: whether the kernel may start while the one ahead of it on the stream ends (programmatic
        dependent launch). It waits for that one before it touches memory, so results are the same; where kernels
        follow each other each takes one or two microseconds less. Scalars in device memory rule it out.
    sm_count : int, optional
        Hopper-native kernels: on how many multiprocessors they may run at most; others have the rest.
    launch_priority : int, optional
        Priority of the kernel among work that waits for multiprocessors, as the streams of CUDA have it: of two, the
        lower number goes first, and 0 is the usual one. Left out, that of the stream counts.
    reordered : bool, optional
        Interleaved kernels: whether B is what `reorder_column` returned. Left out, its memory tells, and
        copies are refused. A B that is not is reordered here: host memory when it is read, a tensor on a GPU into a
        copy, which `update` renews.
    epilogue : mapping, optional
        Tensors that the operation's epilogue has beside C and D, by their names. Epilogue functors have none.
    split_k_splices : int, optional
        A keyword of the original's scripts, without effect there and here.

    Raises
    ------
    ArgumentError, ArgumentTypeError, AlignmentError
        Something does not fit; the message names the operand, the value, what is needed and the remedy.
    NotCompiledError
        There is a GPU and the operation has not been compiled for it.
    PoolError
        No memory for the buffers of numpy operands or for the workspace.

    Examples
    --------
    >>> import numpy as np, pycutlass
    >>> from pycutlass import cutlass
    >>> instruction = pycutlass.MathInstruction([1, 1, 1], cutlass.float32, cutlass.float32, cutlass.float32)
    >>> tile = pycutlass.TileDescription([128, 128, 8], 4, [4, 2, 1], instruction)
    >>> row = pycutlass.TensorDescription(cutlass.float32, cutlass.RowMajor)
    >>> functor = pycutlass.LinearCombination(cutlass.float32, 1)
    >>> operation = pycutlass.GemmOperationUniversal(80, tile, row, row, row, functor)
    >>> A, B, D = np.ones((4, 3), np.float32), np.ones((3, 5), np.float32), np.empty((4, 5), np.float32)
    >>> pycutlass.compiler.add_module([operation])  # doctest: +SKIP
    >>> arguments = pycutlass.GemmArguments(operation, (4, 5, 3), A, B, None, D)
    >>> operation.run(arguments)
    >>> arguments.sync()
    >>> float(D[0, 0])
    3.0
    """

    operation: GemmOperationUniversal
    _TAKES_TREES = True
    _SHOWN, _LAST_NEEDED = ("problem_size", "gemm_mode", "batch_count", "split_k_slices"), "D"
    _LEGACY = ("split_k_splices",)

    def __init__(
        self,
        operation: GemmOperationUniversal,
        problem_size: GemmProblemSize | _core.GemmCoord | Sequence[int],
        A: Any,
        B: Any,
        C: Any = None,  # which no launch reads where beta is 0
        D: Any = None,  # which partial sums of parallel split-K leave to their reduction
        gemm_mode: _core.GemmMode = _GEMM,
        *,
        output_op: EpilogueScalars | None = None,
        split_k_slices: int = 1,
        batch: int = 1,
        bias: bool | None = None,
        raster_order: RasterOrder = RasterOrder.Heuristic,
        launch_with_pdl: bool = True,
        sm_count: int | None = None,
        launch_priority: int | None = None,
        reordered: bool | None = None,
        epilogue: Mapping[str, Any] | None = None,
        split_k_splices: int | None = None,
        **unknown: Any,
    ) -> None:
        shares = sm_count is not None or launch_priority is not None
        if not (unknown or shares) and epilogue is None and reordered is None and split_k_splices is None:
            tensors, how = (A, B, C, D), (bias, raster_order, launch_with_pdl)
            if self._start_ordinary(operation, problem_size, tensors, output_op, gemm_mode, split_k_slices, batch, how):
                return
        refuse_unknown("GemmArguments", unknown, _KEYWORDS)
        if split_k_splices is not None:
            say_once(f"GemmArguments: split_k_splices={split_k_splices} is ignored; the keyword is split_k_slices")
        self.operation = operation = check_operation(operation, GemmOperationUniversal)
        size = self._problem_size = gemm_size(problem_size, gemm_mode, batch, split_k_slices)
        check_size(operation, size)
        self.gemm_mode, self.split_k_slices, self.batch_count = size.gemm_mode, size.split_k_slices, size.batch
        self._bias = check_bias(bias)
        self._reordering = Reordering(operation.B, reordered)
        self.raster_order = check_raster_order(raster_order, operation)
        self.launch_with_pdl = check_flag("launch_with_pdl", launch_with_pdl)
        self._share(launch_priority, sm_count, is_persistent=operation.is_sm90)
        kernel = launched_kernel(operation, size.gemm_mode)
        if isinstance(output_op, VisitorArguments):
            C, D, epilogue = self._of_tree(output_op, C, D, epilogue)
        given = {name: self._taken(tensor) for name, tensor in (("A", A), ("B", B), ("C", C), ("D", D))}
        ports = given_ports(operation.epilogue_functor, {} if epilogue is None else epilogue)
        given |= {name: self._taken(tensor) for name, tensor in ports.items()}
        self._start(kernel, given, output_op)
        if isinstance(output_op, VisitorArguments):
            output_op.known_to(self)

    def _of_tree(
        self, output_op: VisitorArguments, C: Any, D: Any, epilogue: Mapping[str, Any] | None
    ) -> tuple[Any, Any, dict[str, Any]]:
        """Return C, D and the tensors of the epilogue of a launch whose `output_op` is that of a tree.

        Scripts of the original give C and D beside it, which are its own tensors, or are not used.
        """
        functor, size = self.operation.epilogue_functor, self._problem_size
        output_op.check_extents(size.m, size.n)
        forms = {port.name: port for port in functor.ports}
        tensors = {
            name: for_batches(tensor, forms[name], size.m, size.n, size.batch, size.gemm_mode == _Mode.Array)
            for name, tensor in output_op.tensors.items()
            if name in forms
        }
        if D is not None and D is not output_op.target:
            say_once(
                f"D of GemmArguments is not written: the epilogue {functor!r} writes what its epilogue_type was given",
                cause="D beside a tree",
            )
        return C if functor.reads_source else None, output_op.target, {**tensors, **(epilogue or {})}

    def _start_ordinary(
        self,
        operation: Any,
        problem_size: Any,
        tensors: tuple[Any, Any, Any, Any],
        output_op: Any,
        gemm_mode: Any,
        split_k_slices: Any,
        batch: Any,
        how: tuple[Any, Any, Any],
    ) -> bool:
        """Make the launch of tensors that C++ sees are right; False, and nothing has changed, of all others."""
        if type(operation) is not GemmOperationUniversal or "_execution" in self.__dict__:
            return False
        if how[1] is not RasterOrder.Heuristic and not operation.is_sm90:
            return False
        if type(problem_size) is GemmProblemSize:
            if gemm_mode is not _GEMM or any(type(count) is not int or count != 1 for count in (batch, split_k_slices)):
                return False
            gemm_mode, batch = problem_size.gemm_mode, problem_size.batch
            split_k_slices, problem_size = problem_size.split_k_slices, problem_size.extents
        if gemm_mode is not _GEMM and gemm_mode is not _Mode.Batched:
            return False
        size = problem_size, gemm_mode, split_k_slices, batch
        known: tuple[PreparedGemm, ...] = operation._prepared
        for each in known:
            if self._start_prepared(each, operation, tensors, output_op, size, how):
                return True
        prepared = prepare(operation, tensors[3], known, PreparedGemm)
        return prepared is not None and self._start_prepared(prepared, operation, tensors, output_op, size, how)

    def _start_prepared(
        self,
        prepared: PreparedGemm,
        operation: GemmOperationUniversal,
        tensors: tuple[Any, Any, Any, Any],
        output_op: Any,
        size: tuple[Any, Any, Any, Any],
        how: tuple[Any, Any, Any],
    ) -> bool:
        made = DeviceLaunch.of(operation, prepared, prepared.make, tensors, output_op, (*size, *how))
        if made is None:
            return False
        execution, scalars = made
        _set_operation(self, operation)
        _set_run(self, execution.run)
        _set_exchange(self, execution.call.bound_update)
        self.__dict__.update(
            gemm_mode=size[1],
            split_k_slices=size[2],
            batch_count=size[3],
            _bias=how[0],
            raster_order=how[1],
            launch_with_pdl=how[2],
            _launched=operation,
            output_op=scalars,
            _given=dict(zip(_LETTERS, tensors, strict=True)),
            _execution=execution,
        )
        return True

    @property
    def sm_count(self) -> int | None:
        """Multiprocessors that a launch may use at most; None for all."""
        return self._options.sm_count

    @cached_property
    def problem_size(self) -> _core.GemmCoord:
        """M, N and K."""
        return _core.GemmCoord(*self._problem_size.extents)

    @cached_property
    def _problem_size(self) -> GemmProblemSize:
        execution = self._execution
        assert isinstance(execution, DeviceLaunch)
        assert isinstance(execution.call, _core.GemmCall)
        return GemmProblemSize(*execution.call.extents, self.gemm_mode, self.batch_count, self.split_k_slices)

    # Checks

    @property
    def _batch_of_scalars(self) -> int:
        fused = self.operation.is_sm90 and not self.operation.epilogue_functor.is_tree
        several = fused and self.gemm_mode in (_Mode.Batched, _Mode.Array)
        return self.batch_count if several else 0

    @property
    def _makes_partial_sums(self) -> bool:
        return bool(self.gemm_mode == _Mode.GemmSplitKParallel)

    def _problem(self, given: dict[str, Any], scalars: EpilogueScalars) -> GemmProblem:
        """Return the problem with every operand checked."""
        self._reordering.begin()
        if self._makes_partial_sums:
            return self._partial_problem(given)
        operation, (m, n, k) = self.operation, self._problem_size.extents
        of_D = operation.epilogue_functor.columns(n)
        shapes = {"A": (operation.A, m, k), "B": (operation.B, k, n), "D": (operation.D, m, of_D)}
        if scalars.needs_source:
            check_source(given["C"], operation.epilogue_functor)
            shapes["C"] = (operation.C, m, n)
        operands: dict[str, Operand] = {}
        for name, (description, rows, columns) in shapes.items():
            operands[name] = self._operand(name, description, given[name], rows, columns)
        if not k:
            operands.update(self._zeros())
        functor = operation.epilogue_functor
        take = listed_port if self.gemm_mode == _Mode.Array else port_operand
        targets = [port.name for port in functor.outputs]
        for port in functor.ports:
            tensor, written = given.get(port.name), port.name in targets
            operands[port.name] = take(port.beside(operation.D), tensor, m, n, self.batch_count, written=written)
        check_target(operands, targets, functor.matrices_read)
        check_sums(operation.epilogue_functor, operands["A"], operands["B"], k)
        return self._make_problem(operation, self._problem_size.count, operands, scalars)

    def _check_use(self, given: Mapping[str, Any], output_op: EpilogueScalars | None) -> None:
        """Refuse tensors of the epilogue where it is left to a reduction, then as all arguments do."""
        names = {port.name for port in self.operation.epilogue_functor.ports}
        ports = [name for name in given if name in names]
        if ports and self._makes_partial_sums:
            raise ArgumentError(
                f"parallel split-K writes partial sums, without the epilogue: give {', '.join(ports)} to the "
                f"ReductionArguments that follow"
            )
        super()._check_use(given, output_op)

    def _taken(self, operand: Any) -> Any:
        return kept(operand) if self.gemm_mode == _Mode.Array else operand

    def _operand(
        self,
        name: str,
        description: Any,
        tensor: Any,
        rows: int,
        columns: int,
        reorder: Reordering | None = None,
    ) -> Matrix | PointerArray | PointerTable:
        if tensor is None:
            raise ArgumentError(f"operand {name} is missing: give a tensor of {rows} x {columns}")
        batch = self.batch_count
        if reorder is None:
            reorder = self._reordering if name == "B" else UNCHANGED
        if not rows or not columns:
            if self.gemm_mode != _Mode.Array or not isinstance(tensor, tuple):
                if self.gemm_mode == _Mode.Array:
                    check_no_table(name, wrap(name, tensor), rows, columns, batch)
                return empty_matrix(name, description, tensor, rows, columns, batch)
            check_listed(name, tensor, batch)
            each = [empty_matrix(f"{name}[{i}]", description, one, rows, columns) for i, one in enumerate(tensor)]
            return PointerArray(name, description, tuple(each))
        if self.gemm_mode != _Mode.Array and type(tensor) in (list, tuple) and tensor and shape_of(tensor[0]):
            raise ArgumentTypeError(
                f"operand {name} is a list of {counted(len(tensor), 'tensor')}, and {self.gemm_mode} takes one tensor: "
                f"for a list of each operand pass gemm_mode=cutlass.gemm.Mode.Array, batch={len(tensor)}"
            )
        if self.gemm_mode == _Mode.Array:
            return pointer_operand(name, description, tensor, rows, columns, batch, bias=self._bias, reorder=reorder)
        if name == "C" and self._takes_bias(tensor, rows, columns):
            return vector(name, description, tensor, rows, columns, batch)
        return reorder.operand(lambda given: matrix(name, description, given, rows, columns, batch), tensor)

    def _zeros(self) -> dict[str, Operand]:
        """Return an A and a B of zeros, of a few products each: what a sum over no products is."""
        operation, (m, n, k) = self.operation, self._size
        zeros: dict[str, Operand] = {}
        for name, description, rows, columns in (("A", operation.A, m, k), ("B", operation.B, k, n)):
            memory: Any = np.zeros(rows * columns, description.type.dtype)
            if self.gemm_mode == _Mode.Array:
                memory = (memory,) * self.batch_count
            zeros[name] = self._operand(name, description, memory, rows, columns, UNCHANGED)
        return zeros

    @property
    def bias(self) -> bool:
        """Whether C is taken as a bias: as was said, or as its number of elements tells; not where it is not read."""
        m, n, _ = self._size
        C = self._given["C"]
        if self._bias is not None or C is None or not self.output_op.needs_source:
            return self._bias is True
        if self.gemm_mode == _Mode.Array and isinstance(C, tuple):
            return is_vector(self.operation.C, C[0], m, n)
        return self._takes_bias(C, m, n)

    def _takes_bias(self, tensor: Any, rows: int, columns: int) -> bool:
        if self._bias is not None:
            return self._bias
        return is_vector(self.operation.C, tensor, rows, columns, self.batch_count)

    def _partial_problem(self, given: dict[str, Any]) -> GemmProblem:
        """Return the problem whose D are the partial sums of all slices, in the accumulator's type."""
        operation, (m, n, k) = self.operation, self._problem_size.extents
        partial = operation.partial
        operands: dict[str, Operand] = {
            "A": self._operand("A", operation.A, given["A"], m, k),
            "B": self._operand("B", operation.B, given["B"], k, n),
        }
        if not k:
            operands.update(self._zeros())
        if not m or not n:
            nowhere = TensorView(0, None, None, None, None, "workspace", None)
            operands["D"] = Matrix("D", partial.C, nowhere, m, n, 0)
            return self._make_problem(partial, self.split_k_slices, operands, partial.epilogue_type(1.0, 0.0))
        if self._partials is None:
            self._partials = new_planes(partial.C, m, n, self.split_k_slices, operands, self)
        operands["D"] = self._partials.operand()
        scalars = partial.epilogue_type(1.0, 0.0)
        return self._make_problem(partial, self.split_k_slices, operands, scalars)

    def _make_problem(
        self, operation: GemmOperationUniversal, count: int, operands: dict[str, Operand], scalars: EpilogueScalars
    ) -> GemmProblem:
        how = (self.raster_order, self.launch_with_pdl)
        return GemmProblem(operation, self.gemm_mode, self._size, count, operands, scalars, *how)

    @property
    def _size(self) -> tuple[int, int, int]:
        """M, N and K of the launch: where the user's K is 0, the zeros in its place have another."""
        m, n, _ = self._problem_size.extents
        return m, n, launched_k(self.operation, self._problem_size)


_KEYWORDS = (
    *("operation", "problem_size", "A", "B", "C", "D", "gemm_mode", "output_op", "split_k_slices", "batch", "bias"),
    *("raster_order", "launch_with_pdl", "sm_count", "launch_priority", "reordered", "epilogue"),
)
