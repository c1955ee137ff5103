"""Convolutions with an epilogue that has tensors of its own, without a GPU: what they mean, and what is refused."""

from __future__ import annotations

from typing import Any

import fake_gpu
import numpy as np
import pytest
import torch
from convolutions import STRIDED, UNITY, dgrad, f16, f32, fprop, wgrad
from extra_epilogue import SCALARS
from extra_operations import convolution
from torch.nn import functional

import pycutlass
from pycutlass import cutlass
from pycutlass.errors import AlignmentError, ArgumentError, ArgumentTypeError, DescriptionError

KINDS = {"fprop": (fprop, STRIDED), "dgrad": (dgrad, UNITY), "wgrad": (wgrad, STRIDED)}
OPERATIONS = {name: convolution(kind, types=(f16, f32, f32), stride=stride) for name, (kind, stride) in KINDS.items()}
SIZE = cutlass.conv.Conv2dProblemSize(N=2, H=6, W=5, C=16, K=24, R=3, S=2, pad_h=1, pad_w=0, dilation_h=2)
BESIDE = ("extra", "bias", "second")
LETTERS = {"fprop": "xwy", "dgrad": "ywx", "wgrad": "yxw"}
EXTENTS = {"x": (SIZE.N, SIZE.H, SIZE.W, SIZE.C), "w": (SIZE.K, SIZE.R, SIZE.S, SIZE.C)}
EXTENTS["y"] = (SIZE.N, SIZE.P, SIZE.Q, SIZE.K)


def columns(kind: str) -> int:
    """Return how many columns D has as a matrix."""
    return SIZE.R * SIZE.S * SIZE.C if kind == "wgrad" else EXTENTS[LETTERS[kind][2]][3]


def drawn(kind: str, seed: int = 3) -> dict[str, Any]:
    """Return small integers, whose products and sums are exact, and outputs of NaN."""
    random = np.random.default_rng(seed)
    a, b, d = (EXTENTS[letter] for letter in LETTERS[kind])
    shapes = {"A": a, "B": b, "C": d, "D": d, "extra": d, "bias": (columns(kind),), "second": d}
    given = {name: random.integers(-4, 5, shape).astype(np.float32) for name, shape in shapes.items()}
    given |= {name: given[name].astype(np.float16) for name in "AB"}
    return given | {name: np.full_like(given[name], np.nan) for name in ("D", "second")}


def make(kind: str, given: dict[str, Any], **options: Any) -> pycutlass.Conv2dArguments:
    operation = OPERATIONS[kind]
    options = {"output_op": operation.epilogue_type(**SCALARS)} | options
    beside = {name: given[name] for name in given if name not in "ABCD"}
    return pycutlass.Conv2dArguments(operation, SIZE, *(given[name] for name in "ABCD"), epilogue=beside, **options)


def exact(kind: str, given: dict[str, Any], **changed: float) -> np.ndarray[Any, Any]:
    """Return D, by torch's convolution in f64."""
    alpha, beta, gamma, delta, _ = (SCALARS | changed).values()
    A, B = (torch.from_numpy(given[name].astype(np.float64)).permute(0, 3, 1, 2) for name in "AB")
    options: dict[str, Any] = {"padding": (SIZE.pad_h, SIZE.pad_w), "dilation": (SIZE.dilation_h, SIZE.dilation_w)}
    if kind == "fprop":
        made = functional.conv2d(A, B, **options)
    elif kind == "dgrad":
        made = torch.nn.grad.conv2d_input((SIZE.N, SIZE.C, SIZE.H, SIZE.W), B, A, **options)
    else:
        made = torch.nn.grad.conv2d_weight(B, (SIZE.K, SIZE.C, SIZE.R, SIZE.S), A, **options)
    product = made.permute(0, 2, 3, 1).numpy()
    bias = given["bias"].reshape(product.shape[1:] if kind == "wgrad" else -1)
    source = 0.0 if given["C"] is None else beta * given["C"]
    return np.asarray(alpha * product + source + gamma * given["extra"] + delta * bias)


def check(kind: str, given: dict[str, Any], **changed: float) -> None:
    made = exact(kind, given, **changed)
    np.testing.assert_array_equal(given["D"], made)
    np.testing.assert_array_equal(given["second"], (SCALARS | changed)["epsilon"] * made)


def run(arguments: Any) -> None:
    arguments.operation.run(arguments)
    arguments.sync()


@pytest.mark.parametrize("kind", KINDS)
def test_every_output_is_computed_and_updated(kind: str, without_gpu: None) -> None:
    given = drawn(kind)
    arguments = make(kind, given)
    run(arguments)
    check(kind, given)
    other = drawn(kind, 4)
    arguments.update(A=other["A"], D=other["D"], epilogue={name: other[name] for name in BESIDE})
    run(arguments)
    check(kind, given | {name: other[name] for name in ("A", "D", *BESIDE)})


@pytest.mark.parametrize("kind", KINDS)
def test_without_c_and_with_one_that_is_d(kind: str, without_gpu: None) -> None:
    given = drawn(kind) | {"C": None}
    functor = OPERATIONS[kind].epilogue_functor
    run(make(kind, given, output_op=functor.epilogue_type(**SCALARS | {"beta": 0.0})))
    check(kind, given, beta=0.0)

    given = drawn(kind)
    given["D"][...] = given["C"]
    run(make(kind, given | {"C": given["D"]}))
    check(kind, given)


@pytest.mark.parametrize("kind", ["fprop", "dgrad"])
def test_pixels_may_be_further_apart(kind: str, without_gpu: None) -> None:
    given = drawn(kind)
    wide = {}
    for name in ("C", "D", "extra", "second"):
        wide[name] = np.full((*given[name].shape[:3], given[name].shape[3] + 8), 77.0, np.float32)
        inside = wide[name][..., 4:-4]
        inside[...] = given[name]
        given[name] = inside
    run(make(kind, given))
    check(kind, given)
    for name in ("D", "second"):
        assert (wide[name][..., :4] == 77).all()
        assert (wide[name][..., -4:] == 77).all()


@pytest.mark.parametrize("kind", ["fprop", "dgrad"])
def test_c_may_be_a_bias(kind: str, without_gpu: None) -> None:
    given = drawn(kind)
    given["C"] = given["C"][0, 0, 0].copy()
    run(make(kind, given))
    check(kind, given)


def test_sums_of_no_products_are_zero(without_gpu: None) -> None:
    operation = OPERATIONS["fprop"]
    size = cutlass.conv.Conv2dProblemSize(N=1, H=2, W=2, C=0, K=24, R=1, S=1)
    given = {name: np.ones((1, 2, 2, 24), np.float32) for name in ("C", "extra", "second")}
    D = np.full_like(given["C"], np.nan)
    x, w = np.zeros((1, 2, 2, 0), np.float16), np.zeros((24, 1, 1, 0), np.float16)
    beside = {"extra": given["extra"], "second": given["second"], "bias": np.ones(24, np.float32)}
    output_op = operation.epilogue_type(**SCALARS)
    run(pycutlass.Conv2dArguments(operation, size, x, w, given["C"], D, output_op, epilogue=beside))
    assert (D == 1.25).all()
    assert (given["second"] == 5).all()


@pytest.mark.parametrize(
    ("kind", "changed", "error", "message"),
    [
        ("fprop", {"bias": None}, ArgumentError, "bias, a row of the epilogue, is missing"),
        ("wgrad", {"extra": None}, ArgumentError, "extra, a matrix of the epilogue, is missing"),
        ("fprop", {"extra": np.zeros(EXTENTS["y"])}, ArgumentTypeError, "extra"),
        ("fprop", {"extra": np.zeros(EXTENTS["x"], np.float32)}, ArgumentError, "extra"),
        ("dgrad", {"bias": np.zeros(SIZE.K, np.float32)}, ArgumentError, "bias"),
        ("wgrad", {"bias": np.zeros(SIZE.C, np.float32)}, ArgumentError, "bias"),
        ("wgrad", {"second": np.zeros((*EXTENTS["w"][:3], 32), np.float32)[..., :16]}, ArgumentError, "second"),
        ("fprop", {"extra": np.zeros((*EXTENTS["y"][:3], 25), np.float32)[..., :24]}, AlignmentError, "extra"),
        ("fprop", {"more": np.zeros(SIZE.K, np.float32)}, ArgumentTypeError, "more"),
    ],
)
def test_tensors_that_do_not_fit_are_refused(
    kind: str, changed: dict[str, Any], error: type[Exception], message: str, without_gpu: None
) -> None:
    with pytest.raises(error, match=message):
        make(kind, drawn(kind) | changed)


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_written_lies_apart(kind: str, without_gpu: None) -> None:
    given = drawn(kind)
    first = given["D"].reshape(-1)[: columns(kind)]
    for changed, message in (
        ({"extra": given["D"]}, "D overlaps extra"),
        ({"bias": first}, "D overlaps bias"),
        ({"second": given["D"]}, "D overlaps second|second overlaps D"),
        ({"second": given["C"]}, "second overlaps C"),
        ({"second": given["extra"]}, "second overlaps extra"),
    ):
        with pytest.raises(ArgumentError, match=message):
            make(kind, given | changed)
    given["second"].setflags(write=False)
    with pytest.raises(ArgumentError, match="second is a read-only"):
        make(kind, given)


def test_problems_that_trees_do_not_take_say_what_does() -> None:
    def asked(kind: str, **changed: int) -> str:
        size = {"N": 2, "H": 8, "W": 8, "C": 16, "K": 32, "R": 3, "S": 3} | changed
        return str(OPERATIONS[kind].supports(cutlass.conv.Conv2dProblemSize(**size)).reason)

    for kind in KINDS:
        assert "takes whole sums, got split_k_slices=3: use 1" in asked(kind, split_k_slices=3)
        assert "this kernel computes one group; launch once for each group" in asked(kind, groups=2)
    strided = asked("dgrad", stride_w=2)
    assert "takes the pixels of D in their order, and strided dgrad writes them in another one" in strided
    assert "use LinearCombination or LinearCombinationGeneric with StrideSupport.Strided" in strided
    assert not asked("fprop", stride_w=2)
    assert not asked("wgrad", stride_w=2)
    with pytest.raises(DescriptionError, match="strided dgrad, which writes pixels in another order: use Linear"):
        convolution(dgrad, stride=STRIDED)
    with pytest.raises(ArgumentError, match=r"does not split K: use SplitKMode.Serial with one slice"):
        make("fprop", drawn("fprop"), split_k_mode=cutlass.conv.SplitKMode.Parallel)


_ON_A_GPU = """
from convolutions import f32, f64
from fake_gpu.inside import _load
from test_conv_trees import BESIDE, SCALARS, SIZE, check, convolution, drawn as with_halves, fprop as forward

operation = _load(convolution(forward, types=(f32, f32, f32), second=f64), "conv_scaled")


def drawn(seed):
    given = {name: each.astype(np.float32) for name, each in with_halves("fprop", seed).items()}
    return given | {"second": given["second"].astype(np.float64)}


def make(given):
    beside, output_op = {name: given[name] for name in BESIDE}, operation.epilogue_type(**SCALARS)
    return pycutlass.Conv2dArguments(operation, SIZE, *(given[name] for name in "ABCD"), output_op, epilogue=beside)


def checked(host, made):
    check("fprop", host | {name: made[name].now() for name in ("D", "second")})


def run(arguments):
    operation.run(arguments)
    arguments.sync()
"""


def test_tensors_of_a_gpu_are_launched_and_updated() -> None:
    program = """
host = drawn(1)
here = {name: Array(0, each) for name, each in host.items()}
arguments = make(here)
run(arguments)
checked(host, here)

other = drawn(2)
there = {name: Array(0, each) for name, each in other.items()}
arguments._execution.update = None  # the fast path does it alone
arguments.update(**{name: there[name] for name in "ABCD"}, epilogue={name: there[name] for name in BESIDE})
run(arguments)
checked(other, there)

del arguments._execution.update  # another step between pixels
wide = Array(0, np.pad(other["extra"], [(0, 0)] * 3 + [(0, 8)]))
wide.shape = other["extra"].shape
arguments.update(epilogue={"extra": wide, "bias": host["bias"]})
run(arguments)
checked(other | {"bias": host["bias"]}, there)
"""
    fake_gpu.run(_ON_A_GPU + program)


def test_arrays_of_the_host_come_and_go() -> None:
    program = """
host = drawn(3)
arguments = make(host)
run(arguments)
check("fprop", host)
other = drawn(4)
arguments.update(A=other["A"], epilogue={"extra": other["extra"]})
run(arguments)
check("fprop", host | {"A": other["A"], "extra": other["extra"]})
"""
    fake_gpu.run(_ON_A_GPU + program)
