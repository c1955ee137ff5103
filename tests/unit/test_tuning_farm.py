"""Kernels from compilers that run elsewhere: in a child, in a pool, on a farm of Dask or Ray."""

from __future__ import annotations

import sys
import time
import types
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest
from tuned import PROBLEM, candidates

from pycutlass.cache import Artifact, KernelCache, make_key
from pycutlass.errors import ArgumentError, ArgumentTypeError, ToolkitError
from pycutlass.report import NO_PROBLEMS
from pycutlass.tuning import RayExecutor
from pycutlass.tuning.compiling import FarmCompiling, LocalCompiling, compiled
from pycutlass.tuning.farm import told_by


@pytest.fixture(autouse=True)
def cache(monkeypatch, tmp_path):
    monkeypatch.setenv("PYCUTLASS_CACHE_DIR", str(tmp_path))


def built(candidate: Any, target: str) -> list[dict[str, Artifact]] | str:
    """Stand for `compiled` on a machine that has compilers: the kernels are bytes."""
    if candidate.split_k_slices == 31:
        raise MemoryError("the worker was ended")
    if candidate.operation.swap_ab:
        return "error: no"
    fields = {"kernel": candidate.name, "target": target}
    report = {"problems": list(NO_PROBLEMS)} if isinstance(NO_PROBLEMS, tuple) else {}
    return [{target: Artifact(make_key(fields), "k", target, fields, b"cubin", b"host", report)}]


def gathered(compiling: Any, seconds: float = 30.0) -> dict[int, Any]:
    found: dict[int, Any] = {}
    deadline = time.monotonic() + seconds
    while not compiling.is_done:
        assert time.monotonic() < deadline
        found.update(compiling.ready(0.2))
    return found


def test_what_a_farm_makes_is_kept_here(monkeypatch):
    monkeypatch.setattr("pycutlass.tuning.compiling.compiled", built)
    with ThreadPoolExecutor(2) as pool:
        found = gathered(FarmCompiling(candidates(4), "sm_90a", pool))
    assert sorted(found) == [0, 1, 2, 3]
    kernels = [made for made in found.values() if not isinstance(made, str)]
    assert kernels
    for (by_target,) in kernels:
        artifact = by_target["sm_90a"]
        assert KernelCache().get(artifact.key) == artifact


def test_a_job_that_fails_costs_only_itself(monkeypatch):
    import dataclasses

    monkeypatch.setattr("pycutlass.tuning.compiling.compiled", built)
    lost, kept = dataclasses.replace(candidates(1)[0], split_k_slices=31), candidates(1)[0]
    with ThreadPoolExecutor(2) as pool:
        found = gathered(FarmCompiling([lost, kept], "sm_90a", pool))
    assert found[0] == "its job failed: MemoryError: the worker was ended"
    assert not isinstance(found[1], str)


def test_closing_gives_up_what_has_not_begun(monkeypatch):
    begun: list[str] = []

    def slow(candidate: Any, target: str) -> Any:
        begun.append(candidate.name)
        time.sleep(0.3)
        return built(candidate, target)

    monkeypatch.setattr("pycutlass.tuning.compiling.compiled", slow)
    with ThreadPoolExecutor(1) as pool:
        compiling = FarmCompiling(candidates(8), "sm_90a", pool)
        compiling.close()
        assert compiling.is_done
    assert len(begun) <= 1


def test_why_a_candidate_has_no_kernel_is_one_line(monkeypatch):
    monkeypatch.setenv("PYCUTLASS_NO_COMPILE", "1")
    said = compiled(candidates(1)[0], "sm_90a")
    assert isinstance(said, str) and "PYCUTLASS_NO_COMPILE" in said and "\n" not in said


def test_the_child_says_why_nothing_can_be_compiled(monkeypatch, tmp_path):
    monkeypatch.setenv("CUDA_HOME", str(tmp_path / "none"))
    compiling = LocalCompiling(candidates(2), "sm_90a", jobs=1)
    try:
        with pytest.raises(ToolkitError, match="CUDA_HOME"):
            gathered(compiling)
    finally:
        compiling.close()


def test_closing_ends_the_child_at_once():
    compiling = LocalCompiling(candidates(2), "sm_90a", jobs=1)
    begun = time.monotonic()
    compiling.close()
    assert time.monotonic() - begun < 3


class _Reference:
    def __init__(self, future: Future[Any]) -> None:
        self._future = future

    def future(self) -> Future[Any]:
        return self._future


def fake_ray(pool: ThreadPoolExecutor) -> Any:
    """Return what has Ray's API as far as the adapter goes: ``remote``, ``ObjectRef.future``, ``wait``, ``cancel``."""
    ray: Any = types.ModuleType("ray")
    ray.options, ray.started, ray.cancelled = [], [], []

    def decorated(function: Any) -> Any:
        return types.SimpleNamespace(remote=lambda *args, **named: _Reference(pool.submit(function, *args, **named)))

    def remote(*given: Any, **options: Any) -> Any:
        if given:
            return decorated(given[0])
        ray.options.append(options)
        return decorated

    ray.remote, ray.is_initialized = remote, lambda: bool(ray.started)
    ray.init = lambda: ray.started.append(1)
    ray.wait = lambda references, num_returns: [each.future().result() for each in references]
    ray.cancel = ray.cancelled.append
    return ray


@pytest.mark.parametrize("options", [{}, {"num_cpus": 4}])
def test_tasks_of_ray(monkeypatch, options):
    monkeypatch.setattr("pycutlass.tuning.compiling.compiled", built)
    with ThreadPoolExecutor(2) as pool:
        ray = fake_ray(pool)
        monkeypatch.setitem(sys.modules, "ray", ray)
        with RayExecutor(**options) as farm:
            assert sorted(gathered(FarmCompiling(candidates(3), "sm_90a", farm))) == [0, 1, 2]
        assert ray.options == ([options] * 3 if options else []) and ray.started == [1]
        cancelled = RayExecutor()
        cancelled.submit(len, "abc")
        cancelled.shutdown(cancel_futures=True)
        assert len(ray.cancelled) == 1


def test_without_ray(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ArgumentError, match="Ray cannot be imported"):
        RayExecutor()


@pytest.mark.filterwarnings("default")  # of Dask itself
def test_a_farm_of_dask(monkeypatch, tmp_path):
    """With the library itself, where it is installed: a worker of its own process."""
    distributed = pytest.importorskip("distributed")
    monkeypatch.setenv("PYCUTLASS_NO_COMPILE", "1")
    cluster = distributed.LocalCluster(n_workers=1, threads_per_worker=1, dashboard_address=None, processes=True)
    with cluster, distributed.Client(cluster) as client:
        found = gathered(FarmCompiling(candidates(2), "sm_90a", client.get_executor()), 60)
    assert sorted(found) == [0, 1]
    assert all("PYCUTLASS_NO_COMPILE" in made for made in found.values()), found
    assert PROBLEM.name


def test_to_cancel_a_future_of_ray_is_to_cancel_its_task(monkeypatch):
    with ThreadPoolExecutor(1) as pool:
        ray = fake_ray(pool)
        monkeypatch.setitem(sys.modules, "ray", ray)
        monkeypatch.setattr("pycutlass.tuning.compiling.compiled", lambda candidate, target: time.sleep(0.5) or "late")
        compiling = FarmCompiling(candidates(3), "sm_90a", RayExecutor())
        compiling.close()
        assert len(ray.cancelled) == 2  # all but the one that a thread has begun


def test_an_executor_that_takes_no_jobs_is_refused_as_such():
    with ThreadPoolExecutor(1) as pool:
        pass
    with pytest.raises(ToolkitError, match=r"takes no jobs \(RuntimeError: cannot schedule .*: give one that is not"):
        FarmCompiling(candidates(2), "sm_90a", pool)


def test_a_client_is_no_executor():
    client = types.SimpleNamespace(submit=lambda function, *arguments: "a future of its own kind")
    with pytest.raises(ArgumentTypeError, match=r"executor must have `submit`.* client\.get_executor\(\)"):
        FarmCompiling(candidates(2), "sm_90a", client)


def test_what_a_worker_of_ray_raised_is_told_without_its_traceback():
    class RayTaskError(Exception):
        cause = MemoryError("too little")

    assert told_by(RayTaskError("line after line")) == "MemoryError: too little"
    assert told_by(OSError("no")) == "OSError: no"
