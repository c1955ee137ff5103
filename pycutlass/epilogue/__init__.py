"""Epilogues: functors, functions written in Python with what they are made of, and the scalars of a launch."""

import importlib as _importlib
import typing as _typing

from pycutlass.calls import missing as _missing
from pycutlass.epilogue.activations import (
    Activation,
    gelu,
    gelu_tanh,
    hardswish,
    identity,
    leaky_relu,
    relu,
    sigmoid,
    silu,
    tanh,
)
from pycutlass.epilogue.fast_clamp import FastLinearCombinationClamp
from pycutlass.epilogue.function import EpilogueFunction, epilogue_function
from pycutlass.epilogue.function_epilogue import FunctionEpilogue

# Not in __all__, since some are names of Python's own; nothing here uses those.
from pycutlass.epilogue.functions import *  # noqa: F403
from pycutlass.epilogue.functors import EpilogueFunctor, LinearCombination, LinearCombinationClamp
from pycutlass.epilogue.generic import LinearCombinationGeneric
from pycutlass.epilogue.parameters import Column, PerBatch, Row, Source, Tensor
from pycutlass.epilogue.protocol import Epilogue, Family, Port, Scalar
from pycutlass.epilogue.scalars import EpilogueScalars
from pycutlass.epilogue.visit_tree import EpilogueVisitTree, VisitorArguments, VisitorEpilogue, reduction_op

__all__ = [
    "Activation",
    "Column",
    "Epilogue",
    "EpilogueFunction",
    "EpilogueFunctor",
    "EpilogueScalars",
    "EpilogueVisitTree",
    "Family",
    "FastLinearCombinationClamp",
    "FunctionEpilogue",
    "LinearCombination",
    "LinearCombinationClamp",
    "LinearCombinationGeneric",
    "PerBatch",
    "Port",
    "Row",
    "Scalar",
    "Source",
    "Tensor",
    "VisitorArguments",
    "VisitorEpilogue",
    "epilogue_function",
    "gelu",
    "gelu_tanh",
    "hardswish",
    "identity",
    "leaky_relu",
    "reduction_op",
    "relu",
    "sigmoid",
    "silu",
    "tanh",
]


def __getattr__(name: str) -> _typing.Any:
    """Import the ready-made functions when they are first asked for: they are traced then."""
    if name == "fusions":
        return _importlib.import_module("pycutlass.epilogue.fusions")
    if name.startswith("__"):  # Python itself looks for such names
        raise AttributeError(f"module 'pycutlass.epilogue' has no attribute {name!r}")
    raise _missing("pycutlass.epilogue", name, __dir__())


def __dir__() -> list[str]:
    """Return the names that are here, or will be where they are asked for."""
    return sorted({*globals(), "fusions"})
