"""How ``torch.compile`` finds the backend by its name."""

from __future__ import annotations

import importlib
import sys
from importlib.metadata import entry_points

__all__ = ["NAME", "register"]

NAME = "pycutlass"


def register() -> None:
    """Make the backend known by its name where no entry point of an installed package does.

    Dynamo looks for entry points when it first looks for a backend. A checkout on PYTHONPATH has none, and Dynamo,
    whose import takes longer than that of all operators, is imported for it.
    """
    if NAME in entry_points(group="torch_dynamo_backends").names and "torch._dynamo" not in sys.modules:
        return
    from torch._dynamo.backends.registry import list_backends, register_backend

    if NAME not in list_backends(exclude_tags=()):
        register_backend(importlib.import_module("pycutlass.pytorch.compiling").compile_graph, NAME)
