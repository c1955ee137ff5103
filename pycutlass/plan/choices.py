"""Which candidate a plan has for each M: what was measured, else what is likely the fastest."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from pycutlass import device
from pycutlass.device import Device
from pycutlass.errors import ArgumentError
from pycutlass.plan.building import without_gpu
from pycutlass.plan.candidate import Candidate
from pycutlass.plan.kind import GemmKind
from pycutlass.plan.measured import generation, tuned
from pycutlass.plan.pick import pick
from pycutlass.plan.readings import range_of

__all__ = ["Choices"]

#: Values of M of which is remembered what the database knows: more than servers have batches.
_MOST = 4096
_NONE: Mapping[int, Any] = MappingProxyType({})


class Choices:
    """The candidates of a plan.

    Parameters
    ----------
    kind : GemmKind
        What is computed.
    columns_and_depth : tuple of 2 int
        N and K.
    batch : int or None
        Number of matrices.
    ordinal : int or None
        The GPU; None for the host.
    chosen, measured : mapping
        What a plan had chosen that was pickled, by the end of a range of M and by M: that stays.
    """

    def __init__(
        self,
        kind: GemmKind,
        columns_and_depth: tuple[int, int],
        batch: int | None,
        ordinal: int | None,
        chosen: Mapping[int, Any] = _NONE,
        measured: Mapping[int, Any] = _NONE,
    ) -> None:
        self._kind, self._extents, self._batch, self._ordinal = kind, columns_and_depth, batch, ordinal
        self._picked = {most: Candidate.of(kind, choice) for most, choice in chosen.items()}
        self._measured = {m: Candidate.of(kind, choice) for m, choice in measured.items()}
        self._restored = frozenset(chosen)
        self._lock, self._generation = threading.Lock(), generation.number
        self._looked_up: dict[int, Candidate | None] = {}

    @property
    def gpu(self) -> Device:
        """The GPU, or what is planned for without one."""
        return without_gpu() if self._ordinal is None else device.describe(self._ordinal)

    def of(self, m: int) -> Candidate:
        """Return the candidate for `m`: the fastest that was measured for it, else the one of the range that it is in.

        Raises
        ------
        ArgumentError
            No kernel takes the problem.
        CacheError
            The database was named and cannot be used.
        """
        found = self._measured.get(m)
        if found is None and self._ordinal is not None and range_of(m) not in self._restored:
            found = self._look_up(m, self._ordinal)
        return self._of_range(m) if found is None else found

    def made(self) -> list[Candidate]:
        """Return all that were chosen so far."""
        found = [each for each in self._looked_up.values() if each is not None]
        return [*(self._picked[most] for most in sorted(self._picked)), *self._measured.values(), *found]

    def state(self) -> tuple[dict[int, Any], dict[int, Any]]:
        """Return what was chosen as JSON has it, by the end of a range and by M."""
        found = {m: each for m, each in self._looked_up.items() if each is not None} | self._measured
        chosen = {most: candidate.choice() for most, candidate in self._picked.items()}
        return chosen, {m: candidate.choice() for m, candidate in found.items()}

    def _look_up(self, m: int, ordinal: int) -> Candidate | None:
        """Return what the database has for `m`, which is asked once, and again after something was measured here."""
        with self._lock:
            if self._generation != generation.number or len(self._looked_up) >= _MOST:
                self._generation, self._looked_up = generation.number, {}
            known = self._looked_up
        if m not in known:
            known[m] = tuned(self._kind, (m, *self._extents), self._batch, ordinal)
        return known[m]

    def _of_range(self, m: int) -> Candidate:
        """Return the candidate for the range of M that `m` is in, chosen when it is first asked for.

        It is chosen for the end of the range, so that it does not depend on which M came first.
        """
        most = range_of(m)
        found = self._picked.get(most)
        if found is None:
            try:
                found = pick(self._kind, most, *self._extents, self._batch, self.gpu)
                found.operation.supports(found.size(m, *self._extents, self._batch)).require()
            except ArgumentError:  # which takes no problem of that M, perhaps for an alignment
                return pick(self._kind, m, *self._extents, self._batch, self.gpu)
            with self._lock:
                found = self._picked.setdefault(most, found)
        return found
