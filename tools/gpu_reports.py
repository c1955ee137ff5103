"""What pytest and compute-sanitizer say at their end, of one process or of several that share the tests."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from xml.etree import ElementTree

from benchmarks import common
from tools.gpu_page import KEPT_LINES, Result

__all__ = ["merge_sanitizer", "merge_tests", "read_counts", "read_initcheck", "read_junit", "read_sanitizer"]

_OUR_KERNEL = re.compile(r"^=+\s+at (?:0x\w+ in )?(?:\w+ )?cutlass\w*")


def merge_tests(shares: Mapping[str, Result | None]) -> Result | None:
    """Return the sums of what processes, by name, have counted; None where none of them left anything.

    Where only some left nothing, each is an error: what it ran before it was lost is unknown.
    """
    known = [tests for tests in shares.values() if tests is not None]
    if not known:
        return None
    lost = [[name, "left no results"] for name, tests in shares.items() if tests is None]
    merged: Result = {key: sum(tests[key] for tests in known) for key in ("passed", "failed", "errors", "skipped")}
    merged["errors"] += len(lost)
    merged["failures"] = [failure for tests in known for failure in tests["failures"]] + lost
    merged["skips"] = [skip for tests in known for skip in tests["skips"]]
    return merged


def merge_sanitizer(shares: Sequence[Result]) -> Result:
    """Return all that compute-sanitizer said of several processes; nothing is known where one has no summary."""
    counts = [share["errors"] for share in shares]
    return {
        "errors": None if not counts or None in counts else sum(counts),
        "summaries": [summary for share in shares for summary in share["summaries"]],
        "found": [line for share in shares for line in share["found"]][:KEPT_LINES],
    }


def read_junit(text: str) -> Result:
    """Return the counts of a junit file, and the names and reasons of what failed and of what was skipped."""
    result: Result = {"passed": 0, "failed": 0, "errors": 0, "skipped": 0, "failures": [], "skips": []}
    if not text.strip():
        return result
    kinds = (("failure", "failed", "failures"), ("error", "errors", "failures"), ("skipped", "skipped", "skips"))
    for case in ElementTree.fromstring(text).iter("testcase"):
        name = f"{case.get('classname')}::{case.get('name')}"
        for tag, count, listing in kinds:
            found = case.find(tag)
            if found is not None:
                result[count] += 1
                reason = (found.get("message") or found.text or "").strip().splitlines()
                result[listing].append([name, common.without_places(reason[0]) if reason else ""])
                break
        else:
            result["passed"] += 1
    return result


def read_counts(text: str) -> dict[str, int]:
    """Return the counts in the last line of pytest's output; none where there is no such line.

    They count where pytest was interrupted: the junit file then has the test that was running as one that passed.
    """
    lines = re.findall(r"^=+ (\d+ [a-z].*) in [\d.]+s\b.*=+$", text, flags=re.MULTILINE)
    if not lines:
        return {}
    words = {"passed": "passed", "failed": "failed", "errors": "errors?", "skipped": "skipped"}
    found = {key: re.search(rf"(\d+) {word}\b", lines[-1]) for key, word in words.items()}
    return {key: int(match[1]) if match else 0 for key, match in found.items()}


def read_sanitizer(text: str) -> Result:
    """Return what compute-sanitizer summed up, and the first lines of what it found."""
    summaries = re.findall(r"^=+ ((?:ERROR|RACECHECK) SUMMARY: .*)$", text, flags=re.MULTILINE)
    counts = [int(number) for number in re.findall(r"SUMMARY: (\d+)", "\n".join(summaries))]
    marked = re.findall(r"^={9}(?: .*)?$", text, flags=re.MULTILINE)  # pytest's own lines have more of them
    found = [line for line in marked if line.strip("= ") and "SUMMARY" not in line and "COMPUTE-SANITIZER" not in line]
    # Without a summary the program did not come to its end, and nothing is known.
    return {"errors": sum(counts) if counts else None, "summaries": summaries, "found": found[:KEPT_LINES]}


def read_initcheck(text: str) -> Result:
    """Return what initcheck found in our kernels, whose names begin with cutlass.

    What it sums up counts the kernels of torch and cupy as well; it is kept, since without it nothing is known.
    """
    read = read_sanitizer(text)
    reports = re.split(r"^(?=={9} Uninitialized)", text, flags=re.MULTILINE)[1:]
    ours = [report for report in reports if any(map(_OUR_KERNEL.match, report.splitlines()[1:3]))]
    found = [line for report in ours for line in report.splitlines() if re.match(r"={9} \S|={9}  ", line)]
    theirs = len(reports) - len(ours)
    summary = f"INITCHECK: {len(ours)} uninitialized reads by our kernels, {theirs} by those of other libraries"
    known = read["errors"] is not None
    return {"errors": len(ours) if known else None, "summaries": [summary] * known, "found": found[:KEPT_LINES]}
