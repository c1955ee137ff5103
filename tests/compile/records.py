"""The structures of pycutlass/include/pycutlass/abi.h, for calling a kernel's host side without the extension."""

from __future__ import annotations

import ctypes
from typing import Any

__all__ = ["Common", "Info", "Operand", "Result", "describe"]

_VERSION = 3  # PYCUTLASS_ABI_VERSION of what is written here


class Operand(ctypes.Structure):
    """``pycutlass_operand``."""

    _fields_ = [("data", ctypes.c_void_p), ("ld", ctypes.c_int64), ("batch_stride", ctypes.c_int64)]


class Common(ctypes.Structure):
    """``pycutlass_call``."""

    _fields_ = [
        ("struct_size", ctypes.c_uint32),
        ("device", ctypes.c_int32),
        ("sm_count", ctypes.c_int32),
        ("sm_occupancy", ctypes.c_int32),
        ("operands", Operand * 4),
        ("values", ctypes.c_double * 4),
        ("pointers", ctypes.c_void_p * 4),
        ("workspace", ctypes.c_void_p),
    ]


class Result(ctypes.Structure):
    """``pycutlass_plan_result``."""

    _fields_ = [
        ("grid", ctypes.c_uint32 * 3),
        *[(name, ctypes.c_uint64) for name in ("workspace_bytes", "clear_offset", "clear_bytes", "scratch_bytes")],
        ("waits_itself", ctypes.c_uint32),
    ]


class Info(ctypes.Structure):
    """``pycutlass_kernel_info``."""

    _fields_ = [
        *[(name, ctypes.c_uint32) for name in ("abi_version", "params_bytes", "shared_bytes")],
        ("threads", ctypes.c_uint32 * 2),
        ("cluster", ctypes.c_uint32 * 3),
        ("call_bytes", ctypes.c_uint32),
    ]


def describe(host: Any) -> Info:
    """Return the constants of a host library, which must be of the version that is written here."""
    info = Info()
    host.pycutlass_describe(ctypes.byref(info))
    assert info.abi_version == _VERSION, "abi.h has changed: these structures have to follow"
    return info
