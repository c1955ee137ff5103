"""The original's reference modules, and its references to tensors."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

import pycutlass
from pycutlass import TensorDescription, cutlass, errors
from pycutlass.interleave import interleave_columns, interleave_rows, reorder_column

ROW, COLUMN = cutlass.RowMajor, cutlass.ColumnMajor
COLUMNS32, ROWS32 = cutlass.ColumnMajorInterleaved32, cutlass.RowMajorInterleaved32
PACK = {
    ROW: lambda matrix: matrix.reshape(-1),
    COLUMN: lambda matrix: matrix.T.reshape(-1),
    COLUMNS32: interleave_columns,
    ROWS32: interleave_rows,
}
RNG = np.random.default_rng(3)


def small(*shape, dtype=np.float32):
    return RNG.integers(-3, 4, shape).astype(dtype)


@pytest.mark.parametrize("layouts", [*itertools.product([ROW, COLUMN], repeat=3)], ids=str)
@pytest.mark.parametrize("batch", [1, 3])
def test_matrices_of_every_layout(layouts, batch):
    m, n, k = 3, 5, 7
    A, B, C = small(batch, m, k), small(batch, k, n), small(batch, m, n)
    packed = [
        np.concatenate([PACK[layout](each) for each in operand])
        for layout, operand in zip(layouts, (A, B, C), strict=True)
    ]
    described = [TensorDescription(cutlass.float32, layout) for layout in layouts]
    D = pycutlass.ReferenceModule(*described).run(*packed, cutlass.gemm.GemmCoord(m, n, k), 2.0, -0.5, batch=batch)
    wanted = np.concatenate([PACK[layouts[2]](each) for each in 2 * (A @ B) - np.float32(0.5) * C])
    np.testing.assert_array_equal(D, wanted)
    assert D.dtype == np.float32


@pytest.mark.parametrize("layout", [ROW, COLUMN])
def test_a_bias_lies_along_the_lines_of_c(layout):
    m, n, k = 3, 5, 2
    A, B, bias = small(2, m, k), small(2, k, n), small(2, n if layout is ROW else m)
    described = [TensorDescription(cutlass.float32, each) for each in (ROW, ROW, layout)]
    size = cutlass.gemm.GemmCoord(m, n, k)
    D = pycutlass.ReferenceModule(*described).run(A.ravel(), B.ravel(), bias.ravel(), size, 1.0, 1.0, True, 2)
    full = A @ B + (bias[:, None, :] if layout is ROW else bias[:, :, None])
    np.testing.assert_array_equal(D, np.concatenate([PACK[layout](each) for each in full]))


def test_interleaved_matrices_saturate():
    m, n, k = 64, 32, 96
    A, B = RNG.integers(-128, 128, (m, k)).astype(np.int8), RNG.integers(-128, 128, (k, n)).astype(np.int8)
    described = [TensorDescription(cutlass.int8, layout, 8) for layout in (COLUMNS32, ROWS32, COLUMNS32)]
    D = pycutlass.ReferenceModule(*described).run(interleave_columns(A), interleave_rows(B), None, (m, n, k), 0.01)
    wanted = np.clip(np.rint(0.01 * (A.astype(float) @ B.astype(float))), -128, 127).astype(np.int8)
    np.testing.assert_array_equal(D, interleave_columns(wanted))


def test_torch_stays_torch():
    import torch

    row = TensorDescription(cutlass.bfloat16, ROW)
    A = torch.full((4,), 1.5, dtype=torch.bfloat16)
    D = pycutlass.ReferenceModule(row, row, row).run(A, A, A, (2, 2, 2), 1.0, 1.0)
    assert D.dtype == torch.bfloat16 and D.tolist() == [6.0] * 4


KINDS = list(cutlass.conv.Operator)


@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize("bias", [False, True])
def test_convolutions_are_those_of_torch(kind, bias):
    import torch
    from torch.nn.grad import conv2d_input, conv2d_weight

    p = cutlass.conv.Conv2dProblemSize(
        N=2, H=9, W=8, C=3, K=4, R=3, S=2, pad_h=1, pad_w=2, stride_h=2, stride_w=1, dilation_h=2
    )
    x, w, y = (small(*shape, dtype=np.float64) for shape in ((2, 9, 8, 3), (4, 3, 2, 3), (2, p.P, p.Q, 4)))
    like = {"stride": (2, 1), "padding": (1, 2), "dilation": (2, 1)}
    xt, wt, yt = (torch.from_numpy(each).permute(0, 3, 1, 2) for each in (x, w, y))
    fprop, dgrad, wgrad = KINDS
    A, B, wanted = {
        fprop: lambda: (x, w, torch.nn.functional.conv2d(xt, wt, **like)),
        dgrad: lambda: (y, w, conv2d_input(tuple(xt.shape), wt, yt, **like)),
        wgrad: lambda: (y, x, conv2d_weight(xt, tuple(wt.shape), yt, **like)),
    }[kind]()
    expected = wanted.permute(0, 2, 3, 1).numpy()
    C = small(*(expected.shape[3:] if bias else expected.shape), dtype=np.float64)
    nhwc = TensorDescription(cutlass.float64, cutlass.TensorNHWC)
    reference = pycutlass.Conv2dReferenceModule(nhwc, nhwc, nhwc, kind)
    D = reference.run(A.ravel(), B.ravel(), C.ravel(), p, 2.0, 0.5, bias)
    np.testing.assert_array_equal(D, (2 * expected + 0.5 * C).ravel())
    given = [torch.from_numpy(each.ravel()) for each in (A, B, C)]
    assert torch.equal(reference.run(*given, p, 2.0, 0.5, bias), torch.from_numpy(D))


def test_interleaved_convolutions():
    p = cutlass.conv.Conv2dProblemSize(N=2, H=4, W=5, C=64, K=32, R=3, S=2)
    x, w = small(2, 4, 5, 64, dtype=np.int8), small(32, 3, 2, 64, dtype=np.int8)
    plain = TensorDescription(cutlass.int32, cutlass.TensorNHWC)
    fprop = cutlass.conv.Operator.fprop
    wanted = pycutlass.Conv2dReferenceModule(plain, plain, plain, fprop).run(x, w, None, p).reshape(2, 2, 4, 32)
    x32 = x.reshape(2, 4, 5, 2, 32).transpose(0, 3, 1, 2, 4)
    w32 = w.reshape(32, 3, 2, 2, 32).transpose(3, 1, 2, 0, 4)
    A, B, C = (
        TensorDescription(kind, layout)
        for kind, layout in (
            (cutlass.int8, cutlass.TensorNC32HW32),
            (cutlass.int8, cutlass.TensorC32RSK32),
            (cutlass.int32, cutlass.TensorNC32HW32),
        )
    )
    D = pycutlass.Conv2dReferenceModule(A, B, C, fprop).run(x32, w32, None, p)
    np.testing.assert_array_equal(D.reshape(2, 1, 2, 4, 32).transpose(0, 2, 3, 1, 4).reshape(2, 2, 4, 32), wanted)


def test_what_is_no_operand_is_refused():
    row = TensorDescription(cutlass.float32, ROW)
    module, four = pycutlass.ReferenceModule(row, row, row), np.ones(4)
    for arguments, words in (
        ((np.ones(5), four, four, (2, 2, 2)), "operand A must have 4 elements for this problem size, got 5"),
        ((four, "text", four, (2, 2, 2)), "operand B must be an array of numbers"),
        ((four, four, four, (2, 2)), "problem_size"),
        ((four, four, four, None), "problem_size"),
    ):
        with pytest.raises(errors.PyCutlassError, match=words):
            module.run(*arguments, 1.0, 1.0)
    for wrong in ((None, row, row), (row, "row", row)):
        with pytest.raises(errors.ArgumentTypeError, match="TensorDescription"):
            pycutlass.ReferenceModule(*wrong)
    nhwc = TensorDescription(cutlass.float32, cutlass.TensorNHWC)
    with pytest.raises(errors.ArgumentTypeError, match=r"cutlass\.conv\.Operator"):
        pycutlass.Conv2dReferenceModule(nhwc, nhwc, nhwc, "fprop")
    conv = pycutlass.Conv2dReferenceModule(nhwc, nhwc, nhwc, cutlass.conv.Operator.fprop)
    with pytest.raises(errors.ArgumentTypeError, match="Conv2dProblemSize"):
        conv.run(four, four, four, (1, 2, 2, 1))
    groups = cutlass.conv.Conv2dProblemSize(N=1, H=2, W=2, C=2, K=2, R=1, S=1, groups=2)
    with pytest.raises(errors.ArgumentError, match="one group"):
        conv.run(four, four, four, groups)


# References to tensors


def test_references_say_what_they_were_given():
    layout = ROW.packed(cutlass.MatrixCoord(3, 4))
    reference = cutlass.TensorRefF16RowMajor(4096, layout)
    assert (reference.data(), reference.layout().stride()) == (4096, 4)
    assert type(cutlass.get_tensor_ref(4096, cutlass.float16(0), layout)) is type(reference)
    view = cutlass.TensorViewF16RowMajor(reference, cutlass.MatrixCoord(3, 4))
    assert (view.data(), view.extent().column()) == (4096, 4)
    assert cutlass.TensorRefF16RowMajor is type(reference), "a name is one class, however often it is asked for"


@pytest.mark.parametrize("short", ["F32", "F64", "F16", "BF16", "S32", "S8"])
def test_there_are_references_of_every_type(short):
    extent = cutlass.Tensor4DCoord(1, 2, 3, 4)
    made = getattr(cutlass, f"TensorRef{short}NHWC")(64, cutlass.TensorNHWC.packed(extent))
    assert getattr(cutlass, f"TensorView{short}NHWC")(made, extent).data() == 64
    assert hasattr(cutlass, f"TensorRef{short}ColumnMajor")
    assert hasattr(cutlass, f"TensorRef{short}C32RSK32") == (short == "S8")


def test_wrong_references_are_refused():
    layout = ROW.packed(cutlass.MatrixCoord(3, 4))
    for address, order in (
        (None, layout),
        (-1, layout),
        (4096, None),
        (4096, COLUMN.packed(cutlass.MatrixCoord(3, 4))),
    ):
        with pytest.raises(errors.ArgumentTypeError):
            cutlass.TensorRefF16RowMajor(address, order)
    with pytest.raises(errors.ArgumentTypeError, match="TensorRefF16RowMajor"):
        cutlass.TensorViewF16RowMajor(cutlass.TensorRefF32RowMajor(4096, layout), cutlass.MatrixCoord(3, 4))
    with pytest.raises(errors.ArgumentTypeError, match="MatrixCoord"):
        cutlass.TensorViewF16RowMajor(cutlass.TensorRefF16RowMajor(4096, layout), (3, 4))
    with pytest.raises(errors.ArgumentTypeError):
        cutlass.get_tensor_ref(4096, cutlass.float16(0), "RowMajor")


def test_columns_are_reordered_in_place_of_the_target():
    n, k = 64, 96
    B = RNG.integers(-128, 128, k * n).astype(np.int8)
    target = np.zeros_like(B)
    layout = ROWS32.packed(cutlass.MatrixCoord(k, n))
    source_ref, target_ref = (
        cutlass.TensorRefS8RowMajorInterleaved32(each.ctypes.data, layout) for each in (B, target)
    )
    cutlass.gemm.host.reorder_column(source_ref, target_ref, cutlass.gemm.GemmCoord(32, n, k))
    np.testing.assert_array_equal(target, reorder_column(B))
    with pytest.raises(errors.ArgumentError, match="overlap"):
        cutlass.gemm.host.reorder_column(source_ref, source_ref, cutlass.gemm.GemmCoord(32, n, k))
    with pytest.raises(errors.ArgumentTypeError, match="TensorRefS8RowMajorInterleaved32"):
        cutlass.gemm.host.reorder_column(B, target, cutlass.gemm.GemmCoord(32, n, k))


def test_filters_are_reordered_too():
    p = cutlass.conv.Conv2dProblemSize(N=1, H=4, W=4, C=32, K=64, R=3, S=3)
    extent = p.filter_extent()
    B = RNG.integers(-128, 128, 64 * 9 * 32).astype(np.int8)
    target = np.zeros_like(B)
    layout = cutlass.TensorC32RSK32.packed(extent)
    refs = [cutlass.TensorRefS8C32RSK32(each.ctypes.data, layout) for each in (target, B)]
    cutlass.conv.host.reorder_convK(*refs, cutlass.conv.Operator.fprop, p)
    np.testing.assert_array_equal(target, pycutlass.reorder_filter(B))
