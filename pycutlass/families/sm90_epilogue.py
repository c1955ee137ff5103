"""What the epilogue of a Hopper-native kernel asks of its tile: columns, registers, and what is loaded as C."""

from __future__ import annotations

from pycutlass.calls import counted
from pycutlass.enums import KernelSchedule
from pycutlass.errors import DescriptionError
from pycutlass.families.epilogues import check_tiles
from pycutlass.families.parts import Epilogue, Gemm, Parts, Tensor, Tile, changed
from pycutlass.families.sm90_copies import is_cp_async, is_direct, is_divided
from pycutlass.families.sm90_products import accumulator_registers, clean_beside, most_registers
from pycutlass.families.sm90_register_a import CLEAN_BESIDE_WORDS, held_registers, spills, turns_words
from pycutlass.families.sm90_swap import parts_in_kernel
from pycutlass.families.sm90_warp_groups import warp_groups
from pycutlass.families.table import Family
from pycutlass.log import say_once

__all__ = ["check_columns", "check_function", "check_registers", "loaded"]


def loaded(functor: Epilogue, family: Family, C: Tensor, D: Tensor) -> Tensor:
    """Return the description of what is loaded as C: where that is not read, another tensor, or none."""
    port = functor.loaded(family)
    if port is None:
        return D if functor.reads_source is False else C
    description: Tensor = port.description
    return description


def check_function(kernel: Gemm) -> None:
    """Check that an epilogue function has a tile of the kernel's, and a C that lies as D does where it reads one."""
    functor = kernel.epilogue_functor
    if functor.reads_source is None:
        return
    check_tiles(parts_in_kernel(kernel).epilogue, kernel.tile_description)
    if functor.reads_source and kernel.C.layout is not kernel.D.layout:
        raise DescriptionError(
            f"the epilogue function {functor!r} reads C and writes D in the same order; got C of {kernel.C.order} and "
            f"D of {kernel.D.order}: describe both alike, or give C as a Tensor of the function with the other layout"
        )


def check_columns(kernel: Gemm) -> None:
    """Check that the epilogue stores tiles of so many columns."""
    parts, (m, n, k) = parts_in_kernel(kernel), kernel.tile_description.threadblock_shape
    C = loaded(parts.epilogue, Family.SM90_GEMM, parts.C, parts.D)
    if n != 8 or (is_direct(parts.A, parts.B, C, parts.D) and not parts.epilogue.is_tree):
        return
    bits = min([parts.D.type.bits] + [parts.C.type.bits] * (parts.epilogue.reads_source is not False))
    if parts.epilogue.is_tree:
        reason = f"the epilogue function {parts.epilogue!r} computes 16 columns at once"
    elif parts.C.layout is not parts.D.layout:
        reason = f"a C of {kernel.C.order} beside a D of {kernel.D.order} is stored 16 columns at once"
    elif bits == 8 and parts.D.is_row_major:
        reason = "TMA moves at least 16 bytes of a row, which are 16 columns of 8 bits"
    else:
        return
    raise DescriptionError(f"{reason}, got threadblock_shape N=8: use threadblock_shape {[m, 16, k]}")


def _is_divided(tile: Tile, parts: Parts, columns: int) -> bool:
    """Return whether there is a tile of so many columns, and threads that load A and B divide it."""
    m, _, k = tile.threadblock_shape
    try:
        return is_divided(changed(tile, threadblock_shape=(m, columns, k)), parts.A, parts.B)
    except DescriptionError:
        return False


def check_registers(tile: Tile, parts: Parts) -> None:
    """Refuse a tile whose sums have no room, and log a warning where it leaves the epilogue too few registers."""
    registers, is_loaded = accumulator_registers(tile), is_cp_async(parts.A, parts.B)
    C = loaded(parts.epilogue, Family.SM90_GEMM, parts.C, parts.D)
    is_stored = is_direct(parts.A, parts.B, C, parts.D)
    clean = clean_beside(tile, parts.epilogue, parts.D, direct=is_stored, cp_async=is_loaded)
    most = most_registers(tile, cp_async=is_loaded)
    if registers <= min(clean, most):  # as nearly all of hundreds of candidates
        if spills(tile, parts, much=True):
            _say_that_a_spills(tile, parts)
        return
    m, n, _ = tile.threadblock_shape
    needs = f"a {m}x{n} tile needs {registers} accumulator registers in each thread under {tile.kernel_schedule!r}"
    # Words that are turned around lie in lines of 32.
    sums, step = (min(clean, CLEAN_BESIDE_WORDS), 32) if turns_words(parts) else (clean, 16)
    columns = sums * n // registers // step * step
    ports = len(parts.epilogue.ports)
    beside = f" and {counted(ports, 'tensor')} of the epilogue" if ports else ""
    if registers > most:  # other kernels are refused with the tile
        columns = next((each for each in range(columns, 0, -8) if _is_divided(tile, parts, each)), columns)
        raise DescriptionError(
            f"{needs}, and a kernel that loads A and B of alignment {parts.A.alignment} and {parts.B.alignment} by "
            f"cp.async has {most} to give: use at most {columns} columns"
        )
    wait = "" if warp_groups(tile) == 3 else ", and from 216 on instructions wait for each other"
    say_once(
        f"{needs}, and beyond {clean} of them for C of {parts.D.type}{beside} the kernel may be slower: registers "
        f"spill{wait}; at most {columns} columns do not spill"
    )


def _say_that_a_spills(tile: Tile, parts: Parts) -> None:
    """Log a warning about a tile whose A is in registers, beside too many sums."""
    m, n, k = tile.threadblock_shape
    is_pingpong = tile.kernel_schedule is KernelSchedule.Pingpong
    fewer = f"a smaller tile{', or KernelSchedule.Cooperative,' if is_pingpong else ''} has fewer"
    say_once(
        f"a {m}x{n}x{k} tile has {held_registers(tile)} registers of A of {parts.A.type} beside "
        f"{accumulator_registers(tile)} of sums in each thread under {tile.kernel_schedule!r}, and turns B around "
        f"where that does not lie along K: the kernel may be slower, since registers spill; {fewer}"
    )
