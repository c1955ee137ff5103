"""The original's references and views of tensors in host memory, and the functions that permute what they refer to."""

from __future__ import annotations

import ctypes
import functools
from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pycutlass import _core
from pycutlass.errors import ArgumentError, ArgumentTypeError
from pycutlass.integers import as_int
from pycutlass.interleave import reorder_column as reordered
from pycutlass.types import ELEMENTS, element

__all__ = ["find", "get_tensor_ref", "reorder_column", "reorder_convK"]

_MATRICES: dict[str, Any] = {"RowMajor": _core.RowMajor, "ColumnMajor": _core.ColumnMajor}
_INTERLEAVED: dict[str, Any] = {
    "RowMajorInterleaved32": _core.RowMajorInterleaved32,
    "ColumnMajorInterleaved32": _core.ColumnMajorInterleaved32,
    "NC32HW32": _core.TensorNC32HW32,
    "C32RSK32": _core.TensorC32RSK32,
}
_LAYOUTS = {**_MATRICES, "NHWC": _core.TensorNHWC}
_TYPES = {row.short.upper(): row.tag for row in ELEMENTS if row.short != "tf32"}


class _TensorRef:
    """The address of a tensor's first element, and its layout."""

    element: Any
    order: Any

    def __init__(self, address: Any, layout: Any) -> None:
        number = as_int(address)
        if number is None or number < 0:
            raise ArgumentTypeError(f"{type(self).__name__} takes an address, an integer; got {address!r}")
        if not isinstance(layout, self.order):
            raise ArgumentTypeError(
                f"{type(self).__name__} takes a layout made by cutlass.{self.order.__name__}.packed, got {layout!r}"
            )
        self._address, self._layout = number, layout

    def data(self) -> int:
        """Return the address."""
        return self._address

    def layout(self) -> Any:
        """Return the layout."""
        return self._layout


class _TensorView(_TensorRef):
    """A reference together with the tensor's extent."""

    reference: type[_TensorRef]

    def __init__(self, reference: Any, extent: Any) -> None:
        if type(reference) is not self.reference:
            raise ArgumentTypeError(
                f"{type(self).__name__} takes a cutlass.{self.reference.__name__}, got {type(reference).__name__}"
            )
        kind = _core.MatrixCoord if self.order in (*_MATRICES.values(), *_PACKED) else _core.Tensor4DCoord
        if not isinstance(extent, kind):
            raise ArgumentTypeError(f"{type(self).__name__} takes a cutlass.{kind.__name__} as extent, got {extent!r}")
        super().__init__(reference.data(), reference.layout())
        self._extent = extent

    def extent(self) -> Any:
        """Return the extent."""
        return self._extent


_PACKED = (_core.RowMajorInterleaved32, _core.ColumnMajorInterleaved32)


def find(module: str, name: str) -> Any:
    """Return what `name` stands for in a module of ``pycutlass.cutlass``, or None."""
    if module == "pycutlass.cutlass":
        return get_tensor_ref if name == "get_tensor_ref" else _class(name)
    if name == "host":
        return {
            "pycutlass.cutlass.gemm": SimpleNamespace(reorder_column=reorder_column),
            "pycutlass.cutlass.conv": SimpleNamespace(reorder_convK=reorder_convK),
        }[module]
    return None


def get_tensor_ref(address: Any, value: Any, layout: Any) -> Any:
    """Return a reference to the tensor at `address`, of the type of `value`, for example ``cutlass.float16(0)``.

    Raises
    ------
    ArgumentTypeError
        References to this type and layout do not exist, or `address` is not an integer.
    """
    short = element(type(value)).short.upper()
    for name, order in {**_LAYOUTS, **_INTERLEAVED}.items():
        found = _class(f"TensorRef{short}{name}")
        if found is not None and isinstance(layout, order):
            return found(address, layout)
    raise ArgumentTypeError(f"there is no reference to {element(type(value))} in layout {layout!r}")


def reorder_column(source: Any, target: Any, problem_size: Any) -> None:
    """Write operand B of interleaved kernels, of int8 in host memory, to `target` with its columns as they are read.

    `GemmArguments` do this themselves with the B that they are given, as the original's did.

    Parameters
    ----------
    source, target : cutlass.TensorRefS8RowMajorInterleaved32 or ...ColumnMajorInterleaved32
        Where B is and where it goes: not the same memory.
    problem_size : cutlass.gemm.GemmCoord
        M, N, K.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        Other references, or memory that overlaps.
    """
    _, n, k = problem_size
    _permute("reorder_column", source, target, n * k, ("RowMajorInterleaved32", "ColumnMajorInterleaved32"))


def reorder_convK(target: Any, source: Any, kind: Any, problem_size: Any) -> None:
    """Write the filter of interleaved kernels, of int8 in host memory, to `target` with its K as it is read.

    `Conv2dArguments` do this themselves with the B that they are given, as the original's did.

    Parameters
    ----------
    target, source : cutlass.TensorRefS8C32RSK32
        Where the filter goes and where it is: not the same memory.
    kind : cutlass.conv.Operator
        ``fprop``.
    problem_size : cutlass.conv.Conv2dProblemSize
        Extents.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        Other references, or memory that overlaps.
    """
    size = _core.implicit_gemm_tensor_b_size(kind, problem_size)
    _permute("reorder_convK", source, target, size, ("C32RSK32",))


def _permute(who: str, source: Any, target: Any, size: int, orders: tuple[str, ...]) -> None:
    classes = tuple(_class(f"TensorRefS8{order}") for order in orders)
    for name, each in (("source", source), ("target", target)):
        if not isinstance(each, classes):
            known = " or ".join(f"cutlass.{cls.__name__}" for cls in classes)
            raise ArgumentTypeError(f"{who}: {name} must be a {known}, got {type(each).__name__}")
    if abs(source.data() - target.data()) < size:
        raise ArgumentError(f"{who}: source and target overlap, and one is read while the other is written")
    if not source.data() or not target.data():
        raise ArgumentError(f"{who}: the address of source and target must not be 0")
    _memory(target, size)[...] = reordered(_memory(source, size))


def _memory(reference: Any, size: int) -> NDArray[np.int8]:
    return np.ctypeslib.as_array((ctypes.c_int8 * size).from_address(reference.data()))


@functools.cache
def _class(name: str) -> Any:
    """Return the class of references or views that goes by `name`, or None."""
    for prefix, base in (("TensorRef", _TensorRef), ("TensorView", _TensorView)):
        for short, tag in _TYPES.items():
            orders = {**_LAYOUTS, **_INTERLEAVED} if short == "S8" else _LAYOUTS
            order = orders.get(name.removeprefix(f"{prefix}{short}"))
            if order is None:
                continue
            body = {"__doc__": base.__doc__, "element": tag, "order": order, "__module__": "pycutlass.cutlass"}
            if base is _TensorView:
                body["reference"] = _class(name.replace("View", "Ref", 1))
            return type(name, (base,), body)
    return None
