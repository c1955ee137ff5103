"""What the benchmarks compile for themselves: the launch loop in C, and the GEMMs that one writes without PyCUTLASS."""

from __future__ import annotations

import ctypes
import subprocess
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.common import BenchmarkError
from pycutlass import device, toolkit
from pycutlass.errors import ToolkitError

if TYPE_CHECKING:
    from benchmarks.timing import Loop
    from pycutlass import GemmArguments

__all__ = ["LaunchFloor", "NativeGemm", "build_native", "native_command"]

Triple = tuple[int, int, int]

_HERE = Path(__file__).resolve().parent
_SOURCES = {"ampere": _HERE / "native" / "gemm_sm80.cu", "hopper": _HERE / "native" / "gemm_sm90.cu"}


class LaunchFloor:
    """cuLaunchKernelEx in a C loop: less host time than this no launch can take.

    Parameters
    ----------
    folder : Path
        Where the compiled helper is put.
    """

    def __init__(self, folder: Path) -> None:
        library = folder / "launch_floor.so"
        include = _cuda_include()
        compiler = toolkit.find_host_compiler()
        files = [str(_HERE / "launch_floor.c"), "-o", str(library), "-ldl"]
        _run([*compiler, "-O2", "-shared", "-fPIC", "-Wl,--exclude-libs,ALL", f"-I{include}", *files])
        self._launch = ctypes.CDLL(str(library)).launch_floor
        self._launch.restype = ctypes.c_int
        self._launch.argtypes = [
            *(ctypes.c_void_p, ctypes.POINTER(ctypes.c_uint), ctypes.c_uint),
            *(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_long),
        ]

    def launch(
        self, function: int, dims: tuple[int, ...], shared_bytes: int, params: int, stream: int, calls: int
    ) -> None:
        """Launch `function` so many times; `dims` are grid, block and cluster, three numbers each."""
        status = self._launch(function, (ctypes.c_uint * 9)(*dims), shared_bytes, params, stream, calls)
        if status != 0:
            reason = "there is no libcuda.so.1" if status == -1 else f"CUresult {status}"
            raise BenchmarkError(f"the launch loop in C failed: {reason}")

    def loop(self, arguments: GemmArguments) -> Loop:
        """Return a loop of launches with the same kernel, parameters and stream as ``operation.run(arguments)``."""
        # The parameters that the kernel gets are nobody's business but the launch's, and this comparison's.
        execution: Any = arguments._execution
        call = execution.call
        cluster = arguments.operation.tile_description.cluster_shape or (1, 1, 1)
        dims = (*call.grid, *call.block, *cluster)

        def loop(calls: int) -> None:
            self.launch(call.function, dims, call.shared_bytes, call.params_address, call.current_stream, calls)

        return loop


class NativeGemm:
    """A GEMM of native/, built by `build_native`."""

    def __init__(self, library: Path) -> None:
        self._library = ctypes.CDLL(str(library))
        self._library.gemm_create.restype = ctypes.c_void_p
        self._library.gemm_create.argtypes = [*[ctypes.c_int] * 3, *[ctypes.c_void_p] * 3, *[ctypes.c_int] * 2]
        self._library.gemm_launch.restype = ctypes.c_int
        self._library.gemm_launch.argtypes = [ctypes.c_void_p, ctypes.c_void_p]
        self._library.gemm_destroy.restype = None
        self._library.gemm_destroy.argtypes = [ctypes.c_void_p]

    def prepare(self, size: Triple, pointers: Triple, stream: int, schedule: tuple[int, int]) -> Callable[[], None]:
        """Return a function that launches A x B into D, given by their `pointers`.

        `schedule` is the swizzle and the raster order of the Hopper kernel.
        """
        handle = self._library.gemm_create(*size, *pointers, *schedule)
        if not handle:
            raise BenchmarkError(f"CUTLASS refuses the problem {size} for {self._library._name}")
        launch = self._library.gemm_launch

        def call() -> None:
            status = launch(handle, stream)
            if status != 0:
                raise BenchmarkError(f"the GEMM in C++ failed: cutlass::Status {status}")

        weakref.finalize(call, self._library.gemm_destroy, handle)
        return call


def native_command(family: str, output: Path) -> list[str]:
    """Return the one nvcc command that makes device and host side of a GEMM of native/."""
    found = toolkit.find_nvcc()
    target = native_target(family)
    includes = [f"-I{path}" for path in (*toolkit.find_cutlass().includes, *found.includes)]
    return [
        *(str(found.nvcc), "-shared", "-Xcompiler=-fPIC", "-std=c++17", "-DNDEBUG", "--expt-relaxed-constexpr"),
        "-Xlinker=--exclude-libs=ALL",  # as in setup.py: a static libstdc++ must stay inside
        *(f"-gencode=arch=compute_{target},code=sm_{target}", "-diag-suppress=177"),
        *(*includes, f"-L{found.root / 'lib'}", str(_SOURCES[family]), "-o", str(output)),
    ]


def native_target(family: str) -> str:
    """Return what both sides of a comparison are built for: ``90a``, or the present GPU, or without one ``80``."""
    present = device.current_target()
    return "90a" if family == "hopper" else (present or "sm_80").removeprefix("sm_")


def build_native(family: str, output: Path) -> float:
    """Build the GEMM of `family` ("ampere" or "hopper") into `output`, and return the seconds it took."""
    command = native_command(family, output)
    start = time.perf_counter()
    _run(command)
    return time.perf_counter() - start


def _cuda_include() -> Path:
    try:
        return toolkit.find_nvcc().include
    except ToolkitError:
        return toolkit.find_nvrtc().include


def _run(command: list[str]) -> None:
    answer = subprocess.run(command, capture_output=True, text=True, check=False)
    if answer.returncode != 0:
        raise BenchmarkError(f"{' '.join(command)}\nended with {answer.returncode}:\n{answer.stdout}{answer.stderr}")
