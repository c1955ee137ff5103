"""Whether the sums of a product stay where an epilogue converts them exactly."""

from __future__ import annotations

from pycutlass.epilogue import Epilogue
from pycutlass.errors import ArgumentError
from pycutlass.launch import Operand
from pycutlass.log import say_once

__all__ = ["check_sums"]

_LARGEST_PRODUCT = 128 * 128  # of two int8


def check_sums(functor: Epilogue, A: Operand, B: Operand, k: int) -> None:
    """Raise ArgumentError where sums of `k` products of A and B may leave the range that the epilogue is exact in.

    Up to the functor's own K no int8 operands leave it. Beyond that it depends on what they hold: that is known of
    memory of the host, which is read when arguments are made, and of nothing on a GPU, where it may be another thing
    at each launch.
    """
    if functor.max_k is None or k <= functor.max_k:
        return
    name, most = type(functor).__name__, functor.max_k * _LARGEST_PRODUCT
    a, b = _greatest(A), _greatest(B)
    if a is None or b is None:
        raise ArgumentError(
            f"{name} holds for K of at most {functor.max_k} whatever the operands are, got K={k}, and what they hold "
            f"is known of arrays in host memory alone: use LinearCombinationClamp"
        )
    if a * b * k > most:
        raise ArgumentError(
            f"{name} is exact for sums up to {most:,}, got K={k} with elements up to {a} in {A.name} and {b} in "
            f"{B.name}, which may add up to {a * b * k:,}: use LinearCombinationClamp"
        )
    say_once(
        f"{name} is exact for sums up to {most:,}, which K of at most {functor.max_k} always keeps to. Larger K, as "
        f"K={k}, is taken where the operands are small enough; LinearCombinationClamp takes any",
        cause=f"sums of {name}",
    )


def _greatest(operand: Operand) -> int | None:
    """Return the largest magnitude in an operand, or None where it isn't known."""
    if operand.view.device is not None:
        return None
    values = operand.host_array()
    return max(abs(int(values.min())), abs(int(values.max()))) if values.size else 0
