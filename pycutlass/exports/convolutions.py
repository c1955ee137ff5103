"""Convolutions as they are exported."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from pycutlass import _core
from pycutlass.epilogue import Port
from pycutlass.errors import ArgumentError
from pycutlass.exports.described import (
    EXTENT_M,
    Described,
    ExportedTensor,
    Variant,
    check_extents,
    checked_scalars,
    range_to,
)
from pycutlass.operands.epilogue import packed_port
from pycutlass.operation.conv2d_support import byte_limit, launched_size
from pycutlass.plan.conv2d import Conv2d
from pycutlass.plan.conv_candidate import Conv2dCandidate
from pycutlass.plan.conv_problem import extents_of, with_images

__all__ = ["described_conv2d"]

_Operator, _Mode = _core.ConvOperator, _core.SplitKMode
_MOST_IMAGES = 1 << 31
#: Two numbers of images by which it is seen how extents follow from them.
_PROBES = 11, 13


def described_conv2d(plan: Conv2d, name: str, extents: Iterable[int] = ()) -> Described:
    """Return what is exported of a plan: the kernels for its own number of images, and for `extents`.

    Raises
    ------
    ArgumentError
        A kernel or an epilogue that programs without Python cannot launch, with the reason.
    """
    problem, chosen, added = plan.problem_size, plan._choices, plan._added
    for extent in (*extents, problem.N):
        chosen.of(extent)
    ranges = {(range_to(most), most): candidate for most, candidate in chosen._picked.items()}
    measured = {**chosen._measured, **{n: each for n, each in chosen._looked_up.items() if each is not None}}
    ranges |= {(extent, extent): candidate for extent, candidate in measured.items()}
    first = next(iter(ranges.values()))
    _check(first)
    source = "c" if added.takes_c else "bias" if added.bias == "c" else None
    tensors = _tensors(plan, first, source)
    roles = (0, 1, 2 if source else -1, 3 if source else 2)
    size = first.size(problem)
    fields = (
        *(size.N, size.H, size.W, size.C, size.K, size.R, size.S, size.P, size.Q, size.pad_h, size.pad_w),
        *(size.stride_h, size.stride_w, size.dilation_h, size.dilation_w, size.mode.value, size.groups),
    )
    epilogue = plan.kind.epilogue
    what = f"{plan.kind.direction.name} of {problem!r}, any number of images"
    scalars = checked_scalars(epilogue.scalar_names, epilogue.epilogue_type(**plan._scalars))
    variants = tuple(
        _variant(bounds, candidate, problem, tensors, 1 + max(roles))
        for bounds, candidate in sorted(ranges.items(), key=lambda each: (each[0][1], each[0][0]))
    )
    return Described(
        name,
        what,
        plan.kind.direction.name,
        problem.N,
        0,
        0,
        0,
        fields,
        tensors,
        roles,
        1 + max(roles),
        scalars,
        epilogue,
        variants,
    )


def _check(candidate: Conv2dCandidate) -> None:
    operation = candidate.operation
    if candidate.is_by_group:
        raise ArgumentError(
            "the kernel is launched once for each group of channels, which exported programs do not do: export a plan "
            "of one group"
        )
    for letter, each in zip("ABC", (operation.A, operation.B, operation.C), strict=True):
        if each.order.interleave > 1:
            raise ArgumentError(
                f"{letter} has the interleaved layout {each.order.name}, whose elements exported programs do not "
                f"reorder: export a kernel for TensorNHWC"
            )


def _tensors(plan: Conv2d, candidate: Conv2dCandidate, source: str | None) -> tuple[ExportedTensor, ...]:
    operation, problem, direction = candidate.operation, plan.problem_size, plan.kind.direction
    two = [extents_of(direction, with_images(problem, images)) for images in _PROBES]

    def pixels(name: str, number: int, **further: Any) -> ExportedTensor:
        of = (operation.A, operation.B, operation.C)[number]
        extents = check_extents(name, [each[number] for each in two], _PROBES)
        return ExportedTensor(name, of.type, "pixels", extents, **further)

    made = [pixels("a", 0), pixels("b", 1)]
    out = pixels("out", 2, written=True)
    if source == "c":
        made.append(pixels("c", 2, in_place=True))
    elif source == "bias":
        made.append(ExportedTensor("bias", operation.C.type, "line", (out.extents[3],)))
    made.append(out)
    functor = operation.epilogue_functor
    for port in functor.ports:
        made.append(_port(port, plan, out, port in functor.outputs, port.name in functor.matrices_read))
    return tuple(made)


def _port(port: Port, plan: Conv2d, out: ExportedTensor, written: bool, in_place: bool) -> ExportedTensor:
    direction = plan.kind.direction
    if port.form == "matrix":
        if direction is _Operator.wgrad:
            raise ArgumentError(
                f"{port.name} is a tensor beside a gradient of filters, which exported programs do not take: export a "
                f"plan without it"
            )
        return ExportedTensor(port.name, port.type, "pixels", out.extents, written=written, in_place=in_place)
    shapes = []
    for images in _PROBES:
        product = _core.implicit_gemm_problem_size(direction, with_images(plan.problem_size, images))
        shapes.append(packed_port(port, product.m(), product.n(), 1, is_batched=False).shape)
    extents = check_extents(port.name, shapes, _PROBES)
    if EXTENT_M in extents or port.is_matrix:
        raise ArgumentError(f"{port.name} is a {port.form} of the epilogue, which exported convolutions do not take")
    return ExportedTensor(port.name, port.type, "line", extents, written=written)


def _variant(
    bounds: tuple[int, int],
    candidate: Conv2dCandidate,
    problem: _core.Conv2dProblemSize,
    tensors: tuple[ExportedTensor, ...],
    first_port: int,
) -> Variant:
    _check(candidate)
    operation = candidate.operation
    by_role = {"a": operation.A, "b": operation.B}
    ports = {port.name: port for port in operation.epilogue_functor.ports}
    alignment = [
        (by_role.get(each.name, operation.C) if number < first_port else ports[each.name]).alignment
        for number, each in enumerate(tensors)
    ]
    launched = candidate.kernels[0]
    size = launched_size(operation, candidate.size(problem))
    return Variant(
        *bounds,
        launched,
        candidate.reduction,
        mode=(_Mode.Parallel if candidate.is_parallel else _Mode.Serial).value,
        slices=size.split_k_slices,
        max_swizzle=0,
        raster_order=0,
        is_pdl=False,
        alignment=tuple(alignment),
        byte_limit=min(byte_limit(operation, letter) for letter in "ABCD"),
        m_step=1,
        largest=_most_images(candidate, problem),
        sum_bytes=operation.accumulator_type().bits // 8,
    )


def _most_images(candidate: Conv2dCandidate, problem: _core.Conv2dProblemSize) -> int:
    """Return the largest number of images that the kernel takes: whatever it takes, it takes less of."""
    least, most = problem.N, problem.N
    while most < _MOST_IMAGES and candidate.supports(with_images(problem, min(2 * most, _MOST_IMAGES - 1))):
        least = most = min(2 * most, _MOST_IMAGES)
    too_many = min(2 * most, _MOST_IMAGES)
    while least + 1 < too_many:
        middle = (least + too_many) // 2
        if candidate.supports(with_images(problem, middle)):
            least = middle
        else:
            too_many = middle
    return least
