"""What becomes of compilers and their directories when the process that started them is killed."""

from __future__ import annotations

import fcntl
import functools
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from test_schedule import is_running
from trivial_kernels import environment, write_script

from pycutlass import toolkit
from pycutlass.errors import ToolkitError
from pycutlass.toolchain import Processes

pytestmark = pytest.mark.usefixtures("private_session")


def wait_until(condition: Callable[[], object], seconds: float = 30.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def text_of(path: Path) -> str:
    return path.read_text().strip() if path.exists() else ""


# A compiler that starts another program, as nvcc and g++ do, and takes no notice of SIGTERM.
STUBBORN = """#!/bin/sh
trap '' TERM
sh -c 'trap "" TERM; echo $$ > "$PIDS/child"; while :; do echo x > more$$; sleep 0.05; done' &
echo $$ > "$PIDS/compiler"
while :; do sleep 0.1; done
"""


@pytest.mark.parametrize("by", [signal.SIGTERM, signal.SIGKILL, signal.SIGHUP], ids=lambda number: number.name)
def test_compilers_and_their_directories_end_with_their_parent(tmp_path, by):
    pids, temporary = tmp_path / "pids", tmp_path / "temporary"
    pids.mkdir()
    temporary.mkdir()
    (tmp_path / "compiler").write_text(STUBBORN.replace("$PIDS", str(pids)))
    (tmp_path / "compiler").chmod(0o755)
    command = write_script(
        tmp_path / "killed.py",
        f"""
from pycutlass.source import KernelSource
from pycutlass.toolchain import HostCompiler
source = KernelSource("kernel_a", "", 80, native=False)
HostCompiler(({str(tmp_path / "compiler")!r},), ()).compile(source, "sm_80", Processes(1, 1))
""",
    )
    # Under nohup SIGHUP is ignored, by what is started as well.
    usual = functools.partial(signal.signal, by, signal.SIG_DFL) if by != signal.SIGKILL else None
    with subprocess.Popen(command, env=environment(TMPDIR=str(temporary)), preexec_fn=usual) as running:
        wait_until(lambda: text_of(pids / "compiler") and text_of(pids / "child"))
        (folder,) = temporary.iterdir()
        assert (folder / "kernel.cu").exists()
        running.send_signal(by)
    assert running.returncode == -by
    assert not is_running(int(text_of(pids / "compiler"))) and not is_running(int(text_of(pids / "child")))
    wait_until(lambda: not list(temporary.iterdir()))


def test_a_command_ends_as_it_would_alone(tmp_path):
    processes = Processes(1, 1)
    for command, status in (("exit 0", 0), ("exit 7", 7), ("kill -9 $$", -9), ("kill -11 $$", -11), ("kill $$", -15)):
        assert processes.run(["sh", "-c", command], tmp_path, memory=1, group="")[0] == status, command
    assert list(tmp_path.glob("core*")) == []


def test_without_a_path_compilers_find_their_programs_where_they_were_found(tmp_path, monkeypatch):
    """g++ was found on the default path, and found no linker."""
    monkeypatch.delenv("PATH")
    _, said = Processes(1, 1).run(["/bin/sh", "-c", "env | grep ^PATH="], tmp_path, memory=1, group="")
    assert said.strip() == f"PATH={os.defpath}"


def test_a_compiler_learns_how_its_programs_end_where_our_process_does_not_care(tmp_path):
    """Who ignores SIGCHLD, as some servers do, has all that it starts ignore it: nvcc took cicc for failed."""
    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        ask = "import subprocess; print(subprocess.call(['sh', '-c', 'exit 7']))"
        _, said = Processes(1, 1).run([sys.executable, "-c", ask], tmp_path, memory=1, group="")
    finally:
        signal.signal(signal.SIGCHLD, before)
    assert said.strip() == "7"


@pytest.mark.parametrize("content", [None, "no program", "#!/nowhere/shell\n"])
def test_what_cannot_start_is_a_toolkit_error(tmp_path, content):
    program = tmp_path / "program"
    if content is not None:
        program.write_bytes(content.encode() if content.startswith("#!") else b"\x7fELF" + content.encode())
        program.chmod(0o755)
    with pytest.raises(ToolkitError, match=f"{program} cannot be started: "):
        Processes(1, 1).run([str(program)], tmp_path, memory=1, group="")


def test_directories_of_killed_processes_are_swept(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    long_ago = time.time() - 7200
    names = {
        "stale": "pycutlass-scratch-abcd_123",
        "in use": "pycutlass-scratch-inuse012",
        "fresh": "pycutlass-scratch-fresh012",
        "of the user": "pycutlass-checkout",
        "longer": "pycutlass-scratch-abcd_1234",
    }
    for name in names.values():
        (tmp_path / name).mkdir()
        (tmp_path / name / "kernel.cu").touch()
        os.utime(tmp_path / name, (long_ago, long_ago))
    os.utime(tmp_path / names["fresh"])
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious" / "file").touch()
    (tmp_path / "pycutlass-scratch-link0123").symlink_to(tmp_path / "precious")
    held = os.open(tmp_path / names["in use"], os.O_RDONLY)
    fcntl.flock(held, fcntl.LOCK_EX)
    toolkit.sweep_scratch()
    os.close(held)
    assert {name for name in names.values() if (tmp_path / name).exists()} == set(names.values()) - {names["stale"]}
    assert (tmp_path / "precious" / "file").exists()
    toolkit.sweep_scratch()
    assert not (tmp_path / names["in use"]).exists()


def test_a_scratch_directory_is_in_use_until_it_is_gone(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with toolkit.scratch_directory() as folder:
        os.utime(folder, (0, 0))
        toolkit.sweep_scratch()
        assert folder.is_dir()
        os.utime(folder, (0, 0))
    assert list(tmp_path.glob("pycutlass*")) == []


def test_a_temporary_directory_that_cannot_be_made_is_a_toolkit_error(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "missing"))
    with pytest.raises(ToolkitError, match=r"Set TMPDIR to .* before Python starts"), toolkit.scratch_directory():
        pass
    (tmp_path / "own").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "own"))
    with pytest.raises(ToolkitError), toolkit.scratch_directory():  # Python looks for it once
        pass
    monkeypatch.setattr("tempfile.tempdir", None)
    with toolkit.scratch_directory() as folder:
        assert folder.parent == tmp_path / "own"
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "missing"))
    toolkit.sweep_scratch()
