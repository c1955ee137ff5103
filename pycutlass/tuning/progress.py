"""How far tuning has come, on a terminal; nothing elsewhere."""

from __future__ import annotations

import contextlib
import math
import sys
import time
from collections.abc import Callable, Iterator, Sequence

from pycutlass.tuning.race import Contestant

__all__ = ["described", "remaining", "shown_progress"]

Show = Callable[[Sequence[Contestant]], None]


@contextlib.contextmanager
def shown_progress(problems: int, deadline: float) -> Iterator[Callable[[str], Show]]:
    """Give a function that makes of a problem's name one that shows its candidates, and when all ends at the latest."""
    if not sys.stderr.isatty():
        yield lambda name: lambda contestants: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    columns = TextColumn("tuning"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.description}")
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task, begun = progress.add_task("", total=problems), -1

        def of(name: str) -> Show:
            nonlocal begun
            begun += 1
            progress.update(task, completed=begun)

            def show(contestants: Sequence[Contestant]) -> None:
                progress.update(task, description=f"{name}: {described(contestants)}, {remaining(deadline)}")

            return show

        yield of


def described(contestants: Sequence[Contestant]) -> str:
    """Return how many candidates are where, and the best time."""
    waiting = sum(each.status == "waiting" for each in contestants)
    racing = sum(each.status == "racing" for each in contestants)
    best = min((each.median for each in contestants), default=math.inf)
    said = "" if best == math.inf else f", best {best:.2f} us"
    return f"{waiting} to compile, {racing} being measured{said}"


def remaining(deadline: float) -> str:
    """Return how long it takes at most."""
    left = max(0, round(deadline - time.monotonic()))
    return f"at most {left // 60}:{left % 60:02d} left"
