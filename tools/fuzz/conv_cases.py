"""Random problems of a convolution kernel."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import Any

import torch

import pycutlass
from pycutlass import GroupMode, StrideSupport, cutlass
from tools.fuzz.gemm_cases import run_and_wait, scalars_of, scalars_on_device
from tools.fuzz.memory import Place, conv_place, flat_place, vector_place
from tools.fuzz.numbers import Numbers, draw_numbers
from tools.fuzz.outcome import Target
from tools.fuzz.truth import expected

__all__ = ["ConvProblem", "convolved", "draw_conv", "launch_conv"]

_Operator, _Algorithm = cutlass.conv.Operator, cutlass.conv.IteratorAlgorithm
_SplitK = cutlass.conv.SplitKMode


@dataclass(frozen=True)
class ConvProblem:
    """One convolution; `source`, `on_device`, `numbers` and `seed` are as in `GemmProblem`.

    Attributes
    ----------
    mode : str
        "conv", "serial" or "parallel".
    size : tuple of int
        N, H, W, C, K, R, S, pad_h, pad_w, stride_h, stride_w, dilation_h, dilation_w.
    flipped : bool
        Whether the filter is, as in Mode.convolution.
    groups, slices : int
        Groups of channels, and slices of split-K.
    """

    mode: str
    size: tuple[int, ...]
    flipped: bool
    groups: int
    slices: int
    numbers: Numbers
    source: str
    on_device: tuple[bool, bool]
    seed: int

    @property
    def problem_size(self) -> Any:
        """The same as a problem of CUTLASS."""
        n, h, w, c, k, r, s, pad_h, pad_w, stride_h, stride_w, dilation_h, dilation_w = self.size
        p = (h + 2 * pad_h - dilation_h * (r - 1) - 1) // stride_h + 1
        q = (w + 2 * pad_w - dilation_w * (s - 1) - 1) // stride_w + 1
        mode = cutlass.conv.Mode.convolution if self.flipped else cutlass.conv.Mode.cross_correlation
        return cutlass.conv.Conv2dProblemSize(
            *(n, h, w, c, k, r, s, p, q, pad_h, pad_w, stride_h, stride_w, dilation_h, dilation_w),
            mode,
            1,
            self.groups,
        )


def draw_conv(random: Random, operation: Any, functor: Any, modes: list[str], *, small: bool) -> ConvProblem:
    """Return a problem that the kernel may take; `functor` is that of the reduction in mode "parallel"."""
    mode = random.choice(modes)
    dilation = random.choice(((1, 1), (1, 1), (2, 1), (1, 3), (2, 2)))
    stride = (1, 1)
    if operation.stride_support is StrideSupport.Strided:
        stride = random.choice(((1, 1), (2, 2), (1, 2), (3, 2)))
        dilation = (1, 1) if operation.is_strided_dgrad else dilation
    r, s = random.choice(((1, 1), (3, 3), (3, 3), (1, 3), (2, 4), (5, 5), (7, 7)))
    if functor.max_k:
        r, s = 1, 1  # more taps make more products than that
    padding = (random.randint(0, r), random.randint(0, s))
    least = [max(1, d * (t - 1) + 1 - 2 * p) for d, t, p in zip(dilation, (r, s), padding, strict=True)]
    h, w = (extent + random.randint(0, 5 if small else 18) for extent in least)
    c, k, groups = _channels(random, operation, small=small)
    size = (random.randint(1, 2 if small else 4), h, w, c, k, r, s, *padding, *stride, *dilation)
    math = operation.tile_description.math_instruction
    longest = {_Operator.fprop: r * s * c, _Operator.dgrad: r * s * k, _Operator.wgrad: size[0] * h * w}
    numbers = draw_numbers(random, math.accumulator, math.a, functor, longest[operation.conv_kind])
    biased = operation.conv_kind is not _Operator.wgrad and not operation.is_interleaved
    zero = numbers.scalars[1] == 0
    unread, read = ("none", "nan", "nan", "nan in place"), ("matrix", "matrix", "in place", *(["bias"] * biased))
    source = random.choice(unread if zero else read)
    slices = 1 if mode == "conv" else random.randint(2, 5)
    on_device = scalars_on_device(random, source)
    return ConvProblem(
        mode, size, random.random() < 0.3, groups, slices, numbers, source, on_device, random.randrange(2**40)
    )


def _channels(random: Random, operation: Any, *, small: bool) -> tuple[int, int, int]:
    """Return C, K and groups that suit the alignments."""
    if operation.is_interleaved:
        return 32 * random.randint(1, 3), 32 * random.randint(1, 3), 1
    A, B, C = operation.A.alignment, operation.B.alignment, operation.C.alignment
    units = {_Operator.fprop: (max(A, B), C), _Operator.dgrad: (max(B, C), A), _Operator.wgrad: (max(B, C), A)}
    unit_c, unit_k = units[operation.conv_kind]
    most = 4 if small else 14
    c, k = unit_c * random.randint(1, most), unit_k * random.randint(1, most)
    if operation.iterator_algorithm is _Algorithm.fixed_channels:
        c = A
    elif operation.iterator_algorithm is _Algorithm.few_channels:
        c = unit_c * random.randint(1, 3)
    if operation.group_mode is None:
        return c, k, 1
    groups, tile = random.randint(2, 5), operation.tile_description.threadblock_shape[1]
    if operation.group_mode is GroupMode.SingleGroup:
        filters = tile * random.randint(1, 2)
    else:
        filters = random.choice([step for step in range(1, tile + 1) if tile % step == 0])
    return groups * c, groups * filters, groups


def launch_conv(
    problem: ConvProblem, operation: Any, reduction: Any, device: str
) -> tuple[Any, list[Target], dict[str, Place]]:
    """Return a function that launches and waits, D, and the operands; raise what the arguments raise."""
    built = _Built(problem, operation, reduction, device)
    return built.launch, [built.target], built.places


class _Built:
    """A problem's tensors and arguments."""

    def __init__(self, problem: ConvProblem, operation: Any, reduction: Any, device: str) -> None:
        self._problem, self._operation, self._reduction, self._device = problem, operation, reduction, device
        self._random, self._size = Random(problem.seed), problem.problem_size
        support = operation.supports(self._size)
        if not support:
            raise pycutlass.errors.ArgumentError(str(support))
        self.places: dict[str, Place] = {}
        conv = cutlass.conv
        extents = (
            conv.implicit_gemm_tensor_a_extent,
            conv.implicit_gemm_tensor_b_extent,
            conv.implicit_gemm_tensor_c_extent,
        )
        a, b, d = (tuple(extent(operation.conv_kind, self._size)) for extent in extents)
        A, exact_a = self._operand("A", operation.A, a, 0)
        B, exact_b = self._operand("B", operation.B, b, 1)
        self._C = reduction.C if problem.mode == "parallel" else operation.C
        self._packed = operation.is_interleaved
        stored = self._place(d)
        source, exact_c = self._source(d, stored)
        parallel = problem.mode == "parallel"
        functor = (reduction if parallel else operation).epilogue_functor
        truth = expected(
            operation.tile_description.math_instruction,
            functor,
            lambda x, y: convolved(operation.conv_kind, self._size, x, y),
            (exact_a, exact_b),
            exact_c,
            problem.numbers.scalars,
            integers=problem.numbers.integers,
            products=conv.implicit_gemm_problem_size(operation.conv_kind, self._size).k(),
            slices=problem.slices,
            serial=problem.mode == "serial",
        )
        self.target = Target("D", stored, truth, lambda view: self._read(view, d))
        if problem.source == "in place":
            stored.keep()
        else:
            self.target.poison()
        self._arguments(A, B, source, stored)

    def launch(self) -> None:
        """Run, and wait."""
        run_and_wait(self._operation, self._call, self._reduction, self._end)

    def _operand(self, name: str, description: Any, extent: tuple[int, ...], turn: int) -> tuple[Any, torch.Tensor]:
        """Return A or B as the arguments take it, and in float64 as (N, H, W, C)."""
        if self._operation.is_interleaved:
            values = torch.empty(extent, dtype=torch.int8, device=self._device)
            self._problem.numbers.fill(values, turn)
            n, h, w, c = extent
            grouped = values.reshape(n, h, w, c // 32, 32)
            if name == "A":
                return grouped.permute(0, 3, 1, 2, 4).contiguous(), values.double()
            return pycutlass.reorder_filter(grouped.permute(3, 1, 2, 0, 4).contiguous()), values.double()
        place = conv_place(self._random, self._device, description, extent)
        self._problem.numbers.fill(place.view, turn)
        place.keep()
        self.places[name] = place
        return place.view.permute(0, 3, 1, 2), place.view.double()

    def _place(self, extent: tuple[int, ...]) -> Place:
        if self._packed:
            return flat_place(self._random, self._device, self._C, extent[0] * extent[1] * extent[2] * extent[3])
        packed = self._operation.conv_kind is _Operator.wgrad or self._problem.mode == "parallel"
        return conv_place(self._random, self._device, self._C, extent, packed=packed)

    def _read(self, view: torch.Tensor, extent: tuple[int, ...]) -> torch.Tensor:
        """Return what lies in memory as (N, H, W, C)."""
        n, h, w, c = extent
        return view.reshape(n, c // 32, h, w, 32).permute(0, 2, 3, 1, 4).reshape(extent) if self._packed else view

    def _source(self, extent: tuple[int, ...], stored: Place) -> tuple[Any, torch.Tensor | None]:
        """Return C as the arguments take it, and in float64 where it is read."""
        kind = self._problem.source
        if kind == "none":
            return None, None
        if kind == "bias":
            place = vector_place(self._random, self._device, self._C, extent[3])
        else:
            place = stored if kind.endswith("in place") else self._place(extent)
        exact = None
        if not kind.startswith("nan"):
            self._problem.numbers.fill(place.view, 2)
            exact = place.view.double() if kind == "bias" else self._read(place.view, extent).double()
        if place is not stored:
            place.keep()
            self.places["C"] = place
        return self._given(place), exact

    def _given(self, place: Place) -> Any:
        """Return a tensor as the arguments take it: torch's (N, C, H, W), or the matrix that a reduction takes."""
        if place.view.dim() == 1:
            return place.view
        if self._problem.mode == "parallel":
            product = cutlass.conv.implicit_gemm_problem_size(self._operation.conv_kind, self._size)
            return place.view.reshape(product.m(), product.n())
        return place.view.permute(0, 3, 1, 2)

    def _arguments(self, A: Any, B: Any, C: Any, stored: Place) -> None:
        problem, operation, D = self._problem, self._operation, self._given(stored)
        self._end = None
        if problem.mode == "parallel":
            options = {"split_k_mode": _SplitK.Parallel, "split_k_slices": problem.slices}
            self._call = pycutlass.Conv2dArguments(operation, self._size, A, B, **options)
            product = cutlass.conv.implicit_gemm_problem_size(operation.conv_kind, self._size)
            output_op = scalars_of(self._reduction, problem.numbers, problem.on_device, self._device)
            self._end = pycutlass.ReductionArguments(
                self._reduction, [product.m(), product.n()], problem.slices, self._call.ptr_D, D, C, output_op=output_op
            )
            return
        output_op = scalars_of(operation, problem.numbers, problem.on_device, self._device)
        self._call = pycutlass.Conv2dArguments(
            operation, self._size, A, B, C, D, output_op, split_k_slices=problem.slices
        )


def convolved(kind: Any, size: Any, A: torch.Tensor, B: torch.Tensor) -> torch.Tensor:
    """Return a convolution in float64, tap by tap: A, B and the result are as the operation's kind says."""
    g, c, k = size.groups, size.C // size.groups, size.K // size.groups
    taps = [(r, s) for r in range(size.R) for s in range(size.S)]
    x = {_Operator.fprop: A, _Operator.wgrad: B}.get(kind)
    shape = (size.N, size.H + 2 * size.pad_h, size.W + 2 * size.pad_w, size.C)
    padded = torch.zeros(shape, dtype=torch.float64, device=A.device)
    inside = padded[:, size.pad_h : size.pad_h + size.H, size.pad_w : size.pad_w + size.W]
    if x is not None:
        inside.copy_(x)
    flipped = size.mode == cutlass.conv.Mode.convolution
    if kind is _Operator.fprop:
        result = torch.zeros((size.N, size.P, size.Q, g, k), dtype=torch.float64, device=A.device)
    elif kind is _Operator.wgrad:
        result = torch.zeros((size.K, size.R, size.S, c), dtype=torch.float64, device=A.device)
    for r, s in taps:
        y, z = (size.R - 1 - r, size.S - 1 - s) if flipped else (r, s)  # where this tap of the filter lies
        rows = slice(y * size.dilation_h, y * size.dilation_h + (size.P - 1) * size.stride_h + 1, size.stride_h)
        columns = slice(z * size.dilation_w, z * size.dilation_w + (size.Q - 1) * size.stride_w + 1, size.stride_w)
        window = padded[:, rows, columns]
        if kind is _Operator.fprop:
            result += torch.einsum("npqgc,gkc->npqgk", window.unflatten(-1, (g, c)), B[:, r, s].unflatten(0, (g, k)))
        elif kind is _Operator.wgrad:
            result[:, r, s] = torch.einsum("npqk,npqc->kc", A, window)
        else:
            window += torch.einsum("npqk,kc->npqc", A, B[:, r, s])
    if kind is _Operator.dgrad:
        return inside.clone()
    return result.flatten(-2) if kind is _Operator.fprop else result
