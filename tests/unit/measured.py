"""Trials for the tests of their database."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from pycutlass.trials import Machine, Trial

__all__ = ["BEGIN", "H200", "PROBLEM", "trial"]

H200 = Machine("NVIDIA H200", 132, 90, "4.2.0", "nvcc 13.0.88", "0.1.0", 700)
PROBLEM = '{"k":512,"m":4096,"n":4096,"types":"f16,f16,f32,f16"}'
BEGIN = datetime(2026, 11, 1, tzinfo=UTC)


def trial(number: int = 0, time: float | None = None, *, day: int = 0, **fields: Any) -> Trial:
    """Return a trial of candidate `number`, which takes `time`, or fails where a status says so."""
    given: dict[str, Any] = {"problem": PROBLEM, "candidate": {"tile": number}, "machine": H200, "host": "h"}
    if fields.get("status", "ok") == "ok":
        time = 10.0 + number if time is None else time
        given |= {"time": time, "low": time, "high": time, "rounds": 20}
    else:
        given |= {"reason": "as the test wants it"}
    return Trial(**{**given, "date": BEGIN + timedelta(days=day), **fields})
