"""The table of Hopper-native kernels: CUTLASS's 3.x API, TMA and wgmma, for compute capability 90 alone."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from pycutlass import _core
from pycutlass.calls import member_meant, shown
from pycutlass.enums import KernelSchedule, SchedulerMode
from pycutlass.errors import DescriptionError
from pycutlass.families.agreement import check_alignments
from pycutlass.families.other_family import ampere_shape, as_ampere, as_native, listed
from pycutlass.families.parts import Epilogue, Gemm, Math, Product, Shape, Tensor, Tile, changed
from pycutlass.families.sm90_memory import chosen_stages, kernel_bytes, stages_of
from pycutlass.families.table import (
    SHARED_MEMORY_LIMIT,
    Family,
    KernelFamily,
    check_family,
    check_matrix,
    check_pairs,
    check_selections,
    check_tiles,
    in_kernel,
    nearest_multiple,
)
from pycutlass.log import say_once

__all__ = [
    "CLEAN_ACCUMULATORS",
    "SM90",
    "SM90_THREADS",
    "accumulator_registers",
]

#: Registers of the 240 of a Hopper-native kernel's thread that sums can have, and those with which ptxas spills none.
#: Built with CUDA 13.0 for C of 16 bits, 192 were clean, 208 spilled a few bytes, and from 216 on ptxas made each wgmma
#: wait for the one before. C of 32 bits has more of its own: 168 were clean, 176 almost, 192 spilled.
_MAX_ACCUMULATORS, CLEAN_ACCUMULATORS = 224, 192
#: What the TMA copies is aligned to, and what an instruction takes along K, in bytes.
_TMA_BYTES, _WGMMA_DEPTH = 16, 32
#: Threads of a threadblock: one producer warp group and two consumers, under either schedule.
SM90_THREADS = 384
_Mode = _core.GemmMode


@dataclass(frozen=True, eq=False)
class _Sm90(KernelFamily):
    """Kernels of which each tile is computed by warp groups, and that run on compute capability 90 alone."""

    _beside = ", those of the epilogue included,"

    def _why_not(self, math: Math) -> str:
        if reason := super()._why_not(math):
            return reason
        kinds: dict[str, list[str]] = {}
        for row in self.products:
            kinds.setdefault(row.accumulator, []).append(row.a if row.a == row.b else f"{row.a} x {row.b}")
        multiplied = ", or ".join(f"{' or '.join(types)} and accumulate in {sums}" for sums, types in kinds.items())
        return (
            f"{self.name} kernels, whose instruction_shape is None, multiply {multiplied}, by OpClass.TensorOp and "
            f"multiply_add; got {math.a} and {math.accumulator} by {math.opcode_class.name} and "
            f"{math.math_operation.name}.{self._instead(math)}"
        )

    def _instead(self, math: Math) -> str:
        """Return which instructions there are of the same types."""
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
        instruction = tile.math_instruction
        m, n, k = tile.cluster_shape or (1, 1, 1)
        if k != 1 or m not in (1, 2) or n not in (1, 2):
            raise DescriptionError(
                f"cluster_shape must be 1 or 2 along M and N, such as cluster_shape=[2, 1]; got {[m, n, k]}"
            )
        given = {"instruction_shape": instruction.instruction_shape, "warp_count": tile.warp_count}
        if unlike := {name: value for name, value in given.items() if value is not None}:
            ways = [each for each in (as_native(tile), as_ampere(tile)) if each]
            needs = (
                "" if instruction.is_tensor_op else f"needs OpClass.TensorOp, got {instruction.opcode_class.name}; it "
            )
            raise DescriptionError(
                f"a Hopper-native kernel {needs}has an instruction and warp groups that follow from its tile, got "
                f"{listed(f'{name}={list(value)}' for name, value in unlike.items())}"
                f"{': ' + ', or '.join(ways) if ways else ''}"
            )
        schedule = tile.kernel_schedule
        if not isinstance(schedule, KernelSchedule):
            near = member_meant(schedule, KernelSchedule, "KernelSchedule")
            raise DescriptionError(f"kernel_schedule must be a KernelSchedule, got {shown(schedule)}{near}")
        self._check_extents(tile, schedule)
        if tile.stages is not None and (type(tile.stages) is not int or tile.stages < 2):
            raise DescriptionError(f"stages must be None (as many as fit) or at least 2, got {shown(tile.stages)}")

    def _check_extents(self, tile: Tile, schedule: KernelSchedule) -> None:
        m, n, k = tile.threadblock_shape
        if m not in self.schedules[schedule]:
            other = next((other for other, rows in self.schedules.items() if m in rows), None)
            raise DescriptionError(
                f"threadblock_shape M={m} does not fit {schedule!r}, which takes "
                f"{', '.join(map(str, self.schedules[schedule]))}" + ("" if other is None else f"; {other!r} takes {m}")
            )
        widest = max(tile.math_instruction.a, tile.math_instruction.b, key=lambda operand: operand.bits)
        step, registers = _WGMMA_DEPTH * 8 // widest.bits, accumulator_registers(tile)
        wrong: list[tuple[str, str]] = []  # each with its own remedy
        columns, depth = n, k
        if n % 16 or not 16 <= n <= 256:
            columns = min(256, max(16, nearest_multiple(n, 16)))
            rule = f"threadblock_shape N={n} must be a multiple of 16 from 16 to 256 (the epilogue stores 16 at once)"
            wrong.append((rule, f"; the nearest is {columns}"))
        if registers * columns > _MAX_ACCUMULATORS * n:
            columns = CLEAN_ACCUMULATORS * n // registers // 16 * 16
            rule = (
                f"a {m}x{n} tile needs {registers} accumulator registers in each thread under {schedule!r}, which has "
                f"{_MAX_ACCUMULATORS} to give at most, and {CLEAN_ACCUMULATORS} without spills"
            )
            wrong.append((rule, f": use at most {columns} columns"))
        if k % step:
            depth = nearest_multiple(k, step)
            rule = f"threadblock_shape K={k} must be a multiple of {step} for {widest}"
            wrong.append((rule, f"; the nearest is {depth}"))
        if wrong:
            remedy = wrong[0][1] if len(wrong) == 1 else f": use threadblock_shape {[m, columns, depth]}"
            raise DescriptionError("; ".join(rule for rule, _ in wrong) + remedy)

    def schedule_of(self, rows: int) -> KernelSchedule:
        """Return the schedule of a tile that names none."""
        return KernelSchedule.Pingpong if rows == 192 or rows < 128 else KernelSchedule.Cooperative

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
        _check_alignments(described, "D")

    def stored_alignment(self, math: Math, D: Tensor) -> int | None:
        """Return the alignment of whatever TMA copies."""
        return 8 * _TMA_BYTES // D.type.bits

    def with_swizzle(self, kernel: Gemm) -> str:
        """Return what to describe for a swizzle that the family lacks, for the end of a message."""
        return _or_ampere(kernel, ". For it, ")

    def check_parts(self, kernel: Gemm) -> None:
        """Check compute capability, layouts, alignments and epilogue; say where registers will spill."""
        tile, A, B, C, D = kernel.tile_description, kernel.A, kernel.B, kernel.C, kernel.D
        if kernel.compute_capability not in self.shared_memory:
            raise DescriptionError(
                f"a tile with a cluster_shape makes a Hopper-native kernel, which needs compute_capability=90; got "
                f"{kernel.compute_capability}{_or_ampere(kernel, '. For an Ampere-style kernel, ')}"
            )
        if kernel.epilogue_functor.is_tree:
            check_pairs(kernel.epilogue_functor, D)
            check_selections(kernel.epilogue_functor, D)
        self._check_layouts(kernel)
        _check_alignments([("A", A), ("B", B), *([("C", C)] if C == D else [])])
        _check_function(kernel)
        or_ampere = ", or for an Ampere-style kernel "
        check_family(kernel.epilogue_functor, self.gemm, lambda: _or_ampere(kernel, or_ampere))
        _warn_of_spills(tile, D)

    def _check_layouts(self, kernel: Gemm) -> None:
        A, B, C = kernel.A, kernel.B, kernel.C
        (of_A, of_B), *_ = kernel.tile_description.math_instruction.product.layouts
        follows = C == kernel.D and in_kernel(kernel.epilogue_functor, C) is kernel.epilogue_functor
        wanted = [("A", A, of_A), ("B", B, of_B), *([("C", C, _core.RowMajor)] if follows else [])]
        wrong = [(name, operand, layout) for name, operand, layout in wanted if operand.layout is not layout]
        if not wrong:
            return
        got = listed(f"{name} of cutlass.{operand.layout.__name__}" for name, operand, _ in wrong)
        remedy = "describe " + listed(f"{name} as cutlass.{layout.__name__}" for name, _, layout in wrong)
        if wrong[-1][0] == "C" and C.order.interleave == 1 and C.type.short in self.apart:
            by_rows, by_columns = (
                f"D=TensorDescription({C.type}, cutlass.{order}, {C.alignment})"
                for order in ("RowMajor", "ColumnMajor")
            )
            others = listed([f"{name} as cutlass.{layout.__name__}" for name, _, layout in wrong[:-1]] or [""])
            remedy = f"describe {f'{others}, and ' if others else ''}D apart, {by_rows} for such a C, or C as "
            remedy += f"cutlass.RowMajor and {by_columns} for such a D"
        raise DescriptionError(
            f"Hopper-native kernels take A RowMajor, B ColumnMajor and C RowMajor where D is like it; got {got}: "
            f"{remedy}{_or_ampere(kernel, ', or for an Ampere-style kernel ')}"
        )

    def check_group(self, kernel: Gemm, mode: SchedulerMode) -> None:
        """Check that a group leaves it to the kernel who takes which tile, and when."""
        swizzle = kernel.swizzling_functor
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
            epilogue, C, D = _in_kernel(epilogue, C, D or C)
            beside, C = epilogue.shared_bytes(self.gemm, tile), _loaded(epilogue, self.gemm, C, D)
        stages = max(2, stages_of(tile, C, grouped=group is not None, D=D))
        if beside and tile.stages is None:
            stages = 2  # CUTLASS takes as many as fit
        return kernel_bytes(tile, C, stages, grouped=group is not None, D=D) + beside

    def tag(self, compute_capability: int) -> int:
        """Return the compute capability that the C++ is tagged with: 90."""
        return 90

    def gemm_text(self, kernel: Gemm) -> str:
        """Return the C++ of a GEMM, without the line that names the kernel."""
        return self._text(kernel, kernel.tile_description.stages, "gemm_sm90.h", "GemmSm90")

    def group_text(self, kernel: Gemm, mode: SchedulerMode) -> str:
        """Return the C++ of a group of which each problem is a GEMM, without the line that names the kernel."""
        # CUTLASS may choose one stage too many for a group.
        tile, C = kernel.tile_description, _loaded(kernel.epilogue_functor, self.gemm, kernel.C, kernel.D)
        stages = stages_of(tile, C, grouped=True, D=kernel.D)
        chosen = tile.stages is None and stages == chosen_stages(tile, C, grouped=True, D=kernel.D)
        return self._text(kernel, None if chosen else stages, "gemm_grouped_sm90.h", "GemmGroupedSm90")

    def _text(self, kernel: Gemm, stages: int | None, header: str, template: str) -> str:
        """Return the C++ of a kernel; without `stages`, CUTLASS chooses how many there are."""
        tile, A, B = kernel.tile_description, kernel.A, kernel.B
        schedule = tile.kernel_schedule or KernelSchedule.Cooperative
        functor, C, D = _in_kernel(kernel.epilogue_functor, kernel.C, kernel.D)
        C, is_transposed = _loaded(functor, self.gemm, C, D), functor is not kernel.epilogue_functor
        if is_transposed:
            A, B = _transposed(B), _transposed(A)
        written = "" if D == C else f",\n    {D.cpp}"
        return (
            f'#include "pycutlass/{header}"\n\n'
            f"{functor.definitions(self.gemm) if functor.is_tree else ''}"
            f"using {'Transposed' if is_transposed else 'Operation'} = pycutlass::{template}<\n"
            f"    {A.cpp},\n"
            f"    {B.cpp},\n"
            f"    {C.cpp},\n"
            f"    {tile.math_instruction.accumulator.cpp}, {_static_shape(tile.threadblock_shape)},\n"
            f"    {_static_shape(tile.cluster_shape or (1, 1, 1))},\n"
            f"    {functor.cpp(self.gemm, C.type)},\n"
            f"    pycutlass::{schedule.name}, {stages or 0}{written}>;\n"
            f"{'using Operation = pycutlass::TransposedSm90<Transposed>;' + chr(10) if is_transposed else ''}"
        )


def _in_kernel(functor: Epilogue, C: Tensor, D: Tensor) -> tuple[Epilogue, Tensor, Tensor]:
    """Return the epilogue, C and D of a kernel: with a function and a column-major D, of the transposed problem."""
    transposed = in_kernel(functor, D)
    return (functor, C, D) if transposed is functor else (transposed, _transposed(C), _transposed(D))


def _transposed(operand: Tensor) -> Tensor:
    """Return what describes the transposed matrix."""
    layout = _core.ColumnMajor if operand.is_row_major else _core.RowMajor
    transposed: Tensor = replace(operand, layout=layout)  # type: ignore[type-var]
    return transposed


def _loaded(functor: Epilogue, family: Family, C: Tensor, D: Tensor) -> Tensor:
    """Return the description of what is loaded as C: where that is not read, another tensor, or none."""
    port = functor.loaded(family)
    if port is None:
        return D if functor.reads_source is False else C
    loaded: Tensor = port.description
    return loaded


def _check_function(kernel: Gemm) -> None:
    """Check that an epilogue function has a tile of the kernel's, and a C that lies as D does where it reads one."""
    functor = kernel.epilogue_functor
    if functor.reads_source is None:
        return
    check_tiles(in_kernel(functor, kernel.D), kernel.tile_description)
    if functor.reads_source and kernel.C.layout is not kernel.D.layout:
        raise DescriptionError(
            f"the epilogue function {functor!r} reads C and writes D in the same order; got C of {kernel.C.order} and "
            f"D of {kernel.D.order}: describe both alike, or give C as a Tensor of the function with the other layout"
        )


def _static_shape(shape: Shape) -> str:
    """Return a shape in CuTe's C++."""
    return f"cute::Shape<{', '.join(f'cute::Int<{extent}>' for extent in shape)}>"


def _check_alignments(operands: Iterable[tuple[str, Tensor]], written: str = "C") -> None:
    wanted = {name: (operand, 8 * _TMA_BYTES // operand.type.bits) for name, operand in operands}
    check_alignments("TMA needs 16-byte alignment", wanted, written=written)


def _or_ampere(kernel: Gemm, first: str) -> str:
    """Return how to describe the same as an Ampere-style kernel, behind `first`; nothing where there is none."""
    changes = as_ampere(kernel.tile_description, kernel)
    return f"{first}{changes}" if changes else ""


def accumulator_registers(tile: Tile) -> int:
    """Return the registers of a thread that hold sums, of the 128 threads of each warp group."""
    m, n, _ = tile.threadblock_shape
    return m * n // (256 if tile.kernel_schedule is KernelSchedule.Cooperative else 128)


def _warn_of_spills(tile: Tile, D: Tensor) -> None:
    """Log a warning where a tile leaves the epilogue too few registers."""
    registers = accumulator_registers(tile)
    clean = CLEAN_ACCUMULATORS - (24 if D.type.bits > 16 else 0)
    if registers > clean:
        m, n, _ = tile.threadblock_shape
        say_once(
            f"a {m}x{n} tile needs {registers} accumulator registers in each thread under {tile.kernel_schedule!r}, "
            f"and beyond {clean} of them for C of {D.type} the kernel may be slower: registers spill, and from 216 on "
            f"instructions wait for each other; {clean * n // registers // 16 * 16} columns are the most that do not"
        )


SM90 = _Sm90(
    name="Hopper-native",
    products=tuple(
        Product(_core.OpClass.TensorOp, operand, operand, "f32", None, ((_core.RowMajor, _core.ColumnMajor),))
        for operand in ("f16", "bf16")
    ),
    computed={"f32": ("f32", "f16")},
    written={"f32": ("f32", "f16", "bf16")},
    apart=("f16", "bf16", "f32"),
    swizzles=(_core.IdentitySwizzle1, _core.IdentitySwizzle2, _core.IdentitySwizzle4, _core.IdentitySwizzle8),
    modes=(_Mode.Gemm, _Mode.Batched),
    splits_k=False,
    is_persistent=True,
    schedules={KernelSchedule.Cooperative: (128, 256), KernelSchedule.Pingpong: (64, 128, 192, 256)},
    shared_memory={90: SHARED_MEMORY_LIMIT[90]},
    gemm=Family.SM90_GEMM,
    group=Family.SM90_GROUP,
)
