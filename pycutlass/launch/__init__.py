"""Two ways to execute a problem: on a GPU, and on the host where there is none.

A `Problem` holds the checked operands and scalars of one launch, fills its family's part of the call record, and can be
computed on the host. Each family has its own, in the module of its name; nothing else here knows what a GEMM or a
convolution is, but that a group has a launch of its own.
"""

from pycutlass.launch.device import DeviceLaunch
from pycutlass.launch.host import HostLaunch, NoLaunch
from pycutlass.launch.options import USUAL, LaunchOptions, check_priority, check_sm_count
from pycutlass.launch.prepared import Prepared
from pycutlass.launch.problem import Problem, check_on_host, guards, ordinal_of
from pycutlass.launch.streams import run_joined

__all__ = [
    "USUAL",
    "DeviceLaunch",
    "HostLaunch",
    "LaunchOptions",
    "NoLaunch",
    "Prepared",
    "Problem",
    "check_on_host",
    "check_priority",
    "check_sm_count",
    "guards",
    "ordinal_of",
    "run_joined",
]
