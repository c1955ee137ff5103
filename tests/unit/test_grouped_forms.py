"""Sizes and matrices of a group in other forms than lists."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from descriptions import COLUMN, ROW
from groups import Group, grouped

import pycutlass.arguments.group
from pycutlass.errors import ArgumentError, ArgumentTypeError
from pycutlass.operation.group_support import check_sizes
from pycutlass.tensor import TensorView

pytestmark = pytest.mark.usefixtures("without_gpu")

FORMS = {
    "numpy": np.array,
    "torch": torch.tensor,
    "int32 of torch": lambda sizes: torch.tensor(sizes).int(),
    "list": lambda sizes: [torch.tensor(size) for size in sizes],
}


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_problem_sizes_of_other_libraries(form):
    sizes = [(4, 6, 3), (5, 2, 7)]
    group = Group(grouped("f32_simt"), sizes)
    arguments = group.run(problem_sizes=form(sizes))
    group.check()
    assert arguments.problem_sizes.tolist() == [list(size) for size in sizes]
    arguments.update(problem_sizes=form(sizes))


def test_problem_sizes_that_are_no_integers_are_refused():
    group = Group(grouped("f32_simt"), [(4, 6, 3)])
    for wrong in (torch.tensor([[4.0, 6.0, 3.0]]), torch.tensor([4, 6, 3]), torch.ones(1, 3, dtype=torch.bool)):
        with pytest.raises(ArgumentTypeError, match=r"problem_sizes(\[0\])? must be"):
            group.arguments(problem_sizes=wrong)


def test_problem_sizes_on_a_gpu_are_refused(monkeypatch):
    on_gpu = TensorView(0x1000, "int32", (1, 3), (3, 1), 0, "torch", None)
    monkeypatch.setattr(pycutlass.operation.group_support, "wrap", lambda name, tensor: on_gpu)
    with pytest.raises(ArgumentError, match=r"problem_sizes is on GPU 0.*\.cpu\(\).*from_device"):
        check_sizes(grouped("f32_simt"), torch.ones(1, 3))


@pytest.mark.parametrize("library", [np.asarray, torch.from_numpy])
@pytest.mark.parametrize("bias", [False, True])
def test_one_tensor_may_hold_all_matrices(library, bias):
    operation, count = grouped("f32_simt", (ROW, COLUMN, ROW)), 3
    group = Group(operation, [(4, 6, 5)] * count)
    W = np.stack([b.T for b in group.B])  # (problems, N, K), as the weights of linear layers are kept
    A, D = np.stack(group.A), np.full((count, 4, 6), np.nan, np.float32)
    C = np.random.default_rng().random((count, 6) if bias else (count, 4, 6), np.float32)
    given = {"A": A, "B": library(W).swapaxes(1, 2), "C": C, "D": D}
    given = {name: tensor if name == "B" else library(tensor) for name, tensor in given.items()}
    arguments = group.run(1.0, 2.0, **given)
    expected = A @ W.swapaxes(1, 2) + 2 * (C[:, None] if bias else C)
    np.testing.assert_allclose(D, expected, rtol=1e-5, atol=1e-5)
    arguments.update(A=library(2 * A))
    operation.run(arguments)
    np.testing.assert_allclose(D, expected + A @ W.swapaxes(1, 2), rtol=1e-5, atol=1e-5)


def test_a_tensor_that_holds_no_list_of_matrices_is_refused():
    group = Group(grouped("f32_simt"), [(4, 6, 3)] * 2)
    for wrong in (np.ones((2, 12), np.float32), np.ones((1, 2, 4, 3), np.float32)):
        with pytest.raises(ArgumentTypeError, match="operand A must be a list"):
            group.arguments(A=wrong)
    with pytest.raises(ArgumentError, match="operand A has 3 tensors"):
        group.arguments(A=np.ones((3, 4, 3), np.float32))
