"""How long cuBLAS takes for a matrix product, as it was measured beside ours (docs/gpu-results.md).

Nothing predicts cuBLAS's kernels as our own are. But what it gains or loses depends on the kind of a product more than
on its size, so a share of our time tells enough to leave a product to it.
"""

from __future__ import annotations

from pycutlass.spec import TensorSpec

__all__ = ["time_of_cublas"]

_NATIVE = 90  # the compute capability with kernels of ours that were measured
#: cuBLAS's time, in parts of ours: by kind, and whether both operands lie along K, as in ``x @ w.T``.
_SHARES = {
    ("float32", True): 0.97,
    ("float32", False): 0.95,
    ("tf32", True): 0.98,
    ("tf32", False): 0.93,
    ("unaligned", True): 0.92,
    ("unaligned", False): 0.92,
    ("16 bits", False): 0.91,
}
#: Of linear layers with so few rows, which our kernels of CUDA cores compute.
_GEMV_ROWS, _GEMV_SHARE = 4, 1.1
#: A kernel of ours begins while the one ahead of it ends (programmatic dependent launch): microseconds that it saves
#: where few rows leave the time to loading the other operand, in which cuBLAS's kernels are as fast as ours.
_EARLY_ROWS, _EARLY = 64, 1.0
_TMA_ELEMENTS = 8  # of 16 bits, of which TMA takes 16 bytes


def time_of_cublas(ours: float, a: TensorSpec, b: TensorSpec, precision: str | None, capability: int) -> float:
    """Return the microseconds of cuBLAS for a product that takes us `ours`.

    Parameters
    ----------
    ours : float
        What is predicted of our kernel.
    a, b : TensorSpec
        The operands, (..., M, K) and (..., K, N).
    precision : str or None
        How float32 is multiplied, as plans take it.
    capability : int
        The compute capability; before Hopper no difference is known.
    """
    if capability < _NATIVE:
        return ours
    is_along_k = a.strides[-1] == 1 and b.strides[-2] == 1
    kind, rows = _kind(a, b, precision), a.shape[-2]
    if kind == "16 bits" and is_along_k and len(a.shape) == 2 and rows <= _EARLY_ROWS:
        return ours * (_GEMV_SHARE if rows <= _GEMV_ROWS else 1.0) + _EARLY
    return ours * _SHARES.get((kind, is_along_k), 1.0)


def _kind(a: TensorSpec, b: TensorSpec, precision: str | None) -> str:
    if a.dtype == "float32":
        return "tf32" if precision == "tf32" else "float32"
    if a.dtype not in ("float16", "bfloat16"):
        return str(a.dtype)
    steps = [step for each in (a, b) for step in each.strides if step != 1]
    return "unaligned" if any(step % _TMA_ELEMENTS for step in steps) else "16 bits"
