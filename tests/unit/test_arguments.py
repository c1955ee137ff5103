"""Arguments of a GEMM: every kind of tensor is taken, every mistake is named, and `update` is all or nothing."""

from __future__ import annotations

import gc
import itertools
import weakref
from typing import Any

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
    parts,
    poisoned,
    random_matrix,
    run_python,
)
from hypothesis import given
from hypothesis import strategies as st

from pycutlass import GemmArguments, GemmOperationUniversal, RasterOrder, TensorDescription, cutlass, reference
from pycutlass.errors import (
    AlignmentError,
    ArgumentError,
    ArgumentTypeError,
    DeviceError,
    PyCutlassError,
)

pytestmark = pytest.mark.usefixtures("without_gpu")

M, N, K = 24, 40, 16
OPERANDS = ("A", "B", "C", "D")
seeds = st.integers(0, 2**32)


class CUdeviceptr(int):
    """Stands for ``cuda.bindings.driver.CUdeviceptr``, which is known by its name."""


def matrices(operation: Any, m: int = M, n: int = N, k: int = K, seed: Any = None) -> dict[str, Any]:
    """Return fresh random A, B and C, and a D full of NaN."""
    random = np.random.default_rng(seed)
    return {
        "A": random_matrix(operation.A, m, k, random.integers(2**32)),
        "B": random_matrix(operation.B, k, n, random.integers(2**32)),
        "C": random_matrix(operation.C, m, n, random.integers(2**32)),
        "D": poisoned(operation.C, m, n),
    }


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


def assert_close(operation: Any, D: Any, exact: Any, k: int, alpha: float = 1.0) -> None:
    relative, absolute = reference.tolerance(operation, k, max(abs(alpha), 1e-3))
    np.testing.assert_allclose(np.asarray(D).astype(np.float64), exact, rtol=relative, atol=absolute)


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
    given_ = matrices(operation, 128, 136, 72)
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
    given_ = matrices(operation)
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
    given_ = matrices(operation)
    arguments = GemmArguments(operation, (M, N, K), **given_)
    operation.run(arguments)
    given_["A"] *= 2
    given_["D"].fill(np.nan)
    operation.run(arguments, stream=7)  # there are no streams on the host
    assert_close(operation, given_["D"], expected(operation, given_["A"], given_["B"], None), K, 2.0)


def test_equal_operations_run_each_others_arguments():
    given_ = matrices(ampere())
    arguments = GemmArguments(ampere(), (M, N, K), **given_)
    ampere().run(arguments)
    assert not np.isnan(given_["D"]).any()
    with pytest.raises(ArgumentError, match="these arguments were made for"):
        ampere("bf16").run(arguments)


def test_addresses_and_leading_dimensions_under_their_old_names():
    operation = ampere("f32_simt")
    given_ = matrices(operation)
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
    assert len(said) == 1
    assert said[0].startswith("pycutlass WARNING no GPU (")
    assert said[0].endswith("operations are executed on the host by pycutlass.reference")


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
    given_ = matrices(operation)
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


# What is refused: valid arguments, one of them changed

OPERATION = ampere("f16", alignment=8)


def baseline() -> dict[str, Any]:
    return {
        "operation": OPERATION,
        "problem_size": (M, N, K),
        **matrices(OPERATION),
        "output_op": OPERATION.epilogue_type(1.0, 1.0),
    }


def read_only() -> Any:
    array = np.zeros((M, N), np.float16)
    array.flags.writeable = False
    return array


SHAPES = {"A": (M, K), "B": (K, N), "C": (M, N), "D": (M, N)}
WRONG: list[tuple[dict[str, Any], type[Exception], list[str]]] = [
    ({"operation": None}, ArgumentTypeError, ["operation", "GemmOperationUniversal", "NoneType"]),
    ({"operation": OPERATION.emit()}, ArgumentTypeError, ["operation", "GemmOperationUniversal", "str"]),
    ({"problem_size": None}, ArgumentTypeError, ["problem_size", "GemmCoord(M, N, K)", "None"]),
    ({"problem_size": (M, N)}, ArgumentTypeError, ["problem_size", "three integers", f"({M}, {N})"]),
    ({"problem_size": (M + 0.5, N, K)}, ArgumentTypeError, ["problem_size", "three integers", "24.5"]),
    ({"problem_size": "123"}, ArgumentTypeError, ["problem_size", "'123'"]),
    ({"problem_size": (M, N, 0)}, ArgumentError, ["problem_size", "from 1 to", f"({M}, {N}, 0)"]),
    ({"problem_size": (-M, N, K)}, ArgumentError, ["problem_size", "from 1 to", "-24"]),
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
    ({"gemm_mode": "Gemm"}, ArgumentError, ["gemm_mode", "'Gemm'", "Mode.Gemm, Mode.GemmSplitKParallel"]),
    ({"split_k_slices": 0}, ArgumentError, ["split_k_slices", "at least 1", "0"]),
    ({"split_k_slices": 1.5}, ArgumentTypeError, ["split_k_slices", "integer", "1.5"]),
    ({"batch": 2}, ArgumentError, ["batch", "Mode.Batched", "2"]),
    ({"batch": "2"}, ArgumentTypeError, ["batch", "integer", "'2'"]),
    ({"raster_order": 7}, ArgumentError, ["raster_order", "7", "RasterOrder.AlongM"]),
    ({"raster_order": "AlongM"}, ArgumentError, ["raster_order", "'AlongM'", "RasterOrder.AlongN"]),
    ({"beta": 1.0}, ArgumentTypeError, ["no keyword beta", "output_op"]),
    ({"a": None, "d": None}, ArgumentTypeError, ["no keyword a, d", "A, B, C, D"]),
    ({"C": None}, ArgumentError, ["C is None", "beta is not 0", "epilogue_type(alpha, 0)"]),
    ({"D": read_only()}, ArgumentError, ["operand D", "read-only", "np.empty((24, 40), 'float16')"]),
    *[
        ({name: None}, ArgumentError, [f"operand {name} is missing", f"{SHAPES[name][0]} x {SHAPES[name][1]}"])
        for name in ("A", "B", "D")
    ],
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
                [f"operand {name}", "ColumnMajor" if name == "B" else "RowMajor", "contiguous()"],
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
    places = [getattr(arguments, f"{word}{name}") for name in OPERANDS for word in ("ptr_", "ld")]
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
    given_ = matrices(OPERATION, square, square, square)
    arguments = GemmArguments(OPERATION, (square, square, square), **given_)
    before = state(arguments)
    with pytest.raises(ArgumentError, match="D overlaps A"):
        arguments.update(D=given_["A"])
    assert state(arguments) == before


def test_misspelt_keywords_of_update_are_refused():
    arguments = GemmArguments(**baseline())
    with pytest.raises(TypeError, match="'a'"):
        arguments.update(a=np.zeros((M, K), np.float16))
