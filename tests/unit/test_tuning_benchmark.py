"""benchmarks/tuning.py, as far as it needs no GPU: its products, its kernels as a package, processes and verdicts."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")
ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT))  # the benchmarks are not installed with the package

from cached import REPORT  # noqa: E402

import pycutlass  # noqa: E402
from benchmarks import ordinary, tuning, tuning_handles, tuning_kernels  # noqa: E402
from benchmarks.common import BenchmarkError, Report  # noqa: E402
from benchmarks.ordinary import ORDINARY, Ordinary  # noqa: E402
from pycutlass.cache import Artifact, make_key  # noqa: E402
from pycutlass.compiler.choice import portable_fields  # noqa: E402
from pycutlass.compiler.installed import InstalledKernels  # noqa: E402
from pycutlass.device import Device  # noqa: E402
from pycutlass.errors import CompileError, DeviceError  # noqa: E402
from pycutlass.toolkit import own_headers_digest  # noqa: E402

H200 = Device(0, "NVIDIA H200", 90, 132)
SMALL = [
    Ordinary("bf16", "tn", 5, 32, 48),
    Ordinary("f16", "tt", 24, 40, 16),
    Ordinary("bf16", "nt", 16, 24, 33),
    Ordinary("f32", "tt", 7, 9, 11),
    Ordinary("tf32", "tn", 16, 32, 64),
    Ordinary("f16", "tn", 12, 20, 8, 3),
]


@pytest.fixture
def report(tmp_path: Path) -> Report:
    return Report("tuning", "Tuning", "What it is about.", tmp_path / "out")


def checks(report: Report) -> dict[str, bool]:
    return {each["what"]: each["passed"] for each in report.result["checks"]}


def test_there_are_a_hundred_products() -> None:
    assert len(ORDINARY) == len(set(ORDINARY)) == 100
    assert {each.operands for each in ORDINARY} == {"bf16", "f16", "f32", "tf32"}
    assert any(each.batch for each in ORDINARY) and any(each.k % 2 for each in ORDINARY)


@pytest.fixture
def precision() -> Iterator[None]:
    """Leave torch's setting as it was."""
    before = torch.backends.cuda.matmul.allow_tf32
    yield
    torch.backends.cuda.matmul.allow_tf32 = before


@pytest.mark.usefixtures("precision")
@pytest.mark.parametrize("each", SMALL, ids=lambda each: each.name)
def test_both_compute_a_product(each: Ordinary, monkeypatch: pytest.MonkeyPatch) -> None:
    """On the host; the plan without tensors is that of the tensors."""
    a, b, d = each.tensors("cpu")
    if each.operands == "tf32":  # which torch has on a GPU alone: what TF32 has of the operands
        a, b = ((stored.view(torch.int32) & ~0x1FFF).view(torch.float32) for stored in (a, b))
    monkeypatch.setattr(Ordinary, "tensors", lambda *_: (a, b, d))
    asked: list[Any] = []

    def both_ways(calls: Any, seconds: float) -> Any:
        asked.append((set(calls), seconds))
        return {}

    monkeypatch.setattr(ordinary, "both_ways", both_ways)
    assert ordinary.compared(each, 0.5) == {}
    assert asked == [({"PyCUTLASS", "torch"}, 0.5)]
    assert pycutlass.Gemm(a, b, out=d, precision=each.precision).kind == each.plan().kind


def test_a_wrong_result_is_no_time() -> None:
    each = SMALL[1]
    a, b, d = each.tensors("cpu")
    theirs = torch.empty_like(d)
    calls = {"PyCUTLASS": lambda: d.fill_(1), "torch": lambda: torch.matmul(a, b, out=theirs)}
    with pytest.raises(BenchmarkError, match="is wrong"):
        ordinary.check_results(each, a, b, calls, d, theirs)
    calls["PyCUTLASS"] = lambda: torch.matmul(a, b[:, :-1], out=d[:, :-1])
    with pytest.raises(BenchmarkError, match=r"is wrong|as they were"):
        ordinary.check_results(each, a, b, calls, d, theirs)


def test_verdicts_are_on_the_mean_and_the_slowest(report: Report, monkeypatch: pytest.MonkeyPatch) -> None:
    def compared(each: Ordinary, seconds: float) -> Any:
        if each == SMALL[5]:
            raise BenchmarkError("no kernel")
        ours = 12.5 if each == SMALL[0] else 10.0
        return {way: {"PyCUTLASS": ours, "torch": 10.5} for way in ("alone", "queued")}

    monkeypatch.setattr(ordinary, "compared", compared)
    ordinary.against_torch(report, SMALL, 0.1)
    mean, least, missing = checks(report).values()
    assert (mean, least, missing) == (True, False, False)
    of_all = report.result["tables"][0]["rows"][-1]
    assert of_all[:2] == ["all", "5"] and of_all[-1] == "0.840"
    assert report.result["tables"][1]["rows"][0][0] == SMALL[0].name


def test_kernels_are_those_that_a_gpu_would_choose() -> None:
    texts = {each.source().text for each in tuning_kernels.written(["ordinary"])}
    for each in ORDINARY[::9]:
        assert {kernel.source().text for kernel in each.chosen(H200).kernels} <= texts
    more = {each.source().text for each in tuning_kernels.written(["ordinary", "tuned"])}
    assert texts < more
    ranked = tuning_kernels.problem_of(tuning_kernels.TUNED[0]).ranked(H200)
    assert {kernel.source().text for each in ranked for kernel in each.candidate.kernels} <= more


def test_a_package_is_made_and_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    kernels = tuning_kernels.written(["ordinary"])[:3]
    headers = own_headers_digest()

    def compiled(position: int) -> Any:
        if position == 2:
            return SimpleNamespace(position=position, result=CompileError("it does not compile"))
        source = kernels[position].source()
        fields = portable_fields(source, "sm_90a", headers)
        result = Artifact(make_key(fields), source.name, "sm_90a", fields, b"code", b"host", REPORT)
        return SimpleNamespace(position=position, result=result)

    monkeypatch.setattr(tuning_kernels, "written", lambda parts: kernels)
    monkeypatch.setattr(tuning_kernels, "compile_many", lambda several, *, target: map(compiled, range(3)))
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setenv("CUDA_HOME", "/nowhere")
    assert not tuning_kernels.use(tmp_path)
    assert tuning.main(["--build", str(tmp_path)]) == 1
    assert "it does not compile" in capsys.readouterr().out
    assert tuning_kernels.use(tmp_path)
    found = InstalledKernels().find(portable_fields(kernels[1].source(), "sm_90a", headers), None)
    assert found is not None and found.cubin == b"code"
    assert InstalledKernels().find(portable_fields(kernels[2].source(), "sm_90a", headers), None) is None


@pytest.mark.parametrize("who", ["ours", "torch"])
def test_the_first_product_is_one_of_a_fresh_process(who: str, tmp_path: Path) -> None:
    found = tuning._first(who, Ordinary("bf16", "tn", 4, 16, 32), tmp_path, "cpu")
    assert found["first"] > 0 and found["error"] < 0.01
    assert (found["import"] > 10) == (who == "ours")


def test_processes_have_caches_of_their_own_or_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was looked at by another process is known, and then nothing is in the way of a compiler but its absence."""
    asked: list[dict[str, str]] = []
    monkeypatch.setattr(tuning, "_first", lambda *_, **variables: asked.append(variables) or {"first": 1.0})
    for compilers, caches in (("known", 1), ("new", 3), ("none", 3)):
        asked.clear()
        assert len(tuning._processes("ours", SMALL[0], tmp_path, compilers, 2)) == 2
        assert len({each["PYCUTLASS_CACHE_DIR"] for each in asked}) == caches
        assert all(("PATH" in each) == (compilers == "none") for each in asked)


def test_what_fails_in_a_fresh_process_is_told(tmp_path: Path) -> None:
    with pytest.raises(BenchmarkError, match="the process failed:"):
        tuning._first("ours", Ordinary("bf16", "tn", 4, 16, 32), tmp_path, "nowhere")


def test_tuning_is_judged_by_its_time_and_by_the_fastest(report: Report, monkeypatch: pytest.MonkeyPatch) -> None:
    shape = tuning_kernels.TUNED[0]
    best = tuning_kernels.problem_of(shape).ranked(H200)[0].candidate
    found: Any = SimpleNamespace(best=best, measured=[1, 2], contestants=[])
    monkeypatch.setattr(tuning, "_share", lambda *_: (0.985, "another", 365))
    tuning._tell(report, "a shape", shape, found, 4.0, 5.0)
    assert list(checks(report).values()) == [True, False]
    found.best = None
    with pytest.raises(BenchmarkError, match="nothing was measured"):
        tuning._tell(report, "a shape", shape, found, 4.0, 5.0)


def test_what_grows_misses_a_limit(report: Report) -> None:
    memory = SimpleNamespace(device=5 << 20, pool=0, host=0)
    counts = {"open files": 10, "threads": 3}
    before: Any = SimpleNamespace(memory=memory, loaded=2, counts=counts)
    after: Any = SimpleNamespace(memory=memory, loaded=2, counts={**counts, "threads": 4})
    tuning_handles._tell(report, "2 kernels", 2, 2, before, after)
    assert [what for what, passed in checks(report).items() if not passed] == [
        "2 kernels: growth of files, libraries, threads and processes"
    ]


def test_the_environment_is_put_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_HOME", "/somewhere")
    before = dict(os.environ)
    with tuning._environment({**before, "PYCUTLASS_BACKEND": "nvcc"}) as given:
        assert os.environ["PYCUTLASS_BACKEND"] == "nvcc" == given["PYCUTLASS_BACKEND"]
        os.environ.pop("CUDA_HOME")
    assert dict(os.environ) == before


@pytest.mark.usefixtures("without_gpu")
def test_it_needs_a_gpu(tmp_path: Path) -> None:
    with pytest.raises(DeviceError):
        tuning.main(["--out", str(tmp_path), "--only", "first"])
    assert not list(tmp_path.iterdir()) or json.loads((tmp_path / "tuning.json").read_text())["failures"] == []
