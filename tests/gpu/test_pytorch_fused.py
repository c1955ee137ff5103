"""Operators with an epilogue of the caller's on a GPU, mixed products and interleaved gates: against float64."""

# mypy: disable-error-code="valid-type,operator"
# Annotations of epilogue functions say what a parameter stands for, which is no type of Python's.

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")
from torch.nn import functional  # noqa: E402
from torch_operators import ACTIVATIONS, ops, passes_opcheck  # noqa: E402

from pycutlass import epilogue as functions  # noqa: E402
from pycutlass import epilogue_function  # noqa: E402
from pycutlass.epilogue import Column, PerBatch, Row, Scalar, Source, Tensor, gelu, silu  # noqa: E402
from pycutlass.plan import convolutions  # noqa: E402
from pycutlass.pytorch import SwiGLU, epilogue_handle, fused  # noqa: E402

TOLERANCE = {torch.float16: 8e-3, torch.bfloat16: 6e-2, torch.float32: 1e-4}


@epilogue_function
def everything(accum: Any, bias: Row, residual: Tensor, scale: Column, c: Source, alpha: Scalar = 2.0) -> Any:
    t = alpha * accum + bias + c
    sums = {"rows": functions.sum(t, axis=1), "columns": functions.absmax(t, axis=0), "all": functions.sum(t)}
    return {"T": t, "D": gelu(t) * scale + residual, **sums}


@epilogue_function
def without_sums(accum: Any, bias: Row, residual: Tensor, scale: Column, c: Source, alpha: Scalar = 2.0) -> Any:
    t = alpha * accum + bias + c
    return {"T": t, "D": gelu(t) * scale + residual}


@epilogue_function
def by_rows(accum: Any, bias: Row, scale: Column, factor: PerBatch) -> Any:
    t = accum * factor + bias
    return {"D": t * scale, "squares": functions.sum_of_squares(t, axis=1)}


@epilogue_function
def gated(accum: Any, bias: Row, after: Tensor) -> Any:
    x = accum + bias
    gate, up = functions.pairs(x)
    return {"x": x, "D": silu(gate) * up + after}


@epilogue_function
def of_pixels(accum: Any, bias: Row, scale: Column, residual: Tensor, c: Source, alpha: Scalar) -> Any:
    t = alpha * accum * scale + bias + c
    return {"T": t, "D": gelu(t) + residual, "each": functions.sum(t, axis=0), "pixels": functions.absmax(t, axis=1)}


def random(*shape: int, dtype: Any = torch.float16, scale: float = 1.0) -> Any:
    return (torch.randn(shape, device="cuda") * scale).to(dtype)


def check(function: Any, a: Any, b: Any, tensors: list[Any], scalars: dict[str, float] | None = None) -> None:
    scalars = scalars or {}
    found = ops.fused_mm(a, b, epilogue_handle(function), tensors, list(scalars.values()))
    names = [each.name for each in function.graph.of_form("row", "column", "matrix", "number", "source")]
    given = {name: each.double().cpu().numpy() for name, each in zip(names, tensors, strict=True)}
    made = function.numpy((a.double() @ b.double()).cpu().numpy(), **given, **scalars)
    compare(found, [made[name] for name, _ in function.graph.outputs], TOLERANCE[a.dtype])


def compare(found: list[Any], wanted: list[Any], tolerance: float) -> None:
    for made, exact in zip(found, wanted, strict=True):
        expected = torch.as_tensor(exact, device="cuda")
        scale = max(1.0, float(expected.abs().max()))
        torch.testing.assert_close(made.double(), expected.double(), rtol=tolerance, atol=tolerance * scale)


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("columns", [96, 97])
def test_products(dtype: Any, columns: int) -> None:
    a, b = random(200, 128, dtype=dtype, scale=0.1), random(128, columns, dtype=dtype)
    bias, residual = random(columns, dtype=dtype), random(200, columns, dtype=dtype)
    scale = random(200, dtype=torch.float32)
    for source in (random(200, columns, dtype=dtype), random(columns, dtype=dtype)):
        check(everything, a, b, [bias, residual, scale, source], {"alpha": 0.5})
    check(everything, a, b, [bias, residual, scale, residual])
    # What no kernel reads is copied: other strides, and addresses of one element.
    odd = random(200 * columns + 1, dtype=dtype)[1:].view(200, columns)
    for each in (random(columns, 200, dtype=dtype).T, random(200, 1, dtype=dtype).expand(200, columns), odd):
        check(everything, a, b, [bias, each, scale, each], {"alpha": 0.5})


@pytest.mark.parametrize("of_b", [(64, 48), (1, 64, 48), (4, 64, 48)], ids=str)
@pytest.mark.parametrize("is_shared", [True, False])
def test_batches(of_b: tuple[int, ...], is_shared: bool) -> None:
    a, b, outer = random(4, 40, 64, scale=0.1), random(*of_b), () if is_shared else (4,)
    bias, scale = random(*outer, 48), random(*outer, 40, dtype=torch.float32)
    check(by_rows, a, b, [bias, scale, random(*(outer or (1,)), dtype=torch.float32)])
    residual, source = random(*outer, 40, 48), random(*outer, 40, 48)
    check(everything, a, b, [bias, residual, scale, source], {"alpha": 0.5})


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_pairs_of_columns(dtype: Any) -> None:
    a, b = random(120, 64, dtype=dtype, scale=0.1), random(64, 96, dtype=dtype)
    check(gated, a, b, [random(96, dtype=dtype), random(120, 48, dtype=dtype)])
    stack = random(3, 40, 64, dtype=dtype, scale=0.1)
    check(gated, stack, b, [random(96, dtype=dtype), random(3, 40, 48, dtype=dtype)])


def test_types() -> None:
    @epilogue_function
    def masked(accum: Any, mask: Tensor, scale: Row(torch.float32)) -> Any:
        kept = functions.where(mask != 0, accum * scale, 0.0)
        return {"D": kept, "positive": functions.where(kept > 0, 1.0, 0.0), "total": functions.sum(kept)}

    handle = epilogue_handle(masked, D=torch.float32, positive=torch.int8)
    mask, scale = random(64, 48) > 0, random(48, dtype=torch.float32)
    for dtype in (torch.float16, torch.int8):
        a, b = (torch.randint(-3, 3, shape, device="cuda").to(dtype) for shape in ((64, 128), (128, 48)))
        D, positive, total = ops.fused_mm(a, b, handle, [mask, scale])
        wanted = torch.where(mask, (a.double() @ b.double()) * scale, 0)
        torch.testing.assert_close(D.double(), wanted, rtol=1e-5, atol=1e-3)
        assert positive.equal((wanted > 0).to(torch.int8))
        torch.testing.assert_close(total.double(), wanted.sum()[None], rtol=1e-3, atol=1.0)


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("taps", [1, 3])
def test_convolutions(dtype: Any, taps: int) -> None:
    images, filters = random(2, 16, 14, 15, dtype=dtype), random(32, 16, taps, taps, dtype=dtype, scale=0.1)
    how = ([2, 1], [taps // 2] * 2, [1, 1], 1)
    sums = functional.conv2d(images.double(), filters.double(), None, *how)
    n, k, p, q = sums.shape
    tensors = [random(k, dtype=dtype), random(n * p * q, dtype=torch.float32), random(n, k, p, q, dtype=dtype)]
    source = random(n, k, p, q, dtype=dtype)
    found = ops.fused_conv2d(images, filters, *how, epilogue_handle(of_pixels), [*tensors, source], [0.25])
    as_matrix = [each.double().permute(0, 2, 3, 1).reshape(-1, k).cpu().numpy() for each in (sums, tensors[2], source)]
    bias, scale = (each.double().cpu().numpy() for each in tensors[:2])
    given = {"bias": bias, "scale": scale, "residual": as_matrix[1], "c": as_matrix[2]}
    wanted = of_pixels.numpy(as_matrix[0], **given, alpha=0.25)
    assert all(each.is_contiguous(memory_format=torch.channels_last) for each in found[:2])
    flat = [each.permute(0, 2, 3, 1).reshape(-1, k) for each in found[:2]]
    compare([*flat, *found[2:]], [wanted[name] for name in ("T", "D", "each", "pixels")], TOLERANCE[dtype])


@pytest.mark.parametrize("name", ["gelu", "hardswish"])
def test_activations_by_name(name: str) -> None:
    a, b = random(3, 40, 64, scale=0.1), random(64, 48)
    (found,) = ops.fused_mm(a, b, name, [])
    wanted = ACTIVATIONS[name](a.double() @ b.double())
    torch.testing.assert_close(found.double(), wanted, rtol=8e-3, atol=8e-3)
    assert passes_opcheck(ops.fused_mm.default, a, b, name, [])


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32], ids=str)
def test_calls_like_earlier_ones(dtype: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are launched without being looked at in Python, on each stream, and read and write what they are given."""
    looked: list[Any] = []
    checked = fused._checked
    monkeypatch.setattr(fused, "_checked", lambda *given: (looked.append(given), checked(*given))[1])
    scalars = {"alpha": 0.5}
    for stream in (torch.cuda.current_stream(), torch.cuda.Stream()):
        with torch.cuda.stream(stream):
            for turn in range(5):
                for rows in (200, 136):
                    a, b = random(rows, 128, dtype=dtype, scale=0.1), random(128, 96, dtype=dtype)
                    bias, scale = random(96, dtype=dtype), random(rows, dtype=torch.float32)
                    residual, c = random(rows, 96, dtype=dtype), random(rows, 96, dtype=dtype)
                    torch.full((rows, 96), float("nan"), device="cuda", dtype=dtype)  # where results are to be
                    looked.clear()
                    check(without_sums, a, b, [bias, residual, scale, c], scalars)
                    assert not looked or turn == 0 or dtype is torch.float32  # of which two kernels may be chosen
                    check(everything, a, b, [bias, residual, scale, c], scalars)
    weights = torch.nn.Parameter(b)
    with torch.no_grad():
        looked.clear()
        check(without_sums, a, weights, [torch.nn.Parameter(bias), residual, scale, c], scalars)
        assert not looked or dtype is torch.float32
    check(without_sums, a, b, [bias, residual, scale, c], {"alpha": -0.5})
    wide = random(rows, 192, dtype=dtype)
    for function in (without_sums, everything):
        check(function, a, b, [bias, wide[:, :96], scale, wide[:, 96:]], scalars)
        check(function, a, b.T.contiguous().T, [bias, residual, scale, c], scalars)


@pytest.mark.parametrize("taps", [1, 3])
def test_convolutions_like_earlier_ones(taps: int, monkeypatch: pytest.MonkeyPatch) -> None:
    handle = epilogue_handle(of_pixels)
    looked: list[Any] = []
    checked = fused._checked_images
    monkeypatch.setattr(fused, "_checked_images", lambda *given: (looked.append(given), checked(*given))[1])
    for turn in range(4):
        x, w = (
            random(*shape, scale=0.3).contiguous(memory_format=torch.channels_last)
            for shape in ((2, 16, 9, 7), (32, 16, taps, taps))
        )
        padding = [taps // 2] * 2
        of_d = [random(2, 32, 9, 7).contiguous(memory_format=torch.channels_last) for _ in range(2)]
        bias, scale = random(32), random(2 * 9 * 7, dtype=torch.float32)
        tensors = [bias, scale, *of_d]
        looked.clear()
        found = ops.fused_conv2d(x, w, [1, 1], padding, [1, 1], 1, handle, tensors, [0.5])
        assert not looked or turn == 0
        exact = functional.conv2d(x.double(), w.double(), padding=padding).permute(0, 2, 3, 1).reshape(-1, 32)
        rows = [each.double().permute(0, 2, 3, 1).reshape(-1, 32).cpu().numpy() for each in of_d]
        given = {"bias": bias.double().cpu().numpy(), "scale": scale.double().cpu().numpy()}
        given |= {"residual": rows[0], "c": rows[1]}
        made = of_pixels.numpy(exact.cpu().numpy(), **given, alpha=0.5)
        seen = [each.permute(0, 2, 3, 1).reshape(-1, 32) if each.dim() == 4 else each for each in found]
        compare(seen, [made[name] for name, _ in of_pixels.graph.outputs], TOLERANCE[torch.float16])
        assert all(each.is_contiguous(memory_format=torch.channels_last) for each in found if each.dim() == 4)


@pytest.mark.parametrize("activation", [None, "relu"])
@pytest.mark.parametrize("has_bias", [True, False])
def test_plain_convolutions_like_earlier_ones(
    activation: str | None, has_bias: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    reached: list[Any] = []
    computed = convolutions.conv2d
    monkeypatch.setattr(convolutions, "conv2d", lambda *of, **how: (reached.append(of), computed(*of, **how))[1])
    for turn in range(4):
        x = random(2, 16, 9, 7, scale=0.3).contiguous(memory_format=torch.channels_last)
        w = torch.nn.Parameter(random(32, 16, 3, 3, scale=0.3).contiguous(memory_format=torch.channels_last))
        bias = random(32) if has_bias else None
        reached.clear()
        with torch.no_grad():
            found = ops.conv2d(x, w, bias, [2, 1], [1, 1], [1, 1], 1, activation)
            exact = functional.conv2d(x.double(), w.double(), None if bias is None else bias.double(), (2, 1), (1, 1))
        assert not reached or turn == 0
        wanted = exact if activation is None else exact.relu()
        torch.testing.assert_close(found.double(), wanted, rtol=8e-3, atol=8e-3)


def test_they_are_captured_in_a_graph() -> None:
    a, b, bias, scale = random(64, 64, scale=0.1), random(64, 48), random(48), random(64, dtype=torch.float32)
    given = [bias, random(64, 48), scale, random(64, 48)]
    handle = epilogue_handle(everything)

    def call() -> Any:
        return ops.fused_mm(a, b, handle, given, [0.5])

    call()  # loads the kernels
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        made = call()
    a.copy_(random(64, 64, scale=0.1))
    given[1].copy_(random(64, 48))
    graph.replay()
    for replayed, wanted in zip(made, call(), strict=True):
        torch.testing.assert_close(replayed, wanted)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning")  # of torch's own compiler
@pytest.mark.filterwarnings("ignore:The CUDA Graph is empty:UserWarning")  # the first that torch itself captures
@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
def test_they_are_compiled(mode: str) -> None:
    handle = epilogue_handle(everything)

    def layer(a: Any, b: Any, bias: Any, residual: Any, scale: Any) -> Any:
        T, D, *sums = ops.fused_mm(a * 2, b, handle, [bias, residual, scale, residual * 2], [0.5])
        return T + D, [each + 1 for each in sums]

    compiled = torch.compile(layer, fullgraph=True, mode=mode)
    for _ in range(3):  # the second captures a graph, the third replays it
        given = random(64, 64, scale=0.1), random(64, 48), random(48), random(64, 48), random(64, dtype=torch.float32)
        made, wanted = compiled(*given), layer(*given)
        torch.testing.assert_close(made, wanted, rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_mixed_products(dtype: Any) -> None:
    a, weight = (
        random(64, 128, dtype=dtype, scale=0.1),
        torch.randint(-128, 128, (128, 48), device="cuda").to(torch.int8),
    )
    scale = torch.rand(48, device="cuda") / 64
    wanted = a.double() @ weight.double() * scale
    for each in (weight, weight.T.contiguous().T):
        compare(
            [ops.mixed_mm(a, each, scale), ops.mixed_mm(a, each, scale, out_dtype=torch.float32)], [wanted] * 2, 6e-2
        )
    made = ops.mixed_mm(a, weight, out_dtype=torch.float32)
    torch.testing.assert_close(made.double(), a.double() @ weight.double(), rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
def test_interleaved_gates(dtype: Any) -> None:
    plain = SwiGLU(64, 96, device="cuda", dtype=dtype)
    layer = SwiGLU(64, 96, device="cuda", dtype=dtype, interleaved=True)
    layer.load_state_dict(plain.state_dict())
    x = random(40, 64, dtype=dtype).requires_grad_()
    exact = x.detach().double().requires_grad_()
    weights = [plain.state_dict()[f"{name}_proj.weight"].double() for name in ("gate", "up", "down")]
    hidden = functional.silu(functional.linear(exact, weights[0])) * functional.linear(exact, weights[1])
    wanted, made = functional.linear(hidden, weights[2]), layer(x)
    tolerance = 2 * TOLERANCE[dtype]
    torch.testing.assert_close(made.double(), wanted, rtol=tolerance, atol=tolerance)
    dy = torch.randn_like(made)
    (ours,), (theirs,) = torch.autograd.grad(made, x, dy), torch.autograd.grad(wanted, exact, dy.double())
    torch.testing.assert_close(ours.double(), theirs, rtol=tolerance, atol=tolerance * float(theirs.abs().max()))
