"""Whether the kernel of a plan computes what it should: against float64, with canaries around D."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pycutlass import reference
from pycutlass.errors import ArgumentError
from pycutlass.imported import imported
from pycutlass.plan.candidate import Candidate
from pycutlass.types import Element, element

__all__ = [
    "CANARY",
    "GUARD",
    "check_guards",
    "checked",
    "checked_error",
    "checked_group",
    "fetched",
    "moved",
    "named_scalars",
    "random_array",
]

GUARD = 16  # rows above and below D, which nothing may write to
CANARY = 77


def checked(plan: Any, seed: int) -> float:
    """Return the largest error of D in parts of what is allowed; raise ArgumentError where that is more than 1."""
    kind, (m, n, k), batch = plan.kind, plan._size, plan._batch
    if kind.epilogue.ports or not kind.D.is_row_major:
        raise ArgumentError(
            "check is for a D by rows and for epilogues without tensors of their own: compare with numpy"
        )
    stack = () if batch is None else (batch,)
    rng = np.random.default_rng(seed)
    a = random_array(rng, (*stack, m, k), element(kind.element_a), kind.A.is_row_major)
    b = random_array(rng, (*stack, k, n), element(kind.element_b), kind.B.is_row_major)
    c = random_array(rng, (*stack, m, n), kind.C.type, kind.C.is_row_major) if plan._reads_c else None
    around = np.full((*stack, m + 2 * GUARD, n), CANARY, kind.D.type.dtype)
    a_here, b_here, c_here, around_here = (moved(each, plan._device) for each in (a, b, c, around))
    plan.run_once(a_here, b_here, c_here, around_here[..., GUARD : GUARD + m, :])
    around = fetched(around_here, around)
    found = around[..., GUARD : GUARD + m, :].astype(np.float64)
    check_guards(plan.operation, around[..., :GUARD, :], around[..., GUARD + m :, :])
    candidate = plan._choices.of(m)
    operation = candidate.operation
    scalars = named_scalars(plan, operation)
    arrays = {"A": a, "B": b} | ({} if c is None else {"C": c})
    exact = reference.gemm_outputs(operation, arrays, scalars, exact=True)["D"]
    return checked_error(candidate, found, exact, k, scalars, f"{m}x{n}x{k}")


def check_guards(operation: Any, *beside: NDArray[Any], of: str = "D") -> None:
    """Raise where something was written to the memory around D."""
    if any(np.any(each.astype(np.float64) != CANARY) for each in beside):
        raise ArgumentError(f"{operation.procedural_name()} wrote beside {of}, within {GUARD} rows of it")


def checked_error(
    candidate: Any, found: NDArray[Any], exact: NDArray[Any], k: int, scalars: Mapping[str, Any], what: str
) -> float:
    """Return the largest error of D in parts of what is allowed for sums of `k` products; raise where it is above 1."""
    operation = candidate.operation
    slices = 1 if candidate.is_parallel else candidate.split_k_slices
    scale = max(1.0, abs(float(scalars.get("alpha", 1.0))))
    relative, absolute = reference.tolerance(operation, max(k, 1), scale, slices)
    allowed, difference = absolute + relative * np.abs(exact), np.abs(found - exact)
    # Integers are exact, and so are zeros: nothing is allowed there, and any difference is too much.
    parts = np.divide(difference, allowed, out=np.where(difference == 0, 0.0, np.inf), where=allowed > 0)
    error = float(np.max(parts, initial=0.0))
    if not error <= 1:
        raise ArgumentError(
            f"{operation.procedural_name()} is wrong for {what}: the largest error is {error:.3g} times what rounding "
            f"explains"
        )
    return error


def checked_group(plan: Any, seed: int) -> float:
    """Return the same of a plan of groups, for the sizes that it was made with."""
    kind, sizes = plan.kind, [tuple(each) for each in plan._sizes.tolist()]
    if kind.epilogue.ports or not kind.D.is_row_major:
        raise ArgumentError(
            "check is for a D by rows and for epilogues without tensors of their own: compare with numpy"
        )
    rng = np.random.default_rng(seed)
    columns = kind.epilogue.columns
    As = [random_array(rng, (m, k), element(kind.element_a), kind.A.is_row_major) for m, _, k in sizes]
    Bs = [random_array(rng, (k, n), element(kind.element_b), kind.B.is_row_major) for _, n, k in sizes]
    Cs = [random_array(rng, (m, n), kind.C.type, True) for m, n, _ in sizes] if plan._reads_c else None
    around = [np.full((m + 2 * GUARD, columns(n)), CANARY, kind.D.type.dtype) for m, n, _ in sizes]
    around_here = [moved(each, plan._device) for each in around]
    inside = [slice(GUARD, GUARD + m) for m, _, _ in sizes]
    plan.run_once(
        *([moved(each, plan._device) for each in arrays] for arrays in (As, Bs)),
        None if Cs is None else [moved(each, plan._device) for each in Cs],
        [each[rows] for each, rows in zip(around_here, inside, strict=True)],
    )
    candidate, worst = Candidate(plan.operation.single), 0.0
    scalars = named_scalars(plan, candidate.operation)
    for number, (m, n, k) in enumerate(sizes):
        whole = fetched(around_here[number], around[number])
        check_guards(plan.operation, whole[:GUARD], whole[GUARD + m :], of=f"D of problem {number}")
        if m and n:
            arrays = {"A": As[number], "B": Bs[number]} | ({} if Cs is None else {"C": Cs[number]})
            exact = reference.gemm_outputs(candidate.operation, arrays, scalars, exact=True)["D"]
            found = whole[inside[number]].astype(np.float64)
            what = f"{m}x{n}x{k}, problem {number}"
            worst = max(worst, checked_error(candidate, found, exact, k, scalars, what))
    return worst


def named_scalars(plan: Any, operation: Any) -> dict[str, Any]:
    """Return the scalars of a plan's epilogue by name, with those that were left out."""
    names = plan.kind.epilogue.scalar_names
    return dict(zip(names, operation.epilogue_type(**plan._scalars).values, strict=False))


def random_array(rng: np.random.Generator, shape: tuple[int, ...], of: Element, is_row_major: bool) -> NDArray[Any]:
    """Return random numbers that the type has, laid out by rows or by columns; of tf32, as float32."""
    if not is_row_major:
        return random_array(rng, (*shape[:-2], shape[-1], shape[-2]), of, True).swapaxes(-1, -2)
    if of.is_integer:
        least, most = of.limits
        return rng.integers(int(max(least, -8)), int(min(most, 8)), shape).astype(of.dtype)
    return np.asarray(of.round(rng.standard_normal(shape)), of.dtype)


def moved(array: NDArray[Any] | None, ordinal: int | None) -> Any:
    """Return an array on the GPU, by torch where that was imported: what lies around D is to be there as well."""
    from_numpy = imported("torch", "from_numpy")
    if array is None or ordinal is None or not callable(from_numpy) or array.dtype.kind not in "iuf":
        return array
    return from_numpy(array).cuda(ordinal)


def fetched(here: Any, array: NDArray[Any]) -> NDArray[Any]:
    """Return what `moved` has brought to the GPU."""
    return array if here is array else np.asarray(here.cpu().numpy())
