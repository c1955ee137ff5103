"""Signatures say what is required: without a default, or in every form of the call where Python asks for one."""

from __future__ import annotations

import inspect
import typing
from typing import Any

import pytest

from pycutlass import (
    Conv2dArguments,
    Conv2dOperation,
    GemmArguments,
    GemmGroupedArguments,
    GemmOperationGrouped,
    GemmOperationUniversal,
    ReductionArguments,
    ReductionOperation,
)
from pycutlass.errors import ArgumentTypeError

PARTS = ("compute_capability", "tile_description", "A", "B", "C")
#: What has no default.
REQUIRED: dict[type, tuple[str, ...]] = {
    GemmOperationUniversal: (*PARTS, "epilogue_functor"),
    GemmOperationGrouped: (*PARTS, "epilogue_functor"),
    Conv2dOperation: ("conv_kind", "iterator_algorithm", *PARTS),
    ReductionOperation: ("shape", "C", "element_accumulator"),
    GemmArguments: ("operation", "problem_size", "A", "B"),
    Conv2dArguments: ("operation", "problem_size", "A", "B"),
    GemmGroupedArguments: ("operation", "problem_sizes", "A", "B"),
    ReductionArguments: ("operation", "problem_size"),
}
#: What stands behind something optional, and is required in every form of the call.
BEHIND: dict[type, tuple[str, ...]] = {
    Conv2dOperation: ("epilogue_functor",),
    GemmGroupedArguments: ("D",),
    ReductionArguments: ("workspace", "destination"),
}


def required_by(signature: inspect.Signature) -> set[str]:
    variable = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    parameters = signature.parameters.values()
    return {each.name for each in parameters if each.default is each.empty and each.kind not in variable} - {"self"}


@pytest.mark.parametrize("kind", REQUIRED)
def test_what_is_required_has_no_default(kind: Any) -> None:
    signature = inspect.signature(kind.__init__)
    assert required_by(signature) == set(REQUIRED[kind])
    for name, parameter in signature.parameters.items():
        said_optional = "None" in str(parameter.annotation)
        assert not (name in REQUIRED[kind] and said_optional), f"{name}: {parameter.annotation}"


@pytest.mark.parametrize("kind", BEHIND)
def test_every_form_of_a_call_requires_it(kind: Any) -> None:
    forms = typing.get_overloads(kind.__init__)
    assert len(forms) == 2
    for form in forms:
        assert {*REQUIRED[kind], *BEHIND[kind]} <= required_by(inspect.signature(form))
    known = inspect.signature(kind.__init__).parameters
    for form in forms:
        further = {"unknown", "element_epilogue"}
        assert set(inspect.signature(form).parameters) == set(known) - further


@pytest.mark.parametrize("kind", REQUIRED)
def test_what_is_left_out_is_named(kind: Any) -> None:
    with pytest.raises(ArgumentTypeError) as caught:
        kind()
    message = str(caught.value)
    assert message.startswith(f"{kind.__name__} missing {len(REQUIRED[kind])} required positional arguments: ")
    required, optional = message.partition("; it takes ")[2].split(", optionally ")
    assert {*REQUIRED[kind], *BEHIND.get(kind, ())} <= set(required.split(", "))
    positional = [name for name in inspect.signature(kind.__init__).parameters if name != "self"]
    assert required.split(", ") == positional[: len(required.split(", "))], "they can be given in this order"
    assert kind not in (GemmArguments, Conv2dArguments) or required.endswith("A, B, C, D")
    assert "splices" not in optional, "the original's keyword has no effect"
    assert all(f"'{name}'" in message for name in REQUIRED[kind])
    assert "unknown" not in message and "self" not in message


@pytest.mark.parametrize("kind", [GemmOperationUniversal, GemmOperationGrouped, Conv2dOperation])
def test_the_earlier_name_of_the_compute_capability(kind: Any) -> None:
    both = r"^give compute_capability or arch, which are the same thing, not both$"
    with pytest.raises(ArgumentTypeError, match=both):
        kind(compute_capability=80, arch=80)
    with pytest.raises(ArgumentTypeError, match=both):
        kind(*[80] * len(REQUIRED[kind]), arch=80)
    with pytest.raises(ArgumentTypeError) as caught:
        kind(arch=80)
    assert "'compute_capability'" not in str(caught.value) and "'tile_description'" in str(caught.value)
