"""Which kernel is the fastest for a problem, measured.

Read in this order: ``tuner`` (the story), ``turns`` (the kernels of the next problem, compiled meanwhile), ``race``
(who is measured when, and who is given up), ``tunable`` (what is asked of a problem, whichever family computes it),
``measuring`` and ``bench`` (the process that measures), ``epilogue_tensors`` and ``expected`` (what epilogues read, and
what is right), ``vendor`` (cuBLAS and cuDNN beside them), ``compiling`` (kernels that arrive meanwhile), ``report``
(what came of it), ``elsewhere`` (workers that have GPUs). ``named`` and ``files`` make problems of names.
"""

from pycutlass.tuning.conv2d_problem import Conv2dProblem
from pycutlass.tuning.elsewhere import tune_on
from pycutlass.tuning.farm import RayExecutor
from pycutlass.tuning.files import read_problems
from pycutlass.tuning.group_problem import GroupProblem
from pycutlass.tuning.named import conv2d_problem_of, group_problem_of, problem_of
from pycutlass.tuning.options import TuningOptions
from pycutlass.tuning.problem import Problem
from pycutlass.tuning.report import ProblemReport, TuningReport
from pycutlass.tuning.tuner import compile_candidates, tune

__all__ = [
    "Conv2dProblem",
    "GroupProblem",
    "Problem",
    "ProblemReport",
    "RayExecutor",
    "TuningOptions",
    "TuningReport",
    "compile_candidates",
    "conv2d_problem_of",
    "group_problem_of",
    "problem_of",
    "read_problems",
    "tune",
    "tune_on",
]
