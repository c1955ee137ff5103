"""``pycutlass tune`` and ``pycutlass profile``: which kernel is the fastest, measured."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from pycutlass import device
from pycutlass.calls import counted
from pycutlass.cli.output import AsCsv, AsJson, print_csv, print_json, print_table
from pycutlass.cli.problems import (
    Batch,
    Channels,
    ConvKind,
    Dtype,
    EpilogueName,
    FilterColumns,
    FilterRows,
    Groups,
    ImageColumns,
    ImageRows,
    Layout,
    OutDtype,
    Pair,
    SizeK,
    SizeM,
    SizeN,
    Sizes,
    Source,
    problem_named,
    sizes_of,
)
from pycutlass.errors import DeviceError
from pycutlass.trials import Database
from pycutlass.tuning import ProblemReport, TuningOptions, compile_candidates, tune
from pycutlass.tuning.files import read_problems
from pycutlass.tuning.options import seconds_of

__all__ = ["profile", "tune_file"]

_ALL = 10_000  # candidates; there are some hundreds

Budget = Annotated[str, typer.Option(help="Time for all problems together: seconds, or for example 60s, 5min, 1h.")]
Named = Annotated[
    Path | None,
    typer.Option(
        "--database", help="File of measured times. Default: what PYCUTLASS_DATABASE names, else that of the cache."
    ),
]
Candidates = Annotated[int, typer.Option(min=1, help="How many candidates of each problem are compiled.")]
Slices = Annotated[str | None, typer.Option("--split-k-slices", help="Into how many slices K may be divided: 1,2,4.")]
Warm = Annotated[bool, typer.Option("--warm-l2", help="Measure with operands in the L2 cache, as far as they fit.")]
AllAlignments = Annotated[bool, typer.Option(help="Try kernels for smaller alignments, too.")]
Threads = Annotated[int, typer.Option(help="Compilers to run at once; -1: as cores and memory allow.")]
Several = Annotated[
    bool, typer.Option("--use-multiprocessing/--no-multiprocessing", help="Compile several kernels at once, or one.")
]
TmpDir = Annotated[Path | None, typer.Option(help="Directory for the output of measuring processes.")]
Again = Annotated[bool, typer.Option("--again", help="Measure what the database knows already, too.")]


def tune_file(
    file: Annotated[
        Path,
        typer.Argument(help="CSV file with the columns m,n,k, or n,h,w,c,k,r,s, or problem_sizes."),
    ],
    budget: Budget = "60s",
    database: Named = None,
    candidates: Candidates = 16,
    split_k_slices: Slices = None,
    use_3xtf32: Annotated[
        bool, typer.Option("--use-3xtf32/--no-3xtf32", help="Multiply float32 by 3xTF32, or by one TF32 product.")
    ] = True,
    profile_all_alignments: AllAlignments = False,
    find_first_valid: Annotated[bool, typer.Option(help="Take the first candidate that works.")] = False,
    use_multiprocessing: Several = True,
    threads: Threads = -1,
    tmp_dir: TmpDir = None,
    warm_l2: Warm = False,
    again: Again = False,
    compile_only: Annotated[bool, typer.Option("--compile-only", help="Compile candidates: no GPU is needed.")] = False,
    as_json: AsJson = False,
    as_csv: AsCsv = False,
) -> None:
    """Find the fastest kernel of each problem of a file, and keep the times in the database.

    With --compile-only, on a machine without a GPU, PYCUTLASS_TARGET says what to compile for.
    """
    _check_format(as_json, as_csv)
    if compile_only and (as_json or as_csv):
        raise typer.BadParameter("--compile-only measures nothing that --json or --csv could print: leave one out")
    options = TuningOptions(
        use_3xtf32=use_3xtf32,
        split_k_slices=_integers(split_k_slices),
        profile_all_alignments=profile_all_alignments,
        find_first_valid=find_first_valid,
        use_multiprocessing=use_multiprocessing,
        tmp_dir=tmp_dir,
        threads=threads,
        most_candidates=candidates,
        cold_l2=not warm_l2,
        again=again,
    )
    seconds_of(budget)
    problems = read_problems(file)
    if compile_only:
        made, failures = compile_candidates(problems, options=options)
        for failure in failures:
            typer.echo(failure, err=True)
        typer.echo(f"{counted(made, 'candidate')} in the cache, {len(failures)} did not compile")
        if not made:
            raise typer.Exit(1)
        return
    _require_gpu("Measuring needs one; --compile-only compiles the candidates without it")
    reports = tune(problems, budget, options=options, database=_database(database)).problems
    _print_reports(reports, as_json, as_csv)


def profile(
    m: SizeM = None,
    n: SizeN = None,
    k: SizeK = None,
    batch: Batch = None,
    problem_sizes: Sizes = None,
    problem_sizes_file: Annotated[
        Path | None, typer.Option(help="A file with them, separated by spaces or lines.")
    ] = None,
    h: ImageRows = None,
    w: ImageColumns = None,
    c: Channels = None,
    r: FilterRows = None,
    s: FilterColumns = None,
    conv_kind: ConvKind = None,
    stride: Pair = None,
    pad: Pair = None,
    dilation: Pair = None,
    groups: Groups = None,
    dtype: Dtype = None,
    out_dtype: OutDtype = None,
    layout: Layout = None,
    epilogue: EpilogueName = None,
    source: Source = None,
    budget: Budget = "10min",
    database: Named = None,
    split_k_slices: Slices = None,
    profile_all_alignments: AllAlignments = False,
    use_multiprocessing: Several = True,
    threads: Threads = -1,
    tmp_dir: TmpDir = None,
    warm_l2: Warm = False,
    again: Again = False,
    as_json: AsJson = False,
    as_csv: AsCsv = False,
) -> None:
    """Measure all candidates of one GEMM, group or convolution, and cuBLAS or cuDNN in the same rounds.

    The vendor's library is called by torch; where that is not installed or computes something else, the last line says
    so.
    """
    if problem_sizes_file is not None:
        problem_sizes = sizes_of(problem_sizes, problem_sizes_file)
    given = {
        **{"m": m, "n": n, "k": k, "batch": batch, "problem_sizes": problem_sizes},
        **{"h": h, "w": w, "c": c, "r": r, "s": s, "kind": conv_kind},
        **{"stride": stride, "padding": pad, "dilation": dilation, "groups": groups},
        **{"dtype": dtype, "out_dtype": out_dtype, "layout": layout, "epilogue": epilogue, "source": source},
    }
    problem = problem_named(given, problem_sizes_file)
    _check_format(as_json, as_csv)
    seconds_of(budget)
    options = TuningOptions(
        split_k_slices=_integers(split_k_slices),
        profile_all_alignments=profile_all_alignments,
        use_multiprocessing=use_multiprocessing,
        threads=threads,
        tmp_dir=tmp_dir,
        most_candidates=_ALL,
        cold_l2=not warm_l2,
        again=again,
        vendor=True,
    )
    _require_gpu("Measuring needs one; `pycutlass tune --compile-only` compiles without it")
    _print_reports(tune(problem, budget, options=options, database=_database(database)).problems, as_json, as_csv)


def _require_gpu(instead: str) -> None:
    """Raise DeviceError where no GPU can be used, with what works without one."""
    try:
        device.require()
    except DeviceError as error:
        raise DeviceError(f"{error}. {instead}") from None


def _check_format(as_json: bool, as_csv: bool) -> None:
    if as_json and as_csv:
        raise typer.BadParameter("--json and --csv are both given: leave one out")


def _print_reports(reports: tuple[ProblemReport, ...], as_json: bool, as_csv: bool) -> None:
    facts = [each for report in reports for each in report.facts()]
    if as_json:
        print_json(facts)
    elif as_csv:
        print_csv(facts)
    for number, report in enumerate(() if as_json or as_csv else reports):
        if number:
            typer.echo("")
        typer.echo(report.title)
        print_table(report.titles, report.rows())
        if report.remark:
            typer.echo(report.remark)
    if not any(report.measured for report in reports):
        typer.echo("nothing was measured: give more time with --budget", err=True)
        raise typer.Exit(1)


def _database(path: Path | None) -> Database | None:
    return None if path is None else Database(path)


def _integers(text: str | None) -> tuple[int, ...] | None:
    if text is None:
        return None
    parts = text.split(",")
    if not all(part.strip().isdecimal() for part in parts):
        raise typer.BadParameter(f"--split-k-slices takes integers between commas, such as 1,2,4; got {text!r}")
    return tuple(map(int, parts))
