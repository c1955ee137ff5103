"""What `partition` says where torch.export cannot capture a model: which argument is wrong, its shapes, the remedy."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from pycutlass import errors
from pycutlass.pytorch import Options, explain, partition

AUTO = torch.export.Dim.AUTO
X = torch.ones(4, 8)


class _Sum(nn.Module):
    def forward(self, x: Any, y: Any) -> Any:
        return x + y


class _Branch(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x if x.sum() > 0 else -x


def _linear() -> nn.Module:
    return nn.Sequential(nn.ReLU(), nn.Sequential(nn.Linear(8, 8)))


@pytest.mark.parametrize(
    ("model", "inputs", "dynamic", "said"),
    [
        (_linear(), X, {"min_gain": 0}, "third argument is dynamic, .* got min_gain: pass options={...}"),
        (_linear(), X, {"min_gian": 0}, "pass options={...}. Did you mean min_gain?"),
        (_linear(), X, Options(), "third argument is dynamic, and got Options: pass them as options="),
        (_linear(), X, {"inputs": {0: AUTO}}, "the inputs of Sequential are input: .* Did you mean input?"),
        (_linear(), X, "first", "dynamic='first' .* input (4, 8) float32: .* Pass True"),
        (_Sum(), (X, X), {"x": {0: AUTO}}, "dynamic={'x': .* x (4, 8) float32, y (4, 8) float32: .* with all inputs"),
        (
            _linear(),
            X[:1],
            {"input": {0: torch.export.Dim("n")}},
            "input (1, 8) float32: .* pass inputs with 2 or more",
        ),
        (
            _linear(),
            X[:1],
            {"input": {0: torch.export.Dim.DYNAMIC}},
            "has an extent that torch fixes, .* with 2 or more",
        ),
        (_linear(), X[:, :7], None, "input (4, 7) float32 .*in layer 1.0, Linear(in_features=8, .* inputs that"),
        (_linear(), X[:, :7], True, "input (4, 7) float32 .*in layer 1.0, Linear(in_features=8, .* inputs that"),
        (_linear(), (X, X), None, "forward(input), and the inputs are (4, 8) float32, (4, 8) float32: too many"),
        (_linear(), (X, X), True, "forward(input), and the inputs are (4, 8) float32, (4, 8) float32: too many"),
        (_linear(), (4, 8), None, "forward(input), and the inputs are 4, 8: .* Pass the tensors"),
        (_linear(), {"x": X}, None, "forward(input), and the inputs are x=(4, 8) float32: missing .* by these names"),
        (_linear(), (), None, "forward(input), and the inputs are none"),
        (_linear(), (X.numpy(),), None, "input ndarray .*Unsupported input type .*inputs that the model itself"),
        (_Branch(), X, None, "in line 25 of test_pytorch_uncaptured.py: .*torch.compile(model"),
    ],
)
def test_what_is_wrong_is_said_in_terms_of_the_call(model: nn.Module, inputs: Any, dynamic: Any, said: str) -> None:
    for function in (partition, explain):
        with pytest.raises(errors.PyCutlassError) as raised:
            function(model, inputs, dynamic)
        text = str(raised.value)
        _in_order(said.split(".*"), text)
        assert raised.value.__cause__ is not None
        assert "\n" not in text and "http" not in text and "draft_export" not in text


def test_a_forward_without_a_signature_is_refused_by_an_error_of_ours() -> None:
    model = nn.Module()
    for forward in (torch.relu, 3):
        model.forward = forward  # type: ignore[assignment]
        with pytest.raises(errors.ArgumentError, match="cannot capture Module with inputs tuple"):
            partition(model, (X.numpy(),))


def _in_order(parts: list[str], text: str) -> None:
    at = 0
    for part in parts:
        found = text.find(part.strip(), at)
        assert found >= 0, (part, text)
        at = found + len(part.strip())


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("kind", ["nested", "jagged", "quantised"])
@pytest.mark.filterwarnings("ignore::UserWarning")  # torch says that these kinds of tensors are prototypes
def test_kinds_of_tensors_that_torch_cannot_capture(kind: str, dynamic: Any) -> None:
    parts = [torch.randn(3, 8), torch.randn(5, 8)]
    if kind == "quantised":
        x = torch.quantize_per_tensor(torch.randn(4, 8), 0.1, 0, torch.qint8)
    else:
        x = torch.nested.nested_tensor(parts, layout=torch.jagged if kind == "jagged" else torch.strided)
    with pytest.raises(errors.ArgumentError, match=r"torch\.export cannot capture Linear"):
        partition(nn.Linear(8, 8).eval(), x, dynamic=dynamic)
