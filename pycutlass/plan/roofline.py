"""The least time that a GPU can take for a product, whichever kernel computes it."""

from __future__ import annotations

import math
from dataclasses import dataclass

from pycutlass.device import Device
from pycutlass.library import MathInstruction
from pycutlass.plan.constants import constants_of
from pycutlass.plan.features import product_class

__all__ = ["Roofline"]


@dataclass(frozen=True)
class Roofline:
    """What multipliers and memory allow at most.

    Parameters
    ----------
    multiplying : float
        Microseconds of the multiply-adds at the full clock.
    moving : float
        Microseconds of reading the operands once and of writing the result.
    """

    multiplying: float
    moving: float

    @classmethod
    def of(cls, instruction: MathInstruction, operations: float, moved: float, gpu: Device) -> Roofline:
        """Return the roofline of so many multiplications and additions on so many bytes."""
        constants = constants_of(gpu)
        rate = constants.macs_per_cycle.get(product_class(instruction), math.inf)
        multiplying = operations / 2 / (rate * constants.sm_count * constants.clock_ghz * 1e3)
        return cls(multiplying, moved / (constants.dram_gb_per_s * 1e3))

    @property
    def microseconds(self) -> float:
        """The least time."""
        return max(self.multiplying, self.moving)

    def __str__(self) -> str:
        return f"roofline: {self.multiplying:.1f} us of multiplying, {self.moving:.1f} us of moving memory"
