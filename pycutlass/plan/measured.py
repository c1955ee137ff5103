"""What the database of trials calls a machine, and which candidate of a problem was the fastest there."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Generic, TypeVar

from pycutlass import _core, config, device
from pycutlass.cache import KernelCache
from pycutlass.compiler.tools import device_compiler_release
from pycutlass.errors import ArgumentError, ArgumentTypeError, DescriptionError, ToolkitError
from pycutlass.toolkit import find_cutlass
from pycutlass.trials import Database, Machine, Trial
from pycutlass.trials.values import CONDITIONS, OTHER_CONDITIONS
from pycutlass.version import __version__

__all__ = ["Generation", "Recorded", "fastest_measured", "generation", "machine_of", "tuned"]

#: How many candidates of a problem are looked at, of which some may be none to this version of PyCUTLASS.
_LOOKED_AT = 32
_Kernel = TypeVar("_Kernel")


class Generation:
    """How often this process has measured: what was chosen before that is chosen anew."""

    @property
    def number(self) -> int:
        """It is counted where launches that wait are looked for."""
        return _core.generation()

    def begin(self) -> None:
        """Have what was chosen so far be chosen anew."""
        _core.begin_generation()
        _default_database.cache_clear()


#: One for the process, as plans that `matmul` makes are: a tuner changes what all of them would choose.
generation = Generation()


@lru_cache(maxsize=16)  # of the GPUs that are here: NVML and compilers take milliseconds to be asked
def machine_of(ordinal: int) -> Machine:
    """Return GPU `ordinal` as trials know it, with CUTLASS, the device compiler and our version.

    Raises
    ------
    DeviceError, ToolkitError
        There is no such GPU, or no compiler or no CUTLASS.
    """
    gpu = device.describe(ordinal)
    cutlass, compiler = find_cutlass().version, device_compiler_release(KernelCache(make=False).memo)
    limit = device.power_limit(ordinal)
    return Machine(gpu.name, gpu.sm_count, gpu.compute_capability, cutlass, compiler, __version__, limit)


@dataclass(frozen=True)
class Recorded(Generic[_Kernel]):
    """What is asked of a problem whose trials are looked up.

    Attributes
    ----------
    record : mapping
        What the database calls it.
    candidate_of : callable
        Returns the candidate of a trial's choice, or raises ArgumentError, ArgumentTypeError or
        DescriptionError.
    supports : callable
        Returns whether a candidate takes the problem.
    """

    record: Mapping[str, Any]
    candidate_of: Callable[[Mapping[str, Any]], _Kernel]
    supports: Callable[[_Kernel], object]


def fastest_measured(
    database: Database, machine: Machine, problem: Recorded[_Kernel], condition: str = "cold"
) -> tuple[_Kernel, Trial] | None:
    """Return the fastest candidate that was measured for a problem, with its trial; None where none was.

    What this version of PyCUTLASS does not describe any more, or does not run for this problem, is passed over.

    Raises
    ------
    CacheError
        The database was named and cannot be used.
    """
    trials = database.top(problem.record, machine, _LOOKED_AT, condition)
    for trial in trials:
        try:
            candidate = problem.candidate_of(json.loads(trial.candidate))
            is_supported = problem.supports(candidate)
        except (ArgumentError, ArgumentTypeError, DescriptionError):
            continue
        if is_supported:
            return candidate, trial
    return None


def tuned(problem_of: Callable[[str | None], Recorded[_Kernel]], source: str | None, ordinal: int) -> _Kernel | None:
    """Return what the user's database has as the fastest candidate on GPU `ordinal`, first with a cold L2 cache.

    Times with operands of a normal distribution count before those with others, and are not compared with them.

    None where nothing was measured, or nothing can be looked up: times are kept by the compiler that kernels were made
    with, so a machine without one has none.

    Parameters
    ----------
    problem_of : callable
        Returns what is asked of the problem with a C that a functor reads, or without.
    source : str or None
        That C. Where nothing was measured with it, what was measured without counts: the kernels are the same.
    ordinal : int
        The GPU.

    Raises
    ------
    CacheError
        The database was named, by ``PYCUTLASS_DATABASE``, and cannot be used.
    """
    database = _default_database(config.database_file() or config.cache_directory())
    if database.is_empty:  # as most are: no compiler has to be asked what it is
        return None
    try:
        machine = machine_of(ordinal)
    except ToolkitError:
        return None
    sources = [None] if source is None else [source, None]
    problems = [*map(problem_of, sources)]
    asked = itertools.chain(*(itertools.product(problems, each) for each in (CONDITIONS, OTHER_CONDITIONS)))
    found = (fastest_measured(database, machine, *each) for each in asked)
    return next((each[0] for each in found if each is not None), None)


@lru_cache(maxsize=2)  # a program has one, tests have others; it is only looked at
def _default_database(where: Path) -> Database:
    return Database(make=False)
