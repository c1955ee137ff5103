"""What there is to know of a region's kernel: which it is, how long it takes, what it is made of."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pycutlass import compiler, device
from pycutlass.cache import Artifact
from pycutlass.compiler.listings import compiled_before, ptx_of
from pycutlass.device import Device
from pycutlass.errors import PyCutlassError, ToolkitError
from pycutlass.plan.alignments import choice_in, name_in
from pycutlass.plan.measured import machine_of
from pycutlass.plan.roofline import Roofline
from pycutlass.pytorch.regions.plans import plan_of
from pycutlass.pytorch.regions.region import Region
from pycutlass.report import BuildReport
from pycutlass.toolkit import disassembled
from pycutlass.trials import Database
from pycutlass.trials.values import CONDITIONS, OTHER_CONDITIONS
from pycutlass.tuning.problems import problems_of
from pycutlass.tuning.tunable import Tunable

__all__ = ["KernelFacts", "RegionFacts", "facts_of"]

_SHOWN = 8  # candidates of a ranking


@dataclass(frozen=True)
class KernelFacts:
    """One kernel that a region launches.

    Attributes
    ----------
    name : str
        Symbol of the kernel.
    target : str
        What it is built for.
    source : str
        The generated C++.
    report : tuple of (str, str)
        What its build said, in lines of a table; nothing where it is not compiled.
    sass, ptx : str
        Machine code, and PTX; "" where there is none.
    missing : str
        Why some of it is not here; "" where all is.
    """

    name: str
    target: str
    source: str
    report: tuple[tuple[str, str], ...] = ()
    sass: str = ""
    ptx: str = ""
    missing: str = ""


@dataclass(frozen=True)
class RegionFacts:
    """A region with its kernel.

    Attributes
    ----------
    region : Region
        What is computed.
    problem : str
        The size that is explained, in words.
    refusal : str
        Why no kernel takes it; "" where one does, and all else is known.
    kernel : str
        The pick.
    description : tuple of (str, str)
        What describes it, in lines of a table.
    measured, predicted : float or None
        Microseconds: from the database of the tuner, and by the model.
    limit : str
        What limits the kernel, by the model.
    roofline : Roofline or None
        The least time.
    operations : float
        Multiplications and additions.
    considered : tuple of (str, float)
        The likely fastest kernels, with what is predicted of each.
    candidates : int
        How many take the problem.
    kernels : tuple of KernelFacts
        What is launched.
    """

    region: Region
    problem: str
    refusal: str = ""
    kernel: str = ""
    description: tuple[tuple[str, str], ...] = ()
    measured: float | None = None
    predicted: float | None = None
    limit: str = ""
    roofline: Roofline | None = None
    operations: float = 0.0
    considered: tuple[tuple[str, float], ...] = ()
    candidates: int = 0
    kernels: tuple[KernelFacts, ...] = field(default=())

    @property
    def microseconds(self) -> float | None:
        """The time: measured if it was, else predicted; None where neither is known."""
        return self.predicted if self.measured is None else self.measured

    @property
    def share(self) -> float | None:
        """Which share of what the GPU can do the kernel reaches."""
        if self.roofline is None or not self.microseconds:
            return None
        return self.roofline.microseconds / self.microseconds

    @property
    def gflops(self) -> float | None:
        """Billions of operations in a second."""
        return self.operations / self.microseconds / 1e3 if self.microseconds else None


def facts_of(
    region: Region, sizes: Mapping[str, int], gpu: Device, *, is_here: bool, compile: bool, database: Any = None
) -> RegionFacts:
    """Return what there is to know of a region's kernel.

    Parameters
    ----------
    region : Region
        Of a partition.
    sizes : mapping
        A number for each symbol.
    gpu : Device
        Which the kernel is chosen for.
    is_here : bool
        Whether that is the current GPU, for which plans and the database are asked.
    compile : bool
        Whether kernels are compiled that are not yet, and their PTX is made.
    database : Database, optional
        Where measured times are. Default: that of the user.
    """
    size = str(region.problem.bound(**{name: sizes[name] for name in region.problem.symbols}))
    try:
        plan = plan_of(region, sizes)
        [problem] = problems_of(plan)
        chosen = plan.candidate if is_here else problem.picked(gpu)
        ranked = problem.ranked(gpu)
    except PyCutlassError as error:
        return RegionFacts(region, size, refusal=str(error))
    of_chosen = next((each for each in ranked if each.candidate == chosen), None)
    instruction = chosen.operation.tile_description.math_instruction
    return RegionFacts(
        region,
        size,
        kernel=name_in(problem.kind, chosen),
        description=_description(chosen),
        measured=_measured(problem, chosen, database) if is_here else None,
        predicted=None if of_chosen is None else of_chosen.microseconds,
        limit="" if of_chosen is None else of_chosen.note,
        roofline=Roofline.of(instruction, problem.operations, problem.bytes, gpu),
        operations=problem.operations,
        considered=tuple((each.candidate.name, each.microseconds) for each in ranked[:_SHOWN]),
        candidates=len(ranked),
        kernels=tuple(_kernel(each, gpu, compile) for each in chosen.kernels),
    )


def _measured(problem: Tunable, chosen: Any, database: Any) -> float | None:
    """Return the median that the tuner has measured of a candidate; None where it has not."""
    try:
        machine = machine_of(device.current())
    except ToolkitError:  # times are kept by the compiler that made the kernels, and there is none
        return None
    trials = Database(make=False) if database is None else database
    for condition in (*CONDITIONS, *OTHER_CONDITIONS):
        asked: dict[str, Any] = {
            "candidate": choice_in(problem.kind, chosen),
            "machine": machine,
            "condition": condition,
            "status": "ok",
        }
        found = trials.trials(problem=problem.record(), **asked)
        if found:
            return found[-1].time
    return None


def _description(chosen: Any) -> tuple[tuple[str, str], ...]:
    """Return what describes a kernel, one line for each part."""
    operation = chosen.operation
    tile = operation.tile_description
    lines = {"operation": type(operation).__name__, "name": operation.procedural_name()}
    lines |= {"tile": repr(tile), "math instruction": repr(tile.math_instruction)}
    lines |= {name: repr(getattr(operation, name)) for name in ("A", "B", "C", "D") if hasattr(operation, name)}
    lines["epilogue"] = repr(operation.epilogue_functor)
    lines |= {name.replace("_", " "): str(value) for name, value in chosen.choice().items()}
    return tuple(lines.items())


def _kernel(operation: Any, gpu: Device, compile: bool) -> KernelFacts:
    """Return what a kernel is made of, as far as it is there or may be compiled."""
    source = operation.source()
    target = f"{gpu.target}{'a' if source.native else ''}"
    made = KernelFacts(source.name, target, source.text)
    try:
        artifact = compiled_before(operation, target)
        if artifact is None and not compile:
            return dataclasses.replace(
                made, missing="It is not compiled yet: explain(..., compile=True) compiles what has no machine code."
            )
        if artifact is None:
            [artifact] = compiler.add_module([operation], target=target)
        made = dataclasses.replace(made, report=_report(artifact), **_machine_code(artifact))
        if not compile:
            note = "PTX is not kept beside machine code: explain(..., compile=True) makes it."
            return dataclasses.replace(made, missing=f"{made.missing} {note}".strip())
        return dataclasses.replace(made, ptx=ptx_of(operation, target))
    except PyCutlassError as error:
        return dataclasses.replace(made, missing=f"{made.missing} {error}".strip())


def _machine_code(artifact: Artifact) -> dict[str, str]:
    try:
        return {"sass": disassembled(artifact.cubin)}
    except ToolkitError as error:
        return {"missing": str(error)}


def _report(artifact: Artifact) -> tuple[tuple[str, str], ...]:
    """Return what the build said as lines of a table."""
    try:
        report = BuildReport.from_json(artifact.report)
    except ValueError as error:
        return (("damaged", str(error)),)
    lines = []
    for name, value in dataclasses.asdict(report).items():
        if isinstance(value, tuple | list):
            value = "; ".join(map(str, value)) or "none"
        lines.append((name.replace("_", " "), f"{value:,}" if type(value) is int else str(value)))
    return tuple(lines)
