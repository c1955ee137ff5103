"""What the tables read of a kernel's parts. Descriptions, which ask the tables, are on a floor above."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeVar

from pycutlass.enums import KernelSchedule, MathOperation
from pycutlass.types import Element, Layout

__all__ = ["Epilogue", "Gemm", "Kernel", "Math", "Parts", "Product", "Shape", "Tensor", "Tile", "changed"]

Shape = tuple[int, int, int]
_Part = TypeVar("_Part")


@dataclass(frozen=True)
class Product:
    """A row of what a family multiplies.

    Parameters
    ----------
    opcode_class : cutlass.OpClass
        By tensor cores or CUDA cores.
    a, b, accumulator : str
        Short names of the types.
    shape : tuple of 3 int or None
        The instruction; None where it follows from the tile.
    layouts : tuple of pairs
        Layouts that A and B may have.
    alignment : int or None
        Elements of A and B that are always loaded at a time; None where descriptions say how many.
    operations : tuple of MathOperation
        What one multiply-add may do.
    over_f32 : tuple of MathOperation
        Those for tensors of f32, which they round to the type that the instruction names.
    """

    opcode_class: Any
    a: str
    b: str
    accumulator: str
    shape: Shape | None
    layouts: tuple[tuple[Any, Any], ...]
    alignment: int | None = None
    operations: tuple[MathOperation, ...] = (MathOperation.multiply_add,)
    over_f32: tuple[MathOperation, ...] = ()

    def __str__(self) -> str:
        operations = "/".join(operation.name for operation in self.operations)
        shape = None if self.shape is None else list(self.shape)
        return f"{self.opcode_class.name} {self.a} x {self.b} -> {self.accumulator}, {shape}, {operations}"


class Math(Protocol):
    """What is read of a math instruction."""

    @property
    def instruction_shape(self) -> Shape | None:
        """M, N, K of one instruction; None where it follows from the tile."""

    @property
    def opcode_class(self) -> Any:
        """Tensor cores or CUDA cores."""

    @property
    def math_operation(self) -> MathOperation:
        """What one multiply-add does."""

    @property
    def element_a(self) -> Any:
        """Type of operand A, as a class of ``cutlass``."""

    @property
    def element_b(self) -> Any:
        """Type of operand B, as a class of ``cutlass``."""

    @property
    def element_accumulator(self) -> Any:
        """Type of the accumulator, as a class of ``cutlass``."""

    @property
    def a(self) -> Element:
        """Type of operand A."""

    @property
    def b(self) -> Element:
        """Type of operand B."""

    @property
    def accumulator(self) -> Element:
        """Type of the accumulator."""

    @property
    def is_tensor_op(self) -> bool:
        """Whether tensor cores compute."""

    @property
    def product(self) -> Product:
        """The row of the family's table."""

    @property
    def operator_cpp(self) -> str:
        """The math operator's tag in C++."""


class Tile(Protocol):
    """What is read of a tile."""

    @property
    def threadblock_shape(self) -> Shape:
        """M, N, K of the tile of one threadblock."""

    @property
    def stages(self) -> int | None:
        """Depth of the pipeline."""

    @property
    def warp_count(self) -> Shape | None:
        """Warps along M, N and K."""

    @property
    def math_instruction(self) -> Math:
        """The instruction."""

    @property
    def cluster_shape(self) -> Shape | None:
        """Threadblocks of one cluster."""

    @property
    def kernel_schedule(self) -> KernelSchedule | None:
        """How warp groups share the work."""

    @property
    def num_threads(self) -> int:
        """Threads of one threadblock."""

    @property
    def warp_shape(self) -> Shape:
        """M, N, K of the tile of one warp."""

    def stage_bytes(self) -> int:
        """Return the shared memory of one stage in bytes."""


class Tensor(Protocol):
    """What is read of an operand's description."""

    @property
    def layout(self) -> Any:
        """The layout's class."""

    @property
    def alignment(self) -> int:
        """Elements that addresses are aligned to."""

    @property
    def type(self) -> Element:
        """The element type."""

    @property
    def order(self) -> Layout:
        """The layout."""

    @property
    def is_row_major(self) -> bool:
        """Whether the elements of a row are adjacent."""

    @property
    def alignment_bytes(self) -> int:
        """The alignment in bytes."""

    @property
    def cpp(self) -> str:
        """The description in C++."""


class Epilogue(Protocol):
    """What is read of an epilogue."""

    @property
    def epilogue_vector_length(self) -> int:
        """Elements of one memory access."""

    @property
    def output(self) -> Element:
        """Type of D."""

    @property
    def accumulator(self) -> Element:
        """Type of the accumulator."""

    @property
    def compute(self) -> Element:
        """Type that scalars and sums are computed in."""

    @property
    def ports(self) -> Any:
        """Vectors and matrices beside C and D, read or written: `Port`s."""

    @property
    def outputs(self) -> Any:
        """What is written beside D: `Port`s."""

    @property
    def reads_source(self) -> bool | None:
        """Whether C is read; None where beta decides."""

    @property
    def is_tree(self) -> bool:
        """Whether it is a tree of visitors."""

    @property
    def saturates(self) -> bool:
        """Whether narrow integers come out limited to their range."""

    @property
    def takes_simt(self) -> bool:
        """Whether a tree goes through the tiles of CUDA cores as well."""

    @property
    def takes_lists(self) -> bool:
        """Whether tables of addresses may say where its tensors are."""

    def why_not(self, family: Any) -> str:
        """Return why kernels of `family` cannot have it."""

    def loaded(self, family: Any) -> Any:
        """Return the tensor that kernels of `family` load as they load C; None where that is C."""

    def shared_bytes(self, family: Any, tile: Any) -> int:
        """Return the shared memory in bytes that it takes beside what C and D go through."""

    def cpp(self, family: Any, source: Element | None = None) -> str:
        """Return its C++ type for kernels of `family`, with a C of type `source`."""

    def columns(self, n: int) -> int:
        """Return how many columns D has, of a product that has `n`."""

    def transposed(self) -> Any:
        """Return the epilogue of the transposed problem; None where it has none."""

    def by_columns(self) -> Any:
        """Return the epilogue of a kernel that stores columns of D; None where it has none."""

    def definitions(self, family: Any) -> str:
        """Return the C++ that comes before the kernel, where it is a tree of visitors."""


class Kernel(Protocol):
    """What is read of a kernel: of a GEMM, or of what a convolution computes as one."""

    compute_capability: int
    swizzling_functor: Any

    @property
    def tile_description(self) -> Tile:
        """The tile."""

    @property
    def A(self) -> Tensor:
        """Operand A."""

    @property
    def B(self) -> Tensor:
        """Operand B."""

    @property
    def C(self) -> Tensor:
        """Operand C."""

    @property
    def epilogue_functor(self) -> Epilogue:
        """What happens to the accumulator."""


class Gemm(Kernel, Protocol):
    """What is read of a GEMM."""

    #: Whether the kernel computes the transposed problem.
    swap_ab: bool

    @property
    def D(self) -> Tensor:
        """The result."""


@dataclass(frozen=True)
class Parts:
    """The epilogue and the operands of a kernel as its C++ has them."""

    epilogue: Epilogue
    A: Tensor
    B: Tensor
    C: Tensor
    D: Tensor


def changed(part: _Part, **fields: Any) -> _Part:
    """Return a description with other fields; it proves itself again."""
    made: _Part = replace(part, **fields)  # type: ignore[type-var]
    return made
