"""Parameters and outputs of an epilogue function: what a user's function is called with, and what it returns."""

from __future__ import annotations

import functools
import inspect
import keyword
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pycutlass.calls import shown
from pycutlass.epilogue import functions
from pycutlass.epilogue.graph import Graph, Input, Value, element_named
from pycutlass.epilogue.places import names_here, where_defined, where_raised
from pycutlass.epilogue.protocol import Scalar
from pycutlass.epilogue.trace import Trace
from pycutlass.epilogue.traced import Reduced, Traced
from pycutlass.errors import ArgumentError, ArgumentTypeError, DescriptionError, PyCutlassError
from pycutlass.integers import real
from pycutlass.types import element

__all__ = ["Column", "Marker", "PerBatch", "Row", "Source", "Tensor", "parameters", "traced"]

#: What the accumulator is called in graphs, so that functions are equal whatever they call it.
_ACCUMULATOR = "accum"
#: Names that others have, and whose they are.
_TAKEN = {
    **dict.fromkeys(("A", "B", "C", "D", "scale_A", "scale_B"), "an operand's name"),
    **dict.fromkeys(("lda", "ldb", "ldc", "ldd"), "the name of an operand's leading dimension"),
    "problem_sizes": "what groups are given their sizes by",
    **dict.fromkeys(
        ("element_output", "epilogue_vector_length", "element_accumulator", "element_epilogue", "self"),
        "taken: epilogue functions are called with that name for something else",
    ),
    _ACCUMULATOR: "the accumulator's name, whatever the first parameter is called",
}

#: What markers are, by their forms.
_MEANING = {
    "row": """A vector with an element for each column, of shape (N,), in a batch also (batch, N).

    The columns are those of what it is combined with: of D, or before `pairs` of the product, while behind `pairs` they
    are N / 2. ``Row(cutlass.float32)`` says the element type as well, which is else that of D.
    """,
    "column": """A vector with an element for each row of D, of shape (M,), in a batch also (batch, M).

    ``Column(cutlass.float32)`` says the element type as well, which is else that of D.
    """,
    "matrix": """A matrix as large as what it is combined with, of shape (M, N), in a batch also (batch, M, N).

    That is D, or before `pairs` the product, while behind `pairs` it has N / 2 columns. It lies row by row unless a
    `TensorDescription` says otherwise, with any leading dimension. ``Tensor(cutlass.float32)`` says the element type as
    well, which is else that of D.
    """,
    "number": """A number in memory for each matrix of a batch or problem of a group, of shape (1,) or (batch,).

    A `Scalar` is one number for all of them. ``PerBatch(cutlass.float32)`` says the element type as well, which is else
    that of D.
    """,
    "source": """Operand C, of the shape and the type of C: (M, N), in a batch also (batch, M, N).

    As C it may be a bias, too, of (N,) where it lies row by row. It is given as ``C``, and in NumPy by its name.
    """,
}


@dataclass(frozen=True)
class Marker:
    """Says of a parameter what it stands for: `Row`, `Column`, `Tensor`, `Source`, `PerBatch` or `Scalar`.

    Called with an element type of ``cutlass``, it says that as well: ``bias: Row(cutlass.float32)``.
    """

    name: str
    form: str
    kind: str | None = None

    def __post_init__(self) -> None:
        self.__dict__["__doc__"] = _MEANING[self.form]  # for help() and notebooks

    def __call__(self, *kinds: Any) -> Marker:
        """Return the marker for tensors of an element type."""
        if len(kinds) != 1:
            raise DescriptionError(
                f"{self.name} is called with one element type, got {len(kinds)}: write {self.name}, or "
                f"{self.name}(cutlass.float32) where the function is to say the type"
            )
        (kind,) = kinds
        if self.form == "source":
            raise DescriptionError("Source is operand C, whose description says its type: leave the type out")
        return Marker(self.name, self.form, element(kind).short)

    def __repr__(self) -> str:
        return self.name if self.kind is None else f"{self.name}({element_named(self.kind)})"


#: A vector with an element for each column of what it is combined with: of D, or before `pairs` of the product.
Row = Marker("Row", "row")
#: A vector with an element for each row of D.
Column = Marker("Column", "column")
#: A matrix of the extents of what it is combined with: of D, or before `pairs` of the product.
Tensor = Marker("Tensor", "matrix")
#: A number in memory for each matrix of a batch, while a `Scalar` is one for all of them.
PerBatch = Marker("PerBatch", "number")
#: Operand C.
Source = Marker("Source", "source")

_MARKERS = {"row": Row, "column": Column, "tensor": Tensor, "source": Source, "perbatch": PerBatch}
_MEANT = "Row, Column, Tensor, Source, PerBatch or Scalar"


def traced(
    function: Callable[..., Any], inputs: tuple[Input, ...], name: str, written: Callable[..., Any] | None = None
) -> Graph:
    """Return the graph of a function that takes `inputs` by position, which the user has `written`, or another.

    Raises
    ------
    DescriptionError
        It cannot be traced, or returns something else than values of its own.
    """
    trace = Trace(inputs)
    values = [Traced(trace, trace.add(Value("input", (), (each.name,)))) for each in inputs]
    try:
        returned = function(*values)
    except ArgumentTypeError as error:  # of a call that cannot be made, which has no line
        raise DescriptionError(f"{where_raised(error)}{error}") from error
    except PyCutlassError:
        raise
    except Exception as error:  # of the user's code
        raise DescriptionError(
            f"{where_raised(error)}{name} raised {type(error).__name__} while it was traced{_said_by(error)}"
        ) from error
    try:
        outputs = _outputs(trace, returned, name)
    except DescriptionError as error:
        raise DescriptionError(f"{where_defined(written or function)}{error}") from error.__cause__
    return trace.graph(
        {key: value._number for key, value in outputs.items()}, lambda: where_defined(written or function)
    )


def _said_by(error: Exception) -> str:
    """Return the message of an exception of anyone's, for the end of ours; nothing where it has none."""
    try:
        said = str(error)
    except Exception:  # of whoever wrote the class
        return ""
    name = error.name if isinstance(error, NameError) else None
    if name in functions.__all__:  # names of Python's own among them, so that `import *` brings none
        said += f". Write from pycutlass.epilogue import {name}, since import * does not bring it"
    return f": {said}" if said else ""


def parameters(function: Callable[..., Any], name: str) -> tuple[Input, ...]:
    """Return the parameters of a function, by their annotations: the first is the accumulator.

    Raises
    ------
    DescriptionError
        One without an annotation, or with another one.
    """
    try:
        return _parameters(function, name)
    except DescriptionError as error:
        raise DescriptionError(f"{where_defined(function)}{error}") from error.__cause__


def _parameters(function: Callable[..., Any], name: str) -> tuple[Input, ...]:
    if inspect.isgeneratorfunction(function) or inspect.iscoroutinefunction(function):
        raise DescriptionError(f"{name} is a generator or asynchronous: an epilogue function returns D, once")
    signature = _signature(function, name)
    inputs: list[Input] = []
    for each in signature.parameters.values():
        if each.kind in (each.VAR_POSITIONAL, each.VAR_KEYWORD):
            stars = "*" if each.kind is each.VAR_POSITIONAL else "**"
            raise DescriptionError(
                f"{name} takes {stars}{each.name}: name each parameter, since each is given by its name"
            )
        if each.kind is each.KEYWORD_ONLY and isinstance(function, functools.partial):
            raise DescriptionError(
                f"{name} is a functools.partial, which takes {each.name} by keyword only: write a function that calls "
                f"it, def f(accum, ...), with the numbers that it is to have"
            )
        if each.kind is each.KEYWORD_ONLY:
            raise DescriptionError(f"{name} takes {each.name} by keyword only: leave out the * before it")
        inputs.append(_parameter(name, each) if inputs else _accumulator(name, each))
    if not inputs:
        raise DescriptionError(f"{name} takes no parameters: the first is the accumulator, def {name}(accum)")
    if sum(each.form == "source" for each in inputs) > 1:
        raise DescriptionError(f"{name} has two parameters of Source, which is operand C: use Tensor for the others")
    return tuple(inputs)


def _signature(function: Callable[..., Any], name: str) -> inspect.Signature:
    try:  # annotations may be text, of names where the function is written
        return inspect.signature(function, eval_str=True, locals=names_here())
    except Exception:  # a name that is not there
        try:
            return inspect.signature(function)
        except Exception as error:  # of functions written in C, or of whoever wrote the class
            raise DescriptionError(
                f"{name} does not say what its parameters are, as functions written in C do not: write a function that "
                f"calls it, as in def f(accum): return {name}(accum)"
            ) from error


def _marker(parameter: inspect.Parameter) -> Any:
    marker = parameter.annotation
    if isinstance(marker, str):  # as class forms have it, or names that could not be found
        word = marker.rpartition(".")[2].strip("'\" ").lower()
        if word == "scalar()":
            return Scalar()  # which says how it is written
        return Scalar if word == "scalar" else _MARKERS.get(word, marker)
    return marker


def _accumulator(function: str, parameter: inspect.Parameter) -> Input:
    name, marker = parameter.name, _marker(parameter)
    if name in ("self", "cls"):
        raise DescriptionError(
            f"{function} is a method, whose first parameter is {name}: write a function, def {function}(accum, ...)"
        )
    is_left_out = isinstance(marker, Marker) or marker is Scalar
    is_meant_well = name.startswith("acc") and marker == Tensor
    if is_left_out and not is_meant_well:
        other = f"def {function}(accum)" if name.startswith("acc") else f"def {function}(accum, {name}: ...)"
        raise DescriptionError(
            f"{function} has {name}: {'Scalar' if marker is Scalar else repr(marker)} as its first parameter, which is "
            f"the accumulator and has no annotation: {other}"
        )
    if parameter.default is not parameter.empty:
        raise DescriptionError(
            f"{function} has {name} = {shown(parameter.default)} as its first parameter, which is the accumulator and "
            f"has no default: def {function}(accum, ...)"
        )
    return Input(_ACCUMULATOR, "accumulator")


def _parameter(function: str, parameter: inspect.Parameter) -> Input:
    name, marker, default = parameter.name, _marker(parameter), parameter.default
    if name in _TAKEN:
        raise DescriptionError(f"{function} has a parameter {name}, which is {_TAKEN[name]}: use another name")
    if marker is Scalar:
        try:
            number = None if default is parameter.empty else real(default)
        except ArgumentError as error:
            raise DescriptionError(f"{function} has a default of {name} that is too large: {error}") from error
        if default is not parameter.empty and (number is None or number != number):
            raise DescriptionError(f"{function} has {name}: Scalar = {shown(default)}, which is no number")
        return Input(name, "scalar", number)
    if isinstance(marker, Scalar):  # called as the others may be
        raise DescriptionError(
            f"{function} has a parameter {name} with a Scalar of its own: write {name}: Scalar, which is of the type "
            f"that is computed in, with a default perhaps, as in {name}: Scalar = 1.0"
        )
    if not isinstance(marker, Marker):
        written = shown(marker).removeprefix("the class ")
        if written.startswith("<class "):
            written = f"{marker.__module__}.{marker.__qualname__}"
        got = "no annotation" if marker is parameter.empty else f"the annotation {written}"
        example = "Scalar" if isinstance(default, int | float) or marker in (int, float) else "Row"
        of_lambdas = "; a lambda has no annotations, so write def" if function == "<lambda>" else ""
        raise DescriptionError(
            f"{function} has a parameter {name} with {got}: say what it is by {_MEANT} of pycutlass.epilogue, as in "
            f"{name}: {example}{of_lambdas}"
        )
    if default is not parameter.empty:
        raise DescriptionError(f"{function} has {name}: {marker!r} = {shown(default)}: tensors have no defaults")
    return Input(name, marker.form, None, marker.kind)


def _outputs(trace: Trace, returned: Any, name: str) -> dict[str, Traced | Reduced]:
    if isinstance(returned, tuple | list) and returned:
        raise DescriptionError(
            f"{name} returns a {type(returned).__name__} of {len(returned)}: several outputs have names, as in return "
            f"{{'D': x, 'T': y}}"
        )
    outputs = returned if isinstance(returned, dict) else {"D": returned}
    if "D" not in outputs:
        raise DescriptionError(
            f"{name} returns {', '.join(map(str, outputs)) or 'nothing'}: one output must be D, as in return "
            f"{{'D': x, ...}}"
        )
    inputs = {each.name for each in trace.inputs}
    for key, value in outputs.items():
        if type(key) is not str or not key.isidentifier() or keyword.iskeyword(key):
            raise DescriptionError(f"{name} returns an output {shown(key)}: outputs are named as variables are")
        if key in inputs or (key in _TAKEN and key != "D"):
            whose = "also an input" if key in inputs else _TAKEN[key]
            raise DescriptionError(f"{name} returns an output {key}, which is {whose}: use another name")
        if isinstance(value, tuple | list) and any(isinstance(each, Traced | Reduced) for each in value):
            raise DescriptionError(
                f"{name} returns a {type(value).__name__} as {key}: each output has one value, so give what pairs or "
                f"top_k returns a name each, as in values, indices = top_k(x, 2)"
            )
        if not isinstance(value, Traced | Reduced):
            raise DescriptionError(
                f"{name} returns {shown(value)} as {key}, which is no value of the function: return what was computed "
                f"from its parameters{' (a return is missing)' if value is None else ''}"
            )
        if value._trace is not trace:
            raise DescriptionError(f"{name} returns a value of another function as {key}")
        if isinstance(value, Traced) and trace.is_truth(value._number):
            raise DescriptionError(f"{name} returns a condition as {key}: use where(x, 1.0, 0.0)")
    if isinstance(D := outputs["D"], Reduced):
        raise DescriptionError(
            f"{name} returns {D._WHAT} as D: D is the whole matrix, and goes with it under a name of its own, as in "
            f"{D._EXAMPLE.format(name=D._name)}"
        )
    return outputs
