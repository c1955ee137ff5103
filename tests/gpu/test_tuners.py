"""Tuners of several processes on one database and one GPU."""

from __future__ import annotations

from pathlib import Path

import pytest
from two_tuners import one_is_killed

pytestmark = pytest.mark.slow


def test_of_two_tuners_one_is_killed(tmp_path: Path) -> None:
    """For a minute, half of it both: nothing that was measured is lost, and the other one goes on."""
    one_is_killed("measured", tmp_path, 60.0)
