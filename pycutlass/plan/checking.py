"""Whether the kernel of a plan computes what it should: against float64, with canaries around D."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from pycutlass import reference
from pycutlass.errors import ArgumentError
from pycutlass.imported import imported
from pycutlass.types import Element

__all__ = ["checked"]

_GUARD = 16  # rows above and below D, which nothing may write to
_CANARY = 77


def checked(plan: Any, seed: int) -> float:
    """Return the largest error of D in parts of what is allowed; raise ArgumentError where that is more than 1."""
    kind, (m, n, k), batch = plan.kind, plan._size, plan._batch
    if kind.epilogue.ports or not kind.D.is_row_major:
        raise ArgumentError(
            "check is for a D by rows and for epilogues without tensors of their own: compare with numpy"
        )
    stack = () if batch is None else (batch,)
    rng = np.random.default_rng(seed)
    a = _random(rng, (*stack, m, k), kind.A.type, kind.A.is_row_major)
    b = _random(rng, (*stack, k, n), kind.B.type, kind.B.is_row_major)
    c = _random(rng, (*stack, m, n), kind.C.type, kind.C.is_row_major) if plan._added.reads_c else None
    around = np.full((*stack, m + 2 * _GUARD, n), _CANARY, kind.D.type.dtype)
    a_here, b_here, c_here, around_here = (_moved(each, plan._device) for each in (a, b, c, around))
    plan.run_once(a_here, b_here, c_here, around_here[..., _GUARD : _GUARD + m, :])
    around = _fetched(around_here, around)
    found = around[..., _GUARD : _GUARD + m, :].astype(np.float64)
    beside = np.concatenate([around[..., :_GUARD, :], around[..., _GUARD + m :, :]], axis=-2)
    if np.any(beside.astype(np.float64) != _CANARY):
        raise ArgumentError(f"{plan.operation.procedural_name()} wrote beside D, within {_GUARD} rows of it")
    candidate = plan._choices.of(m)
    operation = candidate.operation
    scalars = dict(zip(kind.epilogue.scalar_names, operation.epilogue_type(**plan._scalars).values, strict=False))
    arrays = {"A": a, "B": b} | ({} if c is None else {"C": c})
    exact = reference.gemm_outputs(operation, arrays, scalars, exact=True)["D"]
    slices = 1 if candidate.is_parallel else candidate.split_k_slices
    scale = max(1.0, abs(float(scalars.get("alpha", 1.0))))
    relative, absolute = reference.tolerance(operation, max(k, 1), scale, slices)
    allowed = absolute + relative * np.abs(exact)
    error = float(np.max(np.abs(found - exact) / allowed, initial=0.0))
    if not error <= 1:
        raise ArgumentError(
            f"{operation.procedural_name()} is wrong for {m}x{n}x{k}: the largest error is {error:.3g} times what "
            f"rounding explains"
        )
    return error


def _random(rng: np.random.Generator, shape: tuple[int, ...], of: Element, is_row_major: bool) -> NDArray[Any]:
    """Return random numbers that the type has, laid out by rows or by columns."""
    if not is_row_major:
        return _random(rng, (*shape[:-2], shape[-1], shape[-2]), of, True).swapaxes(-1, -2)
    if of.is_integer:
        least, most = of.limits
        return rng.integers(int(max(least, -8)), int(min(most, 8)), shape).astype(of.dtype)
    return np.asarray(of.round(rng.standard_normal(shape)), of.dtype)


def _moved(array: NDArray[Any] | None, ordinal: int | None) -> Any:
    """Return an array on the GPU, by torch where that was imported: what lies around D is to be there as well."""
    from_numpy = imported("torch", "from_numpy")
    if array is None or ordinal is None or not callable(from_numpy) or array.dtype.kind not in "iuf":
        return array
    return from_numpy(array).cuda(ordinal)


def _fetched(here: Any, array: NDArray[Any]) -> NDArray[Any]:
    return array if here is array else np.asarray(here.cpu().numpy())
