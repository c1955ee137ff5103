"""What a message tells to do is done, and must be accepted and right: each row is a wrong call and its remedy."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from convolutions import SIMT, conv, f32, fprop
from descriptions import COLUMN, ROW, ampere, parts

import pycutlass
from pycutlass import GemmArguments, PyCutlassError, cutlass

pytestmark = pytest.mark.usefixtures("without_gpu")

M, N, K = 16, 24, 32
RNG = np.random.default_rng(0)
OPERATIONS = {layouts: ampere("f16", layouts) for layouts in ((ROW, COLUMN, ROW), (ROW, ROW, ROW), (ROW, ROW, COLUMN))}
RCR, RRR, RRC = OPERATIONS.values()


def _values(*shape: int) -> Any:
    return RNG.integers(-3, 4, shape).astype(np.float16)


def _column(array: Any) -> Any:
    return np.asfortranarray(array)


def _operands(operation: Any, library: str = "numpy") -> dict[str, Any]:
    made = {"A": _values(M, K), "B": _values(K, N), "D": np.zeros((M, N), np.float16)}
    for name, description in (("A", operation.A), ("B", operation.B), ("D", operation.C)):
        if not description.is_row_major:
            made[name] = _column(made[name])
    if library == "torch":
        made = {name: torch.from_numpy(array) for name, array in made.items()}
    return made


def _multiply(operation: Any, A: Any, B: Any, D: Any, **further: Any) -> Any:
    arguments = GemmArguments(operation, (M, N, K), A, B, None, D, **further)
    operation.run(arguments)
    arguments.sync()
    return D


@dataclass(frozen=True)
class Remedy:
    """An operand that does not fit, and what the message says about it."""

    name: str
    operation: Any
    library: str
    operand: str
    #: From the right operand, the wrong one.
    spoil: Callable[[Any], Any]
    #: The message has this, and its group is code that makes an operand that fits.
    says: str


def _padded(array: Any) -> Any:
    return array[:, ::2]


LAYOUTS = [
    Remedy("numpy, rows", RRR, "numpy", "A", _column, r"pass (np\.ascontiguousarray\(A\))"),
    Remedy("numpy, columns", RCR, "numpy", "B", np.ascontiguousarray, r"pass (np\.asfortranarray\(B\))"),
    Remedy("torch, rows", RRR, "torch", "A", lambda t: t.mT.contiguous().mT, r"pass (A\.contiguous\(\))"),
    Remedy("torch, columns", RCR, "torch", "B", lambda t: t.contiguous(), r"pass (B\.mT\.contiguous\(\)\.mT)"),
    Remedy("D of numpy", RRR, "numpy", "D", _column, r"make D as (np\.empty\(\(16, 24\), D\.dtype\)) and read"),
    Remedy(
        "D of torch", RRR, "torch", "D", lambda t: t.mT.contiguous().mT, r"make D as (torch\.empty\(.*?\)) and read"
    ),
    Remedy("D of columns", RRC, "numpy", "D", np.ascontiguousarray, r'make D as (np\.empty\(.*order="F"\)) and read'),
    Remedy("torch, D of columns", RRC, "torch", "D", lambda t: t.contiguous(), r"make D as (torch\.empty\(.*\.mT) and"),
    Remedy("swapped, columns", RCR, "numpy", "B", lambda a: a.T, r"pass (B\.T)$"),
    Remedy("swapped, torch", RCR, "torch", "B", lambda t: t.T, r"pass (B\.T)$"),
    Remedy("swapped, rows", RRR, "numpy", "B", lambda a: np.ascontiguousarray(a.T), r"pass (np\.asc\w+\(B\.T\)), or"),
    Remedy("swapped, torch rows", RRR, "torch", "B", lambda t: t.T.contiguous(), r"pass (B\.T\.contiguous\(\)), or"),
    Remedy(
        "swapped D",
        RRR,
        "numpy",
        "D",
        lambda a: np.ascontiguousarray(a.T),
        r"result itself, make D as (np\.empty\(.*?\)) and",
    ),
]


@pytest.mark.parametrize("row", LAYOUTS, ids=lambda row: row.name)
def test_what_is_said_about_a_layout_is_right(row):
    operands = _operands(row.operation, row.library)
    exact = np.asarray(operands["A"], np.float64) @ np.asarray(operands["B"], np.float64)
    wrong = {**operands, row.operand: row.spoil(operands[row.operand])}
    with pytest.raises(PyCutlassError, match=row.says) as caught:
        _multiply(row.operation, **wrong)
    code = re.search(row.says, str(caught.value))[1]
    mended = eval(code, {"np": np, "torch": torch}, wrong)
    D = _multiply(row.operation, **{**wrong, row.operand: mended})
    np.testing.assert_array_equal(np.asarray(D, np.float64), exact)


def test_the_other_layout_that_is_named_takes_the_tensor():
    operands = _operands(RRR)
    with pytest.raises(PyCutlassError, match=r"describe B as (\w+)") as caught:
        _multiply(RRR, **{**operands, "B": _column(operands["B"])})
    layout = getattr(cutlass, re.search(r"describe B as (\w+)", str(caught.value))[1])
    D = _multiply(ampere("f16", (ROW, layout, ROW)), **{**operands, "B": _column(operands["B"])})
    np.testing.assert_array_equal(D, operands["A"].astype(float) @ operands["B"].astype(float))


@pytest.mark.parametrize("offset", [1, 2, 4])
def test_a_misaligned_slice_is_told_the_alignment_that_would_do(offset):
    operands = _operands(RRR)
    wide = np.zeros((M, K + 8), np.float16)
    wide[:, offset : offset + K] = operands["A"]
    A = torch.from_numpy(wide)[:, offset : offset + K]
    given = {**operands, "A": A}
    with pytest.raises(pycutlass.errors.AlignmentError, match=r"describe A with alignment (\d+)") as caught:
        _multiply(RRR, **given)
    alignment = int(re.search(r"describe A with alignment (\d+)", str(caught.value))[1])
    assert alignment == offset
    described = parts("f16", (ROW, ROW, ROW), stages=2 if alignment == 1 else 3)  # as the description then says
    described["A"] = pycutlass.TensorDescription(cutlass.float16, ROW, alignment)
    D = _multiply(pycutlass.GemmOperationUniversal(**described), **given)
    np.testing.assert_array_equal(D, operands["A"].astype(float) @ operands["B"].astype(float))
    np.testing.assert_array_equal(_multiply(RRR, **{**given, "A": A.clone()}), D)


CONV = conv(fprop, "optimized", (f32, f32, f32), opcode=SIMT)
CONVOLVED = [
    Remedy("numpy A", CONV, "numpy", "A", np.asfortranarray, r"To fix it, pass (np\.ascontiguousarray\(A\))\.$"),
    Remedy("numpy D", CONV, "numpy", "D", np.asfortranarray, r"make D as (np\.empty\(.*?D\.dtype\)) and read"),
    Remedy("NCHW of numpy", CONV, "numpy", "A", lambda a: a.transpose(0, 3, 1, 2).copy(), r"pass (np\..*)\.$"),
    Remedy("torch A", CONV, "torch", "A", lambda t: t.contiguous(), r"Pass (A\.contiguous\(memory_.*last\))\."),
    Remedy("torch D", CONV, "torch", "D", lambda t: t.contiguous(), r"make D as (torch\.empty\(.*last\)) and read"),
]


@pytest.mark.parametrize("row", CONVOLVED, ids=lambda row: row.name)
def test_what_is_said_about_a_tensor_of_a_convolution_is_right(row):
    x, w = RNG.integers(-3, 4, (2, 5, 6, 4)).astype(np.float32), RNG.integers(-3, 4, (8, 3, 3, 4)).astype(np.float32)
    operands = {"A": x, "B": w, "D": np.zeros((2, 5, 6, 8), np.float32)}
    if row.library == "torch":
        operands = {name: torch.from_numpy(array).permute(0, 3, 1, 2) for name, array in operands.items()}

    def convolve(A: Any, B: Any, D: Any) -> Any:
        size = pycutlass.conv2d_problem_size(operands["A"], operands["B"], padding=1)
        arguments = pycutlass.Conv2dArguments(CONV, size, A, B, None, D)
        CONV.run(arguments)
        arguments.sync()
        return D

    wrong = {**operands, row.operand: row.spoil(operands[row.operand])}
    with pytest.raises(PyCutlassError, match=row.says) as caught:
        convolve(**wrong)
    mended = eval(re.search(row.says, str(caught.value))[1], {"np": np, "torch": torch}, wrong)
    D = np.asarray(convolve(**{**wrong, row.operand: mended}))
    planes = torch.from_numpy(x).permute(0, 3, 1, 2), torch.from_numpy(w).permute(0, 3, 1, 2)
    exact = torch.nn.functional.conv2d(*planes, padding=1).numpy()
    np.testing.assert_array_equal(D if row.library == "torch" else D.transpose(0, 3, 1, 2), exact)


def test_scalars_among_the_keywords():
    operands = _operands(RRR)
    with pytest.raises(
        PyCutlassError, match=r"given as (output_op)=(operation\.epilogue_type\(alpha, beta\))"
    ) as caught:
        _multiply(RRR, **operands, alpha=2.0)
    match = re.search(r"given as (\w+)=(operation\.epilogue_type\(alpha, beta\))", str(caught.value))
    made = eval(match[2], {"operation": RRR, "alpha": 2.0, "beta": 0.0})
    D = _multiply(RRR, **operands, **{match[1]: made})
    np.testing.assert_array_equal(D, 2 * operands["A"].astype(float) @ operands["B"].astype(float))


MISSPELT: list[tuple[Any, str]] = [
    (lambda: GemmArguments(RRR, problem_sizes=(M, N, K)), "problem_size"),
    (lambda: GemmArguments(RRR, (M, N, K), split_k_slice=2), "split_k_slices"),
    (lambda: pycutlass.TileDescription([128, 128, 32], stage=3), "stages"),
    (lambda: pycutlass.TensorDescription(cutlass.float16, ROW, align=8), "alignment"),
    (lambda: pycutlass.MathInstruction(instruction_shap=[16, 8, 16]), "instruction_shape"),
    (lambda: pycutlass.LinearCombination(cutlass.float16, element_acumulator=cutlass.float32), "element_accumulator"),
    (lambda: pycutlass.GemmOperationUniversal(compute_capabilty=80), "compute_capability"),
    (lambda: pycutlass.conv2d_problem_size(None, None, strides=1), "stride"),
    (lambda: pycutlass.compiler.add_module([], targets="sm_80"), "target"),
    (lambda: cutlass.gemm.GemmCoord(M=1, n=2, k=3), "m"),
    (lambda: cutlass.OpClass("TensorOP"), "TensorOp"),
]


@pytest.mark.parametrize(("call", "meant"), MISSPELT, ids=[meant for _, meant in MISSPELT])
def test_misspelt_keywords(call, meant):
    with pytest.raises(PyCutlassError, match=rf"Did you mean {meant}\?"):
        call()


@pytest.mark.parametrize(
    ("owner", "name", "meant"),
    [
        (pycutlass.MathOperation, "multiply_ad", "multiply_add"),
        (cutlass.OpClass, "Tensorop", "TensorOp"),
        (pycutlass, "GemmArgument", "GemmArguments"),
    ],
)
def test_misspelt_names(owner, name, meant):
    with pytest.raises(AttributeError, match=rf"Did you mean {meant}\?"):
        getattr(owner, name)


def test_more_batches_than_a_grid_has_along_z():
    tile = cutlass.gemm.GemmCoord(128, 128, 32)
    with pytest.raises(PyCutlassError, match="BatchedIdentitySwizzle"):
        cutlass.IdentitySwizzle1.get_tiled_shape(cutlass.gemm.GemmCoord(M, N, K), tile, 70_000)
    tiled = cutlass.BatchedIdentitySwizzle.get_tiled_shape(cutlass.gemm.GemmCoord(M, N, K), tile, 70_000)
    assert tuple(cutlass.BatchedIdentitySwizzle.get_grid_shape(tiled)) == (70_000, 1, 1)


@pytest.mark.parametrize("dtype", [torch.float16, np.float16, np.dtype("float16"), cutlass.float16], ids=str)
def test_dtypes_of_other_libraries_describe_the_same(dtype):
    description = pycutlass.TensorDescription(dtype, ROW, 8)
    assert (
        description == pycutlass.TensorDescription(cutlass.float16, ROW, 8) and description.element is cutlass.float16
    )
    instruction = pycutlass.MathInstruction([16, 8, 16], dtype, dtype, torch.float32, cutlass.OpClass.TensorOp)
    functor = pycutlass.LinearCombination(dtype, 8, np.float32, torch.float32)
    tile = pycutlass.TileDescription([128, 128, 32], 3, [2, 2, 1], instruction)
    made = pycutlass.GemmOperationUniversal(80, tile, description, description, description, functor)
    assert made == RRR and made.procedural_name() == RRR.procedural_name()


def test_every_dtype_that_kernels_take_is_known():
    import ml_dtypes

    for dtype, tag in (
        (torch.float64, cutlass.float64),
        (torch.int8, cutlass.int8),
        (torch.bfloat16, cutlass.bfloat16),
        (ml_dtypes.bfloat16, cutlass.bfloat16),
        (np.dtype(ml_dtypes.bfloat16), cutlass.bfloat16),
        (np.int32, cutlass.int32),
    ):
        assert pycutlass.TensorDescription(dtype, ROW).element is tag
    for wrong in (np.dtype(">f4"), torch.complex64, np.uint16, float, "float16", torch.ones(1)):
        with pytest.raises(PyCutlassError, match="an element type must be one of"):
            pycutlass.TensorDescription(wrong, ROW)
