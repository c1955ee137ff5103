"""Whether a float times an integer is faster in one kernel that converts the integer, or in two, of which one casts."""

from __future__ import annotations

from functools import lru_cache

from pycutlass import device
from pycutlass.device import Device
from pycutlass.plan.building import without_gpu
from pycutlass.plan.constants import constants_of
from pycutlass.plan.forms import Form, form_of
from pycutlass.plan.kinds import Wanted, kind_of
from pycutlass.plan.pick import fastest
from pycutlass.plan.readings import element_of, packed_form, range_of
from pycutlass.tensor import TensorView
from pycutlass.types import Element

__all__ = ["is_faster_converted"]

#: Microseconds that the smallest kernel takes behind another: the gap, and its own start and end. An estimate: casts
#: have not been measured.
_START = 3.0


def is_faster_converted(a: TensorView, b: TensorView) -> bool:
    """Return whether one kernel is predicted to take no longer than a cast of B to the type of A and a product.

    Parameters
    ----------
    a, b : TensorView
        Matrices of (M, K), a float of 16 bits, and (K, N), an integer of 8 bits.

    Returns
    -------
    bool
        False where no kernel converts B as it lies. It is the same within each range of M, as a plan's kernel is.
    """
    assert a.shape is not None and b.shape is not None
    types = element_of("a", a), element_of("b", b)
    of_a, of_b = form_of(a, types[0].bits), form_of(b, types[1].bits, False)
    if of_a is None or of_b is None or 0 in (*a.shape, *b.shape):
        return False
    gpu = without_gpu() if a.device is None else device.describe(a.device)
    return _is_faster(types, (of_a, of_b), (range_of(a.shape[0]), b.shape[1], a.shape[1]), gpu)


@lru_cache(maxsize=1024)  # a program has some hundreds of layers and ranges of M
def _is_faster(
    types: tuple[Element, Element], forms: tuple[Form, Form], size: tuple[int, int, int], gpu: Device
) -> bool:
    (wide, narrow), (_, n, k) = types, size
    of_d = packed_form(n, wide)
    converted, cast = (fastest(kind_of(wide, each, (*forms, None, of_d), Wanted()), *size, gpu) for each in types[::-1])
    if converted is None:
        return False
    moved = k * n * (narrow.bits + wide.bits) / 8
    casting = _START + moved / (constants_of(gpu).when_queued.dram_gb_per_s * 1e3)
    return cast is None or converted <= cast + casting
