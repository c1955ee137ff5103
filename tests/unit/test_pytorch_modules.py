"""Modules in the place of torch's own, and models that are converted to them."""

from __future__ import annotations

import copy
import pickle
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional
from torch_operators import ACTIVATIONS, numbers

from pycutlass.epilogue import fusions, gelu
from pycutlass.errors import ArgumentError, ArgumentTypeError
from pycutlass.pytorch import Conv2d, GroupedLinear, Linear, SwiGLU, convert, partition

OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "strided": {"stride": 2, "padding": (1, 2)},
    "same": {"padding": "same"},
    "valid": {"padding": "valid", "dilation": 2},
    "groups": {"groups": 2, "padding": 1, "bias": False},
    "reflected": {"padding": 1, "padding_mode": "reflect"},
    "circular": {"padding": (2, 1), "padding_mode": "circular", "stride": 2},
}


def same(ours: nn.Module, theirs: nn.Module, *given: torch.Tensor) -> None:
    """Compare results and gradients of two modules with the same parameters."""
    theirs.load_state_dict(ours.state_dict())
    made, wanted = ours(*given), theirs(*given)
    torch.testing.assert_close(made, wanted)
    dy = torch.ones_like(wanted).cumsum(-1)
    mine, yours = dict(ours.named_parameters()), dict(theirs.named_parameters())
    assert mine.keys() == yours.keys()
    found = torch.autograd.grad(made, [*given[:1], *mine.values()], dy)
    torch.testing.assert_close(found, torch.autograd.grad(wanted, [*given[:1], *yours.values()], dy))


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_linear(activation: str | None, bias: bool) -> None:
    ours = Linear(6, 5, bias, dtype=torch.float64, activation=activation)

    class Theirs(nn.Linear):
        def forward(self, input: torch.Tensor) -> torch.Tensor:
            result: torch.Tensor = ACTIVATIONS[activation](super().forward(input))
            return result

    same(ours, Theirs(6, 5, bias, dtype=torch.float64), numbers(2, 4, 6))


@pytest.mark.parametrize("name", OPTIONS)
@pytest.mark.parametrize("taps", [3, (3, 1)], ids=str)
def test_conv2d(name: str, taps: Any) -> None:
    options = {**OPTIONS[name], "dtype": torch.float64}
    same(Conv2d(4, 6, taps, **options), nn.Conv2d(4, 6, taps, **options), numbers(2, 4, 8, 9))


@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel")
def test_padding_that_is_not_the_same_on_both_sides() -> None:
    options: dict[str, Any] = {"padding": "same", "dilation": (1, 3), "dtype": torch.float64}
    same(Conv2d(2, 3, (4, 2), **options), nn.Conv2d(2, 3, (4, 2), **options), numbers(2, 2, 8, 9))


def test_a_single_image() -> None:
    same(Conv2d(2, 3, 3, dtype=torch.float64), nn.Conv2d(2, 3, 3, dtype=torch.float64), numbers(2, 8, 9))


def test_an_activation_behind_a_convolution() -> None:
    layer, x = Conv2d(2, 3, 3, activation="silu"), numbers(1, 2, 5, 5).float()
    torch.testing.assert_close(layer(x), functional.silu(functional.conv2d(x, layer.weight, layer.bias)))
    assert layer.weight.is_contiguous(memory_format=torch.channels_last)


def test_grouped_linear() -> None:
    layer = GroupedLinear(3, 6, 5, dtype=torch.float64)
    tokens, offs = numbers(10, 6), torch.tensor([4, 4, 10], dtype=torch.int32)
    rows = [functional.linear(tokens[a:b], layer.weight[i], layer.bias[i]) for i, a, b in ((0, 0, 4), (2, 4, 10))]
    wanted = torch.cat(rows)
    torch.testing.assert_close(layer(tokens, offs), wanted)
    parameters = [tokens, *layer.parameters()]
    dy = torch.ones_like(wanted).cumsum(-1)
    found = torch.autograd.grad(layer(tokens, offs), parameters, dy)
    torch.testing.assert_close(found, torch.autograd.grad(wanted, parameters, dy))
    stack = numbers(3, 4, 6)
    torch.testing.assert_close(layer(stack), stack @ layer.weight.mT + layer.bias[:, None])


def test_grouped_linear_starts_as_linear_layers_do() -> None:
    torch.manual_seed(0)
    layer = GroupedLinear(4, 100, 50)
    for parameter in layer.parameters():
        assert 0.09 < float(parameter.detach().abs().max()) <= 0.1
    assert [*GroupedLinear(2, 3, 4, bias=False).state_dict()] == ["weight"]


def test_swiglu() -> None:
    class Theirs(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.gate_proj, self.up_proj = (nn.Linear(6, 10, False, dtype=torch.float64) for _ in "gu")
            self.down_proj = nn.Linear(10, 6, False, dtype=torch.float64)

        def forward(self, x: torch.Tensor) -> Any:
            return self.down_proj(functional.silu(self.gate_proj(x)) * self.up_proj(x))

    same(SwiGLU(6, 10, dtype=torch.float64), Theirs(), numbers(2, 4, 6))
    assert SwiGLU(6, 10, 3)(torch.ones(4, 6)).shape == (4, 3)


def biased(layer: SwiGLU) -> None:
    layer.gate_proj = Linear(3, 4, dtype=torch.float64)


def activated(layer: SwiGLU) -> None:
    layer.up_proj.activation = "relu"


def hooked_behind(layer: SwiGLU) -> None:
    layer.up_proj.register_forward_hook(lambda module, given, made: made + 1)


def forwarded(layer: SwiGLU) -> None:
    layer.gate_proj.forward = lambda input: input[..., :1]  # type: ignore[method-assign]


def normed(layer: SwiGLU) -> None:
    nn.utils.parametrizations.weight_norm(layer.gate_proj)


@pytest.mark.parametrize("change", [biased, activated, hooked_behind, forwarded, normed])
def test_gates_that_do_more_than_multiply_are_called(change: Callable[[SwiGLU], None]) -> None:
    layer, x = SwiGLU(3, 4, dtype=torch.float64), numbers(2, 3)
    change(layer)
    wanted = layer.down_proj(functional.silu(layer.gate_proj(x)) * layer.up_proj(x))
    torch.testing.assert_close(layer(x), wanted)
    given = [x, *(each for name, each in layer.named_parameters() if change is not forwarded or "gate" not in name)]
    found = torch.autograd.grad(layer(x).sum(), given)
    torch.testing.assert_close(found, torch.autograd.grad(wanted.sum(), given))


def test_layers_are_made_without_memory() -> None:
    with FakeTensorMode():
        model = nn.Sequential(Conv2d(2, 3, 3, activation="relu"), nn.Flatten(), Linear(27, 4), SwiGLU(4, 8))
        assert model(torch.empty(5, 2, 5, 5)).shape == (5, 4)
    assert model[0].weight.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize(
    "module",
    [Linear(3, 4, activation="gelu"), Conv2d(2, 3, 3, activation="relu"), GroupedLinear(2, 3, 4), SwiGLU(3, 4)],
    ids=lambda module: type(module).__name__,
)
def test_modules_are_copied_and_pickled(module: nn.Module) -> None:
    for again in (copy.deepcopy(module), pickle.loads(pickle.dumps(module))):
        assert repr(again) == repr(module)
        torch.testing.assert_close(again.state_dict(), module.state_dict())


def test_what_modules_show() -> None:
    plain = repr(nn.Linear(3, 4))
    assert repr(Linear(3, 4)) == plain
    assert repr(Linear(3, 4, activation="gelu")) == f"{plain[:-1]}, activation='gelu')"
    assert repr(Conv2d(3, 4, 3, activation="relu")).endswith("stride=(1, 1), activation='relu')")
    assert repr(GroupedLinear(2, 3, 4)) == "GroupedLinear(num_groups=2, in_features=3, out_features=4, bias=True)"


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: Linear(3, 4, activation="rel"), ArgumentError, "got 'rel'. Did you mean relu"),
        (lambda: Conv2d(3, 4, 3, activation=nn.ReLU()), ArgumentTypeError, "activation must be the name of one"),
        (lambda: Linear(3, 4, activation=gelu), ArgumentTypeError, "got the class gelu: pass 'gelu'$"),
        (lambda: Linear(3, 4, activation=functional.relu), ArgumentTypeError, "got <function relu.*>: pass 'relu'$"),
        (
            lambda: Linear(3, 4, activation=fusions.bias_gelu),
            ArgumentTypeError,
            r"got <epilogue.*>: pass pycutlass\.pytorch\.epilogue_handle\(function\)$",
        ),
        (
            lambda: Linear(3, 4, activation=lambda accum: accum * 2),
            ArgumentTypeError,
            "write anything else as an epilogue function, and pass pycutlass.pytorch.epilogue_handle",
        ),
        (lambda: Linear(3, 4, act="relu"), ArgumentTypeError, "Linear has no keyword act"),
        (lambda: SwiGLU(3, 4, bias=True), ArgumentTypeError, "SwiGLU has no keyword bias"),
        (lambda: setattr(Linear(3, 4), "activation", nn.ReLU()), ArgumentTypeError, "activation must be the name of"),
        (lambda: setattr(Conv2d(3, 4, 3), "activation", "rel"), ArgumentError, "got 'rel'. Did you mean relu"),
        (lambda: convert(nn.Linear(2, 2), filter_fn="0"), ArgumentTypeError, "filter_fn must be a function of a mod"),
        (lambda: convert(functional.relu), ArgumentTypeError, "model must be a torch.nn.Module"),
        (lambda: convert(nn.Linear(2, 2), filter=None), ArgumentTypeError, "convert has no keyword filter"),
    ],
)
def test_wrong_calls(call: Callable[[], Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        call()


class Block(nn.Module):
    """A model with layers of all kinds, tied weights and an alias."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3, padding=1)
        self.depthwise = nn.Conv2d(8, 8, 3, groups=8)
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8)
        self.second.weight = self.first.weight
        self.alias = self.first
        self.normed = nn.utils.parametrizations.weight_norm(nn.Linear(8, 8))

    def forward(self, x: torch.Tensor) -> Any:
        x = self.depthwise(self.conv(x).relu()).mean((2, 3))
        return self.normed(self.alias(self.second(self.first(x).relu())))


def test_convert() -> None:
    theirs = Block().double()
    ours = copy.deepcopy(theirs)
    before = dict(ours.named_parameters())
    calls: list[str] = []
    ours.first.register_forward_hook(lambda *_: calls.append("hook"))
    done = convert(ours)
    assert done.model is ours
    assert done.replaced == ("conv", "depthwise", "first", "second")
    assert list(done.left) == ["normed"] and "is a class of its own" in done.left["normed"]
    after = dict(ours.named_parameters())
    assert before.keys() == after.keys() and all(after[name] is each for name, each in before.items())
    assert ours.second.weight is ours.first.weight and ours.alias is ours.first
    assert ours.conv.weight.is_contiguous(memory_format=torch.channels_last)
    same(ours, theirs, numbers(2, 3, 6, 7))
    assert calls == ["hook", "hook"]  # `first` is called twice
    again = convert(ours)
    assert again.replaced == () and list(again.left) == ["normed"]


def test_what_is_partitioned_has_no_layers() -> None:
    layer, x = nn.Linear(8, 8), torch.ones(4, 8)
    made = partition(layer, x, options={"min_gain": 0})
    with pytest.raises(ArgumentError, match=r"partitioned already, with 1 region in .* convert the model that was"):
        convert(made)
    done = convert(nn.Sequential(made, torch.export.export(layer, (x,)).module(), nn.Linear(8, 8)))
    assert done.replaced == ("2",) and list(done.left) == ["0", "1"]
    assert "Partition is partitioned already" in done.left["0"] and "GraphModule is a graph" in done.left["1"]


def test_a_single_layer_is_converted() -> None:
    layer = nn.Linear(4, 3)
    assert convert(layer).replaced == ("",)
    assert type(layer) is Linear
    assert str(convert(nn.Conv2d(2, 3, 3))) == "1 module replaced, 0 left\n  replaced (the model): Conv2d"


def left_alone(module: nn.Module, name: str = "x") -> str:
    kinds = {each: type(part) for each, part in module.named_modules()}
    done = convert(nn.Sequential(OrderedDict({name: module})))
    assert done.replaced == () and list(done.left) == [name]
    assert kinds == {each: type(part) for each, part in module.named_modules()}
    assert f"  left     {name}: {done.left[name]}" in str(done)
    return done.left[name]


class Quantized(torch.Tensor):
    """A tensor of another library, which has an arithmetic of its own."""


def subclassed() -> nn.Linear:
    layer = nn.Linear(2, 2)
    layer.weight = nn.Parameter(torch.ones(2, 2).as_subclass(Quantized))
    return layer


def sparse() -> nn.Linear:
    layer = nn.Linear(2, 2)
    layer.weight = nn.Parameter(torch.eye(2).to_sparse())
    return layer


def described(activation: Any) -> nn.Linear:
    layer = nn.Linear(2, 2)
    layer.activation = activation  # which a model reads, and applies itself
    return layer


def bare() -> nn.Linear:
    layer = nn.Linear(2, 2)
    del layer.weight
    return layer


def hooked() -> nn.Linear:
    layer = nn.Linear(2, 2)
    layer.forward = lambda input: input  # type: ignore[method-assign]
    return layer


@pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning")
@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda: nn.MultiheadAttention(4, 2), "multiplies by its weights itself"),
        (lambda: nn.LSTM(4, 2), "LSTM multiplies by its weights itself, step by step"),
        (lambda: nn.GRUCell(4, 2), "GRUCell multiplies by its weights itself"),
        (lambda: nn.Bilinear(2, 3, 4), "is no product of two matrices"),
        (lambda: nn.Conv1d(2, 3, 1), "convolves along one axis"),
        (lambda: nn.Conv3d(2, 3, 1), "convolves along three axes"),
        (lambda: nn.ConvTranspose2d(2, 3, 1), "is a transposed convolution"),
        (lambda: nn.LazyLinear(2), "has no shape yet"),
        (lambda: nn.LazyConv2d(2, 2), "has no shape yet"),
        (lambda: torch.jit.script(nn.Linear(2, 2)), "is compiled by TorchScript already"),
        (
            lambda: nn.Linear(2, 2, dtype=torch.complex64),
            "its weight is of torch.complex64, and layers are computed in",
        ),
        (subclassed, "its weight is a Quantized, and kernels read plain tensors"),
        (sparse, "its weight is a torch.sparse_coo, and kernels read plain tensors"),
        (hooked, "its forward was replaced"),
        (lambda: described("relu"), "it has an attribute activation of its own"),
        (lambda: described(nn.ReLU()), "it has an attribute activation of its own"),
        (bare, "its weight is a NoneType"),
    ],
)
def test_what_is_left_has_a_reason(make: Callable[[], nn.Module], reason: str) -> None:
    assert reason in left_alone(make())


def test_a_function_chooses() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 64), nn.ReLU())
    done = convert(model, filter_fn=lambda module, name: name == "1" and isinstance(module, nn.Linear))
    assert done.replaced == ("1",) and done.left == {"0": "filter_fn left it"}
    assert [type(each) for each in model] == [nn.Linear, Linear, nn.ReLU]


def test_a_function_that_raises_leaves_the_model_as_it_was() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    with pytest.raises(ZeroDivisionError):
        convert(model, filter_fn=lambda module, name: 1 // (1 - int(name)) > 0)
    assert [type(each) for each in model] == [nn.Linear, nn.Linear]


def test_an_activation_may_be_set_later() -> None:
    layer, x = nn.Linear(3, 4), numbers(2, 3, dtype=torch.float32)
    plain = layer(x)
    convert(layer)
    layer.activation = "relu"
    torch.testing.assert_close(layer(x), plain.relu())


def test_a_step_of_training_is_that_of_torch() -> None:
    torch.manual_seed(0)
    theirs = nn.Sequential(nn.Linear(6, 12), nn.GELU(), nn.Linear(12, 3)).double()
    ours = copy.deepcopy(theirs)
    optimizers = [torch.optim.AdamW(each.parameters(), 0.05) for each in (theirs, ours)]
    convert(ours)  # after the optimizer has the parameters
    x, y = numbers(20, 6).detach(), numbers(20, 3).detach()
    losses: list[list[float]] = [[], []]
    for _ in range(5):
        for model, optimizer, seen in zip((theirs, ours), optimizers, losses, strict=True):
            loss = functional.mse_loss(model(x), y)
            seen.append(loss.item())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    assert losses[1] == pytest.approx(losses[0], rel=1e-9)
    assert losses[1][-1] < losses[1][0]


def test_modules_are_compiled() -> None:
    model = nn.Sequential(Linear(6, 8, activation="gelu"), SwiGLU(8, 16), Linear(8, 3)).double()
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True, dynamic=True)
    for rows in (4, 9):
        x = numbers(rows, 6)
        made, wanted = compiled(x), model(x)
        torch.testing.assert_close(made, wanted)
        given = [x, *model.parameters()]
        torch.testing.assert_close(torch.autograd.grad(made.sum(), given), torch.autograd.grad(wanted.sum(), given))
