"""Where the output of the command line goes: full disks, closed pipes, terminals, and tables that fit them."""

from __future__ import annotations

import contextlib
import fcntl
import os
import struct
import subprocess
import sys
import termios
from pathlib import Path
from typing import Any

import pytest
from command_line import Run
from hypothesis import given
from hypothesis import strategies as st

from pycutlass.cache import Artifact
from pycutlass.cli.table import folded, table


def command(*arguments: object, **options: Any) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path)), **options.pop("env", {})}
    line = [sys.executable, "-m", "pycutlass", *map(str, arguments)]
    return subprocess.run(line, env=environment, text=True, check=False, **{"stderr": subprocess.PIPE, **options})


@pytest.mark.parametrize(
    "arguments", [("env",), ("cache", "ls"), ("doctor",), ("cache", "info", "--json"), ("--help",)]
)
def test_a_full_disk_is_said_in_a_sentence(run: Run, kernels: list[Artifact], arguments: tuple[str, ...]) -> None:
    with Path("/dev/full").open("w") as full:
        done = command(*arguments, stdout=full)
        assert (done.returncode, done.stderr) == (
            1,
            "pycutlass: not everything could be written: No space left on device\n",
        )
        assert command(*arguments, stdout=full, stderr=full).returncode == 1


def test_a_reader_that_has_seen_enough_is_no_error(run: Run, kernels: list[Artifact]) -> None:
    read, write = os.pipe()
    os.close(read)
    done = command("env", stdout=write)
    os.close(write)
    assert done.returncode == 1 and done.stderr == ""


def test_output_that_is_closed(run: Run) -> None:
    line = f'"{sys.executable}" -m pycutlass env >&-'
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run(["sh", "-c", line], env=environment, capture_output=True, text=True, check=False)
    assert "Traceback" not in done.stderr


def test_a_path_that_the_output_cannot_show(run: Run, tmp_path: Path) -> None:
    odd = os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9")
    for encoding in ("ascii", "utf-8"):
        env = {"PYCUTLASS_CACHE_DIR": odd, "PYTHONIOENCODING": encoding}
        for arguments in (("cache", "info"), ("doctor",), ("env",)):
            done = command(*arguments, stdout=subprocess.PIPE, env=env)
            assert "Traceback" not in done.stderr and "caf" in done.stdout


def test_a_pipe_gets_whole_lines_without_styles(run: Run, tmp_path: Path) -> None:
    env = {"PYCUTLASS_CACHE_DIR": str(tmp_path / ("long" * 40)), "COLUMNS": "40", "FORCE_COLOR": "1"}
    for arguments in (("cache", "info"), ("doctor",), ("env",)):
        done = command(*arguments, stdout=subprocess.PIPE, env=env)
        assert str(tmp_path / ("long" * 40)) in done.stdout
        assert "\x1b" not in done.stdout


def test_a_terminal_gets_lines_that_fit(run: Run, tmp_path: Path) -> None:
    ours, theirs = os.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("4H", 30, 70, 0, 0))
    env = {"PYCUTLASS_CACHE_DIR": str(tmp_path / "a-directory" / "and-another-one" / "cache"), "COLUMNS": ""}
    done = command("doctor", stdout=theirs, env=env)
    os.close(theirs)
    text = b""
    with contextlib.suppress(OSError):  # how a terminal ends
        while part := os.read(ours, 65536):
            text += part
    os.close(ours)
    lines = text.decode().splitlines()
    assert done.returncode in (0, 1) and len(lines) > 10
    assert max(map(len, lines)) <= 70


@pytest.mark.parametrize(
    ("text", "width", "lines"),
    [
        ("one two three", 7, ["one two", "three"]),
        ("/usr/local/cuda/include", 12, ["/usr/local/", "cuda/include"]),
        ("in /usr/local/cuda/include here", 14, ["in /usr/local/", "cuda/include", "here"]),
        ("abcdefghij", 4, ["abcd", "efgh", "ij"]),
        ("a\nb", 4, ["a", "b"]),
        ("", 4, [""]),
        ("x" * 5 + " " + "y" * 9, 5, ["xxxxx", "yyyyy", "yyyy"]),
        ("nvidia-cuda-nvrtc==13.0.*", 12, ["nvidia-cuda-", "nvrtc==13.0.", "*"]),
    ],
)
def test_long_words_are_folded_behind_separators(text: str, width: int, lines: list[str]) -> None:
    assert folded(text, width) == lines


@given(st.text(st.sampled_from("ab/_- "), max_size=60), st.integers(1, 30))
def test_folding_loses_nothing_and_fits(text: str, width: int) -> None:
    lines = folded(text, width)
    assert max(map(len, lines)) <= width
    assert "".join(lines).replace(" ", "") == text.replace(" ", "")


@given(st.lists(st.tuples(*[st.text(st.sampled_from("ab/ "), max_size=50)] * 3), max_size=4), st.integers(56, 100))
def test_a_table_fits_its_terminal(rows: list[tuple[str, str, str]], width: int) -> None:
    assert max((len(line) for line in table(("one", "two", "three"), rows, width)), default=0) <= width
    assert len(table(("one", "two", "three"), rows, None)) == 1 + sum(max(map(_lines, row)) for row in rows)


def _lines(cell: str) -> int:
    return max(1, len(cell.splitlines()))
