"""PyCUTLASS in models of torch: operators ``torch.ops.pycutlass``, with gradients, and modules made of them.

Importing this package imports torch and registers the operators. ``import pycutlass`` does neither.
"""

from pycutlass.pytorch.required import check_torch as _check_torch

_check_torch()  # before anything asks torch for what older ones lack

from pycutlass.pytorch import fused as _fused  # noqa: E402, F401
from pycutlass.pytorch import scaled as _scaled  # noqa: E402, F401
from pycutlass.pytorch.autotuned import register_autotuning  # noqa: E402
from pycutlass.pytorch.batching import register_batches as _register_batches  # noqa: E402
from pycutlass.pytorch.casting import register_casts as _register_casts  # noqa: E402
from pycutlass.pytorch.compiling import InductorPass, compile_graph  # noqa: E402
from pycutlass.pytorch.compiling import register as _register_backend  # noqa: E402
from pycutlass.pytorch.conversion import Conversion, convert  # noqa: E402
from pycutlass.pytorch.explained import Explanation, explain  # noqa: E402
from pycutlass.pytorch.handles import epilogue_handle, epilogue_of  # noqa: E402
from pycutlass.pytorch.libraries import build, build_vm, load  # noqa: E402
from pycutlass.pytorch.modules import Conv2d, GroupedLinear, Linear, SwiGLU  # noqa: E402
from pycutlass.pytorch.named_batching import register_named_batches as _register_named_batches  # noqa: E402
from pycutlass.pytorch.native import build_native, embedded, load_native  # noqa: E402
from pycutlass.pytorch.options import Options  # noqa: E402
from pycutlass.pytorch.partitions import Partition, partition  # noqa: E402
from pycutlass.pytorch.tuned import ModelTuning, tune  # noqa: E402

_register_batches()
_register_named_batches()
_register_casts()
_register_backend()

__all__ = [
    "Conv2d",
    "Conversion",
    "Explanation",
    "GroupedLinear",
    "InductorPass",
    "Linear",
    "ModelTuning",
    "Options",
    "Partition",
    "SwiGLU",
    "build",
    "build_native",
    "build_vm",
    "compile_graph",
    "convert",
    "embedded",
    "epilogue_handle",
    "epilogue_of",
    "explain",
    "load",
    "load_native",
    "partition",
    "register_autotuning",
    "tune",
]
