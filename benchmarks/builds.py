"""What the benchmarks compile: operations, the launch loop in C, and the GEMMs that one writes without PyCUTLASS."""

from __future__ import annotations

import ctypes
import subprocess
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from benchmarks.common import BenchmarkError, Report
from pycutlass import (
    GemmOperationGrouped,
    GemmOperationUniversal,
    PyCutlassError,
    ReductionOperation,
    compiler,
    device,
    toolkit,
)
from pycutlass.errors import ToolkitError
from pycutlass.families.ampere.family import shape_text

if TYPE_CHECKING:
    import torch

    from benchmarks.timing import Loop
    from pycutlass import GemmArguments

__all__ = [
    "GemmOperation",
    "LaunchFloor",
    "NativeGemm",
    "NativeGrouped",
    "NativeProblem",
    "NativeUniversal",
    "build_native",
    "build_same",
    "compile_all",
    "definitions",
    "native_command",
    "same_command",
]

Triple = tuple[int, int, int]
GemmOperation = GemmOperationUniversal | GemmOperationGrouped

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
            *(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_long),
        ]

    def launch(
        self, function: int, dims: tuple[int, ...], shared_bytes: int, pdl: bool, params: int, stream: int, calls: int
    ) -> None:
        """Launch `function` so many times; `dims` are grid, block and cluster, three numbers each."""
        status = self._launch(function, (ctypes.c_uint * 9)(*dims), shared_bytes, pdl, params, stream, calls)
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
        how = (call.shared_bytes, call.launches_with_pdl, call.params_address)

        def loop(calls: int) -> None:
            self.launch(call.function, dims, *how, call.current_stream.handle, calls)

        return loop


class _NativeLibrary:
    """A GEMM of native/, built: all have the same three functions, and differ in what ``gemm_create`` is given."""

    _CREATE: ClassVar[tuple[Any, ...]] = ()

    def __init__(self, library: Path) -> None:
        self._library = ctypes.CDLL(str(library))
        self._library.gemm_create.restype = ctypes.c_void_p
        self._library.gemm_create.argtypes = self._CREATE
        self._library.gemm_launch.restype = ctypes.c_int
        self._library.gemm_launch.argtypes = [ctypes.c_void_p, ctypes.c_void_p]
        self._library.gemm_destroy.restype = None
        self._library.gemm_destroy.argtypes = [ctypes.c_void_p]

    def _prepare(self, what: object, stream: int, *arguments: Any, owners: object = None) -> Callable[[], None]:
        """Return a function that launches `what`, which `arguments` of ``gemm_create`` describe, and keeps `owners`."""
        handle = self._library.gemm_create(*arguments)
        if not handle:
            raise BenchmarkError(f"CUTLASS refuses {what} for {self._library._name}")
        launch = self._library.gemm_launch

        def call() -> None:
            status = launch(handle, stream)
            if status != 0:
                raise BenchmarkError(f"the GEMM in C++ failed: cutlass::Status {status}")

        weakref.finalize(call, _destroy, self._library, handle, owners)
        return call


class NativeGemm(_NativeLibrary):
    """A GEMM that was built by `build_native`."""

    _CREATE = (*[ctypes.c_int] * 3, *[ctypes.c_void_p] * 3, *[ctypes.c_int] * 2)

    def prepare(self, size: Triple, pointers: Triple, stream: int, schedule: tuple[int, int]) -> Callable[[], None]:
        """Return a function that launches A x B into D, given by their `pointers`.

        `schedule` is the swizzle and the raster order of the Hopper kernel.
        """
        return self._prepare(f"the problem {size}", stream, *size, *pointers, *schedule)


class NativeProblem(ctypes.Structure):
    """What native/gemm_universal_sm80.cu calls Problem: the last three are those of A, B, C and D."""

    _fields_ = (
        *((name, ctypes.c_int) for name in ("mode", "m", "n", "k", "count")),
        *((name, ctypes.c_double) for name in ("alpha", "beta")),
        ("pointers", ctypes.c_void_p * 4),
        *((name, ctypes.c_int64 * 4) for name in ("batch_strides", "lds")),
    )


class NativeUniversal(_NativeLibrary):
    """The GEMM that `build_same` made of a `GemmOperationUniversal`."""

    _CREATE = (ctypes.POINTER(NativeProblem),)

    def prepare(self, problem: NativeProblem, owners: object, stream: int) -> Callable[[], None]:
        """Return a function that launches `problem`, whose memory belongs to `owners`."""
        what = f"the problem {(problem.m, problem.n, problem.k)}, mode {problem.mode}"
        return self._prepare(what, stream, ctypes.byref(problem), owners=owners)


class NativeGrouped(_NativeLibrary):
    """The group that `build_same` made of a `GemmOperationGrouped`."""

    _CREATE = (ctypes.c_int, *[ctypes.c_void_p] * 4)

    def prepare(
        self, sizes: torch.Tensor, pointers: torch.Tensor, lds: torch.Tensor, owners: object, stream: int
    ) -> Callable[[], None]:
        """Return a function that launches all problems, whose memory belongs to `owners`.

        `sizes` is an int32 tensor of (problems, 3) on the host; `pointers` and `lds` are int64 tensors on the GPU with
        a row for each of A, B, C and D.
        """
        tables = (sizes, sizes.to(pointers.device), pointers, lds)
        addresses = [table.data_ptr() for table in tables]
        return self._prepare("the group", stream, len(sizes), *addresses, owners=(tables, owners))


def native_command(family: str, output: Path) -> list[str]:
    """Return the one nvcc command that makes device and host side of a GEMM of native/."""
    return _shared_command(_SOURCES[family], native_target(family), output, {})


def same_command(operation: GemmOperation, output: Path, target: str | None = None) -> list[str]:
    """Return the nvcc command that makes the kernel of `operation`, written with CUTLASS's device-level API."""
    family = "grouped" if isinstance(operation, GemmOperationGrouped) else "universal"
    source = _HERE / "native" / f"gemm_{family}_sm80.cu"
    return _shared_command(source, target or native_target("ampere"), output, definitions(operation))


def definitions(operation: GemmOperation) -> dict[str, str]:
    """Return the macros of native/'s universal and grouped GEMM that make them the kernel of `operation`."""
    single = operation.single if isinstance(operation, GemmOperationGrouped) else operation
    tile, math = single.tile_description, single.tile_description.math_instruction
    operands = {"A": single.A, "B": single.B, "C": single.C}
    return {
        **{f"ELEMENT_{name}": operand.type.cpp for name, operand in operands.items()},
        **{f"LAYOUT_{name}": operand.order.cpp for name, operand in operands.items()},
        **{f"ALIGNMENT_{name}": str(operands[name].alignment) for name in "AB"},
        "ACCUMULATOR": math.accumulator.cpp,
        "OP_CLASS": f"cutlass::arch::OpClass{math.opcode_class.name}",
        "TILE": shape_text(tile.threadblock_shape),
        "WARP": shape_text(tile.warp_shape),
        "INSTRUCTION": shape_text(math.instruction_shape or (1, 1, 1)),
        "EPILOGUE": single.epilogue_functor.emit(),
        "SWIZZLE": single.swizzling_functor.tag(),
        "STAGES": str(tile.stages),
        "MATH": math.operator_cpp,
    }


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


def build_same(operation: GemmOperation, output: Path) -> Path:
    """Build the kernel of `operation` as one writes it in C++ into `output`, and return that."""
    _run(same_command(operation, output))
    return output


def compile_all(report: Report, operations: Sequence[GemmOperation | ReductionOperation]) -> None:
    """Compile all at once; where one cannot be compiled, say which, and have the others."""
    try:
        compiler.add_module(operations)
    except PyCutlassError:
        for name in dict.fromkeys(operation.procedural_name() for operation in operations):
            with report.part(f"compile {name}"):
                compiler.add_module([operation for operation in operations if operation.procedural_name() == name])


def _shared_command(source: Path, target: str, output: Path, macros: Mapping[str, str]) -> list[str]:
    found = toolkit.find_nvcc()
    includes = [f"-I{path}" for path in (*toolkit.find_cutlass().includes, *found.includes)]
    return [
        *(str(found.nvcc), "-shared", "-Xcompiler=-fPIC", "-std=c++17", "-DNDEBUG", "--expt-relaxed-constexpr"),
        "-Xlinker=--exclude-libs=ALL",  # as in setup.py: a static libstdc++ must stay inside
        *(f"-gencode=arch=compute_{target},code=sm_{target}", "-diag-suppress=177"),
        # nvcc takes a comma for the end of a definition.
        *(f"-D{name}={value}".replace(",", r"\,") for name, value in macros.items()),
        *(*includes, f"-L{found.root / 'lib'}", str(source), "-o", str(output)),
    ]


def _destroy(library: ctypes.CDLL, handle: int, owners: object) -> None:
    """End a GEMM; `owners` are held until then."""
    library.gemm_destroy(handle)


def _cuda_include() -> Path:
    try:
        return toolkit.find_nvcc().include
    except ToolkitError:
        return toolkit.find_nvrtc().include


def _run(command: list[str]) -> None:
    answer = subprocess.run(command, capture_output=True, text=True, check=False)
    if answer.returncode != 0:
        raise BenchmarkError(f"{' '.join(command)}\nended with {answer.returncode}:\n{answer.stdout}{answer.stderr}")
