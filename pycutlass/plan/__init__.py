"""From a problem to a kernel: what kernels there are for it, which is likely the fastest, and how it is called."""

from pycutlass.plan.candidate import Candidate
from pycutlass.plan.candidates import candidates
from pycutlass.plan.group_candidates import GroupCandidate, group_candidates
from pycutlass.plan.kind import GemmKind
from pycutlass.plan.pick import Ranked, pick, ranking
from pycutlass.plan.second_opinion import second_opinion

__all__ = [
    "Candidate",
    "GemmKind",
    "GroupCandidate",
    "Ranked",
    "candidates",
    "group_candidates",
    "pick",
    "ranking",
    "second_opinion",
]
