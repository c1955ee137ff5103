"""The products of a table that are most like one that it lacks: what messages offer instead."""

from __future__ import annotations

from collections.abc import Iterable

from pycutlass.families.parts import Math, Product
from pycutlass.families.sm90_products import PRODUCTS as NATIVE
from pycutlass.types import ELEMENTS

__all__ = ["is_native", "nearest_products", "of_same_types"]

_MOST_NAMED = 4
_OF_SHORT = {row.short: row for row in ELEMENTS}


def nearest_products(products: Iterable[Product], math: Math) -> list[Product]:
    """Return at most four products, those first that are most like the instruction `math`.

    Where some have its types, the others are left out, else those of two types where it has one; of these, those of its
    `opcode_class`, where there are any.
    """
    rows = list(products)
    rows = [row for row in rows if (row.a == row.b) == (math.a is math.b)] or rows
    rows = [row for row in rows if (row.a, row.b) == (math.a.short, math.b.short)] or rows
    rows = [row for row in rows if row.opcode_class == math.opcode_class] or rows

    def unlike(row: Product) -> tuple[bool, int, bool, bool]:
        a = _OF_SHORT[row.a]
        return (
            a.is_integer != math.a.is_integer,
            abs(a.bits - math.a.bits),
            row.accumulator != math.accumulator.short,
            row.shape != math.instruction_shape,
        )

    return sorted(rows, key=unlike)[:_MOST_NAMED]


def of_same_types(products: Iterable[Product], math: Math) -> list[Product]:
    """Return the products of the operands' types; all of them where there are none."""
    rows = list(products)
    return [row for row in rows if (row.a, row.b) == (math.a.short, math.b.short)] or rows


def is_native(math: Math) -> bool:
    """Return whether Hopper-native kernels multiply these types, by an instruction that follows from the tile."""
    types = math.a.short, math.b.short, math.accumulator.short
    return math.is_tensor_op and any((row.a, row.b, row.accumulator) == types for row in NATIVE)
