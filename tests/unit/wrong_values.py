"""Values that some parameter is not made for: of wrong kinds, out of range, or with methods that raise."""

from __future__ import annotations

import collections
import decimal
import fractions
import itertools
import math
import warnings
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from odd_streams import ODD_DEVICES, ODD_STREAMS, RAISING_STREAMS

import pycutlass
from pycutlass import cutlass

__all__ = ["WRONG", "OwnError", "random_value"]


class OwnError(Exception):
    """What the methods of the objects below raise: no exception that a library could expect."""


def _raising(*names: str, base: type = object) -> type:
    def method(*_: Any, **__: Any) -> Any:
        raise OwnError("the user's own")

    return type(f"Raises{''.join(names).replace('_', '').title()}", (base,), dict.fromkeys(names, method))


_DUNDERS = ("__eq__", "__bool__", "__index__", "__hash__", "__repr__", "__str__", "__iter__", "__len__", "__float__")


class _AttributesRaise:
    """An object whose attributes cannot even be asked for."""

    def __getattr__(self, name: str) -> Any:
        raise OwnError("the user's own")


RAISING = {name: _raising(name) for name in (*_DUNDERS, "__getitem__", "__dlpack__", "__call__", "__int__")}
RaisesAll = _raising(*_DUNDERS, "__getitem__", "__contains__", "__int__", "__lt__")
RaisingList = _raising("__iter__", "__len__", "__getitem__", "__eq__", base=list)
RaisingInt = _raising("__eq__", "__index__", "__repr__", "__lt__", "__gt__", "__le__", "__ge__", base=int)
RaisingStr = _raising("__eq__", "__hash__", "__repr__", base=str)


class _Pack:
    """An object with a ``__dlpack__`` that gives what it should not."""

    def __init__(self, device: Any, capsule: Any) -> None:
        self.device, self.capsule = device, capsule

    def __dlpack_device__(self) -> Any:
        return self.device

    def __dlpack__(self, **_: Any) -> Any:
        return self.capsule


class _Interface:
    """An object that says that it is memory of a GPU, in a way that nobody can read."""

    __cuda_array_interface__ = "none"
    dtype = shape = strides = data = None


class _LyingShape:
    """An object that has what an array has, and nothing of it is right."""

    shape = "abc"
    ndim = dtype = strides = "x"
    reshape = swapaxes = None


class _ArraySubclass(np.ndarray):
    pass


class _TensorSubclass(torch.Tensor):
    pass


def _endless() -> Iterator[int]:
    return itertools.count(1)


def _cyclic() -> list[Any]:
    items: list[Any] = [1, 2]
    items.append(items)
    return items


def _big_endian() -> Any:
    return np.ones((4, 8), ">f4")


def _read_only() -> Any:
    array = np.ones((4, 8), np.float32)
    array.flags.writeable = False
    return array


def _nested() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.nested.nested_tensor([torch.ones(2, 3), torch.ones(4, 3)])


def _fake() -> Any:
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        return torch.ones(4, 8)


def _batched() -> Any:
    caught: list[Any] = []
    torch.vmap(lambda x: caught.append(x) or x)(torch.ones(2, 4, 8))
    return caught[0]


def _quantized() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.quantize_per_tensor(torch.ones(4, 8), 0.1, 0, torch.qint8)


def _sparse_csr() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.eye(4).to_sparse_csr()


def _on_device(make: Callable[[], Any]) -> Callable[[], Any]:
    """Return what makes a stream with that for a GPU."""
    return lambda: SimpleNamespace(cuda_stream=0, device_index=make())


#: By name, a function that makes a fresh one.
WRONG: dict[str, Callable[[], Any]] = {
    "None": lambda: None,
    "attributes that raise": _AttributesRaise,
    "True": lambda: True,
    "numpy bool": lambda: np.True_,
    "zero": lambda: 0,
    "minus one": lambda: -1,
    "three": lambda: 3,
    "2**31": lambda: 2**31,
    "2**63": lambda: 2**63,
    "2**64 - 16": lambda: 2**64 - 16,
    "10**30": lambda: 10**30,
    "10**5000": lambda: 10**5000,
    "numpy int": lambda: np.int64(-5),
    "half": lambda: 0.5,
    "one as a float": lambda: 1.0,
    "NaN": lambda: math.nan,
    "infinity": lambda: math.inf,
    "1e300": lambda: 1e300,
    "numpy float": lambda: np.float32("nan"),
    "complex": lambda: 1 + 2j,
    "numpy complex": lambda: np.complex64(1j),
    "decimal": lambda: decimal.Decimal("1.5"),
    "signalling NaN": lambda: decimal.Decimal("sNaN"),
    "fraction": lambda: fractions.Fraction(1, 3),
    "empty text": lambda: "",
    "text": lambda: "same",
    "digits": lambda: "128",
    "surrogate": lambda: "\ud800",
    "NUL": lambda: "sm_80\0",
    "long text": lambda: "x" * 100_000,
    "bytes": lambda: b"abc",
    "bytearray": lambda: bytearray(b"abc"),
    "memoryview": lambda: memoryview(b"abc"),
    "object": object,
    "class": lambda: object,
    "type": lambda: type,
    "class of ours": lambda: pycutlass.GemmArguments,
    "element type": lambda: cutlass.float16,
    "element value": lambda: cutlass.float16(1.5),
    "layout": lambda: cutlass.RowMajor,
    "layout value": lambda: cutlass.RowMajor(8),
    "swizzle": cutlass.IdentitySwizzle8,
    "coordinate": lambda: cutlass.gemm.GemmCoord(4, 5, 6),
    "negative coordinate": lambda: cutlass.gemm.GemmCoord(-4, 0, 6),
    "enumeration": lambda: cutlass.OpClass,
    "member": lambda: pycutlass.MathOperation.multiply_add,
    "member of dtype": lambda: cutlass.dtype.u8,
    "function": lambda: len,
    "lambda": lambda: lambda *a, **k: None,
    "module": lambda: math,
    "exception": lambda: ValueError("x"),
    "empty list": list,
    "empty tuple": tuple,
    "three integers": lambda: [4, 8, 16],
    "three negative": lambda: (-4, -8, -16),
    "three floats": lambda: [4.0, 8.0, 16.0],
    "three texts": lambda: ["a", "b", "c"],
    "three None": lambda: [None, None, None],
    "nested list": lambda: [[4, 8, 16], [1, [2]]],
    "ragged": lambda: [[1, 2, 3], [4]],
    "deep list": lambda: [[[[[[[[1]]]]]]]],
    "huge integers": lambda: [2**40, 2**70, 10**5000],
    "cyclic list": _cyclic,
    "list of arrays": lambda: [np.ones((4, 8), np.float32)] * 3,
    "list of objects": lambda: [object(), object(), object()],
    "long list": lambda: [1] * 50_000,
    "dict": lambda: {"a": [1], 3: None},
    "dict of three": lambda: {4: 1, 8: 2, 16: 3},
    "set": lambda: {4, 8, 16},
    "range": lambda: range(3),
    "huge range": lambda: range(10**15),
    "generator": lambda: (each for each in (4, 8, 16)),
    "endless generator": _endless,
    "map": lambda: map(int, "x"),
    "deque": lambda: collections.deque([4, 8, 16]),
    "chain map": lambda: collections.ChainMap({4: 1}),
    "iterator": lambda: iter([4, 8]),
    "ellipsis": lambda: ...,
    "slice": lambda: slice(3),
    "not implemented": lambda: NotImplemented,
    # NumPy
    "array": lambda: np.ones((4, 8), np.float32),
    "array of f64": lambda: np.ones((4, 8)),
    "array of int": lambda: np.array([4, 8, 16]),
    "array of bool": lambda: np.ones((4, 8), bool),
    "array of no dimension": lambda: np.array(3.0),
    "array of one": lambda: np.array([3]),
    "empty array": lambda: np.empty((0, 8), np.float32),
    "five dimensions": lambda: np.ones((1, 2, 3, 4, 5), np.float32),
    "object array": lambda: np.array([object(), None, 3], object),
    "object array of no dimension": lambda: np.array(None, object),
    "structured array": lambda: np.zeros(4, [("a", "f4"), ("b", "i4")]),
    "record array": lambda: np.rec.array([(1, 2.0)], dtype=[("a", "i4"), ("b", "f4")]),
    "text array": lambda: np.array(["a", "bc"]),
    "dates": lambda: np.array(["2020-01-01"], "M8[D]"),
    "void array": lambda: np.zeros(4, "V3"),
    "complex array": lambda: np.ones((4, 8), np.complex64),
    "masked array": lambda: np.ma.array(np.ones((4, 8), np.float32), mask=True),
    "masked": lambda: np.ma.masked,
    "read-only array": _read_only,
    "big-endian array": _big_endian,
    "unaligned array": lambda: np.zeros(4 * 33, np.uint8)[1:129].view(np.float32),
    "broadcast array": lambda: np.broadcast_to(np.float32(1), (4, 8)),
    "reversed array": lambda: np.ones((4, 8), np.float32)[::-1, ::-1],
    "strided array": lambda: np.ones((8, 16), np.float32)[::2, ::2],
    "matrix": lambda: np.ones((4, 8), np.float32).view(_ArraySubclass),
    "NumPy dtype": lambda: np.dtype("f4"),
    "NumPy type": lambda: np.float32,
    "NumPy void": lambda: np.void(b"abc"),
    "NumPy date": lambda: np.datetime64("NaT"),
    # torch
    "tensor": lambda: torch.ones(4, 8),
    "tensor of no dimension": lambda: torch.tensor(3),
    "tensor of bool": lambda: torch.ones(4, 8, dtype=torch.bool),
    "tensor of f16": lambda: torch.ones(4, 8, dtype=torch.float16),
    "tensor of float8": lambda: torch.ones(4, 8).to(torch.float8_e4m3fn),
    "empty tensor": lambda: torch.empty(0),
    "meta tensor": lambda: torch.empty(4, 8, device="meta"),
    "meta scalar": lambda: torch.empty((), device="meta", dtype=torch.int64),
    "sparse tensor": lambda: torch.eye(4).to_sparse(),
    "CSR tensor": _sparse_csr,
    "nested tensor": _nested,
    "quantized tensor": _quantized,
    "complex tensor": lambda: torch.ones(4, 8, dtype=torch.complex64),
    "conjugate": lambda: torch.ones(4, 8, dtype=torch.complex64).conj(),
    "imaginary part": lambda: torch.ones(4, 8, dtype=torch.complex64).conj().imag,
    "complex scalar": lambda: torch.tensor(1j),
    "tensor with gradient": lambda: torch.ones(4, 8, requires_grad=True),
    "scalar with gradient": lambda: torch.tensor(1.0, requires_grad=True),
    "parameter": lambda: torch.nn.Parameter(torch.ones(4, 8)),
    "tensor subclass": lambda: torch.ones(4, 8).as_subclass(_TensorSubclass),
    "fake tensor": _fake,
    "tensor of vmap": _batched,
    "expanded tensor": lambda: torch.ones(1, 8).expand(4, 8),
    "torch dtype": lambda: torch.float16,
    "torch device": lambda: torch.device("cpu"),
    "torch size": lambda: torch.Size([4, 8, 16]),
    "torch module": lambda: torch.nn.Linear(2, 2),
    # Things that say that they are memory
    "DLPack of text": lambda: _Pack((1, 0), "capsule"),
    "DLPack of a GPU": lambda: _Pack((2, 0), "capsule"),
    "DLPack on no device": lambda: _Pack("cuda", None),
    "DLPack on half a device": lambda: _Pack((1,), None),
    "DLPack on an unknown device": lambda: _Pack((99, -1), None),
    "DLPack class": lambda: _Pack,
    "CUDA array interface": _Interface,
    "lying shape": _LyingShape,
    # Things that say that they are streams
    **{f"stream: {name}": make for name, make in (ODD_STREAMS | RAISING_STREAMS).items()},
    **{f"stream of GPU {name}": _on_device(make) for name, make in ODD_DEVICES.items()},
    # What raises
    **{f"raises in {name}": kind for name, kind in RAISING.items()},
    "raises everywhere": RaisesAll,
    "raising list": lambda: RaisingList([4, 8, 16]),
    "raising int": lambda: RaisingInt(3),
    "raising str": lambda: RaisingStr("sm_80"),
    "list of what raises": lambda: [RaisesAll(), RaisesAll(), RaisesAll()],
    "raising generator": lambda: (1 // 0 for _ in range(3)),
    "class that raises": lambda: RaisesAll,
}


def random_value(rng: Any, depth: int = 2) -> Any:
    """Return one of the above, or a container of some."""
    kind = rng.integers(12) if depth else 11
    if kind == 0:
        return [random_value(rng, depth - 1) for _ in range(rng.integers(5))]
    if kind == 1:
        return tuple(random_value(rng, depth - 1) for _ in range(rng.integers(5)))
    if kind == 2:
        return int(rng.integers(-4, 300))
    if kind == 3:
        return {"a": random_value(rng, depth - 1)}
    if kind == 4:
        return tuple(int(each) for each in rng.integers(-1, 64, rng.integers(1, 6)))
    if kind == 5:
        dtype = ["f2", "f4", "f8", "i1", "i4", "u1", "c8", "O"][rng.integers(8)]
        return np.ones(tuple(rng.integers(0, 9, rng.integers(0, 6))), dtype)
    return WRONG[list(WRONG)[rng.integers(len(WRONG))]]()
