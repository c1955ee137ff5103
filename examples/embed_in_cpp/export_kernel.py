"""Writes a library with the kernel of one product, 1024 x 1024 x 1024 in f32 on CUDA cores, for a program in C++.

Run ``python export_kernel.py build/kernels.so``; ``--tune 60s`` measures candidates before, where there is a GPU.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import pycutlass
from pycutlass import TensorSpec

SIZE = 1024


def main() -> None:
    """Choose a kernel and write it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("library", type=Path)
    parser.add_argument("--tune", metavar="TIME", help="measure candidates for so long")
    options = parser.parse_args()
    matrix = TensorSpec((SIZE, SIZE), "float32")
    # precision="float32", the default: no TF32, so all digits of f32 count.
    plan = pycutlass.Gemm(matrix, matrix, precision="float32")
    if options.tune:  # the plan takes the fastest then
        pycutlass.tune(plan, options.tune)
    options.library.parent.mkdir(parents=True, exist_ok=True)
    pycutlass.export_library({"product": plan}, options.library)
    print(f"{plan.candidate.name} written to {options.library}")


if __name__ == "__main__":
    main()
