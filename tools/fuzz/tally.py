"""What a run of the fuzz found: counted by family, as a table and as JSON."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tools.fuzz.kernels import Kernel
from tools.fuzz.outcome import Outcome

__all__ = ["COUNTS", "Tally", "code_digest", "table"]

ROOT = Path(__file__).resolve().parents[2]
#: What decides which kernels there are, what they compute and how that is checked; a change makes older runs void.
_CODE = ("pycutlass", "csrc", "tools/fuzz")
#: But for what has no part in it: the host's reference, where kernels are kept, how compilers are found, what is said.
_NO_PART = tuple(
    f"pycutlass/{room}"
    for room in ("reference/", "cache/", "compat/", "toolkit/", "cli/", "__main__.py", "config.py", "report.py")
)
_SUFFIXES = (".py", ".h", ".cpp", ".map")

#: Columns of the table. "refused" are problems that our own arguments refused; "redrawn" descriptions, likewise.
#: Kernels are "passed over" that a bundle lacks.
COUNTS = ("kernels", "cases", "wrong", "failed", "not built", "refused", "redrawn", "unfinished", "passed over")


class Tally:
    """Counts by family, by mode, and every failure."""

    def __init__(self) -> None:
        self.families: dict[str, Counter[str]] = {}
        self.modes: Counter[str] = Counter()
        self.failures: list[dict[str, str]] = []
        self.refusals: Counter[str] = Counter()

    def count(self, family: str, what: str, number: int = 1) -> None:
        """Count something of a family."""
        self.families.setdefault(family, Counter())[what] += number

    def add_case(self, kernel: Kernel, number: int, mode: str, refusals: list[str], outcome: Outcome) -> None:
        """Count a case that has ended."""
        self.count(kernel.family, "refused", len(refusals))
        self.refusals.update(f"{kernel.family}: {reason}" for reason in refusals)
        if outcome.verdict == "refused":
            return
        self.count(kernel.family, "cases")
        self.modes[mode] += 1
        if outcome.verdict != "right":
            self.count(kernel.family, outcome.verdict)
            self.add_failure(kernel, f":{number}", outcome.verdict, outcome.reason, outcome.problem)

    def add_failure(self, kernel: Kernel, number: str, kind: str, reason: str, problem: str = "") -> None:
        """Keep a failure, with what it takes to see it again."""
        name = f"{kernel.seed}:{kernel.index}{number}"
        described = {"operation": repr(kernel.operation), "reduction": repr(kernel.reduction), "problem": problem}
        self.failures.append({"case": name, "family": kernel.family, "kind": kind, "reason": reason, **described})

    def total(self, what: str) -> int:
        """Return a count over all families."""
        return sum(counts[what] for counts in self.families.values())

    def idle(self) -> list[str]:
        """Return families of which kernels were built and every problem was refused."""
        return [name for name, counts in self.families.items() if counts["kernels"] > 2 and not counts["cases"]]


def table(families: dict[str, Any]) -> list[str]:
    """Return the counts as lines of text."""
    rows = [("family", *COUNTS)]
    rows += [(name, *(str(counts.get(what, 0)) for what in COUNTS)) for name, counts in families.items()]
    rows.append(("all", *(str(sum(counts.get(what, 0) for counts in families.values())) for what in COUNTS)))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    form = "  ".join([f"{{:<{widths[0]}}}", *(f"{{:>{width}}}" for width in widths[1:])])
    return [form.format(*row) for row in rows]


def code_digest(root: Path = ROOT, parts: Iterable[str] = _CODE) -> str:
    """Return a digest of the code that makes kernels and checks them."""
    files = sorted(path for part in parts for path in (root / part).rglob("*") if path.suffix in _SUFFIXES)
    digest = hashlib.sha256()
    for path in files:
        name = path.relative_to(root).as_posix()
        if not name.startswith(_NO_PART):
            digest.update(f"{name}\0{hashlib.sha256(path.read_bytes()).hexdigest()}\0".encode())
    return digest.hexdigest()[:16]
