"""`conv2d` and its gradients against torch in float64: geometry, types, layouts, epilogues, and what is refused."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import pycutlass
from pycutlass import cutlass
from pycutlass.epilogue import Row, Scalar, Tensor
from pycutlass.errors import ArgumentError, ArgumentTypeError, PyCutlassError
from pycutlass.plan import conv_call as module
from pycutlass.plan.options import KeptPlans

torch = pytest.importorskip("torch")

F, GRAD, LAST = torch.nn.functional, torch.nn.grad, torch.channels_last
TOLERANCE = {torch.float16: 1e-2, torch.bfloat16: 8e-2, torch.float32: 1e-5, torch.float64: 1e-12}
#: Of x, w and what torch's functions take beside them.
CASES: list[tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = [
    ((2, 8, 9, 7), (16, 8, 3, 3), {}),
    ((2, 8, 9, 7), (16, 8, 3, 3), {"padding": 1, "stride": 2}),
    ((1, 3, 16, 15), (8, 3, 7, 5), {"padding": (3, 2), "stride": (2, 1)}),
    ((2, 5, 9, 7), (7, 5, 3, 2), {"padding": (2, 0)}),
    ((2, 16, 8, 8), (8, 16, 3, 3), {"dilation": 2, "padding": (2, 1)}),
    ((2, 8, 6, 6), (12, 8, 1, 1), {}),
    ((2, 8, 7, 6), (12, 8, 1, 1), {"stride": (3, 2)}),
    ((2, 12, 6, 5), (8, 3, 3, 3), {"groups": 4, "padding": 1}),
    ((2, 6, 6, 5), (6, 1, 3, 3), {"groups": 6, "padding": 1, "stride": 2}),
    ((3, 32, 4, 4), (64, 16, 3, 3), {"groups": 2, "padding": 1}),
    ((2, 4, 4, 4), (4, 4, 3, 3), {"padding": 1}),
    ((4, 1, 1, 1), (1, 1, 1, 1), {}),
    ((0, 8, 5, 5), (4, 8, 3, 3), {}),
]


def random(*shape: int, dtype: Any = torch.float32) -> Any:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape))).to(dtype).to(memory_format=LAST)


def check(got: Any, exact: Any, terms: int, tolerance: float) -> None:
    assert got.shape == exact.shape
    torch.testing.assert_close(got.double(), exact, rtol=tolerance, atol=tolerance * max(1, terms) ** 0.5)


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize(("x", "w", "options"), CASES)
def test_all_directions_are_those_of_torch(x: Any, w: Any, options: Any, dtype: Any) -> None:
    images, weights = random(*x, dtype=dtype), random(*w, dtype=dtype)
    exact = F.conv2d(images.double(), weights.double(), **options)
    got = pycutlass.conv2d(images, weights, **options)
    assert got.dtype == dtype
    assert got.is_contiguous(memory_format=LAST)
    check(got, exact, weights[0].numel(), TOLERANCE[dtype])
    if not x[0]:
        return
    grad = random(*exact.shape, dtype=dtype)
    exact = GRAD.conv2d_input(x, weights.double(), grad.double(), **options)
    if dtype.itemsize == 2 and options.get("stride", 1) != 1 and (w[1] % 2 or w[0] // options.get("groups", 1) % 2):
        with pytest.raises(ArgumentError, match=r"pad .* with zeros"):  # which loads 4 bytes or more
            pycutlass.conv2d_input(grad, weights, x, **options)
    else:
        got = pycutlass.conv2d_input(grad, weights, x, **options)
        assert got.is_contiguous(memory_format=LAST)
        check(got, exact, weights[:, 0].numel(), TOLERANCE[dtype])
    exact = GRAD.conv2d_weight(images.double(), w, grad.double(), **options)
    got = pycutlass.conv2d_weight(grad, images, w, **options)
    assert got.is_contiguous(memory_format=LAST)
    check(got, exact, grad[:, 0].numel(), TOLERANCE[dtype])


_SIZE, _PAIR = st.integers(1, 12), st.tuples(st.integers(1, 3), st.integers(1, 3))


@settings(max_examples=30, deadline=None)
@given(_SIZE, _SIZE, _PAIR, _PAIR, _PAIR, st.sampled_from([1, 1, 2, 3]), st.booleans(), st.integers(0, 3))
def test_arrays_of_numpy_are_nhwc(
    c: int, k: int, taps: Any, stride: Any, padding: Any, groups: int, into: bool, offset: int
) -> None:
    rng = np.random.default_rng(c * k)
    c, k = c * groups, k * groups
    wide = rng.standard_normal((2, 9, 8, c + offset)).astype(np.float32)
    x, w = wide[..., offset:], rng.standard_normal((k, *taps, c // groups)).astype(np.float32)
    images, weights = (torch.from_numpy(each.astype(np.float64)).permute(0, 3, 1, 2) for each in (x, w))
    exact = F.conv2d(images, weights, None, stride, padding, 1, groups).permute(0, 2, 3, 1).numpy()
    memory = np.full((*exact.shape[:3], k + 5), np.nan, np.float32)
    out = memory[..., 2 : 2 + k] if into else None
    got = pycutlass.conv2d(x, w, stride=stride, padding=padding, groups=groups, out=out)
    np.testing.assert_allclose(got, exact, atol=1e-4, rtol=1e-4)
    if into:
        assert got is out
        memory[..., 2 : 2 + k] = np.nan
        assert np.isnan(memory).all(), "something was written beside it"


X, W = random(2, 8, 6, 5), random(12, 8, 3, 3)
Y = F.conv2d(X, W, padding=1).to(memory_format=LAST)


@pytest.mark.parametrize("padding", ["valid", "same", 1, (0, 2), [1, 1]])
@pytest.mark.parametrize("taps", [(1, 1), (3, 5)])
def test_paddings_of_torch(padding: Any, taps: Any) -> None:
    w = random(4, 8, *taps)
    got = pycutlass.conv2d(X, w, padding=padding, dilation=1)
    torch.testing.assert_close(got, F.conv2d(X, w, padding=padding), rtol=1e-4, atol=1e-4)
    assert pycutlass.conv2d_weight(got, X, w.shape, padding=padding).shape == w.shape
    assert pycutlass.conv2d_input(got, w, X.shape, padding=padding).shape == X.shape


def test_a_filter_of_even_size_is_padded_the_same_where_dilation_makes_it_odd() -> None:
    w = random(4, 8, 2, 4)
    got = pycutlass.conv2d(X, w, padding="same", dilation=2)
    torch.testing.assert_close(got, F.conv2d(X, w, padding="same", dilation=2), rtol=1e-4, atol=1e-4)
    with pytest.raises(ArgumentError, match=r"pass torch.nn.functional.pad\(x, \(1, 2, 0, 1\)\) and padding=0"):
        pycutlass.conv2d(X, w, padding="same")
    padded = F.pad(X, (1, 2, 0, 1)).to(memory_format=LAST)  # as the message says
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch says that it copies as well
        exact = F.conv2d(X, w, padding="same")
    torch.testing.assert_close(pycutlass.conv2d(padded, w), exact, rtol=1e-4, atol=1e-4)


def test_channels_of_groups_are_padded_as_the_message_says() -> None:
    w, grad, shape = random(8, 1, 3, 3, dtype=torch.float16), random(3, 8, 5, 1, dtype=torch.float16), (3, 2, 11, 4)
    options = {"stride": 2, "groups": 2}
    with pytest.raises(
        ArgumentError, match=r"pad C / groups=1 to 2 with zeros in each of the 2 groups, behind its own"
    ):
        pycutlass.conv2d_input(grad, w, shape, **options)
    padded = F.pad(w, (0, 0, 0, 0, 0, 1)).to(memory_format=LAST)
    got = pycutlass.conv2d_input(grad, padded, (3, 4, 11, 4), **options)[:, ::2]
    check(got, GRAD.conv2d_input(shape, w.double(), grad.double(), **options), w[:, 0].numel(), TOLERANCE[w.dtype])


@pytest.mark.parametrize("taps", [1, 3])
def test_scalars_that_are_left_out_are_those_of_the_function(taps: int) -> None:
    @pycutlass.epilogue_function
    def twice(accum: Any, alpha: Scalar = 2.0) -> Any:
        return alpha * accum

    w = random(12, 8, taps, taps)
    product = F.conv2d(X.double(), w.double())
    for said, factor in (({}, 2), ({"alpha": 1}, 1), ({}, 2)):
        got = pycutlass.conv2d(X, w, epilogue=twice, **said)
        torch.testing.assert_close(got.double(), factor * product, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("taps", [1, 3])
def test_scalars_source_bias_and_activation(taps: int) -> None:
    w, bias = random(12, 8, taps, taps), torch.randn(12)
    product, c = F.conv2d(X.double(), w.double(), padding=taps // 2), random(2, 12, 6, 5)
    options = {"padding": taps // 2}
    got = pycutlass.conv2d(X, w, c, alpha=2, beta=-1, **options)
    torch.testing.assert_close(got.double(), 2 * product - c, rtol=1e-4, atol=1e-4)
    for given_bias in ({"bias": bias}, {"c": bias}):
        got = pycutlass.conv2d(X, w, epilogue=pycutlass.relu, **given_bias, **options)
        torch.testing.assert_close(got.double(), F.relu(product + bias[:, None, None]), rtol=1e-4, atol=1e-4)
    added = c.clone(memory_format=torch.preserve_format)
    assert pycutlass.conv2d(X, w, added, beta=1, out=added, **options) is added
    torch.testing.assert_close(added.double(), product + c, rtol=1e-4, atol=1e-4)
    grad, sums = random(2, 12, 6, 5), w.clone(memory_format=torch.preserve_format)
    pycutlass.conv2d_weight(grad, X, w.shape, sums, beta=1, out=sums, **options)
    exact = GRAD.conv2d_weight(X.double(), w.shape, grad.double(), **options) + w
    torch.testing.assert_close(sums.double(), exact, rtol=1e-4, atol=1e-4)
    got = pycutlass.conv2d_input(grad, w, X.shape, X, beta=0.5, epilogue=pycutlass.silu, **options)
    exact = F.silu(GRAD.conv2d_input(X.shape, w.double(), grad.double(), **options) + 0.5 * X)
    torch.testing.assert_close(got.double(), exact, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("taps", [1, 3])
def test_a_bias_of_a_single_channel(taps: int) -> None:
    w, bias = random(1, 8, taps, taps), torch.randn(1)
    exact = F.conv2d(X.double(), w.double(), bias.double())
    torch.testing.assert_close(pycutlass.conv2d(X, w, bias=bias).double(), exact, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("taps", [1, 3])
def test_epilogue_functions_take_their_inputs_by_name(taps: int) -> None:
    def scaled(accum: Any, row: Row, residual: Tensor, factor: Scalar = 1.0) -> Any:
        return accum * row * factor + residual

    function = pycutlass.epilogue_function(scaled)
    x, w = X.half(), random(16, 8, taps, taps, dtype=torch.float16)
    row, residual = torch.randn(16).half(), random(2, 16, 6, 5, dtype=torch.float16)
    inputs = {"row": row, "residual": residual, "factor": 2.0}
    got = pycutlass.conv2d(x, w, padding=taps // 2, epilogue=function, epilogue_inputs=inputs)
    exact = F.conv2d(x.double(), w.double(), padding=taps // 2) * row[:, None, None] * 2 + residual
    torch.testing.assert_close(got.double(), exact, rtol=2e-2, atol=5e-2)
    with pytest.raises(ArgumentTypeError, match="rows"):
        pycutlass.conv2d(x, w, epilogue=function, epilogue_inputs=inputs | {"rows": row})
    with pytest.raises(ArgumentError, match="row"):
        pycutlass.conv2d(x, w, epilogue=function)


def test_integers_are_summed_in_int32() -> None:
    rng = np.random.default_rng(3)
    for c, taps in ((16, 3), (5, 2), (16, 1)):
        x = rng.integers(-8, 8, (2, 7, 6, c)).astype(np.int8)
        w = rng.integers(-8, 8, (8, taps, taps, c)).astype(np.int8)
        got = pycutlass.conv2d(x, w)
        assert got.dtype == np.int32
        images, weights = (torch.from_numpy(each).double().permute(0, 3, 1, 2) for each in (x, w))
        assert np.array_equal(got, F.conv2d(images, weights).permute(0, 2, 3, 1).numpy())


def test_another_type_of_the_result() -> None:
    got = pycutlass.conv2d(X.half(), W.half(), padding=1, out_dtype=cutlass.float32)
    assert got.dtype == torch.float32
    exact = F.conv2d(X.half().double(), W.half().double(), padding=1)
    torch.testing.assert_close(got.double(), exact, rtol=1e-5, atol=1e-4)
    out = torch.empty_like(Y, memory_format=torch.preserve_format)
    assert pycutlass.conv2d(X.half(), W.half(), padding=1, out=out) is out
    torch.testing.assert_close(out, got, rtol=0, atol=0)


@pytest.fixture
def settings_of_torch() -> Any:
    """Let a test change how torch multiplies float32."""
    backends = torch.backends
    before = backends.fp32_precision, backends.cudnn.fp32_precision, backends.cudnn.conv.fp32_precision
    yield backends
    backends.fp32_precision, backends.cudnn.fp32_precision, backends.cudnn.conv.fp32_precision = before


@pytest.mark.parametrize("taps", [1, 3])
def test_float32_is_rounded_only_where_somebody_has_asked(taps: int, settings_of_torch: Any) -> None:
    w = random(12, 8, taps, taps)
    exact = F.conv2d(X.double(), w.double())

    def error(precision: str | None = None) -> float:
        return float((pycutlass.conv2d(X, w, precision=precision).double() - exact).abs().max())

    assert settings_of_torch.cudnn.conv.fp32_precision == "tf32", "torch's own default, which nobody has asked for"
    assert error() == error("float32") < 1e-5
    assert error("tf32") > 1e-4
    settings_of_torch.cudnn.fp32_precision = "tf32"
    assert error() == error("tf32")
    assert error("float32") < 1e-5
    settings_of_torch.cudnn.conv.fp32_precision = "ieee"
    assert error() < 1e-5
    images, weights = (each.permute(0, 2, 3, 1).numpy() for each in (X, w))
    settings_of_torch.cudnn.conv.fp32_precision = "tf32"
    got = torch.from_numpy(pycutlass.conv2d(images, weights)).permute(0, 3, 1, 2)
    assert float((got.double() - exact).abs().max()) < 1e-5, "NumPy does not know torch's settings"


def test_what_would_be_copied_is_refused_unless_that_is_allowed() -> None:
    contiguous = X.contiguous()
    with pytest.raises(ArgumentError, match=r"pass x\.to\(memory_format=torch\.channels_last\), or allow_copy=True"):
        pycutlass.conv2d(contiguous, W)
    with pytest.raises(ArgumentError, match=r"pass w\.to\("):
        pycutlass.conv2d(X, W.contiguous())
    expected = F.conv2d(X, W, padding=1)
    got = pycutlass.conv2d(contiguous, W.contiguous(), padding=1, allow_copy=True)
    assert got.is_contiguous(memory_format=LAST)
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-4)
    out = torch.zeros(2, 12, 6, 5)
    with pytest.raises(ArgumentError, match=r"pass out=torch\.empty\(.*channels_last\), or allow_copy=True"):
        pycutlass.conv2d(X, W, padding=1, out=out)
    assert pycutlass.conv2d(X, W, out, beta=1, padding=1, out=out, allow_copy=True) is out
    torch.testing.assert_close(out, expected, rtol=1e-4, atol=1e-4)
    rows = X[:, :, ::2]
    with pytest.raises(ArgumentError, match="adjacent channels"):
        pycutlass.conv2d(rows, W)
    torch.testing.assert_close(pycutlass.conv2d(rows, W, allow_copy=True), F.conv2d(rows, W), rtol=1e-4, atol=1e-4)
    array = np.asfortranarray(X.permute(0, 2, 3, 1).numpy())
    weights = W.permute(0, 2, 3, 1).numpy()
    with pytest.raises(ArgumentError, match=r"pass np\.ascontiguousarray\(x\)"):
        pycutlass.conv2d(array, weights)
    got = pycutlass.conv2d(array, weights, padding=1, allow_copy=True)
    np.testing.assert_allclose(got, expected.permute(0, 2, 3, 1).numpy(), atol=1e-4)


A, B = np.ones((2, 6, 5, 8), np.float32), np.ones((12, 3, 3, 8), np.float32)
BIAS = np.ones(12, np.float32)
IMAGES, SQUARE, FLAT = np.ones(A.shape, np.float32), np.ones((8, 1, 1, 8), np.float32), np.zeros(600, np.float32)
OUT, NEXT = FLAT[:480].reshape(A.shape), FLAT[1:481].reshape(A.shape)
TAPS, TAP = FLAT[:576].reshape(8, 3, 3, 8), FLAT[:64].reshape(8, 1, 1, 8)
REFUSED: list[tuple[str, Any]] = [
    ("w must have the channels of x, 8", lambda: pycutlass.conv2d(A, B[..., :4].copy())),
    ("groups must divide C", lambda: pycutlass.conv2d(A, B, groups=3)),
    ("x is float32 and w is float16", lambda: pycutlass.conv2d(A, B.astype(np.float16))),
    (r"\(N, H, W, C\); got shape \(6, 5, 8\): pass x\[None\]", lambda: pycutlass.conv2d(A[0], B)),
    (r"\(N, C, H, W\); got shape \(8, 6, 5\): pass x\[None\]", lambda: pycutlass.conv2d(X[0], W)),
    ("x is of numpy and w of torch", lambda: pycutlass.conv2d(A, W)),
    ("the dilated filter must fit", lambda: pycutlass.conv2d(A, B, dilation=4)),
    ("stride must be an integer, or two", lambda: pycutlass.conv2d(A, B, stride=(1, 2, 3))),
    ("stride must be from 1", lambda: pycutlass.conv2d(A, B, stride=0)),
    ("padding must be an integer, a pair of them, 'valid' or 'same'", lambda: pycutlass.conv2d(A, B, padding="full")),
    ("padding='same' is for a stride of 1", lambda: pycutlass.conv2d(A, B, padding="same", stride=2)),
    ("beta is 0", lambda: pycutlass.conv2d(A, B, np.ones((2, 4, 3, 12), np.float32))),
    ("c is missing", lambda: pycutlass.conv2d(A, B, beta=1)),
    ("c is given and beta is 0", lambda: pycutlass.conv2d(A, B, np.ones((2, 4, 3, 12), np.float32), bias=BIAS)),
    ("bias is another one", lambda: pycutlass.conv2d(A, B, BIAS, bias=BIAS)),
    ("bias must be a vector of one number for each channel", lambda: pycutlass.conv2d(A, B, bias=A)),
    ("one number for each of 12 channels", lambda: pycutlass.conv2d(A, B, bias=np.ones(5, np.float32))),
    ("c must have the shape of the result", lambda: pycutlass.conv2d(A, B, A, beta=1)),
    ("out must have the shape of the result", lambda: pycutlass.conv2d(A, B, out=A.copy())),
    ("out must have the shape of the result", lambda: pycutlass.conv2d(A, B[:, :1, :1].copy(), out=A.copy())),
    ("precision must be one of", lambda: pycutlass.conv2d(A, B, precision="half")),
    ("is for operands of float32", lambda: pycutlass.conv2d(A.astype("f8"), B.astype("f8"), precision="tf32")),
    ("has no keyword pad;.* Did you mean padding", lambda: pycutlass.conv2d(A, B, pad=1)),
    ("epilogue must be", lambda: pycutlass.conv2d(A, B, epilogue="relu")),
    ("plan must be a pycutlass.Conv2d", lambda: pycutlass.conv2d(A, B, plan=3)),
    ("operand w must be a tensor", lambda: pycutlass.conv2d(A, None)),
    ("^out overlaps x .*, x at .* Give out ", lambda: pycutlass.conv2d(A, B[:8], padding=1, out=A)),
    ("^out overlaps x ", lambda: pycutlass.conv2d(A, SQUARE, out=A)),
    ("^out overlaps w ", lambda: pycutlass.conv2d(IMAGES, TAPS, padding=1, out=OUT)),
    ("^out overlaps w ", lambda: pycutlass.conv2d(IMAGES, TAP, out=OUT)),
    ("^out overlaps c ", lambda: pycutlass.conv2d(IMAGES, B[:8], NEXT, beta=1, padding=1, out=OUT)),
    ("^out overlaps c ", lambda: pycutlass.conv2d(IMAGES, B[:8], FLAT[:8], padding=1, out=OUT)),
    ("^out overlaps c ", lambda: pycutlass.conv2d(IMAGES, SQUARE, FLAT[:8], out=OUT)),
    ("^out overlaps bias ", lambda: pycutlass.conv2d(IMAGES, B[:8], bias=FLAT[:8], padding=1, out=OUT)),
    ("^out overlaps bias ", lambda: pycutlass.conv2d(IMAGES, SQUARE, bias=FLAT[:8], out=OUT)),
    ("^out overlaps grad ", lambda: pycutlass.conv2d_input(A, B[:8], A.shape, padding=1, out=A)),
    ("^out overlaps grad ", lambda: pycutlass.conv2d_weight(OUT, A, TAP.shape, out=TAP)),
    ("^out overlaps x ", lambda: pycutlass.conv2d_weight(A, OUT, TAP.shape, out=TAP)),
    ("^out overlaps x ", lambda: pycutlass.conv2d_weight(IMAGES, OUT, TAPS.shape, padding=1, out=TAPS)),
    ("grad must be of", lambda: pycutlass.conv2d_input(A, np.ones((8, 3, 3, 8), np.float32), (2, 6, 5, 8))),
    ("input_size must be four integers", lambda: pycutlass.conv2d_input(A, B, (6, 5))),
    ("weight_size is missing", lambda: pycutlass.conv2d_weight(A, A, None)),
    ("gradients of weights take no bias",
     lambda: pycutlass.conv2d_weight(A, A, (8, 1, 1, 8), np.ones(8, np.float32), beta=1)),
    ("put stride - 1 zeros between the pixels of grad",
     lambda: pycutlass.conv2d_input(np.ones((1, 2, 2, 8)), np.ones((8, 3, 3, 8)), (1, 8, 8, 8), stride=2, dilation=2)),
    ("Of integers, kernels take int8 alone", lambda: pycutlass.conv2d(A.astype(np.uint8), B.astype(np.uint8))),
]  # fmt: skip


@pytest.mark.parametrize(("message", "call"), REFUSED, ids=[message for message, _ in REFUSED])
def test_refused(message: str, call: Any) -> None:
    with pytest.raises(PyCutlassError, match=message):
        call()


def test_strides_and_dilations_together_as_the_message_says() -> None:
    """Zeros between the pixels of the gradient make its stride 1."""
    grad, w, size = random(1, 4, 3, 3), random(4, 8, 3, 3), (1, 8, 9, 9)
    spread = torch.zeros(1, 4, 5, 5).to(memory_format=LAST)
    spread[:, :, ::2, ::2] = grad
    got = pycutlass.conv2d_input(spread, w, size, dilation=2)
    torch.testing.assert_close(got, GRAD.conv2d_input(size, w, grad, stride=2, dilation=2), rtol=1e-4, atol=1e-4)


def test_gradients_would_be_lost() -> None:
    w = W.clone(memory_format=torch.preserve_format).requires_grad_(True)
    with pytest.raises(ArgumentError, match=r"w requires a gradient, and the convolution has none: pass w\.detach"):
        pycutlass.conv2d(X, w)
    with torch.no_grad():
        assert pycutlass.conv2d(X, w).shape == (2, 12, 4, 3)


def test_plans_are_kept_and_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_plans", KeptPlans(2, "conv2d"))
    for images in (1, 1, 2, 3):
        pycutlass.conv2d(np.ones((images, 6, 5, 8), np.float32), B)
        assert len(module._plans) <= 2
    assert len(module._plans) == 2


def test_a_plan_has_its_own_options() -> None:
    plan = pycutlass.Conv2d(A, B, padding=1)
    np.testing.assert_allclose(pycutlass.conv2d(A, B, plan=plan), pycutlass.conv2d(A, B, padding=1), rtol=1e-5)
    for option in ({"alpha": 2}, {"padding": 1}, {"padding": 0}, {"precision": "tf32"}, {"epilogue": pycutlass.relu}):
        with pytest.raises(ArgumentError, match=f"{next(iter(option))} and a plan are given"):
            pycutlass.conv2d(A, B, plan=plan, **option)
    with pytest.raises(ArgumentError, match="the plan is of fprop, and this is wgrad"):
        pycutlass.conv2d_weight(A, A, (8, 1, 1, 8), plan=plan)


def test_what_is_considered_is_not_said(caplog: pytest.LogCaptureFixture) -> None:
    """Descriptions that nobody asked for are tried, some of which would be slow or are changed."""
    wide = torch.randn(2, 6, 5, 9).half()
    images = wide[..., 1:].permute(0, 3, 1, 2)  # 8 channels, which are not aligned
    pycutlass.conv2d(images, W.half())
    pycutlass.conv2d_weight(F.conv2d(X.half(), W.half()).to(memory_format=LAST), images, W.shape)
    said = [record.getMessage() for record in caplog.records if not record.getMessage().startswith("no GPU")]
    assert said == []
