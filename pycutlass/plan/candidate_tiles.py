"""Which Hopper-native tiles are worth considering, and in how many slices of K."""

from __future__ import annotations

import itertools

from pycutlass.enums import KernelSchedule

__all__ = [
    "DEEP_COLUMNS",
    "LONG",
    "NATIVE",
    "OF_PROMOTED",
    "PARALLEL",
    "PARALLEL_OF_PROMOTED",
    "PARALLEL_SLICES",
    "PLACES",
    "SLICES",
    "SLICES_OF_LONG",
    "STREAM_K",
    "SWAPPED",
    "SWAPPED_OF_MEDIUM",
    "SWAPPED_PLACES",
    "SWAPPED_SLICES",
]

_PINGPONG, _COOPERATIVE = KernelSchedule.Pingpong, KernelSchedule.Cooperative
_Shape = tuple[int, int]

#: Rows and columns of Hopper-native tiles, with their clusters. Clusters share what they load: rows of 64 are small
#: enough to go without, of two tiles of 256 rows it is B that is worth sharing.
NATIVE: tuple[tuple[KernelSchedule, int, tuple[int, ...], tuple[_Shape, ...]], ...] = (
    (_COOPERATIVE, 256, (192, 160, 128, 96), ((1, 2), (2, 1), (1, 1))),
    (_COOPERATIVE, 128, (256, 224, 192, 160, 128), ((2, 1), (1, 2), (1, 1))),
    (_COOPERATIVE, 128, (176,), ((2, 1), (1, 1))),
    (_COOPERATIVE, 192, (144, 96), ((1, 1),)),
    (_COOPERATIVE, 128, (80,), ((1, 1),)),
    (_PINGPONG, 192, (128, 96), ((2, 1), (1, 1))),
    (_PINGPONG, 128, (192, 160, 128, 96, 64), ((2, 1), (1, 2), (1, 1))),
    (_PINGPONG, 64, (256, 192, 128, 96, 64, 32, 16), ((1, 1), (2, 1))),
)
#: The same where threads add up what tensor cores have of products of 8-bit floats: a thread has sums twice, so that
#: tiles have 192 columns at most, and steps between them matter more.
OF_PROMOTED: tuple[tuple[KernelSchedule, int, tuple[int, ...], tuple[_Shape, ...]], ...] = (
    (_COOPERATIVE, 128, (144,), ((2, 1), (1, 1))),
)
#: Columns up to which tiles of 64 rows are tried with twice the K: with few sums, waiting for K is what takes long.
DEEP_COLUMNS = 128
#: Rows and columns of the transposed problem's tiles, for few rows of the problem.
SWAPPED = tuple((*each, (8, 16, 32, 64, 128)) for each in ((_PINGPONG, 64), (_PINGPONG, 128), (_COOPERATIVE, 128)))
#: The same for problems of medium size, whose tiles may just fill the multiprocessors once: for types whose predictions
#: are corrected by what was measured of them.
SWAPPED_OF_MEDIUM = ((_PINGPONG, 64, (96, 112)), (_COOPERATIVE, 128, (80,)))
#: Cooperative tiles that stream-K divides, and those of which a second kernel adds up the slices.
STREAM_K = (
    *(((128, 128), (1, 1)), ((128, 160), (1, 1)), ((128, 192), (2, 1)), ((128, 256), (2, 1))),
    ((256, 128), (1, 2)),
)
PARALLEL = (
    *((_PINGPONG, (64, 128), (1, 1)), (_PINGPONG, (128, 128), (1, 1)), (_PINGPONG, (128, 128), (2, 1))),
    *((_COOPERATIVE, (128, 256), (2, 1)), (_COOPERATIVE, (256, 128), (1, 2))),
)
PARALLEL_OF_PROMOTED = ((_COOPERATIVE, (128, 128), (1, 1)),)
#: Those of products with a long K and few tiles, and of their transposed problems: such columns fit extents that 128 or
#: 256 columns do not.
LONG = tuple(
    (_COOPERATIVE, shape, (1, 1)) for shape in ((128, 112), (128, 144), (128, 160), (128, 192), (192, 144), (256, 112))
)
#: Numbers of slices: of stream-K, of the transposed problem's, of partial sums, and of those of long products.
SLICES, SWAPPED_SLICES = (2, 3, 4, 6, 8, 12, 16, 32), (2, 4, 8, 16)
PARALLEL_SLICES, SLICES_OF_LONG = (2, 3, 4, 5, 6, 7, 8, 12, 16, 32), (2, 3, 4, 5, 6, 7, 8, 11, 16)
#: Schedule, rows, columns and cluster of all Hopper-native tiles that are listed: others are not even described.
PLACES = frozenset(
    (
        *((schedule, rows, columns, *cluster) for schedule, rows, widths, clusters in (*NATIVE, *OF_PROMOTED)
          for columns, cluster in itertools.product(widths, clusters)),
        *((_COOPERATIVE, *shape, *cluster) for shape, cluster in STREAM_K),
        *((schedule, *shape, *cluster) for schedule, shape, cluster in (*PARALLEL, *PARALLEL_OF_PROMOTED, *LONG)),
    )
)  # fmt: skip
SWAPPED_PLACES = frozenset(
    (
        *(
            (schedule, rows, columns, 1, 1)
            for schedule, rows, widths in (*SWAPPED, *SWAPPED_OF_MEDIUM)
            for columns in widths
        ),
        *((schedule, *shape, *cluster) for schedule, shape, cluster in LONG),
    )
)
