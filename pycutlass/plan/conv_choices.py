"""Which candidate a plan of convolutions has for each number of images."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from pycutlass import _core
from pycutlass.plan.alignments import choice_in
from pycutlass.plan.choices import Chosen
from pycutlass.plan.conv_candidate import Conv2dCandidate
from pycutlass.plan.conv_kind import Conv2dKind
from pycutlass.plan.conv_pick import conv2d_pick
from pycutlass.plan.conv_problem import with_images
from pycutlass.plan.measured import Recorded
from pycutlass.plan.records import conv2d_record

__all__ = ["Conv2dChoices"]

_NONE: Mapping[int, Any] = MappingProxyType({})


class Conv2dChoices(Chosen[Conv2dCandidate]):
    """The candidates of a plan of convolutions, by the number of images.

    Parameters
    ----------
    kind : Conv2dKind
        What is computed.
    problem : cutlass.conv.Conv2dProblemSize
        The problem, for any number of images.
    ordinal, source, chosen, measured
        As of `Chosen`.
    """

    def __init__(
        self,
        kind: Conv2dKind,
        problem: _core.Conv2dProblemSize,
        ordinal: int | None,
        source: str | None = None,
        chosen: Mapping[int, Any] = _NONE,
        measured: Mapping[int, Any] = _NONE,
    ) -> None:
        self._kind, self._problem = kind, problem
        super().__init__(ordinal, source, chosen, measured)

    def _restored_from(self, choice: Mapping[str, Any]) -> Conv2dCandidate:
        return Conv2dCandidate.of(self._kind, choice)

    def _choice_of(self, candidate: Conv2dCandidate) -> dict[str, Any]:
        return choice_in(self._kind, candidate)

    def _pick(self, extent: int) -> Conv2dCandidate:
        return conv2d_pick(self._kind, with_images(self._problem, extent), self.gpu)

    def _require(self, candidate: Conv2dCandidate, extent: int) -> None:
        candidate.supports(with_images(self._problem, extent)).require()

    def _recorded(self, extent: int, source: str | None) -> Recorded[Conv2dCandidate]:
        problem = with_images(self._problem, extent)
        return Recorded(
            conv2d_record(self._kind, problem, source),
            self._restored_from,
            lambda candidate: candidate.supports(problem),
        )
