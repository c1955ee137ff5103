"""Gated pairs: neighbouring columns of the accumulator are combined, so that D has half as many."""

from __future__ import annotations

from typing import Any

from pycutlass.calls import public, shown
from pycutlass.epilogue.arrays import numbers
from pycutlass.epilogue.graph import Graph, Value
from pycutlass.epilogue.places import where_called
from pycutlass.epilogue.traced import Reduced, Traced
from pycutlass.errors import ArgumentError, ArgumentTypeError, DescriptionError

__all__ = ["check_gated", "pairs"]


@public
def pairs(x: Any) -> tuple[Any, Any]:
    """Return the even and the odd columns of `x`, of a value or an array: two with half as many columns each.

    D of a function that has pairs is what it makes of them, of (M, N / 2). So is a gated linear unit one kernel, with
    the columns of both its weights in turn. Rows and matrices have as many columns as what they are combined with: N
    before pairs, N / 2 behind them.

    Parameters
    ----------
    x : value or array
        What has a column for each of the accumulator's.

    Raises
    ------
    DescriptionError
        A value that has no columns, or half as many already.
    ArgumentError
        An array of an odd number of columns.

    Examples
    --------
    >>> import pycutlass
    >>> from pycutlass.epilogue import pairs, silu
    >>> @pycutlass.epilogue_function
    ... def swiglu(accum):
    ...     gate, up = pairs(accum)
    ...     return silu(gate) * up
    >>> swiglu.numpy([[1.0, 2.0, 0.0, 4.0]]).round(4)
    array([[1.4621, 0.    ]])
    """
    if isinstance(x, Reduced):
        x._refuse()
    if isinstance(x, Traced):
        return _traced(x)
    array = numbers("what pairs is given", x, widens=False)
    if not array.ndim:
        raise ArgumentTypeError(f"pairs takes a value of an epilogue function, or an array of (..., N), got {shown(x)}")
    columns = array.shape[-1]
    if columns % 2:
        raise ArgumentError(f"pairs takes an even number of columns, and x has {columns}")
    return array[..., 0::2], array[..., 1::2]


def _traced(x: Traced) -> tuple[Traced, Traced]:
    trace = x._trace
    if trace.is_truth(x._number):
        raise DescriptionError(
            f"{where_called()}pairs takes numbers, and is given a condition: compare what pairs returns"
        )
    columns = trace.columns.of(x._number)
    if columns == "h":
        raise DescriptionError(
            f"{where_called()}pairs is given what pairs returned, or was computed from it: columns are paired once"
        )
    if not columns:
        raise DescriptionError(
            f"{where_called()}pairs takes a value with all N columns, such as accum or accum + bias, and is given one "
            f"that is the same in each column: it goes with what pairs returns as it is"
        )
    trace.columns.match((x._number,), "n")
    even, odd = (Traced(trace, trace.add(Value("pair", (x._number,), (which,)))) for which in "01")
    return even, odd


def check_gated(name: str, graph: Graph) -> None:
    """Raise DescriptionError where a function has pairs and something that kernels do not have beside them."""
    if not graph.is_gated:
        return
    outputs = dict(graph.outputs)
    if not graph.is_halved(outputs["D"]):
        raise DescriptionError(
            f"{name} uses pairs, and its D has all N columns: D must be what is made of pairs, with N / 2 columns, and "
            f"a value with N may be another output"
        )
    if others := ", ".join(each for each, _ in graph.reductions if not graph.is_halved(outputs[each])):
        raise DescriptionError(
            f"{name} uses pairs, and reduces a value with all N columns to {others}: kernels that combine pairs reduce "
            f"what has N / 2 columns as D has, so reduce what pairs returns, as in absmax(gate)"
        )
    for each in graph.selections:
        if "n" in graph.axes[each.operand]:
            raise DescriptionError(
                f"{name} uses pairs, and selects the {each.k} largest of a value with all N columns, to "
                f"{', '.join((*each.values, *each.indices))}: kernels that combine pairs select from what has N / 2 "
                f"columns as D has, so give top_k what pairs returns, as in top_k(gate, 2)"
            )
    if others := ", ".join(each.name for each in graph.of_form("source")):
        raise DescriptionError(
            f"{name} uses pairs and has {others}: Source, which is operand C, and kernels that combine pairs do not "
            f"read C: write {others}: Tensor, of (M, N) before pairs or of (M, N / 2) behind them, and give it by name"
        )
