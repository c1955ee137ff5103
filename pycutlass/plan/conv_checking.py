"""Whether the kernel of a plan of convolutions computes what it should: against float64, with canaries around D."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from pycutlass import reference
from pycutlass.errors import ArgumentError
from pycutlass.operation.conv2d_support import products
from pycutlass.plan.checking import (
    CANARY,
    GUARD,
    check_guards,
    checked_error,
    fetched,
    moved,
    named_scalars,
    random_array,
)
from pycutlass.plan.conv_problem import extents_of
from pycutlass.plan.pixels import as_pixels
from pycutlass.tensor import wrap
from pycutlass.types import element

__all__ = ["checked_conv"]


def checked_conv(plan: Any, seed: int) -> float:
    """Return the largest error of D in parts of what is allowed; raise ArgumentError where that is more than 1."""
    kind, problem = plan.kind, plan.problem_size
    if kind.epilogue.ports:
        raise ArgumentError("check is for epilogues without tensors of their own: compare with numpy")
    of_a, of_b, of_d = extents_of(kind.direction, problem)
    rng = np.random.default_rng(seed)
    a = random_array(rng, of_a, element(kind.element_a), True)
    b = random_array(rng, of_b, element(kind.element_b), True)
    c = random_array(rng, of_d, kind.C.type, True) if plan._reads_c else None
    pixels, channels = math.prod(of_d[:3]), of_d[3]
    around = np.full((pixels + 2 * GUARD, channels), CANARY, kind.D.type.dtype)
    a_here, b_here, c_here, around_here = (moved(each, plan._device) for each in (a, b, c, around))
    out = around_here[GUARD : GUARD + pixels].reshape(of_d)
    plan.run_once(*(_as_images(each) for each in (a_here, b_here, c_here, out)))
    around = fetched(around_here, around)
    found = around[GUARD : GUARD + pixels].reshape(of_d).astype(np.float64)
    check_guards(plan.operation, around[:GUARD], around[GUARD + pixels :])
    candidate = plan.candidate
    scalars = named_scalars(plan, candidate.operation)
    exact = reference.conv2d(candidate.operation, problem, a, b, c, *scalars.values(), exact=True)
    return checked_error(candidate, found, exact, products(candidate.operation, problem), scalars, repr(problem))


def _as_images(tensor: Any) -> Any:
    return None if tensor is None else as_pixels(tensor, wrap("tensor", tensor))
