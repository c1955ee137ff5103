"""Tests that compile need a toolkit and no GPU."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

_HERE = Path(__file__).parent
sys.path[:0] = [str(_HERE), str(_HERE.parent / "unit")]  # for records.py, and the descriptions of the unit tests

#: Each includes CUTLASS.
_HEADERS = ("gemm_universal", "gemm_visitor", "gemm_grouped", "conv2d", "reduction", "gemm_sm90", "gemm_grouped_sm90")


@pytest.fixture(scope="session")
def host_compiler(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The host compiler, for tests of what host sides say and plan: it compiles the headers of kernels once.

    They are most of the work. That a kernel's text includes what it needs is seen where it goes through the compilers
    as they are: test_toolchain.py, test_extra_epilogue.py, test_grouped.py, and all examples.
    """
    from run_wide import made_once  # which is only found with the path above

    from pycutlass import toolkit
    from pycutlass.compiler.tools import find_tools
    from pycutlass.toolchain import HostCompiler

    program, plain = toolkit.find_host_compiler(), find_tools("nvcc", toolkit.without_memo).host

    def compile_headers(directory: Path) -> None:
        header = directory / "kernels.h"
        header.write_text("".join(f'#include "pycutlass/{name}.h"\n' for name in _HEADERS))
        command = plain.command(header, directory / "kernels.h.gch", "sm_80")
        kept = [word for word in command if word != "-shared" and not word.startswith("-Wl,")]
        kept[kept.index("c++")] = "c++-header"
        subprocess.run(kept, check=True)
        header.write_text("#error what was compiled does not fit\n")  # else it would be read, silently

    directory = made_once(tmp_path_factory, "headers", compile_headers)
    return HostCompiler((*program, "-include", str(directory / "kernels.h")), plain.includes)
