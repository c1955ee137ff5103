"""Twenty small models compiled with our backend, with its defaults, against eager torch and Inductor: none is to get
slower.

A region is taken where it is predicted to gain, and the rest is left to Inductor.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from functools import partial
from typing import Any

from benchmarks.common import Report, options
from benchmarks.models import Case, measure
from benchmarks.zoo_networks import IMAGES, TOKENS
from pycutlass import device

__all__ = ["PARTS", "cases", "main"]

PARTS = ("tokens", "images")
_LEAST = 0.98

_ABOUT = (
    "Small models of as many architectures, randomly initialised, in inference, each as a CUDA graph: eager torch, "
    "`torch.compile` with Inductor, and with the backend of PyCUTLASS and its defaults. Device time, each call alone "
    "with a cold L2 cache and queued back to back. The limit is of the time alone, over the best of torch's. Every "
    "result is compared with float64."
)


def cases(where: str = "cuda") -> Iterator[Case]:
    """Yield what is measured, on a device."""
    import torch

    for name, make, shape in TOKENS:
        yield Case("tokens", name, _LEAST, partial(_pair, make, torch.bfloat16, where), partial(_drawn, shape, where))
    for name, make, shape in IMAGES:
        yield Case("images", name, _LEAST, partial(_pair, make, torch.float16, where), partial(_drawn, shape, where))


def _pair(make: Any, dtype: Any, where: str) -> tuple[Any, Any]:
    import torch

    model = make().eval().requires_grad_(False).to(where, dtype)
    if dtype is torch.float16:
        model = model.to(memory_format=torch.channels_last)
    return model, model


def _drawn(shape: tuple[int, ...], where: str) -> Any:
    import torch

    if len(shape) < 4:
        return torch.randn(shape, device=where, dtype=torch.bfloat16)
    return torch.randn(shape, device=where, dtype=torch.float16).to(memory_format=torch.channels_last)


def main(argv: list[str] | None = None) -> int:
    """Measure, and write the results."""
    parser = options(__doc__, PARTS)
    parser.add_argument("--share", default="0/1", metavar="I/N", help="each Nth model from the Ith, of several runs")
    chosen = parser.parse_args(argv)
    device.require()
    import torch

    torch.backends.cudnn.benchmark = True  # torch's convolutions are the fastest of cuDNN's
    report = Report("zoo", "Twenty models", _ABOUT, chosen.out, quick=chosen.quick)
    first, step = map(int, chosen.share.split("/"))
    for case in list(cases())[first::step]:
        if case.part in chosen.only:
            with report.part(case.name):
                measure(case, 0.1 if chosen.quick else 0.5, False, report)
    return report.finish()


if __name__ == "__main__":
    sys.exit(main())
