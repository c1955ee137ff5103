"""Exceptions travel: between processes, into copies, out of pools."""

from __future__ import annotations

import copy
import multiprocessing
import pickle

import pytest

from pycutlass import errors

MADE = [
    errors.PoolError(300, 200, 256),
    errors.DriverError("cuLaunchKernel", 700, "an illegal memory access was encountered"),
    errors.CompileError("nvcc refused it", log="error: no", source="int x;", command="nvcc x.cu"),
    errors.BuildReportError("it spills", log="warning"),
    *(
        getattr(errors, name)("a sentence")
        for name in errors.__all__
        if name not in ("PoolError", "DriverError", "CompileError", "BuildReportError")
    ),
]


def test_every_exception_is_tried():
    assert {type(error).__name__ for error in MADE} == set(errors.__all__)


def _same(a: errors.PyCutlassError, b: errors.PyCutlassError) -> None:
    assert type(a) is type(b) and a is not b
    assert str(a) == str(b) and a.args == b.args and vars(a) == vars(b)


@pytest.mark.parametrize("error", MADE, ids=lambda error: type(error).__name__)
def test_exceptions_survive_pickling_and_copying(error):
    error.add_note("seen in a test")
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        _same(error, pickle.loads(pickle.dumps(error, protocol)))
    _same(error, copy.copy(error))
    _same(error, copy.deepcopy(error))


def _raise_pool_error(size: int) -> None:
    raise errors.PoolError(size, 0, 1)


def test_a_pool_of_processes_hands_the_exception_on():
    with multiprocessing.get_context("spawn").Pool(1) as pool, pytest.raises(errors.PoolError) as caught:
        pool.apply_async(_raise_pool_error, (4096,)).get(timeout=60)
    assert (caught.value.requested, caught.value.used, caught.value.limit) == (4096, 0, 1)
