"""What measures on the GPU, in a process of its own: operands, the reference, and launches."""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

from pycutlass import _core, device
from pycutlass.memory import DeviceBuffer
from pycutlass.timing import DeviceTimer
from pycutlass.tuning.measuring import Artifacts, WrongResultError, serve
from pycutlass.tuning.options import TuningOptions
from pycutlass.tuning.tunable import AnyCandidate, Array, Launch, Part, Tunable
from pycutlass.types import Element, element

__all__ = ["GpuBench", "serve_bench"]

_GUARD_BYTES = 4096  # before, between and behind all D
_APART = 256  # each D begins at a multiple of so many bytes, as memory that is allocated does
_POISON = 0xFF  # every byte: NaN in each float type, -1 in integers
_MOST_PRODUCTS = 2e10  # of the reference on the host
_SAMPLES = 3  # launches, or batches of them, at each visit
_SHIFT = 8191  # elements by which operands of one shape differ: drawing each would take the host too long


class GpuBench:
    """Operands of a problem on the current GPU, and what launches candidates with them.

    Parameters
    ----------
    problem : Tunable
        What is computed.
    options : TuningOptions
        Distribution of the operands and state of the L2 cache.
    """

    def __init__(self, problem: Tunable, options: TuningOptions) -> None:
        device.require()
        self._kind, self._work = problem.kind, problem.work()
        self._share = min(1.0, _MOST_PRODUCTS / (problem.operations / 2))
        self._stream = _core.Stream(device.current())
        random = np.random.default_rng(options.seed)
        shapes = self._shapes = [*self._work.shapes]
        self._a = _Operands(element(self._kind.element_a), [each.a for each in shapes], options.distribution, random)
        self._b = _Operands(element(self._kind.element_b), [each.b for each in shapes], options.distribution, random)
        self._A = [self._uploaded(self._a.values(number), self._kind.A) for number in range(len(shapes))]
        self._B = [self._uploaded(self._b.values(number), self._kind.B) for number in range(len(shapes))]
        self._places, size = _places([self._kind.D.type.bytes_of(math.prod(each.d)) for each in shapes])
        self._buffer = self._allocated(size)
        self._parts: list[Part] = []  # of all D, in f64
        self._launches: dict[int, Launch] = {}
        self._timer = DeviceTimer(cold_l2=options.cold_l2, seconds=0, least_rounds=_SAMPLES, warmup=1)

    def expect(self, candidate: AnyCandidate) -> None:
        """Compute what all candidates are compared with: all of a problem round its operands in the same way."""
        if not self._parts:
            self._parts = [
                self._work.part(candidate, number, self._a.values(number), self._b.values(number), self._share)
                for number in range(len(self._places))
            ]

    def prepare(self, number: int, candidate: AnyCandidate, artifacts: Artifacts, is_checked: bool) -> None:
        """Make the launch of a candidate, and compare its results with the reference.

        Raises
        ------
        WrongResultError
            They differ by more than rounding explains, or it leaves elements of D as they were, or writes beside it.
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

    def _launch(self, candidate: AnyCandidate) -> Launch:
        """Return a function that launches all kernels of a candidate."""
        A, B = ([each.pointer for each in buffers] for buffers in (self._A, self._B))
        return self._work.launcher(candidate, A, B, [self._buffer.pointer + place.start for place in self._places])

    def _check(self, candidate: AnyCandidate) -> None:
        raw = np.empty(self._buffer.size, np.uint8)
        _core.copy_to_host(raw, self._buffer.pointer, self._stream)
        self._stream.synchronize()
        end = 0
        for place in self._places:
            if (raw[end : place.start] != _POISON).any():
                raise WrongResultError("it wrote beside D")
            end = place.stop
        if (raw[end:] != _POISON).any():
            raise WrongResultError("it wrote beside D")
        self.expect(candidate)
        for number in range(len(self._places)):
            self._compare(candidate, number, raw)

    def _compare(self, candidate: AnyCandidate, number: int, raw: Array) -> None:
        """Raise where the D of one product is wrong, in the part of it that is checked."""
        part, epilogue = self._parts[number], self._kind.epilogue
        written = raw[self._places[number]].view(self._kind.D.type.dtype)
        D = _unpacked(written, self._shapes[number].d, self._kind.D)
        found = D[part.places].astype(np.float64)
        exact = epilogue.reference(part.sums, None, _scalars(epilogue), np.dtype(np.float64))
        exact = epilogue.output.round(exact).astype(np.float64) if epilogue.output.is_integer else exact
        relative, absolute = self._work.tolerance(candidate, number)
        # Not a number is never near, and what was not written is none, or -1.
        wrong = ~(np.abs(found - exact) <= absolute + relative * np.abs(exact))
        if wrong.any():
            place = tuple(int(each) for each in np.argwhere(wrong)[0])
            which = "" if len(self._places) == 1 else f" of problem {number}"
            raise WrongResultError(
                f"{int(wrong.sum()):,} of {wrong.size:,} elements{which} that were checked are wrong, the first at "
                f"{place}: {found[place]} instead of {exact[place]}"
            )

    def _uploaded(self, values: Array, tensor: Any) -> DeviceBuffer:
        """Return device memory with an operand, packed in its layout."""
        packed = np.ascontiguousarray(values if tensor.is_row_major else values.swapaxes(-1, -2))
        buffer = self._allocated(packed.nbytes)
        _core.copy_to_device(buffer.pointer, packed.reshape(-1).view(np.uint8), self._stream)
        self._stream.synchronize()
        return buffer

    def _allocated(self, size: int) -> DeviceBuffer:
        return DeviceBuffer(device.current(), size, self._stream)


def serve_bench(connection: Connection) -> None:
    """Measure in a process that `ChildMeasurer` has started."""
    with contextlib.suppress(ImportError):
        import torch  # computes the reference on the GPU  # noqa: F401
    serve(connection, GpuBench)


class _Operands:
    """Operands of a distribution, rounded to what is multiplied: those of one shape are shifts of each other.

    Which of two tf32 numbers CUTLASS takes that are equally near to a float32 depends on the kernel.
    """

    def __init__(
        self, kind: Element, shapes: Sequence[tuple[int, ...]], distribution: str, random: np.random.Generator
    ) -> None:
        self._shapes = shapes
        self._drawn = {shape: _drawn(kind, shape, distribution, random) for shape in dict.fromkeys(shapes)}

    def values(self, number: int) -> Array:
        """Return an operand."""
        shape = self._shapes[number]
        drawn, before = self._drawn[shape], self._shapes[:number].count(shape)
        return np.roll(drawn.reshape(-1), before * _SHIFT).reshape(shape) if before else drawn


def _drawn(kind: Element, shape: tuple[int, ...], distribution: str, random: np.random.Generator) -> Array:
    """Return an operand of a distribution, rounded to its type."""
    draw: dict[str, Callable[[], Array]] = {
        "normal": lambda: random.standard_normal(shape, np.float32),
        "uniform": lambda: random.uniform(-1, 1, shape).astype(np.float32),
        "integers": lambda: random.integers(-2, 3, shape).astype(np.float32),
        "zeros": functools.partial(np.zeros, shape, np.float32),
    }
    values = draw[distribution]()
    return kind.round(np.abs(values) if kind.short == "u8" else values)


def _places(sizes: Sequence[int]) -> tuple[list[slice], int]:
    """Return where all D of so many bytes lie in one buffer, with guards around each, and the size of the buffer."""
    places, start = [], _GUARD_BYTES
    for size in sizes:
        places.append(slice(start, start + size))
        start = -(-(start + size) // _APART) * _APART + _GUARD_BYTES
    return places, places[-1].stop + _GUARD_BYTES


def _unpacked(flat: Array, shape: tuple[int, ...], tensor: Any) -> Array:
    """Return packed memory as an array by rows."""
    if tensor.is_row_major:
        return flat.reshape(shape)
    return flat.reshape(*shape[:-2], shape[-1], shape[-2]).swapaxes(-1, -2)


def _scalars(epilogue: Any) -> tuple[float, ...]:
    """Return the scalars that a launch has by default: alpha = 1, beta = 0, and the activation's own."""
    scalars = epilogue.epilogue_type(1.0, 0.0)
    return tuple(float(scalars[name]) for name in epilogue.scalar_names)
