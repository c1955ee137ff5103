"""GEMM: D = epilogue(A x B, C), described and turned into text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from typing import Any, ClassVar

from pycutlass import _core
from pycutlass.calls import public, shown
from pycutlass.epilogue import Epilogue, EpilogueFunctor, EpilogueVisitTree
from pycutlass.errors import DescriptionError
from pycutlass.families import SM90, KernelFamily
from pycutlass.integers import several
from pycutlass.library import TensorDescription, TileDescription
from pycutlass.operation.array import GemmArrayPart
from pycutlass.operation.base import EARLIER, FEW_SUMS, MAX_UNBOUNDED_THREADS, Operation
from pycutlass.operation.checked_parts import check_capability, expect, over_f32, single_loads, take_further
from pycutlass.operation.gemm_support import check_operands, check_size, output, outputs, size_of
from pycutlass.operation.problems import GemmProblemSize, gemm_size
from pycutlass.operation.reduction import ReductionOperation, unscaled
from pycutlass.operation.support import Support, named_operands, supported
from pycutlass.spec import TensorSpec
from pycutlass.types import Element

__all__ = ["GemmOperationUniversal"]

#: The N of IdentitySwizzleN.
_SIZES: dict[type[Any], int] = {
    _core.IdentitySwizzle1: 1,
    _core.IdentitySwizzle2: 2,
    _core.IdentitySwizzle4: 4,
    _core.IdentitySwizzle8: 8,
}


@partial(public, also=EARLIER)
class GemmOperationUniversal(Operation):
    """A GEMM kernel: D = alpha * A x B + beta * C, with A of (M, K), B of (K, N), C and D of (M, N).

    Parameters
    ----------
    compute_capability : int
        Kernel family: 80 (also 86, 87, 89) for Ampere-style kernels, which run on every later GPU; 90 together with a
        tile that names a ``cluster_shape`` for Hopper-native ones. GEMV kernels, whose tile has
        ``KernelSchedule.Gemv``, take either. The original's keyword ``arch`` is taken as well.
    tile_description : TileDescription
        Threadblock tile, pipeline stages, warps and math instruction.
    A, B, C : TensorDescription
        Operands.
    epilogue_functor : Epilogue
        What happens to the accumulator: an epilogue functor, or an epilogue function of your own.
    swizzling_functor : class of ``cutlass``
        ``IdentitySwizzle1``, ``2``, ``4`` or ``8`` (for Hopper-native kernels the swizzle size of the tile scheduler),
        ``HorizontalSwizzle``, ``BatchedIdentitySwizzle`` (batches beyond 65535) or ``ThreadblockSwizzleStreamK``.
    D : TensorDescription, optional
        The result, where it is described apart from C: by default it shares everything with C. Hopper-native kernels
        take a C and a D of different types and layouts; `epilogue_functor` writes D.
        The guide's scripts have `visitor` in this place: False is taken as that, and as a D like C.
    swap_ab : bool
        Whether a Hopper-native kernel computes the transposed problem, D^T = B^T x A^T, with the epilogue transposed as
        well: its tiles have rows along N and columns along M, so that a problem with few rows takes tiles with few
        columns. Arguments are the same. A column-major D of an epilogue function is always computed so, and so are A
        and B by rows, of other types than those of 16 bits. GEMV kernels compute problems with few columns by it.
    visitor : bool
        Whether `epilogue_functor` is an `EpilogueVisitTree`, which scripts of the original say; it is seen anyway.
    direct_store, element_epilogue : optional
        Keywords of the original's scripts, without effect: the functor says what is computed, and in what type.

    Raises
    ------
    DescriptionError
        The parts do not make a kernel; the message says which two disagree and what to change.
    ArgumentTypeError
        An unknown keyword.

    Examples
    --------
    >>> import pycutlass
    >>> from pycutlass import cutlass
    >>> instruction = pycutlass.MathInstruction(
    ...     [16, 8, 16], cutlass.float16, cutlass.float16, cutlass.float32, cutlass.OpClass.TensorOp
    ... )
    >>> tile = pycutlass.TileDescription([128, 128, 32], 3, [2, 2, 1], instruction)
    >>> A = pycutlass.TensorDescription(cutlass.float16, cutlass.RowMajor, 8)
    >>> B = pycutlass.TensorDescription(cutlass.float16, cutlass.ColumnMajor, 8)
    >>> functor = pycutlass.LinearCombination(cutlass.float16, 8, cutlass.float32, cutlass.float32)
    >>> operation = pycutlass.GemmOperationUniversal(80, tile, A, B, A, functor)
    >>> operation.procedural_name()[:53]
    'cutlass_sm80_tensorop_s16816gemm_f16_f16_128x128_32x3'
    """

    _FIELDS: ClassVar[tuple[str, ...]] = (
        "compute_capability",
        "tile_description",
        "A",
        "B",
        "C",
        "epilogue_functor",
        "swizzling_functor",
        "D",
        "swap_ab",
    )
    _FURTHER: ClassVar[tuple[str, ...]] = ("family", "is_apart")
    _LEGACY: ClassVar[tuple[str, ...]] = ("arch", "visitor", "direct_store", "element_epilogue")

    compute_capability: int
    tile_description: TileDescription
    A: TensorDescription
    B: TensorDescription
    C: TensorDescription
    epilogue_functor: Epilogue
    swizzling_functor: Any
    D: TensorDescription
    swap_ab: bool
    #: The family of kernels, with its rules.
    family: KernelFamily
    #: Whether D is described apart from C.
    is_apart: bool

    def __init__(
        self,
        compute_capability: int,
        tile_description: TileDescription,
        A: TensorDescription,
        B: TensorDescription,
        C: TensorDescription,
        epilogue_functor: Epilogue | EpilogueVisitTree,
        swizzling_functor: Any = _core.IdentitySwizzle1,
        D: TensorDescription | bool | None = None,
        swap_ab: bool = False,
        *,
        visitor: bool = False,
        direct_store: bool = False,
        element_epilogue: Any = None,
        **unknown: Any,
    ) -> None:
        if unknown:
            self._refuse(unknown, *self._LEGACY)
        if isinstance(D, bool):  # the eighth of the guide is `visitor`
            visitor, D = D or visitor, None
        if isinstance(epilogue_functor, EpilogueVisitTree):
            epilogue_functor = epilogue_functor.functor
        if expect("visitor", visitor, bool) and not getattr(epilogue_functor, "is_tree", False):
            raise DescriptionError(
                f"visitor=True is for an EpilogueVisitTree, or an epilogue function; got epilogue_functor="
                f"{shown(epilogue_functor)}"
            )
        capability = check_capability(compute_capability)
        tile = expect("tile_description", tile_description, TileDescription)
        A, B = expect("A", A, TensorDescription), expect("B", B, TensorDescription)
        over = over_f32(tile, A, B)
        A, B = (single_loads(tile.math_instruction, name, each) for name, each in (("A", A), ("B", B)))
        C = expect("C", C, TensorDescription)
        D = C if D is None else expect("D", D, TensorDescription)
        if not isinstance(epilogue_functor, Epilogue):
            epilogue_functor = expect("epilogue_functor", epilogue_functor, EpilogueFunctor)
        if direct_store or element_epilogue is not None:
            take_further(type(self).__name__, epilogue_functor, direct_store, element_epilogue)
        plain = type(swizzling_functor) in (int, float, type(None))  # which is named where it is refused
        kept = plain or isinstance(swizzling_functor, type | str)
        self._describe(
            compute_capability=capability,
            tile_description=over,
            A=A,
            B=B,
            C=C,
            epilogue_functor=epilogue_functor,
            swizzling_functor=swizzling_functor if kept else type(swizzling_functor),
            D=D,
            swap_ab=expect("swap_ab", swap_ab, bool) or tile.family.swaps(epilogue_functor, A, B, D),
            family=tile.family,
            is_apart=D != C,
        )
        tile.family.check_gemm(self)

    # What users ask of a description

    @property
    def is_sm90(self) -> bool:
        """Whether this is a Hopper-native kernel."""
        return self.family is SM90

    @property
    def loads_by_cp_async(self) -> bool:
        """Whether a Hopper-native kernel loads A and B by cp.async: TMA copies what is aligned to 16 bytes."""
        return self.family.copies_of(self)[0]

    @property
    def stores_directly(self) -> bool:
        """Whether threads of a Hopper-native kernel read C and write D themselves, and TMA does not."""
        return self.family.copies_of(self)[1]

    @property
    def swizzle_size(self) -> int:
        """The N of IdentitySwizzleN; 1 for other swizzles."""
        return _SIZES.get(self.swizzling_functor, 1)

    @property
    def is_stream_k(self) -> bool:
        """Whether the kernel schedules by stream-K."""
        return self.swizzling_functor is _core.ThreadblockSwizzleStreamK

    @cached_property
    def partial(self) -> GemmOperationUniversal:
        """The kernel of parallel split-K: the same product, written unscaled in the accumulator's type.

        Raises
        ------
        DescriptionError
            The accumulator's type cannot be written by this kernel.
        """
        tile = self.tile_description
        C, functor = unscaled(tile, self.D)
        if self.is_sm90 and tile.stages is not None:  # beside wider sums fewer may fit
            tile = replace(tile, stages=None)
        described = (self.compute_capability, tile, self.A, self.B, C, functor, self.swizzling_functor)
        return GemmOperationUniversal(*described, swap_ab=self.swap_ab)

    @cached_property
    def array(self) -> Operation:
        """What runs in ``Mode.Array``: the operation itself, or a Hopper-native kernel that is to be compiled for that.

        Raises
        ------
        DescriptionError
            No kernel of the description takes tables of addresses.

        Examples
        --------
        >>> import pycutlass
        >>> from pycutlass import cutlass
        >>> f16, f32 = cutlass.float16, cutlass.float32
        >>> instruction = pycutlass.MathInstruction(None, f16, f16, f32, cutlass.OpClass.TensorOp)
        >>> tile = pycutlass.TileDescription([128, 128, 64], None, None, instruction, [1, 1])
        >>> row = pycutlass.TensorDescription(f16, cutlass.RowMajor, 8)
        >>> operation = pycutlass.GemmOperationUniversal(
        ...     90, tile, row, row, row, pycutlass.LinearCombination(f16, 8, f32, f32)
        ... )
        >>> pycutlass.compiler.add_module([operation.array])  # doctest: +SKIP
        >>> operation.array.procedural_name()[:49]
        'cutlass_sm90_tensorop_s64x128x16gemm_array_f16_f1'
        """
        # Of an equal operation: what one keeps must not keep it.
        if self.is_sm90:
            return GemmArrayPart(type(self)(*self._value()))
        self.family.check_array(self)
        return self

    def parts(self, operations: Sequence[Any]) -> list[Any]:
        """Return what has to be compiled for this operation: with a reduction beside it, its partial kernel too."""
        reductions = [other for other in operations if isinstance(other, ReductionOperation)]
        if not reductions or not self.splits_in_parallel:
            return [self]
        if self.is_sm90 and not any(
            self.D.type is each.C.type and self.D.layout is each.C.layout for each in reductions
        ):
            return [self]  # whose kernels take long, and none of these adds up their partial sums
        try:
            return [self, self.partial]
        except DescriptionError:  # no kernel writes these sums, which arguments that ask for them say
            return [self]

    @property
    def splits_in_parallel(self) -> bool:
        """Whether the kernel can run in ``Mode.GemmSplitKParallel``."""
        splits = _core.GemmMode.GemmSplitKParallel in self.family.modes
        return splits and not self.is_stream_k

    def accumulator_type(self) -> Element:
        """Return the accumulator's element type."""
        return self.tile_description.math_instruction.accumulator

    def supports(
        self, problem_size: GemmProblemSize | _core.GemmCoord | Sequence[int], operands: Mapping[str, Any] | None = None
    ) -> Support:
        """Return whether the kernel can compute `problem_size`: something true, or something false with a `reason`.

        Nothing has to be compiled for that, and no memory is needed. What only memory tells is looked at when arguments
        are made: overlaps, read-only arrays, and the contents that some epilogues limit.

        Parameters
        ----------
        problem_size : GemmProblemSize, cutlass.gemm.GemmCoord or sequence of 3 int
            The problem; three integers are M, N, K in ``Mode.Gemm``.
        operands : mapping, optional
            Shapes, types and strides that are to be checked as well: a TensorSpec or a tensor under some of A, B, C, D
            and the names of the epilogue's tensors, in ``Mode.Array`` lists of them. Tensors need no memory; what is
            left out is taken as packed.

        Raises
        ------
        ArgumentTypeError
            `problem_size` or `operands` are something else. A GemmProblemSize raises ArgumentError itself, when it is
            made with negative extents; (-1, 64, 64) is answered.

        Examples
        --------
        >>> import pycutlass
        >>> from pycutlass import cutlass
        >>> f32 = cutlass.float32
        >>> instruction = pycutlass.MathInstruction([16, 8, 8], f32, f32, f32, cutlass.OpClass.TensorOp)
        >>> tile = pycutlass.TileDescription([128, 128, 16], 3, [2, 2, 1], instruction)
        >>> row = pycutlass.TensorDescription(f32, cutlass.RowMajor, 4)
        >>> functor = pycutlass.LinearCombination(f32, 4)
        >>> operation = pycutlass.GemmOperationUniversal(80, tile, row, row, row, functor)
        >>> print(operation.supports((128, 64, 32)))
        yes
        >>> operation.supports((128, 63, 32)).reason[:70]
        'operand B is described with alignment 4: its number of columns must be'
        """
        names = ("A", "B", "C", "D", *(port.name for port in self.epilogue_functor.ports))
        given = {} if operands is None else named_operands(operands, names)

        def check() -> None:
            size = gemm_size(problem_size)
            check_size(self, size)
            check_operands(self, size, given)

        if not isinstance(problem_size, GemmProblemSize) and several(problem_size, 3) is None:
            gemm_size(problem_size)  # raises: this is no problem
        return supported(self, check, given)

    def problem_of(self, A: Any, B: Any) -> GemmProblemSize:
        """Return the problem that A of (M, K) and B of (K, N) make, or batches of them: TensorSpecs or tensors.

        Raises
        ------
        ArgumentError, ArgumentTypeError
            Other dimensions, or tensors that do not fit each other.
        """
        return size_of(A, B)

    def output(self, problem_size: GemmProblemSize | _core.GemmCoord | Sequence[int]) -> TensorSpec:
        """Return the shape, type and strides of D for `problem_size`, packed, without memory for it.

        Of a batch there is a matrix for each, (batch, M, N): give
        ``GemmProblemSize(m, n, k, cutlass.gemm.Mode.Batched, batch=...)``.

        Raises
        ------
        ArgumentError
            `supports` refuses the problem; the message is its reason.
        ArgumentTypeError
            `problem_size` is something else.
        """
        self.supports(problem_size).require()
        return output(self, gemm_size(problem_size))

    def outputs(self, problem_size: GemmProblemSize | _core.GemmCoord | Sequence[int]) -> dict[str, TensorSpec]:
        """Return D and what the epilogue writes beside it, by name, as `output` does, of a batch as well.

        Examples
        --------
        >>> import pycutlass
        >>> from pycutlass import cutlass
        >>> from pycutlass.epilogue import fusions
        >>> f16 = cutlass.float16
        >>> instruction = pycutlass.MathInstruction([16, 8, 16], f16, f16, cutlass.float32, cutlass.OpClass.TensorOp)
        >>> tile = pycutlass.TileDescription([128, 128, 32], 3, [2, 2, 1], instruction)
        >>> row = pycutlass.TensorDescription(f16, cutlass.RowMajor, 8)
        >>> column = pycutlass.TensorDescription(f16, cutlass.ColumnMajor, 8)
        >>> functor = fusions.softmax_statistics(f16, 8)
        >>> operation = pycutlass.GemmOperationUniversal(80, tile, row, column, row, functor)
        >>> operation.outputs((128, 64, 32))["logsumexp"]
        TensorSpec(shape=(128,), dtype='float32', strides=(1,))
        >>> batch = pycutlass.GemmProblemSize(128, 64, 32, cutlass.gemm.Mode.Batched, batch=3)
        >>> operation.outputs(batch)["logsumexp"].shape
        (3, 128)
        """
        self.supports(problem_size).require()
        return outputs(self, gemm_size(problem_size))

    # Text

    @property
    def is_bounded(self) -> bool:
        """Whether the compiler is told how many threads will run."""
        tile, math = self.tile_description, self.tile_description.math_instruction
        is_bounded = tile.num_threads > MAX_UNBOUNDED_THREADS
        if math.is_tensor_op or tile.kernel_schedule is not None or self.epilogue_functor.is_tree:
            return is_bounded
        rows, columns, _ = tile.threadblock_shape
        return is_bounded or (math.accumulator.bits == 32 and rows * columns <= FEW_SUMS * tile.num_threads)

    def configuration_name(self) -> str:
        """Return the readable part of the kernel's name: family, instruction, types, tile, layouts, alignments."""
        tile, math = self.tile_description, self.tile_description.math_instruction
        operands = self.A.type.short if self.A.type is self.B.type else f"{self.A.type.short}x{self.B.type.short}"
        layouts = "".join(operand.order.short for operand in (self.A, self.B, self.C))
        alignments = "x".join(str(operand.alignment) for operand in (self.A, self.B, self.C))
        cluster = "" if tile.cluster_shape is None else f"_{tile.cluster_shape[0]}x{tile.cluster_shape[1]}"
        written = f"_{self.D.type.short}{self.D.order.short}" if self.is_apart else ""
        scheduled = "_swapped" * self.swap_ab
        if self.is_sm90:
            copied = "_cpasync" * self.loads_by_cp_async + "_direct" * self.stores_directly
            scheduled = copied + scheduled + "_streamk" * self.is_stream_k
        schedule = "" if tile.kernel_schedule is None else f"_{tile.kernel_schedule.name.lower()}"
        return (
            f"cutlass_sm{self.family.tag(self.compute_capability)}_{math.opcode_class.name.lower()}_{math.procedural_name()}gemm_{operands}_"
            f"{self.C.type.short}{written}_{tile.procedural_name()}{cluster}{schedule}{scheduled}_{layouts}_align{alignments}"
        )

    def body(self) -> str:
        """Return the generated C++ without the line that names the kernel."""
        return self.family.gemm_text(self)

    def _value(self) -> tuple[Any, ...]:
        value = super()._value()
        return value[: len(value) if self.swap_ab else -1 if self.is_apart else -2]  # without what has its default
