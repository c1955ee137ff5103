"""A float of 16 bits times an integer of 8 bits, which kernels convert in registers: described, planned and run."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from descriptions import COLUMN, LAYOUTS, ROW, ampere, mixed_parts

import pycutlass
from pycutlass import GemmOperationGrouped, GemmOperationUniversal, MathOperation, cutlass, tile_descriptions
from pycutlass.device import Device
from pycutlass.errors import ArgumentError, DescriptionError
from pycutlass.plan import candidates
from pycutlass.plan.records import name_of, problem_record
from pycutlass.plan.upcast import is_faster_converted
from pycutlass.tensor import wrap

pytestmark = pytest.mark.usefixtures("without_gpu")

WIDE, NARROW = {"f16": np.float16, "bf16": ml_dtypes.bfloat16}, {"s8": np.int8, "u8": np.uint8}
PAIRS = [pair for wide in WIDE for narrow in NARROW for pair in ((wide, narrow), (narrow, wide))]
M, N, K = 24, 40, 48


def floats(wide: Any, *shape: int) -> Any:
    """Return whole numbers, whose sums of products are exact."""
    return np.random.default_rng(0).integers(-8, 9, shape).astype(wide)


def integers(narrow: Any, *shape: int) -> Any:
    limits = np.iinfo(narrow)
    return np.random.default_rng(1).integers(limits.min, limits.max + 1, shape).astype(narrow)


def exact(a: Any, b: Any) -> Any:
    return a.astype(np.float64) @ b.astype(np.float64)


@pytest.mark.parametrize("layouts", LAYOUTS, ids=lambda layouts: "".join(each.__name__[0] for each in layouts))
@pytest.mark.parametrize("pair", PAIRS, ids=" x ".join)
def test_the_integer_lies_along_k_and_the_float_as_it_likes(pair: tuple[str, str], layouts: Any) -> None:
    along_k = layouts[0] is ROW if pair[0] in NARROW else layouts[1] is COLUMN
    if not along_k:
        with pytest.raises(DescriptionError, match="take it contiguous along K, since ldmatrix cannot transpose"):
            GemmOperationUniversal(**mixed_parts(*pair, layouts))
        return
    operation = GemmOperationUniversal(**mixed_parts(*pair, layouts))
    assert "OpMultiplyAddMixedInputUpcast" in operation.emit()
    assert f"_{pair[0]}x{pair[1]}_" in operation.procedural_name()
    with pytest.raises(DescriptionError, match="the operands of a group have one type, got A of"):
        GemmOperationGrouped(**mixed_parts(*pair, layouts))


@pytest.mark.parametrize("accumulator", ["f16", "f32"])
def test_sums_of_bfloat16_are_in_float32(accumulator: str) -> None:
    assert GemmOperationUniversal(**mixed_parts("f16", "s8", types=("f16", accumulator, "f16")))
    if accumulator == "f16":
        with pytest.raises(DescriptionError, match=r"TensorOp bf16 x s8 -> f16.*Nearest valid.*bf16 x s8 -> f32"):
            mixed_parts("bf16", "s8", types=("bf16", accumulator, "bf16"))


def test_a_tile_of_columns_has_the_rows_of_the_other_operand() -> None:
    """The stages of 64x256 take less where the 256 are of int8: a column-major D is that of the transposed problem."""
    tall: Any = {"tile": (64, 256, 64), "warps": (1, 4, 1)}
    for layout, stages in ((ROW, 6), (COLUMN, 4)):
        GemmOperationUniversal(**mixed_parts("f16", "s8", (ROW, COLUMN, layout), **tall, stages=stages))
        with pytest.raises(DescriptionError, match="bytes of shared memory"):
            GemmOperationUniversal(**mixed_parts("f16", "s8", (ROW, COLUMN, layout), **tall, stages=stages + 1))


def test_tiles_are_those_of_the_wider_type() -> None:
    kernels = [GemmOperationUniversal(**mixed_parts(*pair)) for pair in (("f16", "s8"), ("s8", "f16"))]
    first, second, plain = (
        {(tile.threadblock_shape, tile.warp_count) for tile in tile_descriptions(like)}
        for like in (*kernels, ampere("f16"))
    )
    assert first == second == plain and len(first) > 15


@pytest.mark.parametrize("pair", PAIRS, ids=" x ".join)
def test_products_in_one_line(pair: tuple[str, str]) -> None:
    wide, narrow = (
        WIDE[each] if each in WIDE else NARROW[each] for each in sorted(pair, key=lambda each: each in NARROW)
    )
    x, w = floats(wide, M, K), integers(narrow, N, K)
    a, b = (x, w.T) if pair[0] in WIDE else (w, x.T)
    made = pycutlass.matmul(a, b)
    assert made.dtype == wide
    np.testing.assert_array_equal(made, exact(a, b).astype(np.float32).astype(wide))
    single = pycutlass.matmul(a, b, out_dtype=cutlass.float32)
    np.testing.assert_array_equal(single, exact(a, b).astype(np.float32))
    stacked = pycutlass.matmul(np.stack([a, a]), b)
    np.testing.assert_array_equal(stacked, np.stack([made, made]))
    np.testing.assert_array_equal(pycutlass.matmul(a[:1], b)[0], made[0])


def test_a_linear_layer_with_a_scale_for_each_row_of_its_weights() -> None:
    x, w = floats(np.float16, 2, 3, K), integers(np.int8, N, K)
    scales = np.random.default_rng(2).random(N).astype(np.float32) / 64
    bias = floats(np.float16, N)
    made = pycutlass.linear(x, w, bias, pycutlass.relu, scales=(1.0, scales))
    wanted = np.maximum(exact(x, w.T) * scales + bias, 0)
    assert made.dtype == np.float16
    np.testing.assert_allclose(made.astype(np.float64), wanted, rtol=2e-3, atol=1e-2)


def test_a_plan() -> None:
    x, w = floats(np.float16, M, K), integers(np.int8, N, K)
    plan = pycutlass.Gemm(x, w.T)
    assert plan.kind.math_operation is MathOperation.multiply_add_mixed_input_upcast
    assert plan.kind.D.type.short == "f16"
    np.testing.assert_array_equal(plan.run(x, w.T), exact(x, w.T).astype(np.float16))
    assert plan.check() <= 1
    assert "Ampere-style" in plan.explain()
    record = problem_record(plan.kind, M, N, K)
    assert record["multiplied"] == "f16 x s8 -> f32, multiply_add_mixed_input_upcast"
    assert name_of(record) == f"{M}x{N}x{K} f16 x s8 -> f16"


def test_candidates_divide_k_in_every_way() -> None:
    kind = pycutlass.Gemm(floats(np.float16, M, K), integers(np.int8, N, K).T).kind
    for capability in (80, 86, 90):
        found = candidates(kind, capability)
        assert all(each.operation.tile_description.stages >= 3 for each in found)
        assert {(each.is_stream_k, each.is_parallel, each.split_k_slices > 1) for each in found} == {
            *((False, False, False), (True, False, False), (False, False, True), (False, True, True))
        }


REFUSED: dict[str, tuple[Any, Any]] = {
    "its elements of K are adjacent, as in w.T of weights by rows.*B is row-major": (
        floats(np.float16, M, K),
        integers(np.int8, K, N),
    ),
    "both operands are aligned to 4 bytes or more.*B is column-major and aligned to 2 bytes": (
        *(floats(np.float16, M, 46), integers(np.int8, N, 46).T),
    ),
    "a is float32 and b is int8.*float16 or bfloat16 with int8 or uint8": (
        *(floats(np.float32, M, K), integers(np.int8, N, K).T),
    ),
}


@pytest.mark.parametrize("message", REFUSED)
def test_refused(message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        pycutlass.matmul(*REFUSED[message])


def test_groups_in_one_line_convert_nothing() -> None:
    xs, ws = [floats(np.float16, M, K)] * 2, [integers(np.int8, N, K).T] * 2
    with pytest.raises(ArgumentError, match="xs is float16 and ws is int8: kernels multiply equal types"):
        pycutlass.grouped_matmul(xs, ws)


H200, A100 = Device(0, "NVIDIA H200", 90, 132), Device(0, "NVIDIA A100-SXM4-80GB", 80, 108)


@pytest.mark.parametrize(
    ("gpu", "rows", "wanted"),
    [
        (H200, 1, True),
        (H200, 64, True),
        (H200, 8192, False),
        (A100, 1, True),
        (A100, 8192, True),
    ],
)
def test_when_a_cast_is_slower(gpu: Device, rows: int, wanted: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hopper-native kernels multiply operands of one type alone, and are faster where multiplying takes long."""
    monkeypatch.setattr("pycutlass.plan.upcast.without_gpu", lambda: gpu)
    a, w = np.empty((rows, 4096), np.float16), np.empty((4096, 4096), np.int8)
    assert is_faster_converted(wrap("a", a), wrap("b", w.T)) is wanted
    assert not is_faster_converted(wrap("a", a), wrap("b", w))
    assert not is_faster_converted(wrap("a", a[:, :46]), wrap("b", w[:, :46].T))
    assert not is_faster_converted(wrap("a", a[:0]), wrap("b", w.T))
