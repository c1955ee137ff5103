"""Packages of AOTInductor with operators in C++: they are compiled, and run in a process that lacks PyCUTLASS."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from zipfile import ZipFile

import pytest
from host_library import host_library
from native_operators import of_host_tensors

pytestmark = pytest.mark.compile

COMPILED = """
import sys
import torch
import pycutlass.pytorch
from pycutlass.pytorch import load_native

kernels, operators, package, way = sys.argv[1:]
load_native(operators)
ops = torch.ops.pycutlass_kernels


class Sum(torch.nn.Module):  # one of many, which share the library
    def __init__(self, carried):
        super().__init__()
        library, self.digest = carried
        self.register_buffer("library", library, persistent=False)

    def forward(self, a, b, scale):
        out = torch.empty_like(a)
        ops.run_embedded(self.library, self.digest, "sum", [a, b], [out], [scale])
        return out


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        carried = pycutlass.pytorch.embedded(kernels)
        self.first, self.second = Sum(carried), Sum(carried)

    def forward(self, a, b):
        if way == "embedded":
            out = self.first(a * 2, b, 0.5).relu()
            return self.second(out, torch.ones_like(out), 1.0)
        out = torch.empty_like(a)
        ops.run(kernels, "sum", [a * 2, b], [out], [0.5])
        return out.relu() + 1


rows = torch.export.Dim("rows", min=2, max=8)
given = torch.ones(3, 4), torch.ones(3, 4)
program = torch.export.export(Model(), given, dynamic_shapes=({0: rows}, {0: rows}))
options = {"aot_inductor.compile_wrapper_opt_level": "O0"}
torch._inductor.aoti_compile_and_package(program, package_path=package, inductor_configs=options)
"""
RUN = """
import sys
import torch

operators, package = sys.argv[1:]
torch.ops.load_library(operators)
model = torch._inductor.aoti_load_package(package)
for rows in (3, 7):
    a, b = torch.randn(rows, 4), torch.randn(rows, 4)
    torch.testing.assert_close(model(a, b), (0.5 * (2 * a + b)).relu() + 1)
try:
    made = model(torch.ones(9, 4), torch.ones(9, 4))
except RuntimeError:
    pass  # torch prints what the library says, "M is 9, and the plan takes 8 at most"
else:  # torch before 2.13 does no more than that
    assert tuple(map(int, torch.__version__.split(".")[:2])) < (2, 13) and made.isnan().all(), made
assert not [name for name in sys.modules if name.partition(".")[0] == "pycutlass"]
"""


def python(script: str, *arguments: object) -> None:
    command = [sys.executable, "-c", script, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("way", ["named", "embedded"])
def test_a_package_runs_a_library_of_kernels(
    way: str, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    kernels, package = Path(host_library(tmp_path / "kernels.so")), tmp_path / "model.pt2"
    operators = of_host_tensors(tmp_path_factory)
    python(COMPILED, kernels, operators, package, way)
    if way == "embedded":  # once, for both calls
        assert count_in(package, kernels.read_bytes()) == 1
        kernels.unlink()
    python(RUN, operators, package)


def count_in(package: Path, contents: bytes) -> int:
    """Return how often the files of a package have some bytes."""
    with ZipFile(package) as archive:
        return sum(archive.read(name).count(contents) for name in archive.namelist())
