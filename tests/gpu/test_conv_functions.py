"""Convolutions with epilogue functions on a GPU: every element of every output, in three directions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from convolutions import STRIDED, UNITY, conv, dgrad, fprop, wgrad
from epilogue_functions import FUNCTIONS

import pycutlass
from pycutlass import cutlass

TORCH = {"f16": torch.float16, "f32": torch.float32}
KINDS = {"fprop": (fprop, STRIDED), "dgrad": (dgrad, UNITY), "wgrad": (wgrad, STRIDED)}
SIZES = [
    {"N": 2, "H": 9, "W": 7, "C": 16, "K": 24, "R": 3, "S": 3, "pad_h": 1, "pad_w": 1},
    {"N": 1, "H": 14, "W": 14, "C": 64, "K": 136, "R": 1, "S": 1},
    {"N": 3, "H": 20, "W": 17, "C": 72, "K": 64, "R": 3, "S": 2, "pad_h": 2, "pad_w": 0, "dilation_h": 2},
]


def plain(kind: str, x: Any, w: Any, y: Any, size: Any) -> Any:
    """Return the convolution in f64, as a matrix."""
    options = {"padding": (size.pad_h, size.pad_w), "stride": (size.stride_h, size.stride_w)}
    options["dilation"] = size.dilation_h, size.dilation_w
    x, w, y = (each.double() for each in (x, w, y))
    if kind == "fprop":
        made = torch.nn.functional.conv2d(x, w, **options)
    elif kind == "dgrad":
        made = torch.nn.grad.conv2d_input(x.shape, w, y, **options)
    else:
        made = torch.nn.grad.conv2d_weight(x, w.shape, y, **options)
    made = made.permute(0, 2, 3, 1)
    return made.reshape(made.shape[0], -1) if kind == "wgrad" else made.reshape(-1, made.shape[-1])


@pytest.mark.parametrize("size", SIZES, ids=["3x3", "1x1", "3x2"])
@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("kind", KINDS)
def test_every_output_is_right(kind: str, name: str, size: dict[str, int]) -> None:
    direction, stride = KINDS[kind]
    function = FUNCTIONS[name]
    operation = conv(direction, "optimized", stride=stride, shape=(128, 64, 32), functor=function)
    pycutlass.compiler.add_module([operation])
    p = cutlass.conv.Conv2dProblemSize(**size)

    def drawn(n: int, h: int, w: int, c: int) -> Any:
        made = torch.randn(n, c, h, w, device="cuda", dtype=torch.float16) / 2
        return made.to(memory_format=torch.channels_last)

    x, w, y = drawn(p.N, p.H, p.W, p.C), drawn(p.K, p.R, p.S, p.C), drawn(p.N, p.P, p.Q, p.K)
    A, B, D = {"fprop": (x, w, y), "dgrad": (y, w, x), "wgrad": (y, x, w)}[kind]
    exact = plain(kind, x, w, y, p)
    m, n = exact.shape
    functor = operation.epilogue_functor
    extent = (D.shape[0], D.shape[2], D.shape[3], D.shape[1])
    C = drawn(*extent) if functor.reads_source else None
    shapes = {"row": (n,), "column": (m,), "scalar": (1,), "number": (1,)}
    given: dict[str, Any] = {}
    for port in functor.inputs:
        shape = shapes.get(port.form)
        given[port.name] = drawn(*extent) if shape is None else torch.randn(shape, device="cuda")
        given[port.name] = given[port.name].to(TORCH[port.type.short])
    for port in functor.outputs:
        kind_of = TORCH[port.type.short]
        shape = shapes.get(port.form)
        made = torch.empty_like(D, dtype=kind_of) if shape is None else torch.empty(shape, device="cuda", dtype=kind_of)
        given[port.name] = made.fill_(float("nan"))
    made = torch.full_like(D, float("nan"))
    arguments = pycutlass.Conv2dArguments(operation, p, A, B, C, made, epilogue=given)
    operation.run(arguments)
    arguments.sync()

    def matrix(tensor: Any) -> Any:
        return (tensor.permute(0, 2, 3, 1).reshape(m, n) if tensor.ndim == 4 else tensor).double().cpu().numpy()

    arrays = {port.name: matrix(given[port.name]) for port in functor.inputs}
    arrays |= {each.name: matrix(C) for each in functor.graph.of_form("source")}
    found = function.numpy(exact.cpu().numpy(), **arrays)
    for output, values in (found if isinstance(found, dict) else {"D": found}).items():
        tensor = made if output == "D" else given[output]
        relative = 1e-4 if tensor.dtype == torch.float32 else 2e-3
        absolute = 2e-2 if tensor.ndim == 4 else 2e-3 * float(np.abs(values).max())
        np.testing.assert_allclose(matrix(tensor).reshape(values.shape), values, relative, absolute, err_msg=output)
