"""Kernels of CUTLASS's 2.x API on the host: their own C++, with the instructions of a GPU replaced by functions.

A few of CUTLASS's headers have such instructions in them: kernels are compiled against copies of those, changed there.
What they do then is what their C++ says, thread by thread: who loads, stores and multiplies what. That says nothing of
the compiler, of asynchronous copies that come late, or of speed.
"""

from __future__ import annotations

import functools
import itertools
import math
import os
import random
import re
import shutil
import subprocess
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import hopper
from hopper import replaced

from pycutlass import cutlass, toolkit
from pycutlass.compiler.tools import find_tools
from pycutlass.errors import PyCutlassError
from pycutlass.families.sm90_warp_groups import warp_groups
from pycutlass.library import TensorDescription
from pycutlass.operation import (
    Conv2dOperation,
    GemmOperationGrouped,
    GemmOperationUniversal,
    ReductionOperation,
)

HERE = Path(__file__).parent
INCLUDE = f'#include "{HERE / "hopper.h"}"\n'
SPELLED = {
    "f16": "cutlass::half_t",
    "bf16": "cutlass::bfloat16_t",
    "tf32": "cutlass::tfloat32_t",
    "f32": "float",
    "f64": "double",
    "s8": "int8_t",
    "u8": "uint8_t",
    "s32": "int32_t",
    "e4m3": "cutlass::float_e4m3_t",
    "e5m2": "cutlass::float_e5m2_t",
}
#: Instances of Mma whose operands the emulator knows; the others are of types that PyCUTLASS does not have.
KNOWN = re.compile(r"using ElementA\s*=\s*(half_t|bfloat16_t|tfloat32_t|double|int8_t)\b")
MEMORY = """
template <typename AccessType, int kBytes, CacheOperation::Kind = CacheOperation::Always>
struct global_load {
  global_load(AccessType& to, void const* from, bool wanted) { ::emulation::copy<kBytes>(&to, from, from, wanted); }
};
template <typename AccessType, int kBytes>
struct global_store {
  global_store(AccessType const& from, void* to, bool wanted) { ::emulation::copy<kBytes>(to, &from, to, wanted); }
};
template <int>
void shared_load(void*, uint32_t);
template <int>
void shared_store(uint32_t, void const*);

"""


def with_mma(text: str) -> str:
    """Let each Mma multiply where it says that it is not implemented for a host."""
    found = 0

    def multiply(match: re.Match[str]) -> str:
        nonlocal found
        if not KNOWN.search(match[0]) or "FragmentB const &b" not in match[0]:
            return match[0]
        found += 1
        call = "::emulation::mma<Shape, ElementA, ElementB>(d, a, b, c);"
        return re.sub(r"CUTLASS_NOT_IMPLEMENTED\(\);|assert\(0\);", call, match[0])

    changed = re.sub(r"struct Mma\s*<.*?\n\};", multiply, text, flags=re.S)
    assert found > 3
    return changed


def with_ldmatrix(text: str) -> str:
    """Let ldsm load, and shared_load with it."""

    def load(match: re.Match[str]) -> str:
        transposed = "false" if match[1] == "RowMajor" else "true"
        call = f"::emulation::ldmatrix<{transposed}, {match[2]}>(D, ptr);"
        return match[0].replace("CUTLASS_NOT_IMPLEMENTED();", call)

    text = replaced(text, r"void ldsm<layout::(\w+), (\d)>\(.*?\n}\n", load, 6)
    return replaced(text, r"template <typename AccessType>\s+struct shared_load_op<AccessType, (16|8)> .*?\n};", "", 2)


def with_memory(text: str) -> str:
    """Replace all accesses of global memory by copies."""
    return replaced(text, r"template <.*(?=\} // namespace arch)", lambda _: MEMORY)


def with_indices(text: str) -> str:
    """Let a thread know its place in the block."""
    for name, value in (
        ("canonical_lane_idx", "threadIdx.x % 32"),
        ("canonical_warp_idx_sync", "threadIdx.x / 32"),
        ("canonical_warp_idx", "threadIdx.x / 32"),
        ("canonical_warp_group_idx", "threadIdx.x / 128"),
    ):
        text = replaced(text, rf"(int {name}\(\) \{{.*?#else\s+)return 0;", rf"\1return {value};")
    return text


def with_shared_stores(text: str) -> str:
    """Let epilogues store 8 bytes to shared memory where they do so by an instruction."""
    store = "std::memcpy(reinterpret_cast<char*>(ptr) + offset_in_bytes, data, 8);"
    return replaced(text, r"uint32_t smem_addr = [^;]*;(.*?)asm volatile\(.*?\n\s*\);", rf"\1{store}", 4)


def with_strides(text: str) -> str:
    """Let iterators of strided dgrad advance by the C++ that is there beside their instructions."""
    return replaced(text, r"#if 0\n", "#if 1\n")


def with_conversions(text: str) -> str:
    """Let integers of 8 bits become floats by what their instructions do, bfloat16 as on GPUs that have it."""
    of, register = r'asm volatile\("', r'"=r"\(([^()]+)\) : "r"\(([^()]+)\), '
    one, two = rf'{of}prmt\.b32 %0,%1,%1,%2;\\n" : {register}', rf'{of}prmt\.b32 %0,%1,%2,%3;\\n" : {register}'
    text = replaced(text, rf'{one}"r"\(([^()]+)\)\);', r"\1 = ::emulation::prmt(\2, \2, \3);", 2)
    text = replaced(text, rf'{two}"n"\(([^()]+)\), "r"\(([^()]+)\)\);', r"\1 = ::emulation::prmt(\2, \3, \4);")
    numbers = ", ".join([r'"n"\(([^()]+)\)'] * 3)
    logic = rf'{of}lop3\.b32 %0, %1, %2, %3, %4;\\n" :\s+{register}{numbers}\);'
    text = replaced(text, logic, r"\1 = ::emulation::lop3(\2, \3, \4, \5);")
    guard = r"#if defined\(__CUDA_ARCH__\) && \(__CUDA_ARCH__ >= 800\)(?=\n/+\n/// [^\n]*<cutlass::bfloat16_t, N> <= )"
    return replaced(text, guard, "#if 1")


def with_flags(text: str) -> str:
    """Let threadblocks that run one after the other find the flags that they wait for."""
    text = replaced(text, r"int state = 0;.*?return state;", "return *ptr;")
    text = replaced(text, r"(void red_release\(int \*ptr, int val\)\s*\{).*?\n  \}", r"\1 *ptr += val; }")
    missing = '::emulation::fail("a threadblock waits for another, which runs after it");'
    text = replaced(text, r"while\((ld_acquire\(flag_ptr\) [!<]=? \w+)\) \{\}", rf"if (\1) {missing}", 2)
    return replaced(
        text, r"while\(atomicCAS\(flag_ptr, val, 0\) != val\) \{\}", f"if (*flag_ptr != val) {missing} *flag_ptr = 0;"
    )


#: Headers with instructions of a GPU in them, and what takes their place.
CHANGES: dict[str, Callable[[str], str]] = {
    "barrier.h": with_flags,
    "cutlass.h": with_indices,
    "numeric_conversion.h": with_conversions,
    "functional.h": lambda text: replaced(text, r"atomicAdd\(ptr, data\)", "*ptr += data", 2).replace(
        "#if defined(__CUDA_ARCH__)\n    *ptr += data;", "#if 1\n    *ptr += data;"
    ),
    "semaphore.h": lambda text: replaced(text, r"asm volatile \([^;]*;\\n[^;]*\);", ";", 4),
    "arch/memory.h": with_memory,
    "arch/memory_sm75.h": with_ldmatrix,
    "arch/mma_sm75.h": with_mma,
    "arch/mma_sm80.h": with_mma,
    "conv/threadblock/conv2d_dgrad_filter_tile_access_iterator_optimized.h": with_strides,
    "conv/threadblock/conv2d_dgrad_output_gradient_tile_access_iterator_optimized.h": with_strides,
    "epilogue/warp/tile_iterator_tensor_op_mixed.h": with_shared_stores,
    "gemm/warp/mma_tensor_op_fast_f32.h": lambda text: replaced(
        text, r"#if defined\(__CUDA_ARCH__\) && \(__CUDA_ARCH__ >= 800\)", "#if 1", 2
    ),
}


class Emulator:
    """Compiles kernels for the host, into `directory`, and runs them.

    What does not depend on the kernel is made in `common`, by `prepare`, and several emulators may share it.
    """

    def __init__(self, directory: Path, common: Path | None = None) -> None:
        self.directory, self._common = directory, common or directory
        includes = [Path(path) for path in find_tools("nvcc", toolkit.without_memo).host.includes]
        cutlass = next(path for path in includes if (path / "cutlass" / "cutlass.h").exists())
        changed = self._common / "include"
        if not changed.exists():
            _change_headers(cutlass, changed)
        # What precompiled headers hold is no garbage, and GCC takes long to find that out again and again.
        memory = ["--param=ggc-min-expand=100000", "--param=ggc-min-heapsize=8000000"]
        flags = ["-std=c++17", "-Og", "-w", "-fpermissive", *memory]
        self._compile = [*toolkit.find_host_compiler(), *flags]
        self._compile += [f"-I{changed if path == cutlass else path}" for path in includes]
        self._last: tuple[object, Path] | None = None

    def prepare(self) -> None:
        """Compile what all kernels share, for emulators to come."""
        assert self._threads and self._headers and self._headers_sm90

    @functools.cached_property
    def _threads(self) -> Path:
        path = self._common / "threads.o"
        if not path.exists():
            subprocess.run([*self._compile, "-c", str(HERE / "threads.cpp"), "-o", str(path)], check=True)
        return path

    @functools.cached_property
    def _headers(self) -> str:
        """What a program begins with: what kernels include takes longer than the rest, and is compiled once."""
        kernels = ("gemm_universal", "gemm_visitor", "function_ampere", "conv2d_visitor", "reduction_function")
        return self._compiled_once("kernels.h", *kernels, "gemm_grouped", "gemv")

    @functools.cached_property
    def _headers_sm90(self) -> str:
        """The same of Hopper-native kernels."""
        more = "#define CUTE_SM90_EXTENDED_MMA_SHAPES_ENABLED\n"  # as kernels of such tiles have it
        return self._compiled_once("kernels_sm90.h", "gemm_sm90", "gemm_grouped_sm90", "function_sm90", begin=more)

    def _compiled_once(self, name: str, *headers: str, begin: str = "") -> str:
        header = self._common / "headers" / name
        if header.exists():
            return _include(self._common / name)
        header.parent.mkdir(exist_ok=True)
        names = [*(f"pycutlass/{each}.h" for each in headers)]
        names += ["algorithm", "array", "memory", "random", "tuple", "vector"]
        header.write_text(begin + "".join(f"#include <{each}>\n" for each in names))
        return self.precompile(header)

    def precompile(self, header: Path, *flags: str) -> str:
        """Return what a program of the same flags begins with, to have the header compiled once for all of them."""
        include = self._common / header.name
        include.write_text(f'#include "{header}"\n')
        command = [*self._compile, *flags, "-x", "c++-header", str(include), "-o", f"{include}.gch"]
        subprocess.run(command, check=True)
        return _include(include)

    def build(self, text: str, *flags: str) -> Path:
        """Return a program that runs threads, made from `text`: where it is the last one's, that program."""
        if self._last is None or self._last[0] != (text, flags):
            self._last = None
            program, said = self.try_build(text, *flags)
            assert not said, said[-4000:]
            self._last = (text, flags), program
        return self._last[1]

    def try_build(self, text: str, *flags: str, name: str = "program") -> tuple[Path, str]:
        """Return a program of a name, and what the compiler said where it does not build."""
        source, program = self.directory / f"{name}.cpp", self.directory / name
        source.write_text(text)
        command = [*self._compile, *flags, str(source), str(self._threads), "-o", str(program)]
        built = subprocess.run(command, capture_output=True, text=True)
        return program, built.stderr if built.returncode else ""

    def run(self, operation: GemmOperationUniversal, seed: int = 0) -> tuple[bool, str]:
        """Return whether all elements are right, in several problems of which no two are alike, and what was said."""
        return self._run(operation, "gemm.h", _problems(operation, seed))

    def run_visitor(self, operation: GemmOperationUniversal, seed: int = 0) -> tuple[bool, str]:
        """The same for a kernel with the epilogue of ``extra_epilogue.py``."""
        return self._run(operation, "visitor.h", _problems(operation, seed))

    def run_function(self, operation: GemmOperationUniversal, seed: int = 0) -> tuple[bool, str]:
        """The same for a kernel with an epilogue function, whose C++ is taken to compute one element right."""
        mode = cutlass.gemm.Mode
        modes = [(mode.Gemm, 1), (mode.Batched, 3), (mode.Array, 2)]
        deeper = 1
        if operation.is_stream_k:  # enough along K for threadblocks of their own that add up the sums of a tile
            modes, deeper = [(mode.Gemm, 1), (mode.Batched, 2), (mode.Gemm, 3)], 6
        drawn = [(m, _fitting(operation, n), k, seed) for m, n, k, _, _, seed in _problems(operation, seed)]
        problems = (
            (m, n, deeper * k, each.value, count, seed)
            for number, (m, n, k, seed) in enumerate(drawn)
            for each, count in [modes[number % len(modes)]]
        )
        if operation.is_stream_k:
            return self._run(operation, "gemm_function.h", problems)
        step = operation.family.slice_step(operation.A, operation.B)
        slices = (
            (m, n, 3 * k, mode.Gemm.value, min(count, -(-3 * k // step)), seed)
            for (m, n, k, seed), count in zip(drawn, (2, 3, 4, 7), strict=True)
        )
        return self._run(operation, "gemm_function.h", itertools.chain(problems, slices))

    def run_gemv(self, operation: GemmOperationUniversal, seed: int = 0) -> tuple[bool, str]:
        """The same for a GEMV, with a functor or with a function."""
        if not operation.epilogue_functor.is_tree:
            return self._run(operation, "gemm.h", _problems(operation, seed))
        mode = cutlass.gemm.Mode
        problems = (
            (m, n, k, each.value, count, seed)
            for number, (m, n, k, _, _, seed) in enumerate(_problems(operation, seed))
            for each, count in [((mode.Gemm, 1), (mode.Batched, 3))[number % 2]]
        )
        return self._run(operation, "gemm_function.h", problems)

    def run_group(self, operation: GemmOperationGrouped, seed: int = 0) -> tuple[bool, str]:
        """The same for groups of problems of all sizes, of which some are empty."""
        drawn, (m, n, k) = random.Random(seed), operation.tile_description.threadblock_shape
        steps = _steps(operation.A, operation.B, operation.C)
        if operation.epilogue_functor.columns(2) == 1:  # of D with half as many columns
            steps = steps[0], 2 * steps[1], steps[2]
        n = _fitting(operation, 2 * n)
        groups = ((count, 2 * m, n, 3 * k, *steps, drawn.randint(0, 2**30)) for count in (1, 7, 40))
        return self._run(operation, "grouped_function.h", groups)

    def run_hopper(
        self, operation: GemmOperationUniversal | GemmOperationGrouped, seed: int = 0, headers: Path | None = None
    ) -> tuple[bool, str]:
        """The same for the epilogue of a Hopper-native kernel with an epilogue function, without all else of it.

        Headers of PyCUTLASS that are in a folder take the place of its own.
        """
        drawn, step_m, step_n = random.Random(seed), 1, operation.C.alignment
        if operation.epilogue_functor.columns(2) == 1:  # of D with half as many columns
            step_n *= 2
        if not _is_by_rows(operation, "C"):
            step_m, step_n = step_n, step_m
        m, n, _ = operation.tile_description.threadblock_shape
        sizes = ((2 * m, 2 * n), (m + 8, 2 * n + step_n), (1, step_n), (m // 2 + 3, 2 * n - step_n))
        count = 3 if isinstance(operation, GemmOperationGrouped) else 2
        problems = (
            (count, math.ceil(m / step_m) * step_m, _fitting(operation, n), step_n, drawn.randint(0, 2**30))
            for m, n in sizes
        )
        warps = 4 * warp_groups(operation.tile_description)
        flags = [] if headers is None else ["-iquote", str(headers)]
        return self._run(operation, "sm90_function.h", problems, f"#define EMULATED_WARPS {warps}\n", *flags)

    def run_reduction(self, operation: ReductionOperation, seed: int = 0) -> tuple[bool, str]:
        """The same for a reduction of partial sums with an epilogue function: M, N, partitions and a seed."""
        drawn, (rows, columns), step = random.Random(seed), operation.shape, operation.count
        sizes = [(rows, columns, 1), (2 * rows + 1, columns + step, 5), (1, step, 9), (3 * rows, 2 * columns, 4)]
        sizes += [(17 * rows + 3, 3 * columns - step, 2)]
        return self._run(operation, "reduction_function.h", ((*each, drawn.randint(0, 2**30)) for each in sizes))

    def run_convolution(self, operation: Conv2dOperation, seed: int = 0) -> tuple[bool, str]:
        """Return whether all elements are right, in several problems drawn at random, and what was said."""
        return self._run(operation, "conv2d.h", _convolutions(operation, seed))

    def _run(
        self, operation: Any, header: str, problems: Iterable[tuple[int, ...]], further: str = "", *flags: str
    ) -> tuple[bool, str]:
        text = re.sub(r"PYCUTLASS_KERNEL\(.*\)", "", operation.emit())
        operands = {name: getattr(operation, name) for name in "ABCD" if hasattr(operation, name)}
        operands.setdefault("D", operands["C"])
        macros = "".join(
            f"#define EMULATED_{name} {SPELLED[operand.type.short]}, {str(_is_by_rows(operation, name)).lower()}\n"
            f"#define ALIGNMENT_{name} {operand.alignment}\n"
            for name, operand in operands.items()
        )
        tile = operation.tile_description.threadblock_shape if hasattr(operation, "tile_description") else (1, 1, 1)
        macros += f"#define EMULATED_TILE_M {tile[0]}\n#define EMULATED_TILE_N {tile[1]}\n"
        macros += f"#define EMULATED_FUNCTION {int('struct Function ' in text)}\n"
        macros += f"#define EMULATED_EXTRA {int('struct ExtraEpilogue ' in text)}\n"
        macros += f"#define EMULATED_RELU {int('ReLu' in text)}\n"
        macros += f"#define EMULATED_GROUP {int(isinstance(operation, GemmOperationGrouped))}\n{further}"
        begin = "" if flags else self._headers_sm90 if operation.is_sm90 else self._headers  # flags change headers
        program = self.build(f'{begin}{text}{macros}#include "{HERE / header}"\n', *flags)
        words = [str(number) for problem in problems for number in problem]
        ended = subprocess.run([str(program), *words], capture_output=True, text=True, timeout=600)
        return ended.returncode == 0, ended.stdout + ended.stderr


def _change_headers(cutlass: Path, changed: Path) -> None:
    """Make a folder of CUTLASS's headers with those changed that have instructions of a GPU."""
    # Of links, so that what is included from beside a header is found here as well.
    shutil.copytree(cutlass, changed, copy_function=os.symlink)
    changes = {f"cutlass/{name}": change for name, change in CHANGES.items()} | hopper.CHANGES
    for name, change in changes.items():
        path = changed / name
        text = change(path.read_text()).replace("#pragma once\n", "#pragma once\n" + INCLUDE, 1)
        path.unlink()
        path.write_text(text)


def _include(path: Path) -> str:
    return f'#include "{path}"\n'


def _is_by_rows(operation: Any, name: str) -> bool:
    """Return whether rows lie in one piece, as C++ that is run here has them: those of a convolution are pixels.

    Hopper-native kernels may compute the transposed problem, of which their epilogue is.
    """
    operand: TensorDescription = getattr(operation, name, operation.C)
    if name in "CD" and operation.is_sm90 and getattr(operation, "swap_ab", False):
        return not operand.is_row_major
    return operand.order.rank == 4 or operand.is_row_major


def _convolutions(operation: Conv2dOperation, seed: int, count: int = 6) -> Iterator[tuple[int, ...]]:
    """Yield N, H, W, C, K, R, S, P, Q, padding, strides, dilation, mode, alpha, beta and a seed of supported ones."""
    drawn = random.Random(seed)
    channels = {"C": [16, 32, 48, 64, 72], "K": [16, 32, 48, 64, 72]}
    if operation.iterator_algorithm is cutlass.conv.IteratorAlgorithm.fixed_channels:
        channels["C"] = [operation.A.alignment]
    while count:
        sizes = {"N": drawn.randint(1, 3), "H": drawn.randint(1, 9), "W": drawn.randint(1, 9)}
        sizes |= {name: drawn.choice(channels[name]) for name in "CK"} | {name: drawn.randint(1, 4) for name in "RS"}
        sizes |= {f"pad_{axis}": drawn.randint(0, 2) for axis in "hw"}
        sizes |= {f"stride_{axis}": drawn.randint(1, 3) for axis in "hw"}
        sizes |= {f"dilation_{axis}": drawn.randint(1, 2) for axis in "hw"}
        try:
            problem = cutlass.conv.Conv2dProblemSize(**sizes, mode=drawn.choice(list(cutlass.conv.Mode)))
        except PyCutlassError:  # a filter that is larger than the image
            continue
        if not operation.supports(problem):
            continue
        count -= 1
        names = "NHWCKRSPQ", ("pad_h", "pad_w", "stride_h", "stride_w", "dilation_h", "dilation_w")
        numbers = (getattr(problem, name) for name in itertools.chain(*names))
        yield *numbers, problem.mode.value, *drawn.choice(((1, 0), (2, -1))), drawn.randint(0, 2**30)


def _problems(operation: GemmOperationUniversal, seed: int) -> Iterator[tuple[int, ...]]:
    """Yield M, N, K, alpha, beta and a seed: whole tiles, parts of tiles, a single line, and anything."""
    drawn = random.Random(seed)
    m, n, k = operation.tile_description.threadblock_shape
    steps = _steps(operation.A, operation.B, operation.C)
    sizes = [
        (m, n, 2 * k),
        (m + m // 2 + 3, n // 2 + 5, 3 * k + k // 2 + 1),
        (1, n + 7, k // 3),
        tuple(drawn.randint(1, 3 * extent // 2) for extent in (m, n, 2 * k)),
    ]
    for size, scalars in zip(sizes, ((1, 0), (1, 1), (2, -1), (1, 0)), strict=True):
        rounded = (math.ceil(extent / step) * step for extent, step in zip(size, steps, strict=True))
        yield *rounded, *scalars, drawn.randint(0, 2**30)


def _fitting(operation: Any, n: int) -> int:
    """Return N, or less where `top_k` selects from rows, which must fit a tile."""
    selects = any(port.selected for port in operation.epilogue_functor.outputs)
    return min(n, int(operation.tile_description.threadblock_shape[1])) if selects else n


def _steps(A: TensorDescription, B: TensorDescription, C: TensorDescription) -> tuple[int, int, int]:
    """Return what M, N and K are multiples of."""
    m = [operand.alignment for operand in (A, C) if not operand.is_row_major]
    n = [operand.alignment for operand in (B, C) if operand.is_row_major]
    k = [A.alignment] * A.is_row_major + [B.alignment] * (not B.is_row_major)
    return math.lcm(*m), math.lcm(*n), math.lcm(*k)
