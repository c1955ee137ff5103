"""What is given for the tensors of an epilogue: a mapping that can be read, with names of tensors alone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pytest
from descriptions import parts

import pycutlass
from pycutlass import GemmArguments, GemmOperationUniversal
from pycutlass.epilogue import Scalar, Tensor
from pycutlass.errors import ArgumentTypeError

pytestmark = pytest.mark.usefixtures("without_gpu")

SQUARE = np.ones((8, 8), np.float16)


@pycutlass.epilogue_function
def scaled(accum: Any, s: Scalar = 0.5) -> Any:
    return s * accum


@pycutlass.epilogue_function
def added(accum: Any, x: Tensor, s: Scalar = 0.5) -> Any:
    return s * accum + x


class _Raises(Mapping[str, Any]):
    """A mapping that raises when it is asked for something."""

    def __init__(self, what: str) -> None:
        self._what = what

    def _asked(self, what: str, answer: Any) -> Any:
        if what == self._what:
            raise RuntimeError("of the mapping")
        return answer

    def __getitem__(self, name: str) -> Any:
        return self._asked("item", SQUARE)

    def __iter__(self) -> Iterator[str]:
        return iter(self._asked("names", ["x"]))

    def __len__(self) -> int:
        return 1

    def items(self) -> Any:
        return self._asked("items", [("x", SQUARE)])


def arguments(function: Any, given: Any) -> GemmArguments:
    described = parts("f16")
    D = described["C"]
    operation = GemmOperationUniversal(**described | {"epilogue_functor": function(D.element, D.alignment)})
    return GemmArguments(operation, (8, 8, 8), SQUARE, SQUARE.T, None, np.empty_like(SQUARE), epilogue=given)


@pytest.mark.parametrize("what", ["item", "names"])
def test_a_mapping_that_cannot_be_read(what: str) -> None:
    with pytest.raises(ArgumentTypeError, match="epilogue must be a mapping from names to tensors, got _Raises"):
        arguments(added, _Raises(what))


def test_only_names_and_tensors_of_a_mapping_are_read() -> None:
    """As ``dict`` reads it: it asks for no items."""
    assert arguments(added, _Raises("items")) is not None


@pytest.mark.parametrize("given", [{"s": 1.0}, {"s": 1.0, "x": None}], ids=["alone", "with others"])
@pytest.mark.parametrize("function", [scaled, added], ids=["without tensors", "with a tensor"])
def test_a_scalar_among_tensors(function: Any, given: Any) -> None:
    with pytest.raises(ArgumentTypeError, match=r"s is a scalar: give output_op=operation.epilogue_type\(s=...\)"):
        arguments(function, given)


def test_a_tensor_that_an_epilogue_without_tensors_does_not_have() -> None:
    with pytest.raises(ArgumentTypeError, match="scaled has no tensors beside C and D, got x: leave out epilogue="):
        arguments(scaled, {"x": SQUARE})
