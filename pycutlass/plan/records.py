"""What the database of trials calls a problem: all that a time depends on, in JSON's types, family by family."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from typing import Any

from pycutlass import _core
from pycutlass.epilogue import Epilogue
from pycutlass.library import TensorDescription
from pycutlass.plan.conv_kind import Conv2dKind
from pycutlass.plan.group_pick import Typical
from pycutlass.plan.kind import GemmKind
from pycutlass.trials.values import CALLED
from pycutlass.types import element

__all__ = ["conv2d_record", "group_record", "name_of", "problem_record"]

#: Sizes of a group that a record lists: beyond them it has a digest, since the database takes no text of any length.
_MOST_SIZES = 256
#: The name of an epilogue and, of a functor with one, of its activation.
_EPILOGUE = re.compile(r"(\w+)\((?:(\w+)\([^)]*\), )?")
_PLAIN = ("LinearCombination", "LinearCombinationClamp", "FastLinearCombinationClamp")
_GEOMETRY = ("R", "S", "pad_h", "pad_w", "stride_h", "stride_w", "dilation_h", "dilation_w", "groups")


def problem_record(
    kind: GemmKind, m: int, n: int, k: int, batch: int | None = None, source: str | None = None
) -> dict[str, Any]:
    """Return what the database calls a GEMM, or a batch of so many.

    `source` is the C that a functor reads where beta is not 0, ``"matrix"`` or ``"bias"``; None where it reads none.
    """
    return {"product": "gemm", "m": m, "n": n, "k": k, "batch": batch, **_kind_record(kind, "ABCD", source)}


def conv2d_record(kind: Conv2dKind, problem: _core.Conv2dProblemSize, source: str | None = None) -> dict[str, Any]:
    """Return what the database calls a convolution; slices of split-K are a candidate's."""
    return {
        "product": "conv2d",
        "direction": kind.direction.name,
        **{name: getattr(problem, name) for name in ("N", "H", "W", *_GEOMETRY)},
        "channels": [problem.C, problem.K],  # C is the name of an operand
        "mode": problem.mode.name,
        **_kind_record(kind, "ABC", source),
    }


def group_record(kind: GemmKind, group: Typical, source: str | None = None) -> dict[str, Any]:
    """Return what the database calls all groups that are like a typical one, as `typical` returns it."""
    sizes: Any = [[float(count), m, n, k] for count, m, n, k in group]
    if len(sizes) > _MOST_SIZES:
        sizes = hashlib.sha256(json.dumps(sizes).encode()).hexdigest()
    most = [max(each[place] for each in group) for place in (1, 2, 3)]
    count = round(sum(each[0] for each in group))
    return {"product": "group", "count": count, "most": most, "sizes": sizes, **_kind_record(kind, "ABCD", source)}


def name_of(record: Mapping[str, Any]) -> str | None:
    """Return how tables call the problem of a record; None for what is no record of this version."""
    try:
        sizes = _SIZES[record["product"]](record)
        last = "D" if "D" in record else "C"
        a, b, d = (record[name].split()[0] for name in ("A", "B", last))
    except (AttributeError, IndexError, KeyError, TypeError, ValueError):
        return None
    name = f"{sizes} {a} x {b} -> {d}{_name_of_epilogue(record)}"
    return name if name.isprintable() else None  # records come from files of others, and a terminal obeys some text


def _name_of_epilogue(record: Mapping[str, Any]) -> str:
    """Return what comes behind the sums; nothing of a linear combination that reads no C."""
    found = _EPILOGUE.match(str(record.get("epilogue", "")))
    named = None if found is None or found[1] in _PLAIN else record.get(CALLED) or found[2] or found[1]
    added = {"matrix": "C", "bias": "bias"}.get(str(record.get("source")))
    return "".join([f" + {added}" if added else "", f", {named}" if named else ""])


def _name_of_gemm(record: Mapping[str, Any]) -> str:
    batch = "" if record["batch"] is None else f"{record['batch']} x "
    return f"{batch}{record['m']}x{record['n']}x{record['k']}"


def _name_of_conv2d(record: Mapping[str, Any]) -> str:
    (channels, filters), (n, h, w) = record["channels"], (record[name] for name in "NHW")
    parts = [f"{record['direction']} {n}x{h}x{w}x{channels} by {filters} of {record['R']}x{record['S']}"]
    for said, usual, (of_h, of_w) in (
        ("stride", 1, (record["stride_h"], record["stride_w"])),
        ("padding", 0, (record["pad_h"], record["pad_w"])),
        ("dilation", 1, (record["dilation_h"], record["dilation_w"])),
    ):
        if (of_h, of_w) != (usual, usual):
            parts.append(f"{said} {of_h}" if of_h == of_w else f"{said} {of_h}x{of_w}")
    parts += [f"{record['groups']} groups"] if record["groups"] > 1 else []
    return ", ".join(parts) + ","


def _name_of_group(record: Mapping[str, Any]) -> str:
    return f"group of {record['count']} up to {'x'.join(map(str, record['most']))}"


_SIZES = {"gemm": _name_of_gemm, "conv2d": _name_of_conv2d, "group": _name_of_group}


def _kind_record(kind: GemmKind | Conv2dKind, operands: str, source: str | None) -> dict[str, Any]:
    a, b, sums = (element(tag).short for tag in (kind.element_a, kind.element_b, kind.element_accumulator))
    return {
        **{name: _tensor_record(getattr(kind, name)) for name in operands},
        "multiplied": f"{a} x {b} -> {sums}, {kind.math_operation.name}",
        **_epilogue_record(kind.epilogue),
        **({} if source is None else {"source": source}),
    }


def _tensor_record(tensor: TensorDescription) -> str:
    return f"{tensor.type.short} {tensor.order.short} align {tensor.alignment}"


def _epilogue_record(epilogue: Epilogue) -> dict[str, str]:
    """Return what tells epilogues apart: of functions the graph, and the name beside it, which changes no key."""
    graph, text = getattr(epilogue, "graph", None), repr(epilogue)
    if graph is None:
        return {"epilogue": text}
    name, _, types = text.partition("(")
    return {"epilogue": f"function({types} {hashlib.sha256(repr(graph).encode()).hexdigest()[:16]}", CALLED: name}
