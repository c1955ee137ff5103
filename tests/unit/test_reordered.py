"""B of interleaved kernels: reordered by its arguments, unless it is known to be, and never without a word."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
import torch
from conv_operands import size, torch_convolution
from convolutions import OPERATIONS, fprop
from reordering import SIZE, K, M, Mode, N, operands, product
from test_gemm_modes_refused import INTERLEAVED8

import pycutlass
from pycutlass import (
    Conv2dArguments,
    GemmArguments,
    GemmGroupedArguments,
    GemmOperationGrouped,
    deinterleave_columns,
    interleave_columns,
    interleave_rows,
    reorder_column,
)
from pycutlass.errors import ArgumentError, ArgumentTypeError
from pycutlass.operands.reordered import Reordering

pytestmark = pytest.mark.usefixtures("without_gpu", "nothing_reordered")


#: What may be done to a reordered array on its way, and leaves it in its memory.
WAYS: dict[str, Any] = {
    "as it is": lambda packed: packed,
    "view": lambda packed: packed.reshape(K // 32, N, 32).reshape(-1),
    "torch": torch.from_numpy,
    "torch view": lambda packed: torch.from_numpy(packed).view(K // 32, N, 32).flatten(),
    "numpy of torch": lambda packed: torch.from_numpy(packed).numpy(),
}
COPIES: dict[str, Any] = {
    "copy": lambda packed: packed.copy(),
    "torch clone": lambda packed: torch.from_numpy(packed).clone(),
    "written": lambda packed: np.copyto(written := np.empty_like(packed), packed) or written,
}


@pytest.mark.parametrize("library", ["numpy", "torch"])
@pytest.mark.parametrize("reordered", [None, False])
def test_a_plain_b_is_reordered(library, reordered, caplog):
    A, B, exact = operands()
    packed = interleave_rows(B)
    packed = torch.from_numpy(packed) if library == "torch" else packed
    for _ in range(2):
        np.testing.assert_array_equal(product(packed, A, reordered=reordered), exact)
    said = "and its memory is not what reorder_column returned: its columns are reordered for the kernel"
    assert caplog.text.count(said) == (reordered is None), "said once, unless the user said it"


@pytest.mark.parametrize("way", WAYS)
def test_a_reordered_b_is_known_however_it_comes(way, caplog):
    A, B, exact = operands()
    np.testing.assert_array_equal(product(WAYS[way](reorder_column(interleave_rows(B))), A), exact)
    assert "reorder_column" not in caplog.text


@pytest.mark.parametrize("way", WAYS)
def test_what_torch_reordered_is_known_however_it_comes(way, caplog):
    A, B, exact = operands()
    packed = reorder_column(torch.from_numpy(interleave_rows(B)))
    given = WAYS[way](packed.numpy()) if "torch" in way else packed.numpy() if way == "view" else packed.view(-1)
    np.testing.assert_array_equal(product(given, A), exact)
    assert "reorder_column" not in caplog.text


@pytest.mark.parametrize("way", COPIES)
def test_a_copy_is_not_told_from_a_plain_matrix_that_is_equal(way):
    A, B, exact = operands()
    copy = COPIES[way](reorder_column(interleave_rows(B)))
    with pytest.raises(ArgumentError, match=r"in other memory: it may be a copy.*Pass reordered=True if.*else"):
        product(copy, A)
    np.testing.assert_array_equal(product(copy, A, reordered=True), exact)


def test_a_plain_matrix_that_equals_a_reordered_one_is_not_taken_for_it():
    A = operands()[0]
    B = one_hot(2)  # reordering exchanges columns 2 and 8, among others
    packed = reorder_column(interleave_rows(B))
    plain = next(each for each in map(interleave_rows, map(one_hot, range(32))) if (each == packed).all())
    assert not np.shares_memory(plain, packed) and (plain != interleave_rows(B)).any()
    column = int(plain.nonzero()[0][0]) // 32
    with pytest.raises(ArgumentError, match="a plain matrix that happens to be equal"):
        product(plain, A)
    np.testing.assert_array_equal(product(plain, A, reordered=False), A @ one_hot(column))
    np.testing.assert_array_equal(product(packed, A), A @ B)


def test_the_memory_of_what_is_gone_says_nothing():
    A, B, _ = operands()
    packed = reorder_column(interleave_rows(B))
    place = pycutlass.interleave._place(packed)
    copy = packed.copy()
    del packed
    mark = pycutlass.interleave._marks[place]
    pycutlass.interleave._marks[pycutlass.interleave._place(copy)] = mark  # as if it had come to lie there
    with pytest.raises(ArgumentError, match="in other memory"):
        product(copy, A)


def test_reordering_a_copy_again_proves_nothing():
    A, B, exact = operands()
    again = reorder_column(reorder_column(interleave_rows(B)).copy())
    with pytest.raises(ArgumentError, match="in other memory"):
        product(again, A)
    np.testing.assert_array_equal(product(again, A, reordered=False), exact)


def test_who_says_that_b_is_reordered_is_believed(monkeypatch):
    A, B, exact = operands()
    packed = reorder_column(interleave_rows(B))
    for name in ("_digests", "_marks"):  # as if another process had reordered it
        monkeypatch.setattr(f"pycutlass.interleave.{name}", {})
    np.testing.assert_array_equal(product(packed, A, reordered=True), exact)


def test_the_mark_goes_with_the_contents(caplog):
    A, B, exact = operands()
    packed = reorder_column(interleave_rows(B))
    packed[:] = interleave_rows(B)  # plain again
    np.testing.assert_array_equal(product(packed, A), exact)
    assert "is not what reorder_column returned" in caplog.text


def test_twice_is_plain_and_so_it_is_taken():
    A, B, exact = operands()
    np.testing.assert_array_equal(product(reorder_column(reorder_column(interleave_rows(B))), A), exact)


def one_hot(column: int) -> Any:
    B = np.zeros((K, N), np.int8)
    B[0, column] = 1
    return B


def test_matrices_that_are_each_other_with_columns_exchanged():
    """Contents do not tell them apart: never is one computed with as the other."""
    A, refused = operands()[0], 0
    for column in range(32):
        B = one_hot(column)
        packed = reorder_column(interleave_rows(B))
        exact = A @ B
        np.testing.assert_array_equal(product(packed, A, reordered=True), exact)
        for given, reordered in ((packed, True), (interleave_rows(B), False)):
            try:
                found = product(given, A)
            except ArgumentError as error:
                assert "Pass reordered=True if" in str(error)
                found, refused = product(given, A, reordered=reordered), refused + 1
            np.testing.assert_array_equal(found, exact)
    assert 0 < refused < 64


def test_a_matrix_that_reordering_leaves_as_it_is():
    A = operands()[0]
    for _ in range(2):
        B = np.ones((K, N), np.int8)
        for packed in (interleave_rows(B), reorder_column(interleave_rows(B))):
            np.testing.assert_array_equal(product(packed, A), np.clip(A.astype(int) @ B, -128, 127))


def test_the_oldest_marks_go_first(monkeypatch):
    blocks = K * N // 32**2
    monkeypatch.setattr("pycutlass.interleave._KEPT", 2 * blocks)
    arrays = [reorder_column(interleave_rows(operands(seed)[1])) for seed in range(3)]
    assert all(map(pycutlass.interleave.is_reordered, arrays))
    assert not pycutlass.interleave.is_reordered(arrays[0].copy())
    for array in arrays[1:]:
        with pytest.raises(ArgumentError, match="in other memory"):
            pycutlass.interleave.is_reordered(array.copy())


def test_a_plain_b_is_read_anew_at_each_launch():
    A, B, exact = operands()
    packed, D = interleave_rows(B), np.zeros(M * N, np.int8)
    arguments = GemmArguments(INTERLEAVED8, SIZE, interleave_columns(A), packed, None, D, reordered=False)
    packed[:] = 0
    INTERLEAVED8.run(arguments)
    assert not D.any()
    packed[:] = interleave_rows(B)
    INTERLEAVED8.run(arguments)
    np.testing.assert_array_equal(deinterleave_columns(D, M, N), exact)


@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_the_order_of_host_memory_is_looked_for_at_each_launch(library):
    D, (A, first, _) = np.zeros(M * N, np.int8), operands()
    packed = reorder_column(interleave_rows(first))
    given = torch.from_numpy(packed) if library == "torch" else packed
    arguments = GemmArguments(INTERLEAVED8, SIZE, interleave_columns(A), given, None, D)
    for seed in range(1, 5):
        _, B, _ = operands(seed)
        packed[:] = interleave_rows(B) if seed % 2 else reorder_column(interleave_rows(B))
        if seed % 2 == 0:
            with pytest.raises(ArgumentError, match="in other memory"):
                INTERLEAVED8.run(arguments)
            continue
        INTERLEAVED8.run(arguments)
        exact = np.clip(A.astype(int) @ B.astype(int), -128, 127)
        np.testing.assert_array_equal(deinterleave_columns(D, M, N), exact)


def test_an_update_looks_at_the_new_b():
    A, B, _ = operands()
    D = np.zeros(M * N, np.int8)
    arguments = GemmArguments(
        INTERLEAVED8, SIZE, interleave_columns(A), reorder_column(interleave_rows(B)), None, D
    )  # fmt: skip
    _, other, _ = operands(1)
    for packed in (interleave_rows(other), reorder_column(interleave_rows(other))):
        D[:] = 0
        arguments.update(B=packed)
        INTERLEAVED8.run(arguments)
        exact = np.clip(A.astype(int) @ other.astype(int), -128, 127)
        np.testing.assert_array_equal(deinterleave_columns(D, M, N), exact)


@pytest.mark.parametrize("reordered", [None, False])
def test_the_order_of_an_address_has_to_be_said(reordered):
    A, B, _ = operands()
    packed = reorder_column(interleave_rows(B))
    with pytest.raises(ArgumentError, match=r"nobody can see.*pass reordered=True if reorder_column has been applied"):
        product(packed.ctypes.data, A, reordered=reordered)


def test_a_word_about_what_is_not_interleaved_is_refused():
    from descriptions import ampere

    A = np.zeros((8, 8), np.float16)
    with pytest.raises(ArgumentError, match=r"reordered says.*this B is cutlass\.ColumnMajor: leave it out"):
        GemmArguments(ampere(), (8, 8, 8), A, A.T, None, A.copy(), reordered=False)
    with pytest.raises(ArgumentTypeError, match="reordered must be True, False or None"):
        GemmArguments(INTERLEAVED8, SIZE, None, None, None, None, reordered="yes")


@pytest.mark.parametrize("library", [np.asarray, torch.from_numpy], ids=["numpy", "torch"])
def test_matrices_that_are_not_packed_are_told_how(library):
    """What the messages say is done, one after the other, until the arguments are right."""
    A, B, exact = operands()
    given = {"A": library(A), "B": library(B), "D": library(np.zeros((M, N), np.int8))}
    said = {"A": r"pass (.*)$", "B": r"pass (.*)$", "D": r"make D as (.*) and read the result as (.*)$"}
    read = ""
    for name, pattern in said.items():
        with pytest.raises(
            ArgumentError, match=f"operand {name} is .*a tensor of 2 dimensions cannot be that"
        ) as error:
            GemmArguments(INTERLEAVED8, SIZE, given["A"], given["B"], None, given["D"])
        code = re.search(pattern, str(error.value))
        assert code is not None, str(error.value)
        read = code[code.re.groups]
        given[name] = eval(code[1], {"np": np, "torch": torch, "pycutlass": pycutlass}, given)
    INTERLEAVED8.run(GemmArguments(INTERLEAVED8, SIZE, given["A"], given["B"], None, given["D"]))
    np.testing.assert_array_equal(eval(read, {"pycutlass": pycutlass}, given), exact)


def test_batches_and_packed_matrices_are_told_to_be_flat():
    A, B, D = np.zeros((2, M, K), np.int8), np.zeros((2, K, N), np.int8), np.zeros((2, M, N), np.int8)
    options = {"gemm_mode": Mode.Batched, "batch": 2}
    with pytest.raises(ArgumentError, match=r"pack each matrix with pycutlass\.interleave_columns, and pass them flat"):
        GemmArguments(INTERLEAVED8, SIZE, A, B, None, D, **options)
    with pytest.raises(ArgumentError, match=r"np\.empty\(3072, D\.dtype\).*each 1536 elements of D, 24, 64\)"):
        GemmArguments(INTERLEAVED8, SIZE, A.ravel(), B.ravel(), None, D, **options)
    with pytest.raises(ArgumentError, match=r"interleave_rows\(B\), with B of shape \(96, 64\); if .*B\.reshape\(-1\)"):
        GemmArguments(INTERLEAVED8, SIZE, A[0].ravel(), B[0].reshape(3, N, 32), None, D[0].ravel())


@pytest.mark.parametrize("mode", [Mode.Batched, Mode.Array])
def test_batches(mode):
    batch = [operands(seed) for seed in range(3)]
    A, D = (np.concatenate([interleave_columns(each[0]) for each in batch]), np.zeros(3 * M * N, np.int8))
    plain = [interleave_rows(each[1]) for each in batch]
    marked = [reorder_column(each) for each in plain]
    for parts, reordered in ((plain, None), (marked, None), (marked, True)):
        B: Any = parts
        if mode == Mode.Batched:
            B = np.concatenate(parts) if parts is plain or reordered else reorder_column(np.concatenate(plain))
        options = {"gemm_mode": mode, "batch": 3, "reordered": reordered}
        arguments = GemmArguments(INTERLEAVED8, SIZE, A, B, None, D, **options)
        INTERLEAVED8.run(arguments)
        for found, (_, _, exact) in zip(D.reshape(3, -1), batch, strict=True):
            np.testing.assert_array_equal(deinterleave_columns(found, M, N), exact)
    if mode == Mode.Batched:
        for joined in (np.concatenate(marked), np.concatenate([*plain[1:], marked[0]])):
            with pytest.raises(ArgumentError, match="in other memory"):
                GemmArguments(INTERLEAVED8, SIZE, A, joined, None, D, gemm_mode=mode, batch=3)


def test_groups():
    fields = ("compute_capability", "tile_description", "A", "B", "C", "epilogue_functor")
    operation = GemmOperationGrouped(*(getattr(INTERLEAVED8, name) for name in fields))
    group = [operands(seed) for seed in range(3)]
    plain = [interleave_rows(each[1]) for each in group]
    for B in (plain, [reorder_column(plain[0]), *plain[1:]], [reorder_column(each) for each in plain]):
        D = [np.zeros(M * N, np.int8) for _ in group]
        A = [interleave_columns(each[0]) for each in group]
        operation.run(GemmGroupedArguments(operation, [SIZE] * 3, A, B, None, D))
        for found, (_, _, exact) in zip(D, group, strict=True):
            np.testing.assert_array_equal(deinterleave_columns(found, M, N), exact)


@pytest.mark.parametrize("name", ["s8_fprop_interleaved", "s8_fprop_interleaved_analytic"])
@pytest.mark.parametrize("marked", [False, True])
def test_filters(name, marked):
    operation, p = OPERATIONS[name], size(C=64, K=32, R=1, S=1)
    rng = np.random.default_rng(0)
    x, w = rng.integers(-2, 3, (2, 9, 8, 64)), rng.integers(-2, 3, (32, 1, 1, 64))
    A = np.ascontiguousarray(x.reshape(2, 9, 8, 2, 32).transpose(0, 3, 1, 2, 4).astype(np.int8))
    B = np.ascontiguousarray(w.reshape(32, 1, 1, 2, 32).transpose(3, 1, 2, 0, 4).astype(np.int8))
    D = np.full((2, 1, 9, 8, 32), -128, np.int8)
    arguments = Conv2dArguments(operation, p, A, pycutlass.reorder_filter(B) if marked else B, None, D)
    operation.run(arguments)
    exact = np.clip(torch_convolution(fprop, p, x, w), -128, 127)
    assert np.array_equal(D.transpose(0, 2, 3, 1, 4).reshape(exact.shape), exact)


def test_a_copy_of_a_tensor_that_was_written_since_is_not_launched():
    """What happens on a GPU, where B is copied when the arguments are made."""
    reordering, B, runs = Reordering(INTERLEAVED8.B, None), torch.zeros(4), []
    assert reordering.guarded(runs.append) == runs.append
    for write in (lambda: B.add_(1), lambda: setattr(B, "data", torch.ones(4))):
        reordering._copied = [("B", B, (B._version, B.data_ptr()))]
        run = reordering.guarded(runs.append)
        run(7)
        write()
        with pytest.raises(ArgumentError, match=r"operand B has been written since.*arguments\.update\(B=B\)"):
            run(None)
    assert runs == [7, 7]
    exchange = reordering.exchanging(lambda *given: True)
    assert exchange(1, None, None, 4) and not exchange(1, 2, None, 4)
    assert Reordering(INTERLEAVED8.B, True).exchanging(exchange) is exchange
