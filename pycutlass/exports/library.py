"""`export_library`: many plans in one shared object."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pycutlass import _core
from pycutlass.cache import Artifact
from pycutlass.cache.files import as_path, check_directory, written_whole
from pycutlass.calls import public, shown
from pycutlass.errors import ArgumentError, ArgumentTypeError
from pycutlass.exports.building import artifacts_of, images, link
from pycutlass.exports.convolutions import described_conv2d
from pycutlass.exports.described import Described
from pycutlass.exports.gemms import described_gemm, described_operation
from pycutlass.exports.header import checked_identifier, library_header
from pycutlass.exports.tables import Stored, tables
from pycutlass.integers import as_int, items_of
from pycutlass.operation import GemmOperationUniversal
from pycutlass.plan.conv2d import Conv2d
from pycutlass.plan.gemm import Gemm
from pycutlass.plan.grouped_gemm import GroupedGemm
from pycutlass.toolkit.scratch import scratch_directory
from pycutlass.version import __version__

__all__ = ["described", "export_library", "linked", "manifest_of"]

_MOST_EXTENTS, _MOST_PLANS = 1000, 100_000
_MOST_TENSORS = _MOST_SCALARS = 64  # of pycutlass/exports/c/kernel.h


@public
def export_library(
    plans: Any, path: str | os.PathLike[str], *, extents: Iterable[int] = (), target: str | None = None
) -> None:
    """Write a shared object that has the kernels of plans and needs neither Python nor a compiler.

    `pycutlass.load_library` loads it, and so does any program in C by the header that is written beside it; the
    interface is pycutlass/exports/c/library.h. The host compiler links it.

    Parameters
    ----------
    plans : mapping of str to plan, or sequence of plans
        `pycutlass.Gemm` and `pycutlass.Conv2d`, by the names that the library has them by; of a sequence they are
        plan_0, plan_1 and so on.
    path : path
        The shared object, such as ``kernels.so``, by whose name programs that link it look for it. The header is
        ``kernels.h`` beside it; its function is called like the file.
    extents : iterable of int
        Further M, or numbers of images, that kernels are chosen for, beside those that the plans were made and run
        with. Others are computed by the kernel of the next range.
    target : str, optional
        What to build for, as for `pycutlass.compiler.add_module`.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        Something that is no plan, or a kernel that a library cannot launch, with the reason.
    CacheError
        A file cannot be written.
    BuildReportError, CompileError, NotCompiledError, ToolkitError
        Kernels cannot be compiled, or the library cannot be linked.

    Examples
    --------
    >>> import pycutlass
    >>> from pycutlass import TensorSpec
    >>> plan = pycutlass.Gemm(TensorSpec((64, 256), "float16"), TensorSpec((256, 128), "float16"))
    >>> pycutlass.export_library({"linear": plan}, "kernels.so")  # doctest: +SKIP
    """
    written = as_path("path", path)
    if written.suffix != ".so":
        raise ArgumentError(f"a library is a shared object, whose name ends with .so; got {written.name}")
    check_directory(written, "the library")
    name = checked_identifier("the name of the file before its ending", written.stem)
    named = _named(plans)
    ms = _checked_extents(extents)
    made = [described(plan, each, ms) for each, plan in named.items()]
    artifacts = artifacts_of(made, target)
    with scratch_directory() as folder:
        content = linked(folder, made, artifacts, name)
    with written_whole(written.with_suffix(".h"), "the header") as file:
        file.write(library_header(name, made).encode())
    with written_whole(written, "the library") as file:
        file.write(content)


def described(plan: Any, name: str, extents: Sequence[int] = (), problem_size: Any = None) -> Described:
    """Return what is exported of a plan, or of an operation with a problem.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        There is no way to export it, with the reason.
    """
    if isinstance(plan, Gemm):
        made = described_gemm(plan, name, extents)
    elif isinstance(plan, Conv2d):
        made = described_conv2d(plan, name, extents)
    elif isinstance(plan, GemmOperationUniversal):
        made = described_operation(plan, problem_size, name)
    elif isinstance(plan, GroupedGemm):
        raise ArgumentError(
            "a group has tables of addresses and sizes in device memory, which exported programs do not make: export "
            "its kernels with format='bundle', or a batch, which is a plan of pycutlass.Gemm"
        )
    else:
        raise ArgumentTypeError(
            f"what is exported is a plan, such as pycutlass.Gemm(a, b), or a GemmOperationUniversal; got {shown(plan)}"
        )
    if len(made.tensors) > _MOST_TENSORS or len(made.scalars) > _MOST_SCALARS:
        raise ArgumentError(
            f"{name} has {len(made.tensors)} tensors and {len(made.scalars)} scalars, and exported programs have "
            f"{_MOST_TENSORS} of each at most"
        )
    return made


def manifest_of(plans: Sequence[Described], stored: Stored) -> dict[str, Any]:
    """Return what a library or a program has, in JSON's types."""
    return {
        "format": "pycutlass library",
        "version": 1,
        "pycutlass": __version__,
        "record": _core.ABI_VERSION,
        "plans": [_plan(plan, stored) for plan in plans],
        "kernels": [_kernel(artifact) for artifact in _each(stored)],
    }


def linked(folder: Path, made: Sequence[Described], artifacts: Mapping[Any, Artifact], name: str) -> bytes:
    """Return a shared object of plans, which is made in a folder; its function has the name."""
    manifest = json.dumps(manifest_of(made, artifacts), sort_keys=True, indent=1)
    each = _each(artifacts)
    names = [(f"kernel_{number}.cubin", f"kernel_{number}.host") for number in range(len(each))]
    for (cubin, host), artifact in zip(names, each, strict=True):
        (folder / cubin).write_bytes(artifact.cubin)
        (folder / host).write_bytes(artifact.host)
    (folder / "manifest.json").write_text(manifest)
    (folder / "images.c").write_text(images(names, "manifest.json"))
    (folder / "plans.c").write_text(tables(made, artifacts, name))
    link(folder, ["plans.c", "images.c"], "library.so", soname=f"{name}.so")
    return (folder / "library.so").read_bytes()


def _each(stored: Stored) -> list[Artifact]:
    return list({artifact.key: artifact for artifact in stored.values()}.values())


def _named(plans: Any) -> dict[str, Any]:
    """Return plans by name, or raise."""
    named = _mapped(plans)
    if named is None:
        raise ArgumentTypeError(
            f"plans must be a mapping of names to plans, or a list of plans; got {shown(plans)}: write "
            f"export_library([plan], path)"
        )
    if not named:
        raise ArgumentError("plans is empty: a library has one plan at least")
    members: dict[str, str] = {}
    for name in named:
        if type(name) is not str or not re.fullmatch(r"[\w.:/-]{1,200}", name, re.ASCII):
            raise ArgumentError(
                f"the name of a plan has letters, digits and any of _ . : / -, and 200 characters at most; got "
                f"{shown(name)}"
            )
        other = members.setdefault(re.sub(r"\W", "_", name).upper(), name)
        if other != name:
            raise ArgumentError(f"the plans {other} and {name} have one name in C: rename one")
    return named


def _mapped(plans: Any) -> dict[str, Any] | None:
    """Return plans by the names that they are given, or None where these are neither a mapping nor a list."""
    if isinstance(plans, Mapping):
        try:
            return dict(plans)
        except Exception as error:  # of whoever wrote the mapping
            raise ArgumentTypeError(f"plans is a mapping that cannot be read: {error}") from error
    items = items_of(plans, _MOST_PLANS) if isinstance(plans, list | tuple) else None
    return None if items is None else {f"plan_{number}": plan for number, plan in enumerate(items)}


def _checked_extents(extents: Any) -> list[int]:
    """Return values of M, or numbers of images; raise ArgumentError for anything else."""
    items = None if isinstance(extents, str | bytes) else items_of(extents, _MOST_EXTENTS)
    found = [None] if items is None else [as_int(each) for each in items]
    checked = [each for each in found if each is not None and each >= 1]
    if len(checked) < len(found):
        raise ArgumentError(
            f"extents must be a list of at most {_MOST_EXTENTS:,} values of M, or numbers of images, each 1 at least; "
            f"got {shown(extents)}"
        )
    return checked


def _plan(plan: Described, stored: Stored) -> dict[str, Any]:
    return {
        "name": plan.name,
        "what": plan.what,
        "tensors": [
            {
                "name": each.name,
                "element": each.element.short,
                "layout": each.layout,
                "extents": list(each.extents),
                "written": each.written,
            }
            for each in plan.tensors
        ],
        "scalars": plan.scalars,
        "variants": [
            {
                "least": each.least,
                "most": each.most,
                "kernels": [stored[kernel].key for kernel in each.kernels],
                "mode": each.mode,
                "slices": each.slices,
                "max_swizzle": each.max_swizzle,
                "raster_order": each.raster_order,
                "alignment": list(each.alignment),
            }
            for each in plan.variants
        ],
    }


def _kernel(artifact: Artifact) -> dict[str, Any]:
    return {
        "key": artifact.key,
        "name": artifact.name,
        "target": artifact.target,
        "cubin": {"bytes": len(artifact.cubin), "sha256": hashlib.sha256(artifact.cubin).hexdigest()},
        "host": {"bytes": len(artifact.host), "sha256": hashlib.sha256(artifact.host).hexdigest()},
        "fields": dict(artifact.fields),
    }
