"""Batches, arrays, groups and convolutions: what a message tells to pass is passed, accepted, and the result right."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from convolutions import SIMT, conv, dgrad, f32, fprop, wgrad
from descriptions import ROW, TAG, ampere, as_torch, parts

import pycutlass
from pycutlass import (
    Conv2dArguments,
    GemmArguments,
    GemmGroupedArguments,
    GemmOperationGrouped,
    PyCutlassError,
    cutlass,
)
from pycutlass.errors import AlignmentError, ArgumentError

pytestmark = pytest.mark.usefixtures("without_gpu")

Mode = cutlass.gemm.Mode
RRR = ampere("f16", (ROW, ROW, ROW))
DESCRIBED = {name: part for name, part in parts("f16", (ROW, ROW, ROW)).items() if name != "swizzling_functor"}
GROUP = GemmOperationGrouped(**DESCRIBED)
M, N, K, BATCH = 16, 24, 32, 3
TOOLS = {"np": np, "torch": torch, "cutlass": cutlass}


def values(*shape: int, library: str = "numpy") -> Any:
    array = np.random.default_rng(shape[-1]).integers(-3, 4, shape).astype(np.float16)
    return as_torch(array) if library == "torch" else array


def said(call: Callable[[], Any], kind: type[Exception] = PyCutlassError) -> str:
    with pytest.raises(kind) as caught:
        call()
    return str(caught.value)


def run(A: Any, B: Any, D: Any, C: Any = None, **options: Any) -> Any:
    scalars = None if C is None else RRR.epilogue_type(1.0, 1.0)
    arguments = GemmArguments(RRR, (M, N, K), A, B, C, D, output_op=scalars, **options)
    RRR.run(arguments)
    arguments.sync()
    return D


def run_group(A: Any, B: Any, D: Any, C: Any = None, sizes: Any = ((M, N, K),) * BATCH) -> Any:
    scalars = None if C is None else GROUP.epilogue_type(1.0, 1.0)
    arguments = GemmGroupedArguments(GROUP, list(sizes), A, B, C, D, output_op=scalars)
    GROUP.run(arguments)
    arguments.sync()
    return arguments


def code_in(message: str, pattern: str, given: dict[str, Any]) -> Any:
    found = re.search(pattern, message)
    assert found is not None, message
    return eval(found[1], TOOLS, given)


@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_a_batch_of_transposed_matrices(library: str) -> None:
    A, B = values(BATCH, K, M, library=library), values(BATCH, K, N, library=library)
    D, options = values(BATCH, M, N, library=library), {"gemm_mode": Mode.Batched, "batch": BATCH}
    message = said(lambda: run(A, B, D, **options))
    turned = code_in(message, r"the transposed matrices\. To multiply by that, pass (\S.*?)(?:, or|$)", {"A": A})
    exact = np.swapaxes(np.asarray(A, np.float64), 1, 2) @ np.asarray(B, np.float64)
    np.testing.assert_array_equal(np.asarray(run(turned, B, D, **options)), exact)
    view = A.swapaxes(1, 2)
    assert "pass A.swapaxes(1, 2)" in said(lambda: run(view.reshape(BATCH, M, K).swapaxes(1, 2), B, D, **options))


@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_one_result_for_a_whole_batch(library: str) -> None:
    A, B = values(BATCH, M, K, library=library), values(BATCH, K, N, library=library)
    D, options = values(M, N, library=library), {"gemm_mode": Mode.Batched, "batch": BATCH}
    made = code_in(said(lambda: run(A, B, D, **options)), r"[Mm]ake D as (\S.*?) and read", {"D": D})
    exact = np.asarray(A).astype(np.float64) @ np.asarray(B).astype(np.float64)
    np.testing.assert_array_equal(np.asarray(run(A, B, made, **options)), exact)


@pytest.mark.parametrize("given", ["lists", "tensors"])
def test_an_array_without_its_batch(given: str) -> None:
    A, B, D = values(BATCH, M, K), values(BATCH, K, N), values(BATCH, M, N)
    tensors = [list(each) for each in (A, B, D)] if given == "lists" else [A, B, D]
    message = said(lambda: run(*tensors, gemm_mode=Mode.Array))
    batch = code_in(message, r"(?:give|pass) batch=(\d+)", {})
    run(*tensors, gemm_mode=Mode.Array, batch=batch)
    np.testing.assert_array_equal(D, A.astype("f8") @ B.astype("f8"))
    message = said(lambda: run(list(A), list(B), list(D)))
    mode, batch = re.search(r"gemm_mode=(\S+), batch=(\d+)", message).groups()  # type: ignore[union-attr]
    run(list(A), list(B), list(D), gemm_mode=eval(mode, TOOLS), batch=int(batch))


@pytest.mark.parametrize("name", ["A", "B", "C"])
def test_one_matrix_for_all(name: str) -> None:
    one = {"A": values(M, K), "B": values(K, N), "C": values(M, N)}
    exact = one["A"].astype("f8") @ one["B"].astype("f8") + one["C"]
    listed = {each: [matrix] * BATCH for each, matrix in one.items()}
    D: Any = list(values(BATCH, M, N))
    array = partial(run, D=D, gemm_mode=Mode.Array, batch=BATCH)
    for launch in (array, partial(run_group, D=D)):
        for wrong in (one[name], [one[name]]):
            message = said(partial(launch, **{**listed, name: wrong}))
            tensors = code_in(message, rf"(\[{name}(?:\[0\])?\] \* \d+)", {name: wrong})
            launch(**{**listed, name: tensors})
            np.testing.assert_array_equal(D, [exact] * BATCH)


def test_nothing_in_a_list() -> None:
    A, B, D = list(values(BATCH, M, K)), list(values(BATCH, K, N)), list(values(BATCH, M, N))
    C = [values(M, N), None, values(M, N)]
    message = said(lambda: run_group(A, B, D, C))
    shape = code_in(message, r"operand C\[1\] .* give a tensor of shape (\(.*?\)), of zeros where nothing", {})
    C[1] = np.zeros(shape, np.float16)
    run_group(A, B, D, C)
    np.testing.assert_array_equal(D[1], A[1].astype("f8") @ B[1].astype("f8"))
    message = said(lambda: run_group([A[0], None, A[2]], B, D))
    assert code_in(message, r"operand A\[1\] .* give a tensor of shape (\(.*?\))$", {}) == (M, K)


def test_vectors_and_matrices_in_one_list() -> None:
    """A group takes both; an array takes C all alike, as the guide says."""
    A, B, D = list(values(BATCH, M, K)), list(values(BATCH, K, N)), list(values(BATCH, M, N))
    C = [values(M, N), values(N), values(1, N)]
    exact = [a.astype("f8") @ b.astype("f8") + c for a, b, c in zip(A, B, C, strict=True)]
    run_group(A, B, D, C)
    np.testing.assert_array_equal(D, exact)
    options = {"gemm_mode": Mode.Array, "batch": BATCH}
    assert "operand C[1]" in said(lambda: run(A, B, D, C, **options))
    assert "a bias C[2]" in said(lambda: run(A, B, D, [C[1], C[1], C[0]], **options))
    whole = [np.ascontiguousarray(np.broadcast_to(each, (M, N))) for each in C]
    np.testing.assert_array_equal(run(A, B, D, whole, **options), exact)


def test_new_sizes_without_their_tensors() -> None:
    A, B, D = list(values(BATCH, M, K)), list(values(BATCH, K, N)), list(values(BATCH, M, N))
    arguments, sizes = run_group(A, B, D), [(8, N, K)] * BATCH
    smaller = {"A": [a[:8] for a in A], "D": [d[:8] for d in D]}
    message = said(lambda: arguments.update(problem_sizes=sizes), ArgumentError)
    found = re.search(r"are still those of before: pass what fits .* update\(problem_sizes=\.\.\., (.*)\)$", message)
    assert found is not None and found[1] == "A=..., B=..., D=...", message
    arguments.update(problem_sizes=sizes, B=B, **smaller)
    message = said(lambda: arguments.update(problem_sizes=sizes[:2]), ArgumentError)
    assert "those of before" in message
    wrong = [np.asfortranarray(a) for a in A]
    message = said(lambda: arguments.update(problem_sizes=[(M, N, K)] * BATCH, A=wrong), ArgumentError)
    assert "operand A[0] is described as RowMajor" in message and "of before" not in message
    odd = [values(8, K + 1)[:, :K]] * BATCH
    assert "of before" not in said(lambda: arguments.update(problem_sizes=sizes, A=odd), AlignmentError)
    message = said(lambda: arguments.update(problem_sizes=[(8, N, 28)] * BATCH), ArgumentError)
    assert "operand A[0]" in message and "those of before" in message
    floats = [a.astype(np.float32) for a in smaller["A"]]
    assert "must be float16" in said(lambda: arguments.update(problem_sizes=sizes, A=floats))
    np.testing.assert_array_equal(arguments.problem_sizes, sizes)


def test_an_update_by_position_shows_no_values() -> None:
    A, B, D = values(M, K), values(K, N), values(M, N)
    arguments = GemmArguments(RRR, (M, N, K), A, B, None, D)
    message = said(lambda: arguments.update(A))
    assert "ndarray of shape (16, 32): write update(A=...)" in message and "[[" not in message
    arguments.update(A=A)
    message = said(lambda: RRR.epilogue_type(torch.ones(2), 0.0))
    assert "got Tensor of shape (2,). For one number" in message and "[" not in message


CONVOLUTIONS = {kind: conv(kind, "optimized", (f32, f32, f32), opcode=SIMT) for kind in (fprop, dgrad, wgrad)}


def convolve(kind: Any, size: Any, A: Any, B: Any, D: Any, C: Any = None) -> Any:
    operation = CONVOLUTIONS[kind]
    scalars = None if C is None else operation.epilogue_type(1.0, 1.0)
    arguments = Conv2dArguments(operation, size, A, B, C, D, scalars)
    operation.run(arguments)
    arguments.sync()
    return D


def images(*shape: int, library: str = "numpy") -> Any:
    array = np.random.default_rng(shape[-1]).integers(-3, 4, shape).astype(np.float32)
    return torch.from_numpy(array).permute(0, 3, 1, 2) if library == "torch" else array


@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_a_filter_gradient_with_a_bias(library: str) -> None:
    size = pycutlass.conv2d_problem_size(images(2, 6, 6, 4), images(8, 3, 3, 4), padding=1)
    dy, x, dw = (images(*shape, library=library) for shape in ((2, 6, 6, 8), (2, 6, 6, 4), (8, 3, 3, 4)))
    exact = np.asarray(convolve(wgrad, size, dy, x, dw)).copy()
    for C in (images(1, 1, 1, 4).reshape(4), images(1, 1, 1, 4).reshape(1, 4, 1, 1)):
        C = torch.from_numpy(C) if library == "torch" else C
        message = said(lambda C=C: convolve(wgrad, size, dy, x, dw, C))
        whole = code_in(message, r"takes no bias: pass (\S.*)$", {"C": C})
        added = np.asarray(C).reshape(4)
        added = added.reshape(1, 4, 1, 1) if library == "torch" else added
        np.testing.assert_array_equal(np.asarray(convolve(wgrad, size, dy, x, dw, whole)), exact + added)


def cropped(tensor: Any) -> Any:
    if isinstance(tensor, np.ndarray):
        return np.pad(tensor, ((0, 0), (1, 1), (1, 1), (0, 0)))[:, 1:-1, 1:-1]
    wide = torch.nn.functional.pad(tensor, (1, 1, 1, 1)).contiguous(memory_format=torch.channels_last)
    return wide[:, :, 1:-1, 1:-1]


def apart(tensor: Any) -> Any:
    if isinstance(tensor, np.ndarray):
        return np.asfortranarray(tensor)
    return torch.cat([tensor, tensor], 1)[:, ::2].copy_(tensor)


def wider(tensor: Any) -> Any:
    return tensor.astype(np.float64, order="K") if isinstance(tensor, np.ndarray) else tensor.double()


FORMS: list[Callable[[Any], Any]] = [cropped, apart, wider, lambda tensor: wider(cropped(tensor))]


@pytest.mark.parametrize("kind", [fprop, dgrad, wgrad], ids=str)
@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_a_tensor_of_a_convolution_is_mended_in_one_round(library: str, kind: Any) -> None:
    shapes = {"x": (1, 5, 5, 4), "w": (8, 3, 3, 4), "y": (1, 5, 5, 8)}
    of_kind = {fprop: "xwy", dgrad: "ywx", wgrad: "yxw"}[kind]
    size = pycutlass.conv2d_problem_size(images(*shapes["x"]), images(*shapes["w"]), padding=1)
    given = {each: images(*shapes[letter], library=library) for each, letter in zip("ABD", of_kind, strict=True)}
    exact = np.asarray(convolve(kind, size, *given.values())).copy()
    for name, form in itertools.product("ABD", FORMS):
        wrong = {**given, name: form(given[name])}
        message, known = said(lambda wrong=wrong: convolve(kind, size, *wrong.values())), dict(wrong)
        for code in re.findall(r"(?:[Pp]ass|[Mm]ake D as) (\S.*?)(?:, which| and read|\. |\.?$)", message):
            known[name] = eval(code, TOOLS, known)
        assert known[name] is not wrong[name], message
        if name == "D":
            np.testing.assert_array_equal(np.asarray(convolve(kind, size, *known.values())), exact, err_msg=message)
        else:
            np.testing.assert_array_equal(known[name], given[name])
            Conv2dArguments(CONVOLUTIONS[kind], size, known["A"], known["B"], None, known["D"])


def test_sizes_of_specs_are_mended_by_specs() -> None:
    w = pycutlass.TensorSpec((8, 3, 3, 4), TAG["f32"])
    message = said(lambda: pycutlass.conv2d_problem_size(pycutlass.TensorSpec((2, 4, 6, 6), TAG["f32"]), w))
    shape = code_in(message, r"if it is \(N, C, H, W\), pass a TensorSpec of shape (\(.*?\))", {})
    assert pycutlass.conv2d_problem_size(pycutlass.TensorSpec(shape, TAG["f32"]), w).C == 4
