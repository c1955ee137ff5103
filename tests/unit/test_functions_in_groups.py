"""Epilogue functions in grouped GEMMs, on the host."""

from __future__ import annotations

from typing import Any

import fake_gpu
import numpy as np
import pytest
from descriptions import native_parts, parts
from epilogue_functions import FUNCTIONS
from extra_epilogue import ExtraEpilogue
from marks import thorough

import pycutlass
from pycutlass import (
    GemmGroupedArguments,
    GemmOperationGrouped,
    GemmOperationUniversal,
    KernelSchedule,
    cutlass,
    epilogue,
)
from pycutlass.errors import ArgumentError, ArgumentTypeError, DescriptionError

SIZES = [(40, 48, 32), (0, 8, 16), (16, 72, 0), (8, 8, 8), (72, 16, 24)]
#: Nothing is reduced of no elements.
WHOLE = [size for size in SIZES if size[0]]


def make(name: str, described: dict[str, Any] | None = None) -> GemmOperationGrouped:
    described = parts("f16", tile=(64, 64, 32)) if described is None else described
    functor = FUNCTIONS[name](described["C"].element, described["C"].alignment, cutlass.float32)
    return GemmOperationGrouped(**described | {"epilogue_functor": functor})


def drawn(functor: Any, sizes: Any = SIZES) -> dict[str, Any]:
    random = np.random.default_rng(5)

    def each(shape: Any, dtype: Any = np.float16) -> list[Any]:
        return [random.integers(-3, 4, shape(*size)).astype(dtype) for size in sizes]

    shapes: dict[str, Any] = {"matrix": lambda m, n, k: (m, n), "row": lambda m, n, k: (n,)}
    shapes |= {"column": lambda m, n, k: (m,), "scalar": lambda m, n, k: (1,), "number": lambda m, n, k: (1,)}
    given: dict[str, Any] = {"A": each(lambda m, n, k: (m, k)), "D": each(shapes["matrix"])}
    given["B"] = [np.asfortranarray(B) for B in each(lambda m, n, k: (k, n))]
    given["C"] = each(shapes["matrix"]) if functor.reads_source else None
    return given | {port.name: each(shapes[port.form], port.type.dtype) for port in functor.ports}


def launch(operation: GemmOperationGrouped, given: dict[str, Any], sizes: Any = SIZES) -> GemmGroupedArguments:
    ports = {port.name: given[port.name] for port in operation.epilogue_functor.ports}
    operands = (given[name] for name in "ABCD")
    arguments = GemmGroupedArguments(operation, sizes, *operands, epilogue=ports)
    operation.run(arguments)
    arguments.sync()
    return arguments


@pytest.mark.parametrize("described", [parts("f16", tile=(64, 64, 32)), native_parts()], ids=["ampere", "hopper"])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_each_problem_is_as_it_is_alone(name: str, described: dict[str, Any], without_gpu: None) -> None:
    operation, sizes = make(name, described), WHOLE if name == "reduced" else SIZES
    functor = operation.epilogue_functor
    given = drawn(functor, sizes)
    alone = GemmOperationUniversal(**described | {"epilogue_functor": functor})
    wanted = []
    for number, size in enumerate(sizes):
        one = {key: each and each[number].copy("K") for key, each in given.items()}
        ports = {port.name: one[port.name] for port in functor.ports}
        arguments = pycutlass.GemmArguments(alone, size, *(one[key] for key in "ABCD"), epilogue=ports)
        alone.run(arguments)
        arguments.sync()
        wanted.append(one)
    launch(operation, given, sizes)
    for output in ("D", *(port.name for port in functor.outputs)):
        for number, one in enumerate(wanted):
            np.testing.assert_array_equal(given[output][number], one[output], output)


def test_sizes_and_tensors_are_exchanged(without_gpu: None) -> None:
    operation = make("residual")
    given = drawn(operation.epilogue_functor)
    arguments = launch(operation, given)
    t = [each.copy() for each in given["T"]]
    others = drawn(operation.epilogue_functor)
    arguments.update(epilogue={"addend": [each * 0 for each in given["addend"]], "T": others["T"]})
    operation.run(arguments)
    arguments.sync()
    assert all((one == other).all() for one, other in zip(t, others["T"], strict=True))
    fewer = SIZES[3:]
    with pytest.raises(ArgumentError, match="bias"):  # which is still that of five problems
        arguments.update(problem_sizes=fewer, **{key: given[key][3:] for key in "ABD"})
    rest = {key: given[key][3:] for key in ("bias", "addend", "T")}
    arguments.update(problem_sizes=fewer, **{key: given[key][3:] for key in "ABD"}, epilogue=rest)
    for each in rest["T"]:
        each.fill(np.nan)
    operation.run(arguments)
    arguments.sync()
    assert all((one == other).all() for one, other in zip(t[3:], rest["T"], strict=True))


def test_one_tensor_may_hold_those_of_all_problems(without_gpu: None) -> None:
    operation, sizes = make("residual"), [(40, 48, 32)] * 3
    given = drawn(operation.epilogue_functor, sizes)
    stacked = given | {name: np.stack(given[name]) for name in ("bias", "addend", "T")}
    launch(operation, stacked, sizes)
    launch(operation, given, sizes)
    np.testing.assert_array_equal(stacked["T"], np.stack(given["T"]))


class _Stack:
    """What other libraries hand on: an object with a shape that cannot be taken apart."""

    def __init__(self, *shape: int) -> None:
        self.shape, self.values = shape, np.zeros(shape, np.float16)

    def __dlpack__(self, **how: Any) -> Any:
        return self.values.__dlpack__(**how)

    def __dlpack_device__(self) -> Any:
        return self.values.__dlpack_device__()


@pytest.mark.parametrize(
    ("changes", "error", "said"),
    [
        ({"bias": None}, ArgumentError, r"bias, a row of the epilogue, is missing: give epilogue=\{'bias': \[...\]\}"),
        (
            {"bias": [np.zeros(48, np.float16)]},
            ArgumentError,
            "operand bias has 1 tensor, and problem_sizes 5",
        ),
        ({"bias": np.zeros(48, np.float16)}, ArgumentTypeError, "operand bias must be a list"),
        ({"addend": _Stack(5, 8, 8)}, ArgumentTypeError, "operand addend must be a list .*, got _Stack"),
        ({"addend": [np.zeros((4, 8), np.float16)] * 5}, ArgumentError, r"addend\[0\]"),
        ({"T": [np.zeros((128, 128), np.float16)] * 5}, ArgumentError, r"T\[0\]"),
        ({"bais": []}, ArgumentTypeError, "Did you mean bias"),
    ],
)
def test_what_does_not_fit_is_named(
    changes: dict[str, Any], error: type[Exception], said: str, without_gpu: None
) -> None:
    operation = make("residual")
    given = drawn(operation.epilogue_functor)
    ports = {name: given[name] for name in ("bias", "addend", "T")} | changes
    with pytest.raises(error, match=said):
        GemmGroupedArguments(operation, SIZES, *(given[key] for key in "ABCD"), epilogue=ports)


def test_outputs_lie_apart_from_all_that_is_read(without_gpu: None) -> None:
    operation = make("residual")
    given = drawn(operation.epilogue_functor)
    for one, other in (("T", "addend"), ("T", "D")):
        with pytest.raises(ArgumentError, match=rf"({one}|{other})\[\d\] overlaps ({one}|{other})\[\d\]"):
            launch(operation, given | {one: given[other]})
    overlapping = [given["T"][0], *given["T"][1:4], given["T"][0].reshape(-1)[: 72 * 16].reshape(72, 16)]
    with pytest.raises(ArgumentError, match="two problems cannot write to one place"):
        launch(operation, given | {"T": overlapping})


@pycutlass.epilogue_function
def squares(accum: Any) -> Any:
    return {"D": accum, "squares": epilogue.sum_of_squares(accum, axis=1)}


def test_results_of_problems_without_elements(without_gpu: None) -> None:
    """A problem may have no rows where nothing but rows has a result, as an expert without tokens."""
    described = parts("f16", tile=(64, 64, 32))
    operation = GemmOperationGrouped(**described | {"epilogue_functor": squares(cutlass.float16, 8)})
    sizes = [(0, 8, 8), (8, 16, 0), (24, 8, 16)]
    assert [each.shape for each in operation.epilogue_outputs(sizes)["squares"]] == [(0,), (8,), (24,)]
    given = drawn(operation.epilogue_functor, sizes)
    launch(operation, given, sizes)
    products = [A.astype(np.float32) @ B.astype(np.float32) for A, B in zip(given["A"], given["B"], strict=True)]
    for found, product in zip(given["squares"], products, strict=True):
        np.testing.assert_array_equal(found, (product**2).sum(axis=1))
    with pytest.raises(ArgumentError, match="has no elements"):
        operation.epilogue_outputs([(8, 8, 8), (8, 0, 8)])
    refused = operation.supports([(8, 8, 8), (8, 0, 8)]).reason
    assert "D to squares, and D of problem_sizes[1], 8 x 0, has no elements: leave such problems out" in refused
    several = make("reduced")
    assert several.supports(WHOLE)
    assert "D to column_sum, column_squares, least, most, and" in several.supports(SIZES).reason
    with pytest.raises(ArgumentError, match=r"problem_sizes\[1\], 0 x 8, has no elements"):
        launch(several, drawn(several.epilogue_functor))


def test_the_host_divides_memory_among_the_results_of_problems() -> None:
    described = parts("f16", tile=(64, 64, 32))
    operation = GemmOperationGrouped(**described | {"epilogue_functor": squares(cutlass.float16, 8)})
    with pytest.raises(ArgumentError, match=r"reduces D to squares, for which the host .* pass sizes and tensors to"):
        GemmGroupedArguments.from_device(operation, 1, *[None] * 9)


def test_what_no_group_has_is_refused() -> None:
    described = parts("f16")
    with pytest.raises(DescriptionError, match="which Ampere-style groups do not take"):
        GemmOperationGrouped(**described | {"epilogue_functor": ExtraEpilogue(cutlass.float16, cutlass.float32, 8)})


_ON_A_GPU = """
from descriptions import parts
from fake_gpu.inside import _load
from pycutlass.epilogue import PerBatch, Row, Scalar, Tensor

@pycutlass.epilogue_function
def added(accum, bias: Row, gain: PerBatch, addend: Tensor, alpha: Scalar = 1.0):
    t = (alpha * accum + bias) * gain
    return {"D": t + addend, "table": t}

described = parts("f32") | {"epilogue_functor": added(pycutlass.cutlass.float32, 4)}
operation = _load(pycutlass.GemmOperationGrouped(**described), "grouped_function")
SIZES = [(8, 12, 16), (4, 8, 4), (12, 4, 8)]
PORTS = ("bias", "gain", "addend", "table")  # the last is called like a buffer of the launch

def drawn(seed, sizes=SIZES):
    made = {name: [] for name in ("A", "B", "D", *PORTS)}
    for number, (m, n, k) in enumerate(sizes):
        made["A"].append(on_host(m, k, seed + number))
        made["B"].append(on_host(k, n, seed + 10 + number, "F"))
        made["bias"].append(on_host(1, n, seed + 20 + number)[0])
        made["gain"].append(on_host(1, 1, seed + 40 + number)[0])
        made["addend"].append(on_host(m, n, seed + 30 + number))
        made["D"].append(np.full((m, n), np.nan, np.float32))
        made["table"].append(np.full((m, n), np.nan, np.float32))
    return made

def there(host):
    return {name: [Array(0, each) for each in arrays] for name, arrays in host.items()}

def make(given, sizes=SIZES):
    return pycutlass.GemmGroupedArguments(
        operation, sizes, given["A"], given["B"], None, given["D"], epilogue={name: given[name] for name in PORTS}
    )

def check(host, D, T):
    read = (host[name] for name in ("A", "B", "bias", "gain", "addend"))
    for a, b, bias, gain, addend, d, t in zip(*read, D, T, strict=True):
        assert (t == (a @ b + bias) * gain).all() and (d == (a @ b + bias) * gain + addend).all()

def now(arrays):
    return [each.now() for each in arrays]

def run(arguments):
    operation.run(arguments)
    arguments.sync()
"""


def test_tables_of_tensors_on_a_gpu() -> None:
    program = """
host = drawn(1)
here = there(host)
arguments = make(here)
run(arguments)
check(host, now(here["D"]), now(here["table"]))

other = drawn(2)
elsewhere = there(other)
arguments.update(**{name: elsewhere[name] for name in "ABD"}, epilogue={name: elsewhere[name] for name in PORTS})
run(arguments)
check(other, now(elsewhere["D"]), now(elsewhere["table"]))

arguments.update(epilogue={"bias": here["bias"]})
run(arguments)
check(other | {"bias": host["bias"]}, now(elsewhere["D"]), now(elsewhere["table"]))

more = SIZES + [(16, 16, 4)]
host = drawn(3, more)
here = there(host)
arguments.update(problem_sizes=more, **{name: here[name] for name in "ABD"}, epilogue={n: here[n] for n in PORTS})
run(arguments)
check(host, now(here["D"]), now(here["table"]))
"""
    fake_gpu.run(_ON_A_GPU + program)


def test_a_graph_has_the_tables_that_it_was_captured_with() -> None:
    program = """
host, other, stream = drawn(1), drawn(2), Stream(0)
here, elsewhere = there(host), there(other)
arguments = make(here)
with captured(stream) as graph:
    operation.run(arguments, stream)
arguments.update(**{name: elsewhere[name] for name in "ABD"}, epilogue={name: elsewhere[name] for name in PORTS})
run(arguments)
check(other, now(elsewhere["D"]), now(elsewhere["table"]))
graph.replay()
driver.fake_run()
check(host, now(here["D"]), now(here["table"]))
"""
    fake_gpu.run(_ON_A_GPU + program, gpus=1)


def test_arrays_of_the_host_come_and_go() -> None:
    program = """
host = drawn(4)
arguments = make(host)
run(arguments)
check(host, host["D"], host["table"])
other = drawn(5)
arguments.update(A=other["A"], epilogue={"addend": other["addend"]})
run(arguments)
check(host | {"A": other["A"], "addend": other["addend"]}, host["D"], host["table"])
"""
    fake_gpu.run(_ON_A_GPU + program)


def test_tables_that_the_user_keeps() -> None:
    program = """
host = drawn(6)
here = there(host)

def table(values, dtype=np.int64):
    return Array(0, np.array(list(values), dtype))

def addresses(name):
    return table(each.data.ptr for each in here[name])

m, n, k = ([size[axis] for size in SIZES] for axis in range(3))
gains = Array(0, np.concatenate(host["gain"]))
ports = {"bias": addresses("bias"), "gain": gains}
ports |= {name: (addresses(name), table(n)) for name in ("addend", "table")}
tables = [addresses("A"), addresses("B"), None, addresses("D"), table(k), table(k), None, table(n)]
arguments = pycutlass.GemmGroupedArguments.from_device(
    operation, len(SIZES), table(SIZES, np.int32), *tables, epilogue=ports
)
run(arguments)
check(host, now(here["D"]), now(here["table"]))
arguments.update(epilogue={"gain": Array(0, 2 * np.concatenate(host["gain"]))})
run(arguments)
check(host | {"gain": [2 * each for each in host["gain"]]}, now(here["D"]), now(here["table"]))
arguments.update(epilogue={"gain": addresses("gain")})
run(arguments)
check(host, now(here["D"]), now(here["table"]))
for wrong, said in (
    ({"bias": None}, "bias is missing"),
    ({"gain": Array(0, np.zeros(2, np.float32))}, "gain must have shape (3,)"),
    ({"gain": Array(0, np.zeros(3, np.float64))}, "gain must be a device tensor of float32, got float64"),
    ({"addend": addresses("addend")}, "is given as two tables of 3 entries"),
    ({"table": (addresses("table"), table(n[:2]))}, "must have shape (3,)"),
):
    refused(lambda: pycutlass.GemmGroupedArguments.from_device(
        operation, len(SIZES), table(SIZES, np.int32), *tables, epilogue=ports | wrong), said)
"""
    fake_gpu.run(_ON_A_GPU + program)


@pytest.mark.thorough  # test_gated_tensors.py builds one
@pytest.mark.compile
@pytest.mark.usefixtures("quick_host_sides")  # test_gated_functions.py has headers as they are
@pytest.mark.parametrize(("name", "schedule"), [("several", "Pingpong"), ("residual", "Cooperative")])
def test_hopper_native_ones_build(name: str, schedule: str) -> None:
    described = native_parts(tile=(64 if schedule == "Pingpong" else 128, 128, 64), schedule=KernelSchedule[schedule])
    functor = FUNCTIONS[name](cutlass.float16, 8, cutlass.float32)
    operation = GemmOperationGrouped(**described | {"epilogue_functor": functor})
    pycutlass.compiler.add_module([operation])
    (artifact,) = operation.artifacts.values()
    assert artifact.report["stack_bytes"] == 0


@pytest.mark.compile
@pytest.mark.usefixtures("quick_host_sides")  # test_gated_functions.py has headers as they are
@pytest.mark.parametrize("mode", [pycutlass.SchedulerMode.Device, thorough(pycutlass.SchedulerMode.Host)])
def test_it_builds(mode: pycutlass.SchedulerMode) -> None:
    described = parts("f16", tile=(64, 64, 32))
    functor = FUNCTIONS["several"](cutlass.float16, 8, cutlass.float32)
    operation = GemmOperationGrouped(**described | {"epilogue_functor": functor}, precompute_mode=mode)
    pycutlass.compiler.add_module([operation])


def test_one_vector_for_all_problems_is_told_where_it_fits(without_gpu: None) -> None:
    operation, bias = make("biased"), np.zeros(48, np.float16)
    alike = [(40, 48, 32), (8, 48, 16)]
    given = drawn(operation.epilogue_functor, alike)
    operands = [given[key] for key in "ABCD"]
    with pytest.raises(
        ArgumentTypeError, match=r"; for one bias of all problems give epilogue={'bias': \[bias\] \* 2}$"
    ):
        GemmGroupedArguments(operation, alike, *operands, epilogue={"bias": bias})
    GemmGroupedArguments(operation, alike, *operands, epilogue={"bias": [bias] * 2})
    given = drawn(operation.epilogue_functor)
    with pytest.raises(ArgumentTypeError, match=r"one tensor for each problem, got ndarray$"):
        GemmGroupedArguments(operation, SIZES, *(given[key] for key in "ABCD"), epilogue={"bias": bias})
