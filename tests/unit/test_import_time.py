"""Importing stays cheap. The benchmark measures how cheap; here a generous bound keeps accidents out."""

from __future__ import annotations

import pytest
from descriptions import run_python

MOST_SECONDS = 0.36  # three times what the benchmark allows over `import numpy`; processor time, so load hardly matters
PROGRAM = """
import time
import numpy
before = time.process_time()
import pycutlass
print(time.process_time() - before)
"""


def test_importing_takes_little_time():
    seconds = min(float(run_python(PROGRAM)) for _ in range(3))
    assert seconds < MOST_SECONDS


def test_the_compiler_does_without_names_of_the_original():
    """``from pycutlass import cubin`` asks the package for the name before it looks for a module."""
    program = "import sys, pycutlass; pycutlass.compiler.add_module; print('pycutlass.compat' in sys.modules)"
    assert run_python(program).strip() == "False"


def test_what_describes_and_launches_does_without_the_cache():
    """It is loaded by the first `add_module`, and takes about a fifth of what importing takes."""
    program = (
        "import sys, pycutlass; print([name for name in ('pycutlass.cache', 'json', 'zipfile') if name in sys.modules])"
    )
    assert run_python(program).strip() == "[]"


def test_operators_do_without_the_compiler_of_torch():
    """Dynamo, which finds the backend, and sympy, which regions count with, take five times as long as the rest."""
    program = """
import sys, torch
before = set(sys.modules)
import pycutlass.pytorch
torch.ops.pycutlass.matmul, pycutlass.pytorch.Linear(4, 4), pycutlass.pytorch.epilogue_handle
print([name for name in ("torch._dynamo", "torch._functorch.aot_autograd", "sympy") if name in {*sys.modules} - before])
"""
    assert run_python(program).strip() == "[]"


@pytest.mark.parametrize("installed", [True, False])
def test_the_backend_is_found_by_its_name(installed: bool):
    """By the entry point of an installed package; a checkout on PYTHONPATH has none, and registers it."""
    program = f"""
import importlib.metadata, sys
found = importlib.metadata.entry_points
point = importlib.metadata.EntryPoint("pycutlass", "pycutlass.pytorch:compile_graph", "torch_dynamo_backends")
points = importlib.metadata.EntryPoints([point] if {installed} else [])
importlib.metadata.entry_points = lambda **of: points if "torch_dynamo_backends" in of.values() else found(**of)
import torch, pycutlass.pytorch
print("torch._dynamo" in sys.modules, torch._dynamo.list_backends().count("pycutlass"))
print(torch._dynamo.lookup_backend("pycutlass") is pycutlass.pytorch.compile_graph)
"""
    assert run_python(program).split() == [str(not installed), "1", "True"]
