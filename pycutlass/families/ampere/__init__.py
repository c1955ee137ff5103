"""Ampere-style kernels (and Turing's): CUTLASS's 2.x API, mma.sync or CUDA cores, with warps that are counted."""

from pycutlass.families.ampere.family import AMPERE

__all__ = ["AMPERE"]
