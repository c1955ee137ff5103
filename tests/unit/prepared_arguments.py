"""Programs that make arguments of a GEMM on the stand-in for a GPU: at once by C++, or looked at by Python alone."""

__all__ = ["TORCH"]

#: Tensors of torch in host memory that pass for some of GPU 0, and arguments made with and without what is prepared.
TORCH = """
import copy, dataclasses, logging, random, sys
import torch
from pycutlass import _core, kernel, log
from pycutlass.errors import PyCutlassError
from pycutlass.arguments import split_k
from pycutlass.launch import device
from pycutlass.operands import reordered
from pycutlass.tensor import adapters
from descriptions import COLUMN, ROW
from fake_gpu.inside import _load

original = adapters._from_torch

def on_gpu(name, tensor):
    view = original(name, tensor)
    return dataclasses.replace(view, device=0)

for name, value in list(vars(adapters).items()):
    if name == "_ADAPTERS":
        adapters._ADAPTERS = tuple((matches, on_gpu if adapt is original else adapt) for matches, adapt in value)
reordered.current_stream_source = split_k.current_stream_source = lambda library, ordinal: lambda: 0
device.follow_streams = lambda call, libraries, ordinal: (call.follow_callable(lambda: 0), [])[1]

said = []
class Hearer(logging.Handler):
    def emit(self, record):
        said.append(record.getMessage())
logging.getLogger("pycutlass").addHandler(Hearer())
logging.getLogger("pycutlass").propagate = False

def made(operation, *given, **named):
    return pycutlass.GemmArguments(operation, *given, **named)

def is_ordinary(arguments):
    return "_reordering" not in vars(arguments)

def looked_at(operation, *given, **named):
    # by Python alone
    ordinary = pycutlass.GemmArguments._start_ordinary
    pycutlass.GemmArguments._start_ordinary = lambda *given: False
    try:
        return made(operation, *given, **named)
    finally:
        pycutlass.GemmArguments._start_ordinary = ordinary
"""
