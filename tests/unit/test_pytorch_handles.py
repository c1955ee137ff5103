"""Epilogue functions as text: equal for equal functions in every process, and refused where it is of none."""

# mypy: disable-error-code="valid-type,operator"
# Annotations of epilogue functions say what a parameter stands for, which is no type of Python's.

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import pycutlass.pytorch
from pycutlass import cutlass, epilogue_function
from pycutlass import epilogue as functions
from pycutlass.epilogue import (
    Column,
    EpilogueFunction,
    Family,
    PerBatch,
    Row,
    Scalar,
    Source,
    Tensor,
    fusions,
    gelu,
    leaky_relu,
    pairs,
    silu,
    tanh,
)
from pycutlass.errors import ArgumentError, ArgumentTypeError, DescriptionError
from pycutlass.pytorch import epilogue_handle, epilogue_of


@epilogue_function
def everything(
    accum: Any,
    bias: Row(cutlass.float32),
    scale: Column,
    mask: Tensor(cutlass.uint8),
    factor: PerBatch,
    c: Source,
    alpha: Scalar,
    beta: Scalar = -0.0,
    gamma: Scalar = float("inf"),
) -> Any:
    t = alpha * accum * factor + beta * c + bias
    t = functions.where((mask != 0) & ~(t > 3.5), t, 0.1) ** 2 + functions.minimum(t, gamma) % 3
    values, indices = functions.top_k(t, 3)
    return {
        "values": values,
        "D": leaky_relu(gelu(t)) * scale + functions.cast(t, cutlass.float_e4m3) // 2,
        "indices": indices,
        "each": functions.logsumexp(t, axis=0),
        "tiles": functions.absmax(t, axis=1, tile=128),
        "all": functions.sum(t),
    }


@epilogue_function
def gated(accum: Any, bias: Row, later: Row, after: Tensor, alone: Row) -> Any:
    gate, up = functions.pairs(accum + bias)
    return {
        "D": silu(gate) * up * later + after,
        "x": accum,
        "copy": alone + 0.0,
        "largest": functions.max(gate, axis=1),
    }


READY = {name: each for name in dir(fusions) if isinstance(each := getattr(fusions, name), EpilogueFunction)}
FUNCTIONS = {**READY, "everything": everything, "gated_and_more": gated}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_it_comes_back_as_it_was(name: str) -> None:
    function = FUNCTIONS[name]
    handle = epilogue_handle(function)
    made = epilogue_of(handle)
    assert made == function and hash(made) == hash(function) and made.graph == function.graph
    assert epilogue_handle(made) == handle and epilogue_of(handle) is made
    ours, theirs = (each(cutlass.float16, 8) for each in (function, made))
    assert ours == theirs and hash(ours) == hash(theirs) and ours.ports == theirs.ports
    families = [family for family in Family if not ours.why_not(family)]
    assert families
    for family in families:
        assert ours.definitions(family) == theirs.definitions(family) and ours.cpp(family) == theirs.cpp(family)


def test_it_computes_the_same() -> None:
    accum = np.random.default_rng(0).standard_normal((4, 8))
    given = {"bias": np.ones(8), "later": np.full(4, 2.0), "after": np.ones((4, 4)), "alone": np.arange(4)}
    made, wanted = epilogue_of(epilogue_handle(gated)).numpy(accum, **given), gated.numpy(accum, **given)
    assert list(made) == list(wanted) and all(np.array_equal(made[name], wanted[name]) for name in made)


def test_equal_functions_have_equal_texts() -> None:
    @epilogue_function
    def one(accum: Any, bias: Row, alpha: Scalar = 0.0) -> Any:
        """Say something."""
        biased = accum + bias
        return {"D": gelu(biased) * alpha, "T": biased}

    @epilogue_function
    def other(acc: Any, bias: Row, alpha: Scalar = 0) -> Any:
        return {"D": gelu(acc + bias) * alpha, "T": acc + bias}

    @epilogue_function
    def negative(acc: Any, bias: Row, alpha: Scalar = -0.0) -> Any:
        return {"D": gelu(acc + bias) * alpha, "T": acc + bias}

    @epilogue_function
    def turned(acc: Any, bias: Row, alpha: Scalar = 0.0) -> Any:
        return {"T": acc + bias, "D": gelu(acc + bias) * alpha}

    assert one == other and epilogue_handle(one) == epilogue_handle(other)
    assert one != turned and epilogue_handle(one) != epilogue_handle(turned)
    assert one != negative and epilogue_handle(one) != epilogue_handle(negative)
    assert epilogue_of(epilogue_handle(negative)) == negative


def test_it_is_the_same_in_every_process() -> None:
    script = (
        "from pycutlass.epilogue import fusions; from pycutlass.epilogue.handles import handle_of; "
        "print(handle_of(fusions.bias_swiglu))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == epilogue_handle(fusions.bias_swiglu)


def test_types_of_outputs() -> None:
    handle = epilogue_handle(gated, D=torch.float8_e4m3fn, x=cutlass.float32, largest=np.float32)
    assert epilogue_of(handle) == gated and handle != epilogue_handle(gated)
    assert [kind for *_, kind in json.loads(handle)["outputs"]] == ["e4m3", "f32", None, "f32"]
    with pytest.raises(
        ArgumentTypeError, match=r"gated has no output 'larges': it has D, x, copy, largest, .*Did you mean largest\?"
    ):
        epilogue_handle(gated, larges=torch.float32)
    with pytest.raises(ArgumentTypeError, match=r"has no output 'bias': .* of the type of the tensor that is given"):
        epilogue_handle(gated, bias=torch.float32)
    with pytest.raises(DescriptionError, match="an element type must be one of"):
        epilogue_handle(gated, x=torch.int64)


HANDLE = epilogue_handle(fusions.bias_gelu)


@pytest.mark.parametrize(
    ("given", "remedy"),
    [
        *((each, "decorate") for each in (gelu, "gelu", None)),
        (
            fusions.swiglu(cutlass.float16, 8),
            r"pass the function itself, .*epilogue_handle\(function, D=dtype\)$",
        ),
        (HANDLE, r"use a handle as it is, or its function, pycutlass\.pytorch\.epilogue_of\(handle\)$"),
    ],
    ids=str,
)
def test_what_is_no_function_has_none(given: Any, remedy: str) -> None:
    with pytest.raises(ArgumentTypeError, match=rf"a handle is made of an epilogue function, got .*: {remedy}"):
        epilogue_handle(given)


def changed(**fields: Any) -> str:
    return json.dumps({**json.loads(HANDLE), **fields}, separators=(",", ":"))


GIVEN = json.loads(HANDLE)
REFUSED: dict[str, tuple[str, str]] = {
    "no text": (r"is no JSON, got '': pass what pycutlass.pytorch.epilogue_handle returns", ""),
    "half of it": ("is no JSON", HANDLE[:-5]),
    "deep": ("is no JSON", "[" * 100_000),
    "a name": ("is no JSON, got 'gelu'", "gelu"),
    "a list": ("lacks the field 'pycutlass_epilogue'", "[]"),
    "foreign": ("lacks the field 'pycutlass_epilogue'", '{"epilogue":"gelu"}'),
    "a later version": (
        r"has version 2, and this release reads version 1: make it again",
        changed(pycutlass_epilogue=2),
    ),
    "no number": (r"has version True, and this release", changed(pycutlass_epilogue=True)),
    "no values": (r"is malformed", changed(values=None)),
    "no inputs": (r"is none of a function: .*takes no parameters", changed(inputs=[])),
    "of an unknown form": (r"is malformed", changed(inputs=[GIVEN["inputs"][0], ["bias", "cube", None, None, False]])),
    "an unknown node": (r"is none of a function: .*KeyError", changed(values=[*GIVEN["values"], ["launch", [0], []]])),
    "too few operands": (r"is none of a function", changed(values=[*GIVEN["values"][:-1], ["gelu", [], []]])),
    "an operand behind it": (r"is none of a function", changed(values=[["gelu", [5], []], *GIVEN["values"]])),
    "an unused value": (
        r"none of a function: .*the result of exp is unused",
        changed(values=[*GIVEN["values"], ["exp", [0], []]]),
    ),
    "no D": (r"is none of a function: .*one output must be D", changed(outputs=[["T", 3, None]])),
    "an unknown type": (r"is malformed", changed(outputs=[["D", 3, "f12"]])),
    "written otherwise": (r"is not written as epilogue_handle writes", json.dumps(GIVEN)),
    "another order": (
        r"is not written as",
        changed(values=[*GIVEN["values"][1::-1], ["add", [1, 0], []], GIVEN["values"][3]]),
    ),
    "more": (r"is not written as epilogue_handle writes that function", changed(more=1)),
    "counted backwards": (r"is not written as", HANDLE.replace('["D",3', '["D",-1')),
}


@pytest.mark.parametrize("what", REFUSED)
def test_other_texts_are_refused(what: str) -> None:
    message, text = REFUSED[what]
    with pytest.raises(ArgumentError, match=message):
        epilogue_of(text)


@pytest.mark.parametrize("given", [None, 1, b"{}", [HANDLE], fusions.bias_gelu], ids=str)
def test_what_is_no_text_is_refused(given: Any) -> None:
    remedy = "use the function as it is" if given is fusions.bias_gelu else "pass what .*epilogue_handle returns"
    with pytest.raises(ArgumentTypeError, match=f"a handle of an epilogue is text, got .*: {remedy}$"):
        epilogue_of(given)


@epilogue_function
def bent(accum: Any, factor: Scalar = 3.0, alpha: Scalar = 0.5) -> Any:
    return factor * tanh(alpha * accum)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64], ids=str)
def test_handles_are_activations_of_sums(dtype: torch.dtype) -> None:
    ops: Any = torch.ops.pycutlass
    handle = epilogue_handle(bent)

    def drawn(*shape: int) -> torch.Tensor:
        return torch.randn(shape, dtype=torch.float64).div(4).to(dtype)

    def alike(found: torch.Tensor, sums: Any) -> None:
        torch.testing.assert_close(found, (3 * torch.tanh(0.5 * sums.double())).to(dtype), rtol=2e-3, atol=2e-3)

    a, b, c, bias = drawn(4, 8), drawn(8, 6), drawn(4, 6), drawn(6)
    alike(ops.addmm(c, a, b, activation=handle), c + a @ b)
    alike(ops.addmm(c, a, b, alpha=2, beta=0.5, activation=handle), 0.5 * c + 2 * (a @ b))
    alike(ops.addmm(bias, a, b, beta=-1, activation=handle), a @ b - bias)
    alike(ops.addmm(c, a, b, alpha=3, beta=0, activation=handle), 3 * (a @ b))
    alike(ops.linear(a.view(2, 2, 8), b.t(), bias, handle), (a @ b + bias).view(2, 2, 6))
    alike(ops.linear(a, b.t(), None, handle), a @ b)
    out = torch.empty(4, 6, dtype=dtype)
    for write in (
        lambda: ops.addmm.out(bias, a, b, activation=handle, out=out),
        lambda: ops.linear.out(a, b.t(), bias, handle, out=out),
    ):
        out.fill_(float("nan"))
        write()
        alike(out, a @ b + bias)
    layer = pycutlass.pytorch.Linear(8, 6, activation=handle).to(dtype)
    assert "activation=<epilogue function" in repr(layer)
    with torch.no_grad():
        alike(layer(a), nn.functional.linear(a, layer.weight, layer.bias))
    for taps, biases in ((3, None), (3, drawn(16)), (1, None), (1, drawn(16))):
        x, w = drawn(2, 8, 5, 5), drawn(16, 8, taps, taps)
        found = ops.conv2d(x, w, biases, [1, 1], [taps // 2] * 2, activation=handle)
        alike(found, nn.functional.conv2d(x, w, biases, padding=taps // 2))


def test_handles_that_are_no_activations_say_where_they_go() -> None:
    @epilogue_function
    def biased(accum: Any, bias: Row, beta: Scalar) -> Any:
        return {"D": accum + beta * bias, "T": accum}

    @epilogue_function
    def gated(accum: Any) -> Any:
        gate, up = pairs(accum)
        return gate * up

    a, b = torch.ones(4, 4), torch.ones(4, 4)
    ops: Any = torch.ops.pycutlass
    images = a.view(1, 4, 2, 2), a.view(4, 4, 1, 1)
    geometry = ([1, 1], [0, 0], [1, 1], 1)
    for handle, why in (
        (epilogue_handle(biased), "reads bias, reads beta, returns T, and here it is applied to a sum"),
        (epilogue_handle(gated), "combines pairs of columns, and"),
        (epilogue_handle(bent, D=torch.float16), "has a type for D, and"),
    ):
        for call in (
            lambda handle: ops.linear(a, b, None, handle),
            lambda handle: ops.linear.out(a, b, None, handle, out=torch.empty(4, 4)),
            lambda handle: ops.addmm(a, a, b, activation=handle),
            lambda handle: ops.conv2d(*images, None, *geometry, handle),
            lambda handle: ops.addmm_with_slope(a, a, b, handle),
            lambda handle: pycutlass.pytorch.Linear(4, 4, activation=handle),
        ):
            with pytest.raises(ArgumentError, match=rf"{why}.*: call fused_mm or fused_conv2d with it$"):
                call(handle)
    handle = epilogue_handle(bent)
    with pytest.raises(ArgumentError, match=r"derivative of an epilogue function is not known: call addmm$"):
        ops.addmm_with_slope(a, a, b, handle)
    asking = torch.ones(4, 4, requires_grad=True)
    for differentiated in (
        lambda: ops.linear(asking, b, None, handle),
        lambda: ops.addmm(a, a, asking, activation=handle),
        lambda: ops.conv2d(asking.view(1, 4, 2, 2), images[1], None, *geometry, handle),
        lambda: pycutlass.pytorch.Linear(4, 4, activation=handle)(a),
    ):
        with pytest.raises(ArgumentError, match=r"whose derivative is not known: call the operator, or make"):
            differentiated()
    assert torch.library.opcheck(ops.linear.default, (a, b, None, handle))


def test_defaults_of_handles_that_are_activations_count_as_they_are() -> None:
    @epilogue_function
    def divided(accum: Any, zero: Scalar = -0.0) -> Any:
        return gelu(accum) / zero

    a, b, handle = torch.ones(4, 16), torch.ones(8, 16), epilogue_handle(divided)
    ops: Any = torch.ops.pycutlass
    assert (ops.linear(a, b, None, handle) == float("-inf")).all()
    assert (ops.fused_mm(a, b.t(), handle, [])[0] == float("-inf")).all()


def test_handles_of_integers_and_odd_scalars() -> None:
    ops: Any = torch.ops.pycutlass
    handle = epilogue_handle(bent)
    a, b = torch.ones(4, 16, dtype=torch.int8), torch.ones(8, 16, dtype=torch.int8)
    c = torch.ones(4, 8, dtype=torch.int32)
    images = torch.ones(1, 16, 4, 4, dtype=torch.int8), torch.ones(8, 16, 1, 1, dtype=torch.int8)
    for device in ("cpu", "meta"):
        for call in (
            lambda to: ops.linear(to(a), to(b), None, handle),
            lambda to: ops.addmm(to(c), to(a), to(b).t(), activation=handle),
            lambda to: ops.conv2d(*map(to, images), None, activation=handle),
        ):
            with pytest.raises(
                ArgumentError, match=r"torch.int8, and activation .* call fused_mm or fused_conv2d with"
            ):
                call(lambda each, device=device: each.to(device))
    x, w, c = torch.ones(4, 16), torch.ones(16, 8), torch.ones(4, 8)
    for scalars in ({"alpha": 1 + 0j}, {"beta": 1 + 0j}, {"alpha": 2 + 0j}):
        for activation in (None, "relu", handle):
            with pytest.raises((ArgumentError, ArgumentTypeError)):
                ops.addmm(c, x, w, activation=activation, **scalars)
