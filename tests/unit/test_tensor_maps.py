"""A tensor map that the driver refuses is an error: CUTLASS would launch the kernel without it."""

from __future__ import annotations

import fake_gpu


def test_arguments_and_updates_report_it_and_nothing_changes() -> None:
    fake_gpu.run("""
MAKERS = b"cuTensorMapEncodeTiled", b"cuTensorMapReplaceAddress"
M, N, K = 8, 12, 16
operation = gemm("stream_k")
a, b = on_host(M, K, 1), on_host(K, N, 2, "F")
A, B, D, other = Array(0, a), Array(0, b), Array(0, on_host(M, N, 3)), Array(0, on_host(M, N, 4))
before = other.now().copy()

def make():
    return pycutlass.GemmArguments(operation, (M, N, K), A, B, None, D)

arguments = make()
for name in MAKERS:
    driver.fake_fail(name, 1)
for call in (make, lambda: arguments.update(D=other), lambda: arguments.update(A=A, B=B, C=None, D=other)):
    assert refused(call, "cuTensorMapEncode", "CUresult 1") == "DriverError"
for name in MAKERS:
    driver.fake_fail(name, 0)
operation.run(arguments)
arguments.sync()
assert (D.now() == a @ b).all() and (other.now() == before).all()
arguments.update(D=other)
operation.run(arguments)
arguments.sync()
assert (other.now() == a @ b).all()
""")


def test_a_map_of_a_form_that_was_made_before_takes_another_address() -> None:
    fake_gpu.run("""
M, N, K = 8, 12, 16
operation = gemm("stream_k")
a, b = on_host(M, K, 1), on_host(K, N, 2, "F")
A, B, D, other = Array(0, a), Array(0, b), Array(0, on_host(M, N, 3)), Array(0, on_host(M, N, 4))

def made():
    return [line.split()[0] for line in log() if line.startswith("cuTensorMap")]

made()
arguments = pycutlass.GemmArguments(operation, (M, N, K), A, B, None, D)
first = made()
assert first[0] == "cuTensorMapEncodeTiled" and first.count("cuTensorMapEncodeTiled") == 1, first
arguments.update(D=other)
assert made() == ["cuTensorMapReplaceAddress"]
driver.fake_fail(b"cuTensorMapReplaceAddress", 1)  # then it is made, which says what is wrong if anything is
arguments.update(D=D)
assert made() == ["cuTensorMapReplaceAddress", "cuTensorMapEncodeTiled"]
in_a_thread(lambda: pycutlass.GemmArguments(operation, (M, N, K), A, B, None, D))
assert "cuTensorMapEncodeTiled" in made(), "threads share no maps"
operation.run(arguments)
arguments.sync()
assert (D.now() == a @ b).all()
""")
