"""Tiles of Hopper-native kernels: what warp groups, wgmma, the epilogue and shared memory ask of them."""

from __future__ import annotations

import itertools
from collections.abc import Mapping

from pycutlass.calls import member_meant, shown
from pycutlass.enums import KernelSchedule
from pycutlass.errors import DescriptionError
from pycutlass.families.other_family import as_ampere, as_native, listed
from pycutlass.families.parts import Tile
from pycutlass.families.sm90_memory import are_laid_out, lies_in_shared_memory
from pycutlass.families.sm90_products import accumulator_registers, clean_registers, is_fast, most_registers
from pycutlass.families.sm90_warp_groups import warp_groups
from pycutlass.families.table import nearest_multiple

__all__ = ["check_native_tile"]

#: Threadblocks that a cluster can have: 8 on every GPU, 16 where a part of it has as many multiprocessors, as is seen
#: when a kernel is loaded. And bytes of K of one instruction.
_MOST_OF_CLUSTER, _WGMMA_DEPTH = 16, 32
_ALONG_CLUSTER = (1, 2, 4, 8, 16)
#: Products of 8-bit floats that tensor cores add up before their sums are promoted (mma_promotion_interval).
_PROMOTED = 128


def check_native_tile(tile: Tile, schedules: Mapping[KernelSchedule, tuple[int, ...]]) -> None:
    """Raise DescriptionError where warp groups cannot have the tile; `schedules` has the rows that each takes."""
    instruction = tile.math_instruction
    m, n, k = tile.cluster_shape or (1, 1, 1)
    if k != 1 or not {m, n} <= {*_ALONG_CLUSTER} or m * n > _MOST_OF_CLUSTER:
        raise DescriptionError(
            f"cluster_shape must be 1, 2, 4, 8 or 16 along M and N, of at most {_MOST_OF_CLUSTER} threadblocks; got "
            f"{[m, n, k]}: use cluster_shape={_nearest_cluster(m, n)}"
        )
    given = {"instruction_shape": instruction.instruction_shape, "warp_count": tile.warp_count}
    if unlike := {name: value for name, value in given.items() if value is not None}:
        ways = [each for each in (as_native(tile), as_ampere(tile)) if each]
        needs = "" if instruction.is_tensor_op else f"needs OpClass.TensorOp, got {instruction.opcode_class.name}; it "
        raise DescriptionError(
            f"a Hopper-native kernel {needs}has an instruction and warp groups that follow from its tile, got "
            f"{listed(f'{name}={list(value)}' for name, value in unlike.items())}"
            f"{': ' + ', or '.join(ways) if ways else ''}"
        )
    if not instruction.is_tensor_op:
        raise DescriptionError(
            f"a tile with a cluster_shape makes a Hopper-native kernel, which needs OpClass.TensorOp, got "
            f"{instruction.opcode_class.name}: give the instruction opcode_class=cutlass.OpClass.TensorOp"
        )
    schedule = tile.kernel_schedule
    if not isinstance(schedule, KernelSchedule):
        near = member_meant(schedule, KernelSchedule, "KernelSchedule")
        raise DescriptionError(f"kernel_schedule must be a KernelSchedule, got {shown(schedule)}{near}")
    if schedule not in schedules:
        raise DescriptionError(
            f"a tile with a cluster_shape makes a Hopper-native kernel, which has {listed(map(repr, schedules))}; got "
            f"{schedule!r}: leave out kernel_schedule, or leave out cluster_shape for a GEMV kernel"
        )
    _check_extents(tile, schedule, schedules)
    if tile.stages is not None and (type(tile.stages) is not int or tile.stages < 2):
        raise DescriptionError(f"stages must be None (as many as fit) or at least 2, got {shown(tile.stages)}")
    if tile.stages is not None and not lies_in_shared_memory(tile, tile.stages):
        raise DescriptionError(
            f"CuTe cannot lay out {tile.stages} stages of tiles of B as small as "
            f"{list(tile.threadblock_shape)[1:]}: use stages=None, or a multiple of 4"
        )


def _nearest_cluster(m: int, n: int) -> list[int]:
    """Return the legal cluster that is the most like the given one."""
    choices = itertools.product(_ALONG_CLUSTER, repeat=2)
    legal = (each for each in choices if each[0] * each[1] <= _MOST_OF_CLUSTER)
    nearest = min(legal, key=lambda each: abs(each[0] - m) + abs(each[1] - n))
    return list(nearest)


def _check_extents(tile: Tile, schedule: KernelSchedule, schedules: Mapping[KernelSchedule, tuple[int, ...]]) -> None:
    m, n, k = tile.threadblock_shape
    if m not in schedules[schedule]:
        other = next((other for other, rows in schedules.items() if m in rows), None)
        raise DescriptionError(
            f"threadblock_shape M={m} does not fit {schedule!r}, which takes "
            f"{', '.join(map(str, schedules[schedule]))}" + ("" if other is None else f"; {other!r} takes {m}")
        )
    widest = max(tile.math_instruction.a, tile.math_instruction.b, key=lambda operand: operand.bits)
    step, registers = _WGMMA_DEPTH * 8 // widest.bits, accumulator_registers(tile)
    precise = tile.math_instruction.a.is_float8 and not is_fast(tile)
    wrong: list[tuple[str, str]] = []  # each with its own remedy
    depth = nearest_multiple(k, step)
    if precise and _PROMOTED % depth:
        depth = _PROMOTED
    per_column = m * tile.math_instruction.accumulator.bits * (2 if precise else 1) / (32 * 128 * warp_groups(tile))
    columns = min(256, nearest_multiple(n, 16)) if n != 8 or warp_groups(tile) == 3 else n
    is_too_wide = per_column * columns > most_registers(tile)
    if is_too_wide:
        columns = int(clean_registers(tile) / per_column) // 16 * 16  # a usual number
    if not are_laid_out(columns, depth, tile.math_instruction.b.bits // 8):
        columns, depth = _laid_out(tile, columns, most_registers(tile) / per_column)
    use_both = f": use threadblock_shape {[m, columns, depth]}"
    if n != 8 and (n % 16 or not 16 <= n <= 256):
        few = "" if warp_groups(tile) == 3 else "8, or "
        rule = f"threadblock_shape N={n} must be {few}a multiple of 16 up to 256 (the epilogue stores 16 at once)"
        wrong.append((rule, f"; the nearest is {columns}"))
    if n == 8 and warp_groups(tile) == 3:
        rule = "three warp groups store at least 16 columns at once, got threadblock_shape N=8"
        wrong.append((rule, f"; use {columns}"))
    of_which = f", and {clean_registers(tile)} without spills"
    if warp_groups(tile) == 3:
        of_which = " where three warp groups share a tile"
    if is_too_wide:
        rule = (
            f"a {m}x{n} tile needs {registers} accumulator registers in each thread under {schedule!r}, which has "
            f"{most_registers(tile)} to give at most{of_which}"
        )
        of_fast = precise and registers <= 2 * most_registers(tile)
        or_fast = ", or MathOperation.multiply_add_fast_accum, which needs half of them" if of_fast else ""
        wrong.append((rule, f": use at most {columns} columns{or_fast}"))
    if k % step:
        rule = f"threadblock_shape K={k} must be a multiple of {step} for {widest}"
        wrong.append((rule, f"; the nearest is {depth}"))
    if not k % step and precise and _PROMOTED % k:
        rule = (
            f"sums of 8-bit floats are promoted to float32 every {_PROMOTED} products, which threadblock_shape "
            f"K={k} does not divide"
        )
        wrong.append((rule, ": use K of 32, 64 or 128, or MathOperation.multiply_add_fast_accum"))
    if not wrong and not lies_in_shared_memory(tile):
        rule = (
            f"CuTe cannot lay out tiles of {n} x {k} elements of {tile.math_instruction.b} in shared memory: their "
            f"lines do not make up a whole number of swizzle patterns"
        )
        wrong.append((rule, f"; use threadblock_shape {[m, columns, depth]}"))
    if wrong:
        is_alone = len(wrong) == 1 and (columns == n or depth == k)
        remedy = wrong[0][1] if is_alone else use_both
        raise DescriptionError("; ".join(rule for rule, _ in wrong) + remedy)


def _laid_out(tile: Tile, columns: int, most: float) -> tuple[int, int]:
    """Return columns, at most so many, and K of a tile that CuTe can lay out, where it cannot lay out those.

    Lines of 128 bytes along K are laid out for all multiples of 32 columns.
    """
    wider = -(-columns // 32) * 32
    depth = 1024 // max(tile.math_instruction.a.bits, tile.math_instruction.b.bits)
    return (wider if wider <= most else wider - 32), depth
