"""Importing stays cheap. The benchmark measures how cheap; here a generous bound keeps accidents out."""

from __future__ import annotations

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
