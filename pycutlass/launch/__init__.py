"""Two ways to execute a problem: on a GPU, and on the host where there is none.

Nothing here knows what a GEMM or a convolution is. A `Problem` holds the checked operands and scalars of one launch,
fills its family's part of the call record, and can be computed on the host.
"""

from pycutlass.launch.device import DeviceLaunch
from pycutlass.launch.host import HostLaunch, NoLaunch
from pycutlass.launch.prepared import Prepared
from pycutlass.launch.problem import Operand, Problem, check_on_host, guards, ordinal_of
from pycutlass.launch.streams import run_joined

__all__ = [
    "DeviceLaunch",
    "HostLaunch",
    "NoLaunch",
    "Operand",
    "Prepared",
    "Problem",
    "check_on_host",
    "guards",
    "ordinal_of",
    "run_joined",
]
