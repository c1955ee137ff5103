"""How many steps one GEMM takes from its description to its launch, with its kernel in the cache.

Whoever follows a launch with a debugger passes every function that is counted here, so there should be few, in few
files. A change that needs more of them raises a ceiling, and says why; one that needs fewer lowers it.
"""

from __future__ import annotations

import json

import fake_gpu
import pytest

_PROGRAM = """
import collections, ctypes, json, os, shutil, sys, tempfile
from pathlib import Path
from descriptions import parts
from pycutlass import _core, compiler
from pycutlass.cache import Artifact, make_key
from pycutlass.compiler import session, tools

package = os.path.dirname(pycutlass.__file__) + "/"
counts = {}

def count(phase, action):
    '''Do something, and count the package's functions that are entered: those that have a name.'''
    entered = counts[phase] = collections.Counter()

    def hook(frame, event, argument):
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(package) and not code.co_name.startswith("<"):
            entered[code.co_filename.removeprefix(package) + ":" + code.co_qualname] += 1

    sys.setprofile(hook)
    try:
        return action()
    finally:
        sys.setprofile(None)

def describe():
    return pycutlass.GemmOperationUniversal(**parts("f32_simt", stages=4))

def put_into_the_cache(operation):
    cache, source = session._session.cache(), operation.source()
    fields = tools.search(None, cache).key_fields(source, "sm_80")
    host = (Path(os.environ["LD_LIBRARY_PATH"]) / "gemm.so").read_bytes()
    ctypes.CDLL(os.environ["LD_LIBRARY_PATH"] + "/gemm.so", mode=ctypes.RTLD_GLOBAL)  # the code of the GPU
    image = f"stand-in {_core.HostLibrary(host).params_bytes}".encode() + b"\\0"
    numbers = ("registers", "stack_bytes", "spill_store_bytes", "spill_load_bytes", "static_shared_bytes")
    report = {**dict.fromkeys((*numbers, "constant_bytes", "cubin_bytes"), 0), "wgmma_serialized": False}
    report |= {"warnings": [], "seconds_device": 0.0, "seconds_host": 0.0, "compiler": "none"}
    cache.put(Artifact(make_key(fields), source.name, "sm_80", fields, image, host, report))
    cache.close()

M, N, K = 5, 8, 6
folder = tempfile.mkdtemp()
os.environ["PYCUTLASS_CACHE_DIR"] = folder
os.environ["PYCUTLASS_TARGET"] = "sm_80"
os.environ["PYCUTLASS_NO_COMPILE"] = "1"
for variable in ("CUDA_HOME", "CUDA_INSTALL_PATH", "CUTLASS_PATH", "CXX", "PYCUTLASS_BACKEND", "PYCUTLASS_STRICT"):
    os.environ.pop(variable, None)
put_into_the_cache(describe())
session._session = session._Session()

A, B, C = Array(0, on_host(M, K, 1)), Array(0, on_host(K, N, 2, "F")), Array(0, on_host(M, N, 3))
D = Array(0, np.zeros((M, N), np.float32))
operation = count("description", describe)
count("add_module", lambda: compiler.add_module([operation]))
sums = operation.epilogue_type(1.0, 1.0)
arguments = count("arguments", lambda: pycutlass.GemmArguments(operation, [M, N, K], A, B, C, D, output_op=sums))
count("run", lambda: operation.run(arguments))
driver.fake_run()
assert (D.now() == A.now() @ B.now() + C.now()).all()
count("description for tensor cores", lambda: pycutlass.GemmOperationUniversal(**parts()))
session._session.cache().close()
shutil.rmtree(folder)
print(json.dumps(counts))
"""

#: The most functions, files and calls of each phase, and of all together. When counting began there were 69, 13 and 317
#: in a description, 148, 22 and 2025 in add_module, 111, 21 and 433 in arguments, and 300, 42 and 2776 in all. The way
#: is that of a SIMT kernel, which runs on the host; one of tensor cores has other rules of tiles.
CEILINGS = {
    "description": (45, 10, 86),  # parts of operations are checked in a file of their own
    "add_module": (
        76,
        14,
        120,
    ),  # trials check paths as well, and may have a file of their own
    "arguments": (27, 9, 31),
    "run": (0, 0, 0),
    "all": (147, 23, 237),
    "description for tensor cores": (50, 11, 93),
}


@pytest.fixture(scope="module")
def entered() -> dict[str, dict[str, int]]:
    counts = json.loads(fake_gpu.run(_PROGRAM, gpus=1))
    way = [counts[phase] for phase in ("description", "add_module", "arguments", "run")]
    counts["all"] = {name: sum(phase.get(name, 0) for phase in way) for phase in way for name in phase}
    return counts


@pytest.mark.parametrize("phase", CEILINGS)
def test_a_launch_takes_few_steps(entered, phase):
    names = entered[phase]
    counted = (len(names), len({name.partition(":")[0] for name in names}), sum(names.values()))
    listed = "\n".join(f"{number:5} {name}" for name, number in sorted(names.items()))
    assert all(one <= most for one, most in zip(counted, CEILINGS[phase], strict=True)), (
        f"functions, files and calls are {counted}, at most {CEILINGS[phase]}:\n{listed}"
    )
