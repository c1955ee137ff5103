"""`EpilogueFunction.numpy` takes what kernels take: of each parameter the same shapes, with the same meaning."""

from __future__ import annotations

import math
import warnings
from typing import Any

import numpy as np
import pytest
from descriptions import parts

import pycutlass
from pycutlass import cutlass, epilogue
from pycutlass.epilogue import Column, PerBatch, Port, Row, Scalar, Source, Tensor, logsumexp, pairs, top_k
from pycutlass.errors import ArgumentError, ArgumentTypeError, PyCutlassError
from pycutlass.operands.epilogue import port_operand_of
from pycutlass.tensor import TensorView

MARKERS = {"row": Row, "column": Column, "matrix": Tensor, "number": PerBatch}


def adding(form: str, *, halved: bool = False) -> Any:
    marker = Source if form == "source" else MARKERS[form]

    def add(accum: Any, x: marker) -> Any:  # type: ignore[valid-type]
        return accum + x

    def add_behind(accum: Any, x: marker) -> Any:  # type: ignore[valid-type]
        even, odd = pairs(accum)
        return even * odd + x

    return pycutlass.epilogue_function(add_behind if halved else add)


def of_a_kernel(form: str, shape: tuple[int, ...], accum: tuple[int, ...], halved: bool) -> bool:
    """Return whether a kernel takes a packed tensor of a shape."""
    port = Port("x", cutlass.float32, form, halved=halved)
    strides = tuple(math.prod(shape[axis + 1 :]) for axis in range(len(shape)))
    view = TensorView(0, "float32", shape, strides, None, "numpy", None)
    try:
        port_operand_of(port, view, *accum[-2:], math.prod(accum[:-2]), written=False)
    except PyCutlassError:
        return False
    return True


SIZES = (1, 2, 3, 4, 6, 8)
SHAPES = [
    (),
    *((n,) for n in (*SIZES, 12, 16, 24, 48)),
    *((m, n) for m in SIZES for n in SIZES),
    *((b, m, n) for b in (1, 2, 3) for m in SIZES for n in SIZES),
    *((a, b, m, n) for a in (1, 3) for b in (1, 2) for m in (1, 2, 4) for n in (1, 4, 6)),
]


@pytest.mark.parametrize("halved", [False, True])
@pytest.mark.parametrize("form", MARKERS)
@pytest.mark.parametrize("accum", [(4, 8), (4, 4), (8, 4), (1, 4), (4, 2), (3, 4, 8), (3, 4, 4), (2, 2, 2), (1, 4, 6)])
def test_it_takes_the_shapes_that_kernels_take(form: str, accum: tuple[int, ...], halved: bool) -> None:
    function, D = adding(form, halved=halved), (*accum[:-1], accum[-1] // (1 + halved))
    halves = halved and form in ("row", "matrix")
    taken = 0
    for shape in SHAPES:
        if form == "number" and shape == ():
            continue  # a kernel reads memory
        fits = of_a_kernel(form, shape, accum, halves)
        try:
            assert function.numpy(np.zeros(accum), x=np.zeros(shape)).shape == D
            assert fits, f"NumPy takes {shape} and kernels do not"
        except ArgumentError as error:
            assert not fits, f"kernels take {shape}: {error}"
        taken += fits
    assert taken > 1


M, N, K, BATCH = 4, 8, 16, 3


@pycutlass.epilogue_function
def several(accum: Any, r: Row, c: Column, t: Tensor, p: PerBatch) -> Any:
    return {"D": accum * p + r + c + t, "all": epilogue.sum(accum * p + r + c + t)}


@pytest.mark.parametrize(
    "shapes",
    [
        {"r": (N,), "c": (M,), "t": (M, N), "p": (1,)},
        {"r": (BATCH, N), "c": (BATCH, M), "t": (BATCH, M, N), "p": (BATCH,)},
        {"r": (BATCH, 1, N), "c": (BATCH, M, 1), "t": (BATCH * M * N,), "p": (BATCH, 1)},
        {"r": (BATCH * N,), "c": (M, 1), "t": (M, N), "p": (BATCH, 1, 1)},
        {"r": (N, 1), "c": (1, M), "t": (M * N,), "p": (1, 1)},
    ],
)
def test_it_means_what_kernels_mean(shapes: dict[str, tuple[int, ...]], without_gpu: None) -> None:
    described = parts("f32")
    functor = several(cutlass.float32, described["C"].alignment)
    operation = pycutlass.GemmOperationUniversal(**described | {"epilogue_functor": functor})
    random = np.random.default_rng(0)
    given = {name: random.integers(-8, 9, shape).astype(np.float32) for name, shape in shapes.items()}
    A, B = (random.integers(-2, 3, (BATCH, *shape)).astype(np.float32) for shape in ((M, K), (K, N)))
    B = np.ascontiguousarray(B.swapaxes(1, 2)).swapaxes(1, 2)
    D, total = np.empty((BATCH, M, N), np.float32), np.empty((BATCH, 1), np.float32)
    arguments = pycutlass.GemmArguments(
        operation,
        (M, N, K),
        A,
        B,
        None,
        D,
        gemm_mode=cutlass.gemm.Mode.Batched,
        batch=BATCH,
        epilogue={**given, "all": total},
    )
    operation.run(arguments)
    arguments.sync()
    exact = several.numpy(A @ B, **given)
    np.testing.assert_array_equal(exact["D"], D)
    np.testing.assert_array_equal(exact["all"], total)
    assert several.numpy((A @ B)[0], r=np.ones(N), c=np.ones(M), t=np.ones((M, N)), p=1)["all"].shape == (1,)


def test_an_accumulator_may_have_several_dimensions_of_a_batch() -> None:
    x, t = np.arange(48.0).reshape(2, 3, 2, 4), np.arange(24.0).reshape(2, 3, 4)
    function = adding("row")
    for given in (t, t[:, :, None, :]):
        np.testing.assert_array_equal(function.numpy(x, x=given), x + t[:, :, None, :])
    np.testing.assert_array_equal(function.numpy(x, x=t[0, 0]), x + t[0, 0])
    np.testing.assert_array_equal(adding("number").numpy(x, x=t[:, :, 0]), x + t[:, :, :1, None])


def test_c_may_be_a_bias() -> None:
    x = np.arange(24.0).reshape(3, 2, 4)
    for given in (np.ones(4), np.ones((3, 4)), np.ones((2, 4)), np.ones((3, 2, 4))):
        np.testing.assert_array_equal(adding("source").numpy(x, x=given), x + 1)


@pytest.mark.parametrize(
    ("form", "accum", "shape", "said"),
    [
        ("row", (5, 8), (5, 8), r"x of add is a row, of shape \(8,\) where .* got \(5, 8\). .* write x: Tensor"),
        ("row", (5, 8), (5,), "write x: Column"),
        ("row", (3, 5, 8), (2, 8), r"of shape \(8,\) or, with one for each matrix of the batch, \(3, 8\) where"),
        ("row", (8, 8), (8, 1), r"pass x.reshape\(-1\) if it is that row, and write x: Column for one element"),
        ("row", (5, 8), (), "For a single number write x: Scalar"),
        ("row", (8,), (8,), r"is a matrix, of shape \(..., M, N\); got shape \(8,\): pass one row as accum\[None, :\]"),
        ("column", (5, 8), (3, 5), r"x of add is a column, of shape \(5,\) where .* got \(3, 5\)$"),
        ("matrix", (5, 8), (3, 5, 8), r"x of add is a matrix, of shape \(5, 8\) where .* got \(3, 5, 8\)$"),
        ("matrix", (5, 0), (4, 0), r"of shape \(5, 0\) where the accumulator has \(5, 0\); got \(4, 0\)$"),
        ("source", (5, 8), (3, 5, 8), r"x of add is a source, of shape \(5, 8\) where .* got \(3, 5, 8\)$"),
        ("number", (3, 5, 8), (2,), r"a number for each matrix of the batch, of shape \(3,\), or a single one where"),
    ],
)
def test_other_shapes_are_refused(form: str, accum: tuple[int, ...], shape: tuple[int, ...], said: str) -> None:
    with pytest.raises(ArgumentError, match=said):
        adding(form).numpy(np.zeros(accum), x=np.zeros(shape))


def test_what_goes_with_halves_has_half_of_the_columns() -> None:
    with pytest.raises(ArgumentError, match=r"got \(8,\). It is combined with what pairs returns, which has 4 columns"):
        adding("row", halved=True).numpy(np.zeros((5, 8)), x=np.zeros(8))


def test_a_scalar_is_one_number() -> None:
    def scale(accum: Any, x: Scalar) -> Any:
        return accum * x

    function = pycutlass.epilogue_function(scale)
    with pytest.raises(ArgumentError, match=r"x of scale is a Scalar, .* of shape \(1,\): pass x.item\(\)"):
        function.numpy([[1.0]], x=[2.0])
    assert function.numpy([[1.0]], x=np.float32(2)).tolist() == [[2.0]]


def test_functions_say_what_is_no_array_of_numbers() -> None:
    for call in (
        lambda: top_k(np.array([[1, None]], dtype=object), 1),
        lambda: epilogue.sum("a", axis=1),
        lambda: epilogue.exp(["a"]),
        lambda: epilogue.cast("a", cutlass.int8),
    ):
        with pytest.raises(ArgumentTypeError, match="must be an array of numbers, got "):
            call()
    for array, said in ((3.0, "got a single number"), (np.ones(3), r"x\[None, :\]"), (np.ones((3, 0)), "has none")):
        with pytest.raises(ArgumentError, match=said):
            epilogue.max(array, axis=1)


def test_rows_of_minus_infinity_are_summed_without_a_warning() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert logsumexp(np.full((2, 3), -np.inf), axis=1).tolist() == [-np.inf, -np.inf]
