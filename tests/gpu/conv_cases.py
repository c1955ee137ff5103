"""Tensors on the GPU and comparisons that the GPU tests of convolutions share.

Tensors are torch's, (N, C, H, W) in channels_last; `declared` turns them into what a kernel takes.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np

from pycutlass import Conv2dArguments, Conv2dOperation, ReductionArguments, cutlass, reference, reorder_filter
from pycutlass.types import element

sys.path.insert(0, str(Path(__file__).parents[1] / "unit"))
from convolutions import OPERATIONS, conv, dgrad, fprop, problem, problems, reduction, wgrad

__all__ = [
    "OPERATIONS",
    "SPLIT",
    "assert_matches",
    "conv",
    "convolve",
    "convolve_parallel",
    "declared",
    "dgrad",
    "extents",
    "fprop",
    "poisoned",
    "problem",
    "problems",
    "random_tensor",
    "reduction",
    "tensors",
    "undeclared",
    "wgrad",
]

#: Kernels whose sums the tests split.
SPLIT = [
    "f16_fprop_optimized",
    "f16_fprop_analytic",
    "f16_fprop_relu",
    "f16_dgrad_optimized",
    "f16_wgrad_optimized",
    "f16_wgrad_analytic",
    "f16_acc16_wgrad",
    "bf16_wgrad",
    "tf32_dgrad",
    "tf32_wgrad_align1",
    "f32_simt_fprop",
    "f32_simt_dgrad",
    "f32_simt_wgrad",
    "s8_fprop_s32",
]


def torch_dtype(tag: Any) -> Any:
    """Return torch's dtype for an element type."""
    import torch

    return getattr(torch, element(tag).dtype_name)


def extents(operation: Conv2dOperation, size: Any) -> list[Any]:
    """Return the extents of A, B and D in the order N, H, W, C."""
    conv = cutlass.conv
    functions = (
        conv.implicit_gemm_tensor_a_extent,
        conv.implicit_gemm_tensor_b_extent,
        conv.implicit_gemm_tensor_c_extent,
    )
    return [tuple(extent(operation.conv_kind, size)) for extent in functions]


def random_tensor(description: Any, extent: Any) -> Any:
    """Return random numbers; small ones where they are integers."""
    import torch

    n, h, w, c = extent
    if description.type.is_integer:
        values = torch.randint(-4, 5, (n, h, w, c), device="cuda").to(torch_dtype(description.element))
    else:
        values = torch.randn((n, h, w, c), device="cuda", dtype=torch.float64).to(torch_dtype(description.element))
        if values.dtype == torch.float32:
            # Never half way between two tf32 numbers: which of them CUTLASS takes depends on the target.
            values.view(torch.int32).bitwise_or_(1)
    return values.permute(0, 3, 1, 2)


def poisoned(description: Any, extent: Any) -> Any:
    """Return a tensor full of NaN, or of the least integer."""
    import torch

    dtype = torch_dtype(description.element)
    value = torch.iinfo(dtype).min if description.type.is_integer else float("nan")
    return random_tensor(description, extent).fill_(value)


def tensors(operation: Conv2dOperation, size: Any) -> tuple[Any, Any, Any, Any]:
    """Return random A, B and C, and a poisoned D."""
    described = list(zip((operation.A, operation.B, operation.C), extents(operation, size), strict=True))
    A, B, C = (random_tensor(*each) for each in described)
    return A, B, C, poisoned(*described[2])


def declared(description: Any, tensor: Any) -> Any:
    """Return a tensor in the declared layout: channels in groups of 32 where it is interleaved, filters reordered."""
    n, c, h, w = tensor.shape
    if description.layout is cutlass.TensorNC32HW32:
        return tensor.reshape(n, c // 32, 32, h, w).permute(0, 1, 3, 4, 2).contiguous()
    if description.layout is cutlass.TensorC32RSK32:
        return reorder_filter(tensor.reshape(n, c // 32, 32, h, w).permute(1, 3, 4, 0, 2).contiguous())
    return tensor


def undeclared(description: Any, tensor: Any) -> Any:
    """Return (N, C, H, W) again, from an NHWC or NC32HW32 tensor."""
    if description.layout is cutlass.TensorNC32HW32:
        n, groups, h, w, _ = tensor.shape
        return tensor.permute(0, 1, 4, 2, 3).reshape(n, 32 * groups, h, w)
    return tensor


def convolve(
    operation: Conv2dOperation, size: Any, A: Any, B: Any, C: Any, D: Any, *scalars: float, **options: Any
) -> Any:
    """Run `operation` once, and return D as (N, C, H, W)."""
    a, b, d = declared(operation.A, A), declared(operation.B, B), declared(operation.C, D)
    c = declared(operation.C, C) if C is not None and C.dim() == 4 else C
    output_op = operation.epilogue_type(*scalars)
    arguments = Conv2dArguments(operation, size, a, b, c, d, output_op, **options)
    operation.run(arguments)
    arguments.sync()
    return undeclared(operation.C, d)


def convolve_parallel(
    operation: Conv2dOperation, size: Any, A: Any, B: Any, C: Any, D: Any, *scalars: float, slices: int
) -> Any:
    """Run `operation` in parallel split-K and the reduction, and return D."""
    ends = reduction(operation)
    mode = cutlass.conv.SplitKMode.Parallel
    arguments = Conv2dArguments(operation, size, A, B, split_k_mode=mode, split_k_slices=slices)
    product = cutlass.conv.implicit_gemm_problem_size(operation.conv_kind, size)
    m, n = product.m(), product.n()
    target, source = (tensor.permute(0, 2, 3, 1).reshape(m, n) for tensor in (D, C))
    output_op = ends.epilogue_type(*scalars)
    reduced = ReductionArguments(ends, [m, n], slices, arguments.ptr_D, target, source, output_op=output_op)
    operation.run(arguments)
    ends.run(reduced)
    reduced.sync()
    return D


def as_numpy(tensor: Any, description: Any) -> Any:
    """Return a tensor (N, C, H, W) as a NumPy array (N, H, W, C) of the description's dtype."""
    import torch

    array = tensor.permute(0, 2, 3, 1).contiguous() if tensor.dim() == 4 else tensor
    if array.dtype == torch.bfloat16:
        return array.view(torch.int16).cpu().numpy().view(description.type.dtype)
    return array.cpu().numpy()


def multiplied(tensor: Any, operation: Conv2dOperation) -> Any:
    """Return an operand in f64 on the GPU, rounded as the multipliers see it."""
    import torch

    math = operation.tile_description.math_instruction
    seen = reference.multiplied(as_numpy(tensor, operation.A), math).astype(np.float64)
    return torch.from_numpy(seen).cuda().permute(0, 3, 1, 2)


def convolved(operation: Conv2dOperation, size: Any, A: Any, B: Any) -> Any:
    """Return torch's convolution in f64, (N, H, W, C) in NumPy."""
    import torch
    from torch.nn import functional, grad

    A, B = multiplied(A, operation), multiplied(B, operation)
    flipped = size.mode == cutlass.conv.Mode.convolution
    options = {
        "stride": (size.stride_h, size.stride_w),
        "padding": (size.pad_h, size.pad_w),
        "dilation": (size.dilation_h, size.dilation_w),
    }
    with torch.backends.cudnn.flags(enabled=False):  # which has not every geometry in f64
        if operation.conv_kind is wgrad:
            result = grad.conv2d_weight(B, (size.K, size.C, size.R, size.S), A, **options)
            result = result.flip(2, 3) if flipped else result
        elif operation.conv_kind is fprop:
            result = functional.conv2d(A, B.flip(2, 3) if flipped else B, groups=size.groups, **options)
        else:
            weight = B.flip(2, 3) if flipped else B
            result = grad.conv2d_input((size.N, size.C, size.H, size.W), weight, A, **options)
    assert result.dtype == torch.float64
    return result.permute(0, 2, 3, 1).cpu().numpy()


def assert_matches(
    operation: Conv2dOperation, size: Any, A: Any, B: Any, C: Any, D: Any, *scalars: float, slices: int = 1
) -> None:
    """Compare D with torch's convolution in f64, element by element, within the derived tolerance; NaN never passes.

    Serial split-K (`slices` above 1) rounds to the output type after every slice.
    """
    functor = operation.epilogue_functor
    scalars = tuple(functor.epilogue_type(*scalars).values)
    source = None if C is None else as_numpy(C, operation.C)
    exact = functor.reference(convolved(operation, size, A, B), source, scalars, np.dtype(np.float64))
    actual = as_numpy(D, operation.C).astype(np.float64)
    if operation.C.type.is_integer:
        # f32 holds these sums; what is half way between two integers may go either way, once a slice.
        np.testing.assert_allclose(actual, exact, rtol=0, atol=0.501 * slices)
        return
    products = cutlass.conv.implicit_gemm_problem_size(operation.conv_kind, size).k()
    relative, absolute = reference.tolerance(operation, products, abs(scalars[0]), slices)
    np.testing.assert_allclose(actual, exact, rtol=relative, atol=absolute)
