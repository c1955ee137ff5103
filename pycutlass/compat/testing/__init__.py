"""The original's testbeds: kernels run on small integers, whose results are exact, and are compared bit by bit."""

from pycutlass.compat.testing.conv2d import Conv2dLauncher, test_all_conv2d
from pycutlass.compat.testing.gemm import GemmUniversalLauncher, test_all_gemm
from pycutlass.compat.testing.grouped import TestbedGrouped
from pycutlass.compat.testing.timer import GpuTimer

__all__ = [
    "Conv2dLauncher",
    "GemmUniversalLauncher",
    "GpuTimer",
    "TestbedGrouped",
    "test_all_conv2d",
    "test_all_gemm",
]
