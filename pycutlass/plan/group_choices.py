"""Which candidate a plan of groups has: one for all groups that are alike."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from pycutlass import device
from pycutlass.device import Device
from pycutlass.enums import SchedulerMode
from pycutlass.operation.group_support import Sizes
from pycutlass.plan.alignments import choice_in
from pycutlass.plan.building import without_gpu
from pycutlass.plan.group_candidates import GroupCandidate
from pycutlass.plan.group_pick import Typical, group_refused, pick_group, rank_group, typical
from pycutlass.plan.kind import GemmKind
from pycutlass.plan.measured import Recorded, generation, tuned
from pycutlass.plan.predicted import Ranked
from pycutlass.plan.records import group_record

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
    source : str or None
        The C that a functor reads, as of `Chosen`.
    chosen : mapping
        What a plan had chosen that was pickled: that stays.
    """

    def __init__(
        self, kind: GemmKind, ordinal: int | None, source: str | None = None, chosen: Mapping[_Key, Any] = _NONE
    ) -> None:
        self._kind, self._ordinal, self._source = kind, ordinal, source
        self._picked = {key: GroupCandidate.of(kind, choice) for key, choice in chosen.items()}
        self._restored = frozenset(chosen)
        self._lock, self._generation = threading.Lock(), generation.number
        self._looked_up: dict[_Key, GroupCandidate | None] = {}

    @property
    def gpu(self) -> Device:
        """The GPU, or what is planned for without one."""
        return without_gpu() if self._ordinal is None else device.describe(self._ordinal)

    def of(self, sizes: Sizes, axis: int, on_device: bool) -> GroupCandidate:
        """Return the candidate for a group: the fastest that was measured for such groups, else the likely fastest.

        It is chosen when the first group comes that is like it, for what stands for all of them, so that it does not
        depend on which of them came first.

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
        CacheError
            The database was named and cannot be used.
        """
        key = typical(sizes, axis), on_device
        if self._ordinal is not None and key not in self._restored:
            measured = self._look_up(key, sizes, self._ordinal)
            if measured is not None:
                return measured
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

    def why(self, sizes: Sizes, axis: int, on_device: bool) -> str:
        """Return why `of` has its candidate, where it may be another than the likely fastest; else ''."""
        key = typical(sizes, axis), on_device
        if self._looked_up.get(key) is not None:
            return "it is the fastest that was measured"
        return "it was chosen when the plan was made that was pickled or copied" if key in self._restored else ""

    def made(self) -> list[GroupCandidate]:
        """Return all that were chosen so far."""
        return list(dict.fromkeys(self._chosen().values()))

    def state(self) -> dict[_Key, Any]:
        """Return what was chosen, as JSON has candidates."""
        return {key: choice_in(self._kind, candidate) for key, candidate in self._chosen().items()}

    def _chosen(self) -> dict[_Key, GroupCandidate]:
        return self._picked | {key: each for key, each in [*self._looked_up.copy().items()] if each is not None}

    def _look_up(self, key: _Key, sizes: Sizes, ordinal: int) -> GroupCandidate | None:
        """Return what the database has, which is asked once, and again after something was measured here."""
        with self._lock:
            if self._generation != generation.number or len(self._looked_up) >= _MOST:
                self._generation, self._looked_up = generation.number, {}
            known = self._looked_up
        if key not in known:
            known[key] = tuned(lambda source: self._recorded(key, sizes, source), self._source, ordinal)
        return known[key]

    def _recorded(self, key: _Key, sizes: Sizes, source: str | None) -> Recorded[GroupCandidate]:
        group, on_device = key

        def supports(candidate: GroupCandidate) -> bool:
            is_scheduled = not on_device or candidate.operation.precompute_mode is SchedulerMode.Device
            return is_scheduled and bool(candidate.operation.supports(sizes))

        record = group_record(self._kind, group, source)
        return Recorded(record, lambda choice: GroupCandidate.of(self._kind, choice), supports)
