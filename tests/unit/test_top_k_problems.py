"""Problems and tensors of kernels that select the largest of each row: which fit, and what is written."""

from __future__ import annotations

import ast
import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from convolutions import conv, dgrad, fprop, wgrad
from descriptions import native_parts, parts
from epilogue_functions import gated_routed, selecting
from marks import thorough
from routers import KERNELS, K, M, N, _Mode, check, drawn, f16, launch, make, route

import pycutlass
from pycutlass import (
    Conv2dArguments,
    GemmArguments,
    GemmGroupedArguments,
    GemmOperationGrouped,
    GemmOperationUniversal,
    GemmProblemSize,
    KernelSchedule,
    TensorSpec,
    conv2d_problem_size,
    cutlass,
)
from pycutlass.epilogue import top_k
from pycutlass.errors import ArgumentError, ArgumentTypeError


@pytest.mark.parametrize("kernel", KERNELS)
def test_rows_fit_a_tile(kernel: str) -> None:
    operation = make(route, kernel)
    columns = operation.tile_description.threadblock_shape[1]
    made = operation.outputs((M, columns, K))
    assert made["values"] == TensorSpec((M, 2), "float32") and made["experts"] == TensorSpec((M, 2), "int32")
    batched = operation.outputs(GemmProblemSize(M, N, K, _Mode.Batched, batch=3))
    assert batched["experts"] == TensorSpec((3, M, 2), "int32")
    said = operation.supports((M, columns + 8, K)).reason
    rule = rf"to values, experts, for which a row must fit a tile: threadblock_shape \[.*\] has {columns} columns, got"
    limit = ", and no tile has more than 256" if columns == 256 else ""
    assert re.search(f"{rule} N={columns + 8}{limit}: ", said)
    assert said.endswith("write D and select in a kernel of its own")
    remedy = re.search(r"use threadblock_shape (\[.*?\])(?: and warp_count (\[.*?\]))?, or write D", said)
    assert bool(remedy) == (columns < 256)
    if remedy:  # is accepted as it stands
        named = zip(("threadblock_shape", "warp_count"), remedy.groups(), strict=True)
        changes = {name: ast.literal_eval(given) for name, given in named if given}
        tile = replace(operation.tile_description, **changes)
        fields = {name: getattr(operation, name) for name in operation._FIELDS}
        assert type(operation)(**fields | {"tile_description": tile}).supports((M, columns + 8, K))
    assert "has no elements: leave such problems out" in operation.supports((M, 0, K)).reason
    assert make(selecting(8), kernel).supports((M, 8, K))


def test_k_is_at_most_n() -> None:
    operation = make(selecting(8), **parts("f16", tile=(64, 64, 32), alignment=2))
    assert operation.supports((M, 8, K))
    said = operation.supports((M, 6, K)).reason
    assert "selects the 8 largest of each row to values, indices, and rows have fewer elements: got N=6; k" in said
    paired = make(gated_routed)
    assert paired.supports((M, 16, K))
    gated = make(gated_routed, **parts("f16", tile=(64, 64, 32), alignment=2))
    assert "got N=4, and rows of 2 elements; k can be at most 2" in gated.supports((M, 4, K)).reason


@pytest.mark.parametrize("kernel", KERNELS)
def test_it_is_launched(kernel: str, without_gpu: None) -> None:
    operation, given = make(route, kernel), drawn()
    launch(operation, given)
    check(given)
    memory = np.full((M, 7), 99, np.int32)
    given |= {"experts": memory[:, 1:3], "values": np.full(M * 2, np.nan, np.float32)}
    launch(operation, given)
    check(given | {"values": given["values"].reshape(M, 2)})
    assert (memory[:, [0, 3, 4, 5, 6]] == 99).all()


@pytest.mark.parametrize("kernel", KERNELS)
def test_batches(kernel: str, without_gpu: None) -> None:
    operation, given = make(route, kernel), drawn(3)
    launch(operation, given, gemm_mode=_Mode.Batched, batch=3)
    check(given)


def test_lists_of_tensors(without_gpu: None) -> None:
    operation, given = make(), drawn(3)
    listed = {name: list(each) if each.ndim == 3 else [each] * 3 for name, each in given.items()}
    launch(operation, listed, gemm_mode=_Mode.Array, batch=3)
    check(given)


def test_tensors_are_exchanged(without_gpu: None) -> None:
    operation, given, others = make(), drawn(), drawn()
    ports = {port.name: given[port.name] for port in operation.epilogue_functor.ports}
    arguments = GemmArguments(operation, (M, N, K), given["A"], given["B"], None, given["D"], epilogue=ports)
    others |= {"A": -others["A"], "D": given["D"]}
    arguments.update(A=others["A"], epilogue={name: others[name] for name in ("values", "experts")})
    operation.run(arguments)
    arguments.sync()
    check(others)
    with pytest.raises(ArgumentError, match=r"experts must have shape \(40, 2\)"):
        arguments.update(epilogue={"experts": np.empty((M, 3), np.int32)})


def test_slices(without_gpu: None) -> None:
    operation, given = make(), drawn()
    launch(operation, given, split_k_slices=2)
    check(given)


def test_what_does_not_fit_is_named(without_gpu: None) -> None:
    operation = make()
    wrong = {
        "experts": [np.empty((M, 3), np.int32), np.empty((M, 2), np.int64), np.empty((2, M), np.int32).T, None],
        "values": [np.empty((M, 2), np.float16), np.empty(M, np.float32)],
    }
    for name, tensors in wrong.items():
        for tensor in tensors:
            with pytest.raises((ArgumentError, ArgumentTypeError), match=name):
                launch(operation, drawn() | {name: tensor})
            if tensor is not None:
                assert name in operation.supports((M, N, K), {name: tensor}).reason
    assert operation.supports((M, N, K), {"experts": np.empty((M, 5), np.int32)[:, :2]})
    given = drawn()
    given["experts"] = given["values"].view(np.int32)
    with pytest.raises(ArgumentError, match="overlaps"):
        launch(operation, given)
    given = drawn()
    given["values"] = given["A"].view(np.float32)[:, :2]
    with pytest.raises(ArgumentError, match="values overlaps A"):
        launch(operation, given)
    with pytest.raises(ArgumentError, match="for which a row must fit a tile"):
        launch(operation, drawn(), (M, 2 * N, K))


def test_pairs_are_selected_from(without_gpu: None) -> None:
    operation, given = make(gated_routed), drawn()
    given |= {"D": np.empty((M, N // 2), np.float16), "most": np.empty(N // 2, np.float32)}
    given |= {"values": np.empty((M, 3), np.float32), "indices": np.empty((M, 3), np.int32)}
    assert operation.outputs((M, N, K))["indices"].shape == (M, 3)
    launch(operation, given)
    exact = gated_routed.numpy(given["A"].astype(float) @ given["B"].astype(float), bias=given["bias"])
    for name, each in exact.items():
        np.testing.assert_array_equal(given[name], each)


def test_groups(without_gpu: None) -> None:
    operation = GemmOperationGrouped(**parts("f16", tile=(64, 64, 32)) | {"epilogue_functor": route(f16, 8)})
    sizes = [(24, 64, 32), (0, 8, 32), (7, 16, 64), (0, 0, 0)]
    assert operation.supports(sizes)
    said = operation.supports([(8, 64, 8), (8, 72, 8)]).reason
    assert "has 64 columns, got N=72 in problem_sizes[1]: use threadblock_shape [64, 128, 32], or write" in said
    random = np.random.default_rng(0)
    A, B = ([random.integers(-2, 3, (size[i], size[2])).astype(np.float16) for size in sizes] for i in (0, 1))
    bias = [random.integers(-2, 3, n).astype(np.float16) for _, n, _ in sizes]
    values = [np.full((m, 2), np.nan, np.float32) for m, _, _ in sizes]
    experts = [np.full((m, 2), 99, np.int32) for m, _, _ in sizes]
    D = [np.full((m, n), np.nan, np.float16) for m, n, _ in sizes]
    given = {"bias": bias, "values": values, "experts": experts}
    arguments = GemmGroupedArguments(operation, sizes, A, [each.T for each in B], None, D, epilogue=given)
    operation.run(arguments)
    arguments.sync()
    for i in (0, 2):
        check({"A": A[i], "B": B[i].T, "bias": bias[i], "D": D[i], "values": values[i], "experts": experts[i]})


@pytest.mark.parametrize("direction", [fprop, dgrad, wgrad])
def test_pixels_of_convolutions(direction: Any, without_gpu: None) -> None:
    """The channels of a pixel are a row."""
    stride = {"stride": pycutlass.StrideSupport.Unity} if direction is dgrad else {}
    operation = conv(direction, "optimized", shape=(64, 64, 32), functor=lambda *types: selecting(2)(*types), **stride)
    problem = cutlass.conv.Conv2dProblemSize(2, 5, 6, 32, 64, 1, 1)
    rows, columns = {fprop: (60, 64), dgrad: (60, 32), wgrad: (64, 32)}[direction]
    assert operation.supports(problem)
    called = {fprop: "K", dgrad: "C", wgrad: r"R \* S \* C"}[direction]
    wide = cutlass.conv.Conv2dProblemSize(2, 5, 6, 32, 128, 1, 1)
    wide = wide if direction is fprop else cutlass.conv.Conv2dProblemSize(2, 5, 6, 128, 64, 1, 1)
    assert re.search(rf"has 64 columns, got {called}=128: use", operation.supports(wide).reason)
    if direction is not fprop:
        return
    random = np.random.default_rng(0)
    x, w = (random.integers(-2, 3, shape).astype(np.float16) for shape in ((2, 5, 6, 32), (64, 1, 1, 32)))
    y = np.empty((2, 5, 6, 64), np.float16)
    found = {"values": np.empty((rows, 2), np.float32), "indices": np.empty((rows, 2), np.int32)}
    arguments = Conv2dArguments(operation, conv2d_problem_size(x, w), x, w, None, y, epilogue=found)
    operation.run(arguments)
    arguments.sync()
    values, indices = top_k(x.reshape(rows, 32).astype(float) @ w.reshape(columns, 32).T.astype(float), 2)
    np.testing.assert_array_equal(found["values"], values)
    np.testing.assert_array_equal(found["indices"], indices)


@pytest.mark.compile
@pytest.mark.usefixtures("quick_host_sides")  # test_gated_functions.py has headers as they are
@pytest.mark.parametrize("kernel", ["ampere", thorough("hopper")])
def test_it_builds(kernel: str) -> None:
    described = parts("f16")
    if kernel == "hopper":
        described = native_parts(tile=(128, 128, 64), schedule=KernelSchedule.Pingpong)
    operation = GemmOperationUniversal(**described | {"epilogue_functor": route(f16, 8)})
    pycutlass.compiler.add_module([operation])
    (artifact,) = operation.artifacts.values()
    assert artifact.report["stack_bytes"] == 0
