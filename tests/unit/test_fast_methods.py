"""What is called by way of C++: Operation.run, Arguments.update, and functions whose arguments are checked."""

from __future__ import annotations

import copy
import gc
import inspect
import pickle
import pydoc
import sys
import typing
from functools import partial

import fake_gpu
import numpy as np
import pytest
from descriptions import ampere

import pycutlass
from pycutlass import GemmArguments, GemmOperationUniversal
from pycutlass.arguments.base import Arguments
from pycutlass.calls import public
from pycutlass.compiler import add_module
from pycutlass.errors import ArgumentError, ArgumentTypeError
from pycutlass.operation import Operation

_HARNESS = """
import sys, weakref
operation = gemm()
M, N, K = 8, 12, 16

def operands(seed):
    a, b = on_host(M, K, seed), on_host(K, N, seed + 1, "F")
    return Array(0, a), Array(0, b), Array(0, np.full((M, N), np.nan, np.float32)), a @ b

def functions_of(call):
    # Names of the functions in Python that a call enters.
    entered = set()
    sys.setprofile(lambda frame, event, _: entered.add(frame.f_code.co_name) if event == "call" else None)
    try:
        call()
    finally:
        sys.setprofile(None)
    return entered

A, B, D, product = operands(1)
other_A, other_B, other_D, other_product = operands(11)
stream = Stream(0)
arguments = pycutlass.GemmArguments(operation, (M, N, K), A, B, None, D)
"""


def _run(program: str) -> None:
    fake_gpu.run(_HARNESS + program)


def test_usual_calls_enter_no_function_in_python() -> None:
    _run(
        """
assert "run" not in functions_of(lambda: operation.run(arguments))
assert "run" not in functions_of(lambda: operation.run(arguments, stream))
arguments = pycutlass.GemmArguments(operation, (M, N, K), A, B, None, D)
assert "update" not in functions_of(lambda: arguments.update(A=other_A, D=other_D))
assert "update" not in functions_of(lambda: arguments.update(B=other_B))
operation.run(arguments)
arguments.sync()
assert (other_D.now() == other_product).all() and np.isnan(D.now()).sum() == 0
"""
    )


def test_other_calls_do_the_same_in_python() -> None:
    _run(
        """
assert "run" in functions_of(lambda: operation.run(arguments=arguments))
assert "run" in functions_of(lambda: operation.run(arguments, stream=stream))
equal = pycutlass.GemmOperationUniversal(*operation._value())
assert equal is not operation and "run" in functions_of(lambda: equal.run(arguments))
arguments.sync()
assert (D.now() == product).all()

arguments = pycutlass.GemmArguments(operation, (M, N, K), A, B, None, D)
scalars = operation.epilogue_type(2.0, 0.0)
assert "update" in functions_of(lambda: arguments.update(A=other_A, B=other_B, output_op=scalars))
assert "update" in functions_of(lambda: arguments.update(D=other_D, epilogue=None))
operation.run(arguments)
arguments.sync()
assert (other_D.now() == 2 * other_product).all()
"""
    )


def test_a_tensor_that_was_exchanged_is_let_go_of() -> None:
    _run(
        """
gone = weakref.ref(D)
arguments.update(D=other_D)
assert arguments.ptr_D == other_D.data.ptr
del D
assert gone() is None
kept = weakref.ref(other_D)
del other_D
assert kept() is not None
"""
    )


def test_what_does_not_fit_is_refused_and_changes_nothing() -> None:
    _run(
        """
small = Array(0, np.zeros((M - 1, K), np.float32))
for given in ({"A": small}, {"A": other_A, "D": A}, {"A": other_A, "B": 3}):
    try:
        arguments.update(**given)
    except pycutlass.errors.PyCutlassError:
        pass
    else:
        raise AssertionError(given)
    assert (arguments.ptr_A, arguments.ptr_B, arguments.ptr_D) == (A.data.ptr, B.data.ptr, D.data.ptr)
operation.run(arguments)
arguments.sync()
assert (D.now() == product).all()
"""
    )


def test_an_exception_of_the_launch_comes_out() -> None:
    _run(
        """
for call in (lambda: operation.run(arguments), lambda: arguments.update(A=other_A, D=other_D)):
    failures = 0
    for number in range(4):
        log()
        driver.fake_fail_at(number, 700)
        try:
            call()
        except pycutlass.errors.DriverError:
            failures += 1
        driver.fake_fail_at(-1, 0)
        use(0)
    assert failures, call
arguments.update(A=A, D=D)
operation.run(arguments)
arguments.sync()
assert (D.now() == product).all()
"""
    )


class _Impostor:
    """What raises when it is asked for an operation."""

    @property
    def operation(self) -> None:
        raise ValueError("this is no operation")


@pytest.mark.parametrize("given", [(), (3,), (None,), (_Impostor(),), ("A", "B"), (1, 2, 3)])
def test_run_refuses_what_are_no_arguments(given: tuple[object, ...]) -> None:
    with pytest.raises(ArgumentTypeError, match="run"):
        ampere("f32_simt").run(*given)


def test_arguments_of_another_operation_are_refused() -> None:
    operation, another = ampere("f32_simt"), ampere("f32_simt", stages=3)
    A, B, D = np.ones((4, 3), np.float32), np.ones((3, 5), np.float32, "F"), np.empty((4, 5), np.float32)
    arguments = GemmArguments(operation, (4, 5, 3), A, B, None, D)
    with pytest.raises(ArgumentError, match="these arguments were made for"):
        another.run(arguments)
    with pytest.raises(ArgumentTypeError, match="update has no keyword E"):
        arguments.update(E=A)
    with pytest.raises(ArgumentTypeError, match="update takes by name alone"):
        arguments.update(A)


def test_they_say_of_themselves_what_the_functions_say() -> None:
    operation = ampere("f32_simt")
    assert list(inspect.signature(GemmOperationUniversal.run).parameters)[:3] == ["self", "arguments", "stream"]
    assert next(iter(inspect.signature(operation.run).parameters)) == "arguments"
    assert "epilogue" in inspect.signature(GemmArguments.update).parameters
    for method, name in ((GemmOperationUniversal.run, "Operation.run"), (GemmArguments.update, "Arguments.update")):
        assert method.__qualname__ == name
        assert method.__doc__ is not None and "Raises" in method.__doc__
        assert method.__module__.startswith("pycutlass.")
        assert inspect.isroutine(method)
        assert inspect.getsource(method).lstrip().startswith("def ")


def test_they_are_copied_and_pickled_as_functions_are_and_only_made_with_one() -> None:
    """One that was made from Python had no function, and whoever asked it anything crashed."""
    for method in (Operation.__dict__["run"], Arguments.__dict__["update"]):
        assert pickle.loads(pickle.dumps(method)) is method
        assert copy.deepcopy(method) is copy.copy(method) is method
        assert repr(method).startswith("<function ")
        with pytest.raises(TypeError, match="cannot create"):
            type(method)()


def test_python_may_remember_where_the_methods_are() -> None:
    """It does so only of a type that cannot change, and finds the methods anew at each call otherwise."""
    for owner, name in ((Operation, "run"), (Arguments, "update")):
        with pytest.raises(TypeError, match="immutable"):
            type(vars(owner)[name]).another = None


@public
def _doubled(value: int, *, again: bool = False) -> int:
    """Return twice the value."""
    return len(value) if again else 2 * value  # type: ignore[arg-type]


@partial(public, also={"arch": "capability"})
class _Described:
    def __init__(self, capability: int, stages: int = 2) -> None:
        self.value = capability, stages

    @classmethod
    def of(cls, capability: int) -> _Described:
        return cls(capability)

    @staticmethod
    def known(capability: int) -> bool:
        return capability == 80


def test_a_checked_call_that_is_right_enters_no_frame_but_its_own() -> None:
    entered = []
    gc.disable()  # of which hypothesis has itself told
    sys.setprofile(lambda frame, event, _: entered.append(frame.f_code.co_name) if event == "call" else None)
    try:
        _doubled(2)
        described = _Described(80, stages=3)
        _Described.of(80)
        described.known(80)
    finally:
        sys.setprofile(None)
        gc.enable()
    assert entered == ["_doubled", "__init__", "of", "__init__", "known"]
    assert described.value == (80, 3)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: _doubled(), ["_doubled missing 1 required", "'value'"]),
        (lambda: _doubled(1, 2), ["_doubled takes 1 positional argument"]),
        (lambda: _doubled(1, agian=True), ["no keyword agian", "Did you mean again?"]),
        (lambda: _Described(), ["_Described missing 1 required", "optionally stages"]),
        (lambda: _Described.of(1, 2), ["_Described.of"]),
        (lambda: _Described.known(), ["_Described.known missing"]),
        (lambda: _Described(80, arch=80), ["give capability or arch"]),
        (lambda: _Described(capability=80, arch=80), ["give capability or arch"]),
    ],
)
def test_a_call_that_is_wrong_is_explained(call, words) -> None:
    with pytest.raises(ArgumentTypeError) as caught:
        call()
    assert all(word in str(caught.value) for word in words)
    assert caught.value.__cause__ is None


def test_keywords_of_earlier_scripts_are_taken() -> None:
    assert _Described(arch=90, stages=4).value == (90, 4)


def test_a_type_error_from_inside_passes_as_it_is() -> None:
    with pytest.raises(TypeError, match=r"object of type 'int' has no len") as caught:
        _doubled(3, again=True)
    assert not isinstance(caught.value, ArgumentTypeError)
    assert caught.traceback[-1].name == "_doubled"


def test_checked_calls_say_of_themselves_what_the_functions_say() -> None:
    assert str(inspect.signature(add_module)).startswith("(operations: ")
    assert list(inspect.signature(_Described).parameters) == ["capability", "stages"]
    assert list(inspect.signature(_Described(80).of).parameters) == ["capability"]
    assert inspect.getsource(add_module).startswith("@public\ndef add_module(")
    assert typing.get_type_hints(_doubled) == {"value": int, "again": bool, "return": int}
    assert _doubled.__name__ == "_doubled" and _doubled.__doc__ == "Return twice the value."
    assert pickle.loads(pickle.dumps(add_module)) is add_module is copy.deepcopy(add_module)
    assert inspect.isroutine(add_module) and "add_module(operations" in pydoc.plain(pydoc.render_doc(add_module))


@pytest.mark.parametrize("function", [pycutlass.matmul, pycutlass.epilogue.top_k, Operation.run, Arguments.update])
def test_help_shows_the_docstring(function: typing.Any) -> None:
    shown = pydoc.plain(pydoc.render_doc(function))
    assert f"{function.__name__}(" in shown and inspect.getdoc(function)
    assert all(line.strip() in shown for line in function.__doc__.splitlines())


def test_help_on_a_function_without_a_docstring() -> None:
    assert "lambda value" in pydoc.plain(pydoc.render_doc(public(lambda value: value)))
