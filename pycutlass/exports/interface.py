"""The structures of pycutlass/exports/c/library.h, for ctypes."""

from __future__ import annotations

import ctypes

__all__ = ["VERSION", "Launch", "Library", "PlanInfo", "ScalarInfo", "ScalarValue", "Tensor", "TensorInfo"]

VERSION = 1
_RANK = 4


class TensorInfo(ctypes.Structure):
    """pycutlass_tensor_info."""

    _fields_ = (
        ("name", ctypes.c_char_p),
        ("element", ctypes.c_uint8),
        ("layout", ctypes.c_uint8),
        ("rank", ctypes.c_uint8),
        ("written", ctypes.c_uint8),
        ("shared", ctypes.c_uint8),
        ("alignment", ctypes.c_uint8),
        ("reserved", ctypes.c_uint16),
        ("extents", ctypes.c_int64 * _RANK),
    )


class ScalarInfo(ctypes.Structure):
    """pycutlass_scalar_info."""

    _fields_ = (
        ("name", ctypes.c_char_p),
        ("value", ctypes.c_double),
        ("on_device", ctypes.c_uint8),
        ("element", ctypes.c_uint8),
        ("reserved", ctypes.c_uint8 * 6),
    )


class PlanInfo(ctypes.Structure):
    """pycutlass_plan_info."""

    _fields_ = (
        ("name", ctypes.c_char_p),
        ("description", ctypes.c_char_p),
        ("target", ctypes.c_char_p),
        ("tensor_count", ctypes.c_uint32),
        ("scalar_count", ctypes.c_uint32),
        ("tensors", ctypes.POINTER(TensorInfo)),
        ("scalars", ctypes.POINTER(ScalarInfo)),
        ("most_extent", ctypes.c_int64),
        ("is_group", ctypes.c_uint8),
        ("reserved", ctypes.c_uint8 * 7),
    )


class Tensor(ctypes.Structure):
    """pycutlass_tensor."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("shape", ctypes.c_int64 * _RANK),
        ("strides", ctypes.c_int64 * _RANK),
        ("rank", ctypes.c_uint8),
        ("element", ctypes.c_uint8),
        ("reserved", ctypes.c_uint8 * 6),
    )


class ScalarValue(ctypes.Structure):
    """pycutlass_scalar."""

    _fields_ = (("value", ctypes.c_double), ("address", ctypes.c_void_p))


class Launch(ctypes.Structure):
    """pycutlass_launch."""

    _fields_ = (
        ("struct_size", ctypes.c_uint32),
        ("problems", ctypes.c_uint32),
        ("tensors", ctypes.POINTER(Tensor)),
        ("scalars", ctypes.POINTER(ScalarValue)),
        ("workspace", ctypes.c_void_p),
        ("workspace_bytes", ctypes.c_uint64),
        ("stream", ctypes.c_void_p),
    )


_PLAN, _LAUNCH = ctypes.c_int32, ctypes.POINTER(Launch)


class Library(ctypes.Structure):
    """pycutlass_library."""

    _fields_ = (
        ("version", ctypes.c_uint32),
        ("struct_size", ctypes.c_uint32),
        ("abi_version", ctypes.c_uint32),
        ("plan_count", ctypes.c_uint32),
        ("plans", ctypes.POINTER(PlanInfo)),
        ("manifest", ctypes.c_char_p),
        ("find", ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_char_p)),
        ("load", ctypes.CFUNCTYPE(ctypes.c_int, _PLAN)),
        ("workspace_size", ctypes.CFUNCTYPE(ctypes.c_int, _PLAN, _LAUNCH, ctypes.POINTER(ctypes.c_uint64))),
        ("run", ctypes.CFUNCTYPE(ctypes.c_int, _PLAN, _LAUNCH)),
        ("message", ctypes.CFUNCTYPE(ctypes.c_char_p)),
        ("unload", ctypes.CFUNCTYPE(None)),
    )
