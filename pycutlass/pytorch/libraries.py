"""`build` and `load`: the kernels of a model as one shared library, and a model whose regions run those."""

from __future__ import annotations

import hashlib
import json
import os
import warnings
from collections.abc import Iterable, Mapping
from copy import deepcopy
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import nn
from torch.fx import Graph, GraphModule

from pycutlass.cache.files import as_path, check_directory
from pycutlass.calls import public, shown
from pycutlass.errors import ArgumentError, ArgumentTypeError, PyCutlassError
from pycutlass.exports import LoadedLibrary, export_library, load_library
from pycutlass.log import logger
from pycutlass.plan.conv2d import Conv2d
from pycutlass.plan.conv_problem import with_images
from pycutlass.plan.gemm import Gemm
from pycutlass.plan.readings import range_of
from pycutlass.pytorch.library_kernels import LibraryKernel
from pycutlass.pytorch.native import Embedded, embedded
from pycutlass.pytorch.options import Options
from pycutlass.pytorch.partitions import Partition, RegionModule, check_partitioned
from pycutlass.pytorch.regions.plans import (
    checked_extents,
    compile_as_said,
    gpu_of,
    is_here,
    plan_of,
    precision_for,
    sizes_of,
)
from pycutlass.pytorch.regions.region import Region, computed
from pycutlass.tuning.problems import problems_of

__all__ = ["build", "build_vm", "load", "plan_name"]

_MOST_ROWS = 16384  # of a symbol without an end, for which kernels are chosen
_ops: Any = torch.ops.pycutlass


@public
def build(
    partitioned: Partition,
    options: Any = None,
    path: str | os.PathLike[str] = "kernels.so",
    *,
    sizes: Mapping[str, int] | None = None,
    extents: Iterable[int] = (),
) -> Path:
    """Write one shared library with the kernels of all regions, and a manifest in it.

    `load` makes a model of it that runs without a compiler. Regions have the kernels that were measured where `tune`
    has run, and those that are predicted to be the fastest otherwise. The library has equal ones once. It has none for
    groups of products, and the log names the regions that are left out: how large each group is, the device alone
    knows, and the tables that say so to a kernel are made there by Python.

    Parameters
    ----------
    partitioned : Partition
        What `partition` returns.
    options : Options or dict, optional
        Default: what the model was partitioned with. ``sm`` says which GPU the kernels are for, by default the one that
        is here. ``use_multiprocessing``, ``threads`` and ``tmp_dir`` say how they are compiled. ``use_fast_math`` says
        what regions compute: another one than that of the partition is refused. Those of the tuner have no effect.
    path : path
        The library; a header for programs in C is written beside it. Files that are there are overwritten.
    sizes : dict, optional
        As of `tune`.
    extents : iterable of int
        Further numbers of rows, or of images, that kernels are chosen for. All others are computed by the kernel of the
        next one.

    Returns
    -------
    Path
        The library.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        Something else than described, or a region that a library cannot launch: such as one with an extent that changes
        and is neither a number of rows nor of images.
    CacheError, CompileError, NotCompiledError, ToolkitError
        As of `pycutlass.export_library`.

    Examples
    --------
    >>> import torch, pycutlass.pytorch
    >>> def built(model, inputs):
    ...     made = pycutlass.pytorch.partition(model, inputs)
    ...     return pycutlass.pytorch.build(made, {"sm": 90}, "kernels.so")
    """
    check_partitioned("build", partitioned)
    if isinstance(options, str | os.PathLike):
        raise ArgumentTypeError(
            f"options must be pycutlass.pytorch.Options or a dict, got {shown(options)}: pass path="
        )
    chosen = partitioned.options if options is None else Options.of(options)
    chosen.check_beside(partitioned.options)
    if not isinstance(path, str | os.PathLike):
        raise ArgumentTypeError(f"path must be a path, such as 'kernels.so', got {shown(path)}")
    check_directory(as_path("path", path), "the library")
    rows = checked_extents(extents)
    regions = [each for each in partitioned.regions if each.kind != "grouped"]
    if not regions:
        raise ArgumentError(
            "the model has no region whose kernels a library can have, which are those of products and convolutions: "
            "groups run as they were in the model"
        )
    _say_left_out(partitioned, f"{Path(path).name} has no kernel for")
    bound = sizes_of(partitioned.graph, partitioned.regions, sizes)
    gpu = gpu_of(chosen.sm)
    plans: dict[str, Gemm | Conv2d] = {}
    for region in regions:
        _check_extents(region)
        try:
            plan: Any = plan_of(region, bound)
            plans.setdefault(plan_name(region), plan if is_here(chosen.sm) else _chosen_for(plan, gpu, rows))
        except PyCutlassError as error:
            raise ArgumentError(f"{region.name}, {region.product}, has no kernel to build: {error}") from error
    compile_as_said([plan.candidate for plan in plans.values()], gpu.target, chosen)
    export_library(plans, path, extents=rows, target=gpu.target)
    return Path(path)


@public
def build_vm(
    partitioned: Partition,
    options: Any = None,
    path: str | os.PathLike[str] = "kernels.so",
    *,
    sizes: Mapping[str, int] | None = None,
) -> Path:
    """Write a library as `build` does, with kernels for many values of the extents that change.

    These are the powers of two in the ranges of the symbols, 16384 at most where one has no end.

    Parameters
    ----------
    partitioned, options, path, sizes
        As of `build`.

    Returns
    -------
    Path
        The library.

    Raises
    ------
    ArgumentError, ArgumentTypeError, CacheError, CompileError, NotCompiledError, ToolkitError
        As of `build`.

    Examples
    --------
    >>> import torch, pycutlass.pytorch
    >>> def built(model, inputs):
    ...     made = pycutlass.pytorch.partition(model, inputs, dynamic=True)
    ...     return pycutlass.pytorch.build_vm(made, {"sm": 90}, "kernels.so")
    """
    check_partitioned("build_vm", partitioned)
    ends = [high or _MOST_ROWS for region in partitioned.regions for _, _, high in region.problem.ranges]
    powers = [1 << at for at in range(max(ends, default=0).bit_length())]
    return build(partitioned, options, path, sizes=sizes, extents=powers)


@public
def load(path: str | os.PathLike[str], partitioned: Partition) -> Partition:
    """Return a model whose regions are computed by the kernels of a library that `build` has written.

    No compiler is needed, and no GPU yet. It is native code: load it only from those whose programs you would run.

    Parameters
    ----------
    path : path
        The library.
    partitioned : Partition
        The model, which stays as it is and shares its parameters with the result. Partition it anew with the same
        options, dynamic, and sizes of inputs, in any process.

    Returns
    -------
    Partition
        On tensors of a GPU its regions run the library's kernels; elsewhere they compute as before. Where the partition
        names an ``sm`` whose GPUs do not run them, such as 90 for kernels of sm_80, the log says so: each kernel runs
        on GPUs of its major version alone. Groups of products run as they were in the model, and the log names them.
        What `torch.export` makes of it on tensors of a GPU carries the library.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        No Partition, or a region that the library lacks: it was built of another model, or for other sizes.
    CacheError
        As of `pycutlass.load_library`.

    Examples
    --------
    >>> import torch, pycutlass.pytorch
    >>> def served(model, inputs):
    ...     made = pycutlass.pytorch.partition(model, inputs)
    ...     return pycutlass.pytorch.load("kernels.so", made)
    """
    check_partitioned("load", partitioned)
    library = load_library(path)
    carried = embedded(path)
    _say_left_out(partitioned, f"{Path(path).name} has no kernel for")
    _say_other_gpu(partitioned, library)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of torch about torch
        graph = deepcopy(partitioned.graph)
    made = Partition(partitioned, graph)
    made.meta.update(partitioned.meta)
    nn.Module.train(made, partitioned.training)
    sm = partitioned.options.sm
    for region in partitioned.regions:
        given: Any = partitioned.get_submodule(region.name)
        is_group = region.kind == "grouped"
        fused = given.fused if is_group else _with(_kernel_of(library, region, carried, sm), given.fused)
        module = RegionModule(region, fused, given.plain)
        if is_group:
            module.fused = given.plain  # which needs no compiler
        made.delete_submodule(region.name)
        made.add_submodule(region.name, module)
    return made


def _say_left_out(partitioned: Partition, what: str) -> None:
    """Write into the log which regions a library has no kernels for, and why, each time that one is made or loaded."""
    groups = [f"{each.name} ({computed(each)})" for each in partitioned.regions if each.kind == "grouped"]
    if groups:
        logger.warning(
            "%s %s: kernels of groups read tables of addresses and sizes, which libraries do not make of offs in "
            "device memory. The loaded model computes these as the model did; the partition has kernels for them",
            what,
            ", ".join(groups),
        )


def _say_other_gpu(partitioned: Partition, library: LoadedLibrary) -> None:
    """Write into the log that GPUs of the `sm` that a partition names do not run a library's kernels."""
    sm = partitioned.options.sm
    if others := _targets_other_than(sm, library):
        logger.warning(
            "%s has kernels for %s, and the model was partitioned with sm=%d: such GPUs do not run them, and launches "
            'there will be refused. For those, build it again with pycutlass.pytorch.build(partitioned, {"sm": %d})',
            library.path.name,
            others,
            sm,
            sm,
        )


def _targets_other_than(sm: int | None, library: LoadedLibrary) -> str:
    """Return the targets of a library whose kernels do not run on GPUs of `sm`; none where that is not named."""
    targets = {each for plan in library.values() for each in plan.target.split(", ")}
    return "" if sm is None else ", ".join(sorted(each for each in targets if not _runs(each, sm)))


def _runs(target: str, sm: int) -> bool:
    """Return whether GPUs of `sm` run kernels for a target: of its major version, and "a" of just its own."""
    number = target.removeprefix("sm_")
    if not number.isdigit():
        return int(number[:-1]) == sm
    return int(number) // 10 == sm // 10 and int(number) <= sm


def plan_name(region: Region) -> str:
    """Return by what name a library has the kernels of a region: equal ones have one name, and others another.

    How float32 is multiplied is a setting of torch's, and part of the name where it is not torch's default.
    """
    problem = asdict(region.problem)
    # Its symbols are called otherwise in another process, and of its rows the library takes any number.
    problem.pop("ranges")
    for form in ("a", "d"):
        problem[form]["shape"] = tuple(each if isinstance(each, int) else "any" for each in problem[form]["shape"])
    inputs = [(each.name, each.form, each.dtype) for each in region.inputs]
    precision = _precision_of(region)
    text = json.dumps([problem, region.handle, inputs, *([precision] if precision else [])], sort_keys=True)
    return f"{region.kind}_{hashlib.sha256(text.encode()).hexdigest()[:16]}"


def _precision_of(region: Region) -> str | None:
    return precision_for(SimpleNamespace(dtype=getattr(torch, region.problem.a.dtype)), region.kind == "conv2d")


def _check_extents(region: Region) -> None:
    """Raise ArgumentError for a symbol where a library has numbers: it takes any M, and any number of images."""
    problem = region.problem
    fixed = problem.b.shape if problem.kind == "bmm" else (*problem.b.shape, *problem.a.shape[1:])
    fixed = (*fixed, problem.a.shape[0], problem.a.shape[2]) if problem.kind == "bmm" else fixed
    changing = [each for each in fixed if not isinstance(each, int)]
    if changing:
        what = {"bmm": "the number of matrices, N and K", "conv2d": "all extents but the number of images"}
        raise ArgumentError(
            f"{region.name}, {region.product}, has the extent {changing[0]} that changes, and kernels of libraries are "
            f"for fixed ones of {what.get(problem.kind, 'N and K')}: partition the model with that extent fixed"
        )


def _chosen_for(plan: Gemm | Conv2d, gpu: Any, extents: tuple[int, ...]) -> Gemm | Conv2d:
    """Return a plan with the likely fastest kernels for a GPU that is not here, as one that was pickled has them."""
    [problem] = problems_of(plan)
    restore, state = plan.__reduce__()
    of_ranges = {}
    for rows in dict.fromkeys(range_of(each) for each in (*extents, plan._extent)):
        of_ranges[rows] = _with_rows(problem, plan, rows).picked(gpu).choice()
    restored: Gemm | Conv2d = restore(*state[:-2], of_ranges, {})
    return restored


def _with_rows(problem: Any, plan: Gemm | Conv2d, rows: int) -> Any:
    """Return the problem with another M, or number of images."""
    if isinstance(plan, Conv2d):
        return replace(problem, problem_size=with_images(plan.problem_size, rows))
    return replace(problem, m=rows)


def _kernel_of(library: LoadedLibrary, region: Region, carried: Embedded, sm: int | None) -> LibraryKernel:
    name = plan_name(region)
    if name not in library:
        others = _targets_other_than(sm, library)
        of_gpu = f" Its kernels are for {others}, and the partition is for sm={sm}." if others else ""
        raise ArgumentError(
            f"{library.path.name} has no kernel for {region}: it was built of another model, for other sizes, with "
            f"other options, or with another setting of TF32 in torch.{of_gpu} Build it again with "
            f"pycutlass.pytorch.build: of a partition with dynamic=True, for any number of rows"
        )
    [plan] = [each for each in library.manifest["plans"] if each["name"] == name]
    return LibraryKernel(
        library[name],
        {each["name"]: each["layout"] for each in plan["tensors"]},
        _precision_of(region),
        carried,
    )


def _with(kernel: LibraryKernel, given: GraphModule) -> GraphModule:
    """Return what computes a region, with a library's kernel in the place of the operator."""
    graph = Graph()
    graph.output(graph.graph_copy(given.graph, {}))
    for node in graph.nodes:
        if node.target in (_ops.fused_mm.default, _ops.fused_conv2d.default):
            with graph.inserting_after(node):
                made = graph.call_module("kernel", node.args)
            made.meta.update(node.meta)
            node.replace_all_uses_with(made)
            graph.erase_node(node)
    return GraphModule(nn.ModuleDict({"kernel": kernel}), graph)
