"""Tracing: a function is called with values that note what is done to them."""

from __future__ import annotations

import math
from typing import Any, NoReturn

import numpy as np

from pycutlass.calls import shown
from pycutlass.epilogue import libraries
from pycutlass.epilogue.graph import Value
from pycutlass.epilogue.nodes import NODES, Node
from pycutlass.epilogue.places import where_called
from pycutlass.epilogue.trace import Trace
from pycutlass.errors import ArgumentError, DescriptionError
from pycutlass.imported import is_of
from pycutlass.integers import attribute, real, shape_of

__all__ = ["Reduced", "Trace", "Traced", "applied", "check_known", "is_traced"]

#: What conditions are combined with, as it is written.
_SIGNS = {"logical_and": "&", "logical_or": "|", "logical_not": "~"}

#: How activations are written that others give options.
_WRITTEN = {
    "gelu": 'write gelu(x), or gelu_tanh(x), which is approximate="tanh"',
    "leaky_relu": "write leaky_relu(x, 0.01), with one slope, which is 0.2 where it is left out",
}


def is_traced(value: Any) -> bool:
    """Return whether a value is of a function that is being traced."""
    return isinstance(value, Traced)


def check_known(function: str, **given: Any) -> None:
    """Raise DescriptionError where a function is given a value by a name of what must be known while it is traced."""
    for name, value in given.items():
        if isinstance(value, Traced | Reduced):
            raise DescriptionError(
                f"{where_called()}{function} is given a value of the function as {name}: {name} is part of the kernel, "
                f"an integer that is known when the function is traced, so it comes from around the function and is no "
                f"parameter"
            )


def applied(node: Node, *operands: Any) -> Traced:
    """Return a node of the table applied to traced values and numbers.

    Raises
    ------
    DescriptionError
        Values of two functions, a truth value in place of a number or the other way round, values with N columns and
        with half as many, or something else.
    """
    trace = next(each._trace for each in operands if isinstance(each, Traced))
    numbers = []
    for kind, operand in zip(node.takes, operands, strict=True):
        each = _traced(trace, node, operand)
        if trace.is_truth(each._number) != (kind == "t"):
            wanted, got = ("a condition", "a number") if kind == "t" else ("numbers", "a condition")
            raise DescriptionError(
                f"{where_called()}{_SIGNS.get(node.name, node.name)} takes {wanted}, and is given {got}: "
                f"{_conditions(node) if kind == 't' else 'use where(condition, 1.0, 0.0)'}"
            )
        numbers.append(each._number)
    if not trace.columns.match(numbers):
        whole, half = (" and ".join(trace.with_columns(numbers, columns)) for columns in "nh")
        known = [f"{names} with {extent}" for names, extent in ((whole, "N"), (half, "N / 2")) if names]
        beside = f". By what it is combined with, a Row or Tensor has as many: {', '.join(known)}" if known else ""
        raise DescriptionError(
            f"{where_called()}{node.name} is given a value with all N columns, and one of pairs with N / 2: combine "
            f"what has N columns before pairs(x), as in gate, up = pairs(accum + bias), or take pairs of both"
            f"{beside}"
        )
    return Traced(trace, trace.add(Value(node.name, tuple(numbers))))


def _conditions(node: Node) -> str:
    """Return how a node is given conditions."""
    sign = _SIGNS.get(node.name, "")
    if sign not in ("&", "|"):
        return f"compare it, as in {sign}{'(x > 0)' if sign else 'x > 0'}"
    return (
        f"{sign} comes before comparisons in Python, so put these in parentheses, as in (x > 0) {sign} (x < 6), and "
        f"compare what is a number"
    )


def _named(name: str, *operands: Any) -> Traced:
    return applied(NODES[name], *operands)


def _floor_divided(x: Any, y: Any) -> Traced:
    """Return the floor of x / y, as NumPy's floor_divide has it: right beside the remainder of both.

    The floor of the rounded quotient would not be: 1 / 0.1 is rounded to 10, and 1 % 0.1 is almost 0.1. Less its part
    behind the point, which the remainder is exact for, the quotient is an integer up to rounding.
    """
    trace = next(each._trace for each in (x, y) if isinstance(each, Traced))
    divisor = _traced(trace, NODES["divide"], y)
    known, quotient = divisor._known, applied(NODES["divide"], x, divisor)
    if known == 0:
        return quotient
    rest = applied(NODES["remainder"], x, divisor)
    floor = applied(NODES["round"], quotient - rest / divisor)
    if known is None or math.isinf(known):  # the remainder of two signs is infinite then, and the quotient is below 0
        floor = applied(NODES["where"], abs(rest) == math.inf, -1.0, floor)
    return floor if known is not None else applied(NODES["where"], divisor == 0.0, quotient, floor)


def _divmod(x: Any, y: Any) -> tuple[Traced, Traced]:
    """Return the floor of x / y and the remainder; a function may leave one of them unused."""
    trace = next(each._trace for each in (x, y) if isinstance(each, Traced))
    before = len(trace.values)
    made = _floor_divided(x, y), applied(NODES["remainder"], x, y)
    trace.either.append((tuple(each._number for each in made), range(before, len(trace.values))))
    return made


def _traced(trace: Trace, node: Node, operand: Any) -> Traced:
    """Return an operand as a value of `trace`."""
    if isinstance(operand, Traced):
        if operand._trace is not trace:
            raise DescriptionError(
                f"{where_called()}{node.name} is given a value of another function: each function has values of its "
                f"own, which are of no use outside"
            )
        return operand
    if isinstance(operand, Reduced):
        raise DescriptionError(
            f"{where_called()}{node.name} is given what {operand._name} returned: {operand._COMPLETE}, so that it can "
            f"only be returned"
        )
    try:
        number = None if isinstance(operand, bool) or _is_boolean(operand) else real(operand)
    except ArgumentError as error:
        raise DescriptionError(f"{where_called()}{node.name} is given a number that is too large: {error}") from error
    is_trained = is_of(operand, "torch", "Tensor") and operand.requires_grad  # and would stay what it is now
    if number is None or is_trained or np.ndim(operand):
        shape = shape_of(operand)
        if not shape and is_trained:
            what = f"a {type(operand).__name__} that requires a gradient, and would be a constant of the kernel"
            remedy = "make it a parameter, as in x: Scalar, or pass float(x) if the number that it is now is meant"
        elif not shape:
            what, remedy = shown(operand), "what is known when a kernel runs is a parameter, as in x: Scalar"
        else:
            what = f"a {type(operand).__name__} of shape {shape}"
            remedy = "make a tensor a parameter, as in def f(accum, x: Tensor), or x: Row or x: Column for a vector"
        raise DescriptionError(
            f"{where_called()}{node.name} takes values of the function and real numbers, and is given {what}: {remedy}"
        )
    return Traced(trace, trace.constant(number))


def _is_boolean(operand: Any) -> bool:
    """Return whether what may be a scalar or an array of any library is of truth values."""
    return str(attribute(operand, "dtype")).rpartition(".")[2] == "bool"


class Reduced:
    """A reduction of a traced value: all that can be done with it is to return it."""

    _WHAT = "a reduction"
    _COMPLETE = "a reduction is complete when all of the kernel is"
    #: How it is returned, with the function's name.
    _EXAMPLE = "return {{'D': x, 'total': pycutlass.epilogue.{name}(x, axis=1)}}"

    def __init__(self, trace: Trace, number: int, name: str) -> None:
        self._trace, self._number, self._name = trace, number, name

    def _refuse(self, *_: Any, **__: Any) -> NoReturn:
        raise DescriptionError(
            f"{where_called()}what {self._name} returned is used: {self._COMPLETE}, so that it can only be returned, "
            f"as in {self._EXAMPLE.format(name=self._name)}"
        )

    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __rtruediv__ = _refuse
    __pow__ = __rpow__ = __mod__ = __rmod__ = __neg__ = __abs__ = __bool__ = __float__ = __array_ufunc__ = _refuse
    __lt__ = __le__ = __gt__ = __ge__ = __getitem__ = __iter__ = __len__ = __contains__ = _refuse
    __floordiv__ = __rfloordiv__ = __divmod__ = __rdivmod__ = __matmul__ = __rmatmul__ = __pos__ = __invert__ = _refuse
    __and__ = __rand__ = __or__ = __ror__ = __xor__ = __rxor__ = __round__ = __int__ = __index__ = __array__ = _refuse
    # Python's own would compare objects, and the function would silently go one way.
    __eq__ = __ne__ = _refuse
    __hash__ = object.__hash__

    def activated(self, *_: Any, **__: Any) -> NoReturn:
        """Refuse an activation of the reduction, which `Traced` takes."""
        self._refuse()


class Traced:
    """A value of a function that is being traced: an input, a constant, or what was made of others.

    It takes Python's operators, NumPy's functions and those of `pycutlass.epilogue`.
    """

    __slots__ = ("_number", "_trace")

    def __init__(self, trace: Trace, number: int) -> None:
        self._trace, self._number = trace, number

    @property
    def _known(self) -> float | None:
        """The number that it is, where it is a constant."""
        value = self._trace.values[self._number]
        return float.fromhex(value.data[0]) if value.node == "constant" else None

    def __repr__(self) -> str:
        value = self._trace.values[self._number]
        return f"<{value.data[0] if value.node == 'input' else value.node} of an epilogue function>"

    def __add__(self, other: Any) -> Traced:
        return applied(NODES["add"], self, other)

    def __radd__(self, other: Any) -> Traced:
        return applied(NODES["add"], other, self)

    def __sub__(self, other: Any) -> Traced:
        return applied(NODES["subtract"], self, other)

    def __rsub__(self, other: Any) -> Traced:
        return applied(NODES["subtract"], other, self)

    def __mul__(self, other: Any) -> Traced:
        return applied(NODES["multiply"], self, other)

    def __rmul__(self, other: Any) -> Traced:
        return applied(NODES["multiply"], other, self)

    def __truediv__(self, other: Any) -> Traced:
        return applied(NODES["divide"], self, other)

    def __rtruediv__(self, other: Any) -> Traced:
        return applied(NODES["divide"], other, self)

    def __floordiv__(self, other: Any) -> Traced:
        return _floor_divided(self, other)

    def __rfloordiv__(self, other: Any) -> Traced:
        return _floor_divided(other, self)

    def __mod__(self, other: Any) -> Traced:
        return applied(NODES["remainder"], self, other)

    def __rmod__(self, other: Any) -> Traced:
        return applied(NODES["remainder"], other, self)

    def __divmod__(self, other: Any) -> tuple[Traced, Traced]:
        return _divmod(self, other)

    def __rdivmod__(self, other: Any) -> tuple[Traced, Traced]:
        return _divmod(other, self)

    def __pow__(self, other: Any) -> Traced:
        exponent = _traced(self._trace, NODES["power"], other)
        if exponent._known == 2.0:
            return self * self  # exactly, as NumPy has it
        return applied(NODES["power"], self, exponent)

    def __rpow__(self, other: Any) -> Traced:
        return applied(NODES["power"], other, self)

    def __neg__(self) -> Traced:
        return applied(NODES["negative"], self)

    def __pos__(self) -> Traced:
        return self

    def __abs__(self) -> Traced:
        return applied(NODES["abs"], self)

    def __round__(self, digits: Any = None) -> Traced:
        if digits is not None:
            self._refuse("rounded to digits", "round(x) rounds to an integer; for digits write round(x * 100) / 100")
        return applied(NODES["round"], self)

    def __lt__(self, other: Any) -> Traced:
        return applied(NODES["less"], self, other)

    def __le__(self, other: Any) -> Traced:
        return applied(NODES["less_equal"], self, other)

    def __gt__(self, other: Any) -> Traced:
        return applied(NODES["greater"], self, other)

    def __ge__(self, other: Any) -> Traced:
        return applied(NODES["greater_equal"], self, other)

    def __eq__(self, other: object) -> Traced:  # type: ignore[override]
        return applied(NODES["equal"], self, other)

    def __ne__(self, other: object) -> Traced:  # type: ignore[override]
        return applied(NODES["not_equal"], self, other)

    def activated(self, kind: Any, *extra: Any, **named: Any) -> Traced:
        """Return an activation of the value: what ``gelu(x)`` and ``gelu.numpy(x)`` are in an epilogue function."""
        name = kind.__name__
        if name == "leaky_relu" and len(extra) + ("leaky_alpha" in named) <= 1:
            slope, extra = named.pop("leaky_alpha", (*extra, kind.extra[0][1])[0]), ()
        if extra or named:
            given = ", ".join((*map(shown, extra), *(f"{each}={shown(value)}" for each, value in named.items())))
            written = _WRITTEN.get(name, f"write {name}(x)")
            self._refuse(f"given to {name} with {given}", written)
        if name == "identity":
            return self
        if name == "relu":
            return applied(NODES["maximum"], self, 0.0)
        if name == "leaky_relu":
            return applied(NODES["where"], self > 0.0, self, self * slope)
        return applied(NODES[name], self)

    def __and__(self, other: Any) -> Traced:
        return applied(NODES["logical_and"], self, other)

    def __or__(self, other: Any) -> Traced:
        return applied(NODES["logical_or"], self, other)

    def __rand__(self, other: Any) -> Traced:
        return applied(NODES["logical_and"], other, self)

    def __ror__(self, other: Any) -> Traced:
        return applied(NODES["logical_or"], other, self)

    def __xor__(self, other: Any) -> NoReturn:
        self._refuse("combined by ^", "where one of two conditions holds, and not both, is (a | b) & ~(a & b)")

    __rxor__ = __xor__

    def __invert__(self) -> Traced:
        return applied(NODES["logical_not"], self)

    __hash__ = None  # type: ignore[assignment]

    def __array_ufunc__(self, ufunc: Any, method: str, *operands: Any, **options: Any) -> Any:
        if ufunc is np.power and method == "__call__" and isinstance(operands[0], Traced) and not options:
            return operands[0] ** operands[1]
        if ufunc in (np.floor_divide, np.divmod) and method == "__call__" and not options:
            return (_divmod if ufunc is np.divmod else _floor_divided)(*operands)
        return libraries.numpy_ufunc(_named, self._refuse, ufunc, method, operands, options)

    def __array_function__(self, function: Any, types: Any, args: Any, options: Any) -> Any:
        return libraries.numpy_function(_named, self._refuse, function, args, options)

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), options: Any = None) -> Any:
        given = (*args, *(options or {}).values())
        lists = (each for one in given if isinstance(one, tuple | list) for each in one)  # as torch.stack has them
        traced = next(each for each in (*given, *lists) if isinstance(each, Traced))
        if getattr(function, "__name__", "") in ("floor_divide", "__floordiv__") and len(args) == 2 and not options:
            return _floor_divided(*args)
        return libraries.torch_function(_named, traced._refuse, function, args, options or {})

    def _refuse(self, what: str, remedy: str) -> NoReturn:
        raise DescriptionError(f"{where_called()}a value of an epilogue function is {what}: {remedy}")

    def __bool__(self) -> bool:
        self._refuse(
            "asked for its truth, by if, and, or, not, min, max or a chain of comparisons",
            "control flow would be decided once, when the function is traced. Use pycutlass.epilogue.where(condition, "
            "a, b), &, | and ~, and pycutlass.epilogue.minimum and maximum",
        )

    def __float__(self) -> float:
        self._refuse(
            "made a number, by float() or a function of math",
            "it is known when a kernel runs. Use the functions of pycutlass.epilogue, such as exp, sqrt or tanh",
        )

    __int__ = __index__ = __complex__ = __float__

    def __array__(self, *_: Any, **__: Any) -> Any:
        self._refuse("made an array", "it is known when a kernel runs. Use the functions of pycutlass.epilogue")

    def __iter__(self) -> Any:
        self._refuse("taken apart", "it stands for one element of D, and has no items")

    def __getitem__(self, key: Any) -> Any:
        self._refuse(
            "indexed",
            f"it stands for one element of D. For a part of a parameter, index what you give for it; for neighbouring "
            f"columns {libraries.PAIRS}",
        )

    def __setitem__(self, key: Any, value: Any) -> None:
        self._refuse("written to", "values never change. Compute another one, as in x = where(condition, 0.0, x)")

    def __matmul__(self, other: Any) -> Any:
        self._refuse("multiplied as a matrix", "it stands for one element of D, which is all that an epilogue sees")

    __rmatmul__ = __matmul__

    def __len__(self) -> int:
        self._refuse("asked for its length", "it stands for one element of D")

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if name in ("shape", "size", "ndim", "numel"):
            self._refuse(f"asked for .{name}", "sizes are known when a kernel runs. Take such a number as a Scalar")
        usual = "use operators, and the functions of pycutlass.epilogue, such as cast, clamp or sum"
        self._refuse(f"asked for .{name}", f"it has no methods: {libraries.instead(name) or usual}")
