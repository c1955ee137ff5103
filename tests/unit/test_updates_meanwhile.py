"""Arguments that one thread updates while another launches them: the driver would read what is being changed."""

from __future__ import annotations

import fake_gpu
import pytest

_PROGRAM = """
import sys, threading, time

def given(operation, seed):
    A, B = Array(0, on_host(5, 7, seed)), Array(0, on_host(7, 6, seed + 1, "F"))
    return [A, B, Array(0, np.zeros((5, 6), np.float32))]

ended, refused, failed = threading.Event(), [], []

def launch():
    try:
        while not ended.is_set():
            operation.run(arguments, stream)
    except BaseException as error:
        failed.append(error)

def update(**tensors):
    try:
        arguments.update(**tensors)
    except pycutlass.errors.ArgumentError as error:
        assert "cannot be updated now" in str(error), error
        refused.append(str(error))

stream = Stream(0)
first, second = given(None, 1), given(None, 3)
"""
_FAMILIES = {
    "gemm": "operation = gemm()\narguments = pycutlass.GemmArguments(operation, (5, 6, 7), *first[:2], None, first[2])",
    "group": """operation = group("device")
first, second = [[each] for each in first], [[each] for each in second]
arguments = pycutlass.GemmGroupedArguments(operation, [(5, 6, 7)], *first[:2], None, first[2])""",
}


@pytest.mark.parametrize("family", _FAMILIES)
def test_an_update_during_a_launch_is_refused(family: str) -> None:
    fake_gpu.run(
        f"""{_PROGRAM}
{_FAMILIES[family]}
sys.setswitchinterval(1e-5)
thread = threading.Thread(target=launch)
thread.start()
end = time.monotonic() + 20
while not refused and time.monotonic() < end:
    for A, B, D in (second, first):
        update(A=A, B=B, D=D)
ended.set()
thread.join()
assert not failed, failed
assert refused, "no update came while a launch was under way"
arguments.update(A=second[0], B=second[1], D=second[2])
operation.run(arguments, stream)
arguments.sync()
""",
        seconds=120,
    )
