"""What a build says about a kernel: registers, spills, serialised matrix instructions, seconds."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

__all__ = ["NO_PROBLEMS", "BuildReport"]

#: What the report of a kernel says that is as fast as it should be: no `BuildReport` has to be made to know that.
NO_PROBLEMS: Mapping[str, Any] = {
    "spill_store_bytes": 0,
    "spill_load_bytes": 0,
    "stack_bytes": 0,
    "wgmma_serialized": False,
    "warnings": [],
}


@dataclass(frozen=True)
class BuildReport:
    """What the compilers said about one kernel; sizes in bytes, times in seconds.

    Parameters
    ----------
    registers : int
        Registers per thread.
    stack_bytes, spill_store_bytes, spill_load_bytes : int
        Memory per thread where registers did not suffice; 0 in a good kernel.
    static_shared_bytes, dynamic_shared_bytes, constant_bytes : int
        Shared memory of a threadblock that the kernel declares and that the launch gives it, and constant memory with
        the parameters.
    wgmma_serialized : bool
        Whether the assembler made Hopper's asynchronous matrix instructions wait for each other.
    warnings : tuple[str, ...]
        What the assembler warned of, without repetition.
    seconds_device, seconds_host : float
        How long the two compilers took, side by side.
    cubin_bytes : int
        Size of the device code as stored.
    compiler : str
        Device compiler and version.
    wgmma_shapes : tuple[str, ...]
        Of a Hopper-native kernel, how many asynchronous matrix instructions it has of each shape, such as
        ``"16 of 64x128x16"``: a tile whose width no instruction has is multiplied in narrower pieces.
    """

    registers: int
    stack_bytes: int
    spill_store_bytes: int
    spill_load_bytes: int
    static_shared_bytes: int
    constant_bytes: int
    wgmma_serialized: bool
    warnings: tuple[str, ...]
    seconds_device: float
    seconds_host: float
    cubin_bytes: int
    compiler: str
    dynamic_shared_bytes: int = 0
    wgmma_shapes: tuple[str, ...] = ()

    @classmethod
    def from_log(
        cls,
        log: str,
        kernel: str,
        *,
        constant_bytes: int,
        seconds_device: float,
        seconds_host: float,
        cubin_bytes: int,
        compiler: str,
        dynamic_shared_bytes: int = 0,
        wgmma_shapes: Mapping[str, int] | None = None,
    ) -> BuildReport:
        """Read what ptxas says of `kernel` under ``-v`` in the log of nvcc or NVRTC, and take the rest as given.

        A number that the log does not give is 0, and a log without a word about the kernel is a warning in itself.
        """
        warnings = _warnings(log)
        about = _about_kernel(log, kernel)
        if "stack frame" not in about or "registers" not in about:
            warnings = (*warnings, f"the compiler's log does not say what {kernel} uses")
        return cls(
            registers=_number(r"Used (\d+) registers", about),
            stack_bytes=_number(r"(\d+) bytes stack frame", about),
            spill_store_bytes=_number(r"(\d+) bytes spill stores", about),
            spill_load_bytes=_number(r"(\d+) bytes spill loads", about),
            static_shared_bytes=_number(r"(\d+) bytes smem", about),
            constant_bytes=constant_bytes,
            wgmma_serialized=any("wgmma" in warning and "serialized" in warning for warning in warnings),
            warnings=warnings,
            seconds_device=round(seconds_device, 3),
            seconds_host=round(seconds_host, 3),
            cubin_bytes=cubin_bytes,
            compiler=compiler,
            dynamic_shared_bytes=dynamic_shared_bytes,
            wgmma_shapes=tuple(f"{count} of {shape}" for shape, count in (wgmma_shapes or {}).items()),
        )

    @classmethod
    def from_json(cls, mapping: Mapping[str, Any]) -> BuildReport:
        """Return the report that `as_json` gave `mapping` for.

        Raises
        ------
        ValueError
            If something is missing, or is not what it should be.
        """
        values: dict[str, Any] = {}
        for field in dataclasses.fields(cls):
            if field.name in mapping:
                value = mapping[field.name]
                if not _FITS[str(field.type)](value):
                    raise ValueError(f"{field.name} is {value!r}")
                values[field.name] = tuple(value) if isinstance(value, list) else value
            elif field.default is dataclasses.MISSING:  # kernels in a cache may be older than what has a default
                raise ValueError(f"{field.name} is missing")
        return cls(**values)

    def as_json(self) -> dict[str, Any]:
        """Return the report as what JSON can carry."""
        return {
            name: list(each) if isinstance(each, tuple) else each for name, each in dataclasses.asdict(self).items()
        }

    def problems(self, *, is_native: bool = False) -> list[str]:
        """Return one sentence for each thing that makes the kernel slower than it should be; [] for a good one.

        Only Ampere-style kernels have warps to choose: nothing is said of them to a Hopper-native one (`is_native`).
        """
        found = []
        if self.spill_store_bytes or self.spill_load_bytes:
            found.append(
                f"registers spill to memory ({self.spill_store_bytes} bytes of stores, {self.spill_load_bytes} of "
                f"loads per thread, with {self.registers} registers): choose a smaller tile"
                + ("" if is_native else ", or divide it among more warps (warp_count)")
            )
        if self.stack_bytes:
            found.append(f"each thread has a stack frame of {self.stack_bytes} bytes: an array is not in registers")
        if self.wgmma_serialized:
            found.append("wgmma instructions are serialised, which costs a Hopper kernel up to half of its speed")
        return [*found, *(f"the assembler warns: {warning}" for warning in self.warnings)]

    def summary(self) -> str:
        """Return the report in one line."""
        spills = self.spill_store_bytes + self.spill_load_bytes
        return (
            f"{self.registers} registers, {f'{spills} bytes of spills' if spills else 'no spills'}, "
            f"{self.cubin_bytes:,} bytes, {max(self.seconds_device, self.seconds_host):.1f} s"
        )


# Whether what JSON gave for a field is what a field of that type holds.
_FITS: Mapping[str, Callable[[Any], bool]] = {
    "int": lambda value: type(value) is int and value >= 0,
    "float": lambda value: type(value) in (int, float) and value >= 0,
    "bool": lambda value: type(value) is bool,
    "str": lambda value: type(value) is str,
    "tuple[str, ...]": lambda value: type(value) is list and all(type(text) is str for text in value),
}


# Both nvcc and NVRTC pass on what ptxas prints; a line may begin with blanks or with "ptxas   .".
_NEXT_KERNEL = re.compile(r"Compiling entry function '([^']+)'")
_WARNING = re.compile(r"ptxas (?:warning|info)\s*:\s*(.+)")
_LOSS = re.compile(r"Potential Performance Loss|^\(C75\d\d\)")


def _about_kernel(log: str, kernel: str) -> str:
    """Return the part of `log` from the properties of `kernel` to where the assembler begins another kernel."""
    _, *parts = _NEXT_KERNEL.split(log)
    about = "".join(text for name, text in zip(parts[::2], parts[1::2], strict=True) if name == kernel)
    return about.partition(f"Function properties for {kernel}\n")[2]


def _warnings(log: str) -> tuple[str, ...]:
    """Return every distinct warning of the assembler, and every note of it about lost performance."""
    texts = [
        match[1].strip()
        for match in _WARNING.finditer(log)
        if "ptxas warning" in match[0] or _LOSS.search(match[1].strip())
    ]
    return tuple(dict.fromkeys(texts))


def _number(pattern: str, text: str) -> int:
    match = re.search(pattern, text)
    return int(match[1]) if match else 0
