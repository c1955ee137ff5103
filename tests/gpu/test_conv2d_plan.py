"""`conv2d`, its gradients and their plans on a GPU, against torch in float64, with guards around what is written."""

from __future__ import annotations

from typing import Any

import pytest

import pycutlass

torch = pytest.importorskip("torch")

F, GRAD, LAST = torch.nn.functional, torch.nn.grad, torch.channels_last
TOLERANCE = {torch.float16: 1e-2, torch.bfloat16: 8e-2, torch.float32: 1e-5, torch.float64: 1e-12}
#: Of x, w and what torch's functions take beside them: all algorithms, both kernels of dgrad, groups in one launch and
#: one after the other, and slices of the gradient of weights.
CASES: list[tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = [
    ((4, 64, 28, 27), (96, 64, 3, 3), {"padding": 1}),
    ((4, 64, 28, 27), (96, 64, 3, 3), {"padding": 1, "stride": 2}),
    ((2, 8, 65, 64), (64, 8, 7, 7), {"padding": 3, "stride": 2}),
    ((2, 4, 33, 31), (32, 4, 5, 3), {"padding": (2, 1)}),
    ((2, 24, 20, 21), (40, 24, 3, 3), {"dilation": 2, "padding": 2}),
    ((4, 64, 14, 14), (256, 64, 1, 1), {}),
    ((4, 64, 15, 14), (96, 64, 1, 1), {"stride": 2}),
    ((2, 128, 14, 14), (128, 64, 3, 3), {"padding": 1, "groups": 2}),
    ((2, 32, 14, 14), (32, 1, 3, 3), {"padding": 1, "groups": 32}),
    ((1, 8, 40, 9), (16, 8, 35, 3), {"padding": (17, 1)}),
    ((8, 64, 56, 56), (64, 64, 3, 3), {"padding": 1}),
    ((2, 16, 16, 16), (16, 16, 3, 3), {"padding": 1}),
]


def random(*shape: int, dtype: Any) -> Any:
    return torch.randn(shape, device="cuda").to(dtype).to(memory_format=LAST)


def check(got: Any, exact: Any, terms: int, dtype: Any) -> None:
    assert got.dtype == dtype
    assert got.is_contiguous(memory_format=LAST)
    tolerance = TOLERANCE[dtype]
    torch.testing.assert_close(got.double(), exact, rtol=tolerance, atol=tolerance * terms**0.5)


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize(("x", "w", "options"), CASES)
def test_all_directions_are_those_of_torch(x: Any, w: Any, options: Any, dtype: Any) -> None:
    images, weights = random(*x, dtype=dtype), random(*w, dtype=dtype)
    exact = F.conv2d(images.double(), weights.double(), **options)
    check(pycutlass.conv2d(images, weights, **options), exact, weights[0].numel(), dtype)
    grad = random(*exact.shape, dtype=dtype)
    if not (dtype.itemsize == 2 and options.get("stride", 1) != 1 and w[1] % 2):  # which have no kernel
        exact = GRAD.conv2d_input(x, weights.double(), grad.double(), **options)
        check(pycutlass.conv2d_input(grad, weights, x, **options), exact, weights[:, 0].numel(), dtype)
    exact = GRAD.conv2d_weight(images.double(), w, grad.double(), **options)
    check(pycutlass.conv2d_weight(grad, images, w, **options), exact, grad[:, 0].numel(), dtype)


@pytest.mark.parametrize("channels", range(1, 9))
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_any_number_of_channels(channels: int, dtype: Any) -> None:
    x, w = random(2, channels, 13, 12, dtype=dtype), random(2 * channels, channels, 3, 3, dtype=dtype)
    exact = F.conv2d(x.double(), w.double(), padding=1)
    check(pycutlass.conv2d(x, w, padding=1), exact, 9 * channels, dtype)
    grad = random(*exact.shape, dtype=dtype)
    exact = GRAD.conv2d_input(x.shape, w.double(), grad.double(), padding=1)
    check(pycutlass.conv2d_input(grad, w, x.shape, padding=1), exact, 18 * channels, dtype)
    exact = GRAD.conv2d_weight(x.double(), w.shape, grad.double(), padding=1)
    check(pycutlass.conv2d_weight(grad, x, w.shape, padding=1), exact, grad[:, 0].numel(), dtype)


@pytest.mark.parametrize("precision", ["tf32", "3xtf32"])
def test_other_precisions_of_float32(precision: str) -> None:
    x, w = random(2, 32, 14, 14, dtype=torch.float32), random(32, 32, 3, 3, dtype=torch.float32)
    error = (pycutlass.conv2d(x, w, precision=precision).double() - F.conv2d(x.double(), w.double())).abs().max()
    assert error < (0.2 if precision == "tf32" else 1e-3)


def test_integers() -> None:
    x = torch.randint(-8, 8, (2, 32, 13, 12), device="cuda", dtype=torch.int8).to(memory_format=LAST)
    w = torch.randint(-8, 8, (48, 32, 3, 3), device="cuda", dtype=torch.int8).to(memory_format=LAST)
    got = pycutlass.conv2d(x, w, padding=1)
    assert got.dtype == torch.int32
    assert torch.equal(got.double(), F.conv2d(x.double(), w.double(), padding=1))


@pytest.mark.parametrize("groups", [1, 2])
def test_bias_activation_source_and_function(groups: int) -> None:
    x, w = random(2, 32, 14, 13, dtype=torch.float16), random(64, 32 // groups, 3, 3, dtype=torch.float16)
    bias, c = torch.randn(64, device="cuda").half(), random(2, 64, 14, 13, dtype=torch.float16)
    exact = F.conv2d(x.double(), w.double(), padding=1, groups=groups)
    options = {"padding": 1, "groups": groups}
    got = pycutlass.conv2d(x, w, bias=bias, epilogue=pycutlass.relu, **options)
    check(got, F.relu(exact + bias.double()[:, None, None]), 288, torch.float16)
    check(pycutlass.conv2d(x, w, c, alpha=2, beta=-1, **options), 2 * exact - c, 1152, torch.float16)
    if groups == 1:
        function = pycutlass.epilogue_function(_scaled)
        got = pycutlass.conv2d(x, w, epilogue=function, epilogue_inputs={"row": bias, "residual": c}, **options)
        check(got, exact * bias.double()[:, None, None] + c, 1152, torch.float16)


def _scaled(accum: Any, row: pycutlass.epilogue.Row, residual: pycutlass.epilogue.Tensor) -> Any:
    return accum * row + residual


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
@pytest.mark.parametrize("taps", [1, 3])
def test_nothing_is_written_beside_the_result(dtype: Any, taps: int) -> None:
    x, w = random(2, 16, 9, 11, dtype=dtype), random(24, 16, taps, taps, dtype=dtype)
    memory = torch.full((6, 9, 11, 40), torch.nan, device="cuda", dtype=dtype)
    out = memory[2:4, ..., 8:32].permute(0, 3, 1, 2)
    assert pycutlass.conv2d(x, w, out=out, padding=taps // 2) is out
    exact = F.conv2d(x.double(), w.double(), padding=taps // 2)
    tolerance = TOLERANCE[dtype]
    torch.testing.assert_close(out.double(), exact, rtol=tolerance, atol=tolerance * 12)
    out.fill_(torch.nan)
    assert memory.isnan().all()


@pytest.mark.parametrize("kind", ["fprop", "dgrad", "wgrad"])
@pytest.mark.parametrize("options", [{}, {"stride": 2}, {"groups": 2}])
def test_the_likely_fastest_candidates_are_right(kind: str, options: dict[str, int]) -> None:
    """Several kernels of one plan, in turns: other algorithms, swizzles and slices among them."""
    x = pycutlass.TensorSpec((2, 20, 22, 16), "float16")
    w = pycutlass.TensorSpec((32, 3, 3, 16 // options.get("groups", 1)), "float16")
    size = pycutlass.conv2d_problem_size(x, w, padding=1, **options)
    y = pycutlass.TensorSpec((2, size.P, size.Q, 32), "float16")
    a, b, result = {"fprop": (x, w, None), "dgrad": (y, w, x.shape), "wgrad": (y, x, w.shape)}[kind]
    plan = pycutlass.Conv2d(a, b, kind=kind, result_size=result, padding=1, **options)
    forms: dict[Any, Any] = {}
    for each in plan.candidates():
        one, operation = each.candidate, each.candidate.operation
        form = operation.iterator_algorithm, operation.group_mode, one.is_parallel, one.is_by_group
        forms.setdefault(form, one)
    for candidate in forms.values():
        plan._choices._picked = {2: candidate}
        assert plan.check() <= 1, candidate.name


def test_plans_take_new_tensors_on_the_current_stream() -> None:
    w = random(48, 16, 3, 3, dtype=torch.float16)
    plan = pycutlass.Conv2d(random(2, 16, 12, 12, dtype=torch.float16), w, padding=1)
    assert plan.check() <= 1
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    for images in (2, 2, 1, 9):
        with torch.cuda.stream(stream):
            x = random(images, 16, 12, 12, dtype=torch.float16)
            got = plan(x, w)
        stream.synchronize()
        check(got, F.conv2d(x.double(), w.double(), padding=1), 144, torch.float16)


@pytest.mark.parametrize("direction", ["output", "weights"])
def test_convolutions_are_captured_in_graphs(direction: str) -> None:
    """Weights of many pixels take slices, and so memory that belongs to the graph."""
    x, w = random(8, 32, 28, 28, dtype=torch.float16), random(32, 32, 3, 3, dtype=torch.float16)
    grad = random(8, 32, 28, 28, dtype=torch.float16)
    out = torch.empty_like(grad if direction == "output" else w, memory_format=torch.preserve_format)

    def run() -> None:
        if direction == "output":
            pycutlass.conv2d(x, w, padding=1, out=out)
        else:
            pycutlass.conv2d_weight(grad, x, w.shape, padding=1, out=out)

    run()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    x.normal_()
    out.fill_(torch.nan)
    graph.replay()
    torch.cuda.synchronize()
    if direction == "output":
        check(out, F.conv2d(x.double(), w.double(), padding=1), 288, torch.float16)
    else:
        check(out, GRAD.conv2d_weight(x.double(), w.shape, grad.double(), padding=1), 8 * 28 * 28, torch.float16)


def test_arrays_of_numpy_go_to_the_gpu_and_back() -> None:
    x, w = (random(*shape, dtype=torch.float32) for shape in ((2, 6, 9, 8), (10, 6, 3, 3)))
    arrays = [each.permute(0, 2, 3, 1).cpu().numpy() for each in (x, w)]
    got = torch.from_numpy(pycutlass.conv2d(*arrays, padding=1)).permute(0, 3, 1, 2).cuda()
    check(got, F.conv2d(x.double(), w.double(), padding=1), 54, torch.float32)
