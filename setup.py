"""Builds ``pycutlass._core`` from ``csrc/`` with the host compiler: no GPU, no nvcc, no CUDA library to link.

Everything else about the package stands in ``pyproject.toml``.
"""

from __future__ import annotations

import importlib.util
import os
import platform
import sys
from pathlib import Path

from pybind11.setup_helpers import ParallelCompile, Pybind11Extension, build_ext
from setuptools import setup

HERE = Path(__file__).resolve().parent


def cutlass_include() -> Path:
    """Return CUTLASS's include directory, in the order that is used at run time as well."""
    chosen = os.environ.get("CUTLASS_PATH")
    roots = [Path(chosen)] if chosen else [HERE / "third_party" / "cutlass", *installed("cutlass_library", "source")]
    includes = [root / "include" for root in roots]
    return first_with(("cutlass/cutlass.h",), includes, "CUTLASS_PATH", "nvidia-cutlass==4.2.0.0")


def cuda_include() -> Path:
    """Return CUDA's include directory: the build requirements' first, so that builds do not differ by machine."""
    toolkits = [os.environ.get(name) for name in ("CUDA_INSTALL_PATH", "CUDA_HOME")]
    roots = [*installed("nvidia.cu13"), *(Path(root) for root in toolkits if root), Path("/usr/local/cuda")]
    wheels = "nvidia-cuda-runtime, nvidia-cuda-crt and nvidia-cuda-cccl, ==13.0.*"
    # torch installs the runtime's wheel without those of its compiler headers: a directory has to hold all three.
    headers = ("cuda_runtime.h", "crt/host_defines.h", "cccl/cuda/std/utility")
    return first_with(headers, [root / "include" for root in roots], "CUDA_HOME", wheels)


def installed(package: str, below: str = "") -> list[Path]:
    """Return the directories of an installed package, without importing it.

    cuda.pathfinder looks only into the interpreter's own site-packages, which an isolated build does not use.
    """
    try:
        spec = importlib.util.find_spec(package)
    except ModuleNotFoundError:
        return []
    return [Path(location) / below for location in (spec.submodule_search_locations or ())] if spec else []


def first_with(headers: tuple[str, ...], directories: list[Path], variable: str, wheels: str) -> Path:
    """Return the first directory that holds all `headers`, or end the build saying how to get them."""
    for directory in directories:
        if all((directory / header).is_file() for header in headers):
            return directory
    looked = "\n  ".join(str(directory) for directory in directories)
    names = ", ".join(headers)
    sys.exit(f"pycutlass needs {names} to build. Looked in\n  {looked}\nSet {variable}, or pip install {wheels}.")


def system_includes() -> list[str]:
    """Return compiler flags for headers that are not ours, so that their warnings stay theirs."""
    cuda = cuda_include()
    return [flag for path in (cutlass_include(), cuda, cuda / "cccl") for flag in ("-isystem", str(path))]


def core() -> Pybind11Extension:
    """Return the extension module."""
    return Pybind11Extension(
        "pycutlass._core",
        sorted(str(path.relative_to(HERE)) for path in HERE.glob("csrc/*.cpp")),
        depends=["csrc/exports.map", *sorted(str(path.relative_to(HERE)) for path in HERE.glob("csrc/*.h"))],
        include_dirs=["csrc", "pycutlass/include"],
        cxx_std=17,
        define_macros=[("NDEBUG", None)],
        extra_compile_args=["-O2", "-fvisibility=hidden", "-fno-gnu-unique", *system_includes()],
        libraries=["dl"],
        # Some g++ link libstdc++ statically. Its symbols must not leave the extension: the loader would let libraries
        # that come later share its locale tables, and torch crashes on them.
        extra_link_args=["-Wl,--version-script=csrc/exports.map"],
    )


if sys.platform != "linux" or platform.machine() != "x86_64":
    sys.exit("pycutlass builds on Linux x86-64 only: its launch path and CUDA 13's wheels are for that platform.")

ParallelCompile("PYCUTLASS_JOBS").install()
setup(ext_modules=[core()], cmdclass={"build_ext": build_ext})
