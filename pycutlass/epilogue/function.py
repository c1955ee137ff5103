"""Epilogues written as Python functions."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from pycutlass import _core
from pycutlass.calls import public, shown, suggestion
from pycutlass.epilogue import drawing, lowering
from pycutlass.epilogue.drawing import Cost
from pycutlass.epilogue.graph import Graph, element_named
from pycutlass.epilogue.pairs import check_gated
from pycutlass.epilogue.parameters import parameters, traced
from pycutlass.epilogue.places import where_called
from pycutlass.epilogue.protocol import Epilogue, Family, Port, Scalar
from pycutlass.epilogue.scalars import computed
from pycutlass.epilogue.traced import is_traced
from pycutlass.errors import ArgumentError, ArgumentTypeError, DescriptionError
from pycutlass.families.parts import Tile
from pycutlass.integers import as_int
from pycutlass.library import TensorDescription
from pycutlass.library import Value as FrozenValue
from pycutlass.types import Element, element

__all__ = ["EpilogueFunction", "FunctionEpilogue", "epilogue_function"]

Array = NDArray[Any]

_PORTS = ("matrix", "row", "column", "number")


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
    name = getattr(function, "__name__", type(function).__name__)
    if not callable(function) or isinstance(function, type):
        raise DescriptionError(f"epilogue_function traces a function, got {shown(function)}")
    graph = traced(function, parameters(function, name), name)
    check_gated(name, graph)
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
        element_output: Any,
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
            Of tensors beside C and D by their names: by default that of D, and of reductions that of the accumulator.
            A description says the layout and the alignment of a matrix as well, which are those of D otherwise.

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
        if epilogue_vector_length is None:  # has a default for the sake of the message above
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
            The other parameters by name: rows of (..., N), columns of (..., M), numbers of (...).

        Raises
        ------
        ArgumentTypeError
            A name that is missing or unknown.
        ArgumentError
            Shapes that do not fit.
        """
        first, *others = self.graph.inputs
        names = [each.name for each in others]
        for name in given:
            if name not in names:
                raise ArgumentTypeError(f"{self.name} has no parameter {name}.{suggestion(name, names)}")
        accum = _numbers(first.name, accum)
        if self.graph.is_gated and accum.shape[-1:] and accum.shape[-1] % 2:
            raise ArgumentError(
                f"{self.name} combines pairs of neighbouring columns, so that the accumulator has an even number of "
                f"them; got shape {accum.shape}"
            )
        dtype = accum.dtype if accum.dtype in (np.float32, np.float64) else np.dtype(np.float64)
        arrays: dict[str, Array] = {first.name: accum}
        for each in others:
            if each.name not in given and each.default is None:
                raise ArgumentTypeError(f"{self.name} takes {', '.join(names)}; {each.name} is missing")
            array = _numbers(each.name, given.get(each.name, each.default))
            if each.form == "number":
                arrays[each.name] = _for_each_matrix(self.name, each.name, array, accum.shape)
                continue
            wanted = {"row": accum.shape[-1:], "column": accum.shape[-2:-1], "scalar": ()}.get(
                each.form, accum.shape[-2:]
            )
            if array.shape[array.ndim - len(wanted) :] != wanted or (each.form == "scalar" and array.ndim):
                raise ArgumentError(
                    f"{each.name} of {self.name} is a {each.form}, of shape {wanted} where the accumulator has "
                    f"{accum.shape}; got {array.shape}"
                )
            if each.form in ("row", "column"):
                array = array[..., None, :] if each.form == "row" else array[..., None]
            arrays[each.name] = array
        made = self.graph.evaluate(arrays, dtype)
        return made if len(made) > 1 else made["D"]

    def visualize(self) -> str:
        """Return a drawing of the graph: SVG where graphviz is installed, else text."""
        return drawing.drawn(self.name, self.graph, {}, "")

    def __repr__(self) -> str:
        return f"<epilogue function {self.name}({', '.join(each.name for each in self.graph.inputs)})>"


def _for_each_matrix(function: str, name: str, given: Array, accumulator: tuple[int, ...]) -> Array:
    """Return numbers of the batch in the shape that they broadcast in: as given, or of (..., 1, 1) already."""
    batch = accumulator[:-2]
    if given.size == 1:
        return given.reshape(1, 1)
    if given.shape == (*batch, 1, 1):
        return given
    if given.shape != batch:
        wanted = f"of shape {batch}, or a single one" if batch else "a single one"
        raise ArgumentError(
            f"{name} of {function} is a number for each matrix of the batch, {wanted} where the accumulator has "
            f"{accumulator}; got {given.shape}"
        )
    return given[..., None, None]


def _numbers(name: str, given: Any) -> Array:
    """Return an array of numbers, which whoever gave it may have in any library that NumPy reads."""
    try:
        array = np.asarray(given)
        return array if array.dtype.kind in "fiub" else array.astype(np.float64)
    except Exception as error:  # of the array's library, or of NumPy
        raise ArgumentTypeError(f"{name} must be an array of numbers, got {type(given).__name__}") from error


@public
@dataclass(frozen=True, repr=False)
class FunctionEpilogue(FrozenValue, Epilogue):
    """An epilogue function with its types: what operations take as `epilogue_functor`.

    Parameters
    ----------
    function : EpilogueFunction
        What is computed.
    element_output, epilogue_vector_length, element_accumulator, element_epilogue
        As for `EpilogueFunction.__call__`.
    types : tuple of (str, element type or TensorDescription)
        Types of tensors beside C and D, by their names.

    Raises
    ------
    DescriptionError
        A type that no kernel takes there, or a length that is not a power of two.
    ArgumentTypeError
        A name that the function lacks.

    Examples
    --------
    >>> import pycutlass
    >>> from pycutlass import cutlass
    >>> from pycutlass.epilogue import Row, relu
    >>> @pycutlass.epilogue_function
    ... def relu_bias(accum, bias: Row):
    ...     return relu(accum + bias)
    >>> relu_bias(cutlass.float16, 8, bias=cutlass.float32)
    relu_bias(cutlass.float16, 8, cutlass.float32, cutlass.float32, bias=cutlass.float32)
    """

    function: EpilogueFunction
    element_output: Any
    epilogue_vector_length: int
    element_accumulator: Any = None
    element_epilogue: Any = None
    types: tuple[tuple[str, Any], ...] = ()

    #: What follows from the fields.
    output: Element = field(init=False, repr=False, compare=False, default=None)  # type: ignore[assignment]
    accumulator: Element = field(init=False, repr=False, compare=False, default=None)  # type: ignore[assignment]
    compute: Element = field(init=False, repr=False, compare=False, default=None)  # type: ignore[assignment]
    inputs: tuple[Port, ...] = field(init=False, repr=False, compare=False, default=())
    outputs: tuple[Port, ...] = field(init=False, repr=False, compare=False, default=())
    ports: tuple[Port, ...] = field(init=False, repr=False, compare=False, default=())

    is_tree: ClassVar[bool] = True
    takes_lists: ClassVar[bool] = True
    saturates: ClassVar[bool] = True

    def __post_init__(self) -> None:
        output = element(self.element_output)
        wide = _core.float64 if output.short == "f64" else _core.float32
        accumulator = element(wide if self.element_accumulator is None else self.element_accumulator)
        compute = element(wide if self.element_epilogue is None else self.element_epilogue)
        lowering.check_types(self.name, output, compute)
        length = as_int(self.epilogue_vector_length)
        if length is None or length < 1 or length & (length - 1) or length * output.bits > 128:
            raise DescriptionError(
                f"epilogue_vector_length must be a power of two of at most 128 bits, which is {128 // output.bits} "
                f"elements of {output}; got {shown(self.epilogue_vector_length)}"
            )
        self.__dict__.update(
            output=output,
            accumulator=accumulator,
            compute=compute,
            element_output=output.tag,
            element_accumulator=accumulator.tag,
            element_epilogue=compute.tag,
            epilogue_vector_length=length,
        )
        self._make_ports(dict(self.types))
        lowering.check_names(self.name, self.function.graph)
        lowering.check_constants(self.name, self.function.graph, compute)
        lowering.check_pairs(self.name, self.function.graph, length)

    def _make_ports(self, types: Mapping[str, Any]) -> None:
        graph = self.function.graph
        inputs = {each.name: each.form for each in graph.of_form(*_PORTS)}
        reduced, numbers = dict(graph.reductions), dict(graph.outputs)
        outputs = {
            name: graph.form(number) if name in reduced else "matrix" for name, number in graph.outputs if name != "D"
        }
        named = [*inputs, *outputs]
        for name in types:
            if name not in named:
                raise ArgumentTypeError(
                    f"{self.name} has no tensor {name!r} beside C and D: it has {', '.join(named) or 'none'}."
                    f"{suggestion(name, named)}"
                )

        def port(name: str, form: str) -> Port:
            given = graph.by_name[name].kind if name in graph.by_name else None
            wide = self.compute if self.compute.bits > 16 else element(_core.float32)
            default = wide if name in reduced else self.output if given is None else element_named(given)
            described = types.get(name, default.tag)
            kind = element(described.element if isinstance(described, TensorDescription) else described)
            if given is not None and kind is not default:
                raise DescriptionError(f"{self.name} says that {name} is {default}, got {name}={kind}: leave it out")
            tile = graph.tile(numbers[name]) if name in numbers else 0
            lowering.check_port(self.name, name, kind, name in reduced and not tile)
            made = Port.usual(name, kind.tag, form, self.epilogue_vector_length, tile)
            return lowering.described_as(self.name, made, described)

        made_inputs = tuple(port(name, form) for name, form in inputs.items())
        made_outputs = tuple(port(name, form) for name, form in outputs.items())
        made = made_inputs + made_outputs
        usual = self.epilogue_vector_length
        kinds = tuple((each.name, each.tag if each.is_usual(usual) else each.description) for each in made)
        self.__dict__.update(inputs=made_inputs, outputs=made_outputs, ports=made, types=kinds)

    @property
    def matrices_read(self) -> tuple[str, ...]:
        """Names of the inputs of the extents of D, any of which may be D itself."""
        return tuple(port.name for port in self.inputs if port.form == "matrix")

    @property
    def name(self) -> str:
        """The name of the function."""
        return self.function.name

    @property
    def graph(self) -> Graph:
        """What is computed."""
        return self.function.graph

    @property
    def scalar_table(self) -> tuple[Scalar, ...]:
        """The function's scalars, all of which may be in device memory."""
        return tuple(Scalar(each.name, each.default, on_device=True) for each in self.graph.of_form("scalar"))

    @property
    def reads_source(self) -> bool:
        """Whether C is read."""
        return bool(self.graph.of_form("source"))

    def columns(self, n: int) -> int:
        """Return how many columns D has, of a product that has `n`."""
        return n // 2 if self.graph.is_gated else n

    def why_not(self, family: Family) -> str:
        """Return why kernels of `family` cannot have this epilogue; nothing where they can."""
        return lowering.why_not(self, family)

    def cpp(self, family: Family, source: Element | None = None) -> str:
        """Return the C++ type, which `definitions` defines."""
        return lowering.FAMILIES[family].cpp

    def transposed(self) -> FunctionEpilogue | None:
        """Return the epilogue of the transposed problem, as kernels compute a column-major D; None of pairs."""
        if self.graph.is_gated:  # whose columns would be rows, which threads do not have side by side
            return None
        function = EpilogueFunction(self.name, self.graph.transposed())
        types = tuple(
            (port.name, port.tag if layout is None else TensorDescription(port.tag, layout, port.alignment))
            for port, layout in ((port, port.transposed().layout) for port in self.ports)
        )
        return replace(self, function=function, types=types)

    def definitions(self, family: Family) -> str:
        """Return the C++ that comes before the kernel."""
        return lowering.definitions(self, family)

    def loaded(self, family: Family) -> Port | None:
        """Return the tensor that kernels of `family` load as they load C, which is not read then."""
        return lowering.loaded(self, family)

    def shared_bytes(self, family: Family, tile: Tile) -> int:
        """Return the shared memory in bytes beside what C and D go through."""
        return lowering.shared_bytes(self, family, tile)

    def reduced_bytes(self, columns: int, warps: int) -> int:
        """Return the shared memory in bytes of reductions in a kernel whose `warps` have `columns` each."""
        return lowering.reduced_bytes(self, columns, warps)

    def visualize(self) -> str:
        """Return a drawing of the graph, with shapes and types: SVG where graphviz is installed, else text."""
        kinds = {port.name: port.type.name for port in self.ports}
        kinds |= {self.graph.inputs[0].name: self.accumulator.name, "D": self.output.name}
        return drawing.drawn(self.name, self.graph, kinds, self.compute.name)

    def cost(self, problem: Any, bandwidth: float | None = None, *, plain: Any = None, fused: Any = None) -> Cost:
        """Return what the function takes beside the plain product.

        Parameters
        ----------
        problem : GemmProblemSize or sequence of 3 int
            M, N and K.
        bandwidth : float, optional
            Bytes that the memory moves in a second; by default 4.2e12, which copies reach on an H200.
        plain, fused : Operation, optional
            Compiled operations without and with the function, whose registers are compared.

        Raises
        ------
        ArgumentTypeError
            No problem, or no bandwidth.
        """
        return drawing.cost(self.inputs, self.outputs, problem, bandwidth, (plain, fused))

    def evaluate(
        self,
        accumulator: Array,
        source: Array | None,
        scalars: Mapping[str, float],
        inputs: Mapping[str, Array],
        compute: np.dtype[Any] | None = None,
    ) -> dict[str, Array]:
        """Return D and every output by name, before they are rounded to their types; see `Epilogue.evaluate`."""
        first = self.graph.inputs[0].name
        given: dict[str, Array] = {first: accumulator, **inputs}
        for each in self.graph.of_form("source"):
            assert source is not None
            given[each.name] = source
        for name, number in scalars.items():
            given[name] = np.asarray(computed(self.compute, number))
        narrow = self.compute.bits <= 16
        dtype = compute or (np.dtype(np.float32) if narrow else self.compute.dtype)
        rounds = narrow and compute is None
        return self.graph.evaluate(given, dtype, (lambda x: self.compute.round(x).astype(dtype)) if rounds else None)

    def __repr__(self) -> str:
        types = "".join(
            f", {name}={kind if isinstance(kind, TensorDescription) else element(kind)}" for name, kind in self.types
        )
        return f"{self.name}({self.output}, {self.epilogue_vector_length}, {self.accumulator}, {self.compute}{types})"
