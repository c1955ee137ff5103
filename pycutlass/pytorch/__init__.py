"""PyCUTLASS in models of torch: operators ``torch.ops.pycutlass``, with gradients, and modules made of them.

Importing this package imports torch and registers the operators. ``import pycutlass`` does neither. What is for whole
models, such as `partition`, is imported when it is first asked for.
"""

import typing as _typing

from pycutlass.imported import imports_later as _imports_later
from pycutlass.pytorch.required import check_torch as _check_torch

_check_torch()  # before anything asks torch for what older ones lack

from pycutlass.pytorch import fused as _fused  # noqa: E402, F401
from pycutlass.pytorch import scaled as _scaled  # noqa: E402, F401
from pycutlass.pytorch.backend import register as _register_backend  # noqa: E402
from pycutlass.pytorch.batching import register_batches as _register_batches  # noqa: E402
from pycutlass.pytorch.casting import register_casts as _register_casts  # noqa: E402
from pycutlass.pytorch.handles import epilogue_handle, epilogue_of  # noqa: E402
from pycutlass.pytorch.modules import Conv2d, GroupedLinear, Linear, SwiGLU  # noqa: E402
from pycutlass.pytorch.named_batching import register_named_batches as _register_named_batches  # noqa: E402
from pycutlass.pytorch.options import Options  # noqa: E402

if _typing.TYPE_CHECKING:
    from pycutlass.pytorch.autotuned import register_autotuning
    from pycutlass.pytorch.compiling import InductorPass, compile_graph
    from pycutlass.pytorch.conversion import Conversion, convert
    from pycutlass.pytorch.explained import Explanation, explain
    from pycutlass.pytorch.libraries import build, build_vm, load
    from pycutlass.pytorch.native import build_native, embedded, load_native
    from pycutlass.pytorch.partitions import Partition, partition
    from pycutlass.pytorch.tuned import ModelTuning, tune

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

#: What is for whole models, and where it is. It is imported when it is first asked for: it takes torch's compiler with
#: it, and with that three times as long as all operators.
_LATER = {
    "register_autotuning": "autotuned",
    **dict.fromkeys(("InductorPass", "compile_graph"), "compiling"),
    **dict.fromkeys(("Conversion", "convert"), "conversion"),
    **dict.fromkeys(("Explanation", "explain"), "explained"),
    **dict.fromkeys(("build", "build_vm", "load"), "libraries"),
    **dict.fromkeys(("build_native", "embedded", "load_native"), "native"),
    **dict.fromkeys(("Partition", "partition"), "partitions"),
    **dict.fromkeys(("ModelTuning", "tune"), "tuned"),
}
__getattr__ = _imports_later(__name__, _LATER)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
