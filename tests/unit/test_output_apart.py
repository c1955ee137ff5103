"""D described apart from C: what is accepted, what it is called, and what it means without a GPU."""

from __future__ import annotations

import pickle
from typing import Any

import fake_gpu
import numpy as np
import pytest
from apart import APART, apart, tensor
from descriptions import COLUMN, ROW, hopper, native_parts, parts, poisoned, random_matrix

import pycutlass
from pycutlass import GemmOperationGrouped, GemmOperationUniversal
from pycutlass.errors import ArgumentError, DescriptionError

M, N, K = 24, 40, 16


def test_a_d_like_c_is_the_same_kernel_as_none() -> None:
    described = native_parts()
    plain, said = GemmOperationUniversal(**described), GemmOperationUniversal(**described, D=described["C"])
    assert plain == said
    assert hash(plain) == hash(said)
    assert (plain.emit(), repr(plain), plain.D) == (said.emit(), repr(said), plain.C)
    assert "D=" not in repr(plain)
    assert len(plain.__reduce__()[1]) == 7, "a pickle of before D could be described"


@pytest.mark.usefixtures("without_gpu")
def test_a_bias_goes_along_c_whatever_the_layout_of_d() -> None:
    operation = APART["transposed"]  # C row-major, D column-major
    A, B = random_matrix(operation.A, M, K, 0), random_matrix(operation.B, K, N, 1)
    D, scalars = np.empty((M, N), np.float16, "F"), operation.epilogue_type(1.0, 1.0)
    bias = np.arange(N, dtype=np.float16)
    operation.run(pycutlass.GemmArguments(operation, (M, N, K), A, B, bias, D, output_op=scalars))
    exact = np.asarray(A, np.float64) @ np.asarray(B, np.float64) + bias
    np.testing.assert_allclose(D.astype(np.float64), exact, rtol=2e-3, atol=2e-2)
    with pytest.raises(
        ArgumentError, match=r"or 40 elements as a bias, one for each column, as C is row-major; got 24"
    ):
        pycutlass.GemmArguments(operation, (M, N, K), A, B, np.zeros(M, np.float16), D, output_op=scalars)


def test_operations_are_told_apart_by_their_d() -> None:
    operations = {*APART.values(), hopper()}
    assert len(operations) == len(APART) + 1 == len({each.procedural_name() for each in operations})
    for operation in APART.values():
        assert pickle.loads(pickle.dumps(operation)) == operation
        assert eval(repr(operation), {**vars(pycutlass), "cutlass": pycutlass.cutlass}) == operation
    name = APART["wider, transposed"].procedural_name()
    assert "gemm_f16_f16_f32n_" in name


@pytest.mark.parametrize("name", APART)
def test_the_result_is_in_the_type_and_layout_of_d(name: str) -> None:
    operation = APART[name]
    A, B = random_matrix(operation.A, M, K, 1), random_matrix(operation.B, K, N, 2)
    C, D = random_matrix(operation.C, M, N, 3), poisoned(operation.D, M, N)
    scalars = operation.epilogue_type(1.5, -0.5)
    arguments = pycutlass.GemmArguments(operation, (M, N, K), A, B, C, D, output_op=scalars)
    operation.run(arguments)
    arguments.sync()
    exact = 1.5 * (A.astype(np.float64) @ B.astype(np.float64)) - 0.5 * C.astype(np.float64)
    if operation.epilogue_functor.activation is not None:
        exact = np.where(exact < 0, 0.2 * exact, exact)
    np.testing.assert_allclose(D.astype(np.float64), exact, rtol=2e-3, atol=2e-3)
    assert D.flags.c_contiguous == operation.D.is_row_major
    assert arguments.ldd == (N if operation.D.is_row_major else M)


def test_tensors_of_c_s_type_or_layout_are_refused_as_d() -> None:
    operation = APART["wider, transposed"]
    A, B = random_matrix(operation.A, M, K, 1), random_matrix(operation.B, K, N, 2)
    for wrong, error in ((np.zeros((M, N), np.float16, "F"), TypeError), (np.zeros((M, N), np.float32), ValueError)):
        with pytest.raises(error, match="operand D"):
            pycutlass.GemmArguments(operation, (M, N, K), A, B, None, wrong)


def test_c_cannot_be_d_itself() -> None:
    """Elements of one would be written over those of the other that are yet to be read."""
    operation = apart(("f16", ROW), ("f16", COLUMN))
    A, B = random_matrix(operation.A, 16, K, 1), random_matrix(operation.B, K, 16, 2)
    memory = np.zeros(256, np.float16)
    with pytest.raises(ArgumentError, match="D overlaps C"):
        pycutlass.GemmArguments(
            operation, (16, 16, K), A, B, memory, memory, output_op=operation.epilogue_type(1.0, 1.0)
        )


def test_a_c_that_is_not_read_still_has_its_alignment() -> None:
    operation = apart(("f16", ROW), ("f32", ROW))
    A, B, D = np.ones((8, 16), np.float16), np.ones((16, 12), np.float16, "F"), np.empty((8, 12), np.float32)
    with pytest.raises(ArgumentError, match="N must be a multiple of 8, the alignment of C"):
        pycutlass.GemmArguments(operation, (8, 12, 16), A, B, None, D)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda: GemmOperationUniversal(**parts("f16") | {"D": tensor("f32", ROW)}), "writes D as it reads C"),
        (lambda: apart(("f16", ROW), ("f64", ROW)), "both are RowMajor or ColumnMajor"),
        (lambda: GemmOperationUniversal(**native_parts() | {"D": "f32"}), "D must be a TensorDescription"),
        (lambda: GemmOperationUniversal(**native_parts() | {"D": tensor("f32", ROW)}), "writes .*float16, operand D"),
        (
            lambda: GemmOperationUniversal(
                **native_parts() | {"D": pycutlass.TensorDescription(pycutlass.cutlass.float16, COLUMN, 4)}
            ),
            "epilogue_vector_length=8 must equal the alignment of D, 4",
        ),
    ],
)
def test_what_no_kernel_writes_is_refused(change: Any, message: str) -> None:
    with pytest.raises(DescriptionError, match=message):
        change()


def test_what_supports_says_is_of_d() -> None:
    operation = APART["wider, transposed"]
    assert operation.supports((M, N, K))
    assert "N must be a multiple of 8" in operation.supports((M, 12, K)).reason
    made = operation.output((M, N, K))
    assert (made.shape, str(made.dtype), made.strides) == ((M, N), "float32", (1, M))


def test_a_group_has_no_d_of_its_own() -> None:
    with pytest.raises(TypeError):
        GemmOperationGrouped(**native_parts(), D=tensor("f32", ROW))
    plain = GemmOperationGrouped(**native_parts())
    assert pickle.loads(pickle.dumps(plain)) == plain


def test_an_update_does_not_put_d_over_c() -> None:
    """The fast path of update knows by the call whether C may be D itself."""
    program = """
operation = gemm()
C, D = Array(0, on_host(4, 4, 3)), Array(0, np.zeros((4, 4), np.float32))
tensors = Array(0, on_host(4, 8, 1)), Array(0, on_host(8, 4, 2, "F")), C, D
arguments = pycutlass.GemmArguments(operation, (4, 4, 8), *tensors, output_op=operation.epilogue_type(1.0, 1.0))
call = arguments._execution.call
assert call.update(None, None, D, None)
assert call.update(None, None, C, None)
call.set_in_place(False)
assert not call.update(None, None, D, None)
"""
    fake_gpu.run(program)
