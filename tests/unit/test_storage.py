"""Tensors whose memory is moved between their arguments and a launch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from descriptions import COLUMN, ROW, ampere
from groups import grouped
from torch_launches import FAMILIES

from pycutlass import GemmArguments, GemmGroupedArguments, _core, cutlass
from pycutlass._core import TensorGuard
from pycutlass.errors import ArgumentError, ArgumentTypeError


def other_data(tensor: torch.Tensor) -> None:
    tensor.data = tensor.clone()


def other_set(tensor: torch.Tensor) -> None:
    tensor.set_(torch.empty_like(tensor))


def no_storage(tensor: torch.Tensor) -> None:
    tensor.set_()


def larger(tensor: torch.Tensor) -> None:
    tensor.untyped_storage().resize_(64 * tensor.untyped_storage().nbytes())


def resized(tensor: torch.Tensor) -> None:
    tensor.resize_(64 * tensor.numel())


def freed(tensor: torch.Tensor) -> None:
    tensor.untyped_storage().resize_(0)


def converted(tensor: torch.Tensor) -> None:
    module = torch.nn.Module()
    module.register_buffer("weight", tensor)
    module.double()
    if module.weight is tensor:
        return
    tensor.data = module.weight  # what parameters of modules do themselves


def swapped(tensor: torch.Tensor) -> None:
    torch.utils.swap_tensors(tensor, torch.empty_like(tensor))


MOVES: list[Callable[[torch.Tensor], None]] = [
    other_data, other_set, no_storage, larger, resized, freed, converted, swapped
]  # fmt: skip
OPERANDS = [
    (family, name)
    for family, names in {
        **{"gemm": "ABCD", "batched": "ABD", "array": "ABD", "group": "ABD"},
        **{"convolution": "ABD", "reduction": "CD"},
    }.items()
    for name in names
]


@pytest.mark.parametrize("move", MOVES, ids=lambda move: move.__name__)
@pytest.mark.parametrize(("family", "name"), OPERANDS)
def test_moved_memory_is_refused(family: str, name: str, move: Callable[[torch.Tensor], None]) -> None:
    launch = FAMILIES[family]()
    launch.run()
    move(launch.one(name))
    with pytest.raises(ArgumentError) as caught:
        launch.run()
    called = {"C": "source", "D": "destination"}[name] if family == "reduction" else name
    assert called in str(caught.value) and "update" in str(caught.value), caught.value


@pytest.mark.parametrize(("family", "name"), OPERANDS)
def test_a_tensor_that_is_transposed_in_place_is_refused(family: str, name: str) -> None:
    launch = FAMILIES[family]()
    tensor = launch.one(name)
    tensor.transpose_(0, 1)
    with pytest.raises(ArgumentError, match=r"is not the tensor .*strides.*update"):
        launch.run()
    tensor.transpose_(0, 1)
    launch.run()


@pytest.mark.parametrize(("family", "name"), OPERANDS)
def test_another_part_of_the_same_storage_is_refused(family: str, name: str) -> None:
    """As of two buffers of one allocation that take turns."""
    launch = FAMILIES[family]()
    tensor = launch.one(name)
    both = torch.stack([tensor, tensor])
    tensor.data = both[1]
    launch.arguments = launch.make(**launch.tensors)
    launch.run()
    tensor.data = both[0]
    with pytest.raises(ArgumentError, match="has moved it"):
        launch.run()
    tensor.data = both[1]
    launch.run()


@pytest.mark.parametrize("move", MOVES[:-1], ids=lambda move: move.__name__)  # what has views cannot be swapped
@pytest.mark.parametrize("name", "AD")
@pytest.mark.parametrize("family", ["array_in_one_tensor", "group_in_one_tensor"])
def test_matrices_that_were_taken_out_of_a_tensor(family: str, name: str, move: Callable[[torch.Tensor], None]) -> None:
    launch = FAMILIES[family]()
    launch.run()
    move(launch.tensors[name])
    with pytest.raises(ArgumentError, match=rf"operand {name}\[0\]"):
        launch.run()


@pytest.mark.parametrize("move", [other_data, other_set, larger, converted], ids=lambda move: move.__name__)
@pytest.mark.parametrize("no_grad", [False, True])
def test_a_view_whose_base_goes_over_to_other_memory(no_grad: bool, move: Callable[[torch.Tensor], None]) -> None:
    linear = torch.nn.Linear(16, 8, bias=False)
    operation, x, y = ampere("f32_simt", (ROW, COLUMN, ROW)), torch.randn(4, 16), torch.empty(4, 8)
    with torch.set_grad_enabled(not no_grad):
        arguments = GemmArguments(operation, (4, 8, 16), x, linear.weight.T, None, y)
    operation.run(arguments)
    with torch.no_grad():
        move(linear.weight)
    with pytest.raises(ArgumentError, match=r"operand B .*update"):
        operation.run(arguments)
    weight = torch.randn(8, 16)
    arguments.update(B=weight.T)
    operation.run(arguments)
    torch.testing.assert_close(y, x @ weight.T)


@pytest.mark.parametrize("family", FAMILIES)
def test_update_takes_a_tensor_where_it_is_now(family: str) -> None:
    launch = FAMILIES[family]()
    expected = launch.make(**launch.tensors)
    launch.operation.run(expected)
    result = launch.one("D").clone()
    other_data(launch.one("D"))
    launch.one("D").fill_(torch.nan)
    launch.arguments.update(D=launch.tensors["D"])
    launch.run()
    torch.testing.assert_close(launch.one("D"), result)


def test_a_linear_layer_that_is_converted() -> None:
    linear = torch.nn.Linear(16, 8, bias=False)
    operation, x, y = ampere("f32_simt", (ROW, ROW, ROW)), torch.randn(4, 8), torch.empty(4, 16)
    arguments = GemmArguments(operation, (4, 16, 8), x, linear.weight, None, y)
    operation.run(arguments)
    linear.double()
    with pytest.raises(ArgumentError, match="operand B"):
        operation.run(arguments)


def test_values_that_change_in_place_are_no_move() -> None:
    launch = FAMILIES["gemm"]()
    for name in "ABC":
        launch.one(name).copy_(torch.randn_like(launch.one(name)))
    launch.one("A").t_().t_()
    launch.run()
    t = launch.tensors
    torch.testing.assert_close(t["D"], t["A"] @ t["B"] + t["C"])


@pytest.mark.parametrize("name", "ABCD")
def test_a_numpy_array_that_is_resized_in_place(name: str) -> None:
    operation = ampere("f32_simt", (ROW, ROW, ROW))
    shapes = {"A": (6, 4), "B": (4, 8), "C": (6, 8), "D": (6, 8)}
    arrays: dict[str, Any] = {name: np.ones(shape, np.float32) for name, shape in shapes.items()}
    arguments = GemmArguments(operation, (6, 8, 4), **arrays, output_op=operation.epilogue_type(1.0, 1.0))
    operation.run(arguments)
    arrays[name].resize(2, refcheck=False)
    with pytest.raises(ArgumentError, match=rf"operand {name} .*resize"):
        operation.run(arguments)


@pytest.mark.parametrize("mode", ["array", "group"])
@pytest.mark.parametrize("name", "ABD")
def test_matrices_that_were_taken_out_of_a_numpy_array_that_is_resized(name: str, mode: str) -> None:
    shapes = {"A": (3, 6, 4), "B": (3, 4, 8), "D": (3, 6, 8)}
    arrays: dict[str, Any] = {name: np.ones(shape, np.float32) for name, shape in shapes.items()}
    arguments: Any
    if mode == "array":
        operation: Any = ampere("f32_simt", (ROW, ROW, ROW))
        arguments = GemmArguments(operation, (6, 8, 4), **arrays, gemm_mode=cutlass.gemm.Mode.Array, batch=3)
    else:
        operation = grouped("f32_simt", (ROW, ROW, ROW))
        arguments = GemmGroupedArguments(operation, [(6, 8, 4)] * 3, **arrays)
    operation.run(arguments)
    arrays[name].resize(2**22, refcheck=False)
    with pytest.raises(ArgumentError, match=rf"operand {name}\[0\] .*update"):
        operation.run(arguments)


@pytest.mark.parametrize("name", "ABCD")
def test_a_numpy_array_that_is_changed_in_place(name: str) -> None:
    operation = ampere("f32_simt", (ROW, ROW, ROW))
    shapes = {"A": (4, 4), "B": (4, 4), "C": (4, 4), "D": (4, 4)}
    arrays: dict[str, Any] = {name: np.ones(shape, np.float32) for name, shape in shapes.items()}
    arguments = GemmArguments(operation, (4, 4, 4), **arrays, output_op=operation.epilogue_type(1.0, 1.0))
    operation.run(arguments)
    array: Any = arrays[name]
    for attribute, value, before in (("shape", (2, 8), (4, 4)), ("dtype", np.int32, np.float32)):
        setattr(array, attribute, value)
        with pytest.raises(ArgumentError, match=rf"operand {name} is not the array .*update"):
            operation.run(arguments)
        setattr(array, attribute, before)
        operation.run(arguments)


@pytest.mark.parametrize("name", "ABD")
def test_memory_that_does_not_reach_to_the_end_of_a_tensor(name: str) -> None:
    """As where a storage was freed or made smaller below views of it: their addresses are not 0."""
    operation = ampere("f32_simt", (ROW, ROW, ROW))
    for left in (0, 16):
        tensors = {"A": torch.ones(9, 8)[1:], "B": torch.ones(9, 8)[1:], "D": torch.ones(9, 8)[1:]}
        form, group = _core.TensorSignature(tensors[name]), torch.ones(9, 8)[1:]
        arguments = GemmArguments(operation, (8, 8, 8), tensors["A"], tensors["B"], None, tensors["D"])
        group.untyped_storage().resize_(left)
        assert form.read(group) is None
        with pytest.raises(ArgumentTypeError, match=f"operand {name} .*storage"):
            arguments.update(**{name: group})
        operation.run(arguments)
        with pytest.raises(ArgumentTypeError, match=f"operand {name} .*storage"):
            GemmArguments(operation, (8, 8, 8), **{**tensors, "C": None, name: group})


def test_a_written_tensor_that_a_lazy_copy_shares() -> None:
    operation, A, D = ampere("f32_simt", (ROW, ROW, ROW)), torch.ones(4, 4), torch.zeros(4, 4)
    arguments = GemmArguments(operation, (4, 4, 4), A, A.clone(), None, D)
    lazy, _ = torch._lazy_clone(D), torch._lazy_clone(A)
    with pytest.raises(ArgumentError, match=r"operand D .*update"):
        operation.run(arguments)
    arguments.update(D=D)
    operation.run(arguments)
    assert (lazy == 0).all() and (D == 4).all()


def test_a_tensor_that_becomes_a_lazily_negated_one() -> None:
    z = torch.complex(torch.ones(8, 1), torch.ones(8, 1))
    A, D = z.imag, torch.empty(8, 4)
    operation = ampere("f32_simt", (ROW, ROW, ROW))
    arguments = GemmArguments(operation, (8, 4, 1), A, torch.ones(1, 4), None, D)
    A.data = z.conj().imag
    with pytest.raises(ArgumentError, match=r"operand A is not the tensor .*lazily negated"):
        operation.run(arguments)


@pytest.mark.parametrize(
    "other",
    [
        lambda: torch.zeros(4, 4).to_sparse(),
        lambda: torch._efficientzerotensor((4, 4)),
        lambda: torch.empty(4, 4, device="meta"),
    ],
    ids=["sparse", "zeros", "meta"],
)
def test_a_tensor_that_loses_its_memory(other: Callable[[], torch.Tensor]) -> None:
    operation, A = ampere("f32_simt", (ROW, ROW, ROW)), torch.ones(4, 4)
    arguments = GemmArguments(operation, (4, 4, 4), A, A.clone(), None, torch.empty(4, 4))
    torch.utils.swap_tensors(A, other())
    with pytest.raises(ArgumentError, match="operand A "):
        operation.run(arguments)


CHANGES: dict[str, Callable[[torch.Tensor], object]] = {
    "t_": lambda tensor: tensor.t_(),
    "transposed data": lambda tensor: setattr(tensor, "data", tensor.data.t()),
    "another shape": lambda tensor: tensor.resize_(2, 8),
    "another rank": lambda tensor: tensor.unsqueeze_(0),
    "as_strided_": lambda tensor: tensor.as_strided_((4, 4), (4, 0)),
    "another type": lambda tensor: setattr(tensor, "data", tensor.data.view(torch.int32)),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_the_guard_of_a_tensor_that_is_changed_in_place(change: Callable[[torch.Tensor], object]) -> None:
    tensor = torch.ones(4, 4)
    guard = TensorGuard(tensor, False)
    guard.check("A")
    change(tensor)
    with pytest.raises(ArgumentError, match=r"operand A is not the tensor .*strides.*update"):
        guard.check("A")
    guard.exchange(tensor)
    guard.check("A")


def test_extents_of_many_dimensions_are_asked_for() -> None:
    tensor = torch.ones(1, 1, 1, 1, 1, 4, 4)  # PyTorch keeps those of more than five elsewhere
    guard = TensorGuard(tensor, False)
    guard.check("A")
    tensor.transpose_(-1, -2)
    assert not guard.direct
    with pytest.raises(ArgumentError, match=r"operand A is not the tensor .*strides.*update"):
        guard.check("A")


class Subclass(torch.Tensor):
    """A tensor that PyTorch's own functions may see in another way."""


@pytest.mark.parametrize("kind", [torch.Tensor, torch.nn.Parameter, Subclass])
def test_the_guard_of_a_tensor(kind: Any) -> None:
    tensor = torch.ones(4, 4).as_subclass(kind) if kind is Subclass else kind(torch.ones(4, 4))
    guard = TensorGuard(tensor, False)
    assert guard.direct  # or launches take a microsecond more for each operand
    for _ in range(2):
        guard.check("A")
        other = torch.ones(8, 8)[::2, ::2]
        other = other.as_subclass(kind) if kind is Subclass else kind(other)
        guard.exchange(other)
        guard.check("A")
        other.data = torch.zeros(4, 4)
        with pytest.raises(ArgumentError, match="operand A "):
            guard.check("A")
        guard.exchange(tensor)


def test_what_is_no_tensor_of_torch_is_not_guarded() -> None:
    array = np.ones(4)
    guard = TensorGuard(array, True)
    guard.check("A")
    guard.count_write()
    assert guard.allows(array)


@pytest.mark.usefixtures("without_gpu")
def test_an_array_that_was_made_read_only_is_not_written():
    operation, multiply = ampere("f32_simt", (ROW, ROW, ROW)), grouped("f32_simt", (ROW, ROW, ROW))
    A = np.ones((4, 4), np.float32)
    whole = np.zeros((3, 4, 4), np.float32)
    D = list(whole)
    modes: list[tuple[Any, Any]] = [
        (operation, GemmArguments(operation, (4, 4, 4), A, A, None, D[0])),
        (operation, GemmArguments(operation, (4, 4, 4), [A] * 3, [A] * 3, None, D, cutlass.gemm.Mode.Array, batch=3)),
        (multiply, GemmGroupedArguments(multiply, [(4, 4, 4)] * 3, [A] * 3, [A] * 3, None, D)),
    ]
    for each, arguments in modes:
        D[0].setflags(write=False)
        with pytest.raises(ArgumentError, match=r"operand D(\[0\])? was made read-only.*setflags\(write=True\)"):
            each.run(arguments)
        assert not whole.any()
        D[0].setflags(write=True)
        A.setflags(write=False)  # which is read alone
        each.run(arguments)
        assert (D[0] == 4).all()
        A.setflags(write=True)
        whole[:] = 0
