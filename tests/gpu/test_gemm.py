"""Every kind of GEMM kernel against the reference: types, layouts, alignments, swizzles, odd sizes, scalars."""

from __future__ import annotations

import pytest
from cases import OPERATIONS, assert_matches, poisoned, random_matrix

import pycutlass

SCALARS = [(1.0, 0.0), (0.0, 1.0), (-1.25, 1.0), (1.0, -1.25), (0.0, 0.0)]


def sizes(operation: pycutlass.GemmOperationUniversal) -> list[tuple[int, int, int]]:
    """Return problem sizes: one tile, several, ragged, K no multiple of the tile, thin and tiny."""
    step = max(operation.A.alignment, operation.B.alignment, operation.C.alignment)
    return [
        (128, 128, 64),
        (256 + step, 128 + 3 * step, 40 + step - 40 % step),
        (step, 264 // step * step, 520 // step * step),
        (33 * step, step, step),
        (step, step, 1024 + step),
    ]


@pytest.mark.parametrize("name", OPERATIONS)
def test_against_reference(name: str) -> None:
    operation = OPERATIONS[name]
    for (m, n, k), (alpha, beta) in zip(sizes(operation), SCALARS, strict=True):
        A, B = random_matrix(operation.A, m, k), random_matrix(operation.B, k, n)
        C, D = random_matrix(operation.C, m, n), poisoned(operation.C, m, n)
        output_op = operation.epilogue_type(alpha, beta)
        arguments = pycutlass.GemmArguments(operation, (m, n, k), A, B, C, D, output_op=output_op)
        operation.run(arguments)
        arguments.sync()
        assert_matches(operation, A, B, C, D, alpha, beta)


@pytest.mark.parametrize("name", ["f16_align2", "f32_align1", "f32_simt_tnt", "f32_simt_ntn", "f64", "f64_simt"])
@pytest.mark.parametrize(("m", "n", "k"), [(1, 1, 1), (1, 129, 63), (131, 1, 7), (127, 65, 1), (255, 257, 33)])
def test_odd_sizes(name: str, m: int, n: int, k: int) -> None:
    operation = OPERATIONS[name]
    step = max(operation.A.alignment, operation.B.alignment, operation.C.alignment)
    m, n, k = m * step, n * step, k * step
    A, B = random_matrix(operation.A, m, k), random_matrix(operation.B, k, n)
    C, D = random_matrix(operation.C, m, n), poisoned(operation.C, m, n)
    output_op = operation.epilogue_type(1.5, -0.5)
    arguments = pycutlass.GemmArguments(operation, (m, n, k), A, B, C, D, output_op=output_op)
    operation.run(arguments)
    arguments.sync()
    assert_matches(operation, A, B, C, D, 1.5, -0.5)


@pytest.mark.parametrize(
    "name", ["f16_tnt", "f16_ntn", "f32_simt_nnn", "tf32_tnt", "hopper_cooperative_2x1", "hopper_pingpong"]
)
def test_leading_dimensions_larger_than_extents(name: str) -> None:
    operation = OPERATIONS[name]
    m, n, k = 136, 264, 72
    A, B, C, D = (
        random_matrix(description, rows + 16, columns + 32)[8 : 8 + rows, 16 : 16 + columns]
        for description, rows, columns in (
            (operation.A, m, k),
            (operation.B, k, n),
            (operation.C, m, n),
            (operation.C, m, n),
        )
    )
    surroundings = D._base if D._base is not None else D
    before = surroundings.clone()
    D.fill_(float("nan"))
    arguments = pycutlass.GemmArguments(operation, (m, n, k), A, B, C, D, output_op=operation.epilogue_type(1.0, 2.0))
    operation.run(arguments)
    arguments.sync()
    assert_matches(operation, A, B, C, D, 1.0, 2.0)
    D.copy_(before.as_strided(D.shape, D.stride(), D.storage_offset()))
    assert surroundings.equal(before), "the kernel wrote outside D"


@pytest.mark.parametrize(
    "name", ["f16_tnt", "f16_tnn", "bf16_tnt", "f32_simt_tnt", "f64", *[n for n in OPERATIONS if "hopper" in n]]
)
def test_beta_zero_reads_nothing_of_c(name: str) -> None:
    operation = OPERATIONS[name]
    m, n, k = 136, 264, 72
    A, B = random_matrix(operation.A, m, k), random_matrix(operation.B, k, n)
    for C in (None, poisoned(operation.C, m, n)):
        D = poisoned(operation.C, m, n)
        beta_is_zero = operation.epilogue_type(1.0, 0.0)
        arguments = pycutlass.GemmArguments(operation, (m, n, k), A, B, C, D, output_op=beta_is_zero)
        operation.run(arguments)
        arguments.sync()
        assert_matches(operation, A, B, None, D)


@pytest.mark.parametrize("name", ["f16_tnt", "f32_simt_nnn", "hopper_cooperative_2x1", "hopper_pingpong"])
def test_d_may_be_c(name: str) -> None:
    operation = OPERATIONS[name]
    m, n, k = 264, 136, 200
    A, B, C = random_matrix(operation.A, m, k), random_matrix(operation.B, k, n), random_matrix(operation.C, m, n)
    original = C.clone()
    arguments = pycutlass.GemmArguments(operation, (m, n, k), A, B, C, C, output_op=operation.epilogue_type(0.5, 1.0))
    operation.run(arguments)
    arguments.sync()
    assert_matches(operation, A, B, original, C, 0.5, 1.0)


@pytest.mark.parametrize("name", [name for name in OPERATIONS if "hopper" in name])
@pytest.mark.parametrize("form", ["vector", "pointer"])
def test_bias_of_a_hopper_native_kernel(name: str, form: str) -> None:
    """TMA reads the same row again and again."""
    operation = OPERATIONS[name]
    for m, n, k in ((8, 264, 72), (1000, 136, 200)):
        A, B, D = random_matrix(operation.A, m, k), random_matrix(operation.B, k, n), poisoned(operation.C, m, n)
        bias = random_matrix(operation.C, 1, n).reshape(-1)
        given = {"C": bias} if form == "vector" else {"C": bias.data_ptr(), "bias": True}
        output_op = operation.epilogue_type(0.5, -1.25)
        arguments = pycutlass.GemmArguments(operation, (m, n, k), A, B, D=D, output_op=output_op, **given)
        operation.run(arguments)
        arguments.sync()
        assert_matches(operation, A, B, bias.expand(m, n), D, 0.5, -1.25)


@pytest.mark.parametrize("many", [False, True])
def test_bias_of_a_batch_of_a_hopper_native_kernel(many: bool) -> None:
    import torch

    operation, (batch, m, n, k) = OPERATIONS["hopper_pingpong"], (5, 136, 264, 72)
    A, W = (torch.randn(batch, *shape, device="cuda").half() for shape in ((m, k), (n, k)))
    bias = torch.randn(*([batch] if many else []), n, device="cuda").half()
    D = torch.full((batch, m, n), float("nan"), device="cuda").half()
    mode, output_op = pycutlass.cutlass.gemm.Mode.Batched, operation.epilogue_type(1.0, 1.0)
    arguments = pycutlass.GemmArguments(
        operation, (m, n, k), A, W.transpose(1, 2), bias, D, mode, batch=batch, output_op=output_op
    )
    operation.run(arguments)
    arguments.sync()
    for number in range(batch):
        added = (bias[number] if many else bias).expand(m, n)
        assert_matches(operation, A[number], W[number].t(), added, D[number], 1.0, 1.0)


def test_double_scalars_stay_double() -> None:
    import torch

    operation = OPERATIONS["f64"]
    A, B = random_matrix(operation.A, 64, 48), random_matrix(operation.B, 48, 80)
    D = poisoned(operation.C, 64, 80)
    arguments = pycutlass.GemmArguments(
        operation, (64, 80, 48), A, B, None, D, output_op=operation.epilogue_type(0.1, 0.0)
    )
    operation.run(arguments)
    arguments.sync()
    torch.testing.assert_close(D, 0.1 * (A @ B), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("order", list(pycutlass.RasterOrder))
def test_raster_orders(order: pycutlass.RasterOrder) -> None:
    operation = OPERATIONS["hopper_cooperative_2x1"]
    m, n, k = 1000, 2040, 136
    A, B = random_matrix(operation.A, m, k), random_matrix(operation.B, k, n)
    D = poisoned(operation.C, m, n)
    arguments = pycutlass.GemmArguments(operation, (m, n, k), A, B, None, D, raster_order=order)
    operation.run(arguments)
    arguments.sync()
    assert_matches(operation, A, B, None, D)
