"""A family of kernels as a table: what it multiplies, computes and writes, where it runs, and rules that all share."""

from __future__ import annotations

import enum
import itertools
import math as numbers
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, NoReturn

from pycutlass.calls import meant, shown
from pycutlass.enums import KernelSchedule, SchedulerMode
from pycutlass.errors import DescriptionError
from pycutlass.families.agreement import mended, or_instruction, or_upcast, retyped
from pycutlass.families.parts import Epilogue, Gemm, Math, Parts, Product, Tensor, Tile, changed
from pycutlass.types import ELEMENTS, Element

__all__ = [
    "SHARED_MEMORY_LIMIT",
    "Family",
    "KernelFamily",
    "check_family",
    "check_matrix",
    "nearest_multiple",
    "swizzle_meant",
]

#: Dynamic shared memory that one threadblock may have, in bytes, by compute capability
#: (CUDA C++ Programming Guide, technical specifications).
SHARED_MEMORY_LIMIT = {75: 64 << 10, 80: 163 << 10, 86: 99 << 10, 87: 163 << 10, 89: 99 << 10, 90: 227 << 10}

#: What trees of visitors compute in, by the accumulator: in more types than CUTLASS's functors.
_TREES_COMPUTE = dict.fromkeys(("f16", "f32", "s32"), ("f32", "f16", "bf16"))
#: No more stages fit than this, however small the tile: what messages say of fewer begins here.
_MOST_STAGES = 1024


class Family(enum.Enum):
    """The kernels that an epilogue may belong to; their value is what messages call them."""

    AMPERE_GEMM = "Ampere-style GEMMs"
    AMPERE_CONV = "convolutions"
    AMPERE_GROUP = "Ampere-style groups"
    SM90_GEMM = "Hopper-native GEMMs"
    SM90_GROUP = "Hopper-native groups"
    GEMV = "GEMV kernels"
    REDUCTION = "reductions"

    def __init__(self, called: str) -> None:
        #: Whether its kernels are of CUTLASS's 3.x API.
        self.is_sm90 = called.startswith("Hopper-native")


@dataclass(frozen=True, eq=False)
class KernelFamily(ABC):
    """What kernels of one family can be.

    Parameters
    ----------
    name : str
        What messages call it.
    products : tuple of Product
        What is multiplied.
    computed, written : mapping
        Types that an epilogue can compute in and write, by the accumulator's.
    apart : tuple of str
        Types of a C and a D that are described apart; none where D is always like C.
    swizzles : tuple of type
        How threadblocks may go through a GEMM.
    modes : tuple of cutlass.gemm.Mode
        How a GEMM may be computed.
    splits_k : bool
        Whether K can be divided into slices.
    is_persistent : bool
        Whether threadblocks take tile after tile, so that no problem has too large a grid.
    schedules : mapping
        Rows that a tile may have, by the schedule of its warp groups; none where warps are counted.
    shared_memory : mapping
        Compute capabilities of the family, and the bytes that a threadblock may have there.
    gemm, group : Family
        What epilogues know it as.
    """

    #: What trees of visitors write alone, and no functor of CUTLASS's.
    _written_by_trees: ClassVar[tuple[str, ...]] = ("e4m3", "e5m2")
    #: Which operands of two types are multiplied, for messages.
    _pairs: ClassVar[str] = ""

    name: str
    products: tuple[Product, ...]
    computed: Mapping[str, tuple[str, ...]]
    written: Mapping[str, tuple[str, ...]]
    apart: tuple[str, ...]
    swizzles: tuple[type[Any], ...]
    modes: tuple[Any, ...]
    splits_k: bool
    is_persistent: bool
    schedules: Mapping[KernelSchedule, tuple[int, ...]]
    shared_memory: Mapping[int, int]
    gemm: Family
    group: Family

    # Instructions and tiles

    def product_of(self, math: Math) -> Product:
        """Return the row of an instruction; raise DescriptionError where no kernel of the family has it."""
        types = math.element_a, math.element_b, math.element_accumulator
        row = self._rows.get((math.opcode_class, *types, math.instruction_shape))
        if row is None or not (math.math_operation in row.operations or math.math_operation in row.over_f32):
            raise DescriptionError(self._why_not(math))
        return row

    @cached_property
    def _rows(self) -> dict[tuple[Any, ...], Product]:
        tags = {row.short: row.tag for row in ELEMENTS}
        return {
            (row.opcode_class, tags[row.a], tags[row.b], tags[row.accumulator], row.shape): row for row in self.products
        }

    def _why_not(self, math: Math) -> str:
        """Return what there is in place of an instruction."""
        if math.a is not math.b and not any((row.a, row.b) == (math.a.short, math.b.short) for row in self.products):
            return (
                f"element_a and element_b must be the same type, got {math.a} and {math.b}: {self.name} kernels "
                f"multiply operands of one type{self._pairs}, so convert one of them{or_upcast(math)}"
            )
        return ""

    @abstractmethod
    def check_tile(self, tile: Tile) -> None:
        """Raise DescriptionError where no kernel of the family has the tile."""

    @abstractmethod
    def tag(self, compute_capability: int) -> int:
        """Return the compute capability that the C++ is tagged with."""

    # Kernels

    def check_gemm(self, kernel: Gemm) -> None:
        """Raise DescriptionError where the parts make no GEMM of the family: the rule, and which two disagree."""
        tile, A, B, C, D = kernel.tile_description, kernel.A, kernel.B, kernel.C, kernel.D
        apart = D != C
        self.check_operands(tile.math_instruction, A, B)
        if apart:
            self.check_apart(kernel)
        if kernel.swap_ab:
            self.check_swap(kernel)
        math = tile.math_instruction
        self.check_epilogue(math.accumulator, D, kernel.epilogue_functor, "D" if apart else "C", math)
        if not any(kernel.swizzling_functor is each for each in self.swizzles):  # others may raise where compared
            known = ", ".join(f"cutlass.{swizzle.__name__}" for swizzle in self.swizzles)
            given = kernel.swizzling_functor
            raise DescriptionError(
                f"swizzling_functor must be one of {known}; got {shown(given)}{swizzle_meant(given, self.swizzles)}"
                f"{self.with_swizzle(kernel)}"
            )
        self.check_parts(kernel)
        parts = self.parts_of(kernel)
        self.check_shared_memory(
            *(kernel.compute_capability, tile, parts.A, parts.B, parts.C, parts.D), epilogue=parts.epilogue
        )

    def check_operands(self, math: Math, A: Tensor, B: Tensor) -> None:
        """Check that the operands are what the instruction multiplies."""
        for name, operand in (("A", A), ("B", B)):
            check_matrix(name, operand)
        if A.type is not math.a or B.type is not math.b:
            self._refuse_operands(math, A, B)
        if math.math_operation not in math.product.operations:
            raise DescriptionError(
                f"{math.math_operation.name} rounds operands of cutlass.float32, got {A.type}, which need no rounding: "
                f"use multiply_add"
            )

    def _refuse_operands(self, math: Math, A: Tensor, B: Tensor) -> NoReturn:
        others = [(name, each, of) for name, each, of in (("A", A, math.a), ("B", B, math.b)) if each.type is not of]
        has = " and ".join(f"operand {name} is {operand.type}" for name, operand, _ in others)
        made = " and ".join(f"{name} with {retyped(operand, of)}" for name, operand, of in others)
        types = f"{math.a}" if math.a is math.b else f"{math.a} with {math.b}"
        raise DescriptionError(
            f"{has}, the math instruction multiplies {types}: describe {made}{or_instruction(math, A, B)}"
        )

    def stored_alignment(self, math: Math, D: Tensor) -> int | None:
        """Return the one alignment that D can have; None where there are several."""
        return None

    def with_swizzle(self, kernel: Gemm) -> str:
        """Return what to describe for a swizzle that the family lacks, for the end of a message."""
        return ""

    @abstractmethod
    def check_swap(self, kernel: Gemm) -> None:
        """Check that a kernel can compute the transposed problem."""

    @abstractmethod
    def check_apart(self, kernel: Gemm) -> None:
        """Check a D that is described apart from C."""

    def check_epilogue(
        self, accumulator: Element, C: Tensor, functor: Epilogue, name: str = "C", math: Math | None = None
    ) -> None:
        """Check that the epilogue takes the accumulator, and writes operand `name`, `C` or a D described apart.

        All that is wrong is said at once, with the instruction `math` also what its kernels need of the alignment.
        """
        check_matrix(name, C)
        written, computed = self.written[accumulator.short], self.computed[accumulator.short]
        if functor.is_tree:
            computed = _TREES_COMPUTE.get(accumulator.short, computed)
        else:
            written = tuple(short for short in written if short not in self._written_by_trees)
        if C.type.short not in written:
            traced = (
                " or write an epilogue function, which can" if C.type.short in self.written[accumulator.short] else ""
            )
            raise DescriptionError(
                f"an epilogue of an accumulator of {accumulator} can write {', '.join(written)}; got {C.type}: "
                f"describe {name}, and the functor's output, with one of these{traced and ','}{traced}"
            )
        wrong, fields = [], dict[str, Any]()
        if functor.accumulator is not accumulator:
            wrong.append(
                f"the epilogue functor expects an accumulator of {functor.accumulator}, the math instruction makes "
                f"{accumulator}"
            )
            fields["element_accumulator"] = accumulator
        if functor.output is not C.type:
            wrong.append(f"the epilogue functor writes {functor.output}, operand {name} is {C.type}")
            fields["element_output"] = C.type
        if functor.epilogue_vector_length != C.alignment:
            wrong.append(
                f"epilogue_vector_length={functor.epilogue_vector_length} must equal the alignment of {name}, "
                f"{C.alignment}"
            )
        if functor.compute.short not in computed:
            wrong.append(
                f"an epilogue of an accumulator of {accumulator} can compute in {', '.join(computed)}; got "
                f"{functor.compute}"
            )
            fields["element_epilogue"] = next(row for row in ELEMENTS if row.short == computed[0])
        if wrong:
            alignment = (math and self.stored_alignment(math, C)) or C.alignment
            if functor.epilogue_vector_length != alignment:
                fields["epilogue_vector_length"] = alignment
            raise DescriptionError(f"{'; '.join(wrong)}: {mended(name, C, functor, fields, alignment, written)}")
        if functor.output.is_byte and not functor.saturates:
            others = ["LinearCombination", *([] if self.gemm.is_sm90 else ["LinearCombinationClamp"])]
            raise DescriptionError(
                f"{type(functor).__name__} does not limit its result to the range of {functor.output}: use "
                f"{' or '.join(others)}, which do{'es' if len(others) == 1 else ''}, without an activation"
            )

    @abstractmethod
    def check_parts(self, kernel: Gemm) -> None:
        """Check what this family alone asks of a GEMM."""

    def swaps(self, functor: Epilogue, A: Tensor, B: Tensor, D: Tensor) -> bool:
        """Return whether a kernel computes the transposed problem even if that is not asked for."""
        return False

    def copies_of(self, kernel: Gemm) -> tuple[bool, bool]:
        """Return whether A and B, and whether C and D are copied by threads although the family has TMA."""
        return False, False

    def parts_of(self, kernel: Gemm) -> Parts:
        """Return the epilogue and the operands that shared memory is counted of."""
        return Parts(kernel.epilogue_functor, kernel.A, kernel.B, kernel.C, kernel.D)

    @abstractmethod
    def gemm_text(self, kernel: Gemm) -> str:
        """Return the C++ of a GEMM, without the line that names the kernel."""

    @abstractmethod
    def group_text(self, kernel: Gemm, mode: SchedulerMode) -> str:
        """Return the C++ of a group of which each problem is a GEMM, without the line that names the kernel."""

    @abstractmethod
    def check_group(self, kernel: Gemm, mode: SchedulerMode) -> None:
        """Check what this family alone asks of a group."""

    def check_array(self, kernel: Gemm) -> None:  # noqa: B027 (one kernel has all modes, unless a family says otherwise)
        """Check that a GEMM can run in ``Mode.Array``, where another kernel does that."""

    def array_text(self, kernel: Gemm) -> str:
        """Return the C++ of a GEMM for ``Mode.Array``, without the line that names the kernel."""
        return self.gemm_text(kernel)

    def slice_step(self, A: Tensor, B: Tensor) -> int:
        """Return how many elements of K a slice takes at least, where K is divided."""
        return max(128 // A.type.bits, 128 // B.type.bits)

    def takes_slices(self, kernel: Gemm) -> bool:
        """Return whether a Hopper-native kernel may divide K into slices of whole steps, which need not be equal."""
        return False

    def takes_stream_k(self, kernel: Gemm) -> bool:
        """Return whether a Hopper-native kernel could schedule by stream-K."""
        return False

    # Shared memory

    def check_shared_memory(
        self,
        compute_capability: int,
        tile: Tile,
        A: Tensor,
        B: Tensor,
        C: Tensor,
        D: Tensor | None = None,
        *,
        group: SchedulerMode | None = None,
        epilogue: Epilogue | None = None,
        least_stages: int = 2,
    ) -> None:
        """Check that a kernel, or one for a `group` of problems, fits in the shared memory of the target."""
        limit = self.shared_memory[compute_capability]
        needed = self.shared_bytes(tile, A, B, C, D, group=group, epilogue=epilogue)
        if needed <= limit:
            return

        def works(other: Tile) -> bool:
            """Whether `other` can be recommended in place of `tile`."""
            if other.stages is not None and other.stages < least_stages:
                return False
            if self.shared_bytes(other, A, B, C, D, group=group, epilogue=epilogue) > limit:
                return False
            return self.accepts(compute_capability, other, A, B, C)

        raise DescriptionError(
            f"{self.largest_part(tile, A, B, C)} {needed:,} bytes of shared memory{self._beside} and compute "
            f"capability {compute_capability} has {limit:,} for one threadblock: use "
            f"{' or '.join(self._that_fit(tile, works)) or 'a smaller threadblock_shape'}"
        )

    #: What messages say of what is counted beside the stages.
    _beside = ""

    @abstractmethod
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
        """Return the bytes of shared memory of a kernel with its epilogue; D is like C where it is left out."""

    def largest_part(self, tile: Tile, A: Tensor, B: Tensor, C: Tensor) -> str:
        """Return what takes most of it, for a message."""
        return f"{tile.stages or 2} stages of {list(tile.threadblock_shape)} need"

    def accepts(self, compute_capability: int, tile: Tile, A: Tensor, B: Tensor, C: Tensor) -> bool:
        """Return whether a tile could be taken in place of another one."""
        return True

    def other_warps(self, tile: Tile) -> Iterator[Tile]:
        """Yield the tile with other warps."""
        return iter(())

    def _that_fit(self, tile: Tile, works: Callable[[Tile], bool]) -> Iterator[str]:
        """Yield changes of which each is enough: fewer stages, other warps, a smaller tile."""
        most = min(tile.stages or 2, _MOST_STAGES)
        fewer = (changed(tile, stages=stages) for stages in range(most - 1, 1, -1))
        for other in itertools.islice(filter(works, fewer), 1):
            yield f"at most {other.stages} stages" if other.stages != 2 else "2 stages"
        for other in itertools.islice(filter(works, self.other_warps(tile)), 1):
            yield f"warp_count {list(other.warp_count or ())}"
        for other in itertools.islice(filter(works, _smaller(tile)), 1):
            yield f"threadblock_shape {list(other.threadblock_shape)}"


def _smaller(tile: Tile) -> Iterator[Tile]:
    """Yield the tile with its extents divided by powers of two, the largest first."""
    m, n, k = tile.threadblock_shape
    divided = ((m // a, n // b, k // c) for a, b, c in itertools.product((1, 2, 4, 8, 16), repeat=3))
    for shape in sorted(divided, key=lambda shape: -numbers.prod(shape)):
        try:
            yield changed(tile, threadblock_shape=shape)
        except DescriptionError:
            continue


def swizzle_meant(given: Any, swizzles: Iterable[type[Any]]) -> str:
    """Return "did you mean ...?" for what is none of the `swizzles`: a text, or the N of IdentitySwizzleN."""
    written = {each.__name__: f"cutlass.{each.__name__}" for each in swizzles}
    if type(given) is int and 0 < given < 10 and (name := f"IdentitySwizzle{given}") in written:
        return f". Did you mean {written[name]}?"
    return meant(given, written)


def check_family(functor: Epilogue, family: Family, instead: Callable[[], str] = str) -> None:
    """Check that kernels of a family can have this epilogue; `instead` says what else there is."""
    if reason := functor.why_not(family):
        raise DescriptionError(reason + instead())


def check_matrix(name: str, operand: Tensor) -> None:
    """Check that an operand is a matrix."""
    if operand.order.rank != 2:
        raise DescriptionError(f"operand {name} of a GEMM is a matrix, RowMajor or ColumnMajor; got {operand.order}")


def nearest_multiple(value: int, step: int) -> int:
    """Return the multiple of `step` that is nearest to `value`, and not 0."""
    return max(step, (value + step // 2) // step * step)
