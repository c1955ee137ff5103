"""The bytes of shared memory that descriptions count, against the size of CUTLASS's structures."""

from __future__ import annotations

import itertools
import random
from typing import Any

import pytest
from descriptions import COLUMN, ROW, ampere, hopper, mixed_parts
from host import WHOLE, constants
from kernels import draw_ampere, draw_convolution, text_of

from pycutlass import GemmOperationGrouped, GemmOperationUniversal, KernelSchedule
from pycutlass.errors import DescriptionError
from pycutlass.families import SM90, sm90_memory
from pycutlass.families.ampere.family import AMPERE, epilogue_bytes, mainloop_bytes
from pycutlass.toolchain import HostCompiler

pytestmark = pytest.mark.compile

#: Kernels of one program: each takes a compiler about a second.
TOGETHER = 20


def counted(operation: Any) -> list[int]:
    """Return the bytes that are counted: of mainloop, epilogue and kernel, or of a Hopper-native kernel."""
    tile = operation.tile_description
    grouped = isinstance(operation, GemmOperationGrouped)
    if tile.is_sm90:
        stages = sm90_memory.stages_of(tile, operation.C, grouped=grouped)
        return [sm90_memory.kernel_bytes(tile, operation.C, stages, grouped=grouped)]
    A, B, C = operation.product if hasattr(operation, "product") else (operation.A, operation.B, operation.C)
    kernel = AMPERE.shared_bytes(tile, A, B, C, group=operation.precompute_mode if grouped else None)
    return [mainloop_bytes(tile, A, B, C), epilogue_bytes(tile, C), kernel]


def compare(compiler: HostCompiler, operations: list[Any]) -> None:
    """Compare what the descriptions count with what the structures have."""
    for begin in range(0, len(operations), TOGETHER):
        some = operations[begin : begin + TOGETHER]
        expressions = []
        for i, operation in enumerate(some):
            if not operation.tile_description.is_sm90:
                kernel = f"Operation{i}::Kernel"
                expressions += [
                    f"sizeof({kernel}::Mma::SharedStorage)",
                    # Storage is aligned to 16 bytes; that of an interleaved epilogue is empty.
                    f"sizeof({kernel}::Epilogue::SharedStorage)",
                ]
            expressions.append(f"Operation{i}::kSharedBytes")
        found = iter(constants(compiler, text_of(some), expressions))
        wrong = []
        for operation in some:
            count = counted(operation)
            have = list(itertools.islice(found, len(count)))
            rounded = [-(-bytes_ // 16) * 16 if bytes_ > 1 else 1 for bytes_ in count]
            if have != rounded:
                wrong.append((operation, have, rounded))
        assert wrong == []


def draw_native(drawn: random.Random, rows: int | None = None, columns: int | None = None) -> Any:
    while True:
        shape = rows or drawn.choice((64, 128, 192, 256)), columns or drawn.randrange(16, 257, 16)
        try:
            operation = hopper(
                tile=(*shape, drawn.choice((16, 32, 48, 64, 80, 96, 128, 160))),
                cluster=(drawn.choice((1, 2)), drawn.choice((1, 2))),
                schedule=drawn.choice(list(KernelSchedule)),
                stages=drawn.choice((None, None, 2, 3, 4, 5, 7, 9)),
                output=drawn.choice(("f16", "f32")),
            )
            return operation if drawn.random() < 0.5 else GemmOperationGrouped(*operation._value())
        except DescriptionError:
            continue


def test_ampere_kernels(drawn: random.Random, host_compiler: HostCompiler) -> None:
    known = [
        ampere("f16_out32", tile=(256, 128, 32), warps=(8, 1, 1)),  # where the epilogue takes more than the mainloop
        ampere("f32_simt", (ROW, COLUMN, ROW), stages=2),
        # whose tile of A is as wide as that of B is high
        GemmOperationUniversal(**mixed_parts("u8", "bf16", (ROW, ROW, COLUMN), tile=(64, 256, 64))),
    ]
    compare(host_compiler, [*known, *(draw_ampere(drawn) for _ in range(400 if WHOLE else 6))])


def test_hopper_kernels(drawn: random.Random, host_compiler: HostCompiler) -> None:
    if WHOLE:
        for rows, columns in itertools.product((64, 128, 192, 256), range(16, 257, 16)):
            if rows * columns <= 128 * 224 or rows in (128, 256):
                compare(host_compiler, [draw_native(drawn, rows, columns) for _ in range(4)])
    too_many = hopper(tile=(128, 112, 64), cluster=(1, 1))  # of stages, if CUTLASS chose them for a group
    compare(host_compiler, [GemmOperationGrouped(*too_many._value()), *(draw_native(drawn) for _ in range(4))])


def test_convolutions(drawn: random.Random, host_compiler: HostCompiler) -> None:
    compare(host_compiler, [draw_convolution(drawn) for _ in range(100 if WHOLE else 2)])


def test_a_tile_without_stages_fits() -> None:
    fewer = 0
    for rows, columns, k, schedule, output in itertools.product(
        (64, 128, 192, 256), range(16, 257, 16), (16, 32, 64, 96, 160), KernelSchedule, ("f16", "f32")
    ):
        try:
            operation = hopper(tile=(rows, columns, k), cluster=(1, 1), schedule=schedule, output=output)
        except DescriptionError:
            continue
        tile, C = operation.tile_description, operation.C
        for grouped in (False, True):
            stages = sm90_memory.stages_of(tile, C, grouped=grouped)
            assert sm90_memory.kernel_bytes(tile, C, stages, grouped=grouped) <= SM90.shared_memory[90]
            fewer += stages != sm90_memory.chosen_stages(tile, C, grouped=grouped)
    assert fewer


def test_a_group_whose_stages_would_not_fit_names_fewer() -> None:
    """As CUTLASS would choose them, this one took 232,960 bytes."""
    made = hopper(tile=(128, 112, 64), cluster=(1, 1))
    assert "Cooperative, 0>" in made.body()
    assert "Cooperative, 6>" in GemmOperationGrouped(*made._value()).body()
