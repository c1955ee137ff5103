"""Matrix operands: what the user gave, checked against what the operation was described with."""

from pycutlass.operands.biases import check_bias, is_vector, vector
from pycutlass.operands.checks import LARGEST_EXTENT, check_alignment, check_count, check_dtype, check_extents
from pycutlass.operands.matrices import empty_matrix, matrix
from pycutlass.operands.operand import Matrix

__all__ = [
    "LARGEST_EXTENT",
    "Matrix",
    "check_alignment",
    "check_bias",
    "check_count",
    "check_dtype",
    "check_extents",
    "empty_matrix",
    "is_vector",
    "matrix",
    "vector",
]
