"""Tensors that a plan's kernel does not take: refused in the words of whoever runs the plan."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

import pycutlass
from pycutlass.errors import AlignmentError, ArgumentError, ArgumentTypeError

A, B, C = (np.ones(shape, np.float16) for shape in ((8, 16), (16, 8), (8, 8)))
X, W = np.ones((2, 5, 5, 8), np.float16), np.ones((16, 3, 3, 8), np.float16)
OUT, IMAGES = np.empty((8, 8), np.float16), np.empty((2, 3, 3, 16), np.float16)


def odd(*shape: int) -> Any:
    return np.ones(1 + int(np.prod(shape)), np.float16)[1:].reshape(shape)


def read_only(array: Any) -> Any:
    made = array.copy()
    made.flags.writeable = False
    return made


#: The wrong tensors by name, the exception and its words.
OF_PRODUCTS: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"out": OUT[:, :5]}, ArgumentError, r"out must have shape (8, 8), got (8, 5)"),
    ({"c": C[:4]}, ArgumentError, r"c must have shape (8, 8), or a vector of 8, one for each column, got (4, 8)"),
    ({"out": OUT.astype(np.float32)}, ArgumentTypeError, "this plan is for out of float16, got float32: pass one of"),
    ({"c": C.astype(np.float32)}, ArgumentTypeError, "this plan is for c of float16, got float32: convert it, or make"),
    ({"out": read_only(OUT)}, ArgumentError, "out is a read-only numpy array, and the result is written to it: pass"),
    ({"out": OUT.T}, ArgumentError, "is for out with adjacent elements along rows, and out of shape (8, 8) has strid"),
    ({"a": np.asfortranarray(A)}, ArgumentError, "is for a with adjacent elements along rows, and a of shape (8, 16)"),
    ({"b": np.asfortranarray(B)}, ArgumentError, "is for b with adjacent elements along rows, and b of shape (16, 8)"),
    ({"c": C.T}, ArgumentError, "is for c with adjacent elements along rows, and c of shape (8, 8) has strides (1, 8"),
    (
        {"out": np.empty((8, 16), np.float16)[:, ::2]},
        ArgumentError,
        "out of shape (8, 8) has strides (16, 2): pass mem",
    ),
    (
        {"a": odd(8, 16)},
        AlignmentError,
        "is for a whose address is a multiple of 16 bytes and whose rows are multiples",
    ),
    ({"out": odd(8, 8)}, AlignmentError, "is for out whose address is a multiple of 16 bytes and whose rows are multi"),
    (
        {"out": [1]},
        ArgumentTypeError,
        "out must be a tensor, as a and b are, got list: pass one of shape (8, 8) and fl",
    ),
    ({"a": [1]}, ArgumentTypeError, "operand a must be a tensor"),
]
OF_IMAGES: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"out": IMAGES[:1]}, ArgumentError, "out must have shape (2, 3, 3, 16), got (1, 3, 3, 16)"),
    (
        {"out": IMAGES.astype(np.float32)},
        ArgumentTypeError,
        "this plan is for out of float16, got float32: pass one of",
    ),
    (
        {"out": read_only(IMAGES)},
        ArgumentError,
        "out is a read-only numpy array, and the result is written to it: pass",
    ),
]


@pytest.mark.parametrize(("wrong", "error", "words"), OF_PRODUCTS, ids=[words for _, _, words in OF_PRODUCTS])
def test_of_products(wrong: dict[str, Any], error: type[Exception], words: str) -> None:
    beta = {"c": C, "beta": 1} if "c" in wrong else {}
    plan = pycutlass.Gemm(A, B, **beta)
    given = {"a": A, "b": B, "out": OUT, **({"c": C} if beta else {})}
    before = OUT.copy()
    with pytest.raises(error, match=re.escape(words)) as caught:
        plan.run(**{**given, **wrong})
    assert type(caught.value) is error and np.array_equal(OUT, before, equal_nan=True)
    plan.run(**given)
    assert (OUT == 17 if beta else OUT == 16).all()


@pytest.mark.parametrize(("wrong", "error", "words"), OF_IMAGES, ids=[words for _, _, words in OF_IMAGES])
def test_of_convolutions(wrong: dict[str, Any], error: type[Exception], words: str) -> None:
    plan = pycutlass.Conv2d(X, W)
    with pytest.raises(error, match=re.escape(words)):
        plan.run(X, W, **wrong)
    assert (plan.run(X, W, out=IMAGES) == 72).all()


def test_what_fits_and_is_refused_for_another_reason() -> None:
    """As memory that operands share."""
    memory = np.ones(512, np.float16)
    a, out = memory[:128].reshape(8, 16), memory[64:128].reshape(8, 8)
    with pytest.raises(ArgumentError, match=r"^out overlaps a"):
        pycutlass.Gemm(A, B).run(a, B, out=out)
    one = np.ones((1, 24), np.float16)[:, 4:20]  # of one row nobody sees how far others would be
    assert (pycutlass.Gemm(one, B).run(one, B) == 16).all()


@pytest.mark.parametrize("shape", [(8,), (1, 8), (8, 8), (1, 8, 8), (8, 1), (64,)])
def test_what_is_added_is_not_blamed_for_a_result(shape: tuple[int, ...]) -> None:
    """It may broadcast."""
    c = np.ones(shape, np.float16)
    plan = pycutlass.Gemm(A, B, c, beta=1) if shape != (64,) else pycutlass.Gemm(A, B, C, beta=1)
    for out, words in (
        (OUT.astype(np.float32), "for out of float16"),
        (OUT[:4], "^out must have"),
        (C.T, "for out with"),
    ):
        with pytest.raises((ArgumentError, ArgumentTypeError), match=words):
            plan.run(A, B, c, out=out)


@pytest.mark.parametrize("shape", [(4, 8), (8,), (1, 8), (3, 8), (1, 1, 8), (3, 1, 8), (3, 4, 8)])
def test_what_is_added_to_a_batch(shape: tuple[int, ...]) -> None:
    a, b, c = (np.ones(each, np.float16) for each in ((3, 4, 16), (3, 16, 8), shape))
    plan = pycutlass.Gemm(a, b, c, beta=1)
    with pytest.raises(ArgumentTypeError, match="for out of float16, got float32"):
        plan.run(a, b, c, out=np.empty((3, 4, 8), np.float32))
    with pytest.raises(ArgumentError, match=r"^out must have shape \(3, 4, 8\), got"):
        plan.run(a, b, c, out=np.empty((3, 4, 7), np.float16))


@pytest.mark.parametrize("shape", [(2, 3, 3), (2, 16, 9), (18, 16), (3, 3, 16), (2, 3, 3, 16, 1)])
def test_images_have_four_dimensions(shape: tuple[int, ...]) -> None:
    plan = pycutlass.Conv2d(X, W)
    for order in "CF":
        with pytest.raises(ArgumentError, match=r"^out must have (four dimensions|shape)"):
            plan.run(X, W, out=np.ones(shape, np.float16, order))


def test_a_result_of_more_axes_of_one_element() -> None:
    with pytest.raises(AlignmentError, match="is for out whose address"):
        pycutlass.Gemm(A, B).run(A, B, out=odd(1, 8, 8))


def test_what_a_kernel_says_is_no_context() -> None:
    plan = pycutlass.Gemm(A, B)
    for wrong in (OUT.T, OUT[:3], [1], read_only(OUT)):
        with pytest.raises((ArgumentError, ArgumentTypeError)) as caught:
            plan.run(A, B, out=wrong)
        assert caught.value.__context__ is None and caught.value.__cause__ is None
