"""What the machine code of Ampere-style kernels does for epilogue functions, beside computing them.

Emulation sees that all elements are right. That nothing waits where it need not is seen in the instructions alone.
"""

from __future__ import annotations

import functools
import re

import pytest
from convolutions import conv, fprop
from descriptions import parts
from marks import thorough

from pycutlass import Conv2dOperation, GemmOperationUniversal, cutlass, toolkit
from pycutlass.compiler.tools import find_tools
from pycutlass.epilogue import fusions
from pycutlass.toolchain import Processes

pytestmark = pytest.mark.compile

FUNCTIONS = {
    "reads a vector and a matrix": fusions.bias_residual_silu,
    "reads nothing": fusions.swiglu,
    "reduces": fusions.layer_norm_statistics,
    "joins logarithms": fusions.softmax_statistics,
}


def described(name: str) -> GemmOperationUniversal:
    given, function = parts("f16"), FUNCTIONS[name]
    functor = function(given["C"].element, given["C"].alignment, cutlass.float32)
    return GemmOperationUniversal(**given | {"epilogue_functor": functor})


@functools.cache  # each is looked at more than once
def instructions(name: str) -> tuple[str, ...]:
    """Return the machine code of a GEMM, an instruction a line."""
    return machine_code(described(name))


def machine_code(operation: GemmOperationUniversal | Conv2dOperation) -> tuple[str, ...]:
    device = find_tools("nvcc", toolkit.without_memo).device
    cubin = device.compile(operation.source(), "sm_80", Processes(1, 8 << 30)).binary
    return tuple(re.findall(r"/\*[0-9a-f]{4,}\*/\s+([^;]*);", toolkit.disassembled(cubin)))


def places(code: tuple[str, ...], pattern: str) -> list[int]:
    return [place for place, each in enumerate(code) if re.search(pattern, each)]


@pytest.mark.parametrize(
    "name", [*map(thorough, ("reads a vector and a matrix", "reads nothing", "reduces")), "joins logarithms"]
)
def test_rows_of_a_tile_do_not_wait_for_each_other(name: str) -> None:
    """Steps of an epilogue are between barriers, and have no branch: behind one, what computes a row would wait."""
    code = instructions(name)
    stores = places(code, r"\bSTG\.E\.(64|128) ")  # of D, not of partial results
    steps = code[stores[0] : stores[-1]]
    assert len(places(steps, r"BAR\.SYNC")) >= 14
    assert not places(steps, r"\bBRA\b|BSSY")


@pytest.mark.parametrize("name", ["joins logarithms", thorough("reduces")])
def test_no_thread_waits_for_the_count_of_tiles_at_once(name: str) -> None:
    code = instructions(name)
    [asked] = places(code, r"ATOMG\.E\.INC")
    answer = re.search(r"ATOMG\S* PT, (R\d+),", code[asked])
    assert answer
    first_step = places(code[asked:], r"BAR\.SYNC")[0]
    assert not places(code[asked + 1 : asked + first_step], rf"\b{answer[1]}\b")


def test_joined_logarithms_take_two_functions_each() -> None:
    """A thread has 16 rows with 8 elements each, joined among 16 lanes; of 8 tiles at a time it joins 4 rows, each."""
    code = instructions("joins logarithms")
    rows, of_row, lanes, tiles, joined, others = 16, 8, 15, 8, 4, 3
    assert len(places(code, r"MUFU\.EX2")) == rows * of_row + lanes + joined * (tiles + 1) + others
    assert len(places(code, r"MUFU\.LG2")) == rows + lanes + joined + others


def test_convolutions_ask_for_their_inputs_before_the_mainloop() -> None:
    code = machine_code(conv(fprop, "optimized", functor=lambda *types: fusions.bias_residual_silu(*types)))
    begin = places(code, "HMMA")[0]
    for level in ("PF1", "PF2"):  # of vectors to the L1 cache, of matrices to the L2 cache
        asked = places(code, rf"CCTL\.E\.{level}\b")
        assert asked and asked[-1] < begin, level
    assert not places(instructions("reads a vector and a matrix"), r"CCTL\.E\.PF")
