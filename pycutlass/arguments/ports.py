"""Tensors that an epilogue has beside C and D: given by name, and checked."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pycutlass.calls import unknown_keywords
from pycutlass.epilogue import Epilogue, Port
from pycutlass.errors import ArgumentError, ArgumentTypeError
from pycutlass.operands import Matrix, empty_matrix, matrix, vector

__all__ = ["given_ports", "port_operand"]


def given_ports(epilogue: Epilogue, given: Any) -> dict[str, Any]:
    """Return the tensors that are given for an epilogue, by name, without those that are None.

    Raises
    ------
    ArgumentTypeError
        Something else than a mapping from names that the epilogue has.
    """
    names = tuple(port.name for port in epilogue.ports)
    if not isinstance(given, Mapping):
        raise ArgumentTypeError(f"epilogue must be a mapping from names to tensors, got {type(given).__name__}")
    unknown = {name: tensor for name, tensor in given.items() if name not in names}
    if unknown and not names:
        raise ArgumentTypeError(
            f"the epilogue {type(epilogue).__name__} has no tensors beside C and D: leave out epilogue={{...}}, got "
            f"{', '.join(map(str, unknown))}"
        )
    if unknown:
        raise unknown_keywords(f"epilogue of {type(epilogue).__name__}", unknown, names)
    return {name: tensor for name, tensor in given.items() if tensor is not None}


def port_operand(port: Port, tensor: Any, rows: int, columns: int, batch: int, *, written: bool) -> Matrix:
    """Return a tensor of the epilogue, checked against its port and D's `rows` x `columns`.

    Raises
    ------
    ArgumentError, ArgumentTypeError, AlignmentError
        It is missing, does not fit, or is written and shared by a batch.
    """
    name, description = port.name, port.description
    if tensor is None:
        raise ArgumentError(f"{name}, a {port.form} of the epilogue, is missing: give epilogue={{{name!r}: ...}}")
    if not rows or not columns:
        return empty_matrix(name, description, tensor, rows, columns, batch)
    operand = (matrix if port.form == "matrix" else vector)(name, description, tensor, rows, columns, batch)
    if written and batch > 1 and not operand.batch_stride:
        raise ArgumentError(f"{name} is written for each of {batch} problems, and has room for one of them")
    return operand
