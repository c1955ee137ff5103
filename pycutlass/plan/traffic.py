"""In which order kernels visit the tiles of D, and how often that has memory deliver A and B.

Beside these are D and what an epilogue reads and writes with it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pycutlass.epilogue import Epilogue
from pycutlass.library import TensorDescription
from pycutlass.plan.features import Bools, Features, Floats

__all__ = ["Tiling", "bytes_of_sum"]


def bytes_of_sum(epilogue: Epilogue, C: TensorDescription, D: TensorDescription, source: str | None = None) -> float:
    """Return the bytes that an epilogue reads and writes for each sum: of D, C and its other matrices.

    Its vectors do not count: they have an element for each row or column. A C whose beta decides whether it is read
    counts where `source` is ``"matrix"``.
    """
    bits: float = D.type.bits * epilogue.columns(2) / 2
    bits += sum(port.type.bits * port.columns(2) / 2 for port in epilogue.ports if port.form == "matrix")
    bits += C.type.bits if epilogue.reads_source or source == "matrix" else 0
    return bits / 8


@dataclass(frozen=True)
class Tiling:
    """The tiles of a problem: arrays with an entry for each candidate.

    Tiles are visited in strips. A strip is `width` tiles wide and goes along all of the other extent; its tiles side by
    side are computed at the same time, and share what they load.

    Attributes
    ----------
    along_m, along_n : array
        Tiles of D along the rows and columns of the kernel, in whole clusters.
    visited : array
        All that are visited. A Hopper-native kernel computes tiles outside of D like others where its swizzle fills
        their number up.
    width : array
        Of a strip, in tiles.
    is_along_m : array
        Whether strips go along the rows.
    """

    along_m: Floats
    along_n: Floats
    visited: Floats
    width: Floats
    is_along_m: Bools

    @classmethod
    def of(cls, f: Features, rows: Floats, columns: Floats) -> Tiling:
        """Return the tiles of a problem of so many rows and columns of each kernel.

        Source: cutlass/gemm/kernel/tile_scheduler_params.h, get_log_swizzle_size and get_rasterization_order, for
        Hopper-native kernels; cutlass/gemm/threadblock/threadblock_swizzle.h for others, whose strips go along the
        rows and whose threadblocks outside of D end at once.
        """
        along_m = _up(np.ceil(rows / f.rows), f.cluster_rows)
        along_n = _up(np.ceil(columns / f.columns), f.cluster_columns)
        fewest = np.where(f.is_native, np.minimum(along_m, along_n), along_n)
        swizzle = np.select(
            [(f.swizzle >= asked) & (fewest >= least) for asked, least in ((8, 6), (4, 3), (2, 2))],
            [8.0, 4.0, 2.0],
            1.0,
        )
        filled = _up(along_m, swizzle * f.cluster_rows) * _up(along_n, swizzle * f.cluster_columns)
        is_along_m = ~f.is_native | (_up(along_n, swizzle * f.cluster_columns) > _up(along_m, swizzle * f.cluster_rows))
        width = swizzle * np.where(is_along_m, f.cluster_columns, f.cluster_rows)
        across = np.where(is_along_m, along_n, along_m)
        return cls(
            along_m, along_n, np.where(f.is_native, filled, along_m * along_n), np.minimum(width, across), is_along_m
        )

    def read(
        self, of_rows: Floats, of_columns: Floats, places: Floats, kept: float, sharpness: float, in_wave: float
    ) -> Floats:
        """Return how many bytes of A and B memory delivers.

        What varies across a strip is read once. What varies along it is read again for each strip, unless it is still
        in the L2 cache; of strips that are computed at the same time some share it, as far as they keep step.

        Parameters
        ----------
        of_rows, of_columns : array
            Bytes of the operands that have the rows and the columns of the kernel.
        places : array
            Tiles that are computed at once.
        kept : float
            Bytes of an operand of which half is still in the cache when the next strip comes.
        sharpness : float
            Power of the bytes by which the rest is more.
        in_wave : float
            Power of the number of strips at the same time by which they are read less often.
        """
        along, across = np.where(self.is_along_m, (of_rows, of_columns), (of_columns, of_rows))
        length = np.where(self.is_along_m, self.along_m, self.along_n)
        strips = np.where(self.is_along_m, self.along_n, self.along_m) / self.width
        together = np.clip(places / (length * self.width), 1.0, strips)
        again = np.maximum(strips / together**in_wave, 1.0) - 1.0
        missed = 1.0 / (1.0 + (kept / np.maximum(along, 1.0)) ** sharpness)
        result: Floats = along * (1.0 + again * missed) + across
        return result


def _up(values: Floats, steps: Floats) -> Floats:
    result: Floats = np.ceil(values / steps) * steps
    return result
