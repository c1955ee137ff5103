"""The kernels that `benchmarks.tuning` needs, as a folder with a package of kernels that a machine without a GPU makes.

Whoever has the folder on its path finds them as it finds those of pycutlass-kernels, and needs no compiler.
"""

from __future__ import annotations

import importlib
import os
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from benchmarks.ordinary import ORDINARY
from benchmarks.pick_cases import kind
from benchmarks.pick_shapes import Shape
from pycutlass.cache import Artifact
from pycutlass.cache.bundle import write_bundle
from pycutlass.cache.package import PackagedBundle, write_index
from pycutlass.compiler import compile_many
from pycutlass.operation import Operation
from pycutlass.plan import ranking
from pycutlass.plan.defaults import TARGETS
from pycutlass.source import WrittenKernel
from pycutlass.toolkit import own_headers_digest
from pycutlass.tuning import Problem
from pycutlass.version import __version__

__all__ = ["TUNED", "build", "candidates_of", "problem_of", "use", "written"]

#: What is tuned: a few tokens, a prompt, and rows that no tile divides. They have one kind, and so the same kernels.
TUNED = (
    Shape("bf16", "tnt", 64, 4096, 14336),
    Shape("bf16", "tnt", 2048, 6144, 4096),
    Shape("bf16", "tnt", 1000, 4096, 1024),
)
_GPUS = tuple(TARGETS["sm_90a"])
_PACKAGE, _BUNDLE = "pycutlass_kernels", "sm_90a.zip"
#: Who names these wants kernels of them, and none of a package.
_NAMED = ("PYCUTLASS_BACKEND", "CUDA_INSTALL_PATH", "CUDA_HOME", "CUTLASS_PATH", "CXX")


def problem_of(shape: Shape) -> Problem:
    """Return a shape as the tuner takes it."""
    return Problem(kind(shape), shape.m, shape.n, shape.k, shape.batch)


def candidates_of(parts: Iterable[str]) -> Iterator[list[Operation]]:
    """Yield the kernels of each candidate that some parts of the benchmark launch, on an H200 or an H100."""
    wanted = set(parts)
    if wanted & {"first", "ordinary"}:
        yield from (list(each.chosen(gpu).kernels) for each in ORDINARY for gpu in _GPUS)
    if wanted & {"tuned", "handles"}:
        for shape in TUNED:
            ranked = ranking(kind(shape), shape.m, shape.n, shape.k, shape.batch, _GPUS[0])
            yield from (list(each.candidate.kernels) for each in ranked)


def written(parts: Iterable[str]) -> list[WrittenKernel]:
    """Return the kernels of some parts, one for each text: what is launched behind another is one of its own."""
    found: dict[str, WrittenKernel] = {}
    for several in candidates_of(parts):
        for kernel in several:
            source = kernel.source()
            found.setdefault(source.text, WrittenKernel(source, getattr(kernel, "follows", False)))
    return list(found.values())


def build(folder: Path, parts: Sequence[str]) -> list[str]:
    """Compile the kernels of some parts, write them as a package into `folder`, and return what failed.

    What was compiled before is in the cache: an interrupted build goes on where it was.
    """
    kernels, started = written(parts), time.monotonic()
    made, failures = list[Artifact](), list[str]()
    for done in compile_many(kernels, target="sm_90"):  # Hopper-native kernels are built for sm_90a
        if isinstance(done.result, Artifact):
            made.append(done.result)
        else:
            failures.append(f"{kernels[done.position].source().name}: {done.result}".partition("\n")[0])
        count = f"{len(made) + len(failures)}/{len(kernels)}"
        print(f"{time.monotonic() - started:7.1f} s {count}", file=sys.stderr, flush=True)
    package = folder / _PACKAGE
    package.mkdir(parents=True, exist_ok=True)
    (package / "__init__.py").write_text('"""Kernels of a benchmark."""\n', encoding="utf-8")
    write_bundle(package / _BUNDLE, made)
    targets = tuple(sorted({each.target for each in made}))
    write_index(package, __version__, own_headers_digest(), [PackagedBundle(_BUNDLE, targets, len(made))])
    size = (package / _BUNDLE).stat().st_size
    print(f"{len(made)} kernels, {size / 1e6:.1f} MB, in {package}", file=sys.stderr)
    return failures


def use(folder: Path) -> bool:
    """Have this process, and those that it starts, find the kernels of a folder; return whether there are any."""
    if not (folder / _PACKAGE / _BUNDLE).is_file():
        return False
    sys.path.insert(0, str(folder))
    importlib.invalidate_caches()
    for name in _NAMED:
        os.environ.pop(name, None)
    return True
