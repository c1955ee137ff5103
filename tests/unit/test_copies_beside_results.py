"""Tensors of an epilogue that lie as no kernel takes them: copied where that is allowed, refused with that remedy."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

import pycutlass
from pycutlass.epilogue import Column, PerBatch, Row, Tensor
from pycutlass.errors import AlignmentError, ArgumentError
from pycutlass.spec import view_of

pytestmark = pytest.mark.usefixtures("without_gpu")

RNG = np.random.default_rng(5)
REMEDY = r"With allow_copy=True it is copied\.$"


@pycutlass.epilogue_function
def dressed(accum: Any, bias: Row, factor: Column, residual: Tensor) -> Any:
    x = (accum + bias) * factor + residual
    return {"D": x, "before": accum}


@pycutlass.epilogue_function
def numbered(accum: Any, number: PerBatch) -> Any:
    return accum * number


@pycutlass.epilogue_function
def of_images(accum: Any, bias: Row, residual: Tensor) -> Any:
    return accum + bias + residual


def drawn(*shape: int) -> Any:
    return RNG.integers(-3, 4, shape).astype(np.float32)


def spread(array: Any) -> Any:
    """Return the same elements, of which those of the last axis are 2 apart."""
    wide = np.full((*array.shape[:-1], 2 * array.shape[-1]), np.nan, array.dtype)
    wide[..., ::2] = array
    return wide[..., ::2]


def turned(array: Any) -> Any:
    """Return the same elements, by columns."""
    return np.ascontiguousarray(np.swapaxes(array, -1, -2)).swapaxes(-1, -2)


A, B = drawn(4, 8), drawn(8, 16)
FORMS = {"bias": (16,), "factor": (4,), "residual": (4, 16)}
MAKE = pytest.mark.parametrize("make", [np.asarray, torch.from_numpy], ids=["numpy", "torch"])


def exact(accum: Any, given: Any) -> Any:
    factor = np.asarray(given["factor"])
    return (accum + np.asarray(given["bias"])) * factor[..., None] + np.asarray(given["residual"])


@MAKE
@pytest.mark.parametrize(("name", "lay"), [
    ("bias", spread), ("factor", spread), ("residual", spread), ("residual", turned),
])  # fmt: skip
def test_they_are_copied_or_refused_with_that_remedy(name: str, lay: Any, make: Any) -> None:
    given = {each: drawn(*shape) for each, shape in FORMS.items()}
    given[name] = lay(given[name])
    before = np.zeros((4, 16), np.float32)
    a, b, *_ = map(make, (A, B))
    inputs = {**{each: make(array) for each, array in given.items()}, "before": make(before)}
    for _ in range(2):
        got = pycutlass.matmul(a, b, epilogue=dressed, epilogue_inputs=inputs, allow_copy=True)
        np.testing.assert_array_equal(np.asarray(got), exact(A @ B, given))
        np.testing.assert_array_equal(before, A @ B)
    w = make(np.ascontiguousarray(B.T))
    got = pycutlass.linear(a, w, epilogue=dressed, epilogue_inputs=inputs, allow_copy=True)
    np.testing.assert_array_equal(np.asarray(got), exact(A @ B, given))
    with pytest.raises(ArgumentError, match=rf"{name}.*{REMEDY}"):
        pycutlass.matmul(a, b, epilogue=dressed, epilogue_inputs=inputs)


@pytest.mark.parametrize(("name", "lay"), [
    ("residual", lambda array: np.broadcast_to(array[:1], array.shape)), ("residual", lambda array: array[::-1]),
    ("bias", lambda array: array[::-1]),
])  # fmt: skip
def test_of_steps_that_are_zero_or_negative(name: str, lay: Any) -> None:
    given = {each: drawn(*shape) for each, shape in FORMS.items()} | {"before": np.zeros((4, 16), np.float32)}
    given[name] = lay(given[name])
    got = pycutlass.matmul(A, B, epilogue=dressed, epilogue_inputs=given, allow_copy=True)
    np.testing.assert_array_equal(got, exact(A @ B, given))
    with pytest.raises(ArgumentError, match=rf"{name}.*{REMEDY}"):
        pycutlass.matmul(A, B, epilogue=dressed, epilogue_inputs=given)


def test_what_kernels_take_is_not_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    def copied(*_: Any) -> Any:
        raise AssertionError

    monkeypatch.setattr("pycutlass.plan.port_copies.copied", copied)
    wide = drawn(4, 32)
    given = {"bias": drawn(16), "factor": drawn(4), "residual": wide[:, :16], "before": np.zeros((4, 16), np.float32)}
    got = pycutlass.matmul(A, B, epilogue=dressed, epilogue_inputs=given, allow_copy=True)
    np.testing.assert_array_equal(got, exact(A @ B, given))


def test_results_are_never_copied() -> None:
    given = {each: drawn(*shape) for each, shape in FORMS.items()}
    for before in (turned(np.zeros((4, 16), np.float32)), spread(np.zeros((4, 16), np.float32))):
        with pytest.raises(ArgumentError, match="before") as refused:
            pycutlass.matmul(A, B, epilogue=dressed, epilogue_inputs={**given, "before": before}, allow_copy=True)
        assert "allow_copy" not in str(refused.value)


def test_what_a_copy_does_not_mend_is_refused_as_before() -> None:
    given = {each: drawn(*shape) for each, shape in FORMS.items()} | {"before": np.zeros((4, 16), np.float32)}
    for name, tensor in (("bias", drawn(30)[::2]), ("residual", drawn(16, 4).T[:, :15]), ("residual", 1.0)):
        for allow_copy in (False, True):
            inputs = {**given, name: tensor}
            with pytest.raises((ArgumentError, TypeError), match=name) as refused:
                pycutlass.matmul(A, B, epilogue=dressed, epilogue_inputs=inputs, allow_copy=allow_copy)
            assert "allow_copy" not in str(refused.value)


def test_an_address_that_is_less_aligned() -> None:
    a, b = A.astype(np.float16), B.astype(np.float16)
    given = {"bias": drawn(16).astype(np.float16), "residual": drawn(65).astype(np.float16)[1:].reshape(4, 16)}
    with pytest.raises(AlignmentError, match=rf"residual.*{REMEDY}"):
        pycutlass.matmul(a, b, epilogue=of_images, epilogue_inputs=given)
    got = pycutlass.matmul(a, b, epilogue=of_images, epilogue_inputs=given, allow_copy=True)
    np.testing.assert_array_equal(got, A @ B + given["bias"] + given["residual"])


class _OfDlpack:
    """A tensor of a library that is known by DLPack alone."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self._tensor = tensor

    def __dlpack__(self, **how: Any) -> Any:
        return self._tensor.__dlpack__(**how)

    def __dlpack_device__(self) -> Any:
        return self._tensor.__dlpack_device__()


def test_of_a_library_that_is_known_by_dlpack_alone() -> None:
    given = {"bias": drawn(16), "residual": turned(drawn(4, 16))}
    inputs = {name: _OfDlpack(torch.from_numpy(array)) for name, array in given.items()}
    got = pycutlass.matmul(A, B, epilogue=of_images, epilogue_inputs=inputs, allow_copy=True)
    np.testing.assert_array_equal(got, A @ B + given["bias"] + given["residual"])
    with pytest.raises(ArgumentError, match=REMEDY):
        pycutlass.matmul(A, B, epilogue=of_images, epilogue_inputs=inputs)


@pytest.mark.parametrize("allow_copy", [False, True])
def test_what_is_known_by_dlpack_alone_on_a_gpu_is_copied_by_another_library(
    allow_copy: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing here copies it: the remedy is code that does."""

    def on_gpu(name: str, tensor: Any) -> Any:
        view = view_of(name, tensor)
        return replace(view, device=0) if view.library == "dlpack" else view

    def followed(call: Any, residual: Any, rule: str) -> Any:
        with pytest.raises(ArgumentError, match=rf"{rule}.* DLPack alone.*pass (torch|cupy)\.") as refused:
            call(residual)
        assert "allow_copy" not in str(refused.value)
        code = str(refused.value).rpartition(": pass ")[2].rstrip(".").split("; if it is")[0]
        return call(eval(code, {"torch": torch, "cupy": np, "residual": residual, "x": residual}))

    monkeypatch.setattr("pycutlass.plan.port_copies.view_of", on_gpu)
    monkeypatch.setattr("pycutlass.plan.conv_call.wrap", on_gpu)
    bias, residual = drawn(16), drawn(4, 16)

    def product(residual: Any, **how: Any) -> Any:
        inputs = {"bias": bias, "residual": residual}
        return pycutlass.matmul(A, B, epilogue=of_images, epilogue_inputs=inputs, allow_copy=allow_copy, **how)

    expected = A @ B + bias + residual
    given = _OfDlpack(torch.from_numpy(spread(residual)))
    np.testing.assert_array_equal(followed(product, given, "residual"), expected)
    out = turned(np.zeros((4, 16), np.float32))
    np.testing.assert_array_equal(followed(lambda each: product(each, out=out), given, "residual"), expected)

    x, w, images, bias = drawn(2, 5, 6, 8), drawn(4, 3, 3, 8), drawn(2, 5, 6, 4), drawn(4)
    expected = pycutlass.conv2d(x, w, padding=1) + bias + images

    def convolution(residual: Any) -> Any:
        inputs = {"bias": bias, "residual": residual}
        how = {"epilogue": of_images, "epilogue_inputs": inputs, "allow_copy": allow_copy}
        return pycutlass.conv2d(x, w, padding=1, **how)

    given = _OfDlpack(torch.from_numpy(turned(images)))
    np.testing.assert_array_equal(followed(convolution, given, "residual"), expected)
    expected = pycutlass.conv2d(x, w)
    got = followed(lambda x: pycutlass.conv2d(x, w, allow_copy=allow_copy), _OfDlpack(torch.from_numpy(turned(x))), "x")
    np.testing.assert_array_equal(got, expected)


def test_images_in_host_memory_of_a_library_that_is_known_by_dlpack_alone() -> None:
    x, w = drawn(2, 5, 6, 8), drawn(4, 3, 3, 8)
    given, expected = _OfDlpack(torch.from_numpy(turned(x))), pycutlass.conv2d(x, w)
    with pytest.raises(ArgumentError, match=r"pass np\.ascontiguousarray\(np\.from_dlpack\(x\)\), or allow_copy=True"):
        pycutlass.conv2d(given, w)
    np.testing.assert_array_equal(pycutlass.conv2d(np.ascontiguousarray(np.from_dlpack(given)), w), expected)
    np.testing.assert_array_equal(pycutlass.conv2d(given, w, allow_copy=True), expected)
    out = _OfDlpack(torch.from_numpy(turned(np.zeros((2, 3, 4, 4), np.float32))))
    for allow_copy in (False, True):
        with pytest.raises(ArgumentError, match=r"nothing is written back .* pass an out that lies so") as refused:
            pycutlass.conv2d(x, w, out=out, allow_copy=allow_copy)
        assert "or allow_copy" not in str(refused.value)


def test_one_that_requires_a_gradient_is_refused() -> None:
    residual = torch.ones(16, 4, requires_grad=True).T
    inputs = {"bias": torch.ones(16), "residual": residual}
    with pytest.raises(ArgumentError, match=r"residual requires a gradient"):
        pycutlass.matmul(*map(torch.from_numpy, (A, B)), epilogue=of_images, epilogue_inputs=inputs, allow_copy=True)


def test_beside_a_result_by_columns() -> None:
    given = {"bias": drawn(16), "residual": drawn(4, 16)}
    out = turned(np.zeros((4, 16), np.float32))
    got = pycutlass.matmul(A, B, epilogue=of_images, epilogue_inputs=given, out=out, allow_copy=True)
    np.testing.assert_array_equal(got, A @ B + given["bias"] + given["residual"])
    assert got is out


@MAKE
def test_of_stacks(make: Any) -> None:
    a, b = drawn(2, 3, 4, 8), drawn(2, 3, 8, 16)
    given = {"bias": spread(drawn(2, 3, 16)), "factor": spread(drawn(2, 3, 4))}
    given["residual"] = np.swapaxes(drawn(3, 2, 4, 16), 0, 1)  # which have no one step from matrix to matrix
    before = np.zeros((2, 3, 4, 16), np.float32)
    inputs = {**{name: make(array) for name, array in given.items()}, "before": make(before)}
    got = pycutlass.matmul(make(a), make(b), epilogue=dressed, epilogue_inputs=inputs, allow_copy=True)
    of_rows = {**given, "bias": given["bias"][..., None, :]}
    np.testing.assert_array_equal(np.asarray(got), exact(a @ b, of_rows))
    np.testing.assert_array_equal(before, a @ b)
    with pytest.raises(ArgumentError, match=REMEDY):
        pycutlass.matmul(make(a), make(b), epilogue=dressed, epilogue_inputs=inputs)
    numbers = spread(drawn(6).reshape(2, 3))
    got = pycutlass.matmul(a, b, epilogue=numbered, epilogue_inputs={"number": numbers}, allow_copy=True)
    np.testing.assert_array_equal(got, a @ b * numbers[..., None, None])


@MAKE
@pytest.mark.parametrize("lay", [spread, turned])
def test_of_groups(lay: Any, make: Any) -> None:
    xs, ws = [drawn(3, 8), drawn(0, 8), drawn(5, 8)], [drawn(8, 16), drawn(8, 4), drawn(8, 8)]
    lists = {"bias": [spread(drawn(w.shape[1])) for w in ws], "factor": [spread(drawn(len(x))) for x in xs]}
    lists["residual"] = [lay(drawn(len(x), w.shape[1])) for x, w in zip(xs, ws, strict=True)]
    lists["before"] = [np.zeros((len(x), w.shape[1]), np.float32) for x, w in zip(xs, ws, strict=True)]
    inputs = {name: list(map(make, arrays)) for name, arrays in lists.items()}
    of_make = list(map(make, xs)), list(map(make, ws))
    for _ in range(2):
        got = pycutlass.grouped_matmul(*of_make, epilogue=dressed, epilogue_inputs=inputs, allow_copy=True)
        for number, (x, w) in enumerate(zip(xs, ws, strict=True)):
            given = {name: arrays[number] for name, arrays in lists.items()}
            np.testing.assert_array_equal(np.asarray(got[number]), exact(x @ w, given))
            np.testing.assert_array_equal(lists["before"][number], x @ w)
    with pytest.raises(ArgumentError, match=rf"bias\[0\].*{REMEDY}"):
        pycutlass.grouped_matmul(*of_make, epilogue=dressed, epilogue_inputs=inputs)
    inputs["before"] = [make(spread(each)) for each in lists["before"]]
    with pytest.raises(ArgumentError, match="before"):
        pycutlass.grouped_matmul(*of_make, epilogue=dressed, epilogue_inputs=inputs, allow_copy=True)


@MAKE
def test_of_rows_that_are_divided(make: Any) -> None:
    x, w, offs = drawn(8, 8), drawn(3, 8, 16), [3, 3, 8]
    given = {"bias": spread(drawn(3, 16)), "factor": spread(drawn(8)), "residual": turned(drawn(8, 16))}
    inputs = {**{name: make(array) for name, array in given.items()}, "before": make(np.zeros((8, 16), np.float32))}
    how = {"offs": offs, "epilogue": dressed, "epilogue_inputs": inputs}
    got = pycutlass.grouped_matmul(make(x), make(w), **how, allow_copy=True)
    of_row = np.repeat(np.arange(3), np.diff([0, *offs]))
    products = np.einsum("mk,mkn->mn", x, w[of_row])
    np.testing.assert_array_equal(np.asarray(got), exact(products, {**given, "bias": given["bias"][of_row]}))
    with pytest.raises(ArgumentError, match=REMEDY):
        pycutlass.grouped_matmul(make(x), make(w), **how)


IMAGES, FILTERS = drawn(2, 6, 5, 8), drawn(16, 3, 3, 8)


def nchw(array: Any) -> Any:
    return torch.from_numpy(array).permute(0, 3, 1, 2)


@pytest.mark.parametrize("direction", ["conv2d", "conv2d_input", "conv2d_weight"])
@pytest.mark.parametrize("is_torch", [False, True], ids=["numpy", "torch"])
def test_of_convolutions(direction: str, is_torch: bool) -> None:
    call, result = getattr(pycutlass, direction), (2, 6, 5, 16)
    operands: Any = (IMAGES, FILTERS)
    if direction == "conv2d_input":
        operands, result = (drawn(2, 6, 5, 16), FILTERS, IMAGES.shape), IMAGES.shape
    elif direction == "conv2d_weight":
        operands, result = (drawn(2, 6, 5, 16), IMAGES, FILTERS.shape), FILTERS.shape
    columns = 72 if direction == "conv2d_weight" else result[3]
    bias, residual = spread(drawn(columns)), drawn(*result)
    if is_torch:
        size = [(n, c, h, w) for n, h, w, c in operands[2:]]
        operands = (*map(nchw, operands[:2]), *size)
        given = {"bias": torch.from_numpy(bias), "residual": nchw(residual).contiguous()}
        plain = {"bias": given["bias"].contiguous(), "residual": nchw(residual)}
    else:
        given = {"bias": bias, "residual": spread(residual)}
        plain = {"bias": bias.copy(), "residual": residual}
    how = {"padding": 1, "epilogue": of_images}
    expected = call(*operands, **how, epilogue_inputs=plain)
    for _ in range(2):
        got = call(*operands, **how, epilogue_inputs=given, allow_copy=True)
        np.testing.assert_array_equal(np.asarray(got), np.asarray(expected))
    for name in given:
        with pytest.raises(ArgumentError, match=rf"{name}.*{REMEDY}"):
            call(*operands, **how, epilogue_inputs={**plain, name: given[name]})


def test_images_of_numpy_that_have_equal_extents_are_not_taken_for_those_of_torch() -> None:
    """(N, H, W, C) with H = W = C and adjacent H looks as (N, C, H, W) of torch in channels_last does."""
    x, w = drawn(2, 8, 8, 8), drawn(8, 3, 3, 8)
    residual = drawn(2, 8, 8, 8)
    other = np.ascontiguousarray(residual.transpose(0, 2, 3, 1)).transpose(0, 3, 1, 2)
    assert np.array_equal(other, residual) and other.strides != residual.strides
    given = {"padding": 1, "epilogue": of_images}
    bias = drawn(8)
    expected = pycutlass.conv2d(x, w, **given, epilogue_inputs={"bias": bias, "residual": residual})
    with pytest.raises(ArgumentError, match=r"with channels adjacent.*With allow_copy=True"):
        pycutlass.conv2d(x, w, **given, epilogue_inputs={"bias": bias, "residual": other})
    made = pycutlass.conv2d(x, w, **given, epilogue_inputs={"bias": bias, "residual": other}, allow_copy=True)
    assert np.array_equal(made, expected)
    plan = pycutlass.Conv2d(x, w, **given, epilogue_inputs={"bias": bias})
    for _ in range(2):  # made, and with other tensors
        with pytest.raises(ArgumentError, match=r"residual must be packed pixel by pixel"):
            plan.run(x, w, epilogue_inputs={"bias": bias, "residual": other})
        assert np.array_equal(plan.run(x, w, epilogue_inputs={"bias": bias, "residual": residual}), expected)
    with pytest.raises(ArgumentError, match=r"residual must be packed pixel by pixel"):
        pycutlass.Conv2d(x, w, **given, epilogue_inputs={"bias": bias, "residual": other})
