"""Random groups of problems for a grouped kernel."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import Any

import torch

import pycutlass
from tools.fuzz.gemm_cases import extents, scalars_of, scalars_on_device, sources
from tools.fuzz.memory import Place, flat_place, matrix_place, vector_place
from tools.fuzz.numbers import Numbers, draw_numbers
from tools.fuzz.outcome import Target
from tools.fuzz.truth import expected

__all__ = ["GroupProblem", "draw_group", "launch_group"]


@dataclass(frozen=True)
class GroupProblem:
    """One group; `source` and `on_device` are as in `GemmProblem`, the same for all problems."""

    sizes: tuple[tuple[int, int, int], ...]
    numbers: Numbers
    source: str
    on_device: tuple[bool, bool]
    seed: int


def draw_group(random: Random, operation: Any, *, small: bool) -> GroupProblem:
    """Return a group that the kernel should take, with empty problems among the others."""
    count = random.choice((1, 2, 3, 5) if small else (1, 2, 3, 5, 8, 17, 40))
    sizes = [extents(random, operation, small=small) for _ in range(count)]
    for place in range(count):
        if random.random() < 0.1:
            empty = random.randrange(3)
            m, n, k = (0 if axis == empty else extent for axis, extent in enumerate(sizes[place]))
            sizes[place] = (m, n, k)
    math = operation.tile_description.math_instruction
    longest = max(k for _, _, k in sizes)
    numbers = draw_numbers(random, math.accumulator, math.a, operation.epilogue_functor, max(1, longest))
    source = random.choice(sources(operation, numbers))
    on_device = scalars_on_device(random, source)
    return GroupProblem(tuple(sizes), numbers, source, on_device, random.randrange(2**40))


def launch_group(problem: GroupProblem, operation: Any, device: str) -> tuple[Any, list[Target], dict[str, Place]]:
    """Return a function that launches and waits, the Ds, and the operands; raise what the arguments raise."""
    random, places, targets = Random(problem.seed), {}, []
    given: dict[str, list[Any]] = {name: [] for name in "ABCD"}
    for number, (m, n, k) in enumerate(problem.sizes):
        one = _One(random, problem, operation, device, (m, n, k), number)
        places.update(one.places)
        targets.append(one.target)
        for name in "ABCD":
            given[name].append(one.given[name])
    C = None if problem.source == "none" else given["C"]
    bias = True if problem.source == "bias" else None
    arguments = pycutlass.GemmGroupedArguments(
        operation,
        [list(size) for size in problem.sizes],
        given["A"],
        given["B"],
        C,
        given["D"],
        output_op=scalars_of(operation, problem.numbers, problem.on_device, device),
        bias=bias,
    )

    def launch() -> None:
        operation.run(arguments)
        arguments.sync()

    return launch, targets, places


class _One:
    """The tensors of one problem."""

    def __init__(
        self,
        random: Random,
        problem: GroupProblem,
        operation: Any,
        device: str,
        size: tuple[int, int, int],
        number: int,
    ) -> None:
        m, n, k = size
        self._random, self._device, self._numbers, self._number = random, device, problem.numbers, number
        self.places: dict[str, Place] = {}
        self.given: dict[str, Any] = {}
        C, is_packed = operation.C, operation.A.order.interleave > 1
        A, B = (self._operand(name, d, *of) for name, d, of in (("A", operation.A, (m, k)), ("B", operation.B, (k, n))))
        stored = flat_place(random, device, C, m * n) if is_packed else matrix_place(random, device, C, m, n)
        self.given["D"] = stored.view

        def read(view: torch.Tensor) -> torch.Tensor:
            return view.reshape(n // 32, m, 32).transpose(0, 1).reshape(m, n) if is_packed else view

        source = None
        if problem.source == "bias":
            line = n if C.is_row_major else m
            place = vector_place(random, device, C, line)
            source = self._filled("C", place).unsqueeze(-2 if C.is_row_major else -1)
        elif problem.source == "in place":
            self._numbers.fill(stored.view, 3 * number + 2)
            source, self.given["C"] = read(stored.view).double(), stored.view
        elif problem.source == "nan in place":
            self.given["C"] = stored.view
        elif problem.source in ("matrix", "nan"):
            place = flat_place(random, device, C, m * n) if is_packed else matrix_place(random, device, C, m, n)
            if problem.source == "nan":
                place.keep()
                self.places[f"C[{number}]"], self.given["C"] = place, place.view
            else:
                source = read(self._filled("C", place))
        self.given.setdefault("C", None)
        truth = expected(
            operation.tile_description.math_instruction,
            operation.epilogue_functor,
            torch.matmul,
            (A, B),
            source,
            problem.numbers.scalars,
            integers=problem.numbers.integers,
            products=max(1, k),
        )
        self.target = Target(f"D[{number}]", stored, truth, read)
        if problem.source == "in place":
            stored.keep()
        else:
            self.target.poison()

    def _operand(self, name: str, description: Any, rows: int, columns: int) -> torch.Tensor:
        """Make A or B, and return it in float64."""
        if description.order.interleave == 1:
            return self._filled(name, matrix_place(self._random, self._device, description, rows, columns))
        values = torch.empty((rows, columns), dtype=torch.int8, device=self._device)
        self._numbers.fill(values, 3 * self._number + "AB".index(name))
        if name == "B":
            self.given[name] = pycutlass.reorder_column(pycutlass.interleave_rows(values))
        else:
            self.given[name] = pycutlass.interleave_columns(values)
        return values.double()

    def _filled(self, name: str, place: Place) -> torch.Tensor:
        self._numbers.fill(place.view, 3 * self._number + "ABC".index(name))
        place.keep()
        self.places[f"{name}[{self._number}]"], self.given[name] = place, place.view
        return place.view.double()
