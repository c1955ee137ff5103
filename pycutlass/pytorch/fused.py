"""Operators for products and convolutions with an epilogue of the caller's, by its name or its handle.

Tensors, scalars and results are lists, in the order in which the epilogue function has them.
"""

from __future__ import annotations

from typing import Any

import torch

from pycutlass.errors import ArgumentError
from pycutlass.plan.convolutions import conv2d
from pycutlass.plan.matmul import matmul
from pycutlass.pytorch.activations import takes_functions
from pycutlass.pytorch.fused_shapes import (
    Extents,
    check_memory,
    check_reads,
    check_results,
    expected_results,
    folded,
    given_scalars,
    laid,
    read_in_place,
    result_shape,
    unfolded,
    with_adjacent_k,
)
from pycutlass.pytorch.handles import Fused, fused
from pycutlass.pytorch.images import Geometry, as_rows, is_product, new_images
from pycutlass.pytorch.operators import define, plain, without_gradient
from pycutlass.pytorch.shapes import check_equal_types, product_shape
from pycutlass.pytorch.targets import Expected
from pycutlass.pytorch.variants import define_outs

__all__ = ["FUSED_CONV2D", "FUSED_MM"]

Tensor = torch.Tensor
_NAMES = ("mat_a", "mat_b")


def _checked(mat_a: Tensor, mat_b: Tensor, epilogue: str, tensors: list[Tensor]) -> tuple[Fused, Extents]:
    """Return what is computed and its extents, or raise what is wrong with shapes and types."""
    for name, each in zip(_NAMES, (mat_a, mat_b), strict=True):
        if each.dim() not in (2, 3):
            raise ArgumentError(
                f"{name} must be a matrix, or a batch of matrices of three dimensions, got shape {tuple(each.shape)}"
            )
    if mat_a.dtype is not mat_b.dtype:
        check_equal_types(mat_a, mat_b, _NAMES)
    *batch, rows = mat_a.shape[:-1] if mat_a.dim() == 3 else (*mat_b.shape[:-2], mat_a.shape[0])
    columns = mat_b.shape[-1]
    if mat_a.shape[-1] != mat_b.shape[-2] or [*mat_b.shape[:-2]] not in (batch, []):
        # What finds out how axes broadcast takes a tenth of a millisecond.
        *batch, rows, columns = product_shape(mat_a, mat_b, _NAMES)
    made = fused(epilogue, mat_a.dtype)
    if made.is_gated and not takes_functions(mat_a):
        raise ArgumentError(
            "the epilogue combines pairs of columns, and kernels of float32 store single elements: allow "
            "tf32, by torch.backends.cuda.matmul.fp32_precision = 'tf32', or pass operands of 16 bits"
        )
    extents = Extents(tuple(batch), rows, columns)
    check_reads(made, tensors, extents)
    return made, extents


def _fused_mm(
    mat_a: Tensor,
    mat_b: Tensor,
    epilogue: str,
    tensors: list[Tensor],
    scalars: Any = (),
    *,
    out: list[Tensor] | None = None,
) -> list[Tensor]:
    made, extents = _checked(mat_a, mat_b, epilogue, tensors)
    numbers = given_scalars(made, scalars)
    check_results(made, extents)
    check_memory({"mat_a": mat_a, "mat_b": mat_b}, tensors)
    a, b, taken = plain(mat_a), plain(mat_b), [plain(each) for each in tensors]
    whole = extents
    if extents.batch:
        a, b, taken, extents = folded(made, a, b, taken, extents)
    if not mat_a.dtype.is_floating_point and not made.is_plain:
        a, b = with_adjacent_k(a, b)
    written = _given_results(made, out, extents)
    if out is None:
        written = {
            each.name: mat_a.new_empty(result_shape(each, extents), dtype=each.dtype)
            for each in made.writes
            if each.name != "D"
        }
    given = {each.name: laid(each, tensor, extents) for each, tensor in zip(made.reads, taken, strict=True)}
    function, source = made.epilogue(given), given.pop(made.source, None)
    target = written.pop("D", None)
    written["D"] = matmul(
        *(a, b, source),
        epilogue=function,
        epilogue_inputs={**given, **numbers, **written} or None,
        out=target,
        out_dtype=made.output.dtype,
        allow_copy=True,
    )
    return [unfolded(written[each.name], each, whole) for each in made.writes]


def _given_results(made: Fused, out: list[Tensor] | None, extents: Extents) -> dict[str, Tensor]:
    """Return memory for results by name, in the shapes that a product of these extents has."""
    if out is None:
        return {}
    shapes = ((each, result_shape(each, extents)) for each in made.writes)
    return {
        each.name: tensor if tuple(tensor.shape) == shape else tensor.view(shape)
        for (each, shape), tensor in zip(shapes, out, strict=True)
    }


def _fake_mm(mat_a: Tensor, mat_b: Tensor, epilogue: str, tensors: list[Tensor], scalars: Any = ()) -> list[Tensor]:
    results = _expected_of_mm(mat_a, mat_b, epilogue, tensors, scalars)
    return [mat_a.new_empty(each.shape, dtype=each.dtype) for each in results]


def _expected_of_mm(
    mat_a: Tensor, mat_b: Tensor, epilogue: str, tensors: list[Tensor], scalars: Any = ()
) -> list[Expected]:
    made, extents = _checked(mat_a, mat_b, epilogue, tensors)
    given_scalars(made, scalars)
    return expected_results(made, extents)


def _fused_conv2d(
    input: Tensor,
    weight: Tensor,
    stride: Any,
    padding: Any,
    dilation: Any,
    groups: Any,
    epilogue: str,
    tensors: list[Tensor],
    scalars: Any = (),
    *,
    out: list[Tensor] | None = None,
) -> list[Tensor]:
    geometry = Geometry(stride, padding, dilation, groups)
    made, extents = _checked_images(input, weight, geometry, epilogue, tensors)
    check_memory({"input": input, "weight": weight}, tensors)
    if is_product(geometry, weight):
        n, k, p, q = extents.images
        rows = [as_rows(each) if each.dim() == 4 else each for each in tensors]
        into = None if out is None else [as_rows(each) if each.dim() == 4 else each for each in out]
        a, b = as_rows(input), weight.reshape(k, -1).t()
        found = _fused_mm(a, b, epilogue, rows, scalars, out=into)
        matrices = [each.form == "matrix" for each in made.writes]
        return [
            each.view(n, p, q, k).permute(0, 3, 1, 2) if is_matrix else each
            for each, is_matrix in zip(found, matrices, strict=True)
        ]
    numbers = given_scalars(made, scalars)
    check_results(made, extents)
    taken = [plain(each) for each in tensors]
    if out is None:
        written = {each.name: _new(input, each, extents) for each in made.writes if each.name != "D"}
    else:
        written = {each.name: tensor for each, tensor in zip(made.writes, out, strict=True)}
    given = {each.name: laid(each, tensor, extents) for each, tensor in zip(made.reads, taken, strict=True)}
    function, source = made.epilogue(given), given.pop(made.source, None)
    target = written.pop("D", None)
    written["D"] = conv2d(
        *(plain(input), plain(weight), source),
        **geometry.options,
        epilogue=function,
        epilogue_inputs={**given, **numbers, **written} or None,
        out=target,
        out_dtype=made.output.dtype,
        allow_copy=True,
    )
    return [written[each.name] for each in made.writes]


def _fake_conv2d(
    input: Tensor,
    weight: Tensor,
    stride: Any,
    padding: Any,
    dilation: Any,
    groups: Any,
    epilogue: str,
    tensors: list[Tensor],
    scalars: Any = (),
) -> list[Tensor]:
    given = (input, weight, stride, padding, dilation, groups, epilogue, tensors, scalars)
    return [
        new_images(input, each.shape, each.dtype) if each.is_images else input.new_empty(each.shape, dtype=each.dtype)
        for each in _expected_of_conv2d(*given)
    ]


def _expected_of_conv2d(
    input: Tensor,
    weight: Tensor,
    stride: Any,
    padding: Any,
    dilation: Any,
    groups: Any,
    epilogue: str,
    tensors: list[Tensor],
    scalars: Any = (),
) -> list[Expected]:
    geometry = Geometry(stride, padding, dilation, groups)
    made, extents = _checked_images(input, weight, geometry, epilogue, tensors)
    given_scalars(made, scalars)
    return expected_results(made, extents)


def _checked_images(
    input: Tensor, weight: Tensor, geometry: Geometry, epilogue: str, tensors: list[Tensor]
) -> tuple[Fused, Extents]:
    """Return what is computed and its extents, or raise what is wrong with shapes and types."""
    check_equal_types(input, weight, ("input", "weight"))
    shape = geometry.output(input.shape, weight.shape)
    made = fused(epilogue, input.dtype)
    n, k, p, q = shape
    extents = Extents((), n * p * q, k, shape)
    check_reads(made, tensors, extents)
    return made, extents


def _new(input: Tensor, written: Any, extents: Extents) -> Tensor:
    """Return memory for a result of a convolution."""
    if written.form == "matrix":
        return new_images(input, extents.images, written.dtype)
    return input.new_empty(result_shape(written, extents), dtype=written.dtype)


def _in_place(*args: Any, **_: Any) -> list[tuple[int, Tensor]]:
    """Return D with what the epilogue reads of the same extents, which may be the same matrix."""
    at = next(number for number, each in enumerate(args) if isinstance(each, str))
    return read_in_place(fused(args[at], args[0].dtype), args[at + 1])


FUSED_MM = define(
    "fused_mm(Tensor mat_a, Tensor mat_b, str epilogue, Tensor[] tensors, float[] scalars=[]) -> Tensor[]",
    _fused_mm,
    _fake_mm,
    repeats=True,
)
FUSED_CONV2D = define(
    "fused_conv2d(Tensor input, Tensor weight, SymInt[2] stride, SymInt[2] padding, SymInt[2] dilation, "
    "SymInt groups, str epilogue, Tensor[] tensors, float[] scalars=[]) -> Tensor[]",
    _fused_conv2d,
    _fake_conv2d,
    repeats=True,
)
define_outs(FUSED_MM, _fused_mm, _expected_of_mm, in_place=_in_place)
define_outs(FUSED_CONV2D, _fused_conv2d, _expected_of_conv2d, in_place=_in_place)
without_gradient(FUSED_MM)
without_gradient(FUSED_CONV2D)
