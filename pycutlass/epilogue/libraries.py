"""Functions of NumPy and torch in epilogue functions: which nodes they are."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

import numpy as np

from pycutlass.calls import shown
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
    "eq": "equal",
    "ge": "greater_equal",
    "gt": "greater",
    "le": "less_equal",
    "lt": "less",
    "mul": "multiply",
    "ne": "not_equal",
    "neg": "negative",
    "pow": "power",
    "sub": "subtract",
    "true_divide": "divide",
}
#: Functions of torch that are something else than the node of that name, and what to do.
_UNLIKE = {"equal": "it is one truth value for all elements: torch.eq(x, y) and x == y compare each"}
#: Options of torch's functions of one operand, in their order behind it.
_OPTIONS = {"gelu": ("approximate",), "leaky_relu": ("negative_slope", "inplace"), "softplus": ("beta", "threshold")}
#: What options are where torch's function is the node.
_USUAL: Mapping[str, Any] = {
    **dict.fromkeys(("out", "rounding_mode")),
    "alpha": 1,
    "approximate": "none",
    "beta": 1,
    "decimals": 0,
    "inplace": False,
    "threshold": 20,
}
_WITH_OPTIONS = {
    "add": ". For another alpha write x + alpha * y",
    "sub": ". For another alpha write x - alpha * y",
    "gelu": ', and approximate="tanh"',
    "softplus": ". For another beta write softplus(beta * x) / beta",
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
        known = ", ".join(sorted({"floor_divide", "divmod", *(each.__name__ for each in BY_UFUNC)}))
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
    if name in _LIMITS and options.keys() <= {"min", "max"}:
        return _limited(
            apply, refuse, operands[0], dict(zip(_LIMITS[name], operands[1:], strict=False)) | dict(options)
        )
    if name in _OPTIONS:
        options = dict(zip(_OPTIONS[name], operands[1:], strict=False)) | dict(options)
        operands = (operands[0], *operands[1 + len(_OPTIONS[name]) :])
    options = {key: value for key, value in options.items() if not _changes_nothing(key, value)}
    if name == "gelu" and options.get("approximate") == "tanh":
        name, options = "gelu_tanh", {}
    elif name == "leaky_relu" and len(operands) == 1:
        operands = (*operands, options.pop("negative_slope", 0.01))
    elif remedy := instead(name):
        refuse(f"given to torch's {name}", remedy)
    node = None if name in _UNLIKE else NODES.get(_OF_TORCH.get(name, name))
    if options or (node is None and name not in ("relu", "leaky_relu")):
        others = ", ".join(sorted(NODES.keys() - {"add", "gelu_tanh", *_OF_TORCH.values()}))
        given = ", ".join(f"{option}={shown(value)}" for option, value in options.items())
        refuse(
            f"given to torch's {name}{' with ' if given else ''}{given}",
            _UNLIKE.get(name)
            or f"torch's functions that trace are add, relu, leaky_relu, clamp, floor_divide, "
            f"{', '.join(sorted(_OF_TORCH))}, and those that are called {others}, with no options but torch's defaults"
            f"{_WITH_OPTIONS.get(name, '')}",
        )
    if name == "relu":
        return apply("maximum", operands[0], 0.0)
    if node is None:
        x, slope = operands
        return apply("where", apply("greater", x, 0.0), x, apply("multiply", x, slope))
    if len(operands) != node.arity:
        refuse(f"given to torch's {name} with {len(operands)} arguments", f"it takes {node.arity} here")
    return apply(node.name, *operands)


def _changes_nothing(option: str, value: Any) -> bool:
    """Return whether an option of torch's is what its function does without it; truth values are no numbers."""
    usual = _USUAL.get(option, value)
    if usual is None or isinstance(usual, bool):
        return option in _USUAL and value is usual
    return option in _USUAL and type(value) in (int, float, str) and bool(value == usual)


def _limited(apply: Apply, refuse: Refuse, x: Any, limits: Mapping[str, Any]) -> Any:
    low, high = limits.get("min"), limits.get("max")
    if low is None and high is None:
        refuse("given to clamp without limits", "give min, max or both")
    x = x if low is None else apply("maximum", x, low)
    return x if high is None else apply("minimum", x, high)
