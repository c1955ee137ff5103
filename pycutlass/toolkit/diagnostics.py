"""Everything that PyCUTLASS looks for on a machine, found or not: what ``pycutlass doctor`` shows."""

from __future__ import annotations

import functools
import shlex
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from pycutlass import _core, config
from pycutlass.errors import PyCutlassError
from pycutlass.toolkit.files import Memo, cuda_release, run_quietly, without_memo
from pycutlass.toolkit.find import (
    CORRECT,
    GET_CUTLASS,
    GET_NVCC,
    GET_NVRTC,
    find_tool,
    search_cutlass,
    search_nvcc,
    search_nvrtc,
)
from pycutlass.toolkit.host_compiler import GET_CXX, search_host_compiler
from pycutlass.toolkit.models import Cutlass, Toolkit

__all__ = ["Finding", "findings", "safely"]

_Thing = TypeVar("_Thing")
_GET_DRIVER = "install NVIDIA's driver 580 or newer; without a GPU, kernels compile and `run` computes the reference"
_GET_TOOL = "it comes with the CUDA toolkit, and only serves to look at machine code"


@dataclass(frozen=True)
class Finding:
    """One thing that was looked for.

    Parameters
    ----------
    name : str
        What it is.
    ok : bool
        Whether it is there and can be used.
    value : str
        What was found, or what is wrong.
    tried : tuple[str, ...]
        The places, in order, up to the one where it was found.
    remedy : str
        What to do; empty if all is well.
    required : bool
        Whether PyCUTLASS compiles nothing without it. Of nvcc and NVRTC it is enough to have one.
    """

    name: str
    ok: bool
    value: str
    tried: tuple[str, ...]
    remedy: str
    required: bool


def findings(memo: Memo = without_memo) -> list[Finding]:
    """Return everything that PyCUTLASS looks for, found or not."""
    cuda = ("CUDA_INSTALL_PATH", "CUDA_HOME")
    nvcc = _finding("nvcc", lambda: search_nvcc(memo), _describe_nvcc, GET_NVCC, cuda, required=False)
    nvrtc = _finding("NVRTC", lambda: search_nvrtc(memo), _describe_nvrtc, GET_NVRTC, cuda, required=not nvcc.ok)
    return [
        _finding("CUTLASS headers", search_cutlass, _describe_cutlass, GET_CUTLASS, ("CUTLASS_PATH",), required=True),
        nvcc,
        nvrtc,
        _finding("host compiler", search_host_compiler, _describe_host_compiler, GET_CXX, ("CXX",), required=True),
        safely(_driver, "GPU driver", _GET_DRIVER, required=False),
        *(
            safely(functools.partial(_tool, name, memo), name, _GET_TOOL, required=False)
            for name in ("nvdisasm", "cuobjdump")
        ),
    ]


def _finding(
    name: str,
    search: Callable[[], tuple[_Thing | None, list[str]]],
    describe: Callable[[_Thing], tuple[str, str]],
    remedy: str,
    variables: tuple[str, ...],
    required: bool,
) -> Finding:
    """Search, and describe what was found by a value and a note; a note takes the place of the remedy.

    Where one of `variables` says where to look, nothing that is installed elsewhere would help.
    """
    named = next(filter(config.text, variables), None)
    remedy = f"correct {named} or unset it" if named else remedy

    def look() -> Finding:
        found, tried = search()
        if found is None:
            return Finding(name, False, "not found", tuple(tried), remedy, required)
        value, note = describe(found)
        return Finding(name, True, value, tuple(tried), note, required)

    return safely(look, name, remedy, required=required)


def safely(look: Callable[[], Finding], name: str, remedy: str, *, required: bool) -> Finding:
    """Return what `look` finds, or else what stopped it: a diagnosis must not fail with what it is to diagnose."""
    try:
        return look()
    except PyCutlassError as error:
        return Finding(
            name, False, str(error).removesuffix(f" {CORRECT}"), (), remedy, required
        )  # which the remedy says
    except Exception as error:
        return Finding(name, False, f"{type(error).__name__}: {error}", (), remedy, required)


def _describe_cutlass(cutlass: Cutlass) -> tuple[str, str]:
    return f"{cutlass.version} in {cutlass.root} ({cutlass.found_via})", cutlass.note


def _describe_nvcc(toolkit: Toolkit) -> tuple[str, str]:
    release = cuda_release(run_quietly([str(toolkit.nvcc), "--version"]))
    return f"{release} in {toolkit.nvcc}, headers {toolkit.headers_version} ({toolkit.found_via})", toolkit.note


def _describe_nvrtc(toolkit: Toolkit) -> tuple[str, str]:
    return f"{toolkit.nvrtc}, headers {toolkit.headers_version} ({toolkit.found_via})", toolkit.note


def _describe_host_compiler(command: tuple[str, ...]) -> tuple[str, str]:
    return f"{shlex.join(command)}, {run_quietly([*command, '--version']).splitlines()[0]}", ""


def _driver() -> Finding:
    tried = ("libcuda.so.1",)
    problem = _core.driver_problem()
    if problem:
        return Finding("GPU driver", False, problem, tried, _GET_DRIVER, required=False)
    version = _core.driver_version()
    gpus = [_core.device_name(ordinal) for ordinal in range(_core.device_count())]
    value = f"CUDA {version // 1000}.{version % 1000 // 10}, GPUs: {', '.join(gpus) or 'none'}"
    return Finding("GPU driver", bool(gpus), value, tried, "" if gpus else _GET_DRIVER, required=False)


def _tool(name: str, memo: Memo) -> Finding:
    path = find_tool(name, memo)
    value = str(path) if path else "not found"
    return Finding(name, path is not None, value, ("PATH", "the toolkits"), "" if path else _GET_TOOL, required=False)
