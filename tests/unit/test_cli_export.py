"""``pycutlass export``: how problems are named, and what is refused before anything is compiled."""

from __future__ import annotations

import pickle

import pytest

import pycutlass
from pycutlass import TensorSpec
from pycutlass.cli import exporting


@pytest.fixture
def written(monkeypatch):
    """What would be exported: the plan or the plans, and the options."""
    calls = []
    monkeypatch.setattr(exporting, "export", lambda plan, out, **options: calls.append((plan, out, options)))
    monkeypatch.setattr(exporting, "export_library", lambda plans, out, **options: calls.append((plans, out, options)))
    return calls


def test_a_problem_is_described_as_for_profile(run, written, tmp_path):
    options = ("--m", 64, "--n", 128, "--k", 96, "--dtype", "float32", "--epilogue", "relu", "--source", "bias")
    result = run("export", tmp_path / "out", "--format", "cubin", *options, "--target", "sm_86")
    assert result.code == 0 and "written to" in result.out
    [(plan, out, given)] = written
    assert plan.size == (64, 128, 96) and plan.source == "bias" and out == tmp_path / "out"
    assert type(plan.kind.epilogue.activation) is pycutlass.relu
    assert given == {"format": "cubin", "target": "sm_86"}


def test_a_convolution_is_described_as_well(run, written, tmp_path):
    sizes = [
        word for name, value in zip("nhwckrs", (2, 9, 10, 16, 24, 3, 3), strict=True) for word in (f"--{name}", value)
    ]
    assert run("export", tmp_path / "out", "--format", "cpp", *sizes, "--pad", 1, "--conv-kind", "wgrad").code == 0
    [(plan, _, _)] = written
    assert isinstance(plan, pycutlass.Conv2d) and plan.kind.direction.name == "wgrad" and plan.problem_size.pad_h == 1


def test_a_pickled_plan_is_taken(run, written, tmp_path):
    plan = pycutlass.Gemm(TensorSpec((64, 32), "float32"), TensorSpec((32, 16), "float32"), alpha=2)
    (tmp_path / "plan.pickle").write_bytes(pickle.dumps(plan))
    assert run("export", tmp_path / "plan.pickle", tmp_path / "out", "--format", "bundle").code == 0
    assert written[0][0].size == (64, 16, 32)


def test_a_library_has_the_problems_of_a_file(run, written, tmp_path):
    (tmp_path / "problems.csv").write_text("m,n,k\n64,128,32\n8,16,24\n")
    assert run("export", tmp_path / "problems.csv", tmp_path / "kernels.so", "--format", "library").code == 0
    assert {name: plan.size for name, plan in written[0][0].items()} == {
        "plan_0": (64, 128, 32),
        "plan_1": (8, 16, 24),
    }


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ("out", "--format", "ptx", "--m", 1, "--n", 1, "--k", 1),
            "--format must be one of cpp, cubin, bundle, library",
        ),
        (("out", "--format", "cpp"), "give either PLAN and OUT"),
        (("plan.pickle", "out", "--format", "cpp", "--m", 1), "give either PLAN and OUT"),
        (("one", "two", "three", "--format", "cpp"), "got 3 paths"),
        (("none.pickle", "out", "--format", "cpp"), "cannot be read: No such file"),
        (("text.pickle", "out", "--format", "cpp"), "is no pickled plan"),
        (("number.pickle", "out", "--format", "cpp"), "has a int, and a plan is needed"),
        (("two.csv", "out", "--format", "cpp"), "a program has one: pass --format library"),
        (
            ("out", "--format", "cpp", "--problem-sizes", "8,16", "--n", 8, "--k", 8),
            "groups are exported as pickled plans",
        ),
    ],
)
def test_what_is_refused(words, said, run, written, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text.pickle").write_text("text")
    (tmp_path / "number.pickle").write_bytes(pickle.dumps(3))
    (tmp_path / "two.csv").write_text("m,n,k\n64,128,32\n8,16,24\n")
    result = run("export", *words)
    assert result.code in (1, 2) and said in " ".join(result.err.replace("│", " ").split())
    assert not written
