"""Groups of tensors of torch and cupy: C++ makes their arguments, and Python makes the same."""

from __future__ import annotations

from typing import Any

import pytest
from grouped_cases import BOTH, BY_SCHEDULER, GROUPED, SIZES, Group, bias_of, some_sizes

from pycutlass import GemmGroupedArguments
from pycutlass.errors import PyCutlassError

PLAIN = [name for name in GROUPED if "interleaved" not in name]


def made(group: Group, at_once: bool, *scalars: Any, **changed: Any) -> GemmGroupedArguments:
    """Return arguments that C++ made, or that were checked in Python."""
    start, answers = GemmGroupedArguments._start_ordinary, []

    def counted(self: Any, *what: Any) -> bool:
        answers.append(at_once and start(self, *what))
        return answers[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(GemmGroupedArguments, "_start_ordinary", counted)
        arguments = group.arguments(*scalars, **changed)
    assert answers == [at_once], "the tensors took a closer look"
    return arguments


def table(arguments: GemmGroupedArguments) -> tuple[Any, ...]:
    call = arguments._execution.call
    return call.image, call.device_bytes, arguments.launch_config, arguments.ptr_D, arguments.ldb, arguments.ldd


@pytest.mark.parametrize("name", PLAIN)
def test_both_make_the_same_table_and_result(name: str) -> None:
    operation = GROUPED[name]
    group = Group(operation, some_sizes(operation, 40, 320))
    operation._prepared = ()
    before, arguments = (made(group, at_once, 1.0, 1.0) for at_once in (False, True))
    assert table(arguments) == table(before)
    operation.run(arguments)
    arguments.sync()
    group.check(1.0, 1.0)


@BOTH
def test_they_take_biases_other_tensors_and_other_sizes(name: str) -> None:
    operation = GROUPED[name]
    group = Group(operation, SIZES)
    group.C = [bias_of(operation, m, n) if m > 1 and n else c for (m, n, _), c in zip(SIZES, group.C, strict=True)]
    arguments = made(group, True, 2.0, 0.5)
    operation.run(arguments)
    arguments.sync()
    group.check(2.0, 0.5)

    others = Group(operation, SIZES)
    others.C = [c.clone() for c in group.C]
    arguments.update(A=others.A, B=others.B, C=others.C, D=others.D)
    operation.run(arguments)
    arguments.sync()
    others.check(2.0, 0.5)

    fewer = Group(operation, SIZES[:3])
    arguments.update(problem_sizes=fewer.sizes, A=fewer.A, B=fewer.B, C=fewer.C, D=fewer.D)
    operation.run(arguments)
    arguments.sync()
    fewer.check(2.0, 0.5)


@pytest.mark.parametrize("name", BY_SCHEDULER[:2])
def test_arrays_of_cupy(name: str) -> None:
    cupy = pytest.importorskip("cupy")
    operation = GROUPED[name]
    group = Group(operation, [size for size in SIZES if min(size)])
    arrays = {letter: [cupy.asarray(each) for each in getattr(group, letter)] for letter in "ABCD"}
    before, arguments = (made(group, at_once, 1.0, 1.0, **arrays) for at_once in (False, True))
    assert table(arguments) == table(before)
    operation.run(arguments)
    arguments.sync()
    group.check(1.0, 1.0)


@BOTH
def test_the_python_way_explains(name: str) -> None:
    operation = GROUPED[name]
    group = Group(operation, SIZES)
    made(group, True)
    for changed in (
        {"D": [*group.D[:-1], group.D[0]]},
        {"A": [each.float() for each in group.A]},
        {"B": [each.cpu() for each in group.B]},
        {"D": [group.D[0].clone().requires_grad_(), *group.D[1:]]},
        {"A": group.A[:-1]},
    ):
        with pytest.raises(PyCutlassError):
            group.arguments(**changed)
