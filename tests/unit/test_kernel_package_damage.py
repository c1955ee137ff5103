"""A package of kernels that is damaged, what is said of one, and the commands that show it."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cached import warnings_in
from command_line import runner
from kernel_packages import refuses
from trivial_kernels import Operation, environment

from pycutlass import compiler
from pycutlass.errors import ArgumentError

pytestmark = pytest.mark.usefixtures("private_session")


def cut(path: Path, share: float) -> None:
    path.write_bytes(path.read_bytes()[: int(path.stat().st_size * share)])


def with_index(change: Callable[[Any], Any]) -> Callable[[Path], None]:
    def apply(package_site: Path) -> None:
        index = json.loads((package_site / "kernels.json").read_text())
        (package_site / "kernels.json").write_text(json.dumps(change(index)))

    return apply


def in_every_kernel(package_site: Path) -> None:
    """Change one byte of each kernel, and nothing that is looked at when the file is opened."""
    bundle = package_site / "sm_80.zip"
    content = bytearray(bundle.read_bytes())
    with zipfile.ZipFile(bundle) as archive:
        for member in archive.infolist():
            if member.filename.endswith(".cubin"):
                content[member.header_offset + 200] ^= 1  # behind the name
    bundle.write_bytes(content)


DAMAGE: dict[str, Callable[[Path], None]] = {
    "a bundle that is cut off": lambda package_site: cut(package_site / "sm_80.zip", 0.6),
    "a bundle without a byte": lambda package_site: cut(package_site / "sm_80.zip", 0),
    "no bundle": lambda package_site: (package_site / "sm_80.zip").unlink(),
    "a directory": lambda package_site: ((package_site / "sm_80.zip").unlink(), (package_site / "sm_80.zip").mkdir())[
        0
    ],
    "a pipe": lambda package_site: ((package_site / "sm_80.zip").unlink(), os.mkfifo(package_site / "sm_80.zip"))[0],
    "kernels that were changed": in_every_kernel,
    "no index": lambda package_site: (package_site / "kernels.json").unlink(),
    "an index that is cut off": lambda package_site: cut(package_site / "kernels.json", 0.5),
    "an index of something else": with_index(lambda index: [index]),
    "an index without bundles": with_index(lambda index: {**index, "bundles": None}),
    "a bundle without targets": with_index(lambda index: {**index, "bundles": [{"file": "sm_80.zip", "kernels": 3}]}),
    "a bundle elsewhere": with_index(
        lambda index: {**index, "bundles": [{"file": "../sm_80.zip", "targets": ["sm_80"], "kernels": 3}]}
    ),
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
def test_a_damaged_package_is_named_and_kernels_are_compiled(damage, package_site, builds, caplog, monkeypatch):
    damage(package_site)
    monkeypatch.setenv("PYCUTLASS_NO_COMPILE", "1")
    refuses(rf"(?s)The package pycutlass-kernels is not used: {package_site}.*(damaged|index of a package)")
    refuses(rf"(?s)The package pycutlass-kernels is not used: {package_site}.*(damaged|index of a package)")
    monkeypatch.delenv("PYCUTLASS_NO_COMPILE")
    compiler.add_module([Operation("kernel_a")])
    assert builds == ["kernel_a"]
    [said] = warnings_in(caplog)
    assert str(package_site) in said


def test_a_bundle_that_is_cut_off_while_it_is_read(packaged, package_site, builds, caplog):
    compiler.add_module([Operation("kernel_a")])
    with (package_site / "sm_80.zip").open("r+b") as file:
        file.truncate(100)
    compiler.add_module([Operation("kernel_b")])
    assert builds == ["kernel_b"]
    assert "was changed or cut off" in caplog.text


def test_a_variable_that_says_neither_is_noticed(package_site, monkeypatch):
    monkeypatch.setenv("PYCUTLASS_NO_COMPILE", "maybe")
    with pytest.raises(ArgumentError, match="PYCUTLASS_NO_COMPILE"):
        compiler.add_module([Operation("kernel_a")])


def test_what_is_said_at_the_level_of_notes(package_site, caplog, monkeypatch):
    monkeypatch.setenv("CXX", "g++")
    with caplog.at_level(logging.INFO, "pycutlass"):
        compiler.add_module([Operation("kernel_a")])
    assert "is not used: CXX names what kernels are made with" in caplog.text
    assert warnings_in(caplog) == []


def test_nothing_is_looked_for_at_import(package_site):
    program = "import sys, pycutlass; sys.exit(any('pycutlass_kernels' in name for name in sys.modules))"
    subprocess.run([sys.executable, "-c", program], env=environment(), check=True)


def test_commands_show_the_package(package_site, monkeypatch, capsys):
    run = runner(monkeypatch, capsys)
    assert f"{package_site}, 3 kernels for sm_80, 1 kernel for sm_90" in run("cache", "info").out
    [facts] = json.loads(run("cache", "info", "--json").out)["packages"]
    assert facts == {
        "directory": str(package_site),
        "bundles": [
            {"file": "sm_80.zip", "targets": ["sm_80"], "kernels": 3},
            {"file": "sm_90.zip", "targets": ["sm_90"], "kernels": 1},
        ],
        "reason": "",
    }
    [row] = [entry for entry in json.loads(run("doctor", "--json").out) if entry["name"] == "kernel package"]
    assert row["ok"] and not row["required"]
    assert "and 4 of the package, as built" in run("cache", "verify").out
    monkeypatch.setenv("CXX", "g++")
    assert "not used: CXX names" in run("cache", "info").out
    [row] = [entry for entry in json.loads(run("doctor", "--json").out) if entry["name"] == "kernel package"]
    assert not row["ok"] and "are compiled" in row["remedy"]


def test_commands_without_a_package_say_none(monkeypatch, capsys):
    run = runner(monkeypatch, capsys)
    assert json.loads(run("cache", "info", "--json").out)["packages"] == []
    assert "kernel package" not in run("doctor").out
    assert "package" not in run("cache", "verify").out


def test_verify_finds_what_was_changed(package_site, monkeypatch, capsys):
    in_every_kernel(package_site)
    result = runner(monkeypatch, capsys)("cache", "verify")
    assert result.code == 1 and str(package_site / "sm_80.zip") in result.err
    with_index(lambda index: {**index, "bundles": index["bundles"][1:]})(package_site)
    index = json.loads((package_site / "kernels.json").read_text())
    index["bundles"][0]["kernels"] = 2
    (package_site / "kernels.json").write_text(json.dumps(index))
    result = runner(monkeypatch, capsys)("cache", "verify")
    assert result.code == 1 and "has 1 kernels, and kernels.json beside it says 2" in result.err
