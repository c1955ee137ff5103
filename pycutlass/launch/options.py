"""How a launch shares a GPU with others: on how many multiprocessors, and before or behind which other work."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pycutlass import _core
from pycutlass.calls import shown
from pycutlass.errors import ArgumentError, ArgumentTypeError
from pycutlass.integers import as_int

__all__ = ["USUAL", "LaunchOptions", "check_priority", "check_sm_count"]


@dataclass(frozen=True)
class LaunchOptions:
    """What is asked of all launches with some arguments, checked as far as that needs no GPU.

    Attributes
    ----------
    sm_count : int or None
        Multiprocessors that a persistent kernel may use; None for all.
    priority : int or None
        Of the kernel among work that waits for multiprocessors; None for that of the stream.
    """

    sm_count: int | None = None
    priority: int | None = None

    def apply(self, call: _core.Call, ordinal: int) -> None:
        """Have a call for GPU `ordinal` be launched so.

        Raises
        ------
        ArgumentError
            The GPU has no such priority.
        """
        if self.sm_count is not None:
            call.set_sm_count(self.sm_count)
        if self.priority is None:
            return
        least, greatest = _core.priority_range(ordinal)
        if not greatest <= self.priority <= least:
            near = min(max(self.priority, greatest), least)
            raise ArgumentError(
                f"launch_priority={self.priority} is none of GPU {ordinal}, which has {greatest} (goes first) to "
                f"{least} (the usual one): use launch_priority={near}"
            )
        call.set_launch_priority(self.priority)


#: What most launches have: no limit and the priority of their stream.
USUAL = LaunchOptions()


def check_sm_count(given: Any, operation: Any, is_persistent: bool) -> int | None:
    """Return on how many multiprocessors a kernel of `operation` may run, or None for all.

    A persistent kernel has as many threadblocks as the GPU holds, of which each takes one tile after the other.

    Raises
    ------
    ArgumentError
        The kernel is not a persistent one, or a cluster of threadblocks needs more.
    ArgumentTypeError
        It is no integer.
    """
    if given is None:
        return None
    count = _whole("sm_count", given)
    if not is_persistent:
        raise ArgumentError(
            f"sm_count={count} cannot be kept: {operation.procedural_name()} has a threadblock for each tile of D, "
            f"which go wherever there is room. Leave sm_count out, or describe a kernel whose threadblocks take one "
            f"tile after the other: a Hopper-native one (cluster_shape), or a group"
        )
    m, n, _ = operation.tile_description.cluster_shape or (1, 1, 1)
    if count < m * n:
        raise ArgumentError(
            f"sm_count={count} is too few: "
            + (
                "a kernel needs a multiprocessor, use at least sm_count=1"
                if m * n == 1
                else f"the {m * n} threadblocks of a cluster of {m}x{n} run at the same time, each on a "
                f"multiprocessor of its own. Use at least sm_count={m * n}, or a smaller cluster_shape"
            )
        )
    return count


def check_priority(given: Any) -> int | None:
    """Return the priority of launches, or None for that of their stream; a GPU says which ones it has.

    Raises
    ------
    ArgumentTypeError
        It is no integer.
    """
    return None if given is None else _whole("launch_priority", given)


def _whole(name: str, given: Any) -> int:
    count = as_int(given)
    if count is None or abs(count) >= 1 << 31:
        raise ArgumentTypeError(f"{name} must be an integer or None, got {shown(given)}")
    return count
