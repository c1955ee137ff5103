"""What measures on the GPU, in a process of its own: operands, the reference, and launches."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pycutlass import _core, device, reference
from pycutlass.arguments import GemmArguments, ReductionArguments
from pycutlass.imported import imported
from pycutlass.memory import DeviceBuffer
from pycutlass.operation import GemmProblemSize
from pycutlass.plan import Candidate
from pycutlass.timing import DeviceTimer
from pycutlass.tuning.measuring import Artifacts, WrongResultError, serve
from pycutlass.tuning.options import TuningOptions
from pycutlass.tuning.problem import Problem
from pycutlass.types import Element

__all__ = ["GpuBench", "launcher", "serve_bench"]

Array = NDArray[Any]

_GUARD_BYTES = 4096  # before and behind D
_POISON = 0xFF  # every byte: NaN in each float type, -1 in integers
_ROWS = 256  # of D that are checked, where the whole would take the host too long
_MOST_PRODUCTS = 2e10  # of the reference on the host
_SAMPLES = 3  # launches, or batches of them, at each visit


class GpuBench:
    """Operands of a problem on the current GPU, and what launches candidates with them.

    Parameters
    ----------
    problem : Problem
        What is computed.
    options : TuningOptions
        Distribution of the operands and state of the L2 cache.
    """

    def __init__(self, problem: Problem, options: TuningOptions) -> None:
        device.require()
        self._problem = problem
        self._stream = _core.Stream(device.current())
        random = np.random.default_rng(options.seed)
        kind, batch = problem.kind, () if problem.batch is None else (problem.batch,)
        self._a = _drawn(kind.A.type, (*batch, problem.m, problem.k), options.distribution, random)
        self._b = _drawn(kind.B.type, (*batch, problem.k, problem.n), options.distribution, random)
        self._A, self._B = self._uploaded(self._a, kind.A), self._uploaded(self._b, kind.B)
        self._d_bytes = kind.D.type.bytes_of(problem.m * problem.n * (problem.batch or 1))
        self._buffer = self._allocated(self._d_bytes + 2 * _GUARD_BYTES)
        self._sums: tuple[Array, Array] | None = None  # in f64, of the rows that are checked
        self._launches: dict[int, Callable[[], object]] = {}
        self._timer = DeviceTimer(cold_l2=options.cold_l2, seconds=0, least_rounds=_SAMPLES, warmup=1)

    def expect(self, candidate: Candidate) -> None:
        """Compute what all candidates are compared with: all of a problem round its operands in the same way."""
        if self._sums is None:
            self._sums = self._sums_of(candidate.operation)

    def prepare(self, number: int, candidate: Candidate, artifacts: Artifacts, is_checked: bool) -> None:
        """Make the launch of a candidate, and compare its result with the reference.

        Raises
        ------
        WrongResultError
            It differs by more than rounding explains, leaves elements of D as they were, or writes beside it.
        """
        for operation, by_target in zip(candidate.kernels, artifacts, strict=True):
            operation.artifacts.update(by_target)
        launch = self._launch(candidate)
        if is_checked:
            _core.fill(self._buffer.pointer, _POISON, self._buffer.size, self._stream)
            launch()
            self._stream.synchronize()
            self._check(candidate)
        self._launches[number] = launch

    def measure(self, number: int) -> list[float]:
        """Return microseconds of some launches."""
        return list(self._timer.time(self._launches[number]).times)

    def _launch(self, candidate: Candidate) -> Callable[[], object]:
        """Return a function that launches all kernels of a candidate."""
        size = candidate.size(*self._problem.extents, self._problem.batch)
        return launcher(candidate, size, self._A.pointer, self._B.pointer, self._buffer.pointer + _GUARD_BYTES)

    def _check(self, candidate: Candidate) -> None:
        raw = np.empty(self._buffer.size, np.uint8)
        _core.copy_to_host(raw, self._buffer.pointer, self._stream)
        self._stream.synchronize()
        before, written, behind = np.split(raw, [_GUARD_BYTES, _GUARD_BYTES + self._d_bytes])
        if (before != _POISON).any() or (behind != _POISON).any():
            raise WrongResultError("it wrote beside D")
        problem, operation = self._problem, candidate.operation
        D = _unpacked(written.view(problem.kind.D.type.dtype), problem, problem.kind.D.is_row_major)
        self.expect(candidate)
        rows, exact = self._exact(problem.kind.epilogue)
        found = D[..., rows, :].astype(np.float64)
        slices = 1 if candidate.is_parallel else candidate.split_k_slices
        relative, absolute = reference.tolerance(operation, problem.k, slices=slices)
        # Not a number is never near, and what was not written is none, or -1.
        wrong = ~(np.abs(found - exact) <= absolute + relative * np.abs(exact))
        if wrong.any():
            place = tuple(int(each) for each in np.argwhere(wrong)[0])
            raise WrongResultError(
                f"{int(wrong.sum()):,} of {wrong.size:,} elements that were checked are wrong, the first at {place}: "
                f"{found[place]} instead of {exact[place]}"
            )

    def _exact(self, epilogue: Any) -> tuple[Array, Array]:
        """Return the rows of D that are checked, and what is right there, in f64."""
        assert self._sums is not None
        rows, sums = self._sums
        exact = epilogue.reference(sums, None, _scalars(epilogue), np.dtype(np.float64))
        return rows, epilogue.output.round(exact).astype(np.float64) if epilogue.output.is_integer else exact

    def _sums_of(self, operation: Any) -> tuple[Array, Array]:
        """Return rows of A x B in f64: all of them where torch has a GPU, or where there are few products."""
        math, problem = operation.tile_description.math_instruction, self._problem
        a, b = (reference.multiplied(each, math).astype(np.float64) for each in (self._a, self._b))
        every = np.arange(problem.m)
        if callable(imported("torch", "cuda", "is_available")) and imported("torch").cuda.is_available():
            torch: Any = imported("torch")
            product = torch.from_numpy(a).cuda() @ torch.from_numpy(b).cuda()
            return every, product.cpu().numpy()
        products = problem.operations / 2
        most = max(_ROWS, int(problem.m * _MOST_PRODUCTS / products))
        rows = every if most >= problem.m else np.unique(np.linspace(0, problem.m - 1, most).astype(int))
        return rows, a[..., rows, :] @ b

    def _uploaded(self, values: Array, tensor: Any) -> DeviceBuffer:
        """Return device memory with a matrix, or a batch of them, packed in its layout."""
        packed = np.ascontiguousarray(values if tensor.is_row_major else values.swapaxes(-1, -2))
        buffer = self._allocated(packed.nbytes)
        _core.copy_to_device(buffer.pointer, packed.reshape(-1).view(np.uint8), self._stream)
        self._stream.synchronize()
        return buffer

    def _allocated(self, size: int) -> DeviceBuffer:
        return DeviceBuffer(device.current(), size, self._stream)


def launcher(candidate: Candidate, size: GemmProblemSize, a: int, b: int, d: int) -> Callable[[], object]:
    """Return a function that launches all kernels of a candidate.

    Parameters
    ----------
    candidate : Candidate
        What is launched, compiled.
    size : GemmProblemSize
        The problem, as `candidate.size` returns it.
    a, b, d : int
        Addresses of packed operands.
    """
    operation = candidate.operation
    options: dict[str, Any] = {"raster_order": candidate.raster_order} if operation.is_sm90 else {}
    if candidate.reduction is None:
        arguments = GemmArguments(operation, size, a, b, None, d, **options)
        return lambda: operation.run(arguments)
    reduction = candidate.reduction
    partial = GemmArguments(operation, size, a, b, **options)
    rows_and_columns = size.extents[:2]
    sums = ReductionArguments(
        reduction, rows_and_columns, candidate.split_k_slices, workspace=partial.ptr_D, destination=d
    )

    def both() -> None:
        operation.run(partial)
        reduction.run(sums)

    return both


def serve_bench(connection: Connection) -> None:
    """Measure in a process that `ChildMeasurer` has started."""
    with contextlib.suppress(ImportError):
        import torch  # computes the reference on the GPU  # noqa: F401
    serve(connection, GpuBench)


def _drawn(kind: Element, shape: tuple[int, ...], distribution: str, random: np.random.Generator) -> Array:
    """Return operands of a distribution, rounded to their type."""
    draw: dict[str, Callable[[], Array]] = {
        "normal": lambda: random.standard_normal(shape, np.float32),
        "uniform": lambda: random.uniform(-1, 1, shape).astype(np.float32),
        "integers": lambda: random.integers(-2, 3, shape).astype(np.float32),
        "zeros": functools.partial(np.zeros, shape, np.float32),
    }
    values = draw[distribution]()
    return kind.round(np.abs(values) if kind.short == "u8" else values)


def _unpacked(flat: Array, problem: Problem, is_row_major: bool) -> Array:
    batch = () if problem.batch is None else (problem.batch,)
    if is_row_major:
        return flat.reshape(*batch, problem.m, problem.n)
    return flat.reshape(*batch, problem.n, problem.m).swapaxes(-1, -2)


def _scalars(epilogue: Any) -> tuple[float, ...]:
    """Return the scalars that a launch has by default: alpha = 1, beta = 0, and the activation's own."""
    scalars = epilogue.epilogue_type(1.0, 0.0)
    return tuple(float(scalars[name]) for name in epilogue.scalar_names)
