"""Variants with `out` of operators that have several results, or launch more than once: all is checked beforehand."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.autograd import forward_ad
from torch_operators import numbers, ops, passes_opcheck

import pycutlass.pytorch
from pycutlass import epilogue, epilogue_function
from pycutlass.epilogue import Column, Row, Scalar, Source, Tensor, pairs, relu, silu
from pycutlass.errors import ArgumentError, ArgumentTypeError


@epilogue_function
def two(accum, bias: Row, residual: Tensor, alpha: Scalar = 1.0):  # type: ignore[no-untyped-def]
    t = alpha * accum + bias
    return {"T": t, "D": relu(t) + residual, "most": epilogue.max(t, axis=1)}


@epilogue_function
def both(accum, share: Column):  # type: ignore[no-untyped-def]
    return {"D": accum * share, "T": accum}


@epilogue_function
def plus(accum, c: Source):  # type: ignore[no-untyped-def]
    return accum + c


@epilogue_function
def gated(accum):  # type: ignore[no-untyped-def]
    gate, up = pairs(accum)
    return silu(gate) * up


TWO, BOTH, PLUS, GATED = map(pycutlass.pytorch.epilogue_handle, (two, both, plus, gated))


def of(*shape: int, dtype: torch.dtype = torch.float16) -> torch.Tensor:
    return numbers(*shape, dtype=torch.float32).detach().to(dtype)


X, GATE, UP = of(2, 4, 8), of(16, 8), of(16, 8)
IMAGES, FILTERS, POINTS = of(2, 8, 6, 6), of(16, 8, 3, 3), of(16, 8, 1, 1)
GEOMETRY = ([1, 1], [1, 1], [1, 1], 1)
PLAIN = ([1, 1], [0, 0], [1, 1], 1)
OFFS = torch.tensor([1, 1, 4], dtype=torch.int32)
#: Operators, with what they are given and what their results are called.
CALLS: dict[str, tuple[Any, tuple[Any, ...], tuple[str, ...]]] = {
    "addmm_with_slope": (ops.addmm_with_slope, (of(4, 16), of(4, 8), of(8, 16), "gelu"), ("out", "slope")),
    "conv2d_with_slope": (
        *(ops.conv2d_with_slope, (IMAGES, FILTERS, of(16), *GEOMETRY, "silu")),
        ("out", "slope"),
    ),
    "conv2d_with_slope of float32": (
        *(ops.conv2d_with_slope, (IMAGES.float(), FILTERS.float(), None, *GEOMETRY, "gelu")),
        ("out", "slope"),
    ),
    "swiglu": (ops.swiglu, (X, GATE, UP), ("out",)),
    "swiglu of float32": (ops.swiglu, (X.float(), GATE.float(), UP.float()), ("out",)),
    "interleaved_swiglu": (ops.interleaved_swiglu, (X, GATE), ("out",)),
    "interleaved_swiglu of float32": (ops.interleaved_swiglu, (X.float(), GATE.float()), ("out",)),
    "swiglu_with_slopes": (ops.swiglu_with_slopes, (X, GATE, UP), ("out", "of_gate", "of_up")),
    "swiglu_with_slopes of float32": (
        *(ops.swiglu_with_slopes, (X.float(), GATE.float(), UP.float())),
        ("out", "of_gate", "of_up"),
    ),
    "interleaved_swiglu_with_slopes": (ops.interleaved_swiglu_with_slopes, (X, GATE), ("out", "of_gate", "of_up")),
    "fused_mm": (ops.fused_mm, (of(4, 8), of(8, 16), TWO, [of(16), of(4, 16)], [0.5]), ()),
    "fused_mm of a stack": (ops.fused_mm, (X, of(8, 16), BOTH, [of(2, 4)]), ()),
    "fused_mm of a batch": (ops.fused_mm, (X, of(2, 8, 16), TWO, [of(16), of(2, 4, 16)]), ()),
    "fused_mm of pairs": (ops.fused_mm, (of(4, 8), of(8, 16), GATED, []), ()),
    "fused_conv2d": (ops.fused_conv2d, (IMAGES, FILTERS, *GEOMETRY, TWO, [of(16), of(2, 16, 6, 6)]), ()),
    "fused_conv2d of one pixel": (ops.fused_conv2d, (IMAGES, POINTS, *PLAIN, TWO, [of(16), of(2, 16, 6, 6)]), ()),
    "fused_grouped_mm": (ops.fused_grouped_mm, (of(4, 8), of(3, 8, 16), OFFS, BOTH, [of(4)]), ()),
}


def results_of(name: str) -> list[torch.Tensor]:
    operator, args, _ = CALLS[name]
    made = operator(*args)
    return [made] if isinstance(made, torch.Tensor) else list(made)


def into(name: str, outs: list[Any]) -> dict[str, Any]:
    """Return results by the names of the variant."""
    names = CALLS[name][2]
    return dict(zip(names, outs, strict=True)) if names else {"out": outs}


def called(name: str, number: int) -> str:
    names = CALLS[name][2]
    return names[number] if names else rf"out\[{number}\], (T|D|most) of the epilogue,"


@pytest.mark.parametrize("name", CALLS)
def test_results(name: str) -> None:
    operator, args, _ = CALLS[name]
    expected = results_of(name)
    outs = [torch.zeros_like(each) for each in expected]
    assert operator.out(*args, **into(name, outs)) is None
    assert all(map(torch.equal, outs, expected))
    assert passes_opcheck(operator.out, *args, **into(name, [torch.zeros_like(each) for each in expected]))
    with torch.inference_mode():
        operator.out(*args, **into(name, [torch.zeros_like(each) for each in expected]))


@pytest.mark.parametrize("name", CALLS)
def test_any_strides(name: str) -> None:
    """What kernels cannot write is copied behind them."""
    operator, args, _ = CALLS[name]
    expected = results_of(name)
    outs = [torch.full((*each.shape, 3), 7, dtype=each.dtype)[..., 1] for each in expected]
    operator.out(*args, **into(name, outs))
    assert all(map(torch.equal, outs, expected))
    if all(each.dim() == 2 for each in expected):  # parts of wider matrices, which kernels write
        wide = [torch.full((each.shape[0], 32), 7, dtype=each.dtype) for each in expected]
        outs = [whole[:, : each.shape[1]] for whole, each in zip(wide, expected, strict=True)]
        operator.out(*args, **into(name, outs))
        assert all(map(torch.equal, outs, expected))
        assert all(bool((each[:, 16:] == 7).all()) for each in wide)


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning")  # of torch about torch
def test_what_is_refused(name: str) -> None:
    operator, args, names = CALLS[name]
    variant = rf"{name.partition(' ')[0]}\.out"
    expected = results_of(name)
    outs = [torch.zeros_like(each) for each in expected]
    last = len(outs) - 1

    def changed(number: int, out: Any) -> dict[str, Any]:
        return into(name, [out if at == number else each for at, each in enumerate(outs)])

    if names:
        with pytest.raises(ArgumentTypeError, match=f"{names[-1]} must be a tensor, got None"):
            operator.out(*args, **changed(last, None))
    else:
        with pytest.raises(
            ArgumentError, match=rf"out has {last} tensors?, and there (is|are) {last + 1} results?: pass"
        ):
            operator.out(*args, out=outs[1:])
    for at, each in enumerate(outs):
        with pytest.raises(ArgumentError, match=rf"{called(name, at)} must have the shape of the result, \(.*; got"):
            operator.out(*args, **changed(at, each[1:]))
        other = torch.int32 if each.dtype is torch.bfloat16 else torch.bfloat16
        with pytest.raises(ArgumentError, match=rf"{called(name, at)} is of {other} and the result of {each.dtype}"):
            operator.out(*args, **changed(at, each.to(other)))
        with pytest.raises(ArgumentError, match=r"on meta|on the meta device"):
            operator.out(*args, **changed(at, each.to("meta")))
        with pytest.raises(ArgumentError, match="has several elements at one address"):
            operator.out(*args, **changed(at, each[:1].expand(each.shape)))
    with pytest.raises(ArgumentError, match=rf"requires a gradient, and {variant} has none"):
        operator.out(*args, **changed(last, outs[last].clone().requires_grad_()))
    with pytest.raises(ArgumentError, match=r"variants with out cannot be called in a transform of torch\.func"):
        torch.vmap(lambda _: operator.out(*args, **into(name, outs)))(torch.ones(2))
    with forward_ad.dual_level(), torch.no_grad():
        dual = forward_ad.make_dual(outs[last], torch.ones_like(outs[last]))
        with pytest.raises(ArgumentError, match=rf"{variant} has no derivative in forward mode"):
            operator.out(*args, **changed(last, dual))
    assert not any(bool(each.any()) for each in outs)  # nothing was launched
    products = [(each * numbers(*each.shape, dtype=each.dtype)).sum() for each in outs]
    operator.out(*args, **into(name, outs))
    for each in products:
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            each.backward()


@pytest.mark.parametrize("name", CALLS)
def test_fakes_refuse_the_same(name: str) -> None:
    operator, args, _ = CALLS[name]

    def meta(each: Any) -> Any:
        if isinstance(each, list):
            return [meta(one) for one in each]
        return each.to("meta") if isinstance(each, torch.Tensor) else each

    given, outs = [meta(each) for each in args], [meta(each) for each in results_of(name)]
    assert operator.out(*given, **into(name, outs)) is None
    for at, each in enumerate(outs):
        for wrong, message in ((each[1:], "must have the shape of the result"), (each.to(torch.bfloat16), "is of")):
            with pytest.raises(ArgumentError, match=rf"{called(name, at)} {message}"):
                operator.out(*given, **into(name, [wrong if at == number else one for number, one in enumerate(outs)]))


@pytest.mark.parametrize("name", [name for name in CALLS if len(results_of(name)) > 1])
def test_results_of_one_place(name: str) -> None:
    operator, args, _ = CALLS[name]
    expected = results_of(name)
    memory = torch.zeros(2 * expected[0].numel() + 1, dtype=expected[0].dtype)
    for begin in (0, 1):  # what kernels write, and what is copied
        outs = [torch.zeros_like(each) for each in expected]
        for at in range(2):
            outs[at] = memory[begin : begin + expected[at].numel()].view(expected[at].shape)
        with pytest.raises(ArgumentError, match=r"overlaps .* in memory: two results cannot be in one place"):
            operator.out(*args, **into(name, outs))
    assert not bool(memory.any())
    if all(each.dim() == 2 for each in expected[:2]):  # columns of one matrix by turns share no element
        whole = torch.zeros(*expected[0].shape, 2, dtype=expected[0].dtype)
        outs[0], outs[1] = whole[..., 0], whole[..., 1]
        operator.out(*args, **into(name, outs))
        assert all(map(torch.equal, outs, expected))


def test_what_is_read() -> None:
    """Nothing is written over operands; D may be what is read of the same elements, as elsewhere."""
    a, b, c = of(16, 16), of(16, 16), of(16, 16)
    for at in range(2):
        operands = (a.clone(), b.clone())
        with pytest.raises(ArgumentError, match=f"overlaps mat_{'ab'[at]} of shape .*: nothing is written over"):
            ops.fused_mm.out(*operands, PLUS, [c], out=[operands[at]])
    out = c.clone()
    ops.fused_mm.out(a, b, PLUS, [out], out=[out])
    assert torch.equal(out, ops.fused_mm(a, b, PLUS, [c])[0])
    out = c.clone()
    with pytest.raises(ArgumentError, match=r"out\[0\] of shape .* overlaps tensors\[0\]"):
        ops.fused_mm.out(a, b, PLUS, [out.t()], out=[out])
    out, slope = c.clone(), torch.empty_like(c)
    ops.addmm_with_slope.out(out, a, b, "gelu", out=out, slope=slope)
    assert torch.equal(out, ops.addmm_with_slope(c, a, b, "gelu")[0])
    with pytest.raises(ArgumentError, match=r"slope of shape .* overlaps input"):
        ops.addmm_with_slope.out(slope, a, b, "gelu", out=out, slope=slope)
    for dtype in (torch.float16, torch.float32):
        x, gate, up = (each.to(dtype) for each in (a, b, c))
        with pytest.raises(ArgumentError, match=r"out of shape .* overlaps up_weight"):
            ops.swiglu.out(x, gate, up, out=up)


def test_rows_of_no_group_stay() -> None:
    args = (of(4, 8), of(3, 8, 16), torch.tensor([1, 1, 3], dtype=torch.int32), BOTH, [of(4)])
    expected = ops.fused_grouped_mm(*args)
    for outs in ([torch.full((4, 16), 7.0).half() for _ in range(2)], [torch.full((4, 32), 7.0).half()[:, ::2]] * 1):
        outs = outs if len(outs) == 2 else [*outs, torch.full((4, 32), 7.0).half()[:, ::2]]
        ops.fused_grouped_mm.out(*args, out=outs)
        for out, each in zip(outs, expected, strict=True):
            assert torch.equal(out[:3], each[:3]) and bool((out[3:] == 7).all())


def test_names_of_activations() -> None:
    a, b, out = of(4, 8), of(8, 16), torch.empty(4, 16, dtype=torch.float16)
    ops.fused_mm.out(a, b, "gelu", [], out=[out])
    assert torch.equal(out, ops.fused_mm(a, b, "gelu", [])[0])


@pytest.mark.parametrize("dynamic", [False, True])
def test_compiled(dynamic: bool) -> None:
    handle = pycutlass.pytorch.epilogue_handle(both)

    def block(a: torch.Tensor, b: torch.Tensor, share: torch.Tensor) -> torch.Tensor:
        outs = [a.new_empty(a.shape[0], b.shape[1]) for _ in range(2)]
        ops.fused_mm.out(a, b, handle, [share], out=outs)
        first = a.new_empty(a.shape[0], b.shape[1])
        ops.swiglu.out(a, b.t(), b.t(), out=first)
        return outs[0].relu() + outs[1] + first

    given = (of(4, 8), of(8, 16), of(4))
    made = torch.compile(block, fullgraph=True, backend="aot_eager", dynamic=dynamic)
    torch.testing.assert_close(made(*given), block(*given))


def test_every_operator_has_one() -> None:
    names = {
        name.partition("::")[2] for name in torch._C._dispatch_get_all_op_names() if name.startswith("pycutlass::")
    }
    assert {name for name in names if "." not in name} == {name[: -len(".out")] for name in names if "." in name}


def test_no_elements() -> None:
    a, b, share = of(4, 8)[:0], of(8, 16), of(4)[:0]
    ops.fused_mm.out(a, b, BOTH, [share], out=[a.new_empty(0, 16), a.new_empty(0, 16)])
    ops.swiglu.out(a, b.t(), b.t(), out=a.new_empty(0, 16))


def test_a_column_for_each_matrix_may_be_a_slice() -> None:
    def most(accum: Any) -> Any:
        return {"D": epilogue.relu(accum), "most": epilogue.max(accum, axis=1)}

    handle = pycutlass.pytorch.epilogue_handle(epilogue_function(most))
    a, b = torch.randn(2, 4, 8), torch.randn(8, 16)
    outs = [torch.zeros(2, 4, 16), torch.zeros(2, 16)[:, :4]]
    torch.ops.pycutlass.fused_mm.out(a, b, handle, [], out=outs)
    torch.testing.assert_close(outs, [torch.relu(a @ b), (a @ b).amax(-1)])
