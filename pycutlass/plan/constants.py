"""What the model of the default pick knows of GPUs: constants in JSON files, one for each model of GPU."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from functools import cached_property, lru_cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

from pycutlass import config, device
from pycutlass.compiler.choice import check_target
from pycutlass.errors import ArgumentError
from pycutlass.plan.correction import Correction

__all__ = ["Constants", "constants_of", "planned_for", "present_or_named", "shipped", "usual_gpu"]

#: The shipped files, in the order in which they are asked; of a capability that has several, the first is the usual
#: GPU. What runs a model that none of them names takes the constants of its capability.
_FILES = ("h200", "h100", "a100", "rtx3090", "l40s")
_TABLES = ("macs_per_cycle", "sustained", "native", "ampere", "gemv", "simt", "reuse", "tiles")
_OF_MEMORY = ("l2_bytes_per_cycle", "l2_gb_per_s", "dram_gb_per_s", "dram_start_us", "dram_start_bytes")
_SHARED = ("dram_gb_per_s", "l2_gb_per_s")  # by all multiprocessors


@dataclass(frozen=True, eq=False)  # compared by identity: tables have no hash, and each file is read once
class Constants:
    """What the model knows of one GPU.

    Attributes
    ----------
    name : str
        The GPU that they are of.
    matches : tuple of str
        Parts of the names that drivers give it.
    capability, sm_count : int
        Compute capability and multiprocessors.
    clock_ghz : float
        Of a multiprocessor where power does not hold it back.
    l2_bytes : int
        Size of the L2 cache.
    l2_bytes_per_cycle, l2_gb_per_s, dram_gb_per_s : float
        What one multiprocessor takes from the L2 cache, all of them together, and all of them from memory.
    dram_start_us, dram_start_bytes : float
        How long memory takes until it delivers at that rate, of problems that read so much or more.
    macs_per_cycle : mapping
        Multiply-adds of a multiprocessor in a cycle, by class of product (`features.product_class`).
    sustained : mapping
        Share of them that long products reach, however they are divided: power lowers the clock.
    native, ampere, gemv : mapping
        Constants of each family of kernels; docs/guide/which-tile.md says what they are.
    simt : mapping
        Of kernels of CUDA cores that were measured, by `features.simt_tile`: for 0, 1 and 2 operands along K, what
        share of the multiply-adds of a full multiprocessor they make, and cycles that a k-tile takes at least.
    reuse : mapping
        How long the L2 cache keeps an operand that all tiles of a strip read (`traffic.Tiling.read`).
    tiles : mapping
        How much longer than predicted Hopper-native tiles take, of those that were measured, by `features.tile_class`.
    queued : mapping
        Constants, by these names, that differ where launches follow each other without a break; the others are those of
        calls that are alone, with a cold L2 cache. Empty where nothing of the kind is known.
    sources : mapping
        Where the constants come from, in words.
    correction : Correction or None
        What measured times say beside the model, of a GPU that has a second file.
    """

    name: str
    matches: tuple[str, ...]
    capability: int
    sm_count: int
    clock_ghz: float
    l2_bytes: int
    l2_bytes_per_cycle: float
    l2_gb_per_s: float
    dram_gb_per_s: float
    dram_start_us: float
    dram_start_bytes: float
    macs_per_cycle: Mapping[str, float]
    sustained: Mapping[str, float]
    native: Mapping[str, Any]
    ampere: Mapping[str, Any]
    gemv: Mapping[str, float]
    simt: Mapping[str, Any]
    reuse: Mapping[str, float]
    tiles: Mapping[str, float]
    queued: Mapping[str, Any]
    sources: Mapping[str, str]
    correction: Correction | None = None

    @classmethod
    def of(cls, record: Mapping[str, Any]) -> Constants:
        """Return the constants that a file holds."""
        known = {field.name for field in fields(cls)} - {"correction"}
        if known != set(record):
            unlike = sorted(known ^ set(record))
            raise ArgumentError(f"a file of constants has {', '.join(sorted(known))}; missing or unknown: {unlike}")
        tables = {name: MappingProxyType(dict(record[name])) for name in (*_TABLES, "queued", "sources")}
        if others := set(record["queued"]) - {*_TABLES, *_OF_MEMORY}:
            raise ArgumentError(f"what differs of queued launches are constants, got {sorted(others)}")
        return cls(**{**record, **tables, "matches": tuple(record["matches"])})

    def of_size(self, sm_count: int) -> Constants:
        """Return the constants of a GPU of the same kind with other multiprocessors, which share as much memory."""
        if sm_count == self.sm_count:
            return self
        share = min(1.0, sm_count / self.sm_count)
        of_all = {name: getattr(self, name) * share for name in _SHARED}
        queued = {name: each * share if name in _SHARED else each for name, each in self.queued.items()}
        return replace(self, sm_count=sm_count, correction=None, queued=MappingProxyType(queued), **of_all)

    @cached_property  # models are kept by the identity of their constants
    def when_queued(self) -> Constants:
        """The constants of launches that follow each other without a break, as those of a model or of a CUDA graph do.

        Groups and convolutions are chosen by them, since their times were measured so.
        """
        if not self.queued:
            return self
        tables: dict[str, Any] = {
            name: MappingProxyType(each) if name in _TABLES else each for name, each in self.queued.items()
        }
        return replace(self, queued=MappingProxyType({}), correction=None, **tables)


@lru_cache(maxsize=1)  # files of the package, which do not change
def shipped() -> tuple[Constants, ...]:
    """Return the constants of all GPUs that have a file."""
    folder = Path(__file__).parent / "gpus"
    return tuple(_read(folder / f"{name}.json", folder / f"{name}-correction.json") for name in _FILES)


def _read(constants: Path, correction: Path) -> Constants:
    found = Constants.of(json.loads(constants.read_text(encoding="utf-8")))
    if not correction.exists():
        return found
    return replace(found, correction=Correction.of(json.loads(correction.read_text(encoding="utf-8"))))


@lru_cache(maxsize=32)  # a program meets a few models of GPU
def constants_of(gpu: device.Device) -> Constants:
    """Return the constants of a GPU: of its model, else of the usual one of its capability or the nearest earlier."""
    return _nearest(gpu.name, gpu.compute_capability).of_size(gpu.sm_count)


def present_or_named() -> device.Device:
    """Return the current GPU; on a machine without one, the usual GPU of the capability of ``PYCUTLASS_TARGET``.

    Raises
    ------
    ArgumentError
        There is no GPU, and the variable names something that is no target, as compilers say it.
    DeviceError
        There is no GPU, and the variable is not set.
    """
    if device.available():
        return device.describe(device.current())
    if named := config.text("PYCUTLASS_TARGET"):
        check_target(named, "PYCUTLASS_TARGET")
    capability = device.device_cc()
    return device.Device(0, "", capability, _nearest("", capability).sm_count)


def planned_for(gpu: device.Device) -> str:
    """Return for which GPU kernels were considered, where there are none, and how another one is named."""
    major, minor = divmod(gpu.compute_capability, 10)
    named = f"{gpu.name}, of compute capability {major}.{minor}"
    if not gpu.name or gpu.name.endswith(f"compute capability {gpu.compute_capability}"):
        named = f"a GPU of compute capability {major}.{minor}"
    if device.available():
        return f"The kernels considered are those for {named}"
    return (
        f"The kernels considered are those for {named}: there is no GPU here, and the environment variable "
        f"PYCUTLASS_TARGET, such as sm_90a, says which one is meant"
    )


def usual_gpu(capability: int) -> device.Device:
    """Return the usual GPU of a compute capability, which need not be here: the one whose constants are known."""
    known = _nearest("", capability)
    name = known.name if known.capability == capability else f"a GPU of compute capability {capability}"
    return device.Device(0, name, capability, known.sm_count)


def _nearest(name: str, capability: int) -> Constants:
    known = shipped()
    named = [each for each in known if any(part in name for part in each.matches)]
    earlier = max((each.capability for each in known if each.capability <= capability), default=known[-1].capability)
    return [*named, *(each for each in known if each.capability == earlier)][0]
