"""Epilogue functions behind parallel split-K, on the host."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from descriptions import parts
from epilogue_functions import FUNCTIONS, tile_sums

import pycutlass
from pycutlass import GemmOperationUniversal, ReductionOperation, TensorDescription, cutlass
from pycutlass.epilogue import Scalar
from pycutlass.errors import ArgumentError, ArgumentTypeError, DescriptionError

M, N, K, SLICES = 40, 48, 96, 3
PARALLEL = cutlass.gemm.Mode.GemmSplitKParallel
f16, f32 = cutlass.float16, cutlass.float32
ROWS = TensorDescription(f16, cutlass.RowMajor, 8)


def reduction(name: str, order: Any = cutlass.RowMajor) -> ReductionOperation:
    functor = FUNCTIONS[name](f16, 8, f32)
    return ReductionOperation((4, 256), TensorDescription(f16, order, 8), f32, epilogue_functor=functor, count=8)


def gemm(functor: Any = None) -> GemmOperationUniversal:
    described = parts("f16", tile=(64, 64, 32))
    return GemmOperationUniversal(**described | ({} if functor is None else {"epilogue_functor": functor}))


def drawn(functor: Any) -> dict[str, Any]:
    random = np.random.default_rng(3)

    def each(*shape: int, dtype: Any = np.float16) -> Any:
        return random.integers(-3, 4, shape).astype(dtype)

    shapes = {"matrix": (M, N), "row": (N,), "column": (M,), "scalar": (1,), "number": (1,)}
    given = {"A": each(M, K), "B": np.asfortranarray(each(K, N)), "D": each(M, N)}
    given["C"] = each(M, N) if functor.reads_source else None
    return given | {port.name: each(*shapes[port.form], dtype=port.type.dtype) for port in functor.ports}


def ports_of(functor: Any, given: dict[str, Any]) -> dict[str, Any]:
    return {port.name: given[port.name] for port in functor.ports}


def reduce(operation: ReductionOperation, given: dict[str, Any], by: GemmOperationUniversal, **changes: Any) -> Any:
    sums = pycutlass.GemmArguments(by, (M, N, K), given["A"], given["B"], gemm_mode=PARALLEL, split_k_slices=SLICES)
    by.run(sums)
    epilogue = ports_of(operation.epilogue_functor, given)
    arguments = pycutlass.ReductionArguments(
        operation, (M, N), SLICES, sums.ptr_D, given["D"], given["C"], epilogue=epilogue | changes
    )
    operation.run(arguments)
    arguments.sync()
    return arguments


@pytest.mark.parametrize("name", FUNCTIONS)
def test_it_is_as_without_slices(name: str, without_gpu: None) -> None:
    operation = reduction(name)
    functor = operation.epilogue_functor
    whole = gemm(functor)
    given = drawn(functor)
    wanted = {key: None if each is None else each.copy("K") for key, each in given.items()}
    arguments = pycutlass.GemmArguments(
        whole, (M, N, K), wanted["A"], wanted["B"], wanted["C"], wanted["D"], epilogue=ports_of(functor, wanted)
    )
    whole.run(arguments)
    arguments.sync()
    for by in (gemm(), whole):  # a kernel with the function makes partial sums as well
        reduce(operation, given, by)
        for output in ("D", *(port.name for port in functor.outputs)):
            np.testing.assert_array_equal(given[output], wanted[output], output)
            given[output].fill(np.nan)


def test_other_tensors_take_their_place(without_gpu: None) -> None:
    operation = reduction("residual")
    given = drawn(operation.epilogue_functor)
    arguments = reduce(operation, given, gemm())
    t, others = given["T"].copy(), {"addend": given["addend"] * 0, "T": np.empty_like(given["T"])}
    arguments.update(epilogue=others)
    operation.run(arguments)
    arguments.sync()
    np.testing.assert_array_equal(others["T"], t)


def test_what_no_reduction_has_is_refused() -> None:
    with pytest.raises(DescriptionError, match=r"of_tiles leaves row_sums, column_greatest of each tile .* tile=, for"):
        ReductionOperation((4, 256), ROWS, f32, epilogue_functor=tile_sums(4, 256)(f16, 8), count=8)
    with pytest.raises(DescriptionError, match="is for a C of RowMajor or TensorNHWC; got"):
        reduction("residual", cutlass.ColumnMajor)


def test_reductions_need_a_warp_for_each_row_of_a_tile_and_memory_for_all_of_them() -> None:
    functor = FUNCTIONS["reduced"](f16, 4)
    with pytest.raises(DescriptionError, match=r"a warp has a row of the tile: use a shape of 2 x 128, .*got 2 x 256"):
        ReductionOperation((2, 256), ROWS, f32, epilogue_functor=functor, count=4)
    assert ReductionOperation((2, 256), ROWS, f32, epilogue_functor=FUNCTIONS["scaled"](f16, 4), count=4)
    with pytest.raises(
        DescriptionError, match=r"32 rows of a tile need 65,\d+ bytes .*, and there are 49,152: use a sh"
    ):
        ReductionOperation((32, 256), ROWS, f32, epilogue_functor=FUNCTIONS["reduced"](f16, 8), count=8)
    reason = reduction("reduced").supports((0, 8)).reason
    assert "reduces D to row_sum" in reason and "D of 0 x 8 has no elements: leave such problems out" in reason


@pytest.mark.parametrize(
    ("changes", "error", "said"),
    [
        ({"bias": None}, ArgumentError, "bias, a row of the epilogue, is missing"),
        ({"bais": np.zeros(N, np.float16)}, ArgumentTypeError, "Did you mean bias"),
        ({"addend": np.zeros((M, N + 8), np.float16)}, ArgumentError, "addend"),
    ],
)
def test_what_does_not_fit_is_named(
    changes: dict[str, Any], error: type[Exception], said: str, without_gpu: None
) -> None:
    operation = reduction("residual")
    with pytest.raises(error, match=said):
        reduce(operation, drawn(operation.epilogue_functor), gemm(), **changes)


def test_outputs_lie_apart_from_all_else(without_gpu: None) -> None:
    operation = reduction("residual")
    given = drawn(operation.epilogue_functor)
    for other in ("D", "addend"):
        with pytest.raises(ArgumentError, match="overlap"):
            reduce(operation, given, gemm(), T=given[other])
    wanted = given | {"D": given["D"].copy(), "T": given["T"].copy()}
    reduce(operation, wanted, gemm())
    reduce(operation, given | {"D": given["addend"]}, gemm())  # a thread reads there what it writes then
    np.testing.assert_array_equal(given["addend"], wanted["D"])


def test_partial_sums_take_no_tensors_of_the_epilogue(without_gpu: None) -> None:
    whole = gemm(FUNCTIONS["residual"](f16, 8, f32))
    given = drawn(whole.epilogue_functor)
    operands, epilogue = (whole, (M, N, K), given["A"], given["B"]), ports_of(whole.epilogue_functor, given)
    sums = pycutlass.GemmArguments(*operands, gemm_mode=PARALLEL, split_k_slices=SLICES)
    for refused in (
        lambda: pycutlass.GemmArguments(*operands, gemm_mode=PARALLEL, split_k_slices=SLICES, epilogue=epilogue),
        lambda: sums.update(epilogue=epilogue),
    ):
        with pytest.raises(ArgumentError, match="give bias, addend, T to the ReductionArguments that follow"):
            refused()


def test_scalars_belong_to_the_reduction_alone(without_gpu: None) -> None:
    @pycutlass.epilogue_function
    def scaled(accum: Any, alpha: Scalar) -> Any:  # which has no default
        return alpha * accum

    functor = scaled(f16, 8, f32)
    whole, given = gemm(functor), drawn(functor)
    sums = pycutlass.GemmArguments(whole, (M, N, K), given["A"], given["B"], gemm_mode=PARALLEL, split_k_slices=SLICES)
    whole.run(sums)
    operation = ReductionOperation((4, 256), ROWS, f32, epilogue_functor=functor, count=8)
    operands = (operation, (M, N), SLICES, sums.ptr_D, given["D"])
    with pytest.raises(ArgumentError, match="alpha is missing"):
        pycutlass.ReductionArguments(*operands)
    arguments = pycutlass.ReductionArguments(*operands, output_op=operation.epilogue_type(2.0))
    operation.run(arguments)
    arguments.sync()
    np.testing.assert_array_equal(given["D"], 2 * (given["A"] @ given["B"]))


def test_c_is_asked_for_where_it_is_read(without_gpu: None) -> None:
    operation = reduction("several")
    given = drawn(operation.epilogue_functor) | {"C": None}
    with pytest.raises(ArgumentError, match=r"source is None, and the epilogue several.* reads it: give a source"):
        reduce(operation, given, gemm())


@pytest.mark.compile
def test_it_builds() -> None:
    pycutlass.compiler.add_module([reduction("several"), gemm()])
