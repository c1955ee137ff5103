"""All that is known of one kernel in the cache: where it comes from, what the build said, what its code consists of."""

from __future__ import annotations

import dataclasses
import re
from typing import Any

from pycutlass import toolkit
from pycutlass.cache import Artifact
from pycutlass.errors import ToolkitError
from pycutlass.report import BuildReport
from pycutlass.toolkit import Memo

__all__ = ["facts_of", "printed"]

_STAGES = re.compile(r"_\d+x\d+_\d+x(\d+|auto)(?:_|$)")  # tile and stages, as `TileDescription` spells them in a name


def facts_of(artifact: Artifact, memo: Memo) -> dict[str, Any]:
    """Return what there is to know of `artifact`, as JSON can carry it."""
    stages = _STAGES.search(artifact.name)
    try:
        instructions, note = dict(toolkit.instruction_mix(artifact.cubin, memo).most_common()), ""
    except ToolkitError as error:
        instructions, note = {}, str(error)
    return {
        "name": artifact.name,
        "key": artifact.key,
        "target": artifact.target,
        "stages": stages[1] if stages else "",
        "report": {label: value for label, value in artifact.report.items() if label != "source"},
        "fields": dict(artifact.fields),
        "instructions": instructions,
        "instructions_note": note,
        "source": artifact.report.get("source", ""),
    }


def printed(facts: dict[str, Any]) -> list[tuple[str, str]]:
    """Return `facts` as a table for people, but for the source."""
    order = [field.name for field in dataclasses.fields(BuildReport) if field.name in facts["report"]]
    rows = [(label, facts[label]) for label in ("name", "key", "target", "stages", "stale") if facts.get(label)]
    for label in order:
        value = facts["report"][label]
        shown = "; ".join(value) or "none" if isinstance(value, list) else f"{value:,}" if _is_count(value) else value
        rows.append((label.replace("_", " "), str(shown)))
    mix = facts["instructions"]
    shown = ", ".join(f"{name} {count:,}" for name, count in mix.items())
    rows.append(("instructions", facts["instructions_note"] or f"{sum(mix.values()):,}: {shown}"))
    return rows


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
