"""The code of a Markdown page, and running it: ``python pages.py PAGE [gpu | described]``.

Blocks of one page share their names and run in order. ``python`` is run, ``pycon`` is run and compared with what it
shows (``...`` stands for anything), and ``python gpu`` is run only where that is asked for. Where pages are
``described`` alone, kernels are written and not compiled.
"""

from __future__ import annotations

import doctest
import re
import sys
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
GUIDE = sorted((ROOT / "docs" / "guide").glob("*.md"))
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "docs" / "architecture.md", *GUIDE]


@dataclass(frozen=True)
class Block:
    """One fenced block: what its fence says, its text, and the number of lines before it."""

    kind: str
    text: str
    line: int


def blocks(page: Path) -> list[Block]:
    text = page.read_text()
    found = re.finditer(r"^```([^\n]*)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    return [Block(match[1], match[2], text.count("\n", 0, match.start(2))) for match in found]


def run(page: Path, *, gpu: bool) -> None:
    names: dict[str, Any] = {"__name__": "__main__"}
    for block in blocks(page):
        if block.kind == "python" or (gpu and block.kind == "python gpu"):
            # Blank lines in front, so that a traceback names the line of the page.
            exec(compile("\n" * block.line + block.text, str(page), "exec"), names)
        elif block.kind == "pycon":
            show(page, block, names)


def show(page: Path, block: Block, names: dict[str, Any]) -> None:
    example = doctest.DocTestParser().get_doctest(block.text, names, page.name, str(page), block.line)
    example.globs = names  # the parser makes a copy
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS)
    if runner.run(example, clear_globs=False).failed:
        sys.exit(f"{page.name}: what the page shows is not what happens")


def describe_only() -> None:
    """Let `add_module` write the text of kernels, and compile none."""
    from pycutlass import compiler

    def write(operations: Any) -> None:
        for each in operations:
            each.emit()

    compiler.add_module = write


if __name__ == "__main__":
    # torch 2.11's own compiler uses torch.jit, which warns that it is deprecated.
    warnings.filterwarnings("ignore", "`torch.jit", DeprecationWarning)
    if sys.argv[2:] == ["described"]:
        describe_only()
    run(Path(sys.argv[1]), gpu=sys.argv[2:] == ["gpu"])
