"""Builds the wheel of the kernels that lie beside this file, for the PyCUTLASS that they were compiled for."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from setuptools import setup

try:
    index = json.loads((Path(__file__).parent / "pycutlass_kernels" / "kernels.json").read_text(encoding="utf-8"))
except FileNotFoundError:
    sys.exit("there are no kernels here yet: run `make bundle` in the root of PyCUTLASS, which builds this package")
setup(
    version=index["pycutlass"],
    install_requires=[f"pycutlass=={index['pycutlass']}"],
    keywords=["CUDA", "CUTLASS", "PyCUTLASS", f"headers-{index['headers']}"],
)
