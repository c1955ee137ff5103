"""Matrix operands: what the user gave, checked against what the operation was described with."""

from pycutlass.operands.biases import check_bias, is_vector, vector, vector_of
from pycutlass.operands.checks import (
    LARGEST_EXTENT,
    OtherTypeError,
    check_alike,
    check_count,
    check_dtype,
    check_extents,
    check_listed,
    check_writable,
    say_without_gradient,
)
from pycutlass.operands.matrices import empty_matrix, empty_matrix_of, matrix, matrix_of
from pycutlass.operands.operand import Matrix, Operand
from pycutlass.operands.refusals import MisalignedError, OtherLayoutError

__all__ = [
    "LARGEST_EXTENT",
    "Matrix",
    "MisalignedError",
    "Operand",
    "OtherLayoutError",
    "OtherTypeError",
    "check_alike",
    "check_bias",
    "check_count",
    "check_dtype",
    "check_extents",
    "check_listed",
    "check_writable",
    "empty_matrix",
    "empty_matrix_of",
    "is_vector",
    "matrix",
    "matrix_of",
    "say_without_gradient",
    "vector",
    "vector_of",
]
