"""Arguments of a GEMM: every mistake is named, and `update` is all or nothing."""

from __future__ import annotations

import copy
import itertools
import pickle
from typing import Any

import numpy as np
import pytest
import torch
from descriptions import (
    ROW,
    ampere,
    expected,
    parts,
    random_matrix,
)
from gemm_operands import OPERANDS, OPERATION, K, M, N, assert_close, baseline, matrices
from hypothesis import given
from hypothesis import strategies as st

from pycutlass import (
    GemmArguments,
    GemmOperationUniversal,
    LinearCombination,
    MathOperation,
    TensorDescription,
    cutlass,
)
from pycutlass.errors import (
    AlignmentError,
    ArgumentError,
    ArgumentTypeError,
    DeviceError,
    PyCutlassError,
)

pytestmark = pytest.mark.usefixtures("without_gpu")

seeds = st.integers(0, 2**32)


class CUdeviceptr(int):
    """Stands for ``cuda.bindings.driver.CUdeviceptr``, which is known by its name."""


# What is refused: valid arguments, one of them changed


def read_only() -> Any:
    array = np.zeros((M, N), np.float16)
    array.flags.writeable = False
    return array


SHAPES = {"A": (M, K), "B": (K, N), "C": (M, N), "D": (M, N)}
WRONG: list[tuple[dict[str, Any], type[Exception], list[str]]] = [
    ({"operation": None}, ArgumentTypeError, ["operation is missing", "GemmOperationUniversal"]),
    ({"operation": OPERATION.emit()}, ArgumentTypeError, ["operation", "GemmOperationUniversal", "str"]),
    ({"problem_size": None}, ArgumentTypeError, ["problem_size", "GemmCoord(M, N, K)", "None"]),
    ({"problem_size": (M, N)}, ArgumentTypeError, ["problem_size", "three integers", f"({M}, {N})"]),
    ({"problem_size": (M + 0.5, N, K)}, ArgumentTypeError, ["problem_size", "three integers", "24.5"]),
    ({"problem_size": "123"}, ArgumentTypeError, ["problem_size", "'123'"]),
    ({"problem_size": (-M, N, K)}, ArgumentError, ["problem_size", "from 0 to", "-24"]),
    ({"problem_size": (2**40, N, K)}, ArgumentError, ["problem_size", "2,147,483,647", str(2**40)]),
    ({"problem_size": (M, N, K + 8)}, ArgumentError, ["operand A", f"({M}, {K + 8})", f"({M}, {K})"]),
    ({"output_op": (1.0, 0.0)}, ArgumentTypeError, ["output_op", "operation.epilogue_type(alpha, beta)", "tuple"]),
    ({"output_op": 1.0}, ArgumentTypeError, ["output_op", "operation.epilogue_type(alpha, beta)", "float"]),
    (
        {"output_op": OPERATION.epilogue_type(CUdeviceptr(4096), 0.0)},
        DeviceError,
        ["alpha", "device memory", "no GPU", "numbers"],
    ),
    (
        {"output_op": OPERATION.epilogue_type(1.0, CUdeviceptr(4096))},
        DeviceError,
        ["beta", "device memory", "no GPU"],
    ),
    (
        {"output_op": ampere("f64").epilogue_type(CUdeviceptr(4096), 0.0)},
        ArgumentError,
        ["output_op", "cutlass.float64", "cutlass.float32", "this operation's epilogue_type"],
    ),
    (
        {"gemm_mode": "Gemm"},
        ArgumentError,
        ["gemm_mode", "'Gemm'", "cutlass.gemm.Mode.Gemm, cutlass.gemm.Mode.GemmSplitKParallel"],
    ),
    ({"split_k_slices": 0}, ArgumentError, ["split_k_slices", "from 1 to", "0"]),
    ({"split_k_slices": 1.5}, ArgumentTypeError, ["split_k_slices", "integer", "1.5"]),
    ({"batch": 2}, ArgumentError, ["batch", "Mode.Batched", "2"]),
    ({"batch": "2"}, ArgumentTypeError, ["batch", "integer", "'2'"]),
    ({"raster_order": 7}, ArgumentError, ["raster_order", "7", "RasterOrder.AlongM"]),
    ({"raster_order": "AlongM"}, ArgumentError, ["raster_order", "'AlongM'", "RasterOrder.AlongN"]),
    ({"launch_with_pdl": 1}, ArgumentTypeError, ["launch_with_pdl", "True or False", "1"]),
    ({"beta": 1.0}, ArgumentTypeError, ["no keyword beta", "output_op"]),
    ({"a": None, "d": None}, ArgumentTypeError, ["no keyword a, d", "A, B, C, D"]),
    ({"C": None}, ArgumentError, ["C is None", "beta is not 0", "epilogue_type(alpha, 0)"]),
    ({"D": read_only()}, ArgumentError, ["operand D", "read-only", "make D as np.empty((24, 40), D.dtype)"]),
    *[
        ({name: None}, ArgumentError, [f"operand {name} is missing", f"{SHAPES[name][0]} x {SHAPES[name][1]}"])
        for name in ("A", "B")
    ],
    ({"D": None}, ArgumentError, ["operand D is missing, and C is given", "(operation, problem_size, A, B, None, D)"]),
    *itertools.chain.from_iterable(
        [
            ({name: np.zeros(shape, np.float32)}, ArgumentTypeError, [f"operand {name}", "float16", "float32"]),
            ({name: torch.zeros(shape)}, ArgumentTypeError, [f"operand {name}", "float16", "torch", "float32"]),
            (
                {name: np.zeros(shape[::-1], np.float16)},
                ArgumentError,
                [f"operand {name}", str(shape), str(shape[::-1])],
            ),
            ({name: np.zeros(99, np.float16)}, ArgumentError, [f"operand {name}", str(shape[0] * shape[1]), "99"]),
            (
                {name: np.zeros(shape, np.float16, order="C" if name == "B" else "F")},
                ArgumentError,
                [
                    f"operand {name}",
                    "ColumnMajor" if name == "B" else "RowMajor",
                    f"describe {name} as"
                    if name in "AB"
                    else f"To fix it, {'make D as' if name == 'D' else 'pass'} np.",
                ],
            ),
            ({name: [[1.0]]}, ArgumentTypeError, [f"operand {name}", "torch, numpy or cupy", "list"]),
            ({name: 0x7F0000001000}, DeviceError, [f"operand {name}", "device memory", "no GPU", "numpy arrays"]),
            ({name: CUdeviceptr(0x7F0000001000)}, DeviceError, [f"operand {name}", "device memory", "no GPU"]),
        ]
        for name, shape in SHAPES.items()
    ),
]


def test_the_baseline_is_valid():
    given_ = baseline()
    OPERATION.run(GemmArguments(**given_))
    assert not np.isnan(given_["D"]).any()


@pytest.mark.parametrize(("change", "kind", "words"), WRONG, ids=[f"{next(iter(row[0]))}-{row[2]}" for row in WRONG])
def test_one_wrong_argument_is_named(change, kind, words):
    with pytest.raises(kind) as caught:
        GemmArguments(**{**baseline(), **change})
    assert isinstance(caught.value, PyCutlassError)
    assert all(word in str(caught.value) for word in words), str(caught.value)


@pytest.mark.parametrize("name", OPERANDS)
def test_misaligned_extents_are_refused(name):
    sizes = (M, N, K + 4) if name in "AB" else (M, N + 4, K)
    given_ = matrices(OPERATION, *sizes)
    changed = parts("f16")
    if name == "B":  # A shares the extent: describe A with less alignment
        changed["A"] = TensorDescription(cutlass.float16, ROW, 4)
    operation = GemmOperationUniversal(**changed)
    with pytest.raises(AlignmentError) as caught:
        GemmArguments(operation, sizes, **given_, output_op=operation.epilogue_type(1.0, 1.0))
    words = ("alignment 8", "must be a multiple", "Pad", "alignment 4")
    assert all(word in str(caught.value) for word in words), str(caught.value)
    assert name in "CD" or f"operand {name}" in str(caught.value)


@pytest.mark.parametrize("name", ["A", "B", "C"])
def test_d_may_not_overlap_what_is_read(name):
    square = 16
    base = np.zeros((square + 1, square), np.float16)
    given_ = matrices(OPERATION, square, square, square)
    given_["D"] = base[:square]
    shared = base[1:] if name != "B" else base[1:].T
    arguments = {**given_, name: shared, "output_op": OPERATION.epilogue_type(1.0, 1.0)}
    with pytest.raises(ArgumentError) as caught:
        GemmArguments(OPERATION, (square, square, square), **arguments)
    assert all(word in str(caught.value) for word in (f"D overlaps {name}", "memory of its own"))
    if name == "C":  # which is not read where beta is 0
        arguments["output_op"] = OPERATION.epilogue_type(1.0, 0.0)
        GemmArguments(OPERATION, (square, square, square), **arguments)


@pytest.mark.parametrize(
    "duplicate", [copy.copy, copy.deepcopy, pickle.dumps, lambda arguments: copy.deepcopy({"first": [arguments]})]
)
def test_arguments_have_no_copies(duplicate):
    arguments = GemmArguments(**baseline())
    with pytest.raises(ArgumentTypeError, match=r"GemmArguments cannot be copied or pickled.* Make new GemmArguments"):
        duplicate(arguments)
    OPERATION.run(arguments)


INTEGERS = GemmOperationUniversal(
    **parts(
        "f16",
        types=("s8", "s32", "s32"),
        instruction=(16, 8, 32),
        tile=(128, 128, 64),
        math=MathOperation.multiply_add_saturate,
    )
    | {"epilogue_functor": LinearCombination(cutlass.int32, 4, cutlass.int32, cutlass.int32)}
)
FRACTIONS = LinearCombination(cutlass.float32, 4, cutlass.float32, cutlass.float32)


@pytest.mark.parametrize(
    ("scalars", "words"),
    [
        ((0.5, 0.0), ["alpha=0.5"]),
        ((1.0, -0.25), ["beta=-0.25"]),
        ((2.0**31, 1.0), ["alpha=2147483648", "-2147483648 to 2147483647"]),
        ((-(2.0**31) - 1, 1.0), ["alpha=-2147483649", "-2147483648 to 2147483647"]),
        ((1.0, 1e30), ["beta=1000000", "-2147483648 to 2147483647"]),
        ((float("nan"), 1.0), ["alpha=nan"]),
        ((float("inf"), 1.0), ["alpha=inf"]),
    ],
)
def test_scalars_of_another_functor_must_fit_integers(scalars, words):
    m, n, k = 8, 8, 32
    operands = [np.ones((m, k), np.int8), np.ones((n, k), np.int8).T, np.ones((m, n), np.int32)]
    with pytest.raises(ArgumentError) as caught:
        GemmArguments(INTEGERS, (m, n, k), *operands, operands[2].copy(), output_op=FRACTIONS.epilogue_type(*scalars))
    words = [*words, "computes in cutlass.int32", "cutlass.float32 (element_epilogue)"]
    assert all(word in str(caught.value) for word in words), str(caught.value)


def test_scalars_of_another_functor_that_fit_are_taken():
    m, n, k = 8, 8, 32
    D = np.zeros((m, n), np.int32)
    A, B, C = np.ones((m, k), np.int8), np.ones((n, k), np.int8).T, np.ones((m, n), np.int32)
    arguments = GemmArguments(INTEGERS, (m, n, k), A, B, C, D, output_op=FRACTIONS.epilogue_type(-2.0, 3))
    INTEGERS.run(arguments)
    np.testing.assert_array_equal(D, 3 - 2 * k)
    half = ampere("f16_acc16")
    given_ = {**matrices(half), "C": None, "output_op": FRACTIONS.epilogue_type(0.5)}
    half.run(GemmArguments(half, (M, N, K), **given_))
    assert_close(half, given_["D"], expected(half, given_["A"], given_["B"], None, 0.5), K, 0.5)


def test_a_launch_configuration_needs_a_gpu():
    with pytest.raises(DeviceError, match="no GPU"):
        _ = GemmArguments(**baseline()).launch_config


# Exchanging tensors


@given(st.sets(st.sampled_from(OPERANDS)), seeds, st.booleans())
def test_update_exchanges_what_it_is_given(names, seed, scalars):
    given_ = baseline()
    arguments = GemmArguments(**given_)
    fresh = {name: matrix for name, matrix in matrices(OPERATION, seed=seed).items() if name in names}
    output_op = OPERATION.epilogue_type(-1.5, 0.25) if scalars else None
    arguments.update(**fresh, output_op=output_op)
    OPERATION.run(arguments)
    now = {**given_, **fresh}
    alpha, beta = (-1.5, 0.25) if scalars else (1.0, 1.0)
    assert_close(OPERATION, now["D"], expected(OPERATION, now["A"], now["B"], now["C"], alpha, beta), K, alpha)
    assert arguments.ptr_D == now["D"].ctypes.data
    if "D" in names:
        assert np.isnan(given_["D"]).all()


def test_update_with_nothing_changes_nothing():
    arguments = GemmArguments(**baseline())
    before = state(arguments)
    arguments.update()
    assert state(arguments) == before


def test_update_may_bring_c_and_beta_or_leave_both():
    given_ = baseline()
    C, given_["C"], given_["output_op"] = given_["C"], None, None
    arguments = GemmArguments(**given_)
    arguments.update(C=C, output_op=OPERATION.epilogue_type(1.0, 1.0))
    OPERATION.run(arguments)
    assert_close(OPERATION, given_["D"], expected(OPERATION, given_["A"], given_["B"], C, 1.0, 1.0), K)
    arguments.update(output_op=OPERATION.epilogue_type(1.0, 0.0))
    OPERATION.run(arguments)
    assert_close(OPERATION, given_["D"], expected(OPERATION, given_["A"], given_["B"], None), K)


def state(arguments: GemmArguments) -> Any:
    """Return everything that a launch reads of its arguments."""
    places = [getattr(arguments, word) for name in OPERANDS for word in (f"ptr_{name}", f"ld{name.lower()}")]
    return places, arguments.output_op, arguments.problem_size


UPDATABLE = {*OPERANDS, "output_op"}
WRONG_UPDATES = [
    *(row for row in WRONG if set(row[0]) <= UPDATABLE and all(value is not None for value in row[0].values())),
    ({"A": np.zeros((M + 8, K), np.float16)}, ArgumentError, ["operand A", str((M, K)), str((M + 8, K))]),
    ({"output_op": "scalars"}, ArgumentTypeError, ["output_op", "epilogue_type", "str"]),
]


@pytest.mark.parametrize(
    ("change", "kind", "words"), WRONG_UPDATES, ids=[f"{next(iter(row[0]))}-{row[2]}" for row in WRONG_UPDATES]
)
def test_an_update_that_fails_changes_nothing(change, kind, words):
    given_ = baseline()
    arguments = GemmArguments(**given_)
    before = state(arguments)
    fresh = {"A": random_matrix(OPERATION.A, M, K, None), "output_op": OPERATION.epilogue_type(9.0, 9.0)}
    with pytest.raises(kind) as caught:
        arguments.update(**{**fresh, **change})
    assert all(word in str(caught.value) for word in words), str(caught.value)
    assert state(arguments) == before
    for _ in range(2):
        given_["D"].fill(np.nan)
        OPERATION.run(arguments)
        exact = expected(OPERATION, given_["A"], given_["B"], given_["C"], 1.0, 1.0)
        assert_close(OPERATION, given_["D"], exact, K)
        arguments.update(output_op=OPERATION.epilogue_type(1.0, 1.0))  # builds on what was there before the failure


def test_an_update_to_beta_without_c_changes_nothing():
    given_ = baseline() | {"C": None, "output_op": None}
    arguments = GemmArguments(**given_)
    before = state(arguments)
    with pytest.raises(ArgumentError, match="C is None, and beta is not 0"):
        arguments.update(output_op=OPERATION.epilogue_type(1.0, 1.0))
    assert state(arguments) == before


def test_an_update_that_makes_d_overlap_changes_nothing():
    square = 16
    given_ = {**matrices(OPERATION, square, square, square), "C": None}
    arguments = GemmArguments(OPERATION, (square, square, square), **given_)
    before = state(arguments)
    with pytest.raises(ArgumentError, match="D overlaps A"):
        arguments.update(D=given_["A"])
    assert state(arguments) == before


def test_misspelt_keywords_of_update_are_refused():
    arguments = GemmArguments(**baseline())
    with pytest.raises(ArgumentTypeError, match=r"update has no keyword a; .* Did you mean A\?"):
        arguments.update(a=np.zeros((M, K), np.float16))
