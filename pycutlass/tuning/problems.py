"""What the tuner is given, which candidates of it are compiled, and what options make of it."""

from __future__ import annotations

import dataclasses
import itertools
import json
from collections.abc import Sequence
from typing import Any

from pycutlass.calls import shown
from pycutlass.device import Device
from pycutlass.enums import MathOperation
from pycutlass.errors import ArgumentError, ArgumentTypeError, DescriptionError
from pycutlass.library import TensorDescription
from pycutlass.plan.alignments import choice_in, kind_of_choice
from pycutlass.plan.conv2d import Conv2d
from pycutlass.plan.gemm import Gemm
from pycutlass.plan.grouped_gemm import GroupedGemm
from pycutlass.plan.tunable import TunablePlan
from pycutlass.trials.texts import compact
from pycutlass.tuning.conv2d_problem import Conv2dProblem
from pycutlass.tuning.group_problem import GroupProblem
from pycutlass.tuning.problem import Problem
from pycutlass.tuning.tunable import AnyCandidate, Tunable

__all__ = ["considered", "problems_of", "with_options"]

_MOST = 100_000  # problems of one call
_FEWER_ELEMENTS = (1, 2, 4, 8)
_TUNED = "a Problem, Conv2dProblem or GroupProblem of pycutlass.tuning, a plan (pycutlass.Gemm, Conv2d or GroupedGemm)"


def problems_of(given: Any) -> list[Tunable]:
    """Return what is to be tuned as a list: of one problem or several, or of plans.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        There is nothing, or something else among them.
    """
    if isinstance(given, Tunable | TunablePlan):
        return [_problem(given)]
    wrong = f"what is tuned must be {_TUNED}, or several; got {shown(given)}"
    if isinstance(given, str | bytes):
        raise ArgumentTypeError(wrong)
    try:
        listed = list(itertools.islice(given, _MOST + 1))
    except Exception as error:  # of whoever walks along them
        raise ArgumentTypeError(wrong) from error
    if len(listed) > _MOST:
        raise ArgumentError(f"at most {_MOST:,} problems are tuned at once, got more")
    problems = [_problem(each) for each in listed]
    if not problems:
        raise ArgumentError("there is no problem to tune: the list of problems is empty")
    return problems


def _problem(given: Any) -> Tunable:
    match given:
        case Tunable():
            return given
        case Gemm():
            return Problem(given.kind, *given.size, given.batch, given.source)
        case Conv2d():
            return Conv2dProblem(given.kind, given.problem_size, given.source)
        case GroupedGemm():
            return GroupProblem(given.kind, given.sizes, given.axis, given.is_on_device, given.source)
    raise ArgumentTypeError(f"what is tuned must be {_TUNED}, or several; got {shown(given)}")


def considered(
    problem: Tunable, options: Any, gpu: Device, fastest: Sequence[str] = ()
) -> list[tuple[AnyCandidate, Any, float]]:
    """Return the candidates of a report, with the microseconds that are predicted: those that are measured and known.

    Parameters
    ----------
    problem : Tunable
        What they compute.
    options : TuningOptions
        Which say how many are measured: the best by the prediction.
    gpu : Device
        Where.
    fastest : sequence of str
        Choices of those that the database has, the fastest first. They come first, since a plan takes them; where they
        are measured again, they are of the number that is.

    Raises
    ------
    ArgumentError
        No kernel takes the problem, or none within the options.
    """
    found: dict[AnyCandidate, tuple[float, Any, float]] = {}
    known: dict[str, AnyCandidate] = {}
    listed = _kinds(problem.kind, options)
    for kind in dict.fromkeys([*listed, *_kinds_of(problem.kind, fastest)]):
        latest = 0.0  # what a ranking has last, whatever is predicted of it, stays behind
        for each in problem.of_kind(kind).ranked(gpu):
            latest = max(latest, each.microseconds)
            if options.split_k_slices is not None and each.candidate.split_k_slices not in options.split_k_slices:
                continue
            if fastest and (text := compact(choice_in(problem.kind, each.candidate))) in fastest:
                known.setdefault(text, each.candidate)
            elif kind not in listed:
                continue
            found.setdefault(each.candidate, (latest, kind, each.microseconds))
    if not found:
        if options.split_k_slices is None:
            problem.picked(gpu)  # which says what the nearest kernels lack
        slices = "" if options.split_k_slices is None else f" with split_k_slices in {options.split_k_slices}"
        raise ArgumentError(f"no kernel takes {problem.name}{slices}: there is nothing to tune")
    first = [known[text] for text in fastest if text in known]
    best = sorted(found, key=lambda each: found[each][0])
    if options.again:  # a few of the fastest are soon measured again
        chosen = list(dict.fromkeys([*first, *best]))[: options.most_candidates]
    else:
        chosen = list(dict.fromkeys([*first, *best[: options.most_candidates]]))
    return [(candidate, *found[candidate][1:]) for candidate in chosen]


def with_options(problem: Tunable, options: Any) -> Tunable:
    """Return the problem that the options mean: without 3xTF32, one TF32 product."""
    if options.use_3xtf32 or problem.kind.math_operation is not MathOperation.multiply_add_fast_f32:
        return problem
    return problem.by_one_tf32_product()


def _kinds(kind: Any, options: Any) -> list[Any]:
    """Return the kind, and with `profile_all_alignments` those of which A and B have lesser alignments."""
    if not options.profile_all_alignments:
        return [kind]
    found = [kind]
    for most in sorted(_FEWER_ELEMENTS, reverse=True):
        try:
            lesser: dict[str, Any] = {name: _at_most(getattr(kind, name), most) for name in ("A", "B")}
            changed = dataclasses.replace(kind, **lesser)
        except DescriptionError:  # no such alignment of this type
            continue
        if changed not in found:
            found.append(changed)
    return found


def _kinds_of(kind: Any, choices: Sequence[str]) -> list[Any]:
    """Return the kinds that choices of a database are of, some of lesser alignments."""
    found = []
    for text in choices:
        try:
            found.append(kind_of_choice(kind, json.loads(text)))
        except (ArgumentError, DescriptionError, TypeError):  # of another version, or of somebody else
            continue
    return found


def _at_most(tensor: TensorDescription, alignment: int) -> TensorDescription:
    if tensor.alignment <= alignment:
        return tensor
    return TensorDescription(tensor.element, tensor.layout, alignment)
