"""Run the scripts, commands and tests of the original PyCUTLASS (CUTLASS 2.11) against this one, and print a table.

::

    python tools/original_scripts.py CHECKOUT            # on a GPU: everything, described for its compute capability
    python tools/original_scripts.py CHECKOUT --host     # without one: what needs no tensors on a GPU, for sm_80
    python tools/original_scripts.py CHECKOUT --host --uncompiled     # the same without compilers, in a few minutes

CHECKOUT is a checkout of NVIDIA/cutlass at v2.11, or the two folders of it that are used (`FOLDERS`). It is copied, and
two things of the copy are edited: ``import cutlass`` becomes ``from pycutlass import cutlass``, and the import of the
separate ``bfloat16`` distribution is dropped. Nothing of it is part of this repository.

Each script, command and test method runs in a process of its own, several at a time. What prints ``Passed.``, or is a
test that ran and was not skipped, has passed.
"""

from __future__ import annotations

import argparse
import ast
import concurrent.futures
import itertools
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

PYTHON = Path(__file__).resolve().parents[1]
EXAMPLES = Path("examples/40_cutlass_py")
TESTS = Path("tools/library/scripts/pycutlass/test")
FOLDERS = (EXAMPLES, TESTS)
EDITS = (
    (re.compile(r"^import cutlass[ \t]*$", re.MULTILINE), "from pycutlass import cutlass"),
    (re.compile(r"^from bfloat16 import bfloat16[ \t]*\n", re.MULTILINE), ""),
)
#: Words of what makes its tensors on a GPU.
ON_GPU = ('device="cuda"', "cupy")
#: Takes the place of the compilers in a process: what is executed on the host needs no kernel.
UNCOMPILED = """
from pycutlass import compiler
compiler.add_module = lambda operations: [operation.emit() for operation in operations]
"""
OUTCOMES = ("passed", "failed", "not run")


@dataclass(frozen=True)
class Run:
    """One process: what it is called in the table, where it runs, and what it must say."""

    name: str
    command: tuple[str, ...]
    directory: Path
    is_test: bool = False
    why_not: str = ""


@dataclass(frozen=True)
class Outcome:
    """What has become of a run: one of `OUTCOMES`, how long it took, and what it said last."""

    run: Run
    outcome: str
    seconds: float
    said: str


def edit(checkout: Path, copy: Path) -> None:
    """Copy what is used of a checkout, edited."""
    for folder in FOLDERS:
        shutil.copytree(checkout / folder, copy / folder)
    for script in copy.rglob("*.py"):
        text = script.read_text()
        for pattern, replacement in EDITS:
            text = pattern.sub(replacement, text)
        script.write_text(text)


def scripts(copy: Path, host: bool) -> Iterator[Run]:
    """Yield the basic examples."""
    for script in sorted((copy / EXAMPLES).glob("*.py")):
        yield Run(f"{script.name}", (script.name,), script.parent, why_not=_needs_gpu(script, host))


def commands(copy: Path, capability: int, host: bool) -> Iterator[Run]:
    """Yield the commands for the customizable examples, described for `capability`."""
    folder = copy / EXAMPLES / "customizable"
    lines = (copy / TESTS / "example" / "run_all_example.sh").read_text().splitlines()
    for number, line in enumerate((line for line in lines if line.startswith("python ")), 1):
        command = re.sub(r"-cc 80\b", f"-cc {capability}", line)
        words = tuple(shlex.split(command)[1:])
        why_not = _needs_gpu(folder / words[0], host)
        yield Run(f"command {number:2}: {' '.join(_telling(words))}", words, folder, why_not=why_not)


def tests(copy: Path, host: bool) -> Iterator[Run]:
    """Yield the methods of all test files."""
    for script in sorted((copy / TESTS).rglob("*.py")):
        tree = ast.parse(script.read_text())
        for node in tree.body:
            if not isinstance(node, ast.ClassDef):
                continue
            for method in node.body:
                if isinstance(method, ast.FunctionDef) and method.name.startswith("test"):
                    target = f"{script.stem}.{node.name}.{method.name}"
                    name = f"{script.relative_to(copy / TESTS)}: {method.name}"
                    command = ("-m", "unittest", target)
                    yield Run(name, command, script.parent, True, _needs_gpu(script, host))


def execute(run: Run, environment: dict[str, str], seconds: float) -> Outcome:
    """Run one process and judge what it said."""
    if run.why_not:
        return Outcome(run, "not run", 0.0, run.why_not)
    began = time.monotonic()
    try:
        done = subprocess.run(
            [sys.executable, *run.command],
            cwd=run.directory,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=seconds,
            check=False,
        )
        said, code = done.stdout, done.returncode
    except subprocess.TimeoutExpired:
        said, code = f"took more than {seconds:.0f} s", 1
    lines = [line for line in said.splitlines() if line.strip()] or [""]
    if run.is_test:
        passed = code == 0 and lines[-1] == "OK" and re.search(r"^Ran [1-9]", said, re.MULTILINE) is not None
    else:
        passed = code == 0 and lines[-1] == "Passed."
    outcome = "passed" if passed else "failed"
    return Outcome(run, outcome, time.monotonic() - began, said if not passed else "")


def _reason(said: str) -> str:
    """Return the line that tells most: what was raised or was wrong, else the last one."""
    lines = [line for line in said.splitlines() if line.strip()]
    telling = [line for line in lines if re.match(r"([\w.]+(Error|Exception)\b|wrong: )", line)]
    return (telling or lines or [""])[-1]


def _needs_gpu(script: Path, host: bool) -> str:
    if host and any(word in script.read_text() for word in ON_GPU):
        return "makes its tensors on a GPU"
    return ""


def _telling(words: tuple[str, ...]) -> list[str]:
    """Return what tells a command from the others: types, mode, split-K, activation, operator."""
    flags = ("-ta", "-tc", "-op", "-gm", "-sm", "-k", "-batch", "-co", "-st", "-ia", "-pm", "-activ", "-epv")
    telling = [words[0]]
    for flag, value in itertools.pairwise(words):
        if flag in flags:
            telling += [flag, value]
    return telling


def _environment(copy: Path, host: bool, uncompiled: bool) -> dict[str, str]:
    """Return the environment of a process: this library ahead, and what the original's tests import of others."""
    extras = copy / "extras"
    extras.mkdir()
    # One test file imports xmlrunner for a report that is not asked for here.
    (extras / "xmlrunner.py").write_text("")
    if uncompiled:
        (extras / "sitecustomize.py").write_text(UNCOMPILED)
    environment = {**os.environ, "PYTHONPATH": _python_path(extras), "PYTHONDONTWRITEBYTECODE": "1"}
    environment |= {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "PYCUTLASS_JOBS": "2"}
    if host:
        environment |= {"CUDA_VISIBLE_DEVICES": "", "PYCUTLASS_TARGET": "sm_80"}
    return environment


def _python_path(*behind: Path) -> str:
    """Return where modules are looked for: here, then `behind`, then where this process looks."""
    return os.pathsep.join([str(PYTHON), *map(str, behind), *filter(None, [os.environ.get("PYTHONPATH")])])


def _capability() -> int:
    found = subprocess.run(
        [sys.executable, "-c", "import pycutlass; print(pycutlass.device_cc())"],
        env={**os.environ, "PYTHONPATH": _python_path()},
        capture_output=True,
        text=True,
        check=True,
    )
    return int(found.stdout)


def main(arguments: list[str] | None = None) -> int:
    """Run everything; return 1 where something failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkout", type=Path)
    parser.add_argument("--host", action="store_true", help="without a GPU, for sm_80")
    parser.add_argument("--uncompiled", action="store_true", help="with --host: make the text of kernels, compile none")
    parser.add_argument("--only", default="", help="a regular expression for names in the table")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes at a time")
    parser.add_argument("--seconds", type=float, default=300, help="what one process may take")
    parser.add_argument("--verbose", action="store_true", help="print all that a failed run said")
    chosen = parser.parse_args(arguments)
    missing = [folder for folder in FOLDERS if not (chosen.checkout / folder).is_dir()]
    if missing:
        parser.error(f"{chosen.checkout} has no {missing[0]}: give a checkout of NVIDIA/cutlass at v2.11")
    with tempfile.TemporaryDirectory() as directory:
        copy = Path(directory)
        edit(chosen.checkout, copy)
        capability = 80 if chosen.host else _capability()
        runs = [*scripts(copy, chosen.host), *commands(copy, capability, chosen.host), *tests(copy, chosen.host)]
        runs = [run for run in runs if re.search(chosen.only, run.name)]
        environment = _environment(copy, chosen.host, chosen.uncompiled)
        with concurrent.futures.ThreadPoolExecutor(chosen.jobs) as pool:
            outcomes = list(pool.map(lambda run: execute(run, environment, chosen.seconds), runs))
    for each in outcomes:
        print(f"{each.outcome:8} {each.seconds:6.1f} s  {each.run.name}")
        if each.said:
            print(f"    {_reason(each.said)[:400]}")
        if chosen.verbose and each.outcome == "failed":
            print(each.said)
    print(", ".join(f"{sum(each.outcome == kind for each in outcomes)} {kind}" for kind in OUTCOMES))
    return int(any(each.outcome == "failed" for each in outcomes))


if __name__ == "__main__":
    sys.exit(main())
