"""Activations: what an epilogue applies last. Each spells its C++ and carries its reference.

What is more than a comparison and a product is written in include/pycutlass/activation.h: CUTLASS's own approximate,
and lose their digits in f16.
"""

from __future__ import annotations

import functools
import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from pycutlass.calls import meant, no_such_field, public, shown
from pycutlass.errors import DescriptionError
from pycutlass.integers import attribute, shape_of
from pycutlass.types import ELEMENT_OF_TAG, Element, element

__all__ = [
    "Activation",
    "activation_named",
    "as_others_write",
    "check_activation",
    "gelu",
    "gelu_tanh",
    "hardswish",
    "identity",
    "leaky_relu",
    "relu",
    "sigmoid",
    "silu",
    "tanh",
]

Array = NDArray[Any]


class _Fixed:
    """What `Activation` falls back on for names that are none of its fields: its classes are no dataclasses."""

    def __setattr__(self, name: str, value: Any) -> None:
        raise no_such_field(self, name, ("element_compute",))

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"{name} of {type(self).__name__} cannot be deleted")


@public
@dataclass(frozen=True)
class Activation(_Fixed, ABC):
    """An elementwise function applied to alpha * accumulator + beta * C.

    Parameters
    ----------
    element_compute : element type of ``cutlass``, optional
        Type to compute in, as in the guide. The epilogue functor's own compute type decides; naming another here is an
        error there.
    """

    element_compute: Any = None

    #: Class template in C++.
    tag: ClassVar[str] = ""
    #: What the C++ is right to, relative to the result and absolute, in epsilons of the type that it is computed in:
    #: roundings, and the errors that CUDA's manual states of ``exp``, ``tanh``, ``erf`` and ``erfc``.
    relative_error: ClassVar[float] = 0.0
    absolute_error: ClassVar[float] = 0.0
    #: Whether it is the same function of integers. The others need fractions: in integers, CUTLASS's code does not
    #: compile, or scales without them (leaky_relu).
    of_integers: ClassVar[bool] = False
    #: Names and defaults of scalars behind alpha and beta.
    extra: ClassVar[tuple[tuple[str, float], ...]] = ()

    def __new__(cls, /, *given: Any, **named: Any) -> Any:
        """Apply the activation to a value of an epilogue function; make an activation of anything else."""
        if given and hasattr(type(given[0]), "activated"):
            return given[0].activated(cls, *given[1:], **named)
        if given and _is_of_numbers(given[0]):
            raise DescriptionError(
                f"{cls.__name__} takes a value of an epilogue function, or an element type, and is given "
                f"{shown(given[0])}: of numbers and arrays it is {cls.__name__}.numpy(x)"
            )
        return super().__new__(cls)

    def __init_subclass__(cls) -> None:
        """Let `numpy` take values of an epilogue function as well."""
        computed = cls.numpy

        @functools.wraps(computed)
        def numpy(x: Any, *extra: Any, **named: Any) -> Any:
            if hasattr(type(x), "activated"):
                return x.activated(cls, *extra, **named)
            return computed(x, *extra, **named)

        cls.numpy = staticmethod(numpy)  # type: ignore[method-assign]

    def __post_init__(self) -> None:
        if self.element_compute is not None:
            object.__setattr__(self, "element_compute", element(self.element_compute).tag)

    def emit(self) -> str:
        """Return the class template's name in C++."""
        return self.tag

    @classmethod
    def error(cls, compute: Element) -> tuple[float, float]:
        """Return the relative and the absolute error that the C++ may have in a compute type.

        f16 is computed in f32 and rounded once. Results that are no normal numbers may lose digits, and factors of
        f32 that are none may be 0.
        """
        if not cls.relative_error:
            return 0.0, 0.0
        epsilon = min(compute.epsilon, 2.0**-23)
        rounding = compute.epsilon / 2 if compute.epsilon > epsilon else 0.0
        return rounding + cls.relative_error * epsilon, cls.absolute_error * epsilon

    @staticmethod
    @abstractmethod
    def numpy(x: Any) -> Array:
        """Return the activation of `x`, in its type."""

    def __repr__(self) -> str:
        inside = "" if self.element_compute is None else str(element(self.element_compute))
        return f"{type(self).__name__}({inside})"


class identity(Activation):
    """x.

    Examples
    --------
    >>> import pycutlass
    >>> pycutlass.identity.numpy([-1.0, 2.0])
    array([-1.,  2.])
    """

    tag = "cutlass::epilogue::thread::Identity"
    of_integers = True

    @staticmethod
    def numpy(x: Any) -> Array:
        """Return x."""
        return np.asarray(x)


class relu(Activation):
    """max(x, 0).

    Examples
    --------
    >>> import pycutlass
    >>> pycutlass.relu.numpy([-1.0, 2.0])
    array([0., 2.])
    """

    tag = "cutlass::epilogue::thread::ReLu"
    of_integers = True

    @staticmethod
    def numpy(x: Any) -> Array:
        """Return max(x, 0)."""
        return np.asarray(np.maximum(x, 0))


class leaky_relu(Activation):
    """x where x > 0, else leaky_alpha * x; leaky_alpha is the third scalar, 0.2 by default as in the original.

    Examples
    --------
    >>> import pycutlass
    >>> pycutlass.leaky_relu.numpy([-1.0, 2.0], 0.5)
    array([-0.5,  2. ])
    """

    tag = "cutlass::epilogue::thread::LeakyReLU"
    extra = (("leaky_alpha", 0.2),)

    @staticmethod
    def numpy(x: Any, leaky_alpha: float = 0.2) -> Array:
        """Return x where x > 0, else leaky_alpha * x; of integers in float64."""
        x = np.asarray(x)
        x = x.astype(np.float64) if x.dtype.kind in "iub" else x
        return np.asarray(np.where(x > 0, x, x * np.asarray(leaky_alpha, x.dtype)))


class tanh(Activation):
    """tanh(x).

    Examples
    --------
    >>> import pycutlass
    >>> pycutlass.tanh.numpy([0.0, 1.0]).round(4)
    array([0.    , 0.7616])
    """

    tag = "pycutlass::Tanh"
    relative_error = 4.0

    @staticmethod
    def numpy(x: Any) -> Array:
        """Return tanh(x)."""
        return _in_f64(np.tanh, x)


class sigmoid(Activation):
    """1 / (1 + exp(-x)).

    Examples
    --------
    >>> import pycutlass
    >>> pycutlass.sigmoid.numpy([0.0, 1.0]).round(4)
    array([0.5   , 0.7311])
    """

    tag = "pycutlass::Sigmoid"
    relative_error = 4.0

    @staticmethod
    def numpy(x: Any) -> Array:
        """Return 1 / (1 + exp(-x))."""
        return _in_f64(_sigmoid, x)


class silu(Activation):
    """x * sigmoid(x).

    Examples
    --------
    >>> import pycutlass
    >>> pycutlass.silu.numpy([0.0, 1.0]).round(4)
    array([0.    , 0.7311])
    """

    tag = "pycutlass::SiLu"
    relative_error = 5.0

    @staticmethod
    def numpy(x: Any) -> Array:
        """Return x * sigmoid(x)."""
        return _in_f64(lambda x: x * _sigmoid(x), x)


class hardswish(Activation):
    """x * min(max(x + 3, 0), 6) / 6.

    Examples
    --------
    >>> import pycutlass
    >>> pycutlass.hardswish.numpy([-4.0, 1.5, 4.0])
    array([-0.   ,  1.125,  4.   ])
    """

    tag = "pycutlass::HardSwish"
    relative_error = 3.0

    @staticmethod
    def numpy(x: Any) -> Array:
        """Return x * min(max(x + 3, 0), 6) / 6."""
        return _in_f64(lambda x: x * np.clip(x + 3, 0, 6) / 6, x)


class gelu(Activation):
    """x * Phi(x) by the error function; see `gelu_tanh` for the approximation.

    Examples
    --------
    >>> import pycutlass
    >>> pycutlass.gelu.numpy([0.0, 1.0]).round(4)
    array([0.    , 0.8413])
    """

    tag = "pycutlass::Gelu"
    relative_error = absolute_error = 5.0

    @staticmethod
    def numpy(x: Any) -> Array:
        """Return x / 2 * (1 + erf(x / sqrt(2))); of minus infinity 0, its limit."""
        return _in_f64(_gelu, x)


class gelu_tanh(Activation):
    """x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 x^3))), as ``approximate="tanh"`` in torch.

    Examples
    --------
    >>> import pycutlass
    >>> pycutlass.gelu_tanh.numpy([0.0, 1.0]).round(4)
    array([0.    , 0.8412])
    """

    tag = "pycutlass::GeluTanh"
    relative_error = absolute_error = 5.0

    @staticmethod
    def numpy(x: Any) -> Array:
        """Return x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 x^3)))."""
        return _in_f64(_gelu_tanh, x)


def _is_of_numbers(given: Any) -> bool:
    """Return whether an activation is given what it cannot be made with: a number or an array, and no element type."""
    if isinstance(given, type | np.dtype):
        return False
    return isinstance(given, int | float | list | tuple) or shape_of(given) is not None


def _in_f64(function: Callable[[Array], Array], x: Any) -> Array:
    """Return `function` of `x`, computed in f64 and rounded once to the type of `x`; of integers, left in f64."""
    x = np.asarray(x)
    with np.errstate(all="ignore"):  # infinity times zero is NaN, here and on a GPU
        result = function(x.astype(np.float64))
        return np.asarray(result if x.dtype.kind in "iub" else result.astype(x.dtype))


def _sigmoid(x: Array) -> Array:
    """Return 1 / (1 + exp(-x)) without overflow, and with the digits of small results."""
    small = np.exp(-np.abs(x))
    return np.asarray(np.where(x < 0, small, 1.0) / (1 + small))


def _gelu(x: Array) -> Array:
    """Return x / 2 * (1 + erf(x / sqrt(2))), which is 0 in f64 from -40 down: infinity times 0 would be NaN."""
    x = np.maximum(x, -40.0)
    return np.asarray(x / 2 * _erfc(x * -math.sqrt(0.5)))


def _gelu_tanh(x: Array) -> Array:
    """Return x / 2 * (1 + tanh(u)), which is x * sigmoid(2 u)."""
    return np.asarray(x * _sigmoid(math.sqrt(8 / math.pi) * x * (1 + 0.044715 * x * x)))


# NumPy has no error function; the C library's, one element at a time, is exact and fast enough for a reference.
_erfc: Callable[[Array], Array] = np.vectorize(math.erfc, otypes=[np.float64])


# None but these: a class of the user's own has a reference that says nothing of the C++ that its tag names.
_KNOWN: dict[str, type[Activation]] = {
    each.__name__: each for each in (gelu, gelu_tanh, hardswish, identity, leaky_relu, relu, sigmoid, silu, tanh)
}


def activation_named(value: Any) -> str:
    """Return how an activation is written that was given itself, as its class or by its name; "" for anything else."""
    given = value if isinstance(value, type) else type(value)
    name = value.rpartition(".")[2].lower() if isinstance(value, str) else given.__name__
    return f"pycutlass.{name}()" if name in _KNOWN and (isinstance(value, str) or given is _KNOWN[name]) else ""


def check_activation(activation: Any) -> Activation:
    """Return `activation`, or raise DescriptionError with the ones that exist."""
    given = activation if isinstance(activation, type) else type(activation)
    if given in _KNOWN.values():
        made: Activation = activation() if isinstance(activation, type) else activation
        return made
    known, near = ", ".join(_KNOWN), meant(activation, {name: name for name in _KNOWN})
    name = attribute(activation, "__name__")  # of a function, a class of modules, or one of these modules
    if not isinstance(activation, str) and (written := as_others_write(name or given.__name__)):
        near = f". Did you mean {written}?"
    if issubclass(given, Activation):
        raise DescriptionError(
            f"the activation must be one of {known}; got {given.__name__}, a class of your own, whose C++ the kernel "
            f"would not have"
        )
    first = ""
    if isinstance(activation, type) and activation in ELEMENT_OF_TAG:
        first = ": the activation comes first, LinearCombinationGeneric(pycutlass.relu(), element_output, ...)"
    raise DescriptionError(f"the activation must be one of {known}; got {shown(activation)}{near}{first}")


def as_others_write(name: Any) -> str:
    """Return how an activation is written that others call `name`: "ReLU", "leaky_relu", "swish"; "" for no name."""
    plain = name.replace("_", "").lower() if type(name) is str else ""
    plain = {"swish": "silu", "geluerf": "gelu", "gelutaylor": "gelutanh", "sigm": "sigmoid"}.get(plain, plain)
    return next((f"pycutlass.{each}()" for each in _KNOWN if each.replace("_", "") == plain), "")
