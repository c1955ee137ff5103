"""What autograd is told of launches."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch_launches import FAMILIES, Launch

from pycutlass._core import TensorGuard
from pycutlass.errors import ArgumentError, ArgumentTypeError

FAMILY = pytest.mark.parametrize("family", FAMILIES)


def following(launch: Launch, *, leaf: bool) -> dict[str, object]:
    """Return the tensors with a D, the last of them in a list, that autograd follows."""

    def one(tensor: torch.Tensor) -> torch.Tensor:
        followed = tensor.clone().requires_grad_()
        return followed if leaf else followed * 1

    D = launch.tensors["D"]
    return {**launch.tensors, "D": [*D[:-1], one(D[-1])] if isinstance(D, list) else one(D)}


@FAMILY
@pytest.mark.parametrize("leaf", [True, False])
def test_a_target_that_requires_grad_is_refused(family: str, leaf: bool) -> None:
    launch = FAMILIES[family]()
    tensors = following(launch, leaf=leaf)
    with pytest.raises(ArgumentError, match=r"requires grad.*\.detach\(\)"):
        launch.make(**tensors)
    with pytest.raises(ArgumentError, match=r"requires grad.*\.detach\(\)"):
        launch.arguments.update(D=tensors["D"])
    launch.run()


@FAMILY
def test_the_remedy_is_taken(family: str) -> None:
    launch = FAMILIES[family]()
    D = following(launch, leaf=True)["D"]
    detached = [tensor.detach() for tensor in D] if isinstance(D, list) else D.detach()
    arguments = launch.make(**{**launch.tensors, "D": detached})
    launch.operation.run(arguments)


@FAMILY
def test_every_run_counts_as_a_write(family: str) -> None:
    launch = FAMILIES[family]()
    D = launch.tensors["D"]
    targets = D if isinstance(D, list) else [D]
    before = [tensor._version for tensor in targets]
    for count in (1, 2, 3):
        launch.run()
        # A tensor of many matrices counts each.
        assert all(tensor._version >= version + count for tensor, version in zip(targets, before, strict=True))
    others = [tensor for name, given in launch.tensors.items() if name != "D" for tensor in given]
    assert all(tensor._version == 0 for tensor in others)


@FAMILY
def test_a_stale_saved_tensor_raises(family: str) -> None:
    launch = FAMILIES[family]()
    w = torch.ones_like(launch.one("D"), requires_grad=True)
    loss = (launch.one("D") * w).sum()
    launch.run()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_a_view_of_the_target_is_stale_as_well() -> None:
    launch = FAMILIES["gemm"]()
    w = torch.ones(8, requires_grad=True)
    loss = (launch.one("D")[2] * w).sum()
    launch.run()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


@FAMILY
def test_tensors_of_inference_mode_have_no_versions(family: str) -> None:
    with torch.inference_mode():
        launch = FAMILIES[family]()
        launch.run()
    launch.run()
    with torch.inference_mode():
        launch.run()


def test_operands_that_require_grad_are_read() -> None:
    launch = FAMILIES["gemm"]()
    A = launch.tensors["A"].clone().requires_grad_()
    launch.make(**{**launch.tensors, "A": A})


@pytest.mark.parametrize("kind", ["plain", "view", "inference"])
def test_the_guard_of_a_target(kind: str) -> None:
    with torch.inference_mode(kind == "inference"):
        tensor, other = torch.ones(4, 4), torch.ones(4, 4)
    if kind == "view":
        tensor, other = tensor[1:], other[1:]
    guard = TensorGuard(tensor, True)
    guard.count_write()
    guard.exchange(other)
    guard.count_write()
    guard.count_write()
    assert kind == "inference" or (tensor._version, other._version) == (1, 2)
    followed = torch.ones(4, 4, requires_grad=True)
    assert guard.allows(torch.ones(4, 4)) and not guard.allows(followed) and not guard.allows(followed * 1)
    assert guard.allows(followed.detach())


# A reduction's A is made by a GEMM.
@pytest.mark.parametrize(
    ("family", "name"), [(family, name) for family in FAMILIES for name in "AD" if (family, name) != ("reduction", "A")]
)
def test_masked_arrays_are_refused(family: str, name: str) -> None:
    launch = FAMILIES[family]()
    given = launch.tensors[name]
    masked = [np.ma.masked_array(t.numpy()) for t in given] if isinstance(given, list) else np.ma.array(given.numpy())
    with pytest.raises(ArgumentTypeError, match=r"masked array.*(filled|read the result from there)"):
        launch.make(**{**launch.tensors, name: masked})
    with pytest.raises(ArgumentTypeError, match=r"masked array.*(filled|read the result from there)"):
        launch.arguments.update(**{name: masked})
