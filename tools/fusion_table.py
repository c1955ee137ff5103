"""Write docs/guide/fusion-support.md: what epilogue functions may be made of, and which kernels take it.

::

    python tools/fusion_table.py              # write the page
    python tools/fusion_table.py --check      # 1, and a diff, where it is not what the code says

Every answer is asked of the code: an operation is described with a function that has what the row says, and is asked
whether it supports a problem. What is refused has the code's own sentence as a note. Who adds a node, a kind of
parameter or a family has it here once this has been run.
"""

from __future__ import annotations

import argparse
import difflib
import operator
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from pycutlass import (  # noqa: E402
    Conv2dOperation,
    GemmOperationGrouped,
    GemmOperationUniversal,
    GemmProblemSize,
    GroupMode,
    KernelSchedule,
    MathInstruction,
    PyCutlassError,
    ReductionOperation,
    ReductionProblemSize,
    TensorDescription,
    TileDescription,
    cutlass,
    epilogue,
    epilogue_function,
)
from pycutlass.epilogue import Column, EpilogueFunction, PerBatch, Row, Scalar, Source, Tensor  # noqa: E402
from pycutlass.epilogue.nodes import NODES, REDUCTIONS, Node  # noqa: E402
from pycutlass.epilogue.traced import applied  # noqa: E402

__all__ = ["MARKERS", "PAGE", "WAYS", "Asked", "Way", "answer", "asked", "main", "page"]

PAGE = ROOT / "docs" / "guide" / "fusion-support.md"
_ABOUT = """# What epilogue functions are made of, and which kernels take it

Written by `python tools/fusion_table.py` from what descriptions accept; see [Fuse your epilogue](fusion.md). A number
is that of a note below the table, which has the message of an operation that is described in this way with a function
f, or that is asked whether it supports such a problem. What has the same answers shares a row. `relu`, `leaky_relu`,
`clamp` and `//` are made of the nodes here.
"""
_f16, _f32, _f64, _s8, _s32 = cutlass.float16, cutlass.float32, cutlass.float64, cutlass.int8, cutlass.int32
_Mode, _Operator, _Strides = cutlass.gemm.Mode, cutlass.conv.Operator, cutlass.conv.StrideSupport
_SIZE = (64, 64, 64)
#: Operands whose products are usually written in a type; f16 for others.
_USUAL = {_f64: "f64", _s32: "s8", _s8: "s8"}
_FLOAT8 = cutlass.float_e4m3, cutlass.float_e5m2
_BITS = {_f64: 64, _f32: 32, _s32: 32, _f16: 16, cutlass.bfloat16: 16, _s8: 8} | dict.fromkeys(_FLOAT8, 8)

#: What a parameter may be, beside the accumulator and scalars.
MARKERS = {"Source": Source, "Tensor": Tensor, "Row": Row, "Column": Column, "PerBatch": PerBatch}

#: Operand, accumulator, instruction and tile, by the first that can write the type of D that is asked for.
_KINDS: dict[str, tuple[Any, Any, list[int], list[int], int]] = {
    "f16": (_f16, _f32, [16, 8, 16], [128, 128, 32], 3),
    "s8": (_s8, _s32, [16, 8, 32], [128, 128, 64], 3),
    "f64": (_f64, _f64, [8, 8, 4], [64, 64, 16], 3),
    "simt": (_f32, _f32, [1, 1, 1], [128, 128, 8], 2),
}


@dataclass(frozen=True)
class Asked:
    """A function that has one thing.

    Parameters
    ----------
    group, title : str
        What it has: a kind of things, of which those that are answered alike share a row, and which of them.
    function : EpilogueFunction
        The function, whose name is f.
    written : element type, optional
        Of D, where that is the question.
    on_device : bool
        Whether its scalar lies in device memory.
    types : dict, optional
        Element types of its tensors.
    """

    group: str
    title: str
    function: EpilogueFunction
    written: Any = None
    on_device: bool = False
    types: dict[str, Any] | None = None


@dataclass(frozen=True)
class Way:
    """A column: a kind of kernel, or a mode of one.

    Parameters
    ----------
    title : str
        Of the column.
    describe : callable
        Makes the operation, of a kind of operands, what makes the functor of types, and the type of D where that is the
        question.
    kinds : tuple of str
        Operands to try, of `_KINDS`.
    problem : object
        What the operation is asked about.
    """

    title: str
    describe: Callable[[str, Callable[..., Any], Any], Any]
    kinds: tuple[str, ...] = ("f16", "s8", "f64")
    problem: Any = _SIZE


def main(argv: list[str] | None = None) -> int:
    """Write the page, or compare it; 1 where it differs."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="compare, and write nothing")
    check, made = parser.parse_args(argv).check, page()
    if not check:
        PAGE.write_text(made, encoding="utf-8")
        return 0
    kept = PAGE.read_text(encoding="utf-8")
    diff = difflib.unified_diff(kept.splitlines(), made.splitlines(), str(PAGE.name), "the code", lineterm="")
    if kept != made:
        print("\n".join([*diff, "run python tools/fusion_table.py"]))
    return int(kept != made)


def page() -> str:
    """Return the page."""
    lines = [_ABOUT]
    for title, ways in WAYS.items():
        notes: dict[str, int] = {}
        table = [f"| | {' | '.join(way.title for way in ways)} |", f"|{' --- |' * (len(ways) + 1)}"]
        rows: dict[tuple[str, ...], list[str]] = {}
        for each in asked():
            cells = tuple(_cell(answer(way, each), notes) for way in ways)
            rows.setdefault((each.group, *cells), []).append(each.title)
        table += [f"| {group}: {', '.join(titles)} | {' | '.join(cells)} |" for (group, *cells), titles in rows.items()]
        lines += [f"## {title}", "", *table, ""]
        lines += [f"{number}. {note}" for note, number in notes.items()]
        lines += [""] if notes else []
    return "\n".join(lines).rstrip() + "\n"


def _cell(refusal: str, notes: dict[str, int]) -> str:
    return str(notes.setdefault(refusal, len(notes) + 1)) if refusal else "yes"


def answer(way: Way, row: Asked) -> str:
    """Return why kernels do not take a function, as they say it; nothing where they do."""
    refusals = {kind: _refusal(way, row, kind) for kind in way.kinds}
    usual = _USUAL.get(row.written, "f16")
    return min(refusals.values(), key=lambda refusal: (refusal != "", refusal != refusals.get(usual)))


def _refusal(way: Way, row: Asked, kind: str) -> str:
    made: list[Any] = []

    def functor(*types: Any) -> Any:
        made.append(row.function(*types, **row.types or {}))
        return made[-1]

    try:
        operation = way.describe(kind, functor, row.written)
        reason = str(operation.supports(way.problem).reason or "")
    except PyCutlassError as error:
        reason = str(error)
    if not reason and row.on_device and not all(scalar.on_device for scalar in made[-1].scalar_table):
        reason = "scalars of such epilogues are numbers"
    for each in made:
        reason = reason.replace(repr(each), "f")
    return " ".join(reason.split())


# Rows


def asked() -> Iterator[Asked]:
    """Yield everything that a function may have."""
    for name, marker in (*MARKERS.items(), ("Scalar", Scalar)):
        title = "`Scalar`, a number" if marker is Scalar else f"`{name}`"
        yield Asked("parameters", title, _of_marker(marker))
    by_columns = {"x": TensorDescription(_f16, cutlass.ColumnMajor)}
    yield Asked("parameters", "`Tensor`, column-major", _of_marker(Tensor), types=by_columns)
    yield Asked("parameters", "`Scalar`, in device memory", _of_marker(Scalar), on_device=True)
    for node in NODES.values():
        yield Asked("nodes", f"`{node.name}`", _of_node(node))
    yield Asked("nodes", "`cast`", _named(lambda accum: epilogue.cast(accum, _f16)))
    yield Asked("nodes", "`pairs`", _named(lambda accum: operator.mul(*epilogue.pairs(accum))))
    yield from _beside_pairs()
    for axis in (1, 0, None):
        for name in REDUCTIONS:
            yield Asked(f"reductions, `axis={axis}`", f"`{name}`", _of_reduction(name, axis))
    yield Asked("selections", "`top_k`", _named(lambda accum: {"D": accum, "x": epilogue.top_k(accum, 2)[0]}))
    matrix = _named(lambda accum: {"D": accum, "x": accum * 2.0})
    yield Asked("outputs beside D", "a matrix", matrix)
    yield Asked("outputs beside D", "a column-major matrix", matrix, types=by_columns)
    for kind in _FLOAT8:
        yield Asked("outputs beside D", f"a matrix of `{kind.__name__}`", matrix, types={"x": kind})
    for kind in (_f16, cutlass.bfloat16, _f32, _f64, _s8, _s32, *_FLOAT8):
        yield Asked("types of D", f"`{kind.__name__}`", _named(lambda accum: accum), written=kind)


def _beside_pairs() -> Iterator[Asked]:
    """Yield what a function of pairs may have beside them."""
    for name, marker in MARKERS.items():
        if marker in (Row, Tensor):  # whoever takes C is refused before there is a kernel
            yield Asked("before `pairs`", f"`{name}`", _before_pairs(marker))
        if marker is not Source:
            yield Asked("behind `pairs`", f"`{name}`", _behind_pairs(marker))
    yield Asked("beside `pairs`", "an output of (M, N / 2)", _beside(lambda accum, gated: gated * 2.0))
    yield Asked("beside `pairs`", "an output of (M, N)", _beside(lambda accum, gated: accum))
    for axis in (1, 0, None):
        reduced = _beside(lambda accum, gated, axis=axis: epilogue.absmax(gated, axis=axis))
        yield Asked("beside `pairs`", f"a reduction, `axis={axis}`", reduced)
    yield Asked("beside `pairs`", "`top_k`", _beside(lambda accum, gated: epilogue.top_k(gated, 2)[0]))


def _before_pairs(marker: Any) -> EpilogueFunction:
    def f(accum: Any, x: marker) -> Any:
        return operator.mul(*epilogue.pairs(accum + x))

    return epilogue_function(f)


def _behind_pairs(marker: Any) -> EpilogueFunction:
    def f(accum: Any, x: marker) -> Any:
        return operator.mul(*epilogue.pairs(accum)) + x

    return epilogue_function(f)


def _beside(made: Any) -> EpilogueFunction:
    def f(accum: Any) -> Any:
        gated = operator.mul(*epilogue.pairs(accum))
        return {"D": gated, "x": made(accum, gated)}

    return epilogue_function(f)


def _named(function: Any) -> EpilogueFunction:
    function.__name__ = "f"
    return epilogue_function(function)


def _of_marker(marker: Any) -> EpilogueFunction:
    def f(accum: Any, x: marker) -> Any:
        return accum + x

    return epilogue_function(f)


def _of_node(node: Node) -> EpilogueFunction:
    def f(accum: Any) -> Any:
        given = [accum > number if kind == "t" else accum + number for number, kind in enumerate(node.takes, 1)]
        made = applied(node, *given)
        return epilogue.where(made, 1.0, 0.0) if node.makes == "t" else made

    return epilogue_function(f)


def _of_reduction(name: str, axis: int | None) -> EpilogueFunction:
    return _named(lambda accum: {"D": accum, "x": getattr(epilogue, name)(accum, axis=axis)})


# Columns


def _described(kind: str, make: Any, written: Any, tile: Any = None, order: Any = cutlass.RowMajor) -> dict[str, Any]:
    operand, accumulator, shape, threadblock, stages = _KINDS[kind]
    is_simt = kind == "simt"
    written = written or (_f32 if is_simt else _f64 if kind == "f64" else _f16)
    widest, length = (1, 1) if is_simt else (128 // _BITS[operand], 128 // _BITS[written])
    if kind == "f64":  # tensor cores load single elements
        widest = length = 1
    if tile is None:
        opcode = cutlass.OpClass.Simt if is_simt else cutlass.OpClass.TensorOp
        instruction = MathInstruction(shape, operand, operand, accumulator, opcode)
        tile = TileDescription(threadblock, stages, [4, 2, 1] if is_simt else [2, 2, 1], instruction)
    return {
        "tile_description": tile,
        "A": TensorDescription(operand, cutlass.RowMajor, widest),
        "B": TensorDescription(operand, cutlass.ColumnMajor, widest),
        "C": TensorDescription(written, order, length),
        "epilogue_functor": make(written, length, accumulator),
    }


def _ampere(operation: Any = GemmOperationUniversal, order: Any = cutlass.RowMajor, **more: Any) -> Any:
    return lambda kind, make, written: operation(
        compute_capability=80, **_described(kind, make, written, order=order), **more
    )


def _hopper(schedule: KernelSchedule, operation: Any = GemmOperationUniversal, order: Any = cutlass.RowMajor) -> Any:
    def describe(kind: str, make: Any, written: Any) -> Any:
        instruction = MathInstruction(None, _f16, _f16, _f32, cutlass.OpClass.TensorOp)
        tile = TileDescription([128, 128, 64], None, None, instruction, [1, 1, 1], schedule)
        return operation(compute_capability=90, **_described(kind, make, written, tile, order))

    return describe


def _gemv(order: Any = cutlass.RowMajor, **more: Any) -> Any:
    def describe(kind: str, make: Any, written: Any) -> Any:
        operand, accumulator = (_s8, _s32) if kind == "s8" else (_f16, _f32)
        instruction = MathInstruction(None, operand, operand, accumulator, cutlass.OpClass.Simt)
        shape = [1, 8, 8192 // _BITS[operand]]
        tile = TileDescription(shape, None, [1, 4, 1], instruction, kernel_schedule=KernelSchedule.Gemv)
        return GemmOperationUniversal(
            compute_capability=80, **_described(kind, make, written, tile, order=order), **more
        )

    return describe


def _conv(direction: Any, strides: Any = _Strides.unity, **more: Any) -> Any:
    def describe(kind: str, make: Any, written: Any) -> Any:
        described = _described(kind, make, written)
        for name in ("A", "B", "C"):
            operand = described[name]
            described[name] = TensorDescription(operand.element, cutlass.TensorNHWC, operand.alignment)
        return Conv2dOperation(
            conv_kind=direction,
            iterator_algorithm=cutlass.conv.IteratorAlgorithm.optimized,
            compute_capability=80,
            stride_support=strides,
            **described,
            **more,
        )

    return describe


def _reduction(kind: str, make: Any, written: Any) -> Any:
    written = written or _f16
    _, accumulator, *_ = _KINDS[kind]
    length = 128 // _BITS[written]
    C = TensorDescription(written, cutlass.RowMajor, length)
    functor = make(written, length, accumulator)
    return ReductionOperation([4, 32 * length], C, accumulator, epilogue_functor=functor, count=length)


def _image(stride: int = 1, groups: int = 1, slices: int = 1) -> Any:
    return cutlass.conv.Conv2dProblemSize(
        *(1, 8, 8, 64, 128 * groups, 3, 3),
        stride_h=stride,
        stride_w=stride,
        groups=groups,
        split_k_slices=slices,
    )


def _size(mode: Any, batch: int = 1, slices: int = 1) -> GemmProblemSize:
    return GemmProblemSize(*_SIZE, mode, batch=batch, split_k_slices=slices)


_BATCHED, _ARRAY = _size(_Mode.Batched, batch=2), _size(_Mode.Array, batch=2)
_PINGPONG, _COOPERATIVE = KernelSchedule.Pingpong, KernelSchedule.Cooperative

#: What is asked, by the title of a table.
WAYS: dict[str, tuple[Way, ...]] = {
    "Ampere-style GEMM": (
        Way("`Mode.Gemm`", _ampere()),
        Way("`Batched`", _ampere(), problem=_BATCHED),
        Way("`Array`", _ampere(), problem=_ARRAY),
        Way("serial split-K", _ampere(), problem=_size(_Mode.Gemm, slices=2)),
        Way("parallel split-K", _ampere(), problem=_size(_Mode.GemmSplitKParallel, slices=2)),
        Way("reduction", _reduction, problem=ReductionProblemSize(64, 64, 2)),
        Way("stream-K", _ampere(swizzling_functor=cutlass.ThreadblockSwizzleStreamK)),
        Way("D column-major", _ampere(order=cutlass.ColumnMajor)),
        Way("SIMT", _ampere(), kinds=("simt",)),
    ),
    "Hopper-native GEMM": (
        Way("pingpong", _hopper(_PINGPONG), kinds=("f16",)),
        Way("cooperative", _hopper(_COOPERATIVE), kinds=("f16",)),
        Way("`Batched`", _hopper(_PINGPONG), kinds=("f16",), problem=_BATCHED),
        Way("`Array`", _hopper(_PINGPONG), kinds=("f16",), problem=_ARRAY),
        Way("split-K", _hopper(_PINGPONG), kinds=("f16",), problem=_size(_Mode.Gemm, slices=2)),
        Way("D column-major", _hopper(_PINGPONG, order=cutlass.ColumnMajor), kinds=("f16",)),
    ),
    "GEMV": (
        Way("few rows", _gemv(), kinds=("f16", "s8")),
        Way("few columns", _gemv(swap_ab=True), kinds=("f16", "s8")),
        Way("`Batched`", _gemv(), kinds=("f16", "s8"), problem=_BATCHED),
        Way("D column-major", _gemv(cutlass.ColumnMajor), kinds=("f16", "s8")),
    ),
    "Grouped GEMM": (
        Way("Ampere-style", _ampere(GemmOperationGrouped), problem=[_SIZE]),
        Way("Hopper-native", _hopper(_PINGPONG, GemmOperationGrouped), kinds=("f16",), problem=[_SIZE]),
    ),
    "Convolution": (
        Way("fprop", _conv(_Operator.fprop), problem=_image(stride=2)),
        Way("dgrad, strides of 1", _conv(_Operator.dgrad), problem=_image()),
        Way("strided dgrad", _conv(_Operator.dgrad, _Strides.strided), problem=_image(stride=2)),
        Way("wgrad", _conv(_Operator.wgrad), problem=_image(stride=2)),
        Way("groups", _conv(_Operator.fprop, group_mode=GroupMode.SingleGroup), problem=_image(groups=2)),
        Way("split-K", _conv(_Operator.wgrad), problem=_image(slices=2)),
    ),
}

if __name__ == "__main__":
    sys.exit(main())
