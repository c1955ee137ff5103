"""Operators and modules of torch on a GPU: against float64, with gradients, in graphs, compiled, and the same twice."""

from __future__ import annotations

import copy
from typing import Any

import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402
from torch.nn import functional  # noqa: E402
from torch_operators import ACTIVATIONS, ops  # noqa: E402

from pycutlass.pytorch import Conv2d, GroupedLinear, Linear, SwiGLU, convert, products  # noqa: E402

# Of torch's threads of backward, where the first thing that one does is a product by cuBLAS.
pytestmark = pytest.mark.filterwarnings("ignore:Attempting to run cuBLAS, but there was no current CUDA:UserWarning")

TOLERANCE = {torch.float16: 8e-3, torch.bfloat16: 6e-2, torch.float32: 1e-4}


def random(*shape: int, dtype: Any = torch.float16, scale: float = 1.0) -> Any:
    return (torch.randn(shape, device="cuda") * scale).to(dtype).requires_grad_()


def doubled(*tensors: Any) -> list[Any]:
    return [each.detach().double().requires_grad_() for each in tensors]


def check(made: Any, wanted: Any, ours: Any, theirs: Any) -> None:
    """Compare a result with that of float64, and its gradients."""
    tolerance = TOLERANCE[made.dtype]
    torch.testing.assert_close(made.double(), wanted, rtol=tolerance, atol=tolerance)
    dy = torch.randn_like(made) / made.shape[-1] ** 0.5
    found = torch.autograd.grad(made, ours, dy)
    exact = torch.autograd.grad(wanted, theirs, dy.double())
    for one, other in zip(found, exact, strict=True):
        scale = max(1.0, float(other.abs().max()))
        torch.testing.assert_close(one.double(), other, rtol=tolerance, atol=tolerance * scale)


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("activation", [None, "gelu", "relu", "silu"])
@pytest.mark.parametrize("shape", [(200, 128), (3, 40, 128), (1, 128)], ids=str)
def test_linear(dtype: Any, activation: str | None, shape: tuple[int, ...]) -> None:
    given = random(*shape, dtype=dtype), random(96, 128, dtype=dtype, scale=0.1), random(96, dtype=dtype)
    exact = doubled(*given)
    check(ops.linear(*given, activation), ACTIVATIONS[activation](functional.linear(*exact)), given, exact)


def test_products_like_earlier_ones_are_right(monkeypatch: pytest.MonkeyPatch) -> None:
    """Launched without torch's dispatcher, on the stream that is current, and captured in graphs."""
    reached: list[Any] = []
    product = products.product
    monkeypatch.setattr(products, "product", lambda *given, **how: (reached.append(given), product(*given, **how))[1])

    def drawn() -> tuple[Any, Any]:
        torch.full((136, 72), float("nan"), device="cuda", dtype=torch.float16)  # where the next result is to be
        return random(136, 64).detach(), random(72, 64).detach().T

    def is_right(a: Any, b: Any, d: Any) -> None:
        torch.testing.assert_close(d.double(), a.double() @ b.double(), rtol=8e-3, atol=8e-3)

    for stream in (torch.cuda.current_stream(), torch.cuda.Stream()):
        with torch.cuda.stream(stream):
            for turn in range(6):
                a, b = drawn()
                reached.clear()
                d = ops.matmul(a, b)
                assert not reached or turn < 2
                is_right(a, b, d)
        stream.synchronize()

    (a, b), (c, d) = drawn(), drawn()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        made = ops.matmul(a, b)
    for one, other in ((a, c), (b, d)):
        one.copy_(other)
    made.fill_(float("nan"))
    graph.replay()
    is_right(c, d, made)
    is_right(c, d, ops.matmul(c, d))


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
def test_products(dtype: Any) -> None:
    given = random(4, 40, 64, dtype=dtype), random(4, 64, 48, dtype=dtype, scale=0.1)
    exact = doubled(*given)
    check(ops.matmul(*given), torch.matmul(*exact), given, exact)
    given = random(40, 48, dtype=dtype), random(40, 64, dtype=dtype), random(64, 48, dtype=dtype, scale=0.1)
    exact = doubled(*given)
    made = ops.addmm(*given, beta=0.5, alpha=2, activation="gelu_tanh")
    wanted = functional.gelu(torch.addmm(*exact, beta=0.5, alpha=2), approximate="tanh")
    check(made, wanted, given, exact)
    given = random(40, 64, dtype=dtype), *(random(96, 64, dtype=dtype, scale=0.1) for _ in "gu")
    exact = doubled(*given)
    wanted = functional.silu(functional.linear(*exact[:2])) * functional.linear(exact[0], exact[2])
    check(ops.swiglu(*given), wanted, given, exact)


# Strides, dilations and channels for which float16 has no kernel of the gradient of the input are among them.
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("activation", [None, "gelu"])
@pytest.mark.parametrize(
    ("channels", "filters", "groups", "stride", "dilation"),
    [(16, 32, 1, 1, 1), (16, 32, 1, 2, 1), (3, 16, 1, 2, 1), (16, 16, 1, 2, 2), (16, 16, 2, 1, 1), (8, 8, 8, 2, 1)],
)
def test_convolutions(
    dtype: Any, activation: str | None, channels: int, filters: int, groups: int, stride: int, dilation: int
) -> None:
    weight = random(filters, channels // groups, 3, 3, dtype=dtype, scale=0.1)
    given = random(2, channels, 14, 15, dtype=dtype), weight, random(filters, dtype=dtype)
    geometry = ([stride] * 2, [1, 1], [dilation] * 2, groups)
    made, exact = ops.conv2d(*given, *geometry, activation), doubled(*given)
    assert made.is_contiguous(memory_format=torch.channels_last)
    check(made, ACTIVATIONS[activation](functional.conv2d(*exact, *geometry)), given, exact)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_experts_whose_sizes_the_gpu_knows(dtype: Any) -> None:
    layer = GroupedLinear(4, 64, 48, device="cuda", dtype=dtype)
    tokens = random(100, 64, dtype=dtype)
    ends = [30, 30, 77, 100]
    made = layer(tokens, torch.tensor(ends, dtype=torch.int32, device="cuda"))
    given = tokens, layer.weight, layer.bias
    exact = doubled(*given)
    rows = [exact[0][a:b] @ exact[1][i].T + exact[2][i] for i, (a, b) in enumerate(zip([0, *ends], ends, strict=False))]
    check(made, torch.cat(rows), given, exact)


def test_scaled_products() -> None:
    if torch.cuda.get_device_capability() < (9, 0):
        pytest.skip("needs a Hopper GPU")
    a, b = (random(*shape, scale=0.5).detach().to(torch.float8_e4m3fn) for shape in ((64, 128), (96, 128)))
    scale_a, scale_b = torch.rand(64, 1, device="cuda"), torch.rand(1, 96, device="cuda")
    wanted = a.double() @ b.double().T * scale_a * scale_b
    torch.testing.assert_close(ops.scaled_mm(a, b.T, scale_a, scale_b).double(), wanted, rtol=1e-2, atol=5e-2)


@pytest.mark.parametrize("scales", [((), ()), ((64, 1), (1, 96))], ids=["of tensors", "of rows and columns"])
@pytest.mark.parametrize("of_b", [0, None], ids=["both", "left"])
def test_scaled_products_of_a_batch(scales: Any, of_b: int | None) -> None:
    if torch.cuda.get_device_capability() < (9, 0):
        pytest.skip("needs a Hopper GPU")
    a = torch.randn(3, 64, 128, device="cuda").to(torch.float8_e4m3fn)
    b = torch.randn(3, 96, 128, device="cuda").to(torch.float8_e4m3fn).mT
    scale_a, scale_b = (torch.rand(3, *shape, device="cuda") + 0.5 for shape in scales)
    if of_b is None:
        b, scale_b = b[0], scale_b[0]
    made = torch.vmap(ops.scaled_mm, (0, of_b, 0, of_b))(a, b, scale_a, scale_b)
    stacked = scale_a.double().reshape(3, -1, 1), scale_b.double().reshape(*b.shape[:-2], 1, -1)
    wanted = (a.double() @ b.double()) * stacked[0] * stacked[1]
    torch.testing.assert_close(made.double(), wanted, rtol=1e-2, atol=6e-2)


def test_groups_of_a_batch() -> None:
    a, b = random(3, 64, 32).detach(), random(4, 32, 48, scale=0.1).detach()
    offs = torch.tensor([10, 10, 40, 64], dtype=torch.int32, device="cuda")
    made = torch.vmap(lambda each: ops.grouped_mm(each, b, offs=offs))(a)
    wanted = torch.stack([ops.grouped_mm(each.double(), b.double(), offs=offs) for each in a])
    torch.testing.assert_close(made.double(), wanted, rtol=8e-3, atol=8e-3)
    sums = torch.vmap(lambda each: ops.grouped_mm(each.T, a[0], offs=offs))(a)
    wanted = torch.stack([ops.grouped_mm(each.double().T, a[0].double(), offs=offs) for each in a])
    torch.testing.assert_close(sums.double(), wanted, rtol=8e-3, atol=8e-2)


def test_the_same_bits_twice() -> None:
    torch.use_deterministic_algorithms(True)
    try:
        given = random(33, 4096), random(64, 4096, scale=0.02), random(64)
        dy = random(33, 64).detach()
        first, *others = [
            torch.autograd.grad(ops.linear(*given, "gelu"), given, dy, retain_graph=False) for _ in range(5)
        ]
        for each in others:
            assert all(torch.equal(a, b) for a, b in zip(first, each, strict=True))
    finally:
        torch.use_deterministic_algorithms(False)


def test_autocast_on_the_gpu() -> None:
    given = random(64, 32, dtype=torch.float32), random(48, 32, dtype=torch.float32), random(48, dtype=torch.float32)
    with torch.autocast("cuda", torch.bfloat16):
        made = ops.linear(*given, "gelu")
    assert made.dtype == torch.bfloat16
    found = torch.autograd.grad(made.float().sum(), given)
    assert [each.dtype for each in found] == [torch.float32] * 3


def test_layers_are_captured_in_a_graph() -> None:
    model = nn.Sequential(Linear(64, 96, activation="gelu"), SwiGLU(96, 128), Linear(96, 32)).to("cuda", torch.float16)
    x = random(48, 64).detach()
    with torch.no_grad():
        model(x)  # loads the kernels
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            y = model(x)
        x.copy_(random(48, 64).detach())
        graph.replay()
        torch.testing.assert_close(y, model(x))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning")  # of torch's own compiler
def test_layers_are_compiled() -> None:
    model = nn.Sequential(Linear(64, 96, activation="gelu"), SwiGLU(96, 128), Linear(96, 32)).to("cuda", torch.float16)
    compiled = torch.compile(model, fullgraph=True, dynamic=True)
    for rows in (48, 80):
        x = random(rows, 64)
        made, wanted = compiled(x), model(x)
        torch.testing.assert_close(made, wanted, rtol=1e-2, atol=1e-2)
        given = [x, *model.parameters()]
        found, exact = (torch.autograd.grad(each.float().square().sum(), given) for each in (made, wanted))
        torch.testing.assert_close(found, exact, rtol=2e-2, atol=2e-2)


def test_a_converted_model_trains_as_it_did() -> None:
    torch.manual_seed(0)
    theirs = nn.Sequential(
        nn.Conv2d(3, 16, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(32, 10),
    ).cuda()
    ours = copy.deepcopy(theirs)
    done = convert(ours)
    assert done.replaced == ("0", "2", "5") and not done.left
    assert isinstance(ours[0], Conv2d)
    images, classes = random(8, 3, 32, 32, dtype=torch.float32).detach(), torch.arange(8, device="cuda")
    losses: list[list[float]] = [[], []]
    for model, seen in zip((theirs, ours), losses, strict=True):
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for _ in range(5):
            loss = functional.cross_entropy(model(images), classes)
            seen.append(loss.item())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    assert losses[1] == pytest.approx(losses[0], rel=5e-3)  # torch convolves float32 in tf32
    assert losses[1][-1] < losses[1][0]
