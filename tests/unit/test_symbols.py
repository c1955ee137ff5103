"""What our shared objects show to the loader.

Everything else must stay inside. Some g++ link libstdc++ statically, and a loader that may share such a copy's symbols
with libraries that come later breaks their number formatting: torch has crashed on it.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

from pycutlass import _core


def exported(path: Path) -> set[str]:
    listed = subprocess.run(["nm", "-D", "--defined-only", str(path)], capture_output=True, text=True, check=True)
    return {line.split()[-1] for line in listed.stdout.splitlines()}


def test_the_extension_exports_its_entry_alone():
    assert exported(Path(_core.__file__)) == {"PyInit__core"}
