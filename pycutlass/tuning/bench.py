"""What measures on the GPU, in a process of its own: operands, the reference, and launches."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Sequence
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

from pycutlass import _core, device
from pycutlass.epilogue import Port
from pycutlass.memory import DeviceBuffer
from pycutlass.timing import DeviceTimer
from pycutlass.tuning.drawing import Drawing
from pycutlass.tuning.epilogue_tensors import EpilogueTensors, in_shape
from pycutlass.tuning.expected import Bounds, bounds_of
from pycutlass.tuning.measuring import Artifacts, WrongResultError, serve
from pycutlass.tuning.options import TuningOptions
from pycutlass.tuning.tunable import AnyCandidate, Array, Launch, Operands, Part, Tunable, array_of
from pycutlass.tuning.vendor import vendor_work
from pycutlass.types import element

__all__ = ["GpuBench", "serve_bench"]

_GUARD_BYTES = 4096  # before, between and behind all D
_APART = 256  # each D begins at a multiple of so many bytes, as memory that is allocated does
_POISON = 0xFF  # every byte: NaN in each float type, -1 in integers
_MOST_PRODUCTS = 2e10  # of the reference on the host
_MOST_OF_FUNCTION = 1 << 20  # sums of a product that are checked where an epilogue function follows, on the host
_MOST_KEPT = 1 << 24  # elements whose bounds are kept, in 24 bytes each
_MOST_BYTES_KEPT = 1 << 28  # of results that were found to be right
_SAMPLES = 3  # launches, or batches of them, at each visit


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
        self._problem = problem
        self._vendor: Launch | None = None
        self._kind, self._work = problem.kind, problem.work()
        self._share = min(1.0, _MOST_PRODUCTS / (problem.operations / 2))
        self._stream = _core.Stream(device.current())
        drawing = Drawing(options.distribution, options.seed)
        shapes = self._shapes = [*self._work.shapes]
        self._a = drawing.operands(element(self._kind.element_a), [each.a for each in shapes])
        self._b = drawing.operands(element(self._kind.element_b), [each.b for each in shapes])
        self._A = [self._uploaded(_packed(self._a.values(number), self._kind.A)) for number in range(len(shapes))]
        self._B = [self._uploaded(_packed(self._b.values(number), self._kind.B)) for number in range(len(shapes))]
        self._beside = EpilogueTensors(problem, self._work, drawing, self._uploaded)
        self._outputs = self._beside.outputs
        sizes = [self._kind.D.type.bytes_of(math.prod(each.d)) for each in shapes]
        sizes += [port.type.bytes_of(math.prod(spec.shape)) for port, _, spec in self._outputs]
        places, size = _places(sizes)
        self._places, self._output_places = places[: len(shapes)], places[len(shapes) :]
        self._buffer = self._allocated(size)
        self._parts: list[Part] = []  # of all products, in f64
        self._bounds: dict[int, tuple[tuple[float, float], dict[str, Bounds]]] = {}
        self._found_right: dict[tuple[tuple[float, float], ...], Array] = {}  # memory of all D, by what was allowed
        self._launches: dict[int, Launch] = {}
        self._timer = DeviceTimer(cold_l2=options.cold_l2, seconds=0, least_rounds=_SAMPLES, warmup=1)

    def expect(self, candidate: AnyCandidate) -> None:
        """Compute what all candidates are compared with: all of a problem round its operands in the same way."""
        if self._parts:
            return
        for number in range(len(self._shapes)):
            values = self._a.values(number), self._b.values(number)
            part = self._work.part(candidate, number, *values, self._share)
            self._parts.append(part.at_most(_MOST_OF_FUNCTION) if self._kind.epilogue.is_tree else part)
            self._right(candidate, number)  # which takes longer than a candidate is given to be compared

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

    def measure_vendor(self) -> list[float]:
        """Return microseconds of some calls of the vendor's library with the same operands.

        Raises
        ------
        ArgumentError
            It cannot be called, or does not compute this.
        """
        if self._vendor is None:
            A, B = ([each.pointer for each in buffers] for buffers in (self._A, self._B))
            self._vendor = vendor_work(self._problem, A, B)
        return list(self._timer.time(self._vendor).times)

    def _launch(self, candidate: AnyCandidate) -> Launch:
        """Return a function that launches all kernels of a candidate."""
        A, B = ([each.pointer for each in buffers] for buffers in (self._A, self._B))
        D = [self._buffer.pointer + place.start for place in self._places]
        ports: dict[str, list[Any]] = dict(self._beside.inputs)
        for (port, _, spec), place in zip(self._outputs, self._output_places, strict=True):
            ports.setdefault(port.name, []).append(array_of(self._buffer.pointer + place.start, spec))
        return self._work.launcher(candidate, Operands(A, B, self._beside.source, D, ports, self._beside.scalars))

    def _check(self, candidate: AnyCandidate) -> None:
        raw = np.empty(self._buffer.size, np.uint8)
        _core.copy_to_host(raw, self._buffer.pointer, self._stream)
        self._stream.synchronize()
        allowed = tuple(self._work.tolerance(candidate, number) for number in range(len(self._shapes)))
        known = self._found_right.get(allowed)
        if known is not None and np.array_equal(raw, known):  # most kernels add up in the same order
            return
        self._check_memory(raw, candidate)
        if raw.size <= _MOST_BYTES_KEPT:
            self._found_right[allowed] = raw

    def _check_memory(self, raw: Array, candidate: AnyCandidate) -> None:
        """Raise where what a candidate has written is wrong, or lies beside its results."""
        end, where = 0, f"beside {'D or another result' if self._outputs else 'D'}"
        for place in (*self._places, *self._output_places):
            if (raw[end : place.start] != _POISON).any():
                raise WrongResultError(f"it wrote {where}")
            end = place.stop
        if (raw[end:] != _POISON).any():
            raise WrongResultError(f"it wrote {where}")
        self.expect(candidate)
        for number, place in enumerate(self._places):
            written = raw[place].view(self._kind.D.type.dtype)
            D = _unpacked(written, self._shapes[number].d, self._kind.D)
            part = self._parts[number]
            self._compare("D", number, self._work.matrix(D)[..., part.rows, :], self._right(candidate, number)["D"])
        for (port, number, spec), place in zip(self._outputs, self._output_places, strict=True):
            tensor = in_shape(raw[place].view(port.type.dtype), spec)
            found = self._in_part(port, tensor, self._parts[number])
            if found is not None:
                self._compare(port.name, number, found, self._right(candidate, number)[port.name])

    def _in_part(self, port: Port, tensor: Array, part: Part) -> Array | None:
        """Return what is checked of an output; None of what other rows than those of the part count in."""
        if port.is_matrix:
            return (tensor if port.selected else self._work.matrix(tensor))[..., part.rows, :]
        if port.form == "column":
            return tensor[..., part.rows]
        return tensor if part.is_whole else None

    def _right(self, candidate: AnyCandidate, number: int) -> dict[str, Bounds]:
        """Return what is right in the part of a product that is checked."""
        error = self._work.tolerance(candidate, number)
        known = self._bounds.get(number)
        if known is not None and known[0] == error:
            return known[1]
        part = self._parts[number]
        right = bounds_of(self._kind.epilogue, self._beside.computed(part, number), error)
        if part.sums.size <= _MOST_KEPT:  # for the next candidate, which has the same unless it rounds more often
            self._bounds[number] = error, right
        return right

    def _compare(self, name: str, number: int, values: Array, right: Bounds) -> None:
        """Raise where a result of one product is wrong, in the part of it that is checked."""
        found = values.astype(np.float64).reshape(right.exact.shape)
        wrong = right.wrong(found)
        if wrong.any():
            place = tuple(int(each) for each in np.argwhere(wrong)[0])
            which = "" if name == "D" else f" of {name}"
            which += "" if len(self._places) == 1 else f" of problem {number}"
            raise WrongResultError(
                f"{int(wrong.sum()):,} of {wrong.size:,} elements{which} that were checked are wrong, the first at "
                f"{place}: {found[place]} instead of {right.exact[place]}"
            )

    def _uploaded(self, packed: Array) -> DeviceBuffer:
        """Return device memory with an operand, as memory has it."""
        buffer = self._allocated(packed.nbytes)
        _core.copy_to_device(buffer.pointer, packed.reshape(-1).view(np.uint8), self._stream)
        self._stream.synchronize()
        return buffer

    def _allocated(self, size: int) -> DeviceBuffer:
        return DeviceBuffer(device.current(), size, self._stream)


def serve_bench(connection: Connection) -> None:
    """Measure in a process that `ChildMeasurer` has started."""
    with contextlib.suppress(ImportError):
        import torch  # computes the reference on the GPU, and calls cuBLAS and cuDNN  # noqa: F401
    serve(connection, GpuBench)


def _packed(values: Array, tensor: Any) -> Array:
    """Return an operand packed in its layout."""
    return np.ascontiguousarray(values if tensor.is_row_major else values.swapaxes(-1, -2))


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
