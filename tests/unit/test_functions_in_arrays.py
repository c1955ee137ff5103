"""Epilogue functions in ``Mode.Array`` and under stream-K, on the host."""

from __future__ import annotations

from typing import Any

import fake_gpu
import numpy as np
import pytest
from descriptions import parts
from epilogue_functions import EVERY

import pycutlass
from pycutlass import GemmOperationUniversal, cutlass
from pycutlass.errors import ArgumentError, ArgumentTypeError

M, N, K, BATCH = 40, 48, 32, 3
_Mode = cutlass.gemm.Mode


def make(name: str, **changes: Any) -> GemmOperationUniversal:
    described = parts("f16", tile=(64, 64, 32)) | changes
    functor = EVERY[name](described["C"].element, described["C"].alignment, cutlass.float32)
    return GemmOperationUniversal(**described | {"epilogue_functor": functor})


def drawn(operation: GemmOperationUniversal, count: int = BATCH) -> dict[str, Any]:
    random, functor = np.random.default_rng(1), operation.epilogue_functor

    def each(*shape: int, dtype: Any = np.float16) -> list[Any]:
        return [random.integers(-3, 4, shape).astype(dtype) for _ in range(count)]

    def shape(port: Any) -> tuple[int, ...]:
        columns = port.columns(N)
        shapes = {"matrix": (M, columns), "row": (columns,), "column": (M,), "scalar": (1,), "number": (1,)}
        shapes["top_k"] = (M, port.selected)
        return shapes[port.form]

    given = {"A": each(M, K), "B": [np.asfortranarray(B) for B in each(K, N)], "D": each(M, functor.columns(N))}
    given["C"] = each(M, N) if functor.reads_source else None
    return given | {port.name: each(*shape(port), dtype=port.type.dtype) for port in functor.ports}


def launch(operation: GemmOperationUniversal, given: dict[str, Any], **options: Any) -> Any:
    ports = {port.name: given[port.name] for port in operation.epilogue_functor.ports}
    operands = (given[name] for name in "ABCD")
    arguments = pycutlass.GemmArguments(operation, (M, N, K), *operands, epilogue=ports, **options)
    operation.run(arguments)
    arguments.sync()
    return arguments


def alone(operation: GemmOperationUniversal, given: dict[str, Any], number: int) -> dict[str, Any]:
    """Return what one of the problems comes to alone."""
    one = {name: each and each[number].copy("K") for name, each in given.items()}
    launch(operation, one)
    return one


@pytest.mark.parametrize("name", EVERY)
def test_each_problem_is_as_it_is_alone(name: str, without_gpu: None) -> None:
    operation = make(name)
    written = ("D", *(port.name for port in operation.epilogue_functor.outputs))
    given = drawn(operation)
    wanted = [alone(operation, given, number) for number in range(BATCH)]
    launch(operation, given, gemm_mode=_Mode.Array, batch=BATCH)
    for number, one in enumerate(wanted):
        for output in written:
            np.testing.assert_array_equal(given[output][number], one[output], output)


def test_one_tensor_may_hold_those_of_all_problems(without_gpu: None) -> None:
    operation = make("residual")
    given, listed = drawn(operation), drawn(operation)
    stacked = given | {name: np.stack(given[name]) for name in ("bias", "addend", "T")}
    launch(operation, stacked, gemm_mode=_Mode.Array, batch=BATCH)
    launch(operation, listed, gemm_mode=_Mode.Array, batch=BATCH)
    np.testing.assert_array_equal(stacked["T"], listed["T"])
    np.testing.assert_array_equal(given["D"], listed["D"])


@pytest.mark.parametrize("shape", [(BATCH,), (BATCH, 1)], ids=str)
@pytest.mark.parametrize("how", ["array", "group", "plan"])
def test_one_tensor_may_hold_a_number_of_each_problem(how: str, shape: tuple[int, ...], without_gpu: None) -> None:
    """As a PerBatch does, which is read: what is written is the memory of that tensor."""
    function = pycutlass.epilogue_function(lambda x: {"D": x, "total": pycutlass.epilogue.sum(x)})
    total = np.zeros(shape, np.float32)
    A = [np.full((M, K), number + 1, np.float16) for number in range(BATCH)]
    B, D = [np.ones((N, K), np.float16).T] * BATCH, [np.empty((M, N), np.float16) for _ in range(BATCH)]
    if how == "plan":
        pycutlass.grouped_matmul(A, B, epilogue=function, epilogue_inputs={"total": total})
    else:
        described = parts("f16", tile=(64, 64, 32)) | {"epilogue_functor": function(cutlass.float16, 8)}
        operation: Any
        if how == "array":
            operation = GemmOperationUniversal(**described)
            arguments: Any = pycutlass.GemmArguments(
                operation, (M, N, K), A, B, None, D, _Mode.Array, batch=BATCH, epilogue={"total": total}
            )
        else:
            operation = pycutlass.GemmOperationGrouped(**described)
            sizes = [(M, N, K)] * BATCH
            arguments = pycutlass.GemmGroupedArguments(operation, sizes, A, B, None, D, epilogue={"total": total})
        operation.run(arguments)
        arguments.sync()
    np.testing.assert_array_equal(total.reshape(-1), M * N * K * np.arange(1, BATCH + 1))


def test_other_tensors_take_their_place(without_gpu: None) -> None:
    operation = make("residual")
    given, others = drawn(operation), drawn(operation)
    arguments = launch(operation, given, gemm_mode=_Mode.Array, batch=BATCH)
    arguments.update(epilogue={"addend": [each * 0 for each in others["addend"]], "T": others["T"]})
    operation.run(arguments)
    arguments.sync()
    np.testing.assert_array_equal(others["T"], given["T"])
    wanted = alone(operation, given | {"addend": [each * 0 for each in given["addend"]]}, 1)
    np.testing.assert_array_equal(given["D"][1], wanted["D"])


@pytest.mark.parametrize(
    ("changes", "error", "said"),
    [
        ({"bias": None}, ArgumentError, "bias, a row of the epilogue, is missing"),
        ({"bias": [np.zeros(N, np.float16)]}, ArgumentError, "operand bias has 1 tensor for batch=3"),
        ({"bias": [np.zeros(N + 1, np.float16)] * 3}, ArgumentError, r"bias\[0\] must be a contiguous vector of 48"),
        ({"addend": np.zeros((M, N), np.float16)}, ArgumentTypeError, r"For one addend .* pass \[addend\] \* 3$"),
        ({"bias": np.zeros(N, np.float16)}, ArgumentTypeError, r"For one bias of all problems pass \[bias\] \* 3$"),
        ({"T": np.zeros((M, N), np.float16)}, ArgumentTypeError, r"got a numpy tensor of float16, \(40, 48\)$"),
        ({"addend": np.zeros(5)}, ArgumentTypeError, "addend, which the epilogue has beside C and D"),
        ({"addend": np.zeros(3, np.int64)}, ArgumentTypeError, "an int64 tensor of 3 addresses on the GPU"),
        ({"bias": [None] * 3}, ArgumentError, r"bias\[0\], a row of the epilogue, is missing: the list has None there"),
        ({"T": [np.zeros((M, N), np.float16)] * 3}, ArgumentError, r"T\[\d\] overlaps T\[\d\]"),
    ],
)
def test_what_does_not_fit_is_named(
    changes: dict[str, Any], error: type[Exception], said: str, without_gpu: None
) -> None:
    operation = make("residual")
    with pytest.raises(error, match=said):
        launch(operation, drawn(operation) | changes, gemm_mode=_Mode.Array, batch=BATCH)


def test_outputs_lie_apart_from_all_that_is_read(without_gpu: None) -> None:
    operation = make("residual")
    given = drawn(operation)
    for name, other in (("T", "addend"), ("T", "D"), ("D", "addend")):
        with pytest.raises(ArgumentError, match=rf"({name}|{other})\[\d\] overlaps ({name}|{other})\[\d\]"):
            launch(operation, given | {name: given[other][::-1]}, gemm_mode=_Mode.Array, batch=BATCH)


def test_stream_k_divides_k_as_it_likes(without_gpu: None) -> None:
    operation = make("residual", swizzling_functor=cutlass.ThreadblockSwizzleStreamK)
    given = {name: each and each[0] for name, each in drawn(operation).items()}
    whole = given | {"D": given["D"].copy(), "T": given["T"].copy()}
    launch(operation, whole)
    launch(operation, given, split_k_slices=2)
    np.testing.assert_array_equal(given["D"], whole["D"])
    with pytest.raises(ArgumentError, match=r"stream-K kernels run in Mode\.Gemm and"):
        launch(operation, drawn(operation), gemm_mode=_Mode.Array, batch=BATCH)


@pytest.mark.parametrize("name", ["residual", "reduced"])
def test_slices_are_added_up_before_the_function_sees_them(name: str, without_gpu: None) -> None:
    operation = make(name)
    given = {name: each and each[0] for name, each in drawn(operation).items()}
    written = ("D", *(port.name for port in operation.epilogue_functor.outputs))
    whole = given | {name: given[name].copy() for name in written}
    launch(operation, whole)
    launch(operation, given, split_k_slices=2)
    for output in written:
        np.testing.assert_array_equal(given[output], whole[output])


def test_lists_beside_a_table_of_D_lie_apart() -> None:
    program = """
from descriptions import parts
from pycutlass import cutlass
from pycutlass.epilogue import Tensor

@pycutlass.epilogue_function
def doubled(accum, x: Tensor):
    t = accum + x
    return {"D": t, "T": t * 2.0}

operation = pycutlass.GemmOperationUniversal(**parts("f32") | {"epilogue_functor": doubled(cutlass.float32, 4)})
A, D, T, x = ([Array(0, on_host(16, 16, seed + 4 * which)) for seed in range(2)] for which in range(4))
B = [Array(0, on_host(16, 16, seed, "F")) for seed in range(2)]
table = Array(0, np.array([each.data.ptr for each in D], np.int64))
kept = on_host(16, 16, 1)
kept.flags.writeable = False

def make(T):
    mode = cutlass.gemm.Mode.Array
    pycutlass.GemmArguments(operation, (16, 16, 16), A, B, None, table, mode, batch=2, epilogue={"x": x, "T": T})

refused(lambda: make(T), "has not been compiled")  # all is well up to there
refused(lambda: make([T[0]] * 2), "T[1] overlaps T[0]")
refused(lambda: make(x), "T[0] overlaps x[0]")
refused(lambda: make([kept] * 2), "T[0] is a read-only numpy array")
"""
    fake_gpu.run(program, gpus=1)
