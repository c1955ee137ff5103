"""What measured times say beside the model: a small network that corrects its predictions, where a GPU has one.

The model knows what limits a kernel. By how much each kernel misses that depends on how its tile, its cluster and its
schedule meet a problem, for which there are no formulas but thousands of times (docs/gpu-results/pick). A network with
one hidden layer has learned the logarithm of what is missing; `tools/fit_correction.py` trains it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from pycutlass.plan.features import Features, Floats
from pycutlass.plan.prediction import Prediction, Seen

__all__ = ["LIMIT", "MOST", "OF_CANDIDATES", "OF_PROBLEMS", "Correction", "of_candidates", "of_problem"]

#: What the network reads: of a candidate, whatever the problem, and of a candidate with a problem. Those that are
#: shipped were trained without "pieces of columns" and "split lines", which have no effect there.
OF_CANDIDATES = (
    *("rows", "columns", "depth", "cluster rows", "cluster columns", "pingpong", "transposed", "stream-K"),
    *("stream-K in slices", "parallel", "slices", "swizzle", "GEMV", "bits", "A by columns", "B by rows"),
    *("D by columns", "pieces of columns"),
)
OF_PROBLEMS = (
    *("multiplying", "memory", "adding", "start", "microseconds", "waves", "use of waves", "less than a wave"),
    *("one wave", "k-tiles", "m", "n", "k", "batches", "bytes of A", "bytes of B", "bytes of D", "outside of D"),
    *("width of a strip", "strips along m", "split lines of A", "split lines of B", "split lines of D"),
)
#: Standard deviations of an input: what is farther off than all that was measured is taken as that.
LIMIT = 4.0
#: The largest correction.
MOST = float(np.exp(0.4))
_LINE = 128  # bytes that memory moves at once
_ALONE = 2**18  # multiply-adds from which on OpenBLAS wakes threads, for which a busy machine waits for milliseconds
_Singles = npt.NDArray[np.float32]


@dataclass(frozen=True, eq=False)  # compared by identity, as constants are
class Correction:
    """A network with one hidden layer, for the candidates of a GPU.

    Attributes
    ----------
    classes : frozenset of str
        Classes of products that it was trained with (`features.product_class`): others are not corrected.
    mean, scale : array of shape (inputs,)
        Of the inputs in what it was trained with; inputs are those of `OF_CANDIDATES`, then those of `OF_PROBLEMS`. The
        scale of an input that was the same in all of them is so large that it has no effect.
    hidden : array of shape (inputs, units)
        Weights of the hidden units.
    bias, weights : array of shape (units,)
        What is added in each unit, and what its hyperbolic tangent is multiplied by.
    """

    classes: frozenset[str]
    mean: _Singles
    scale: _Singles
    hidden: _Singles
    bias: _Singles
    weights: _Singles

    @classmethod
    def of(cls, record: Mapping[str, Any]) -> Correction:
        """Return the network that a file holds."""
        names = ("mean", "scale", "hidden", "bias", "weights")
        return cls(frozenset(record["classes"]), **{name: np.array(record[name], np.float32) for name in names})

    @cached_property
    def _split(self) -> int:
        return len(OF_CANDIDATES)

    def begun(self, candidates: Floats) -> _Singles:
        """Return what the inputs of `of_candidates` add to the hidden units: the same for all problems."""
        scaled = self._scaled(candidates, slice(None, self._split))
        return _product(scaled, self.hidden[: self._split]) + self.bias

    def factors(self, begun: _Singles, problem: Floats) -> Floats:
        """Return how much longer than predicted each candidate takes, from `begun` and the inputs of `of_problem`."""
        scaled = self._scaled(problem, slice(self._split, None))
        units = _product(scaled, self.hidden[self._split :])
        units += begun
        np.tanh(units, out=units)
        units *= self.weights  # and a sum: for a product with a vector, however short, OpenBLAS wakes threads
        result: Floats = np.clip(np.exp(units.sum(axis=1, dtype=np.float64)), 1 / MOST, MOST)
        return result

    def _scaled(self, inputs: Floats, part: slice) -> _Singles:
        scaled = (inputs.astype(np.float32) - self.mean[part]) / self.scale[part]
        result: _Singles = np.clip(scaled, -LIMIT, LIMIT)
        return result


def of_candidates(f: Features, kind: Any) -> Floats:
    """Return what the network reads of candidates: an array of shape (candidates, inputs)."""
    one = np.ones_like(f.rows)
    columns = (
        np.log(f.rows),
        np.log(f.columns),
        np.log(f.deep_bytes),
        np.log(f.cluster_rows),
        np.log(f.cluster_columns),
        f.is_pingpong,
        f.is_transposed,
        f.is_stream_k & (f.slices == 1),
        f.is_stream_k & (f.slices > 1),
        f.is_parallel,
        np.log(f.slices),
        np.log(f.swizzle),
        f.is_gemv,
        one * kind.A.type.bits,
        one * (not kind.A.is_row_major),
        one * kind.B.is_row_major,
        one * (not kind.D.is_row_major),
        _pieces_of_columns(f, kind),
    )
    return np.stack([np.asarray(column, np.float64) for column in columns], axis=1)


def of_problem(size: tuple[int, int, int], batches: int, found: Prediction, seen: Seen, kind: Any) -> Floats:
    """Return what the network reads of candidates with a problem of M, N and K, as `of_candidates` does."""
    m, n, k = size
    lengths = k if kind.A.is_row_major else m, n if kind.B.is_row_major else k, n if kind.D.is_row_major else m
    split = (_split(length * each.type.bits) for length, each in zip(lengths, (kind.A, kind.B, kind.D), strict=True))
    total, waves, tiling = found.microseconds, seen.waves, seen.tiling
    one = np.ones_like(total)
    whole = np.maximum(np.ceil(waves), 1.0)
    computed = tiling.visited * seen.features.rows * seen.features.columns
    columns = (
        _log(found.multiplying / total),
        _log(found.memory / total),
        np.log1p(found.adding),
        seen.start / total,
        np.log(total),
        _log(waves),
        waves / whole,
        np.minimum(waves, 1.0),
        whole == 1,
        np.log(seen.k_tiles),
        *(one * np.log(extent) for extent in (*size, batches)),
        *(one * np.log(batches * each) for each in seen.moved),
        np.log(computed / (size[0] * size[1])),
        np.log(np.maximum(tiling.width, 1.0)),
        tiling.is_along_m,
        *(one * share for share in split),
    )
    return np.stack([np.asarray(column, np.float64) for column in columns], axis=1)


def _pieces_of_columns(f: Features, kind: Any) -> Floats:
    """Return the logarithm of how many loads 128 bytes of columns take, where these are adjacent, and not K.

    A load takes up to 128 bytes, 64 columns of f16, and a power of two of columns, which divides those of the tile: 192
    columns are 3 loads of 64, one for 128 bytes, and 176 are 11 of 16, four for 128 bytes.
    """
    most = 8 * _LINE // kind.B.type.bits
    is_along = np.where(f.is_transposed, not kind.A.is_row_major, kind.B.is_row_major) & ~f.is_gemv
    widths = np.gcd(f.columns.astype(np.int64), most)
    return np.where(is_along, np.log(most / np.maximum(widths, 1)), 0.0)


def _split(bits: int) -> float:
    """Return of a packed matrix whose rows, or columns, have so many bits, which share of them begins within a line.

    What tiles load of such a row lies in one line more. That costs those the most that share no loads in a cluster.
    """
    return 1 - math.gcd(bits // 8, _LINE) / _LINE


def _product(rows: _Singles, columns: _Singles) -> _Singles:
    """Return a product of matrices, by parts that are too small for a BLAS to wake threads, and to wait for them."""
    step = max(1, (_ALONE - 1) // columns.size)
    parts = [rows[first : first + step] @ columns for first in range(0, len(rows), step)]
    result: _Singles = np.concatenate(parts)
    return result


def _log(values: Floats) -> Floats:
    result: Floats = np.log(np.maximum(values, 1e-3))
    return result
