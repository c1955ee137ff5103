"""A library of a model's kernels, compiled, and loaded by a process without compilers."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

pytest.importorskip("torch")

import torch
from torch import nn

import pycutlass.pytorch

pytestmark = pytest.mark.compile

_LOADED = """
import sys, torch
from torch import nn
import pycutlass.pytorch
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(64, 32), nn.ReLU()).half().eval()
x = torch.randn(16, 64, dtype=torch.float16)
partitioned = pycutlass.pytorch.partition(model, x, options={"sm": 80, "min_gain": 0})
loaded = pycutlass.pytorch.load(sys.argv[1], partitioned)
with torch.no_grad():
    torch.testing.assert_close(loaded(x), partitioned(x))
kernel = loaded.get_submodule("pycutlass_0.fused.kernel")
print(kernel.plan.name, kernel.plan.target, *kernel.plan.tensors)
"""


def test_a_library_is_built_and_loaded_without_compilers(tmp_path):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 32), nn.ReLU()).half().eval()
    x = torch.randn(16, 64, dtype=torch.float16)
    partitioned = pycutlass.pytorch.partition(model, x, options={"sm": 80, "min_gain": 0})
    path = pycutlass.pytorch.build(partitioned, path=tmp_path / "kernels.so")
    library = pycutlass.load_library(path)
    [plan] = library.manifest["plans"]
    assert [each["name"] for each in plan["tensors"]] == ["a", "b", "out", "row0"]
    assert {each["target"] for each in library.manifest["kernels"]} == {"sm_80"}
    variables = {"PYCUTLASS_NO_COMPILE": "1", "PATH": "/nowhere", "PYCUTLASS_CACHE_DIR": str(tmp_path / "empty")}
    done = subprocess.run(
        [sys.executable, "-c", _LOADED, path],
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [plan["name"], "sm_80", "a", "b", "out", "row0"]


def test_a_page_of_compiled_kernels_has_machine_code_and_ptx():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 32), nn.ReLU()).half().eval()
    x = torch.randn(16, 64, dtype=torch.float16)
    made = pycutlass.pytorch.explain(model, x, options={"sm": 80, "min_gain": 0}, compile=True)
    [kernel] = made.regions[0].kernels
    assert kernel.missing == "" and "HMMA" in kernel.sass
    assert ".visible .entry" in kernel.ptx and ".target sm_80" in kernel.ptx
    assert int(dict(kernel.report)["registers"]) > 0
    assert all(text in made.html for text in ("SASS, sm_80", "PTX, sm_80", "Build report, sm_80"))
