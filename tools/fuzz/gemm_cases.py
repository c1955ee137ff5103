"""Random problems of a GEMM kernel: in every mode, with views, guard zones and poisoned memory."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import Any

import torch

import pycutlass
from pycutlass import cutlass
from tools.fuzz.memory import Place, flat_place, matrix_place, vector_place
from tools.fuzz.numbers import Numbers, draw_numbers, sized
from tools.fuzz.outcome import Target
from tools.fuzz.truth import expected

__all__ = [
    "GemmProblem",
    "draw_gemm",
    "extents",
    "launch_gemm",
    "run_and_wait",
    "scalars_of",
    "scalars_on_device",
    "sources",
]

_MODES = {
    "gemm": cutlass.gemm.Mode.Gemm,
    "serial": cutlass.gemm.Mode.Gemm,
    "parallel": cutlass.gemm.Mode.GemmSplitKParallel,
    "batched": cutlass.gemm.Mode.Batched,
    "array": cutlass.gemm.Mode.Array,
}


@dataclass(frozen=True)
class GemmProblem:
    """One problem.

    Attributes
    ----------
    mode : str
        A key of `_MODES`.
    size : tuple of 3 int
        M, N, K.
    count : int
        Batches, or slices of split-K.
    numbers : Numbers
        Of the operands, and the scalars.
    source : str
        What C is: "none", "nan" or "nan in place" (where beta is 0), "matrix", "shared" by a batch, "bias", "biases" or
        "in place".
    on_device : tuple of bool
        Whether alpha and beta lie in device memory.
    options : dict
        Of Hopper-native kernels.
    seed : int
        Of leading dimensions and offsets.
    """

    mode: str
    size: tuple[int, int, int]
    count: int
    numbers: Numbers
    source: str
    on_device: tuple[bool, bool]
    options: dict[str, Any]
    seed: int


def draw_gemm(random: Random, operation: Any, functor: Any, modes: list[str], *, small: bool) -> GemmProblem:
    """Return a problem that the kernel should take; `functor` is that of the reduction in mode "parallel"."""
    mode = random.choice(modes)
    size = extents(random, operation, small=small)
    if mode == "gemm" and not small and random.random() < 0.1:  # many tiles for the swizzle, or for stream-K
        size = (size[0] * random.randint(1, 6), size[1] * random.randint(1, 6), min(size[2], 256))
    count = (
        1
        if mode == "gemm"
        else random.choice((1, 2, 2, 3, 5))
        if mode in ("batched", "array")
        else random.randint(2, 6)
    )
    math = operation.tile_description.math_instruction
    is_fast = math.math_operation is pycutlass.MathOperation.multiply_add_fast_accum
    of = math.b if math.b.is_integer else math.a  # whose numbers both operands have
    numbers = draw_numbers(random, math.accumulator, of, functor, size[2], is_fast)
    batched = mode in ("batched", "array") and operation.A.order.interleave == 1
    options: dict[str, Any] = {}
    if operation.is_sm90:
        options = {
            "raster_order": random.choice(list(pycutlass.RasterOrder)),
            "launch_with_pdl": random.choice((True, False)),
        }
    source = random.choice(sources(operation, numbers, shared=batched and mode == "batched"))
    on_device = scalars_on_device(random, source)
    return GemmProblem(mode, size, count, numbers, source, on_device, options, random.randrange(2**40))


def sources(operation: Any, numbers: Numbers, *, shared: bool = False) -> list[str]:
    """Return what C may be."""
    plain = operation.A.order.interleave == 1
    biases = (["bias"] + (["shared", "biases"] if shared else [])) if plain else []
    in_place = [] if getattr(operation, "is_apart", False) else [" in place"]
    if numbers.scalars[1] == 0:
        return ["none", "nan", "nan", *(f"nan{each}" for each in in_place)]
    return ["matrix", "matrix", *(each.strip() for each in in_place), *biases]


def scalars_on_device(random: Random, source: str) -> tuple[bool, bool]:
    """Return whether alpha and beta lie in device memory; beta needs a C there, for the host does not know it."""
    return random.random() < 0.15, source != "none" and random.random() < 0.15


def extents(random: Random, operation: Any, *, small: bool) -> tuple[int, int, int]:
    """Return M, N and K that suit the alignments."""
    A, B, written = operation.A, operation.B, {operation.C, getattr(operation, "D", operation.C)}
    unit_m = max((each.alignment for each in (A, *written) if not each.is_row_major), default=1)
    unit_n = max((each.alignment for each in (B, *written) if each.is_row_major), default=1)
    unit_k = max(A.alignment if A.is_row_major else 1, B.alignment if not B.is_row_major else 1)
    if A.order.interleave > 1:
        unit_m, unit_n, unit_k = 1, 32, 32
    m, n, k = operation.tile_description.threadblock_shape
    most, longest = (96, 160) if small else (640, 1024)
    if operation.epilogue_functor.max_k:
        longest = min(longest, operation.epilogue_functor.max_k)
    return sized(random, m, unit_m, most), sized(random, n, unit_n, most), sized(random, 2 * k, unit_k, longest)


def launch_gemm(
    problem: GemmProblem, operation: Any, reduction: Any, device: str
) -> tuple[Any, list[Target], dict[str, Place]]:
    """Return a function that launches and waits, the Ds, and the operands; raise what the arguments raise."""
    built = _Built(problem, operation, reduction, device)
    return built.launch, built.targets, built.places


def run_and_wait(operation: Any, arguments: Any, reduction: Any, end: Any) -> None:
    """Launch, with the reduction whose arguments are `end` where there are any, and wait."""
    operation.run(arguments)
    if end is not None:
        reduction.run(end)
    (arguments if end is None else end).sync()


class _Built:
    """A problem's tensors and arguments."""

    def __init__(self, problem: GemmProblem, operation: Any, reduction: Any, device: str) -> None:
        self._problem, self._operation, self._reduction, self._device = problem, operation, reduction, device
        self._random = Random(problem.seed)
        self.places: dict[str, Place] = {}
        self.targets: list[Target] = []
        self._exact: dict[str, torch.Tensor | None] = {}
        m, n, k = problem.size
        self._batch = problem.count if problem.mode in ("batched", "array") else None
        A, B = self._operand("A", operation.A, m, k, 0), self._operand("B", operation.B, k, n, 1)
        D, stored = self._target(m, n)
        C = self._source(m, n, stored)
        truth = self._truth()
        self._set_targets(truth, stored, m, n)
        self._arguments(A, B, C, D)

    def launch(self) -> None:
        """Run, and wait."""
        run_and_wait(self._operation, self._call, self._reduction, self._end)

    # Operands

    def _operand(self, name: str, description: Any, rows: int, columns: int, turn: int) -> Any:
        """Return A or B as the arguments take it."""
        if description.order.interleave > 1:
            return self._interleaved(name, rows, columns, turn)
        shared = self._problem.mode == "batched" and self._random.random() < 0.25
        batch = None if shared else self._batch
        place = matrix_place(self._random, self._device, description, rows, columns, batch)
        self._problem.numbers.fill(place.view, turn)
        place.keep()
        self.places[name] = place
        exact = place.view.double()
        self._exact[name] = exact.expand(self._batch, *exact.shape) if shared and self._batch else exact
        return self._listed(description, place.view)

    def _listed(self, description: Any, tensor: torch.Tensor) -> Any:
        """Return a batch as a list, for arrays; some whose lines are packed as a table of addresses on the device."""
        if self._problem.mode != "array":
            return tensor
        matrices = list(tensor.unbind())
        _, rows, columns = tensor.shape
        line, ld = (columns, tensor.stride(1)) if description.is_row_major else (rows, tensor.stride(2))
        if self._device == "cpu" or line != ld or self._random.random() < 0.5:
            return matrices
        return torch.tensor([each.data_ptr() for each in matrices], dtype=torch.int64, device=self._device)

    def _interleaved(self, name: str, rows: int, columns: int, turn: int) -> Any:
        """Return an interleaved operand, packed: one, one after the other, or a list of them."""
        values = torch.empty((self._batch or 1, rows, columns), dtype=torch.int8, device=self._device)
        self._problem.numbers.fill(values, turn)
        self._exact[name] = values.double() if self._batch else values[0].double()
        if name == "B":
            packed = [pycutlass.interleave_rows(each) for each in values]
        else:
            packed = [pycutlass.interleave_columns(each) for each in values]
        one = [torch.cat(packed) if len(packed) > 1 else packed[0]]
        given = packed if self._problem.mode == "array" else one
        if name == "B":  # what is copied behind this would have to be said to be reordered
            given = [pycutlass.reorder_column(each) for each in given]
        return given if self._problem.mode == "array" else given[0]

    def _target(self, m: int, n: int) -> tuple[Any, Place]:
        operation = self._operation if self._reduction is None or self._problem.mode != "parallel" else self._reduction
        self._C = operation.C
        if self._C.order.interleave > 1:
            place = flat_place(self._random, self._device, self._C, m * n * (self._batch or 1))
            return self._packed_views(place.view, m * n), place
        D = getattr(operation, "D", self._C)
        place = matrix_place(self._random, self._device, D, m, n, self._batch)
        return self._listed(D, place.view), place

    def _packed_views(self, flat: torch.Tensor, elements: int) -> Any:
        return list(flat.split(elements)) if self._problem.mode == "array" else flat

    def _source(self, m: int, n: int, stored: Place) -> Any:
        kind, numbers, device, C = self._problem.source, self._problem.numbers, self._device, self._C
        self._exact["C"] = None
        if kind == "none":
            return None
        if C.order.interleave > 1:
            return self._packed_source(m, n, stored)
        line = n if C.is_row_major else m
        if kind in ("bias", "biases"):
            many = self._batch if kind == "biases" or self._problem.mode == "array" else None
            place = vector_place(self._random, device, C, line, many)
        elif kind.endswith("in place"):
            place = stored
        else:
            batch = None if kind == "shared" else self._batch
            place = matrix_place(self._random, device, C, m, n, batch)
        if not kind.startswith("nan"):
            numbers.fill(place.view, 2)
            exact = place.view.double()
            if kind in ("bias", "biases"):
                exact = exact.unsqueeze(-2 if C.is_row_major else -1)
            self._exact["C"] = exact
        if place is not stored:
            place.keep()
            self.places["C"] = place
        if self._problem.mode == "array":
            return list(place.view.unbind())
        return place.view

    def _packed_source(self, m: int, n: int, stored: Place) -> Any:
        place = stored
        if not self._problem.source.endswith("in place"):
            place = flat_place(self._random, self._device, self._C, m * n * (self._batch or 1))
            self.places["C"] = place
        if not self._problem.source.startswith("nan"):
            self._problem.numbers.fill(place.view, 2)
            self._exact["C"] = self._unpacked(place.view, m, n).double()
        place.keep()
        return self._packed_views(place.view, m * n)

    def _unpacked(self, flat: torch.Tensor, m: int, n: int) -> torch.Tensor:
        """Return packed columns of 32 as a matrix, or as a batch."""
        matrices = flat.reshape(self._batch or 1, n // 32, m, 32).transpose(1, 2).reshape(-1, m, n)
        return matrices if self._batch else matrices[0]

    # Truth

    def _truth(self) -> Any:
        problem, operation = self._problem, self._operation
        parallel = problem.mode == "parallel"
        functor = self._reduction.epilogue_functor if parallel else operation.epilogue_functor
        A, B = self._exact["A"], self._exact["B"]
        assert A is not None and B is not None
        truth = expected(
            operation.tile_description.math_instruction,
            functor,
            torch.matmul,
            (A, B),
            self._exact["C"],
            problem.numbers.scalars,
            integers=problem.numbers.integers,
            products=problem.size[2],
            slices=problem.count if problem.mode in ("serial", "parallel") else 1,
            serial=problem.mode == "serial",
        )
        shape = problem.size[:2] if self._batch is None else (self._batch, *problem.size[:2])
        return type(truth)(truth.value.expand(shape), truth.error.expand(shape), truth.output)

    def _set_targets(self, truth: Any, stored: Place, m: int, n: int) -> None:
        read = (lambda flat: self._unpacked(flat, m, n)) if self._C.order.interleave > 1 else (lambda view: view)
        target = Target("D", stored, truth, read)
        if self._problem.source == "in place":
            stored.keep()
        else:
            target.poison()
        self.targets.append(target)

    # Arguments

    def _arguments(self, A: Any, B: Any, C: Any, D: Any) -> None:
        problem, operation = self._problem, self._operation
        options: dict[str, Any] = dict(problem.options)
        if problem.mode in ("serial", "parallel"):
            options["split_k_slices"] = problem.count
        if self._batch is not None:
            options["batch"] = self._batch
        mode = _MODES[problem.mode]
        self._end = None
        if problem.mode == "parallel":
            self._call = pycutlass.GemmArguments(operation, problem.size, A, B, gemm_mode=mode, **options)
            self._end = pycutlass.ReductionArguments(
                self._reduction,
                problem.size[:2],
                problem.count,
                self._call.ptr_D,
                D,
                C,
                output_op=self._scalars(self._reduction),
            )
            return
        if problem.source in ("bias", "biases") and self._random.random() < 0.5:
            options["bias"] = True
        self._call = pycutlass.GemmArguments(
            operation, problem.size, A, B, C, D, mode, output_op=self._scalars(operation), **options
        )

    def _scalars(self, operation: Any) -> Any:
        return scalars_of(operation, self._problem.numbers, self._problem.on_device, self._device)


def scalars_of(operation: Any, numbers: Numbers, on_device: tuple[bool, bool], device: str) -> Any:
    """Return the scalars of a launch, of which alpha and beta may lie in device memory."""
    values: list[Any] = list(numbers.scalars)
    compute = operation.epilogue_functor.compute
    for place, there in enumerate(on_device):
        if there and device != "cpu":
            values[place] = torch.tensor([values[place]], dtype=getattr(torch, compute.dtype_name), device=device)
    return operation.epilogue_functor.epilogue_type(*values)
