"""`tune`: the kernels of all regions of a model, measured in one run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from pycutlass.calls import counted, public
from pycutlass.errors import ArgumentError, PyCutlassError
from pycutlass.pytorch.options import Options
from pycutlass.pytorch.partitions import Partition, RegionModule, check_partitioned
from pycutlass.pytorch.regions.plans import database_of, gpu_of, inputs_of, is_here, plan_of, sizes_of
from pycutlass.pytorch.regions.region import Region
from pycutlass.pytorch.tables import computed, lines_of
from pycutlass.timing import DeviceTimer
from pycutlass.tuning import ProblemReport, TuningOptions, TuningReport
from pycutlass.tuning import tune as tune_problems
from pycutlass.tuning.problems import problems_of
from pycutlass.tuning.tunable import Tunable

__all__ = ["ModelTuning", "TunedRegion", "times_of", "tune"]

_SECONDS = 60.0  # for each problem, where the options say no budget
_SAME_NAMES = (
    *("use_3xtf32", "split_k_slices", "profile_all_alignments", "find_first_valid", "use_multiprocessing"),
    *("threads", "tmp_dir"),
)
_TITLES = ("region", "computes", "size", "kernel", "us", "GFLOP/s", "torch us", "speedup")


@dataclass(frozen=True)
class TunedRegion:
    """What came of tuning a region.

    Attributes
    ----------
    region : Region
        Of the partition.
    problem : str
        The size that was measured, in words.
    report : ProblemReport or None
        The ranking, which regions with the same problem share; None where no kernel takes it.
    reason : str
        Why there is no time; "" where there is one.
    apart, together : float or None
        Microseconds of the region by torch's operators, and by its own, called in turns on the same tensors; None where
        they were not measured.
    """

    region: Region
    problem: str
    report: ProblemReport | None = None
    reason: str = ""
    apart: float | None = None
    together: float | None = None

    @property
    def kernel(self) -> str:
        """The fastest kernel; "" where none was measured."""
        best = None if self.report is None else self.report.best
        return "" if best is None else best.name

    @property
    def microseconds(self) -> float | None:
        """Its median; None where none was measured."""
        return self.report.measured[0].median if self.report is not None and self.report.measured else None

    @property
    def gflops(self) -> float | None:
        """Billions of operations in a second."""
        if self.report is None or not self.report.measured:
            return None
        return self.report.gflops(self.report.measured[0])

    @property
    def speedup(self) -> float | None:
        """How many times faster than torch's operators the region is."""
        return self.apart / self.together if self.apart and self.together else None

    def row(self) -> tuple[str, ...]:
        """Return the cells of the table."""
        what = self.region.name, computed(self.region), self.problem
        if self.microseconds is None:
            return (*what, f"none: {self.reason}", "", "", "", "")
        apart = "" if self.apart is None else f"{self.apart:.2f}"
        speedup = "" if self.speedup is None else f"{self.speedup:.2f}"
        return (*what, self.kernel, f"{self.microseconds:.2f}", f"{self.gflops:,.0f}", apart, speedup)


@public
@dataclass(frozen=True)
class ModelTuning:
    """What came of tuning a model; `tune` makes it. Printed it is a table with a row for each region.

    Attributes
    ----------
    name : str
        The GPU.
    sizes : mapping
        The number that each symbol of an extent was tuned for.
    regions : tuple of TunedRegion
        In the order of the partition.
    report : TuningReport
        The rankings of all problems; regions with equal problems have one together.

    Examples
    --------
    >>> from pycutlass.pytorch.tuned import ModelTuning
    >>> from pycutlass.tuning import TuningReport
    >>> print(ModelTuning("NVIDIA H200", {}, (), TuningReport(())))
    0 regions, 0 problems on NVIDIA H200
    """

    name: str
    sizes: Mapping[str, int]
    regions: tuple[TunedRegion, ...]
    report: TuningReport

    def __getitem__(self, number: int) -> TunedRegion:
        return self.regions[number]

    def __len__(self) -> int:
        return len(self.regions)

    def __str__(self) -> str:
        sizes = "".join(f", {name} = {number}" for name, number in self.sizes.items())
        title = f"{counted(len(self), 'region')}, {counted(len(self.report), 'problem')} on {self.name}{sizes}"
        rows = [each.row() for each in self.regions]
        return "\n".join([title, *(lines_of(_TITLES, rows) if rows else ())])


@public
def tune(partitioned: Partition, options: Any = None, *, sizes: Mapping[str, int] | None = None) -> ModelTuning:
    """Measure which kernels are the fastest for the regions of a model, on the first GPU, in one run.

    Times are kept in the database where plans look, so that regions take the fastest kernels from then on, in this
    process and in others. Equal problems are tuned once, and what compiles for one is there for all.

    Parameters
    ----------
    partitioned : Partition
        What `partition` returns.
    options : Options or dict, optional
        How. Default: what the model was partitioned with.

        ``use_3xtf32``, ``split_k_slices``, ``profile_all_alignments``, ``find_first_valid``, ``use_multiprocessing``,
        ``threads`` and ``tmp_dir`` are those of `pycutlass.tuning.TuningOptions`. ``budget`` is the time for all
        regions together, by default a minute for each problem. Plans look into ``database`` where
        ``PYCUTLASS_DATABASE`` names it. ``use_fast_math`` says what regions compute, which `partition` has decided:
        another one is refused, and so is an ``sm`` that is not that of the GPU. ``min_gain`` and ``rest`` say nothing
        about kernels.
    sizes : dict, optional
        A number for each symbol of an extent that changes from call to call. Default: that of the example inputs, else
        the end of its range. For several sizes call it several times.

    Returns
    -------
    ModelTuning
        A row for each region, with the speedup over torch's own operators, measured.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        Something else than described, or a region that no kernel takes within the options: before anything is compiled.
    DeviceError, ToolkitError
        As of `pycutlass.tuning.tune`.

    Examples
    --------
    >>> import torch, pycutlass.pytorch
    >>> def tuned(model, inputs):
    ...     partitioned = pycutlass.pytorch.partition(model, inputs)
    ...     print(pycutlass.pytorch.tune(partitioned, {"find_first_valid": False, "budget": "5min"}))
    ...     return partitioned
    """
    check_partitioned("tune", partitioned)
    chosen = partitioned.options if options is None else Options.of(options)
    chosen.check_beside(partitioned.options)
    bound = sizes_of(partitioned.graph, partitioned.regions, sizes)
    problems = {each.name: _problem(each, bound) for each in partitioned.regions}
    distinct = list(dict.fromkeys(problems.values()))
    gpu = gpu_of(None)
    if not distinct:
        return ModelTuning(gpu.name, bound, (), TuningReport(()))
    if is_here(None) and not is_here(chosen.sm):
        raise ArgumentError(
            f"sm={chosen.sm} is not the compute capability of {gpu.name}, {gpu.compute_capability}, on which kernels "
            f"are measured: leave sm out, or tune where such a GPU is"
        )
    how = TuningOptions(**{name: getattr(chosen, name) for name in _SAME_NAMES})
    budget = _SECONDS * len(distinct) if chosen.budget is None else chosen.budget
    report = tune_problems(distinct, budget, options=how, database=database_of(chosen.database))
    of_problem = dict(zip(distinct, report.problems, strict=True))
    regions = []
    for region in partitioned.regions:
        module: Any = partitioned.get_submodule(region.name)
        regions.append(_tuned(region, bound, of_problem[problems[region.name]], module))
    return ModelTuning(gpu.name, bound, tuple(regions), report)


def _problem(region: Region, sizes: Mapping[str, int]) -> Tunable:
    """Return what is tuned for a region."""
    try:
        return problems_of(plan_of(region, sizes))[0]
    except PyCutlassError as error:
        raise ArgumentError(f"{region.name}, {region.product}, has no kernel to tune: {error}") from error


def _tuned(region: Region, sizes: Mapping[str, int], report: ProblemReport, module: RegionModule) -> TunedRegion:
    """Return a row, with what the region takes beside torch's operators."""
    size = str(region.problem.bound(**{name: sizes[name] for name in region.problem.symbols}))
    if not report.measured:
        reasons = [each.reason for each in report.contestants if each.reason]
        return TunedRegion(region, size, report, reasons[0] if reasons else "the budget was over before")
    apart, together = times_of(module, inputs_of(module.fused.graph, sizes, "cuda"))
    return TunedRegion(region, size, report, "", apart, together)


def times_of(module: RegionModule, inputs: tuple[Any, ...]) -> tuple[float, float]:
    """Return the microseconds of a region by torch's operators, and by its own, called in turns."""
    works = {"apart": lambda: module.plain(*inputs), "together": lambda: module.fused(*inputs)}
    with torch.no_grad():
        times = DeviceTimer(cold_l2=True).compare(works)
    return times["apart"].median, times["together"].median
