"""Proves tiles, many at once, by programs for the host."""

from __future__ import annotations

import itertools
import re
import subprocess
from collections.abc import Sequence
from pathlib import Path

from emulator import Emulator
from tile_cases import Case

#: How many elements are wrong: of A and B, or of D.
RIGHT = "0 0"
_HEADER = Path(__file__).parent / "product.h"
_SECONDS = 1800  # that a program may take


class Prover:
    """Compiles and runs proofs in `directory`. Threads may share it."""

    def __init__(self, directory: Path) -> None:
        self._emulator = Emulator(directory)
        self._include = self._emulator.precompile(_HEADER, "-O0")
        self._emulator.build(f"{self._include}int main() {{}}\n", "-O0")  # and the threads that all have
        self._numbers = itertools.count()

    def wrong(self, cases: Sequence[Case]) -> dict[Case, str]:
        """Return those that leave out elements or mix them up, do not compile, or do not end."""
        return {case: said for case, said in self.prove(cases).items() if said != RIGHT}

    def prove(self, cases: Sequence[Case]) -> dict[Case, str]:
        """Return what is said of each: how many elements are wrong, or why it does not compile or end."""
        name, said, left = f"proof{next(self._numbers)}", {}, list(cases)
        while left:
            program, errors = self._build(name, left)
            said |= {left[i]: error for i, error in errors.items()}
            left = [case for i, case in enumerate(left) if i not in errors]
            if not errors:
                break
        first = 0
        while first < len(left):
            results = _run(program, first)
            said |= zip(left[first:], results, strict=False)
            first += len(results)
        for path in self._emulator.directory.glob(f"{name}*"):
            path.unlink()
        return {case: said[case] for case in cases}

    def _build(self, name: str, cases: Sequence[Case]) -> tuple[Path, dict[int, str]]:
        """Return a program that proves all, one a line, and why some do not compile, by their number."""
        head = f"{self._include}int main(int, char** words) {{ int const first = std::atoi(words[1]);\n"
        calls = "\n".join(f"if (first <= {i}) {case.cpp()}" for i, case in enumerate(cases))
        program, errors = self._emulator.try_build(f"{head}{calls}\n}}\n", "-O0", name=name)
        found: dict[int, str] = {}
        line = None
        for text in errors.splitlines():
            line = re.search(rf"{name}\.cpp:(\d+):\d+:   required from here", text) or line
            error = re.search(r"error: (.*)", text)
            if line and error:
                found.setdefault(int(line[1]) - head.count("\n") - 1, f"does not compile: {error[1]}")
        if errors and not found:  # what the linker misses has no line
            assert "undefined reference" in errors, errors[-4000:]
            found = {
                i: "does not link" for i, case in enumerate(cases) if len(cases) == 1 or self._build(name, [case])[1]
            }
        return program, found


def _run(program: Path, first: int) -> list[str]:
    """Return what a program says of its cases from the first on, up to one that ends it."""
    command = ["stdbuf", "-oL", str(program), str(first)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS)
    lines = ended.stdout.splitlines()
    counts = list(itertools.takewhile(re.compile(r"\d+ \d+$").match, lines))
    if ended.returncode:
        counts.append(f"ends with {ended.returncode}: {' '.join(lines[len(counts) :])}")
    return counts
