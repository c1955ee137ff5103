"""Operators in C++ with a real library of kernels, on a stand-in for the driver.

Its device memory is host memory, so the operators are compiled to take tensors of the host.
"""

from __future__ import annotations

from pathlib import Path

import fake_gpu
from prepared_arguments import TORCH

from pycutlass.pytorch.native import _built

_PROGRAM = """
import tempfile
from pathlib import Path
from pycutlass.exports.library import described, linked
from pycutlass.pytorch import load_native

operation = gemm()
plan = described(operation, "product", problem_size=(5, 6, 7))
artifacts = {kernel: kernel.artifacts["sm_80"] for kernel in plan.kernels}
path = str(Path(tempfile.mkdtemp()) / "kernels.so")
Path(path).write_bytes(linked(Path(tempfile.mkdtemp()), [plan], artifacts, "kernels"))
load_native(OPERATORS)
ops = torch.ops.pycutlass_kernels

def there(values):
    array = Array(0, np.ascontiguousarray(values))
    tensor = torch.from_numpy(memory_at(array.data.ptr, array.shape))
    tensor.array = array
    return tensor

a, b = there(on_host(5, 7, 1)), there(on_host(6, 7, 2))
out = there(np.full((5, 6), np.nan, np.float32))
use(0)
ops.load(path, "product")
for call in range(3):
    ops.run(path, "product", [a, b.T], [out])
    driver.fake_run()
    assert torch.equal(out, a @ b.T)
    out.fill_(float("nan"))
assert '"format": "pycutlass library"' in ops.manifest(path)
refused = {
    "dimension 1 of a must be 7": [a[:4, :6], b.T],
    "a must be of float32; got float64": [a.double(), b.T],
    "dimension 1 of b must be 6": [a, b.T[:, :5]],
}
for message, tensors in refused.items():
    try:
        ops.run(path, "product", tensors, [out])
    except RuntimeError as error:
        assert message in str(error), error
    else:
        raise AssertionError(message)
assert out.isnan().all()
"""


def test_a_library_is_run(tmp_path: Path) -> None:
    made = _built(tmp_path / "operators.so", "-DPYCUTLASS_HOST_TENSORS")
    fake_gpu.run(TORCH + _PROGRAM.replace("OPERATORS", repr(str(made))), seconds=120)
