"""Arguments of a GEMM: every kind of tensor is taken."""

from __future__ import annotations

import gc
import weakref
from typing import Any, cast

import numpy as np
import pytest
import torch
from descriptions import (
    COLUMN,
    KINDS,
    LAYOUTS,
    ROW,
    ampere,
    as_torch,
    expected,
    hopper,
    poisoned,
    random_matrix,
    run_python,
)
from gemm_operands import OPERANDS, K, M, N, assert_close, matrices
from hypothesis import given
from hypothesis import strategies as st

from pycutlass import GemmArguments, RasterOrder, cutlass
from pycutlass.errors import ArgumentError

pytestmark = pytest.mark.usefixtures("without_gpu")

seeds = st.integers(0, 2**32)


def flat(operation: Any, name: str, matrix: Any) -> Any:
    """Return the memory of a packed matrix as one line."""
    return matrix.reshape(-1, order="C" if getattr(operation, "C" if name == "D" else name).is_row_major else "F")


def padded(operation: Any, name: str, matrix: Any) -> Any:
    """Return a copy inside a larger allocation, with a larger leading dimension and behind an offset."""
    row_major = getattr(operation, "C" if name == "D" else name).is_row_major
    lines = matrix if row_major else matrix.T
    base = np.zeros((lines.shape[0] + 1, lines.shape[1] + 8), matrix.dtype)
    base[1:, : lines.shape[1]] = lines
    view = base[1:, : lines.shape[1]]
    return view if row_major else view.T


# What is taken


FORMS: dict[str, Any] = {
    "numpy": lambda operation, name, matrix: matrix,
    "numpy flat": flat,
    "numpy padded": padded,
    "torch": lambda operation, name, matrix: as_torch(matrix),
    "torch flat": lambda operation, name, matrix: as_torch(flat(operation, name, matrix)),
    "torch padded": lambda operation, name, matrix: as_torch(padded(operation, name, matrix)),
}


def back(operation: Any, D: Any) -> Any:
    """Return D as a NumPy array of its matrix shape."""
    array = D.view(torch.int16).numpy().view(operation.C.type.dtype) if getattr(D, "dtype", 0) == torch.bfloat16 else D
    return np.asarray(array).reshape((M, N), order="C" if operation.C.is_row_major else "F")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("layouts", LAYOUTS, ids=lambda three: "".join("t" if one is ROW else "n" for one in three))
def test_every_layout_of_every_type_in_every_form(kind, layouts):
    operation = ampere(kind, layouts)
    random = np.random.default_rng()
    mixed = {name: str(random.choice(list(FORMS))) for name in OPERANDS}
    for forms in [*(dict.fromkeys(OPERANDS, form) for form in FORMS), mixed]:
        given_ = matrices(operation)
        alpha, beta = random.uniform(-2, 2, 2)
        tensors = {name: FORMS[forms[name]](operation, name, matrix) for name, matrix in given_.items()}
        arguments = GemmArguments(operation, (M, N, K), **tensors, output_op=operation.epilogue_type(alpha, beta))
        operation.run(arguments)
        arguments.sync()
        exact = expected(operation, given_["A"], given_["B"], given_["C"], alpha, beta)
        assert_close(operation, back(operation, tensors["D"]), exact, K, alpha)


@given(
    st.sampled_from(list(KINDS)),
    st.sampled_from(LAYOUTS),
    st.tuples(*[st.integers(1, 5)] * 3),
    seeds,
    st.sampled_from([(1.0, 0.0), (-0.5, 2.0), (0.0, 1.0), (0.0, 0.0)]),
)
def test_sizes_of_every_kind(kind, layouts, sizes, seed, scalars):
    operation = ampere(kind, layouts)
    step = max(operation.A.alignment, operation.B.alignment, operation.C.alignment)
    m, n, k = (step * extent for extent in sizes)
    given_ = matrices(operation, m, n, k, seed)
    before = {name: given_[name].copy() for name in "ABC"}
    arguments = GemmArguments(operation, (m, n, k), **given_, output_op=operation.epilogue_type(*scalars))
    operation.run(arguments)
    assert_close(
        operation, given_["D"], expected(operation, *(before[name] for name in "ABC"), *scalars), k, scalars[0]
    )
    assert all(np.array_equal(given_[name], before[name]) for name in "ABC")


def test_hopper_kernels():
    operation = hopper()
    given_ = {**matrices(operation, 128, 136, 72), "C": None}
    arguments = GemmArguments(operation, (128, 136, 72), **given_, raster_order=RasterOrder.AlongN)
    operation.run(arguments)
    assert_close(operation, given_["D"], expected(operation, given_["A"], given_["B"], None), 72)


def test_f64_scalars_stay_f64():
    operation = ampere("f64")
    given_ = matrices(operation)
    arguments = GemmArguments(operation, (M, N, K), **given_, output_op=operation.epilogue_type(0.1, 0.3))
    operation.run(arguments)
    exact = 0.1 * (given_["A"] @ given_["B"]) + 0.3 * given_["C"]
    assert np.abs(given_["D"] - exact).max() < 1e-12


@pytest.mark.parametrize("C", [None, "poison"])
@pytest.mark.parametrize("kind", KINDS)
def test_c_is_not_read_where_beta_is_zero(kind, C):
    operation = ampere(kind)
    given_ = matrices(operation)
    given_["C"] = None if C is None else poisoned(operation.C, M, N)
    arguments = GemmArguments(operation, (M, N, K), **given_, output_op=operation.epilogue_type(2.0, 0.0))
    operation.run(arguments)
    assert_close(operation, given_["D"], expected(operation, given_["A"], given_["B"], None, 2.0), K, 2.0)


def test_alpha_is_one_and_beta_zero_by_default():
    operation = ampere()
    given_ = {**matrices(operation), "C": None}
    arguments = GemmArguments(operation=operation, problem_size=cutlass.gemm.GemmCoord(M, N, K), **given_)
    operation.run(arguments)
    assert_close(operation, given_["D"], expected(operation, given_["A"], given_["B"], None), K)
    assert arguments.problem_size == cutlass.gemm.GemmCoord(M, N, K)


@pytest.mark.parametrize("beta", [1.0, -0.5])
def test_c_may_be_d(beta):
    operation = ampere("f32_simt")
    given_ = matrices(operation)
    D = given_["D"] = given_["C"]
    before = D.copy()
    arguments = GemmArguments(operation, (M, N, K), **given_, output_op=operation.epilogue_type(1.0, beta))
    for _ in range(2):
        exact = expected(operation, given_["A"], given_["B"], before, 1.0, beta)
        operation.run(arguments)
        assert_close(operation, D, exact, K)
        before = D.copy()


def test_operands_may_be_columns_of_one_allocation():
    operation = ampere("f32_simt")
    base = np.random.default_rng().standard_normal((M, K + N)).astype(np.float32)
    A, D = base[:, :K], base[:, K:]
    before = A.copy()
    B = random_matrix(operation.B, K, N, None)
    arguments = GemmArguments(operation, (M, N, K), A, B, None, D)
    operation.run(arguments)
    assert_close(operation, D, expected(operation, before, B, None), K)
    assert np.array_equal(A, before)


def test_a_and_b_may_be_the_same_memory():
    operation = ampere("f32_simt", (ROW, COLUMN, ROW))
    A = random_matrix(operation.A, M, K, None)
    D = poisoned(operation.C, M, M)
    arguments = GemmArguments(operation, (M, M, K), A, A.T, None, D)
    operation.run(arguments)
    assert_close(operation, D, expected(operation, A, A.T, None), K)


def test_running_again_reads_the_memory_again():
    operation = ampere("f32_simt")
    given_ = {**matrices(operation), "C": None}
    arguments = GemmArguments(operation, (M, N, K), **given_)
    operation.run(arguments)
    given_["A"] *= 2
    given_["D"].fill(np.nan)
    operation.run(arguments, stream=0x7000)  # there are no streams on the host
    assert_close(operation, given_["D"], expected(operation, given_["A"], given_["B"], None), K, 2.0)


def test_equal_operations_run_each_others_arguments():
    given_ = {**matrices(ampere()), "C": None}
    arguments = GemmArguments(ampere(), (M, N, K), **given_)
    ampere().run(arguments)
    assert not np.isnan(given_["D"]).any()
    with pytest.raises(ArgumentError, match="these arguments were made for"):
        ampere("bf16").run(arguments)


def test_addresses_and_leading_dimensions_under_their_old_names():
    operation = ampere("f32_simt")
    given_ = {**matrices(operation), "C": None}
    given_["A"] = padded(operation, "A", given_["A"])
    arguments = GemmArguments(operation, (M, N, K), **given_)
    assert (arguments.ptr_A, arguments.lda) == (given_["A"].ctypes.data, K + 8)
    assert (arguments.ptr_B, arguments.ldb) == (given_["B"].ctypes.data, K)
    assert (arguments.ptr_D, arguments.ldd) == (given_["D"].ctypes.data, N)
    for name in ("ptr_E", "lde", "ptr_", "nonsense", "_missing"):
        with pytest.raises(AttributeError, match=name):
            getattr(arguments, name)


def test_tensors_live_as_long_as_the_arguments():
    class Array(np.ndarray):
        """Can be referenced weakly."""

    operation = ampere("f32_simt")
    given_ = {name: matrix.view(Array) for name, matrix in matrices(operation).items()}
    known = {name: weakref.ref(matrix) for name, matrix in given_.items()}
    arguments = GemmArguments(operation, (M, N, K), **given_, output_op=operation.epilogue_type(1.0, 1.0))
    given_.clear()
    gc.collect()
    assert all(reference() is not None for reference in known.values())
    arguments.update(A=np.zeros((M, K), np.float32))
    gc.collect()
    assert known["A"]() is None
    assert known["B"]() is not None
    del arguments
    gc.collect()
    assert all(reference() is None for reference in known.values())


def test_what_a_machine_without_a_gpu_does_is_said_once():
    program = """
import logging, sys
from pathlib import Path
sys.path.insert(0, {folder!r})
logging.basicConfig(stream=sys.stdout, format="%(name)s %(levelname)s %(message)s")
import numpy as np
from descriptions import ampere
from pycutlass import GemmArguments
operation = ampere("f32_simt")
for _ in range(2):
    one = np.ones((1, 1), np.float32)
    arguments = GemmArguments(operation, (1, 1, 1), one, one, None, one.copy())
    operation.run(arguments)
    operation.run(arguments)
"""
    said = run_python(program.format(folder=str(__file__).rsplit("/", 1)[0])).splitlines()
    assert len(said) == 2
    assert said[0].startswith("pycutlass WARNING no GPU (")
    assert said[0].endswith("operations are executed on the host by pycutlass.reference")
    assert said[1].startswith("pycutlass WARNING cutlass_sm80_simt_sgemm_f32_f32_128x128_8x4_")
    assert said[1].endswith("call pycutlass.compiler.add_module([operation]) first")


def test_an_operation_that_was_compiled_is_not_said_to_lack_that(caplog):
    operation = ampere("f32_simt", swizzle=cutlass.IdentitySwizzle2)
    given = matrices(operation)
    arguments = GemmArguments(operation, (M, N, K), given["A"], given["B"], None, given["D"])
    operation.artifacts["sm_80"] = cast(Any, object())
    operation.run(arguments)
    assert "without having been compiled" not in caplog.text
    del operation.artifacts["sm_80"]
    operation.run(arguments)
    assert "without having been compiled" in caplog.text


def test_partial_sums_that_were_not_compiled_are_said_to_need_the_reduction(caplog):
    operation = ampere("f16", swizzle=cutlass.IdentitySwizzle4)
    given = matrices(operation, 64, 64, 64)
    operation.artifacts["sm_80"] = cast(Any, object())
    mode = cutlass.gemm.Mode.GemmSplitKParallel
    operation.run(GemmArguments(operation, (64, 64, 64), given["A"], given["B"], gemm_mode=mode, split_k_slices=2))
    assert "without having been compiled" in caplog.text
    assert "pycutlass.compiler.add_module([operation, reduction]) first" in caplog.text


# Batches, slices and bias vectors


def batch_of(operation: Any, batch: int) -> dict[str, Any]:
    """Return `matrices`, `batch` times, in arrays of three dimensions."""
    each = [matrices(operation) for _ in range(batch)]
    together = {}
    for name in OPERANDS:
        row_major = getattr(operation, "C" if name == "D" else name).is_row_major
        stacked = np.stack([one[name] if row_major else one[name].T for one in each])
        together[name] = stacked if row_major else stacked.transpose(0, 2, 1)
    return together


@pytest.mark.parametrize("kind", ["f16", "bf16", "f32_simt", "f64"])
@pytest.mark.parametrize("layouts", LAYOUTS, ids=lambda three: "".join("t" if one is ROW else "n" for one in three))
def test_batches(kind, layouts):
    operation = ampere(kind, layouts)
    given_ = batch_of(operation, 3)
    shared = {**given_, "B": given_["B"][1], "D": np.full_like(given_["D"], np.nan)}
    output_op = operation.epilogue_type(1.5, -0.5)
    for tensors in (given_, shared):
        options = {"gemm_mode": cutlass.gemm.Mode.Batched, "batch": 3, "output_op": output_op}
        operation.run(GemmArguments(operation, (M, N, K), **tensors, **options))
        for index in range(3):
            B = tensors["B"] if tensors["B"].ndim == 2 else tensors["B"][index]
            exact = expected(operation, tensors["A"][index], B, tensors["C"][index], 1.5, -0.5)
            assert_close(operation, tensors["D"][index], exact, K, 1.5)


def test_batches_of_separate_tensors():
    operation = ampere("f32_simt")
    each = [matrices(operation) for _ in range(3)]
    lists = {name: [one[name] for one in each] for name in OPERANDS}
    options = {"gemm_mode": cutlass.gemm.Mode.Array, "batch": 3, "output_op": operation.epilogue_type(1.0, 1.0)}
    operation.run(GemmArguments(operation, (M, N, K), **lists, **options))
    for one in each:
        assert_close(operation, one["D"], expected(operation, one["A"], one["B"], one["C"], 1.0, 1.0), K)


def test_slices_of_k_give_the_same_sum():
    operation = ampere("f32_simt")
    given_ = {**matrices(operation), "C": None}
    operation.run(GemmArguments(operation, (M, N, K), **given_, split_k_slices=2))
    assert_close(operation, given_["D"], expected(operation, given_["A"], given_["B"], None), K)


@pytest.mark.parametrize("layout", [ROW, COLUMN])
def test_c_may_be_a_bias(layout):
    operation = ampere("f32_simt", (ROW, ROW, layout))
    given_ = matrices(operation)
    bias = given_["C"] = np.random.default_rng().standard_normal(N if layout is ROW else M).astype(np.float32)
    operation.run(GemmArguments(operation, (M, N, K), **given_, output_op=operation.epilogue_type(1.0, 2.0)))
    C = np.broadcast_to(bias if layout is ROW else bias[:, None], (M, N))
    assert_close(operation, given_["D"], expected(operation, given_["A"], given_["B"], C, 1.0, 2.0), K)
