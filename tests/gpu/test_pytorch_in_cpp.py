"""Operators in C++ on a GPU: a library of kernels with the workspace and the stream of torch, of any M, and in a graph.

The program has a process of its own, so that one that ends by a signal reports where: the frames of C++ among them.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import pycutlass

pytest.importorskip("torch")

#: What else has loaded the kernels of the library in the process.
BESIDE = {
    "nothing": "",
    "the plan": "plan.run(x, weight.T, bias=bias)",
    "load_library": "pycutlass.load_library(path)['linear'].load()",
    "a thread": """
import threading
work = threading.Thread(target=lambda: torch.ops.pycutlass_kernels.load(path, "linear"))
work.start()
work.join()
""",
}
_PROGRAM = """
import sys
import torch
from torch.nn import functional
import pycutlass
from pycutlass.pytorch import load_native

torch._C._set_print_stack_traces_on_fatal_signal(True)
path, operators, dtype = *sys.argv[1:], torch.float16

def random(*shape, scale=1.0):
    return (torch.randn(shape, device="cuda") * scale).to(dtype)

def step(name):
    print(name, flush=True)

x, weight, bias = random(40, 64, scale=0.1), random(48, 64), random(48)
plan = pycutlass.Gemm(x, weight.T, bias=bias, epilogue=pycutlass.gelu)
pycutlass.export_library({"linear": plan}, path)
step("exported")
pycutlass.pytorch.build_native(operators)
load_native(operators)
step("operators loaded")
run, out = torch.ops.pycutlass_kernels.run, torch.empty(40, 48, device="cuda", dtype=dtype)
assert "linear" in torch.ops.pycutlass_kernels.manifest(path)
step("library opened")
BESIDE
step("other users")
torch.ops.pycutlass_kernels.load(path, "linear")
step("kernels loaded")

def check(rows):
    wanted = functional.gelu(functional.linear(x[:rows].double(), weight.double(), bias.double()))
    torch.testing.assert_close(out[:rows].double(), wanted, rtol=8e-3, atol=8e-3)

for rows in (40, 7):
    run(path, "linear", [x[:rows], weight.T, bias], [out[:rows]])
    check(rows)
step("run")
graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream()
with torch.cuda.graph(graph, stream=stream):
    run(path, "linear", [x, weight.T, bias], [out])
x.copy_(random(40, 64, scale=0.1))
graph.replay()
check(40)
step("run in a graph")
try:
    run(path, "linear", [x.cpu(), weight.T, bias], [out])
except RuntimeError as error:
    assert "linear runs on GPUs, and one of its tensors is on another device" in str(error), error
else:
    raise AssertionError("a tensor of the host is taken")
"""


@pytest.mark.parametrize("beside", BESIDE)
def test_operators_in_cpp_run_a_library_of_kernels(beside: str, tmp_path: Path) -> None:
    files = [str(tmp_path / f"{name}.so") for name in ("kernels", "operators")]
    done = _run(_PROGRAM.replace("BESIDE", BESIDE[beside]), *files)
    assert done.returncode == 0, f"ended with {done.returncode} after\n{done.stdout}{_named(done.stderr)}"


def _run(program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a program in a process of its own."""
    root = str(Path(pycutlass.__file__).parents[1])
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join((root, os.environ.get("PYTHONPATH", "")))}
    command = [sys.executable, "-X", "faulthandler", "-c", program, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environment, timeout=600)


def _named(report: str) -> str:
    """Return a report of a signal with the names of functions that a library has and does not show."""
    return re.sub(r"<unknown function> \+ (0x\w+) \(0x\w+ in (/\S+\.so)\)", _name, report)


def _name(frame: re.Match[str]) -> str:
    try:
        said = subprocess.run(["addr2line", "-fCe", frame[2], frame[1]], capture_output=True, text=True, check=False)
    except OSError:  # it is not installed
        return frame[0]
    return f"{frame[0]} {' '.join(said.stdout.split())}"


_PACKAGE = """
import os
import sys
import torch
from torch.nn import functional
import pycutlass
from pycutlass.pytorch import load_native

path, package, which = sys.argv[1:]
x, weight, bias = (torch.randn(shape, device="cuda").half() for shape in ((40, 64), (48, 64), (48,)))

class Plain(torch.nn.Module):
    def forward(self, x, weight, bias):
        return functional.gelu(functional.linear(x, weight, bias))

class Exported(torch.nn.Module):
    def forward(self, x, weight, bias):
        y = x.new_empty(x.shape[0], weight.shape[0])
        torch.ops.pycutlass_kernels.run(path, "linear", [x, weight.T, bias], [y])
        return y

class Embedded(torch.nn.Module):
    def __init__(self):
        super().__init__()
        library, self.digest = pycutlass.pytorch.embedded(path)
        self.register_buffer("library", library, persistent=False)

    def forward(self, x, weight, bias):
        y = x.new_empty(x.shape[0], weight.shape[0])
        torch.ops.pycutlass_kernels.run_embedded(self.library, self.digest, "linear", [x, weight.T, bias], [y])
        return y

if which != "Plain":
    plan = pycutlass.Gemm(x, weight.T, bias=bias, epilogue=pycutlass.gelu)
    pycutlass.export_library({"linear": plan}, path)
    load_native()
shapes = {0: torch.export.Dim("rows", min=2, max=64)}, None, None
program = torch.export.export(globals()[which](), (x, weight, bias), dynamic_shapes=shapes)
torch._inductor.aoti_compile_and_package(program, package_path=package)
if which == "Embedded":
    os.unlink(path)
layer = torch._inductor.aoti_load_package(package)
for count in (40, 7):
    made = layer(x[:count], weight, bias)
    wanted = functional.gelu(functional.linear(x[:count].double(), weight.double(), bias.double()))
    torch.testing.assert_close(made.double(), wanted, rtol=8e-3, atol=8e-3)
"""


@pytest.mark.parametrize("way", ["Exported", "Embedded"])
def test_a_package_of_aot_inductor_runs_a_library_of_kernels(way: str, tmp_path: Path) -> None:
    """Where packages of a layer of torch's own end by a signal, as torch 2.11's do on some machines, none can run."""

    def ended(which: str) -> subprocess.CompletedProcess[str]:
        files = [str(tmp_path / name) for name in ("kernels.so", f"{which}.pt2")]
        return _run(_PACKAGE, *files, which)

    done = ended(way)
    if done.returncode < 0 and (plain := ended("Plain")).returncode == done.returncode:
        pytest.skip(f"packages of torch's own layers end by signal {-plain.returncode} here")
    assert done.returncode == 0, f"ended with {done.returncode} after\n{done.stdout}{_named(done.stderr)}"
