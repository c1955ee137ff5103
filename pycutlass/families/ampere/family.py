"""The table of Ampere-style kernels, what their parts must be to each other, their C++, and their shared memory.

That is to the byte what CUTLASS's headers lay out, in numbers; the tests compare it with the structures themselves.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NoReturn

from pycutlass import _core
from pycutlass.calls import counted, shown
from pycutlass.enums import SchedulerMode
from pycutlass.errors import DescriptionError
from pycutlass.families.ampere import simt, tensor_op
from pycutlass.families.ampere.products import PRODUCTS
from pycutlass.families.ampere.tiles import divided, near, with_other_warps, writable
from pycutlass.families.epilogues import check_pairs, check_selections, check_tiles, in_kernel
from pycutlass.families.nearest_products import is_native, nearest_products
from pycutlass.families.other_family import as_ampere, as_native, listed
from pycutlass.families.parts import Epilogue, Gemm, Kernel, Math, Shape, Tensor, Tile
from pycutlass.families.table import SHARED_MEMORY_LIMIT, Family, KernelFamily, check_family

__all__ = [
    "AMPERE",
    "NO_VOLTA",
    "check_mainloop",
    "epilogue_bytes",
    "mainloop_bytes",
    "shape_text",
    "why_not_written",
]

#: Why nothing is described for Volta, whose users may name its instruction or its compute capability.
NO_VOLTA = "Volta (compute capability 70) is no target of CUDA 13"
#: Volta's tensor cores multiply f16 by this instruction alone, and no other GPU's do.
_VOLTA_SHAPE = (8, 8, 4)
#: M of wgmma, the instruction of Hopper-native kernels; mma.sync has 16 at most.
_WGMMA_ROWS = 64
#: What has been proven (tests/proof): tiles of up to so many elements along M, N and K, and so many warps.
_MAX_ELEMENTS, _MAX_WARPS = 256, 16
_Mode = _core.GemmMode
_MAX_THREADS = 1024
#: C that is written by epilogues of two fragments at once, by accumulator (default_epilogue_tensor_op.h).
_TWO_FRAGMENTS = {("f32", "f32", 4), ("f32", "f16", 8), ("s32", "f16", 8), ("s32", "bf16", 8)}
_GROUP_SCHEDULES = {
    SchedulerMode.Device: "cutlass::gemm::kernel::GroupScheduleMode::kDeviceOnly",
    SchedulerMode.Host: "cutlass::gemm::kernel::GroupScheduleMode::kHostPrecompute",
}


@dataclass(frozen=True, eq=False)
class _Ampere(KernelFamily):
    """Kernels of CUTLASS's 2.x API, which run on every later GPU."""

    _pairs = ", or float16 or bfloat16 and int8 or uint8"

    def _why_not(self, math: Math) -> str:
        if reason := super()._why_not(math):
            return reason
        a, b, shape = math.a.short, math.b.short, list(math.instruction_shape or ())
        alike = [row for row in self.products if (row.a, row.b) == (a, b)]
        choices = "; ".join(map(str, nearest_products(self.products, math)))
        native = "instruction_shape=None for a Hopper-native kernel, whose instruction follows from its tile"
        if not alike and is_native(math):
            choices = f"{native}; of other types, {choices}"
        elif shape[0] == _WGMMA_ROWS:
            choices += f"; {native}"
        if math.is_tensor_op and a == "f16" and math.instruction_shape == _VOLTA_SHAPE:
            reason = f": {shape} of {math.a} is Volta's, and {NO_VOLTA}. Newer GPUs have others"
        sums, operation = math.accumulator.short, math.math_operation.name
        if not math.is_tensor_op and any(
            row.opcode_class == _core.OpClass.TensorOp and row.shape == math.instruction_shape for row in alike
        ):
            reason += ": opcode_class is Simt, its default; give cutlass.OpClass.TensorOp for tensor cores"
        wanted = f"{math.opcode_class.name} {a} x {b} -> {sums}, {shape}, {operation}"
        return f"there is no math instruction {wanted}{reason}. Nearest valid choices: {choices}"

    def check_tile(self, tile: Tile) -> None:
        """Raise DescriptionError where warps and instructions do not divide a tile."""
        instruction = tile.math_instruction
        if tile.kernel_schedule is not None:
            self._refuse_native_parts(
                tile, "kernel_schedule belongs to Hopper-native kernels, which name a cluster_shape"
            )
        if instruction.instruction_shape is None and not instruction.is_tensor_op:
            raise DescriptionError(
                "an instruction_shape of None with OpClass.Simt is that of GEMV kernels: give the tile "
                "kernel_schedule=KernelSchedule.Gemv; or give opcode_class=cutlass.OpClass.TensorOp, and the tile a "
                "cluster_shape, for a Hopper-native kernel"
            )
        if tile.warp_count is None or tile.stages is None or instruction.instruction_shape is None:
            parts = {"instruction_shape": instruction.instruction_shape, "stages": tile.stages}
            missing = listed(name for name, value in {**parts, "warp_count": tile.warp_count}.items() if value is None)
            self._refuse_native_parts(
                tile, f"{missing} may be None only for Hopper-native kernels, which name a cluster_shape"
            )
        if type(tile.stages) is not int or tile.stages < 2:
            raise DescriptionError(f"stages must be an integer of at least 2, got {shown(tile.stages)}")
        if tile.num_threads > _MAX_THREADS:
            raise DescriptionError(
                f"a threadblock has at most {_MAX_THREADS} threads; warp_count {list(tile.warp_count)} makes "
                f"{tile.num_threads}: use at most {_MAX_WARPS} warps"
            )
        for axis, extent, count, step in zip(
            "MNK", tile.threadblock_shape, tile.warp_count, instruction.instruction_shape, strict=True
        ):
            if extent % (count * step):
                raise DescriptionError(
                    f"threadblock_shape {axis}={extent} must be a multiple of warp_count {axis}={count} times "
                    f"instruction_shape {axis}={step}{divided(tile)}"
                )
        m, n, k = tile.warp_shape
        if not instruction.is_tensor_op:
            # 8x4 threads of 4x4 elements (cutlass/gemm/threadblock/default_mma_core_simt.h)
            if not (m % 16 == 0 and n % 32 == 0) and not (m % 32 == 0 and n % 16 == 0):
                raise DescriptionError(
                    f"a SIMT warp tile must be a multiple of 16x32 or 32x16, got {m}x{n}; "
                    f"change threadblock_shape or warp_count"
                )
            return
        # MmaTensorOp (cutlass/gemm/warp/mma_tensor_op.h) loads operands with ldmatrix in groups of two instructions
        # along K where the operand is kept by K, and the multistage mainloop needs two k-groups to overlap them.
        step = instruction.instruction_shape[2]
        if k // step < 2:
            raise DescriptionError(
                f"a warp tile needs at least 2 instructions along K to overlap loads with math: K={k} with instruction "
                f"K={step} gives {k // step}; use threadblock_shape K={2 * step * tile.warp_count[2]}"
            )

    def _refuse_native_parts(self, tile: Tile, reason: str) -> NoReturn:
        """Raise for a tile without a cluster that has what Hopper-native ones alone have."""
        ways = [each for each in (as_native(tile), as_ampere(tile)) if each]
        raise DescriptionError(f"{reason}{': ' + ', or '.join(ways) if ways else ''}")

    def check_swap(self, kernel: Gemm) -> None:
        """Refuse the transposed problem, which Hopper-native kernels alone compute where it is asked for."""
        raise DescriptionError(
            f"swap_ab=True belongs to Hopper-native kernels, whose tiles have at least 64 rows: leave it out, and "
            f"choose fewer rows than {kernel.tile_description.threadblock_shape[0]}, as Ampere-style tiles may have"
        )

    def check_apart(self, kernel: Gemm) -> None:
        """Refuse a D that is described apart from C."""
        C, D, functor = kernel.C, kernel.D, kernel.epilogue_functor
        native = as_native(kernel.tile_description, kernel)
        or_native = f", or for a Hopper-native kernel {native}" if native else ""
        of_D = f"element_output={D.type} and epilogue_vector_length={D.alignment}"
        writes_D = functor.output is D.type and functor.epilogue_vector_length == D.alignment
        raise DescriptionError(
            f"D is described apart from C, as {D!r} where C is {C!r}, and the epilogue of an Ampere-style kernel "
            f"writes D as it reads C: {'' if writes_D else f'give the functor {of_D}, and '}"
            f"{'either ' if native and not writes_D else ''}describe C so and leave out D{or_native}"
        )

    def stored_alignment(self, math: Math, D: Tensor) -> int | None:
        """Return the one alignment that D can have; None where there are several."""
        if D.order.interleave > 1:
            return 8
        return None if math.is_tensor_op else 1

    def check_parts(self, kernel: Gemm) -> None:
        """Check that mainloop and epilogue load, multiply and write the tile."""
        math, C = kernel.tile_description.math_instruction, kernel.C
        check_family(kernel.epilogue_functor, self.gemm)
        if kernel.epilogue_functor.is_tree:
            check_pairs(kernel.epilogue_functor, C)
            check_selections(kernel.epilogue_functor, C)
            functor = in_kernel(kernel.epilogue_functor, C)
            check_tiles(functor, kernel.tile_description)
            turns = functor is not kernel.epilogue_functor
            layouts = "RowMajor or ColumnMajor" if turns or functor.transposed() else "RowMajor"
            wrong = {
                f"{math.opcode_class.name} kernels, in place of OpClass.TensorOp": math.is_tensor_op
                or kernel.epilogue_functor.takes_simt,
                f"a C of {C.order}, in place of {layouts}": C.layout is _core.RowMajor or turns,
            }
            if not all(wrong.values()):
                cores = "" if kernel.epilogue_functor.takes_simt else "tensor cores and "
                raise DescriptionError(
                    f"an Ampere-style epilogue that is a tree of visitors, as epilogue functions are, is for {cores}a "
                    f"C of {layouts}; got {', and '.join(k for k, v in wrong.items() if not v)}"
                )
        self.check_product(kernel.compute_capability, kernel.tile_description, kernel.A, kernel.B, C)

    def check_product(self, compute_capability: int, tile: Tile, A: Tensor, B: Tensor, C: Tensor) -> None:
        """Check that a kernel loads and multiplies its tiles, and writes all of C: also that of a convolution."""
        limit = self.shared_memory[compute_capability]

        def loads(other: Tile) -> bool:
            """Whether `other` could be recommended in place of `tile`."""
            try:
                check_mainloop(compute_capability, other, A, B, C)
            except DescriptionError:
                return False
            return self.shared_bytes(other, A, B, C) <= limit

        def works(other: Tile) -> bool:
            return loads(other) and _writes(other, C)

        try:
            check_mainloop(compute_capability, tile, A, B, C)
        except DescriptionError as error:
            found = [text for text in near(tile, works) if text not in str(error)]
            raise DescriptionError(f"{error}; for example {' or '.join(found)}" if found else str(error)) from None
        if reason := why_not_written(tile, C):
            remedies = writable(tile, C, loads, _writes)
            raise DescriptionError(f"{reason}; {', or '.join(remedies)}")

    def check_group(self, kernel: Gemm, mode: SchedulerMode) -> None:
        """Refuse operands of two types, and take any other: tiles are visited row by row whatever the swizzle is.

        CUTLASS's kernel (gemm_grouped.h) takes the addresses of A and of B by one expression, so they have one type.
        """
        math = kernel.tile_description.math_instruction
        if math.a is not math.b:
            raise DescriptionError(
                f"the operands of a group have one type, got A of {math.a} and B of {math.b}: convert one of them, or "
                f"describe each product, or a batch, as a GemmOperationUniversal"
            )

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
        """Return the bytes of shared memory of a kernel with its epilogue."""
        # First the mainloop has it, then the epilogue.
        needed = -(-max(mainloop_bytes(tile, A, B, C), epilogue_bytes(tile, C)) // 16) * 16
        if epilogue is not None and epilogue.is_tree:
            needed += in_kernel(epilogue, C).shared_bytes(self.gemm, tile)
        if group is None:
            return needed
        # Where the host has scheduled the tiles, each thread looks one up, of 8 bytes (grouped_problem_visitor.h).
        return -(-(needed + (8 * tile.num_threads if group is SchedulerMode.Host else 1)) // 16) * 16

    def largest_part(self, tile: Tile, A: Tensor, B: Tensor, C: Tensor) -> str:
        """Return what takes most of it, the mainloop or the epilogue after it."""
        if epilogue_bytes(tile, C) <= mainloop_bytes(tile, A, B, C):
            return super().largest_part(tile, A, B, C)
        shape, warps = list(tile.threadblock_shape), list(tile.warp_count or ())
        return f"the epilogue of threadblock_shape {shape}, warp_count {warps}, needs"

    def accepts(self, compute_capability: int, tile: Tile, A: Tensor, B: Tensor, C: Tensor) -> bool:
        """Return whether a tile could be taken in place of another one."""
        try:
            self.check_product(compute_capability, tile, A, B, C)
        except DescriptionError:
            return False
        return True

    def other_warps(self, tile: Tile) -> Iterator[Tile]:
        """Yield the tile with other warps."""
        return with_other_warps(tile)

    def tag(self, compute_capability: int) -> int:
        """Return the compute capability that the C++ is tagged with: 75 or 80."""
        return min(compute_capability, 80)

    def gemm_text(self, kernel: Gemm) -> str:
        """Return the C++ of a GEMM, without the line that names the kernel."""
        functor = kernel.epilogue_functor
        header, template = (
            ("gemm_visitor.h", "GemmVisitor") if functor.is_tree else ("gemm_universal.h", "GemmUniversal")
        )
        return (
            f'#include "pycutlass/{header}"\n\n'
            f"{in_kernel(functor, kernel.C).definitions(self.gemm) if functor.is_tree else ''}"
            f"using Operation = pycutlass::{template}<\n{self.arguments_text(kernel)}>;\n"
        )

    def group_text(self, kernel: Gemm, mode: SchedulerMode) -> str:
        """Return the C++ of a group of which each problem is a GEMM, without the line that names the kernel."""
        each = self.gemm_text(kernel).replace("using Operation =", "using Problem =")
        return (
            '#include "pycutlass/gemm_grouped.h"\n'
            f"{each}\n"
            f"using Operation = pycutlass::GemmGrouped<Problem, {_GROUP_SCHEDULES[mode]}>;\n"
        )

    def arguments_text(self, kernel: Kernel) -> str:
        """Return the template arguments of every kernel, from operand A to the math operation, in C++."""
        tile, math = kernel.tile_description, kernel.tile_description.math_instruction
        return (
            f"    {kernel.A.cpp},\n"
            f"    {kernel.B.cpp},\n"
            f"    {kernel.C.cpp},\n"
            f"    {math.accumulator.cpp}, cutlass::arch::OpClass{math.opcode_class.name}, "
            f"cutlass::arch::Sm{self.tag(kernel.compute_capability)},\n"
            f"    {shape_text(tile.threadblock_shape)}, {shape_text(tile.warp_shape)},\n"
            f"    {shape_text(math.instruction_shape or (1, 1, 1))},\n"
            f"    {kernel.epilogue_functor.cpp(self.gemm)},\n"
            f"    {kernel.swizzling_functor.tag()}, {tile.stages}, {math.operator_cpp}"
        )


def shape_text(shape: Shape) -> str:
    """Return a shape in C++."""
    return f"cutlass::gemm::GemmShape<{', '.join(map(str, shape))}>"


def check_mainloop(compute_capability: int, tile: Tile, A: Tensor, B: Tensor, C: Tensor) -> None:
    """Check that an Ampere-style (or Turing) kernel can load and multiply its tiles.

    Raises
    ------
    DescriptionError
        It cannot; the message says what the tile, its warps or an operand must be.
    """
    math = tile.math_instruction
    _check_proven(tile)
    if compute_capability == 75:
        tensor_op.check_turing(tile)
    elif math.instruction_shape == (8, 8, 16):
        later = " or instruction_shape=[16, 8, 32]" if tensor_op.can_be_newer(tile) else ""
        stages = "" if tile.stages == 2 else " and stages=2,"
        raise DescriptionError(
            f"instruction_shape [8, 8, 16] is Turing's: use compute_capability=75{stages}{later}".rstrip(",")
        )
    interleaved = any(operand.order.interleave > 1 for operand in (A, B, C))
    if interleaved or (math.accumulator.is_integer and math.is_tensor_op):
        tensor_op.check_integer_layouts(tile, A, B, C)
    if math.a is not math.b:
        tensor_op.check_upcast(tile, A, B)
    check = tensor_op.check_tensor_op if math.is_tensor_op else simt.check_simt
    check(tile, A, B, C)


def _check_proven(tile: Tile) -> None:
    """Check that the tile is one of those whose iterators have been run: CUTLASS itself says nothing of others."""
    for axis, extent in zip("MNK", tile.threadblock_shape, strict=True):
        if extent > _MAX_ELEMENTS:
            raise DescriptionError(
                f"threadblock_shape {axis}={extent} is beyond {_MAX_ELEMENTS}, up to which Ampere-style tiles are "
                f"proven to compute what they mean: use at most {axis}={_MAX_ELEMENTS}"
            )
    warps = tile.num_threads // 32
    if warps > _MAX_WARPS:
        raise DescriptionError(
            f"warp_count {list(tile.warp_count or ())} makes {counted(warps, 'warp')}, and Ampere-style tiles are "
            f"proven to compute what they mean with up to {_MAX_WARPS}: use fewer warps"
        )


def why_not_written(tile: Tile, C: Tensor) -> str:
    """Return why the epilogue cannot write the tile to C; nothing where it can."""
    if tile.math_instruction.is_tensor_op or C.order.interleave > 1:
        return tensor_op.why_not_written(tile, C)
    return simt.why_not_written(tile)


def _writes(tile: Tile, C: Tensor) -> bool:
    return not why_not_written(tile, C)


def mainloop_bytes(tile: Tile, A: Tensor, B: Tensor, C: Tensor | None = None) -> int:
    """Return the bytes of an Ampere-style pipeline: its stages, with room between lines that SIMT kernels turn.

    Rows of the tile are those of B where a `C` by columns makes it that of the transposed problem.
    """
    stage = tile.stage_bytes()
    if C is not None and C.layout is _core.ColumnMajor:
        m, n, k = tile.threadblock_shape
        stage = B.type.bytes_of(m * k) + A.type.bytes_of(n * k)
    if not tile.math_instruction.is_tensor_op:
        padding = simt.simt_padding(tile) * tile.threadblock_shape[2]
        turned = [*([A] if A.is_row_major else []), *([] if B.is_row_major else [B])]
        stage += sum(operand.type.bytes_of(padding) for operand in turned)
    return (tile.stages or 2) * stage


def epilogue_bytes(tile: Tile, C: Tensor) -> int:
    """Return the bytes through which accumulators go to other threads (epilogue/threadblock/epilogue_base.h)."""
    if C.order.interleave > 1:
        return 1  # they don't
    instruction = tile.math_instruction
    accumulator = instruction.accumulator
    columns = tile.threadblock_shape[1]
    m, _, k = tile.warp_count or (1, 1, 1)
    fragments = 1
    if instruction.is_tensor_op:
        rows, padding = 8, 256 // accumulator.bits
        if k == 1 and (accumulator.short, C.type.short, C.alignment) in _TWO_FRAGMENTS:
            fragments = 2
    else:
        threads = simt.simt_threads(tile)
        most = 4 if instruction.a.is_integer else 128 // instruction.a.bits
        rows, padding = threads[0], 4 * min(most, tile.warp_shape[1] // threads[1]) + 1
    return accumulator.bytes_of(rows * m * k * fragments * (columns + padding))


AMPERE = _Ampere(
    name="Ampere-style",
    products=PRODUCTS,
    computed={"f64": ("f64",), "f32": ("f32", "f16"), "f16": ("f16", "f32"), "s32": ("f32", "s32")},
    written={
        "f64": ("f64",),
        "f32": ("f32", "f16", "bf16", "s8", "e4m3", "e5m2"),
        "f16": ("f16", "f32", "bf16"),
        "s32": ("s32", "s8", "f32", "f16", "bf16"),
    },
    apart=(),
    swizzles=(
        _core.IdentitySwizzle1,
        _core.IdentitySwizzle2,
        _core.IdentitySwizzle4,
        _core.IdentitySwizzle8,
        _core.HorizontalSwizzle,
        _core.BatchedIdentitySwizzle,
        _core.ThreadblockSwizzleStreamK,
    ),
    modes=(_Mode.Gemm, _Mode.GemmSplitKParallel, _Mode.Batched, _Mode.Array),
    splits_k=True,
    is_persistent=False,
    schedules={},
    shared_memory=SHARED_MEMORY_LIMIT,
    gemm=Family.AMPERE_GEMM,
    group=Family.AMPERE_GROUP,
)
