"""GEMMs as they are exported: plans, and operations with a problem size."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from pycutlass import _core
from pycutlass.epilogue import Epilogue, Port
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
from pycutlass.kernel import Sizes
from pycutlass.library import TensorDescription
from pycutlass.operands.epilogue import packed_port
from pycutlass.operation import GemmOperationUniversal, GemmProblemSize
from pycutlass.operation.problems import gemm_size
from pycutlass.plan.candidate import Candidate
from pycutlass.plan.gemm import Gemm

__all__ = ["described_gemm", "described_operation"]

_Mode = _core.GemmMode
#: Two M by which it is seen how extents follow from M: primes, so that no tile divides them.
_PROBES = 4099, 8209


def described_gemm(plan: Gemm, name: str, extents: Iterable[int] = ()) -> Described:
    """Return what is exported of a plan: the kernels for its own M, for those that it has run, and for `extents`.

    Raises
    ------
    ArgumentError
        A kernel or an epilogue that programs without Python cannot launch, with the reason.
    """
    m, n, k = plan.size
    for extent in (*extents, m):
        plan._choices.of(extent)
    chosen = plan._choices
    ranges = {(range_to(most), most): candidate for most, candidate in chosen._picked.items()}
    measured = {**chosen._measured, **{m: each for m, each in chosen._looked_up.items() if each is not None}}
    ranges |= {(extent, extent): candidate for extent, candidate in measured.items()}
    added = plan._added
    source = "c" if added.takes_c else "bias" if added.bias == "c" else None
    scalars = checked_scalars(plan.kind.epilogue.scalar_names, plan.kind.epilogue.epilogue_type(**plan._scalars))
    batches = "" if plan.batch is None else f"{plan.batch} times "
    what = f"{batches}{m}x{n}x{k} (M x N x K), any M"
    return _described(name, what, (m, n, k), plan.batch or 0, ranges, source, scalars)


def described_operation(operation: GemmOperationUniversal, problem_size: Any, name: str) -> Described:
    """Return what is exported of an operation, for one problem and others of the same N and K."""
    if problem_size is None:
        raise ArgumentError(
            "an operation is a kernel without a problem: give problem_size=(M, N, K), or a GemmProblemSize with a mode"
        )
    size: GemmProblemSize = gemm_size(problem_size, _Mode.Gemm, 1, 1)
    operation.supports(size).require()
    if size.gemm_mode == _Mode.Array:
        raise ArgumentError(
            "Mode.Array takes tables of addresses in device memory, which exported programs do not make: export a "
            "Mode.Batched problem"
        )
    candidate = Candidate(operation, size.split_k_slices, size.gemm_mode == _Mode.GemmSplitKParallel)
    functor = operation.epilogue_functor
    scalars = checked_scalars(functor.scalar_names, functor.epilogue_type())
    reads_source = functor.reads_source is True
    batch = size.batch if size.gemm_mode == _Mode.Batched else 0
    ranges = {(1, size.m): candidate}
    what = f"{size.m}x{size.n}x{size.k} (M x N x K), any M"
    return _described(name, what, (size.m, size.n, size.k), batch, ranges, "c" if reads_source else None, scalars)


def _described(
    name: str,
    what: str,
    size: tuple[int, int, int],
    batch: int,
    ranges: dict[tuple[int, int], Candidate],
    source: str | None,
    scalars: dict[str, float],
) -> Described:
    (_, n, k), first = size, next(iter(ranges.values())).operation
    functor = first.epilogue_functor
    _check(first)
    tensors = _tensors(first, n, k, batch, source, functor)
    names = [each.name for each in tensors]
    roles = (0, 1, 2 if source else -1, 3 if source else 2)
    variants = tuple(
        _variant(bounds, candidate, (n, k), batch, tensors, 1 + max(roles))
        for bounds, candidate in sorted(ranges.items(), key=lambda each: (each[0][1], each[0][0]))
    )
    types = " x ".join(each.element.short for each in tensors[:2])
    described = f"{what}, {types} -> {tensors[roles[3]].element.short}, {', '.join(names)}"
    return Described(
        name, described, "gemm", size[0], n, k, batch, (), tensors, roles, 1 + max(roles), scalars, functor, variants
    )


def _check(operation: GemmOperationUniversal) -> None:
    for letter, each in zip("ABCD", (operation.A, operation.B, operation.C, operation.D), strict=True):
        if each.order.interleave > 1:
            raise ArgumentError(
                f"{letter} has the interleaved layout {each.order.name}, whose elements exported programs do not "
                f"reorder: export a kernel for rows or columns"
            )


def _tensors(
    operation: GemmOperationUniversal, n: int, k: int, batch: int, source: str | None, functor: Epilogue
) -> tuple[ExportedTensor, ...]:
    lead = (batch,) if batch else ()
    columns = functor.columns(n)

    def matrix(name: str, of: TensorDescription, extents: tuple[int, int], **further: Any) -> ExportedTensor:
        layout = "rows" if of.is_row_major else "columns"
        return ExportedTensor(name, of.type, layout, (*lead, *extents), **further)

    made = [
        matrix("a", operation.A, (EXTENT_M, k), shared=bool(batch)),
        matrix("b", operation.B, (k, n), shared=bool(batch)),
    ]
    if source == "c":
        made.append(matrix("c", operation.C, (EXTENT_M, n), shared=bool(batch), in_place=not operation.is_apart))
    elif source == "bias":
        made.append(ExportedTensor("bias", operation.C.type, "line", (n,)))
    made.append(matrix("out", operation.D, (EXTENT_M, columns), written=True))
    for port in functor.ports:
        made.append(_port(port, n, batch, port in functor.outputs, port.name in functor.matrices_read))
    return tuple(made)


def _port(port: Port, n: int, batch: int, written: bool, in_place: bool) -> ExportedTensor:
    shapes = [packed_port(port, m, n, batch or 1, is_batched=bool(batch)).shape for m in _PROBES]
    extents = check_extents(port.name, shapes, _PROBES)
    layout = "line" if not port.is_matrix else "columns" if port.is_by_columns else "rows"
    return ExportedTensor(
        port.name, port.type, layout, extents, written=written, shared=bool(batch) and not written, in_place=in_place
    )


def _variant(
    bounds: tuple[int, int],
    candidate: Candidate,
    columns_and_depth: tuple[int, int],
    batch: int,
    tensors: tuple[ExportedTensor, ...],
    first_port: int,
) -> Variant:
    operation, (n, k) = candidate.operation, columns_and_depth
    size = candidate.size(bounds[1], n, k, batch or None)
    limits = Sizes.of(operation)
    by_role = {"a": operation.A, "b": operation.B, "c": operation.C, "bias": operation.C, "out": operation.D}
    ports = {port.name: port for port in operation.epilogue_functor.ports}
    alignment = [
        (by_role[each.name] if number < first_port else ports[each.name]).alignment
        for number, each in enumerate(tensors)
    ]
    launched = candidate.kernels[0]
    assert isinstance(launched, GemmOperationUniversal)
    return Variant(
        *bounds,
        launched,
        candidate.reduction,
        mode=size.gemm_mode.value,
        slices=size.split_k_slices,
        max_swizzle=operation.swizzle_size,
        raster_order=int(candidate.raster_order),
        is_pdl=True,
        alignment=tuple(alignment),
        byte_limit=0,
        m_step=limits.steps[0],
        largest=max(limits.most[0], bounds[1]),
        sum_bytes=operation.accumulator_type().bits // 8,
    )
