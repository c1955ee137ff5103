"""Which candidate a plan has for each M: what was measured, else what is likely the fastest."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Mapping
from contextlib import suppress
from types import MappingProxyType
from typing import Any, Generic, TypeVar

from pycutlass import device
from pycutlass.device import Device
from pycutlass.errors import ArgumentError
from pycutlass.plan.alignments import choice_in
from pycutlass.plan.building import Built, without_gpu
from pycutlass.plan.candidate import Candidate
from pycutlass.plan.kind import GemmKind
from pycutlass.plan.measured import Recorded, generation, tuned
from pycutlass.plan.pick import pick
from pycutlass.plan.readings import range_of
from pycutlass.plan.records import problem_record

__all__ = ["Choices", "Chosen"]

#: Values of M of which is remembered what the database knows: more than servers have batches.
_MOST = 4096
_NONE: Mapping[int, Any] = MappingProxyType({})
_Kernel = TypeVar("_Kernel")


class Chosen(ABC, Generic[_Kernel]):
    """The candidates of a plan, by the one extent that runs of it may change: M of a GEMM, images of a convolution.

    Parameters
    ----------
    ordinal : int or None
        The GPU; None for the host.
    source : str or None
        The C that a functor reads, ``"matrix"`` or ``"bias"``; None where it reads none, or always does.
    chosen, measured : mapping
        What a plan had chosen that was pickled, by the end of a range and by extent: that stays.
    """

    def __init__(
        self,
        ordinal: int | None,
        source: str | None = None,
        chosen: Mapping[int, Any] = _NONE,
        measured: Mapping[int, Any] = _NONE,
    ) -> None:
        self._ordinal, self._source = ordinal, source
        self._picked = {most: self._restored_from(choice) for most, choice in chosen.items()}
        self._measured = {extent: self._restored_from(choice) for extent, choice in measured.items()}
        self._restored = frozenset(chosen)
        self._lock, self._generation = threading.Lock(), generation.number
        self._looked_up: dict[int, _Kernel | None] = {}
        self._present = set[int]()  # extents of which a kernel that is compiled took the place of the best

    @abstractmethod
    def _restored_from(self, choice: Mapping[str, Any]) -> _Kernel:
        """Return the candidate that a choice describes."""

    @abstractmethod
    def _choice_of(self, candidate: _Kernel) -> dict[str, Any]:
        """Return a candidate as JSON has it."""

    @abstractmethod
    def _pick(self, extent: int) -> _Kernel:
        """Return the likely fastest candidate, or raise ArgumentError where no kernel takes the problem."""

    @abstractmethod
    def _require(self, candidate: _Kernel, extent: int) -> None:
        """Raise ArgumentError where a candidate does not take the problem."""

    @abstractmethod
    def _recorded(self, extent: int, source: str | None) -> Recorded[_Kernel]:
        """Return what the database is asked about the problem of an extent, with a C or without."""

    @property
    def gpu(self) -> Device:
        """The GPU, or what is planned for without one."""
        return without_gpu() if self._ordinal is None else device.describe(self._ordinal)

    def of(self, extent: int) -> _Kernel:
        """Return the candidate for `extent`: the fastest that was measured for it, else the one of its range.

        Raises
        ------
        ArgumentError
            No kernel takes the problem.
        CacheError
            The database was named and cannot be used.
        """
        found = self._measured.get(extent)
        if found is None and self._ordinal is not None and range_of(extent) not in self._restored:
            found = self._look_up(extent, self._ordinal)
        return self._of_range(extent) if found is None else found

    def why(self, extent: int, called: str) -> str:
        """Return why `of` has its candidate, where it may be another than the likely fastest for `extent`; else ''."""
        if extent in self._measured or self._looked_up.get(extent) is not None:
            return "it is the fastest that was measured"
        most = range_of(extent)
        if most in self._present and most in self._picked:  # else the extent itself has another kernel
            return "it is compiled already, as fast as the likely fastest to 1 %, and adds up in the same order"
        if most in self._restored:
            return "it was chosen when the plan was made that was pickled or copied"
        return "" if most == extent else f"it is the likely fastest for {called}={most:,}, the end of its range"

    def made(self) -> list[_Kernel]:
        """Return all that were chosen so far."""
        found = [each for each in self._looked_up.copy().values() if each is not None]
        return [*(self._picked[most] for most in sorted(self._picked)), *self._measured.copy().values(), *found]

    def state(self) -> tuple[dict[int, Any], dict[int, Any]]:
        """Return what was chosen as JSON has it, by the end of a range and by extent."""
        found = {extent: each for extent, each in self._looked_up.copy().items() if each is not None} | self._measured
        chosen = {most: self._choice_of(candidate) for most, candidate in self._picked.copy().items()}
        return chosen, {extent: self._choice_of(candidate) for extent, candidate in found.items()}

    def _look_up(self, extent: int, ordinal: int) -> _Kernel | None:
        """Return what the database has, which is asked once, and again after something was measured here."""
        with self._lock:
            if self._generation != generation.number or len(self._looked_up) >= _MOST:
                self._generation, self._looked_up = generation.number, {}
            known = self._looked_up
        if extent not in known:
            known[extent] = tuned(lambda source: self._recorded(extent, source), self._source, ordinal)
        return known[extent]

    def _of_range(self, extent: int) -> _Kernel:
        """Return the candidate for the range that `extent` is in, chosen when it is first asked for.

        It is chosen for the end of the range, so that it does not depend on which extent came first.
        """
        most = range_of(extent)
        found = self._picked.get(most)
        if found is None:
            with suppress(ArgumentError):  # it may take no problem of that extent, perhaps for an alignment
                found = self._pick(most)
                self._require(found, extent)
                with self._lock:
                    return self._picked.setdefault(most, found)
            return self._pick(extent)
        return found


class Choices(Chosen[Candidate]):
    """The candidates of a plan of GEMMs, by M.

    Parameters
    ----------
    kind : GemmKind
        What is computed.
    columns_and_depth : tuple of 2 int
        N and K.
    batch : int or None
        Number of matrices.
    ordinal, source, chosen, measured
        As of `Chosen`.
    """

    def __init__(
        self,
        kind: GemmKind,
        columns_and_depth: tuple[int, int],
        batch: int | None,
        ordinal: int | None,
        source: str | None = None,
        chosen: Mapping[int, Any] = _NONE,
        measured: Mapping[int, Any] = _NONE,
    ) -> None:
        self._kind, self._extents, self._batch = kind, columns_and_depth, batch
        super().__init__(ordinal, source, chosen, measured)

    def _restored_from(self, choice: Mapping[str, Any]) -> Candidate:
        return Candidate.of(self._kind, choice)

    def _choice_of(self, candidate: Candidate) -> dict[str, Any]:
        return choice_in(self._kind, candidate)

    def _pick(self, extent: int) -> Candidate:
        asked = self._kind, extent, *self._extents, self._batch, self.gpu
        if self._ordinal is None:
            return pick(*asked)
        built, considered = Built(self._ordinal), list[Candidate]()

        def is_built(candidate: Candidate) -> bool:
            considered.append(candidate)
            return built(candidate.kernels)

        chosen = pick(*asked, is_compiled=is_built)
        if chosen != considered[0]:
            self._present.add(extent)
        return chosen

    def _require(self, candidate: Candidate, extent: int) -> None:
        candidate.operation.supports(candidate.size(extent, *self._extents, self._batch)).require()

    def _recorded(self, extent: int, source: str | None) -> Recorded[Candidate]:
        size = extent, *self._extents
        return Recorded(
            problem_record(self._kind, *size, self._batch, source),
            self._restored_from,
            lambda candidate: candidate.operation.supports(candidate.size(*size, self._batch)),
        )
