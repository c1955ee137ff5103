"""Partitions of models that ask how many rows they get: they agree with the model, or refuse."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from pycutlass.errors import ArgumentError
from pycutlass.pytorch import Options, partition
from pycutlass.pytorch.regions import few

Tensor = torch.Tensor
ALL = Options(min_gain=0)
pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")  # of torch about torch


def some(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64)


class Asking(nn.Module):
    """A linear layer, and what a function makes of it and of inputs."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer, self.function = nn.Linear(8, 8, dtype=torch.float64), function


class One(Asking):
    def forward(self, x: Tensor) -> Any:
        return self.function(self.layer, x)


class Two(Asking):
    def forward(self, x: Tensor, y: Tensor) -> Any:
        return self.function(self.layer, x, y)


def outcome(model: nn.Module, inputs: tuple[Tensor, ...]) -> Any:
    try:
        with torch.no_grad():
            return model(*inputs)
    except Exception as error:
        return error


def agree(model: nn.Module, made: nn.Module, inputs: tuple[Tensor, ...]) -> str:
    """Return whether both compute the same, or whether the partition refuses, which it must where the model raises."""
    expected, found = outcome(model, inputs), outcome(made, inputs)
    if isinstance(found, ArgumentError):
        return "refused"
    if isinstance(expected, Exception):
        assert isinstance(found, Exception), (tuple(each.shape for each in inputs), expected)
        return "raised"
    assert not isinstance(found, Exception), (tuple(each.shape for each in inputs), found)
    torch.testing.assert_close(found, expected, equal_nan=True)
    return "agreed"


def _by_rank(layer: nn.Module, x: Tensor) -> Tensor:
    y = layer(x).squeeze()
    return y.unsqueeze(0) if y.dim() == 1 else y


def _checked(layer: nn.Module, x: Tensor) -> Tensor:
    torch._check(x.shape[0] > 1)
    return layer(x)


def _doubled(layer: nn.Module, x: Tensor) -> Tensor:
    n = x.shape[0]
    while n < 4:  # never, of none
        n *= 2
    return layer(x)[:n]


#: With the numbers of rows that are refused; torch itself refuses two, of which all but the first are one.
OF_ONE_INPUT: dict[str, tuple[Callable[..., Any], set[int]]] = {
    "compared with 1": (lambda layer, x: layer(x) if x.shape[0] > 1 else -x, {1}),
    "none": (lambda layer, x: layer(x) if x.shape[0] else x.new_ones(1, 8), {0}),
    "the larger of 1": (lambda layer, x: layer(x).sum(0) / max(x.shape[0], 1), {0}),
    "the larger of 1 and all elements": (lambda layer, x: layer(x).sum(0) / max(x.numel(), 1), {0}),
    "symbolic maximum": (lambda layer, x: layer(x).sum(0) / torch.sym_max(x.shape[0], 1), {0}),
    "rank behind a squeeze": (_by_rank, {1}),
    "the first two": (lambda layer, x: layer(x[:2]).sum(0) / x[:2].shape[0], {0, 1}),
    "all but the first": (lambda layer, x: layer(x).sum(0) + x[1:].shape[0], {0, 2}),
    "a condition as a number": (lambda layer, x: layer(x).sum(0) + (1 + (x.shape[0] > 1)), {0, 1}),
    "a check": (_checked, {0, 1}),
    "a divisor": (lambda layer, x: layer(x) if 64 // x.shape[0] > 2 else -x, set()),
    "behind attention": (
        lambda layer, x: (
            nn.functional.scaled_dot_product_attention(*[layer(x)[None]] * 3)[0] * (2 if x.shape[0] > 1 else 3)
        ),
        {1},
    ),
    "the keys of results": (lambda layer, x: {"a" if x.shape[0] > 1 else "b": layer(x)}, {0, 1}),
    "what does not matter": (lambda layer, x: layer(x) if x.shape[0] > 1 else layer(x) * 1.0, set()),
    "a branch on values": (
        lambda layer, x: torch.cond(x.sum() > 0, lambda y: torch.relu(y), lambda y: y * 3, (layer(x),)),
        set(),
    ),
}


@pytest.mark.parametrize("name", OF_ONE_INPUT)
def test_few_rows_agree_or_are_refused(name: str) -> None:
    function, refused = OF_ONE_INPUT[name]
    model = One(function).eval()
    made = partition(model, some(4, 8), dynamic=True, options=ALL)
    outcomes = {rows: agree(model, made, (some(rows, 8),)) for rows in (0, 1, 2, 3, 5)}
    assert {rows for rows in outcomes if outcomes[rows] == "refused"} == refused


OF_TWO_INPUTS: dict[str, Callable[..., Any]] = {
    "extents that become one": lambda layer, x, y: torch.relu(layer(x)) + y if x.shape[0] > 1 else -layer(x) - y,
    "none of both": lambda layer, x, y: layer(torch.cat([x, y])) if torch.cat([x, y]).numel() else x.new_ones(1, 8),
    "a product of extents": lambda layer, x, y: layer(x).sum() + y.sum() if x.shape[0] * y.shape[0] > 1 else y.sum(),
    "either": lambda layer, x, y: layer(x).sum() * (2 if (x.shape[0] > 1 or y.shape[0] > 1) else 3) + y.sum(),
    "nothing": lambda layer, x, y: layer(x).sum() + layer(y).sum(),
}


@pytest.mark.parametrize("name", OF_TWO_INPUTS)
def test_few_rows_of_two_inputs_agree_or_are_refused(name: str) -> None:
    model = Two(OF_TWO_INPUTS[name]).eval()
    made = partition(model, (some(4, 8), some(4, 8)), dynamic=True, options=ALL)
    outcomes = [
        agree(model, made, (some(rows, 8), some(others, 8)))
        for rows, others in itertools.product((0, 1, 2, 5), repeat=2)
    ]
    assert outcomes.count("agreed") >= 2
    if name == "nothing":
        assert set(outcomes) == {"agreed"}
    if name == "either":  # one row of one input alone is the same branch
        assert outcomes.count("refused") == 2, "one and one, and one and none: of no rows the sum is 0 on either"


def test_few_elements_of_one_axis_are_tried_with_few_of_another() -> None:
    function = lambda layer, x: layer(x) if x.shape[0] * x.shape[1] > 3 else -layer(x)  # noqa: E731
    model, both = One(function).eval(), {0: torch.export.Dim.AUTO, 1: torch.export.Dim.AUTO}
    made = partition(model, some(4, 4, 8), dynamic={"x": both}, options=ALL)
    for rows, steps in itertools.product((0, 1, 2, 3, 5), repeat=2):
        outcome_of = agree(model, made, (some(rows, steps, 8),))
        assert outcome_of == "agreed" or 1 in (rows, steps), (rows, steps)


def test_a_partition_of_a_partition_refuses_what_that_refuses() -> None:
    inner = partition(One(OF_ONE_INPUT["none"][0]).eval(), some(4, 8), dynamic=True, options=ALL)
    outer = partition(inner, some(4, 8), dynamic=True, options=ALL)
    assert agree(inner, outer, (some(3, 8),)) == "agreed"
    with pytest.raises(ArgumentError, match="axis 0 of x has 0 elements"):
        outer(some(0, 8))


@pytest.mark.parametrize("strict", [False, True])
def test_a_program_of_a_partition_refuses_what_that_refuses(strict: bool, tmp_path: Path) -> None:
    """Also once it is saved: torch.export takes extents for 2 or more, and forgets what Python raises for fewer."""
    model = Two(OF_TWO_INPUTS["either"]).eval()
    made = partition(model, (some(4, 8), some(4, 8)), dynamic=True, options=ALL)
    first = {0: torch.export.Dim.AUTO}
    with torch.no_grad():
        program = torch.export.export(made, (some(4, 8), some(4, 8)), dynamic_shapes=(first, first), strict=strict)
    torch.export.save(program, tmp_path / "saved.pt2")
    program = torch.export.load(tmp_path / "saved.pt2")
    for caller in (program.module(), partition(program, options=ALL)):
        for rows, others in ((1, 2), (2, 1), (3, 5)):
            assert agree(model, caller, (some(rows, 8), some(others, 8))) == "agreed"
        with pytest.raises(RuntimeError, match="axis 0 of x has 1 elements and axis 0 of y has 1 elements, and"):
            caller(some(1, 8), some(1, 8))


def test_a_model_with_a_partition_inside_refuses_what_that_refuses() -> None:
    inner = partition(One(OF_ONE_INPUT["compared with 1"][0]).eval(), some(4, 8), dynamic=True, options=ALL)
    outer = partition(nn.Sequential(inner, nn.ReLU()).eval(), some(4, 8), dynamic=True, options=ALL)
    assert outer(some(2, 8)).shape == (2, 8)
    with pytest.raises(ArgumentError, match=r"axis 0 of input has 1 elements.* raises ArgumentError \(axis 0 of x"):
        outer(some(1, 8))


ASKS = OF_ONE_INPUT["behind attention"][0]


@pytest.mark.parametrize("rows", [4, 2])
def test_examples_of_zeros_hide_nothing(rows: int) -> None:
    """All of them, or those of the rows that are tried; the example stays as it is."""
    model = One(ASKS).eval()
    nn.init.zeros_(model.layer.bias)
    x = some(4, 8)
    x[:rows] = 0
    kept = x.clone()
    made = partition(model, x, dynamic=True, options=ALL)
    assert torch.equal(x, kept)
    assert {rows for rows in (0, 1, 2, 3) if agree(model, made, (some(rows, 8),)) == "refused"} == {1}


def test_parameters_of_zeros_hide_nothing() -> None:
    """Such as the last ones of a branch before it is trained; tied ones are the same."""
    model = One(ASKS).eval()
    model.tied = model.layer
    nn.init.zeros_(model.layer.weight)
    nn.init.zeros_(model.layer.bias)
    made = partition(model, some(4, 8), dynamic=True, options=ALL)
    assert not model.layer.weight.any()
    nn.init.normal_(model.layer.weight)
    assert {rows for rows in (0, 1, 2, 3) if agree(model, made, (some(rows, 8),)) == "refused"} == {1}


@pytest.mark.parametrize(
    ("dtype", "is_drawn"),
    [
        (torch.float16, True),
        (torch.bfloat16, True),
        (torch.float8_e4m3fn, True),
        (torch.complex64, True),
        (torch.float4_e2m1fn_x2, False),
        (torch.int32, False),
        (torch.bool, False),
    ],
)
def test_numbers_take_the_place_of_zeros(dtype: torch.dtype, is_drawn: bool) -> None:
    zeros = torch.zeros(64, dtype=torch.uint8).view(dtype)
    assert few._is_zero(zeros) is is_drawn
    if is_drawn:
        made = few._random(zeros, torch.Generator().manual_seed(0))
        assert made.dtype is dtype and not few._is_zero(made) and not zeros.view(torch.uint8).any()


class Four(Asking):
    def forward(self, w: Tensor, x: Tensor, y: Tensor, z: Tensor) -> Any:
        return self.function(self.layer, w, x, y, z)


def test_pairs_of_more_than_three_axes_are_tried() -> None:
    def function(layer: nn.Module, w: Tensor, x: Tensor, y: Tensor, z: Tensor) -> Tensor:
        rest = w.sum() + x.sum() + y.sum()
        return layer(z).sum() * (2 if w.shape[0] > 1 or z.shape[0] > 1 else 3) + rest

    model = Four(function).eval()
    made = partition(model, tuple(some(4, 8) for _ in range(4)), dynamic=True, options=ALL)
    refused = [
        rows
        for rows in itertools.product((1, 3), repeat=4)
        if agree(model, made, tuple(some(each, 8) for each in rows)) == "refused"
    ]
    assert refused == [(1, *others, 1) for others in itertools.product((1, 3), repeat=2)]


@pytest.mark.parametrize("count", range(1, 40))
def test_tries_are_few(count: int) -> None:
    tried = list(few._combinations(range(count)))
    assert len(tried) <= 2 * count + few._MOST_PAIRS + 2
    assert all({at: value} in tried for at in range(count) for value in (0, 1))
    assert dict.fromkeys(range(count), 0) in tried
    if count <= 6:
        assert sum(len(each) == 2 for each in tried) >= 2 * count * (count - 1)


def test_a_model_is_not_called_with_what_its_graph_refuses() -> None:
    made = partition(One(_doubled).eval(), some(4, 8), dynamic=True, options=ALL)
    assert made(some(5, 8)).shape == (5, 8)
    with pytest.raises(ArgumentError, match="the model was partitioned for inputs with"):
        made(some(0, 8))


class Attending(nn.Module):
    """Makes a mask when it is called first, and keeps what it was called with."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.seen = nn.Linear(8, 8, dtype=torch.float64), list[Any]()
        self.mask: Any = None

    def forward(self, x: Tensor) -> Tensor:
        if self.mask is None:
            self.mask = torch.ones(x.shape[1], x.shape[1], dtype=x.dtype)
        self.seen.append(x.shape[1])
        return torch.relu(self.layer(x)) + self.mask.sum()


def test_attributes_of_a_model_stay_as_they_are() -> None:
    model = Attending().eval()
    partition(model, some(2, 4, 8), dynamic={"x": {1: torch.export.Dim.AUTO}}, options=ALL)
    assert model.mask is None
    assert all(type(each) is not int or each == 4 for each in model.seen), "but for what torch.export appends"


def test_no_elements_of_either_of_two_axes() -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 4)).double().eval()
    both = {0: torch.export.Dim.AUTO, 1: torch.export.Dim.AUTO}
    made = partition(model, some(2, 4, 8), dynamic={"input": both}, options=ALL)
    for rows, steps in itertools.product((0, 1, 2, 3), repeat=2):
        assert agree(model, made, (some(rows, steps, 8),)) == "agreed", (rows, steps)


class Quantised(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("weight", torch.ones(8, 8, dtype=torch.int8))

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.weight.to(x.dtype) if x.shape[0] > 1 else -x


@pytest.mark.parametrize("most", [1, few._LARGE])
def test_large_buffers_are_not_copied(monkeypatch: pytest.MonkeyPatch, most: int) -> None:
    monkeypatch.setattr(few, "_LARGE", most)
    copied: list[int] = []
    clone = Tensor.clone
    monkeypatch.setattr(Tensor, "clone", lambda self, **how: copied.append(self.numel()) or clone(self, **how))
    model = Quantised().eval()
    made = partition(model, some(4, 8), dynamic=True, options=ALL)
    assert (64 in copied) is (most > 1)
    assert agree(model, made, (some(1, 8),)) == "refused"


class Counting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer, self.norm = nn.Linear(8, 8), nn.BatchNorm1d(8)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.calls.add_(1)
        x.mul_(2)
        return nn.functional.dropout(self.norm(self.layer(x)))


def test_a_model_and_its_example_stay_as_they_are() -> None:
    """Buffers, inputs that are changed in place, and random numbers; batch norms raise for one row in training."""
    model, x = Counting().double().train(), some(4, 8)
    kept, before = x.clone(), {name: each.clone() for name, each in model.state_dict().items()}
    state = torch.get_rng_state()
    made = partition(model, x, dynamic=True, options=ALL)
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(x, kept)
    assert all(torch.equal(each, before[name]) for name, each in model.state_dict().items())
    assert agree(model, made, (some(1, 8),)) in ("refused", "raised")


def test_threads_may_partition_models_at_once() -> None:
    models = [One(OF_ONE_INPUT["compared with 1"][0]).eval() for _ in range(3)]
    made: list[Any] = [None] * len(models)

    def partitioned(at: int) -> None:
        made[at] = partition(models[at], some(4, 8), dynamic=True, options=ALL)

    threads = [threading.Thread(target=partitioned, args=(at,)) for at in range(len(models))]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert [agree(model, each, (some(3, 8),)) for model, each in zip(models, made, strict=True)] == ["agreed"] * 3
