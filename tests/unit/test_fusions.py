"""Ready-made epilogue functions mean what they say, and kernels of both families take them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from descriptions import native_parts, parts
from torch.nn import functional

from pycutlass import GemmOperationUniversal, MathInstruction, TensorDescription, TileDescription, cutlass
from pycutlass.epilogue import EpilogueFunction, fusions
from pycutlass.epilogue.nodes import NODES, REDUCTIONS

M, N = 5, 8
_INSTRUCTION = MathInstruction([16, 8, 32], cutlass.int8, cutlass.int8, cutlass.int32, cutlass.OpClass.TensorOp)
INT8 = {
    "tile_description": TileDescription([128, 128, 64], 3, [2, 2, 1], _INSTRUCTION),
    "A": TensorDescription(cutlass.int8, cutlass.RowMajor, 16),
    "B": TensorDescription(cutlass.int8, cutlass.ColumnMajor, 16),
}
PAGE = Path(__file__).parents[2] / "docs" / "guide" / "fusion.md"

#: What each function is in PyTorch, of the accumulator and the other parameters.
TORCH: dict[str, Any] = {
    "attention_scores": lambda x, mask, scale: x * scale + mask,
    "bias": lambda x, bias, alpha: alpha * x + bias,
    "bias_gelu": lambda x, bias: functional.gelu(x + bias),
    "bias_gelu_tanh": lambda x, bias: functional.gelu(x + bias, approximate="tanh"),
    "bias_geglu": lambda x, bias: functional.gelu((x + bias)[:, ::2]) * (x + bias)[:, 1::2],
    "bias_hardswish": lambda x, bias: functional.hardswish(x + bias),
    "bias_leaky_relu": lambda x, bias: functional.leaky_relu(x + bias, 0.2),
    "bias_relu": lambda x, bias: functional.relu(x + bias),
    "bias_residual_gelu": lambda x, bias, residual: functional.gelu(x + bias + residual),
    "bias_residual_relu": lambda x, bias, residual: functional.relu(x + bias + residual),
    "bias_residual_silu": lambda x, bias, residual: functional.silu(x + bias + residual),
    "bias_sigmoid": lambda x, bias: torch.sigmoid(x + bias),
    "bias_silu": lambda x, bias: functional.silu(x + bias),
    "bias_silu_residual": lambda x, bias, residual: functional.silu(x + bias) + residual,
    "bias_swiglu": lambda x, bias: functional.silu((x + bias)[:, ::2]) * (x + bias)[:, 1::2],
    "bias_tanh": lambda x, bias: torch.tanh(x + bias),
    "dequantize": lambda x, row_scale, column_scale: x * row_scale[:, None] * column_scale,
    "dequantize_bias": lambda x, row_scale, column_scale, bias: x * row_scale[:, None] * column_scale + bias,
    "dequantize_each": lambda x, row_scale, scale: x * row_scale[:, None] * scale,
    "geglu": lambda x: functional.gelu(x[:, ::2]) * x[:, 1::2],
    "layer_norm_statistics": lambda x, bias: {
        "D": x + bias,
        "sum": (x + bias).sum(1),
        "squares": ((x + bias) ** 2).sum(1),
    },
    "quantize_rows": lambda x, row_scale, column_scale, bias, output_scale: {
        "D": (x * row_scale[:, None] * column_scale + bias) * output_scale,
        "absmax": (x * row_scale[:, None] * column_scale + bias).abs().max(),
    },
    "quantize_tensor": lambda x, scale_a, scale_b, bias, output_scale: {
        "D": (x * scale_a * scale_b + bias) * output_scale,
        "absmax": (x * scale_a * scale_b + bias).abs().max(),
    },
    "requantize": lambda x, row_scale, column_scale, bias, output_scale: (
        (x + bias) * row_scale[:, None] * column_scale * output_scale
    ),
    "residual_relu": lambda x, residual, alpha: functional.relu(alpha * x + residual),
    "residual_silu": lambda x, residual, alpha: functional.silu(alpha * x + residual),
    "rms_norm_statistics": lambda x, residual: {"D": x + residual, "squares": ((x + residual) ** 2).sum(1)},
    "scale_shift_relu": lambda x, scale, shift: functional.relu(x * scale + shift),
    "scale_shift_residual_relu": lambda x, scale, shift, residual: functional.relu(x * scale + shift + residual),
    "softmax_statistics": lambda x, scale: {"D": x * scale, "logsumexp": torch.logsumexp(x * scale, 1)},
    "swiglu": lambda x: functional.silu(x[:, ::2]) * x[:, 1::2],
}


def test_every_function_is_known_here_and_on_the_page() -> None:
    assert TORCH.keys() == fusions.ALL.keys()
    assert all(each.name == name for name, each in fusions.ALL.items())
    text = PAGE.read_text()
    named = set(re.findall(r"`(\w+)`", text))
    missing = fusions.ALL.keys() - named
    assert missing <= {
        f"bias_{each}" for each in ("gelu", "gelu_tanh", "hardswish", "leaky_relu", "sigmoid", "silu", "tanh")
    }
    assert {*NODES, *REDUCTIONS} <= named


@pytest.mark.parametrize("name", fusions.ALL)
def test_it_is_what_pytorch_makes(name: str) -> None:
    function: EpilogueFunction = fusions.ALL[name]
    random = np.random.default_rng(len(name))
    shapes = {"row": (N,), "column": (M,), "number": (), "scalar": ()}
    given = {each.name: random.standard_normal(shapes.get(each.form, (M, N))) for each in function.graph.inputs[1:]}
    x = random.standard_normal((M, N))
    found = function.numpy(x, **given)
    wanted = TORCH[name](torch.from_numpy(x), **{key: torch.as_tensor(value) for key, value in given.items()})
    pairs = wanted.items() if isinstance(wanted, dict) else [("D", wanted)]
    for output, exact in pairs:
        made = found[output] if isinstance(found, dict) else found
        np.testing.assert_allclose(made, exact.numpy(), rtol=1e-10, atol=1e-12)


def test_the_page_has_each_with_what_it_is_in_pytorch() -> None:
    """Evaluated as it is written there: of the product x, and of parameters by their names."""
    rows = re.findall(r"^\| `(\w+)` \| `(.+?)` \| (.*)\|$", (PAGE.parent / "ready-made-epilogues.md").read_text(), re.M)
    assert sorted(name for name, _, _ in rows) == sorted(fusions.ALL)
    random = np.random.default_rng(1)
    shapes = {"row": (N,), "column": (M,), "number": (), "scalar": ()}
    for name, of_d, beside in rows:
        function = fusions.ALL[name]
        given = {each.name: random.standard_normal(shapes.get(each.form, (M, N))) for each in function.graph.inputs[1:]}
        x = random.standard_normal((M, N))
        found = function.numpy(x, **given)
        names = {"torch": torch, "F": functional, "x": torch.from_numpy(x)}
        names |= {key: torch.as_tensor(value) for key, value in given.items()}
        written = {"D": of_d, **dict(re.findall(r"`(\w+)`: `(.+?)`", beside))}
        assert written.keys() == dict(function.graph.outputs).keys()
        for output, expression in written.items():
            made = found[output] if isinstance(found, dict) else found
            np.testing.assert_allclose(
                made, eval(expression, dict(names)).numpy(), rtol=1e-10, atol=1e-12, err_msg=name
            )


@pytest.mark.parametrize("name", fusions.ALL)
def test_kernels_of_both_families_take_it(name: str) -> None:
    for described in (parts("f16"), native_parts()):
        functor = fusions.ALL[name](described["C"].element, described["C"].alignment)
        operation = GemmOperationUniversal(**described | {"epilogue_functor": functor})
        assert operation.supports((128, 64, 32))
    if name in ("dequantize", "dequantize_bias", "dequantize_each", "requantize"):
        described = parts("f16") | INT8
        functor = fusions.ALL[name](described["C"].element, described["C"].alignment, cutlass.int32)
        assert GemmOperationUniversal(**described | {"epilogue_functor": functor}).supports((128, 64, 32))


def test_scales_and_biases_of_a_d_of_8_bits_are_floats() -> None:
    for kind in (cutlass.int8, cutlass.float_e4m3):
        functor = fusions.requantize(kind, 16, cutlass.int32 if kind is cutlass.int8 else cutlass.float32)
        assert {port.name: port.tag for port in functor.ports} == dict.fromkeys(
            ("row_scale", "column_scale", "bias"), cutlass.float32
        )
    named = fusions.requantize(cutlass.int8, 16, cutlass.int32, bias=cutlass.int32)
    assert {port.name: port.tag for port in named.ports}["bias"] is cutlass.int32
    residual = fusions.residual_relu(cutlass.int8, 16, cutlass.int32)
    assert residual.ports[0].tag is cutlass.int8  # a matrix is like D
