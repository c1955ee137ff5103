"""The first call of a compiled model in a process, as `benchmarks.compiling` starts it: seconds of it as JSON.

::

    python -m benchmarks.first_model BACKEND TOKENS [PLACE [SCALE]]
"""

from __future__ import annotations

import json
import sys
import time

__all__ = ["main"]


def main(backend: str, tokens: str, place: str = "cuda", scale: str = "1") -> None:
    """Compile the transformer block of `models`, where torch has a context already."""
    import torch

    import pycutlass.pytorch  # the backend of its name  # noqa: F401
    from benchmarks.networks import Block

    torch.manual_seed(1)
    model = Block(4096 // int(scale), 14336 // int(scale)).to(place, torch.bfloat16).eval()
    x = torch.randn(int(tokens), 4096 // int(scale), device=place, dtype=torch.bfloat16)

    def wait() -> None:
        if place == "cuda":
            torch.cuda.synchronize()

    with torch.no_grad():
        expected = model(x)  # so that cuBLAS is there
        wait()
        begun = time.perf_counter()
        made = torch.compile(model, dynamic=False, backend=backend)(x)  # the former imports what Inductor needs
        wait()
        seconds = time.perf_counter() - begun
        error = float((made.float() - expected.float()).norm() / expected.float().norm())
    print(json.dumps({"seconds": seconds, "error": error}))


if __name__ == "__main__":
    main(*sys.argv[1:])
