"""``pycutlass tune`` and ``pycutlass profile``: which kernel is the fastest, measured."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from pycutlass import device
from pycutlass.calls import counted
from pycutlass.cli.output import print_table
from pycutlass.timing import DeviceTimer
from pycutlass.trials import Database
from pycutlass.tuning import Problem, ProblemReport, TuningOptions, compile_candidates, tune
from pycutlass.tuning.files import read_problems
from pycutlass.tuning.named import DTYPES, LAYOUTS, problem_of
from pycutlass.tuning.report import TITLES

__all__ = ["profile", "tune_file"]

_ALL = 10_000  # candidates; there are some hundreds

Budget = Annotated[str, typer.Option(help="Time for all problems together: seconds, or for example 60s, 5min, 1h.")]
Named = Annotated[
    Path | None,
    typer.Option("--database", help="Its file. Default: what PYCUTLASS_DATABASE names, else that of the cache."),
]
Candidates = Annotated[int, typer.Option(min=1, help="How many candidates of each problem are compiled.")]
Slices = Annotated[str | None, typer.Option("--split-k-slices", help="Into how many slices K may be divided: 1,2,4.")]
Warm = Annotated[bool, typer.Option("--warm-l2", help="Measure with operands in the L2 cache, as far as they fit.")]
Again = Annotated[bool, typer.Option("--again", help="Measure what the database knows already, too.")]


def tune_file(
    file: Annotated[Path, typer.Argument(help="CSV with the titles m,n,k of GEMMs, or n,h,w,c,k,r,s of convolutions.")],
    budget: Budget = "60s",
    database: Named = None,
    candidates: Candidates = 16,
    split_k_slices: Slices = None,
    use_3xtf32: Annotated[bool, typer.Option("--use-3xtf32/--no-3xtf32", help="3xTF32, or one TF32 product.")] = True,
    profile_all_alignments: Annotated[bool, typer.Option(help="Kernels for lesser alignments, too.")] = False,
    find_first_valid: Annotated[bool, typer.Option(help="Take the first candidate that works.")] = False,
    threads: Annotated[int, typer.Option(help="Compilers at once; -1: as cores and memory carry.")] = -1,
    tmp_dir: Annotated[Path | None, typer.Option(help="Directory for what measuring processes print.")] = None,
    warm_l2: Warm = False,
    again: Again = False,
    compile_only: Annotated[bool, typer.Option("--compile-only", help="Compile candidates: no GPU is needed.")] = False,
) -> None:
    """Find the fastest kernel of each problem of a file, and keep the times in the database.

    With --compile-only, on a machine without a GPU, PYCUTLASS_TARGET says what to compile for.
    """
    options = TuningOptions(
        use_3xtf32=use_3xtf32,
        split_k_slices=_integers(split_k_slices),
        profile_all_alignments=profile_all_alignments,
        find_first_valid=find_first_valid,
        tmp_dir=tmp_dir,
        threads=threads,
        most_candidates=candidates,
        cold_l2=not warm_l2,
        again=again,
    )
    problems = read_problems(file)
    if compile_only:
        made, failures = compile_candidates(problems, options=options)
        for failure in failures:
            typer.echo(failure, err=True)
        typer.echo(f"{counted(made, 'candidate')} in the cache, {len(failures)} did not compile")
        if not made:
            raise typer.Exit(1)
        return
    device.require()
    _print_reports(tune(problems, budget, options=options, database=_database(database)).problems)


def profile(
    m: Annotated[int, typer.Option(min=1, help="Rows of A and D.")],
    n: Annotated[int, typer.Option(min=1, help="Columns of B and D.")],
    k: Annotated[int, typer.Option(min=1, help="Columns of A, rows of B.")],
    batch: Annotated[int | None, typer.Option(min=1, help="Number of matrices.")] = None,
    dtype: Annotated[str, typer.Option(help=f"What is multiplied: {', '.join(DTYPES)}.")] = "float16",
    out_dtype: Annotated[str, typer.Option(help="Type of D. Default: by --dtype.")] = "",
    layout: Annotated[str, typer.Option(help=f"Of A and B, t by rows, n by columns: {', '.join(LAYOUTS)}.")] = "tn",
    budget: Budget = "10min",
    database: Named = None,
    split_k_slices: Slices = None,
    warm_l2: Warm = False,
    again: Again = False,
) -> None:
    """Measure all candidates of one GEMM; beside them cuBLAS, where torch is installed and has a GPU."""
    problem = problem_of(m, n, k, batch, dtype, out_dtype, layout)
    device.require()
    options = TuningOptions(
        split_k_slices=_integers(split_k_slices), most_candidates=_ALL, cold_l2=not warm_l2, again=again
    )
    report = tune(problem, budget, options=options, database=_database(database))[0]
    _print_reports((report,))
    cublas = _cublas(problem, dtype, layout, options)
    if cublas is not None:
        best = report.measured[0].median if report.measured else None
        beside = "" if best is None else f"; the best candidate has {cublas / best:.2f} times its speed"
        typer.echo(f"\ncuBLAS, by torch: {cublas:.2f} us, {problem.operations / cublas / 1e3:,.0f} GFLOP/s{beside}")


def _print_reports(reports: tuple[ProblemReport, ...]) -> None:
    for number, report in enumerate(reports):
        if number:
            typer.echo("")
        typer.echo(report.title)
        print_table(TITLES, report.rows())
    if not any(report.measured for report in reports):
        typer.echo("nothing was measured: give more time with --budget", err=True)
        raise typer.Exit(1)


def _cublas(problem: Problem, dtype: str, layout: str, options: TuningOptions) -> float | None:
    """Return the microseconds of torch's product of the same types; None where torch has none or no GPU."""
    try:
        import torch
    except ImportError:
        return None
    kind = {"float16": torch.float16, "bfloat16": torch.bfloat16, "float32": torch.float32, "tf32": torch.float32}
    if dtype not in kind or not torch.cuda.is_available() or problem.kind.D.type is not problem.kind.A.type:
        return None
    batch = () if problem.batch is None else (problem.batch,)
    lengths = ((problem.m, problem.k), (problem.k, problem.n))
    operands = []
    for letter, (rows, columns) in zip(layout, lengths, strict=True):
        shape = (*batch, rows, columns) if letter == "t" else (*batch, columns, rows)
        drawn = torch.randn(shape, device="cuda", dtype=kind[dtype])
        operands.append(drawn if letter == "t" else drawn.mT)
    allowed: Any = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = dtype == "tf32"
    try:
        return DeviceTimer(cold_l2=options.cold_l2).time(lambda: torch.matmul(*operands)).median
    finally:
        torch.backends.cuda.matmul.allow_tf32 = allowed


def _database(path: Path | None) -> Database | None:
    return None if path is None else Database(path)


def _integers(text: str | None) -> tuple[int, ...] | None:
    if text is None:
        return None
    parts = text.split(",")
    if not all(part.strip().isdecimal() for part in parts):
        raise typer.BadParameter(f"--split-k-slices takes integers between commas, such as 1,2,4; got {text!r}")
    return tuple(map(int, parts))
