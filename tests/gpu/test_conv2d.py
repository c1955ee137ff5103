"""Every kind of convolution kernel against torch in f64: directions, types, alignments, geometries, split-K."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from conv_cases import (
    OPERATIONS,
    SPLIT,
    assert_matches,
    convolve,
    convolve_parallel,
    poisoned,
    problem,
    problems,
    random_tensor,
    tensors,
)

import pycutlass
from pycutlass import Conv2dArguments

SCALARS = [(1.0, 0.0), (0.0, 1.0), (-1.25, 1.0), (1.0, -1.25)]
CASES = [(name, index) for name, operation in OPERATIONS.items() for index in range(len(problems(operation)))]

#: The problem of the original's split-K tests.
DEEP = ((1, 17, 11, 3, 3, (1, 1), (1, 1), (1, 1)), 288, 160)
SLICES = (1, 2, 3, 4, 5, 201)
ONE_OF_EACH = ["f16_fprop_optimized", "f16_dgrad_optimized", "f16_dgrad_strided_optimized", "f16_wgrad_optimized"]


def test_there_are_cases_enough():
    assert len(set(CASES)) >= 400


@pytest.mark.parametrize(("name", "index"), CASES)
def test_against_torch(name, index):
    operation = OPERATIONS[name]
    size = problems(operation)[index]
    A, B, C, D = tensors(operation, size)
    alpha, beta = SCALARS[index % len(SCALARS)]
    D = convolve(operation, size, A, B, C, D, alpha, beta)
    assert_matches(operation, size, A, B, C, D, alpha, beta)


# Split-K


@pytest.mark.parametrize("slices", SLICES)
@pytest.mark.parametrize("name", SPLIT)
def test_serial_split_k(name, slices):
    operation, size = OPERATIONS[name], problem(*DEEP)
    A, B, C, D = tensors(operation, size)
    D = convolve(operation, size, A, B, C, D, 2.0, 2.0, split_k_slices=slices)
    assert_matches(operation, size, A, B, C, D, 2.0, 2.0, slices=slices)


@pytest.mark.parametrize("slices", SLICES)
@pytest.mark.parametrize("name", SPLIT)
def test_parallel_split_k(name, slices):
    operation, size = OPERATIONS[name], problem(*DEEP)
    A, B, C, D = tensors(operation, size)
    D = convolve_parallel(operation, size, A, B, C, D, 2.0, 2.0, slices=slices)
    assert_matches(operation, size, A, B, C, D, 2.0, 2.0)  # one rounding, however many slices


@pytest.mark.parametrize("name", ["f16_fprop_optimized", "f16_wgrad_optimized", "f32_simt_dgrad"])
def test_split_k_again_and_again(name):
    # The semaphores of serial split-K are zero again after each launch.
    operation, size = OPERATIONS[name], problem(*DEEP)
    A, B, C, D = tensors(operation, size)
    arguments = Conv2dArguments(operation, size, A, B, C, D, operation.epilogue_type(1.0, 0.5), split_k_slices=4)
    for _ in range(3):
        D.fill_(float("nan"))
        operation.run(arguments)
        arguments.sync()
        assert_matches(operation, size, A, B, C, D, 1.0, 0.5, slices=4)


# Operands

SMALL = ((2, 9, 10, 3, 3, (1, 1), (1, 1), (1, 1)), 32, 48)


@pytest.mark.parametrize("name", ["f16_fprop_optimized", "f32_simt_fprop", "f32_simt_fprop_unity", "f16_fprop_gelu"])
@pytest.mark.parametrize("slices", [1, 3])
def test_bias_by_output_channel(name, slices):
    operation, size = OPERATIONS[name], problem(*SMALL)
    A, B, C, D = tensors(operation, size)
    bias = C[0, :, 0, 0].contiguous()
    D = convolve(operation, size, A, B, bias, D, 1.0, 1.0, split_k_slices=slices)
    assert_matches(operation, size, A, B, bias, D, 1.0, 1.0, slices=slices)


@pytest.mark.parametrize("name", ["f16_dgrad_optimized", "f16_dgrad_strided_optimized", "f32_simt_dgrad_strided"])
def test_bias_by_input_channel(name):
    operation, size = OPERATIONS[name], problem(*SMALL)
    A, B, C, D = tensors(operation, size)
    bias = C[0, :, 0, 0].contiguous()
    D = convolve(operation, size, A, B, bias, D, 1.0, -1.0)
    assert_matches(operation, size, A, B, bias, D, 1.0, -1.0)


@pytest.mark.parametrize("name", [*ONE_OF_EACH, "f32_simt_wgrad", "s8_fprop_interleaved_analytic"])
def test_beta_zero_reads_nothing_of_c(name):
    operation, size = OPERATIONS[name], problem(SMALL[0], 32, 32)
    A, B, C, D = tensors(operation, size)
    for source in (None, poisoned(operation.C, tuple(C.permute(0, 2, 3, 1).shape))):
        D = convolve(operation, size, A, B, source, D, 1.0, 0.0)
        assert_matches(operation, size, A, B, None, D, 1.0, 0.0)


@pytest.mark.parametrize("name", ONE_OF_EACH)
def test_d_may_be_c(name):
    operation, size = OPERATIONS[name], problem(*SMALL)
    A, B, C, _ = tensors(operation, size)
    original = C.clone()
    convolve(operation, size, A, B, C, C, 1.0, 0.5)
    assert_matches(operation, size, A, B, original, C, 1.0, 0.5)


@pytest.mark.parametrize(
    "name",
    [
        "f16_fprop_optimized",
        "f16_fprop_analytic",
        "f32_simt_fprop",
        "f32_simt_fprop_unity",
        "f16_fprop_fixed8",
        "f16_fprop_few4",
        "f16_dgrad_optimized",
        "f16_dgrad_analytic",
        "f16_dgrad_strided_optimized",
        "f16_dgrad_strided_analytic",
        "f16_wgrad_optimized",
        "f16_wgrad_analytic",
    ],
)
def test_slices_of_channels(name):
    operation = OPERATIONS[name]
    size = problem(SMALL[0], 8 if "fixed" in name or "few" in name else 32, 48)
    whole = []

    def sliced(description: Any, tensor: Any) -> Any:
        n, c, h, w = tensor.shape
        whole.append(random_tensor(description, (n, h, w, c + 24)))
        whole[-1][:, 8 : 8 + c] = tensor
        return whole[-1][:, 8 : 8 + c]

    A, B, C, D = tensors(operation, size)
    A = sliced(operation.A, A)
    B = sliced(operation.B, B)
    if "wgrad" not in name:
        C, D = sliced(operation.C, C), sliced(operation.C, D)
        surroundings = whole[-1].clone()
    convolve(operation, size, A, B, C, D, 1.0, 2.0)
    assert_matches(operation, size, A, B, C, D, 1.0, 2.0)
    if "wgrad" not in name:
        surroundings[:, 8 : 8 + D.shape[1]] = D
        assert surroundings.equal(whole[-1]), "the kernel wrote outside D"


@pytest.mark.parametrize("name", ONE_OF_EACH)
def test_numpy_arrays(name):
    operation, size = OPERATIONS[name], problem(*SMALL)
    A, B, C, D = tensors(operation, size)
    a, b, c, d = (np.ascontiguousarray(each.permute(0, 2, 3, 1).cpu().numpy()) for each in (A, B, C, D))
    arguments = Conv2dArguments(operation, size, a, b, c, d, operation.epilogue_type(1.0, 1.0))
    operation.run(arguments)
    arguments.sync()
    import torch

    assert_matches(operation, size, A, B, C, torch.from_numpy(d).permute(0, 3, 1, 2), 1.0, 1.0)


def test_pointers_and_flat_tensors():
    operation, size = OPERATIONS["f16_fprop_optimized"], problem(*SMALL)
    A, B, C, D = tensors(operation, size)
    flat = B.permute(0, 2, 3, 1).reshape(-1)
    arguments = Conv2dArguments(operation, size, A.data_ptr(), flat, None, D.data_ptr())
    operation.run(arguments)
    arguments.sync()
    assert_matches(operation, size, A, B, None, D)
    bias = C[0, :, 0, 0].contiguous()
    output_op = operation.epilogue_type(1.0, 1.0)
    named = Conv2dArguments(operation, size, A, B, bias.data_ptr(), D.fill_(float("nan")), output_op, bias=True)
    operation.run(named)
    named.sync()
    assert_matches(operation, size, A, B, bias, D, 1.0, 1.0)


@pytest.mark.parametrize("name", ONE_OF_EACH)
def test_update_takes_the_short_way_and_the_long_one(name):
    operation, size = OPERATIONS[name], problem(*SMALL)
    A, B, C, D = tensors(operation, size)
    arguments = Conv2dArguments(operation, size, A, B, C, D, operation.epilogue_type(1.0, 1.0))
    operation.run(arguments)
    other, _, _, E = tensors(operation, size)
    arguments.update(A=other, D=E)
    operation.run(arguments)
    arguments.sync()
    assert_matches(operation, size, A, B, C, D, 1.0, 1.0)
    assert_matches(operation, size, other, B, C, E, 1.0, 1.0)
    arguments.update(D=D.fill_(float("nan")), output_op=operation.epilogue_type(0.5, 0.0))
    operation.run(arguments)
    arguments.sync()
    assert_matches(operation, size, other, B, None, D, 0.5, 0.0)


# Sizes


@pytest.mark.slow
@pytest.mark.parametrize("name", ONE_OF_EACH)
@pytest.mark.parametrize(
    ("geometry", "channels", "filters"),
    [
        ((32, 56, 56, 3, 3, (1, 1), (1, 1), (1, 1)), 64, 64),
        ((8, 56, 56, 3, 3, (1, 1), (2, 2), (1, 1)), 128, 128),
        ((4, 112, 112, 7, 7, (3, 3), (2, 2), (1, 1)), 8, 64),
        ((16, 7, 7, 1, 1, (0, 0), (1, 1), (1, 1)), 512, 2048),
    ],
)
def test_layers_of_networks(name, geometry, channels, filters):
    operation, size = OPERATIONS[name], problem(geometry, channels, filters)
    support = operation.supports(size)
    if not support:
        assert "Unity" in support.reason
        return
    A, B, _, D = tensors(operation, size)
    D = convolve(operation, size, A, B, None, D, 1.0, 0.0)
    assert_matches(operation, size, A, B, None, D, 1.0, 0.0)


def test_a_grid_with_its_tiles_along_y_is_checked():
    # HorizontalSwizzle puts the tiles of M along y, where CUDA has at most 65535 threadblocks.
    operation = OPERATIONS["f16_fprop_horizontal"]
    size = problem((1, 2048, 2049, 1, 1, (0, 0), (1, 1), (1, 1)), 8, 8)
    A, B, _, D = tensors(operation, size)
    with pytest.raises(pycutlass.errors.ArgumentError, match="at most 65535 along y"):
        Conv2dArguments(operation, size, A, B, None, D)


def test_wide_tensors_reach_the_limit():
    import torch

    operation = OPERATIONS["f16_fprop_optimized"]
    size = problem((1, 1024, 1024, 1, 1, (0, 0), (1, 1), (1, 1)), 8, 8)
    wide = torch.empty((1, 1024, 1024, 1024 + 8), dtype=torch.float16, device="cuda").permute(0, 3, 1, 2)
    B, D = random_tensor(operation.B, (8, 1, 1, 8)), poisoned(operation.C, (1, 1024, 1024, 8))
    with pytest.raises(pycutlass.errors.ArgumentError, match="must span less than 2,147,483,648"):
        Conv2dArguments(operation, size, wide[:, :8], B, None, D)


# No images, no channels


@pytest.mark.parametrize("slices", [1, 3])
@pytest.mark.parametrize(
    ("name", "axis"), [("f16_wgrad_optimized", "N"), ("f32_simt_fprop", "C"), ("f16_dgrad_optimized", "K")]
)
def test_sums_without_products_are_beta_c(name, axis, slices):
    import torch

    operation, size = OPERATIONS[name], problem(*SMALL)
    setattr(size, axis, 0)
    A, B, C, D = tensors(operation, size)
    assert not A.numel() and D.numel()
    scalars = operation.epilogue_type(1.0, 0.5)
    arguments = Conv2dArguments(operation, size, A, B, C, D, scalars, split_k_slices=slices)
    for source in (C, torch.ones_like(C)):
        D.fill_(float("nan"))
        arguments.update(C=source)
        operation.run(arguments)
        arguments.sync()
        torch.testing.assert_close(D, 0.5 * source)


@pytest.mark.parametrize(
    ("name", "axis"), [("f16_fprop_optimized", "N"), ("f16_wgrad_optimized", "K"), ("f16_dgrad_optimized", "C")]
)
def test_empty_outputs_launch_nothing(name, axis):
    operation, size = OPERATIONS[name], problem(*SMALL)
    setattr(size, axis, 0)
    A, B, C, D = tensors(operation, size)
    assert not D.numel()
    arguments = Conv2dArguments(operation, size, A, B, C, D, operation.epilogue_type(1.0, 1.0))
    operation.run(arguments)
    arguments.sync()
    with pytest.raises(pycutlass.errors.ArgumentError, match="nothing is launched"):
        _ = arguments.launch_config
