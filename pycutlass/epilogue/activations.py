"""Activations: what an epilogue applies last. Each spells its C++ and carries its reference.

The formulas are those of cutlass/epilogue/thread/activation.h.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from pycutlass.errors import DescriptionError
from pycutlass.types import element

__all__ = [
    "Activation",
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


@dataclass(frozen=True)
class Activation(ABC):
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
    #: Relative and absolute error of CUTLASS's approximation (``tanh.approx.f32``, ``ex2.approx``: CUDA's PTX ISA).
    error: ClassVar[float] = 0.0
    #: Whether it is the same function of integers. The others need fractions: in integers, CUTLASS's code does not
    #: compile (tanh, sigmoid, silu, gelu), or divides and scales without them (hardswish, leaky_relu).
    of_integers: ClassVar[bool] = False
    #: Names and defaults of scalars behind alpha and beta.
    extra: ClassVar[tuple[tuple[str, float], ...]] = ()

    def __post_init__(self) -> None:
        if self.element_compute is not None:
            element(self.element_compute)

    def emit(self) -> str:
        """Return the class template's name in C++."""
        return self.tag

    @staticmethod
    @abstractmethod
    def numpy(x: Any) -> Array:
        """Return the activation of `x`."""

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
        """Return x where x > 0, else leaky_alpha * x."""
        x = np.asarray(x)
        return np.asarray(np.where(x > 0, x, x * np.asarray(leaky_alpha, x.dtype)))


class tanh(Activation):
    """tanh(x).

    Examples
    --------
    >>> import pycutlass
    >>> pycutlass.tanh.numpy([0.0, 1.0]).round(4)
    array([0.    , 0.7616])
    """

    tag = "cutlass::epilogue::thread::Tanh"
    error = 2.0**-10

    @staticmethod
    def numpy(x: Any) -> Array:
        """Return tanh(x)."""
        return np.asarray(np.tanh(x))


class sigmoid(Activation):
    """1 / (1 + exp(-x)).

    Examples
    --------
    >>> import pycutlass
    >>> pycutlass.sigmoid.numpy([0.0, 1.0]).round(4)
    array([0.5   , 0.7311])
    """

    tag = "cutlass::epilogue::thread::Sigmoid"
    error = 2.0**-10

    @staticmethod
    def numpy(x: Any) -> Array:
        """Return 1 / (1 + exp(-x))."""
        x = np.asarray(x)
        return np.asarray((1 + np.tanh(x / 2)) / 2)  # the same function, without overflow


class silu(Activation):
    """x * sigmoid(x).

    Examples
    --------
    >>> import pycutlass
    >>> pycutlass.silu.numpy([0.0, 1.0]).round(4)
    array([0.    , 0.7311])
    """

    tag = "cutlass::epilogue::thread::SiLu"
    error = 2.0**-10

    @staticmethod
    def numpy(x: Any) -> Array:
        """Return x * sigmoid(x)."""
        return np.asarray(np.asarray(x) * sigmoid.numpy(x))


class hardswish(Activation):
    """x * min(max(x + 3, 0), 6) / 6.

    Examples
    --------
    >>> import pycutlass
    >>> pycutlass.hardswish.numpy([-4.0, 1.5, 4.0])
    array([-0.   ,  1.125,  4.   ])
    """

    tag = "cutlass::epilogue::thread::HardSwish"

    @staticmethod
    def numpy(x: Any) -> Array:
        """Return x * min(max(x + 3, 0), 6) / 6."""
        x = np.asarray(x)
        return np.asarray(x * np.clip(x + 3, 0, 6) / 6)


class gelu(Activation):
    """x * Phi(x) by the error function; see `gelu_tanh` for the approximation.

    Examples
    --------
    >>> import pycutlass
    >>> pycutlass.gelu.numpy([0.0, 1.0]).round(4)
    array([0.    , 0.8413])
    """

    tag = "cutlass::epilogue::thread::GELU"
    error = 2.0**-20  # 1 + erf(x) cancels for negative x

    @staticmethod
    def numpy(x: Any) -> Array:
        """Return x / 2 * (1 + erf(x / sqrt(2)))."""
        x = np.asarray(x)
        return np.asarray(0.5 * x * (1 + _erf(x * math.sqrt(0.5))), dtype=x.dtype)


class gelu_tanh(Activation):
    """x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 x^3))), as ``approximate="tanh"`` in torch.

    Examples
    --------
    >>> import pycutlass
    >>> pycutlass.gelu_tanh.numpy([0.0, 1.0]).round(4)
    array([0.    , 0.8412])
    """

    tag = "cutlass::epilogue::thread::GELU_taylor"
    error = 2.0**-9

    @staticmethod
    def numpy(x: Any) -> Array:
        """Return x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 x^3)))."""
        x = np.asarray(x)
        return np.asarray(0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))), dtype=x.dtype)


# NumPy has no error function; the C library's, one element at a time, is exact and fast enough for a reference.
_erf: Callable[[Array], Array] = np.vectorize(math.erf, otypes=[np.float64])


def check_activation(activation: Any) -> Activation:
    """Return `activation`, or raise DescriptionError with the ones that exist."""
    if isinstance(activation, type) and issubclass(activation, Activation) and activation.tag:
        activation = activation()
    if isinstance(activation, Activation):
        return activation
    known = ", ".join(sorted(cls.__name__ for cls in Activation.__subclasses__()))
    raise DescriptionError(f"the activation must be one of {known}; got {activation!r}")
