"""Choices that descriptions and arguments are made of."""

from __future__ import annotations

import enum
import sys
from collections.abc import Mapping
from typing import Any

from pycutlass.calls import shown, suggestion
from pycutlass.errors import ArgumentError, UnknownNameError
from pycutlass.integers import as_int

__all__ = [
    "Choice",
    "GroupMode",
    "KernelSchedule",
    "MathOperation",
    "RasterOrder",
    "SchedulerMode",
    "StrideSupport",
]


class _ChoiceType(enum.EnumMeta):
    """The type of enumerations: names what is near where there is no such member."""

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        members: Mapping[str, Any] = cls.__members__
        if not members:  # a new enumeration is made
            return super().__call__(*args, **kwargs)
        value = kwargs["value"] if not args and list(kwargs) == ["value"] else args[0] if len(args) == 1 else None
        wanted = value if type(value) is str else as_int(value)
        for member in members.values():
            if value is member or (wanted is not None and member.value == wanted):
                return member
        near = suggestion(wanted, members) if isinstance(wanted, str) else ""
        known = ", ".join(f"{cls.__name__}.{name}" for name in members)
        raise ArgumentError(f"{cls.__name__} has no member of value {shown(value)}; write one of {known}.{near}")

    def __getitem__(cls, name: str) -> Any:
        members: Mapping[str, Any] = cls.__members__
        if isinstance(name, str) and name in members:
            return members[name]
        near = suggestion(name, members) if isinstance(name, str) else ""
        raise UnknownNameError(f"{cls.__name__} has no member {shown(name)}; it has {', '.join(members)}.{near}")

    def __getattr__(cls, name: str) -> Any:
        members: Mapping[str, Any] = cls.__members__
        if name in members:
            return members[name]  # Python 3.11 looks for members here, newer ones do not
        if name.startswith("_"):
            raise AttributeError(name)
        known = ", ".join(members)
        near = suggestion(name, members)
        namespace = sys.modules.get("pycutlass.cutlass")
        is_module = isinstance(getattr(namespace, name, None), type(sys))
        if (
            namespace is not None and name in namespace.__all__ and not is_module
        ):  # cutlass.layout.RowMajor is a class of cutlass itself
            near = f" Write cutlass.{name}."
        text = f"{cls.__name__} has no member {name}; it has {known}.{near}"
        raise AttributeError(text, name=name)  # without obj, for which Python would print a suggestion of its own


class Choice(enum.Enum, metaclass=_ChoiceType):
    """One of a few; asking for another raises ArgumentError."""


class MathOperation(Choice):
    """What one multiply-add does.

    ``multiply_add_fast_f16``, ``_bf16`` and ``_f32`` take f32 operands and round or split them.
    ``multiply_add_fast_accum`` leaves the sums of 8-bit floats to Hopper's tensor cores, which keep about 14 bits of
    them; ``multiply_add`` adds each few of these up in f32, which costs time and registers.
    ``multiply_add_mixed_input_upcast`` takes a float of 16 bits and an integer of 8 bits, which it converts to that
    float in registers.

    Examples
    --------
    >>> from pycutlass import MathInstruction, MathOperation, cutlass
    >>> f32 = cutlass.float32
    >>> MathInstruction([16, 8, 8], f32, f32, f32, cutlass.OpClass.TensorOp, MathOperation.multiply_add_fast_f32)
    MathInstruction([16, 8, 8], cutlass.float32, cutlass.float32, cutlass.float32, cutlass.OpClass.TensorOp, \
MathOperation.multiply_add_fast_f32)
    """

    multiply_add = "multiply_add"
    multiply_add_saturate = "multiply_add_saturate"
    multiply_add_fast_f16 = "multiply_add_fast_f16"
    multiply_add_fast_bf16 = "multiply_add_fast_bf16"
    multiply_add_fast_f32 = "multiply_add_fast_f32"
    multiply_add_fast_accum = "multiply_add_fast_accum"
    multiply_add_mixed_input_upcast = "multiply_add_mixed_input_upcast"

    def __repr__(self) -> str:
        return f"MathOperation.{self.name}"


class KernelSchedule(Choice):
    """How the warps of a kernel share the work, where it is not Ampere-style.

    Pingpong: each of two consumer warp groups of a Hopper-native kernel has an output tile of its own, one computes
    while the other writes.
    Cooperative: both work on one tile of 128 or 256 rows, or three on one of 192.
    Gemv: a kernel of CUDA cores for problems with 1 to 8 rows, whose warps divide columns and K.

    Examples
    --------
    >>> from pycutlass import KernelSchedule, MathInstruction, TileDescription, cutlass
    >>> instruction = MathInstruction(
    ...     None, cutlass.float16, cutlass.float16, cutlass.float32, cutlass.OpClass.TensorOp
    ... )
    >>> tile = TileDescription([64, 128, 64], None, None, instruction, [2, 1], KernelSchedule.Pingpong)
    >>> tile.procedural_name(), tile.num_threads
    ('64x128_64xauto', 384)
    """

    Pingpong = "Pingpong"
    Cooperative = "Cooperative"
    Gemv = "Gemv"

    def __repr__(self) -> str:
        return f"KernelSchedule.{self.name}"


class RasterOrder(int, Choice):
    """The order in which a persistent Hopper kernel visits its output tiles.

    Examples
    --------
    >>> from pycutlass import RasterOrder
    >>> list(RasterOrder)
    [RasterOrder.AlongM, RasterOrder.AlongN, RasterOrder.Heuristic]
    """

    AlongM = 0
    AlongN = 1
    Heuristic = 2

    def __repr__(self) -> str:
        return f"RasterOrder.{self.name}"


class StrideSupport(Choice):
    """Convolution strides that a kernel can take.

    Examples
    --------
    >>> from pycutlass import StrideSupport
    >>> list(StrideSupport)
    [StrideSupport.Strided, StrideSupport.Unity]
    """

    Strided = "Strided"
    Unity = "Unity"

    def __repr__(self) -> str:
        return f"StrideSupport.{self.name}"


class GroupMode(Choice):
    """How a convolution kernel divides groups of channels among its threadblocks.

    SingleGroup: a threadblock works within one group, whose output channels are a multiple of the tile's N.
    MultipleGroup: a threadblock computes several whole groups, and the tile's N is a multiple of their channels.

    Examples
    --------
    >>> from pycutlass import GroupMode
    >>> list(GroupMode)
    [GroupMode.SingleGroup, GroupMode.MultipleGroup]
    """

    SingleGroup = "SingleGroup"
    MultipleGroup = "MultipleGroup"

    def __repr__(self) -> str:
        return f"GroupMode.{self.name}"


class SchedulerMode(Choice):
    """Where the schedule of a grouped GEMM is computed.

    Examples
    --------
    >>> from pycutlass import SchedulerMode
    >>> list(SchedulerMode)
    [SchedulerMode.Device, SchedulerMode.Host]
    """

    Device = "Device"
    Host = "Host"

    def __repr__(self) -> str:
        return f"SchedulerMode.{self.name}"
