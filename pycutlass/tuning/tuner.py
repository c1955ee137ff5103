"""The story of `tune`: choose candidates, compile them, measure what is ready, keep what is known."""

from __future__ import annotations

import contextlib
import functools
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from pycutlass import device
from pycutlass.calls import public, shown
from pycutlass.device import Device
from pycutlass.errors import ArgumentTypeError, DeviceError
from pycutlass.plan.constants import present_or_named
from pycutlass.plan.measured import generation, machine_of
from pycutlass.trials import Database
from pycutlass.tuning.compiling import FarmCompiling, LocalCompiling
from pycutlass.tuning.known import Known
from pycutlass.tuning.measuring import ChildMeasurer, Measurer
from pycutlass.tuning.options import TuningOptions, seconds_of
from pycutlass.tuning.problems import considered, problems_of, with_options
from pycutlass.tuning.progress import shown_progress
from pycutlass.tuning.race import Compiling, Contestant, Race
from pycutlass.tuning.report import ProblemReport, TuningReport
from pycutlass.tuning.tunable import Tunable
from pycutlass.tuning.turns import Turn, Turns
from pycutlass.tuning.vendor import Vendor

__all__ = ["chosen_options", "compile_candidates", "tune", "tune_problem"]


@public
def tune(
    problems: Tunable | Iterable[Tunable] | Any,
    budget: float | str = "60s",
    *,
    options: TuningOptions | None = None,
    database: Database | None = None,
    executor: Any = None,
    **changes: Any,
) -> TuningReport:
    """Measure which candidates are the fastest for problems, on the first GPU, and keep the times in the database.

    The best candidates by the prediction are compiled, and those that are ready are measured meanwhile, in a process of
    its own: what hangs or crashes there costs only itself. Results are compared with a reference first. Candidates
    take turns, each round in another order, and those that cannot be the fastest any more are let go. Of several
    problems the kernels of the next are compiled once those of the one that is measured are.

    Parameters
    ----------
    problems : Problem, Conv2dProblem, GroupProblem, plan, or several of them
        What is to be computed: products, convolutions, groups of products.
    budget : float or str
        Seconds for all problems together, or text such as ``"60s"``, ``"5min"`` or ``"1h"``. What a problem leaves is
        for those behind it.
    options : TuningOptions, optional
        How.
    database : Database, optional
        Where times are kept. Default: that of the user.
    executor : concurrent.futures.Executor, optional
        Where kernels are compiled: a pool of processes, ``client.get_executor()`` of Dask, a `RayExecutor`, an
        ``MPIPoolExecutor`` of mpi4py. Default: on this machine.
    **changes
        Options by name, in place of those of `options`.

    Returns
    -------
    TuningReport
        The ranking of each problem.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        Something else than described, or a problem that no kernel takes: before anything is compiled.
    DeviceError
        There is no GPU, or another one than the first is current: before anything is compiled. Or the process that
        measures cannot start.
    ToolkitError
        There is no compiler, or the executor takes no jobs.

    Examples
    --------
    >>> import pycutlass
    >>> from pycutlass.tuning import tune
    >>> def best_of(problem):
    ...     return tune(problem, "30s", split_k_slices=[1], most_candidates=8).best[0]
    """
    chosen = chosen_options(options).changed(**changes)
    seconds, listed = seconds_of(budget), [with_options(each, chosen) for each in problems_of(problems)]
    try:
        device.require()
    except DeviceError as error:
        without = "pycutlass.tuning.compile_candidates compiles the candidates without it"
        raise DeviceError(f"{error}. Measuring needs one; {without}") from None
    gpu = _first_gpu()
    known = Known(Database() if database is None else database, machine_of(gpu.ordinal), chosen)
    candidates = [considered(each, chosen, gpu, known.fastest(each)) for each in listed]
    deadline, reports = time.monotonic() + seconds, []
    turns = [
        Turn(problem, [Contestant(*each) for each in found]) for problem, found in zip(listed, candidates, strict=True)
    ]
    with shown_progress(len(listed), deadline) as progress, Turns(turns) as prepared:
        for number, turn in enumerate(turns):
            now = time.monotonic()
            until = now + max(deadline - now, 0.0) / (len(listed) - number)
            how: dict[str, Any] = {"executor": executor, "show": progress(turn.problem.name), "turns": prepared}
            reports.append(tune_problem(turn.problem, turn.contestants, gpu, chosen, until, known, **how))
    generation.begin()  # plans of this process choose anew
    return TuningReport(tuple(reports))


def tune_problem(
    problem: Tunable,
    contestants: Sequence[Contestant],
    gpu: Device,
    options: TuningOptions,
    deadline: float,
    known: Known,
    *,
    executor: Any = None,
    measurer: Callable[[Tunable, TuningOptions], Measurer] = ChildMeasurer,
    compiling: Callable[..., Compiling] | None = None,
    show: Callable[[Sequence[Contestant]], None] = lambda contestants: None,
    turns: Turns | None = None,
) -> ProblemReport:
    """Tune one problem until a moment of `time.monotonic`; what is measured meanwhile is kept whatever happens.

    It is the next one of `turns`, where there are others.
    """

    def begin(turn: Turn) -> None:
        make = compiling or _compiling
        turn.begin(
            known, lambda several: make(several, gpu.target, options, executor), lambda each: measurer(each, options)
        )

    alone = contextlib.nullcontext(turns) if turns is not None else Turns([Turn(problem, contestants)])
    with alone as prepared:
        return _measured(prepared.take(begin), gpu, options, deadline, known, show)


def _measured(
    turn: Turn,
    gpu: Device,
    options: TuningOptions,
    deadline: float,
    known: Known,
    show: Callable[[Sequence[Contestant]], None],
) -> ProblemReport:
    """Measure a problem that is prepared until a moment, and end its turn."""
    begun, problem, contestants = time.monotonic(), turn.problem, turn.contestants
    vendor = Vendor.of(problem) if options.vendor else None
    try:
        if turn.kernels is not None and turn.measurer is not None:
            keep = functools.partial(known.keep, problem)
            Race(turn.ours, turn.kernels, turn.measurer, options, deadline, keep, show, vendor).run()
    finally:
        turn.end()
    known.recall(problem, contestants)
    mine = {id(each) for each in turn.ours}
    elsewhere = sum(id(each) not in mine and each.status == "waiting" for each in contestants)
    ordered = tuple(sorted(contestants, key=lambda each: (each.median, each.predicted)))
    return ProblemReport(problem, gpu, ordered, elsewhere, time.monotonic() - begun, vendor)


@public
def compile_candidates(
    problems: Tunable | Iterable[Tunable] | Any,
    *,
    options: TuningOptions | None = None,
    target: str | None = None,
    executor: Any = None,
    **changes: Any,
) -> tuple[int, list[str]]:
    """Compile what `tune` would measure, on a machine that need not have a GPU.

    On one without, the variable ``PYCUTLASS_TARGET`` names what for. The kernels are in the cache then;
    ``pycutlass cache export`` carries them to the machine that measures.

    Parameters
    ----------
    problems, options, executor, **changes
        As of `tune`.
    target : str, optional
        What they are built for. Default: the GPU that they are chosen for.

    Returns
    -------
    int, list of str
        How many candidates have compiled, and why the others have not.

    Raises
    ------
    ArgumentError, ArgumentTypeError, DeviceError, ToolkitError
        As of `tune`; DeviceError where there is no GPU and no target is named.
    """
    chosen = chosen_options(options).changed(**changes)
    gpu, listed = present_or_named(), [with_options(each, chosen) for each in problems_of(problems)]
    candidates = list(dict.fromkeys(each[0] for problem in listed for each in considered(problem, chosen, gpu)))
    kernels, failures, made = _compiling(candidates, target or gpu.target, chosen, executor), [], 0
    try:
        while not kernels.is_done:
            for number, result in kernels.ready(1.0):
                if isinstance(result, str):
                    failures.append(f"{candidates[number].name}: {result}")
                else:
                    made += 1
    finally:
        kernels.close()
    return made, failures


def _compiling(candidates: Sequence[Any], target: str, options: TuningOptions, executor: Any) -> Compiling:
    if executor is None:
        return LocalCompiling(candidates, target, options.jobs, options.tmp_dir)
    return FarmCompiling(candidates, target, executor)


def _first_gpu() -> Device:
    """Return the GPU that is measured: processes that measure begin with the first one as the current one."""
    current = device.current()
    if current:
        raise DeviceError(
            f"the tuner measures on the first GPU, 0, and GPU {current} is current: make 0 current, or set "
            f"CUDA_VISIBLE_DEVICES so that the GPU that is meant is the first"
        )
    return device.describe(current)


def chosen_options(options: TuningOptions | None) -> TuningOptions:
    """Return the options that are given, or the usual ones; raise where they are something else."""
    if options is None:
        return TuningOptions()
    if not isinstance(options, TuningOptions):
        raise ArgumentTypeError(f"options must be pycutlass.tuning.TuningOptions, got {shown(options)}")
    return options
