"""nvcc and NVRTC for the device side of a kernel, g++ for its host side, all of one shape."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import itertools
import os
import re
import shlex
import signal
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from pycutlass import cubin
from pycutlass.errors import CompileError, ToolkitError
from pycutlass.source import KernelSource
from pycutlass.toolchain.host_inputs import (
    files_named,
    included_digest,
    known_by_content,
    programs_of,
    refuse_configuration,
)
from pycutlass.toolchain.processes import Processes
from pycutlass.toolkit import (
    Answer,
    Memo,
    Toolkit,
    bindings_directory,
    cuda_release,
    file_fingerprint,
    is_file,
    is_script,
    names_in,
    on_path,
    read_bytes,
    real_path,
    run_quietly,
    scratch_directory,
    unrepeatable,
    without_memo,
)

__all__ = ["Compiler", "HostCompiler", "Nvcc", "Nvrtc", "Product", "PtxOfNvcc", "PtxOfNvrtc", "reproduce"]

_GIB = 1 << 30
_NVRTC_MAIN = Path(__file__).resolve().parents[1] / "nvrtc_main.py"
_INCLUDES_FILE = re.compile(  # in a profile of nvcc
    rb"(?:^|[\s\"',=])(--?(?:pre-include|include|imacros|options-file|optf))(?![-\w])", re.MULTILINE
)
_SETS_A_PLACE = re.compile(rb"^[ \t]*(TOP|CICC_PATH|NVVMIR_LIBRARY_DIR|PATH)[ \t]*[+=]+[ \t]*(\S*)", re.MULTILINE)
_USUAL_PLACE = re.compile(
    rb"|\$\((CICC_PATH|_HERE_)\)|\$\(_HERE_\)/\.\.|\$\(TOP\)/(nvvm|\$\(_NVVM_BRANCH_\))/(bin|libdevice)"
)
# What a host compiler is asked: which one it is, and where it looks for its programs.
_QUESTIONS = ("--version", "-print-search-dirs")
_ITSELF = re.compile(r"[gc]\+\+|gcc|clang")  # in the name of a compiler's file, unlike that of a launcher


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
            If the compiler cannot be started, or its temporary directory takes no file.
        StoppedError
            If `processes` were stopped, all or those of `group`.
        """
        command = self.command(Path("kernel.cu"), Path(self.output), target)
        with scratch_directory() as folder:
            _write_source(folder, source)
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
        self._program, self._variable = toolkit.nvcc, toolkit.variable
        # nvcc preprocesses with the host compiler. It takes one program, so that of `ccache g++ -m64` is g++.
        self._host = _programs(host)[-1]

    def signature(self) -> dict[str, str]:
        """Return the release of nvcc; the compiler proper and the assembler, other packages' wheels, count as well.

        So do the library of device code, which becomes part of kernels, and what nvcc reads its own flags from. The
        compiler proper and that library do not tell their releases. A script in the place of nvcc is asked each time,
        since what it runs may change while it does not.
        """
        root = real_path(self._program).parents[1]
        assembler, profile = root / "bin" / "ptxas", root / "bin" / "nvcc.profile"
        device_code = root / "nvvm" / "libdevice"
        silent = [root / "nvvm" / "bin" / "cicc", *(device_code / name for name in names_in(device_code))]
        parts = [self._program, *filter(is_file, (assembler, *silent))]

        def ask() -> str:
            return ", ".join(map(known_by, parts))

        def known_by(part: Path) -> str:
            if part in silent:
                return known_by_content(part)
            return f"{part.name} {cuda_release(run_quietly([str(part), '--version']))}"

        memo = self._memo
        if is_script(self._program):
            memo = without_memo
            unrepeatable()
        fingerprint = " ".join(map(file_fingerprint, parts))
        version = memo("parts of nvcc", str(self._program), fingerprint, ask)
        said = read_bytes(profile) if is_file(profile) else None
        self._check_profile(profile, said or b"")
        flags = "none" if said is None else hashlib.sha256(said).hexdigest()
        return {"device_compiler": version, "nvcc_profile": flags}

    def _check_profile(self, profile: Path, said: bytes) -> None:
        """Raise ToolkitError where nvcc's profile has it read or run what no field of a key is about."""
        unknown = "a kernel's cache key does not know: a change there would go unnoticed"
        if includes := _INCLUDES_FILE.search(said):
            raise ToolkitError(
                f"{profile} has {includes[1].decode()}, which has nvcc read a file that {unknown}. Leave it out, or "
                f"set {self._variable} to another toolkit."
            )
        for name, value in _SETS_A_PLACE.findall(said):
            if not all(map(_USUAL_PLACE.fullmatch, value.split(b":"))):
                raise ToolkitError(
                    f"{profile} sets {name.decode()} to {os.fsdecode(value)}, where nvcc would find programs that "
                    f"{unknown}. Set it as CUDA's own profile does, or set {self._variable} to another toolkit."
                )

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
        """Return the release of NVRTC, which its PTX tells, and a digest of our own steps before and after it.

        A library beside it has what it builds into kernels.
        """
        folder = real_path(self._library).parent
        built_in = [folder / name for name in names_in(folder) if name.startswith("libnvrtc-builtins.so")]
        parts = [self._library, *filter(is_file, built_in)]

        def ask() -> str:
            trial = KernelSource("trial", 'extern "C" __global__ void trial() {}\n', 80, native=False)
            with scratch_directory() as folder:
                _write_source(folder, trial)
                run_quietly(self.command(folder / "kernel.cu", folder / self.output, "sm_80"), quiet=True)
                release = cuda_release((folder / "kernel.ptx").read_text())
            return ", ".join([f"nvrtc {release}", *map(known_by_content, parts[1:])])

        fingerprint = " ".join(map(file_fingerprint, parts))
        steps = [read_bytes(path) for path in (_NVRTC_MAIN, cubin.__file__)]
        return {
            "device_compiler": self._memo("parts of nvrtc", str(self._library), fingerprint, ask),
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
        program = [sys.executable, "-I", str(_NVRTC_MAIN), str(bindings_directory())]
        return [*program, *files, *self.flags(target), *self._include_flags()]

    def _collect(self, folder: Path) -> bytes:
        ptx = (folder / "kernel.ptx").read_text(encoding="utf-8", errors="replace")
        return cubin.drop_symbols(super()._collect(folder), cubin.unused_variables(ptx))


class PtxOfNvcc(Nvcc):
    """The device side by nvcc as PTX, for people to read: what assemblers make machine code of."""

    output = "kernel.ptx"

    def flags(self, target: str) -> tuple[str, ...]:
        """Return the flags of the kernel, but for what is said to the assembler."""
        return tuple("-ptx" if each == "-cubin" else each for each in super().flags(target) if "-Xptxas" not in each)


class PtxOfNvrtc(Nvrtc):
    """The device side by NVRTC as PTX, which it leaves beside each cubin."""

    def _collect(self, folder: Path) -> bytes:
        return (folder / "kernel.ptx").read_bytes()


class HostCompiler(Compiler):
    """The host side by plain g++, into a shared object that needs no CUDA library; `program` is its command."""

    name = "host compiler"
    memory = _GIB
    output = "kernel.so"

    def __init__(self, program: tuple[str, ...], includes: tuple[Path, ...], memo: Memo = without_memo) -> None:
        super().__init__(includes, memo)
        self._program = program
        self._answers: dict[str, Answer] = {}

    def ask_ahead(self) -> contextlib.AbstractContextManager[object]:
        """Begin to ask for what `signature` cannot remember, so that all else is done meanwhile.

        What has been begun ends with the context that is returned.
        """
        with contextlib.ExitStack() as asked:
            if self._has_launcher():
                for question in _QUESTIONS:
                    # One that cannot be asked is asked again by `signature`, which raises where it is its turn.
                    with contextlib.suppress(ToolkitError):
                        self._answers[question] = asked.enter_context(Answer([*self._program, question]))
            return asked.pop_all()

    def signature(self) -> dict[str, str]:
        """Return the first line that the compiler says about its version, and digests of what else it reads and runs.

        That is what its words name and what these files include, launchers before the compiler, scripts, and its own
        parts: the compiler proper, the assembler and the linker. What a compiler says is remembered, for a compiler
        alone: what a script or a launcher runs may change while they do not, and so may files of options of clang.

        Raises
        ------
        ToolkitError
            If the compiler cannot be asked, or reads a file of options that no word of its command names.
        """
        programs = [Path(program) for program in _programs(self._program)]
        beside = [program for program in programs if program is not programs[-1] or is_script(program)]
        files = sorted({*map(str, beside), *files_named(self._program[1:])})

        memo = self._memo
        if self._has_launcher():
            memo = without_memo
            unrepeatable()
        fingerprint = " ".join(map(file_fingerprint, programs))

        def ask(question: str) -> str:
            ask_now = functools.partial(self._ask, question)
            return memo(f"compiler {question}", shlex.join(self._program), fingerprint, ask_now)

        version, searched = map(ask, _QUESTIONS)
        if "clang" in version and memo is not without_memo:
            unrepeatable()  # a file of options may have been put where it looks for them
            version = self._ask("--version")
        refuse_configuration(self._program, version)
        digests = [f" {Path(file).name} {hashlib.sha256(read_bytes(file)).hexdigest()[:16]}" for file in files]
        fields = {"host_compiler": version.strip().splitlines()[0] + "".join(digests)}
        fields["host_programs"] = programs_of(self._program, searched, self._memo)
        flags = [*self.flags("")[len(self._program) - 1 :], *self._include_flags()]
        if included := included_digest(self._program, flags, self.includes, self._memo):
            fields["host_includes"] = included
        return fields

    def _ask(self, question: str) -> str:
        with self._answers.pop(question, None) or Answer([*self._program, question]) as answer:
            return answer.text()

    def _has_launcher(self) -> bool:
        """Whether something stands before the compiler, which may run another one at another time."""
        programs = _programs(self._program)
        return len(programs) > 1 or is_script(Path(programs[-1])) or not _ITSELF.search(real_path(programs[-1]).name)

    def flags(self, target: str) -> tuple[str, ...]:
        """Return what decides the shared object, the words after the program included; the target does not.

        Unique symbols would keep the library loaded forever, and those of a statically linked libstdc++ would reach
        into other libraries; what a kernel does not need of one is left out. CUTLASS's kernels are not quite C++ to
        g++.
        """
        return (
            *self._program[1:],
            *("-std=c++17", "-DNDEBUG", "-O1", "-shared", "-fPIC", "-fvisibility=hidden", "-fno-gnu-unique"),
            *("-Wl,--exclude-libs,ALL,--gc-sections,-s", "-fpermissive", "-w"),
        )

    def command(self, source: Path, output: Path, target: str) -> list[str]:
        """Return the command that compiles the file `source` into the shared object `output`."""
        files = ["-x", "c++", str(source), "-o", str(output)]
        return [self._program[0], *self.flags(target), *self._include_flags(), *files]


def reproduce(command: list[str], text: str) -> str:
    """Return shell lines that write `text` into ``kernel.cu`` in a new directory and run `command` there."""
    mark = "END_OF_KERNEL"
    while mark in text:
        mark += "_"
    body = text if text.endswith("\n") else f"{text}\n"
    return f"(cd \"$(mktemp -d)\" && cat > kernel.cu <<'{mark}' && {shlex.join(command)}\n{body}{mark}\n)"


def _write_source(folder: Path, source: KernelSource) -> None:
    try:
        (folder / "kernel.cu").write_text(source.text, encoding="utf-8")
    except OSError as error:
        raise ToolkitError(
            f"kernel {source.name} cannot be written for its compiler: {error}. Set TMPDIR before Python starts."
        ) from error


def _programs(command: Sequence[str]) -> list[str]:
    """Return the programs of `command`, a launcher before the compiler: what stands before the first option."""
    words = itertools.takewhile(lambda word: not word.startswith("-"), command)
    return [found for word in words if (found := on_path(word))] or [command[0]]


def _how_it_ended(status: int) -> str:
    if status < 0:
        killed = f"was killed by {signal.Signals(-status).name}"
        return f"{killed} (out of memory? PYCUTLASS_JOBS=1 runs one compiler at a time)" if status == -9 else killed
    return f"failed with exit status {status}" if status else "made no output"
