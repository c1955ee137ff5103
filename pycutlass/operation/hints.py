"""What messages about operations say beside their rule: where a name belongs, and which GPU is meant."""

from __future__ import annotations

import re
from typing import Any

from pycutlass.calls import shown
from pycutlass.families import SHARED_MEMORY_LIMIT
from pycutlass.families.ampere.family import NO_VOLTA
from pycutlass.integers import several

__all__ = ["ELSEWHERE", "FOR_ALL", "INSTEAD", "capability_meant"]

#: What serves instead of a method that only GEMMs have.
INSTEAD = {
    (
        "Conv2dOperation",
        "problem_of",
    ): " Use pycutlass.conv2d_problem_size(activation, filter, stride=..., padding=...).",
    ("GemmOperationGrouped", "problem_of"): " The problem of a group is a list of (M, N, K), one for each GEMM.",
    ("ReductionOperation", "problem_of"): " Use pycutlass.ReductionProblemSize(rows, columns, partitions).",
}

#: What does what others have a method of operations for.
FOR_ALL = {
    **dict.fromkeys(("compile", "build"), " Write pycutlass.compiler.add_module([operation])."),
    **dict.fromkeys(("launch", "execute"), " Write operation.run(arguments)."),
    **dict.fromkeys(("sync", "synchronize", "wait"), " Write arguments.sync()."),
}

#: Keywords that belong to another call.
ELSEWHERE = {
    **dict.fromkeys(
        ("activation", "activation_functor"),
        "An activation is part of the functor: epilogue_functor=LinearCombinationGeneric(pycutlass.relu(), "
        "element_output, epilogue_vector_length, ...).",
    ),
    **dict.fromkeys(
        ("alpha", "beta"), "Scalars belong to the arguments: output_op=operation.epilogue_type(alpha, beta)."
    ),
    **dict.fromkeys(
        ("gemm_mode", "batch", "split_k_slices", "split_k_mode", "bias", "output_op", "raster_order"),
        "What a launch computes belongs to the arguments, and not to the operation.",
    ),
    **dict.fromkeys(
        ("threadblock_shape", "stages", "warp_count", "math_instruction", "cluster_shape", "kernel_schedule"),
        "What a tile is belongs to the tile: tile_description=TileDescription(...).",
    ),
}

#: What to describe kernels with for newer GPUs, by the major part of theirs: the one with as much shared memory.
_ON_NEWER = {10: 90, 11: 90, 12: 89}


def capability_meant(capability: int | None, value: Any) -> str:
    """Return what whoever has a GPU of `capability` should know, for the end of a message."""
    if capability in (70, 72):
        return f" {NO_VOLTA}."
    if capability is None:
        return _spelled(value)
    family = _ON_NEWER.get(capability // 10)
    if family is None:
        older = [each for each in SHARED_MEMORY_LIMIT if each <= capability < 100]
        return f" Kernels for {max(older)}, the nearest below it, run on GPUs of {capability} too." if older else ""
    return (
        f" It names the family of a kernel, and GPUs of {capability} take Ampere-style ones: describe "
        f"compute_capability={family} without cluster_shape, which keeps to the {SHARED_MEMORY_LIMIT[family]:,} bytes "
        f"of shared memory that a threadblock has there. add_module builds it for the GPU that is present, and warns "
        f"that PyCUTLASS is not tested with that. Hopper-native kernels (with cluster_shape) run on 90 alone."
    )


def _spelled(value: Any) -> str:
    """Return which compute capability is meant by another spelling of one: "sm_80", 8.0, (8, 0)."""
    pair = several(value, 2)
    text = shown(value) if isinstance(value, float) else str.__str__(value) if isinstance(value, str) else ""
    if pair and all(0 <= each < 100 for each in pair):
        text = "".join(map(str, pair))
    match = re.fullmatch(r"(?:sm|compute|arch|cc)?[_ -]?([0-9]{1,2})\.?([0-9])[af]?", text.strip().lower())
    number = int(match[1] + match[2]) if match else None
    if number not in SHARED_MEMORY_LIMIT:
        return "" if number is None else capability_meant(number, value)
    return f" Did you mean {number}{', without quotes' if isinstance(value, str) else ''}?"
