"""`export`: one plan as a program in C++ or C, or as a bundle."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pycutlass import compiler
from pycutlass.cache import Artifact
from pycutlass.cache.bundle import write_bundle
from pycutlass.cache.files import as_path, written_whole
from pycutlass.calls import public, shown, suggestion
from pycutlass.errors import ArgumentError, CacheError
from pycutlass.exports.building import RUNTIME, SOURCES, artifacts_of, images
from pycutlass.exports.described import Described
from pycutlass.exports.library import described, manifest_of
from pycutlass.exports.reference import reference
from pycutlass.exports.tables import tables
from pycutlass.operation import Operation
from pycutlass.toolkit import find_cutlass, own_include

__all__ = ["FORMATS", "export"]

FORMATS = ("cpp", "cubin", "bundle")
#: What a program has beside what every library has.
_PROGRAM = (
    *("main.c", "loop.c", "memory.c"),
    *("library.h", "kernel.h", "driver.h", "memory.h", "loop.h", "numbers.h", "functions.h"),
)
_CUBIN = {"Makefile": "cubin.mk", "README.txt": "cubin.txt"}
_CPP = {"Makefile": "cpp.mk", "README.txt": "cpp.txt", "CMakeLists.txt": "cpp.cmake"}
#: As pycutlass/toolchain/compilers.py has host sides compiled.
_HOST = "-std=c++17 -DNDEBUG -O1 -shared -fPIC -fvisibility=hidden -fno-gnu-unique -Wl,--gc-sections -fpermissive -w"
_OWN = re.compile(r'^#include "(pycutlass/\w+\.h)".*\n', re.MULTILINE)


@public
def export(
    plan: Any, path: str | os.PathLike[str], *, format: str, problem_size: Any = None, target: str | None = None
) -> None:
    """Write a plan as a program that needs no Python, or its kernels as a bundle.

    Programs run the kernel, compare with plain loops and print GFLOP/s; README.txt beside them says how they are built.
    Without a GPU they exit with 2 and a sentence.

    Parameters
    ----------
    plan : plan or operation
        A `pycutlass.Gemm`, a `pycutlass.Conv2d`, or a `pycutlass.GemmOperationUniversal` with `problem_size`. Of a
        bundle anything that `pycutlass.compiler.add_module` takes, and any plan.
    path : path
        The directory of a program, which is made, or the file of a bundle.
    format : str
        ``"cpp"``: the kernel as C++ for nvcc and CUTLASS. ``"cubin"``: compiled, for a C compiler alone.
        ``"bundle"``: the file that ``pycutlass cache import`` takes in.
    problem_size : GemmProblemSize or sequence of 3 int, optional
        Of an operation.
    target : str, optional
        What to build for, as for `pycutlass.compiler.add_module`.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        Another format, or what no program launches, with the reason.
    CacheError
        A file cannot be written.
    BuildReportError, CompileError, NotCompiledError, ToolkitError
        Kernels cannot be compiled.

    Examples
    --------
    >>> import pycutlass
    >>> from pycutlass import TensorSpec
    >>> plan = pycutlass.Gemm(TensorSpec((64, 256), "float32"), TensorSpec((256, 128), "float32"))
    >>> pycutlass.export(plan, "out", format="cubin")  # doctest: +SKIP
    """
    if type(format) is not str or format not in FORMATS:
        near = suggestion(format, FORMATS) if type(format) is str else ""
        if type(format) is str and format == "library":
            near = " pycutlass.export_library writes libraries."
        raise ArgumentError(f"format must be one of {', '.join(FORMATS)}; got {shown(format)}.{near}")
    written = as_path("path", path)
    if format == "bundle":
        write_bundle(written, _compiled(plan, target))
        return
    made = described(plan, "kernel", problem_size=problem_size)
    made = made.with_variant(made.m)
    checks = reference(made)  # which refuses what it cannot check, before anything is compiled
    artifacts = artifacts_of([made], target)
    files = _cpp(made, artifacts) if format == "cpp" else _cubin(made, artifacts)
    files["kernels/reference.c"] = checks.encode()
    _write(written, files)


def _compiled(plan: Any, target: str | None) -> list[Artifact]:
    """Return the kernels of a plan, or of an operation, each once."""
    chosen = getattr(plan, "candidate", None)
    operations = [plan] if chosen is None else list(chosen.kernels)
    return list({artifact.key: artifact for artifact in compiler.add_module(operations, target=target)}.values())


def _common(plan: Described, artifacts: Mapping[Operation, Artifact], *, is_built_there: bool) -> dict[str, bytes]:
    """Return the files that both programs have: what runs kernels, and the list of these."""
    files = {f"kernels/{name}": _own(name) for name in (*RUNTIME, *_PROGRAM)}
    files["kernels/pycutlass/abi.h"] = (own_include() / "pycutlass" / "abi.h").read_bytes()
    files["kernels/plans.c"] = tables([plan], artifacts, is_built_there=is_built_there).encode()
    names = [
        (f"kernels/kernel_{number}.cubin", f"kernels/kernel_{number}.so") for number in range(len(_each(artifacts)))
    ]
    files["kernels/images.c"] = images(names, "kernels/manifest.json").encode()
    manifest = manifest_of([plan], artifacts)
    if is_built_there:  # of other compilers, perhaps
        manifest["kernels"] = [{"name": each.name, "target": each.target} for each in _each(artifacts)]
    files["kernels/manifest.json"] = json.dumps(manifest, sort_keys=True, indent=1).encode()
    return files


def _cubin(plan: Described, artifacts: Mapping[Operation, Artifact]) -> dict[str, bytes]:
    """Return the files of a program that has kernels as they were compiled."""
    files = _common(plan, artifacts, is_built_there=False)
    for number, artifact in enumerate(_each(artifacts)):
        files |= {f"kernels/kernel_{number}.cubin": artifact.cubin, f"kernels/kernel_{number}.so": artifact.host}
    return files | {name: _filled(template, plan, artifacts) for name, template in _CUBIN.items()}


def _cpp(plan: Described, artifacts: Mapping[Operation, Artifact]) -> dict[str, bytes]:
    """Return the files of a program that has kernels as C++."""
    files = _common(plan, artifacts, is_built_there=True)
    numbers = {artifact.key: number for number, artifact in enumerate(_each(artifacts))}
    for operation, artifact in artifacts.items():
        files[f"kernels/kernel_{numbers[artifact.key]}.cuh"] = _inlined(operation.source().text).encode()
    return files | {name: _filled(template, plan, artifacts) for name, template in _CPP.items()}


def _each(artifacts: Mapping[Operation, Artifact]) -> list[Artifact]:
    return list({artifact.key: artifact for artifact in artifacts.values()}.values())


def _inlined(text: str, known: set[str] | None = None) -> str:
    """Return C++ with PyCUTLASS's headers in the place of what includes them, each once."""
    seen = set() if known is None else known

    def header(found: re.Match[str]) -> str:
        name = found[1]
        if name in seen:
            return ""
        seen.add(name)
        return _inlined((own_include() / name).read_text().replace("#pragma once\n", ""), seen)

    return _OWN.sub(header, text)


def _own(name: str) -> bytes:
    return (SOURCES / name).read_bytes()


def _filled(name: str, plan: Described, artifacts: Mapping[Operation, Artifact]) -> bytes:
    """Return a template with what it says of the kernel, and how it is compiled."""
    targets = sorted({artifact.target for artifact in artifacts.values()})
    device = f"-cubin -std=c++17 -DNDEBUG -arch={targets[-1]} --expt-relaxed-constexpr -diag-suppress=177"
    headers, lines = "-I$CUTLASS/include -I$CUDA/include -I$CUDA/include/cccl", []
    for number in range(len(_each(artifacts))):
        kernel = f"kernels/kernel_{number}"
        lines += [
            f"    $CUDA/bin/nvcc {device} -I$CUTLASS/include -x cu -o {kernel}.cubin {kernel}.cuh",
            f"    g++ {_HOST} {headers} -x c++ -o {kernel}.so {kernel}.cuh",
        ]
    values = {
        "NAME": plan.kernels[0].procedural_name(),
        "WHAT": plan.what,
        "TARGET": ", ".join(targets),
        "DEVICE": device,
        "HOST": _HOST,
        "COMMANDS": "\n".join(lines),
        "CUTLASS": find_cutlass().version if name.startswith("cpp") else "",
    }
    text = _own(name).decode()
    for key, value in values.items():
        text = text.replace(f"@{key}@", value)
    return text.encode()


def _write(folder: Path, files: Mapping[str, bytes]) -> None:
    try:
        for name in files:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CacheError(f"the program cannot be written to {folder}: {error.strerror}") from error
    for name, content in files.items():
        with written_whole(folder / name, "the program's") as file:
            file.write(content)
