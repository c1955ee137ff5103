"""Problems as text: GEMMs and convolutions as the lines of a CSV file, and what a command line says of a GEMM."""

from __future__ import annotations

import csv
import math
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from pycutlass import cutlass
from pycutlass.calls import shown, suggestion
from pycutlass.enums import MathOperation
from pycutlass.epilogue import LinearCombination
from pycutlass.errors import ArgumentError, PyCutlassError
from pycutlass.library import TensorDescription
from pycutlass.plan import GemmKind
from pycutlass.plan.conv2d import Conv2d
from pycutlass.spec import TensorSpec
from pycutlass.tuning.conv2d_problem import Conv2dProblem
from pycutlass.tuning.problem import Problem
from pycutlass.tuning.tunable import Tunable
from pycutlass.types import element

__all__ = ["DTYPES", "LAYOUTS", "conv2d_problem_of", "problem_of", "read_problems"]


class _Product(NamedTuple):
    """What is multiplied for a name, and what it is summed in."""

    tensor: Any
    multiplied: Any
    accumulator: Any
    operation: MathOperation = MathOperation.multiply_add


_F32 = cutlass.float32
_PRODUCTS = {
    "float16": _Product(cutlass.float16, cutlass.float16, _F32),
    "bfloat16": _Product(cutlass.bfloat16, cutlass.bfloat16, _F32),
    "float32": _Product(_F32, _F32, _F32),
    "tf32": _Product(cutlass.tfloat32, cutlass.tfloat32, _F32),
    "3xtf32": _Product(_F32, _F32, _F32, MathOperation.multiply_add_fast_f32),
    "float_e4m3": _Product(cutlass.float_e4m3, cutlass.float_e4m3, _F32),
    "int8": _Product(cutlass.int8, cutlass.int8, cutlass.int32, MathOperation.multiply_add_saturate),
}
_OUTPUTS = {name: getattr(cutlass, name) for name in ("float16", "bfloat16", "float32", "int8", "int32")}
_USUAL_OUTPUT = {"tf32": "float32", "3xtf32": "float32", "float_e4m3": "bfloat16", "int8": "int32"}
DTYPES, LAYOUTS = tuple(_PRODUCTS), ("tn", "tt", "nn", "nt")
#: How plans are told what `dtype` names, where that is no type of tensors.
_PRECISIONS = {"tf32": "tf32", "3xtf32": "3xtf32"}
_CONV_DTYPES = ("float16", "bfloat16", "float32", *_PRECISIONS, "int8")
_CONV_KINDS = ("fprop", "dgrad", "wgrad")
_MOST_BITS = 128  # of one memory access


def problem_of(
    m: int, n: int, k: int, batch: int | None = None, dtype: str = "float16", out_dtype: str = "", layout: str = "tn"
) -> Problem:
    """Return a plain product, D = A x B, with packed operands as well aligned as its extents are.

    Parameters
    ----------
    m, n, k, batch
        As of `Problem`.
    dtype : str
        What is multiplied: one of `DTYPES`.
    out_dtype : str
        Type of D. Default: that of A, int32 for int8, bfloat16 for floats of 8 bits.
    layout : str
        Of A and B, as BLAS says it: t for row-major, n for column-major. D is row-major.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        A name that is not known, or extents out of range.
    DescriptionError
        There is no such product.
    """
    product = _named("dtype", dtype, _PRODUCTS)
    output = _named("out_dtype", out_dtype or _USUAL_OUTPUT.get(dtype, dtype), _OUTPUTS)
    _named("layout", layout, dict.fromkeys(LAYOUTS))
    by_rows = [letter == "t" for letter in layout]
    lines = k if by_rows[0] else m, n if by_rows[1] else k
    if dtype == "float32":  # kernels of CUDA cores, which load single elements
        lines = 1, 1
    A, B = (_tensor(product.tensor, *each) for each in zip(by_rows, lines, strict=True))
    D = _tensor(output, True, n)
    compute = product.accumulator if D.type.is_integer and product.accumulator is cutlass.int32 else _F32
    functor = LinearCombination(output, D.alignment, product.accumulator, compute)
    kind = GemmKind(A, B, D, D, product.multiplied, product.multiplied, product.accumulator, product.operation, functor)
    return Problem(kind, m, n, k, batch)


def conv2d_problem_of(
    n: int,
    h: int,
    w: int,
    c: int,
    k: int,
    r: int,
    s: int,
    kind: str = "fprop",
    stride: int = 1,
    padding: int = 0,
    dilation: int = 1,
    groups: int = 1,
    dtype: str = "float16",
    out_dtype: str = "",
) -> Conv2dProblem:
    """Return a plain convolution, or one of its gradients, of packed tensors.

    Parameters
    ----------
    n, h, w, c : int
        The activation: images, rows, columns and channels.
    k, r, s : int
        The filters: how many there are, rows and columns.
    kind : str
        ``"fprop"``, ``"dgrad"`` or ``"wgrad"``.
    stride, padding, dilation, groups
        As of `pycutlass.Conv2d`.
    dtype : str
        What is multiplied: float16, bfloat16, float32, tf32, 3xtf32 or int8.
    out_dtype : str
        Type of the result. Default: as `pycutlass.Conv2d` has it.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        A name that is not known, sizes that are no convolution, or one that no kernel takes.

    Examples
    --------
    >>> from pycutlass.tuning.files import conv2d_problem_of
    >>> conv2d_problem_of(32, 56, 56, 64, 128, 3, 3, padding=1).name
    'fprop 32x56x56x64 by 128 of 3x3, padding 1, f16 x f16 -> f16'
    """
    _named("dtype", dtype, dict.fromkeys(_CONV_DTYPES))
    _named("kind", kind, dict.fromkeys(_CONV_KINDS))
    if out_dtype:
        _named("out_dtype", out_dtype, _OUTPUTS)
    stored = "float32" if dtype in _PRECISIONS else dtype
    geometry = {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups}
    x, filters = TensorSpec((n, h, w, c), stored), TensorSpec((k, r, s, c // max(groups, 1)), stored)
    options: dict[str, Any] = {"precision": _PRECISIONS.get(dtype), "out_dtype": out_dtype or None, **geometry}
    plan = Conv2d(x, filters, **options)
    size = plan.problem_size
    gradient = TensorSpec((size.N, size.P, size.Q, size.K), stored)
    if kind == "dgrad":
        plan = Conv2d(gradient, filters, kind=kind, result_size=x.shape, **options)
    elif kind == "wgrad":
        plan = Conv2d(gradient, x, kind=kind, result_size=filters.shape, **options)
    return Conv2dProblem(plan.kind, plan.problem_size)


class _Titles(NamedTuple):
    """What the lines of a file have, and what makes a problem of one."""

    needed: tuple[str, ...]
    integers: tuple[str, ...]
    names: tuple[str, ...]
    make: Callable[..., Tunable]

    @property
    def known(self) -> tuple[str, ...]:
        return (*self.needed, *self.integers, *self.names)


_GEMMS = _Titles(("m", "n", "k"), ("batch",), ("dtype", "out_dtype", "layout"), problem_of)
_CONVOLUTIONS = _Titles(
    ("n", "h", "w", "c", "k", "r", "s"),
    ("stride", "padding", "dilation", "groups"),
    ("kind", "dtype", "out_dtype"),
    conv2d_problem_of,
)


def read_problems(path: str | os.PathLike[str]) -> list[Tunable]:
    """Return the problems of a CSV file with a line of titles: parameters of `problem_of` or of `conv2d_problem_of`.

    A file has GEMMs, with m, n and k, or convolutions, with n, h, w, c, k, r and s.

    Raises
    ------
    ArgumentError
        The file cannot be read, or a line is no problem; the message has its number.
    """
    file = Path(path)
    try:
        text = file.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        why = (isinstance(error, OSError) and error.strerror) or error
        raise ArgumentError(f"{file} cannot be read as a list of problems: {why}") from error
    problems = list(_problems(file, text))
    if not problems:
        raise ArgumentError(f"{file} has no problem: it needs titles, such as {_said(_GEMMS)}, and a line for each")
    return problems


def _problems(file: Path, text: str) -> Iterator[Tunable]:
    reader = csv.DictReader(text.splitlines(), skipinitialspace=True)
    titles = [title.strip().lower() for title in reader.fieldnames or ()]
    wanted = _CONVOLUTIONS if {"h", "w", "r", "s"} & {*titles} else _GEMMS
    if set(wanted.needed) - set(titles) or set(titles) - set(wanted.known) or len(set(titles)) < len(titles):
        other = _GEMMS if wanted is _CONVOLUTIONS else _CONVOLUTIONS
        raise ArgumentError(
            f"{file} needs the titles {_said(wanted)} in its first line, and may have "
            f"{', '.join((*wanted.integers, *wanted.names))}; it has {', '.join(titles) or 'none'}. A file of "
            f"{'GEMMs' if other is _GEMMS else 'convolutions'} has {_said(other)}"
        )
    reader.fieldnames = titles
    for line in reader:
        where = f"{file}, line {reader.line_num}"
        if None in line or None in line.values():
            raise ArgumentError(f"{where}: it needs {len(titles)} values, as the titles are")
        given: dict[str, Any] = {name: value.strip() for name, value in line.items() if value.strip()}
        try:
            for name in (*wanted.needed, *wanted.integers):
                if name in given:
                    given[name] = int(given[name])
            if missing := [name for name in wanted.needed if name not in given]:
                raise ArgumentError(f"it lacks {', '.join(missing)}")
            yield wanted.make(**given)
        except (PyCutlassError, ValueError) as error:
            raise ArgumentError(f"{where}: {error}") from error


def _said(titles: _Titles) -> str:
    return ", ".join(titles.needed)


def _tensor(tag: Any, is_row_major: bool, line: int) -> TensorDescription:
    """Return the description of a packed matrix, as well aligned as the lengths of its lines are."""
    most = _MOST_BITS // element(tag).bits
    alignment = math.gcd(most, max(line, 1))
    layout = cutlass.RowMajor if is_row_major else cutlass.ColumnMajor
    return TensorDescription(tag, layout, alignment)


def _named(what: str, name: Any, known: dict[str, Any]) -> Any:
    if name not in known:
        raise ArgumentError(f"{what} must be one of {', '.join(known)}; got {shown(name)}.{suggestion(name, known)}")
    return known[name]
