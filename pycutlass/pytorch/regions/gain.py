"""Whether there are kernels for a region, and how much faster than torch's operators, as measured or predicted."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

import torch

from pycutlass import config
from pycutlass.device import Device
from pycutlass.epilogue import EpilogueFunction, epilogue_function
from pycutlass.errors import DeviceError, PyCutlassError, ToolkitError
from pycutlass.plan.candidate import Candidate
from pycutlass.plan.composed import TypedFunction
from pycutlass.plan.constants import constants_of, present_or_named, shipped
from pycutlass.plan.conv2d import Conv2d
from pycutlass.plan.conv_call import precision_of as precision_of_images
from pycutlass.plan.conv_candidate import Conv2dCandidate
from pycutlass.plan.conv_pick import conv2d_fastest, conv2d_pick, conv2d_ranking
from pycutlass.plan.gemm import Gemm
from pycutlass.plan.group_candidates import GroupCandidate
from pycutlass.plan.group_pick import pick_group, rank_group, typical
from pycutlass.plan.grouped_gemm import GroupedGemm
from pycutlass.plan.measured import Recorded, fastest_measured, machine_of
from pycutlass.plan.pick import fastest, pick, ranking
from pycutlass.plan.shortcut import precision_of
from pycutlass.pytorch.images import Geometry, as_rows, is_product
from pycutlass.pytorch.options import Options
from pycutlass.pytorch.regions.cublas import time_of_cublas
from pycutlass.pytorch.regions.description import folded
from pycutlass.pytorch.regions.extents import hint_of, packed_spec
from pycutlass.pytorch.regions.growth import Grown
from pycutlass.pytorch.regions.joined import bytes_of, bytes_saved
from pycutlass.pytorch.regions.members import is_view, tensors_of
from pycutlass.pytorch.regions.plans import is_here
from pycutlass.pytorch.regions.products import value_of
from pycutlass.pytorch.regions.reductions import is_reduction
from pycutlass.pytorch.regions.tracing import Epilogue
from pycutlass.spec import TensorSpec
from pycutlass.trials import Database, Machine
from pycutlass.tuning.problems import problems_of
from pycutlass.types import element

__all__ = ["Gain", "gain_of", "planned_for", "revision_of_times"]

_USUAL = 90  # the compute capability that is planned for on a machine without a GPU
#: What reducing an element takes, as steps of K: by what kernels with statistics of rows were measured to take.
_REDUCING = 300
#: How long torch's convolutions of tensor cores take on Hopper, where ours are Ampere-style and cuDNN's are not: a part
#: of ours, by what 56 layers of ResNet-50 were measured to take (docs/gpu-results.md).
_NATIVE_CONVOLUTION, _NATIVE = 0.65, 90
#: What torch takes for groups of products, in parts of what our kernels take: as measured of 64 of them in bfloat16.
_GROUPS_OF_TORCH = 1.12
_TABLES = 15.0  # microseconds of a dozen kernels that make tables of groups on the device, an estimate
_ITSELF = epilogue_function(lambda accum: accum)
_LAUNCH = 2.0  # microseconds from the end of a kernel to the next, at the least


@dataclass(frozen=True)
class Gain:
    """What is known of a region, or predicted.

    Attributes
    ----------
    refusal : str
        Why no kernel takes it; "" where some do.
    fused : float
        Microseconds of its kernel.
    apart : float
        Microseconds of torch's operators: a product of the same speed, and what reads and writes its result.
    is_measured : bool
        Whether a database has those of the kernel.
    """

    refusal: str = ""
    fused: float = 1.0
    apart: float = 1.0
    is_measured: bool = False

    @property
    def share(self) -> float:
        """Which share of the time of torch's operators is saved; negative where the kernel takes longer."""
        return 1.0 - self.fused / self.apart


def planned_for(sm: int | None) -> Device:
    """Return the GPU for which gains are predicted: the usual one of a compute capability, or the one that is here."""
    if sm is None or is_here(sm):  # for which plans choose kernels, of the same prediction
        with suppress(DeviceError):  # neither a GPU nor a target by name
            return present_or_named()
    return _usual_of(_USUAL if sm is None else sm)


@cache
def _usual_of(sm: int) -> Device:
    known = [each for each in shipped() if each.capability <= sm]
    return Device(0, "", sm, max(known, key=lambda each: each.capability).sm_count)


def gain_of(region: Grown, epilogue: Epilogue, options: Options, is_compiled: bool) -> Gain:
    """Return whether there are kernels for a region, and what is predicted of them where a compiler joins the rest."""
    gpu, product = planned_for(options.sm), region.product
    a, b = value_of(product.a), value_of(product.b)
    types = tuple((name, element(dtype).tag) for name, dtype in epilogue.types.items())
    if product.kind == "conv2d" and is_product(Geometry(**product.geometry), b):
        pixels, filters = as_rows(a).contiguous(), b.reshape(b.shape[0], -1).t()
        problem: Any = _Matrices(packed_spec(pixels), packed_spec(filters), precision_of(pixels))
    elif product.kind == "conv2d":
        problem = _Images(_pixels(a), _pixels(b), tuple(product.geometry.items()), precision_of_images(None, a))
    elif product.kind == "grouped":
        problem = _Groups(packed_spec(a), packed_spec(b), precision_of(a))
    else:
        axes = 2 if product.kind == "mm" else 3
        a, b = folded(a, axes), folded(b.t() if product.is_turned else b, axes)
        if axes == 3 and hint_of(a.shape[0]) == 1:  # as the operator takes it, and the tuner
            a, b = a[0], b[0]
        problem = _Matrices(packed_spec(a), packed_spec(b), precision_of(a))
    refusal, fused, _ = _predicted(problem, epilogue.function, types, gpu)
    is_as_torchs = product.kind != "grouped" or not product.is_of_torch
    if refusal or not options.min_gain:
        return Gain(refusal, fused, fused)
    known = _Known(options, gpu)
    alone = _of_torch(problem, types[:1], known)
    alone, tables = (alone, 0.0) if is_as_torchs else (alone * _GROUPS_OF_TORCH, _TABLES)
    apart, off_by = alone + _of_others(region, gpu, is_compiled), known.off_by(problem, epilogue.function, types)
    if off_by is not None:
        return Gain("", fused * off_by + tables, apart, is_measured=True)
    count = sum(map(is_reduction, region.members))
    return Gain("", fused + tables + count * _REDUCING * alone / max(1, _depth(region)), apart)


def _of_torch(problem: _Matrices | _Images | _Groups, types: tuple[tuple[str, Any], ...], known: _Known) -> float:
    """Return the microseconds of torch's product, or convolution: those of ours without an epilogue, or a part."""
    gpu = known.gpu
    if isinstance(problem, _Matrices):
        # As a function too, where there is one: of tiles that functions lack, predictions may be too good.
        refusal, ours = known.time(problem, _ITSELF, types)
        ours = known.time(problem, None, types)[1] if refusal else ours
        return time_of_cublas(ours, problem.a, problem.b, problem.precision, gpu.compute_capability)
    alone = known.time(problem, None, types)[1]
    if not isinstance(problem, _Images) or gpu.compute_capability < _NATIVE:
        return alone
    is_full = problem.x.dtype in ("float32", "float64") and problem.precision != "tf32"  # which no tensor core computes
    return alone if is_full else alone * _NATIVE_CONVOLUTION


def _depth(region: Grown) -> int:
    """Return how many products each element of the result sums up."""
    product = region.product
    if product.kind == "conv2d":
        return math.prod(map(hint_of, value_of(product.b).shape[1:]))
    return hint_of(value_of(product.a).shape[-1])


def _pixels(value: torch.Tensor) -> TensorSpec:
    """Return images, or filters, without memory, with adjacent channels."""
    n, c, h, w = map(hint_of, value.shape)
    return TensorSpec((n, h, w, c), str(value.dtype).removeprefix("torch."))


@dataclass(frozen=True)
class _Matrices:
    """A matrix product, as a plan is made of it."""

    a: TensorSpec
    b: TensorSpec
    precision: str | None

    def plan(self, **how: Any) -> Gemm:
        """Return the plan."""
        return Gemm(self.a, self.b, precision=self.precision, **how)

    def alone(self, plan: Any, gpu: Device) -> float:
        """Return what is predicted of the likely fastest kernel alone, with a cold L2 cache."""
        m, n, k = plan.size
        return ranking(plan.kind, m, n, k, plan.batch, gpu)[0].microseconds

    def chosen(self, plan: Gemm, gpu: Device) -> float:
        """Return how long the likely fastest kernel takes; raise where there is none."""
        found = fastest(plan.kind, *plan.size, gpu, plan.batch)
        if found is None:
            pick(plan.kind, *plan.size, plan.batch, gpu)  # says why
        return math.inf if found is None else found


@dataclass(frozen=True)
class _Images:
    """A convolution, as a plan is made of it."""

    x: TensorSpec
    w: TensorSpec
    geometry: tuple[tuple[str, Any], ...]
    precision: str | None

    def plan(self, **how: Any) -> Conv2d:
        """Return the plan."""
        return Conv2d(self.x, self.w, precision=self.precision, **dict(self.geometry), **how)

    def alone(self, plan: Any, gpu: Device) -> float:
        """Return what is predicted of the likely fastest kernel alone, with a cold L2 cache."""
        return conv2d_ranking(plan.kind, plan.problem_size, gpu)[0].microseconds

    def chosen(self, plan: Conv2d, gpu: Device) -> float:
        """Return how long the likely fastest kernel takes; raise where there is none."""
        found = conv2d_fastest(plan.kind, plan.problem_size, gpu)
        if found is None:
            conv2d_pick(plan.kind, plan.problem_size, gpu)  # says why
        return math.inf if found is None else found


@dataclass(frozen=True)
class _Groups:
    """Rows that are divided among matrices, as a plan is made of them."""

    a: TensorSpec
    b: TensorSpec
    precision: str | None

    def plan(self, **how: Any) -> GroupedGemm:
        """Return the plan."""
        offs = TensorSpec(self.b.shape[:1], "int32")
        return GroupedGemm(self.a, self.b, offs=offs, precision=self.precision, **how)

    def alone(self, plan: Any, gpu: Device) -> float:
        """Return what is predicted of the likely fastest kernel, of which nothing else is known."""
        return rank_group(plan.kind, plan.sizes, typical(plan.sizes, plan.axis), gpu)[0].microseconds

    def chosen(self, plan: GroupedGemm, gpu: Device) -> float:
        """Return how long the likely fastest kernel takes; raise where there is none."""
        problem = plan.kind, plan.sizes, typical(plan.sizes, plan.axis)
        pick_group(*problem, gpu, plan.is_on_device)
        return rank_group(*problem, gpu)[0].microseconds


class _Known:
    """What is known of times on a GPU: predictions, and how far they are from what the database of the options has.

    What is compared are launches that are queued, and the database has calls alone: a kernel that takes longer alone
    than predicted does so in a queue, in the same proportion.

    Parameters
    ----------
    options : Options
        The database, and what is planned for.
    gpu : Device
        The GPU.
    """

    def __init__(self, options: Options, gpu: Device) -> None:
        self.gpu, self._database = gpu, _times_known(options)
        self._machine = None if self._database is None else _machine(gpu)  # of an empty one no compiler has to be asked

    def off_by(
        self,
        problem: _Matrices | _Images | _Groups,
        function: EpilogueFunction | None,
        types: tuple[tuple[str, Any], ...],
    ) -> float | None:
        """Return how far off predictions are: the time of the fastest measured kernel by that; None where none was."""
        if self._database is None or self._machine is None:
            return None
        plan = _predicted(problem, function, types, self.gpu)[2]
        if plan is None:
            return None
        record, of = problems_of(plan)[0].record(), _CANDIDATES[type(plan)]
        asked = Recorded(record, lambda choice: of(plan.kind, choice), lambda _: True)
        found = fastest_measured(self._database, self._machine, asked)
        return None if found is None or found[1].time is None else found[1].time / problem.alone(plan, self.gpu)

    def time(
        self,
        problem: _Matrices | _Images | _Groups,
        function: EpilogueFunction | None,
        types: tuple[tuple[str, Any], ...],
    ) -> tuple[str, float]:
        """Return why no kernel takes a problem, and the microseconds of the fastest in a queue."""
        refusal, predicted, _ = _predicted(problem, function, types, self.gpu)
        return refusal, predicted * (self.off_by(problem, function, types) or 1.0)


#: What makes the candidate of a trial, by the plan.
_CANDIDATES: dict[type, Callable[[Any, Any], Any]] = {
    Gemm: Candidate.of,
    Conv2d: Conv2dCandidate.of,
    GroupedGemm: GroupCandidate.of,
}


def _times_known(options: Options) -> Database | None:
    """Return the database that may have times of regions; None where none are asked for, or there is no GPU of them.

    Raises
    ------
    CacheError
        The database was named and cannot be used.
    """
    if not options.min_gain or not is_here(options.sm):
        return None
    found = _opened(options.database, config.database_file() or config.cache_directory())
    return None if found.is_empty else found


def revision_of_times(options: Options) -> str:
    """Return a text that is another once times of regions on this machine may be; "" where none are asked for."""
    times = _times_known(options)
    if times is None:
        return ""
    machine = _machine(planned_for(options.sm))
    return "" if machine is None else f"{machine.text} {times.revision}"


@lru_cache(maxsize=2)  # a program has one, tests have others; it is only looked at
def _opened(given: Any, _where: Path) -> Database:
    return given if isinstance(given, Database) else Database(given, make=False)


def _machine(gpu: Device) -> Machine | None:
    try:
        return machine_of(gpu.ordinal)
    except ToolkitError:  # times are kept by the compiler that kernels were made with
        return None


@lru_cache(maxsize=512)  # layers of a model have the same problems
def _predicted(
    problem: _Matrices | _Images | _Groups,
    function: EpilogueFunction | None,
    types: tuple[tuple[str, Any], ...],
    gpu: Device,
) -> tuple[str, float, Gemm | Conv2d | GroupedGemm | None]:
    """Return why no kernel takes a problem, how long the likely fastest takes, and the plan."""
    how: dict[str, Any] = {"out_dtype": dict(types)["D"]}
    if function is not None:
        how["epilogue"] = TypedFunction(function, tuple(each for each in types if each[0] != "D"))
        scalars = {each.name: 1.0 for each in function.graph.of_form("scalar")}
        how["epilogue_inputs"] = scalars or None
    chosen: Callable[[Any, Device], float] = problem.chosen
    try:
        plan = problem.plan(**how)
        return "", chosen(plan, gpu), plan
    except PyCutlassError as error:
        return f"is for no kernel: {error}", math.inf, None


def _of_others(region: Grown, gpu: Device, is_joined: bool) -> float:
    """Return the microseconds of what torch computes of a product: of each node, or of all in one kernel."""
    rate = constants_of(gpu).when_queued.dram_gb_per_s * 1e3  # bytes in a microsecond
    nodes = [node for node in region.members[1:] if not is_view(node)]
    if not nodes:
        return 0.0
    if is_joined:
        moved, is_kernel = bytes_saved(region)
        return _LAUNCH * is_kernel + moved / rate
    return sum(_LAUNCH + (sum(map(bytes_of, tensors_of(node))) + bytes_of(node)) / rate for node in nodes)
