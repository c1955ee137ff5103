"""What PyCUTLASS makes of a description, and how two verdicts differ."""

from __future__ import annotations

import hashlib
import logging
import re
from collections.abc import Iterator
from dataclasses import astuple
from typing import Any

import pycutlass
from pycutlass import cutlass, log
from pycutlass.errors import PyCutlassError
from tools.verdicts.draw import Drawn, drawn

__all__ = ["alike", "described", "differences", "judged", "verdict"]


def verdict(given: Drawn) -> Drawn:
    """Return what PyCUTLASS makes of a description.

    Accepted, the digest of its source and what is said of its problems; refused, the class, the part that was being
    made and the message. Either way the lines that were logged.
    """
    lines: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())  # type: ignore[method-assign]
    log._said.clear()  # each description is told everything
    log.logger.addHandler(handler)
    propagated, log.logger.propagate = log.logger.propagate, False
    at = ["parts"]
    try:
        operation = described(given, at)
        source = astuple(operation.source())
        result = {
            "verdict": "accepted",
            "digest": hashlib.sha256(repr(source).encode()).hexdigest()[:20],
            "name": operation.procedural_name(),
            "problems": [_said_of(operation, given["kind"], problem) for problem in given["problems"]],
        }
    except PyCutlassError as error:
        result = {"verdict": type(error).__name__, "at": at[0], "message": str(error)}
    finally:
        log.logger.removeHandler(handler)
        log.logger.propagate = propagated
    return result | {"said": lines}


def described(given: Drawn, at: list[str] | None = None) -> Any:
    """Return the operation of a description; `at` is told which part is being made."""
    at = ["parts"] if at is None else at

    def tag(name: str) -> Any:
        return None if given[name] is None else getattr(cutlass, given[name])

    def tensor(name: str) -> Any:
        at[0] = name
        return pycutlass.TensorDescription(tag(f"type_{name}"), tag(f"layout_{name}"), given[f"alignment_{name}"])

    def functor() -> Any:
        at[0] = "functor"
        types = (tag("functor_output"), given["vector"], tag("functor_accumulator"), tag("compute"))
        name = given["functor"]
        if name == "FastLinearCombinationClamp":
            return pycutlass.FastLinearCombinationClamp(*types[:2])
        if name[0] == "L":
            return getattr(pycutlass, name)(*types)
        return pycutlass.LinearCombinationGeneric(getattr(pycutlass.epilogue, name)(), *types)

    if given["kind"] == "reduction":
        C, made = tensor("c"), functor()
        at[0] = "operation"
        return pycutlass.ReductionOperation(
            cutlass.MatrixCoord(given["rows"], given["columns"]),
            C,
            tag("accumulator"),
            epilogue_functor=made,
            count=given["vector"],
            partitions_per_stage=given["partitions"],
        )
    at[0] = "instruction"
    math = pycutlass.MathInstruction(
        given["instruction"],
        tag("element_a"),
        tag("element_b"),
        tag("accumulator"),
        getattr(cutlass.OpClass, given["opcode"]),
        pycutlass.MathOperation[given["operation"]],
    )
    at[0] = "tile"
    schedule = None if given["schedule"] is None else pycutlass.KernelSchedule[given["schedule"]]
    tile = pycutlass.TileDescription(given["tile"], given["stages"], given["warps"], math, given["cluster"], schedule)
    A, B, C = (tensor(name) for name in "abc")
    made = functor()
    D = None
    if given.get("type_d") is not None and given.get("layout_d") is not None:
        at[0] = "d"
        D = pycutlass.TensorDescription(tag("type_d"), tag("layout_d"), given["vector"])
    at[0] = "operation"
    if given["kind"] == "conv":
        mode = None if given["groups"] is None else pycutlass.GroupMode[given["groups"]]
        kinds = cutlass.conv.Operator[given["conv"]], cutlass.conv.IteratorAlgorithm[given["algorithm"]]
        stride = pycutlass.StrideSupport[given["stride"]]
        parts = given["capability"], tile, A, B, C, stride, made, tag("swizzle"), mode
        return pycutlass.Conv2dOperation(*kinds, *parts)
    parts = given["capability"], tile, A, B, C, made, tag("swizzle")
    if "group" in given["kind"]:
        return pycutlass.GemmOperationGrouped(*parts, pycutlass.SchedulerMode[given["precompute"]])
    return pycutlass.GemmOperationUniversal(*parts, D)


def _said_of(operation: Any, kind: str, problem: Any) -> str:
    """Return what `supports` says of a problem."""
    try:
        if kind == "conv":
            n, h, w, c, k, r, s, stride = problem
            sized = cutlass.conv.Conv2dProblemSize(
                *(cutlass.Tensor4DCoord(n, h, w, c), cutlass.Tensor4DCoord(k, r, s, c)),
                *(cutlass.Tensor4DCoord(r // 2, r // 2, s // 2, s // 2), cutlass.MatrixCoord(stride, stride)),
                *(cutlass.MatrixCoord(1, 1), cutlass.conv.Mode.cross_correlation, 1, 1),
            )
            return str(operation.supports(sized))
        if "group" in kind:
            return str(operation.supports(problem))
        m, n, k, mode, batch, slices = problem
        if kind == "reduction":
            return str(operation.supports((m, n)))
        return str(
            operation.supports(pycutlass.GemmProblemSize(m, n, k, getattr(cutlass.gemm.Mode, mode), batch, slices))
        )
    except PyCutlassError as error:
        return f"{type(error).__name__}: {error}"


def judged(seed: int, count: int, first: int = 0) -> Iterator[Drawn]:
    """Yield the verdicts of `count` descriptions."""
    for number in range(first, first + count):
        given = drawn(seed, number)
        yield {"number": number, "kind": given["kind"], **verdict(given)}


def differences(before: Drawn, after: Drawn) -> Iterator[tuple[str, str, str]]:
    """Yield what differs between two verdicts of one description: what it is, before and after."""
    if before["verdict"] != after["verdict"]:
        old, new = (each.get("message", each["verdict"]) for each in (before, after))
        yield f"{before['verdict']} -> {after['verdict']}", old, new
        return
    for name in ("digest", "name", "at", "message", "said"):
        if before.get(name) != after.get(name):
            yield name, str(before.get(name)), str(after.get(name))
    for old, new in zip(before.get("problems", ()), after.get("problems", ()), strict=True):
        if old != new:
            yield "problem", old, new


def alike(text: str) -> str:
    """Return a message without what differs between messages of one rule."""
    text = re.sub(r"\bcutlass\.\w+|\b(?:f|bf|tf|s)\d+\b|[\d,.]+|\[[^]]*\]", "#", text)
    return re.sub(r"#[^a-z]*#", "#", text)
