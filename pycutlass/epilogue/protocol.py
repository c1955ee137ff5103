"""What an epilogue is: named tensors and scalars, C++ for each family of kernels, and a meaning."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from pycutlass import _core
from pycutlass.calls import public, unknown_keywords
from pycutlass.epilogue.scalars import EpilogueScalars, pack
from pycutlass.errors import ArgumentError, DescriptionError
from pycutlass.families import Family
from pycutlass.library import TensorDescription, TileDescription
from pycutlass.types import Element, element

if TYPE_CHECKING:
    from pycutlass.epilogue.activations import Activation

__all__ = ["Epilogue", "Family", "Port", "Scalar"]

Array = NDArray[Any]


@dataclass(frozen=True)
class Port:
    """A tensor that an epilogue reads or writes beside C and D.

    Parameters
    ----------
    name : str
        By which it is given, and by which the kernel knows it.
    tag : element type of ``cutlass``
        Its type.
    form : str
        ``"matrix"`` (of the extents of D), ``"row"`` (N elements, for all rows alike) or ``"column"`` (M
        elements). What is read may be a ``"number"`` as well, one for each matrix of a batch. What is written may be a
        ``"scalar"``, results of tiles, ``"row_tiles"`` (M elements for each tile across) or ``"column_tiles"`` (N
        elements for each tile down), or those of ``"top_k"`` (a matrix of M rows).
    alignment : int
        Of its address and leading dimension, in elements.
    tile : int
        Columns (``"row_tiles"``) or rows of a tile.
    layout : layout of ``cutlass``, optional
        Of a matrix: ``cutlass.RowMajor`` or ``cutlass.ColumnMajor``. Without it, it is that of D.
    halved : bool
        Whether it has half as many columns as the product, as D has where an epilogue combines pairs of them.
    selected : int
        Columns of ``"top_k"``, which is k.
    """

    name: str
    tag: Any
    form: str = "matrix"
    alignment: int = 1
    tile: int = 0
    layout: Any = None
    halved: bool = False
    selected: int = 0

    @classmethod
    def usual(
        cls, name: str, tag: Any, form: str, length: int, tile: int = 0, *, halved: bool = False, selected: int = 0
    ) -> Port:
        """Return what a tensor is beside a D of which `length` elements are aligned, if nothing else is said."""
        alignment = min(length, 128 // element(tag).bits) if form == "matrix" else 1
        return cls(name, tag, form, alignment, tile, halved=halved, selected=selected)

    def is_usual(self, length: int) -> bool:
        """Return whether it is that."""
        return self == Port.usual(
            self.name, self.tag, self.form, length, self.tile, halved=self.halved, selected=self.selected
        )

    def columns(self, n: int) -> int:
        """Return how many columns it stands for, of a product that has `n`."""
        return n // 2 if self.halved else n

    @property
    def type(self) -> Element:
        """The element type."""
        return element(self.tag)

    @cached_property
    def description(self) -> TensorDescription:
        """What a tensor must be, where D is row-major. A vector is a line of the matrix that it stands for."""
        order = _core.ColumnMajor if self.form in ("column", "row_tiles") else self.layout or _core.RowMajor
        return TensorDescription(self.type.tag, order, self.alignment)

    @property
    def is_matrix(self) -> bool:
        """Whether it is a matrix, of the extents of D or of k columns, and no vector."""
        return self.form in ("matrix", "top_k")

    @property
    def is_by_columns(self) -> bool:
        """Whether it is a matrix whose columns are contiguous."""
        return self.form == "matrix" and not self.description.is_row_major

    def beside(self, D: TensorDescription) -> Port:
        """Return the port with the layout of D, where it has none of its own."""
        if self.form != "matrix" or self.layout is not None or D.layout is not _core.ColumnMajor:
            return self
        return replace(self, layout=D.layout)

    def transposed(self) -> Port:
        """Return what the port is to the transposed D."""
        forms = {"row": "column", "column": "row", "row_tiles": "column_tiles", "column_tiles": "row_tiles"}
        layout = {_core.RowMajor: _core.ColumnMajor, _core.ColumnMajor: _core.RowMajor}.get(self.layout)
        return replace(self, form=forms.get(self.form, self.form), layout=layout)


@dataclass(frozen=True)
class Scalar:
    """A scalar of a launch.

    As an annotation of an epilogue function it is written without parentheses, as in ``alpha: Scalar``, or
    ``alpha: Scalar = 1.0``, by which it may be left out.

    Parameters
    ----------
    name : str
        By which it is given, and by which the kernel knows it.
    default : float, optional
        Where it is left out; without one it must be given.
    on_device : bool
        Whether kernels read it from device memory, too.

    Raises
    ------
    DescriptionError
        No name.
    """

    name: str = ""
    default: float | None = None
    on_device: bool = False

    def __post_init__(self) -> None:
        if type(self.name) is str and not self.name:
            raise DescriptionError(
                "Scalar is written without parentheses in an epilogue function, as in alpha: Scalar, or with a default "
                "alpha: Scalar = 1.0"
            )


class Epilogue(ABC):
    """What happens to an accumulator on its way to D.

    An epilogue is a value: hashable, and equal to another one with the same text and meaning. `EpilogueFunctor` is the
    first implementation, for linear combinations.
    """

    #: Largest K that the arithmetic is right for, where there is one.
    max_k: ClassVar[int | None] = None

    #: Elements of one memory access; the alignment of D.
    epilogue_vector_length: int

    @property
    @abstractmethod
    def output(self) -> Element:
        """Type of D."""

    @property
    @abstractmethod
    def accumulator(self) -> Element:
        """Type of the accumulator."""

    @property
    @abstractmethod
    def compute(self) -> Element:
        """Type that scalars and sums are computed in."""

    @property
    def inputs(self) -> tuple[Port, ...]:
        """What is read beside C."""
        return ()

    @property
    def outputs(self) -> tuple[Port, ...]:
        """What is written beside D."""
        return ()

    @property
    def ports(self) -> tuple[Port, ...]:
        """Inputs, then outputs."""
        return (*self.inputs, *self.outputs)

    @property
    def matrices_read(self) -> tuple[str, ...]:
        """Names of the inputs that may be D itself, element for element."""
        return ()

    @property
    @abstractmethod
    def scalar_table(self) -> tuple[Scalar, ...]:
        """The scalars of a launch, in order."""

    @cached_property
    def scalar_names(self) -> tuple[str, ...]:
        """Names of the scalars of a launch, in order."""
        return tuple(scalar.name for scalar in self.scalar_table)

    @property
    def reads_source(self) -> bool | None:
        """Whether C is read at each launch; None where beta decides."""
        return None

    @property
    def is_tree(self) -> bool:
        """Whether it is a tree of CUTLASS's visitors, and no functor of CUTLASS's."""
        return True

    @property
    def takes_simt(self) -> bool:
        """Whether a tree goes through the tiles of CUDA cores as well as through those of tensor cores."""
        return False

    @property
    def takes_lists(self) -> bool:
        """Whether tables of addresses may say where its tensors are, as in ``Mode.Array``."""
        return not self.is_tree

    @property
    def saturates(self) -> bool:
        """Whether narrow integers come out limited to their range, instead of cut off."""
        return True

    @property
    def activation(self) -> Activation | None:
        """The activation, where there is one."""
        return None

    def columns(self, n: int) -> int:
        """Return how many columns D has, of a product that has `n`."""
        return n

    def without_activation(self) -> Epilogue:
        """Return the epilogue that stops before the activation."""
        return self

    def why_not(self, family: Family) -> str:
        """Return why kernels of `family` cannot have this epilogue; nothing where they can."""
        if family is Family.GEMV:
            return f"{type(self).__name__} is a tree of visitors, which {family.value} do not have: write a function"
        if self.ports and family not in (Family.AMPERE_GEMM, Family.AMPERE_CONV, Family.SM90_GEMM):
            names = ", ".join(port.name for port in self.ports)
            return f"{type(self).__name__} has tensors beside C and D ({names}), which {family.value} do not take"
        if family in (Family.AMPERE_GROUP, Family.SM90_GROUP) and not self.takes_lists:
            return f"{type(self).__name__} is a tree of visitors that reads no tables, which {family.value} have"
        return ""

    @abstractmethod
    def cpp(self, family: Family, source: Element | None = None) -> str:
        """Return the C++ type of the epilogue for kernels of `family`, with a C of type `source` (by default D's)."""

    def transposed(self) -> Epilogue | None:
        """Return the epilogue of the transposed problem, of which a column-major D is a row-major one; or None."""
        return None

    def by_columns(self) -> Epilogue | None:
        """Return the epilogue of a kernel that stores columns of D, beside which its tensors lie; or None."""
        return None

    def definitions(self, family: Family) -> str:
        """Return C++ that comes before the kernel, for a tree: a type that is none of CUTLASS's."""
        return ""

    def loaded(self, family: Family) -> Port | None:
        """Return the tensor that kernels of `family` load as they load C, where C is not read."""
        return None

    def shared_bytes(self, family: Family, tile: TileDescription) -> int:
        """Return the shared memory in bytes that the epilogue takes at most beside what C and D go through."""
        return 0

    def lost_default(self, scalar: str) -> str:
        """Return why the type that is computed in does not hold the default of a scalar; nothing where it does."""
        return ""

    @public
    def epilogue_type(self, *values: Any, **named: Any) -> EpilogueScalars:
        """Return the scalars of one launch, by position or by name, which pack themselves for a kernel.

        Raises
        ------
        ArgumentTypeError
            A name that the epilogue lacks, or neither a number nor device memory.
        ArgumentError
            One that is missing or given twice, or that the compute type cannot hold.
        """
        names, called = self.scalar_names, getattr(self, "name", type(self).__name__)
        if len(values) > len(names):
            if not names:
                raise ArgumentError(
                    f"{called} has no scalars, and got {len(values)}: leave output_op out. What changes from launch to "
                    f"launch is a parameter of the function, as in alpha: Scalar"
                )
            raise ArgumentError(f"{called} takes the scalars {', '.join(names)}; got {len(values)}")
        given = dict(zip(names, values, strict=False))
        unknown = {name: value for name, value in named.items() if name not in names}
        if unknown:
            tensors = {
                port.name: f"{port.name} is a tensor: give epilogue={{{port.name!r}: ...}}." for port in self.ports
            }
            raise unknown_keywords("epilogue_type", unknown, names, tensors)
        for name in given.keys() & named.keys():
            raise ArgumentError(f"{name} is given twice, by position and by name")
        given |= named
        defaults = {scalar.name: scalar.default for scalar in self.scalar_table}
        missing = [name for name in names if name not in given and defaults[name] is None]
        if missing:
            raise ArgumentError(f"{called} takes the scalars {', '.join(names)}; {missing[0]} is missing")
        lost = next(filter(None, (self.lost_default(name) for name in names if name not in given)), "")
        if lost:
            raise ArgumentError(lost)
        on_device = tuple(scalar.name for scalar in self.scalar_table if scalar.on_device)
        named_values = [(name, given.get(name, defaults[name])) for name in names]
        return pack(
            self.compute,
            *named_values,
            on_device=on_device,
            beta_is_given="beta" in given,
            reads_source=self.reads_source,
        )

    def reference(
        self,
        accumulator: Array,
        source: Array | None,
        scalars: tuple[float, ...],
        compute: np.dtype[Any] | None = None,
    ) -> Array:
        """Return D before it is rounded to the output type, of an epilogue without ports."""
        return self.evaluate(accumulator, source, dict(zip(self.scalar_names, scalars, strict=True)), {}, compute)["D"]

    @abstractmethod
    def evaluate(
        self,
        accumulator: Array,
        source: Array | None,
        scalars: Mapping[str, float],
        inputs: Mapping[str, Array],
        compute: np.dtype[Any] | None = None,
    ) -> dict[str, Array]:
        """Return D and every output by name, before they are rounded to their types.

        Parameters
        ----------
        accumulator, source : array
            The accumulator and C, which is None where it is not read.
        scalars : mapping
            By name.
        inputs : mapping
            By name, each of a shape that broadcasts against the accumulator.
        compute : dtype, optional
            Type to compute in; by default the epilogue's own.
        """
