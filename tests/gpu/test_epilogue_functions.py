"""Epilogue functions on a GPU: every element of every output, layouts, types, batches and alignments."""

from typing import Any

import pytest
import torch
from descriptions import COLUMN, ROW, native_parts, parts
from epilogue_functions import FUNCTIONS, in_other_layouts, of_batch, residual
from function_cases import check, drawn, launch
from function_kernels import KERNELS, make

import pycutlass
from pycutlass import GemmOperationUniversal, KernelSchedule, TensorDescription, cutlass
from pycutlass.epilogue import Tensor, cast


@pytest.mark.parametrize("size", [(128, 128, 64), (264, 136, 72), (8, 8, 8), (1000, 520, 136)])
@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("kernel", KERNELS)
def test_every_output_is_right(kernel: str, name: str, size: tuple[int, int, int]) -> None:
    outputs = dict(FUNCTIONS[name].graph.outputs)
    operation = make(kernel, FUNCTIONS[name], **{each: cutlass.float32 for each in ("T", "second") if each in outputs})
    given = drawn(operation, *size)
    launch(operation, given).sync()
    check(operation, given)


KERNELS_BY_COLUMNS = {
    "ampere f16": lambda: parts("f16", (ROW, COLUMN, COLUMN)),
    "ampere f32": lambda: parts("f32", (COLUMN, ROW, COLUMN)),
    "ampere f16, stream-K": lambda: (
        parts("f16", (COLUMN, COLUMN, COLUMN), tile=(64, 128, 32))
        | {"swizzling_functor": cutlass.ThreadblockSwizzleStreamK}
    ),
    "hopper cooperative": lambda: (
        native_parts(tile=(128, 64, 64), cluster=(2, 1)) | {"C": TensorDescription(cutlass.float16, COLUMN, 8)}
    ),
    "hopper, three warp groups": lambda: (
        native_parts(tile=(192, 64, 64), cluster=(1, 1), schedule=KernelSchedule.Cooperative)
        | {"C": TensorDescription(cutlass.float16, COLUMN, 8)}
    ),
    "hopper pingpong": lambda: (
        native_parts(tile=(64, 128, 64), cluster=(1, 1), schedule=KernelSchedule.Pingpong)
        | {"C": TensorDescription(cutlass.float16, COLUMN, 8)}
    ),
}


@pytest.mark.parametrize("batch", [(), (3,)])
@pytest.mark.parametrize("size", [(264, 136, 72), (1000, 520, 136)])
@pytest.mark.parametrize("name", [*FUNCTIONS, "in_other_layouts"])
@pytest.mark.parametrize("kernel", KERNELS_BY_COLUMNS)
def test_d_by_columns(kernel: str, name: str, size: tuple[int, int, int], batch: tuple[int, ...]) -> None:
    described = KERNELS_BY_COLUMNS[kernel]()
    C = described["C"]
    functor = (
        in_other_layouts(C.element, C.alignment, cutlass.float32, ROW)
        if name == "in_other_layouts"
        else FUNCTIONS[name](C.element, C.alignment, cutlass.float32)
    )
    operation = GemmOperationUniversal(**described | {"epilogue_functor": functor})
    pycutlass.compiler.add_module([operation])
    given = drawn(operation, *size, batch=batch)
    launch(operation, given).sync()
    check(operation, given)


@pytest.mark.parametrize("kernel", ["ampere f16", "hopper cooperative", "hopper pingpong"])
def test_tensors_by_columns_beside_a_d_by_rows(kernel: str) -> None:
    operation = make(
        kernel, lambda output, alignment, accumulator: in_other_layouts(output, alignment, accumulator, COLUMN)
    )
    for size in ((264, 136, 72), (8, 8, 8)):
        given = drawn(operation, *size)
        launch(operation, given).sync()
        check(operation, given)


@pytest.mark.parametrize("size", [(264, 136, 72), (1000, 520, 136)])
@pytest.mark.parametrize("kernel", KERNELS)
def test_a_residual_where_d_is(kernel: str, size: tuple[int, int, int]) -> None:
    kind = KERNELS[kernel]()["C"].element
    operation = make(kernel, residual, addend=kind)
    for batch in ((), (3,)):
        given = drawn(operation, *size, batch=batch)
        before = given["addend"].clone()
        given["D"] = given["addend"]
        launch(operation, given).sync()
        check(operation, given | {"addend": before})


FLOAT8 = {
    "biased": {"bias": cutlass.float_e5m2},
    "residual": {"addend": cutlass.float_e4m3, "bias": cutlass.float_e5m2, "T": cutlass.float_e4m3},
    "several": {"x": cutlass.float_e5m2, "left": cutlass.float_e4m3, "first": cutlass.float_e4m3},
}


@pytest.mark.parametrize("size", [(128, 128, 64), (272, 144, 72), (1000, 528, 136)])
@pytest.mark.parametrize("name", FLOAT8)
@pytest.mark.parametrize("kernel", ["ampere f16", "ampere f16, stream-K", "hopper cooperative", "hopper pingpong"])
def test_floats_of_8_bits(kernel: str, name: str, size: tuple[int, int, int]) -> None:
    """As D of Ampere-style kernels, beside D and as what is read."""
    for D, alignment in ((cutlass.float_e4m3, 16), (cutlass.float_e5m2, 4)):
        described = KERNELS[kernel]()
        if "hopper" not in kernel:
            described["C"] = TensorDescription(D, cutlass.RowMajor, alignment)
        C = described["C"]
        functor = FUNCTIONS[name](C.element, C.alignment, cutlass.float32, **FLOAT8[name])
        operation = GemmOperationUniversal(**described | {"epilogue_functor": functor})
        pycutlass.compiler.add_module([operation])
        given = drawn(operation, *size)
        launch(operation, given).sync()
        check(operation, given)


def test_all_numbers_become_floats_of_8_bits_as_in_torch() -> None:
    """Ties, subnormals, infinities and NaN: A is the identity, and B has them as f32."""

    @pycutlass.epilogue_function
    def both(accum: Any, x: Tensor(cutlass.float32)) -> Any:
        return {"D": accum + x, "e4m3": x, "e5m2": x, "cast": cast(x, cutlass.float_e4m3)}

    n = 256
    codes = torch.arange(n, dtype=torch.uint8)
    values = torch.cat([codes.view(kind).double() for kind in (torch.float8_e4m3fn, torch.float8_e5m2)])
    finite = values[values.isfinite()].unique()
    between = (finite[1:] + finite[:-1]) / 2
    x = torch.cat([finite, between, torch.tensor([1e30, -1e30, 464, 465, 61440, torch.inf, -torch.inf, torch.nan])])
    x = torch.cat([x, x * (1 + 2.0**-22), x * (1 - 2.0**-22), values]).float()
    x = torch.nn.functional.pad(x, (0, -len(x) % n)).view(-1, n).cuda()
    for kernel in ("ampere f16", "hopper cooperative"):
        types = {"e4m3": cutlass.float_e4m3, "e5m2": cutlass.float_e5m2, "cast": cutlass.float32}
        operation = make(kernel, both, **types)
        given = drawn(operation, len(x), n, 64) | {"x": x}
        launch(operation, given).sync()
        for name, kind, most in (("e4m3", torch.float8_e4m3fn, 448), ("e5m2", torch.float8_e5m2, 57344)):
            wanted = x.clamp(-most, most).to(kind)
            assert torch.equal(given[name].float().nan_to_num(-1e9), wanted.float().nan_to_num(-1e9))
            assert torch.equal(given[name].float().signbit() | x.isnan(), x.signbit() | x.isnan())
        assert torch.equal(given["cast"].nan_to_num(-1e9), given["e4m3"].float().nan_to_num(-1e9))


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("kernel", ["ampere f16", "hopper cooperative"])
def test_batches(kernel: str, name: str) -> None:
    operation = make(kernel, FUNCTIONS[name])
    given = drawn(operation, 136, 264, 64, (3,))
    launch(operation, given).sync()
    check(operation, given)


@pytest.mark.parametrize("kernel", ["ampere f16", "ampere f32", "hopper cooperative"])
def test_numbers_of_batches(kernel: str) -> None:
    """Packed, at any step, as matrices, shared by all, and exchanged; in captured graphs too."""
    operation = make(kernel, of_batch)
    given = drawn(operation, 136, 264, 64, (3,))
    scale = given["scale"]
    apart = torch.full((3, 5), 7.0, device="cuda", dtype=scale.dtype)
    apart[:, 2] = scale
    arguments = launch(operation, given)
    for each in (scale, apart[:, 2], scale[:, None, None], scale[1:2]):
        shared = each.expand(3) if each.numel() == 1 else each
        arguments.update(epilogue={"scale": each})
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            operation.run(arguments)
        for run in (lambda: operation.run(arguments), graph.replay):
            given["D"].fill_(float("nan"))
            torch.cuda.synchronize()
            run()
            torch.cuda.synchronize()
            check(operation, given | {"scale": shared.reshape(3)})


COLUMNS, WIDE_COLUMNS, UNALIGNED = (
    TensorDescription(cutlass.float16, cutlass.ColumnMajor),
    TensorDescription(cutlass.float32, cutlass.ColumnMajor),
    TensorDescription(cutlass.float16, cutlass.RowMajor, 1),
)


@pytest.mark.parametrize("batch", [(), (3,)])
@pytest.mark.parametrize("kernel", ["ampere f16", "ampere f16, stream-K", "hopper cooperative", "hopper pingpong"])
@pytest.mark.parametrize(
    "types",
    [
        {"x": COLUMNS, "y": UNALIGNED, "first": WIDE_COLUMNS, "second": COLUMNS},
        {"x": UNALIGNED, "y": WIDE_COLUMNS, "first": UNALIGNED, "second": WIDE_COLUMNS},
    ],
    ids=["columns first", "columns last"],
)
def test_matrices_by_columns_and_of_less_alignment(types: Any, kernel: str, batch: tuple[int, ...]) -> None:
    operation = make(kernel, FUNCTIONS["several"], **types)
    for size in ((128, 128, 64), (264, 136, 72), (8, 8, 8)):
        given = drawn(operation, *size, batch)
        launch(operation, given).sync()
        check(operation, given)
