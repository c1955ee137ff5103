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
from pycutlass.exports.building import SOURCES, artifacts_of, images
from pycutlass.exports.described import Described
from pycutlass.exports.library import described, manifest_of
from pycutlass.exports.reference import reference
from pycutlass.exports.tables import tables
from pycutlass.operation import Operation
from pycutlass.toolkit import find_cutlass, own_include

__all__ = ["FORMATS", "export"]

FORMATS = ("cpp", "cubin", "bundle")
#: What both programs have, and what each has beside it.
_COMMON = ("library.c", "record.c", "tensors.c", "message.c", "main.c", "loop.c")
_HEADERS = ("library.h", "kernel.h", "driver.h", "memory.h", "loop.h", "numbers.h", "functions.h")
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
    if format not in FORMATS:
        raise ArgumentError(
            f"format must be one of {', '.join(FORMATS)}; got {shown(format)}.{suggestion(format, FORMATS)}"
        )
    written = as_path("path", path)
    if format == "bundle":
        write_bundle(written, _compiled(plan, target))
        return
    made = described(plan, "kernel", problem_size=problem_size)
    made = made.with_variant(made.m)
    checks = reference(made)  # which refuses what it cannot check, before anything is compiled
    artifacts = artifacts_of([made], target)
    files = _cpp(made, artifacts) if format == "cpp" else _cubin(made, artifacts)
    folder = "" if format == "cpp" else "kernels/"
    files[f"{folder}reference.c"] = checks.encode()
    _write(written, files)


def _compiled(plan: Any, target: str | None) -> list[Artifact]:
    """Return the kernels of a plan, or of an operation, each once."""
    chosen = getattr(plan, "candidate", None)
    operations = [plan] if chosen is None else list(chosen.kernels)
    return list({artifact.key: artifact for artifact in compiler.add_module(operations, target=target)}.values())


def _cubin(plan: Described, artifacts: Mapping[Operation, Artifact]) -> dict[str, bytes]:
    """Return the files of a program that has kernels as they were compiled."""
    files = {f"kernels/{name}": _own(name) for name in (*_COMMON, *_HEADERS, "driver.c", "kernel.c", "memory.c")}
    files["kernels/pycutlass/abi.h"] = (own_include() / "pycutlass" / "abi.h").read_bytes()
    files["kernels/plans.c"] = tables([plan], artifacts).encode()
    each = list({artifact.key: artifact for artifact in artifacts.values()}.values())
    names = [(f"kernels/kernel_{number}.cubin", f"kernels/kernel_{number}.so") for number in range(len(each))]
    files["kernels/images.c"] = images(names, "kernels/manifest.json").encode()
    for (cubin, host), artifact in zip(names, each, strict=True):
        files |= {cubin: artifact.cubin, host: artifact.host}
    files["kernels/manifest.json"] = json.dumps(manifest_of([plan], artifacts), sort_keys=True, indent=1).encode()
    return files | {"Makefile": _own("cubin.mk"), "README.txt": _filled("cubin.txt", plan, artifacts)}


def _cpp(plan: Described, artifacts: Mapping[Operation, Artifact]) -> dict[str, bytes]:
    """Return the files of a program that has kernels as C++."""
    files = {name: _own(name) for name in (*_COMMON, *_HEADERS, "device.cu", "compiled.h")}
    files["pycutlass/abi.h"] = (own_include() / "pycutlass" / "abi.h").read_bytes()
    each = list({artifact.key: artifact for artifact in artifacts.values()}.values())
    for operation, artifact in artifacts.items():
        number = [one.key for one in each].index(artifact.key)
        source = operation.source()
        files[f"kernel_{number}.cuh"] = _inlined(source.text).encode()
        files[f"kernel_{number}.cu"] = _device_side(number, source.name).encode()
        host = _own("kernel_host.cpp").decode()
        numbered = host.replace("KERNEL_TEXT", f'"kernel_{number}.cuh"').replace("KERNEL_HOST", str(number))
        files[f"kernel_{number}_host.cpp"] = numbered.encode()
    files["kernels.cu"] = _listed(len(each)).encode()
    manifest = json.dumps(manifest_of([plan], artifacts), sort_keys=True, indent=1)
    files["plans.c"] = (tables([plan], artifacts, is_compiled=True) + _as_text(manifest)).encode()
    return files | {
        "CMakeLists.txt": _filled("cpp.cmake", plan, artifacts),
        "README.txt": _filled("cpp.txt", plan, artifacts),
    }


def _inlined(text: str, seen: set[str] | None = None) -> str:
    """Return C++ with PyCUTLASS's headers in the place of what includes them, each once."""
    known: set[str] = {"pycutlass/abi.h"} if seen is None else seen

    def header(found: re.Match[str]) -> str:
        name = found[1]
        if name == "pycutlass/abi.h":
            return found[0]
        if name in known:
            return ""
        known.add(name)
        return _inlined((own_include() / name).read_text().replace("#pragma once\n", ""), known)

    return _OWN.sub(header, text if seen is not None else f"#pragma once\n{text}")


def _device_side(number: int, name: str) -> str:
    return (
        f'#include "kernel_{number}.cuh"\n\n'
        f"void const* kernel_{number}_function() {{ return reinterpret_cast<void const*>(&{name}); }}\n"
    )


def _listed(count: int) -> str:
    """Return the list of kernels that device.cu reads."""
    lines = ['#include "kernel.h"', "", 'extern "C" {']
    for number in range(count):
        lines += [
            f"int kernel_{number}_describe(pycutlass_kernel_info*);",
            f"uint32_t kernel_{number}_describe_epilogue(pycutlass_epilogue_field*, uint32_t);",
            f"int kernel_{number}_plan(void const*, void*, pycutlass_plan_result*);",
            f"void kernel_{number}_bind(pycutlass_driver const*);",
        ]
    lines += ["}", *(f"void const* kernel_{number}_function();" for number in range(count)), ""]
    lines += ['#include "compiled.h"', "", "compiled_kernel const compiled_kernels[] = {"]
    parts = ("function", "describe", "describe_epilogue", "plan", "bind")
    lines += [f"    {{{', '.join(f'kernel_{number}_{part}' for part in parts)}}}," for number in range(count)]
    return "\n".join([*lines, "};", ""])


def _as_text(manifest: str) -> str:
    lines = "\n".join(f"    {json.dumps(line + chr(10))}" for line in manifest.splitlines())
    return f"\nchar const pycutlass_library_manifest[] =\n{lines};\n"


def _own(name: str) -> bytes:
    return (SOURCES / name).read_bytes()


def _filled(name: str, plan: Described, artifacts: Mapping[Operation, Artifact]) -> bytes:
    """Return a template with what it says of the kernel."""
    targets = sorted({artifact.target for artifact in artifacts.values()})
    newest = targets[-1]
    flags = f"-std=c++17 -O2 -DNDEBUG -arch={newest} --expt-relaxed-constexpr -diag-suppress=177"
    values = {
        "NAME": plan.kernels[0].procedural_name(),
        "WHAT": plan.what,
        "TARGET": ", ".join(targets),
        "FLAGS": flags,
        "ARCHITECTURE": newest.removeprefix("sm_") + "-real",
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
