"""Ready-made epilogue functions: what models do behind a product, each in one kernel.

Each is an `EpilogueFunction`, to be called with the types of its tensors. In the formulas x is the accumulator. What is
the same for a whole row or a whole matrix is multiplied first, which a kernel does once.

>>> from pycutlass import cutlass
>>> from pycutlass.epilogue import fusions
>>> functor = fusions.bias_gelu(cutlass.float16, 8, bias=cutlass.float32)
>>> fusions.bias_gelu.numpy([[1.0, -1.0]], bias=[0.0, 1.0]).round(4)
array([[0.8413, 0.    ]])
"""

# mypy: disable-error-code="valid-type,assignment,operator"
# Annotations of epilogue functions say what a parameter stands for, which is no type of Python's.
from __future__ import annotations

from typing import Any

from pycutlass.epilogue import functions as f
from pycutlass.epilogue.activations import (
    Activation,
    gelu,
    gelu_tanh,
    hardswish,
    leaky_relu,
    relu,
    sigmoid,
    silu,
    tanh,
)
from pycutlass.epilogue.function import EpilogueFunction, epilogue_function
from pycutlass.epilogue.parameters import Column, PerBatch, Row, Tensor
from pycutlass.epilogue.protocol import Scalar

__all__ = [
    "ALL",
    "attention_scores",
    "bias",
    "bias_geglu",
    "bias_gelu",
    "bias_gelu_tanh",
    "bias_hardswish",
    "bias_leaky_relu",
    "bias_relu",
    "bias_residual_gelu",
    "bias_residual_relu",
    "bias_residual_silu",
    "bias_sigmoid",
    "bias_silu",
    "bias_silu_residual",
    "bias_swiglu",
    "bias_tanh",
    "dequantize",
    "dequantize_bias",
    "dequantize_each",
    "geglu",
    "layer_norm_statistics",
    "quantize_rows",
    "quantize_tensor",
    "requantize",
    "residual_relu",
    "residual_silu",
    "rms_norm_statistics",
    "scale_shift_relu",
    "scale_shift_residual_relu",
    "softmax_statistics",
    "swiglu",
]


def _biased(activation: type[Activation]) -> EpilogueFunction:
    def function(accum: Any, bias: Row) -> Any:
        return activation(accum + bias)

    function.__name__ = f"bias_{activation.__name__}"
    function.__doc__ = f"Return {activation.__name__}(x + bias)."
    return epilogue_function(function)


def _biased_residual(activation: type[Activation]) -> EpilogueFunction:
    def function(accum: Any, bias: Row, residual: Tensor) -> Any:
        return activation(accum + bias + residual)

    function.__name__ = f"bias_residual_{activation.__name__}"
    function.__doc__ = f"Return {activation.__name__}(x + bias + residual)."
    return epilogue_function(function)


def _residual(activation: type[Activation]) -> EpilogueFunction:
    def function(accum: Any, residual: Tensor, alpha: Scalar = 1.0) -> Any:
        return activation(alpha * accum + residual)

    function.__name__ = f"residual_{activation.__name__}"
    function.__doc__ = f"Return {activation.__name__}(alpha * x + residual)."
    return epilogue_function(function)


bias_gelu, bias_gelu_tanh, bias_hardswish = _biased(gelu), _biased(gelu_tanh), _biased(hardswish)
bias_leaky_relu, bias_relu, bias_sigmoid = _biased(leaky_relu), _biased(relu), _biased(sigmoid)
bias_silu, bias_tanh = _biased(silu), _biased(tanh)
bias_residual_gelu, bias_residual_relu = _biased_residual(gelu), _biased_residual(relu)
bias_residual_silu = _biased_residual(silu)
residual_relu, residual_silu = _residual(relu), _residual(silu)


def _gated(name: str, activation: type[Activation]) -> tuple[EpilogueFunction, EpilogueFunction]:
    """Return a gated linear unit of pairs of columns, without and with a bias."""

    def plain(accum: Any) -> Any:
        gate, up = f.pairs(accum)
        return activation(gate) * up

    def biased(accum: Any, bias: Row) -> Any:
        gate, up = f.pairs(accum + bias)
        return activation(gate) * up

    plain.__name__, biased.__name__ = name, f"bias_{name}"
    of = f"{activation.__name__}(gate) * up, with gate the even and up the odd columns"
    plain.__doc__ = f"Return {of} of x: D has half as many columns, of B with the columns of both weights in turn."
    biased.__doc__ = f"Return {of} of x + bias: D has half as many columns, and the bias lies as the columns of B do."
    return epilogue_function(plain), epilogue_function(biased)


swiglu, bias_swiglu = _gated("swiglu", silu)
geglu, bias_geglu = _gated("geglu", gelu)


@epilogue_function
def bias(accum: Any, bias: Row, alpha: Scalar = 1.0) -> Any:
    """Return alpha * x + bias."""
    return alpha * accum + bias


@epilogue_function
def bias_silu_residual(accum: Any, bias: Row, residual: Tensor) -> Any:
    """Return silu(x + bias) + residual."""
    return silu(accum + bias) + residual


@epilogue_function
def dequantize(accum: Any, row_scale: Column, column_scale: Row) -> Any:
    """Return x * row_scale * column_scale: of int8 products, with a scale for each row of A and each column of B."""
    return accum * row_scale * column_scale


@epilogue_function
def dequantize_bias(accum: Any, row_scale: Column, column_scale: Row, bias: Row) -> Any:
    """Return x * row_scale * column_scale + bias."""
    return accum * row_scale * column_scale + bias


@epilogue_function
def dequantize_each(accum: Any, row_scale: Column, scale: PerBatch) -> Any:
    """Return x * row_scale * scale: with a scale for each row of A, and one for B of each matrix or problem.

    So are the weights of experts scaled, in a batch or a group with a problem for each.
    """
    return accum * (row_scale * scale)


@epilogue_function
def requantize(
    accum: Any,
    row_scale: Column,
    column_scale: Row,
    bias: Row,
    output_scale: Scalar = 1.0,
) -> Any:
    """Return (x + bias) * row_scale * column_scale * output_scale, for a D of int8 and a bias of int32."""
    return (accum + bias) * (row_scale * output_scale) * column_scale


@epilogue_function
def quantize_tensor(
    accum: Any,
    scale_a: PerBatch,
    scale_b: PerBatch,
    bias: Row,
    output_scale: PerBatch,
) -> Any:
    """Return (x * scale_a * scale_b + bias) * output_scale, and the largest magnitude before that scale, absmax.

    For a D of 8 bits, to whose range it is limited, with one scale for each tensor, in device memory. The next
    output_scale follows from absmax: delayed scaling, as of 8-bit floats in training.
    """
    t = accum * (scale_a * scale_b) + bias
    return {"D": t * output_scale, "absmax": f.max(abs(t))}


@epilogue_function
def quantize_rows(
    accum: Any,
    row_scale: Column,
    column_scale: Row,
    bias: Row,
    output_scale: PerBatch,
) -> Any:
    """Return the same as `quantize_tensor`, with a scale for each row of A and each column of B."""
    t = accum * row_scale * column_scale + bias
    return {"D": t * output_scale, "absmax": f.max(abs(t))}


@epilogue_function
def scale_shift_relu(accum: Any, scale: Row, shift: Row) -> Any:
    """Return relu(x * scale + shift): a batch norm that is folded into the product before it."""
    return relu(accum * scale + shift)


@epilogue_function
def scale_shift_residual_relu(
    accum: Any,
    scale: Row,
    shift: Row,
    residual: Tensor,
) -> Any:
    """Return relu(x * scale + shift + residual): the end of a block of a residual network."""
    return relu(accum * scale + shift + residual)


@epilogue_function
def attention_scores(accum: Any, mask: Tensor, scale: Scalar = 1.0) -> Any:
    """Return x * scale + mask, where the mask is 0 or -inf."""
    return accum * scale + mask


@epilogue_function
def layer_norm_statistics(accum: Any, bias: Row) -> Any:
    """Return x + bias, with the sum and the sum of squares of each row.

    Then mean = sum / N, and variance = squares / N - mean ** 2.
    """
    x = accum + bias
    return {"D": x, "sum": f.sum(x, axis=1), "squares": f.sum_of_squares(x, axis=1)}


@epilogue_function
def rms_norm_statistics(accum: Any, residual: Tensor) -> Any:
    """Return x + residual, with the sum of squares of each row: 1 / rms = rsqrt(squares / N + epsilon)."""
    x = accum + residual
    return {"D": x, "squares": f.sum_of_squares(x, axis=1)}


@epilogue_function
def softmax_statistics(accum: Any, scale: Scalar = 1.0) -> Any:
    """Return x * scale, with the logarithm of the sum of exponentials of each row: softmax = exp(D - logsumexp)."""
    x = accum * scale
    return {"D": x, "logsumexp": f.logsumexp(x, axis=1)}


#: All of them by name.
ALL: dict[str, EpilogueFunction] = {
    name: value for name, value in sorted(globals().items()) if isinstance(value, EpilogueFunction)
}
