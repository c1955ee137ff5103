"""One case of the fuzz: a kernel on a problem."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

import pycutlass
from pycutlass import cutlass
from pycutlass.errors import DescriptionError
from tools.fuzz.conv_cases import ConvProblem, draw_conv, launch_conv
from tools.fuzz.gemm_cases import GemmProblem, draw_gemm, launch_gemm
from tools.fuzz.group_cases import GroupProblem, draw_group, launch_group
from tools.fuzz.kernels import Kernel
from tools.fuzz.outcome import Outcome, judge, refused

__all__ = ["Case", "draw_case", "needed", "parts", "run_case"]

Problem = GemmProblem | GroupProblem | ConvProblem


@dataclass(frozen=True)
class Case:
    """A kernel on a problem. Its name is ``SEED:KERNEL:PROBLEM``, with which it can be run again.

    Attributes
    ----------
    attempt : int
        Problems that were refused before this one.
    """

    kernel: Kernel
    number: int
    attempt: int
    problem: Problem

    @property
    def name(self) -> str:
        """What ``--case`` takes."""
        return f"{self.kernel.seed}:{self.kernel.index}:{self.number}"

    @property
    def mode(self) -> str:
        """How the kernel is launched."""
        return "grouped" if isinstance(self.problem, GroupProblem) else self.problem.mode


def draw_case(kernel: Kernel, number: int, attempt: int = 0, *, small: bool = False) -> Case:
    """Return problem `number` of a kernel, or another one where those of the attempts before were refused."""
    random = Random(f"{kernel.seed}:{kernel.index}:{number}:{attempt}")
    operation = kernel.operation
    problem: Problem
    if isinstance(operation, pycutlass.GemmOperationGrouped):
        problem = draw_group(random, operation, small=small)
    else:
        modes = _modes(kernel, attempt)
        is_conv = isinstance(operation, pycutlass.Conv2dOperation)
        mode = random.choice(modes)
        functor = (kernel.reduction if mode == "parallel" else operation).epilogue_functor
        problem = (draw_conv if is_conv else draw_gemm)(random, operation, functor, [mode], small=small)
    return Case(kernel, number, attempt, problem)


def needed(kernel: Kernel, numbers: Iterable[int]) -> list[Any]:
    """Return what has to be compiled for problems of these `numbers`."""
    operations = list(kernel.operations)
    if _has_own_arrays(kernel) and any(draw_case(kernel, number).mode == "array" for number in numbers):
        operations.append(kernel.operation.array)
    return operations


def parts(operations: Sequence[Any]) -> list[Any]:
    """Return each kernel that is compiled for operations, such as those of partial sums beside a reduction."""
    return [part for operation in operations for part in operation.parts(operations)]


def run_case(case: Case, device: str) -> Outcome:
    """Run one case and return how it ended. What a broken GPU raises passes on."""
    operation, reduction, problem = case.kernel.operation, case.kernel.reduction, case.problem
    try:
        if isinstance(problem, GroupProblem):
            launch, targets, places = launch_group(problem, operation, device)
        elif isinstance(problem, ConvProblem):
            launch, targets, places = launch_conv(problem, operation, reduction, device)
        else:
            launch, targets, places = launch_gemm(problem, operation, reduction, device)
    except Exception as error:
        if refused(error):
            return Outcome("refused", repr(problem), str(error))
        raise
    launch()
    wrong = judge(targets, places)
    return Outcome("wrong" if wrong else "right", repr(problem), wrong)


def _modes(kernel: Kernel, attempt: int) -> list[str]:
    """Return how a kernel may be launched, the interesting ways more often."""
    operation = kernel.operation
    if isinstance(operation, pycutlass.Conv2dOperation):
        modes = ["conv", "conv"] + (["serial"] if operation.splits_k and not _narrow(operation) else [])
        return modes + (["parallel", "parallel"] if kernel.reduction is not None else [])
    modes = ["gemm", "gemm", "gemm", "batched"]
    if cutlass.gemm.Mode.Array not in operation.family.modes or operation.is_stream_k:
        return modes
    # Whether a kernel of its own is needed for arrays must be known before any problem is refused.
    if not operation.is_sm90 or (not attempt and _has_own_arrays(kernel)):
        modes.append("array")
    modes += [] if _narrow(operation) else ["serial"]
    return modes + (["parallel"] * 3 if kernel.reduction is not None else [])


def _has_own_arrays(kernel: Kernel) -> bool:
    """Return whether another kernel runs in ``Mode.Array``: of a Hopper-native GEMM, where there is one."""
    operation = kernel.operation
    if not isinstance(operation, pycutlass.GemmOperationUniversal) or not operation.is_sm90:
        return False
    try:
        return operation.array is not operation
    except DescriptionError:
        return False


def _narrow(operation: Any) -> bool:
    """Return whether D is an integer that is narrower than the sums, which serial split-K refuses."""
    return bool(operation.C.type.is_integer and operation.C.type.bits < operation.accumulator_type().bits)
