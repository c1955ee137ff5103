"""LinearCombinationGeneric: the epilogue functor with an activation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from numpy.typing import NDArray

from pycutlass.calls import public
from pycutlass.epilogue.activations import Activation, check_activation
from pycutlass.epilogue.functors import EpilogueFunctor
from pycutlass.errors import DescriptionError
from pycutlass.types import Element, element

__all__ = ["LinearCombinationGeneric"]

Array = NDArray[Any]


@public
@dataclass(frozen=True, repr=False)
class LinearCombinationGeneric(EpilogueFunctor):
    """D = activation(alpha * accumulator + beta * C) (``cutlass::epilogue::thread::LinearCombinationGeneric``).

    Parameters
    ----------
    activation_functor : Activation
        For example ``relu(cutlass.float32)``.
    element_output, epilogue_vector_length, element_accumulator, element_epilogue
        As for `EpilogueFunctor`. In int32, only `identity` and `relu` are computed.

    Raises
    ------
    DescriptionError
        As for `EpilogueFunctor`, and for no activation, one of another compute type, or one that integers do not have.

    Examples
    --------
    >>> import pycutlass
    >>> from pycutlass import cutlass
    >>> pycutlass.LinearCombinationGeneric(pycutlass.relu(), cutlass.float16, 8, cutlass.float32, cutlass.float32)
    LinearCombinationGeneric(relu(), cutlass.float16, 8, cutlass.float32, cutlass.float32)
    """

    activation_functor: Any = None

    _is_fusion: ClassVar[bool] = True
    _ELSEWHERE: ClassVar[Mapping[str, str]] = {}

    def __init__(
        self,
        activation_functor: Any,
        element_output: Any,
        epilogue_vector_length: int,
        element_accumulator: Any = None,
        element_epilogue: Any = None,
    ) -> None:
        for name, value in (
            ("activation_functor", check_activation(activation_functor)),
            ("element_output", element_output),
            ("epilogue_vector_length", epilogue_vector_length),
            ("element_accumulator", element_accumulator),
            ("element_epilogue", element_epilogue),
        ):
            object.__setattr__(self, name, value)
        self.__post_init__()
        named = self.activation_functor.element_compute
        if named is not None and element(named) is not self.compute:
            raise DescriptionError(
                f"the activation is to compute in {element(named)}, the epilogue in {self.compute}: make them the same"
            )
        if self.compute.is_integer and not self.activation.of_integers:
            raise DescriptionError(
                f"{type(self.activation).__name__} needs fractions, which an epilogue that computes in {self.compute} "
                f"lacks: compute in cutlass.float32 (element_epilogue)"
            )
        # relu() and relu(cutlass.float32) are the same kernel here, so they are the same value.
        object.__setattr__(self, "activation_functor", type(self.activation_functor)())

    @property
    def activation(self) -> Activation:
        """The activation."""
        activation: Activation = self.activation_functor
        return activation

    def emit(self) -> str:
        """Return the functor's C++ type for kernels of CUTLASS's 2.x API."""
        return (
            f"cutlass::epilogue::thread::LinearCombinationGeneric<{self.activation.emit()}, {self.output.cpp}, "
            f"{self.epilogue_vector_length}, {self.accumulator.cpp}, {self.compute.cpp}>"
        )

    def emit_fusion(self, source: Element | None = None) -> str:
        """Return the fusion's C++ type for kernels of CUTLASS's 3.x API."""
        return f"cutlass::epilogue::fusion::LinCombEltAct<{self.activation.emit()}, {self._fused_types(source)}>"

    def finish(self, values: Array, *extra: float) -> Array:
        """Return the activation of `values`."""
        return self.activation.numpy(values, *extra)

    def __repr__(self) -> str:
        return f"LinearCombinationGeneric({self.activation!r}, {super().__repr__().split('(', 1)[1]}"
