"""The command line of the database of trials."""

from __future__ import annotations

import json
import sqlite3
import sys
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from command_line import Result, Run
from measured import H200, PROBLEM, trial

import pycutlass
from pycutlass import __version__
from pycutlass.cli.stale import here
from pycutlass.errors import ToolkitError
from pycutlass.toolkit import find_cutlass, without_memo
from pycutlass.trials import Database
from pycutlass.tuning.problems import problems_of

SPEC = pycutlass.TensorSpec
HERE = {"cutlass": "4.2.0", "compiler": "nvcc 13.0.88", "pycutlass": "0.1.0"}


@pytest.fixture(autouse=True)
def versions(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is installed, so that trials of the tests are not stale."""
    monkeypatch.setattr("pycutlass.cli.db.here", lambda memo: dict(HERE))
    monkeypatch.delenv("PYCUTLASS_DATABASE", raising=False)


@pytest.fixture
def lately() -> datetime:
    """Half a minute before the test began: a date made on import ages with the tests that run before this one."""
    return datetime.now(UTC) - timedelta(seconds=30)


@pytest.fixture
def database(run: Run, lately: datetime) -> Iterator[Database]:
    """The database that the command line looks at."""
    opened = Database()
    old = replace(H200, pycutlass="0.0.9")
    opened.add([trial(1, date=lately), trial(2, date=lately), trial(3, status="wrong", date=lately),
                trial(7, problem={"m": 1}), trial(8, condition="warm", machine=old)])  # fmt: skip
    yield opened
    opened.close()


def test_what_is_installed_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    versions = here(without_memo)
    assert versions["pycutlass"] == __version__ and versions["cutlass"] == find_cutlass().version
    name, release = versions["compiler"].split(" ")
    assert name in ("nvcc", "nvrtc") and release[0].isdigit() and "," not in release

    def absent(*_: object) -> None:
        raise ToolkitError("there is none", absent=True)

    for name in ("find_cutlass", "device_compiler_release"):  # the package has a function of the module's name
        monkeypatch.setattr(sys.modules["pycutlass.cli.stale"], name, absent)
    assert here(without_memo) == {"pycutlass": __version__}


def test_ls_lists_problems_with_their_best(run: Run, database: Database) -> None:
    lines = run("db", "ls").out.splitlines()
    assert lines[0].split() == [
        "key",
        "GPU",
        "problem",
        "condition",
        "trials",
        "best",
        "candidate",
        "measured",
        "stale",
    ]
    words = [line.split() for line in lines[1:]]
    assert words[0] == [trial(1).key[:12], "NVIDIA", "H200", PROBLEM, "cold", "3", "11.00", "us", '{"tile":1}',
                        words[0][-3], words[0][-2], "ago"]  # fmt: skip
    assert {tuple(line[3:9]) for line in words[1:]} == {('{"m":1}', "cold", "1", "17.00", "us", '{"tile":7}'),
                                                       (PROBLEM, "warm", "1", "18.00", "us", '{"tile":8}')}  # fmt: skip
    assert [line.endswith("other PyCUTLASS") for line in lines[1:]].count(True) == 1
    listed = json.loads(run("db", "ls", "--json").out)
    assert (listed[0]["trials"], listed[0]["time"], listed[0]["stale"]) == (3, 11.0, "")
    assert run("db", "ls", "--gpu", "NVIDIA H100").out.startswith("no problem was measured on NVIDIA H100; `pycutlass")


def test_ls_says_where_nothing_works(run: Run) -> None:
    assert run("db", "ls").out == "no problem was measured; `pycutlass tune` measures\n"
    Database().add(trial(1, status="failed"))
    assert "none that works" in run("db", "ls").out


def test_show_has_the_best_first(run: Run, database: Database, lately: datetime) -> None:
    out = run("db", "show", trial(1).key[:12]).out
    facts, table = out.split("\n\n")
    assert trial(1).key in facts and PROBLEM in facts and "nvcc 13.0.88" in facts and "700.0" in facts
    first, second, wrong = table.splitlines()[1:]
    assert first.startswith("cold       ok      11.00 us  11.00 to 11.00  20") and '{"tile":1}' in first
    assert '{"tile":2}' in second
    assert wrong.split()[:2] == ["cold", "wrong"] and wrong.endswith("as the test wants it") and "UTC" in wrong
    listed = json.loads(run("db", "show", trial(1).key[:4], "--json").out)
    assert [each["candidate"]["tile"] for each in listed] == [1, 2, 3]
    assert listed[0]["digest"] == trial(1, date=lately).digest and listed[0]["key"] == trial(1).key


def test_show_refuses_what_is_no_key(run: Run, database: Database) -> None:
    result = run("db", "show", "0" * 12)
    assert result.code == 1 and "no key in" in result.err and "`pycutlass db ls` lists them" in result.err
    for wrong in ("abc", "xyzzy", "A" * 12, "0" * 65):
        result = run("db", "show", wrong)
        assert result.code == 2 and "4 to 64 hexadecimal digits" in " ".join(result.err.split())


def test_export_import_and_merge(run: Run, database: Database, tmp_path: Path) -> None:
    file, there = tmp_path / "trials.jsonl", tmp_path / "there.db"
    assert run("db", "export", file) == Result(0, f"5 trials written to {file}\n", "")
    assert run("db", "import", file, "--database", there).out == "5 trials taken in, 0 here already\n"
    assert run("db", "import", file, "--database", there).out == "0 trials taken in, 5 here already\n"
    Database(there).add(trial(0))
    assert run("db", "merge", there).out == "1 trial taken in, 5 here already\n"
    assert database.best(PROBLEM, H200) == trial(0)
    text = file.read_text()
    assert '"low":11.0' in text, text
    file.write_text(text.replace('"low":11.0', '"low":NaN', 1))
    result = run("db", "import", file)
    assert result.code == 1 and "is no trial, and nothing of the file was taken in: JSON has no NaN" in result.err
    result = run("db", "merge", tmp_path / "none.db")
    assert result.code == 1 and "there is no database" in result.err


@pytest.mark.parametrize(
    ("plan", "name"),
    [
        (pycutlass.Gemm(SPEC((8, 24), "float16"), SPEC((24, 16), "float16")), "8x16x24 f16 x f16 -> f16"),
        (
            pycutlass.Conv2d(SPEC((2, 8, 8, 16), "bfloat16"), SPEC((32, 3, 3, 16), "bfloat16")),
            "fprop 2x8x8x16 by 32 of 3x3, bf16 x bf16 -> bf16",
        ),
        (
            pycutlass.GroupedGemm([SPEC((8, 24), "float16")] * 3, [SPEC((24, 16), "float16")] * 3),
            "group of 3 up to 8x16x24 f16 x f16 -> f16",
        ),
    ],
    ids=["gemm", "conv2d", "group"],
)
def test_problems_of_all_families_have_names(run: Run, tmp_path: Path, plan: Any, name: str) -> None:
    """And go to files and back, with others beside them."""
    database, (problem,) = Database(tmp_path / "here.db"), problems_of(plan)
    old, record = replace(H200, pycutlass="0.0.9"), problem.record()
    database.add([trial(1, problem=record), trial(2), trial(3, problem=record, machine=old)])
    there = tmp_path / "there.db"
    assert run("db", "export", tmp_path / "file", "--database", database.path).code == 0
    assert run("db", "import", tmp_path / "file", "--database", there).out.startswith("3 trials taken in")
    assert run("db", "merge", database.path, "--database", there).out == "0 trials taken in, 3 here already\n"
    lines = run("db", "ls", "--database", there).out.splitlines()
    assert sum(name in line for line in lines) == 2 and sum(PROBLEM in line for line in lines) == 1
    listed = json.loads(run("db", "ls", "--json", "--database", there).out)
    assert {each["name"] for each in listed} == {name, PROBLEM}
    assert {each["problem"] for each in listed} == {trial(1, problem=record).problem, PROBLEM}
    (stale,) = run("db", "stale", "--database", there).out.splitlines()[1:]
    assert name in stale
    shown = run("db", "show", trial(1, problem=record).key[:12], "--database", there).out
    assert name in shown and f'"product":"{record["product"]}"' in shown
    assert run("db", "prune", "--stale", "--database", there).out == "1 trial deleted\n"
    assert run("db", "stale", "--database", there).out.startswith("no trial is stale")
    assert Database(there).best(record, H200) == trial(1, problem=record)
    database.close()


def test_a_variable_names_the_database(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYCUTLASS_DATABASE", str(tmp_path / "team.db"))
    Database(tmp_path / "team.db").add(trial(1))
    assert len(run("db", "ls").out.splitlines()) == 2
    assert len(run("db", "ls", "--database", tmp_path / "other.db").out.splitlines()) == 1
    assert not (tmp_path / "other.db").exists()


def test_prune(run: Run, database: Database, lately: datetime) -> None:
    assert run("db", "prune").code == 2
    assert run("db", "prune", "--stale", "--dry-run").out == "1 trial would be deleted\n"
    assert run("db", "prune", "--stale").out == "1 trial deleted\n"
    assert run("db", "prune", "--keep", 1, "--dry-run").out == "1 trial would be deleted\n"
    assert run("db", "prune", "--keep", 1).out == "1 trial deleted\n"
    assert run("db", "prune", "--older-than", "1h").out == "1 trial deleted\n"
    assert {*database.trials()} == {trial(1, date=lately), trial(3, status="wrong", date=lately)}
    assert run("db", "prune", "--keep", 9, "--older-than", "2w", "--stale").out == "0 trials deleted\n"


@pytest.mark.parametrize("age", ["90", "d", "-1d", "1.5d", "9" * 9 + "y", "tomorrow", "99999y"])
def test_prune_refuses_what_is_no_age(run: Run, database: Database, age: str) -> None:
    result = run("db", "prune", f"--older-than={age}")
    said = " ".join(result.err.replace("│", "").split())
    assert result.code in (1, 2) and ("an age is a number" in said or "is before all dates" in said)
    assert run("db", "prune", "--keep", 0).code == 2
    assert len(database.trials()) == 5


def test_stale_lists_what_is_not_looked_up(run: Run, database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = run("db", "stale").out.splitlines()
    assert len(lines) == 2 and lines[1].endswith("18.00 us  other PyCUTLASS")
    monkeypatch.setattr("pycutlass.cli.db.here", lambda memo: {"compiler": "nvcc 13.1.0", "pycutlass": "0.1.0"})
    said = [each["stale"] for each in json.loads(run("db", "stale", "--json").out)]
    assert sorted(said) == ["other compiler"] * 4 + ["other compiler, PyCUTLASS"]


def test_verify_names_what_is_damaged(run: Run, database: Database, lately: datetime) -> None:
    assert run("db", "verify") == Result(0, "5 trials, as measured\n", "")
    connection = sqlite3.connect(database.path, isolation_level=None)
    connection.execute("UPDATE trial_v1 SET time = 1, low = 1 WHERE digest = ?", [trial(1, date=lately).digest])
    connection.close()
    result = run("db", "verify")
    assert result.code == 1 and result.err.startswith(f"trial {trial(1, date=lately).digest[:12]}: its content differs")


@pytest.mark.parametrize("command", ["ls", "stale", "verify", "show 0000", "export x", "prune --keep 1"])
def test_a_foreign_file_is_refused(run: Run, tmp_path: Path, command: str) -> None:
    (tmp_path / "file").write_text("no database\n" * 100)
    result = run("db", *command.split(), "--database", tmp_path / "file")
    assert result.code == 1 and result.err.startswith(f"pycutlass: the database {tmp_path / 'file'} cannot be used: ")
    assert "Traceback" not in result.err and (tmp_path / "file").read_text() == "no database\n" * 100
