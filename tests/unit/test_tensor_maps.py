"""A tensor map that the driver refuses is an error: CUTLASS would launch the kernel without it."""

from __future__ import annotations

import fake_gpu


def test_arguments_and_updates_report_it_and_nothing_changes() -> None:
    fake_gpu.run("""
M, N, K = 8, 12, 16
operation = gemm("stream_k")
a, b = on_host(M, K, 1), on_host(K, N, 2, "F")
A, B, D, other = Array(0, a), Array(0, b), Array(0, on_host(M, N, 3)), Array(0, on_host(M, N, 4))
before = other.now().copy()

def make():
    return pycutlass.GemmArguments(operation, (M, N, K), A, B, None, D)

arguments = make()
driver.fake_fail(b"cuTensorMapEncodeTiled", 1)
for call in (make, lambda: arguments.update(D=other), lambda: arguments.update(A=A, B=B, C=None, D=other)):
    assert refused(call, "cuTensorMapEncode", "CUresult 1") == "DriverError"
driver.fake_fail(b"cuTensorMapEncodeTiled", 0)
operation.run(arguments)
arguments.sync()
assert (D.now() == a @ b).all() and (other.now() == before).all()
arguments.update(D=other)
operation.run(arguments)
arguments.sync()
assert (other.now() == a @ b).all()
""")
