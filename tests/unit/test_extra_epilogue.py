"""An epilogue with tensors of its own, without a GPU: what it means, and what is refused."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest
from convolutions import OPERATIONS
from descriptions import ROW, native_parts, parts
from extra_epilogue import SCALARS, ExtraEpilogue, exact
from numpy.typing import NDArray

import pycutlass
from pycutlass import GemmOperationGrouped, GemmOperationUniversal, cutlass
from pycutlass.epilogue import Epilogue, Family
from pycutlass.errors import ArgumentError, ArgumentTypeError, DescriptionError
from pycutlass.operands import vector

M, N, K = 24, 40, 16
FUNCTOR = ExtraEpilogue(cutlass.float32, cutlass.float64, 4)
OPERATION = GemmOperationUniversal(**parts("f32") | {"epilogue_functor": FUNCTOR})


def drawn(batch: tuple[int, ...] = ()) -> dict[str, NDArray[Any]]:
    random = np.random.default_rng(7)
    shapes = {"A": (M, K), "B": (K, N), "C": (M, N), "D": (M, N), "extra": (M, N), "bias": (N,), "second": (M, N)}
    given = {name: random.integers(-4, 5, (*batch, *shape)).astype(np.float32) for name, shape in shapes.items()}
    given["B"] = np.ascontiguousarray(given["B"].swapaxes(-1, -2)).swapaxes(-1, -2)
    return given | {"second": np.full((*batch, M, N), np.nan), "D": np.full_like(given["D"], np.nan)}


def make(given: dict[str, Any], **options: Any) -> pycutlass.GemmArguments:
    others = {name: given[name] for name in given if name not in "ABCD"}
    options = {"output_op": OPERATION.epilogue_type(**SCALARS), "epilogue": others} | options
    return pycutlass.GemmArguments(OPERATION, (M, N, K), *(given[name] for name in "ABCD"), **options)


def run(arguments: pycutlass.GemmArguments) -> None:
    OPERATION.run(arguments)
    arguments.sync()


def test_every_output_is_computed() -> None:
    given = drawn()
    arguments = make(given)
    run(arguments)
    expected = exact(given)
    for name in ("D", "second"):
        np.testing.assert_allclose(given[name], expected[name], rtol=1e-4, atol=1e-4)
    other = drawn() | {"bias": np.ones(N, np.float32)}
    arguments.update(epilogue={"bias": other["bias"], "second": other["second"]})
    run(arguments)
    np.testing.assert_allclose(other["second"], exact(given | {"bias": other["bias"]})["second"], rtol=1e-4, atol=1e-4)


def test_a_batch_has_tensors_for_each_problem_or_for_all() -> None:
    given = drawn((3,)) | {"extra": drawn()["extra"]}
    run(make(given, gemm_mode=cutlass.gemm.Mode.Batched, batch=3))
    for number in range(3):
        one = {name: each[number] if len(each) == 3 else each for name, each in given.items()}
        expected = exact(one)
        for name in ("D", "second"):
            np.testing.assert_allclose(one[name], expected[name], rtol=1e-4, atol=1e-4)


def test_it_is_a_value_that_operations_are_told_apart_by() -> None:
    same = ExtraEpilogue(cutlass.float32, cutlass.float64, 4)
    assert GemmOperationUniversal(**parts("f32") | {"epilogue_functor": same}) == OPERATION
    assert pickle.loads(pickle.dumps(OPERATION)) == OPERATION
    assert GemmOperationUniversal(**parts("f32")) != OPERATION
    assert isinstance(parts()["epilogue_functor"], Epilogue)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        (lambda given: given.pop("bias"), ArgumentError, "bias, a row of the epilogue, is missing"),
        (lambda given: given.update(extra=np.zeros((M, N))), ArgumentTypeError, "extra"),
        (lambda given: given.update(extra=np.zeros((N, M), np.float32)), ArgumentError, "extra must have shape"),
        (lambda given: given.update(bias=np.zeros(M, np.float32)), ArgumentError, "bias"),
        (lambda given: given.update(second=np.zeros((M, N), np.float32)), ArgumentTypeError, "second"),
        (lambda given: given.update(more=np.zeros(N)), ArgumentTypeError, "more"),
        (lambda given: given["second"].setflags(write=False), ArgumentError, "second is a read-only"),
        (lambda given: given.update(extra=given["D"]), ArgumentError, "D overlaps extra"),
        (lambda given: given.update(bias=given["D"][0]), ArgumentError, "D overlaps bias"),
        (lambda given: given.update(A=given["second"].view("f4")[:, :K]), ArgumentError, "second overlaps A"),
        (lambda given: given.update(C=given["second"].view(np.float32)[:, :N]), ArgumentError, "second overlaps C"),
    ],
)
def test_tensors_that_do_not_fit_are_refused(change: Any, error: type[Exception], message: str) -> None:
    given = drawn()
    change(given)
    with pytest.raises(error, match=message):
        make(given)


def test_c_may_be_d_itself() -> None:
    given = drawn()
    given["D"][...] = given["C"]
    expected = exact(given)
    run(make(given | {"C": given["D"]}))
    np.testing.assert_allclose(given["D"], expected["D"], rtol=1e-4, atol=1e-4)


def test_modes_that_it_does_not_have_are_refused() -> None:
    mode = cutlass.gemm.Mode
    assert make(drawn(), split_k_slices=2)
    with pytest.raises(ArgumentError, match=r"give extra, bias, second to the ReductionArguments that follow"):
        make(drawn(), gemm_mode=mode.GemmSplitKParallel)
    with pytest.raises(ArgumentError, match=r"reads no tables of addresses"):
        make(drawn(), gemm_mode=mode.Array)


def test_what_is_written_by_a_batch_lies_apart() -> None:
    """Matrices that overlap each other were taken, unless they were all the same."""
    given, batched = drawn((2,)), {"gemm_mode": cutlass.gemm.Mode.Batched, "batch": 2}
    size = np.dtype(np.float64).itemsize
    for apart in (0, N, (M - 1) * N):
        memory = np.lib.stride_tricks.as_strided(np.zeros(2 * M * N), (2, M, N), (apart * size, N * size, size))
        with pytest.raises(ArgumentError, match="the matrices of operand second overlap each other"):
            make(given | {"second": memory}, **batched)
    with pytest.raises(ArgumentError, match="the matrices of operand second overlap each other"):
        make(given | {"second": np.zeros((M, N))}, **batched)
    side_by_side = np.zeros((M, 2, N)).swapaxes(0, 1)
    make(given | {"second": side_by_side}, **batched)


def test_a_written_vector_lies_apart() -> None:
    described = pycutlass.TensorDescription(cutlass.float32, cutlass.RowMajor, 1)
    for tensor in (np.zeros(N, np.float32), 1 << 20):
        vector("sums", described, tensor, M, N, 2)
        with pytest.raises(ArgumentError, match="the matrices of operand sums overlap each other"):
            vector("sums", described, tensor, M, N, 2, written=True)
    vector("sums", described, np.zeros((2, N), np.float32), M, N, 2, written=True)


def test_supports_knows_the_modes() -> None:
    assert OPERATION.supports((M, N, K))
    size = pycutlass.GemmProblemSize(M, N, K, split_k_slices=2)
    assert OPERATION.supports(size)


def test_an_update_names_what_it_does_not_know() -> None:
    arguments = make(drawn())
    for wrong in ({"bais": np.zeros(N, np.float32)}, [1], "bias"):
        with pytest.raises(ArgumentTypeError, match="epilogue"):
            arguments.update(epilogue=wrong)
    plain = pycutlass.LinearCombination(cutlass.float32, 4)
    operation = GemmOperationUniversal(**parts("f32") | {"epilogue_functor": plain})
    given = drawn()
    with pytest.raises(ArgumentTypeError, match="the epilogue LinearCombination has no tensors"):
        pycutlass.GemmArguments(
            operation, (M, N, K), given["A"], given["B"], None, given["D"], epilogue={"bias": given["bias"]}
        )


def test_other_families_say_why_not() -> None:
    sentence = r"ExtraEpilogue has tensors beside C and D \(extra, bias, second\), which {} do not take"
    with pytest.raises(DescriptionError, match=sentence.format("Ampere-style groups")):
        GemmOperationGrouped(**parts("f32") | {"epilogue_functor": FUNCTOR})
    narrow = ExtraEpilogue(cutlass.float16, cutlass.float32, 8)
    with pytest.raises(DescriptionError, match=sentence.format("Hopper-native groups")):
        GemmOperationGrouped(**native_parts() | {"epilogue_functor": narrow})
    C = pycutlass.TensorDescription(cutlass.float16, ROW, 8)
    with pytest.raises(DescriptionError, match=sentence.format("reductions")):
        pycutlass.ReductionOperation(cutlass.MatrixCoord(4, 256), C, cutlass.float32, epilogue_functor=narrow, count=8)
    assert [family for family in Family if not FUNCTOR.why_not(family)] == [
        Family.AMPERE_GEMM,
        Family.AMPERE_CONV,
        Family.SM90_GEMM,
    ]
    operation = OPERATIONS["f32_simt_fprop"]
    changed = dict(zip(operation._FIELDS, operation._value(), strict=True)) | {"epilogue_functor": FUNCTOR}
    changed["epilogue_functor"] = ExtraEpilogue(cutlass.float32, cutlass.float32, 1)
    with pytest.raises(DescriptionError, match="no groups and no strided dgrad; got Simt kernels"):
        type(operation)(**changed)


def test_scalars_go_by_name_and_by_position() -> None:
    by_name, by_position = FUNCTOR.epilogue_type(**SCALARS), FUNCTOR.epilogue_type(*SCALARS.values())
    assert by_name.values == by_position.values
    assert by_name["epsilon"] == 4.0
    assert FUNCTOR.epilogue_type().values == (1.0, 0.0, 0.0, 0.0, 0.0)
    with pytest.raises(ArgumentError, match="got 6"):
        FUNCTOR.epilogue_type(*range(6))
