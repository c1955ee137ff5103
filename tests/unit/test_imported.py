"""Libraries that are there in part: stand-ins of their name, and an import that has not come to its end."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any

import fake_gpu
import numpy as np
import pytest
from misuse import CONV, GEMM, GROUPED, REDUCTION, _conv, _f32, _gemm, _group, _reduce

import pycutlass
from pycutlass import _core
from pycutlass.device import current_stream_source, with_streams
from pycutlass.errors import ArgumentTypeError, ToolkitError
from pycutlass.imported import imported, is_of
from pycutlass.tensor import wrap


def _raising() -> ModuleType:
    module = ModuleType("torch")
    module.__getattr__ = lambda name: 1 // 0  # type: ignore[method-assign,assignment]
    return module


def _begun(**parts: Any) -> ModuleType:
    module = ModuleType("torch")
    module.__dict__.update(parts)
    return module


MODULES: dict[str, Callable[[], Any]] = {
    "without attributes": _begun,
    "None": lambda: None,
    "raising": _raising,
    "no module": object,
    "with a class": lambda: _begun(Tensor=type("Tensor", (), {}), ndarray=type("ndarray", (), {})),
    "with other things": lambda: _begun(Tensor=3, ndarray=None, nn=None, cuda=None, is_grad_enabled=None),
    "with half of cuda": lambda: _begun(Tensor=type("Tensor", (), {}), cuda=SimpleNamespace(), nn=SimpleNamespace()),
}


@pytest.fixture(params=MODULES)
def in_part(request, monkeypatch):
    """Neither torch nor cupy is there as a whole."""
    for name in ("torch", "torch.nn", "torch._subclasses.fake_tensor", "cupy"):
        monkeypatch.setitem(sys.modules, name, MODULES[request.param]())


@pytest.mark.usefixtures("in_part", "without_gpu")
def test_the_host_needs_nothing_of_them():
    for make, keywords, exchanged in (
        (pycutlass.GemmArguments, _gemm(), _f32(4, 16)),
        (pycutlass.GemmGroupedArguments, _group(), [_f32(4, 16)] * 3),
        (pycutlass.Conv2dArguments, _conv(), _f32(1, 4, 4, 8)),
        (pycutlass.ReductionArguments, _reduce(), None),
    ):
        arguments = make(**keywords)
        operation = keywords["operation"]
        operation.run(arguments)
        arguments.sync()
        arguments.update(A=exchanged)
        operation.run(arguments)
        assert operation in (GEMM, GROUPED, CONV, REDUCTION)
    assert GEMM.supports((4, 8, 16), {"A": _f32(4, 16)})


@pytest.mark.usefixtures("in_part")
def test_what_is_no_tensor_is_none_of_theirs():
    with pytest.raises(ArgumentTypeError, match="operand A must be a tensor"):
        wrap("A", object())
    assert wrap("A", _f32(2, 3)).library == "numpy"
    assert _core.gpu_of(object(), wrap) is None


@pytest.mark.usefixtures("in_part")
def test_the_current_stream_of_none_is_the_default_stream():
    assert with_streams() == "" and current_stream_source("", 0)() == 0


@pytest.mark.parametrize("name", ["without attributes", "raising", "no module"])
@pytest.mark.parametrize("library", ["torch", "cupy"])
def test_their_memory_cannot_be_had(monkeypatch, name, library):
    monkeypatch.setitem(sys.modules, library, MODULES[name]())
    with pytest.raises(ToolkitError, match=f"which the module {library} of this process lacks"):
        pycutlass.set_allocator(library)


def test_parts_of_modules(monkeypatch):
    monkeypatch.setitem(sys.modules, "here", _begun(part=SimpleNamespace(of_it=int)))
    assert imported("here", "part", "of_it") is int and imported("here", "part", "other", "more") is None
    assert imported("nowhere", "part") is None and imported("nowhere") is None
    assert is_of(np.float64(1), "numpy", "floating") and not is_of(1.0, "here", "part")


_PROGRAM = """
import sys
from types import ModuleType

torch = ModuleType("torch")
torch.__getattr__ = lambda name: 1 // 0
for name, module in (("torch", torch), ("torch.nn", ModuleType("torch.nn"))):
    sys.modules[name] = module

def operands(seed):
    A, B = Array(0, on_host(5, 7, seed)), Array(0, on_host(7, 6, seed + 1, order="F"))
    return A, B, Array(0, np.zeros((5, 6), np.float32))

single, several = gemm(), group("device")
for seed in (1, 3, 5):
    A, B, D = operands(seed)
    arguments = pycutlass.GemmArguments(single, (5, 6, 7), A, B, None, D)
    single.run(arguments)
    arguments.sync()
    assert (D.now() == A.now() @ B.now()).all()
    A, B, D = zip(*(operands(seed + 10 * number) for number in range(3)))
    arguments = pycutlass.GemmGroupedArguments(several, [(5, 6, 7)] * 3, list(A), list(B), None, list(D))
    several.run(arguments)
    arguments.sync()
    assert all((d.now() == a.now() @ b.now()).all() for a, b, d in zip(A, B, D))
    pycutlass.DeviceTimer(seconds=0.01).time(lambda: several.run(arguments))
"""


def test_a_gpu_needs_nothing_of_them():
    fake_gpu.run(_PROGRAM)
