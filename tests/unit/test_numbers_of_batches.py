"""Inputs of epilogue functions that are one number for each matrix of a batch, on the host."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from descriptions import native_parts, parts

import pycutlass
from pycutlass import GemmArguments, GemmGroupedArguments, GemmOperationGrouped, GemmOperationUniversal, cutlass
from pycutlass.epilogue import PerBatch, Row
from pycutlass.errors import ArgumentError, ArgumentTypeError, DescriptionError, PyCutlassError
from pycutlass.operands.epilogue import port_operand

M, N, K, BATCH = 24, 16, 32, 3
_Mode = cutlass.gemm.Mode
f16, f32 = cutlass.float16, cutlass.float32


@pycutlass.epilogue_function
def dequantized(accum: Any, scale: PerBatch(f32), bias: Row) -> Any:  # type: ignore[valid-type]
    return accum * scale + bias


FUNCTOR = dequantized(f16, 8, f32)
OPERATION = GemmOperationUniversal(**parts("f16") | {"epilogue_functor": FUNCTOR})
HOPPER = GemmOperationUniversal(**native_parts() | {"epilogue_functor": FUNCTOR})


def drawn(*batch: int) -> dict[str, Any]:
    random = np.random.default_rng(4)

    def each(*shape: int) -> Any:
        return random.integers(-3, 4, (*batch, *shape)).astype(np.float16)

    return {
        "A": each(M, K),
        "B": each(N, K).swapaxes(-1, -2),
        "bias": each(N),
        "D": np.full((*batch, M, N), np.nan, np.float16),
    }


def launch(given: dict[str, Any], scale: Any, operation: Any = OPERATION, **options: Any) -> Any:
    if not options and given["A"].ndim == 3:
        options = {"gemm_mode": _Mode.Batched, "batch": BATCH}
    operands = given["A"], given["B"], None, given["D"]
    ports = {"bias": given["bias"], "scale": scale}
    arguments = GemmArguments(operation, (M, N, K), *operands, epilogue=ports, **options)
    operation.run(arguments)
    arguments.sync()
    return arguments


def wanted(given: dict[str, Any], scale: Any) -> Any:
    sums = given["A"].astype(np.float32) @ given["B"].astype(np.float32)
    return (sums * np.reshape(scale, (-1, 1, 1)) + given["bias"][..., None, :]).astype(np.float16).reshape(sums.shape)


@pytest.mark.parametrize("operation", [OPERATION, HOPPER], ids=["ampere", "hopper"])
@pytest.mark.parametrize("shape", [(), (1,), (1, 1)])
def test_one_matrix_has_one_number(shape: tuple[int, ...], operation: Any, without_gpu: None) -> None:
    given = drawn()
    launch(given, np.full(shape, 0.5, np.float32), operation)
    np.testing.assert_array_equal(given["D"], wanted(given, 0.5))


SCALES = np.array([0.5, -2.0, 3.0], np.float32)


@pytest.mark.parametrize("operation", [OPERATION, HOPPER], ids=["ampere", "hopper"])
@pytest.mark.parametrize(
    "scale",
    [
        SCALES,
        SCALES[:, None, None],
        SCALES[None, :],
        np.repeat(SCALES, 4)[::4],
        torch.from_numpy(SCALES),
        np.stack([SCALES, 0 * SCALES], axis=1)[:, :1],
    ],
    ids=["packed", "as matrices", "as a row", "apart", "torch", "as a column"],
)
def test_each_matrix_of_a_batch_has_its_own(scale: Any, operation: Any, without_gpu: None) -> None:
    given = drawn(BATCH)
    launch(given, scale, operation)
    np.testing.assert_array_equal(given["D"], wanted(given, SCALES))


@pytest.mark.parametrize("scale", [np.float32([2.0]), np.array(2.0, np.float32)], ids=["vector", "scalar"])
def test_a_batch_may_share_one(scale: Any, without_gpu: None) -> None:
    given = drawn(BATCH)
    launch(given, scale)
    np.testing.assert_array_equal(given["D"], wanted(given, 2.0))


def test_others_take_their_place(without_gpu: None) -> None:
    given = drawn(BATCH)
    arguments = launch(given, SCALES)
    for scale in (2 * SCALES, np.float32([4.0]), SCALES[::-1].copy()):
        arguments.update(epilogue={"scale": scale})
        OPERATION.run(arguments)
        arguments.sync()
        np.testing.assert_array_equal(given["D"], wanted(given, np.broadcast_to(scale, BATCH)))


@pytest.mark.parametrize(
    "scale",
    [SCALES, SCALES[:, None, None], [each.reshape(1) for each in SCALES], [np.array(each) for each in SCALES]],
    ids=["stacked", "as matrices", "list", "list of no dimensions"],
)
def test_of_an_array(scale: Any, without_gpu: None) -> None:
    given = drawn(BATCH)
    listed = {name: list(each) for name, each in given.items()}
    launch(listed, scale, gemm_mode=_Mode.Array, batch=BATCH)
    np.testing.assert_array_equal(np.stack(listed["D"]), wanted(given, SCALES))


@pytest.mark.parametrize("described", [parts("f16"), native_parts()], ids=["ampere", "hopper"])
@pytest.mark.parametrize("stacked", [True, False])
def test_of_a_group(stacked: bool, described: dict[str, Any], without_gpu: None) -> None:
    operation = GemmOperationGrouped(**described | {"epilogue_functor": FUNCTOR})
    given = drawn(BATCH)
    A, B, D, bias = (list(given[name]) for name in ("A", "B", "D", "bias"))
    scale: Any = SCALES if stacked else [each.reshape(1) for each in SCALES]
    arguments = GemmGroupedArguments(
        operation, [(M, N, K)] * BATCH, A, B, None, D, epilogue={"bias": bias, "scale": scale}
    )
    operation.run(arguments)
    arguments.sync()
    np.testing.assert_array_equal(np.stack(D), wanted(given, SCALES))
    with pytest.raises(ArgumentError, match="operand scale has 2 tensors, and problem_sizes 3 problems"):
        arguments.update(epilogue={"scale": SCALES[:2]})
    arguments.update(epilogue={"scale": 2 * SCALES})
    operation.run(arguments)
    arguments.sync()
    np.testing.assert_array_equal(np.stack(D), wanted(given, 2 * SCALES))


@pytest.mark.parametrize(
    ("scale", "error", "said"),
    [
        (None, ArgumentError, "scale, a number of the epilogue, is missing"),
        (SCALES[:2], ArgumentError, r"must have 3 elements, one for each matrix of the batch, or one element; got .*2"),
        (np.zeros((3, 2), np.float32), ArgumentError, r"got shape \(3, 2\)"),
        (SCALES.astype(np.float64), ArgumentTypeError, r"must be float32, .* Pass scale\.astype\(np\.float32\)"),
        (SCALES[::-1], ArgumentError, "the batch stride of operand scale is -1"),
        (0.5, ArgumentTypeError, r"lies in memory: .* got float 0\.5\. What is a number itself is a Scalar"),
        ([0.5] * 3, ArgumentTypeError, r"got list\. Pass np\.ascontiguousarray\(scale, np\.float32\)"),
    ],
)
def test_what_does_not_fit_is_named(scale: Any, error: type[PyCutlassError], said: str, without_gpu: None) -> None:
    with pytest.raises(error, match=said):
        launch(drawn(BATCH), scale)


@pytest.mark.parametrize(
    ("scale", "error", "said"),
    [
        (
            SCALES[:2],
            ArgumentTypeError,
            "scale, which the epilogue has beside C and D, must in Mode.Array be a list of 3",
        ),
        ([SCALES] * 3, ArgumentError, r"operand scale\[0\] must be of one element; got shape \(3,\)"),
        ([0.5] * 3, ArgumentTypeError, r"scale\[0\], a number of the epilogue, lies in memory"),
        (np.zeros(3, np.int64), ArgumentTypeError, "an int64 tensor of 3 addresses on the GPU"),
    ],
)
def test_what_does_not_fit_an_array_is_named(
    scale: Any, error: type[PyCutlassError], said: str, without_gpu: None
) -> None:
    listed = {name: list(each) for name, each in drawn(BATCH).items()}
    with pytest.raises(error, match=said):
        launch(listed, scale, gemm_mode=_Mode.Array, batch=BATCH)


def test_one_matrix_takes_no_more() -> None:
    for scale in (SCALES, np.zeros(0, np.float32)):
        with pytest.raises(ArgumentError, match="operand scale must be of one element"):
            launch(drawn(), scale)
    with pytest.raises(ArgumentTypeError, match=r"scale is a tensor: give epilogue=\{'scale': \.\.\.\}"):
        OPERATION.epilogue_type(scale=2.0)
    with pytest.raises(DescriptionError, match=r"says that scale is cutlass\.float32, got scale=cutlass\.float16"):
        dequantized(f16, 8, scale=f16)
    assert dequantized.graph.inputs[1].form == "number" and repr(PerBatch(f32)) == "PerBatch(cutlass.float32)"


class CUdeviceptr(int):
    """Stands for ``cuda.bindings.driver.CUdeviceptr``, which is known by its name."""


def test_an_address_is_that_of_all_numbers() -> None:
    (port,) = (port for port in FUNCTOR.inputs if port.name == "scale")
    for batch, step in ((1, 0), (3, 1)):
        found = port_operand(port, CUdeviceptr(0x7F0000001000), M, N, batch, written=False)
        assert (found.batch_stride, found.bytes) == (step, 4 * batch)


def test_numpy_takes_them_as_a_batch_has_them() -> None:
    x, bias = np.arange(24.0).reshape(3, 2, 4), np.arange(4.0)
    for scale in (SCALES, SCALES[:, None], SCALES[:, None, None], list(SCALES)):
        np.testing.assert_array_equal(dequantized.numpy(x, scale=scale, bias=bias), x * SCALES[:, None, None] + bias)
    for single in (2.0, [2.0], [[[2.0]]]):
        np.testing.assert_array_equal(dequantized.numpy(x, scale=single, bias=bias), 2 * x + bias)
        np.testing.assert_array_equal(dequantized.numpy(x[0], scale=single, bias=bias), 2 * x[0] + bias)
    for wrong in (SCALES[:2], np.ones((3, 2))):
        with pytest.raises(ArgumentError, match=r"a number for each matrix of the batch, of shape \(3,\), or a single"):
            dequantized.numpy(x, scale=wrong, bias=bias)
    with pytest.raises(ArgumentError, match=r"a single one where the accumulator has \(2, 4\); got \(3,\)"):
        dequantized.numpy(x[0], scale=SCALES, bias=bias)


def test_each_is_read_once() -> None:
    size = pycutlass.GemmProblemSize(M, N, K, _Mode.Batched, batch=BATCH)
    assert FUNCTOR.cost(size).read_bytes == BATCH * (4 + 2 * N)
