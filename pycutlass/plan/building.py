"""Kernels of plans, compiled for the GPU whose tensors they are launched on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from pycutlass import compiler, device
from pycutlass.device import Device
from pycutlass.errors import DeviceError, NotCompiledError
from pycutlass.kernel import select
from pycutlass.operation import Operation
from pycutlass.plan.constants import present_or_named

__all__ = ["build_for", "without_gpu"]

#: What is planned for where there is no GPU and no target is named: kernels are executed on the host then.
_USUAL = Device(0, "NVIDIA A100", 80, 108)


def build_for(kernels: Sequence[Operation], ordinal: int) -> None:
    """Compile those of `kernels` that GPU `ordinal` has none of, or take them from the cache.

    Raises
    ------
    CompileError, NotCompiledError, ToolkitError
        They cannot be compiled.
    """
    if all(_is_built(kernel, ordinal) for kernel in kernels):
        return
    here, current = device.describe(ordinal), device.describe(device.current())
    if here.compute_capability == current.compute_capability:
        compiler.add_module(kernels)
        return
    for kernel in kernels:  # else they would be built for the current GPU
        compiler.add_module([kernel], target=f"{here.target}{'a' if kernel.source().native else ''}")


def without_gpu() -> Device:
    """Return the GPU that is planned for on a machine without one: of the target that is named, if one is."""
    try:
        named = present_or_named()
    except DeviceError:
        return _USUAL
    return replace(named, name=named.name or f"a GPU of compute capability {named.compute_capability}")


def _is_built(kernel: Operation, ordinal: int) -> bool:
    try:
        select(kernel, ordinal)
    except NotCompiledError:
        return False
    return True
