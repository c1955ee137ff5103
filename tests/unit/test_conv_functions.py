"""Convolutions with epilogue functions: what they take, what they refuse, and what they mean."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
import torch
from convolutions import STRIDED, UNITY, conv, dgrad, fprop, wgrad
from epilogue_functions import biased, reduced, several
from torch.nn import functional

import pycutlass
from pycutlass import cutlass, epilogue
from pycutlass.epilogue import fusions
from pycutlass.errors import ArgumentError, ArgumentTypeError, DescriptionError

KINDS = {"fprop": (fprop, STRIDED), "dgrad": (dgrad, UNITY), "wgrad": (wgrad, STRIDED)}


def make(function: Any, kind: str = "fprop", **options: Any) -> Any:
    direction, stride = KINDS[kind]
    options = {"stride": stride} | options

    def functor(output: Any, alignment: int, accumulator: Any, compute: Any) -> Any:
        return function(output, alignment, accumulator, compute)

    return conv(direction, "optimized", functor=functor, **options)


WHOLE = [each for each in fusions.ALL.values() if not each.graph.is_gated]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("function", [biased, several, reduced, *WHOLE], ids=lambda each: each.name)
def test_every_direction_takes_functions(kind: str, function: Any) -> None:
    operation = make(function, kind)
    assert "Conv2dVisitor" in operation.body()
    problem = cutlass.conv.Conv2dProblemSize(N=2, H=8, W=8, C=16, K=24, R=3, S=3, pad_h=1, pad_w=1)
    assert operation.supports(problem)
    assert not operation.splits_k


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"kind": "dgrad", "stride": STRIDED}, "strided dgrad, which writes pixels in another order"),
        ({"function": fusions.swiglu}, "swiglu combines pairs of columns, so that D has half as many"),
        ({"group_mode": pycutlass.GroupMode.SingleGroup}, "GroupMode.SingleGroup"),
    ],
)
def test_others_say_why_not(options: dict[str, Any], said: str) -> None:
    with pytest.raises(DescriptionError, match=re.escape(said)):
        make(**{"function": biased} | options)


@pycutlass.epilogue_function
def _all_forms(accum: Any) -> Any:
    values, indices = epilogue.top_k(accum, 2)
    sums = {"pixels": epilogue.sum(accum, axis=1), "channels": epilogue.max(accum, axis=0), "one": epilogue.sum(accum)}
    return {"D": accum, "twice": accum * 2.0, "values": values, "indices": indices, **sums}


@pytest.mark.parametrize("kind", KINDS)
def test_outputs_are_what_a_launch_takes(kind: str, without_gpu: None) -> None:
    operation = make(_all_forms, kind)
    size = cutlass.conv.Conv2dProblemSize(N=2, H=8, W=8, C=16, K=24, R=1, S=1)
    m = {"fprop": 128, "dgrad": 128, "wgrad": 24}[kind]
    whole = {"fprop": (2, 8, 8, 24), "dgrad": (2, 8, 8, 16), "wgrad": (24, 1, 1, 16)}[kind]
    specs = operation.outputs(size)
    pair, lines = (m, 2), {"pixels": (m,), "channels": whole[3:], "one": (1,)}
    shapes = {"D": whole, "twice": whole, "values": pair, "indices": pair, **lines}
    assert {name: spec.shape for name, spec in specs.items()} == shapes
    assert specs["D"] == operation.output(size)
    made = {name: np.zeros(spec.shape, spec.dtype) for name, spec in specs.items()}
    a, b = {"fprop": ((2, 8, 8, 16), (24, 1, 1, 16)), "dgrad": ((2, 8, 8, 24), (24, 1, 1, 16))}.get(
        kind, ((2, 8, 8, 24), (2, 8, 8, 16))
    )
    D = made.pop("D")
    tensors = np.ones(a, np.float16), np.ones(b, np.float16), None, D
    operation.run(pycutlass.Conv2dArguments(operation, size, *tensors, epilogue=made))
    np.testing.assert_array_equal(made["twice"], 2 * D)
    np.testing.assert_array_equal(made["values"], D.reshape(m, -1)[:, :2])
    np.testing.assert_array_equal(made["one"], D.sum(dtype=np.float32))


def test_there_are_no_outputs_of_what_is_not_supported() -> None:
    operation, size = make(_all_forms), cutlass.conv.Conv2dProblemSize(N=1, H=8, W=8, C=16, K=512, R=1, S=1)
    with pytest.raises(ArgumentError, match="no tile has more than 256"):
        operation.outputs(size)


def test_sums_are_not_split() -> None:
    operation = make(biased)
    problem = cutlass.conv.Conv2dProblemSize(N=2, H=8, W=8, C=16, K=24, R=3, S=3, split_k_slices=2)
    assert "takes whole sums, got split_k_slices=2" in operation.supports(problem).reason


def test_nothing_is_reduced_of_no_pixels() -> None:
    problem = cutlass.conv.Conv2dProblemSize(N=0, H=8, W=8, C=16, K=24, R=3, S=3)
    assert "D has no elements that row_sum, " in make(reduced).supports(problem).reason


def test_a_block_of_a_residual_network(without_gpu: None) -> None:
    operation = make(fusions.scale_shift_residual_relu)
    random = torch.Generator().manual_seed(1)

    def drawn(*shape: int) -> Any:
        made = torch.randn(*shape, generator=random).half()
        return made.to(memory_format=torch.channels_last) if made.ndim == 4 else made

    x, w, residual, scale, shift = drawn(2, 16, 9, 7), drawn(24, 16, 3, 3), drawn(2, 24, 9, 7), drawn(24), drawn(24)
    y = torch.full_like(residual, float("nan"))
    size = pycutlass.conv2d_problem_size(x, w, padding=1)
    arguments = pycutlass.Conv2dArguments(
        operation, size, x, w, None, y, epilogue={"scale": scale, "shift": shift, "residual": residual}
    )
    operation.run(arguments)
    arguments.sync()
    plain = functional.conv2d(x.double(), w.double(), padding=1)
    exact = functional.relu(plain * scale[:, None, None] + shift[:, None, None] + residual)
    torch.testing.assert_close(y.double(), exact, rtol=2e-3, atol=1e-2)


@pytest.mark.parametrize("kind", KINDS)
def test_matrices_vectors_and_sums_of_every_direction(kind: str, without_gpu: None) -> None:
    operation = make(reduced, kind)
    random = np.random.default_rng(2)
    size = cutlass.conv.Conv2dProblemSize(N=2, H=6, W=5, C=16, K=24, R=3, S=3, pad_h=1, pad_w=1)
    extents = {"x": (2, 6, 5, 16), "w": (24, 3, 3, 16), "y": (2, 6, 5, 24)}
    x, w, y = (random.standard_normal(shape).astype(np.float16) for shape in extents.values())
    A, B, D = {"fprop": (x, w, y), "dgrad": (y, w, x), "wgrad": (y, x, w)}[kind]
    m, n = {"fprop": (60, 24), "dgrad": (60, 16), "wgrad": (24, 144)}[kind]
    tensors = [torch.from_numpy(each.transpose(0, 3, 1, 2)).double() for each in (x, w, y)]
    x_, w_, y_ = tensors
    if kind == "fprop":
        plain = functional.conv2d(x_, w_, padding=1)
    elif kind == "dgrad":
        plain = torch.nn.grad.conv2d_input(x_.shape, w_, y_, padding=1)
    else:
        plain = torch.nn.grad.conv2d_weight(x_, w_.shape, y_, padding=1)
    sums = plain.permute(0, 2, 3, 1).reshape(m, n).numpy()
    bias = random.standard_normal(n).astype(np.float16)
    shapes = {"row": (n,), "column": (m,), "scalar": (1,)}
    outputs = {port.name: np.full(shapes[port.form], np.nan, np.float32) for port in operation.epilogue_functor.outputs}
    made = np.full(D.shape, np.nan, np.float16)
    arguments = pycutlass.Conv2dArguments(operation, size, A, B, None, made, epilogue={"bias": bias, **outputs})
    operation.run(arguments)
    arguments.sync()
    exact = reduced.numpy(sums, bias=bias)
    np.testing.assert_allclose(made.reshape(m, n), exact["D"], rtol=2e-3, atol=1e-2)
    for name, values in outputs.items():
        np.testing.assert_allclose(values.reshape(exact[name].shape), exact[name], rtol=1e-3, atol=1e-2, err_msg=name)


def test_wrong_tensors_are_refused(without_gpu: None) -> None:
    operation = make(several)
    random = np.random.default_rng(3)
    x, w = (
        random.standard_normal((1, 4, 4, 16)).astype(np.float16),
        random.standard_normal((8, 1, 1, 16)).astype(np.float16),
    )
    y = np.zeros((1, 4, 4, 8), np.float16)
    size = pycutlass.conv2d_problem_size(x, w)
    given = {name: y.copy() for name in ("x", "y", "first", "second")} | {"left": np.zeros(16, np.float16)}
    C = y.copy()
    pycutlass.Conv2dArguments(operation, size, x, w, C, y, epilogue=given)
    cases: list[tuple[dict[str, Any], str]] = [
        ({"x": None}, "x, a matrix of the epilogue, is missing"),
        ({"x": np.zeros((1, 4, 5, 8), np.float16)}, "x"),
        (
            {"left": np.zeros(8, np.float16)},
            r"left .* got shape \(8,\) with strides \(1,\). For a tensor of that shape write left: Row.$",
        ),
        ({"x": np.zeros(8, np.float16)}, r"; got 8. For a tensor of that shape write x: Row$"),
        ({"x": np.zeros((16, 1), np.float16)}, r"got shape \(16, 1\). For a tensor of that shape write x: Column$"),
        ({"x": 1.0}, r"got float 1. For a single number write x: Scalar$"),
        ({"left": np.zeros((1, 4, 4, 1), np.float16)}, r"with strides \(16, 4, 1, 1\). Pass left.reshape\(-1\)."),
        ({"left": np.zeros((4, 4), np.float16).T}, r"with strides \(1, 4\)$"),
        ({"first": y}, "overlaps"),
        ({"first": given["x"]}, "overlaps"),
        ({"other": y}, "other"),
    ]
    for changed, said in cases:
        with pytest.raises((ArgumentError, ArgumentTypeError), match=said):
            pycutlass.Conv2dArguments(operation, size, x, w, C, y, epilogue=given | changed)
    with pytest.raises(ArgumentTypeError, match="no tensors beside C and D"):
        pycutlass.Conv2dArguments(conv(fprop, "optimized"), size, x, w, None, y, epilogue={"x": y})


def _images(library: str, *shape: int, dtype: str = "float16") -> Any:
    """Return images as numpy or torch has them by default, channels last or first, of a shape that has these last."""
    if library == "numpy":
        return np.zeros(shape, dtype)
    n, h, w, c = shape
    return torch.zeros((n, c, h, w), dtype=getattr(torch, dtype))


WRITTEN = {
    "another type": lambda library: _images(library, 2, 4, 4, 8, dtype="float32"),
    "channels before pixels": lambda library: (
        _images("torch", 2, 4, 4, 8) if library == "torch" else np.zeros((2, 8, 4, 4), np.float16).transpose(0, 2, 3, 1)
    ),
    "another address": lambda library: (
        torch.zeros(257, dtype=torch.float16)[1:].view(2, 4, 4, 8)
        if library == "torch"
        else np.zeros(257, np.float16)[1:].reshape(2, 4, 4, 8)
    ),
}


@pytest.mark.parametrize("library", ["numpy", "torch"])
@pytest.mark.parametrize("wrong", WRITTEN)
def test_what_is_written_is_made_anew(wrong: str, library: str, without_gpu: None) -> None:
    """Of a copy, which reads as well as the tensor did, nobody would see the results."""
    operation = make(lambda *types: pycutlass.epilogue_function(lambda a: {"D": a, "T": 2.0 * a})(*types))
    x, w, y = (_images(library, *shape) for shape in ((2, 4, 4, 16), (8, 1, 1, 16), (2, 4, 4, 8)))
    if library == "torch":
        x, w, y = (each.contiguous(memory_format=torch.channels_last) for each in (x, w, y))
    x[...], w[...] = 1.0, 1.0
    size = pycutlass.conv2d_problem_size(x, w)
    T = WRITTEN[wrong](library)
    with pytest.raises((ArgumentError, ArgumentTypeError)) as refused:
        pycutlass.Conv2dArguments(operation, size, x, w, None, y, epilogue={"T": T})
    remedy = re.search(r"[mM]ake T as (.*?) and read the result from there", str(refused.value))
    assert remedy, refused.value
    T = eval(remedy[1], {"np": np, "torch": torch, "T": T})
    arguments = pycutlass.Conv2dArguments(operation, size, x, w, None, y, epilogue={"T": T})
    operation.run(arguments)
    arguments.sync()
    assert (np.asarray(T) == 32).all()
