"""From a problem to a kernel: what kernels there are for it, which is likely the fastest, and how it is called."""

import typing as _typing

from pycutlass.imported import imports_later as _imports_later
from pycutlass.plan.candidate import Candidate
from pycutlass.plan.candidates import candidates
from pycutlass.plan.group_candidates import GroupCandidate, group_candidates
from pycutlass.plan.kind import GemmKind
from pycutlass.plan.pick import Ranked, pick, ranking
from pycutlass.plan.second_opinion import second_opinion

if _typing.TYPE_CHECKING:
    from pycutlass.plan.conv_candidate import Conv2dCandidate
    from pycutlass.plan.conv_candidates import conv2d_candidates
    from pycutlass.plan.conv_kind import Conv2dKind
    from pycutlass.plan.conv_pick import conv2d_pick, conv2d_ranking

__all__ = [
    "Candidate",
    "Conv2dCandidate",
    "Conv2dKind",
    "GemmKind",
    "GroupCandidate",
    "Ranked",
    "candidates",
    "conv2d_candidates",
    "conv2d_pick",
    "conv2d_ranking",
    "group_candidates",
    "pick",
    "ranking",
    "second_opinion",
]

#: The modules of what products do without, imported when it is first asked for.
_LATER = {
    "Conv2dCandidate": "conv_candidate",
    "Conv2dKind": "conv_kind",
    "conv2d_candidates": "conv_candidates",
    "conv2d_pick": "conv_pick",
    "conv2d_ranking": "conv_pick",
}
__getattr__ = _imports_later(__name__, _LATER)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
