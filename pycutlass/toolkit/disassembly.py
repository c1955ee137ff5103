"""What machine code consists of, by the disassembler of the CUDA toolkit."""

from __future__ import annotations

import re
from collections import Counter

from pycutlass.errors import ToolkitError
from pycutlass.toolkit.files import Memo, run_quietly, without_memo
from pycutlass.toolkit.find import find_tool
from pycutlass.toolkit.scratch import scratch_directory

__all__ = ["disassembled", "instruction_mix"]

_TOOLS = {"nvdisasm": ("-c",), "cuobjdump": ("-sass",)}
# "/*0010*/  @!P0 LDG.E R2, ..." of either tool; what follows the first dot is a variant of the instruction.
_INSTRUCTION = re.compile(r"/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z][A-Z0-9]*)")


def instruction_mix(cubin: bytes, memo: Memo = without_memo) -> Counter[str]:
    """Return how often each machine instruction occurs in `cubin`.

    Raises
    ------
    ToolkitError
        If there is no disassembler, or if it does not take the cubin.
    """
    return Counter(_INSTRUCTION.findall(disassembled(cubin, memo)))


def disassembled(cubin: bytes, memo: Memo = without_memo) -> str:
    """Return the machine code of `cubin` as text.

    Raises
    ------
    ToolkitError
        If there is no disassembler, or if it does not take the cubin.
    """
    found = ((find_tool(name, memo), options) for name, options in _TOOLS.items())
    program, options = next(((program, options) for program, options in found if program), (None, ()))
    if program is None:
        raise ToolkitError(
            "machine code cannot be shown: neither nvdisasm nor cuobjdump is on PATH or in a toolkit. "
            "pip install nvidia-cuda-nvdisasm, or install the CUDA toolkit.",
            absent=True,
        )
    with scratch_directory() as folder:
        path = folder / "kernel.cubin"
        try:
            path.write_bytes(cubin)
        except OSError as error:
            raise ToolkitError(
                f"a cubin cannot be written for {program.name}: {error}. Set TMPDIR before Python starts."
            ) from error
        return run_quietly([str(program), *options, str(path)])
