"""What the original had beside its library: GPUs and references."""

import importlib as _importlib
from typing import Any as _Any

from pycutlass.compat.reference_modules import Conv2dReferenceModule, ReferenceModule
from pycutlass.compat.tables import SubstituteTemplate
from pycutlass.device import device_cc

__all__ = ["Conv2dReferenceModule", "ReferenceModule", "SubstituteTemplate", "device_cc"]


def __getattr__(name: str) -> _Any:
    """Import a module of this one that is asked for as its attribute."""
    if name in ("device", "reference_model"):
        return _importlib.import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
