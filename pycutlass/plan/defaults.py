"""Which kernels to compile ahead for whoever has not measured: those that the pick chooses for usual problems.

The problems are linear layers, low-rank adapters and batches, of the types, layouts and activations below. Each has a
weight, the product of those of its parts, and a kernel has the weight of all problems that it is chosen for. Kernels
come in the order of their weights, so that the first few serve more than any others would.

A bias is read as C, by the kernel without one. What an activation computes does not decide which tile is the fastest,
so tiles are chosen once for all of them. The weights are judgement, not statistics.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from pycutlass import cutlass
from pycutlass.calls import public, shown
from pycutlass.device import Device
from pycutlass.epilogue import gelu, relu, silu
from pycutlass.errors import ArgumentError, ArgumentTypeError, DescriptionError
from pycutlass.integers import as_int
from pycutlass.plan.candidate import Candidate
from pycutlass.plan.forms import Form
from pycutlass.plan.kind import GemmKind
from pycutlass.plan.kinds import Wanted, kind_of
from pycutlass.plan.pick import pick
from pycutlass.source import KernelSource, WrittenKernel
from pycutlass.types import element

__all__ = ["MOST_KERNELS", "TARGETS", "default_kernels"]

#: No bundle of defaults has more: who needs others knows which.
MOST_KERNELS = 400
#: The GPUs of each target, of which the pick knows the constants, with their weights. None of 80, 86 and 89 has been
#: measured: the picks for those follow from what is published of them.
TARGETS: Mapping[str, Mapping[Device, int]] = {
    "sm_80": {Device(0, "NVIDIA A100-SXM4-80GB", 80, 108): 1},
    "sm_86": {Device(0, "NVIDIA GeForce RTX 3090", 86, 82): 2, Device(0, "NVIDIA A10", 86, 72): 1},
    "sm_89": {Device(0, "NVIDIA L40S", 89, 142): 2, Device(0, "NVIDIA GeForce RTX 4090", 89, 128): 1},
    "sm_90a": {Device(0, "NVIDIA H200", 90, 132): 1, Device(0, "NVIDIA H100 80GB HBM3", 90, 132): 1},
}

# Operands with how float32 is multiplied. Results are of the same type, of int8 they are int32, of e4m3 bfloat16.
_OPERANDS: Mapping[tuple[Any, str | None], int] = {
    (cutlass.bfloat16, None): 8,
    (cutlass.float16, None): 6,
    (cutlass.float_e4m3, None): 3,
    (cutlass.float32, None): 2,
    (cutlass.float32, "tf32"): 2,
    (cutlass.int8, None): 2,
}
# Whether rows or columns of A and of B are adjacent; those of D are rows. Of A by rows and B by columns are linear
# layers, `x @ w.T`; of both by rows products as they are written; A by columns has the gradient of the weights.
_LAYOUTS: Mapping[tuple[bool, bool], int] = {(True, False): 8, (True, True): 5, (False, True): 2, (False, False): 1}
# Whether 16 bytes can be loaded at once, or 2: where an extent or an address is odd.
_ALIGNED: Mapping[bool, int] = {True: 12, False: 1}
_WIDE, _NARROW = 128, 16  # bits
_EPILOGUES: Mapping[Any, int] = {None: 10, gelu: 1, silu: 1, relu: 1}
# M from a single token to a long prompt: ends of the ranges within which a plan does not choose anew.
_ROWS = (
    *(1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 80, 96, 128, 160, 192, 256, 320, 384, 512, 640, 768, 1024, 1536),
    *(2048, 3072, 4096, 6144, 8192, 12288, 16384),
)
# N and K of linear layers of models of 0.1 to 70 billion parameters, and of low-rank adapters.
_LAYERS = (
    *((768, 768), (3072, 768), (768, 3072), (1024, 1024), (2048, 2048), (1280, 5120), (5120, 5120), (4096, 4096)),
    *((6144, 4096), (14336, 4096), (28672, 4096), (4096, 14336), (11008, 4096), (4096, 11008), (13824, 5120)),
    *((5120, 13824), (8192, 8192), (28672, 8192), (8192, 28672), (7168, 2048), (2048, 7168), (4608, 7168)),
    *((1536, 7168), (24576, 1536), (4096, 16), (4096, 64), (16, 4096), (64, 4096)),
)
# Matrices in a batch, as attention has them.
_BATCHES = tuple((extent, extent, depth) for extent in (128, 512, 2048) for depth in (64, 128))
_MATRICES = (4, 32)
#: What kernels for few rows or columns do not take.
_LARGE = (4096, 4096, 4096)


@public
def default_kernels(target: str, most: int = MOST_KERNELS) -> tuple[WrittenKernel, ...]:
    """Return the kernels that the pick chooses for usual problems, the most important first.

    They are the same in every process, and made in about a minute. `compiler.compile_many` and
    `compiler.write_manifest` take them. What is launched one after the other, as the sums of slices and what adds them
    up, are kernels of their own here.

    Parameters
    ----------
    target : str
        ``"sm_80"``, ``"sm_86"``, ``"sm_89"`` or ``"sm_90a"``. Of the last some are not Hopper-native, and built for
        ``sm_90``.
    most : int
        How many, at most 400. No two have the same text.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        No such target or number.

    Examples
    --------
    >>> from pycutlass.plan.defaults import TARGETS
    >>> list(TARGETS)
    ['sm_80', 'sm_86', 'sm_89', 'sm_90a']
    """
    count = as_int(most)
    if count is None or not isinstance(target, str):
        raise ArgumentTypeError(f"default_kernels takes a target and a number, got {shown(target)} and {shown(most)}")
    if target not in TARGETS or not 0 < count <= MOST_KERNELS:
        raise ArgumentError(
            f"there are default kernels for {', '.join(TARGETS)}, from 1 to {MOST_KERNELS}; got {target} and {count}"
        )
    weights: dict[KernelSource, int] = {}
    follows: dict[KernelSource, bool] = {}
    for candidate, weight in _chosen(TARGETS[target]):
        for kernel in candidate.kernels:
            source = kernel.source()
            weights[source] = weights.get(source, 0) + weight
            follows[source] = getattr(kernel, "follows", False)
    in_order = sorted(weights, key=lambda source: -weights[source])  # of equal ones the first that was met
    return tuple(WrittenKernel(source, follows[source]) for source in in_order[:count])


def _chosen(gpus: Mapping[Device, int]) -> Iterator[tuple[Candidate, int]]:
    """Yield what the pick chooses for each kind of problem, with the weight of those that it is chosen for."""
    parts = itertools.product(_OPERANDS.items(), _LAYOUTS.items(), _ALIGNED.items())
    for (operands, of_operands), (layouts, of_layouts), (aligned, of_alignment) in parts:
        kinds = {epilogue: _kind(operands, layouts, aligned, epilogue) for epilogue in _EPILOGUES}
        plain = kinds[None]
        if plain is None:
            continue
        for gpu, of_gpu in gpus.items():
            of_kind = of_operands * of_layouts * of_alignment * of_gpu
            for candidate, problems in _picks(plain, gpu).items():
                for epilogue, kind in kinds.items():
                    if kind is not None:
                        weight = problems * of_kind * _EPILOGUES[epilogue]
                        yield Candidate.of(kind, candidate.choice()), weight


def _kind(
    operands: tuple[Any, str | None], layouts: tuple[bool, bool], aligned: bool, epilogue: Any
) -> GemmKind | None:
    """Return a kind of GEMM; None where there is no such kernel."""
    of, wanted = element(operands[0]), Wanted(epilogue, precision=operands[1])
    bits = _WIDE if aligned else _NARROW
    a, b, d = (
        Form(is_row_major, max(1, bits // of_each.bits))
        for is_row_major, of_each in zip((*layouts, True), (of, of, wanted.output(of)), strict=True)
    )
    try:
        return kind_of(of, of, (a, b, None, d), wanted)
    except DescriptionError:
        return None


def _picks(kind: GemmKind, gpu: Device) -> Counter[Candidate]:
    """Return how many problems of a kind each candidate is chosen for; nothing where the GPU does not multiply it."""
    picks: Counter[Candidate] = Counter()
    step = 1 if kind.A.is_row_major else kind.A.alignment
    problems: list[tuple[tuple[int, int, int], int | None]]
    problems = [((rows, *layer), None) for rows in _ROWS if rows % step == 0 for layer in _LAYERS]
    problems += [(size, matrices) for size in _BATCHES for matrices in _MATRICES]
    try:
        pick(kind, *_LARGE, gpu=gpu)
    except ArgumentError:
        return picks
    for size, batch in problems:
        picks[pick(kind, *size, batch, gpu)] += 1
    return picks
