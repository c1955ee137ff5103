"""The operator for groups of products with an epilogue of the caller's: rows that belong to experts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from pycutlass.errors import ArgumentError
from pycutlass.plan.grouped_matmul import grouped_matmul
from pycutlass.pytorch.activations import takes_functions
from pycutlass.pytorch.fused_shapes import (
    Extents,
    check_memory,
    check_reads,
    expected_results,
    given_scalars,
    laid,
    read_in_place,
    result_shape,
)
from pycutlass.pytorch.groups import with_names_of_torch
from pycutlass.pytorch.handles import Fused, Read, fused
from pycutlass.pytorch.operators import define, plain, without_gradient
from pycutlass.pytorch.shapes import check_equal_types
from pycutlass.pytorch.targets import Expected
from pycutlass.pytorch.variants import define_outs

__all__ = ["FUSED_GROUPED_MM"]

Tensor = torch.Tensor


@dataclass(frozen=True)
class _GroupExtents(Extents):
    """Extents of all groups together, of which rows and numbers may have one each.

    Attributes
    ----------
    count : int
        How many groups there are.
    """

    count: Any = 0

    def shapes(self, read: Read) -> tuple[tuple[Any, ...], ...]:
        """Return the shapes that a tensor may have."""
        if read.form == "source":
            return ((self.rows, self.columns),)
        of_all = super().shapes(read)
        each = {"row": (self.count, *of_all[0]), "number": (self.count,)}
        return (*of_all, each[read.form]) if read.form in each else of_all

    def apart(self, read: Read, tensor: Tensor) -> Tensor:
        """Return a tensor as groups take it: what all have in common once for each."""
        if read.form == "row":
            return tensor.expand(self.count, tensor.shape[-1])
        return tensor.expand(self.count).contiguous() if read.form == "number" else tensor


def _checked(
    mat_a: Tensor, mat_b: Tensor, offs: Tensor, epilogue: str, tensors: list[Tensor]
) -> tuple[Fused, _GroupExtents]:
    """Return what is computed and its extents, or raise what is wrong with shapes and types."""
    a, b = tuple(mat_a.shape), tuple(mat_b.shape)
    if (len(a), len(b)) != (2, 3) or offs.dim() != 1:
        raise ArgumentError(
            f"mat_a must be of (rows, K), mat_b of (groups, K, N) and offs of (groups,), got shapes {a}, {b} and "
            f"{tuple(offs.shape)}: other forms are those of grouped_mm, and a batch of fused_mm"
        )
    if offs.dtype not in (torch.int32, torch.int64):
        raise ArgumentError(f"offs must be of int32, with the end of each group, got {offs.dtype}: convert it")
    check_equal_types(mat_a, mat_b, ("mat_a", "mat_b"))
    if a[1] != b[1]:
        raise ArgumentError(
            f"mat_a of shape {a} and mat_b of shape {b} have different K: {a[1]} columns of mat_a and {b[1]} rows of "
            f"mat_b"
        )
    if offs.shape[0] != b[0]:
        raise ArgumentError(f"mat_b of shape {b} is of {b[0]} groups, and offs has the ends of {offs.shape[0]}")
    made = fused(epilogue, mat_a.dtype)
    reduced = [each.name for each in made.writes if each.form != "matrix"]
    if reduced:
        raise ArgumentError(
            f"the epilogue makes {', '.join(reduced)} of many elements, and rows are divided by offs, which may be "
            f"known to a GPU alone: reduce the result in an operator of its own"
        )
    if made.is_gated and not takes_functions(mat_a):
        raise ArgumentError(
            "the epilogue combines pairs of columns, and kernels of float32 store single elements: pass operands of "
            "16 bits"
        )
    extents = _GroupExtents((), a[0], b[2], count=b[0])
    check_reads(made, tensors, extents)
    return made, extents


def _fused_grouped_mm(
    mat_a: Tensor,
    mat_b: Tensor,
    offs: Tensor,
    epilogue: str,
    tensors: list[Tensor],
    scalars: Any = (),
    *,
    fill: bool = True,
    out: list[Tensor] | None = None,
) -> list[Tensor]:
    made, extents = _checked(mat_a, mat_b, offs, epilogue, tensors)
    numbers = given_scalars(made, scalars)
    check_memory({"mat_a": mat_a, "mat_b": mat_b}, tensors)
    new = mat_a.new_zeros if fill else mat_a.new_empty
    if out is None:
        out = [new(result_shape(each, extents), dtype=each.dtype) for each in made.writes]
    results = {each.name: tensor for each, tensor in zip(made.writes, out, strict=True)}
    if not all((extents.rows, extents.columns, extents.count)):
        return [results[each.name] for each in made.writes]
    given = {
        read.name: extents.apart(read, laid(read, plain(tensor), extents))
        for read, tensor in zip(made.reads, tensors, strict=True)
    }
    function, source = made.epilogue(given), given.pop(made.source, None)
    others = {name: each for name, each in results.items() if name != "D"}
    with with_names_of_torch():
        grouped_matmul(
            *(plain(mat_a), plain(mat_b), source),
            offs=plain(offs),
            epilogue=function,
            epilogue_inputs={**given, **numbers, **others} or None,
            out=results["D"],
            allow_copy=True,
        )
    return [results[each.name] for each in made.writes]


def _fake(
    mat_a: Tensor,
    mat_b: Tensor,
    offs: Tensor,
    epilogue: str,
    tensors: list[Tensor],
    scalars: Any = (),
    *,
    fill: bool = True,
) -> list[Tensor]:
    results = _expected(mat_a, mat_b, offs, epilogue, tensors, scalars)
    return [mat_a.new_empty(each.shape, dtype=each.dtype) for each in results]


def _expected(
    mat_a: Tensor, mat_b: Tensor, offs: Tensor, epilogue: str, tensors: list[Tensor], scalars: Any = ()
) -> list[Expected]:
    made, extents = _checked(mat_a, mat_b, offs, epilogue, tensors)
    given_scalars(made, scalars)
    return expected_results(made, extents)


def _in_place(
    mat_a: Tensor, mat_b: Tensor, offs: Tensor, epilogue: str, tensors: list[Tensor], scalars: Any = ()
) -> list[tuple[int, Tensor]]:
    return read_in_place(fused(epilogue, mat_a.dtype), tensors)


FUSED_GROUPED_MM = define(
    "fused_grouped_mm(Tensor mat_a, Tensor mat_b, Tensor offs, str epilogue, Tensor[] tensors, float[] scalars=[], *, "
    "bool fill=True) -> Tensor[]",
    _fused_grouped_mm,
    _fake,
)
define_outs(FUSED_GROUPED_MM, _fused_grouped_mm, _expected, in_place=_in_place, keeps=True)
without_gradient(FUSED_GROUPED_MM)
