"""Kernels of plans, compiled for the GPU whose tensors they are launched on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from pycutlass import compiler, device
from pycutlass.compiler.present import Present
from pycutlass.device import Device
from pycutlass.errors import ArgumentError, DeviceError, NotCompiledError
from pycutlass.kernel import select
from pycutlass.operation import Operation
from pycutlass.plan.constants import present_or_named

__all__ = ["Built", "build_for", "compile_for", "without_gpu"]

#: What is planned for where there is no GPU and no target is named: kernels are executed on the host then.
_USUAL = Device(0, "NVIDIA A100", 80, 108)


def build_for(kernels: Sequence[Operation], ordinal: int) -> None:
    """Compile those of `kernels` that GPU `ordinal` has none of, or take them from the cache.

    Raises
    ------
    ArgumentError
        They are for another kind of GPU, as those of a plan that was pickled there.
    CompileError, NotCompiledError, ToolkitError
        They cannot be compiled.
    """
    if all(_is_built(kernel, ordinal) for kernel in kernels):
        return
    here = device.describe(ordinal)
    for source in (kernel.source() for kernel in kernels):
        needed = source.compute_capability
        if needed > here.compute_capability or (source.native and needed != here.compute_capability):
            raise ArgumentError(
                f"this plan has a kernel for compute capability {needed / 10:.1f}, and GPU {ordinal}, {here.name}, has "
                f"{here.compute_capability / 10:.1f}: it was made for another GPU. Make another plan"
            )
    for several, target in _built_for(kernels, ordinal):
        compiler.add_module(several, target=target)


def compile_for(kernels: Sequence[Operation], ordinal: int | None) -> None:
    """Do what `build_for` does; without a GPU, compile kernels for the target that is named, or their own."""
    if ordinal is None:
        compiler.add_module(kernels)
    else:
        build_for(kernels, ordinal)


class Built:
    """Whether there are kernels for GPU `ordinal` that need no compiler: those that are taken with the question."""

    def __init__(self, ordinal: int) -> None:
        self._ordinal, self._present = ordinal, Present()

    def __call__(self, kernels: Sequence[Operation]) -> bool:
        """Return whether all of `kernels` are there; True as well where nothing can be asked, nor built."""
        if all(_is_built(kernel, self._ordinal) for kernel in kernels):
            return True
        try:
            return all(self._present.take(*each) for each in _built_for(kernels, self._ordinal))
        except DeviceError:
            return True


def without_gpu() -> Device:
    """Return the GPU that is planned for on a machine without one: of the target that is named, if one is."""
    try:
        named = present_or_named()
    except DeviceError:
        return _USUAL
    return replace(named, name=named.name or f"a GPU of compute capability {named.compute_capability}")


def _built_for(kernels: Sequence[Operation], ordinal: int) -> Iterator[tuple[Sequence[Operation], str | None]]:
    """Yield kernels that are compiled together, with what for: None for the current GPU, or what a variable names."""
    here, current = device.describe(ordinal), device.describe(device.current())
    if here.compute_capability == current.compute_capability:
        yield kernels, None
        return
    for kernel in kernels:  # else they would be built for the current GPU
        yield [kernel], f"{here.target}{'a' if kernel.source().native else ''}"


def _is_built(kernel: Operation, ordinal: int) -> bool:
    try:
        select(kernel, ordinal)
    except NotCompiledError:
        return False
    return True
