"""What an epilogue function can compute: one row for each node, with its C++ and its meaning in NumPy."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pycutlass.epilogue import activations

__all__ = ["BY_UFUNC", "NODES", "REDUCTIONS", "Node", "Reduction", "largest"]

Array = NDArray[Any]


@dataclass(frozen=True)
class Node:
    """A row of the table.

    Parameters
    ----------
    name : str
        Of the node, which is the name of its function in `pycutlass.epilogue` where it has one.
    cpp : str
        Its C++, with ``{0}``, ``{1}`` and so on for operands.
    numpy : callable
        Its meaning, for arrays of the type that the epilogue computes in.
    takes : str
        For each operand ``"n"``, a number, or ``"t"``, a truth value.
    makes : str
        ``"n"`` or ``"t"``.
    """

    name: str
    cpp: str
    numpy: Callable[..., Any]
    takes: str = "n"
    makes: str = "n"

    @property
    def arity(self) -> int:
        """The number of operands."""
        return len(self.takes)


def _function(name: str, numpy: Callable[..., Any], operands: int = 1) -> Node:
    """Return a node whose C++ is a function of the same name in include/pycutlass/node_functions.h."""
    arguments = ", ".join(f"{{{number}}}" for number in range(operands))
    return Node(name, f"pycutlass::function::{name}({arguments})", numpy, "n" * operands)


def _activation(kind: type[activations.Activation]) -> Node:
    """Return the node of an activation, which include/pycutlass/activation.h has, right to `Activated`."""
    return Node(kind.__name__, f"{kind.tag}<Activated>::of({{0}})", kind.numpy)


def _in_f64(function: Callable[[Array], Array]) -> Callable[[Array], Array]:
    return lambda x: activations._in_f64(function, x)


def _softplus(x: Array) -> Array:
    return np.asarray(np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x))))


_erf = np.vectorize(math.erf, otypes=[np.float64])

#: Every node by its name. Graphs have no other operations but inputs, constants, casts and reductions.
NODES: dict[str, Node] = {
    node.name: node
    for node in (
        Node("add", "{0} + {1}", np.add, "nn"),
        Node("subtract", "{0} - {1}", np.subtract, "nn"),
        Node("multiply", "{0} * {1}", np.multiply, "nn"),
        Node("divide", "{0} / {1}", np.divide, "nn"),
        Node("negative", "-{0}", np.negative),
        Node("less", "{0} < {1}", np.less, "nn", "t"),
        Node("less_equal", "{0} <= {1}", np.less_equal, "nn", "t"),
        Node("greater", "{0} > {1}", np.greater, "nn", "t"),
        Node("greater_equal", "{0} >= {1}", np.greater_equal, "nn", "t"),
        Node("equal", "{0} == {1}", np.equal, "nn", "t"),
        Node("not_equal", "{0} != {1}", np.not_equal, "nn", "t"),
        Node("logical_and", "{0} && {1}", np.logical_and, "tt", "t"),
        Node("logical_or", "{0} || {1}", np.logical_or, "tt", "t"),
        Node("logical_not", "!{0}", np.logical_not, "t", "t"),
        Node("where", "{0} ? {1} : {2}", np.where, "tnn"),
        _function("power", np.power, 2),
        _function("remainder", np.remainder, 2),
        _function("minimum", np.minimum, 2),
        _function("maximum", np.maximum, 2),
        _function("abs", np.abs),
        _function("floor", np.floor),
        _function("ceil", np.ceil),
        _function("round", np.rint),
        _function("exp", _in_f64(np.exp)),
        _function("exp2", _in_f64(np.exp2)),
        _function("log", _in_f64(np.log)),
        _function("sqrt", np.sqrt),
        _function("rsqrt", _in_f64(lambda x: 1 / np.sqrt(x))),
        _function("erf", _in_f64(_erf)),
        _function("softplus", _in_f64(_softplus)),
        _activation(activations.tanh),
        _activation(activations.sigmoid),
        _activation(activations.silu),
        _activation(activations.hardswish),
        _activation(activations.gelu),
        _activation(activations.gelu_tanh),
    )
}

#: NumPy's functions that trace, by themselves.
BY_UFUNC: dict[Any, Node] = {node.numpy: node for node in NODES.values() if isinstance(node.numpy, np.ufunc)} | {
    np.fabs: NODES["abs"],
    np.true_divide: NODES["divide"],
    np.exp: NODES["exp"],
    np.exp2: NODES["exp2"],
    np.log: NODES["log"],
    np.tanh: NODES["tanh"],
}


def _logsumexp(x: Array, axis: Any) -> Array:
    most = np.max(x, axis, keepdims=True)
    shift = np.where(np.isfinite(most), most, 0)
    with np.errstate(all="ignore"):  # of rows of minus infinity alone the logarithm is minus infinity
        return np.asarray(np.log(np.sum(np.exp(x - shift), axis)) + np.squeeze(shift, axis))


@dataclass(frozen=True)
class Reduction:
    """How many values become one.

    Parameters
    ----------
    name : str
        Of the reduction.
    cpp : str
        Its structure in include/pycutlass/reduction_kinds.h.
    numpy : callable
        Its meaning, of an array and an axis.
    """

    name: str
    cpp: str
    numpy: Callable[..., Any]


#: Every reduction by its name.
REDUCTIONS: dict[str, Reduction] = {
    each.name: each
    for each in (
        Reduction("sum", "pycutlass::function::Sum", lambda x, axis: np.sum(x, axis)),
        Reduction("max", "pycutlass::function::Max", lambda x, axis: np.max(x, axis)),
        Reduction("min", "pycutlass::function::Min", lambda x, axis: np.min(x, axis)),
        Reduction("absmax", "pycutlass::function::AbsMax", lambda x, axis: np.max(np.abs(x), axis)),
        Reduction("logsumexp", "pycutlass::function::LogSumExp", _logsumexp),
        Reduction("sum_of_squares", "pycutlass::function::SumOfSquares", lambda x, axis: np.sum(x * x, axis)),
    )
}


def largest(x: Array, k: int) -> tuple[Array, Array]:
    """Return the `k` largest elements along the last axis, and their indices as int32: what `top_k` is.

    They come from the largest down, of equal ones that of the lower index first. NaN is the largest. Zeros lose their
    sign, as in kernels.
    """
    x = x + np.zeros((), x.dtype)
    # A stable sort has NaN last, and equal elements in their order: both are turned round here. Types of ml_dtypes are
    # sorted as float32, since their own order of NaN is another.
    sorted_as = x if x.dtype.kind in "fiub" else x.astype(np.float32)
    order = np.flip(np.argsort(np.flip(sorted_as, -1), axis=-1, kind="stable"), -1)
    indices = x.shape[-1] - 1 - order[..., :k]
    return np.take_along_axis(x, indices, -1), indices.astype(np.int32)
