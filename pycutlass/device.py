"""The GPUs of this machine, asked of the driver when needed, and the streams that are current on them."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from pycutlass import _core, config
from pycutlass.calls import public, shown
from pycutlass.errors import ArgumentTypeError, DeviceError
from pycutlass.imported import imported
from pycutlass.integers import as_int

__all__ = [
    "Device",
    "available",
    "checked_ordinal",
    "compute_capability",
    "count",
    "current",
    "current_stream_source",
    "current_target",
    "describe",
    "device_cc",
    "power_limit",
    "require",
    "with_streams",
]


@dataclass(frozen=True)
class Device:
    """What PyCUTLASS knows of one GPU."""

    ordinal: int
    name: str
    compute_capability: int
    sm_count: int

    @property
    def target(self) -> str:
        """What kernels are built for here, for example ``"sm_90"``."""
        return f"sm_{self.compute_capability}"


def count() -> int:
    """Return the number of GPUs; 0 without a driver."""
    return _core.device_count()


def available() -> bool:
    """Return whether there is a driver and at least one GPU."""
    return count() > 0


@lru_cache(maxsize=64)
def describe(ordinal: int = 0) -> Device:
    """Return what is known of GPU `ordinal`.

    Raises
    ------
    DeviceError
        There is no driver or no such GPU.
    """
    present = _core.device_count()
    if not 0 <= ordinal < present:
        require()
        raise DeviceError(f"there is no GPU {ordinal}: this machine has {present}, numbered from 0")
    major = _core.device_attribute(ordinal, "compute_capability_major")
    minor = _core.device_attribute(ordinal, "compute_capability_minor")
    sm_count = _core.device_attribute(ordinal, "multiprocessor_count")
    return Device(ordinal, _core.device_name(ordinal), 10 * major + minor, sm_count)


def checked_ordinal(given: Any) -> int:
    """Return what a user gave for a GPU as an integer.

    Raises
    ------
    ArgumentTypeError
        It is none.
    """
    ordinal = as_int(given)
    if ordinal is None:
        raise ArgumentTypeError(f"device must be the ordinal of a GPU, got {shown(given)}; GPUs are numbered from 0")
    return ordinal


def require() -> None:
    """Raise DeviceError, with the reason, where no GPU can be used."""
    if available():
        return
    reason = _core.driver_problem() or "the driver sees no GPU; check CUDA_VISIBLE_DEVICES and nvidia-smi"
    raise DeviceError(f"no GPU can be used: {reason}")


def current() -> int:
    """Return the ordinal of the calling thread's current GPU."""
    require()
    return _core.current_device()


def compute_capability(ordinal: int = 0) -> int:
    """Return the compute capability of a GPU as one number: 80 for an A100, 90 for an H100 or H200."""
    return describe(ordinal).compute_capability


def power_limit(ordinal: int = 0) -> float | None:
    """Return how many watts GPU `ordinal` may take; None where NVML is not there, or does not say.

    Kernels that keep all multiprocessors busy are as fast as that lets them be.
    """
    describe(ordinal)
    try:
        from cuda.bindings import driver, nvml

        nvml.init_v2()
        try:
            # NVML counts all GPUs, the driver those that CUDA_VISIBLE_DEVICES leaves.
            error, address = driver.cuDeviceGetPCIBusId(16, ordinal)
            if error != driver.CUresult.CUDA_SUCCESS:
                return None
            handle = nvml.device_get_handle_by_pci_bus_id_v2(address.split(b"\0")[0].decode())
            return float(nvml.device_get_enforced_power_limit(handle)) / 1000
        finally:
            nvml.shutdown()
    except (
        Exception
    ):  # an older cuda-bindings without NVML, a container without its library, a virtual GPU without power
        return None


def with_streams() -> str:
    """Return the library whose current stream is followed where no tensor says which; empty where there is none."""
    if callable(imported("torch", "cuda", "current_stream")):
        return "torch"
    return "cupy" if callable(imported("cupy", "cuda", "get_current_stream")) else ""


def current_stream_source(library: str, ordinal: int) -> Callable[[], int]:
    """Return a function that gives the handle of the current stream of `library` on GPU `ordinal`.

    The library is there as a whole: there are tensors of it, or `with_streams` says so.
    """
    if library == "torch":
        current_stream = sys.modules["torch"].cuda.current_stream
        return lambda: int(current_stream(ordinal).cuda_stream)
    if library == "cupy":
        get_current_stream = sys.modules["cupy"].cuda.get_current_stream
        return lambda: int(get_current_stream(ordinal).ptr)  # without a device, the stream of the current one
    return lambda: 0  # whoever has no notion of a current stream means the legacy default stream


@public
def device_cc(device: int = 0) -> int:
    """Return what to describe kernels for, under the name that the original used.

    That is the compute capability of GPU `device`; on a machine without a GPU that of the target which the variable
    ``PYCUTLASS_TARGET`` names, since operations are executed on the host there.

    Raises
    ------
    ArgumentTypeError
        `device` is no integer.
    DeviceError
        There is no such GPU; or there is none at all, and no target is named.
    """
    ordinal = checked_ordinal(device)
    if available():
        return compute_capability(ordinal)
    named = re.fullmatch(r"sm_([0-9]{2,3})[af]?", config.text("PYCUTLASS_TARGET") or "")
    if named is None:
        reason = _core.driver_problem() or "the driver sees none"
        raise DeviceError(
            f"there is no GPU ({reason}), and PYCUTLASS_TARGET names no target to describe kernels for: set it, for "
            f"example to sm_80"
        )
    return int(named[1])


def current_target() -> str | None:
    """Return what kernels are built for on the present GPU, for example ``"sm_90"``; None without a GPU."""
    return describe(current()).target if available() else None
