"""Epilogues written as Python functions."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pycutlass.calls import no_attribute, public, shown, suggestion
from pycutlass.epilogue import drawing, function_types
from pycutlass.epilogue.arrays import numbers, placed
from pycutlass.epilogue.function_epilogue import FunctionEpilogue
from pycutlass.epilogue.graph import Graph
from pycutlass.epilogue.pairs import check_gated
from pycutlass.epilogue.parameters import parameters, traced
from pycutlass.epilogue.places import where_called, where_defined
from pycutlass.epilogue.top_k import check_selected
from pycutlass.epilogue.traced import is_traced
from pycutlass.errors import ArgumentError, ArgumentTypeError, DescriptionError
from pycutlass.integers import attribute

__all__ = ["EpilogueFunction", "epilogue_function"]

Array = NDArray[Any]


@public
def epilogue_function(function: Callable[..., Any]) -> EpilogueFunction:
    """Trace a function of an accumulator, and return what makes epilogues of it.

    Parameters
    ----------
    function : callable
        Of the accumulator, its first parameter. Each further one says by an annotation of `pycutlass.epilogue` what it
        is: `Row` (a vector with an element for each column of D), `Column` (one for each row), `Tensor` (a matrix like
        D), `Source` (operand C), `PerBatch` (a number in memory for each matrix of a batch) or `Scalar` (a number of
        each launch, with a default perhaps). It is called once, at once, and returns D or a dict of outputs by name,
        with D among them.

    Returns
    -------
    EpilogueFunction
        Called with types, it is an epilogue.

    Raises
    ------
    DescriptionError
        The function cannot be traced; the message has its line.

    Examples
    --------
    >>> import pycutlass
    >>> from pycutlass import cutlass
    >>> from pycutlass.epilogue import Row, Scalar, Tensor, gelu
    >>> @pycutlass.epilogue_function
    ... def gelu_bias_residual(accum, bias: Row, residual: Tensor, alpha: Scalar = 1.0):
    ...     t = alpha * accum + bias
    ...     return {"D": gelu(t) + residual, "T": t}
    >>> gelu_bias_residual.numpy([[1.0, -1.0]], bias=[0.0, 1.0], residual=[[2.0, 2.0]])["T"]
    array([[1., 0.]])
    >>> functor = gelu_bias_residual(cutlass.float16, 8, T=cutlass.float32)
    >>> [port.name for port in functor.inputs], [port.name for port in functor.outputs], functor.scalar_names
    (['bias', 'residual'], ['T'], ('alpha',))
    """
    if isinstance(function, EpilogueFunction):
        raise DescriptionError(f"{function.name} is an epilogue function already: call it with types")
    name = attribute(function, "__name__") or type(function).__name__
    if not callable(function) or isinstance(function, type):
        raise DescriptionError(f"epilogue_function traces a function, got {shown(function)}")
    graph = traced(function, parameters(function, name), name)
    try:
        function_types.check_names(name, graph)
        check_gated(name, graph)
    except DescriptionError as error:
        raise DescriptionError(f"{where_defined(function)}{error}") from None
    return EpilogueFunction(name, graph, inspect.getdoc(function) or "")


@public
@dataclass(frozen=True)
class EpilogueFunction:
    """What `epilogue_function` makes: a graph, which becomes an epilogue when it is called with types.

    Two functions that compute the same are equal.

    Parameters
    ----------
    name : str
        Of the function.
    graph : Graph
        What it computes.
    """

    name: str = field(compare=False)
    graph: Graph
    doc: str = field(default="", compare=False, repr=False)

    def __post_init__(self) -> None:
        if self.doc:
            self.__dict__["__doc__"] = self.doc  # for help() and notebooks

    @public
    def __call__(
        self,
        element_output: Any = None,
        epilogue_vector_length: int | None = None,
        element_accumulator: Any = None,
        element_epilogue: Any = None,
        **types: Any,
    ) -> FunctionEpilogue:
        """Return the epilogue for element types.

        Parameters
        ----------
        element_output : element type of ``cutlass``
            Type of D.
        epilogue_vector_length : int
            Elements of one memory access; the alignment of D.
        element_accumulator, element_epilogue : element type, optional
            Type of the accumulator, and the type that is computed in (float16, bfloat16, float32 or float64); by
            default float64 where D is, else float32.
        **types : element type or TensorDescription
            Of tensors beside C and D by their names: by default that of D, and float32, or float64 where that is
            computed in, of reductions, of what `top_k` selects, and of vectors where D has 8 bits. A description says
            the layout and the alignment of a matrix as well, which are those of D otherwise.

        Raises
        ------
        DescriptionError
            A type that no kernel takes there.
        ArgumentTypeError
            A name that the function lacks, or no alignment.
        """
        if is_traced(element_output):
            raise DescriptionError(
                f"{where_called()}{self.name} is an epilogue function, which is called with types, and is given a "
                f"value of another one: what several functions share is a plain function, without the decorator"
            )
        is_array = not isinstance(element_output, type) and attribute(element_output, "ndim")
        if isinstance(element_output, list | tuple) or is_array:
            raise ArgumentTypeError(
                f"{self.name} is called with the type and the alignment of D, as in {self.name}(cutlass.float16, 8), "
                f"and is given a {type(element_output).__name__}: on arrays it is computed by {self.name}.numpy(...)"
            )
        if element_output is None or epilogue_vector_length is None:  # they have defaults for the sake of messages
            raise ArgumentTypeError(
                f"{self.name} is called with the type and the alignment of D, as in {self.name}(cutlass.float16, 8)"
            )
        return FunctionEpilogue(
            self, element_output, epilogue_vector_length, element_accumulator, element_epilogue, tuple(types.items())
        )

    def numpy(self, accum: Any, **given: Any) -> Any:
        """Return what the function computes, in NumPy: D, or a dict of outputs where there are several.

        Parameters
        ----------
        accum : array
            The accumulator, of (..., M, N). Its type is computed in where it is float32 or float64, else float64.
        **given : array or number
            The other parameters by name, each in the shapes in which a kernel takes it: a Row of (N,), a Column of
            (M,), a Tensor of (M, N) and a PerBatch of (1,), which all matrices share, or with the batch before it.

        Returns
        -------
        array, or dict of arrays
            Each of the shape in which a kernel writes it, but of the type that is computed in.

        Raises
        ------
        ArgumentTypeError
            A name that is missing or unknown.
        ArgumentError
            Shapes that do not fit.
        """
        if any(map(is_traced, (accum, *given.values()))):
            raise DescriptionError(
                f"{where_called()}{self.name} is an epilogue function, whose numpy computes on arrays, and is given a "
                f"value of another one: what several functions share is a plain function, without the decorator"
            )
        first, *others = self.graph.inputs
        names = [each.name for each in others]
        has = f"it has {', '.join(names)}" if names else "it has the accumulator alone"
        for name in given:
            if name not in names:
                raise ArgumentTypeError(f"{self.name} has no parameter {name}: {has}.{suggestion(name, names)}")
        accum = numbers(first.name, accum)
        self._check_accumulator(accum)
        dtype = accum.dtype if accum.dtype in (np.float32, np.float64) else np.dtype(np.float64)
        arrays: dict[str, Array] = {first.name: accum}
        for each in others:
            if each.name not in given and each.default is None:
                raise ArgumentTypeError(f"{self.name} takes {', '.join(names)}; {each.name} is missing")
            array = numbers(each.name, given.get(each.name, each.default))
            arrays[each.name] = placed(self.name, each, array, accum.shape)
        made = self.graph.evaluate(arrays, dtype)
        for name, value in self.graph.reductions:
            if value.data[1] == "":  # one of all of D, which kernels write as a vector
                made[name] = made[name][..., None]
        return made if len(made) > 1 else made["D"]

    def _check_accumulator(self, accum: Array) -> None:
        """Raise ArgumentError where an accumulator has no columns and rows, or not those that are needed."""
        if accum.ndim < 2:
            got = f"shape {accum.shape}: pass one row as accum[None, :]" if accum.ndim else "a single number"
            raise ArgumentError(f"the accumulator of {self.name} is a matrix, of shape (..., M, N); got {got}")
        if self.graph.of_many and not accum.size:
            made = ", ".join(name for name, _ in self.graph.outputs if name in self.graph.of_many)
            raise ArgumentError(
                f"{self.name} makes {made} of the elements of D, and an accumulator of shape {accum.shape} has no "
                f"elements: leave such problems out"
            )
        if self.graph.is_gated and accum.shape[-1] % 2:
            raise ArgumentError(
                f"{self.name} combines pairs of neighbouring columns, so that the accumulator has an even number of "
                f"them; got shape {accum.shape}"
            )
        check_selected(self.name, self.graph, accum.shape[-1] // (1 + self.graph.is_gated))

    def transposed(self) -> EpilogueFunction:
        """Return the function that computes the transposed outputs of transposed matrices."""
        return replace(self, graph=self.graph.transposed())

    def visualize(self) -> str:
        """Return a drawing of the graph: SVG where graphviz is installed, else text."""
        return drawing.drawn(self.name, self.graph, {}, "")

    def __getattr__(self, name: str) -> Any:
        """Say of what the functor has that it is there."""
        called = self.__dict__.get("name", "")
        near = ""
        if not name.startswith("_") and hasattr(FunctionEpilogue, name):
            near = f" The functor has it, which is the function with types, as {called}(cutlass.float16, 8) is"
        raise no_attribute(f"the epilogue function {called}", name, near)

    def __repr__(self) -> str:
        return f"<epilogue function {self.name}({', '.join(each.name for each in self.graph.inputs)})>"
