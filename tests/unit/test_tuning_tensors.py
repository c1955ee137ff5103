"""What the tuner draws for an epilogue is what launches take, and what these compute on the host is right."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from epilogue_functions import FUNCTIONS, of_batch, routed

import pycutlass
from pycutlass.epilogue import fusions
from pycutlass.errors import ArgumentError
from pycutlass.plan import Conv2dCandidate
from pycutlass.plan.building import without_gpu
from pycutlass.plan.conv_launches import Conv2dLaunch
from pycutlass.spec import TensorSpec
from pycutlass.tuning import Conv2dProblem, Problem, conv2d_problem_of, epilogue_tensors, group_problem_of, problem_of
from pycutlass.tuning.drawing import Drawing
from pycutlass.tuning.epilogue_tensors import EpilogueTensors, in_memory
from pycutlass.tuning.expected import bounds_of
from pycutlass.tuning.named import EPILOGUES
from pycutlass.tuning.problems import problems_of
from pycutlass.tuning.tunable import Operands

SPEC = pycutlass.TensorSpec
EVERY = {**fusions.ALL, **FUNCTIONS, "of_batch": of_batch, "routed": routed}


def strided(flat: Any, spec: TensorSpec) -> Any:
    """Return memory as an array of a shape and steps."""
    return np.lib.stride_tricks.as_strided(
        flat.reshape(-1), spec.shape, [each * flat.itemsize for each in spec.strides]
    )


@pytest.fixture
def memory(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Let arrays of the host stand for memory of a GPU."""
    kept: list[Any] = [None]

    def upload(values: Any) -> SimpleNamespace:
        kept.append(values)
        return SimpleNamespace(pointer=len(kept) - 1)

    monkeypatch.setattr(epilogue_tensors, "array_of", lambda pointer, spec: strided(kept[pointer], spec))
    return upload


def laid(values: Any, described: Any) -> Any:
    """Return an operand in the layout of its description."""
    (*lead, rows, _), whole = values.shape, values.shape[-2] * values.shape[-1]
    steps = None if described.is_row_major else (*([whole] * len(lead)), 1, rows)
    spec = TensorSpec(values.shape, described.element, steps)
    return strided(in_memory(values, spec), spec)


def wrong_elements(problem: Any, memory: Any, candidate: Any = None) -> int:
    """Launch a kernel, the one that is picked, with what is drawn for it, and return how many results are wrong."""
    candidate = candidate or problem.picked(without_gpu())
    work, kind = problem.work(), problem.kind
    shapes, drawing = work.shapes, Drawing("normal", 0)
    a, b = (drawing.operands(of.type, [each[side] for each in shapes]) for side, of in ((0, kind.A), (1, kind.B)))
    beside = EpilogueTensors(problem, work, drawing, memory)
    written = {(port.name, number): strided(np.zeros(int(np.prod(spec.shape)), port.type.dtype), spec)
               for port, number, spec in beside.outputs}  # fmt: skip
    ports = dict(beside.inputs)
    for (name, _), tensor in written.items():
        ports.setdefault(name, []).append(tensor)
    A, B = ([laid(of.values(number), described) for number in range(len(shapes))]
            for of, described in ((a, kind.A), (b, kind.B)))  # fmt: skip
    D = [laid(np.zeros(each.d, kind.D.type.dtype), kind.D) for each in shapes]
    launch(problem, candidate, Operands(A, B, beside.source, D, ports, beside.scalars))
    found = 0
    for number, result in enumerate(D):
        part = work.part(candidate, number, a.values(number), b.values(number), 1.0)
        given = beside.computed(part, number)
        bounds = bounds_of(kind.epilogue, given, work.tolerance(candidate, number))
        found += int(bounds["D"].wrong(work.matrix(result).astype(np.float64)).sum())
        for port in kind.epilogue.outputs:
            values = written[port.name, number]
            matrix = work.matrix(values) if port.is_matrix and not port.selected else values
            right = bounds[port.name]
            found += int(right.wrong(matrix.astype(np.float64).reshape(right.exact.shape)).sum())
    return found


def launch(problem: Any, candidate: Any, operands: Operands) -> None:
    """Run a candidate on the host, which takes arrays in the place of addresses."""
    if isinstance(candidate, Conv2dCandidate):
        tensors, ports = operands.of(0), operands.ports_of(0)
        Conv2dLaunch(candidate, problem.problem_size, tensors, operands.scalars, ports).run(None)
        return
    problem.work().launcher(candidate, operands)()


@pytest.mark.parametrize("batch", [None, 3])
@pytest.mark.parametrize("name", EVERY)
def test_gemms(name: str, batch: int | None, memory: Any) -> None:
    lead, function = () if batch is None else (batch,), EVERY[name]
    a, b = SPEC((*lead, 100, 72), "float16"), SPEC((*lead, 72, 136), "float16")
    c = SPEC((*lead, 100, 136), "float16") if function.graph.of_form("source") else None
    assert wrong_elements(problems_of(pycutlass.Gemm(a, b, c, epilogue=function))[0], memory) == 0


@pytest.mark.parametrize("name", ["bias_residual_gelu", "dequantize_bias", "residual_relu"])
def test_d_by_columns(name: str, memory: Any) -> None:
    a, b = SPEC((104, 72), "float16"), SPEC((72, 136), "float16")
    out = SPEC((104, 136), "float16", (1, 104))
    plan = pycutlass.Gemm(a, b, epilogue=fusions.ALL[name], out=out)
    assert wrong_elements(problems_of(plan)[0], memory) == 0


@pytest.mark.parametrize("name", ["bias_residual_gelu", "dequantize_each", "layer_norm_statistics", "bias_swiglu"])
def test_slices_of_k_that_a_second_kernel_adds_up(name: str, memory: Any) -> None:
    """Which has the tensors of the epilogue then."""
    problem = problem_of(64, 256, 1024, epilogue=name)
    ranked = [each.candidate for each in problem.ranked(without_gpu())]
    divided = [each for each in ranked if each.is_parallel]
    assert bool(divided) == (name != "bias_swiglu")  # no reduction writes half as many columns
    assert [wrong_elements(problem, memory, each) for each in divided[:2]] == [0] * len(divided[:2])


@pytest.mark.parametrize("epilogue", EPILOGUES)
def test_groups(epilogue: str, memory: Any) -> None:
    assert wrong_elements(group_problem_of([64, 8, 100], 256, 64, epilogue=epilogue), memory) == 0


@pytest.mark.parametrize("kind", ["fprop", "dgrad", "wgrad"])
@pytest.mark.parametrize("epilogue", [name for name in EPILOGUES if "glu" not in name])
def test_convolutions(epilogue: str, kind: str, memory: Any) -> None:
    problem = conv2d_problem_of(2, 7, 7, 16, 24, 3, 3, kind, padding=1, epilogue=epilogue)
    assert wrong_elements(problem, memory) == 0


@pytest.mark.parametrize("source", ["matrix", "bias"])
def test_functors_that_read_c(source: str, memory: Any) -> None:
    problems = [
        problem_of(64, 256, 64, source=source),
        problem_of(64, 256, 64, 3, epilogue="gelu", source=source),
        group_problem_of([64, 8, 100], 256, 64, source=source),
        conv2d_problem_of(2, 7, 7, 16, 24, 3, 3, padding=1, source=source, groups=2, epilogue="relu"),
        conv2d_problem_of(2, 7, 7, 16, 24, 3, 3, "dgrad", padding=1, source=source),
    ]
    if source == "matrix":
        problems.append(conv2d_problem_of(2, 7, 7, 16, 24, 3, 3, "wgrad", padding=1, source=source))
    assert [wrong_elements(each, memory) for each in problems] == [0] * len(problems)


def test_a_bias_lies_along_rows_that_are_written() -> None:
    wgrad = conv2d_problem_of(2, 7, 7, 16, 24, 3, 3, "wgrad", padding=1)
    with pytest.raises(ArgumentError, match="source='bias' has an element for each channel, and a gradient of filters"):
        Conv2dProblem(wgrad.kind, wgrad.problem_size, "bias")
    out = SPEC((104, 136), "float16", (1, 104))
    by_columns = pycutlass.Gemm(SPEC((104, 72), "float16"), SPEC((72, 136), "float16"), out=out)
    with pytest.raises(ArgumentError, match="source='bias' lies along rows, and D is written by columns"):
        Problem(by_columns.kind, 104, 136, 72, None, "bias")
