"""How a kernel that one family lacks is described as one of the other: what to change, where such a kernel exists."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from typing import Any

from pycutlass import _core
from pycutlass.errors import DescriptionError
from pycutlass.families.parts import Gemm, Kernel, Math, Shape, Tile, changed

__all__ = ["ampere_shape", "as_ampere", "as_native", "is_taken", "listed"]

#: What is tried for a message: Ampere-style instructions, the deepest first, and usual tiles after the given one.
_INSTRUCTIONS: tuple[Shape, ...] = ((16, 8, 32), (16, 8, 16), (16, 8, 8), (8, 8, 4), (1, 1, 1), (1, 1, 4))
_TILES: tuple[Shape, ...] = ((128, 128, 32), (64, 64, 32), (64, 64, 16))
_TENSOR_OP = _core.OpClass.TensorOp
_WARPS: tuple[Shape, ...] = ((2, 2, 1), (4, 2, 1), (2, 1, 1), (1, 2, 1), (1, 1, 1))


def listed(texts: Iterable[str]) -> str:
    """Return "a", "a and b", or "a, b and c"."""
    *first, last = texts
    return f"{', '.join(first)} and {last}" if first else last


def ampere_shape(math: Math) -> Shape | None:
    """Return the Ampere-style instruction that multiplies the same types; None where there is none."""
    other = _ampere_instruction(math, math.opcode_class)
    return None if other is None else other.instruction_shape


def _ampere_instruction(math: Math, *opcode_classes: Any) -> Math | None:
    """Return the Ampere-style instruction of the same types, of the first of these classes that has one."""
    for opcode_class, shape in itertools.product(opcode_classes, _INSTRUCTIONS):
        try:
            return changed(math, opcode_class=opcode_class, instruction_shape=shape)
        except DescriptionError:
            continue
    return None


def as_ampere(tile: Tile, kernel: Kernel | None = None, **fields: Any) -> str:
    """Return how to describe a Hopper-native or GEMV `tile` as an Ampere-style one; nothing where that is not known.

    With a `kernel`, its operands can be loaded and written by what is named, and D is like C; `fields` are those parts
    of it that are others then.
    """
    if kernel is not None and getattr(kernel, "D", kernel.C) != kernel.C:
        return ""
    for other in _ampere_tiles(tile):
        if kernel is None or is_taken(kernel, other, **fields):
            names = [name for name in ("cluster_shape", "kernel_schedule") if getattr(tile, name) is not None]
            return _changes(f"leave out {listed(names)}" if names else "", tile, other)
    return ""


def as_native(tile: Tile, kernel: Gemm | None = None) -> str:
    """Return how to describe an Ampere-style `tile` as a Hopper-native one; nothing where that is not known.

    With a `kernel`, its operands can be loaded and D be written by what is named, as soon as its functor writes D.
    """
    with_clusters: dict[str, Any] = {"cluster_shape": tile.cluster_shape or (1, 1, 1), "warp_count": None}
    try:
        instruction = changed(tile.math_instruction, instruction_shape=None)
        other = changed(tile, **with_clusters, math_instruction=instruction)
    except DescriptionError:
        return ""
    if kernel is None:
        return _changes("", tile, other)
    try:
        functor = changed(
            kernel.epilogue_functor, element_output=kernel.D.type.tag, epilogue_vector_length=kernel.D.alignment
        )
    except (DescriptionError, TypeError):  # TypeError: an epilogue of the user's, which is no dataclass
        return ""
    taken = is_taken(kernel, other, compute_capability=90, epilogue_functor=functor)
    return f"{_changes('', tile, other)} (compute_capability=90)" if taken else ""


def _ampere_tiles(tile: Tile) -> Iterator[Tile]:
    """Yield Ampere-style tiles in place of `tile`, those first that are most like it."""
    math = tile.math_instruction
    # Those of GEMV kernels are of CUDA cores, which do not multiply all types in Ampere-style kernels.
    instruction = math if math.instruction_shape else _ampere_instruction(math, math.opcode_class, _TENSOR_OP)
    if instruction is None:
        return
    choices = itertools.product(
        (tile.threadblock_shape, *_TILES),
        [tile.warp_count] if tile.warp_count and math.instruction_shape else _WARPS,
        [tile.stages] if type(tile.stages) is int and tile.stages else (3, 2),
    )
    for extents, warps, stages in choices:
        try:
            yield changed(
                tile,
                threadblock_shape=extents,
                stages=stages,
                warp_count=warps,
                math_instruction=instruction,
                cluster_shape=None,
                kernel_schedule=None,
            )
        except DescriptionError:
            continue


def is_taken(kernel: Kernel, tile: Tile, **fields: Any) -> bool:
    """Return whether the kernel can be described with another tile."""
    described = {name: getattr(kernel, name) for name in type(kernel)._FIELDS}  # type: ignore[attr-defined]
    try:
        type(kernel)(**described | fields | {"tile_description": tile})
    except DescriptionError:
        return False
    return True


def _changes(first: str, tile: Tile, other: Tile) -> str:
    """Return what to give in place of what `tile` has."""
    pairs: list[tuple[str, Any, Any]] = [
        ("instruction_shape", tile.math_instruction.instruction_shape, other.math_instruction.instruction_shape),
        *((name, getattr(tile, name), getattr(other, name)) for name in ("threadblock_shape", "stages", "warp_count")),
    ]
    if other.cluster_shape and not tile.cluster_shape:
        pairs.append(("cluster_shape", None, other.cluster_shape[:2]))
    given = [
        f"{name}={list(new) if isinstance(new, tuple) else new}"
        for name, old, new in pairs
        if type(new) is not type(old) or new != old  # an array in place of a number has no truth value
    ]
    if other.math_instruction.opcode_class != tile.math_instruction.opcode_class:
        given.insert(0, f"opcode_class=cutlass.OpClass.{other.math_instruction.opcode_class.name}")
    return ", and ".join([*([first] if first else []), *([f"give {listed(given)}"] if given else [])])
