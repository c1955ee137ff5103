"""Testbeds, under the original's name."""

from pycutlass.compat.testing.gemm import GemmUniversalLauncher, test_all_gemm

__all__ = ["GemmUniversalLauncher", "test_all_gemm"]
