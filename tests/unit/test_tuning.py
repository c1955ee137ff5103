"""`tune` from problems to a report, its options and the database; what a GPU would do is made up."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import os
import re
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from tuned import GPU, MACHINE, PROBLEM, Instantly, Noisy, contestants, kind

import pycutlass
from pycutlass.errors import ArgumentError, ArgumentTypeError, DeviceError
from pycutlass.trials import Database
from pycutlass.tuning import Problem, TuningOptions, TuningReport, compile_candidates, tune
from pycutlass.tuning.files import read_problems
from pycutlass.tuning.known import Known
from pycutlass.tuning.named import DTYPES, problem_of
from pycutlass.tuning.options import DISTRIBUTIONS, seconds_of
from pycutlass.tuning.problems import considered, problems_of, with_options
from pycutlass.tuning.progress import described, remaining, shown_progress
from pycutlass.tuning.tuner import _compiling, tune_problem


@pytest.fixture
def database(tmp_path):
    made = Database(tmp_path / "trials.db")
    yield made
    made.close()


def tuned(database: Database, times: list[float], **options: Any) -> Any:
    chosen, measurer = TuningOptions(**options), Noisy(times)
    known = Known(database, MACHINE, chosen)
    report = tune_problem(
        PROBLEM,
        contestants(len(times)),
        GPU,
        chosen,
        time.monotonic() + 20,
        known,
        measurer=lambda *_: measurer,
        compiling=Instantly,
    )
    return report, measurer


def test_the_ranking_is_reported_and_kept(database):
    report, _ = tuned(database, [30.0, 10.0, 20.0])
    medians = [each.median for each in report.measured]
    assert medians == sorted(medians) and 10 < medians[0] < 11
    assert report.best == contestants(3)[1].candidate
    best = database.best(PROBLEM.record(), MACHINE)
    assert best.time == pytest.approx(medians[0]) and best.rounds >= 3
    assert best.low <= best.time <= best.high


def test_gflops_and_roofline_are_those_of_the_time(database):
    report, _ = tuned(database, [10.0])
    each = report.measured[0]
    assert report.gflops(each) == pytest.approx(2 * 1024**3 / (each.median * 1e-6) / 1e9)
    assert 0.05 < report.roofline(each) < 1
    each.times = [2 * time for time in each.times]
    assert report.roofline(each) == pytest.approx(report.roofline(report.contestants[0]))


def test_what_is_known_is_not_measured_again(database):
    tuned(database, [30.0, 10.0])
    report, measurer = tuned(database, [30.0, 10.0])
    assert not measurer.asked and all(each.is_known for each in report.measured)
    assert report.best == contestants(2)[1].candidate and "known" in str(report)
    report, measurer = tuned(database, [10.0, 30.0], again=True)
    assert measurer.asked and report.best == contestants(2)[0].candidate


def test_a_warm_cache_is_another_condition(database):
    tuned(database, [30.0, 10.0])
    _, measurer = tuned(database, [30.0, 10.0], cold_l2=False)
    assert measurer.asked
    assert database.best(PROBLEM.record(), MACHINE, "warm").condition == "warm"


@pytest.mark.parametrize("operands", [each for each in DISTRIBUTIONS if each != "normal"])
def test_operands_of_another_distribution_are_another_condition(database, operands):
    """Zeros take less power: what is measured with them is no faster than what is measured with others."""
    tuned(database, [30.0, 10.0])
    _, measurer = tuned(database, [1.0, 2.0], distribution=operands)
    assert measurer.asked
    assert database.best(PROBLEM.record(), MACHINE).time == pytest.approx(10.0, rel=0.1)
    assert database.best(PROBLEM.record(), MACHINE, f"cold, {operands}").time == pytest.approx(1.0, rel=0.1)
    report, measurer = tuned(database, [30.0, 10.0])
    assert not measurer.asked and report.best == contestants(2)[1].candidate


def test_what_another_tuner_measures_is_left_to_it(database):
    theirs = contestants(2)[0].candidate
    with database.claim(PROBLEM.record(), theirs.choice(), MACHINE) as mine:
        assert mine
        report, measurer = tuned(database, [10.0, 30.0])
    assert set(measurer.asked) == {0}  # the one that is left, which has the first number now
    assert report.elsewhere == 1 and report.best == contestants(2)[1].candidate
    assert "1 measured by others just now" in str(report)


def test_a_wrong_kernel_is_kept_as_such(database):
    chosen, measurer = TuningOptions(), Noisy([1.0, 10.0])
    measurer.wrong = {0}
    known = Known(database, MACHINE, chosen)
    until = time.monotonic() + 20
    report = tune_problem(
        PROBLEM,
        contestants(2),
        GPU,
        chosen,
        until,
        known,
        measurer=lambda *_: measurer,
        compiling=Instantly,
    )
    (wrong,) = database.trials(status="wrong")
    assert wrong.reason == "1 of 4 elements is wrong" and len(report.measured) == 1
    assert "wrong: 1 of 4 elements is wrong" in str(report)


def test_claims_and_children_end_with_an_interrupt(database):
    class Interrupted(Noisy):
        closed = False

        def measure(self, number: int, seconds: float) -> list[float]:
            raise KeyboardInterrupt

        def close(self) -> None:
            self.closed = True

    chosen, measurer, kernels = TuningOptions(), Interrupted([1.0]), []

    def compiling(*given: Any) -> Instantly:
        kernels.append(Instantly(*given))
        return kernels[0]

    with pytest.raises(KeyboardInterrupt):
        tune_problem(
            PROBLEM,
            contestants(1),
            GPU,
            chosen,
            time.monotonic() + 20,
            Known(database, MACHINE, chosen),
            measurer=lambda *_: measurer,
            compiling=compiling,
        )
    assert measurer.closed and kernels[0].closed
    with database.claim(PROBLEM.record(), contestants(1)[0].candidate.choice(), MACHINE) as mine:
        assert mine


def test_without_a_gpu_it_says_so_first(monkeypatch):
    def never(*given: Any) -> Any:
        raise AssertionError("something was compiled")

    monkeypatch.setattr("pycutlass.tuning.tuner._compiling", never)
    with pytest.raises(DeviceError, match="no GPU can be used"):
        tune(PROBLEM)


def test_another_gpu_than_the_first_is_not_measured_in_its_name(monkeypatch):
    monkeypatch.setattr("pycutlass.device.require", lambda: None)
    monkeypatch.setattr("pycutlass.device.current", lambda: 1)
    with pytest.raises(DeviceError, match="measures on the first GPU, 0, and GPU 1 is current"):
        tune(PROBLEM)


def test_what_is_compiled_needs_no_gpu(monkeypatch):
    monkeypatch.setenv("PYCUTLASS_TARGET", "sm_90a")
    given: list[Any] = []

    def instantly(candidates: Any, target: str, *rest: Any) -> Instantly:
        given.append((len(candidates), target))
        return Instantly(candidates, broken=[1])

    monkeypatch.setattr("pycutlass.tuning.tuner._compiling", instantly)
    made, failures = compile_candidates(PROBLEM, most_candidates=4, target="sm_90a")
    assert (made, len(failures), given) == (3, 1, [(4, "sm_90a")])
    assert "it does not compile" in failures[0]


@pytest.mark.parametrize(
    ("options", "error", "said"),
    [
        ({"use_3xtf32": 1}, ArgumentTypeError, "use_3xtf32 must be True or False, got 1"),
        ({"split_k_slices": 2}, ArgumentTypeError, "split_k_slices must be one or several integers"),
        ({"split_k_slices": [0]}, ArgumentError, "each of split_k_slices must be at least 1, got 0"),
        ({"threads": 0}, ArgumentError, "threads must be at least 1, or -1"),
        ({"tmp_dir": "/there/is/none"}, ArgumentError, "/there/is/none is none: make it first"),
        ({"distribution": "normel"}, ArgumentError, "Did you mean"),
        ({"most_rounds": 4, "least_rounds": 9}, ArgumentError, "got 4 and 9"),
        ({"timeout": 0}, ArgumentError, "timeout must be a positive number"),
    ],
)
def test_options_are_checked(options, error, said):
    with pytest.raises(error, match=said):
        TuningOptions(**options)


def test_unknown_options_are_refused():
    with pytest.raises(ArgumentTypeError, match=r"no option of the tuner.*Did you mean"):
        tune(PROBLEM, split_k_slice=[1])
    with pytest.raises(ArgumentTypeError, match="options must be"):
        tune(PROBLEM, options={"threads": 1})


def test_compilers_at_once():
    assert TuningOptions().jobs is None
    assert TuningOptions(threads=3).jobs == 3
    assert TuningOptions(threads=3, use_multiprocessing=False).jobs == 1


@pytest.mark.parametrize(
    ("budget", "seconds"),
    [("60s", 60), ("5min", 300), (" 1.5 h", 5400), (2, 2), ("250ms", 0.25), ("7", 7)],
)
def test_budgets(budget, seconds):
    assert seconds_of(budget) == pytest.approx(seconds)


@pytest.mark.parametrize("budget", ["", "1 day", "s", "-1s", 0, float("inf"), "1e999s"])
def test_budgets_that_are_none(budget):
    with pytest.raises(ArgumentError, match="budget must be"):
        seconds_of(budget)
    with pytest.raises(ArgumentTypeError, match="budget must be"):
        seconds_of(None)


@pytest.mark.parametrize("beyond", [10**400, -(10**400), 10**10_000], ids=["large", "negative", "huge"])
def test_more_seconds_than_a_number_has(beyond):
    bits = f"an int of {beyond.bit_length():,} bits"
    said = f"is beyond float64: it must be less than 1.8e+308 in magnitude, got {bits}"
    with pytest.raises(ArgumentError, match=f"^budget {re.escape(said)}$"):
        seconds_of(beyond)
    with pytest.raises(ArgumentError, match=f"^timeout {re.escape(said)}$"):
        TuningOptions(timeout=beyond)
    for name in ("most_candidates", "threads", "seed", "most_rounds"):
        with pytest.raises(ArgumentError, match=f"^{name} is an integer of .* bits, beyond anything"):
            TuningOptions(**{name: beyond})


def test_slices_and_how_many_candidates():
    every = considered(PROBLEM, TuningOptions(most_candidates=10_000), GPU)
    assert {each[0].split_k_slices for each in every} > {1, 2}
    whole = considered(PROBLEM, TuningOptions(most_candidates=10_000, split_k_slices=[1]), GPU)
    assert {each[0].split_k_slices for each in whole} == {1} and len(whole) < len(every)
    assert considered(PROBLEM, TuningOptions(most_candidates=3), GPU) == every[:3]
    with pytest.raises(ArgumentError, match=r"no kernel takes .* with split_k_slices in \(31,\)"):
        considered(PROBLEM, TuningOptions(split_k_slices=[31]), GPU)


def test_lesser_alignments_are_candidates_of_another_kind():
    found = considered(PROBLEM, TuningOptions(most_candidates=10_000, profile_all_alignments=True), GPU)
    assert {each[1].A.alignment for each in found} == {1, 2, 4, 8}
    assert all(each[0].operation.A == each[1].A for each in found)


def test_one_tf32_product_in_place_of_three():
    exact = problem_of(64, 64, 64, dtype="3xtf32")
    assert with_options(exact, TuningOptions()) is exact
    assert with_options(exact, TuningOptions(use_3xtf32=False)) == problem_of(64, 64, 64, dtype="tf32")
    assert with_options(PROBLEM, TuningOptions(use_3xtf32=False)) is PROBLEM


def test_problems():
    plan = pycutlass.Gemm(pycutlass.TensorSpec((4, 8, 24), "float16"), pycutlass.TensorSpec((4, 24, 16), "float16"))
    assert problems_of(plan) == [Problem(plan.kind, 8, 16, 24, 4)]
    assert problems_of([PROBLEM, plan]) == [PROBLEM, Problem(plan.kind, 8, 16, 24, 4)]
    for wrong, said in (([], "the list of problems is empty"), ("abc", "must be a Problem"), (3, "must be a Problem")):
        with pytest.raises((ArgumentError, ArgumentTypeError), match=said):
            problems_of(wrong)
    with pytest.raises(ArgumentError, match="m must be at least 1, got 0"):
        Problem(kind(), 0, 1, 1)
    assert Problem(kind(), 2, 3, 5, 7).operations == 2 * 2 * 3 * 5 * 7
    assert Problem(kind(), 2, 3, 5, 7).bytes == 2 * 7 * (2 * 5 + 5 * 3 + 2 * 3)


@pytest.mark.parametrize("dtype", DTYPES)
def test_problems_by_name_have_kernels(dtype):
    assert considered(problem_of(128, 256, 512, dtype=dtype), TuningOptions(), GPU)


def test_a_problem_that_no_kernel_takes_says_what_to_change():
    unaligned = dataclasses.replace(PROBLEM, n=1001)
    with pytest.raises(ArgumentError, match=r"no kernel takes 1024x1001x1024 .* Pad the tensor"):
        considered(unaligned, TuningOptions(), GPU)
    with pytest.raises(ArgumentError, match=r"no kernel takes .* with split_k_slices in \(31,\): there is nothing"):
        considered(PROBLEM, TuningOptions(split_k_slices=[31]), GPU)


def test_problems_are_read_from_a_file(tmp_path):
    file = tmp_path / "problems.csv"
    file.write_text("M, N, K, dtype, batch\n64,128,256,bfloat16,\n1,8,16,float16,3\n")
    first, second = read_problems(file)
    assert first == problem_of(64, 128, 256, dtype="bfloat16") and second == problem_of(1, 8, 16, 3)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "needs the columns m, n, k"),
        ("m,n\n1,2\n", "it has m, n"),
        ("m,n,k,colour\n1,2,3,4\n", "colour"),
        ("m,n,k\n", "has no problem"),
        ("m,n,k\n1,2,3\n1,2,x\n", "line 3, column k: it must be an integer, such as 512; got 'x'"),
        ("m,n,k\n1,2\n", "line 2: it has 2 values, and the file has 3 columns"),
        (
            "n,h,w,c,k,r\n",
            "needs the columns n, h, w, c, k, r, s, named in its first.* of GEMMs m, n, k; of groups problem_sizes",
        ),
        ("n,h,w,c,k,r,s\n2,8,8,16,8,3,0\n", "line 2: "),
        ("n,h,w,c,k,r,s\n2,8,8,16,8,9,9\n", "line 2: "),
        ("n,h,w,c,k,r,s,groups\n2,8,8,16,8,3,3,0\n", "line 2: groups must be "),
        ("n,h,w,c,k,r,s,kind\n2,8,8,16,8,3,3,fprob\n", "line 2: kind must be one of .*Did you mean"),
        ("n,h,w,c,k,r,s,dtype\n2,8,8,16,8,3,3,float_e4m3\n", "line 2: dtype must be one of "),
        ("m,n,k\n1,2,\n", "line 2, column k: it is empty, and GEMMs need it"),
        ("m,n,k\n1,2,0\n", "line 2: k must be at least 1, got 0"),
        ("m,n,k,dtype\n1,2,3,flot16\n", "line 2: dtype must be one of .*Did you mean"),
    ],
)
def test_files_that_are_no_list_of_problems(tmp_path, text, said):
    file = tmp_path / "problems.csv"
    file.write_text(text)
    with pytest.raises(ArgumentError, match=said):
        read_problems(file)
    with pytest.raises(ArgumentError, match="cannot be read as a list of problems: No such file"):
        read_problems(tmp_path / "none.csv")


def test_a_report_as_table_and_plot(database, tmp_path):
    report, _ = tuned(database, [30.0, 10.0])
    whole = TuningReport((report,))
    assert whole.best == (report.best,) and len(whole) == 1 and whole[0] is report
    rich = pytest.importorskip("rich.console")
    out = io.StringIO()
    rich.Console(file=out, width=300).print(whole)
    assert "GFLOP/s" in out.getvalue() and report.measured[0].candidate.name in out.getvalue()
    pytest.importorskip("matplotlib")
    file = tmp_path / "plot.svg"
    whole.plot(file)
    assert file.stat().st_size > 1000
    for path in (tmp_path / "none" / "plot.svg", tmp_path / "plot.colour"):
        with pytest.raises(ArgumentError, match="the plot cannot be written to"):
            whole.plot(path)


def test_a_plot_without_matplotlib(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ArgumentError, match=r"matplotlib cannot be imported .* pip install matplotlib"):
        TuningReport(()).plot()


def test_progress_is_silent_where_there_is_no_terminal(capfd):
    with shown_progress(1, time.monotonic() + 5) as progress:
        progress("a problem")(contestants(2))
    assert capfd.readouterr() == ("", "")


def test_progress_on_a_terminal(monkeypatch):
    controller, terminal = os.openpty()
    with os.fdopen(terminal, "w") as stderr, contextlib.ExitStack() as stack:
        monkeypatch.setattr("sys.stderr", stderr)
        progress = stack.enter_context(shown_progress(1, time.monotonic() + 65))
        progress("a problem")(contestants(2))
        stack.close()
        stderr.flush()
        said = os.read(controller, 1 << 16).decode()
    os.close(controller)
    assert "tuning" in said


def test_what_progress_says():
    racing = contestants(3)
    racing[0].status, racing[0].times = "racing", [12.0]
    assert described(racing) == "2 to compile, 1 being measured, best 12.00 us"
    assert remaining(time.monotonic() + 65.2) == "at most 1:05 left"
    assert remaining(time.monotonic() - 5) == "at most 0:00 left"


def test_an_executor_is_one():
    with pytest.raises(ArgumentTypeError, match=r"executor must have `submit`.*get_executor"):
        _compiling([], "sm_90a", TuningOptions(), object())
    with ThreadPoolExecutor(1) as pool:
        assert _compiling([], "sm_90a", TuningOptions(), pool).is_done


def test_a_tuner_that_is_killed_loses_only_what_it_was_measuring(database):
    """What it had measured often enough is known, and its claims are free."""
    program = """
import sys, time
sys.path.insert(0, sys.argv[1])
from tuned import *
from pycutlass.trials import Database
from pycutlass.tuning import TuningOptions
from pycutlass.tuning.known import Known
from pycutlass.tuning.tuner import tune_problem
class Stuck(Noisy):
    def measure(self, number, seconds):
        if len(self.asked) == 2:
            print("stuck", flush=True)
            time.sleep(1000)
        return super().measure(number, seconds)
options = TuningOptions(least_rounds=3)
known = Known(Database(sys.argv[2]), MACHINE, options)
stuck = lambda *_: Stuck([10.0, 10.0, 10.0])
tune_problem(PROBLEM, contestants(3), GPU, options, time.monotonic() + 100, known, measurer=stuck, compiling=Instantly)
"""
    command = [sys.executable, "-c", program, str(Path(__file__).parent), str(database.path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "stuck\n"
        _, measurer = tuned(database, [10.0])  # the first one is either known or claimed
        assert not measurer.asked
        other.kill()
    report, measurer = tuned(database, [10.0, 10.0, 10.0])
    assert set(measurer.asked) == {0}  # of three, two were kept, and the third is measured now
    assert len(report.measured) == 3 and sum(each.is_known for each in report.measured) == 2
    assert database.verify() == []


def test_the_public_name():
    assert pycutlass.tune is tune
