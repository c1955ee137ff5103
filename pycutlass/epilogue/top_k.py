"""The largest elements of each row, and where they are: what routers of a mixture of experts choose by."""

from __future__ import annotations

from typing import Any

from pycutlass.calls import public, shown
from pycutlass.epilogue.arrays import numbers
from pycutlass.epilogue.graph import Graph, Value
from pycutlass.epilogue.nodes import largest
from pycutlass.epilogue.places import where_called
from pycutlass.epilogue.traced import Reduced, Traced, check_known
from pycutlass.errors import ArgumentError, ArgumentTypeError, DescriptionError
from pycutlass.integers import as_int

__all__ = ["check_selected", "top_k"]

#: The most elements of a row: threads keep them in registers.
_MOST = 8


@public
def top_k(x: Any, k: int) -> tuple[Any, Any]:
    """Return the `k` largest elements of each row of `x`, and their columns: of a value or an array.

    They come from the largest down, of equal ones that of the lower column first. NaN is the largest, as in torch. In a
    kernel a row must fit a tile, so that N is at most the columns of threadblock_shape.

    Parameters
    ----------
    x : value or array
        What is selected from, before it is rounded to D's type.
    k : int
        From 1 to 8, and at most N.

    Returns
    -------
    values, indices : results, or arrays of shape (..., M, k)
        Of a value, results that can only be returned, both or one of them: outputs of (M, k), in a batch (batch, M, k).
        Values are float32 unless another type is named (float64 where that is computed in), indices int32.

    Raises
    ------
    DescriptionError
        A k that is none of these, or a value that is the same in all columns.
    ArgumentError, ArgumentTypeError
        An array with fewer than k columns, or something else.

    Examples
    --------
    >>> import pycutlass
    >>> from pycutlass.epilogue import Row, top_k
    >>> @pycutlass.epilogue_function
    ... def route(accum, bias: Row):
    ...     logits = accum + bias
    ...     values, experts = top_k(logits, 2)
    ...     return {"D": logits, "values": values, "experts": experts}
    >>> found = route.numpy([[1.0, 4.0, 3.0, 4.0]], bias=[0.0, 0.0, 2.0, 0.0])
    >>> found["values"].tolist(), found["experts"].tolist()
    ([[5.0, 4.0]], [[2, 1]])
    """
    check_known("top_k", k=k)
    count = as_int(k)
    if count is None or not 1 <= count <= _MOST:
        remedy = ": k is an integer that is known when the function is traced, as in top_k(x, 2)"
        if count is not None:
            remedy = ": for more, write D and select in a kernel of its own" if count > _MOST else ": 1 is the least"
        raise DescriptionError(
            f"{where_called()}top_k takes k from 1 to {_MOST}, as threads keep so many in registers; got "
            f"k={shown(k)}{remedy}"
        )
    if isinstance(x, Reduced):
        x._refuse()
    if isinstance(x, Traced):
        return _traced(x, count)
    array = numbers("what top_k selects from", x, widens=False)
    if not array.ndim:
        raise ArgumentTypeError(f"top_k takes a value of an epilogue function, or an array of (..., N), got {shown(x)}")
    columns = array.shape[-1]
    if columns < count:
        raise ArgumentError(f"top_k takes k of at most the columns of x, which are {columns}; got k={count}")
    return largest(array, count)


def _traced(x: Traced, k: int) -> tuple[Reduced, Reduced]:
    trace = x._trace
    if trace.is_truth(x._number):
        raise DescriptionError(f"{where_called()}top_k takes numbers, and is given a condition: use where(x, 1.0, 0.0)")
    if not trace.columns.of(x._number):
        raise DescriptionError(
            f"{where_called()}top_k takes a value that differs from column to column, such as accum or accum + bias, "
            f"and is given one that is the same in all of a row"
        )
    values, indices = (
        _Selected(trace, trace.add(Value("top_k", (x._number,), (str(k), which))), "top_k")
        for which in ("values", "indices")
    )
    return values, indices


class _Selected(Reduced):
    """A result of `top_k`: as of reductions, all that can be done with it is to return it."""

    _WHAT = "what top_k selects"
    _COMPLETE = "the largest of a row are known when all of its tile is"
    _EXAMPLE = "values, indices = {name}(x, 2); return {{'D': x, 'values': values, 'indices': indices}}"


def check_selected(name: str, graph: Graph, columns: int) -> None:
    """Raise ArgumentError where a row of `columns` elements has fewer than `top_k` selects."""
    for each in graph.selections:
        if columns < each.k:
            raise ArgumentError(
                f"{name} selects the {each.k} largest elements of each row to "
                f"{', '.join((*each.values, *each.indices))}, and "
                f"a row has {columns} of them: k must be at most {columns}"
            )
