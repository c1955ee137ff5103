"""What is known of a tree of headers without reading it: no change in it goes unnoticed, and nothing else matters."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tool_trees import same_size_and_time

from pycutlass import _core

FOLDERS, FILES = 12, 10


@pytest.fixture
def tree(tmp_path) -> Path:
    """A tree of several floors, with links in it: to a file, to folders in and beside it, up, and to nothing."""
    for number in range(FOLDERS):
        folder = tmp_path / "include" / f"f{number % 4}" / f"g{number}"
        folder.mkdir(parents=True)
        for name in range(FILES):
            (folder / f"{name}.h").write_text("// one")
    beside = tmp_path / "beside" / "inner"
    beside.mkdir(parents=True)
    (beside / "linked.h").write_text("// one")
    (tmp_path / "file.h").write_text("// one")
    root = tmp_path / "include"
    for number in range(4):  # all lead to the same folders, and whoever is first goes in
        (root / f"f{number}" / "beside").symlink_to(tmp_path / "beside")
        (root / f"f{number}" / "up").symlink_to("..")
    (root / "file.h").symlink_to(tmp_path / "file.h")
    (root / "gone.h").symlink_to("/nowhere")
    (root / "itself").symlink_to("itself")
    return root


def states(*places: Path) -> bytes:
    return _core.FileStates([os.fsencode(place) for place in places]).finish()


CHANGES = {
    "a file, within its size and time": lambda tree: same_size_and_time(tree / "f1/g1/3.h", "// two"),
    "a file that a link leads to": lambda tree: same_size_and_time(tree.parent / "file.h", "// two"),
    "a file below a link": lambda tree: same_size_and_time(tree.parent / "beside/inner/linked.h", "// two"),
    "a file more": lambda tree: (tree / "f3/g11/new.h").write_text(""),
    "a file more below a link": lambda tree: (tree.parent / "beside/new.h").write_text(""),
    "a file less": lambda tree: (tree / "f0/g8/9.h").unlink(),
    "another name": lambda tree: (tree / "f0/g8/9.h").rename(tree / "f0/g8/10.h"),
    "another folder": lambda tree: (tree / "f0/g8").rename(tree / "f1/g8"),
    "a link to another file": lambda tree: relink(tree / "file.h", tree / "f0/g0/0.h"),
    "a link to another folder": lambda tree: relink(tree / "f2/beside", tree.parent / "beside/inner"),
    "a link that leads somewhere now": lambda tree: relink(tree / "gone.h", tree / "f0/g0/0.h"),
}


def relink(link: Path, target: Path) -> None:
    link.unlink()
    link.symlink_to(target)


@pytest.mark.parametrize("change", CHANGES)
def test_no_change_goes_unnoticed(tree, change):
    before = states(tree)
    CHANGES[change](tree)
    assert states(tree) != before


def test_whichever_thread_comes_first_the_answer_is_the_same(tree):
    assert len({states(tree, tree.parent / "file.h", tree / "f0") for _ in range(200)}) == 1


def test_a_file_twice_and_its_folder_are_told_apart(tree):
    folder, file = tree / "f1" / "g1", tree / "f1" / "g1" / "1.h"
    assert len({states(folder), states(file), states(folder, file), states(file, file)}) == 4


def test_what_is_not_a_file_does_not_matter(tree):
    before = states(tree)
    os.mkfifo(tree / "pipe.h")
    (tree / "dangling.h").symlink_to("/nowhere")
    assert states(tree) == before


def test_a_place_that_is_not_there_is_named(tree):
    for missing in (tree / "none.h", tree / "gone.h"):
        with pytest.raises(OSError, match=missing.name) as caught:
            states(tree, missing, tree / "f0")
        assert caught.value.filename == str(missing)


def test_the_answer_may_be_left(tree):
    """Where something else fails in the meantime, the threads end with the object."""
    before = threads()
    for _ in range(50):
        _core.FileStates([os.fsencode(tree)])
    assert threads() == before


def test_many_threads_may_ask_at_once(tree):
    """In a process of its own: where one of them hangs, it cannot be stopped."""
    program = f"""
import threading
from pycutlass import _core
for _ in range(300):
    asked, answers = _core.FileStates([{os.fsencode(tree)!r}]), []
    asking = [threading.Thread(target=lambda: answers.append(asked.finish()), daemon=True) for _ in range(8)]
    for each in asking:
        each.start()
    for each in asking:
        each.join(20)
    assert len(answers) == 8 and len(set(answers)) == 1, len(answers)
print(answers[0].hex())
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=120)
    assert done.stdout.strip() == states(tree).hex()


def threads() -> int:
    return len(list(Path("/proc/self/task").iterdir()))


def test_where_no_more_threads_can_be_started_one_does_it_all(tree, tmp_path):
    """As in a container that has used up its threads."""
    (tmp_path / "none.c").write_text("int pthread_create(void) { return 11; }")
    library = tmp_path / "none.so"
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", library, tmp_path / "none.c"], check=True, timeout=60)
    program = f"from pycutlass import _core; print(_core.FileStates([{os.fsencode(tree)!r}]).finish().hex())"
    command = [sys.executable, "-c", program]
    environment = {**os.environ, "LD_PRELOAD": str(library), "OPENBLAS_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == states(tree).hex()
