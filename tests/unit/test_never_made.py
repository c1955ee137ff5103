"""Objects that no constructor has made, methods without their object, keywords of odd classes, and what is deleted."""

from __future__ import annotations

import copy
import enum
from typing import Any

import numpy as np
import pytest
import torch
from descriptions import run_python
from misuse import CALLS, CONV, GEMM, GROUPED, REDUCTION, _conv, _f32, _gemm, _group, _reduce

import pycutlass
from pycutlass import _core, cutlass
from pycutlass.cache import KernelCache
from pycutlass.errors import ArgumentError, ArgumentTypeError, PyCutlassError
from pycutlass.tensor import wrap

pytestmark = pytest.mark.usefixtures("without_gpu")

ARGUMENTS = {
    pycutlass.GemmArguments: _gemm,
    pycutlass.GemmGroupedArguments: _group,
    pycutlass.Conv2dArguments: _conv,
    pycutlass.ReductionArguments: _reduce,
}
CLASSES = [
    *ARGUMENTS,
    *map(type, (GEMM, GROUPED, CONV, REDUCTION)),
    pycutlass.MathInstruction,
    pycutlass.TileDescription,
    pycutlass.TensorDescription,
    pycutlass.LinearCombination,
    pycutlass.TensorSpec,
    pycutlass.GemmProblemSize,
    pycutlass.DeviceTimer,
]


class _Text(str):
    """A keyword that cannot be compared."""

    __hash__ = str.__hash__

    def __eq__(self, other: object) -> bool:
        raise RuntimeError("of the keyword's own")


# Methods and constructors without an object of their class


@pytest.mark.parametrize("kind", CLASSES, ids=lambda kind: kind.__name__)
def test_a_constructor_needs_its_object(kind):
    words = (
        rf"^{kind.__name__}.__init__ needs an object of {kind.__name__} first, got .*: write {kind.__name__}\(\.\.\.\)"
    )
    for call in (
        lambda: kind.__init__(),
        lambda: kind.__init__(self=1),
        lambda: kind.__init__(3),
        lambda: kind.__init__(object(), 1, 2, 3),
        lambda: kind.__init__(kind, 1),
    ):
        with pytest.raises(ArgumentTypeError, match=words):
            call()


def test_a_method_needs_its_object():
    for call in (
        lambda: pycutlass.GemmArguments.update(),
        lambda: pycutlass.GemmArguments.update(3, A=None),
        lambda: pycutlass.GemmArguments.sync(),
        lambda: type(GEMM).run(),
        lambda: type(GEMM).run(3, None),
        lambda: type(GEMM).supports(CONV, (4, 8, 16)),
    ):
        with pytest.raises(ArgumentTypeError, match=r"needs an object of \w+ first, got .*: call it on one"):
            call()


def test_a_derived_class_has_the_methods():
    class Derived(pycutlass.TensorSpec):
        pass

    assert Derived((4, 8), cutlass.float32).shape == (4, 8)


# Keywords


def test_keywords_that_cannot_be_compared_are_their_text():
    # Those of groups and reductions are functions of Python, and members of enumerations are found by Python.
    plain = {f"{kind.__name__}.update" for kind in (pycutlass.GemmGroupedArguments, pycutlass.ReductionArguments)}
    tried = 0
    for call in CALLS:
        if call.name in plain or call.name.endswith("=") or isinstance(call.function, enum.EnumMeta):
            continue
        for name in ("bogus", *list(call.keywords())[:1]):
            keywords: dict[str, Any] = {key: value for key, value in call.keywords().items() if key != name}
            try:
                call.function(**keywords, **{_Text(name): None})
            except PyCutlassError:
                pass
            except Exception as error:
                raise AssertionError(f"{call.name} with {name}") from error
            tried += 1
    assert tried > 100
    assert pycutlass.TensorSpec(**{_Text("shape"): (4, 8), _Text("dtype"): cutlass.float32}).shape == (4, 8)
    assert cutlass.MatrixCoord(**{_Text("row"): 3, _Text("column"): 4}) == cutlass.MatrixCoord(3, 4)


# Arguments by __new__ alone


@pytest.mark.parametrize("kind", ARGUMENTS, ids=lambda kind: kind.__name__)
def test_arguments_that_were_never_made_say_so(kind):
    arguments = kind.__new__(kind)
    tensors = [_f32(4, 16)] * 3 if kind is pycutlass.GemmGroupedArguments else _f32(4, 16)
    for use in (lambda: arguments.update(A=tensors), arguments.update, arguments.sync, lambda: arguments.launch_config):
        with pytest.raises(ArgumentTypeError, match=f"these {kind.__name__} were never made"):
            use()
    assert not arguments.launched and repr(arguments) == f"<{kind.__name__}>"
    with pytest.raises(AttributeError):
        arguments.operation  # noqa: B018


# What cannot be deleted


@pytest.mark.parametrize("operation", [GEMM, GROUPED, CONV, REDUCTION], ids=lambda each: type(each).__name__)
def test_operations_lose_nothing(operation):
    before = repr(operation)
    for name in (*operation._FIELDS, *operation._FURTHER):
        if hasattr(operation, name):
            with pytest.raises(AttributeError, match=f"{name} of an operation cannot be deleted"):
                delattr(operation, name)
    with pytest.raises(AttributeError):
        del operation.no_such_field
    assert repr(operation) == before and copy.copy(operation) == operation


@pytest.mark.parametrize("kind", ARGUMENTS, ids=lambda kind: kind.__name__)
def test_arguments_lose_nothing(kind):
    arguments = kind(**ARGUMENTS[kind]())
    for name in [name for name in ("operation", *vars(arguments)) if name[0] != "_"]:
        with pytest.raises(AttributeError, match=f"{name} of {kind.__name__} cannot be deleted"):
            delattr(arguments, name)
    arguments.operation.run(arguments)
    arguments.sync()


def test_descriptions_lose_nothing():
    for value in (GEMM.A, GEMM.tile_description, GEMM.epilogue_functor, pycutlass.relu, pycutlass.leaky_relu()):
        before = repr(value)
        for name in (*vars(type(value)).get("__dataclass_fields__", {}), "no_such_field"):
            with pytest.raises(AttributeError):
                delattr(value, name)
        assert repr(value) == before


# Paths and tensors that cannot be


@pytest.mark.parametrize("path", ["\0x", "/tmp/a\0b", "/tmp/\ud800"], ids=ascii)
def test_paths_that_no_file_system_has_are_refused(path, tmp_path):
    with pytest.raises(ArgumentError, match="directory must be a path that the file system can have"):
        KernelCache(path)
    cache = KernelCache(tmp_path)
    for use in (cache.export, cache.import_):
        with pytest.raises(ArgumentError, match="path must be a path that the file system can have"):
            use(path)


def test_a_meta_tensor_is_told_what_this_machine_has(monkeypatch):
    tensor = torch.empty(4, 8, device="meta")
    with pytest.raises(ArgumentTypeError, match="no memory: make it on the CPU, since this machine has no GPU"):
        wrap("A", tensor)
    monkeypatch.setattr(_core, "device_count", lambda: 1)
    with pytest.raises(ArgumentTypeError, match="no memory: make it on a CUDA device"):
        wrap("A", tensor)
    assert wrap("A", np.ones(3)).shape == (3,)


# Classes of the extension: what has no value, or that of another class, would be read as what it is not


_EXTENSION = """
import inspect, pickle
from pycutlass import _core, cutlass

kinds = [each for each in vars(_core).values() if inspect.isclass(each) and hasattr(each, "_pybind11_conduit_v1_")]
assert len(kinds) > 50
values = [cutlass.MatrixCoord(1, 2), cutlass.float16(1), cutlass.RowMajor(8), cutlass.IdentitySwizzle1()]
for kind in kinds:
    for wrong in (lambda: kind.__new__(kind), kind.__mro__[-2], lambda: setattr(kind, "added", 1)):
        try:
            wrong()
        except TypeError:
            continue
        raise AssertionError(kind)
    for value in values:
        try:
            value.__class__ = kind
        except TypeError:
            continue
        raise AssertionError((value, kind))
for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
    assert [repr(each) for each in pickle.loads(pickle.dumps(values, protocol))] == list(map(repr, values))
print("whole")
"""


def test_objects_of_the_extension_have_their_own_value():
    assert run_python(_EXTENSION).strip() == "whole"
