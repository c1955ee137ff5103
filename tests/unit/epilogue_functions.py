"""Epilogue functions for tests."""

from __future__ import annotations

import math
from typing import Any

import pycutlass
from pycutlass import cutlass, epilogue
from pycutlass.epilogue import Column, PerBatch, Row, Scalar, Source, Tensor, gelu, maximum, where

__all__ = [
    "EVERY",
    "FUNCTIONS",
    "biased",
    "gated",
    "gated_reduced",
    "gated_routed",
    "gated_several",
    "gated_tiles",
    "in_other_layouts",
    "linear",
    "of_batch",
    "residual",
    "routed",
    "scaled",
    "selecting",
    "several",
    "tile_sums",
]


@pycutlass.epilogue_function
def linear(accum: Any, c: Source, alpha: Scalar = 1.0, beta: Scalar = 1.0) -> Any:
    return alpha * accum + beta * c


@pycutlass.epilogue_function
def biased(accum: Any, bias: Row) -> Any:
    return maximum(accum + bias, 0.0)


@pycutlass.epilogue_function
def scaled(accum: Any, left: Column, right: Row, bias: Row) -> Any:
    return accum * left * right + bias


@pycutlass.epilogue_function
def residual(accum: Any, bias: Row, addend: Tensor, alpha: Scalar = 1.0) -> Any:
    t = alpha * accum + bias
    return {"D": gelu(t) + addend, "T": t}


@pycutlass.epilogue_function
def several(accum: Any, c: Source, x: Tensor, y: Tensor, left: Column, slope: Scalar = 0.5) -> Any:
    t = where(accum > x, accum - y, slope * c)
    return {"D": t * left, "first": t, "second": t * t - x}


def in_other_layouts(output: Any, alignment: int, accumulator: Any, layout: Any) -> Any:
    """Return `several` with two matrices, one of which is written, that lie in the order of `layout`."""
    y, second = (pycutlass.TensorDescription(kind, layout, 4) for kind in (cutlass.float16, pycutlass.cutlass.float32))
    return several(output, alignment, accumulator, y=y, second=second)


@pycutlass.epilogue_function
def reduced(accum: Any, bias: Row) -> Any:
    t = accum + bias
    return {
        "D": maximum(t, 0.0),
        "row_sum": epilogue.sum(t, axis=1),
        "row_max": epilogue.max(t, axis=1),
        "column_sum": epilogue.sum(t, axis=0),
        "column_squares": epilogue.sum_of_squares(t * 0.125, axis=0),
        "least": epilogue.min(t),
        "most": epilogue.absmax(accum),
    }


@pycutlass.epilogue_function
def of_batch(accum: Any, scale: PerBatch, bias: Row, shift: PerBatch(cutlass.float32)) -> Any:  # type: ignore[valid-type]
    t = accum * scale + bias
    return {"D": t + shift, "T": t}


@pycutlass.epilogue_function
def gated(accum: Any, bias: Row, left: Column, alpha: Scalar = 0.5) -> Any:
    even, odd = epilogue.pairs(accum + bias)
    even_bias, odd_bias = epilogue.pairs(bias * 2.0)
    return where(even > odd, (even - odd) * left, 0.0) + maximum(odd, -3.0) * alpha + even_bias - odd_bias


@pycutlass.epilogue_function
def gated_several(
    accum: Any, x: Tensor, bias: Row, residual: Tensor, shift: Row, left: Column, second: Tensor, alpha: Scalar = 0.5
) -> Any:
    """Tensors of (M, N) before pairs, and of (M, N / 2) behind them: the first of these may be D itself."""
    t = accum * alpha + bias - x
    even, odd = epilogue.pairs(t)
    d = maximum(even, -2.0) * odd + shift * left
    return {"D": d + residual, "pre": t, "T": d - second, "other": where(residual > second, even, shift)}


@pycutlass.epilogue_function
def gated_reduced(accum: Any, bias: Row, residual: Tensor) -> Any:
    even, odd = epilogue.pairs(accum + bias)
    t = where(even > odd, even - odd, 0.5 * (odd - even)) + residual  # the same of both, where rounding decides
    return {
        "D": t,
        "row_most": epilogue.absmax(t, axis=1),
        "row_squares": epilogue.sum_of_squares(t * 0.125, axis=1),
        "column_sum": epilogue.sum(even - odd, axis=0),
        "most": epilogue.max(odd),
        "pre": accum,
    }


@pycutlass.epilogue_function
def routed(accum: Any, bias: Row) -> Any:
    """Of small integers, many of which are alike: with roots that are NaN, infinities, and zeros of two signs."""
    logits = accum + bias
    values, indices = epilogue.top_k(logits, 2)
    roots, of_roots = epilogue.top_k(where(logits < 0.0, -math.inf, epilogue.sqrt(logits - 4.0)), 8)
    _, alike = epilogue.top_k(logits * 0.0, 3)
    return {
        "D": logits,
        "values": values,
        "indices": indices,
        "roots": roots,
        "of_roots": of_roots,
        "alike": alike,
        "total": epilogue.sum(logits, axis=1),
    }


@pycutlass.epilogue_function
def gated_routed(accum: Any, bias: Row) -> Any:
    even, odd = epilogue.pairs(accum + bias)
    t = maximum(even, odd)
    values, indices = epilogue.top_k(t, 3)
    return {"D": t, "values": values, "indices": indices, "most": epilogue.max(t, axis=0)}


def selecting(k: int) -> Any:
    """Return a function that selects the `k` largest of each row."""

    @pycutlass.epilogue_function
    def of_rows(accum: Any) -> Any:
        values, indices = epilogue.top_k(accum, k)
        return {"D": accum, "values": values, "indices": indices}

    return of_rows


def gated_tiles(rows: int, columns: int) -> Any:
    """Return a function that leaves results of each tile, of tiles of `rows` x `columns` of the product."""

    @pycutlass.epilogue_function
    def of_tiles(accum: Any, bias: Row) -> Any:
        even, odd = epilogue.pairs(accum)
        t = even * 0.5 - odd + bias
        return {
            "D": t,
            "scales": epilogue.absmax(t, axis=1, tile=columns // 2),
            "column_greatest": epilogue.max(t, axis=0, tile=rows),
            "column_sum": epilogue.sum(t, axis=0),
        }

    return of_tiles


def tile_sums(rows: int, columns: int) -> Any:
    """Return a function that leaves sums of each tile, of tiles of `rows` x `columns`."""

    @pycutlass.epilogue_function
    def of_tiles(accum: Any, bias: Row) -> Any:
        t = accum + bias
        return {
            "D": maximum(t, 0.0),
            "row_sums": epilogue.sum(t, axis=1, tile=columns),
            "column_greatest": epilogue.max(t, axis=0, tile=rows),
            "row_sum": epilogue.sum(t, axis=1),
        }

    return of_tiles


FUNCTIONS = {each.name: each for each in (linear, biased, scaled, residual, several, reduced, of_batch)}
#: With those that some families take alone.
EVERY = FUNCTIONS | {each.name: each for each in (gated, gated_several, gated_reduced, routed, gated_routed)}
