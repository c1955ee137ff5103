"""Epilogues in the tuner: what is drawn for functions and functors, and what is right of their results."""

from __future__ import annotations

import dataclasses
import pickle
from types import SimpleNamespace
from typing import Any

import fake_gpu
import numpy as np
import pytest
from epilogue_functions import FUNCTIONS, of_batch, routed
from tuned import GPU

import pycutlass
from pycutlass import cutlass
from pycutlass.epilogue import Row, Scalar, Tensor, fusions, gelu
from pycutlass.errors import ArgumentError, ArgumentTypeError
from pycutlass.plan import pick
from pycutlass.spec import TensorSpec
from pycutlass.tuning import Conv2dProblem, GroupProblem, Problem, TuningOptions
from pycutlass.tuning.drawing import Drawing
from pycutlass.tuning.epilogue_tensors import EpilogueTensors, in_memory, in_shape
from pycutlass.tuning.expected import Bounds, bounds_of
from pycutlass.tuning.problems import considered, problems_of

F16, F32 = cutlass.float16, cutlass.float32
SPEC = pycutlass.TensorSpec
A, B = SPEC((100, 72), "float16"), SPEC((72, 136), "float16")
EVERY = {**fusions.ALL, **FUNCTIONS, "of_batch": of_batch, "routed": routed}


def problem_of(name: str, batch: int | None = None) -> Problem:
    lead, function = () if batch is None else (batch,), EVERY[name]
    a, b = SPEC((*lead, 100, 72), "float16"), SPEC((*lead, 72, 136), "float16")
    c = SPEC((*lead, 100, 136), "float16") if function.graph.of_form("source") else None
    made: Problem = problems_of(pycutlass.Gemm(a, b, c, epilogue=function))[0]
    return made


@pytest.fixture
def memory(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return what takes the place of memory of a GPU: it is kept, in the order of uploads."""
    monkeypatch.setattr("pycutlass.device.current", lambda: 0)
    uploaded: list[Any] = []

    def upload(values: Any) -> SimpleNamespace:
        uploaded.append(values)
        return SimpleNamespace(pointer=256 * len(uploaded))

    return upload


def computed_by(problem: Problem, memory: Any, share: float = 1.0) -> tuple[dict[str, Bounds], dict[str, Any]]:
    """Return the bounds of a problem's results, and these as a kernel may compute them, in float32."""
    work, candidate = problem.work(), pick(problem.kind, *problem.extents, problem.batch, GPU)
    drawing, epilogue = Drawing("normal", 0), problem.kind.epilogue
    a, b = (drawing.operands(problem.kind.A.type, [shape]).values(0) for shape in work.shapes[0][:2])
    beside = EpilogueTensors(problem, work, drawing, memory)
    part = work.part(candidate, 0, a, b, share)
    given = beside.computed(part, 0)
    bounds = bounds_of(epilogue, given, work.tolerance(candidate, 0))
    sums = a[..., part.rows, :].astype(np.float32) @ b.astype(np.float32)
    found = epilogue.evaluate(sums, given.source, given.scalars, given.inputs)
    types = {"D": epilogue.output} | {port.name: port.type for port in epilogue.outputs}
    return bounds, {name: types[name].round(values).astype(np.float64) for name, values in found.items()}


@pytest.mark.parametrize("batch", [None, 3])
@pytest.mark.parametrize("name", EVERY)
def test_what_a_kernel_computes_lies_within_bounds_and_little_else(name: str, batch: int | None, memory: Any) -> None:
    bounds, found = computed_by(problem_of(name, batch), memory)
    assert set(bounds) == set(found)
    for output, right in bounds.items():
        assert not right.wrong(found[output]).any(), output
        numbers = np.isfinite(right.exact)
        if not numbers.any():
            continue
        if output in ("indices", "of_roots", "alike"):
            assert right.wrong(np.full_like(right.exact, -1.0)).all()
            continue
        off = found[output] + 0.03 * np.abs(found[output][numbers]).max()
        assert right.wrong(off)[numbers].mean() > 0.99, output
        assert right.wrong(np.full_like(found[output], np.nan))[numbers].all()  # what was not written


@pytest.mark.parametrize("source", ["matrix", "bias"])
def test_a_functor_reads_what_the_problem_says(source: str, memory: Any) -> None:
    plain = problems_of(pycutlass.Gemm(A, B, epilogue=gelu))[0]
    problem = dataclasses.replace(plain, source=source)
    bounds, found = computed_by(problem, memory)
    assert not bounds["D"].wrong(found["D"]).any()
    without, _ = computed_by(plain, memory)
    assert bounds["D"].wrong(without["D"].exact).mean() > 0.6  # gelu leaves nothing of many
    bias_bytes = 0 if source == "bias" else 2 * 100 * 136
    assert problem.bytes == plain.bytes + bias_bytes


@pytest.mark.parametrize("default", [1e-60, 1e39])
def test_a_function_whose_default_cannot_be_used_is_measured(default: float, memory: Any) -> None:
    def shifted(accum: Any, eps: Scalar = default) -> Any:
        return accum + eps

    function = pycutlass.epilogue_function(shifted)
    problem = problems_of(pycutlass.Gemm(A, B, epilogue=function, epilogue_inputs={"eps": 2.0}))[0]
    assert EpilogueTensors(problem, problem.work(), Drawing("normal", 0), memory).scalars == {"eps": 1.0}


def test_a_part_has_the_rows_of_all_that_is_read(memory: Any) -> None:
    """Its bounds are those rows of the whole's."""
    for name in ("several", "scaled", "dequantize_bias", "layer_norm_statistics", "geglu"):
        problem = problem_of(name)
        whole, _ = computed_by(problem, memory)
        work, candidate = problem.work(), pick(problem.kind, *problem.extents, None, GPU)
        drawing = Drawing("normal", 0)
        a, b = (drawing.operands(problem.kind.A.type, [shape]).values(0) for shape in work.shapes[0][:2])
        beside = EpilogueTensors(problem, work, drawing, memory)
        part = work.part(candidate, 0, a, b, 1.0).at_most(7 * 136)
        assert len(part.rows) == 7 and not part.is_whole and part.rows[-1] == 99
        assert len(part.at_most(2 * 136).rows) == 2
        bounds = bounds_of(problem.kind.epilogue, beside.computed(part, 0), work.tolerance(candidate, 0))
        rows = part.rows
        for output in bounds:
            np.testing.assert_array_equal(bounds[output].exact, whole[output].exact[rows])


def test_tensors_lie_in_memory_as_their_steps_say() -> None:
    values = np.arange(24.0).reshape(2, 3, 4)
    for strides in ((12, 4, 1), (12, 1, 3), None):
        spec = TensorSpec((2, 3, 4), "float64", strides)
        flat = in_memory(values, spec).reshape(-1)
        for place in np.ndindex(values.shape):
            assert flat[sum(index * step for index, step in zip(place, spec.strides, strict=True))] == values[place]
        np.testing.assert_array_equal(in_shape(flat, spec), values)


def test_d_by_columns_has_its_tensors_by_columns(memory: Any) -> None:
    out = SPEC((100, 136), "float16", (1, 100))
    problem = problems_of(pycutlass.Gemm(A, B, epilogue=fusions.residual_relu, out=out))[0]
    beside = EpilogueTensors(problem, problem.work(), Drawing("normal", 0), memory)
    (residual,) = beside.inputs["residual"]
    assert residual._strides == (1, 100)


@pytest.mark.parametrize("name", ["bias_residual_gelu", "layer_norm_statistics", "swiglu"])
def test_problems_with_functions_are_values(name: str) -> None:
    """Of which the process that measures gets a pickle: it does not know the module that has the function."""

    @pycutlass.epilogue_function
    def local(accum: Any, bias: Row, residual: Tensor) -> Any:
        return gelu(accum + bias + residual)

    problem = problem_of(name)
    again = pickle.loads(pickle.dumps(problem))
    assert again == problem and hash(again) == hash(problem) and again.record() == problem.record()
    assert considered(problem, TuningOptions(most_candidates=3), GPU)
    mine = problems_of(pycutlass.Gemm(A, B, epilogue=local))[0]
    again = pickle.loads(pickle.dumps(mine))
    assert again == mine and again.name == "100x136x72 f16 x f16 -> f16, local"


def test_groups_and_convolutions_take_functions_too() -> None:
    group = problems_of(pycutlass.GroupedGemm([A] * 3, [SPEC((72, 144), "float16")] * 3, epilogue=fusions.bias_swiglu))[
        0
    ]
    assert isinstance(group, GroupProblem) and group.work().shapes[0].d == (104, 72)
    assert all(n % 16 == 0 for _, n, _ in GroupProblem(group.kind, [(10, 152, 72)]).measured_sizes)
    conv = problems_of(pycutlass.Conv2d(SPEC((2, 8, 8, 16), "float16"), SPEC((24, 3, 3, 16), "float16"),
                                        epilogue=fusions.scale_shift_residual_relu))[0]  # fmt: skip
    assert isinstance(conv, Conv2dProblem) and conv.name.endswith(", scale_shift_residual_relu")
    sums, residual, a, b = 2 * 6 * 6 * 24, 2 * 6 * 6 * 24, 2 * 8 * 8 * 16, 24 * 9 * 16
    assert conv.bytes == 2 * (sums + residual + a + b)
    for problem in (group, conv):
        assert pickle.loads(pickle.dumps(problem)) == problem
        assert considered(problem, TuningOptions(most_candidates=2), GPU)


def test_what_an_epilogue_does_not_read_is_refused() -> None:
    functor = problems_of(pycutlass.Gemm(A, B))[0]
    with pytest.raises(ArgumentError, match="source must be 'matrix', 'bias' or None, got 'row'"):
        dataclasses.replace(functor, source="row")
    with pytest.raises(ArgumentError, match=r"source='matrix' says what a functor .* reads no C: leave it out"):
        dataclasses.replace(problem_of("bias_gelu"), source="matrix")
    with pytest.raises(ArgumentError, match=r"source='bias' says what a functor .* always reads a matrix as C"):
        dataclasses.replace(problem_of("linear"), source="bias")
    with pytest.raises(ArgumentTypeError, match=r"the epilogue is 3: write it as a function"):
        Problem(dataclasses.replace(functor.kind, epilogue=3), 8, 8, 8)


_BENCH = """
from fake_gpu.inside import _load
from descriptions import parts
from pycutlass import cutlass, timing
from pycutlass.epilogue import PerBatch, Row, Scalar, Source, Tensor
from pycutlass.plan import Candidate, Conv2dCandidate, Conv2dKind, GemmKind, GroupCandidate
from pycutlass.tuning import Conv2dProblem, GroupProblem, Problem, TuningOptions
from pycutlass.tuning.bench import GpuBench
from pycutlass.tuning.measuring import WrongResultError
timing._LEAST_FLUSHED_BYTES = 3000
f32, f64 = cutlass.float32, cutlass.float64
INTEGERS = TuningOptions(distribution="integers")  # the stand-in multiplies float32, kernels of functions less exactly

def kind_of(operation):
    math = operation.tile_description.math_instruction
    return GemmKind(operation.A, operation.B, operation.C, operation.C, math.element_a, math.element_b,
                    math.element_accumulator, math.math_operation, operation.epilogue_functor)

def prepare(made, candidate):
    made.prepare(0, candidate, [dict(each.artifacts) for each in candidate.kernels], True)
    assert len(made.measure(0)) == 3

def forget(made):
    made._bounds.clear()
    made._found_right.clear()

def wrong(made, candidate, *words):
    try:
        prepare(made, candidate)
    except WrongResultError as error:
        assert all(word in str(error) for word in words), error
    else:
        raise AssertionError("not seen")

def scaled(accum, c: Source, extra: Tensor, bias: Row, alpha: Scalar = 0.5, beta: Scalar = 2.0,
           gamma: Scalar = -1.0, delta: Scalar = 0.25, epsilon: Scalar = 4.0):
    t = alpha * accum + beta * c + gamma * extra + delta * bias
    return {"D": t, "second": epsilon * t}

scaled = pycutlass.epilogue_function(scaled)
"""


@pytest.mark.parametrize("source", ["matrix", "bias"])
def test_a_functor_with_c_is_measured(source: str) -> None:
    fake_gpu.run(f"""{_BENCH}
operation = gemm()
made = GpuBench(Problem(kind_of(operation), 20, 12, 16, source="{source}"), TuningOptions())
prepare(made, Candidate(operation))
made._beside._values["C"]._drawn = {{shape: each + 1 for shape, each in made._beside._values["C"]._drawn.items()}}
forget(made)
wrong(made, Candidate(operation), "240 of 240 elements that were checked are wrong")
""")


@pytest.mark.parametrize("changed", ["C", "extra", "bias", "second"])
def test_a_function_is_measured_with_all_that_it_reads_and_writes(changed: str) -> None:
    fake_gpu.run(f"""{_BENCH}
described = parts("f32") | {{"epilogue_functor": scaled(f32, 4, f32, second=f64)}}
operation = pycutlass.GemmOperationUniversal(**described)
_load(operation, "scaled")
made = GpuBench(Problem(kind_of(operation), 20, 12, 16), INTEGERS)
prepare(made, Candidate(operation))
if "{changed}" == "second":
    run = made._launch
    def spoilt(candidate):
        right = run(candidate)
        def both():
            right()
            pycutlass._core.fill(made._buffer.pointer + made._output_places[0].start, 0, 8, made._stream)
        return both
    made._launch = spoilt
    wrong(made, Candidate(operation), "1 of 240 elements of second that were checked are wrong, the first at (0, 0)")
else:
    drawn = made._beside._values["{changed}"]
    drawn._drawn = {{shape: each + 1 for shape, each in drawn._drawn.items()}}
    forget(made)
    wrong(made, Candidate(operation), "240 of 240 elements that were checked are wrong")
""")


@pytest.mark.parametrize("source", ["matrix", "bias"])
def test_functors_of_groups_and_convolutions_read_c_too(source: str) -> None:
    fake_gpu.run(f"""{_BENCH}
def seen(made, candidate):
    prepare(made, candidate)
    drawn = made._beside._values["C"]
    drawn._drawn = {{shape: each + 1 for shape, each in drawn._drawn.items()}}
    forget(made)
    wrong(made, candidate, " that were checked are wrong")

operation = group("device")
problem = GroupProblem(kind_of(operation), [(8, 12, 16), (4, 8, 4), (12, 4, 8)], source="{source}")
seen(GpuBench(problem, TuningOptions()), GroupCandidate(operation))
operation = fprop()
math = operation.tile_description.math_instruction
kind = Conv2dKind(operation.conv_kind, operation.A, operation.B, operation.C, math.element_a, math.element_b,
                  math.element_accumulator, math.math_operation, operation.epilogue_functor)
size = cutlass.conv.Conv2dProblemSize(N=2, H=5, W=6, C=4, K=8, R=3, S=2)
seen(GpuBench(Conv2dProblem(kind, size, "{source}"), TuningOptions()), Conv2dCandidate(operation))
""")


def test_a_function_reaches_the_process_that_measures_as_a_value() -> None:
    fake_gpu.run(f"""{_BENCH}
from pycutlass.tuning.measuring import ChildMeasurer, FailedError
described = parts("f32") | {{"epilogue_functor": scaled(f32, 4, f32, second=f64)}}
operation = _load(pycutlass.GemmOperationUniversal(**described), "scaled")
problem = Problem(kind_of(operation), 20, 12, 16)
measurer = ChildMeasurer(problem, INTEGERS, function="fake_bench:serve_on_stand_in")
try:
    measurer.check(0, Candidate(operation), [dict(operation.artifacts)])
    assert len(measurer.measure(0, 10.0)) == 3
    measurer.measure_vendor(10.0)
except FailedError as error:
    assert "it is called by torch" in error.reason, error
else:
    raise AssertionError("a library that is not there was measured")
finally:
    measurer.close()
assert measurer.started == 1
""")


def test_a_function_in_a_group_is_measured() -> None:
    fake_gpu.run(f"""{_BENCH}
@pycutlass.epilogue_function
def added(accum, bias: Row, gain: PerBatch, addend: Tensor, alpha: Scalar = 1.0):
    t = (alpha * accum + bias) * gain
    return {{"D": t + addend, "table": t}}

described = parts("f32") | {{"epilogue_functor": added(f32, 4)}}
operation = _load(pycutlass.GemmOperationGrouped(**described), "grouped_function")
problem = GroupProblem(kind_of(operation), [(8, 12, 16), (4, 8, 4), (12, 4, 8)])
made, candidate = GpuBench(problem, INTEGERS), GroupCandidate(operation)
prepare(made, candidate)
assert len(made._beside.inputs["gain"]) == 3
drawn = made._beside._values["gain"]
drawn._drawn = {{shape: each + 1 for shape, each in drawn._drawn.items()}}
forget(made)
wrong(made, candidate, "elements of problem 0 that were checked are wrong")
""")


def test_a_function_of_a_convolution_is_measured() -> None:
    fake_gpu.run(f"""{_BENCH}
from convolutions import conv, fprop as forward
operation = conv(forward, "optimized", (f32, f32, f32), functor=lambda *types: scaled(f32, 4, f32, second=f64))
_load(operation, "conv_scaled")
math = operation.tile_description.math_instruction
kind = Conv2dKind(operation.conv_kind, operation.A, operation.B, operation.C, math.element_a, math.element_b,
                  math.element_accumulator, math.math_operation, operation.epilogue_functor)
size = cutlass.conv.Conv2dProblemSize(N=2, H=5, W=6, C=4, K=8, R=3, S=2)
made, candidate = GpuBench(Conv2dProblem(kind, size), INTEGERS), Conv2dCandidate(operation)
prepare(made, candidate)
for name in ("C", "extra", "bias"):
    drawn, before = made._beside._values[name], made._beside._values[name]._drawn
    drawn._drawn = {{shape: each + 1 for shape, each in before.items()}}
    forget(made)
    wrong(made, candidate, "240 of 240 elements that were checked are wrong")
    drawn._drawn = before
""")
