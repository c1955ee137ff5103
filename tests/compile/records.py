"""The structures of pycutlass/include/pycutlass/abi.h, for calling a kernel's host side without the extension."""

from __future__ import annotations

import ctypes
from typing import Any

from pycutlass.epilogue.scalars import EpilogueLayout

__all__ = ["Common", "Info", "Operand", "Result", "describe", "set_epilogue"]

_VERSION = 4  # PYCUTLASS_ABI_VERSION of what is written here
ROLES = 6  # A, B, C, D and the scales of A and B


class Operand(ctypes.Structure):
    """``pycutlass_operand``."""

    _fields_ = [
        ("data", ctypes.c_void_p),
        ("strides", ctypes.c_int64 * 4),
        ("element", ctypes.c_uint8),
        ("form", ctypes.c_uint8),
        ("reserved", ctypes.c_uint16 * 3),
    ]


class Common(ctypes.Structure):
    """``pycutlass_call``."""

    _fields_ = [
        ("struct_size", ctypes.c_uint32),
        ("device", ctypes.c_int32),
        ("sm_count", ctypes.c_int32),
        ("sm_occupancy", ctypes.c_int32),
        ("operands", Operand * ROLES),
        ("epilogue", ctypes.c_void_p),
        ("workspace", ctypes.c_void_p),
    ]


class Result(ctypes.Structure):
    """``pycutlass_plan_result``."""

    _fields_ = [
        ("grid", ctypes.c_uint32 * 3),
        *[(name, ctypes.c_uint64) for name in ("workspace_bytes", "clear_offset", "clear_bytes", "scratch_bytes")],
        ("supports_pdl", ctypes.c_uint32),
    ]


class Info(ctypes.Structure):
    """``pycutlass_kernel_info``."""

    _fields_ = [
        *[(name, ctypes.c_uint32) for name in ("abi_version", "params_bytes", "shared_bytes")],
        ("threads", ctypes.c_uint32 * 2),
        ("cluster", ctypes.c_uint32 * 3),
        *[(name, ctypes.c_uint32) for name in ("call_bytes", "epilogue_bytes")],
        ("elements", ctypes.c_uint8 * ROLES),
    ]


class Field(ctypes.Structure):
    """``pycutlass_epilogue_field``."""

    _fields_ = [
        ("name", ctypes.c_char * 24),
        *[(name, ctypes.c_uint16) for name in ("offset", "bytes")],
        *[(name, ctypes.c_uint8) for name in ("kind", "element", "index", "written")],
    ]


_KINDS, _ELEMENTS = (
    ("value", "address", "stride"),
    ("", "f64", "f32", "tf32", "f16", "bf16", "s32", "s8", "s64", "e4m3", "e5m2", "u8"),
)


def layout(host: Any) -> EpilogueLayout:
    """Return where a host library has the arguments of its epilogue."""
    host.pycutlass_describe_epilogue.restype = ctypes.c_uint32
    fields = (Field * host.pycutlass_describe_epilogue(None, 0))()
    host.pycutlass_describe_epilogue(fields, len(fields))
    described = [
        (each.name.decode(), _KINDS[each.kind], _ELEMENTS[each.element], each.offset, each.bytes, each.index, False)
        for each in fields
    ]
    return EpilogueLayout(describe(host).epilogue_bytes, described)


def set_epilogue(host: Any, record: Any, values: dict[str, float], addresses: dict[str, int] | None = None) -> None:
    """Give a call record arguments of its kernel's epilogue; they live as long as the record."""
    packed = layout(host).pack(values, addresses or {})
    record.kept = ctypes.create_string_buffer(packed, len(packed))
    record.common.epilogue = ctypes.addressof(record.kept)


def describe(host: Any) -> Info:
    """Return the constants of a host library, which must be of the version that is written here."""
    info = Info()
    host.pycutlass_describe(ctypes.byref(info))
    assert info.abi_version == _VERSION, "abi.h has changed: these structures have to follow"
    return info
