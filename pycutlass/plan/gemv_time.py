"""How long GEMV kernels take, predicted from what is known of the GPU."""

from __future__ import annotations

import numpy as np

from pycutlass.plan.constants import Constants
from pycutlass.plan.conv_kind import Conv2dKind
from pycutlass.plan.features import Features, Floats
from pycutlass.plan.kind import GemmKind
from pycutlass.plan.traffic import Tiling

__all__ = ["ORDER", "gemv_microseconds"]

#: Order of the norm of terms that hide each other. Of two that are equal, it takes 1.12 times as long as either.
ORDER = 6.0
#: From how many bytes of a row on kernels wait for pages of the memory, and of which lines they do not.
_ROW_BYTES, _STRIP_BYTES = 6144.0, 256


def gemv_microseconds(
    kind: GemmKind | Conv2dKind,
    f: Features,
    g: Constants,
    element_bytes: tuple[float, float, float],
    size: tuple[int, int, int | Floats],
    batches: int,
    tiling: Tiling,
) -> Floats:
    """Return the microseconds of kernels of CUDA cores, which wait for memory or convert and multiply.

    Parameters
    ----------
    kind : GemmKind or Conv2dKind
        What is computed.
    f, g : Features, Constants
        What is known of the candidates and of the GPU.
    element_bytes : tuple of 3 float
        Of an element of A and of B, and of all that the epilogue moves for a sum.
    size, batches : tuple of int, int
        M, N and K of one product, and how many there are.
    tiling : Tiling
        The tiles of the problem.
    """
    (of_a, of_b, of_d), (m, n, k) = element_bytes, size
    read = batches * (m * k * of_a + k * n * of_b + m * n * of_d) * tiling.along_m
    blocks = tiling.along_m * tiling.along_n * batches
    at_once = np.minimum(blocks, g.sm_count * f.occupancy)
    in_flight = at_once * f.columns * f.deep_bytes  # a thread loads all of its part of a tile before it multiplies
    bandwidth = np.minimum(g.dram_gb_per_s * g.gemv["efficiency"] * 1e3, in_flight / g.gemv["latency_us"])
    per_cycle = g.gemv["macs_per_cycle"] * np.minimum(at_once, g.sm_count)
    macs = blocks * f.rows * f.columns * (np.ceil(k / f.depth) * f.depth)
    computing = macs / (per_cycle * g.clock_ghz * 1e3)
    # Each block loads its rows of A, most of which others load as well, from the caches.
    of_block = (f.rows * g.gemv["shared_share"] + f.columns) * k * max(of_a, of_b)
    cached = blocks * of_block / (g.l2_gb_per_s * 1e3)
    reading = read / bandwidth * _strided(kind, f, g, element_bytes, m, n)
    work = (reading**ORDER + cached**ORDER + computing**ORDER) ** (1 / ORDER)
    result: Floats = g.gemv["start_us"] + work
    return result


def _strided(
    kind: GemmKind | Conv2dKind, f: Features, g: Constants, element_bytes: tuple[float, float, float], m: int, n: int
) -> Floats:
    """Return how much longer kernels read a matrix that does not lie along K.

    Each line of a strip is on another page of the memory, where rows are long. Wide strips are worth that.
    """
    of_a, of_b, _ = element_bytes
    row = np.where(f.is_transposed, m * of_a, n * of_b)
    line = f.columns * np.where(f.is_transposed, of_a, of_b)
    along_k = np.where(f.is_transposed, kind.A.is_row_major, not kind.B.is_row_major)
    octaves = np.maximum(np.log2(row / _ROW_BYTES), 0.0)
    result: Floats = 1.0 + g.gemv["strided"] * np.where(along_k | (line >= _STRIP_BYTES), 0.0, octaves)
    return result
