"""Random epilogue functions, of which it is known how far a kernel may be from NumPy in f64.

Values that are multiples of a grain and few enough to be exact in the type that is computed in stay exact under sums,
products and choices; comparisons and roundings, which jump, are drawn for those alone. Of all others the error is
bounded as it grows from node to node.
"""

from __future__ import annotations

import contextlib
import math
import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from pycutlass import cutlass, epilogue
from pycutlass.epilogue import Column, EpilogueFunction, PerBatch, Row, Scalar, Source, Tensor
from pycutlass.epilogue.graph import Input
from pycutlass.epilogue.parameters import traced
from pycutlass.errors import DescriptionError

__all__ = ["Drawn", "drawn_function"]

#: The largest inputs: accumulators are sums of few small integers, everything else has quarters up to 2.
ACCUMULATOR, OTHER, GRAIN = 256.0, 2.0, 0.25
_SMOOTH = ("tanh", "sigmoid", "silu", "gelu", "gelu_tanh", "hardswish", "softplus", "erf", "relu", "leaky_relu", "abs")
#: Functions of numbers from 1/4 to 4, exponentials from -4: the greatest slope, and the greatest result.
_POSITIVE = (
    ("exp", 55.0, 55.0),
    ("exp2", 12.0, 16.0),
    ("log", 4.0, 2.0),
    ("sqrt", 1.0, 2.0),
    ("rsqrt", 4.0, 2.0),
    ("power", 32.0, 16.0),
)
#: What is made of exact numbers alone, since it jumps.
_JUMPING = (
    *("round", "floor", "ceil", "remainder", "quotient", "divmod"),
    *("int8", "int32", "float_e4m3", "float_e5m2"),
)
_FORMS = (
    *(("row", Row), ("column", Column), ("matrix", Tensor)),
    *(("number", PerBatch), ("source", Source), ("scalar", Scalar)),
)


@dataclass(frozen=True)
class _Known:
    """A traced value with the largest that it can be, its grain (0 where it is none) and its error."""

    value: Any
    bound: float
    grain: float
    error: float = 0.0


@dataclass(frozen=True)
class Reduced:
    """What is known of the values that a reduction takes: the largest, their grain (0 where it is none) and error."""

    name: str
    bound: float
    grain: float
    error: float

    def tolerance(self, count: int) -> float:
        """Return how far the result of `count` values may be from the exact one; 0 where it is exact."""
        if self.name == "logsumexp":
            return self.error + (count.bit_length() + 8 + self.bound) * 64 * 2.0**-24
        if not self.name.startswith("sum"):
            return self.error
        if self.error == 0 and self.grain and count * self.bound / self.grain < 2.0**23:
            return 0.0
        return count * (self.error + self.bound * 2.0**-20)


@dataclass(frozen=True)
class Drawn:
    """A random function: it itself, and the absolute errors that its outputs may have in f32, by name."""

    function: EpilogueFunction
    errors: dict[str, float]
    reductions: dict[str, Reduced]


def drawn_function(seed: int, bits: int = 24, deepest: int = 12, right_to: float = 0.0) -> Drawn:
    """Return a random function for a seed, of up to about 20 nodes, for a type of `bits` significant bits."""
    draw = random.Random(seed)
    kinds = [draw.choice(_FORMS) for _ in range(draw.randint(0, 4))]
    is_gated = draw.random() < 0.1
    if is_gated:  # which does not read C
        kinds = [each for each in kinds if each[0] != "source"]
    sources = [kind for kind, _ in kinds].count("source")
    inputs = [Input("accum", "accumulator")]
    for number, (form, _) in enumerate(kinds):
        form = "matrix" if form == "source" and sources > 1 else form
        inputs.append(Input(f"x{number}", form, 0.5 if form == "scalar" else None))
    behind = [is_gated and form in ("row", "matrix") and draw.random() < 0.5 for form, _ in kinds]
    builder = _Builder(draw, bits, deepest, is_gated, behind, right_to)
    graph = traced(builder.build, tuple(inputs), f"drawn{seed}")
    return Drawn(EpilogueFunction(f"drawn{seed}", graph), builder.errors, builder.reductions)


class _Builder:
    def __init__(
        self, draw: random.Random, bits: int, deepest: int, is_gated: bool, behind: list[bool], right_to: float
    ) -> None:
        self.draw, self.bits, self.deepest, self.is_gated = draw, bits, deepest, is_gated
        self.behind = behind  # of each parameter, whether it goes with values of pairs
        self.epsilon = 2.0 ** (1 - min(bits, 24))
        self.of_activations = max(8 * self.epsilon, right_to)
        self.errors: dict[str, float] = {}
        self.reductions: dict[str, Reduced] = {}

    def build(self, accum: Any, *others: Any) -> dict[str, Any]:
        given = [_Known(other, OTHER, GRAIN) for other in others]
        behind = [each for each, later in zip(given, self.behind, strict=True) if later]
        known = [_Known(accum, ACCUMULATOR, 1.0), *(each for each in given if not any(each is one for one in behind))]
        if not self.fits(known[0]):
            known[0] = self.limited(known[0])
        outputs: dict[str, _Known] = {}
        total = self.combined(known, self.draw.randint(1, self.deepest), outputs)
        if self.is_gated:
            if not outputs and self.draw.random() < 0.3:
                outputs["whole"] = total
            if not total.value._trace.columns.of(total.value._number):  # which `pairs` does not take
                total = self.added(total, known[0])
            known = [self.gated(total), *behind]
            total = self.combined(known, self.draw.randint(0, 3), outputs)
        outputs = {"D": total, **outputs} if self.draw.random() < 0.5 else {**outputs, "D": total}
        self.errors.update({name: each.error for name, each in outputs.items()})
        made = {name: each.value for name, each in outputs.items()}
        for number in range(self.draw.choice([0, 0, 0, 1, 2, 3])):
            made[f"r{number}"] = self.reduced(f"r{number}", self.draw.choice(known))
        return made | self.selected([each for each in known if self.fits(each)])

    def combined(self, known: list[_Known], nodes: int, outputs: dict[str, _Known]) -> _Known:
        """Return what all values come to, those known and as many nodes of them; some may become outputs."""
        unused = list(known)
        for _ in range(nodes):
            made, used = self.node(known)
            made = made if made.bound <= 64 else self.limited(made)
            unused = [each for each in unused if not any(each is one for one in used)]
            known.append(made)
            unused.append(made)
        while len(unused) > 1 and len(outputs) < 2 and self.draw.random() < 0.4:
            outputs[f"y{len(outputs)}"] = unused.pop(self.draw.randrange(len(unused)))
        total = unused[0]
        for each in unused[1:]:
            total = self.added(total, each)
        return total

    def gated(self, x: _Known) -> _Known:
        """Return what the even and the odd columns of a value come to."""
        x = x if x.bound <= 64 else self.limited(x)
        even, odd = (replace(x, value=each) for each in epilogue.pairs(x.value))
        way = self.draw.choice([self.multiplied, self.added, self.subtracted, self.between, self.divided])
        made = way(self.smooth(even), self.limited(odd)) if self.draw.random() < 0.7 else way(odd, even)
        return made if made.bound <= 64 else self.limited(made)

    def reduced(self, output: str, x: _Known) -> Any:
        """Return a reduction of a value along some axis."""
        name = self.draw.choice(["sum", "max", "min", "absmax", "sum_of_squares", "logsumexp"])
        bound, grain, error = x.bound, x.grain, x.error
        if name == "sum_of_squares":
            x = self.limited(x)
            bound, grain, error = x.bound**2, x.grain**2, 2 * x.bound * x.error
        elif name == "logsumexp":
            grain = 0.0
        self.reductions[output] = Reduced(name, bound, grain, error)
        return getattr(epilogue, name)(x.value, axis=self.draw.choice([0, 1, None]))

    def selected(self, exact: list[_Known]) -> dict[str, Any]:
        """Return the largest of each row of an exact value, whose order is known; now and then."""
        if not exact or self.draw.random() > 0.15:
            return {}
        value, k = self.draw.choice(exact).value, self.draw.randint(1, 8)
        with contextlib.suppress(DescriptionError):  # it is the same in all columns
            values, indices = epilogue.top_k(value, k)
            made = {"most": values, "places": indices}
            return {name: made[name] for name in self.draw.choice([("most",), ("places",), ("most", "places")])}
        return {}

    def fits(self, known: _Known) -> bool:
        """Whether a value is exact."""
        return known.grain > 0 and known.error == 0 and known.bound / known.grain < 2.0 ** (self.bits - 1)

    def settled(self, made: _Known) -> _Known:
        """Return a value that is exact where it can be, else with the error of one rounding."""
        if self.fits(made):
            return made
        return replace(made, grain=0.0, error=made.error + self.epsilon * made.bound)

    def added(self, x: _Known, y: _Known) -> _Known:
        grain = min(x.grain, y.grain) if x.grain and y.grain else 0.0
        return self.settled(_Known(x.value + y.value, x.bound + y.bound, grain, x.error + y.error))

    def limited(self, x: _Known, most: float = 4.0) -> _Known:
        return replace(x, value=epilogue.clamp(x.value, -most, most), bound=min(x.bound, most))

    def node(self, known: list[_Known]) -> tuple[_Known, tuple[_Known, ...]]:
        """Return a new value, and what it was made of."""
        x, y = self.draw.choice(known), self.draw.choice(known)
        exact = [each for each in known if self.fits(each)]
        ways: list[Callable[[], tuple[_Known, tuple[_Known, ...]]]] = [
            lambda: (self.added(x, y), (x, y)),
            lambda: (self.subtracted(x, y), (x, y)),
            lambda: (self.multiplied(x, y), (x, y)),
            lambda: (self.constant(x), (x,)),
            lambda: (self.between(x, y), (x, y)),
            lambda: (self.smooth(x), (x,)),
            lambda: (self.smooth(x), (x,)),
            lambda: (self.positive(x), (x,)),
            lambda: (self.divided(x, y), (x, y)),
        ]
        if len(exact) > 1:
            a, b = self.draw.choice(exact), self.draw.choice(exact)
            ways += [lambda: (self.chosen(a, b, x, y), (a, b, x, y)), lambda: (self.jumping(a), (a,))]
        return self.draw.choice(ways)()

    def subtracted(self, x: _Known, y: _Known) -> _Known:
        grain = min(x.grain, y.grain) if x.grain and y.grain else 0.0
        return self.settled(_Known(x.value - y.value, x.bound + y.bound, grain, x.error + y.error))

    def multiplied(self, x: _Known, y: _Known) -> _Known:
        error = x.error * y.bound + y.error * x.bound + x.error * y.error
        return self.settled(_Known(x.value * y.value, x.bound * y.bound, x.grain * y.grain, error))

    def constant(self, x: _Known) -> _Known:
        number = self.draw.choice([-1.5, -1.0, 0.5, 2.0, 3])
        if number == -1.0:
            return replace(x, value=-x.value)
        made = x.value * number if self.draw.random() < 0.5 else number * x.value
        return self.settled(_Known(made, x.bound * abs(number), x.grain / 2, x.error * abs(number)))

    def between(self, x: _Known, y: _Known) -> _Known:
        function = self.draw.choice([epilogue.minimum, epilogue.maximum])
        grain = min(x.grain, y.grain) if x.grain and y.grain else 0.0
        return _Known(function(x.value, y.value), max(x.bound, y.bound), grain, max(x.error, y.error))

    def smooth(self, x: _Known) -> _Known:
        """Apply a function whose slope is at most 2, and which is right to 8 epsilons, or to what was told."""
        x = self.limited(x)
        name = self.draw.choice(
            [
                "tanh",
                "sigmoid",
                "silu",
                "gelu",
                "gelu_tanh",
                "hardswish",
                "softplus",
                "erf",
                "relu",
                "leaky_relu",
                "abs",
            ]
        )
        value = getattr(epilogue, name)(x.value)
        if name in ("relu", "abs") and self.fits(x):
            return _Known(value, x.bound, x.grain)
        bound = x.bound + 1
        return _Known(value, bound, 0.0, 2 * x.error + self.of_activations * bound)

    def positive(self, x: _Known) -> _Known:
        """Apply a function of positive numbers, whose slope is known between 1/4 and 4."""
        name, slope, bound = self.draw.choice(_POSITIVE)
        low = -4.0 if name in ("exp", "exp2") else 0.25
        value = epilogue.clamp(x.value, low, 4.0)
        made = value**1.5 if name == "power" else getattr(epilogue, name)(value)
        return _Known(made, bound, 0.0, slope * x.error + 8 * self.epsilon * bound)

    def divided(self, x: _Known, y: _Known) -> _Known:
        x = self.limited(x)
        divisor = epilogue.maximum(abs(y.value), 0.5)
        error = 2 * x.error + 4 * x.bound * y.error + 4 * self.epsilon * x.bound
        return _Known(x.value / divisor, 2 * x.bound, 0.0, error)

    def chosen(self, a: _Known, b: _Known, x: _Known, y: _Known) -> _Known:
        ways: tuple[Callable[[], Any], ...] = (
            lambda: a.value < b.value,
            lambda: a.value <= b.value,
            lambda: a.value > b.value,
            lambda: a.value >= b.value,
            lambda: a.value == b.value,
            lambda: a.value != b.value,
            lambda: ~(a.value < b.value) & (b.value != 0.0),
            lambda: (a.value > 1.0) | (b.value > 0.0),
        )
        compared = self.draw.choice(ways)()
        grain = min(x.grain, y.grain) if x.grain and y.grain else 0.0
        value = epilogue.where(compared, x.value, y.value)
        return _Known(value, max(x.bound, y.bound), grain, max(x.error, y.error))

    def jumping(self, x: _Known) -> _Known:
        """Round an exact value, or take what a division leaves."""
        name = self.draw.choice(_JUMPING)
        if name.startswith("float"):
            return _Known(epilogue.cast(x.value, getattr(cutlass, name)), x.bound * 1.25, x.grain)
        if name == "remainder":
            return _Known(x.value % 3.0, 3.0, min(x.grain, 1.0))
        if name == "quotient":
            return _Known(x.value // 3.0, math.ceil(x.bound / 3) + 1, 1.0)
        if name == "divmod":
            quotient, remainder = divmod(x.value, 3.0)
            return _Known(2 * quotient + remainder, x.bound + 5, min(x.grain, 1.0))
        if name.startswith("int"):
            return _Known(epilogue.cast(x.value, getattr(cutlass, name)), math.ceil(x.bound), 1.0)
        return _Known(getattr(epilogue, name)(x.value), math.ceil(x.bound) + 1, 1.0)
