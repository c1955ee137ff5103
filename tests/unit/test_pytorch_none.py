"""None in the place of a tensor, which torch lets pass for any: each operator refuses it by name."""

from __future__ import annotations

from typing import Any

import pytest

from pycutlass.errors import PyCutlassError

torch = pytest.importorskip("torch")
pytest.importorskip("pycutlass.pytorch")


def _overloads() -> list[Any]:
    names = {each.name for each in torch._C._jit_get_all_schemas() if each.name.startswith("pycutlass::")}
    packets = [getattr(torch.ops.pycutlass, name.partition("::")[2]) for name in sorted(names)]
    return [getattr(packet, overload) for packet in packets for overload in packet.overloads()]


def _given(operator: Any, argument: Any) -> Any:
    """Return something for a parameter that has no default."""
    matrix, image, filters = torch.randn(8, 8).half(), torch.randn(1, 8, 4, 4).half(), torch.randn(8, 8, 1, 1).half()
    kind = str(argument.type)
    if kind == "Tensor":
        if argument.name == "offs":
            return torch.tensor([8], dtype=torch.int32)
        if "conv2d" not in operator._schema.name:
            return matrix
        return filters if argument.name == "weight" else image
    if "List" in kind:
        of_name = {"input_size": [1, 8, 4, 4], "weight_size": [8, 8, 1, 1]}
        return [] if "Tensor" in kind else of_name.get(argument.name, [1, 1])
    return {"str": "relu", "int": 1, "bool": False}.get(kind)


def _is_tensor(argument: Any) -> bool:
    return str(argument.type) == "Tensor"


@pytest.mark.parametrize("operator", _overloads(), ids=str)
def test_none_is_no_tensor(operator: Any) -> None:
    arguments = operator._schema.arguments
    given = {each.name: _given(operator, each) for each in arguments if not each.has_default_value()}
    for name in (each.name for each in arguments if _is_tensor(each)):
        with pytest.raises(PyCutlassError) as refused:
            operator(**given | {name: None})
        assert name in str(refused.value), (name, refused.value)


def test_none_is_no_tensor_where_nothing_is_computed() -> None:
    """Of tensors without memory, and of those that require a gradient."""
    ops, absent = torch.ops.pycutlass, torch.empty(8, 8, device="meta", dtype=torch.float16)
    followed = torch.randn(8, 8, requires_grad=True)
    scale = torch.ones(8)
    calls = {
        "input must be": lambda: ops.matmul(None, absent),
        "other must be": lambda: ops.matmul(absent, None),
        "weight must be": lambda: ops.linear(absent, None),
        "input must be a tensor, got": lambda: ops.matmul.out(None, absent, out=absent),
        "mat_a must be": lambda: ops.mixed_mm(None, followed, scale),
        "input must be a": lambda: ops.matmul(None, followed),
    }
    for words, call in calls.items():
        with pytest.raises(PyCutlassError, match=words):
            call()
