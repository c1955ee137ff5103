"""Testbeds, under the original's name."""

from pycutlass.compat.testing.timer import GpuTimer

__all__ = ["GpuTimer"]
