"""Testbeds, under the original's name."""

from pycutlass.compat.testing.grouped import TestbedGrouped

__all__ = ["TestbedGrouped"]
