"""Testbeds, under the original's name."""

from pycutlass.compat.testing.conv2d import Conv2dLauncher, test_all_conv2d

__all__ = ["Conv2dLauncher", "test_all_conv2d"]
