"""Functions of NumPy and torch in epilogue functions: which nodes they are."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

import numpy as np

from pycutlass.epilogue.nodes import BY_UFUNC, NODES

__all__ = ["PAIRS", "instead", "numpy_function", "numpy_ufunc", "torch_function"]

#: Applies a node to operands.
Apply = Callable[..., Any]
#: Raises DescriptionError, of what was done and what to do instead.
Refuse = Callable[[str, str], NoReturn]

#: Nodes that torch calls otherwise.
_OF_TORCH = {
    "absolute": "abs",
    "div": "divide",
    "mul": "multiply",
    "neg": "negative",
    "pow": "power",
    "sub": "subtract",
    "true_divide": "divide",
}
#: Where the arguments of what limits a value stand, behind it.
_LIMITS = {
    "clamp": ("min", "max"),
    "clip": ("min", "max"),
    "clamp_min": ("min",),
    "clamp_max": ("max",),
}

#: How neighbouring columns are had.
PAIRS = (
    "use gate, up = pycutlass.epilogue.pairs(x), the even and the odd columns of x, and put the columns of both "
    "weights in turn, where torch's chunk and glu have one behind the other"
)


def _reduced(name: str, more: str = "") -> str:
    called = f"pycutlass.epilogue.{name}"
    return (
        f"use {called}(x, axis=1) for each row, axis=0 for each column or axis=None for all of D{more}. It is returned "
        f"beside D, as in return {{'D': x, 'result': {called}(x, axis=1)}}"
    )


def _in_two_kernels(first: str, second: str, beside: str) -> str:
    return (
        f"it takes other elements of D, which a kernel behind this one reads: return {{'D': x, {first}}} here, and "
        f"compute {second} there, which an epilogue function does with x: Tensor, {beside}"
    )


_SELECTED = (
    "use values, indices = pycutlass.epilogue.top_k(x, k), the k largest of each row, up to 8. They are returned "
    "beside D, as in return {'D': x, 'values': values, 'indices': indices}; more takes a kernel of its own"
)
_SOFTMAX = _in_two_kernels("'total': pycutlass.epilogue.logsumexp(x, axis=1)", "exp(x - total)", "total: Column")
_NORM = _in_two_kernels(
    "'squares': pycutlass.epilogue.sum_of_squares(x, axis=1)",
    "x * rsqrt(squares * inverse)",
    "squares: Column, inverse: Scalar",
)
#: What is used in place of functions and methods of NumPy and torch.
_INSTEAD = {
    **dict.fromkeys(("sum", "nansum", "add.reduce"), _reduced("sum")),
    **dict.fromkeys(("mean", "average"), _reduced("sum", "; for a mean reduce x * inverse, with inverse: Scalar")),
    **dict.fromkeys(
        ("max", "amax", "nanmax", "maximum.reduce"), _reduced("max", "; the larger of two values is maximum(x, y)")
    ),
    **dict.fromkeys(
        ("min", "amin", "nanmin", "minimum.reduce"), _reduced("min", "; the lesser of two values is minimum(x, y)")
    ),
    **dict.fromkeys(("logsumexp", "logaddexp.reduce"), _reduced("logsumexp")),
    "norm": _reduced("sum_of_squares"),
    **dict.fromkeys(("topk", "sort", "argsort", "argmax", "partition", "argpartition"), _SELECTED),
    "softmax": _SOFTMAX,
    "log_softmax": _SOFTMAX.replace("exp(x - total)", "x - total"),
    **dict.fromkeys(("rms_norm", "normalize"), _NORM),
    **dict.fromkeys(("chunk", "split", "tensor_split", "array_split", "hsplit", "glu", "unbind"), PAIRS),
}


def instead(name: str) -> str:
    """Return what to use in place of a function or a method of NumPy or torch; nothing where all is said elsewhere."""
    return _INSTEAD.get(name, "")


def numpy_ufunc(
    apply: Apply, refuse: Refuse, ufunc: Any, method: str, operands: Sequence[Any], options: Mapping[str, Any]
) -> Any:
    """Return what a universal function of NumPy makes of traced values."""
    node = BY_UFUNC.get(ufunc)
    if node is None or method != "__call__" or options:
        known = ", ".join(sorted({each.__name__ for each in BY_UFUNC}))
        called = f"numpy.{ufunc.__name__}{'' if method == '__call__' else '.' + method}"
        if remedy := instead(called.removeprefix("numpy.")):
            refuse(f"given to {called}", remedy)
        refuse(f"given to {called}", f"NumPy's functions that trace are {known}, clip and where, without options")
    return apply(node.name, *operands)


def numpy_function(
    apply: Apply, refuse: Refuse, function: Any, operands: Sequence[Any], options: Mapping[str, Any]
) -> Any:
    """Return what another function of NumPy makes of traced values."""
    if function is np.where and len(operands) == 3 and not options:
        return apply("where", *operands)
    if function is np.clip:
        named = {name.removeprefix("a_"): value for name, value in options.items() if value is not None}
        limits = dict(zip(("min", "max"), operands[1:], strict=False)) | named
        if limits.keys() <= {"min", "max"}:
            return _limited(apply, refuse, operands[0], limits)
    refuse(
        f"given to numpy.{function.__name__}",
        instead(function.__name__)
        or "use a function of pycutlass.epilogue, such as where, minimum, maximum, clamp or cast",
    )


def torch_function(
    apply: Apply, refuse: Refuse, function: Any, operands: Sequence[Any], options: Mapping[str, Any]
) -> Any:
    """Return what a function of torch makes of traced values, as in ``functional.gelu(x, approximate="tanh")``."""
    name = getattr(function, "__name__", "")
    options = {key: value for key, value in options.items() if value is not None and value is not False}
    if name == "gelu":
        name = "gelu_tanh" if options.pop("approximate", "none") == "tanh" else name
    elif name == "leaky_relu":
        operands = (operands[0], *operands[1:], options.pop("negative_slope", 0.01))[:2]
    elif name in _LIMITS and options.keys() <= {"min", "max"}:
        limits = dict(zip(_LIMITS[name], operands[1:], strict=False)) | options
        return _limited(apply, refuse, operands[0], limits)
    elif remedy := instead(name):
        refuse(f"given to torch's {name}", remedy)
    node = NODES.get(_OF_TORCH.get(name, name))
    if options or (node is None and name not in ("relu", "leaky_relu")):
        others = ", ".join(sorted(NODES.keys() - {"add", "gelu_tanh", *_OF_TORCH.values()}))
        refuse(
            f"given to torch's {name}{' with ' + ', '.join(options) if options else ''}",
            f"torch's functions that trace are add, sub, mul, div, pow, neg, relu, leaky_relu, clamp, and those that "
            f"are called {others}, without options",
        )
    if name == "relu":
        return apply("maximum", operands[0], 0.0)
    if node is None:
        x, slope = operands
        return apply("where", apply("greater", x, 0.0), x, apply("multiply", x, slope))
    if len(operands) != node.arity:
        refuse(f"given to torch's {name} with {len(operands)} arguments", f"it takes {node.arity} here")
    return apply(node.name, *operands)


def _limited(apply: Apply, refuse: Refuse, x: Any, limits: Mapping[str, Any]) -> Any:
    low, high = limits.get("min"), limits.get("max")
    if low is None and high is None:
        refuse("given to clamp without limits", "give min, max or both")
    x = x if low is None else apply("maximum", x, low)
    return x if high is None else apply("minimum", x, high)
