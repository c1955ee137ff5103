"""From an artifact to a kernel that can be launched: loaded once for each GPU, and unloaded when nothing uses it."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING

from pycutlass import _core, device
from pycutlass.deferred_release import later
from pycutlass.epilogue.scalars import EpilogueLayout
from pycutlass.errors import NotCompiledError

if TYPE_CHECKING:
    from pycutlass.cache import Artifact
    from pycutlass.operation import Operation

__all__ = ["epilogue_layout", "load", "select"]

# Loaded code is a property of the process and the GPU, not of whoever described the kernel: equal operations share it.
# What keeps it loaded are operations with its text, arguments, and graphs that have been captured. No lock: loading may
# wait for the GPU. Of threads that load a kernel at the same time the first wins.
_loaded: weakref.WeakValueDictionary[tuple[str, int], _core.DeviceKernel] = weakref.WeakValueDictionary()

# What kernels say of their epilogues, read once: it does not change.
_layouts: weakref.WeakKeyDictionary[_core.DeviceKernel, EpilogueLayout] = weakref.WeakKeyDictionary()


def load(operation: Operation, ordinal: int) -> _core.DeviceKernel:
    """Return the kernel of `operation`, loaded on GPU `ordinal`.

    Raises
    ------
    NotCompiledError
        The operation was not compiled, or for other GPUs only.
    CacheError
        Host and device side disagree about the kernel's parameters.
    DeviceError
        The GPU cannot run it.
    """
    artifact = select(operation, ordinal)
    kernel = _loaded.get((artifact.key, ordinal))
    if kernel is None:
        host = _core.HostLibrary(artifact.host)
        made = _core.DeviceKernel(host, artifact.cubin, artifact.name, ordinal)
        # When the kernel goes its code does, in the thread that lets go of things: unloading waits for the GPU.
        weakref.finalize(made, later, made.library.unload).atexit = False
        kernel = _loaded.setdefault((artifact.key, ordinal), made)
    operation.artifacts.loaded[ordinal] = kernel
    return kernel


def epilogue_layout(kernel: _core.DeviceKernel) -> EpilogueLayout:
    """Return where `kernel` has the arguments of its epilogue."""
    layout = _layouts.get(kernel)
    if layout is None:
        host = kernel.host
        layout = _layouts[kernel] = EpilogueLayout(host.epilogue_bytes, host.epilogue_fields)
    return layout


def select(operation: Operation, ordinal: int) -> Artifact:
    """Return the artifact of `operation` that GPU `ordinal` can run, the one made for exactly this GPU first.

    Raises
    ------
    NotCompiledError
        There is none.
    """
    present = device.describe(ordinal)
    # Same major version, minor not above; "a" targets on exactly their GPU.
    here = present.compute_capability
    running = {f"sm_{here}a", *(f"sm_{number}" for number in range(here - here % 10, here + 1))}
    candidates = running.intersection(operation.artifacts)
    if candidates:
        # Of two, the later target is the better match; sm_90a sorts behind sm_90 and is made for this GPU alone.
        return operation.artifacts[max(candidates)]
    name = operation.procedural_name()
    if operation.artifacts:
        made_for = ", ".join(sorted(operation.artifacts))
        raise NotCompiledError(
            f"{name} was compiled for {made_for}, GPU {ordinal} ({present.name}) is {present.target}: compile it for "
            f"that with pycutlass.compiler.add_module([operation])"
        )
    raise NotCompiledError(f"{name} has not been compiled: call pycutlass.compiler.add_module([operation]) first")
