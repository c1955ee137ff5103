"""Epilogues as operators take them, as text: what one reads and writes, in the order of an operator's lists."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch

from pycutlass.calls import public, shown, suggestion
from pycutlass.epilogue import Epilogue, EpilogueFunction
from pycutlass.epilogue.graph import element_named
from pycutlass.epilogue.handles import handle_of, is_handle, read_handle
from pycutlass.errors import ArgumentError, ArgumentTypeError
from pycutlass.plan.composed import TypedFunction
from pycutlass.plan.kinds import Wanted, accumulator_of, is_gated
from pycutlass.plan.kinds import epilogue_of as with_types
from pycutlass.pytorch.activations import ACTIVATIONS
from pycutlass.pytorch.shapes import element_of_operand
from pycutlass.types import element

__all__ = ["Fused", "Read", "Written", "epilogue_handle", "epilogue_of", "fused"]

_PAIR = 2  # columns that are written together


@public
def epilogue_handle(function: EpilogueFunction, **types: Any) -> str:
    """Return an epilogue function as text, by which operators of torch take it.

    The text has all that the function computes, so that it means the same in every process, and caches of compiled
    graphs tell functions apart. Equal functions have equal texts.

    Parameters
    ----------
    function : EpilogueFunction
        What ``pycutlass.epilogue_function`` returns.
    **types : dtype of torch, or element type of ``cutlass``
        Of outputs by name, D among them. By default D has the type that products of the operands have, matrices beside
        it the type of D, reductions and what `top_k` selects float32 (float64 where D is), and indices int32.

    Returns
    -------
    str
        The text.

    Raises
    ------
    ArgumentTypeError
        No epilogue function, or a name that is no output's.
    DescriptionError
        A type that kernels do not have.

    Examples
    --------
    >>> import pycutlass, pycutlass.pytorch, torch
    >>> from pycutlass.epilogue import Row, relu
    >>> @pycutlass.epilogue_function
    ... def scaled(accum, scale: Row):
    ...     return {"D": relu(accum * scale), "T": accum}
    >>> handle = pycutlass.pytorch.epilogue_handle(scaled, T=torch.float32)
    >>> pycutlass.pytorch.epilogue_of(handle) == scaled
    True
    >>> D, T = torch.ops.pycutlass.fused_mm(torch.eye(2), torch.eye(2), handle, [torch.tensor([2.0, 3.0])])
    >>> D
    tensor([[2., 0.],
            [0., 3.]])
    """
    text = handle_of(function)  # which refuses whatever is no function
    names = [name for name, _ in function.graph.outputs]
    for name in types:
        if name not in names:
            raise ArgumentTypeError(
                f"{function.name} has no output {name!r}: it has {', '.join(names)}, and what it reads is of the type "
                f"of the tensor that is given.{suggestion(name, names)}"
            )
    return handle_of(function, {name: element(kind).short for name, kind in types.items()}) if types else text


@public
def epilogue_of(handle: str) -> EpilogueFunction:
    """Return the epilogue function that `epilogue_handle` was given, or one that is equal to it.

    Parameters
    ----------
    handle : str
        What `epilogue_handle` has returned.

    Raises
    ------
    ArgumentTypeError, ArgumentError
        Another text, or one of a release whose texts are others.

    Examples
    --------
    >>> import pycutlass.pytorch
    >>> from pycutlass.epilogue import fusions
    >>> pycutlass.pytorch.epilogue_of(pycutlass.pytorch.epilogue_handle(fusions.bias_gelu)) == fusions.bias_gelu
    True
    """
    return (_read(handle) if type(handle) is str else read_handle(handle))[0]  # which refuses what cannot be hashed


@lru_cache(maxsize=512)  # a program has a bounded number of epilogues, each of which is a kernel
def _read(handle: str) -> tuple[EpilogueFunction, dict[str, str]]:
    return read_handle(handle)


@dataclass(frozen=True)
class Read:
    """A tensor that an epilogue reads.

    Attributes
    ----------
    name : str
        Of the function's parameter.
    form : str
        ``"row"``, ``"column"``, ``"matrix"``, ``"number"`` or ``"source"``.
    halved : bool
        Whether it has half as many columns as the product, as D has where pairs of columns are combined.
    dtype : torch.dtype or None
        The type that it must have; None of one that may have any that kernels read.
    """

    name: str
    form: str
    halved: bool
    dtype: torch.dtype | None


@dataclass(frozen=True)
class Written:
    """An output of an epilogue.

    Attributes
    ----------
    name : str
        By which the function returns it.
    form : str
        ``"matrix"``, or what a reduction or `top_k` leaves: ``"row"``, ``"column"``, ``"scalar"``, ``"row_tiles"``,
        ``"column_tiles"`` or ``"top_k"``.
    dtype : torch.dtype
        Its type.
    halved : bool
        Whether it has half as many columns as the product.
    extent : int
        Columns or rows of a tile, or k, where it has such results.
    """

    name: str
    form: str
    dtype: torch.dtype
    halved: bool = False
    extent: int = 0


@dataclass(frozen=True)
class Fused:
    """An epilogue with operands of a type, as an operator computes it.

    Attributes
    ----------
    reads : tuple of Read
        Tensors in the order of the operator's list.
    scalars : tuple of (str, float or None)
        Scalars in order, with what they are where they are left out.
    writes : tuple of Written
        Results in order.
    is_gated : bool
        Whether pairs of columns are combined.
    function : EpilogueFunction or None
        What is computed; None of an activation.
    types : tuple of (str, element type)
        Types of outputs beside D.
    kind : type or None
        The activation, where that is all.
    """

    reads: tuple[Read, ...]
    scalars: tuple[tuple[str, float | None], ...]
    writes: tuple[Written, ...]
    is_gated: bool
    function: EpilogueFunction | None
    types: tuple[tuple[str, Any], ...]
    kind: Any = None

    @property
    def output(self) -> Written:
        """D."""
        return next(each for each in self.writes if each.name == "D")

    def epilogue(self, tensors: dict[str, torch.Tensor]) -> Any:
        """Return the epilogue for tensors of these types, as a plan takes it."""
        if self.function is None:
            return self.kind
        kinds = tuple((each.name, tensors[each.name].dtype) for each in self.reads if each.dtype is None)
        return _typed(self.function, self.types, kinds)

    @property
    def is_plain(self) -> bool:
        """Whether each element of a result is made of one sum."""
        return not self.is_gated and all(each.form == "matrix" for each in self.writes)

    @property
    def source(self) -> str:
        """The name of operand C; nothing where it is not read."""
        return next((each.name for each in self.reads if each.form == "source"), "")


@lru_cache(maxsize=512)
def _typed(function: EpilogueFunction, types: tuple[Any, ...], kinds: tuple[tuple[str, torch.dtype], ...]) -> Any:
    return TypedFunction(function, (*types, *((name, _tag(name, dtype)) for name, dtype in kinds)))


def _tag(name: str, dtype: torch.dtype) -> Any:
    """Return the element type of a tensor of the epilogue."""
    return element_of_operand(name, dtype).tag


@lru_cache(maxsize=512)
def fused(epilogue: str, operand: torch.dtype) -> Fused:
    """Return an epilogue, by its name or its handle, of products of operands of a type.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        No such text, or an epilogue that cannot write the type of the result.
    """
    of_a = element_of_operand("the first operand", operand)
    if type(epilogue) is str and epilogue in ACTIVATIONS:
        out = _dtype(Wanted().output(of_a))
        return Fused((), (), (Written("D", "matrix", out),), False, None, (), ACTIVATIONS[epilogue].kind)
    if not is_handle(epilogue):
        known = ", ".join(map(repr, ACTIVATIONS))
        raise ArgumentError(
            f"epilogue must be the name of an activation, {known}, or what pycutlass.pytorch.epilogue_handle returns; "
            f"got {shown(epilogue)}.{suggestion(str(epilogue), ACTIVATIONS)}"
        )
    function, named = _read(epilogue)
    kinds = {name: element_named(short).tag for name, short in named.items()}
    wanted = Wanted(None, kinds.pop("D", None))
    if wanted.output(of_a).short == "s32" and "D" not in named:
        raise ArgumentError(
            f"the product of {operand} is of int32, and epilogue functions are computed in fractions: say the "
            f"type of D, as in pycutlass.pytorch.epilogue_handle(function, D=torch.float32)"
        )
    types = tuple(kinds.items())
    functor, _ = with_types(TypedFunction(function, types), wanted.output(of_a), _PAIR, accumulator_of(of_a, wanted))
    return Fused(
        tuple(_reads(function, functor)),
        tuple((each.name, each.default) for each in function.graph.of_form("scalar")),
        tuple(_writes(function, functor)),
        is_gated(function),
        function,
        types,
    )


def _reads(function: EpilogueFunction, functor: Epilogue) -> Any:
    """Yield what is read, in the order of the function's parameters."""
    for each in function.graph.of_form("row", "column", "matrix", "number", "source"):
        dtype = None if each.kind is None else _dtype(element_named(each.kind))
        yield Read(each.name, each.form, each.halved, _dtype(functor.output) if each.form == "source" else dtype)


def _writes(function: EpilogueFunction, functor: Epilogue) -> Any:
    """Yield what is written, in the order in which the function returns it."""
    ports = {port.name: port for port in functor.outputs}
    for name, _ in function.graph.outputs:
        if name == "D":
            yield Written("D", "matrix", _dtype(functor.output), function.graph.is_gated)
        else:
            port = ports[name]
            yield Written(name, port.form, _dtype(port.type), port.halved, port.tile or port.selected)


def _dtype(kind: Any) -> torch.dtype:
    found: torch.dtype = getattr(torch, kind.dtype_name)
    return found
