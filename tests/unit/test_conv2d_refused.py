"""Convolutions: every kind of mistake in their arguments is explained before anything is launched."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
import torch
from conv_operands import SIMT, SplitKMode, size, tensors
from convolutions import OPERATIONS, fprop, wgrad

import pycutlass
from pycutlass import Conv2dArguments
from pycutlass.errors import ArgumentError, ArgumentTypeError

pytestmark = pytest.mark.usefixtures("without_gpu")


def test_split_k_comes_from_the_problem_or_the_keyword():
    operation, p = SIMT[fprop], size(split_k_slices=4)
    A, B, _, D = tensors(operation, p)
    assert Conv2dArguments(operation, p, A, B, None, D).split_k_slices == 4
    assert Conv2dArguments(operation, p, A, B, None, D, split_k_slices=4).split_k_slices == 4
    assert Conv2dArguments(operation, size(), A, B, None, D, None, SplitKMode.Serial, 2).split_k_slices == 2
    # The original took these for serial split-K without scalars.
    parallel = Conv2dArguments(operation, p, A, B, split_k_mode=SplitKMode.Parallel)
    assert (parallel.split_k_mode, parallel.split_k_slices) == (SplitKMode.Parallel, 4)
    for slices, mode, words in (
        (2, SplitKMode.Serial, "disagrees"),
        (0, SplitKMode.Serial, "from 1 to 2,147,483,647, got 0"),
        (4, SplitKMode.NoSplit, "NoSplit"),
    ):
        with pytest.raises(ArgumentError, match=words):
            Conv2dArguments(operation, p, A, B, None, D, split_k_mode=mode, split_k_slices=slices)
    for wrong in ({"split_k_mode": 1}, {"split_k_slices": 1.5}):
        with pytest.raises(ArgumentTypeError, match=next(iter(wrong))):
            Conv2dArguments(operation, p, A, B, None, D, **wrong)


WRONG_TENSORS: list[tuple[str, Any, type[Exception], list[str]]] = [
    ("A", lambda x: None, ArgumentError, ["operand A", "activation", "missing", "(2, 9, 8, 16)"]),
    ("D", lambda x: None, ArgumentError, ["operand D is missing", "(operation, problem_size, A, B, None, D)"]),
    ("C", lambda x: None, ArgumentError, ["C is None", "beta"]),
    ("A", lambda x: x.astype(np.float64), ArgumentTypeError, ["operand A", "float32", "float64"]),
    ("B", lambda x: x[:, :2], ArgumentError, ["operand B", "(24, 3, 3, 16)", "(24, 2, 3, 16)"]),
    ("D", lambda x: x[:1], ArgumentError, ["operand D", "(2, 7, 6, 24)", "(1, 7, 6, 24)"]),
    ("A", lambda x: x.reshape(-1)[1:], ArgumentError, ["flat operand A", "2 x 9 x 8 x 16 = 2304", "2303"]),
    ("A", lambda x: np.repeat(x.reshape(-1), 2)[::2], ArgumentError, ["flat operand A", "step of 2"]),
    ("A", lambda x: x.reshape(18, 8, 16), ArgumentError, ["operand A", "(18, 8, 16)"]),
    ("A", lambda x: np.asfortranarray(x), ArgumentError, ["operand A", "channels adjacent", "np.ascontiguousarray(A)"]),
    ("A", lambda x: np.repeat(x, 2, 2)[:, :, ::2][:, ::-1], ArgumentError, ["operand A", "pixel by pixel"]),
    ("A", lambda x: np.broadcast_to(x[:1], x.shape), ArgumentError, ["operand A", "strides"]),
    (
        "A",
        lambda x: torch.from_numpy(x.transpose(0, 3, 1, 2).copy()),
        ArgumentError,
        ["channels_last", "A.contiguous("],
    ),
    (
        "B",
        lambda x: torch.from_numpy(x.transpose(0, 3, 1, 2).copy()),
        ArgumentError,
        ["channels_last", "B.contiguous("],
    ),
    (
        "A",
        lambda x: torch.from_numpy(x.copy()).transpose(1, 2).contiguous().transpose(1, 2),
        ArgumentError,
        ["contiguous as (N, H, W, C)", "A.contiguous()"],
    ),
    ("C", lambda x: x[0, 0, 0, :-1], ArgumentError, ["flat operand C", "23"]),
]


@pytest.mark.parametrize(
    ("name", "change", "kind", "words"),
    WRONG_TENSORS,
    ids=[" ".join(row[3][:2]) + str(i) for i, row in enumerate(WRONG_TENSORS)],
)
def test_a_wrong_tensor_is_explained(name, change, kind, words):
    operation, p = SIMT[fprop], size()
    given = dict(zip("ABCD", tensors(operation, p), strict=True))
    given[name] = change(given[name])
    with pytest.raises(kind) as caught:
        Conv2dArguments(operation, p, **given, output_op=operation.epilogue_type(1.0, 1.0))
    assert all(word in str(caught.value) for word in words), str(caught.value)


def test_misaligned_tensors_are_refused():
    operation, p = OPERATIONS["f16_fprop_optimized"], size()
    A, B, _, D = tensors(operation, p)
    base = np.zeros(A.size + 16, np.float16)
    start = next(i for i in range(8) if (base.ctypes.data + 2 * i) % 16 == 2)
    with pytest.raises(pycutlass.errors.AlignmentError, match="multiple of 16 bytes"):
        Conv2dArguments(operation, p, base[start : start + A.size], B, None, D)
    wide = np.zeros((*A.shape[:3], 20), np.float16)[..., :16]
    with pytest.raises(pycutlass.errors.AlignmentError, match="leading dimension"):
        Conv2dArguments(operation, p, wide, B, None, D)


def test_filter_gradients_are_packed_and_take_no_bias():
    operation, p = SIMT[wgrad], size()
    A, B, C, D = tensors(operation, p)
    wide = np.zeros((24, 3, 3, 20), np.float32)[..., :16]
    for unpacked in (wide, torch.from_numpy(wide).permute(0, 3, 1, 2)):
        rule = r"filter gradient, must be packed; its pixels are 20 elements apart.* (\w+\.empty\(.*\)) and read the"
        with pytest.raises(ArgumentError, match=rule) as caught:  # no copy, which nobody would read
            Conv2dArguments(operation, p, A, B, None, unpacked)
        made = re.search(rule, str(caught.value))
        assert made is not None
        anew = eval(made[1], {"np": np, "torch": torch, "D": unpacked})
        Conv2dArguments(operation, p, A, B, None, anew)
        assert tuple(anew.shape) == tuple(unpacked.shape)
    with pytest.raises(ArgumentError, match="a filter gradient takes no bias"):
        Conv2dArguments(operation, p, A, B, C[0, 0, 0], D, operation.epilogue_type(1.0, 1.0))


def test_the_output_overlaps_nothing_that_is_read():
    operation, p = SIMT[fprop], size(C=24, R=1, S=1)
    A, B, C, D = tensors(operation, p)
    with pytest.raises(ArgumentError, match="D overlaps A"):
        Conv2dArguments(operation, p, A, B, None, A)
    operation.run(Conv2dArguments(operation, p, A, B, C, C, operation.epilogue_type(1.0, 1.0)))  # D may be C
    D.flags.writeable = False
    with pytest.raises(ArgumentError, match=r"read-only numpy array.*np.empty\(\(2, 9, 8, 24\)"):
        Conv2dArguments(operation, p, A, B, None, D)


def test_what_is_no_operation_or_problem_is_refused():
    with pytest.raises(ArgumentTypeError, match="operation is missing: give a Conv2dOperation"):
        Conv2dArguments(None, None, None, None)  # type: ignore[arg-type]
    with pytest.raises(ArgumentTypeError, match="Conv2dProblemSize, got NoneType"):
        Conv2dArguments(SIMT[fprop], None, None, None)  # type: ignore[arg-type]
