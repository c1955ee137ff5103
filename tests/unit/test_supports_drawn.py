"""`supports` compared with arguments: what is drawn, it says of sizes and shapes what arguments say of tensors."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
from convolutions import UNITY, conv, dgrad, fprop, wgrad
from descriptions import ampere, hopper, parts
from hypothesis import given, settings
from hypothesis import strategies as st

import pycutlass
from pycutlass import (
    Conv2dArguments,
    GemmArguments,
    GemmGroupedArguments,
    GemmProblemSize,
    ReductionArguments,
    ReductionProblemSize,
    TensorSpec,
    cutlass,
)
from pycutlass.errors import ArgumentError, ArgumentTypeError, DescriptionError
from pycutlass.operation import GemmOperationGrouped

pytestmark = pytest.mark.usefixtures("without_gpu")

Mode = cutlass.gemm.Mode
GEMMS = [
    ampere("f16"),
    ampere("f16", (cutlass.ColumnMajor, cutlass.RowMajor, cutlass.ColumnMajor)),
    ampere("f16", alignment=2),
    ampere("bf16", (cutlass.RowMajor, cutlass.RowMajor, cutlass.ColumnMajor), alignment=4),
    ampere("f16_out32", swizzle=cutlass.ThreadblockSwizzleStreamK),
    ampere("tf32", swizzle=cutlass.BatchedIdentitySwizzle),
    ampere("f32_simt"),
    ampere("f64", (cutlass.ColumnMajor, cutlass.ColumnMajor, cutlass.RowMajor), swizzle=cutlass.HorizontalSwizzle),
    hopper(),
]


def spec_of(tensor: Any) -> Any:
    """Return the same without memory."""
    if isinstance(tensor, list):
        return [spec_of(each) for each in tensor]
    item = tensor.dtype.itemsize
    return TensorSpec(tensor.shape, tensor.dtype.name, tuple(step // item for step in tensor.strides))


def accepts(make: Any) -> str:
    """Return why arguments refuse something, or nothing."""
    try:
        make()
    except (ArgumentError, ArgumentTypeError, DescriptionError) as error:
        return str(error)
    return ""


def matrix(noise: random.Random, description: Any, shape: tuple[int, ...]) -> Any:
    """Return an array that probably fits."""
    dtype, lead, (rows, columns) = description.type.dtype, shape[:-2], shape[-2:]
    kind = noise.choice(
        ["packed"] * 8 + ["slack", "slack", "odd slack", "flat", "transposed", "taller", "type", "other"]
    )
    if kind == "type":
        dtype = np.dtype(noise.choice(["float16", "float32", "float64", "int8"]))
    if kind == "other":
        return np.zeros(noise.choice([(3,), (2, 2, 2, 2), (rows + 1, columns + 1), (1, 1)]), dtype)
    if kind == "taller":
        rows += 8
    if kind == "flat":
        return np.zeros(rows * columns * (lead[0] if lead else 1), dtype)
    slack = {"slack": 16, "odd slack": 3}.get(kind, 0)
    row_major = description.is_row_major != (kind == "transposed")
    if row_major:
        return np.zeros((*lead, rows, columns + slack), dtype)[..., :columns]
    return np.swapaxes(np.zeros((*lead, columns, rows + slack), dtype)[..., :rows], -1, -2)


def held(noise: random.Random, description: Any, batch: int, shape: tuple[int, int]) -> Any:
    """Return one array that probably holds the matrices of all problems."""
    (rows, columns), dtype = shape, description.type.dtype
    line = columns if description.is_row_major else rows
    forms = [
        (rows * columns,),
        (batch, rows * columns),
        (batch * rows * columns,),
        (line,),
        (batch, line),
        (rows, line),
    ]
    if noise.random() < 0.5:
        return matrix(noise, description, (batch, *shape))
    if noise.random() < 0.3:
        return np.zeros((*noise.choice(forms), 2), dtype)[..., 0]
    return np.zeros(noise.choice(forms), dtype)


def extent(noise: random.Random) -> int:
    return noise.choice([0, 1, 3, 8, 16, 24, 30, 32, 64, 64, 64, 72, 128])


@given(seed=st.integers(0, 2**32))
@settings(max_examples=400)
def test_gemms_are_supported_where_arguments_take_them(seed: int) -> None:
    noise = random.Random(seed)
    operation = noise.choice(GEMMS)
    m, n, k = (extent(noise) for _ in range(3))
    mode = noise.choice([Mode.Gemm, Mode.Gemm, Mode.GemmSplitKParallel, Mode.Batched, Mode.Array])
    batch = noise.choice([1, 2, 3]) if mode in (Mode.Batched, Mode.Array) else 1
    slices = 1 if batch > 1 or mode in (Mode.Batched, Mode.Array) else noise.choice([1, 1, 2, 4])
    size = GemmProblemSize(m, n, k, mode, batch, slices)
    shapes = {
        "A": (operation.A, (m, k)),
        "B": (operation.B, (k, n)),
        "C": (operation.C, (m, n)),
        "D": (operation.C, (m, n)),
    }
    if mode == Mode.GemmSplitKParallel:
        del shapes["C"], shapes["D"]
    given: dict[str, Any] = {}
    for name, (description, shape) in shapes.items():
        if mode == Mode.Array and noise.random() < 0.4:
            given[name] = held(noise, description, batch, shape)
        elif mode == Mode.Array:
            given[name] = [matrix(noise, description, shape) for _ in range(noise.choice([batch, batch, batch, 2]))]
        elif name == "C" and noise.random() < 0.2:
            given[name] = np.zeros(noise.choice([m, n, n]), operation.C.type.dtype)
        else:
            lead = (batch,) if batch > 1 and (name == "D" or noise.random() < 0.7) else ()
            given[name] = matrix(noise, description, (*lead, *shape))
    scalars = operation.epilogue_type(1.0, 1.0) if "C" in given else None
    refused = accepts(lambda: GemmArguments(operation, size, **given, output_op=scalars))
    found = operation.supports(size, {name: spec_of(tensor) for name, tensor in given.items()})
    assert bool(found) == (not refused), (size, found, refused)
    if not found and "a TensorSpec" not in found.reason:
        assert found.reason[:30] == refused[:30], (found.reason, refused)
    assert bool(operation.supports(size, given)) == bool(found), "with memory it is the same"


@given(seed=st.integers(0, 2**32))
@settings(max_examples=200)
def test_without_operands_it_says_whether_any_would_fit(seed: int) -> None:
    noise = random.Random(seed)
    operation = noise.choice(GEMMS)
    m, n, k = (extent(noise) for _ in range(3))
    mode, slices = noise.choice([(Mode.Gemm, 1), (Mode.Gemm, 3), (Mode.GemmSplitKParallel, 2), (Mode.Batched, 1)])
    batch = 2 if mode == Mode.Batched else 1
    size = GemmProblemSize(m, n, k, mode, batch, slices)
    lead = (batch,) if batch > 1 else ()

    def packed(description: Any, rows: int, columns: int) -> Any:
        if description.is_row_major:
            return np.zeros((*lead, rows, columns), description.type.dtype)
        return np.swapaxes(np.zeros((*lead, columns, rows), description.type.dtype), -1, -2)

    A, B, D = packed(operation.A, m, k), packed(operation.B, k, n), packed(operation.C, m, n)
    given = {"A": A, "B": B} if mode == Mode.GemmSplitKParallel else {"A": A, "B": B, "D": D}
    refused = accepts(lambda: GemmArguments(operation, size, **given))
    found = operation.supports(size)
    assert bool(found) == (not refused), (size, found, refused)
    assert accepts(lambda: operation.output(size)) == found.reason
    if found and mode != Mode.GemmSplitKParallel:
        assert operation.output(size) == spec_of(D) or 0 in (m, n) or 1 in (m, n)
        assert operation.supports(size, {"D": operation.output(size)})


@given(seed=st.integers(0, 2**32))
@settings(max_examples=150)
def test_groups_are_supported_where_arguments_take_them(seed: int) -> None:
    noise = random.Random(seed)
    operation = noise.choice(GROUPS)
    sizes = [tuple(extent(noise) for _ in range(3)) for _ in range(noise.choice([1, 2, 3]))]
    letters = {"A": (operation.A, 0, 2), "B": (operation.B, 2, 1), "C": (operation.C, 0, 1), "D": (operation.C, 0, 1)}
    given = {
        name: [matrix(noise, description, (size[row], size[column])) for size in sizes]
        for name, (description, row, column) in letters.items()
    }
    if noise.random() < 0.1:
        given[noise.choice("ABCD")].append(np.zeros((8, 8), np.float16))
    scalars = operation.epilogue_type(1.0, 1.0)
    refused = accepts(lambda: GemmGroupedArguments(operation, sizes, **given, output_op=scalars))
    found = operation.supports(sizes, {name: spec_of(tensors) for name, tensors in given.items()})
    assert bool(found) == (not refused), (sizes, found, refused)


GROUPS = [
    GemmOperationGrouped(**parts("f16")),
    GemmOperationGrouped(**parts("f16", (cutlass.ColumnMajor, cutlass.RowMajor, cutlass.ColumnMajor), alignment=4)),
    GemmOperationGrouped(**parts("f32_simt"), precompute_mode=pycutlass.SchedulerMode.Host),
]


@given(seed=st.integers(0, 2**32))
@settings(max_examples=150)
def test_reductions_are_supported_where_arguments_take_them(seed: int) -> None:
    noise = random.Random(seed)
    layout, alignment = noise.choice([cutlass.RowMajor, cutlass.ColumnMajor]), noise.choice([1, 4, 8])
    gemm = ampere("f16", (cutlass.RowMajor, cutlass.ColumnMajor, layout), alignment=2)
    C = pycutlass.TensorDescription(cutlass.float16, layout, alignment)
    reduction = pycutlass.ReductionOperation(cutlass.MatrixCoord(4, 256), C, cutlass.float32, count=alignment)
    m, n = noise.choice([8, 12, 16, 32]), noise.choice([8, 12, 16, 32])
    A, B = np.zeros((m, 64), np.float16), np.zeros((n, 64), np.float16).T
    partial = GemmArguments(gemm, (m, n, 64), A, B, None, None, Mode.GemmSplitKParallel, split_k_slices=2)
    given = {"destination": matrix(noise, C, (m, n)), "source": matrix(noise, C, (m, n))}
    scalars, size = reduction.epilogue_type(1.0, 1.0), ReductionProblemSize(m, n, 2)
    refused = accepts(lambda: ReductionArguments(reduction, size, workspace=partial.ptr_D, **given, output_op=scalars))
    found = reduction.supports(size, {name: spec_of(tensor) for name, tensor in given.items()})
    assert bool(found) == (not refused), (size, found, refused)
    if reduction.supports((m, n)):
        assert reduction.supports((m, n), {"destination": reduction.output((m, n))})


@given(seed=st.integers(0, 2**32))
@settings(max_examples=150)
def test_convolutions_are_supported_where_arguments_take_them(seed: int) -> None:
    noise = random.Random(seed)
    operation = noise.choice(CONVOLUTIONS)
    size = cutlass.conv.Conv2dProblemSize(
        N=noise.choice([1, 2]), H=6, W=noise.choice([4, 6]), C=noise.choice([8, 12, 16]), K=noise.choice([8, 16, 20]),
        R=3, S=noise.choice([1, 3]), pad_h=1, pad_w=1, stride_h=noise.choice([1, 2]),
    )  # fmt: skip
    x, w, y = (size.N, size.H, size.W, size.C), (size.K, size.R, size.S, size.C), (size.N, size.P, size.Q, size.K)
    shapes = {"fprop": (x, w, y), "dgrad": (y, w, x), "wgrad": (y, x, w)}[operation.conv_kind.name]
    given = {name: tensor4(noise, operation, name, shape) for name, shape in zip("ABC", shapes, strict=True)}
    given["D"] = tensor4(noise, operation, "D", shapes[2])
    if noise.random() < 0.2:
        given["C"] = np.zeros(shapes[2][3], operation.C.type.dtype)
    scalars = operation.epilogue_type(1.0, 1.0)
    refused = accepts(lambda: Conv2dArguments(operation, size, **given, output_op=scalars))
    found = operation.supports(size, {name: spec_of(tensor) for name, tensor in given.items()})
    assert bool(found) == (not refused), (size, found, refused)
    if operation.supports(size):
        assert operation.output(size) == TensorSpec(shapes[2], operation.C.type.dtype_name)
        assert operation.supports(size, {"D": operation.output(size)})


def tensor4(noise: random.Random, operation: Any, name: str, shape: tuple[int, ...]) -> Any:
    dtype = getattr(operation, "C" if name == "D" else name).type.dtype
    kind = noise.choice(["packed"] * 8 + ["slice", "odd slice", "flat", "type", "rows", "other"])
    if kind in ("slice", "odd slice"):
        more = 8 if kind == "slice" else 3
        return np.zeros((*shape[:3], shape[3] + more), dtype)[..., : shape[3]]
    if kind == "flat":
        return np.zeros(int(np.prod(shape)), dtype)
    if kind == "type":
        return np.zeros(shape, np.float64)
    if kind == "rows":
        return np.zeros((shape[0], shape[1] + 1, *shape[2:]), dtype)[:, :-1]
    if kind == "other":
        return np.zeros((shape[0] + 1, *shape[1:]), dtype)
    return np.zeros(shape, dtype)


CONVOLUTIONS = [
    conv(fprop, "optimized"),
    conv(fprop, "analytic", alignments=4),
    conv(dgrad, "optimized"),
    conv(dgrad, "analytic", stride=UNITY),
    conv(wgrad, "optimized"),
]
