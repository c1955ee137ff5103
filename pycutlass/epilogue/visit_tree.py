"""The original's epilogue visitor trees: classes whose ``__call__`` says what is computed, over the same graph."""

from __future__ import annotations

import dis
import inspect
import sys
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import CodeType, FrameType
from typing import Any

import numpy as np

from pycutlass.calls import public, shown, unknown_keywords
from pycutlass.epilogue.function import EpilogueFunction
from pycutlass.epilogue.function_epilogue import FunctionEpilogue
from pycutlass.epilogue.functions import sum as sum_of
from pycutlass.epilogue.pairs import check_gated
from pycutlass.epilogue.parameters import parameters, traced
from pycutlass.epilogue.places import where_defined
from pycutlass.epilogue.protocol import Epilogue
from pycutlass.epilogue.scalars import EpilogueScalars
from pycutlass.epilogue.traced import Reduced, Traced
from pycutlass.errors import ArgumentError, ArgumentTypeError, DescriptionError
from pycutlass.integers import as_int, several
from pycutlass.library import TileDescription

__all__ = ["EpilogueVisitTree", "VisitorArguments", "VisitorEpilogue", "of_function", "reduction_op"]

_AXES = {"row": 1, "column": 0}


@public
def reduction_op(tensor: Any, direction: str, math: str, factor: int) -> Any:
    """Return the sums of each tile, in a tree and of arrays alike.

    Parameters
    ----------
    tensor : value of a tree, or array of shape (batch, M, N)
        What is added up.
    direction : str
        ``"row"`` adds along rows: M sums for each tile across, those of the first tile first. ``"column"`` adds along
        columns: N sums for each tile down.
    math : str
        ``"Add"``.
    factor : int
        Columns (``"row"``) or rows (``"column"``) of the kernel's threadblock tile.

    Returns
    -------
    value of a tree, or array
        An array is flat, of batch * tiles * M or N sums, which are made as `pycutlass.epilogue.sum` makes them.

    Raises
    ------
    DescriptionError
        Another direction or operation, or no extent of a tile.

    Examples
    --------
    >>> import numpy as np
    >>> from pycutlass import reduction_op
    >>> reduction_op(np.ones((1, 2, 6)), "row", "Add", 4)
    array([4., 4., 2., 2.])
    """
    extent = as_int(factor)
    is_known = type(direction) is str and direction in _AXES and type(math) is str and math == "Add"
    if not is_known or extent is None or extent < 1:
        raise DescriptionError(
            f"reduction_op takes a direction of 'row' or 'column', 'Add', and the columns or rows of a tile; got "
            f"{shown(direction)}, {shown(math)}, {shown(factor)}: pycutlass.epilogue has more, such as max(x, axis=1)"
        )
    axis = _AXES[direction]
    if isinstance(tensor, Traced | Reduced):
        return sum_of(tensor, axis=axis, tile=extent)
    try:
        return sum_of(np.asarray(tensor), axis=axis, tile=extent).reshape(-1)
    except Exception as error:  # of NumPy, or of whoever made the tensor
        raise ArgumentTypeError(
            f"tensor must be a value of a tree, or an array of numbers of shape (batch, M, N); got {shown(tensor)}"
        ) from error


@public
class EpilogueVisitTree:
    """An epilogue as a class: its ``__call__`` is traced, as `epilogue_function` traces functions.

    Parameters of ``__call__`` behind the accumulator are annotated ``'tensor'``, ``'row'``, ``'column'`` or
    ``'scalar'``; what it returns are variables of its own, whose names are those of the outputs. Called with arrays, it
    is its own reference.

    Parameters
    ----------
    elementwise_functor : Epilogue
        What the original built the kernel around; it has no effect here.
    tile_description : TileDescription
        Of the kernel.
    element_accumulator : element type of ``cutlass``
        Type of the accumulator.
    elements_per_access : int
        The alignment of C.
    element_compute, element_output : element type of ``cutlass``
        The type that is computed in, and that of C, which all tensors have.

    Raises
    ------
    DescriptionError
        It cannot be traced, or kernels cannot have it.

    Examples
    --------
    >>> import pycutlass
    >>> from pycutlass import cutlass
    >>> class ReluBias(pycutlass.EpilogueVisitTree):
    ...     def __call__(self, accum: 'tensor', c: 'tensor', bias: 'row', alpha: 'scalar'):
    ...         T = alpha * accum + bias
    ...         D = pycutlass.relu.numpy(T) + c
    ...         return D, T
    >>> instruction = pycutlass.MathInstruction(
    ...     [16, 8, 16], cutlass.float16, cutlass.float16, cutlass.float32, cutlass.OpClass.TensorOp
    ... )
    >>> tile = pycutlass.TileDescription([128, 128, 32], 3, [2, 2, 1], instruction)
    >>> linear = pycutlass.LinearCombination(cutlass.float16, 8, cutlass.float32, cutlass.float32)
    >>> tree = ReluBias(linear, tile, cutlass.float32, 8, cutlass.float32, cutlass.float16)
    >>> tree.initialize()
    >>> tree.functor
    ReluBias(cutlass.float16, 8, cutlass.float32, cutlass.float32, c=cutlass.float16, bias=cutlass.float16, \
T=cutlass.float16)
    """

    def __init__(
        self,
        elementwise_functor: Epilogue | None,
        tile_description: TileDescription,
        element_accumulator: Any,
        elements_per_access: int,
        element_compute: Any,
        element_output: Any,
    ) -> None:
        if elementwise_functor is not None and not isinstance(elementwise_functor, Epilogue):
            raise ArgumentTypeError(
                f"elementwise_functor must be an epilogue functor, such as LinearCombination, got "
                f"{shown(elementwise_functor)}"
            )
        if not isinstance(tile_description, TileDescription):
            raise ArgumentTypeError(f"tile_description must be a TileDescription, got {shown(tile_description)}")
        self.elementwise_functor, self.tile_description = elementwise_functor, tile_description
        self.element_accumulator, self.element_compute = element_accumulator, element_compute
        self.element_output, self.elements_per_access = element_output, elements_per_access
        self._functor: VisitorEpilogue | None = None

    def __call__(self, *values: Any) -> Any:
        """Say what is computed; each tree does so in its own class."""
        raise DescriptionError(
            f"{type(self).__name__} does not say what it computes: give the class a __call__(self, accum: 'tensor', "
            f"...)"
        )

    def initialize(self) -> None:
        """Trace ``__call__``, which scripts of the original ask for. Operations do it where nobody has."""
        name = type(self).__name__
        graph, main = _graph(self, name)
        function = EpilogueFunction(name, graph, inspect.getdoc(type(self)) or "")
        reduced = [output for output, _ in graph.reductions]
        self._functor = VisitorEpilogue(
            function,
            self.element_output,
            self.elements_per_access,
            self.element_accumulator,
            self.element_compute,
            tuple((output, self.element_output) for output in reduced),
            main=main,
        )

    @property
    def functor(self) -> VisitorEpilogue:
        """The epilogue that operations have."""
        if self._functor is None:
            self.initialize()
        assert self._functor is not None
        return self._functor

    @property
    def epilogue_type(self) -> Callable[..., VisitorArguments]:
        """What makes ``output_op``, as that of the operation."""
        return self.functor.epilogue_type


def _graph(tree: EpilogueVisitTree, name: str) -> tuple[Any, str]:
    """Return the graph of a tree, and the name of the output that is D there."""
    call = type(tree).__call__
    if call is EpilogueVisitTree.__call__:
        tree()
    first = next(iter(inspect.signature(call).parameters), "")
    if not first or first.startswith("acc"):
        raise DescriptionError(
            f"__call__ of {name} has {first or 'nothing'} as its first parameter, which is self in a class: def "
            f"__call__(self, accum, ...)"
        )
    main = ""

    def named(*values: Any) -> dict[str, Any]:
        nonlocal main
        returned, variables, written = _with_variables(call, tree, *values)
        try:
            main, outputs = _outputs(name, returned, variables, written)
        except DescriptionError as error:
            raise DescriptionError(f"{where_defined(call)}{error}") from None
        return outputs

    graph = traced(named, parameters(tree.__call__, name), name, call)
    try:
        check_gated(name, graph)
    except DescriptionError as error:
        raise DescriptionError(f"{where_defined(call)}{error}") from None
    return graph, main


def _outputs(
    tree: str, returned: Any, variables: Mapping[str, Any], written: list[str]
) -> tuple[str, dict[str, Traced | Reduced]]:
    """Return the variable that is D, and what is returned by name, with that one as D."""
    outputs = returned if isinstance(returned, tuple) else (returned,)
    each_written = written if len(written) == len(outputs) else [""] * len(outputs)
    named = [(_name(tree, *each, variables), each[0]) for each in zip(outputs, each_written, strict=True)]
    names = [each for each, _ in named]
    if len(set(names)) < len(names):
        raise DescriptionError(f"{tree} returns {', '.join(names)}: return each variable once")
    for each, output in named:
        if each == "D" and isinstance(output, Reduced):
            raise DescriptionError(
                f"{tree} returns {output._WHAT} as D, which is what the whole matrix is called: give it another name, "
                f"as in return T, total"
            )
    matrices = [each for each, output in named if isinstance(output, Traced)]
    if not matrices:
        raise DescriptionError(f"{tree} returns no tensor: a kernel writes one at least, so return D as well")
    main = "D" if "D" in matrices else matrices[0]
    return main, {"D" if each == main else each: output for each, output in named}


def _with_variables(call: Callable[..., Any], *values: Any) -> tuple[Any, dict[str, Any], list[str]]:
    """Return what `call` returns, its variables at that point, and which of them the return statement has."""
    code = getattr(inspect.unwrap(call), "__code__", None)
    variables: dict[str, Any] = {}
    written: list[str] = []
    before = sys.getprofile()

    def look(frame: FrameType, event: str, _: Any) -> None:
        if event == "return" and frame.f_code is code:
            variables.clear()
            variables.update(frame.f_locals)
            written[:] = _loaded_last(frame.f_code, frame.f_lasti)

    sys.setprofile(look)
    try:
        returned = call(*values)
    finally:
        sys.setprofile(before)
    return returned, variables, written


def _loaded_last(code: CodeType, last: int) -> list[str]:
    """Return the variables that code loads for the return at an offset, in order."""
    names: list[str] = []
    for each in reversed([each for each in dis.get_instructions(code) if each.offset < last]):
        if each.opname.startswith(("LOAD_FAST", "LOAD_DEREF")):
            names[:0] = each.argval if isinstance(each.argval, tuple) else (each.argval,)
        elif each.opname == "STORE_FAST_LOAD_FAST":  # from Python 3.13 on: what it stores was made before
            names[:0] = each.argval[1:]
            break
        elif each.opname not in ("BUILD_TUPLE", "NOP"):
            break
    return names


def _name(tree: str, output: Any, written: str, variables: Mapping[str, Any]) -> str:
    """Return the variable that an output is kept in: that which the return statement has, where it has one."""
    for name in (written, *variables):
        if name in variables and variables[name] is output and isinstance(output, Traced | Reduced):
            return name
    raise DescriptionError(
        f"{tree} returns {shown(output)}, which is none of its variables: outputs have their names, so write D = ..., "
        f"and return D"
    )


@public
@dataclass(frozen=True, repr=False)
class VisitorEpilogue(FunctionEpilogue):
    """What an `EpilogueVisitTree` is to operations: an epilogue function that has another name for D.

    Parameters
    ----------
    main : str
        The variable that is D.

    Examples
    --------
    See `EpilogueVisitTree`, whose `functor` is one.
    """

    main: str = "D"

    def epilogue_type(self, *values: Any, problem_size: Any = None, **named: Any) -> VisitorArguments:
        """Return what a launch takes as ``output_op``: tensors and scalars by their names.

        Parameters
        ----------
        problem_size : sequence of 2 int, optional
            M and N, which the arguments know as well: others are refused there.
        **named : tensor or number
            What ``__call__`` takes behind the accumulator, and a tensor for each variable that it returns.

        Raises
        ------
        ArgumentError, ArgumentTypeError
            Something is missing, unknown, or no number.
        """
        extents = None if problem_size is None else several(problem_size, 2)
        if problem_size is not None and extents is None:
            raise ArgumentTypeError(f"problem_size must be [M, N], got {shown(problem_size)}")
        tensors = {port.name: named.pop(port.name) for port in self.ports if named.get(port.name) is not None}
        target = named.pop(self.main, None)
        missing = [port.name for port in self.ports if port.name not in tensors]
        missing += [self.main] if target is None else []
        if missing:
            raise ArgumentError(
                f"{self.name} takes {', '.join([self.main, *(port.name for port in self.ports), *self.scalar_names])}; "
                f"{', '.join(missing)} {'is' if len(missing) == 1 else 'are'} missing"
            )
        known = (*self.scalar_names, self.main, *(port.name for port in self.ports))
        if unknown := {name: value for name, value in named.items() if name not in known}:
            raise unknown_keywords("epilogue_type", unknown, known)
        scalars = super().epilogue_type(*values, **named)
        return VisitorArguments(
            scalars.values,
            scalars.pointers,
            scalars.owners,
            scalars.compute,
            scalars.names,
            scalars.beta_is_given,
            scalars.reads_source,
            scalars.counts,
            tensors,
            target,
            extents,
        )


def of_function(epilogue: Any) -> Any:
    """Return what a tree is without the tensors in its `epilogue_type`: a function with types. Others stay as they are.

    Launches other than `GemmArguments` take these as ``epilogue={...}``, and D as D.
    """
    epilogue = epilogue.functor if isinstance(epilogue, EpilogueVisitTree) else epilogue
    if not isinstance(epilogue, VisitorEpilogue):
        return epilogue
    return FunctionEpilogue(
        epilogue.function,
        epilogue.element_output,
        epilogue.epilogue_vector_length,
        epilogue.element_accumulator,
        epilogue.element_epilogue,
        epilogue.types,
    )


@dataclass(frozen=True, eq=False)
class VisitorArguments(EpilogueScalars):
    """The scalars and tensors of one launch of a tree."""

    tensors: Mapping[str, Any] = field(default_factory=dict)
    target: Any = None
    #: M and N as `epilogue_type` was given them.
    extents: tuple[int, ...] | None = None
    #: Arguments that were made with it, which have what `sync` brings back.
    _launches: list[weakref.ref[Any]] = field(default_factory=list, repr=False)

    def check_extents(self, m: int, n: int) -> None:
        """Raise ArgumentError where it was made for D of other extents than those of a launch."""
        if self.extents not in (None, (m, n)):
            raise ArgumentError(
                f"output_op was made for problem_size={list(self.extents or ())}, and the arguments are for {m} x {n} "
                f"(M x N): give epilogue_type problem_size=[{m}, {n}], or leave it out"
            )

    def known_to(self, arguments: Any) -> None:
        """Have `sync` wait for the launches of `arguments`."""
        self._launches.append(weakref.ref(arguments))

    def sync(self, stream_sync: bool = True) -> None:
        """Wait for the launch, and bring the results back to where they were asked for, as ``arguments.sync()`` does.

        Raises
        ------
        ArgumentError
            No arguments were made with it, or they are gone.
        """
        alive = [arguments for arguments in (each() for each in self._launches) if arguments is not None]
        if not alive:
            raise ArgumentError(
                "output_op.sync() has no launch to wait for: keep the GemmArguments that were made with it"
            )
        for arguments in alive:
            arguments.sync()
