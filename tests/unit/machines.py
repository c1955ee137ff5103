"""Made-up machines with two CUDA toolkits and two CUTLASSes, and what can change on one between two searches."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tool_trees import program, same_size_and_time, script

from pycutlass import config, toolkit
from pycutlass.cache import KernelCache
from pycutlass.compiler import choice, tools
from pycutlass.errors import ToolkitError
from pycutlass.toolkit import find

USUAL = Path("/usr/local/cuda")


class Machine:
    """A made-up machine: what is installed on it, and a cache."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.root, self.set, self.unset = root, monkeypatch.setenv, lambda name: monkeypatch.delenv(name, False)
        self.packages: dict[str, list[Path]] = {}
        self.cache = KernelCache(root / "cache")
        for name in ("CUTLASS_PATH", "CUDA_INSTALL_PATH", "CUDA_HOME", "CXX", "PYCUTLASS_BACKEND"):
            self.unset(name)
        for name in ("one", "two"):
            self.make_cutlass(root / f"cutlass {name}", name)
            self.make_toolkit(root / f"cuda {name}", name)
        (root / "bin").mkdir()
        (root / "first").mkdir()
        program(root / "bin" / "g++", "g++ one")  # a program, and no script: its version is remembered
        for name in ("as", "ld"):
            (root / "bin" / name).write_text("one")
            (root / "bin" / name).chmod(0o755)
        self.set("PATH", f"{root}/first:{root}/bin")
        self.set("HOME", str(root))
        self.packages = {"cutlass_library": [root / "package"], "nvidia.cu13": [root / "cuda one"]}
        (root / "package").mkdir()
        (root / "package" / "source").symlink_to(root / "cutlass one")
        monkeypatch.setattr(config, "package_directories", lambda name: self.packages.get(name, []))
        monkeypatch.setattr(find, "CHECKOUT", self.make_checkout())
        roots = find._all_cuda_roots
        monkeypatch.setattr(find, "_all_cuda_roots", lambda *of: (each for each in roots(*of) if each[0] != USUAL))

    def make_checkout(self) -> Path:
        place = self.root / "checkout"
        shutil.copytree(toolkit.own_include(), place / "pycutlass" / "include")
        return place

    @staticmethod
    def make_cutlass(root: Path, text: str) -> None:
        (root / "include" / "cutlass").mkdir(parents=True)
        (root / "include" / "cute").mkdir()
        (root / "include" / "cutlass" / "cutlass.h").write_text(f"// {text}\n")
        (root / "include" / "cutlass" / "version.h").write_text("#define CUTLASS_MAJOR 4\n")

    @staticmethod
    def make_toolkit(root: Path, text: str) -> None:
        (root / "bin").mkdir(parents=True)
        (root / "include" / "crt").mkdir(parents=True)
        (root / "include" / "cccl" / "cuda").mkdir(parents=True)
        for name in ("cuda_runtime.h", "crt/host.h", "cccl/cuda/atomic"):
            (root / "include" / name).write_text(f"// {text}\n")
        (root / "include" / "cuda_runtime_api.h").write_text("#define CUDART_VERSION 13000\n")
        program(root / "bin" / "nvcc", f"release 13.0, V13.0.{ord(text[0])}")
        script(root / "bin" / "ptxas", f"echo 'release 13.0, V13.0.{ord(text[0])}'")
        (root / "bin" / "nvcc.profile").write_text("")
        (root / "nvvm" / "libdevice").mkdir(parents=True)
        (root / "nvvm" / "libdevice" / "libdevice.10.bc").write_text("one")

    def searched(self, wanted: str | None = None) -> dict[str, str] | str:
        """Return what a search finds now, or why it finds nothing."""
        try:
            return dict(tools.find_tools(wanted, toolkit.without_memo).fields)
        except ToolkitError as error:
            return str(error)

    def recalled(self, wanted: str | None = None) -> dict[str, str] | None:
        """Return what is known from before, where it still holds."""
        recalled = choice.recall(wanted, self.cache)
        return dict(recalled.choice.fields) if recalled and recalled.holds() else None

    def learned(self) -> dict[str, str]:
        """Search, and return what is known from then on."""
        found = dict(tools.search(None, self.cache).fields)
        assert self.recalled() == found == self.searched()
        return found


def front(machine: Machine, name: str) -> None:
    """Put a script on PATH that runs the nvcc behind a link."""
    relink(machine.root / "present", machine.root / name)
    place = machine.root / "first/nvcc"
    if not place.exists():
        script(place, f"echo '#$ TOP={machine.root}/present'")


def launcher_among_compilers(machine: Machine) -> None:
    """Have g++ be a link to a launcher that lies below a compiler's name, as some package managers arrange it."""
    (machine.root / "gcc-14").mkdir()
    program(machine.root / "gcc-14" / "launcher", "g++ launched")
    relink(machine.root / "first/g++", machine.root / "gcc-14" / "launcher")


def relink(link: Path, target: Path) -> None:
    link.unlink(missing_ok=True)
    link.symlink_to(target)


CHANGES: dict[str, Callable[[Machine], Any]] = {
    "a header of CUTLASS, within its size and time": lambda m: same_size_and_time(
        m.root / "cutlass one/include/cutlass/cutlass.h", "// new\n"
    ),
    "a header of CUTLASS more": lambda m: (m.root / "cutlass one/include/cute/new.h").touch(),
    "a header of CUDA": lambda m: same_size_and_time(m.root / "cuda one/include/crt/host.h", "// new\n"),
    "a header of CUDA more": lambda m: (m.root / "cuda one/include/cuda_fp4.h").touch(),
    "a header of CUDA's C++ library": lambda m: (m.root / "cuda one/include/cccl/cuda/new").touch(),
    "a C++ library more": lambda m: shutil.copytree(
        m.root / "cuda one/include/cccl/cuda", m.root / "cuda one/include/cccl/nv"
    ),
    "a header of ours": lambda m: same_size_and_time(
        header := m.root / "checkout/pycutlass/include/pycutlass/host.h", "x" * header.stat().st_size
    ),
    "a header of ours more": lambda m: (m.root / "checkout/pycutlass/include/new.h").touch(),
    "the version of CUTLASS": lambda m: (m.root / "cutlass one/include/cutlass/version.h").write_text(
        "#define CUTLASS_MAJOR 5\n"
    ),
    "nvcc": lambda m: program(m.root / "cuda one/bin/nvcc", "V13.0.99"),
    "ptxas": lambda m: script(m.root / "cuda one/bin/ptxas", "echo V13.0.99"),
    "no ptxas": lambda m: (m.root / "cuda one/bin/ptxas").unlink(),
    "a compiler proper": lambda m: (
        (m.root / "cuda one/nvvm/bin").mkdir(parents=True),
        (m.root / "cuda one/nvvm/bin/cicc").touch(),
    ),
    "the library of device code": lambda m: same_size_and_time(
        m.root / "cuda one/nvvm/libdevice/libdevice.10.bc", "two"
    ),
    "a library of device code more": lambda m: (m.root / "cuda one/nvvm/libdevice/libdevice.11.bc").touch(),
    "a header that comes before one of the system": lambda m: (m.root / "cuda one/include/cstdint").touch(),
    "a header that comes before one of the system, in CUDA's C++ library": lambda m: (
        m.root / "cuda one/include/cccl/cstdint"
    ).touch(),
    "the flags of nvcc": lambda m: (m.root / "cuda one/bin/nvcc.profile").write_text("PTXAS_FLAGS += -O1\n"),
    "no flags of nvcc": lambda m: (m.root / "cuda one/bin/nvcc.profile").unlink(),
    "nvcc on PATH": lambda m: (m.root / "first/nvcc").symlink_to(m.root / "cuda two/bin/nvcc"),
    "a host compiler that comes before": lambda m: program(m.root / "first/g++", "g++ first"),
    "another host compiler": lambda m: program(m.root / "bin/g++", "g++ two"),
    "the assembler": lambda m: same_size_and_time(m.root / "bin/as", "two"),
    "the linker": lambda m: same_size_and_time(m.root / "bin/ld", "two"),
    "a linker that comes before": lambda m: script(m.root / "first/ld", "exit 1"),
    "no assembler": lambda m: (m.root / "bin/as").unlink(),
    "a host compiler that may not be run": lambda m: (m.root / "bin/g++").chmod(0o600),
    "no host compiler": lambda m: (m.root / "bin/g++").unlink(),
    "another package of CUTLASS": lambda m: relink(m.root / "package/source", m.root / "cutlass two"),
    "no package of CUTLASS": lambda m: m.packages.pop("cutlass_library"),
    "a package of CUDA elsewhere": lambda m: m.packages.update({"nvidia.cu13": [m.root / "cuda two"]}),
    "a source checkout": lambda m: (
        (m.root / "checkout/setup.py").touch(),
        (m.root / "checkout/third_party").mkdir(),
        (m.root / "checkout/third_party/cutlass").symlink_to(m.root / "cutlass two"),
    ),
    "CUTLASS_PATH": lambda m: m.set("CUTLASS_PATH", str(m.root / "cutlass two")),
    "a CUTLASS_PATH at home": lambda m: m.set("CUTLASS_PATH", "~/cutlass two"),
    "a CUTLASS_PATH that leads nowhere": lambda m: m.set("CUTLASS_PATH", "/nowhere"),
    "CUDA_HOME": lambda m: m.set("CUDA_HOME", str(m.root / "cuda two")),
    "CUDA_INSTALL_PATH": lambda m: m.set("CUDA_INSTALL_PATH", str(m.root / "cuda two")),
    "a CUDA_HOME that leads nowhere": lambda m: m.set("CUDA_HOME", "/nowhere"),
    "CXX": lambda m: m.set("CXX", "g++ -O2"),
    "a CXX that is nowhere": lambda m: m.set("CXX", "/nowhere/g++"),
    "PATH": lambda m: m.set("PATH", str(m.root / "first")),
    "PYCUTLASS_BACKEND": lambda m: m.set("PYCUTLASS_BACKEND", "nvrtc"),
}
