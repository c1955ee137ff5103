"""Functions of NumPy and torch in epilogue functions: which nodes they are."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

import numpy as np

from pycutlass.epilogue.nodes import BY_UFUNC, NODES

__all__ = ["numpy_function", "numpy_ufunc", "torch_function"]

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


def numpy_ufunc(
    apply: Apply, refuse: Refuse, ufunc: Any, method: str, operands: Sequence[Any], options: Mapping[str, Any]
) -> Any:
    """Return what a universal function of NumPy makes of traced values."""
    node = BY_UFUNC.get(ufunc)
    if node is None or method != "__call__" or options:
        known = ", ".join(sorted({each.__name__ for each in BY_UFUNC}))
        called = f"numpy.{ufunc.__name__}{'' if method == '__call__' else '.' + method}"
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
        "use a function of pycutlass.epilogue, such as where, minimum, maximum, clamp or cast",
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
    elif name == "topk":
        refuse("given to torch's topk", "use pycutlass.epilogue.top_k(x, k), which returns values and indices as well")
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
