"""Remedies for operands and tiles that do not fit: applied literally, they are accepted, and are no detour."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import partial
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch
from convolutions import SIMT, conv, f32, fprop, wgrad
from descriptions import COLUMN, ROW, ampere, native_parts, parts

import pycutlass
from pycutlass import Conv2dArguments, GemmArguments, GemmGroupedArguments, GemmOperationGrouped
from pycutlass.errors import AlignmentError, ArgumentError, ArgumentTypeError, DescriptionError

pytestmark = pytest.mark.usefixtures("without_gpu")

RRR = ampere("f16", (ROW, ROW, ROW))
M, N, K = 64, 96, 32


def ones(*shape: int) -> Any:
    return np.ones(shape, np.float16)


def group(kind: str = "f16") -> GemmOperationGrouped:
    described = parts(kind, (ROW, ROW, ROW))
    described.pop("swizzling_functor")
    return GemmOperationGrouped(**described)


def said(call: Any, kind: type[Exception] = ArgumentError) -> str:
    with pytest.raises(kind) as caught:
        call()
    return str(caught.value)


@pytest.mark.parametrize("layout", [ROW, COLUMN])
def test_the_other_layout_is_offered_only_where_it_takes_the_tensor(layout: Any) -> None:
    operation = ampere("f16", (layout, ROW, ROW))
    message = said(
        lambda: GemmArguments(operation, (M, N, K), ones(2 * M, 2 * K)[::2, ::2], ones(K, N), None, ones(M, N))
    )
    assert "pass np.as" in message and "describe A as" not in message
    other = ones(K, M).T if layout is ROW else ones(M, K)
    message = said(lambda: GemmArguments(operation, (M, N, K), other, ones(K, N), None, ones(M, N)))
    assert f"describe A as {'ColumnMajor' if layout is ROW else 'RowMajor'}" in message
    unaligned = ones(K, M + 1)[:, :M].T if layout is ROW else ones(M, K + 1)[:, :K]
    message = said(lambda: GemmArguments(operation, (M, N, K), unaligned, ones(K, N), None, ones(M, N)))
    assert "describe A as" not in message, "its leading dimension is odd"


@pytest.mark.parametrize("scalars", [False, True])
def test_d_in_the_place_of_c(scalars: bool) -> None:
    grouped, convolution = group(), conv(fprop, "optimized", (f32, f32, f32), opcode=SIMT)
    x, w, y = (np.ones(shape, np.float32) for shape in ((1, 4, 4, 4), (8, 3, 3, 4), (1, 4, 4, 8)))
    size = pycutlass.conv2d_problem_size(x, w, padding=1)
    A, B, D = ones(M, K), ones(K, N), ones(M, N)
    for kind, operation, given in (
        (GemmArguments, RRR, ((M, N, K), A, B, D)),
        (GemmGroupedArguments, grouped, ([(M, N, K)], [A], [B], [D])),
        (Conv2dArguments, convolution, (size, x, w, y)),
    ):
        further = {"output_op": operation.epilogue_type(1.0, 1.0)} if scalars else {}
        message = said(partial(kind, operation, *given, **further))
        assert "D is missing, and C is given" in message and f"{kind.__name__}(operation, problem_size" in message
        order = re.search(r"\(operation, problem_sizes?, (.*?)\)", message)
        assert order is not None and order[1] == "A, B, None, D"
        kind(operation, *given[:3], None, given[3])


@pytest.mark.parametrize("shape", [(N,), (1, N)])
def test_a_bias_that_was_said_to_be_none(shape: tuple[int, ...]) -> None:
    scalars = RRR.epilogue_type(1.0, 1.0)

    def make(**further: Any) -> GemmArguments:
        return GemmArguments(
            RRR, (M, N, K), ones(M, K), ones(K, N), ones(*shape), ones(M, N), output_op=scalars, **further
        )

    message = said(lambda: make(bias=False))
    assert "bias=False was given: leave bias out" in message and "or as a bias" not in message
    assert make().bias


def test_a_bias_of_a_convolution_with_another_length() -> None:
    convolution = conv(fprop, "optimized", (f32, f32, f32), opcode=SIMT)
    x, w, y = (np.ones(shape, np.float32) for shape in ((2, 4, 4, 4), (8, 3, 3, 4), (2, 4, 4, 8)))
    size, scalars = pycutlass.conv2d_problem_size(x, w, padding=1), convolution.epilogue_type(1.0, 1.0)

    def make(C: Any, **further: Any) -> Conv2dArguments:
        return Conv2dArguments(convolution, size, x, w, C, y, scalars, **further)

    for shape in ((7,), (1, 1, 1, 7)):
        assert ", or 8 as a bias; got" in said(partial(make, np.ones(shape, np.float32)))
    assert "or 8 as a bias, which bias=False rules out; got 8" in said(lambda: make(np.ones(8, np.float32), bias=False))
    assert make(np.ones(8, np.float32)).bias
    gradient = conv(wgrad, "optimized", (f32, f32, f32), opcode=SIMT)
    message = said(
        lambda: Conv2dArguments(gradient, size, y, x, np.ones(5, np.float32), w, gradient.epilogue_type(1, 1))
    )
    assert "bias" not in message, "a filter gradient takes none"


def test_warps_that_do_not_divide_a_usual_tile() -> None:
    described = parts("f16")
    instruction = described["tile_description"].math_instruction
    message = said(lambda: pycutlass.TileDescription([128, 128, 32], 3, [3, 2, 1], instruction), DescriptionError)
    warps = [int(each) for each in re.search(r"use warp_count \[(.*?)\]", message)[1].split(",")]  # type: ignore[index]
    assert pycutlass.GemmOperationUniversal(
        **{**described, "tile_description": pycutlass.TileDescription([128, 128, 32], 3, warps, instruction)}
    )


def test_another_tile_is_named_before_a_lower_alignment() -> None:
    message = said(lambda: ampere("f16", tile=(128, 96, 32)), DescriptionError)
    advice = re.search(r"use threadblock_shape \[(\d+), (\d+), (\d+)\], or describe C with alignment 1 and", message)
    assert advice is not None
    assert ampere("f16", tile=tuple(map(int, advice.groups())))


@pytest.mark.parametrize("kind", ["f16", "bf16"])
def test_a_slice_that_begins_at_an_odd_element_is_told_both_changes(kind: str) -> None:
    operation = ampere(kind, (ROW, ROW, ROW))
    dtype = operation.A.type.dtype
    A, B, D = np.ones((M, K + 8), dtype)[:, 1 : K + 1], np.ones((K, N), dtype), np.ones((M, N), dtype)
    message = said(lambda: GemmArguments(operation, (M, N, K), A, B, None, D), AlignmentError)
    assert "describe A with alignment 1 and give the tile stages=2" in message
    described = parts(kind, (ROW, ROW, ROW), stages=2)
    described["A"] = pycutlass.TensorDescription(described["A"].element, ROW, 1)
    assert GemmArguments(pycutlass.GemmOperationUniversal(**described), (M, N, K), A, B, None, D)
    even = np.ones((M, K + 8), dtype)[:, 2 : K + 2]
    assert "stages" not in said(lambda: GemmArguments(operation, (M, N, K), even, B, None, D), AlignmentError)


@pytest.mark.parametrize("kind", ["f16", "bf16", "f32_simt"])
def test_a_group_without_work(kind: str) -> None:
    operation = group(kind)
    message = said(lambda: GemmGroupedArguments(operation, [], [], [], None, []))
    sizes = re.search(r"pass (\[\(0, 0, 0\)\])", message)
    lists = {name: re.search(rf"{name}=(\[.*?\)\])", message) for name in "ABD"}
    known = {"np": np, "ml_dtypes": ml_dtypes}
    made = {name: eval(match[1], known) for name, match in lists.items() if match}
    assert sizes is not None
    arguments = GemmGroupedArguments(operation, eval(sizes[1]), made["A"], made["B"], None, made["D"])
    operation.run(arguments)
    arguments.sync()


def test_a_transposed_d_or_c() -> None:
    A, B = ones(M, K), ones(K, N)
    message = said(lambda: GemmArguments(RRR, (M, N, K), A, B, None, ones(N, M)))
    assert "multiply" not in message
    assert (
        "To write the transposed result there, describe C, which D follows, as ColumnMajor and pass D.T; for the result"
        in message
    )
    D = np.zeros((N, M), np.float16)
    operation = ampere("f16", (ROW, ROW, COLUMN))
    operation.run(GemmArguments(operation, (M, N, K), A, B, None, D.T))
    np.testing.assert_array_equal(D, np.full((N, M), K))
    message = said(lambda: GemmArguments(RRR, (M, N, K), A, B, None, ones(M, N).T))
    assert message.endswith("To write the transposed result there, pass D.T")
    scalars = RRR.epilogue_type(1.0, 1.0)
    message = said(lambda: GemmArguments(RRR, (M, N, K), A, B, ones(N, M), ones(M, N), output_op=scalars))
    assert message.endswith("To add that, pass np.ascontiguousarray(C.T)"), "D would have to be column-major as well"
    columns = np.asfortranarray(ones(M, N))
    message = said(lambda: GemmArguments(RRR, (M, N, K), A, B, None, columns))
    assert "or describe C, which D follows, as ColumnMajor" in message
    message = said(lambda: GemmArguments(RRR, (M, N, K), A, B, ones(M, N), columns, output_op=scalars))
    assert "or describe" not in message, "C would have to be column-major as well"
    sizes, grouped = [(M, N, K)], group()
    message = said(lambda: GemmGroupedArguments(grouped, sizes, [A], [B], None, [ones(N, M)]))
    assert "describe C, which D follows, as ColumnMajor and pass D[0].T" in message


CONVERTED = r"[Pp]ass (\S+\.(?:to|astype)\(.*?\))|(?:Make \S+ as|pass) (\S+\.empty(?:_like)?\(.*?\)) (?:and|to)"
TOOLS = {"np": np, "torch": torch, "ml_dtypes": ml_dtypes}


def offered(message: str, operands: dict[str, Any], name: str) -> Any:
    """Return what a message tells to pass in place of an operand."""
    code = re.search(CONVERTED, message)
    assert code is not None, message
    return eval(next(each for each in code.groups() if each), TOOLS, {**operands, name: operands[name]})


@pytest.mark.parametrize("library", ["numpy", "torch"])
@pytest.mark.parametrize("kind", ["f16", "bf16", "f32_simt"])
@pytest.mark.parametrize("name", ["A", "B", "C", "D"])
def test_a_tensor_of_another_type_is_converted_as_the_message_says(name: str, kind: str, library: str) -> None:
    operation = ampere(kind, (ROW, ROW, ROW))
    dtype = operation.A.type.dtype
    operands = {"A": ones(M, K), "B": ones(K, N), "C": ones(M, N), "D": 0 * ones(M, N)}
    operands = {each: array.astype(dtype) for each, array in operands.items()}
    if library == "torch":
        operands = {each: torch.ones(a.shape, dtype=getattr(torch, str(dtype))) for each, a in operands.items()}
        operands[name] = operands[name].double()
    else:
        operands[name] = operands[name].astype(np.float64)
    make = partial(GemmArguments, operation, (M, N, K), output_op=operation.epilogue_type(1.0, 1.0))
    message = said(lambda: make(**operands), ArgumentTypeError)
    operands[name] = offered(message, operands, name)
    operation.run(make(**operands))
    assert (np.asarray(operands["D"].float() if library == "torch" else operands["D"]) == K + 1).all()


@pytest.mark.parametrize("convert", ["double", "half", "bfloat16"])
@pytest.mark.parametrize("transposed", [False, True])
def test_the_parameter_of_a_module_that_was_converted(convert: str, transposed: bool) -> None:
    """What is said after the conversion is done, at a launch and at an update, and both are right."""
    operation = ampere("f32_simt", (ROW, COLUMN if transposed else ROW, ROW))
    linear = torch.nn.Linear(8, 4, bias=False) if transposed else torch.nn.Linear(4, 8, bias=False)
    linear.requires_grad_(False).weight.copy_(torch.arange(32).reshape(linear.weight.shape))
    A, D = torch.ones(3, 8), torch.zeros(3, 4)

    def B() -> torch.Tensor:
        return linear.weight.T if transposed else linear.weight

    arguments = GemmArguments(operation, (3, 4, 8), A, B(), None, D)
    operation.run(arguments)
    getattr(linear, convert)()
    before = str({"double": torch.float64, "half": torch.float16, "bfloat16": torch.bfloat16}[convert])
    messages = [said(lambda: operation.run(arguments)), said(lambda: arguments.update(B=B()), ArgumentTypeError)]
    assert f"It is of {before} now, and the operation takes torch.float32: pass B.to(torch.float32)" in messages[0]
    assert ("Take a new view" in messages[0]) == transposed
    for message in messages:
        D.zero_()
        arguments.update(B=offered(message, {"B": B()}, "B"))
        operation.run(arguments)
        torch.testing.assert_close(D, A @ B().float())
    described = ampere(
        {"double": "f64", "half": "f16", "bfloat16": "bf16"}[convert], (ROW, COLUMN if transposed else ROW, ROW)
    )
    assert described.B.type.dtype_name == before.removeprefix("torch."), "an operation of the other type"


def test_a_d_that_was_converted() -> None:
    operation, module = ampere("f32_simt", (ROW, ROW, ROW)), torch.nn.Module()
    module.register_parameter("D", torch.nn.Parameter(torch.zeros(3, 4), requires_grad=False))
    A, B = torch.ones(3, 8), torch.ones(8, 4)
    arguments = GemmArguments(operation, (3, 4, 8), A, B, None, module.D)
    operation.run(arguments)
    module.double()
    D = offered(said(lambda: operation.run(arguments)), {"D": module.D}, "D")
    arguments.update(D=D)
    operation.run(arguments)
    assert (D == 8).all()


F16 = pycutlass.cutlass.float16
SHAPES = {"A": (M, K), "B": (K, N), "C": (M, N), "D": (M, N)}


def spec_turned(operation: Any, name: str, *, transposed: bool) -> pycutlass.TensorSpec:
    """Return an operand that is packed in the other layout, or the transposed matrix in its own."""
    rows, columns = SHAPES[name]
    description = getattr(operation, name)
    if transposed:
        rows, columns = columns, rows
    is_row_major = description.is_row_major == transposed
    return pycutlass.TensorSpec((rows, columns), description.element, (columns, 1) if is_row_major else (1, rows))


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("name", "ABCD")
@pytest.mark.parametrize("kind", ["f16", "f32_simt", "hopper", "apart"])
def test_a_layout_is_named_where_the_family_has_it(kind: str, name: str, transposed: bool) -> None:
    described = {
        "f16": lambda: parts("f16", (ROW, ROW, ROW)),
        "f32_simt": lambda: parts("f32_simt", (ROW, ROW, ROW)),
        "hopper": native_parts,
        "apart": lambda: native_parts() | {"D": pycutlass.TensorDescription(F16, COLUMN, 8)},
    }[kind]()
    operation = pycutlass.GemmOperationUniversal(**described)
    given = spec_turned(operation, name, transposed=transposed)
    reason = operation.supports((M, N, K), {name: given}).reason
    assert reason, "it has another layout"
    letter = name if name != "D" or kind == "apart" else "C"
    other = COLUMN if getattr(operation, letter).is_row_major else ROW
    changed = {**described, letter: replace(getattr(operation, letter), layout=other)}
    try:
        made = pycutlass.GemmOperationUniversal(**changed)
    except DescriptionError:
        assert "describe " not in reason, reason
        return
    follows = ", which D follows," if letter != name else ""
    assert f"describe {letter}{follows} as {other.__name__}" in reason, reason
    tensor = given
    if transposed:
        assert f"and pass {name}.T" in reason, reason
        assert given.strides is not None
        tensor = pycutlass.TensorSpec(given.shape[::-1], given.dtype, given.strides[::-1])
    assert made.supports((M, N, K), {name: tensor})


@pytest.mark.parametrize("library", ["numpy", "torch"])
@pytest.mark.parametrize(
    ("layout", "form"), [*((layout, form) for layout in (ROW, COLUMN) for form in ("flat", "line")), (ROW, "square")]
)
def test_a_vector_across_the_layout_is_spread(library: str, layout: Any, form: str) -> None:
    operation = ampere("f16", (ROW, ROW, layout))
    m, n = (M, M) if form == "square" else (M, N)
    across = m if layout is ROW else n
    C = np.arange(across).astype(np.float16)
    matrix = C.reshape(-1, 1) if layout is ROW else C.reshape(1, -1)
    given: Any = C if form == "flat" else matrix
    given = torch.from_numpy(given) if library == "torch" else given
    D = np.zeros((m, n), np.float16) if layout is ROW else np.zeros((n, m), np.float16).T
    scalars = operation.epilogue_type(1.0, 1.0)

    def make(added: Any) -> GemmArguments:
        return GemmArguments(operation, (m, n, K), ones(m, K), ones(K, n), added, D, output_op=scalars)

    code = re.search(r"pass ((?:np\.|C\.).*?)\.?$", said(lambda: make(given)))
    assert code is not None
    arguments = make(eval(code[1], {"np": np, "C": given}))
    operation.run(arguments)
    arguments.sync()
    np.testing.assert_array_equal(D, K + np.broadcast_to(matrix, (m, n)))


def test_a_cast_that_rounds_is_said_to() -> None:
    from pycutlass.remedies import converted

    rounding = "float32 float16, float32 bfloat16, float16 bfloat16, bfloat16 float16, int16 float16, int32 float32"
    exact = "float16 float32, bfloat16 float32, int8 bfloat16, uint8 bfloat16, int16 float32, int32 float64, int8 int32"
    for library in ("numpy", "torch", "cupy", "dlpack"):
        for given, wanted in map(str.split, rounding.split(", ")):
            assert converted("A", library, wanted, given).endswith(", which rounds its values"), (given, wanted)
        for given, wanted in map(str.split, exact.split(", ")):
            assert "rounds" not in converted("A", library, wanted, given), (given, wanted)
    assert "rounds" not in converted("D", "numpy", "float16", "float32"), "it is made anew"


def test_the_type_of_a_result_of_a_reduction_is_that_of_its_c() -> None:
    C = pycutlass.TensorDescription(F16, ROW, 8)
    reduction = pycutlass.ReductionOperation(
        pycutlass.cutlass.MatrixCoord(4, 256), C, pycutlass.cutlass.float32, count=8
    )
    for name in ("source", "destination"):
        spec = pycutlass.TensorSpec((8, 16), pycutlass.cutlass.float32)
        reason = reduction.supports((8, 16), {name: spec}).reason
        advice = re.search(
            r"or describe C of the reduction as (\S+) with alignment (\d+), and give the epilogue functor "
            r"element_output=(\S+) and epilogue_vector_length=(\d+) and the reduction count=(\d+)",
            reason,
        )
        assert advice is not None, reason
        kind, alignment, output, length, count = (eval(each, vars(pycutlass)) for each in advice.groups())
        functor = replace(reduction.epilogue_functor, element_output=output, epilogue_vector_length=length)
        described = replace(C, element=kind, alignment=alignment)
        changed = {"C": described, "epilogue_functor": functor, "count": count}
        fields = {each: getattr(reduction, each) for each in reduction._FIELDS}
        assert pycutlass.ReductionOperation(**{**fields, **changed}).supports((8, 16), {name: spec})
