"""Partitions under another state than that of their capture: gradients, autocast, other types."""

from __future__ import annotations

import copy
import gc
import io
import pickle
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch._dynamo.testing
from partition_models import compared
from torch import nn
from torch.autograd import forward_ad

from pycutlass import errors
from pycutlass.errors import ArgumentError
from pycutlass.pytorch import Options, partition

Tensor = torch.Tensor
ALL = Options(min_gain=0)
pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")  # of torch about torch


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


def some(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64)


class PartlyWithoutGradients(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Any:
        with torch.no_grad():
            rows = 2 * x.shape[0]
            y = torch.tanh(self.first(x))
            z = self.second(x)
        return torch.relu(y * self.second(x) + self.first(x).detach()) + z * rows, y


def test_regions_that_run_as_they_were_are_said_once(said: Any) -> None:
    model, x = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8)).eval(), torch.ones(4, 8)
    made = partition(model, x, options=ALL)
    with torch.no_grad():
        made(x)
    assert not [line for line in said() if "as it was in the model" in line]
    compiled = torch.compile(made, backend="eager", fullgraph=True)
    assert compiled(x).requires_grad
    torch.export.export(made, (x,))
    assert not [line for line in said() if "as it was in the model" in line]
    for _ in range(2):
        made(x)
        made.requires_grad_(False)(x.clone().requires_grad_())
    [line] = [line for line in said() if "as it was in the model" in line]
    assert (
        line.startswith("pycutlass_0 runs") and "requires a gradient: call the partition under torch.no_grad()" in line
    )
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        made(x)
        made(x)
    [line] = [line for line in said() if "autocast" in line]
    assert line.endswith(
        "autocast is to torch.bfloat16, and was off when the model was partitioned: partition it under that autocast"
    )


def gradients(made: nn.Module, own: nn.Module, x: Tensor) -> list[Any]:
    given = x.clone().requires_grad_()
    first, second = made(given)
    assert first.requires_grad and not second.requires_grad
    return [*torch.autograd.grad(first.square().sum(), (given, *own.parameters()), allow_unused=True)]


@pytest.mark.parametrize("dynamic", [False, True])
def test_gradients_end_where_the_model_has_none(dynamic: bool) -> None:
    model, x = PartlyWithoutGradients().double().eval(), some(4, 8)
    made = partition(model, x, dynamic=dynamic, options=ALL)
    assert made.counts == {"mm": 4}
    for got, expected in zip(gradients(made, model, x), gradients(model, model, x), strict=True):
        torch.testing.assert_close(got, expected)


def test_a_program_stays_as_it_is() -> None:
    model, x = PartlyWithoutGradients().double().eval(), some(4, 8)
    program = torch.export.export(model, (x,))
    before = str(program.graph)
    made = partition(program, options=ALL)
    assert str(program.graph) == before
    torch.testing.assert_close(gradients(made, model, x), gradients(model, model, x))


@pytest.mark.parametrize("bias", [False, True])
def test_other_types_need_another_partition(bias: bool) -> None:
    model, x = nn.Sequential(nn.Linear(8, 8, bias=bias), nn.ReLU()).eval().requires_grad_(False), torch.ones(4, 8)
    for dtype in (torch.bfloat16, torch.float64):
        made = partition(copy.deepcopy(model), x, options=ALL).to(dtype)
        with pytest.raises(errors.ArgumentError, match=r"was of torch\.float32 when .* partition it again"):
            made(x.to(dtype))


def test_autocast_is_that_of_the_capture() -> None:
    model, x = nn.Sequential(nn.Linear(8, 8), nn.ReLU()).eval().requires_grad_(False), torch.randn(4, 8)
    apart = partition(model, x, options=ALL)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = partition(model, x, options=ALL)
        for made in (apart, inside):
            got, expected = made(x), model(x)
            assert got.dtype is expected.dtype is torch.bfloat16
            torch.testing.assert_close(got, expected, rtol=2e-2, atol=2e-2)
    assert inside.regions[0].problem.a.dtype == "bfloat16"
    assert apart(x).dtype is torch.float32 and inside(x).dtype is torch.bfloat16
    inside.pycutlass_0.plain = None  # which is not called outside, where the casts are in the graph
    assert inside(x).dtype is torch.bfloat16


def test_another_autocast_than_that_of_the_capture_is_followed() -> None:
    model, x = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8)).eval().requires_grad_(False), some(4, 8)
    model, x = model.float(), x.float()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        made = partition(model, x, options=ALL)
        assert made(x).dtype is torch.bfloat16
    with torch.autocast("cpu", dtype=torch.float16):
        got, expected = made(x), model(x)
    assert got.dtype is expected.dtype is torch.float16
    torch.testing.assert_close(got, expected, rtol=2e-2, atol=2e-2)


# torch's decompositions for dual tensors are scripted.
@pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning")
def test_tangents_are_those_of_the_model() -> None:
    model, x = nn.Sequential(nn.Linear(8, 8), nn.GELU()).double().eval().requires_grad_(False), some(4, 8)
    made = partition(model, x, options=ALL)
    made(x)
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(x, torch.ones_like(x))
        got, expected = (forward_ad.unpack_dual(each(dual)) for each in (made, model))
        assert got.tangent is not None
        for one, other in zip(got, expected, strict=True):
            torch.testing.assert_close(one, other)
    compared(model, made, x)


def test_devices_without_autocast() -> None:
    made = partition(nn.Linear(8, 8, device="meta").eval(), torch.empty(4, 8, device="meta"), options=ALL)
    assert made.counts == {"mm": 1}
    with torch.no_grad():
        assert made(torch.empty(4, 8, device="meta")).shape == (4, 8)


@pytest.mark.parametrize("of_program", [False, True])
def test_inputs_of_other_extents_are_refused_by_name(of_program: bool) -> None:
    model, x = nn.Sequential(nn.Linear(8, 8), nn.ReLU()).double().eval(), some(4, 8)
    given = torch.export.export(model, (x,)) if of_program else model
    if of_program:
        given.example_inputs = None  # without which torch.export checks nothing
    made = partition(given, None if of_program else x, options=ALL)
    compared(model, made, x)
    with pytest.raises(ArgumentError, match=r"axis 0 of input had 4 elements .* now has 5: .*dynamic="):
        made(some(5, 8))
    with pytest.raises(ArgumentError, match=r"input was a tensor of 2 dimensions .* got shape \(8,\)"):
        made(some(8))
    shapes = {"input": {0: torch.export.Dim("rows", min=2, max=16)}}
    made = partition(model, x, dynamic=shapes, options=ALL)
    compared(model, made, some(16, 8))
    with pytest.raises(ArgumentError, match=r"partitioned for inputs with input.size\(\)\[0\] <= 16"):
        made(some(17, 8))


def test_pickles_are_refused_and_copies_are_not() -> None:
    model, x = nn.Sequential(nn.Linear(8, 8), nn.ReLU()).double().eval(), some(4, 8)
    made = partition(model, x, options=ALL)
    with pytest.raises(ArgumentError, match=r"cannot be pickled.*partition it again, or save torch\.export"):
        pickle.dumps(made)
    with pytest.raises(ArgumentError, match="cannot be pickled"):
        torch.save(made, io.BytesIO())
    other = copy.deepcopy(made)
    compared(model, other, x)
    assert other.regions == made.regions and other.left == made.left


class _OneOtherwise(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8, dtype=torch.float64)

    def forward(self, x: Tensor) -> Any:
        y = self.layer(x)
        return y if 2 * x.shape[0] > 3 else torch.relu(y)


def test_a_model_that_treats_one_row_otherwise_refuses_one() -> None:
    model = _OneOtherwise().eval()
    made = partition(model, some(4, 8), dynamic=True, options=ALL)
    for rows in (2, 3, 7):
        compared(model, made, some(rows, 8))
    with pytest.raises(
        ArgumentError, match=r"axis 0 of x has 1 elements, .*: the values of \(1, 8\) float64 differ.*once"
    ):
        made(some(1, 8))
    single = partition(model, some(1, 8), dynamic=True, options=ALL)
    compared(model, single, some(1, 8))
    with pytest.raises(ArgumentError, match="2 or more of them: torch fixes 1"):
        single(some(4, 8))
    compared(model.layer, partition(model.layer, some(4, 8), dynamic=True, options=ALL), some(1, 8))


class _NoneOtherwise(nn.Module):
    """Computes something else of no rows, by one of the questions that people ask."""

    def __init__(self, asks: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.layer, self.asks = nn.Linear(8, 8), asks

    def forward(self, x: Tensor) -> Tensor:
        if self.asks(x):
            return torch.ones(1, 8, dtype=x.dtype)
        return torch.relu(self.layer(x))


@pytest.mark.parametrize(
    "asks",
    [
        lambda x: x.shape[0] == 0,
        lambda x: x.numel() == 0,
        lambda x: not x.shape[0],
        lambda x: x.size(0) < 1,
        lambda x: x.shape[0] * 3 + 2 <= 2,
    ],
)
def test_a_model_that_treats_no_rows_otherwise_refuses_none(asks: Callable[[Tensor], Any]) -> None:
    model = _NoneOtherwise(asks).double().eval()
    made = partition(model, some(4, 8), dynamic=True, options=ALL)
    for rows in (1, 2, 3, 7):
        compared(model, made, some(rows, 8))
    returns = r"the model returns \(1, 8\) float64, and the graph \(0, 8\) float64"
    with pytest.raises(ArgumentError, match=rf"axis 0 of x has 0 elements, .*: {returns}.*once more"):
        made(some(0, 8))
    compared(model, partition(model, some(0, 8), dynamic=True, options=ALL), some(0, 8))


def test_what_layers_ask_of_no_rows_does_not_matter() -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.LayerNorm(8), nn.Linear(8, 4)).double().eval()
    compared(model, partition(model, some(4, 8), dynamic=True, options=ALL), some(0, 8))


@pytest.mark.parametrize("of_program", [False, True])
def test_axes_of_one_are_dropped_where_an_extent_is_one(of_program: bool) -> None:
    class Squeezed(_OneOtherwise):
        def forward(self, x: Tensor) -> Any:
            return torch.relu(self.layer(x).squeeze(0))

    model, x, rows = Squeezed().eval(), some(4, 8), ({0: torch.export.Dim.AUTO},)
    program = torch.export.export(model, (x,), dynamic_shapes=rows) if of_program else model
    made = partition(program, *(() if of_program else (x, rows)), options=ALL)
    for count in (1, 2, 5):
        compared(model, made, some(count, 8))
    assert "an extent that changes may be" in made.left["squeeze"]
    fixed = partition(model, some(4, 8), options=ALL)
    assert not fixed.left


@pytest.mark.parametrize("dynamic", [True, ({0: torch.export.Dim.DYNAMIC},), ({0: torch.export.Dim("rows")},)], ids=str)
def test_examples_may_be_parts_of_larger_tensors(dynamic: Any) -> None:
    model, whole = nn.Sequential(nn.Linear(8, 8), nn.ReLU()).double().eval(), some(20, 16)
    parts = whole[:5, :8], whole[3:9, 1:9], whole[::2, :8], some(20, 8)[:5], some(8, 5).T, whole[:5, ::2]
    for example in parts:
        made = partition(model, example, dynamic, options=ALL)
        for given in (*parts, some(1, 8)):
            compared(model, made, given)


class Averaged(nn.Module):
    """A region that is given a number, which follows from an extent."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8, dtype=torch.float64)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x).relu() / x.shape[0]


def test_numbers_of_regions_are_no_constants_where_torch_traces() -> None:
    model, rows = Averaged().eval(), torch.export.Dim("rows", min=2, max=64)
    made = partition(model, some(5, 8), dynamic=True, options=ALL)
    assert [[each.form for each in region.inputs] for region in made.regions] == [["row", "scalar"]]
    counted = torch._dynamo.testing.CompileCounterWithBackend("aot_eager")
    torch._dynamo.reset()
    with torch.no_grad():
        program = torch.export.export(made, (some(5, 8),), dynamic_shapes=({0: rows},)).module()
        compiled = torch.compile(made, backend=counted, dynamic=True)
        for count in (5, 9, 17):
            x = some(count, 8)
            for each in (made, program, compiled):
                torch.testing.assert_close(each(x), model(x))
    assert counted.frame_count == 1


class Sharing(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.third = (nn.Linear(8, 8) for _ in range(3))
        self.second.weight = self.first.weight

    def forward(self, x: Tensor) -> Any:
        return torch.relu(self.third(self.second(torch.relu(self.first(x)))))


REPLACED: dict[str, tuple[Callable[[Sharing], Any], str]] = {
    "a parameter": (lambda model: setattr(model.third, "bias", nn.Parameter(torch.ones(8))), "third.bias"),
    "a tied one": (lambda model: setattr(model.first, "weight", nn.Parameter(torch.ones(8, 8))), "first.weight"),
    "the other": (lambda model: setattr(model.second, "weight", nn.Parameter(torch.ones(8, 8))), "second.weight"),
    "by none": (lambda model: setattr(model.third, "bias", None), "third.bias"),
    "all": (lambda model: model.load_state_dict(Sharing().state_dict(), assign=True), "first.weight"),
}


@pytest.mark.parametrize("exports", [False, True])
@pytest.mark.parametrize("what", REPLACED)
@torch.no_grad()
def test_replaced_parameters_are_refused(what: str, exports: bool) -> None:
    model, x = Sharing().eval(), torch.randn(4, 8)
    made = partition(model, x, options=ALL)
    torch.testing.assert_close(made(x), model(x))
    before, copied = made(x), copy.deepcopy(made)
    if exports:  # which puts other dicts in the place of those that modules have of parameters
        torch.export.export(made, (x,))
    replace, name = REPLACED[what]
    replace(model)
    for _ in range(2):
        with pytest.raises(ArgumentError, match=rf"^{name} of the model was replaced by another tensor after .*again"):
            made(x)
    torch.testing.assert_close(copied(x), before)  # which has parameters of its own
    if what != "by none":
        made = partition(model, x, options=ALL)
        torch.testing.assert_close(made(x), model(x))


@torch.no_grad()
def test_parameters_that_are_changed_in_place_or_of_the_partition_are_taken() -> None:
    model, x = Sharing().eval(), torch.randn(4, 8)
    made = partition(model, x, options=ALL)
    model.load_state_dict(Sharing().state_dict())
    model.third.bias.add_(1)
    torch.testing.assert_close(made(x), model(x))
    model.third.bias = nn.Parameter(torch.ones(8))
    made.third.bias = model.third.bias
    torch.testing.assert_close(made(x), model(x))
    model.third.bias = nn.Parameter(torch.zeros(8))
    made.third.bias = nn.Parameter(torch.full((8,), 2.0))  # of its own
    torch.testing.assert_close(made(x), torch.relu(model.third(model.second(torch.relu(model.first(x)))) + 2))
    other = torch.func.functional_call(made, {"third.bias": torch.zeros(8)}, (x,))
    torch.testing.assert_close(other, model(x))
    compiled, exported = torch.compile(made, backend="eager", fullgraph=True), torch.export.export(made, (x,)).module()
    torch.testing.assert_close(compiled(x), made(x))
    torch.testing.assert_close(exported(x), made(x))


@torch.no_grad()
def test_what_a_model_has_for_a_moment_or_no_more_is_not_compared() -> None:
    model, x = Sharing().eval(), torch.randn(4, 8)
    made = partition(model, x, options=ALL)
    expected, seen = made(x), []
    model.first.register_forward_hook(lambda *_: seen.append(made(x)))
    torch.func.functional_call(model, {"third.bias": torch.ones(8)}, (x,))
    del model.third.bias
    torch.testing.assert_close(made(x), expected)
    model.to("meta")  # so that its memory is free
    torch.testing.assert_close([*seen, made(x)], [expected, expected])


@torch.no_grad()
def test_what_was_taken_out_of_a_partition_is_not_compared() -> None:
    model, x = Sharing().eval(), torch.randn(4, 8)
    made = partition(model, x, options=ALL)
    [result] = made.graph.output_node().args[0]
    result.replace_all_uses_with(next(node for node in made.graph.nodes if node.op == "placeholder"))
    made.graph.eliminate_dead_code()
    made.delete_all_unused_submodules()
    made.recompile()
    model.third.bias = nn.Parameter(torch.ones(8))
    assert "third" not in dict(made.named_modules()) and torch.equal(made(x), x)


@torch.no_grad()
def test_a_model_that_is_gone_is_not_asked() -> None:
    model, x = Sharing().eval(), torch.randn(4, 8)
    made, expected = partition(model, x, options=ALL), model(x)
    gone = weakref.ref(model)
    del model
    gc.collect()
    assert gone() is None
    torch.testing.assert_close(made(x), expected)
