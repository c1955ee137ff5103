"""Whether the kernel of a plan of convolutions computes what it should: against float64, with canaries around D."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pycutlass import reference
from pycutlass.epilogue import LinearCombination
from pycutlass.operation.conv2d_support import products
from pycutlass.plan.checking import (
    CANARY,
    GUARD,
    check_guards,
    checked_error,
    fetched,
    moved,
    named_scalars,
    random_added,
    random_array,
    read_by_kernel,
)
from pycutlass.plan.conv_candidate import Conv2dCandidate
from pycutlass.plan.conv_problem import extents_of
from pycutlass.plan.pixels import as_pixels
from pycutlass.tensor import wrap
from pycutlass.types import element

__all__ = ["checked_conv"]


def checked_conv(plan: Any, seed: int) -> float:
    """Return the largest error of D in parts of what is allowed; raise ArgumentError where that is more than 1."""
    kind, problem = plan.kind, plan.problem_size
    of_a, of_b, of_d = extents_of(kind.direction, problem)
    rng = np.random.default_rng(seed)
    a = random_array(rng, of_a, element(kind.element_a), True)
    b = random_array(rng, of_b, element(kind.element_b), True)
    c, bias = random_added(plan, rng, of_d)
    pixels, channels = math.prod(of_d[:3]), of_d[3]
    around = np.full((pixels + 2 * GUARD, channels), CANARY, kind.D.type.dtype)
    a_here, b_here, c_here, around_here, bias_here = (moved(each, plan._device) for each in (a, b, c, around, bias))
    out = around_here[GUARD : GUARD + pixels].reshape(of_d)
    plan.run_once(*(_as_images(each) for each in (a_here, b_here, c_here, out)), bias=bias_here)
    around = fetched(around_here, around)
    found = around[GUARD : GUARD + pixels].reshape(of_d).astype(np.float64)
    check_guards(plan.operation, around[:GUARD], around[GUARD + pixels :])
    candidate = plan.candidate
    scalars = named_scalars(plan, candidate.operation)
    exact = _exact(plan, candidate, a, b, read_by_kernel(plan, c, bias), scalars)
    return checked_error(candidate, found, exact, products(candidate.operation, problem), scalars, repr(problem))


def _exact(
    plan: Any,
    candidate: Conv2dCandidate,
    a: NDArray[Any],
    b: NDArray[Any],
    read: Mapping[str, NDArray[Any]],
    scalars: Mapping[str, Any],
) -> NDArray[Any]:
    """Return D in float64."""
    kind, problem = plan.kind, plan.problem_size
    if not kind.epilogue.ports:
        source = read.get("C")
        return reference.conv2d(candidate.operation, problem, a, b, source, *scalars.values(), exact=True)
    # The sums of the same kernel with a plain epilogue, and what this one makes of them, with rows of channels.
    types = kind.C.element, kind.C.alignment, kind.element_accumulator, kind.epilogue.compute.tag
    plain = Conv2dCandidate.of(replace(kind, epilogue=LinearCombination(*types)), candidate.choice())
    sums = reference.conv2d(plain.operation, problem, a, b, None, exact=True)
    of_rows = {name: each.reshape(-1, sums.shape[-1]) for name, each in {"sums": sums, **read}.items()}
    inputs = {port.name: read[port.name] for port in kind.epilogue.ports}
    made = kind.epilogue.evaluate(of_rows["sums"], of_rows.get("C"), scalars, inputs, np.dtype(np.float64))
    return np.asarray(made["D"]).reshape(sums.shape)


def _as_images(tensor: Any) -> Any:
    return None if tensor is None else as_pixels(tensor, wrap("tensor", tensor))
