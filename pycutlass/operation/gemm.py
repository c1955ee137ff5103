"""GEMM: D = epilogue(A x B, C), described and turned into text."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from pycutlass import _core
from pycutlass.epilogue import EpilogueScalars, LinearCombination
from pycutlass.errors import ArgumentTypeError, DescriptionError
from pycutlass.library import KernelSchedule, MathOperation, TensorDescription, TileDescription
from pycutlass.operation.base import SHARED_MEMORY_LIMIT, Operation, check_capability

if TYPE_CHECKING:
    from collections.abc import Callable

    from pycutlass.types import Element

__all__ = ["GemmOperationUniversal"]

_IDENTITY_SWIZZLES = {
    _core.IdentitySwizzle1: 1,
    _core.IdentitySwizzle2: 2,
    _core.IdentitySwizzle4: 4,
    _core.IdentitySwizzle8: 8,
}

_MATH_TAGS = {
    MathOperation.multiply_add_fast_f16: "f16",
    MathOperation.multiply_add_fast_bf16: "bf16",
    MathOperation.multiply_add_fast_f32: "3xtf32",
}


class GemmOperationUniversal(Operation):
    """A GEMM kernel: D = alpha * A x B + beta * C, with A of (M, K), B of (K, N), C and D of (M, N).

    Parameters
    ----------
    compute_capability : int
        Kernel family: 80 (also 86, 87, 89) for Ampere-style kernels, which run on every later GPU; 90 together with a
        tile that names a ``cluster_shape`` for Hopper-native ones. The original's keyword ``arch`` is taken as well.
    tile_description : TileDescription
        Threadblock tile, pipeline stages, warps and math instruction.
    A, B, C : TensorDescription
        Operands. D shares everything with C.
    epilogue_functor : LinearCombination
        What happens to the accumulator.
    swizzling_functor : class of ``cutlass``
        ``IdentitySwizzle1``, ``2``, ``4`` or ``8``; for Hopper-native kernels the swizzle size of the tile scheduler.

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
    )

    def __init__(
        self,
        compute_capability: int | None = None,
        tile_description: TileDescription | None = None,
        A: TensorDescription | None = None,
        B: TensorDescription | None = None,
        C: TensorDescription | None = None,
        epilogue_functor: LinearCombination | None = None,
        swizzling_functor: Any = _core.IdentitySwizzle1,
        *,
        arch: int | None = None,
        visitor: bool = False,
        **unknown: Any,
    ) -> None:
        super().__init__()
        if unknown:
            raise ArgumentTypeError(
                f"GemmOperationUniversal has no keyword {', '.join(sorted(unknown))}; it has "
                f"{', '.join(self._FIELDS)}, arch and visitor"
            )
        if visitor:
            raise DescriptionError("visitor=True: epilogue visitor trees are not available yet; use LinearCombination")
        if arch is not None and compute_capability is not None:
            raise ArgumentTypeError("give compute_capability or arch, which are the same thing, not both")
        self.compute_capability = check_capability(arch if compute_capability is None else compute_capability)
        self.tile_description = _expect("tile_description", tile_description, TileDescription)
        self.A = _expect("A", A, TensorDescription)
        self.B = _expect("B", B, TensorDescription)
        self.C = _expect("C", C, TensorDescription)
        self.epilogue_functor = _expect("epilogue_functor", epilogue_functor, LinearCombination)
        self.swizzling_functor = swizzling_functor if isinstance(swizzling_functor, type) else type(swizzling_functor)
        self._check()

    # What users ask of a description

    @property
    def is_native(self) -> bool:
        """Whether this is a Hopper-native kernel."""
        return self.tile_description.is_native

    @property
    def arch(self) -> int:
        """The compute capability, under the name that the original used."""
        return self.compute_capability

    @property
    def swizzle_size(self) -> int:
        """The N of IdentitySwizzleN."""
        return _IDENTITY_SWIZZLES[self.swizzling_functor]

    @property
    def epilogue_type(self) -> Callable[..., EpilogueScalars]:
        """What makes the scalars of a launch: ``output_op = operation.epilogue_type(alpha, beta)``."""
        return self.epilogue_functor.epilogue_type

    def accumulator_type(self) -> Element:
        """Return the accumulator's element type."""
        return self.tile_description.math_instruction.accumulator

    def run(self, arguments: Any, stream: Any = None) -> None:
        """Launch the kernel with `arguments`, on `stream` or on the current stream of the tensors' library.

        Returns at once; ``arguments.sync()`` waits. Without a GPU the operation's meaning is executed on the host.

        Parameters
        ----------
        arguments : GemmArguments
            Made for this operation.
        stream : optional
            An integer handle, or a stream of torch, cupy or cuda.core.

        Raises
        ------
        ArgumentError
            The arguments were made for another operation.
        NotCompiledError
            The operation was not given to ``pycutlass.compiler.add_module``.
        DriverError
            The launch failed.
        """
        if getattr(arguments, "operation", None) is not self:
            self._check_owner(arguments)
        arguments._run(stream)

    # Text

    def configuration_name(self) -> str:
        """Return the readable part of the kernel's name: family, instruction, types, tile, layouts, alignments."""
        tile, math = self.tile_description, self.tile_description.math_instruction
        family = f"sm{90 if self.is_native else 80}"
        shape = "".join(map(str, math.instruction_shape or ())) if math.is_tensor_op else ""
        math_tag = _MATH_TAGS.get(math.math_operation, "")
        core = f"{math.accumulator.letter}{shape}{math_tag}gemm"
        layouts = "".join(operand.order.short for operand in (self.A, self.B, self.C))
        alignments = "x".join(str(operand.alignment) for operand in (self.A, self.B, self.C))
        cluster = "" if tile.cluster_shape is None else f"_{tile.cluster_shape[0]}x{tile.cluster_shape[1]}"
        schedule = "" if tile.kernel_schedule is None else f"_{tile.kernel_schedule.name.lower()}"
        return (
            f"cutlass_{family}_{math.opcode_class.name.lower()}_{core}_{self.A.type.short}_{self.C.type.short}_"
            f"{tile.procedural_name()}{cluster}{schedule}_{layouts}_align{alignments}"
        )

    def body(self) -> str:
        """Return the generated C++ without the line that names the kernel."""
        return self._native_body() if self.is_native else self._ampere_body()

    def _ampere_body(self) -> str:
        tile, math = self.tile_description, self.tile_description.math_instruction
        opcode = f"cutlass::arch::OpClass{math.opcode_class.name}"
        swizzle = f"cutlass::gemm::threadblock::GemmIdentityThreadblockSwizzle<{self.swizzle_size}>"
        return (
            '#include "pycutlass/gemm_universal.h"\n\n'
            "using Operation = pycutlass::GemmUniversal<\n"
            f"    {_tensor(self.A)},\n"
            f"    {_tensor(self.B)},\n"
            f"    {_tensor(self.C)},\n"
            f"    {math.accumulator.cpp}, {opcode}, cutlass::arch::Sm80,\n"
            f"    {_shape(tile.threadblock_shape)}, {_shape(tile.warp_shape)},\n"
            f"    {_shape(math.instruction_shape or (1, 1, 1))},\n"
            f"    {self.epilogue_functor.emit()},\n"
            f"    {swizzle}, {tile.stages}, {math.operator_cpp}>;\n"
        )

    def _native_body(self) -> str:
        tile, math = self.tile_description, self.tile_description.math_instruction
        schedule = tile.kernel_schedule or KernelSchedule.Cooperative
        return (
            '#include "pycutlass/gemm_sm90.h"\n\n'
            "using Operation = pycutlass::GemmSm90<\n"
            f"    {_tensor(self.A)},\n"
            f"    {_tensor(self.B)},\n"
            f"    {_tensor(self.C)},\n"
            f"    {math.accumulator.cpp}, {_static_shape(tile.threadblock_shape)},\n"
            f"    {_static_shape(tile.cluster_shape or (1, 1, 1))},\n"
            f"    {self.epilogue_functor.emit_fusion()},\n"
            f"    pycutlass::{schedule.name}, {tile.stages or 0}>;\n"
        )

    # Proof

    def _check(self) -> None:
        self._check_types()
        if self.swizzling_functor not in _IDENTITY_SWIZZLES:
            known = ", ".join(f"cutlass.{swizzle.__name__}" for swizzle in _IDENTITY_SWIZZLES)
            raise DescriptionError(f"swizzling_functor must be one of {known}; got {self.swizzling_functor!r}")
        if self.is_native:
            self._check_native()
        else:
            self._check_ampere()
        self._check_shared_memory()

    def _check_types(self) -> None:
        math, functor = self.tile_description.math_instruction, self.epilogue_functor
        for name, operand in (("A", self.A), ("B", self.B)):
            if operand.type is not math.a:
                raise DescriptionError(
                    f"operand {name} is {operand.type}, the math instruction multiplies {math.a}: make them the same"
                )
        if math.a.is_integer or math.math_operation is MathOperation.multiply_add_saturate:
            raise DescriptionError("integer GEMM is not available yet; use f16, bf16, tf32, f32 or f64")
        if functor.accumulator is not math.accumulator:
            raise DescriptionError(
                f"the epilogue functor expects an accumulator of {functor.accumulator}, the math instruction makes "
                f"{math.accumulator}: give the functor element_accumulator={math.accumulator}"
            )
        if functor.output is not self.C.type:
            raise DescriptionError(f"the epilogue functor writes {functor.output}, operand C is {self.C.type}")
        if functor.epilogue_vector_length != self.C.alignment:
            raise DescriptionError(
                f"epilogue_vector_length={functor.epilogue_vector_length} must equal the alignment of C, "
                f"{self.C.alignment}"
            )
        if self.C.type.short == "tf32" or self.C.type.is_integer:
            raise DescriptionError(f"C and D cannot be {self.C.type}; use cutlass.float32")

    def _check_native(self) -> None:
        if self.compute_capability != 90:
            raise DescriptionError(
                f"a tile with a cluster_shape makes a Hopper-native kernel, which needs compute_capability=90; "
                f"got {self.compute_capability}. Leave out cluster_shape for an Ampere-style kernel."
            )
        math = self.tile_description.math_instruction
        if math.a.short not in ("f16", "bf16") or math.accumulator.short != "f32":
            raise DescriptionError(
                f"Hopper-native kernels multiply f16 or bf16 and accumulate in f32; got {math.a} and "
                f"{math.accumulator}. Leave out cluster_shape for an Ampere-style kernel."
            )
        if not self.A.is_row_major or self.B.is_row_major or not self.C.is_row_major:
            raise DescriptionError(
                f"Hopper-native kernels take A RowMajor, B ColumnMajor and C RowMajor; got {self.A.order}, "
                f"{self.B.order} and {self.C.order}"
            )
        for name, operand in (("A", self.A), ("B", self.B), ("C", self.C)):
            if operand.alignment_bytes != 16:
                raise DescriptionError(
                    f"TMA needs 16-byte alignment: operand {name} of {operand.type} needs alignment "
                    f"{128 // operand.type.bits}, got {operand.alignment}"
                )

    def _check_ampere(self) -> None:
        tile, math = self.tile_description, self.tile_description.math_instruction
        if not math.is_tensor_op:
            for name, operand in (("A", self.A), ("B", self.B)):
                if operand.alignment != 1:
                    raise DescriptionError(
                        f"SIMT kernels load single elements: operand {name} needs alignment 1, got {operand.alignment}"
                    )
            if self.C.alignment != 1:
                raise DescriptionError(
                    f"SIMT kernels store single elements: C needs alignment 1, got {self.C.alignment}"
                )
            return
        m, n, k = tile.threadblock_shape
        self._check_operand_tile("A", self.A, m, k, self.A.is_row_major)
        self._check_operand_tile("B", self.B, n, k, not self.B.is_row_major)

    def _check_operand_tile(self, name: str, operand: TensorDescription, rows: int, k: int, k_contiguous: bool) -> None:
        """Check one operand's tile against the shared-memory layouts of CUTLASS.

        The contiguous extent of a tile fills or divides a 128-byte line where it runs along K
        (cutlass/layout/tensor_op_multiplicand_sm75.h, crosswise), and is a multiple of it otherwise (congruous).
        """
        line = 1024 // operand.type.bits
        if k_contiguous and (k > line or line % k):
            raise DescriptionError(
                f"operand {name} is contiguous along K: threadblock_shape K={k} must divide the {line} elements of a "
                f"128-byte line; use {min(line, 1 << (k.bit_length() - 1))}"
            )
        if not k_contiguous and operand.type.bits != 64 and rows % line:
            raise DescriptionError(
                f"operand {name} is not contiguous along K: threadblock_shape {'M' if name == 'A' else 'N'}={rows} "
                f"must be a multiple of the {line} elements of a 128-byte line; use {-(-rows // line) * line}"
            )
        accesses = rows * k // operand.alignment
        if accesses % self.tile_description.num_threads:
            raise DescriptionError(
                f"the {rows}x{k} tile of operand {name} has {accesses} accesses of {operand.alignment} elements, which "
                f"{self.tile_description.num_threads} threads cannot share evenly: use fewer warps or a larger tile"
            )

    def _check_shared_memory(self) -> None:
        tile = self.tile_description
        limit = SHARED_MEMORY_LIMIT[self.compute_capability]
        needed = tile.stage_bytes() * (tile.stages or 2)
        if needed > limit:
            raise DescriptionError(
                f"{tile.stages or 2} stages of {list(tile.threadblock_shape)} need {needed:,} bytes of shared memory, "
                f"compute capability {self.compute_capability} has {limit:,} for one threadblock: use at most "
                f"{limit // tile.stage_bytes()} stages, or a smaller threadblock_shape"
            )


def _expect(name: str, value: Any, kind: type[Any]) -> Any:
    if isinstance(value, kind):
        return value
    raise DescriptionError(f"{name} must be a {kind.__name__}, got {value!r}")


def _tensor(operand: TensorDescription) -> str:
    return f"pycutlass::Tensor<{operand.type.cpp}, {operand.order.cpp}, {operand.alignment}>"


def _shape(shape: tuple[int, int, int]) -> str:
    return f"cutlass::gemm::GemmShape<{', '.join(map(str, shape))}>"


def _static_shape(shape: tuple[int, int, int]) -> str:
    return f"cute::Shape<{', '.join(f'cute::Int<{extent}>' for extent in shape)}>"
