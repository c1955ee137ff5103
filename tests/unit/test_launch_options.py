"""Options of launches: on how many multiprocessors, and with which priority."""

from __future__ import annotations

from typing import Any

import fake_gpu
import numpy as np
import pytest
from descriptions import ampere
from groups import Group, grouped
from hopper_classes import described, of_tma

from pycutlass import GemmArguments, GemmOperationUniversal
from pycutlass.errors import ArgumentError, ArgumentTypeError


def arguments(operation: GemmOperationUniversal, **options: Any) -> GemmArguments:
    A, B, D = (np.ones((16, 16), each.type.dtype) for each in (operation.A, operation.B, operation.D))
    return GemmArguments(operation, (16, 16, 16), A, np.asfortranarray(B), None, D, **options)


@pytest.mark.parametrize(("cluster", "least"), [((1, 1), 1), ((2, 1), 2), ((2, 4), 8)])
def test_a_persistent_kernel_takes_a_limit_that_has_room_for_a_cluster(cluster, least):
    operation = described(C=of_tma("f16"), cluster=cluster)
    assert arguments(operation).sm_count is None
    for limit in (least, least + 1, 10_000, np.int64(12)):
        made = arguments(operation, sm_count=limit)
        assert made.sm_count == limit
        operation.run(made)
        made.sync()
    with pytest.raises(ArgumentError, match=rf"sm_count={least - 1} is too few: .* at least sm_count={least}"):
        arguments(operation, sm_count=least - 1)


def test_an_ampere_style_kernel_says_why_it_takes_none():
    operation = ampere("f16")
    with pytest.raises(ArgumentError, match=r"a threadblock for each tile of D.*cluster_shape.*group"):
        arguments(operation, sm_count=8)
    assert arguments(operation, launch_priority=-1).launch_priority == -1


def test_a_group_of_either_family_takes_a_limit():
    group = Group(grouped(), [(4, 8, 16), (24, 16, 8)])
    made = group.run(sm_count=3, launch_priority=0)
    assert (made.sm_count, made.launch_priority) == (3, 0)
    group.check()
    with pytest.raises(ArgumentError, match="a kernel needs a multiprocessor"):
        group.arguments(sm_count=0)


@pytest.mark.parametrize("name", ["sm_count", "launch_priority"])
@pytest.mark.parametrize("wrong", [True, 1.5, "1", 1 << 40])
def test_what_is_no_integer_is_refused(name, wrong):
    with pytest.raises(ArgumentTypeError, match=f"{name} must be an integer or None"):
        arguments(described(C=of_tma("f16")), **{name: wrong})


def test_they_cannot_be_changed_later():
    made = arguments(described(C=of_tma("f16")), sm_count=4)
    with pytest.raises(ArgumentTypeError, match="Make new arguments for another sm_count"):
        made.update(sm_count=5)
    with pytest.raises(AttributeError, match="cannot be set"):
        made.sm_count = 5


_PROGRAM = """


M, N, K = 8, 12, 16
a, b = on_host(M, K, 1), on_host(K, N, 2, "F")
A, B, C, D, other = Array(0, a), Array(0, b), None, Array(0, on_host(M, N, 3)), Array(0, on_host(M, N, 4))
sm_count = lambda made: int(np.frombuffer(made._execution.call.record_bytes[8:12], np.int32)[0])
occupancy = lambda made: int(np.frombuffer(made._execution.call.record_bytes[12:16], np.int32)[0])
"""


def test_a_priority_goes_along_with_every_launch() -> None:
    fake_gpu.run(
        _PROGRAM
        + """
operation = gemm()

def make(**options):
    return pycutlass.GemmArguments(operation, (M, N, K), A, B, None, D, **options)

for priority in (-5, -1, 0):
    made = make(launch_priority=priority)
    operation.run(made)
    made.sync()
    assert driver.fake_priority() == priority == made._execution.call.launch_priority
    assert (D.now() == a @ b).all()
made = make(launch_priority=-3)
for change in ({"D": other}, {"A": A, "B": B}, {"output_op": operation.epilogue_type(2.0)}):
    operation.run(make(launch_priority=-1))
    made.update(**change)
    operation.run(made)
    made.sync()
    assert driver.fake_priority() == -3
assert (other.now() == 2 * (a @ b)).all()
assert make()._execution.call.launch_priority is None
for wrong, near in ((-6, -5), (1, 0)):
    assert refused(lambda: make(launch_priority=wrong), f"use launch_priority={near}", "-5") == "ArgumentError"
"""
    )


def test_all_families_have_a_priority() -> None:
    fake_gpu.run(
        _PROGRAM
        + """
mode = pycutlass.cutlass.gemm.Mode.GemmSplitKParallel
operation = gemm()
adds = reduction(operation, M, N)
sums = pycutlass.GemmArguments(
    operation, (M, N, K), A, B, None, None, mode, split_k_slices=2, launch_priority=-2
)
operation.run(sums)
assert driver.fake_priority() == -2
ending = pycutlass.ReductionArguments(adds, (M, N), 2, sums.ptr_D, D, launch_priority=-4)
adds.run(ending)
assert driver.fake_priority() == -4
ending.sync()
assert (D.now() == a @ b).all()
for schedule in ("device", "host"):
    operation = group(schedule)
    made = pycutlass.GemmGroupedArguments(operation, [(M, N, K)], [A], [B], None, [D], launch_priority=-1, sm_count=3)
    operation.run(made)
    made.sync()
    assert driver.fake_priority() == -1 and (sm_count(made), occupancy(made)) == (3, 1)
    made.update(D=[other])
    made.update(problem_sizes=[(M, N, K)] * 2, A=[A, A], B=[B, B], D=[D, other])
    operation.run(made)
    made.sync()
    assert (sm_count(made), occupancy(made)) == (3, 1) and made.sm_count == 3
    assert sm_count(pycutlass.GemmGroupedArguments(operation, [(M, N, K)], [A], [B], None, [D], sm_count=99)) == 4
    driver.fake_priority()
"""
    )


def test_a_gpu_without_room_for_a_large_cluster_says_so_when_the_kernel_is_loaded() -> None:
    fake_gpu.run(
        _PROGRAM
        + """
import os

os.environ["FAKE_CLUSTER"] = "16"
operation = gemm()

def make(**options):
    return pycutlass.GemmArguments(operation, (M, N, K), A, B, None, D, **options)

for clusters in (0, -1):  # an answer, and an error that the driver has for it
    driver.fake_clusters(clusters)
    said = "clusters of 16 threadblocks", "cannot hold one of them", "at most 8 threadblocks"
    assert refused(make, *said) == "DeviceError"
    forget_kernels()
driver.fake_clusters(1)
made = make()
operation.run(made)
made.sync()
assert (D.now() == a @ b).all() and sm_count(made) == 4
"""
    )
