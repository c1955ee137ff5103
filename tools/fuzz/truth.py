"""What D must be: computed by torch in float64, with a bound for the error of each element.

Nothing here is taken from `pycutlass.reference`. Where all numbers are small integers, so that every sum is exact in
whatever order it is made, D must be equal; for other numbers the bound follows from the types and from the size of the
sums, by these facts:

* A sum of n products of random sign is a random walk of size P, the root of the sum of their squares. Rounded to
  nearest n times, it is off by less than 4 eps sqrt(n) P: the tail of such a sum is exponential, and 4 leaves one
  element in 10^13.
* Tensor cores cut an f32 sum off instead, which adds up: 2 eps P for each step.
* Operands that are rounded on their way (f32 and tf32 by tensor cores) are off by d each, so that a sum is off by 2 d
  of itself, and by 6 d P at random.
* The epilogue rounds alpha, the accumulator, two products and their sum, in its compute type.
* Serial split-K rounds to D's type after each slice: to integers by a half at most.
* An activation is off by what the guide states for it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch.nn import functional

from pycutlass import LinearCombinationClamp, MathInstruction, MathOperation
from pycutlass.epilogue import EpilogueFunctor
from pycutlass.types import Element

__all__ = ["Truth", "compare", "expected"]

Tensor = torch.Tensor
Product = Callable[[Tensor, Tensor], Tensor]

_ACTIVATIONS: dict[str, Callable[..., Tensor]] = {
    "identity": lambda y: y,
    "relu": torch.relu,
    "leaky_relu": lambda y, slope: torch.where(y > 0, y, slope * y),
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
    "silu": functional.silu,
    "hardswish": lambda y: y * (y + 3).clamp(0, 6) / 6,  # PyTorch's own divides by 6 in float32 on a GPU
    "gelu": functional.gelu,
    "gelu_tanh": lambda y: functional.gelu(y, approximate="tanh"),
}
_STEEPEST = 1.13  # slope of any activation
_F64_EPSILON = 2.0**-52


@dataclass(frozen=True)
class Truth:
    """What D must be, in float64, before it is rounded, and how far off it may be for other reasons.

    Attributes
    ----------
    value : Tensor
        The exact result.
    error : Tensor
        Zero where the kernel computes without rounding.
    output : Element
        What it is rounded to.
    """

    value: Tensor
    error: Tensor
    output: Element

    def rounded(self) -> Tensor:
        """Return the value in D's type, to nearest even; integers and 8-bit floats saturate."""
        if self.output.is_float8:
            return self.value.clamp(*self.output.limits).to(getattr(torch, self.output.dtype_name))
        if not self.output.is_integer:
            return self.value.to(getattr(torch, self.output.dtype_name))
        return self.value.round().clamp(*self.output.limits).to(getattr(torch, self.output.dtype_name))


def expected(
    math: MathInstruction,
    functor: EpilogueFunctor,
    product: Product,
    operands: tuple[Tensor, Tensor],
    source: Tensor | None,
    scalars: tuple[float, ...],
    *,
    integers: bool,
    products: int,
    slices: int = 1,
    serial: bool = False,
) -> Truth:
    """Return what D must be.

    Parameters
    ----------
    math, functor
        Parts of the description.
    product : callable
        What the kernel computes before its epilogue, of two tensors in float64.
    operands, source : Tensor
        A and B, and C where it is read, in float64.
    scalars : tuple of float
        Alpha, beta, and what the activation needs.
    integers : bool
        Whether all operands are integers, small enough for any rounding of operands.
    products : int
        Number of products in each sum, at most.
    slices : int
        Slices of split-K; where `serial`, D passes from one to the next.
    """
    A, B = operands
    total = product(A, B)
    sizes, walk = product(A.abs(), B.abs()), product(A.square(), B.square()).sqrt()
    exact = integers and _largest(sizes) <= _integers_up_to(math.accumulator)
    error = torch.zeros_like(total) if exact else _sum_error(math, total, walk, products, slices)
    if not integers:
        error = error + _operand_error(math, total, walk)
    alpha, beta, *extra = scalars
    scaled = alpha * total
    added = torch.zeros_like(total) if source is None or beta == 0 else (beta * source).expand_as(total)
    value = scaled + added
    reached = abs(alpha) * sizes + added.abs()
    exactly = exact and _exact_epilogue(functor, reached, alpha, beta, serial and slices > 1)
    if not exactly:
        error = abs(alpha) * error + _epilogue_error(functor, scaled, added, abs(alpha) * walk, slices if serial else 1)
    return _finished(functor, value, error, extra, exactly)


def compare(truth: Truth, actual: Tensor) -> str:
    """Return what is wrong with D, or an empty text."""
    value, error = truth.value, truth.error
    if value.numel() == 0:
        return ""
    rounded, found = truth.rounded().double(), actual.double()
    if truth.output.is_integer:
        least, most = truth.output.limits
        off = (found - value.clamp(least, most)).abs()
        right = torch.where(error == 0, found == rounded, off <= 0.5 + error)
    else:
        # Half an epsilon of the result, and of float64, in which the truth itself is rounded; half the least number.
        if truth.output.is_float8:
            value = value.clamp(*truth.output.limits)
        least = {"e4m3": 2.0**-10, "e5m2": 2.0**-17}.get(truth.output.short, 2.0**-25)
        room = (truth.output.epsilon / 2 + _F64_EPSILON) * (value.abs() + error) + error + least
        right = torch.where(error == 0, found == rounded, (found - value).abs() <= room)
        error = torch.where(error == 0, error, room)
    wrong = (~right).nonzero()
    if not len(wrong):
        return ""
    first = tuple(wrong[0].tolist())
    return (
        f"{len(wrong)} of {value.numel()} elements of D are wrong; the first at {list(first)} is "
        f"{found[first].item()!r}, must be {value[first].item()!r}, give or take {error[first].item():.3g}; "
        f"{int(found.isnan().sum())} are NaN"
    )


def _sum_error(math: MathInstruction, total: Tensor, walk: Tensor, products: int, slices: int) -> Tensor:
    epsilon = math.accumulator.epsilon or 2.0**-31
    # Tensor cores add up half of an instruction's products at a time, but for f64, which they round one by one.
    together = max(1, (math.instruction_shape or (64, 8, 16))[2] // 2) if math.is_tensor_op and math.a.bits < 64 else 1
    steps = -(-products // together) + 16 * slices  # slices, and tiles of stream-K, are added up as well
    error = 4 * epsilon * steps**0.5 * walk
    if math.is_tensor_op and math.accumulator.short == "f32":
        error = error + 2 * epsilon * steps * walk
    if math.math_operation is MathOperation.multiply_add_fast_f32:
        error = error + 4 * 2.0**-20 * walk  # products of the small parts are left out
    return error


def _operand_error(math: MathInstruction, total: Tensor, walk: Tensor) -> Tensor:
    """Return what rounding the operands does: to tf32, which may be cut off, or to nearest in 16 bits."""
    if not math.is_tensor_op or math.a.short not in ("f32", "tf32"):
        return torch.zeros_like(total)
    off = {
        MathOperation.multiply_add_fast_bf16: 2.0**-8,
        MathOperation.multiply_add_fast_f16: 2.0**-11,
        MathOperation.multiply_add_fast_f32: 2.0**-22,
    }.get(math.math_operation, 2.0**-10)
    return 2 * off * total.abs() + 6 * off * walk


def _exact_epilogue(functor: EpilogueFunctor, reached: Tensor, alpha: float, beta: float, serial: bool) -> bool:
    """Return whether alpha * accumulator + beta * C is exact in the compute type, and between slices in D's."""
    steps = [abs(factor) for factor in (alpha, beta) if factor]
    if any(step.as_integer_ratio()[0] & (step.as_integer_ratio()[0] - 1) for step in map(float, steps)):
        return False  # no power of two
    step = min(steps, default=1.0)
    held = [functor.compute] + ([functor.output] if serial else [])
    if step < 1 and any(kind.is_integer for kind in held):
        return False
    return _largest(reached) / step <= min(map(_integers_up_to, held))


def _epilogue_error(functor: EpilogueFunctor, scaled: Tensor, added: Tensor, walk: Tensor, slices: int) -> Tensor:
    epsilon = functor.compute.epsilon or 2.0**-31
    between = scaled.abs() + 5 * walk + added.abs() if slices > 1 else scaled.abs() + added.abs()
    error = 3 * epsilon * slices * between
    if functor.compute.short == "f16":
        error = error + 2.0**-23  # its least steps
    if slices > 1:
        each = 0.5 if functor.output.is_integer else functor.output.epsilon * between
        error = error + (slices - 1) * each
    return error


def _finished(functor: EpilogueFunctor, value: Tensor, error: Tensor, extra: list[float], exactly: bool) -> Truth:
    """Apply the activation, or the limits."""
    if isinstance(functor, LinearCombinationClamp):
        return Truth(value.clamp(*functor.output.limits), error, functor.output)
    if functor.activation is None:
        return Truth(value, error, functor.output)
    name = type(functor.activation).__name__
    result = _ACTIVATIONS[name](value, *extra)
    relative, absolute = functor.activation.error(functor.compute)
    if relative or (name == "leaky_relu" and not _is_power(extra[0])):
        computed = 4 * functor.compute.epsilon
        error = error + (computed + relative) * result.abs() + absolute + (computed if relative else 0.0)
        exactly = False
    return Truth(result, error if exactly else _STEEPEST * error, functor.output)


def _is_power(factor: float) -> bool:
    return factor > 0 and factor.as_integer_ratio()[0] & (factor.as_integer_ratio()[0] - 1) == 0


def _integers_up_to(kind: Element) -> float:
    """Return the integer up to which all are exact."""
    return 2.0**31 - 1 if kind.is_integer else 2.0 ** (kind.mantissa + 1)


def _largest(values: Tensor) -> float:
    return float(values.max()) if values.numel() else 0.0
