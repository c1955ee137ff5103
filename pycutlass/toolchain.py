"""The compilers: nvcc and NVRTC for the device side of a kernel, g++ for its host side, all of one shape.

``signature()`` says who it is, ``flags(target)`` what decides its product, ``command(...)`` how it is run and
``compile(...)`` runs it. Each runs in processes of their own, in a private directory that is gone afterwards.
"""

from __future__ import annotations

import hashlib
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from pycutlass import cubin
from pycutlass.errors import CompileError, ToolkitError
from pycutlass.source import KernelSource
from pycutlass.toolkit import Memo, Toolkit, cuda_release, file_fingerprint, read_bytes, run_quietly, without_memo

__all__ = ["Compiler", "HostCompiler", "Nvcc", "Nvrtc", "Processes", "Product", "StoppedError", "reproduce"]

_GIB = 1 << 30
_NVRTC_MAIN = Path(__file__).resolve().with_name("nvrtc_main.py")


@dataclass(frozen=True)
class Product:
    """What a compiler made: the bytes, what it printed, and the seconds it took."""

    binary: bytes
    log: str
    seconds: float


class Compiler(ABC):
    """One compiler with its include directories.

    Parameters
    ----------
    includes : tuple[Path, ...]
        Include directories, in order. They are not part of the flags: what lies in them has digests of its own.
    memo : Memo
        Remembers the version, so that no process is started for it twice.
    """

    name: ClassVar[str]
    memory: ClassVar[int]  # bytes that one run may take
    output: ClassVar[str]  # file name of the product

    def __init__(self, includes: tuple[Path, ...], memo: Memo = without_memo) -> None:
        self.includes = includes
        self._memo = memo

    @abstractmethod
    def signature(self) -> dict[str, str]:
        """Return which compiler this is, in which version, as fields of a cache key."""

    @abstractmethod
    def flags(self, target: str) -> tuple[str, ...]:
        """Return what decides the product beside the source and the headers."""

    @abstractmethod
    def command(self, source: Path, output: Path, target: str) -> list[str]:
        """Return the command that compiles the file `source` into the file `output`."""

    def compile(self, source: KernelSource, target: str, processes: Processes, group: str = "") -> Product:
        """Compile `source` for `target`.

        Raises
        ------
        CompileError
            If the compiler refuses it; the error has the log, the source and a command to reproduce it.
        ToolkitError
            If the compiler cannot be started.
        StoppedError
            If `processes` were stopped, all or those of `group`.
        """
        command = self.command(Path("kernel.cu"), Path(self.output), target)
        with tempfile.TemporaryDirectory(prefix="pycutlass-", ignore_cleanup_errors=True) as name:
            folder = Path(name)
            (folder / "kernel.cu").write_text(source.text, encoding="utf-8")
            started = time.perf_counter()
            status, log = processes.run(command, folder, memory=self.memory, group=group)
            seconds = time.perf_counter() - started
            if status == 0 and (folder / self.output).is_file():
                return Product(self._collect(folder), log, seconds)
        raise CompileError(
            f"{self.name} {_how_it_ended(status)} on kernel {source.name} for {target}.",
            log=log,
            source=source.text,
            command=reproduce(command, source.text),
        )

    def _collect(self, folder: Path) -> bytes:
        return (folder / self.output).read_bytes()

    def _include_flags(self) -> list[str]:
        return [f"-I{path}" for path in self.includes]


class Nvcc(Compiler):
    """The device side by nvcc, which must be part of `toolkit`; `host` is the command of the host compiler."""

    name = "nvcc"
    memory = 4 * _GIB
    output = "kernel.cubin"

    def __init__(
        self, toolkit: Toolkit, includes: tuple[Path, ...], host: tuple[str, ...], memo: Memo = without_memo
    ) -> None:
        super().__init__(includes, memo)
        if toolkit.nvcc is None:
            raise ToolkitError(f"the toolkit in {toolkit.root} has no bin/nvcc")
        self._program = toolkit.nvcc
        # nvcc preprocesses with the host compiler. It takes one program, so that of `ccache g++` is g++.
        self._host = host[-1] if len(host) == 1 else shutil.which(host[-1]) or host[0]

    def signature(self) -> dict[str, str]:
        """Return the release of nvcc; the compiler proper and the assembler, other packages' wheels, count as well."""
        root = self._program.resolve().parents[1]
        assembler = root / "bin" / "ptxas"
        parts = [self._program, *filter(Path.is_file, (assembler, root / "nvvm" / "bin" / "cicc"))]

        def ask() -> str:
            asked = [part for part in parts if part in (self._program, assembler)]
            return ", ".join(f"{part.name} {cuda_release(run_quietly([str(part), '--version']))}" for part in asked)

        fingerprint = " ".join(map(file_fingerprint, parts))
        return {"device_compiler": self._memo("compiler version", str(self._program), fingerprint, ask)}

    def flags(self, target: str) -> tuple[str, ...]:
        """Return what decides the cubin. Without NDEBUG, ptxas of CUDA 13.0 serialises Hopper's wgmma."""
        return (
            *("-cubin", "-std=c++17", "-DNDEBUG", f"-arch={target}", "--expt-relaxed-constexpr"),
            *("-diag-suppress=177", "-Xptxas=-v"),
        )

    def command(self, source: Path, output: Path, target: str) -> list[str]:
        """Return the command that compiles the file `source` into the cubin `output`."""
        host = [f"-ccbin={self._host}"]
        return [str(self._program), *self.flags(target), *host, *self._include_flags(), str(source), "-o", str(output)]


class Nvrtc(Compiler):
    """The device side by NVRTC, which must be part of `toolkit`."""

    name = "nvrtc"
    memory = 4 * _GIB
    output = "kernel.cubin"

    def __init__(self, toolkit: Toolkit, includes: tuple[Path, ...], memo: Memo = without_memo) -> None:
        super().__init__(includes, memo)
        if toolkit.nvrtc is None:
            raise ToolkitError(f"the toolkit in {toolkit.root} has no libnvrtc")
        self._library = toolkit.nvrtc

    def signature(self) -> dict[str, str]:
        """Return the release of NVRTC, which its PTX tells, and a digest of our own steps before and after it."""

        def ask() -> str:
            trial = KernelSource("trial", 'extern "C" __global__ void trial() {}\n', 80, native=False)
            with tempfile.TemporaryDirectory(prefix="pycutlass-") as name:
                folder = Path(name)
                (folder / "kernel.cu").write_text(trial.text)
                run_quietly(self.command(folder / "kernel.cu", folder / self.output, "sm_80"))
                return f"nvrtc {cuda_release((folder / 'kernel.ptx').read_text())}"

        fingerprint = file_fingerprint(self._library)
        steps = [read_bytes(path) for path in (_NVRTC_MAIN, cubin.__file__)]
        return {
            "device_compiler": self._memo("compiler version", str(self._library), fingerprint, ask),
            "nvrtc_steps": hashlib.sha256(b"\0".join(steps)).hexdigest(),
        }

    def flags(self, target: str) -> tuple[str, ...]:
        """Return what decides the cubin. CUTLASS does not annotate every function that device code calls."""
        return (
            *("-std=c++17", "-DNDEBUG", f"-arch={target}", "-default-device"),
            *("-diag-suppress=177", "--ptxas-options=-v", "--no-cache"),
        )

    def command(self, source: Path, output: Path, target: str) -> list[str]:
        """Return the command that compiles the file `source` into the cubin `output`, and into PTX beside it."""
        files = [str(self._library), str(source), str(output)]
        return [sys.executable, "-I", str(_NVRTC_MAIN), *files, *self.flags(target), *self._include_flags()]

    def _collect(self, folder: Path) -> bytes:
        ptx = (folder / "kernel.ptx").read_text(encoding="utf-8", errors="replace")
        return cubin.drop_symbols(super()._collect(folder), cubin.unused_variables(ptx))


class HostCompiler(Compiler):
    """The host side by plain g++, into a shared object that needs no CUDA library; `program` is its command."""

    name = "host compiler"
    memory = _GIB
    output = "kernel.so"

    def __init__(self, program: tuple[str, ...], includes: tuple[Path, ...], memo: Memo = without_memo) -> None:
        super().__init__(includes, memo)
        self._program = program

    def signature(self) -> dict[str, str]:
        """Return the first line that the compiler says about its version."""
        files = [Path(found) for word in self._program if (found := shutil.which(word))]
        fingerprint = " ".join(map(file_fingerprint, files))

        def ask() -> str:
            return run_quietly([*self._program, "--version"]).splitlines()[0]

        return {"host_compiler": self._memo("compiler version", shlex.join(self._program), fingerprint, ask)}

    def flags(self, target: str) -> tuple[str, ...]:
        """Return what decides the shared object; the target does not.

        Unique symbols would keep the library loaded for ever, and those of a statically linked libstdc++ would reach
        into other libraries. CUTLASS's kernels are not quite C++ to g++.
        """
        return (
            *("-std=c++17", "-DNDEBUG", "-O1", "-shared", "-fPIC", "-fvisibility=hidden", "-fno-gnu-unique"),
            *("-Wl,--exclude-libs,ALL", "-fpermissive", "-w"),
        )

    def command(self, source: Path, output: Path, target: str) -> list[str]:
        """Return the command that compiles the file `source` into the shared object `output`."""
        files = ["-x", "c++", str(source), "-o", str(output)]
        return [*self._program, *self.flags(target), *self._include_flags(), *files]


class StoppedError(Exception):
    """The compiler was stopped from outside: another failed, or the user interrupted. Never leaves `add_module`."""


class Processes:
    """The compilers that run now: at most so many, in at most so much memory, and all can be stopped.

    Parameters
    ----------
    jobs : int
        Most processes at once.
    memory : int
        Bytes that they may take together; one may always run.
    """

    def __init__(self, jobs: int, memory: int) -> None:
        self.jobs = jobs
        self._memory = memory
        self._changed = threading.Condition()
        self._running: dict[subprocess.Popen[bytes], tuple[str, int]] = {}
        self._stopped: set[str] = set()
        self._all_stopped = False

    def run(self, command: list[str], folder: Path, *, memory: int, group: str) -> tuple[int, str]:
        """Wait for a place, run `command` in `folder`, and return its exit status and what it printed.

        Raises
        ------
        ToolkitError
            If it cannot be started.
        StoppedError
            If it was stopped, before or while it ran.
        """
        process = self._start(command, folder, memory, group)
        try:
            output, _ = process.communicate()
        except BaseException:  # KeyboardInterrupt, where this is the main thread
            _kill(process)
            process.wait()
            raise
        finally:
            with self._changed:
                del self._running[process]
                self._changed.notify_all()
        if self._is_stopped(group):
            raise StoppedError(group)
        return process.returncode, output.decode(errors="replace")

    def stop(self, group: str | None = None) -> None:
        """Kill the processes of `group`, or all of them; no other one of it will start."""
        with self._changed:
            if group is None:
                self._all_stopped = True
            else:
                self._stopped.add(group)
            for process, (member, _) in self._running.items():
                if self._is_stopped(member):
                    _kill(process)
            self._changed.notify_all()

    def _is_stopped(self, group: str) -> bool:
        return self._all_stopped or group in self._stopped

    def _start(self, command: list[str], folder: Path, memory: int, group: str) -> subprocess.Popen[bytes]:
        with self._changed:
            self._changed.wait_for(lambda: self._is_stopped(group) or self._has_place(memory))
            if self._is_stopped(group):
                raise StoppedError(group)
            try:
                # A session of its own: nvcc starts programs, and all of them must go when it is stopped.
                process = subprocess.Popen(
                    command,
                    cwd=folder,
                    env=_environment(os.environ, folder),
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
            except OSError as error:
                raise ToolkitError(f"{command[0]} cannot be started: {error}") from error
            self._running[process] = (group, memory)
            return process

    def _has_place(self, memory: int) -> bool:
        taken = sum(needed for _, needed in self._running.values())
        return not self._running or (len(self._running) < self.jobs and taken + memory <= self._memory)


def reproduce(command: list[str], text: str) -> str:
    """Return shell lines that write `text` into ``kernel.cu`` in a new directory and run `command` there."""
    mark = "END_OF_KERNEL"
    while mark in text:
        mark += "_"
    body = text if text.endswith("\n") else f"{text}\n"
    return f"(cd \"$(mktemp -d)\" && cat > kernel.cu <<'{mark}' && {shlex.join(command)}\n{body}{mark}\n)"


# Flags from the environment would decide the product without being part of the key.
_NOT_PASSED_ON = frozenset({"NVCC_PREPEND_FLAGS", "NVCC_APPEND_FLAGS"})


def _environment(variables: Mapping[str, str], folder: Path) -> dict[str, str]:
    """Return the environment of a compiler, whose own temporary files go into `folder` as well."""
    kept = {name: value for name, value in variables.items() if name not in _NOT_PASSED_ON}
    return {**kept, "TMPDIR": str(folder)}


def _kill(process: subprocess.Popen[bytes]) -> None:
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:  # it has just ended
        return


def _how_it_ended(status: int) -> str:
    if status < 0:
        killed = f"was killed by {signal.Signals(-status).name}"
        return f"{killed} (out of memory? PYCUTLASS_JOBS=1 runs one compiler at a time)" if status == -9 else killed
    return f"failed with exit status {status}" if status else "made no output"
