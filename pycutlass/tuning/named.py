"""Problems by the names of their types and epilogues, as files and command lines have them.

Each is what a plan of packed tensors is: what is measured of it, such plans and `matmul`, `conv2d` and `grouped_matmul`
choose.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from pycutlass import cutlass
from pycutlass.calls import shown, suggestion
from pycutlass.epilogue import Activation, EpilogueFunction, activations, fusions
from pycutlass.errors import ArgumentError, ArgumentTypeError
from pycutlass.integers import items_of, several
from pycutlass.plan.conv2d import Conv2d
from pycutlass.plan.gemm import Gemm
from pycutlass.plan.grouped_gemm import GroupedGemm
from pycutlass.spec import TensorSpec
from pycutlass.trials.values import at_least
from pycutlass.tuning.conv2d_problem import Conv2dProblem
from pycutlass.tuning.group_problem import GroupProblem
from pycutlass.tuning.own_functions import own_function
from pycutlass.tuning.problem import Problem
from pycutlass.tuning.tunable import SOURCES

__all__ = ["CONV_KINDS", "DTYPES", "EPILOGUES", "LAYOUTS", "conv2d_problem_of", "group_problem_of", "problem_of"]

#: The types of tensors by what is multiplied. Those of tf32 and 3xtf32 are told plans as a precision.
_STORED = {
    "float16": "float16",
    "bfloat16": "bfloat16",
    "float32": "float32",
    "tf32": "float32",
    "3xtf32": "float32",
    "float_e4m3": "float8_e4m3fn",
    "int8": "int8",
}
_PRECISIONS = {"tf32": "tf32", "3xtf32": "3xtf32"}
_OUTPUTS = {
    name: getattr(cutlass, name)
    for name in ("float16", "bfloat16", "float32", "int8", "int32", "float_e4m3", "float_e5m2")
}
_ACTIVATIONS = ("relu", "leaky_relu", "tanh", "sigmoid", "silu", "hardswish", "gelu", "gelu_tanh")
_EPILOGUES: dict[str, type[Activation] | EpilogueFunction] = {
    **{name: getattr(activations, name) for name in _ACTIVATIONS},
    **fusions.ALL,
}
DTYPES, LAYOUTS, EPILOGUES = tuple(_STORED), ("tn", "tt", "nn", "nt"), tuple(_EPILOGUES)
CONV_KINDS = ("fprop", "dgrad", "wgrad")
_CONV_DTYPES = tuple(name for name in DTYPES if name != "float_e4m3")
_MOST = 100_000  # products of one group


class _Named(NamedTuple):
    """What names stand for.

    Attributes
    ----------
    stored, output : element type
        Of A and B, and of C and D.
    options : dict
        For plans.
    source : str or None
        What C is.
    """

    stored: str
    output: Any
    options: dict[str, Any]
    source: str | None

    def added(self, matrix: tuple[int, ...]) -> dict[str, Any]:
        """Return the C or the bias of a plan, of a result with these extents."""
        shape = matrix[-1:] if self.source == "bias" else matrix
        name = {"bias": "bias", "matrix": "c"}.get(self.source or "")
        return {} if name is None else {name: TensorSpec(shape, self.output), "beta": 1}


def problem_of(
    m: int,
    n: int,
    k: int,
    batch: int | None = None,
    dtype: str = "float16",
    out_dtype: str = "",
    layout: str = "tn",
    epilogue: str = "",
    source: str = "",
) -> Problem:
    """Return a product, D = A x B, with packed operands as well aligned as its extents are.

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
    epilogue : str
        An activation, or a function of `pycutlass.epilogue.fusions`: one of `EPILOGUES`. Or an epilogue function of
        your own, ``"package.module:name"`` or ``"file.py:name"``, which is imported. Default: a linear combination.
    source : str
        ``"matrix"`` or ``"bias"``, where a linear combination or an activation comes behind alpha * A x B + C.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        A name that is not known, or extents out of range.
    DescriptionError
        There is no such product.

    Examples
    --------
    >>> from pycutlass.tuning import problem_of
    >>> problem_of(512, 1024, 256, dtype="bfloat16", epilogue="bias_gelu").name
    '512x1024x256 bf16 x bf16 -> bf16, bias_gelu'
    """
    m, n, k = (at_least(1, name, value) for name, value in (("m", m), ("n", n), ("k", k)))
    lead = () if batch is None else (at_least(1, "batch", batch),)
    named, by_rows = _named(dtype, out_dtype, epilogue, source), _by_rows(layout)
    a, b = (_matrix(*each, named.stored, lead) for each in ((m, k, by_rows[0]), (k, n, by_rows[1])))
    plan = Gemm(a, b, **named.added((*lead, m, n)), **named.options)
    return Problem(plan.kind, m, n, k, batch, plan.source)


def group_problem_of(
    problem_sizes: Sequence[Any],
    n: int | None = None,
    k: int | None = None,
    dtype: str = "float16",
    out_dtype: str = "",
    layout: str = "tn",
    epilogue: str = "",
    source: str = "",
) -> GroupProblem:
    """Return a group of products of packed operands.

    Parameters
    ----------
    problem_sizes : sequence of int, or of 3 int each
        M of each product, with `n` and `k` for all of them; or M, N and K of each.
    n, k : int, optional
        Where `problem_sizes` has M alone.
    dtype, out_dtype, layout, epilogue, source
        As of `problem_of`.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        A name that is not known, sizes out of range, or groups that no kernel takes.

    Examples
    --------
    >>> from pycutlass.tuning import group_problem_of
    >>> group_problem_of([64, 64, 64, 64], n=1024, k=512).name
    'group of 4 up to 64x1024x512 f16 x f16 -> f16'
    """
    sizes = _sizes(problem_sizes, n, k)
    named, by_rows = _named(dtype, out_dtype, epilogue, source), _by_rows(layout)
    xs = [_matrix(m, depth, by_rows[0], named.stored) for m, _, depth in sizes]
    ws = [_matrix(depth, columns, by_rows[1], named.stored) for _, columns, depth in sizes]
    added = [named.added((m, columns)) for m, columns, _ in sizes]
    options = {name: [each[name] for each in added] for name in ("c", "bias") if name in added[0]}
    further: dict[str, Any] = {"cs" if name == "c" else name: specs for name, specs in options.items()}
    plan = GroupedGemm(xs, ws, beta=int(bool(further)), **further, **named.options)
    return GroupProblem(plan.kind, sizes, plan.axis, False, plan.source)


def conv2d_problem_of(
    n: int,
    h: int,
    w: int,
    c: int,
    k: int,
    r: int,
    s: int,
    kind: str = "fprop",
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
    dtype: str = "float16",
    out_dtype: str = "",
    epilogue: str = "",
    source: str = "",
) -> Conv2dProblem:
    """Return a convolution, or one of its gradients, of packed tensors.

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
    epilogue, source
        As of `problem_of`; a bias has an element for each channel of the result.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        A name that is not known, sizes that are no convolution, or one that no kernel takes.

    Examples
    --------
    >>> from pycutlass.tuning import conv2d_problem_of
    >>> conv2d_problem_of(32, 56, 56, 64, 128, 3, 3, padding=1).name
    'fprop 32x56x56x64 by 128 of 3x3, padding 1, f16 x f16 -> f16'
    """
    _known("dtype", dtype, _CONV_DTYPES)
    _known("kind", kind, CONV_KINDS)
    named = _named(dtype, out_dtype, epilogue, source)
    geometry: dict[str, Any] = {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups}
    if type(groups) is int and groups > 0 and (c % groups or k % groups):
        raise ArgumentError(f"groups must divide c and k; got groups={groups}, c={c} and k={k}")
    x = TensorSpec((n, h, w, c), named.stored)
    filters = TensorSpec((k, r, s, c // max(groups, 1)), named.stored)
    try:
        size = Conv2d(x, filters, **geometry).problem_size
    except ArgumentError as error:  # about tensors of another order, which there are none of here
        what = str(error).removeprefix("Conv2dProblemSize: ").partition(". x was read as")[0]
        raise type(error)(what) from None
    pixels = (size.N, size.P, size.Q, size.K)
    gradient = TensorSpec(pixels, named.stored)
    (a, b), result = {
        "fprop": ((x, filters), pixels),
        "dgrad": ((gradient, filters), x.shape),
        "wgrad": ((gradient, x), filters.shape),
    }[kind]
    geometry |= {} if kind == "fprop" else {"result_size": result}
    plan = Conv2d(a, b, kind=kind, **named.added(result), **named.options, **geometry)
    return Conv2dProblem(plan.kind, plan.problem_size, plan.source)


def _named(dtype: str, out_dtype: str, epilogue: str, source: str) -> _Named:
    """Return what names stand for, or raise ArgumentError for one that is not known."""
    _known("dtype", dtype, _STORED)
    if out_dtype:
        _known("out_dtype", out_dtype, _OUTPUTS)
    if source:
        _known("source", source, SOURCES)
    function = _epilogue(epilogue)
    if source and isinstance(function, EpilogueFunction):
        raise ArgumentError(
            f"source={source!r} is for linear combinations and activations, and the function {epilogue} says what it "
            f"reads: leave source out"
        )
    usual = {"int8": "int32", "float_e4m3": "bfloat16"}.get(dtype, _STORED[dtype])
    options = {"precision": _PRECISIONS.get(dtype), "out_dtype": _OUTPUTS.get(out_dtype), "epilogue": function}
    return _Named(_STORED[dtype], _OUTPUTS[out_dtype or usual], options, source or None)


def _epilogue(name: str) -> type[Activation] | EpilogueFunction | None:
    """Return what a name stands for; None for a linear combination."""
    if not name:
        return None
    if isinstance(name, str) and ":" in name:
        return own_function(name)
    if not isinstance(name, str):
        raise ArgumentTypeError(
            f"epilogue must be a name here, one of {', '.join(_EPILOGUES)}, or a function of your own as "
            f"package.module:name or file.py:name; got {shown(name)}"
        )
    if name not in _EPILOGUES:
        raise ArgumentError(
            f"epilogue must be one of {', '.join(_EPILOGUES)}, or a function of your own as package.module:name or "
            f"file.py:name; got {shown(name)}.{suggestion(name, _EPILOGUES)}"
        )
    return _EPILOGUES[name]


def _by_rows(layout: str) -> list[bool]:
    _known("layout", layout, LAYOUTS)
    return [letter == "t" for letter in layout]


def _matrix(rows: int, columns: int, by_rows: bool, dtype: str, lead: tuple[int, ...] = ()) -> TensorSpec:
    """Return a packed matrix, or a batch of them."""
    strides = None if by_rows else (*([rows * columns] * len(lead)), 1, max(rows, 1))
    return TensorSpec((*lead, rows, columns), dtype, strides)


def _sizes(given: Any, n: int | None, k: int | None) -> list[tuple[int, int, int]]:
    """Return M, N and K of each product."""
    items = None if isinstance(given, str | bytes) else items_of(given, _MOST)
    if not items:
        raise ArgumentTypeError(f"problem_sizes must be a list of M, or of M, N and K each; got {shown(given)}")
    found = []
    for number, each in enumerate(items):
        whole = several(each, 3)
        if whole is None:
            if n is None or k is None:
                raise ArgumentError(
                    f"problem_sizes[{number}] is {shown(each)}, M alone: give n and k, for all products"
                )
            whole = (at_least(0, f"problem_sizes[{number}]", each), at_least(1, "n", n), at_least(1, "k", k))
        elif n is not None or k is not None:
            raise ArgumentError(f"problem_sizes[{number}] has M, N and K, and n or k is given too: leave these out")
        found.append((whole[0], whole[1], whole[2]))
    return found


def _known(what: str, name: Any, known: Any) -> None:
    if not isinstance(name, str):
        raise ArgumentTypeError(f"{what} must be a name, one of {', '.join(known)}; got {shown(name)}")
    if name not in known:
        raise ArgumentError(f"{what} must be one of {', '.join(known)}; got {shown(name)}.{suggestion(name, known)}")
