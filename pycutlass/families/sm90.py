"""The table of Hopper-native kernels: CUTLASS's 3.x API, TMA and wgmma, for compute capability 90 alone."""

from __future__ import annotations

from dataclasses import dataclass

from pycutlass import _core
from pycutlass.enums import KernelSchedule, MathOperation, SchedulerMode
from pycutlass.errors import DescriptionError
from pycutlass.families.epilogues import check_pairs, check_selections
from pycutlass.families.nearest_products import of_same_types
from pycutlass.families.other_family import ampere_shape, as_ampere, listed
from pycutlass.families.parts import Epilogue, Gemm, Math, Parts, Shape, Tensor, Tile, changed
from pycutlass.families.sm90_array import check_array
from pycutlass.families.sm90_copies import check_loads, check_stores, is_cp_async, is_direct
from pycutlass.families.sm90_epilogue import check_columns, check_function, check_registers, loaded
from pycutlass.families.sm90_group import check_grouped
from pycutlass.families.sm90_memory import (
    chosen_stages,
    direct_bytes,
    direct_stages,
    kernel_bytes,
    lies_in_shared_memory,
    stages_of,
)
from pycutlass.families.sm90_multicast import check_slices
from pycutlass.families.sm90_products import (
    PRODUCTS,
    has_many_sums,
    is_fast,
    is_one_instruction,
)
from pycutlass.families.sm90_register_a import (
    check_register_a,
    loads_a,
    swizzle_bytes,
)
from pycutlass.families.sm90_swap import check_swap, is_swapped, parts_in_kernel
from pycutlass.families.sm90_tiles import check_native_tile
from pycutlass.families.sm90_warp_groups import check_warp_groups
from pycutlass.families.table import SHARED_MEMORY_LIMIT, Family, KernelFamily, check_family, check_matrix

__all__ = ["SM90"]

_Mode = _core.GemmMode


@dataclass(frozen=True, eq=False)
class _Sm90(KernelFamily):
    """Kernels of which each tile is computed by warp groups, and that run on compute capability 90 alone."""

    _beside = ", those of the epilogue included,"
    _written_by_trees = ()
    _pairs = ", or e4m3 and e5m2, or int8 and uint8"

    def _why_not(self, math: Math) -> str:
        if reason := super()._why_not(math):
            return reason
        kinds: dict[str, list[str]] = {}
        rows = of_same_types(self.products, math)
        for row in rows:
            if row.a == row.b:
                kinds.setdefault(row.accumulator, []).append(row.a)
            elif len(rows) < len(self.products):  # those of the types that are given
                kinds.setdefault(row.accumulator, []).append(f"{row.a} x {row.b}")
        multiplied = ", or ".join(f"{' or '.join(types)} and accumulate in {sums}" for sums, types in kinds.items())
        fast = MathOperation.multiply_add_fast_accum
        also = (
            ", floats of 8 bits by multiply_add_fast_accum as well"
            if any(fast in row.operations for row in rows)
            else ""
        )
        return (
            f"{self.name} kernels, whose instruction_shape is None, multiply {multiplied}, by OpClass.TensorOp and "
            f"multiply_add{also}; got {math.a} and {math.accumulator} by {math.opcode_class.name} and "
            f"{math.math_operation.name}.{self._instead(math)}"
        )

    def _instead(self, math: Math) -> str:
        """Return which instructions there are of the same types."""
        if math.a.short == "f32" and math.is_tensor_op:
            return " Give element_a and element_b cutlass.tfloat32, to which operands of cutlass.float32 are rounded."
        if math.a.is_integer and math.math_operation is MathOperation.multiply_add_saturate and math.is_tensor_op:
            return " Give MathOperation.multiply_add, whose sums wrap around."
        if math.math_operation is MathOperation.multiply_add_fast_accum and not math.a.is_float8:
            return " Give MathOperation.multiply_add."
        if shape := ampere_shape(math):
            return f" Give instruction_shape={list(shape)}, and leave out cluster_shape, for an Ampere-style kernel."
        if math.is_tensor_op:
            return ""
        try:
            changed(math, opcode_class=_core.OpClass.TensorOp)
        except DescriptionError:
            return ""
        return " Give opcode_class=cutlass.OpClass.TensorOp."

    def check_tile(self, tile: Tile) -> None:
        """Raise DescriptionError where warp groups cannot have the tile."""
        check_native_tile(tile, self.schedules)

    def schedule_of(self, rows: int) -> KernelSchedule:
        """Return the schedule of a tile that names none."""
        return KernelSchedule.Pingpong if rows == 192 or rows < 128 else KernelSchedule.Cooperative

    def check_swap(self, kernel: Gemm) -> None:
        """Check that a kernel can compute the transposed problem."""
        check_swap(kernel)

    def check_apart(self, kernel: Gemm) -> None:
        """Check a D that is described apart from C."""
        described = (("C", kernel.C), ("D", kernel.D))
        for name, operand in described:
            check_matrix(name, operand)
            if operand.order.interleave > 1 or operand.type.short not in self.apart:
                raise DescriptionError(
                    f"where D is described apart from C, both are RowMajor or ColumnMajor, of {', '.join(self.apart)}; "
                    f"got {name} {operand.order} of {operand.type}"
                )

    def with_swizzle(self, kernel: Gemm) -> str:
        """Return what to describe for a swizzle that the family lacks, for the end of a message."""
        return _or_ampere(kernel, ". For it, ")

    def check_parts(self, kernel: Gemm) -> None:
        """Check compute capability, layouts, alignments and epilogue; say where registers will spill."""
        D = kernel.D
        if kernel.compute_capability not in self.shared_memory:
            raise DescriptionError(
                f"a tile with a cluster_shape makes a Hopper-native kernel, which needs compute_capability=90; got "
                f"{kernel.compute_capability}{_or_ampere(kernel, '. For an Ampere-style kernel, ')}"
            )
        if kernel.epilogue_functor.is_tree:
            check_pairs(kernel.epilogue_functor, D)
            check_selections(kernel.epilogue_functor, D)
        self._check_layouts(kernel)
        if _is_stream_k(kernel):
            _check_stream_k(kernel)
        parts = parts_in_kernel(kernel)
        check_register_a(kernel, parts, by_tma=not any(self.copies_of(kernel)))
        check_loads(kernel, parts.A, parts.B)
        check_stores(kernel, parts.A, parts.B, loaded(parts.epilogue, self.gemm, parts.C, parts.D), parts.D)
        check_function(kernel)
        check_columns(kernel)
        check_slices(kernel.tile_description, parts.A, parts.B)
        or_ampere = ", or for an Ampere-style kernel "
        check_family(kernel.epilogue_functor, self.gemm, lambda: _or_ampere(kernel, or_ampere))
        check_registers(kernel.tile_description, parts)

    def _check_layouts(self, kernel: Gemm) -> None:
        wanted = (("A", kernel.A, _core.RowMajor), ("B", kernel.B, _core.ColumnMajor), ("C", kernel.C, _core.RowMajor))
        wrong = [each for each in wanted if each[1].order.interleave > 1]
        if not wrong:
            return
        got = listed(f"{name} of cutlass.{operand.layout.__name__}" for name, operand, _ in wrong)
        remedy = "describe " + listed(f"{name} as cutlass.{layout.__name__}" for name, _, layout in wrong)
        raise DescriptionError(
            f"Hopper-native kernels take operands by rows or by columns, which are not interleaved; got {got}: "
            f"{remedy}{_or_ampere(kernel, ', or for an Ampere-style kernel ')}"
        )

    def check_group(self, kernel: Gemm, mode: SchedulerMode) -> None:
        """Check that a group leaves it to the kernel who takes which tile, and when."""
        swizzle = kernel.swizzling_functor
        check_grouped(kernel)
        check_warp_groups(kernel.tile_description, "groups")
        if kernel.epilogue_functor.is_tree and not kernel.D.is_row_major:
            raise DescriptionError(
                f"Hopper-native groups with an epilogue function have a RowMajor D: the sizes that their kernels read "
                f"are not those of transposed problems; got {kernel.D.order}: describe D so"
                f"{_or_ampere(kernel, ', or for an Ampere-style kernel ')}"
            )
        wrong, given = [], []
        if mode is not SchedulerMode.Device:
            wrong.append("a Hopper-native group finds its tiles as it goes, on the device")
            given.append("precompute_mode=SchedulerMode.Device")
        if swizzle is not _core.IdentitySwizzle1:
            wrong.append(f"a Hopper-native group has no swizzle, got cutlass.{swizzle.__name__}")
            given.append("swizzling_functor=cutlass.IdentitySwizzle1")
        if wrong:
            raise DescriptionError(f"{'; '.join(wrong)}: use {listed(given)}")

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
        """Return the bytes of shared memory; of a kernel that has 2 stages where fewer than that would fit."""
        beside = 0
        if epilogue is not None:
            beside, C = epilogue.shared_bytes(self.gemm, tile), loaded(epilogue, self.gemm, C, D or C)
        if is_direct(A, B, C, D or C):
            is_loaded = is_cp_async(A, B)
            stages = max(2, direct_stages(tile, beside, cp_async=is_loaded))
            return direct_bytes(tile, stages, beside, cp_async=is_loaded)
        swizzles = swizzle_bytes(tile, A, B)
        stages = max(2, stages_of(tile, C, grouped=group is not None, D=D, swizzles=swizzles))
        if beside and tile.stages is None:
            stages = 2  # CUTLASS takes as many as fit
        return kernel_bytes(tile, C, stages, grouped=group is not None, D=D, swizzles=swizzles) + beside

    def tag(self, compute_capability: int) -> int:
        """Return the compute capability that the C++ is tagged with: 90."""
        return 90

    def gemm_text(self, kernel: Gemm) -> str:
        """Return the C++ of a GEMM, without the line that names the kernel."""
        return self._text(kernel, self._stages(kernel), "gemm_sm90.h", "GemmSm90")

    def group_text(self, kernel: Gemm, mode: SchedulerMode) -> str:
        """Return the C++ of a group of which each problem is a GEMM, without the line that names the kernel."""
        return self._text(kernel, self._stages(kernel, grouped=True), "gemm_grouped_sm90.h", "GemmGroupedSm90")

    def check_array(self, kernel: Gemm) -> None:
        """Check that tables can say where the tensors of a GEMM are, as in ``Mode.Array``."""
        check_array(kernel, self._array_stages(kernel)[1], by_tma=not any(self.copies_of(kernel)))
        check_warp_groups(kernel.tile_description, "kernels for Mode.Array")

    def array_text(self, kernel: Gemm) -> str:
        """Return the C++ of the GEMM for ``Mode.Array``, without the line that names the kernel."""
        chosen, stages = self._array_stages(kernel)
        return self._text(kernel, None if chosen else stages, "gemm_array_sm90.h", "GemmArraySm90")

    def _array_stages(self, kernel: Gemm) -> tuple[bool, int]:
        """Return whether CUTLASS chooses the stages of a kernel for ``Mode.Array``, and how many there are.

        Of those that a tile names, fewer may fit: tensor maps are in shared memory as well.
        """
        tile, parts = kernel.tile_description, self.parts_of(kernel)
        C, D = loaded(parts.epilogue, self.gemm, parts.C, parts.D), parts.D
        beside = parts.epilogue.shared_bytes(self.gemm, tile)

        def fits(stages: int) -> bool:
            needed = kernel_bytes(tile, C, stages, grouped=False, D=D, listed=True) + beside
            return needed <= self.shared_memory[kernel.compute_capability]

        most = tile.stages or stages_of(changed(tile, stages=None), C, grouped=False, D=D, listed=True)
        stages = next((fewer for fewer in range(most, 1, -1) if fits(fewer) and lies_in_shared_memory(tile, fewer)), 0)
        chosen = tile.stages is None and not beside and stages == chosen_stages(tile, C, grouped=True, D=D)
        return chosen, stages

    def _stages(self, kernel: Gemm, *, grouped: bool = False) -> int | None:
        """Return how many stages a kernel has; None where CUTLASS chooses as many by itself."""
        tile, parts = kernel.tile_description, self.parts_of(kernel)
        C = loaded(parts.epilogue, self.gemm, parts.C, parts.D)
        if is_direct(parts.A, parts.B, C, parts.D):
            beside = parts.epilogue.shared_bytes(self.gemm, tile)
            return direct_stages(tile, beside, cp_async=is_cp_async(parts.A, parts.B))
        swizzles = swizzle_bytes(tile, parts.A, parts.B)
        stages = stages_of(tile, C, grouped=grouped, D=parts.D, swizzles=swizzles)
        if tile.stages is None and stages == chosen_stages(tile, C, grouped=grouped, D=parts.D, swizzles=swizzles):
            return None
        return None if parts.epilogue.shared_bytes(self.gemm, tile) and not tile.stages and not grouped else stages

    def _text(self, kernel: Gemm, stages: int | None, header: str, template: str) -> str:
        """Return the C++ of a kernel; without `stages`, CUTLASS chooses how many there are."""
        tile, parts = kernel.tile_description, self.parts_of(kernel)
        schedule = (tile.kernel_schedule or KernelSchedule.Cooperative).name
        if is_fast(tile) and not loads_a(parts.A, parts.B):  # which has no other
            schedule += "FastAccumulation"
        functor, D = parts.epilogue, parts.D
        C = loaded(functor, self.gemm, parts.C, D)
        scheduler = ",\n    pycutlass::StreamK" if _is_stream_k(kernel) else ""
        written = f",\n    {D.cpp}" if D != C or scheduler else ""
        wide = (
            "" if is_one_instruction(tile.threadblock_shape[1]) else "#define CUTE_SM90_EXTENDED_MMA_SHAPES_ENABLED\n"
        )
        return (
            f'{wide}#include "pycutlass/{header}"\n\n'
            f"{functor.definitions(self.gemm) if functor.is_tree else ''}"
            f"using {'Transposed' if kernel.swap_ab else 'Operation'} = pycutlass::{template}<\n"
            f"    {parts.A.cpp},\n"
            f"    {parts.B.cpp},\n"
            f"    {C.cpp},\n"
            f"    {tile.math_instruction.accumulator.cpp}, {_static_shape(tile.threadblock_shape)},\n"
            f"    {_static_shape(tile.cluster_shape or (1, 1, 1))},\n"
            f"    {functor.cpp(self.gemm, C.type)},\n"
            f"    pycutlass::{schedule}, {stages or 0}{written}{scheduler}>;\n"
            f"{'using Operation = pycutlass::TransposedSm90<Transposed>;' + chr(10) if kernel.swap_ab else ''}"
        )

    def swaps(self, functor: Epilogue, A: Tensor, B: Tensor, D: Tensor) -> bool:
        """Return whether a kernel computes the transposed problem even if that is not asked for."""
        return is_swapped(functor, A, B, D)

    def copies_of(self, kernel: Gemm) -> tuple[bool, bool]:
        """Return whether A and B are loaded by cp.async, and whether threads read C and write D."""
        parts = parts_in_kernel(kernel)
        C = loaded(parts.epilogue, self.gemm, parts.C, parts.D)
        return is_cp_async(parts.A, parts.B), is_direct(parts.A, parts.B, C, parts.D)

    def takes_slices(self, kernel: Gemm) -> bool:
        """Return whether slices of K are whole steps: in kernels with a device side of our own (kernel_sm90.h)."""
        parts, tile = parts_in_kernel(kernel), kernel.tile_description
        is_ours = not (is_cp_async(parts.A, parts.B) or _is_stream_k(kernel) or has_many_sums(tile, parts.D))
        return is_ours and parts.D.type == tile.math_instruction.accumulator

    def takes_stream_k(self, kernel: Gemm) -> bool:
        """Return whether a kernel could schedule by stream-K."""
        parts = parts_in_kernel(kernel)
        try:
            _check_stream_k(kernel)
        except DescriptionError:
            return False
        return not is_cp_async(parts.A, parts.B)

    def parts_of(self, kernel: Gemm) -> Parts:
        """Return the epilogue and the operands as the C++ has them."""
        return parts_in_kernel(kernel)


def _is_stream_k(kernel: Gemm) -> bool:
    """Return whether a kernel schedules by stream-K."""
    return kernel.swizzling_functor is _core.ThreadblockSwizzleStreamK


def _check_stream_k(kernel: Gemm) -> None:
    """Check that tiles can be divided along K."""
    functor, schedule = kernel.epilogue_functor, kernel.tile_description.kernel_schedule
    check_warp_groups(kernel.tile_description, "kernels of stream-K")
    if any(port.form not in ("matrix", "top_k") for port in functor.outputs):
        raise DescriptionError(
            f"{functor!r} reduces what it computes, which Hopper-native kernels do of whole tiles, not of those of "
            f"stream-K: use swizzling_functor=cutlass.IdentitySwizzle1"
        )
    if schedule is not KernelSchedule.Cooperative:
        raise DescriptionError(
            f"stream-K divides the tiles of KernelSchedule.Cooperative alone, got {schedule!r}: use that schedule with "
            f"a tile of 128 or 256 rows, or swizzling_functor=cutlass.IdentitySwizzle1"
        )


def _static_shape(shape: Shape) -> str:
    """Return a shape in CuTe's C++."""
    return f"cute::Shape<{', '.join(f'cute::Int<{extent}>' for extent in shape)}>"


def _or_ampere(kernel: Gemm, first: str) -> str:
    """Return how to describe the same as an Ampere-style kernel, behind `first`; nothing where there is none."""
    changes = as_ampere(kernel.tile_description, kernel)
    return f"{first}{changes}" if changes else ""


SM90 = _Sm90(
    name="Hopper-native",
    products=PRODUCTS,
    computed={"f32": ("f32", "f16"), "f16": ("f16", "f32"), "s32": ("f32", "s32")},
    written={
        "f32": ("f32", "f16", "bf16", "s8", "e4m3", "e5m2"),
        "f16": ("f16", "f32", "bf16"),
        "s32": ("s32", "s8", "u8", "f32", "f16", "bf16"),
    },
    apart=("f16", "bf16", "f32", "s8", "u8", "s32", "e4m3", "e5m2"),
    swizzles=(
        *(_core.IdentitySwizzle1, _core.IdentitySwizzle2, _core.IdentitySwizzle4, _core.IdentitySwizzle8),
        _core.ThreadblockSwizzleStreamK,
    ),
    modes=(_Mode.Gemm, _Mode.GemmSplitKParallel, _Mode.Batched, _Mode.Array),
    splits_k=False,
    is_persistent=True,
    schedules={KernelSchedule.Cooperative: (128, 192, 256), KernelSchedule.Pingpong: (64, 128, 192, 256)},
    shared_memory={90: SHARED_MEMORY_LIMIT[90]},
    gemm=Family.SM90_GEMM,
    group=Family.SM90_GROUP,
)
