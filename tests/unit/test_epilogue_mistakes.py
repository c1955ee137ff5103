"""Mistakes that a newcomer makes with epilogue functions: each is answered with the rule, the place and the remedy."""

from __future__ import annotations

import functools
import pickle
import pydoc
import re
from typing import Any

import numpy as np
import pytest
import torch
from descriptions import parts, run_python
from torch.nn import functional
from traced_functions import plain, refused

import pycutlass
from pycutlass import GemmOperationUniversal, cutlass, epilogue
from pycutlass.epilogue import Column, Row, Scalar, Tensor, relu
from pycutlass.errors import ArgumentTypeError, DescriptionError


def _written(accum: Any) -> Any:
    accum[0] = 1.0
    return accum


def _yields(accum: Any) -> Any:
    yield accum


async def _awaits(accum: Any) -> Any:
    return accum


def _more(accum: Any, **more: Row) -> Any:
    return accum


def _clashing(accum: Any, element_output: Row) -> Any:
    return accum + element_output


def _of_self(accum: Any, self: Scalar) -> Any:
    return accum * self


def _of_type(accum: Any, alpha: Scalar(cutlass.float32)) -> Any:  # type: ignore[valid-type]
    return accum * alpha


def _second(x: Any, accum: Row) -> Any:
    return x + accum


def _marked(bias: Row, residual: Tensor) -> Any:
    return bias + residual


def _marked_with_text(bias: "row") -> Any:  # type: ignore # noqa
    return bias


def _scaled(accum: Any, scale: Scalar, bias: Row) -> Any:
    return accum * scale + bias


def _unused(accum: Any, scale: Scalar, bias: Row) -> Any:
    return accum + bias


def _without_accumulator(accum: Any, bias: Row) -> Any:
    return bias


@functools.wraps(_unused)
def _decorated(*given: Any) -> Any:
    return _unused(*given)


def _method(self: Any, accum: Any) -> Any:
    return accum


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (lambda accum: (accum, accum + 1), r"a tuple of 2: several outputs have names, as in return {'D': x, 'T': y}"),
        (lambda accum: [accum], "a list of 1: several outputs have names"),
        (lambda accum: {"T": accum}, "as in return {'D': x, ...}"),
        (_written, "(accum[0] = 1.0): a value of an epilogue function is written to: values never change"),
        (lambda accum: accum @ accum, "multiplied as a matrix: it stands for one element of D"),
        (lambda accum: accum / accum.shape[1], "asked for .shape: sizes are known when a kernel runs. Take such a"),
        (lambda accum: accum * 10**400, "multiply is given a number that is too large"),
        (lambda accum: accum**10**400, "power is given a number that is too large"),
        (functools.partial(_scaled, scale=2.0), "partial is a functools.partial, which takes scale by keyword only"),
        (functools.partial(_scaled, 2.0), "has scale: Scalar as its first parameter"),
        (
            lambda accum: accum * 1j,
            "and is given 1j: what is known when a kernel runs is a parameter",
        ),
        (lambda accum: accum * torch.ones(3), "of shape (3,): make a tensor a parameter"),
        (lambda accum: accum + missing, "NameError while it was traced: name 'missing' is not defined"),  # type: ignore # noqa
        (lambda accum, bias: accum + bias, "as in bias: Row; a lambda has no annotations, so write def"),
        (_yields, "is a generator or asynchronous"),
        (_awaits, "is a generator or asynchronous"),
        (_more, "takes **more: name each parameter"),
        (_clashing, "has a parameter element_output, which is taken"),
        (_of_self, "has a parameter self, which is taken"),
        (_of_type, "has a parameter alpha with a Scalar of its own: write alpha: Scalar, which is of the type that is"),
        (_second, "has a parameter accum, which is the accumulator's name"),
        (_marked, "has bias: Row as its first parameter, which is the accumulator and has no annotation"),
        (_marked_with_text, "has bias: Row as its first parameter"),
        (_method, "is a method, whose first parameter is self"),
        (plain, "plain is an epilogue function already: call it with types"),
        (lambda accum: plain(accum, 8), "what several functions share is a plain function, without the decorator"),
        (lambda accum: plain(accum), "what several functions share is a plain function, without the decorator"),
        (lambda accum: plain.numpy(accum, bias=[1.0]), "what several functions share is a plain function, without the"),
        (
            lambda accum: plain.numpy([[1.0]], bias=accum),
            "plain is an epilogue function, whose numpy computes on array",
        ),
        (lambda accum: torch.stack([accum, accum]), "given to torch's stack"),
        (lambda accum: torch.cat((accum, accum), dim=1), "given to torch's cat"),
        (lambda accum: np.stack([accum, accum]), "given to numpy.stack"),
        (lambda accum: torch.clamp(accum), "give min, max or both"),
        (lambda accum: np.clip(accum, 0, 1, out=np.ones(1)), "given to numpy.clip"),
        (lambda accum: functional.dropout(accum), "given to torch's dropout"),
    ],
)
def test_a_mistake_is_explained(function: Any, said: str) -> None:
    assert said in refused(function)


@pytest.mark.parametrize(
    "function",
    [
        lambda accum: 1 / 0,
        lambda accum: accum * "a",
        lambda accum: functional.dropout(accum),
        lambda accum: functional.layer_norm(accum, (4,)),
        lambda accum: np.linalg.norm(accum),
        lambda accum: functools.reduce(lambda x, y: x if x > y else y, [accum, 0.0]),
    ],
)
def test_the_line_is_the_users(function: Any) -> None:
    said = refused(function)
    assert said.startswith("<lambda>, line ") and "(lambda accum: " in said


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (_unused, "_unused, line N (def _unused(accum: Any, scale: Scalar, bias: Row) -> Any:): the parameter 'scale'"),
        (
            _decorated,
            "_unused, line N (def _unused(accum: Any, scale: Scalar, bias: Row) -> Any:): the parameter 'scal",
        ),
        (
            _without_accumulator,
            "_without_accumulator, line N (def _without_accumulator(accum: Any, bias: Row) -> Any:)",
        ),
        (_more, "_more, line N (def _more(accum: Any, **more: Row) -> Any:): _more takes **more"),
        (_marked, "_marked, line N (def _marked(bias: Row, residual: Tensor) -> Any:): _marked has bias: Row as its"),
        (_yields, "_yields, line N (def _yields(accum: Any) -> Any:): _yields is a generator"),
        (functools.partial(_scaled, 2.0), "_scaled, line N (def _scaled(accum: Any, scale: Scalar, bias: Row) -> Any:"),
        (lambda accum: {"T": accum}, '<lambda>, line N ((lambda accum: {"T": accum}, '),
        (lambda accum: None, "<lambda>, line N ((lambda accum: None, "),
        (lambda x: {"D": x, "a" * 24: x}, '<lambda>, line N ((lambda x: {"D": x, "a" * 24: x}, '),
        (eval("lambda accum: 1.0"), "<lambda>, line N: <lambda> returns 1.0 as D"),
    ],
)
def test_the_line_of_what_is_wrong_with_all_of_a_function(function: Any, said: str) -> None:
    """With its parameters or with what it returns, for which there is no line of its own."""
    text = re.sub(r"line \d+", "line N", refused(function), count=1)
    assert text.startswith(said), text


@pytest.mark.parametrize("name", ["where", "clamp", "cast", "exp", "top_k", "pairs", "logsumexp"])
def test_a_function_that_was_not_imported(name: str) -> None:
    said = refused(eval(f"lambda accum: {name}(accum)"))
    assert said.endswith(f". Write from pycutlass.epilogue import {name}, since import * does not bring it")
    assert hasattr(epilogue, name)
    assert "Write from" not in refused(eval("lambda accum: elsewhere(accum)"))


def test_numpy_is_asked_without_the_accumulator() -> None:
    with pytest.raises(ArgumentTypeError, match=r"missing 1 required positional argument: 'accum'; it takes accum"):
        plain.numpy(bias=[1.0])


@pytest.mark.parametrize(
    ("function", "same"),
    [
        (lambda t: torch.clamp(t, min=0), lambda t: epilogue.clamp(t, 0)),
        (lambda t: torch.clamp(t, -1.0, 1.0), lambda t: epilogue.clamp(t, -1, 1)),
        (lambda t: torch.clip(t, max=2), lambda t: epilogue.clamp(t, high=2)),
        (lambda t: torch.clamp_min(t, 0.5), lambda t: epilogue.maximum(t, 0.5)),
        (lambda t: torch.clamp_max(t, 0.5), lambda t: epilogue.minimum(t, 0.5)),
        (lambda t: np.clip(t, -1, 1), lambda t: epilogue.clamp(t, -1, 1)),
        (lambda t: np.clip(t, a_min=None, a_max=1), lambda t: epilogue.minimum(t, 1)),
        (lambda t: np.power(t, 2), lambda t: t * t),
        (lambda t: np.power(t, np.float32(3)), lambda t: t**3),
        (lambda t: epilogue.cast(t, np.float16), lambda t: epilogue.cast(t, cutlass.float16)),
        (lambda t: epilogue.cast(t, torch.bfloat16), lambda t: epilogue.cast(t, cutlass.bfloat16)),
    ],
)
def test_what_torch_and_numpy_call_otherwise_traces(function: Any, same: Any) -> None:
    assert pycutlass.epilogue_function(function) == pycutlass.epilogue_function(same)


def test_functions_are_equal_whatever_the_accumulator_is_called() -> None:
    one, two = pycutlass.epilogue_function(lambda accum: relu(accum)), pycutlass.epilogue_function(lambda x: relu(x))
    assert one == two and hash(one) == hash(two)
    assert one(cutlass.float16, 8) == two(cutlass.float16, 8)


def test_types_and_alignment_are_asked_for() -> None:
    with pytest.raises(ArgumentTypeError, match=r"the alignment of D, as in plain\(cutlass.float16, 8\)"):
        plain(cutlass.float16)


def test_help_shows_the_authors_words() -> None:
    assert plain.__doc__ == "Return x + bias."


def test_a_function_without_types_is_no_functor() -> None:
    described = parts("f16")
    for functor, said in (
        (plain, r"call it with types, as in plain\(cutlass.float16, 8\)"),
        (lambda accum: accum, "decorate it with pycutlass.epilogue_function"),
    ):
        with pytest.raises(DescriptionError, match=said):
            GemmOperationUniversal(**described | {"epilogue_functor": functor})


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (lambda x: np.sum(x), "given to numpy.sum: use pycutlass.epilogue.sum(x, axis=1) for each row"),
        (lambda x: np.add.reduce(x), "given to numpy.add.reduce: use pycutlass.epilogue.sum(x, axis=1) for each row"),
        (lambda x: torch.sum(x, dim=1), "given to torch's sum: use pycutlass.epilogue.sum(x, axis=1) for each row"),
        (lambda x: x.mean(), "for a mean reduce x * inverse, with inverse: Scalar"),
        (lambda x: torch.max(x), "the larger of two values is maximum(x, y)"),
        (lambda x: np.argmax(x), "use values, indices = pycutlass.epilogue.top_k(x, k), the k largest of each row"),
        (lambda x: np.sort(x), "use values, indices = pycutlass.epilogue.top_k(x, k), the k largest of each row"),
        (lambda x: torch.softmax(x, 1), "return {'D': x, 'total': pycutlass.epilogue.logsumexp(x, axis=1)} here, and"),
        (lambda x: functional.softmax(x, dim=1), "compute exp(x - total) there, which an epilogue function does with"),
        (lambda x: x[:, ::2], "for neighbouring columns use gate, up = pycutlass.epilogue.pairs(x)"),
        (lambda x: torch.chunk(x, 2, 1), "given to torch's chunk: use gate, up = pycutlass.epilogue.pairs(x)"),
        (lambda x: functional.glu(x), "given to torch's glu: use gate, up = pycutlass.epilogue.pairs(x)"),
        (lambda x: x.chunk(2), "asked for .chunk: it has no methods: use gate, up = pycutlass.epilogue.pairs(x)"),
        (lambda x: {"D": x, "s": epilogue.sum(x, dim=1)}, "sum has no keyword dim; it has x, axis, tile. Did you mean"),
        (lambda x: epilogue.where(x > 0 & x < 6, x, 0.0), "put these in parentheses, as in (x > 0) & (x < 6)"),
        (lambda x: epilogue.where(x < 0 | x > 6, x, 0.0), "put these in parentheses, as in (x > 0) | (x < 6)"),
        (
            lambda x: epilogue.where(~x, x, 0.0),
            "~ takes a condition, and is given a number: compare it, as in ~(x > 0)",
        ),
    ],
)
def test_habits_of_other_libraries_are_answered(function: Any, said: str) -> None:
    message = refused(function)
    assert message.startswith("<lambda>, line ") and "(lambda x: " in message and said in message


def test_what_is_said_instead_of_a_softmax_works() -> None:
    first = pycutlass.epilogue_function(lambda x: {"D": x, "total": epilogue.logsumexp(x, axis=1)})

    @pycutlass.epilogue_function
    def second(accum: Any, x: Tensor, total: Column) -> Any:
        return accum * 0.0 + epilogue.exp(x - total)

    made = first.numpy(np.arange(6.0).reshape(2, 3))
    found = second.numpy(np.zeros((2, 3)), x=made["D"], total=made["total"])
    np.testing.assert_allclose(found.sum(axis=1), 1.0)


def _typed(accum: Any, x: float) -> Any:
    return accum * x


def _of_torch(accum: Any, x: torch.Tensor) -> Any:
    return accum * x


def _with_a_long_name(accum: Any, a_bias_with_a_name_of_30_lett: Row) -> Any:
    return accum + a_bias_with_a_name_of_30_lett


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (_typed, "_typed has a parameter x with the annotation float: say what it is by Row, .* as in x: Scalar"),
        (
            _of_torch,
            "_of_torch has a parameter x with the annotation torch.Tensor: say what it is by Row, .* as in x: Row",
        ),
        (_with_a_long_name, "'a_bias_with_a_name_of_30_lett', of 29 letters: such names have at most 23 letters"),
        (lambda x: {"D": x, "größer": x * 2.0}, "'größer', of 6 letters: such names have at most 23 letters, of ASCII"),
    ],
)
def test_parameters_are_looked_at_when_a_function_is_decorated(function: Any, said: str) -> None:
    with pytest.raises(DescriptionError, match=said):
        pycutlass.epilogue_function(function)


def test_a_call_without_types_is_explained() -> None:
    with pytest.raises(
        ArgumentTypeError, match=r"^plain is called with the type .*, as in plain\(cutlass.float16, 8\)$"
    ):
        plain()


def test_what_annotations_are_is_their_help() -> None:
    shapes = {"Row": "(N,)", "Column": "(M,)", "Tensor": "(M, N)", "PerBatch": "(batch,)", "Source": "(M, N)"}
    for name, shape in shapes.items():
        marker = getattr(epilogue, name)
        assert shape in marker.__doc__.splitlines()[0]
        assert marker.__doc__.splitlines()[0] in pydoc.plain(pydoc.render_doc(marker))
        assert pickle.loads(pickle.dumps(marker)) == marker


def test_the_ready_made_functions_are_imported_when_they_are_asked_for() -> None:
    program = "import sys; from pycutlass import epilogue; n = 'pycutlass.epilogue.fusions'; print(n in sys.modules)"
    assert run_python(f"{program}; epilogue.fusions.bias; print(n in sys.modules)").split() == ["False", "True"]
    with pytest.raises(AttributeError, match=r"has no attribute 'fusoins'\. Did you mean fusions"):
        epilogue.fusoins  # noqa: B018
