"""Operators of torch with an epilogue of the caller's: what they compute, and what they refuse."""

# mypy: disable-error-code="valid-type,operator"
# Annotations of epilogue functions say what a parameter stands for, which is no type of Python's.

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch_operators import ACTIVATIONS, numbers, ops, passes_opcheck

from pycutlass import epilogue as functions
from pycutlass import epilogue_function
from pycutlass.epilogue import Column, EpilogueFunction, PerBatch, Row, Scalar, Source, Tensor, fusions, gelu, silu
from pycutlass.errors import ArgumentError
from pycutlass.pytorch import epilogue_handle

DTYPES = [torch.float16, torch.bfloat16, torch.float32, torch.float64]


@epilogue_function
def everything(accum: Any, bias: Row, residual: Tensor, scale: Column, c: Source, alpha: Scalar = 2.0) -> Any:
    t = alpha * accum + bias + c
    sums = {"rows": functions.sum(t, axis=1), "columns": functions.absmax(t, axis=0), "all": functions.sum(t)}
    return {"T": t, "D": gelu(t) * scale + residual, **sums}


@epilogue_function
def by_rows(accum: Any, bias: Row, residual: Tensor, scale: Column, factor: PerBatch, c: Source) -> Any:
    t = accum * factor + bias + c
    values, indices = functions.top_k(t, 2)
    D = t * scale + residual
    return {"D": D, "values": values, "indices": indices, "squares": functions.sum_of_squares(D, axis=1)}


@epilogue_function
def of_matrices(accum: Any, factor: PerBatch, bias: Row) -> Any:
    return accum * factor + bias


@pytest.fixture
def tf32() -> Iterator[Callable[[], None]]:
    """Let a test allow tf32, as a program does."""
    before = torch.backends.cuda.matmul.fp32_precision
    yield lambda: setattr(torch.backends.cuda.matmul, "fp32_precision", "tf32")
    torch.backends.cuda.matmul.fp32_precision = before


def random(*shape: int, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    return numbers(*shape).detach().to(dtype)


def exact(function: EpilogueFunction, a: Any, b: Any, tensors: list[Any], scalars: dict[str, float]) -> Any:
    """Return what a function computes, in NumPy and in order."""
    forms = ("row", "column", "matrix", "number", "source")
    names = [each.name for each in function.graph.of_form(*forms)]
    given = {name: each.double().numpy() for name, each in zip(names, tensors, strict=True)}
    made = function.numpy((a.double() @ b.double()).numpy(), **given, **scalars)
    made = made if isinstance(made, dict) else {"D": made}
    return [torch.from_numpy(made[name]) for name, _ in function.graph.outputs]


def check(
    function: EpilogueFunction, a: Any, b: Any, tensors: list[Any], scalars: dict[str, float] | None = None
) -> list[torch.Tensor]:
    scalars = scalars or {}
    found: list[torch.Tensor] = ops.fused_mm(a, b, epilogue_handle(function), tensors, list(scalars.values()))
    tolerance = {torch.float16: 2e-2, torch.bfloat16: 1e-1, torch.float32: 1e-4, torch.float64: 1e-4}[a.dtype]
    for made, wanted in zip(found, exact(function, a, b, tensors, scalars), strict=True):
        assert made.shape == wanted.shape and made.is_contiguous()
        torch.testing.assert_close(made.double(), wanted.double(), rtol=tolerance, atol=tolerance)
    return found


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_results_are_in_the_order_of_the_function(dtype: torch.dtype) -> None:
    a, b = random(16, 32, dtype=dtype), random(32, 24, dtype=dtype)
    tensors = [random(24, dtype=dtype), random(16, 24, dtype=dtype), random(16, dtype=torch.float32)]
    tensors.append(random(16, 24, dtype=dtype))
    T, D, *sums = check(everything, a, b, tensors, {"alpha": 0.5})
    check(everything, a, b, tensors)  # alpha is 2 then
    wide = torch.float64 if dtype is torch.float64 else torch.float32
    assert T.dtype == D.dtype == dtype and {each.dtype for each in sums} == {wide}
    assert passes_opcheck(ops.fused_mm.default, a, b, epilogue_handle(everything), tensors, [0.5])


@pytest.mark.parametrize("of_a", [(16, 32), (1, 16, 32), (3, 16, 32)], ids=str)
@pytest.mark.parametrize("of_b", [(32, 8), (1, 32, 8), (3, 32, 8)], ids=str)
@pytest.mark.parametrize("is_shared", [True, False])
def test_batches(of_a: tuple[int, ...], of_b: tuple[int, ...], is_shared: bool) -> None:
    a, b = random(*of_a, dtype=torch.float16), random(*of_b, dtype=torch.float16)
    batch = tuple(torch.matmul(a, b).shape[:-2])
    outer = () if is_shared else batch
    shapes = ((*outer, 8), (*outer, 16, 8), (*outer, 16))
    given = [random(*shape, dtype=torch.float16) for shape in shapes]
    factor = random(*(outer or (1,)), dtype=torch.float32)
    check(everything, a, b, [*given, random(*outer, 16, 8, dtype=torch.float16)], {"alpha": 0.5})
    check(by_rows, a, b, [*given, factor, random(*outer, 16, 8, dtype=torch.float16)])
    check(of_matrices, a, b, [factor, given[0]])
    assert passes_opcheck(ops.fused_mm.default, a, b, epilogue_handle(of_matrices), [factor, given[0]])


def test_a_stack_of_matrices_is_multiplied_as_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where all that is read and written goes by rows: a layer has three dimensions and one weight."""
    from pycutlass.pytorch import fused

    seen, multiply = [], fused.matmul
    monkeypatch.setattr(fused, "matmul", lambda a, *rest, **more: seen.append(a.dim()) or multiply(a, *rest, **more))
    a, b = random(3, 16, 32), random(32, 8)
    shapes = ((8,), (3, 16, 8), (3, 16), (1,), (3, 16, 8))
    check(by_rows, a, b, [random(*shape) for shape in shapes])
    check(by_rows, a, b, [*(random(*shape) for shape in shapes[:-1]), random(8)])  # a bias as C
    assert seen == [2, 2]
    check(by_rows, a, b, [random(*shape) for shape in ((3, 8), *shapes[1:])])
    check(by_rows, a, b, [random(*shape) for shape in (*shapes[:-1], (16, 8))])
    check(everything, a, b, [random(*shape) for shape in (*shapes[:3], (3, 16, 8))])
    assert seen == [2, 2, 3, 3, 3]


def test_operands_and_tensors_lie_in_any_way() -> None:
    a, b = random(32, 16, dtype=torch.float16).T, random(8, 64, dtype=torch.float16)[:, ::2].T
    bias, scale = random(48, dtype=torch.float16)[::6], random(16, 2, dtype=torch.float32)[:, 0]
    odd = random(16 * 8 + 1, dtype=torch.float16)[1:].view(16, 8)  # at an address of 2 bytes
    for residual in (random(8, 16).half().T, random(16, 9).half()[:, :8], random(16, 1).half().expand(16, 8), odd):
        for source in (residual, random(8).half(), random(8, 16).half().T, random(16).half()[::2]):
            check(everything, a, b, [bias, residual, scale, source], {"alpha": 0.5})
    many = random(3, 1, 8, dtype=torch.float16).expand(3, 16, 8)
    stack = random(1, 16, 8, dtype=torch.float16).expand(3, 16, 8)
    for each in (many, stack, random(16, 8, 3).half().permute(2, 0, 1)):
        check(everything, a.expand(3, 16, 32), b, [bias, each, scale, each])


@pytest.mark.parametrize("name", [name for name in ACTIVATIONS if name])
def test_an_activation_by_its_name(name: str) -> None:
    for shape in ((16, 32), (3, 16, 32)):
        a, b = random(*shape), random(32, 8)
        (found,) = ops.fused_mm(a, b, name, [])
        torch.testing.assert_close(found, ACTIVATIONS[name](a @ b))
    assert passes_opcheck(ops.fused_mm.default, a, b, name, [])
    images, filters = random(1, 8, 6, 6), random(4, 8, 3, 3)
    (found,) = ops.fused_conv2d(images, filters, [1, 1], [1, 1], [1, 1], 1, name, [])
    torch.testing.assert_close(found, ACTIVATIONS[name](torch.nn.functional.conv2d(images, filters, padding=1)))


@epilogue_function
def gated(accum: Any, bias: Row, after: Tensor) -> Any:
    x = accum + bias
    gate, up = functions.pairs(x)
    y = silu(gate) * up + after
    return {"x": x, "D": y, "largest": functions.absmax(y, axis=1), "each": functions.absmax(y, axis=0)}


@pytest.mark.parametrize("batch", [(), (1,), (3,)], ids=str)
@pytest.mark.parametrize("dtype", [torch.float16, torch.float64], ids=str)
def test_pairs_of_columns(batch: tuple[int, ...], dtype: torch.dtype) -> None:
    a, b = random(*batch, 16, 32, dtype=dtype), random(32, 8, dtype=dtype)
    tensors = [random(8, dtype=dtype), random(*batch, 16, 4, dtype=dtype)]
    x, D, largest, each = check(gated, a, b, tensors)
    assert (x.shape[-1], D.shape[-1], largest.shape[-1], each.shape[-1]) == (8, 4, 16, 4)
    assert passes_opcheck(ops.fused_mm.default, a, b, epilogue_handle(gated), tensors)


def test_pairs_of_columns_of_float32_need_tf32(tf32: Callable[[], None]) -> None:
    a, b, tensors = random(16, 32).float(), random(32, 8).float(), [random(8).float(), random(16, 4).float()]
    with pytest.raises(
        ArgumentError, match=r"combines pairs of columns, .* by torch.backends.cuda.matmul.fp32_precision = .tf32."
    ):
        ops.fused_mm(a, b, epilogue_handle(gated), tensors)
    tf32()
    found = ops.fused_mm(a, b, epilogue_handle(gated), tensors)
    for made, wanted in zip(found, exact(gated, a, b, tensors, {}), strict=True):
        torch.testing.assert_close(made.double(), wanted.double(), rtol=1e-2, atol=5e-2)


def test_types() -> None:
    @epilogue_function
    def masked(accum: Any, mask: Tensor, scale: Row(torch.float32)) -> Any:
        kept = functions.where(mask != 0, accum * scale, 0.0)
        return {"D": kept, "positive": functions.where(kept > 0, 1.0, 0.0), "total": functions.sum(kept)}

    handle = epilogue_handle(masked, D=torch.float32, positive=torch.int8)
    mask, scale = random(16, 8) > 0, random(8).float()
    for dtype in (torch.float16, torch.int8):
        a, b = (torch.randint(-3, 3, shape).to(dtype) for shape in ((16, 32), (32, 8)))
        D, positive, total = ops.fused_mm(a, b, handle, [mask, scale])
        wanted = torch.where(mask, (a.float() @ b.float()) * scale, 0)
        torch.testing.assert_close(D, wanted)
        assert positive.dtype == torch.int8 and positive.equal((wanted > 0).to(torch.int8))
        torch.testing.assert_close(total, wanted.sum()[None], rtol=1e-4, atol=1e-2)
        assert passes_opcheck(ops.fused_mm.default, a, b, handle, [mask, scale])
    with pytest.raises(
        ArgumentError, match=r"product of torch.int8 is of int32, and epilogue functions are computed.* D="
    ):
        ops.fused_mm(a, b, epilogue_handle(masked), [mask, scale])
    with pytest.raises(ArgumentError, match=r"tensors\[1\], scale of the epilogue, is of torch.float16, and the funct"):
        ops.fused_mm(a, b, handle, [mask, scale.half()])


def test_products_without_elements() -> None:
    scaled = epilogue_handle(fusions.scale_shift_residual_relu)
    vector, none = torch.ones(8), torch.ones(0, 8)
    (found,) = ops.fused_mm(torch.ones(0, 32), torch.ones(32, 8), scaled, [vector, vector, none])
    assert found.shape == (0, 8)
    given = [torch.ones(8), torch.ones(0, 8), torch.ones(0), torch.ones(0, 8)]
    with pytest.raises(ArgumentError, match=r"columns of the epilogue is made of many elements, and a result of"):
        ops.fused_mm(torch.ones(0, 32), torch.ones(32, 8), epilogue_handle(everything), given)
    check(everything, random(16, 0), random(0, 8), [random(8), random(16, 8), random(16), random(16, 8)])


@epilogue_function
def of_pixels(accum: Any, bias: Row, scale: Column, residual: Tensor, c: Source, alpha: Scalar) -> Any:
    t = alpha * accum * scale + bias + c
    return {"T": t, "D": gelu(t) + residual, "each": functions.sum(t, axis=0), "pixels": functions.absmax(t, axis=1)}


@epilogue_function
def of_groups(accum: Any, bias: Row, scale: Column, residual: Tensor, c: Source, alpha: Scalar) -> Any:
    t = alpha * accum * scale + bias + c
    return {"T": t, "D": gelu(t) + residual}


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize(("taps", "stride"), [(1, [2, 1]), (1, [1, 1]), (3, [2, 1])])
def test_convolutions(dtype: torch.dtype, groups: int, taps: int, stride: list[int]) -> None:
    """Those with filters of one pixel and a stride of 1 are products."""
    images, filters = random(2, 8, 6, 5, dtype=dtype), random(16, 8 // groups, taps, taps, dtype=dtype)
    how = (stride, [taps // 2] * 2, [1, 1], groups)
    sums = torch.nn.functional.conv2d(images.double(), filters.double(), None, *how)
    n, k, p, q = sums.shape
    residual = random(n, k, p, q, dtype=dtype)  # by channels, and not channels_last
    function = of_pixels if groups == 1 else of_groups
    names = [name for name, _ in function.graph.outputs]
    tensors = [random(k, dtype=dtype), random(n * p * q, dtype=torch.float32), residual]
    for source in (random(n, k, p, q, dtype=dtype), random(k, dtype=dtype)):
        given = (images, filters, *how, epilogue_handle(function), [*tensors, source], [0.25])
        found = ops.fused_conv2d(*given)
        pixels = source[None, :, None, None].expand(n, k, p, q) if source.dim() == 1 else source
        matrix = [each.permute(0, 2, 3, 1).reshape(-1, k) for each in (sums, residual, pixels)]
        wanted = function.numpy(
            matrix[0].numpy(),
            bias=tensors[0].double().numpy(),
            scale=tensors[1].double().numpy(),
            residual=matrix[1].double().numpy(),
            c=matrix[2].double().numpy(),
            alpha=0.25,
        )
        tolerance = {torch.float16: 2e-2, torch.bfloat16: 1e-1}.get(dtype, 1e-4)
        for name, made in zip(names, found, strict=True):
            assert made.shape == ((n, k, p, q) if name in "TD" else wanted[name].shape)
            assert name not in "TD" or made.is_contiguous(memory_format=torch.channels_last)
            flat = made.permute(0, 2, 3, 1).reshape(-1, k) if name in "TD" else made
            torch.testing.assert_close(flat.double(), torch.from_numpy(wanted[name]), rtol=tolerance, atol=tolerance)
        assert passes_opcheck(ops.fused_conv2d.default, *given)


@pytest.mark.parametrize("channels", [3, 8, 12])
def test_filters_of_one_pixel(channels: int) -> None:
    """Also of images that lie by channels, of none, and of channels that are not aligned."""
    handle = epilogue_handle(fusions.scale_shift_residual_relu)
    filters, row = random(16, channels, 1, 1).half(), random(16).float()
    for n in (2, 0):
        images, residual = random(n, channels, 5, 3).half(), random(n, 16, 5, 3).half()
        (found,) = ops.fused_conv2d(images, filters, [1, 1], [0, 0], [1, 1], 1, handle, [row, row, residual])
        sums = torch.nn.functional.conv2d(images.double(), filters.double())
        wanted = (sums * row[:, None, None] + row[:, None, None] + residual).relu()
        torch.testing.assert_close(found.double(), wanted, rtol=2e-2, atol=2e-2)
        assert found.is_contiguous(memory_format=torch.channels_last)


def test_convolutions_have_no_pairs() -> None:
    images, filters = random(1, 8, 4, 4).half(), random(8, 8, 3, 3).half()
    with pytest.raises(
        ArgumentError, match="combines pairs of columns, and kernels of convolutions write all channels"
    ):
        ops.fused_conv2d(images, filters, [1, 1], [0, 0], [1, 1], 1, epilogue_handle(fusions.swiglu), [])


@pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning")  # of Inductor itself
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_compiled(backend: str, dynamic: bool) -> None:
    handle, of_images = epilogue_handle(everything), epilogue_handle(fusions.scale_shift_residual_relu)

    def layer(a: Any, b: Any, bias: Any, residual: Any, scale: Any, images: Any, filters: Any) -> Any:
        T, D, *sums = ops.fused_mm(a, b, handle, [bias, residual, scale, residual * 2], [0.5])
        how = ([1, 1], [1, 1], [1, 1], 1)
        (made,) = ops.fused_conv2d(images, filters, *how, of_images, [bias, bias, images])
        return T + D, [each + 1 for each in sums], made.mean()

    compiled = torch.compile(layer, backend=backend, fullgraph=True, dynamic=dynamic)
    for rows in (16, 40):
        shapes = ((rows, 32), (32, 8), (8,), (rows, 8), (rows,), (2, 8, 6, 6), (8, 8, 3, 3))
        given = [random(*shape).float() for shape in shapes]
        torch.testing.assert_close(compiled(*given), layer(*given))


def test_exported() -> None:
    class Layer(torch.nn.Module):
        def forward(self, a: Any, b: Any, bias: Any) -> Any:
            return ops.fused_mm(a, b, epilogue_handle(fusions.bias_gelu), [bias])[0] + 1

    given = random(16, 32), random(32, 8), random(8)
    program = torch.export.export(Layer(), given, dynamic_shapes=({0: torch.export.Dim("rows")}, None, None))
    more = random(20, 32), *given[1:]
    torch.testing.assert_close(program.module()(*more), Layer()(*more))


A, B = torch.ones(16, 32), torch.ones(32, 8)
ROW = torch.ones(8)
BIAS_GELU, MEAN = epilogue_handle(fusions.bias_gelu), epilogue_handle(everything)
REFUSED: dict[str, tuple[Any, ...]] = {
    r"epilogue must be the name of an activation, 'gelu', .*Did you mean gelu\?": (A, B, "gel", []),
    r"epilogue must be the name of an activation": (A, B, "", []),
    r"the handle of an epilogue is no JSON, got": (A, B, "{", []),
    r"reads 1 tensor, bias, and 0 are given: pass tensors in the order of": (A, B, BIAS_GELU, []),
    r"reads 1 tensor, bias, and 2 are given": (A, B, BIAS_GELU, [ROW, ROW]),
    r"tensors\[0\], bias of the epilogue, must be of \(8,\), a Row with an element for each column; got \(16,\)": (
        *(A, B, BIAS_GELU),
        [torch.ones(16)],
    ),
    r"tensors\[0\] is of int64, which kernels do not take": (A, B, BIAS_GELU, [ROW.long()]),
    r"has 0 scalars, and 1 are given": (A, B, BIAS_GELU, [ROW], [1.0]),
    r"has 1 scalar, alpha \(by default 2\), and 2 are given": (
        *(A, B, MEAN, [ROW, torch.ones(16, 8), torch.ones(16), torch.ones(16, 8)]),
        [1.0, 2.0],
    ),
    r"tensors\[3\], c of the epilogue, must be of \(16, 8\) or \(8,\), a Source": (
        *(A, B, MEAN),
        [ROW, torch.ones(16, 8), torch.ones(16), torch.ones(8, 16)],
    ),
    r"c of the epilogue, is of torch.float16, and the result has torch.float32 there": (
        *(A, B, MEAN),
        [ROW, torch.ones(16, 8), torch.ones(16), torch.ones(16, 8).half()],
    ),
    r"mat_a must be a matrix, or a batch of matrices of three dimensions, got shape \(32,\)": (A[0], B, "gelu", []),
    r"mat_a of shape \(16, 32\) and mat_b of shape \(16, 32\) have different K": (A, A, "gelu", []),
    r"mat_a is float32 and mat_b is float16": (A, B.half(), "gelu", []),
    r"mat_a requires a gradient, and pycutlass.fused_mm.default has none": (
        *(A.clone().requires_grad_(), B),
        *("gelu", []),
    ),
    r"a tensor of tensors requires a gradient, and .* pass \[each.detach\(\) for each in tensors\]": (
        *(A, B, BIAS_GELU),
        [ROW.clone().requires_grad_()],
    ),
}


@pytest.mark.parametrize("message", REFUSED)
def test_refused(message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        ops.fused_mm(*REFUSED[message])


def batched(call: Any, axes: tuple[Any, ...], *given: Any) -> None:
    """Compare a batch with what the operator does for each of it."""
    made = torch.vmap(call, axes)(*given)
    for number in range(3):
        one = [each if axis is None else each.select(axis, number) for each, axis in zip(given, axes, strict=True)]
        for whole, wanted in zip(made, call(*one), strict=True):
            torch.testing.assert_close(whole[number], wanted, rtol=1e-2, atol=1e-2)


def test_vmap_of_products() -> None:
    handle, other = epilogue_handle(everything), epilogue_handle(of_matrices)

    def call(a: Any, b: Any, bias: Any, residual: Any, scale: Any, source: Any) -> Any:
        return ops.fused_mm(a, b, handle, [bias, residual, scale, source], [0.5])

    shapes = ((16, 32), (32, 8), (8,), (16, 8), (16,), (16, 8))
    for axes in (*((None,) * number + (0,) + (None,) * (5 - number) for number in range(6)), (0, 1, 0, 2, 1, 0)):
        for last in (shapes[5], (8,)):
            places = axes if axes[5] is None or len(last) == 2 else (*axes[:5], -1 % 2)
            full = zip((*shapes[:5], last), places, strict=True)
            given = [random(*(shape if at is None else (*shape[:at], 3, *shape[at:]))) for shape, at in full]
            batched(call, places, *given)
    batched(
        lambda a, b, f, r: ops.fused_mm(a, b, other, [f, r]),
        (0, None, 0, 0),
        *map_of((3, 16, 32), (32, 8), (3, 1), (3, 8)),
    )
    stacks = map_of((3, 2, 16, 32), (2, 32, 8), (3, 2), (3, 2, 8))
    batched(lambda a, b, f, r: ops.fused_mm(a, b, other, [f, r]), (0, None, 0, 0), *stacks)
    with pytest.raises(ArgumentError, match=r"tensors\[1\], bias of the epilogue, must be of \(8,\), a Row"):
        torch.vmap(lambda a, r: ops.fused_mm(a, torch.ones(32, 8), other, [torch.ones(1), r]))(
            *map_of((3, 16, 32), (3, 1))
        )


def map_of(*shapes: tuple[int, ...]) -> list[torch.Tensor]:
    return [random(*shape).float() for shape in shapes]


def test_vmap_of_convolutions() -> None:
    how, handle = ([1, 1], [1, 1], [1, 1], 1), epilogue_handle(of_groups)

    def call(images: Any, filters: Any, bias: Any, scale: Any, residual: Any, source: Any) -> Any:
        return ops.fused_conv2d(images, filters, *how, handle, [bias, scale, residual, source], [0.5])

    shapes = ((2, 4, 5, 5), (8, 4, 3, 3), (8,), (50,), (2, 8, 5, 5), (2, 8, 5, 5))
    for axes in (
        (0, None, None, 0, 0, 0),
        (0, None, None, 0, 0, None),
        (0, 0, None, None, 0, 0),
        (None, None, 0, *[None] * 3),
    ):
        given = [random(*((3,) if at == 0 else ()), *shape) for shape, at in zip(shapes, axes, strict=True)]
        batched(call, axes, *given)


@pytest.mark.parametrize("in_batch", [False, True])
def test_autocast(in_batch: bool) -> None:
    handle = epilogue_handle(everything)

    def call(a: Any, b: Any, bias: Any, residual: Any, scale: Any, source: Any) -> Any:
        return ops.fused_mm(a, b, handle, [bias, residual, scale, source], [0.5])

    given = map_of((16, 32), (32, 8), (8,), (16, 8), (16,), (16, 8))
    plain = call(*given)
    with torch.autocast("cpu", torch.bfloat16):
        made = call(*given)
        if in_batch:
            made = [each[0] for each in torch.vmap(call)(*(each[None] for each in given))]
        (images,) = ops.fused_conv2d(*map_of((1, 8, 4, 4), (8, 8, 1, 1)), [1, 1], [0, 0], [1, 1], 1, "gelu", [])
    assert made[1].dtype == images.dtype == torch.bfloat16 and made[2].dtype == torch.float32
    for ours, wanted in zip(made, plain, strict=True):
        torch.testing.assert_close(ours.float(), wanted, rtol=0.1, atol=0.5)


@pytest.mark.parametrize(("default", "lost"), [(1e-60, "becomes 0"), (1e60, "is beyond")])
def test_a_default_that_a_kernel_does_not_hold_is_refused_where_it_is_left_out(default: float, lost: str) -> None:
    @epilogue_function
    def scaled(accum: Any, factor: Scalar = default) -> Any:
        return accum * factor

    handle = epilogue_handle(scaled)
    a, b = random(16, 32, dtype=torch.float16), random(32, 24, dtype=torch.float16)
    with pytest.raises(ArgumentError, match=rf"has the number factor={re.escape(f'{default:g}')}, which {lost}"):
        ops.fused_mm(a, b, handle, [])
    [found] = ops.fused_mm(a, b, handle, [], [2.0])
    torch.testing.assert_close(found, 2 * (a @ b), rtol=2e-2, atol=2e-2)
