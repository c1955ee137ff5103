"""Unit tests need no GPU and behave the same where there is one."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from pycutlass import _core

sys.path.insert(0, str(Path(__file__).parent))  # for descriptions.py

# How long one example takes says more of the machine's other work than of ours.
settings.register_profile("unit", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("unit")


@pytest.fixture(scope="module")
def without_gpu() -> Iterator[None]:
    """Operations are executed on the host, also on a machine with a GPU."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_core, "device_count", lambda: 0)
        yield
