"""Epilogues: functors, activations and the scalars of a launch."""

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
from pycutlass.epilogue.functors import EpilogueFunctor, LinearCombination, LinearCombinationClamp
from pycutlass.epilogue.generic import LinearCombinationGeneric
from pycutlass.epilogue.protocol import NO_TREES, Epilogue, Family, Port, Scalar
from pycutlass.epilogue.scalars import EpilogueScalars

__all__ = [
    "NO_TREES",
    "Activation",
    "Epilogue",
    "EpilogueFunctor",
    "EpilogueScalars",
    "Family",
    "FastLinearCombinationClamp",
    "LinearCombination",
    "LinearCombinationClamp",
    "LinearCombinationGeneric",
    "Port",
    "Scalar",
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
