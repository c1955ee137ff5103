"""What the database of trials calls a problem and a machine, and which candidate was the fastest there."""

from __future__ import annotations

import hashlib
import json
from functools import lru_cache
from pathlib import Path
from typing import Any

from pycutlass import _core, config, device
from pycutlass.cache import KernelCache
from pycutlass.compiler.tools import device_compiler_release
from pycutlass.epilogue import Epilogue
from pycutlass.errors import ArgumentError, ArgumentTypeError, DescriptionError, ToolkitError
from pycutlass.library import TensorDescription
from pycutlass.plan.candidate import Candidate
from pycutlass.plan.kind import GemmKind
from pycutlass.toolkit import find_cutlass
from pycutlass.trials import Database, Machine, Trial
from pycutlass.trials.values import CONDITIONS
from pycutlass.types import element
from pycutlass.version import __version__

__all__ = ["Generation", "fastest_measured", "generation", "machine_of", "problem_record", "tuned"]

#: How many candidates of a problem are looked at, of which some may be none to this version of PyCUTLASS.
_LOOKED_AT = 8


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


def problem_record(kind: GemmKind, m: int, n: int, k: int, batch: int | None = None) -> dict[str, Any]:
    """Return all of a problem that a time depends on, in JSON's types.

    Parameters
    ----------
    kind : GemmKind
        Types, layouts, alignments and epilogue.
    m, n, k : int
        Extents.
    batch : int, optional
        Number of matrices.
    """
    a, b, sums = (element(tag).short for tag in (kind.element_a, kind.element_b, kind.element_accumulator))
    return {
        "product": "gemm",
        "m": m,
        "n": n,
        "k": k,
        "batch": batch,
        **{name: _tensor_record(getattr(kind, name)) for name in ("A", "B", "C", "D")},
        "multiplied": f"{a} x {b} -> {sums}, {kind.math_operation.name}",
        "epilogue": _epilogue_record(kind.epilogue),
    }


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


def fastest_measured(
    database: Database,
    machine: Machine,
    kind: GemmKind,
    size: tuple[int, int, int],
    batch: int | None = None,
    condition: str = "cold",
) -> tuple[Candidate, Trial] | None:
    """Return the fastest candidate that was measured for a problem, with its trial; None where none was.

    What this version of PyCUTLASS does not describe any more, or does not run for this problem, is passed over.

    Raises
    ------
    CacheError
        The database was named and cannot be used.
    """
    trials = database.top(problem_record(kind, *size, batch), machine, _LOOKED_AT, condition)
    for trial in trials:
        try:
            candidate = Candidate.of(kind, json.loads(trial.candidate))
            is_supported = candidate.operation.supports(candidate.size(*size, batch))
        except (ArgumentError, ArgumentTypeError, DescriptionError):
            continue
        if is_supported:
            return candidate, trial
    return None


def tuned(kind: GemmKind, size: tuple[int, int, int], batch: int | None, ordinal: int) -> Candidate | None:
    """Return what the user's database has as the fastest candidate on GPU `ordinal`, first with a cold L2 cache.

    None where nothing was measured, or nothing can be looked up: times are kept by the compiler that kernels were made
    with, so a machine without one has none.

    Raises
    ------
    CacheError
        The database was named, by ``PYCUTLASS_DATABASE``, and cannot be used.
    """
    try:
        machine = machine_of(ordinal)
    except ToolkitError:
        return None
    database = _default_database(config.database_file() or config.cache_directory())
    found = (fastest_measured(database, machine, kind, size, batch, condition) for condition in CONDITIONS)
    return next((each[0] for each in found if each is not None), None)


@lru_cache(maxsize=2)  # a program has one, tests have others; it is only looked at
def _default_database(where: Path) -> Database:
    return Database(make=False)


def _tensor_record(tensor: TensorDescription) -> str:
    return f"{tensor.type.short} {tensor.order.short} align {tensor.alignment}"


def _epilogue_record(epilogue: Epilogue) -> str:
    """Return what tells epilogues apart: two functions of one name are two epilogues."""
    graph = getattr(epilogue, "graph", None)
    if graph is None:
        return repr(epilogue)
    return f"{epilogue!r} {hashlib.sha256(repr(graph).encode()).hexdigest()[:16]}"
