"""Streams that are none, of whoever wrote the class."""

from __future__ import annotations

import ctypes
import decimal
import ipaddress
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np

__all__ = ["ODD_DEVICES", "ODD_STREAMS", "RAISING_STREAMS"]

_VALUES: dict[str, Callable[[], Any]] = {
    "half": lambda: 1.5,
    "one as a float": lambda: 1.0,
    "NumPy float": lambda: np.float64(0),
    "True": lambda: True,
    "NumPy bool": lambda: np.False_,
    "text": lambda: "0",
    "bytes": lambda: b"",
    "nothing": object,
    "minus one": lambda: -1,
    "NumPy minus one": lambda: np.int64(-1),
    "2**64": lambda: 2**64,
    "10**5000": lambda: 10**5000,
    "array of one": lambda: np.array([4096]),
    "array of no dimension": lambda: np.array(4096),
    "decimal": lambda: decimal.Decimal(4096),
    "what int() takes": lambda: ipaddress.IPv4Address(4096),
    "list": lambda: [0],
}
_HANDLES: dict[str, Callable[[], Any]] = {
    **_VALUES,
    "in the first page": lambda: 3,
    "in the kernel": lambda: 2**63,
    "the last": lambda: 2**64 - 1,
}


def _raises(*_: object) -> Any:
    raise ZeroDivisionError("of the stream's own")


def _with(**members: Any) -> Any:
    return type("Odd", (), members)()


def _members(attribute: str) -> dict[str, Callable[[], Any]]:
    return {
        f"{name} in {attribute}": lambda make=make: SimpleNamespace(**{attribute: make()})  # type: ignore[misc]
        for name, make in (_HANDLES | {"None": lambda: None}).items()
    }


def _protocol(answer: Any) -> Any:
    return SimpleNamespace(__cuda_stream__=lambda: answer)


#: By name, a function that makes one.
ODD_STREAMS: dict[str, Callable[[], Any]] = {
    **_HANDLES,
    **_members("cuda_stream"),
    **_members("ptr"),
    **_members("handle"),
    **{f"{name} of the protocol": lambda make=make: _protocol((0, make())) for name, make in _HANDLES.items()},
    "unknown version of the protocol": lambda: _protocol((1, 0)),
    "version as text": lambda: _protocol(("0", 0)),
    "protocol that is a number": lambda: SimpleNamespace(__cuda_stream__=5),
    "c_void_p in the first page": lambda: SimpleNamespace(handle=ctypes.c_void_p(3)),
    "short answer": lambda: _protocol((0,)),
    "long answer": lambda: _protocol((0, 0, 0)),
    "no answer": lambda: _protocol(None),
    "answer as text": lambda: _protocol("00"),
    "answer by and by": lambda: _protocol(iter((0, 0))),
    "class of streams": lambda: type("Odd", (), {"cuda_stream": property(lambda self: 0)}),
    "text that cannot be printed": lambda: _with(ptr=0.5, __repr__=lambda self: "\ud800"),
    "class of numbers": lambda: int,
    "protocol of a class": lambda: type("Odd", (), {"__cuda_stream__": lambda self: (0, 0)}),
    "another CUstream": lambda: type("CUstream", (), {})(),
}
RAISING_STREAMS: dict[str, Callable[[], Any]] = {
    "protocol that raises": lambda: _with(__cuda_stream__=_raises),
    "raises in __index__": lambda: _with(__index__=_raises),
    "raises in __getattr__": lambda: _with(__getattr__=_raises),
    "CUstream that raises": lambda: type("CUstream", (), {"__int__": _raises})(),
    **{
        f"{name} that raises": lambda name=name: _with(**{name: property(_raises)})  # type: ignore[misc]
        for name in ("__cuda_stream__", "cuda_stream", "ptr", "handle")
    },
    **{
        f"index of {name} that raises": lambda name=name: _with(**{name: _with(__index__=_raises)})  # type: ignore[misc]
        for name in ("cuda_stream", "ptr", "handle")
    },
}
#: What default streams may say of their GPU.
ODD_DEVICES: dict[str, Callable[[], Any]] = {
    **{name: make for name, make in _VALUES.items() if name != "nothing"},
    "None": lambda: None,
    "2**31": lambda: 2**31,
}
