"""An epilogue function with its types: what operations take as `epilogue_functor`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

from pycutlass import _core
from pycutlass.calls import public, shown, suggestion
from pycutlass.epilogue import drawing, function_types, lowering
from pycutlass.epilogue.drawing import Cost
from pycutlass.epilogue.graph import Graph, element_named
from pycutlass.epilogue.protocol import Epilogue, Family, Port, Scalar
from pycutlass.errors import ArgumentTypeError, DescriptionError
from pycutlass.families.parts import Tile
from pycutlass.integers import as_int
from pycutlass.library import TensorDescription
from pycutlass.library import Value as FrozenValue
from pycutlass.types import Element, computed, element

__all__ = ["FunctionEpilogue"]

Array = NDArray[Any]

_PORTS = ("matrix", "row", "column", "number")
#: Inputs whose type is that of D by default, unless it has 8 bits: scales and biases have more.
_VECTORS = ("row", "column", "number")


class _Function(Protocol):
    """What is read of an `EpilogueFunction`."""

    @property
    def name(self) -> str:
        """Its name."""

    @property
    def graph(self) -> Graph:
        """What it computes."""

    def transposed(self) -> Any:
        """Return the function of the transposed matrices."""

    def numpy(self, accum: Any, **given: Any) -> Any:
        """Return what it computes, in NumPy."""


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

    function: _Function
    element_output: Any
    epilogue_vector_length: int
    element_accumulator: Any = None
    element_epilogue: Any = None
    types: tuple[tuple[str, Any], ...] = ()
    #: Whether a kernel stores columns of D; `by_columns` says so, and no user.
    stores_columns: bool = field(default=False, repr=False)

    #: What follows from the fields.
    output: Element = field(init=False, repr=False, compare=False, default=None)  # type: ignore[assignment]
    accumulator: Element = field(init=False, repr=False, compare=False, default=None)  # type: ignore[assignment]
    compute: Element = field(init=False, repr=False, compare=False, default=None)  # type: ignore[assignment]
    inputs: tuple[Port, ...] = field(init=False, repr=False, compare=False, default=())
    outputs: tuple[Port, ...] = field(init=False, repr=False, compare=False, default=())
    ports: tuple[Port, ...] = field(init=False, repr=False, compare=False, default=())

    is_tree: ClassVar[bool] = True
    takes_lists: ClassVar[bool] = True
    takes_simt: ClassVar[bool] = True
    saturates: ClassVar[bool] = True

    def __post_init__(self) -> None:
        output = element(self.element_output)
        wide = _core.float64 if output.short == "f64" else _core.float32
        accumulator = element(wide if self.element_accumulator is None else self.element_accumulator)
        compute = element(wide if self.element_epilogue is None else self.element_epilogue)
        function_types.check_types(self.name, output, compute)
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
        function_types.check_names(self.name, self.function.graph)
        function_types.check_constants(self.name, self.function.graph, compute)
        function_types.check_bytes(self.name, len(self.scalar_table), len(self.ports))
        function_types.check_pairs(self.name, self.function.graph, length)

    def _make_ports(self, types: Mapping[str, Any]) -> None:
        graph = self.function.graph
        inputs = {each.name: each.form for each in graph.of_form(*_PORTS)}
        reduced, numbers = dict(graph.reductions), dict(graph.outputs)
        outputs = {
            name: graph.form(number).removeprefix("half_") if name in graph.of_many else "matrix"
            for name, number in graph.outputs
            if name != "D"
        }
        indices = {name for each in graph.selections for name in each.indices}
        halved = {name for name, number in graph.outputs if graph.is_halved(number)}
        halved |= {each.name for each in graph.inputs if each.halved}
        named = [*inputs, *outputs]
        for name in types:
            if name not in named:
                where = {"C": " The operation's description of C says its type.", "D": " The type of D comes first."}
                raise ArgumentTypeError(
                    f"{self.name} has no tensor {name!r} beside C and D: it has {', '.join(named) or 'none'}."
                    f"{where.get(name) or suggestion(name, named)}"
                )

        def port(name: str, form: str) -> Port:
            given = graph.by_name[name].kind if name in graph.by_name else None
            wide = self.compute if self.compute.bits > 16 else element(_core.float32)
            usual = wide if form in _VECTORS and self.output.bits == 8 else self.output
            default = wide if name in graph.of_many else usual if given is None else element_named(given)
            default = element(_core.int32) if name in indices else default
            described = types.get(name, default.tag)
            kind = element(described.element if isinstance(described, TensorDescription) else described)
            if given is not None and kind is not default:
                raise DescriptionError(f"{self.name} says that {name} is {default}, got {name}={kind}: leave it out")
            tile = graph.tile(numbers[name]) if name in numbers else 0
            function_types.check_port(self.name, name, kind, name in reduced and not tile)
            if name in indices:
                function_types.check_indices(self.name, name, kind)
            half = name in halved and form not in ("column", "scalar", "top_k")
            selected = graph.selected(numbers[name]) if name in numbers else 0
            length = self.epilogue_vector_length
            made = Port.usual(name, kind.tag, form, length, tile, halved=half, selected=selected)
            return function_types.described_as(self.name, made, described)

        made_inputs = tuple(port(name, form) for name, form in inputs.items())
        made_outputs = tuple(port(name, form) for name, form in outputs.items())
        made = made_inputs + made_outputs
        length = self.epilogue_vector_length
        kinds = tuple((each.name, each.tag if each.is_usual(length) else each.description) for each in made)
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

    def lost_default(self, scalar: str) -> str:
        """Return why the type that is computed in does not hold the default of a scalar; nothing where it does."""
        return self._lost_defaults.get(scalar, "")

    @cached_property  # every launch asks
    def _lost_defaults(self) -> dict[str, str]:
        return function_types.lost_defaults(self.name, self.graph, self.compute)

    @cached_property  # asked several times by each candidate
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
        """Return the epilogue of the transposed problem, as kernels compute a column-major D.

        None of pairs, and where `top_k` selects from rows.
        """
        return self._transposed

    @cached_property  # hundreds of candidates ask the same epilogue
    def _transposed(self) -> FunctionEpilogue | None:
        if self.graph.is_gated or self.graph.selections:  # whose rows would be columns, which no thread has whole
            return None
        function = self.function.transposed()
        types = tuple(
            (port.name, port.tag if layout is None else TensorDescription(port.tag, layout, port.alignment))
            for port, layout in ((port, port.transposed().layout) for port in self.ports)
        )
        return replace(self, function=function, types=types)

    def by_columns(self) -> FunctionEpilogue | None:
        """Return the epilogue of a kernel that stores columns of D, as tensors without a layout of their own lie.

        None of pairs, which a thread has side by side, and where `top_k` selects from rows.
        """
        return self._by_columns

    @cached_property  # asked as often
    def _by_columns(self) -> FunctionEpilogue | None:
        if self.graph.is_gated or self.graph.selections:
            return None
        D = TensorDescription(self.output.tag, _core.ColumnMajor, self.epilogue_vector_length)
        described = [
            TensorDescription(port.tag, port.beside(D).layout, port.alignment) if port.form == "matrix" else kind
            for port, (_, kind) in zip(self.ports, self.types, strict=True)
        ]
        types = tuple((port.name, kind) for port, kind in zip(self.ports, described, strict=True))
        return replace(self, types=types, stores_columns=True)

    def definitions(self, family: Family) -> str:
        """Return the C++ that comes before the kernel."""
        return lowering.definitions(self, family)

    def loaded(self, family: Family) -> Port | None:
        """Return the tensor that kernels of `family` load as they load C, which is not read then."""
        return self._by_tma if family.is_sm90 else None

    @cached_property  # asked as often
    def _by_tma(self) -> Port | None:
        return lowering.loaded(self, Family.SM90_GEMM)

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
        kinds |= {each.name: "as C" for each in self.graph.of_form("source")}  # the operation describes it
        return drawing.drawn(self.name, self.graph, kinds, self.compute.name)

    def cost(self, problem: Any, bandwidth: float | None = None, *, plain: Any = None, fused: Any = None) -> Cost:
        """Return what the function takes beside the plain product: tensors, and C, a matrix of D's type, if it is read.

        Parameters
        ----------
        problem : GemmProblemSize or sequence of 3 int, or a list of them
            M, N and K, of a group those of each problem.
        bandwidth : float, optional
            Bytes that the memory moves in a second; by default 4.2e12, which copies reach on an H200.
        plain, fused : Operation, optional
            Compiled operations without and with the function, whose registers are compared.

        Raises
        ------
        ArgumentTypeError
            No problem, no bandwidth, or something else than operations.
        """
        source = (Port.usual("C", self.output.tag, "matrix", self.epilogue_vector_length),) if self.reads_source else ()
        return drawing.cost((*source, *self.inputs), self.outputs, problem, bandwidth, (plain, fused))

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
