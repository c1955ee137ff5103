"""Problems on the command line: their options, which commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from pycutlass.errors import ArgumentError
from pycutlass.tuning.files import named_problem
from pycutlass.tuning.named import CONV_KINDS, DTYPES, LAYOUTS
from pycutlass.tuning.tunable import Tunable

__all__ = [
    "Batch",
    "Channels",
    "ConvKind",
    "Dtype",
    "EpilogueName",
    "FilterColumns",
    "FilterRows",
    "Groups",
    "ImageColumns",
    "ImageRows",
    "Layout",
    "OutDtype",
    "Pair",
    "SizeK",
    "SizeM",
    "SizeN",
    "Sizes",
    "Source",
    "problem_named",
    "sizes_of",
]

_OPTIONS = {"kind": "conv-kind", "padding": "pad"}  # where parameters are called otherwise

SizeM = Annotated[int | None, typer.Option(min=1, help="Rows of A and D.")]
SizeN = Annotated[int | None, typer.Option(min=1, help="Columns of B and D; of a convolution, images.")]
SizeK = Annotated[int | None, typer.Option(min=1, help="Columns of A, rows of B; of a convolution, filters.")]
Batch = Annotated[int | None, typer.Option(min=1, help="Number of matrices.")]
Sizes = Annotated[
    str | None,
    typer.Option(help="Of a group: M of each product, with --n and --k, or MxNxK of each, such as 64,8*32,128."),
]
ImageRows = Annotated[int | None, typer.Option(min=1, help="Of a convolution: rows of an image.")]
ImageColumns = Annotated[int | None, typer.Option(min=1, help="Columns of an image.")]
Channels = Annotated[int | None, typer.Option(min=1, help="Channels of an image.")]
FilterRows = Annotated[int | None, typer.Option(min=1, help="Rows of a filter.")]
FilterColumns = Annotated[int | None, typer.Option(min=1, help="Columns of a filter.")]
ConvKind = Annotated[str | None, typer.Option(help=f"{', '.join(CONV_KINDS)}. Default: fprop.")]
Pair = Annotated[
    str | None, typer.Option(help="Of a convolution: one number, or two for height and width, such as 1x2.")
]
Groups = Annotated[int | None, typer.Option(min=1, help="Groups of channels.")]
Dtype = Annotated[str | None, typer.Option(help=f"Of A and B: {', '.join(DTYPES)}. Default: float16.")]
OutDtype = Annotated[
    str | None, typer.Option(help="Type of D. Default: that of A, int32 for int8, bfloat16 for float_e4m3.")
]
Layout = Annotated[
    str | None, typer.Option(help=f"Of A and B, t by rows, n by columns: {', '.join(LAYOUTS)}. Default: tn.")
]
EpilogueName = Annotated[
    str | None,
    typer.Option(help="An activation (gelu), a ready-made function (bias_gelu), or your own (file.py:name)."),
]
Source = Annotated[str | None, typer.Option(help="What is added before an activation: matrix or bias.")]


def problem_named(given: dict[str, Any], sizes_file: Path | None = None) -> Tunable:
    """Return the problem that options describe, by the names of parameters; those that are None are left out."""
    called = {"problem_sizes": f"the sizes in {sizes_file}"} if sizes_file is not None else {}
    return named_problem(
        {name: str(value) for name, value in given.items() if value is not None},
        lambda name: called.get(name) or _option(name),
    )


def sizes_of(sizes: str | None, file: Path) -> str:
    """Return the sizes of a group that a file has."""
    if sizes is not None:
        raise typer.BadParameter("--problem-sizes and --problem-sizes-file are both given: leave one out")
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = (isinstance(error, OSError) and error.strerror) or error
        raise ArgumentError(f"{file} cannot be read as a list of problem sizes: {why}") from error


def _option(name: str) -> str:
    """Return how the command line calls a parameter of a problem."""
    return f"--{_OPTIONS.get(name, name.replace('_', '-'))}"
