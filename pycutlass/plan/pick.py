"""The likely fastest kernel for a problem, without measuring."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np

from pycutlass import _core
from pycutlass.calls import public, shown
from pycutlass.device import Device
from pycutlass.errors import ArgumentError, ArgumentTypeError
from pycutlass.operation import GemmProblemSize
from pycutlass.plan.candidate import Candidate
from pycutlass.plan.candidates import candidates
from pycutlass.plan.constants import Constants, constants_of, planned_for, present_or_named
from pycutlass.plan.gemv_refusals import why_no_gemv
from pycutlass.plan.kind import GemmKind
from pycutlass.plan.kinds import is_upcast, why_unwritten
from pycutlass.plan.model import Model
from pycutlass.plan.predicted import Predicted, Ranked
from pycutlass.plan.tile_results import why_no_tiles
from pycutlass.types import element

__all__ = ["Ranked", "fastest", "pick", "ranking", "refused", "remedy_of", "where_planned"]

_Mode = _core.GemmMode
_NEAR = 1.01  # how much longer a kernel that is compiled already may take
_FEW = 8  # rows or columns up to which GEMV kernels are considered like all others
#: Rows and columns beyond which a GEMV kernel is no answer: it would take a hundred times as long as tensor cores.
_MOST_OF_GEMV = 64


@public
def ranking(
    kind: GemmKind, m: int, n: int, k: int, batch: int | None = None, gpu: Device | None = None
) -> tuple[Ranked[Candidate], ...]:
    """Return all candidates that take a problem, the likely fastest first.

    Parameters
    ----------
    kind : GemmKind
        What is computed.
    m, n, k : int
        Its extents.
    batch : int, optional
        How many matrices, where it is a batch.
    gpu : pycutlass.device.Device, optional
        Where; by default on the current GPU, and on a machine without one on the usual GPU of the compute capability
        that the variable ``PYCUTLASS_TARGET`` names.

    Returns
    -------
    tuple of Ranked
        Nothing where no kernel takes the problem.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        Extents out of range, or something else than described.
    DeviceError
        There is no GPU, and nobody names one.

    Examples
    --------
    >>> import pycutlass
    >>> from pycutlass import cutlass
    >>> from pycutlass.device import Device
    >>> from pycutlass.plan import GemmKind, ranking
    >>> f16, f32 = cutlass.float16, cutlass.float32
    >>> row = pycutlass.TensorDescription(f16, cutlass.RowMajor, 8)
    >>> functor = pycutlass.LinearCombination(f16, 8, f32, f32)
    >>> kind = GemmKind(row, row, row, row, f16, f16, f32, pycutlass.MathOperation.multiply_add, functor)
    >>> best = ranking(kind, 4096, 4096, 4096, gpu=Device(0, "NVIDIA H200", 90, 132))[0]
    >>> best.candidate.operation.tile_description.threadblock_shape
    (128, 256, 64)
    """
    predicted = _predicted(kind, m, n, k, batch, gpu)
    return tuple(predicted.ranked(place) for place in predicted.supported())


@public
def pick(
    kind: GemmKind,
    m: int,
    n: int,
    k: int,
    batch: int | None = None,
    gpu: Device | None = None,
    is_compiled: Callable[[Candidate], bool] | None = None,
) -> Candidate:
    """Return the likely fastest candidate for a problem.

    It is the same in every process. Among candidates that take at most 1 % longer than the best, one that is compiled
    already is taken instead where it adds up products in the same order, so that results do not depend on what a cache
    holds.

    Parameters
    ----------
    kind, m, n, k, batch, gpu
        As of `ranking`.
    is_compiled : callable, optional
        Says of a candidate whether its kernels need no compiler.

    Raises
    ------
    ArgumentError
        No kernel takes the problem; the message says what the nearest ones lack.
    ArgumentTypeError, DeviceError
        As of `ranking`.

    Examples
    --------
    >>> import pycutlass
    >>> from pycutlass import cutlass
    >>> from pycutlass.device import Device
    >>> from pycutlass.plan import GemmKind, pick
    >>> f16, f32 = cutlass.float16, cutlass.float32
    >>> row = pycutlass.TensorDescription(f16, cutlass.RowMajor, 8)
    >>> functor = pycutlass.LinearCombination(f16, 8, f32, f32)
    >>> kind = GemmKind(row, row, row, row, f16, f16, f32, pycutlass.MathOperation.multiply_add, functor)
    >>> pick(kind, 1024, 1024, 1024, gpu=Device(0, "NVIDIA H200", 90, 132)).operation.is_sm90
    True
    """
    if is_compiled is not None and not callable(is_compiled):
        raise ArgumentTypeError(
            f"is_compiled must be a function of a candidate that says whether its kernels need no compiler, got "
            f"{shown(is_compiled)}: leave it out where nothing is known of that"
        )
    predicted = _predicted(kind, m, n, k, batch, gpu)
    places = predicted.supported()
    best = _usable(predicted, next(places, None), min(m, n))
    if best is None:
        raise ArgumentError(_why_none(predicted, kind, (m, n, k), batch, gpu))
    chosen = predicted.candidates[best]
    if is_compiled is None or is_compiled(chosen):
        return chosen
    most = predicted.of_all.microseconds[best] * _NEAR
    for place in places:
        other = predicted.candidates[place]
        if predicted.of_all.microseconds[place] > most:
            break
        if _summation(other) == _summation(chosen) and is_compiled(other):
            return other
    return chosen


def fastest(kind: GemmKind, m: int, n: int, k: int, gpu: Device, batch: int | None = None) -> float | None:
    """Return the microseconds of the likely fastest of queued launches for a product; None where no kernel takes it."""
    predicted = _predicted(kind, m, n, k, batch, gpu, is_queued=True)
    best = _usable(predicted, next(predicted.supported(), None), min(m, n))
    return None if best is None else predicted.ranked(best).microseconds


def _usable(predicted: Predicted[Candidate], best: int | None, least: int) -> int | None:
    """Return the place of the best candidate, unless it is a GEMV kernel for many rows and columns."""
    if best is None or least <= _MOST_OF_GEMV:
        return best
    return None if predicted.candidates[best].operation.tile_description.is_gemv else best


def _summation(candidate: Candidate) -> tuple[Any, ...]:
    """Return what decides in which order a candidate adds up products: those that agree in it agree in results.

    Stream-K divides K by the tiles that there are, so its kernels agree with none of another tile; nor do those of
    functions that add up results, each tile its own.
    """
    operation = candidate.operation
    tile = operation.tile_description
    is_whole = operation.is_stream_k or tile.is_gemv or _has_sums_of_tiles(operation.epilogue_functor)
    divided = tile.threadblock_shape if is_whole else tile.threadblock_shape[2]
    warps_along_k = 1 if tile.warp_count is None else tile.warp_count[2]
    return (
        *(operation.family.name, tile.math_instruction, divided, warps_along_k, operation.swap_ab),
        *(candidate.split_k_slices, candidate.is_parallel, operation.is_stream_k),
    )


def _has_sums_of_tiles(epilogue: Any) -> bool:
    return any(each.form != "matrix" for each in epilogue.outputs)


def refused(
    kind: GemmKind, m: int, n: int, k: int, batch: int | None = None, gpu: Device | None = None
) -> dict[str, list[str]]:
    """Return the names of candidates that do not take a problem, by the reason; parameters are those of `ranking`."""
    return _predicted(kind, m, n, k, batch, gpu).refused()


def _predicted(
    kind: GemmKind, m: int, n: int, k: int, batch: int | None, gpu: Device | None, is_queued: bool = False
) -> Predicted[Candidate]:
    """Return what the model says of all candidates of a problem, as calls that are alone or as queued launches.

    GEMV kernels come behind all others where there are many rows and columns: they are for few, and what is predicted
    of them beyond that has not been measured. So do tiles of float32 on CUDA cores that were not, and are for few
    columns.
    """
    batched = batch is not None
    size = GemmProblemSize(m, n, k) if batch is None else GemmProblemSize(m, n, k, _Mode.Batched, batch)
    where = where_planned(gpu)
    found = candidates(kind, where.compute_capability, batched)
    constants = constants_of(where)
    model = _model(kind, where.compute_capability, batched, constants.when_queued if is_queued else constants)
    rows, columns, depth = (max(1, extent) for extent in size.extents)  # no elements take as long as one
    of_all = model.predict(rows, columns, depth, size.batch)
    f = model.features
    is_last = f.is_gemv & (min(size.m, size.n) > _FEW)
    if kind.A.type.short == "f32":
        is_last |= model.is_unmeasured & (f.columns < np.where(f.is_transposed, size.m, size.n))
    asked = (*size.extents, size.batch if batched else None)
    return Predicted(found, of_all, lambda each: each.operation.supports(each.size(*asked)), is_last)


def where_planned(gpu: Device | None) -> Device:
    """Return the GPU that is planned for: the one that is given, or the current one, or that of the named target."""
    where = present_or_named() if gpu is None else gpu
    if not isinstance(where, Device):
        raise ArgumentTypeError(f"gpu must be a pycutlass.device.Device, got {type(gpu).__name__}")
    return where


def _why_none(
    predicted: Predicted[Candidate], kind: GemmKind, size: tuple[int, int, int], batch: int | None, gpu: Device | None
) -> str:
    """Return why no kernel takes the problem, with what the likely fastest lack."""
    m, n, k = size
    what = f"{'' if batch is None else f'{batch} of '}{m}x{n}x{k} (M x N x K)"
    found = predicted.candidates
    if all(each.operation.tile_description.is_gemv for each in found):
        few = f" but for {_MOST_OF_GEMV} rows or columns" if len(found) else ""
        gpu = where_planned(gpu)
        capability, batched = gpu.compute_capability, batch is not None

        def has_kernels(other: GemmKind) -> bool:
            return bool(candidates(other, capability, batched))

        of_layouts = remedy_of(kind) if kind.A.type.is_float8 else ""
        remedy = why_no_tiles(kind, has_kernels) or of_layouts or why_no_gemv(kind, has_kernels) or remedy_of(kind)
        return f"there is no kernel for GEMMs of this kind{few}{remedy}. {planned_for(gpu)}. The kind has {kind}"
    return f"no kernel takes {what}; the nearest lack: {predicted.lacking()}"


def remedy_of(kind: GemmKind) -> str:
    """Return what to change about a kind of GEMM that there are no kernels for."""
    if kind.A.type.is_float8 and not (kind.A.is_row_major and not kind.B.is_row_major):
        return (
            ". Elements of K must be adjacent in A and B of 8-bit floats: A by rows, and B by columns, as w.T of "
            "weights by rows"
        )
    if is_upcast(kind.A.type, kind.B.type):
        return _remedy_of_upcast(kind)
    if any(operand.type.short == "u8" for operand in (kind.A, kind.B)):
        return (
            ". Only Hopper-native kernels multiply uint8, on compute capability 9.0: elements of K must be adjacent in "
            "A and B, as in w.T of weights by rows, and lines multiples of 4 bytes. Elsewhere pass int8 or float16"
        )
    if kind.C.layout is not kind.D.layout:
        return (
            ". C and D lie differently: pass both by rows or both by columns, or let matmul copy C by allow_copy=True"
        )
    if kind.is_full_f32 and kind.epilogue.is_tree and not kind.epilogue.takes_simt:
        return ". Trees of visitors of float32 need tensor cores: pass precision='3xtf32' or 'tf32'"
    if kind.A.type.short == "s8" and not kind.A.is_row_major and kind.B.is_row_major:
        return (
            ". Elements of K must be adjacent in A or B of int8: A by rows, or B by columns, as w.T of weights by rows"
        )
    for name, operand in (("A", kind.A), ("B", kind.B)):
        if operand.type.is_integer and not operand.type.is_byte:
            return f". Of integers, kernels multiply int8 and uint8, and {name} is of {operand.type}: convert it"
    return why_unwritten(kind.A.type, element(kind.element_accumulator), kind.D.type)


def _remedy_of_upcast(kind: GemmKind) -> str:
    """Return what to change about a float and an integer that no kernel multiplies."""
    wide, narrow = (kind.A, kind.B) if kind.A.type.bits > kind.B.type.bits else (kind.B, kind.A)
    here = " and ".join(
        f"{name} is {'row' if each.is_row_major else 'column'}-major and aligned to "
        f"{each.alignment * each.type.bits // 8} bytes"
        for name, each in (("A", kind.A), ("B", kind.B))
    )
    return (
        f". Kernels convert {narrow.type} to {wide.type} if its elements of K are adjacent, as in w.T of weights by "
        f"rows, and if both operands are aligned to 4 bytes or more; they write float16, bfloat16, float32 or int8. "
        f"Here {here}. Cast the integers first, for example b.astype(a.dtype)"
    )


@lru_cache(maxsize=64)  # as many as there are lists of candidates; each has a few arrays of their length
def _model(kind: GemmKind, capability: int, batched: bool, constants: Constants) -> Model:
    made = Model(kind, candidates(kind, capability, batched), constants)
    # What calls take that are alone was measured of some kinds, and those have a correction; of others, of queued ones.
    return made if made.is_corrected else made.with_constants(constants.when_queued)
