"""Arguments of a launch: tensors and scalars, checked against the operation and packed for its kernel."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pycutlass import _core, device
from pycutlass.epilogue import EpilogueScalars
from pycutlass.errors import ArgumentError, ArgumentTypeError
from pycutlass.launch import DeviceLaunch, GemmProblem, HostLaunch, ordinal_of
from pycutlass.library import RasterOrder
from pycutlass.operands import Matrix, check_overlap, matrix
from pycutlass.operation import GemmOperationUniversal

__all__ = ["GemmArguments", "LaunchConfig"]


@dataclass(frozen=True)
class LaunchConfig:
    """Grid and block of a launch in threadblocks and threads, and its dynamic shared memory in bytes."""

    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    shared_memory_capacity: int


class GemmArguments:
    """The arguments of one GEMM launch.

    Everything is checked here, before any launch, and packed into the kernel's parameters once; ``operation.run`` may
    then be called any number of times. The tensors are kept alive as long as the arguments, and until the last launch
    with them has finished.

    Parameters
    ----------
    operation : GemmOperationUniversal
        Compiled with ``pycutlass.compiler.add_module`` where there is a GPU.
    problem_size : cutlass.gemm.GemmCoord or sequence of 3 int
        M, N, K.
    A, B, C, D : tensor
        Shapes (M, K), (K, N), (M, N), (M, N), or flat with as many elements, packed in the declared layout. Tensors of
        torch, cupy and numpy, objects with ``__dlpack__``, and device pointers may be mixed. numpy arrays are copied to
        the GPU here, and D comes back with `sync`. `C` may be None where beta is 0, and may be D itself.
    output_op : EpilogueScalars, optional
        ``operation.epilogue_type(alpha, beta)``; alpha 1 and beta 0 by default.
    gemm_mode : cutlass.gemm.Mode
        ``Mode.Gemm``.
    raster_order : RasterOrder
        Hopper-native kernels: the order in which output tiles are visited.

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
    >>> arguments = pycutlass.GemmArguments(operation, (4, 5, 3), A, B, None, D)  # doctest: +SKIP
    >>> operation.run(arguments)  # doctest: +SKIP
    >>> arguments.sync()  # doctest: +SKIP
    """

    def __init__(
        self,
        operation: GemmOperationUniversal | None = None,
        problem_size: Any = None,
        A: Any = None,
        B: Any = None,
        C: Any = None,
        D: Any = None,
        gemm_mode: Any = _core.GemmMode.Gemm,
        *,
        output_op: EpilogueScalars | None = None,
        split_k_slices: int = 1,
        batch: int = 1,
        raster_order: RasterOrder = RasterOrder.Heuristic,
        **unknown: Any,
    ) -> None:
        if unknown:
            raise ArgumentTypeError(
                f"GemmArguments has no keyword {', '.join(sorted(unknown))}; it has operation, problem_size, A, B, C, "
                f"D, gemm_mode, output_op, split_k_slices, batch and raster_order"
            )
        if not isinstance(operation, GemmOperationUniversal):
            raise ArgumentTypeError(f"operation must be a GemmOperationUniversal, got {type(operation).__name__}")
        self.operation = operation
        self.problem_size = _problem_size(problem_size)
        self.gemm_mode = _check_mode(gemm_mode, split_k_slices, batch)
        self.output_op = _check_scalars(operation, output_op)
        self.raster_order = RasterOrder(raster_order)
        #: What the user gave and the launch reads or writes, by operand.
        self._given = {"A": A, "B": B, "C": C, "D": D}
        self._execution = self._prepare(self._problem(self._given, self.output_op))
        # Looked up once: these are the hot path of operation.run and of update.
        self._run = self._execution.run
        self._try_exchange = self._execution.try_exchange

    # Public

    def update(
        self, *, A: Any = None, B: Any = None, C: Any = None, D: Any = None, output_op: EpilogueScalars | None = None
    ) -> None:
        """Exchange tensors of the same shapes, or the scalars, without rebuilding.

        Nothing changes where an error is raised. numpy operands are copied to the GPU again.

        Parameters
        ----------
        A, B, C, D : tensor, optional
            What takes the place of an operand; None leaves it.
        output_op : EpilogueScalars, optional
            Other scalars. Beta may become non-zero only where there is a C.

        Raises
        ------
        ArgumentError, ArgumentTypeError, AlignmentError
            As for the constructor.
        """
        given = {name: t for name, t in (("A", A), ("B", B), ("C", C), ("D", D)) if t is not None}
        if output_op is None and self._try_exchange(A, B, C, D):
            self._given.update(given)
            return
        scalars = self.output_op if output_op is None else _check_scalars(self.operation, output_op)
        merged = {**self._given, **given}
        problem = self._problem(merged, scalars)
        self._check_same_device(problem)
        self._execution.give_up((*self._given.values(), self.output_op))
        self._execution.update(problem)
        self._given, self.output_op = merged, scalars

    def sync(self) -> None:
        """Wait until the last launch has finished, on its own stream only, and bring a numpy D back."""
        self._execution.sync()

    @property
    def launch_config(self) -> LaunchConfig:
        """Grid, block and shared memory of the launch; only where there is a GPU."""
        if not isinstance(self._execution, DeviceLaunch):
            device.require()
            raise ArgumentError("these arguments were made without a GPU: there is no launch configuration")
        call = self._execution.call
        return LaunchConfig(call.grid, call.block, call.shared_bytes)

    def __getattr__(self, name: str) -> int:
        """Return ptr_A ... ptr_D and lda ... ldd, as the original had them."""
        operand = name[4:] if name.startswith("ptr_") else name[2:].upper() if name.startswith("ld") else ""
        if operand not in ("A", "B", "C", "D") or "_execution" not in self.__dict__:
            raise AttributeError(f"GemmArguments has no attribute {name!r}")
        pointer, ld = self._execution.operand(operand)
        return pointer if name.startswith("ptr_") else ld

    def __del__(self) -> None:
        execution = self.__dict__.get("_execution")
        if execution is not None:
            execution.release((*self._given.values(), self.output_op))

    # Checks

    def _problem(self, given: dict[str, Any], scalars: EpilogueScalars) -> GemmProblem:
        """Return the problem with every operand checked."""
        m, n, k = self.problem_size.m(), self.problem_size.n(), self.problem_size.k()
        operation = self.operation
        shapes = {"A": (operation.A, m, k), "B": (operation.B, k, n), "D": (operation.C, m, n)}
        if scalars.needs_source:
            if given["C"] is None:
                raise ArgumentError(
                    "C is None, and beta is not 0: give C, or output_op=operation.epilogue_type(alpha, 0)"
                )
            shapes["C"] = (operation.C, m, n)
        for name in shapes:
            if given[name] is None:
                raise ArgumentError(
                    f"operand {name} is missing: give a tensor of {shapes[name][1]} x {shapes[name][2]}"
                )
        operands = {
            name: matrix(name, *described[:1], given[name], *described[1:]) for name, described in shapes.items()
        }
        _check_overlaps(operands)
        return GemmProblem(self.gemm_mode.value, (m, n, k), 1, operands, scalars, self.raster_order)

    def _prepare(self, problem: GemmProblem) -> DeviceLaunch | HostLaunch:
        if device.available():
            return DeviceLaunch(self.operation, problem, ordinal_of(problem.operands))
        elsewhere = [name for name, operand in problem.operands.items() if operand.view.device is not None]
        if elsewhere:
            device.require()
        return HostLaunch(self.operation, problem)

    def _check_same_device(self, problem: GemmProblem) -> None:
        execution = self._execution
        if isinstance(execution, DeviceLaunch):
            ordinal = ordinal_of(problem.operands)
            if ordinal != execution.ordinal:
                raise ArgumentError(
                    f"these arguments were made for GPU {execution.ordinal}, the tensors are on GPU {ordinal}: make "
                    f"new arguments"
                )


def _problem_size(size: Any) -> _core.GemmCoord:
    if not isinstance(size, _core.GemmCoord):
        try:
            m, n, k = size
            size = _core.GemmCoord(int(m), int(n), int(k))
        except (TypeError, ValueError) as error:
            raise ArgumentTypeError(
                f"problem_size must be cutlass.gemm.GemmCoord(M, N, K) or three integers, got {size!r}"
            ) from error
    if min(size.m(), size.n(), size.k()) < 1:
        raise ArgumentError(f"problem_size must have M, N and K of at least 1, got {size!r}")
    return size


def _check_mode(mode: Any, split_k_slices: int, batch: int) -> Any:
    if mode != _core.GemmMode.Gemm:
        raise ArgumentError(
            f"gemm_mode must be cutlass.gemm.Mode.Gemm, got {mode!r}: other modes are not available yet"
        )
    for name, value in (("split_k_slices", split_k_slices), ("batch", batch)):
        if value != 1:
            raise ArgumentError(
                f"{name} must be 1 in Mode.Gemm, got {value!r}: split-K and batches are not available yet"
            )
    return mode


def _check_scalars(operation: GemmOperationUniversal, scalars: EpilogueScalars | None) -> EpilogueScalars:
    if scalars is None:
        return operation.epilogue_type(1.0, 0.0)
    if not isinstance(scalars, EpilogueScalars):
        raise ArgumentTypeError(
            f"output_op must be what operation.epilogue_type(alpha, beta) returns, got {type(scalars).__name__}"
        )
    return scalars


def _check_overlaps(operands: dict[str, Matrix]) -> None:
    target = operands["D"]
    for name in ("A", "B"):
        check_overlap(target, operands[name])
    source = operands.get("C")
    if source is not None and (source.view.pointer, source.ld) != (target.view.pointer, target.ld):
        check_overlap(target, source)
