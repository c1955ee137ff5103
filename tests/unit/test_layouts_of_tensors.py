"""Matrices of epilogue functions that lie column by column, or are less aligned than D, on the host."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest
import torch
from convolutions import conv, fprop
from descriptions import native_parts, parts

import pycutlass
from pycutlass import (
    GemmArguments,
    GemmGroupedArguments,
    GemmOperationGrouped,
    GemmOperationUniversal,
    ReductionOperation,
    TensorDescription,
    cutlass,
)
from pycutlass.epilogue import Family, Row, Tensor
from pycutlass.errors import AlignmentError, ArgumentError, DescriptionError

M, N, K, BATCH = 24, 16, 32, 3
_Mode = cutlass.gemm.Mode
f16, f32 = cutlass.float16, cutlass.float32
BY_COLUMNS = TensorDescription(f16, cutlass.ColumnMajor)


@pycutlass.epilogue_function
def added(accum: Any, x: Tensor, bias: Row) -> Any:
    t = accum + x
    return {"D": t + bias, "t": t}


FUNCTOR = added(f16, 8, x=BY_COLUMNS, t=TensorDescription(f32, cutlass.ColumnMajor))
BOTH = {"ampere": parts("f16"), "hopper": native_parts()}
FAMILIES = {name: GemmOperationUniversal(**each | {"epilogue_functor": FUNCTOR}) for name, each in BOTH.items()}


def drawn(*batch: int) -> dict[str, Any]:
    random = np.random.default_rng(6)

    def each(*shape: int) -> Any:
        return random.integers(-3, 4, (*batch, *shape)).astype(np.float16)

    given = {"A": each(M, K), "B": each(N, K).swapaxes(-1, -2), "bias": each(N), "D": each(M, N)}
    return given | {"x": each(N, M).swapaxes(-1, -2), "t": each(N, M + 3).astype(np.float32)[..., :M].swapaxes(-1, -2)}


def launch(operation: Any, given: dict[str, Any], **options: Any) -> Any:
    if not options and given["A"].ndim == 3:
        options = {"gemm_mode": _Mode.Batched, "batch": BATCH}
    ports = {name: given[name] for name in ("x", "bias", "t")}
    operands = given["A"], given["B"], None, given["D"]
    arguments = GemmArguments(operation, (M, N, K), *operands, epilogue=ports, **options)
    operation.run(arguments)
    arguments.sync()
    return arguments


def check(given: dict[str, Any]) -> None:
    A, B, x, bias = (np.asarray(given[name], np.float32) for name in ("A", "B", "x", "bias"))
    np.testing.assert_array_equal(given["t"], A @ B + x)
    np.testing.assert_array_equal(given["D"], A @ B + x + bias[..., None, :])


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("batch", [(), (BATCH,)])
def test_columns_are_read_and_written(batch: tuple[int, ...], family: str, without_gpu: None) -> None:
    given = drawn(*batch)
    arguments = launch(FAMILIES[family], given)
    check(given)
    others = {name: drawn(*batch)[name] * 2 for name in ("x", "t")}
    arguments.update(epilogue=others)
    FAMILIES[family].run(arguments)
    arguments.sync()
    check(given | others)


def test_tensors_of_torch_do_as_well(without_gpu: None) -> None:
    given = {name: torch.from_numpy(each) for name, each in drawn().items()}
    assert given["x"].stride() == (1, M)
    launch(FAMILIES["ampere"], given)
    check({name: each.numpy() for name, each in given.items()})


@pytest.mark.parametrize("stacked", [True, False])
def test_of_an_array(stacked: bool, without_gpu: None) -> None:
    given = drawn(BATCH)
    listed = {name: each if stacked else list(each) for name, each in given.items()}
    launch(FAMILIES["ampere"], listed, gemm_mode=_Mode.Array, batch=BATCH)
    check(given)


@pytest.mark.parametrize("family", FAMILIES)
def test_of_a_group(family: str, without_gpu: None) -> None:
    operation = GemmOperationGrouped(**BOTH[family] | {"epilogue_functor": FUNCTOR})
    given = drawn(BATCH)
    A, B, D = (list(given[name]) for name in "ABD")
    ports = {name: list(given[name]) for name in ("x", "bias", "t")}
    arguments = GemmGroupedArguments(operation, [(M, N, K)] * BATCH, A, B, None, D, epilogue=ports)
    operation.run(arguments)
    arguments.sync()
    check(given)


def test_behind_parallel_split_k(without_gpu: None) -> None:
    gemm, C = GemmOperationUniversal(**parts("f16")), parts("f16")["C"]
    reduction = ReductionOperation((4, 256), C, f32, epilogue_functor=FUNCTOR, count=8)
    given = drawn()
    mode = _Mode.GemmSplitKParallel
    sums = GemmArguments(gemm, (M, N, K), given["A"], given["B"], gemm_mode=mode, split_k_slices=1)
    ports = {name: given[name] for name in ("x", "bias", "t")}
    arguments = pycutlass.ReductionArguments(reduction, (M, N), 1, sums.ptr_D, given["D"], None, epilogue=ports)
    gemm.run(sums)
    reduction.run(arguments)
    arguments.sync()
    check(given)


def test_a_description_is_part_of_the_functor() -> None:
    plain = added(f16, 8, t=f32)
    by_rows = added(
        f16, 8, t=TensorDescription(f32, cutlass.RowMajor, 4), x=TensorDescription(f16, cutlass.RowMajor, 8)
    )
    assert plain != by_rows  # what has no layout of its own has that of D, which may be column-major
    assert plain.definitions(Family.AMPERE_GEMM) == by_rows.definitions(Family.AMPERE_GEMM)
    assert FUNCTOR != plain and pickle.loads(pickle.dumps(FUNCTOR)) == FUNCTOR
    assert "x=TensorDescription(cutlass.float16, cutlass.ColumnMajor, 1)" in repr(FUNCTOR)
    assert eval(repr(FUNCTOR), {"added": added, "cutlass": cutlass, "TensorDescription": TensorDescription}) == FUNCTOR
    assert FUNCTOR.definitions(Family.AMPERE_GEMM) != plain.definitions(Family.AMPERE_GEMM)
    narrower = added(f16, 8, x=TensorDescription(f16, cutlass.RowMajor, 2))
    assert [port.alignment for port in narrower.ports] == [2, 1, 8]
    assert [port.alignment for port in FUNCTOR.ports] == [1, 1, 1]


def test_what_tma_brings_lies_by_rows() -> None:
    for described, loaded in ((f16, "x"), (BY_COLUMNS, None), (TensorDescription(f16, cutlass.RowMajor, 4), None)):
        port = added(f16, 8, x=described).loaded(Family.SM90_GEMM)
        assert (port and port.name) == loaded


def test_less_aligned_matrices(without_gpu: None) -> None:
    operation = GemmOperationUniversal(
        **parts("f16") | {"epilogue_functor": added(f16, 8, t=f32, x=TensorDescription(f16, cutlass.RowMajor, 1))}
    )
    given = drawn()
    given["x"] = np.pad(np.ascontiguousarray(given["x"]), ((0, 0), (1, 2)))[:, 1:-2]
    given["t"] = np.ascontiguousarray(given["t"])
    launch(operation, given)
    check(given)
    usual = GemmOperationUniversal(**parts("f16") | {"epilogue_functor": added(f16, 8, t=f32)})
    with pytest.raises(
        AlignmentError, match=r"x.* or describe it, x=TensorDescription\(cutlass\.float16, cutlass\.RowMajor, 1\)"
    ):
        launch(usual, given)


@pytest.mark.parametrize("family", FAMILIES)
def test_the_other_layout_is_refused(family: str, without_gpu: None) -> None:
    by_columns = r"TensorDescription\(cutlass\.float16, cutlass\.ColumnMajor, 1\)"
    as_rows = r"TensorDescription\(cutlass\.float16, cutlass\.RowMajor, 8\)"
    offer = r"operand x is described as {}, .*, or describe it, x={}"
    given = drawn()
    by_rows = {name: np.ascontiguousarray(given[name]) for name in ("x", "t")}
    with pytest.raises(ArgumentError, match=offer.format("ColumnMajor", as_rows)):
        launch(FAMILIES[family], given | {"x": by_rows["x"]})
    arguments = launch(FAMILIES[family], given)
    with pytest.raises(ArgumentError, match="operand t is described as ColumnMajor"):
        arguments.update(epilogue={"t": by_rows["t"]})
    usual = GemmOperationUniversal(**BOTH[family] | {"epilogue_functor": added(f16, 8, t=f32)})
    with pytest.raises(ArgumentError, match=offer.format("RowMajor", by_columns)):
        launch(usual, given | {"t": by_rows["t"]})


def test_what_has_no_layout_says_so() -> None:
    with pytest.raises(
        DescriptionError, match=r"bias of added is a row, which has no layout: give its type alone, bias=cu"
    ):
        added(f16, 8, bias=TensorDescription(f32, cutlass.RowMajor))
    with pytest.raises(
        DescriptionError, match=r"x of added .* with cutlass\.RowMajor or cutlass\.ColumnMajor, got cut"
    ):
        added(f16, 8, x=TensorDescription(f16, cutlass.TensorNHWC))
    with pytest.raises(DescriptionError, match=r"added has x as cutlass\.ColumnMajor, and tensors of .* lie as D does"):
        conv(fprop, "optimized", functor=lambda *types: added(*types, x=BY_COLUMNS))
