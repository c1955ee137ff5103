"""Problems as text: the lines of a CSV file, and what a command line says of one."""

from __future__ import annotations

import csv
import math
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from pycutlass import cutlass
from pycutlass.calls import shown, suggestion
from pycutlass.enums import MathOperation
from pycutlass.epilogue import LinearCombination
from pycutlass.errors import ArgumentError, PyCutlassError
from pycutlass.library import TensorDescription
from pycutlass.plan import GemmKind
from pycutlass.tuning.problem import Problem
from pycutlass.types import element

__all__ = ["DTYPES", "LAYOUTS", "problem_of", "read_problems"]


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
_NEEDED, _OPTIONAL = ("m", "n", "k"), ("batch", "dtype", "out_dtype", "layout")
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


def read_problems(path: str | os.PathLike[str]) -> list[Problem]:
    """Return the problems of a CSV file with a line of titles: m, n, k, and those of `problem_of` that it may have.

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
        raise ArgumentError(f"{file} has no problem: it needs titles, {','.join(_NEEDED)}, and a line for each")
    return problems


def _problems(file: Path, text: str) -> Iterator[Problem]:
    reader = csv.DictReader(text.splitlines(), skipinitialspace=True)
    titles = [title.strip().lower() for title in reader.fieldnames or ()]
    known = (*_NEEDED, *_OPTIONAL)
    if set(_NEEDED) - set(titles) or set(titles) - set(known) or len(set(titles)) < len(titles):
        raise ArgumentError(
            f"{file} needs the titles {', '.join(_NEEDED)} in its first line, and may have {', '.join(_OPTIONAL)}; it "
            f"has {', '.join(titles) or 'none'}"
        )
    reader.fieldnames = titles
    for line in reader:
        where = f"{file}, line {reader.line_num}"
        if None in line or None in line.values():
            raise ArgumentError(f"{where}: it needs {len(titles)} values, as the titles are")
        given: dict[str, Any] = {name: value.strip() for name, value in line.items() if value.strip()}
        try:
            for name in (*_NEEDED, "batch"):
                if name in given:
                    given[name] = int(given[name])
            if missing := [name for name in _NEEDED if name not in given]:
                raise ArgumentError(f"it lacks {', '.join(missing)}")
            yield problem_of(**given)
        except (PyCutlassError, ValueError) as error:
            raise ArgumentError(f"{where}: {error}") from error


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
