"""The table of GEMV kernels: CUDA cores multiply few rows by a matrix that is read once.

Where a kernel computes the transposed problem, with few columns, rows and columns below are those of that.
"""

from __future__ import annotations

import itertools
import math as numbers
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NoReturn

from pycutlass import _core
from pycutlass.calls import counted, shown
from pycutlass.enums import KernelSchedule, MathOperation, SchedulerMode
from pycutlass.errors import DescriptionError
from pycutlass.families.nearest_products import nearest_products, of_same_types
from pycutlass.families.other_family import ampere_shape, as_ampere, listed
from pycutlass.families.parts import Epilogue, Gemm, Math, Parts, Product, Shape, Tensor, Tile, changed
from pycutlass.families.sm90_swap import parts_in_kernel
from pycutlass.families.table import SHARED_MEMORY_LIMIT, Family, KernelFamily, check_family

__all__ = ["GEMV", "gemv_shapes"]

_SIMT, _ROW, _COLUMN = _core.OpClass.Simt, _core.RowMajor, _core.ColumnMajor
_ANY = ((_ROW, _COLUMN), (_ROW, _ROW), (_COLUMN, _COLUMN))
_FLOAT8 = itertools.product(("e4m3", "e5m2"), repeat=2)
_LANES, _BYTES = 32, 16  # of a warp, and of a load
#: What a kernel is instantiated with; tests/compile has those with the most registers.
_ROWS, _MOST_WARPS = (1, 2, 4, 8), 8
_SUMS_ALONG_N = 64  # of a thread
_LOADS, _COLUMNS = (1, 2, 4, 8), (1, 2, 4)
#: Loads of a thread in a step; of many rows, or of elements of 8 bits, there are registers for fewer.
_MOST_LOADS, _FEWER_LOADS = 16, 8
_Mode = _core.GemmMode


@dataclass(frozen=True, eq=False)
class _Gemv(KernelFamily):
    """Kernels of which each threadblock has some columns, and its warps divide these and K."""

    def _why_not(self, math: Math) -> str:
        if reason := super()._why_not(math):
            return reason
        kinds = "; ".join(dict.fromkeys(f"{row.a} and {row.accumulator}" for row in of_same_types(self.products, math)))
        return (
            f"an instruction_shape of None with OpClass.Simt is that of {self.name} kernels, which multiply and "
            f"accumulate in {kinds}, by multiply_add; got {math.a} and {math.accumulator} by "
            f"{math.math_operation.name}{_other_instructions(math)}"
        )

    def check_tile(self, tile: Tile) -> None:
        """Raise DescriptionError where no layout of the operands allows the tile."""
        math, warps = tile.math_instruction, tile.warp_count
        if math.is_tensor_op or math.instruction_shape is not None:
            kinds = ", ".join(f"cutlass.{each.__name__}" for each in _types(math))
            raise DescriptionError(
                f"KernelSchedule.Gemv is that of CUDA cores, with an instruction that follows from the tile: give "
                f"MathInstruction(None, {kinds}, cutlass.OpClass.Simt); got {math!r}"
            )
        if tile.stages is not None:
            raise DescriptionError(
                f"the loads of a GEMV kernel go to registers, and have no stages: use stages=None, got "
                f"{shown(tile.stages)}"
            )
        if warps is None or warps[0] != 1 or numbers.prod(warps) > _MOST_WARPS:
            raise DescriptionError(
                f"warp_count of a GEMV kernel is [1, n, k], of at most {_MOST_WARPS} warps that divide columns and K, "
                f"such as [1, 4, 1]; got {shown(None if warps is None else list(warps))}"
            )
        if tile.threadblock_shape[0] not in _ROWS:
            rows = tile.threadblock_shape[0]
            nearest = min((each for each in _ROWS if each >= rows), default=_ROWS[-1])
            raise DescriptionError(
                f"threadblock_shape M={rows} is not among the rows of a GEMV kernel, {listed(map(str, _ROWS))}: use "
                f"M={nearest}, which takes any number up to that"
            )
        if not any(_is_divided(tile, by_rows) for by_rows in (False, True)):
            _refuse_shape(tile, None)

    def tag(self, compute_capability: int) -> int:
        """Return the compute capability that the C++ is tagged with: 80 or 90."""
        return 90 if compute_capability >= 90 else 80

    def check_swap(self, kernel: Gemm) -> None:
        """Take any: elements of D do not depend on each other."""

    def check_apart(self, kernel: Gemm) -> None:
        """Refuse a D that is described apart from C."""
        raise DescriptionError(
            f"a GEMV kernel writes D as it reads C; got D described apart, as {kernel.D!r} where C is {kernel.C!r}: "
            f"describe C so and leave out D, or read another matrix by an epilogue function with a Tensor"
        )

    def check_parts(self, kernel: Gemm) -> None:
        """Check compute capability, layouts, epilogue, and how the layout of the large operand has the tile divided."""
        if kernel.compute_capability not in self.shared_memory:
            raise DescriptionError(
                f"GEMV kernels are for compute capability 80 or newer; got {kernel.compute_capability}: use "
                f"compute_capability=80"
            )
        for name, operand in (("A", kernel.A), ("B", kernel.B), ("C", kernel.C)):
            if operand.order.interleave > 1:
                raise DescriptionError(
                    f"operand {name} of a GEMV kernel is RowMajor or ColumnMajor, got {operand.order}: describe it so"
                )
        parts = self.parts_of(kernel)
        if not parts.A.is_row_major:
            name, layout, extent = ("B", "ColumnMajor", "N") if kernel.swap_ab else ("A", "RowMajor", "M")
            raise DescriptionError(
                f"the elements of operand {name} of a GEMV kernel{' with swap_ab=True' * kernel.swap_ab} lie along K: "
                f"describe {name} as cutlass.{layout} (a vector, where {extent} is 1, is both), and copy a matrix that "
                f"lies otherwise"
            )
        if not _is_divided(kernel.tile_description, parts.B.is_row_major):
            _refuse_shape(kernel.tile_description, parts.B)
        check_family(kernel.epilogue_functor, self.gemm)

    def check_group(self, kernel: Gemm, mode: SchedulerMode) -> NoReturn:
        """Refuse groups."""
        raise DescriptionError(
            f"a group has problems of any number of rows, and no GEMV kernel: use a GemmOperationUniversal for each "
            f"problem, or an Ampere-style or a Hopper-native tile{_or_ampere(kernel)}"
        )

    def check_array(self, kernel: Gemm) -> NoReturn:
        """Refuse tables of addresses."""
        raise DescriptionError(
            f"GEMV kernels run in Mode.Gemm and Mode.Batched, and have none for Mode.Array: use Mode.Batched, or an "
            f"Ampere-style or a Hopper-native tile{_or_ampere(kernel)}"
        )

    def parts_of(self, kernel: Gemm) -> Parts:
        """Return the epilogue and the operands as the C++ has them."""
        return parts_in_kernel(kernel)

    def shared_bytes(
        self,
        tile: Tile,
        A: Tensor,
        B: Tensor,
        C: Tensor,
        D: Tensor | None = None,
        *,
        group: SchedulerMode | None = None,
        epilogue: Epilogue | None = None,
    ) -> int:
        """Return the bytes of shared memory: for the sums of all warps."""
        rows, columns, _ = tile.threadblock_shape
        return tile.math_instruction.accumulator.bytes_of((tile.warp_count or (1, 1, 1))[2] * rows * columns)

    def gemm_text(self, kernel: Gemm) -> str:
        """Return the C++ of a GEMM, without the line that names the kernel."""
        tile, parts = kernel.tile_description, self.parts_of(kernel)
        functor = parts.epilogue
        return (
            '#include "pycutlass/gemv.h"\n\n'
            f"{functor.definitions(self.gemm) if functor.is_tree else ''}"
            f"using {'Transposed' if kernel.swap_ab else 'Operation'} = pycutlass::Gemv<\n"
            f"    {parts.A.cpp},\n"
            f"    {parts.B.cpp},\n"
            f"    {parts.C.cpp},\n"
            f"    {tile.math_instruction.accumulator.cpp}, {_shape_text(tile.threadblock_shape)},\n"
            f"    {_shape_text(tile.warp_count or (1, 1, 1))},\n"
            f"    {functor.cpp(self.gemm)},\n"
            f"    {str(kernel.compute_capability >= 90).lower()}>;\n"
            f"{'using Operation = pycutlass::TransposedGemv<Transposed>;' + chr(10) if kernel.swap_ab else ''}"
        )

    def group_text(self, kernel: Gemm, mode: SchedulerMode) -> NoReturn:
        """Refuse groups."""
        self.check_group(kernel, mode)


def gemv_shapes(rows: int, warps: Shape, bits: int, by_rows: bool) -> Iterator[Shape]:
    """Yield the shapes of tiles with so many rows whose columns and K these warps can divide.

    Parameters
    ----------
    bits : int
        Of an element of B, of which a thread loads 16 bytes at a time.
    by_rows : bool
        Whether B is row-major, so that what is loaded lies along N.
    """
    _, across, deep = warps
    vector = _BYTES * 8 // bits
    if by_rows:
        vector = min(vector, _SUMS_ALONG_N // rows)
        for lanes, loads in itertools.product((1, 2, 4, 8, 16, 32), _LOADS):
            yield rows, across * lanes * vector, deep * loads * _LANES // lanes
        return
    most = _FEWER_LOADS if rows == _ROWS[-1] or bits == 8 else _MOST_LOADS
    for columns, loads in itertools.product(_COLUMNS, _LOADS):
        if columns * loads <= most:
            yield rows, across * columns, deep * loads * _LANES * vector


def _is_divided(tile: Tile, by_rows: bool) -> bool:
    """Return whether threads divide the tile evenly."""
    rows, bits = tile.threadblock_shape[0], tile.math_instruction.b.bits
    return tile.threadblock_shape in gemv_shapes(rows, tile.warp_count or (1, 1, 1), bits, by_rows)


def _refuse_shape(tile: Tile, B: Tensor | None) -> NoReturn:
    """Raise for a tile that threads do not divide evenly, with the nearest that they do."""
    warps, bits = tile.warp_count or (1, 1, 1), tile.math_instruction.b.bits
    rows = tile.threadblock_shape[0]
    layouts = (False, True) if B is None else (B.is_row_major,)
    shapes = [shape for by_rows in layouts for shape in gemv_shapes(rows, warps, bits, by_rows)]
    nearest = min(
        shapes,
        key=lambda shape: sum(abs(numbers.log2(a / b)) for a, b in zip(shape, tile.threadblock_shape, strict=True)),
    )
    of_B = "" if B is None else f" of a B that is {B.order},"
    raise DescriptionError(
        f"{counted(numbers.prod(warps), 'warp')}, {list(warps)}, whose threads load {_BYTES} bytes{of_B} at a time do "
        f"not divide threadblock_shape {list(tile.threadblock_shape)} evenly; the nearest is {list(nearest)}"
    )


def _or_ampere(kernel: Gemm) -> str:
    """Return how the same is described as an Ampere-style kernel, for the end of a message that names it last."""
    changes = as_ampere(kernel.tile_description, kernel, swap_ab=False)
    if not changes:
        return ""
    return f". For an Ampere-style one, {'leave out swap_ab, and ' * kernel.swap_ab}{changes}"


def _other_instructions(math: Math) -> str:
    """Return the instructions by which kernels of other families multiply the types of `math`."""
    ways = []
    if shape := ampere_shape(math):
        ways.append(f"for an Ampere-style kernel, give instruction_shape={list(shape)} and leave out kernel_schedule")
    try:
        changed(math, opcode_class=_core.OpClass.TensorOp)
    except DescriptionError:
        pass  # Hopper-native kernels do not multiply them either
    else:
        ways.append("for tensor cores, give opcode_class=cutlass.OpClass.TensorOp")
    if ways:
        return f": {'; or '.join(ways)}"
    return f". Nearest valid choices: {'; '.join(map(str, nearest_products(GEMV.products, math)))}"


def _types(math: Math) -> tuple[type, ...]:
    return math.element_a, math.element_b, math.element_accumulator


def _shape_text(shape: Shape) -> str:
    """Return a shape in C++."""
    return f"cutlass::gemm::GemmShape<{', '.join(map(str, shape))}>"


GEMV = _Gemv(
    name="GEMV",
    products=(
        *(Product(_SIMT, kind, kind, "f32", None, _ANY) for kind in ("f16", "bf16", "f32")),
        *(Product(_SIMT, a, b, "f32", None, _ANY) for a, b in _FLOAT8),
        Product(_SIMT, "s8", "s8", "s32", None, _ANY, operations=(MathOperation.multiply_add,)),
    ),
    computed={"f32": ("f32", "f16"), "s32": ("f32", "s32")},
    written={
        "f32": ("f32", "f16", "bf16", "s8", "e4m3", "e5m2"),
        "s32": ("s32", "s8", "f32", "f16", "bf16"),
    },
    apart=(),
    swizzles=(_core.IdentitySwizzle1,),
    modes=(_Mode.Gemm, _Mode.Batched),
    splits_k=False,
    is_persistent=True,
    schedules={KernelSchedule.Gemv: _ROWS},
    shared_memory={capability: limit for capability, limit in SHARED_MEMORY_LIMIT.items() if capability >= 80},
    gemm=Family.GEMV,
    group=Family.GEMV,
)
