"""Operands of a convolution in host memory, and what torch makes of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from convolutions import OPERATIONS, dgrad, f16, fprop, wgrad
from torch.nn import functional, grad

from pycutlass import TensorDescription, cutlass

__all__ = [
    "F64",
    "KINDS",
    "NHWC8",
    "SIMT",
    "SIMT_STRIDED",
    "Mode",
    "SplitKMode",
    "extents_of",
    "size",
    "tensors",
    "torch_convolution",
]

Mode = cutlass.conv.Mode
SplitKMode = cutlass.conv.SplitKMode
KINDS = (fprop, dgrad, wgrad)
SIMT = {kind: OPERATIONS[f"f32_simt_{kind.name}"] for kind in KINDS}
SIMT_STRIDED = {**SIMT, dgrad: OPERATIONS["f32_simt_dgrad_strided"]}
F64 = {fprop: OPERATIONS["f64_fprop"], dgrad: OPERATIONS["f64_dgrad_strided"], wgrad: OPERATIONS["f64_wgrad"]}
NHWC8 = TensorDescription(f16, cutlass.TensorNHWC, 8)


def size(**changes: int) -> Any:
    return cutlass.conv.Conv2dProblemSize(**{"N": 2, "H": 9, "W": 8, "C": 16, "K": 24, "R": 3, "S": 3, **changes})


def tensors(operation: Any, p: Any, seed: int = 0) -> tuple[Any, Any, Any, Any]:
    """Return random A, B and C, and a D of NaN, in the shapes of the problem."""
    random = np.random.default_rng(seed)
    described = zip((operation.A, operation.B, operation.C), extents_of(operation.conv_kind, p), strict=True)
    A, B, C = (random.standard_normal(extent).astype(each.type.dtype) for each, extent in described)
    return A, B, C, np.full_like(C, np.nan)


def extents_of(kind: Any, p: Any) -> list[Any]:
    return [
        tuple(extent(kind, p))
        for extent in (
            cutlass.conv.implicit_gemm_tensor_a_extent,
            cutlass.conv.implicit_gemm_tensor_b_extent,
            cutlass.conv.implicit_gemm_tensor_c_extent,
        )
    ]


def torch_convolution(kind: Any, p: Any, A: Any, B: Any) -> Any:
    """Return torch's convolution of f64 arrays (N, H, W, C), in the same order."""
    a, b = (torch.from_numpy(np.asarray(each, np.float64)).permute(0, 3, 1, 2) for each in (A, B))
    options = {
        "stride": (p.stride_h, p.stride_w),
        "padding": (p.pad_h, p.pad_w),
        "dilation": (p.dilation_h, p.dilation_w),
    }
    flip = (lambda w: w.flip(2, 3)) if p.mode == Mode.convolution else (lambda w: w)
    if kind is fprop:
        result = functional.conv2d(a, flip(b), groups=p.groups, **options)
    elif kind is dgrad:
        result = grad.conv2d_input((p.N, p.C, p.H, p.W), flip(b), a, **options)
    else:
        result = flip(grad.conv2d_weight(b, (p.K, p.C, p.R, p.S), a, **options))
    return result.permute(0, 2, 3, 1).numpy()
