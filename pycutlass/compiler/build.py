"""One kernel: device side and host side built side by side from one text, checked against each other."""

from __future__ import annotations

import ctypes
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from typing import NamedTuple

from pycutlass.cache import Artifact, make_key
from pycutlass.compiler.tools import Tools
from pycutlass.cubin import constant_bytes, kernel_parameter_bytes, wgmma_shapes
from pycutlass.errors import CompileError
from pycutlass.report import BuildReport
from pycutlass.source import KernelSource
from pycutlass.toolchain import Processes, Product, StoppedError
from pycutlass.toolkit import scratch_directory

__all__ = ["build"]


def build(source: KernelSource, target: str, tools: Tools, processes: Processes) -> Artifact:
    """Compile both sides of `source` and return the artifact.

    Raises
    ------
    CompileError
        If a compiler refuses the source, or if the two sides disagree about the kernel's parameters.
    StoppedError
        If `processes` were stopped.
    """
    fields = tools.key_fields(source, target)
    key = make_key(fields)
    device, host = _both_sides(source, target, tools, processes, group=key)
    described = _describe(source, host.binary)
    _compare_parameters(source, device.binary, described.parameter_bytes)
    report = BuildReport.from_log(
        device.log,
        source.name,
        constant_bytes=constant_bytes(device.binary, source.name),
        dynamic_shared_bytes=described.shared_bytes,
        seconds_device=device.seconds,
        seconds_host=host.seconds,
        cubin_bytes=len(device.binary),
        compiler=fields["device_compiler"],
        wgmma_shapes=wgmma_shapes(device.binary) if target == "sm_90a" else None,
    )
    about = {**report.as_json(), "source": source.text}  # for those who look at the kernel later
    return Artifact(key, source.name, target, fields, device.binary, host.binary, about)


def _both_sides(
    source: KernelSource, target: str, tools: Tools, processes: Processes, group: str
) -> tuple[Product, Product]:
    """Run both compilers at once; when one refuses the source, the other is stopped."""
    with ThreadPoolExecutor(2) as pool:
        sides = [pool.submit(tool.compile, source, target, processes, group) for tool in (tools.device, tools.host)]
        wait(sides, return_when=FIRST_EXCEPTION)
        if any(side.done() and side.exception() for side in sides):
            processes.stop(group)
    errors = [error for side in sides if (error := side.exception())]
    for error in sorted(errors, key=lambda error: isinstance(error, StoppedError)):
        raise error
    return sides[0].result(), sides[1].result()


class _Described(NamedTuple):
    """What a host side says of its kernel."""

    parameter_bytes: int
    shared_bytes: int


def _compare_parameters(source: KernelSource, cubin: bytes, host_bytes: int) -> None:
    """See that both compilers laid out the kernel's parameters alike: a kernel that reads others may do anything."""
    device_bytes = kernel_parameter_bytes(cubin, source.name)
    if device_bytes != host_bytes:
        raise CompileError(
            f"both sides of kernel {source.name} must have parameters of one size, but the device compiler makes them "
            f"{device_bytes} bytes and the host compiler {host_bytes}. A header declares them differently to the two; "
            f"build with the other device compiler (PYCUTLASS_BACKEND) and report this.",
            source=source.text,
        )


def _describe(source: KernelSource, host: bytes) -> _Described:
    """Ask the host side: `pycutlass_describe` fills in the ABI's version, sizeof(Params), shared memory and more."""
    answer = (ctypes.c_uint32 * 64)()
    with scratch_directory() as folder:
        path = folder / "host.so"
        try:
            path.write_bytes(host)
            library = ctypes.CDLL(str(path))
            library.pycutlass_describe(answer)
        except (AttributeError, OSError) as error:
            raise CompileError(
                f"the host side of kernel {source.name} cannot be asked for its parameters: {error}. If programs may "
                f"not be run from {folder}, set TMPDIR to where they may before Python starts.",
                source=source.text,
            ) from error
    return _Described(answer[1], answer[2])
