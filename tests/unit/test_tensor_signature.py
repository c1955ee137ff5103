"""What lets a tensor take the place of another in a launch: type, device, dtype, shape and strides."""

from __future__ import annotations

from types import SimpleNamespace

import forked_programs
import ml_dtypes
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pycutlass import _core

DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.int8, torch.int32)


@st.composite
def tensors(draw, rank=None):
    """Return a function that makes tensors of one form, each somewhere else in memory."""
    rank = draw(st.integers(1, 6)) if rank is None else rank
    shape = [draw(st.integers(1, 5)) for _ in range(rank)]
    order = draw(st.permutations(range(rank)))
    slack, offset = draw(st.integers(0, 3)), draw(st.integers(0, 9))
    dtype = draw(st.sampled_from(DTYPES))
    strides, step = [0] * rank, 1
    for axis in order:
        strides[axis] = step
        step *= shape[axis] + slack
    return lambda: torch.zeros(step + offset, dtype=dtype).as_strided(shape, strides, offset)


@given(tensors())
def test_a_tensor_of_the_same_form_is_read(make):
    form, other = _core.TensorSignature(make()), make()
    assert form.reads_torch  # and not by way of an exchange that takes twice as long
    assert form.read(other) == other.data_ptr()


@given(tensors(), tensors())
def test_a_tensor_of_another_form_is_not(make, make_other):
    tensor, other = make(), make_other()
    same = all(form(tensor) == form(other) for form in (torch.Tensor.size, torch.Tensor.stride, lambda one: one.dtype))
    assert _core.TensorSignature(tensor).read(other) == (other.data_ptr() if same else None)


def test_every_part_of_the_form_counts():
    form = _core.TensorSignature(torch.zeros(4, 6))
    good = torch.zeros(4, 6)
    assert form.read(good) == good.data_ptr()
    others = {
        "shape": torch.zeros(6, 4),
        "rank": torch.zeros(4, 6, 1),
        "strides": torch.zeros(6, 4).mT,
        "pitch": torch.zeros(4, 8)[:, :6],
        "dtype": torch.zeros(4, 6, dtype=torch.int32),
        "device": torch.zeros(4, 6, device="meta"),
        "type": torch.nn.Parameter(torch.zeros(4, 6)),
        "library": np.zeros((4, 6), np.float32),
        "nothing": None,
    }
    assert {what: form.read(other) for what, other in others.items()} == dict.fromkeys(others)


def test_a_tensor_that_has_changed_is_read_anew():
    tensor = torch.zeros(4, 6)
    form = _core.TensorSignature(tensor)
    elsewhere = torch.zeros(4, 6)
    tensor.data = elsewhere
    assert form.read(tensor) == elsewhere.data_ptr()
    tensor.set_(torch.zeros(4, 5))
    assert form.read(tensor) is None


def test_a_tensor_whose_values_are_not_in_its_memory_is_not_read():
    form = _core.TensorSignature(torch.zeros(4, 6))
    assert form.read(torch._neg_view(torch.zeros(4, 6))) is None


@pytest.mark.parametrize("mode", ["inference_mode()", "no_grad()", "device('meta')", "inference_mode(False)"])
def test_tensors_are_read_directly_whatever_mode_the_first_is_met_in(mode):
    program = f"""
import torch
from pycutlass._core import TensorGuard
tensor = torch.zeros(4, 6)
with torch.{mode}:
    assert TensorGuard(tensor, True).direct
"""
    done = forked_programs.run(program)
    assert done.returncode == 0, done.stderr


def test_threads_that_meet_their_first_tensor_at_the_same_time():
    program = """
import threading, torch
from pycutlass._core import TensorGuard
tensor, barrier = torch.zeros(2, 3), threading.Barrier(8)
def look():
    barrier.wait()
    TensorGuard(tensor, False).check("A")
threads = [threading.Thread(target=look) for _ in range(8)]
for each in threads: each.start()
for each in threads: each.join()
assert TensorGuard(tensor, False).direct
"""
    for _ in range(3):
        done = forked_programs.run(program)
        assert done.returncode == 0, done.stderr


MODES = {
    "sparse": "return f(*a, **k).to_sparse() if f is torch.zeros else f(*a, **k)",
    "recursive": "TensorGuard(tensor, False); return f(*a, **k)",
    "foreign": "return 'nothing' if f is torch.zeros else f(*a, **k)",
    "raising": "raise ZeroDivisionError",
}


@pytest.mark.parametrize("body", MODES.values(), ids=MODES)
def test_the_first_tensor_is_met_in_a_mode_of_the_users(body):
    program = f"""
import torch
from torch.overrides import TorchFunctionMode
from pycutlass._core import TensorGuard
tensor = torch.ones(2, 2)
class Mode(TorchFunctionMode):
    def __torch_function__(self, f, types, a=(), k=None):
        k = k or {{}}
        {body}
with Mode():
    try:
        TensorGuard(tensor, False)
    except (ZeroDivisionError, TypeError, RecursionError):
        pass
assert TensorGuard(tensor, False).direct
"""
    done = forked_programs.run(program)
    assert done.returncode == 0, done.stderr


def test_kinds_of_tensors_that_need_a_closer_look():
    form = _core.TensorSignature(torch.zeros(4, 6))
    with torch.inference_mode():
        others = [torch.zeros(4, 6)]
    array = np.zeros((4, 6), np.float32)
    others += [torch.from_numpy(array), torch.zeros(4, 6, requires_grad=True), torch.zeros(4, 6).expand(4, 6)]
    assert [form.read(other) for other in others] == [other.data_ptr() for other in others]
    assert [_core.TensorSignature(other).read(others[0]) for other in others] == [others[0].data_ptr()] * 4


def test_a_tensor_that_is_copied_on_write_is_copied_when_it_is_read():
    form, source = _core.TensorSignature(torch.zeros(4, 6)), torch.ones(4, 6)
    lazy = torch._lazy_clone(source)
    assert form.read(lazy) == lazy.data_ptr() != form.read(source) == source.data_ptr()


def test_a_tensor_without_elements_has_no_address():
    assert _core.TensorSignature(torch.zeros(0, 6)).read(torch.zeros(2, 6)[1:1]) == 0


def test_a_tensor_without_memory_of_its_own_is_not_read():
    form = _core.TensorSignature(torch.zeros(4, 6))
    assert form.read(torch.zeros(4, 6).to_sparse()) is None
    read = []
    torch.vmap(lambda row: (read.append(form.read(row)), row)[1])(torch.zeros(2, 4, 6))
    assert read == [None]


class FakeArray:
    """What is looked at of cupy's arrays."""

    __cuda_array_interface__ = None

    def __init__(self, pointer, shape=(4, 6), strides=(24, 4), dtype="float32", device=0):
        self.data = SimpleNamespace(ptr=pointer, device_id=device)
        self.shape, self.strides, self.dtype = shape, strides, np.dtype(dtype)


def test_arrays_of_cupy_are_read_by_their_attributes():
    form = _core.TensorSignature(FakeArray(4096))
    assert not form.reads_torch
    assert form.read(FakeArray(8192)) == 8192
    for changed in ({"shape": (6, 4)}, {"strides": (4, 16)}, {"dtype": "int32"}, {"device": 1}):
        assert form.read(FakeArray(8192, **changed)) is None


@pytest.mark.parametrize("tensor", [np.zeros((4, 6)), np.zeros(3, ml_dtypes.bfloat16), 4096, None])
def test_what_has_no_device_memory_has_no_form(tensor):
    assert _core.TensorSignature(tensor).read(tensor) is None
