"""GPUs, under the original's name."""

from pycutlass.compat.checks import check_cuda_errors
from pycutlass.device import device_cc

__all__ = ["check_cuda_errors", "device_cc"]
