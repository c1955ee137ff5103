"""Partitions where tensors are none with values in strided memory, or where torch is tracing already."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from pycutlass.errors import ArgumentError
from pycutlass.pytorch import Options, explain, partition

Tensor = torch.Tensor
ALL = Options(min_gain=0)
AUTO = torch.export.Dim.AUTO
LAYOUTS = ["to_sparse", "to_sparse_csr", "to_sparse_csc"]
pytestmark = [
    pytest.mark.filterwarnings("ignore::FutureWarning"),  # of torch about torch
    pytest.mark.filterwarnings("ignore:Sparse:UserWarning"),  # which are in a beta state
    pytest.mark.filterwarnings("ignore:The .grad attribute:UserWarning"),  # of values of those, which torch reads
]


class Asking(nn.Module):
    """A linear layer whose result depends on the number of rows, and on what else there is."""

    def __init__(self, beside: Tensor | None = None, as_parameter: bool = False, asks_gradient: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Linear(8, 8)
        if as_parameter and beside is not None:
            self.beside: Any = nn.Parameter(beside, requires_grad=asks_gradient)
        else:
            self.register_buffer("beside", beside)

    def forward(self, x: Tensor, y: Tensor | None = None) -> Tensor:
        y = self.beside if y is None else y
        made = torch.relu(self.layer(x)) * (1 if x.shape[0] > 1 else 2)
        return made if y is None else made + y.to_dense().sum()


def _traced(function: Callable[[], Any]) -> None:
    make_fx(lambda x: function() or x, tracing_mode="real")(torch.ones(2))


def _faked(function: Callable[[], Any]) -> None:
    with FakeTensorMode():
        function()


@pytest.mark.parametrize(("within", "mode"), [(_faked, "FakeTensorMode"), (_traced, "ProxyTorchDispatchMode")])
@pytest.mark.parametrize("dynamic", [None, True])
def test_nothing_is_captured_while_torch_traces(within: Callable[[Any], None], mode: str, dynamic: Any) -> None:
    model, x = Asking().eval(), torch.ones(4, 8)
    program = torch.export.export(model, (x,))
    calls: list[Any] = []
    model.register_forward_pre_hook(lambda *given: calls.append(given))
    for call in (
        lambda: partition(model, x, dynamic=dynamic),
        lambda: explain(model, x, dynamic),
        lambda: partition(program),
    ):
        with pytest.raises(ArgumentError, match=f"not trace while {mode} is active: call partition outside of it"):
            within(call)
    assert not calls


@pytest.mark.parametrize("kind", ["fake example", "fake model", "fake model and example", "meta"])
def test_few_rows_are_refused_where_no_values_could_be_compared(kind: str) -> None:
    """What is captured has its values later, and is then the same as the model."""
    model, x, named = Asking().eval(), torch.ones(4, 8), "layer.weight" if kind == "fake model" else "input 0"
    mode = torch.device("meta") if kind == "meta" else FakeTensorMode()
    with mode:
        model = Asking().eval() if kind != "fake example" else model
        x = torch.ones(4, 8) if kind != "fake model" else x
    made, valued = partition(model, x, dynamic=True, options=ALL), Asking().eval()
    assert made.counts == {"mm": 1}
    made.load_state_dict(valued.state_dict(), assign=True)
    with torch.no_grad():
        torch.testing.assert_close(made(torch.ones(3, 8)), valued(torch.ones(3, 8)))
    for rows in (0, 1):
        with pytest.raises(ArgumentError, match=f"axis 0 of x has {rows} elements, and whether .*{named} is a "):
            made(torch.ones(rows, 8))


def test_examples_without_values_are_captured_where_no_extent_changes() -> None:
    model = Asking().eval()
    for rows in (1, 4):
        x = FakeTensorMode().from_tensor(torch.ones(rows, 8))
        with torch.no_grad():
            made = partition(model, x, options=ALL)
            torch.testing.assert_close(made(torch.ones(rows, 8)), model(torch.ones(rows, 8)))


def _agrees_of_two_and_refuses_one(model: nn.Module, made: nn.Module, *others: Tensor) -> None:
    with torch.no_grad():
        torch.testing.assert_close(made(torch.ones(2, 8), *others), model(torch.ones(2, 8), *others))
    with pytest.raises(ArgumentError, match="axis 0 of x has 1 elements, and the partition would compute something"):
        made(torch.ones(1, 8), *others)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("as_parameter", [False, True])
def test_sparse_tensors_of_a_model_hide_nothing(layout: str, as_parameter: bool) -> None:
    model = Asking(getattr(torch.eye(8), layout)(), as_parameter).eval()
    _agrees_of_two_and_refuses_one(model, partition(model, torch.ones(4, 8), dynamic=True, options=ALL))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_sparse_inputs_hide_nothing(layout: str) -> None:
    model, sparse = Asking().eval(), getattr(torch.eye(8), layout)()
    made = partition(model, (torch.ones(4, 8), sparse), dynamic={"x": {0: AUTO}, "y": None}, options=ALL)
    _agrees_of_two_and_refuses_one(model, made, sparse)


def test_few_rows_are_refused_where_no_part_of_a_sparse_example_can_be_taken() -> None:
    inputs, first = (torch.ones(4, 8), torch.ones(5, 8).to_sparse()), {0: AUTO}
    made = partition(Asking().eval(), inputs, dynamic={"x": first, "y": first}, options=ALL)
    assert made(*inputs).shape == (4, 8)
    with pytest.raises(ArgumentError, match=r"axis 0 of x has 1 elements, and whether .* of torch\.sparse_coo, of"):
        made(torch.ones(1, 8), inputs[1])


@pytest.mark.parametrize("layout", LAYOUTS[1:])
def test_gradients_of_compressed_tensors_are_refused(layout: str) -> None:
    """Torch ends the process where it traces them."""
    x, sparse = torch.ones(4, 8), getattr(torch.eye(8), layout)()
    model, plain = Asking(sparse, as_parameter=True, asks_gradient=True).eval(), Asking().eval()
    asking = sparse.clone().requires_grad_()
    for call, name in (
        (lambda: partition(model, x), "beside"),
        (lambda: partition(torch.export.export(model, (x,))), "beside"),
        (lambda: partition(plain, (x, asking)), "input 1"),
        (lambda: partition(torch.export.export(plain, (x, asking))), "input 1"),
    ):
        with pytest.raises(ArgumentError, match=rf"{name} is of torch\.sparse_cs. and .*: call requires_grad_"):
            call()
    model.beside.requires_grad_(False)
    assert partition(model, x, options=ALL).counts == {"mm": 1}


class Marked(torch.Tensor):
    """A tensor of a class of its own, which computes as torch's does."""


def test_few_rows_of_a_subclass_are_compared() -> None:
    model = Asking().eval()
    made = partition(model, torch.ones(4, 8).as_subclass(Marked), dynamic=True, options=ALL)
    _agrees_of_two_and_refuses_one(model, made)
