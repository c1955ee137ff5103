"""A Triton kernel with a few arguments, for benchmarks/peers.py. Triton reads it from this file."""

import triton
import triton.language as tl

__all__ = ["add"]


@triton.jit
def add(a, b, d, elements, stride_a, stride_b, BLOCK: tl.constexpr):
    """Store a + b in d."""
    index = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = index < elements
    sum_ = tl.load(a + index * stride_a, mask=inside) + tl.load(b + index * stride_b, mask=inside)
    tl.store(d + index, sum_, mask=inside)
