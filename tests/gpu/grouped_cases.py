"""Grouped operations and groups of tensors that the GPU tests share."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from typing import Any

import pytest
from cases import (
    COLUMN,
    LAYOUTS,
    ROW,
    SIMT,
    Math,
    ampere,
    assert_matches,
    bf16,
    f16,
    f32,
    f64,
    hopper,
    poisoned,
    random_matrix,
    random_values,
    s8,
    s32,
    tf32,
)
from matrix import INTERLEAVED_KERNEL

import pycutlass
from pycutlass import GemmGroupedArguments, GemmOperationGrouped, SchedulerMode, cutlass, kernel, reference
from pycutlass.operation import GemmOperationUniversal

__all__ = [
    "BOTH",
    "BY_SCHEDULER",
    "GROUPED",
    "SIZES",
    "Group",
    "Stack",
    "any_of",
    "bias_of",
    "resident",
    "some_sizes",
    "step_of",
]

MODES = {"device": SchedulerMode.Device, "host": SchedulerMode.Host}
_INSTRUCTION = {"instruction": (16, 8, 8), "tile": (128, 128, 16)}
_SIMT = {"instruction": (1, 1, 1), "warps": (4, 2, 1), "opcode": SIMT}


def grouped(single: GemmOperationUniversal, mode: SchedulerMode) -> GemmOperationGrouped:
    """Return the grouped operation whose problems are `single`."""
    return GemmOperationGrouped(
        *(getattr(single, field) for field in single._FIELDS if field not in ("D", "swap_ab")), mode
    )


def _generic(activation: Any) -> Any:
    return lambda *types: pycutlass.LinearCombinationGeneric(activation, *types)


def _singles() -> dict[str, GemmOperationUniversal]:
    short = {ROW: "t", COLUMN: "n"}
    made: dict[str, GemmOperationUniversal] = {}
    for layouts in LAYOUTS:
        letters = "".join(short[layout] for layout in layouts)
        made[f"f16_{letters}"] = ampere(f16, f32, f16, layouts)
        made[f"f32_simt_{letters}"] = ampere(f32, f32, f32, layouts, tile=(128, 64, 8), stages=4, **_SIMT)
    for layouts in (LAYOUTS[2], LAYOUTS[5]):  # tnt and ntn
        letters = "".join(short[layout] for layout in layouts)
        made[f"bf16_{letters}"] = ampere(bf16, f32, bf16, layouts)
        made[f"tf32_{letters}"] = ampere(tf32, f32, f32, layouts, **_INSTRUCTION)
        made[f"f64_{letters}"] = ampere(f64, f64, f64, layouts, instruction=(8, 8, 4), tile=(64, 64, 16), stages=4)
    made["f16_acc16"] = ampere(f16, f16, f16)
    made["f16_out32"] = ampere(f16, f32, f32, tile=(64, 128, 32))
    made["f16_align2"] = ampere(f16, f32, f16, alignments=(2, 2, 2))
    made["f16_align1"] = ampere(f16, f32, f16, alignments=(1, 1, 1), stages=2)
    made["f16_large"] = ampere(f16, f32, f16, tile=(128, 256, 64), warps=(2, 4, 1))
    made["f16_swizzle8"] = ampere(f16, f32, f16, tile=(64, 64, 32), swizzle=cutlass.IdentitySwizzle8)
    made["f16_horizontal"] = ampere(f16, f32, f16, tile=(64, 64, 32), swizzle=cutlass.HorizontalSwizzle)
    made["f32_3xtf32"] = ampere(
        f32, f32, f32, math=Math.multiply_add_fast_f32, instruction=(16, 8, 8), tile=(64, 64, 16)
    )
    made["f64_simt"] = ampere(f64, f64, f64, tile=(128, 64, 8), stages=3, **_SIMT)
    made["s8"] = ampere(
        *(s8, s32, s8),
        instruction=(16, 8, 32),
        tile=(128, 128, 64),
        math=Math.multiply_add_saturate,
        functor=lambda output, length, accumulator, _: pycutlass.LinearCombinationClamp(
            output, length, accumulator, f32
        ),
    )
    made["relu"] = ampere(f16, f32, f16, functor=_generic(pycutlass.relu()))
    made["leaky_relu"] = ampere(f16, f32, f16, (ROW, COLUMN, COLUMN), functor=_generic(pycutlass.leaky_relu()))
    made["gelu"] = ampere(f16, f32, f16, functor=_generic(pycutlass.gelu()))
    made["interleaved"] = INTERLEAVED_KERNEL
    return made


def _natives() -> dict[str, GemmOperationUniversal]:
    cooperative, pingpong = pycutlass.KernelSchedule.Cooperative, pycutlass.KernelSchedule.Pingpong
    return {
        "hopper_cooperative": hopper(f16, f16, (128, 256, 64), (2, 1), cooperative),
        "hopper_cooperative_2x2": hopper(f16, f32, (128, 128, 64), (2, 2), cooperative),
        "hopper_pingpong": hopper(bf16, bf16, (64, 128, 64), (1, 1), pingpong),
        # As many stages as CUTLASS would choose do not fit beside the scheduler.
        "hopper_fewer_stages": hopper(f16, f16, (128, 112, 64), (1, 1), cooperative),
        "hopper_silu": hopper(f16, f16, (64, 256, 64), (1, 1), pingpong, functor=_generic(pycutlass.silu())),
    }


def _both() -> dict[str, GemmOperationGrouped]:
    """Every Ampere-style kernel with one scheduler, those of the layouts with both; Hopper-native ones with theirs."""
    made = {f"{name}_device": grouped(single, SchedulerMode.Device) for name, single in _natives().items()}
    for number, (name, single) in enumerate(_singles().items()):
        both = name.startswith(
            ("f16_t", "f16_n", "f16_large", "f16_swizzle8", "f32_simt_tnt", "f32_simt_ntn", "interleaved")
        )
        for mode in MODES if both else [list(MODES)[number % 2]]:
            made[f"{name}_{mode}"] = grouped(single, MODES[mode])
    return made


GROUPED = _both()
#: One kernel of each kind of schedule: by the device, by the host, Hopper-native.
BY_SCHEDULER = ["f16_tnt_device", "f16_tnt_host", "hopper_cooperative_device"]
#: The mark of a test that each of them takes.
BOTH = pytest.mark.parametrize("name", BY_SCHEDULER)
SIZES = [(64, 136, 72), (8, 8, 8), (200, 64, 512), (0, 64, 8), (136, 40, 0), (264, 128, 40)]


def any_of(prefix: str) -> GemmOperationGrouped:
    """Return a kernel whose name begins with `prefix`, with whichever scheduler there is."""
    return next(GROUPED[name] for name in GROUPED if name.startswith(prefix))


def resident(operation: GemmOperationGrouped) -> int:
    """Return how many threadblocks the GPU holds at once."""
    loaded = kernel.load(operation, 0)
    return loaded.sm_count * loaded.occupancy


def step_of(operation: GemmOperationGrouped) -> int:
    """Return what every extent must be a multiple of."""
    operands = (operation.A, operation.B, operation.C)
    return max(max(operand.alignment, operand.order.interleave) for operand in operands)


def packed(description: pycutlass.TensorDescription, matrix: Any) -> Any:
    """Return a matrix as a kernel takes it: as it is, or flat in groups of 32, B's columns then reordered."""
    if description.layout is cutlass.ColumnMajorInterleaved32:
        return pycutlass.interleave_columns(matrix)
    if description.layout is cutlass.RowMajorInterleaved32:
        return pycutlass.reorder_column(pycutlass.interleave_rows(matrix))
    return matrix


def unpacked(description: pycutlass.TensorDescription, operand: Any, rows: int, columns: int) -> Any:
    """Return what `packed` made as a matrix."""
    if description.layout is cutlass.ColumnMajorInterleaved32:
        return pycutlass.deinterleave_columns(operand, rows, columns)
    if description.layout is cutlass.RowMajorInterleaved32:  # its transpose is stored by columns
        return pycutlass.deinterleave_columns(pycutlass.reorder_column(operand), columns, rows).T
    return operand


def bias_of(operation: GemmOperationGrouped, m: int, n: int) -> Any:
    """Return a random bias."""
    return random_values(operation.C, (n if operation.C.is_row_major else m,))


def some_sizes(operation: GemmOperationGrouped, count: int, largest: int, seed: int = 0) -> list[tuple[int, int, int]]:
    """Return random sizes, a tenth of them empty or without K."""
    step, rng = step_of(operation), random.Random(seed)
    sizes = [tuple(step * rng.randint(1, max(1, largest // step)) for _ in range(3)) for _ in range(count)]
    return [
        tuple(0 if axis == hole else extent for axis, extent in enumerate(size))
        for size, hole in zip(sizes, (rng.randint(0, 29) for _ in sizes), strict=True)
    ]


class Group:
    """Random operands of a group, flat where their layouts are interleaved; every D is poisoned."""

    def __init__(self, operation: GemmOperationGrouped, sizes: Iterable[Sequence[int]]) -> None:
        self.operation = operation
        self.sizes = [tuple(size) for size in sizes]
        self.A = [packed(operation.A, random_matrix(operation.A, m, k)) for m, _, k in self.sizes]
        self.B = [packed(operation.B, random_matrix(operation.B, k, n)) for _, n, k in self.sizes]
        self.C = [packed(operation.C, random_matrix(operation.C, m, n)) for m, n, _ in self.sizes]
        self.D = [packed(operation.C, poisoned(operation.C, m, n)) for m, n, _ in self.sizes]

    def arguments(self, *scalars: Any, **changed: Any) -> GemmGroupedArguments:
        """Return arguments, with operands exchanged by keyword."""
        given: dict[str, Any] = {"problem_sizes": self.sizes, "A": self.A, "B": self.B, "C": self.C, "D": self.D}
        # A beta that is left out is refused beside a C; here it is 0.
        given["output_op"] = self.operation.epilogue_type(*scalars, *(1.0, 0.0)[len(scalars) :])
        return GemmGroupedArguments(self.operation, **{**given, **changed})

    def run(self, *scalars: Any, **changed: Any) -> GemmGroupedArguments:
        """Launch once, wait, and return the arguments."""
        arguments = self.arguments(*scalars, **changed)
        self.operation.run(arguments)
        arguments.sync()
        return arguments

    def poison(self) -> None:
        """Fill every D with NaN, or -128."""
        for target in self.D:
            target.fill_(-128 if self.operation.C.type.is_integer else float("nan"))

    def check(self, alpha: float = 1.0, beta: float = 0.0, *extra: float, C: Any = None) -> None:
        """Compare every D with the reference, or, where layouts are interleaved, with torch's product in f64."""
        sources = self.C if C is None else C
        for size, a, b, c, d in zip(self.sizes, self.A, self.B, sources, self.D, strict=True):
            if d.numel():
                if self.operation.A.order.interleave > 1:
                    self._check_interleaved(size, a, b, c, d, alpha, beta)
                else:
                    assert_matches(self.operation.single, a, b, c if beta else None, d, alpha, beta, *extra)

    def _check_interleaved(
        self, size: tuple[int, ...], a: Any, b: Any, c: Any, d: Any, alpha: float, beta: float
    ) -> None:
        """Compare one D with torch's product to the bit: for scalars by which nothing is rounded in f32."""
        import torch

        (m, n, k), operation = size, self.operation
        A, B = unpacked(operation.A, a, m, k), unpacked(operation.B, b, k, n)
        exact = alpha * (A.double() @ B.double())
        if beta:
            exact += beta * unpacked(operation.C, c, m, n).double()
        rounded = exact.round().clamp(-128, 127).to(torch.int8)
        assert torch.equal(unpacked(operation.C, d, m, n), rounded)

    def check_on_gpu(self) -> None:
        """Compare every D with torch's product in f64: for groups that are too large for the reference."""
        import torch

        for (_, _, k), a, b, d in zip(self.sizes, self.A, self.B, self.D, strict=True):
            relative, absolute = reference.tolerance(self.operation.single, k)
            torch.testing.assert_close(d.double(), a.double() @ b.double(), rtol=relative, atol=absolute)


class Stack(Group):
    """A group of equal problems whose operands are slices of three tensors: quickly made and checked."""

    def __init__(self, operation: GemmOperationGrouped, count: int, m: int, n: int, k: int) -> None:
        self.operation = operation
        self.sizes = [(m, n, k)] * count
        self._a, self._b = random_matrix(operation.A, m, k, count), random_matrix(operation.B, k, n, count)
        self._d = poisoned(operation.C, m, n, count)
        self.A, self.B, self.D = ([*tensor.unbind()] for tensor in (self._a, self._b, self._d))
        self.C = None

    def poison(self) -> None:
        """Fill every D with NaN, or -128."""
        self._d.fill_(-128 if self.operation.C.type.is_integer else float("nan"))

    def check_on_gpu(self) -> None:
        """Compare every D with torch's product in f64."""
        import torch

        relative, absolute = reference.tolerance(self.operation.single, self.sizes[0][2])
        torch.testing.assert_close(self._d.double(), self._a.double() @ self._b.double(), rtol=relative, atol=absolute)
