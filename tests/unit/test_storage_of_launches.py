"""Launches and updates on a GPU look at tensors of torch again, in C++: single ones and those of groups.

The programs run on a stand-in for the driver (fake_gpu). Its device memory is host memory, so tensors of torch for the
CPU are taken for tensors there.
"""

from __future__ import annotations

import fake_gpu
import pytest

_HARNESS = """
import dataclasses, gc, weakref
import torch
from pycutlass.errors import ArgumentError
from pycutlass.launch import device as launch_device
from pycutlass.tensor import adapters

from_torch = adapters._from_torch

def on_gpu(name, tensor):
    return dataclasses.replace(from_torch(name, tensor), device=0)

def with_torch_on_gpu(table):
    return tuple((is_its, on_gpu if adapt is from_torch else adapt) for is_its, adapt in table)

adapters._ADAPTERS = with_torch_on_gpu(adapters._ADAPTERS)
launch_device.follow_streams = lambda call, libraries, ordinal: []

memory = []
SIZES = [(8, 12, 16), (4, 8, 20), (6, 6, 6)]

def tensor(values):
    array = Array(0, np.ascontiguousarray(values))
    memory.append(array)
    return torch.from_numpy(memory_at(array.data.ptr, array.shape))

class One:
    def __init__(self):
        self.operation = gemm()
        self.size = SIZES[2]

    def operands(self, seed):
        m, n, k = self.size
        a, b = on_host(m, k, seed), on_host(n, k, seed + 1)
        return {"A": tensor(a), "B": tensor(b).t(), "D": tensor(np.full((m, n), np.nan, np.float32))}

    def make(self, A, B, D):
        return pycutlass.GemmArguments(self.operation, self.size, A, B, None, D)

class Group:
    def __init__(self):
        self.operation = group("device")

    def operands(self, seed):
        each = []
        for number, size in enumerate(SIZES):
            one.size = size
            each.append(one.operands(seed + 10 * number))
        one.size = SIZES[2]
        return {name: [of[name] for of in each] for name in "ABD"}

    def make(self, A, B, D):
        return pycutlass.GemmGroupedArguments(self.operation, SIZES, A, B, None, D)

def listed(operand):
    return operand if isinstance(operand, list) else [operand]

def last(operand):
    return listed(operand)[-1]

def check(arguments, A, B, D):
    kind.operation.run(arguments)
    arguments.sync()
    for a, b, d in zip(*map(listed, (A, B, D))):
        assert torch.equal(d, a @ b), (d, a @ b)
        d.fill_(float("nan"))

def refused(call, *words):
    try:
        call()
    except ArgumentError as error:
        assert all(word in str(error) for word in words), str(error)
    else:
        raise AssertionError("not refused")

one = One()
"""
_KINDS = ("One", "Group")
_MOVES = {
    "data": "it.data = tensor(it.numpy().copy())",
    "set": "it.set_(tensor(it.numpy().copy()))",
    "transposed": "it.t_()",
    "part": "it.set_(it.untyped_storage(), 1, (5, 6), (6, 1))",
    "negated": "it.data = torch._neg_view(it.detach())",
    "other type": "it.data = it.detach().view(torch.int32)",
}


def _run(kind: str, program: str) -> None:
    fake_gpu.run(f"{_HARNESS}\nkind = {'one' if kind == 'One' else 'Group()'}\n{program}", seconds=120)


@pytest.mark.parametrize("kind", _KINDS)
def test_tensors_that_were_moved_are_refused_before_and_after_an_exchange(kind: str) -> None:
    moves = "\n".join(f"def {name.replace(' ', '_')}(it): {body}" for name, body in _MOVES.items())
    _run(
        kind,
        f"""
{moves}
for move in ({", ".join(name.replace(" ", "_") for name in _MOVES)}):
    for name in "ABD":
        for exchanged in (False, True):
            given = kind.operands(3)
            arguments = kind.make(**given)
            check(arguments, **given)
            if exchanged:
                given = kind.operands(40)
                arguments.update(**given)
                check(arguments, **given)
            it = last(given[name])
            with torch.no_grad():
                move(it)
            refused(lambda: kind.operation.run(arguments), f"operand {{name}}")
            given = given | {{name: kind.operands(70)[name]}}
            arguments.update(**{{name: given[name]}})
            check(arguments, **given)
""",
    )


@pytest.mark.parametrize("kind", _KINDS)
def test_one_operand_after_the_other_is_exchanged(kind: str) -> None:
    _run(
        kind,
        """
given, others = kind.operands(3), kind.operands(40)
arguments = kind.make(**given)
for name in "ABDABD":
    given[name], others[name] = others[name], given[name]
    arguments.update(**{name: given[name]})
    check(arguments, **given)
arguments.update(A=others["A"], D=others["D"])
check(arguments, others["A"], given["B"], others["D"])
arguments.update(**given)
check(arguments, **given)
""",
    )


@pytest.mark.parametrize("kind", _KINDS)
def test_a_view_that_its_base_has_left_is_refused_after_an_exchange(kind: str) -> None:
    _run(
        kind,
        """
arguments = kind.make(**kind.operands(3))
given = kind.operands(40)
base = last(given["B"])._base
arguments.update(B=given["B"], A=given["A"], D=given["D"])
check(arguments, **given)
base.data = tensor(np.zeros(tuple(base.shape), np.float32))
refused(lambda: kind.operation.run(arguments), "operand B", "view")
""",
    )


@pytest.mark.parametrize("kind", _KINDS)
def test_views_outlive_the_tensors_that_they_are_views_of(kind: str) -> None:
    _run(
        kind,
        """
import gc
given = kind.operands(3)
arguments = kind.make(**given)
for seed in (40, 80):
    gc.collect()  # nobody has the bases in Python
    check(arguments, **given)
    given = kind.operands(seed)
    arguments.update(**given)
    check(arguments, **given)
view = last(given["B"])
assert view._base is not None
plain = dict(given, B=kind.operands(120)["B"])
whole = [tensor(each.t().numpy().copy()) for each in listed(plain["B"])]
unseen = [torch.as_strided(each.detach(), each.t().shape, each.t().stride()) for each in whole]
plain["B"] = unseen if isinstance(given["B"], list) else unseen[0]
arguments.update(B=plain["B"])
del whole, unseen
gc.collect()
check(arguments, **plain)
arguments.update(B=given["B"])
check(arguments, **given)
""",
    )


@pytest.mark.parametrize("kind", _KINDS)
def test_what_may_not_take_the_place_changes_nothing(kind: str) -> None:
    _run(
        kind,
        """
given, others = kind.operands(3), kind.operands(40)
arguments = kind.make(**given)
def exchanged(name, tensor):
    return others[name][:-1] + [tensor] if isinstance(others[name], list) else tensor
m, n, k = SIZES[2]
followed = tensor(np.zeros((m, n), np.float32)).requires_grad_()
odd = tensor(np.zeros((m + 1, k), np.float32))
shrunk = tensor(np.zeros((m, k), np.float32)).clone()
shrunk.untyped_storage().resize_(4)
inputs = last(given["A"])
for tensors in (
    {"A": others["A"], "D": exchanged("D", followed)},
    {"A": exchanged("A", odd), "D": others["D"]},
    {"A": exchanged("A", shrunk)},
    {"B": others["B"], "D": exchanged("D", inputs)},
    {"A": exchanged("A", torch._neg_view(last(others["A"]))), "D": others["D"]},
):
    try:
        arguments.update(**tensors)
    except pycutlass.errors.PyCutlassError:
        check(arguments, **given)
    else:
        raise AssertionError(tensors)
arguments.update(**others)
check(arguments, **others)
""",
    )


@pytest.mark.parametrize("kind", _KINDS)
def test_tensors_are_kept_as_long_as_they_are_used_and_no_longer(kind: str) -> None:
    _run(
        kind,
        """
def watch(given):
    return [weakref.ref(each) for operand in given.values() for each in listed(operand)]

given = kind.operands(3)
arguments = kind.make(**given)
first = watch(given)
del given
gc.collect()
assert all(each() is not None for each in first)
given = kind.operands(40)
second = watch(given)
arguments.update(**given)
gc.collect()
assert all(each() is None for each in first)
kind.operation.run(arguments)
arguments.sync()
for a, b, d in zip(*map(listed, given.values())):
    assert torch.equal(d, a @ b)
del a, b, d
del given
gc.collect()
assert all(each() is not None for each in second)
kind.operation.run(arguments)
arguments.sync()
del arguments
gc.collect()
assert all(each() is None for each in second)
""",
    )


@pytest.mark.parametrize("kind", _KINDS)
def test_tensors_of_inference_mode_take_turns_with_others(kind: str) -> None:
    _run(
        kind,
        """
given = kind.operands(3)
arguments = kind.make(**given)
with torch.inference_mode():
    others = kind.operands(40)
for _ in range(2):
    for each in (others, given):
        arguments.update(**each)
        d = last(each["D"])
        version = None if d.is_inference() else d._version
        kind.operation.run(arguments)
        arguments.sync()
        assert torch.equal(d, last(each["A"]) @ last(each["B"]))
        assert version is None or d._version == version + 1
""",
    )
