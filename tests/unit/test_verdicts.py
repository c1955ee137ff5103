"""tools/verdicts: what it says of random descriptions is one thing, whoever asks and whenever, and holds together."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT))  # the tools are not installed with the package

from pycutlass import errors  # noqa: E402
from tools.verdicts import draw, judge  # noqa: E402

SEED, COUNT = 7, 600


@pytest.fixture(scope="module")
def sample() -> list[dict[str, Any]]:
    return list(judge.judged(SEED, COUNT))


def test_every_kind_is_accepted_and_refused(sample: list[dict[str, Any]]) -> None:
    for kind in set(draw.KINDS):
        found = {each["verdict"] for each in sample if each["kind"] == kind}
        assert found == {"accepted", "DescriptionError"}, kind
    rules = {(each["at"], judge.alike(each["message"])) for each in sample if each["verdict"] != "accepted"}
    assert len(rules) > 100


def test_a_verdict_depends_on_the_description_alone(sample: list[dict[str, Any]]) -> None:
    """Not on what was described before, which may have filled caches."""
    for number in range(COUNT - 1, 0, -3):
        [again] = judge.judged(SEED, 1, number)
        assert again == sample[number]
        assert not list(judge.differences(again, sample[number]))


def test_what_is_refused_says_why(sample: list[dict[str, Any]]) -> None:
    for each in sample:
        if each["verdict"] != "accepted":
            assert issubclass(getattr(errors, each["verdict"]), errors.PyCutlassError)
            assert len(each["message"]) > 20 and each["at"] != "parts", each


def test_what_is_accepted_is_a_value(sample: list[dict[str, Any]]) -> None:
    names = {}
    for each in sample:
        if each["verdict"] == "accepted":
            operation = judge.described(draw.drawn(SEED, each["number"]))
            copy = pickle.loads(pickle.dumps(operation))
            assert copy == operation and copy.source() == operation.source()
            assert names.setdefault(each["name"], each["digest"]) == each["digest"]
    assert len(names) > 60


def test_support_agrees_with_the_shape_of_the_result(sample: list[dict[str, Any]]) -> None:
    """A problem that is supported has an output; each problem is judged or is none."""
    said = [problem for each in sample for problem in each.get("problems", ())]
    assert len(said) > 120 and any(each == "yes" for each in said)
    assert all(each == "yes" or each.startswith(("no: ", "ArgumentError: ")) for each in said)


def test_a_difference_is_seen(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tools.verdicts"]
    path = tmp_path / "before.jsonl"

    def run(*options: Any) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*command, *map(str, options)], cwd=ROOT, capture_output=True, text=True, timeout=120, check=False
        )

    written = run("--write", path, "--seed", 3, "--count", 60)
    assert written.returncode == 0, written.stderr
    same = run("--compare", path)
    assert same.returncode == 0 and "0 of 60 verdicts differ" in same.stdout, same.stdout + same.stderr
    lines = path.read_text().splitlines()
    found = [json.loads(line) for line in lines[1:]]
    accepted = next(each for each in found if each["verdict"] == "accepted")
    refused = next(each for each in found if each["verdict"] != "accepted")
    accepted["digest"] = "another"
    refused["message"] = "other words"
    path.write_text("\n".join([lines[0], *map(json.dumps, found)]))
    changed = run("--compare", path)
    assert changed.returncode == 1 and "2 of 60 verdicts differ, in 2 ways" in changed.stdout, changed.stdout
    assert "1 x digest" in changed.stdout and "- other words" in changed.stdout
