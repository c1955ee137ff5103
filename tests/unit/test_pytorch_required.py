"""pycutlass.pytorch without torch, with one that is too old, and pycutlass, which never imports it."""

from __future__ import annotations

import json

import pytest
from descriptions import run_python

#: A torch of the user's machine, as far as it is looked at.
IMPORT = """
import json, sys, types
{before}
try:
    import pycutlass.pytorch
except Exception as error:
    print(json.dumps([type(error).__name__, str(error), error.absent]))
"""


def refused(before: str) -> tuple[str, str, bool]:
    kind, message, absent = json.loads(run_python(IMPORT.format(before=before)))
    return kind, message, absent


def test_without_torch() -> None:
    kind, message, absent = refused("sys.modules['torch'] = None")
    assert kind == "ToolkitError" and absent
    assert "needs torch 2.11 or newer, which cannot be imported" in message
    assert "pip install 'torch>=2.11'" in message


def test_a_torch_that_does_not_work_is_not_absent() -> None:
    broken = "import importlib.abc\nclass Broken(importlib.abc.MetaPathFinder):\n    def find_spec(self, name, *_):\n"
    broken += (
        "        if name == 'torch':\n            raise ImportError('libtorch.so: cannot open shared object file')\n"
    )
    kind, message, absent = refused(f"{broken}sys.meta_path.insert(0, Broken())")
    assert kind == "ToolkitError" and not absent
    assert "libtorch.so: cannot open shared object file" in message


@pytest.mark.parametrize("version", ["1.13.1", "2.10.0+cu128", "unknown"])
def test_with_an_old_torch(version: str) -> None:
    kind, message, absent = refused(
        f"sys.modules['torch'] = types.ModuleType('torch'); sys.modules['torch'].__version__ = {version!r}"
    )
    assert kind == "ToolkitError" and not absent
    assert f"needs torch 2.11 or newer, and torch.__version__ is {version!r}: upgrade it" in message


def test_pycutlass_never_imports_torch() -> None:
    code = "import sys, pycutlass, pycutlass.plan\npycutlass.matmul, pycutlass.conv2d, pycutlass.tune\n"
    assert run_python(code + "print('torch' in sys.modules)").strip() == "False"
