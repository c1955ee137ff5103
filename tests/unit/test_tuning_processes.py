"""Tuners of several processes on one database; times are made up."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from tuners import kept
from two_tuners import begin, check_kept, finish, one_is_killed, wait_for_trials


@pytest.mark.parametrize("seconds", [2.0, pytest.param(60.0, marks=pytest.mark.thorough)])
def test_of_two_tuners_one_is_killed(tmp_path: Path, seconds: float) -> None:
    one_is_killed("made-up", tmp_path, seconds)


def test_tuners_share_the_work(tmp_path: Path) -> None:
    """A candidate that one has measured, or measures, is left alone by the others."""
    names = ["first", "second", "third"]
    tuners = [begin("made-up", tmp_path, name) for name in names]
    try:
        for name in names:
            wait_for_trials(tmp_path / name, 6)
        finish(tmp_path, tuners)
    finally:
        for each in tuners:
            each.kill()
            each.communicate()
    check_kept(tmp_path, names)
    who = Counter(line for name in names for line in {*kept(tmp_path / name)})
    assert set(who.values()) == {1}
