"""Names of the original PyCUTLASS that this one has under another name, or not at all.

Its scripts write ``from pycutlass import *`` and then use them. They are made here when a script asks for one, so that
they cost nothing where nobody does; ``pycutlass`` and ``pycutlass.cutlass`` look here for names that they lack. Modules
that they import, such as ``pycutlass.utils.device``, lie in the folder ``modules``, which ``pycutlass`` searches last.

Nothing of the library depends on this room.
"""

import importlib as _importlib
import re as _re
import sys as _sys
from typing import Any as _Any

from pycutlass.calls import no_attribute as _no_attribute
from pycutlass.calls import suggestion as _suggestion
from pycutlass.epilogue.activations import as_others_write as _written

__all__ = ["MODULES", "NAMES", "cutlass_name", "old_name"]

#: Where each name of ``pycutlass`` is made.
NAMES = {
    "Conv2dReferenceModule": "pycutlass.compat.reference_modules",
    "DataTypeSize": "pycutlass.compat.tables",
    "GemmKind": "pycutlass.compat.tables",
    "ReferenceModule": "pycutlass.compat.reference_modules",
    "ShortDataTypeNames": "pycutlass.compat.tables",
    "SubstituteTemplate": "pycutlass.compat.tables",
    "bfloat16": "pycutlass.compat.leaked",
    "np": "pycutlass.compat.leaked",
    "os": "pycutlass.compat.leaked",
    "re": "pycutlass.compat.leaked",
    "rmm": "pycutlass.compat.leaked",
    "torch": "pycutlass.compat.leaked",
}
#: Modules of ``pycutlass`` that scripts may use as its attributes, too.
MODULES = ("conv2d_operation", "gemm_operation", "memory_manager", "test", "utils")
#: Names that others have for what is here.
_MEANT = {
    **dict.fromkeys(("GemmOperation", "Gemm"), "GemmOperationUniversal"),
    "Conv2d": "Conv2dOperation",
    **dict.fromkeys(("compile", "build", "add_module"), "compiler.add_module"),
    **dict.fromkeys(("swish", "SiLu"), "silu"),
    "ReLu": "relu",
}
_MEANT_IN_CUTLASS = {
    **dict.fromkeys(("half", "half_t", "fp16", "f16"), "cutlass.float16"),
    **dict.fromkeys(("float", "fp32", "f32"), "cutlass.float32"),
    **dict.fromkeys(("double", "fp64", "f64"), "cutlass.float64"),
    **dict.fromkeys(("bf16", "bfloat16_t"), "cutlass.bfloat16"),
    **dict.fromkeys(("tf32", "tfloat32_t"), "cutlass.tfloat32"),
    **dict.fromkeys(("s8", "int8_t"), "cutlass.int8"),
    **dict.fromkeys(("u8", "uint8_t"), "cutlass.uint8"),
    **dict.fromkeys(("s32", "int32_t"), "cutlass.int32"),
    "TensorNCHW": "cutlass.TensorNHWC, whose channels are adjacent (channels_last of torch)",
}


def old_name(name: str) -> _Any:
    """Return what `name` of ``pycutlass`` stands for.

    Raises
    ------
    AttributeError
        It stands for nothing.
    """
    if name in NAMES:
        return getattr(_importlib.import_module(NAMES[name]), name)
    if name in MODULES:
        return _importlib.import_module(f"pycutlass.{name}")
    modules = MODULES if name.islower() else ()  # GemmOperation is a class, and not the module gemm_operation
    near = _suggestion(name, (*_sys.modules["pycutlass"].__all__, *NAMES, *modules))
    if activation := _written(name.removeprefix("LinearCombination")) if name.startswith("LinearCombination") else "":
        near = f" Write LinearCombinationGeneric({activation}, element_output, epilogue_vector_length, ...)."
    raise _no_attribute("module 'pycutlass'", name, f" Did you mean {_MEANT[name]}?" if name in _MEANT else near)


def cutlass_name(module: str, name: str) -> _Any:
    """Return what `name` of ``pycutlass.cutlass`` or of one of its modules stands for.

    Raises
    ------
    AttributeError
        It stands for nothing.
    """
    found = _importlib.import_module("pycutlass.compat.tensor_refs").find(module, name)
    if found is None:
        raise _no_attribute(f"module {module!r}", name, _near_in_cutlass(_sys.modules[module], name))
    return found


def _near_in_cutlass(module: _Any, name: str) -> str:
    """Return "did you mean ...?" for a name that ``cutlass`` or a module of it lacks, or nothing."""
    cutlass = _sys.modules["pycutlass.cutlass"]
    if name in _MEANT_IN_CUTLASS:
        return f" Did you mean {_MEANT_IN_CUTLASS[name]}?"
    for owner in (module, cutlass, cutlass.gemm, cutlass.conv):
        path = owner.__name__.removeprefix("pycutlass.")
        if name in owner.__all__:
            return f" Did you mean {path}.{name}?"
        for kind in owner.__all__:
            if name in getattr(getattr(owner, kind), "__members__", ()):
                return f" Did you mean {path}.{kind}.{name}?"
    if _re.fullmatch(r"(u?int|b?float|complex)\d+\w*", name):  # a type that it does not have: the nearest is another
        return ""
    return _suggestion(name, module.__all__)
