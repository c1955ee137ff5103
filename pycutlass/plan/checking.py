"""Whether the kernel of a plan computes what it should: against float64, with canaries around D."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pycutlass import reference
from pycutlass.epilogue import EpilogueScalars
from pycutlass.epilogue.given_scalars import is_address
from pycutlass.errors import ArgumentError
from pycutlass.imported import imported
from pycutlass.plan.candidate import Candidate
from pycutlass.types import Element, element

__all__ = [
    "CANARY",
    "GUARD",
    "check_by_rows",
    "check_guards",
    "checked",
    "checked_error",
    "checked_group",
    "fetched",
    "moved",
    "named_scalars",
    "random_added",
    "random_array",
    "read_by_kernel",
]

GUARD = 16  # rows above and below D, which nothing may write to
CANARY = 77


def checked(plan: Any, seed: int) -> float:
    """Return the largest error of D in parts of what is allowed; raise ArgumentError where that is more than 1."""
    kind, (m, n, k), batch = plan.kind, plan._size, plan._batch
    check_by_rows(kind.D.is_row_major)
    stack = () if batch is None else (batch,)
    rng = np.random.default_rng(seed)
    a = random_array(rng, (*stack, m, k), element(kind.element_a), kind.A.is_row_major)
    b = random_array(rng, (*stack, k, n), element(kind.element_b), kind.B.is_row_major)
    c, bias = random_added(plan, rng, (*stack, m, n), kind.C.is_row_major)
    around = np.full((*stack, m + 2 * GUARD, kind.epilogue.columns(n)), CANARY, kind.D.type.dtype)
    a_here, b_here, c_here, around_here, bias_here = (moved(each, plan._device) for each in (a, b, c, around, bias))
    plan.run_once(a_here, b_here, c_here, around_here[..., GUARD : GUARD + m, :], bias=bias_here)
    around = fetched(around_here, around)
    found = around[..., GUARD : GUARD + m, :].astype(np.float64)
    check_guards(plan.operation, around[..., :GUARD, :], around[..., GUARD + m :, :])
    candidate = plan._choices.of(m)
    operation = candidate.operation
    scalars = named_scalars(plan, operation)
    arrays = {"A": a, "B": b} | read_by_kernel(plan, c, bias)
    exact = reference.gemm_outputs(operation, arrays, scalars, exact=True)["D"]
    return checked_error(candidate, found, exact, k, scalars, f"{m}x{n}x{k}")


def check_by_rows(is_by_rows: bool) -> None:
    """Raise ArgumentError for a D whose rows have nothing around them."""
    if not is_by_rows:
        raise ArgumentError("check is for a D by rows: compare with numpy")


def random_added(
    plan: Any, rng: np.random.Generator, shape: tuple[int, ...], is_row_major: bool = True
) -> tuple[NDArray[Any] | None, NDArray[Any] | None]:
    """Return a C of the shape of the product and a bias, None where the plan has none of it.

    Raises
    ------
    ArgumentError
        The epilogue has other tensors, of which only its author knows what they may be.
    """
    added, kind = plan._added, plan.kind
    types = {port.name: port.type for port in kind.epilogue.ports}
    if set(types) != ({"bias"} if added.bias == "port" else set()):
        names = ", ".join(name for name in types if name != "bias" or added.bias != "port")
        raise ArgumentError(
            f"check is for epilogues without tensors of their own, got {names}: compare with numpy; an epilogue "
            f"function has a method for that, numpy"
        )
    c = random_array(rng, shape, kind.C.type, is_row_major) if added.takes_c else None
    bias = random_array(rng, shape[-1:], types.get("bias", kind.C.type), True) if added.bias else None
    return c, bias


def read_by_kernel(plan: Any, c: NDArray[Any] | None, bias: NDArray[Any] | None) -> dict[str, NDArray[Any]]:
    """Return what a kernel reads of C and a bias, by the names that the reference has for it."""
    named = {"C": bias if plan._added.bias == "c" else c, "bias": bias if plan._added.bias == "port" else None}
    return {name: each for name, each in named.items() if each is not None}


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
    check_by_rows(kind.D.is_row_major)
    rng = np.random.default_rng(seed)
    columns = kind.epilogue.columns
    As = [random_array(rng, (m, k), element(kind.element_a), kind.A.is_row_major) for m, _, k in sizes]
    Bs = [random_array(rng, (k, n), element(kind.element_b), kind.B.is_row_major) for _, n, k in sizes]
    Cs, biases = zip(*(random_added(plan, rng, (m, n)) for m, n, _ in sizes), strict=True)
    around = [np.full((m + 2 * GUARD, columns(n)), CANARY, kind.D.type.dtype) for m, n, _ in sizes]
    around_here = [moved(each, plan._device) for each in around]
    inside = [slice(GUARD, GUARD + m) for m, _, _ in sizes]
    plan.run_once(
        *([moved(each, plan._device) for each in arrays] for arrays in (As, Bs)),
        [moved(each, plan._device) for each in Cs] if plan._added.takes_c else None,
        [each[rows] for each, rows in zip(around_here, inside, strict=True)],
        bias=[moved(each, plan._device) for each in biases] if plan._added.bias else None,
    )
    candidate, worst = Candidate(plan.operation.single), 0.0
    scalars = named_scalars(plan, candidate.operation)
    for number, (m, n, k) in enumerate(sizes):
        whole = fetched(around_here[number], around[number])
        check_guards(plan.operation, whole[:GUARD], whole[GUARD + m :], of=f"D of problem {number}")
        if m and n:
            arrays = {"A": As[number], "B": Bs[number]} | read_by_kernel(plan, Cs[number], biases[number])
            exact = reference.gemm_outputs(candidate.operation, arrays, scalars, exact=True)["D"]
            found = whole[inside[number]].astype(np.float64)
            what = f"{m}x{n}x{k}, problem {number}"
            worst = max(worst, checked_error(candidate, found, exact, k, scalars, what))
    return worst


def named_scalars(plan: Any, operation: Any) -> dict[str, Any]:
    """Return the scalars of a plan's epilogue by name, with those that were left out, as numbers.

    Raises
    ------
    ArgumentError
        One is an address, or there is one for each matrix of a batch: what is there is not read.
    """
    given = operation.epilogue_type(**plan._scalars)
    return {name: _number(given, name) for name in plan.kind.epilogue.scalar_names}


def _number(scalars: EpilogueScalars, name: str) -> float:
    value, cause = scalars[name], None
    try:
        if not is_address(value):
            return float(value)  # of a tensor in device memory, which is waited for
    except Exception as error:  # of whatever library it is
        cause = error
    raise ArgumentError(
        f"check compares D with one number {name}, and a {type(value).__name__} in device memory gives none: make a "
        f"plan with a number, or with a tensor of one element of torch or cupy"
    ) from cause


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
