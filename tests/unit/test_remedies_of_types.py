"""Types of results, of sums and of what is added: messages name the arguments and the types, and what to pass works."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import pycutlass
from pycutlass import cutlass
from pycutlass.errors import PyCutlassError

I8, F16, F32 = np.int8, np.float16, np.float32
NAMES = {"cutlass": cutlass, "pycutlass": pycutlass}
#: Of each call its operands, and the shape of its result.
CALLS: dict[str, tuple[Callable[..., Any], tuple[tuple[int, ...], ...], tuple[int, ...]]] = {
    "matmul": (pycutlass.matmul, ((32, 32), (32, 32)), (32, 32)),
    "linear": (pycutlass.linear, ((32, 32), (32, 32)), (32, 32)),
    "conv2d": (pycutlass.conv2d, ((2, 8, 8, 32), (32, 3, 3, 32)), (2, 6, 6, 32)),
    "conv2d of pixels": (pycutlass.conv2d, ((2, 8, 8, 32), (32, 1, 1, 32)), (2, 8, 8, 32)),
}


@pycutlass.epilogue_function
def doubled(accum):
    return accum * 2


def ones(call: str, dtype: Any) -> tuple[Any, ...]:
    return tuple(np.ones(shape, dtype) for shape in CALLS[call][1])


def said(call: Callable[[], Any]) -> str:
    with pytest.raises(PyCutlassError) as raised:
        call()
    return str(raised.value)


@pytest.mark.parametrize("epilogue", [None, pycutlass.relu, doubled], ids=["none", "relu", "function"])
@pytest.mark.parametrize("call", CALLS)
def test_an_out_of_another_type_than_out_dtype(call: str, epilogue: Any) -> None:
    function, _, shape = CALLS[call]
    operands, out = ones(call, F16), np.empty(shape, F16)
    message = said(lambda: function(*operands, out=out, out_dtype=F32, epilogue=epilogue))
    assert message == (
        "out is of float16 and out_dtype is cutlass.float32, and the result has one type: leave out_dtype out, or pass "
        "an out of float32"
    )
    assert function(*operands, out=out, epilogue=epilogue) is out
    assert function(*operands, out=out.astype(F32), out_dtype=F32, epilogue=epilogue).dtype == F32


def test_plans_and_groups_name_out_and_out_dtype_too() -> None:
    (a, b), (x, w) = ones("matmul", F16), ones("conv2d", F16)
    offs, out = np.array([32], np.int32), np.empty((32, 32), F16)
    for call in (
        lambda: pycutlass.Gemm(a, b, out=out, out_dtype=F32),
        lambda: pycutlass.Conv2d(x, w, out=np.empty((2, 6, 6, 32), F16), out_dtype=F32),
        lambda: pycutlass.grouped_matmul([a], [b], out=[out], out_dtype=F32),
        lambda: pycutlass.grouped_matmul(a, b[None], offs=offs, out=out, out_dtype=F32),
    ):
        assert "out is of float16 and out_dtype is cutlass.float32" in said(call)


@pytest.mark.parametrize("call", CALLS)
def test_what_is_added_to_integers(call: str) -> None:
    function, _, shape = CALLS[call]
    operands, bias = ones(call, I8), np.ones(32, F32)
    message = said(lambda: function(*operands, bias=bias))
    assert message.startswith("bias is float32 and the result int32: convert bias to int32, or pass out_dtype=")
    assert function(*operands, bias=bias.astype(np.int32)).dtype == np.int32
    out_dtype = eval(re.search(r"pass out_dtype=([\w.]+)$", message)[1], NAMES)
    assert function(*operands, bias=bias, out_dtype=out_dtype).dtype == F32
    message = said(lambda: function(*operands, c=np.ones(shape, F32), beta=1))
    assert message.startswith("c is float32 and the result int32: convert c to int32")


@pytest.mark.parametrize("call", CALLS)
def test_fractions_and_integers(call: str) -> None:
    function = CALLS[call][0]
    operands = ones(call, I8)
    for options in ({"alpha": 0.5}, {"epilogue": pycutlass.gelu}, {"epilogue": doubled}):
        message = said(lambda: function(*operands, **options))  # noqa: B023
        out_dtype = eval(re.search(r"pass out_dtype=([\w.]+)", message)[1], NAMES)
        assert function(*operands, **options, out_dtype=out_dtype).dtype == F32


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize(("of", "accumulator", "usual"), [(I8, F32, "int32"), (F16, np.float64, "float32")])
def test_sums_in_another_type(call: str, of: Any, accumulator: Any, usual: str) -> None:
    function, operands = CALLS[call][0], ones(call, of)
    message = said(lambda: function(*operands, accumulator_dtype=accumulator, out_dtype=F32))
    assert f"sum up in cutlass.{usual}, and none does in cutlass.{np.dtype(accumulator).name}" in message
    assert "leave accumulator_dtype out" in message and "gradients" not in message
    assert function(*operands, out_dtype=F32).dtype == F32


@pytest.mark.parametrize(("of", "out"), [(I8, "float64"), (I8, "uint8"), (F16, "float64"), (F16, "int32")])
def test_results_that_convolutions_do_not_write(of: Any, out: str) -> None:
    operands = ones("conv2d", of)
    message = said(lambda: pycutlass.conv2d(*operands, out_dtype=getattr(cutlass, out)))
    written = re.search(rf"write (.*), and none writes cutlass\.{out} here: pass another out_dtype", message)[1]
    for name in written.split(", "):
        assert pycutlass.conv2d(*operands, out_dtype=getattr(cutlass, name)) is not None


def test_activations_of_convolutions_that_write_bytes() -> None:
    operands = ones("conv2d", I8)
    message = said(lambda: pycutlass.conv2d(*operands, epilogue=pycutlass.relu, out_dtype=I8))
    assert "none writes cutlass.int8 here: pass another out_dtype, or the activation in an epilogue function" in message

    @pycutlass.epilogue_function
    def activated(accum):
        return pycutlass.epilogue.relu(accum)

    assert pycutlass.conv2d(*operands, epilogue=activated, out_dtype=I8).dtype == I8
    assert "int8 are fprop" in said(lambda: pycutlass.conv2d_input(*ones("conv2d", I8), (2, 10, 10, 32)))
