"""Which candidate a plan of groups has: one for all groups that are alike."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from pycutlass import device
from pycutlass.device import Device
from pycutlass.operation.group_support import Sizes
from pycutlass.plan.building import without_gpu
from pycutlass.plan.group_candidates import GroupCandidate
from pycutlass.plan.group_pick import Typical, group_refused, pick_group, rank_group, typical
from pycutlass.plan.kind import GemmKind
from pycutlass.plan.predicted import Ranked

__all__ = ["GroupChoices"]

#: Groups that are told apart: a program whose groups never look like earlier ones must not fill memory.
_MOST = 256
_Key = tuple[Typical, bool]
_NONE: Mapping[Any, Any] = MappingProxyType({})


class GroupChoices:
    """The candidates of a plan of groups.

    Parameters
    ----------
    kind : GemmKind
        What each problem is.
    ordinal : int or None
        The GPU; None for the host.
    chosen : mapping
        What a plan had chosen that was pickled: that stays.
    """

    def __init__(self, kind: GemmKind, ordinal: int | None, chosen: Mapping[_Key, Any] = _NONE) -> None:
        self._kind, self._ordinal = kind, ordinal
        self._picked = {key: GroupCandidate.of(kind, choice) for key, choice in chosen.items()}
        self._lock = threading.Lock()

    @property
    def gpu(self) -> Device:
        """The GPU, or what is planned for without one."""
        return without_gpu() if self._ordinal is None else device.describe(self._ordinal)

    def of(self, sizes: Sizes, axis: int, on_device: bool) -> GroupCandidate:
        """Return the candidate for a group, chosen when the first that is like it comes.

        It is chosen for what stands for all of them, so that it does not depend on which of them came first.

        Parameters
        ----------
        sizes : array of shape (problems, 3)
            M, N and K of problems that have results.
        axis : int
            Which of them varies between groups that are alike.
        on_device : bool
            Whether the device alone knows the sizes.

        Raises
        ------
        ArgumentError
            No kernel takes the group.
        """
        key = typical(sizes, axis), on_device
        found = self._picked.get(key)
        if found is None:
            found = pick_group(self._kind, sizes, key[0], self.gpu, on_device)
            with self._lock:
                while len(self._picked) >= _MOST:
                    self._picked.pop(next(iter(self._picked)))
                found = self._picked.setdefault(key, found)
        return found

    def ranked(self, sizes: Sizes, axis: int) -> tuple[Ranked[GroupCandidate], ...]:
        """Return all candidates that take a group, the likely fastest first."""
        return rank_group(self._kind, sizes, typical(sizes, axis), self.gpu)

    def refused(self, sizes: Sizes, axis: int) -> dict[str, list[str]]:
        """Return the names of candidates that do not take a group, by the reason."""
        return group_refused(self._kind, sizes, typical(sizes, axis), self.gpu)

    def made(self) -> list[GroupCandidate]:
        """Return all that were chosen so far."""
        return list(dict.fromkeys(self._picked.values()))

    def state(self) -> dict[_Key, Any]:
        """Return what was chosen, as JSON has candidates."""
        return {key: candidate.choice() for key, candidate in self._picked.items()}
