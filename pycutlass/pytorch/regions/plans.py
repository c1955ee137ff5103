"""The plan of a region: which kernels compute it, as its operator plans it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import torch
from torch.fx import Graph

from pycutlass import device
from pycutlass.calls import shown, suggestion
from pycutlass.device import Device
from pycutlass.errors import ArgumentError, ArgumentTypeError, DeviceError, PyCutlassError
from pycutlass.integers import as_int, items_of
from pycutlass.plan.building import build_for
from pycutlass.plan.constants import present_or_named, usual_gpu
from pycutlass.plan.conv2d import Conv2d
from pycutlass.plan.conv_call import precision_of as precision_of_images
from pycutlass.plan.gemm import Gemm
from pycutlass.plan.grouped_gemm import GroupedGemm
from pycutlass.plan.shortcut import precision_of
from pycutlass.pytorch.fused_shapes import with_adjacent_k
from pycutlass.pytorch.handles import fused
from pycutlass.pytorch.options import Options
from pycutlass.pytorch.regions.extents import is_hinted
from pycutlass.pytorch.regions.products import value_of
from pycutlass.pytorch.regions.region import Region, TensorForm, evaluated
from pycutlass.spec import TensorSpec
from pycutlass.trials import Database
from pycutlass.tuning.compiling import LocalCompiling

__all__ = [
    "checked_extents",
    "compile_as_said",
    "compile_together",
    "database_of",
    "gpu_of",
    "inputs_of",
    "is_here",
    "plan_of",
    "sizes_of",
]

_USUAL = 90  # the capability that is meant where there is no GPU and nothing says which
_SEVERAL = 2  # where torch lets every symbol begin, though what it captures runs with 1 as well
_MOST_EXTENTS, _LARGEST = 1000, 2**31 - 1  # of kernels for one library, and of what kernels count
_UNBOUND = 1024  # of a symbol whose range has no end, and of which nothing else is known


def plan_of(region: Region, sizes: Mapping[str, int]) -> Gemm | Conv2d | GroupedGemm:
    """Return the plan of a region's kernel, as the operator of the region makes it of packed tensors.

    Parameters
    ----------
    region : Region
        Of a partition.
    sizes : mapping
        A number for each symbol of its extents.

    Raises
    ------
    ArgumentError
        A symbol without a number, or a region that no kernel takes at this size.
    """
    problem = region.problem.bound(**{name: sizes[name] for name in region.problem.symbols if name in sizes})
    a, b = _tensor(problem.a), _tensor(problem.b)
    made = fused(region.handle, a.dtype)
    if problem.kind != "conv2d" and not a.dtype.is_floating_point and not made.is_plain:
        a, b = with_adjacent_k(a, b)
    tensors = {each.name: _beside(each.dtype) for each in region.inputs if each.form != "scalar"}
    scalars = {each.name: 1.0 for each in region.inputs if each.form == "scalar"}
    options: dict[str, Any] = {
        "epilogue": made.epilogue(tensors),
        "epilogue_inputs": {**dict.fromkeys(tensors), **scalars} or None,
        "out_dtype": made.output.dtype,
    }
    if problem.kind == "conv2d":
        geometry: dict[str, Any] = {name: getattr(problem, name) for name in ("stride", "padding", "dilation")}
        precision = precision_of_images(None, a)
        return Conv2d(a, b, groups=problem.groups, precision=precision, **geometry, **options)
    if problem.kind == "grouped":
        offs = TensorSpec((b.shape[0],), "int32")
        return GroupedGemm(a, b, offs=offs, precision=precision_of(a), **options)
    if problem.kind == "bmm" and a.shape[0] == 1:  # of a batch of one, the operator takes the matrix out
        a, b = a[0], b[0]
    return Gemm(a, b, precision=precision_of(a), **options)


def precision_for(a: Any, is_images: bool) -> str | None:
    """Return how a region multiplies operands of the type of `a`, as torch's settings say: None but for float32."""
    return precision_of_images(None, a) if is_images else precision_of(a)


def compile_together(regions: Iterable[Region], sizes: Mapping[str, int], options: Options) -> None:
    """Compile what computes regions on the GPU that is here, all at once: their first calls would do it one by one.

    Where a region cannot be planned or compiled, its call says why.
    """
    if not device.available():
        return
    candidates = []
    alike = {_planned_by(region): region for region in regions}  # layers of a model are planned once
    for region in alike.values():
        with suppress(PyCutlassError):
            candidates.append(plan_of(region, sizes).candidate)
    current = device.current()
    with suppress(PyCutlassError):
        compile_as_said(candidates, device.describe(current).target, options)
    with suppress(PyCutlassError):
        build_for(list(dict.fromkeys(kernel for each in candidates for kernel in each.kernels)), current)


def compile_as_said(candidates: Sequence[Any], target: str, options: Options) -> None:
    """Compile candidates into the cache, as many at once as options say; whoever needs one that fails says why.

    Where options say nothing, neither is anything done: what needs kernels compiles all of them at once.

    Raises
    ------
    ToolkitError
        There is no compiler, or the process that compiles has ended.
    """
    if not candidates or (options.use_multiprocessing and options.threads == -1 and options.tmp_dir is None):
        return
    jobs = options.threads if options.use_multiprocessing and options.threads != -1 else None
    kernels = LocalCompiling(candidates, target, jobs if options.use_multiprocessing else 1, options.tmp_dir)
    try:
        while not kernels.is_done:
            kernels.ready(1.0)
    finally:
        kernels.close()


def _planned_by(region: Region) -> tuple[Any, ...]:
    """Return all that the plan of a region is made of."""
    return region.handle, region.problem, tuple((each.name, each.form, each.dtype) for each in region.inputs)


def _tensor(form: TensorForm) -> torch.Tensor:
    """Return a packed tensor without memory."""
    spec = form.spec()
    return torch.empty_strided(spec.shape, spec.strides, dtype=getattr(torch, form.dtype), device="meta")


def _beside(dtype: str) -> torch.Tensor:
    """Return a tensor of the type that the operator hands to its kernel: conditions are bytes there."""
    return torch.empty(0, dtype=torch.uint8 if dtype == "bool" else getattr(torch, dtype), device="meta")


def gpu_of(sm: int | None) -> Device:
    """Return the GPU that kernels are chosen for: the current one, else the usual one of a compute capability.

    Parameters
    ----------
    sm : int, optional
        The compute capability. Default: that of the current GPU, or of ``PYCUTLASS_TARGET``, else 90.
    """
    if sm is not None:
        return device.describe(device.current()) if is_here(sm) else usual_gpu(sm)
    try:
        found = present_or_named()
    except DeviceError:
        return usual_gpu(_USUAL)
    return found if found.name else usual_gpu(found.compute_capability)


def database_of(given: Any) -> Database | None:
    """Return the database that options name; None for that of the user, where plans look."""
    return given if given is None or isinstance(given, Database) else Database(given)


def is_here(sm: int | None) -> bool:
    """Return whether there is a GPU, of this compute capability where one is named."""
    if not device.available():
        return False
    return sm is None or device.describe(device.current()).compute_capability == sm


def sizes_of(graph: Graph, regions: Iterable[Region], given: Any) -> dict[str, int]:
    """Return a number for each symbol: the given one, else that of the example inputs, else the end of its range.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        A name that is no symbol's, or a number outside of its range.
    """
    ranges = {name: (low, high) for each in regions for name, low, high in each.problem.ranges}
    known = _hints(graph)
    sizes = {name: known.get(name, high or max(low, _UNBOUND)) for name, (low, high) in ranges.items()}
    if given is None:
        return sizes
    if not isinstance(given, Mapping):
        raise ArgumentTypeError(f"sizes must be a dict of symbols, {{'s0': 64}}, got {type(given).__name__}")
    for name, value in given.items():
        if name not in ranges:
            there = f"there are {', '.join(ranges)}" if ranges else "no extent of the model changes"
            raise ArgumentError(f"sizes has {name!r}, which is no symbol: {there}.{suggestion(str(name), ranges)}")
        number, (low, high) = as_int(value), ranges[name]
        least = 1 if low <= _SEVERAL else low
        if number is None:
            raise ArgumentTypeError(f"sizes[{name!r}] must be an integer, got {value!r}")
        if number < least or (high is not None and number > high):
            end = "" if high is None else f" and at most {high}"
            raise ArgumentError(f"sizes[{name!r}] must be at least {least}{end}, got {number}")
        sizes[name] = number
    return sizes


def checked_extents(given: Any) -> tuple[int, ...]:
    """Return numbers of rows, or of images, that a library is to have kernels for.

    Raises
    ------
    ArgumentError
        No list, or something else than positive integers.
    """
    items = None if isinstance(given, str | bytes) else items_of(given, _MOST_EXTENTS)
    if items is None:
        raise ArgumentError(
            f"extents must be a list of at most {_MOST_EXTENTS:,} numbers of rows, or of images, got {shown(given)}: "
            f"pass such as [16, 256]"
        )
    found = []
    for each in items:
        number = as_int(each)
        if number is None or not 1 <= number <= _LARGEST:
            raise ArgumentError(
                f"extents must be positive integers, from 1 to {_LARGEST:,}, got {shown(each)}: leave it out, since "
                f"numbers of rows, or of images, without a kernel of their own have that of the next one"
            )
        found.append(number)
    return tuple(found)


def _hints(graph: Graph) -> dict[str, int]:
    """Return what symbols were when the model was captured."""
    found: dict[str, int] = {}
    for node in graph.nodes:
        value = value_of(node)
        extents = value.shape if isinstance(value, torch.Tensor) else (value,)
        for each in extents:
            if isinstance(each, torch.SymInt) and each.node.expr.is_Symbol and is_hinted(each):
                found.setdefault(str(each.node.expr), int(each.node.hint))
    return found


def inputs_of(graph: Graph, sizes: Mapping[str, int], device: str) -> tuple[Any, ...]:
    """Return tensors and numbers such as the placeholders of a graph stand for, with values like those of layers.

    Of groups, each gets as many rows as any other.

    Parameters
    ----------
    graph : Graph
        Of a region.
    sizes : mapping
        A number for each symbol.
    device : str
        Where tensors are.
    """
    known = [node for node in graph.nodes if node.op == "placeholder"]
    given = {node: _input(value_of(node), sizes, device) for node in known}
    for node in graph.nodes:
        if node.target is torch.ops.pycutlass.fused_grouped_mm.default and node.args[2] in given:
            offs, rows = given[node.args[2]], given[node.args[0]].shape[0]
            given[node.args[2]] = torch.arange(1, len(offs) + 1, device=device).mul(rows).div(len(offs)).to(offs.dtype)
    return tuple(given.values())


def _input(value: Any, sizes: Mapping[str, int], device: str) -> Any:
    def number(extent: Any) -> int:
        return extent if isinstance(extent, int) else evaluated(str(extent.node.expr), sizes)

    if not isinstance(value, torch.Tensor):
        return number(value) if isinstance(value, int | torch.SymInt) else 1.0
    shape, strides = map(number, value.shape), map(number, value.stride())
    made = torch.empty_strided(tuple(shape), tuple(strides), dtype=value.dtype, device=device)
    if value.dtype.is_floating_point and value.dtype.itemsize > 1:
        return made.normal_()
    return made.copy_(torch.randint(0, 2, made.shape, device=device).to(value.dtype))
