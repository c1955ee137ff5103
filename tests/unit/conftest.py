"""Unit tests need no GPU and behave the same where there is one."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from pycutlass import _core, compiler
from pycutlass.cache import Artifact, KernelCache
from pycutlass.compiler import session
from pycutlass.source import KernelSource

sys.path.insert(0, str(Path(__file__).parent))  # for the modules beside this one

from kernel_packages import NAMES, package
from trivial_kernels import Operation

# How long one example takes says more of the machine's other work than of ours.
settings.register_profile("unit", deadline=None, suppress_health_check=[HealthCheck.too_slow])
# For whoever has changed a rule: twenty times as many examples, drawn anew also where CI would repeat its own.
settings.register_profile("thorough", settings.get_profile("unit"), max_examples=2000, derandomize=False)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "unit"))


@pytest.fixture(autouse=True)
def fresh_log(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is said once a process is said once a test."""
    monkeypatch.setattr("pycutlass.log._said", set())


@pytest.fixture(scope="module")
def without_gpu() -> Iterator[None]:
    """Operations are executed on the host, also on a machine with a GPU."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_core, "device_count", lambda: 0)
        yield


@pytest.fixture
def nothing_reordered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forget what other tests have reordered: their matrices are the same."""
    for name in ("_digests", "_marks"):
        monkeypatch.setattr(f"pycutlass.interleave.{name}", {})


@pytest.fixture
def said(caplog: pytest.LogCaptureFixture) -> Callable[[], list[str]]:
    """Return a function that returns what has been said once, in this test."""
    return lambda: [record.getMessage() for record in caplog.records if record.name == "pycutlass"]


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """Where the test's own kernel cache is to be; it does not exist yet."""
    return tmp_path / "cache"


@pytest.fixture
def cache(directory: Path) -> Iterator[KernelCache]:
    """A kernel cache of the test's own."""
    opened = KernelCache(directory)
    yield opened
    opened.close()


@pytest.fixture
def private_session(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """A cache and temporary directory of the test's own, and NVRTC, which is quick."""
    (tmp_path / "tmp").mkdir()
    (tmp_path / "cwd").mkdir()
    monkeypatch.chdir(tmp_path / "cwd")
    for name in ("TARGET", "STRICT", "NO_COMPILE", "JOBS"):
        monkeypatch.delenv(f"PYCUTLASS_{name}", raising=False)
    monkeypatch.setenv("PYCUTLASS_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("PYCUTLASS_BACKEND", "nvrtc")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "tmp"))
    monkeypatch.setattr(session, "_session", session._Session())
    monkeypatch.setattr("pycutlass.device.current_target", lambda: None)
    yield
    assert list((tmp_path / "tmp").iterdir()) == [], "no temporary file stays behind"
    assert list((tmp_path / "cwd").iterdir()) == [], "nothing is written into the working directory"


@pytest.fixture
def builds(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the kernels that are really built."""
    names: list[str] = []
    build = session.build

    def counted(source: KernelSource, *rest: Any) -> Any:
        names.append(source.name)
        return build(source, *rest)

    monkeypatch.setattr(session, "build", counted)
    return names


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], directory: Path) -> Any:
    """Run the command line, on a cache of its own."""
    from command_line import runner  # which is only found with the path above

    monkeypatch.setenv("PYCUTLASS_CACHE_DIR", str(directory))
    return runner(monkeypatch, capsys)


@pytest.fixture
def kernels(run: Any) -> list[Artifact]:
    """Three kernels in the cache of the command line."""
    from command_line import put_kernels

    return put_kernels()


@pytest.fixture(scope="module")
def packaged(tmp_path_factory: pytest.TempPathFactory) -> list[Artifact]:
    """Three kernels of two targets, which NVRTC and g++ made."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYCUTLASS_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
        patch.setenv("PYCUTLASS_BACKEND", "nvrtc")
        patch.setattr(session, "_session", session._Session())
        kernels = compiler.add_module([Operation(name) for name in NAMES], target="sm_80")
        return kernels + compiler.add_module([Operation("kernel_a")], target="sm_90")


@pytest.fixture
def package_site(tmp_path: Path, packaged: list[Artifact], monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the package is installed, with nothing in the cache and no variable that names a compiler."""
    monkeypatch.delenv("PYCUTLASS_BACKEND")
    for name in ("CUDA_HOME", "CUDA_INSTALL_PATH", "CUTLASS_PATH", "CXX"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PYCUTLASS_TARGET", "sm_80")
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    return package(tmp_path / "site", packaged)
