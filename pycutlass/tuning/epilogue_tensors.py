"""What an epilogue has beside A, B and D while a problem is measured: C, tensors of its own, and scalars."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from pycutlass.epilogue import Epilogue, Port
from pycutlass.memory import DeviceBuffer
from pycutlass.spec import TensorSpec
from pycutlass.tensor.device_array import DeviceArray
from pycutlass.tuning.drawing import Drawing, Operands
from pycutlass.tuning.expected import Computed
from pycutlass.tuning.tunable import Array, Part, Shapes, Tunable, Work, array_of

__all__ = ["EpilogueTensors", "in_memory", "in_shape"]

Upload = Callable[[Array], DeviceBuffer]


class EpilogueTensors:
    """C and the inputs of an epilogue, drawn for each product of a problem and brought to the current GPU.

    Parameters
    ----------
    problem : Tunable
        What is computed.
    work : Work
        Its operands.
    drawing : Drawing
        Draws what is read.
    upload : callable
        Returns device memory with an array.
    """

    def __init__(self, problem: Tunable, work: Work, drawing: Drawing, upload: Upload) -> None:
        self._kind, self._work, self._shapes = problem.kind, work, [*work.shapes]
        self._epilogue, self._source = problem.kind.epilogue, problem.source_form
        self.scalars = _scalars(self._epilogue, self._source is not None)
        self._buffers: list[DeviceBuffer] = []
        self._values: dict[str, Operands] = {}
        self._specs = {
            port.name: [work.beside(port.beside(self._kind.D), number) for number in range(len(self._shapes))]
            for port in self._epilogue.ports
        }
        if self._source is not None:
            self._specs["C"] = [self._spec_of_c(each) for each in self._shapes]
        types = {"C": self._kind.C.type} | {port.name: port.type for port in self._epilogue.inputs}
        self._arrays = {
            name: self._drawn(drawing.operands(types[name], [spec.shape for spec in specs]), name, upload)
            for name, specs in self._specs.items()
            if name in types
        }

    @property
    def source(self) -> list[DeviceArray] | None:
        """C of each product; None where none is read."""
        return self._arrays.get("C")

    @property
    def inputs(self) -> dict[str, list[DeviceArray]]:
        """What the epilogue reads beside it, of each product, by name."""
        return {name: arrays for name, arrays in self._arrays.items() if name != "C"}

    @property
    def outputs(self) -> list[tuple[Port, int, TensorSpec]]:
        """What it writes beside D: of each product, by its number, what that is."""
        ports = self._epilogue.outputs
        return [(port, number, spec) for port in ports for number, spec in enumerate(self._specs[port.name])]

    def computed(self, part: Part, number: int) -> Computed:
        """Return what the epilogue is given in a part of a product."""
        inputs = {port.name: self._in_part(port.form, port.name, part, number) for port in self._epilogue.inputs}
        form = "row" if self._source == "bias" else "matrix"
        source = None if self._source is None else self._in_part(form, "C", part, number)
        return Computed(part.sums, source, inputs, self.scalars)

    def _in_part(self, form: str, name: str, part: Part, number: int) -> Array:
        """Return the part of a tensor that goes with a part of the sums, as it broadcasts against these."""
        values = self._values[name].values(number).astype(np.float64)
        if form == "matrix":
            return self._work.matrix(values)[..., part.rows, :]
        if form == "column":
            return values[..., part.rows, None]
        return values[..., None, :] if form == "row" else values.reshape(*values.shape[:-1], 1, 1)

    def _drawn(self, operands: Operands, name: str, upload: Upload) -> list[DeviceArray]:
        self._values[name] = operands
        arrays = []
        for number, spec in enumerate(self._specs[name]):
            buffer = upload(in_memory(operands.values(number), spec))
            self._buffers.append(buffer)
            arrays.append(array_of(buffer.pointer, spec))
        return arrays

    def _spec_of_c(self, shapes: Shapes) -> TensorSpec:
        """Return what C is, packed: a matrix, or a bias."""
        tag, shape = self._kind.C.type.tag, shapes.c
        if self._source == "bias":
            return TensorSpec(shape[-1:], tag)
        if self._kind.C.is_row_major:
            return TensorSpec(shape, tag)
        (*lead, rows, columns) = shape
        return TensorSpec(shape, tag, (*([rows * columns] * len(lead)), 1, rows))


def in_memory(values: Array, spec: TensorSpec) -> Array:
    """Return values of a packed tensor in the order in which memory has them."""
    return np.ascontiguousarray(values.transpose(_order(spec)))


def in_shape(flat: Array, spec: TensorSpec) -> Array:
    """Return the memory of a packed tensor in its shape."""
    order = _order(spec)
    return flat.reshape([spec.shape[axis] for axis in order]).transpose(np.argsort(order))


def _order(spec: TensorSpec) -> list[int]:
    """Return the dimensions of a tensor, the one of the longest steps first."""
    return sorted(range(len(spec.shape)), key=lambda axis: -spec.strides[axis])


def _scalars(epilogue: Epilogue, reads_c: bool) -> dict[str, float]:
    """Return the scalars of a launch by name: beta = 1 where a functor reads C, and 1 where no default can be used."""
    found = {
        each.name: 1.0 if each.default is None or epilogue.lost_default(each.name) else each.default
        for each in epilogue.scalar_table
    }
    if epilogue.reads_source is None and "beta" in found:
        found["beta"] = float(reads_c)
    rounded = epilogue.epilogue_type(**found)  # to the type that the epilogue computes in
    return {name: float(rounded[name]) for name in found}
