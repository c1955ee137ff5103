"""The first product of a process, as `benchmarks.tuning` starts it: milliseconds of it as JSON, from the import on.

::

    python -m benchmarks.first_product ours DTYPE M N K
    python -m benchmarks.first_product torch DTYPE M N K
"""

from __future__ import annotations

import itertools
import json
import sys
import time
from typing import Any

__all__ = ["main"]


def main(who: str, dtype: str, m: str, n: str, k: str, place: str = "cuda") -> None:
    """Compute a linear layer without its bias, where torch has a context already."""
    import torch

    rows, columns, depth = int(m), int(n), int(k)
    a = torch.randn(rows, depth, device=place, dtype=getattr(torch, dtype))
    w = torch.randn(columns, depth, device=place, dtype=getattr(torch, dtype))

    def wait() -> None:
        if place == "cuda":
            torch.cuda.synchronize()

    wait()
    begun = time.perf_counter()
    multiply: Any = torch.matmul
    if who == "ours":
        import pycutlass

        multiply = pycutlass.matmul
    imported = time.perf_counter()
    d = multiply(a, w.t())
    wait()
    first = time.perf_counter()
    multiply(a, w.t())
    wait()
    second = time.perf_counter()
    exact = a.double() @ w.t().double()
    error = float((d.double() - exact).norm() / exact.norm())
    moments = (begun, imported, first, second)
    spans = [1000 * (end - start) for start, end in itertools.pairwise(moments)]
    print(json.dumps({**dict(zip(("import", "first", "second"), spans, strict=True)), "error": error}))


if __name__ == "__main__":
    main(*sys.argv[1:])
