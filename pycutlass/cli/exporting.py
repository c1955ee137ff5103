"""``pycutlass export``: a plan as a program, a bundle or a library."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Annotated, Any

import typer

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
)
from pycutlass.errors import ArgumentError, PyCutlassError
from pycutlass.exports import export, export_library
from pycutlass.exports.program import FORMATS
from pycutlass.plan.added import Added
from pycutlass.plan.conv2d import Conv2d, conv2d_of_kind
from pycutlass.plan.gemm import Gemm, gemm_of_kind
from pycutlass.plan.grouped_gemm import GroupedGemm
from pycutlass.plan.readings import device_of
from pycutlass.tuning import Conv2dProblem, GroupProblem, Problem
from pycutlass.tuning.files import read_problems
from pycutlass.tuning.tunable import Tunable

__all__ = ["export_plan"]

_LIBRARY = "library"


def export_plan(
    paths: Annotated[
        list[Path],
        typer.Argument(
            metavar="[PLAN] OUT",
            help="A pickled plan, or for a library a CSV file as `tune` takes; and the directory or file to write.",
        ),
    ],
    format: Annotated[str, typer.Option(help=f"{', '.join(FORMATS)} or {_LIBRARY}.")],
    m: SizeM = None,
    n: SizeN = None,
    k: SizeK = None,
    batch: Batch = None,
    problem_sizes: Sizes = None,
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
    target: Annotated[
        str | None, typer.Option(help="What to build for, for example sm_90a; default: this GPU.")
    ] = None,
) -> None:
    """Write a kernel as a program that needs no Python: as C++ (cpp), compiled (cubin), in a bundle or in a library.

    The problem is that of a pickled plan, or of options as `pycutlass profile` has them; the kernel is the one that a
    plan chooses. A pickled plan runs code when it is read: take it only from those whose programs you would run.
    """
    given = {
        **{"m": m, "n": n, "k": k, "batch": batch, "problem_sizes": problem_sizes},
        **{"h": h, "w": w, "c": c, "r": r, "s": s, "kind": conv_kind},
        **{"stride": stride, "padding": pad, "dilation": dilation, "groups": groups},
        **{"dtype": dtype, "out_dtype": out_dtype, "layout": layout, "epilogue": epilogue, "source": source},
    }
    if format not in (*FORMATS, _LIBRARY):
        raise ArgumentError(f"--format must be one of {', '.join((*FORMATS, _LIBRARY))}; got {format!r}")
    *named, out = paths
    if len(named) > 1:
        raise typer.BadParameter(f"give a plan and where to write it; got {len(paths)} paths")
    described = any(value is not None for value in given.values())
    if bool(named) == described:
        raise typer.BadParameter(
            "give either PLAN and OUT, where PLAN is a pickled plan or a .csv file of problems, or OUT and the options "
            "of a problem, such as --m, --n and --k"
        )
    plans = _plans(named[0]) if named else {"plan": _plan(problem_named(given))}
    if format == _LIBRARY:
        export_library(plans, out, target=target)
    elif len(plans) > 1:
        raise ArgumentError(f"{named[0]} has {len(plans)} problems, and a program has one: pass --format library")
    else:
        export(next(iter(plans.values())), out, format=format, target=target)
    typer.echo(f"written to {out}")


def _plans(file: Path) -> dict[str, Any]:
    """Return the plan that a file has, or those of the problems of a CSV file."""
    if file.suffix == ".csv":
        return {f"plan_{number}": _plan(problem) for number, problem in enumerate(read_problems(file))}
    try:
        plan = pickle.loads(file.read_bytes())
    except PyCutlassError:
        raise
    except OSError as error:
        raise ArgumentError(f"the plan {file} cannot be read: {error.strerror}") from error
    except Exception as error:  # whatever unpickling of another file raises
        raise ArgumentError(
            f"{file} is no pickled plan: {error}. Write one with pickle.dump(plan, file), or give a .csv file of "
            f"problems"
        ) from error
    if not isinstance(plan, Gemm | Conv2d | GroupedGemm):
        raise ArgumentError(f"{file} has a {type(plan).__name__}, and a plan is needed, such as pycutlass.Gemm(a, b)")
    return {"plan": plan}


def _plan(problem: Tunable) -> Any:
    """Return the plan of a problem of packed tensors."""
    here = device_of({})
    if isinstance(problem, GroupProblem):
        raise ArgumentError("groups are exported as pickled plans, with --format bundle: write pickle.dump(plan, file)")
    assert isinstance(problem, Problem | Conv2dProblem)
    names = problem.kind.epilogue.scalar_names
    usual = {"alpha": 1, "beta": int(problem.source is not None)}
    scalars = {name: value for name, value in usual.items() if name in names}
    added = Added(problem.source is not None, problem.source == "matrix", "c" if problem.source == "bias" else "")
    if isinstance(problem, Problem):
        return gemm_of_kind(problem.kind, problem.extents, problem.batch, here, scalars, added)
    return conv2d_of_kind(problem.kind, problem.problem_size, here, scalars, added)
