"""What each operation means, in NumPy: the oracle of the tests, and the executor without a GPU."""

from pycutlass.reference.gemm import gemm, multiplied, tolerance

__all__ = ["gemm", "multiplied", "tolerance"]
