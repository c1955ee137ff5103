"""Random numbers for operands, and the scalars that go with them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from random import Random

import torch

from pycutlass.epilogue import EpilogueFunctor
from pycutlass.types import Element

__all__ = ["Numbers", "draw_numbers", "sized"]


@dataclass(frozen=True)
class Numbers:
    """What operands are filled with, and the scalars.

    Attributes
    ----------
    integers : bool
        Whether all are small integers, so that results are exact; else they are normally distributed.
    radius : int
        Largest of the integers.
    scalars : tuple of float
        Alpha, beta, and what the activation needs.
    seed : int
        Of the random numbers.
    """

    integers: bool
    radius: int
    scalars: tuple[float, ...]
    seed: int

    def fill(self, tensor: torch.Tensor, turn: int) -> None:
        """Fill a tensor with numbers; those of another turn are others."""
        generator = torch.Generator(tensor.device).manual_seed(self.seed + turn)
        if self.integers:
            values = torch.randint(
                -self.radius, self.radius + 1, tensor.shape, generator=generator, device=tensor.device
            )
            if not tensor.dtype.is_signed:
                values += self.radius
        else:
            values = torch.randn(tensor.shape, generator=generator, device=tensor.device, dtype=torch.float64)
        tensor.copy_(values)


def draw_numbers(
    random: Random, accumulator: Element, operand: Element, functor: EpilogueFunctor, k: int, is_fast: bool = False
) -> Numbers:
    """Return numbers for sums of `k` products; `is_fast` ones of 8-bit floats keep few bits."""
    compute, output = functor.compute, functor.output
    integers = operand.is_integer or compute.is_integer or random.random() < 0.6
    if operand.is_float8:  # tensor cores keep 14 bits of sums, of all products or of 128 at a time
        integers, radius = True, 1 if is_fast else random.choice((1, 3, 4))
    elif accumulator.short == "f16":
        radius = 2 if k < 1200 else 1
    elif operand.is_integer and compute.short != "f16" and output.short != "f16":
        radius = random.choice((1, 4, 16, 127))
    else:
        radius = random.choice((1, 3, 4))
    alpha = random.choice((1.0, 1.0, 1.0, -1.0, 2.0, 0.5, 0.25, 0.0))
    beta = random.choice((0.0, 0.0, 0.0, 1.0, 1.0, -1.0, 0.5, 2.0))
    if random.random() < 0.2 or not integers:
        alpha, beta = random.choice((alpha, 0.7, -1.3)), random.choice((beta, beta, 0.3, -1.25))
    if output.is_byte and random.random() < 0.8:  # or else most of D is a limit
        size = math.sqrt(k) * (radius**2 / 3 if integers else 1)
        alpha = 2.0 ** round(math.log2(40 / max(size, 1)))
    if compute.is_integer:
        alpha, beta = float(random.choice((1, 1, -1, 2, 0))), float(random.choice((0, 0, 1, -1, 3)))
    extra = (
        () if functor.activation is None else tuple(random.choice((0.25, 0.5, 0.2)) for _ in functor.activation.extra)
    )
    return Numbers(integers, radius, (alpha, beta, *extra), random.randrange(2**40))


def sized(random: Random, tile: int, unit: int, largest: int) -> int:
    """Return an extent, a multiple of `unit`: below a tile, whole tiles, or some tiles and a bit more."""
    kind = random.randrange(5)
    most = max(unit, largest // unit * unit)
    if kind == 0:
        extent = unit * random.randint(1, 4)
    elif kind == 1:
        extent = unit * random.randint(1, max(1, tile // unit))
    elif kind == 2:
        extent = -(-tile * random.randint(1, 3) // unit) * unit
    else:
        extent = unit * random.randint(1, max(1, 4 * tile // unit))
    return min(extent, most)
