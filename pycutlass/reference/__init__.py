"""What each operation means, in NumPy: the oracle of the tests, and the executor without a GPU."""

from pycutlass.reference.conv2d import conv2d, implicit_gemm
from pycutlass.reference.gemm import gemm, gemm_outputs, multiplied, serial_slices, tolerance
from pycutlass.reference.grouped import gemm_grouped

__all__ = [
    "conv2d",
    "gemm",
    "gemm_grouped",
    "gemm_outputs",
    "implicit_gemm",
    "multiplied",
    "serial_slices",
    "tolerance",
]
