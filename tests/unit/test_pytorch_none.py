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
