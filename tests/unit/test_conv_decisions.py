"""The extension decides whether a tensor fits a convolution, as Python did; Python has a sentence for each refusal."""

from __future__ import annotations

import collections
import itertools
import math
import random
from typing import Any

import pytest
from conv_decisions import Decision, decide_conv
from convolutions import OPERATIONS, channel_counts, dgrad, fprop, problem, wgrad

from pycutlass import TensorDescription, TensorSpec, _core, cutlass
from pycutlass.errors import ArgumentError, PyCutlassError
from pycutlass.operands import MisalignedError
from pycutlass.operands.conv_operand import ConvOperand
from pycutlass.operands.conv_refusals import CONV_SENTENCES, conv_refusal
from pycutlass.operands.convolutions import conv_tensor_of
from pycutlass.operation.conv2d_support import operand_of
from pycutlass.tensor import TensorView

PLACE = 1 << 20
LAYOUTS = [cutlass.TensorNHWC] * 4 + [cutlass.TensorNC32HW32, cutlass.TensorC32RSK32]
TYPES = {cutlass.TensorNHWC: [cutlass.float16, cutlass.float32, cutlass.float64, cutlass.int8]}
LIBRARIES = ["torch", "torch", "numpy", "cupy", "pointer", "spec"]
EXTENTS = [1, 1, 2, 3, 4, 5, 8]

#: Shape and strides of a tensor; nothing of an address.
Form = tuple[tuple[int, ...] | None, tuple[int, ...] | None]


def packed(shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(itertools.accumulate((1, *shape[:0:-1]), lambda step, extent: step * extent))[::-1]


def drawn_form(draw: random.Random, wanted: ConvOperand) -> Form:
    """Return a tensor that is sometimes `wanted`, and often something near it."""
    pick, (n, h, w, c) = draw.choice, wanted.extent
    kind = draw.random()
    if kind < 0.05:
        return None, None
    whole = n * h * w * c
    if kind < 0.15:
        return (pick([whole, whole, whole, whole + 1, c, 0]),), (pick([1, 1, 1, 2, 0, -1]),)
    shape, strides = wanted.shape, packed(wanted.shape)
    if wanted.description.layout is cutlass.TensorNHWC:
        step = pick([c, c, c, c + 1, c + 8, 2 * c, c - 1, 0, 1, -c, 2**28, 2**31, 2**40])
        strides = (h * w * step, w * step, step, pick([1] * 7 + [0, 2, -1, w * h]))
        if draw.random() < 0.1:  # (N, C, H, W) without gaps
            strides = (whole // max(n, 1), w, 1, h * w)
        if draw.random() < 0.55:
            shape, strides = (n, c, h, w), (strides[0], strides[3], strides[1], strides[2])
    if draw.random() < 0.3:  # another step, which matters where there is more than one
        axis, other = draw.randrange(len(shape)), pick([0, 1, -1, 7, strides[-1], 2**33])
        strides = (*strides[:axis], pick([other, strides[axis] + 8, 2 * strides[axis]]), *strides[axis + 1 :])
    if draw.random() < 0.2:
        axis = draw.randrange(len(shape))
        shape = (*shape[:axis], max(0, shape[axis] + pick([-1, 1, 8])), *shape[axis + 1 :])
    if draw.random() < 0.05:
        shape, strides = pick([((1, *shape), (99, *strides)), (shape[1:], strides[1:]), ((), ())])
    return shape, strides


def drawn_operand(draw: random.Random) -> ConvOperand:
    """Return one that an operation could want, and that it could not."""
    layout = draw.choice(LAYOUTS)
    together = 1 if layout is cutlass.TensorNHWC else 32
    element = draw.choice(TYPES.get(layout, [cutlass.int8]))
    bits = TensorDescription(element, layout, 1).type.bits
    alignment = draw.choice([each for each in (1, 1, 2, 4, 8) if each * bits <= 128])
    n, h, w, c = (draw.choice(EXTENTS) for _ in "nhwc")
    if draw.random() < 0.3:
        h = w = c
    extent = (n, h, w, c * together)
    if draw.random() < 0.05:
        extent = draw.choice([(0, h, w, c * together), (n, h, w, 0)])
    elif draw.random() < 0.03:
        extent = draw.choice([(2**31 - 1, 1, 1, c * together), (2**14, 2**10, 2**10, 32), (2**28, 1, 1, 32)])
    limit = draw.choice([2**31, 2**31, 2**28, 4000])
    name, is_packed = draw.choice("ABCD"), draw.random() < 0.2 and together == 1
    bias = draw.choice(["", f", or {extent[3]} as a bias"])
    return ConvOperand(
        name, "activation", TensorDescription(element, layout, alignment), extent, limit, is_packed, bias
    )


@pytest.mark.parametrize("seed", range(4))
def test_the_extension_decides_as_python_did(seed: int) -> None:
    draw = random.Random(seed)
    seen: collections.Counter[str] = collections.Counter()
    for _ in range(8000):
        wanted = drawn_operand(draw)
        seen[decided(wanted, drawn_view(draw, wanted))] += 1
    of_matrices = {"flat step", "line alignment", "ld alignment", "address alignment"}
    # A batch of groups of 32 channels is as aligned as its lines.
    assert set(seen) == {*CONV_SENTENCES, *of_matrices, "fits"}, "the draw has something of each"
    assert seen["fits"] > 1000


def drawn_view(draw: random.Random, wanted: ConvOperand) -> TensorView:
    shape, strides = drawn_form(draw, wanted)
    bytes_each = wanted.description.type.bits // 8
    pointer = draw.choice([0, PLACE, PLACE, PLACE, PLACE + bytes_each, PLACE + draw.randrange(64)])
    library = "pointer" if shape is None else draw.choice(LIBRARIES)
    return TensorView(pointer, wanted.description.type.dtype_name, shape, strides, 0, library, None)


def decided(wanted: ConvOperand, view: TensorView) -> str:
    """Check that the extension decides as the reference, and that the tensor is taken, or refused in words, so."""
    expected: Decision = decide_conv(wanted, view)
    operand, broken = wanted.check(view)
    assert (broken or (operand.ld, operand.batch_stride)) == expected, (wanted, view)
    if not broken or (broken == "empty" and wanted.name == "C"):
        assert conv_tensor_of(wanted, view) == operand
        return broken or "fits"
    with pytest.raises(ArgumentError) as caught:
        conv_tensor_of(wanted, view)
    assert str(caught.value) == str(conv_refusal(wanted, operand, broken))
    assert f"operand {wanted.name}" in str(caught.value)
    assert isinstance(caught.value, MisalignedError) == broken.endswith("alignment")
    return broken


KINDS = {
    **{f"f16 {kind.name}": OPERATIONS[f"f16_{kind.name}_optimized"] for kind in (fprop, dgrad, wgrad)},
    **{f"f32 {kind.name}": OPERATIONS[f"f32_simt_{kind.name}"] for kind in (fprop, dgrad, wgrad)},
    **{name: operation for name, operation in OPERATIONS.items() if operation.group_mode is not None},
    **{name: operation for name, operation in OPERATIONS.items() if "few" in name or "interleaved" in name},
}


@pytest.mark.parametrize("name", KINDS)
def test_an_operation_supports_what_the_reference_takes(name: str) -> None:
    """In all directions, with groups, few channels and groups of 32: `supports` says what the decision is."""
    operation, draw, answers = KINDS[name], random.Random(name), collections.Counter[bool]()
    counts = channel_counts(operation)[:8]
    for _ in range(1500):
        p = drawn_problem(draw, operation, counts)
        wanted = operand_of(draw.choice("ABCD"), operation, p)
        view = drawn_view(draw, wanted)
        if view.shape is None or not takes(view):
            continue
        spec = TensorSpec(view.shape, view.dtype_name, view.strides)
        as_spec = TensorView(0, view.dtype_name, spec.shape, spec.strides, None, "spec", None)
        supported = operation.supports(p, {wanted.name: spec})
        if wanted.name == "C" and math.prod(spec.shape) == wanted.extent[3]:
            continue  # a bias
        assert bool(supported) == (not isinstance(decide_conv(wanted, as_spec), str)), (wanted, view, supported.reason)
        answers[bool(supported)] += 1
    assert min(answers.values()) > 100


def takes(view: TensorView) -> bool:
    """Return whether there is a TensorSpec of such a form."""
    try:
        TensorSpec(view.shape or (), view.dtype_name, view.strides)
    except PyCutlassError:
        return False
    return True


def drawn_problem(draw: random.Random, operation: Any, counts: list[tuple[int, int, int]]) -> Any:
    """Return a small problem that the operation supports, with some of the `counts` of channels, filters and groups."""
    while True:
        size = draw.choice([1, 2]), draw.randint(1, 5), draw.randint(1, 5)
        geometry = (*size, *draw.choice([(1, 1), (1, 2), (2, 2)]), (1, 1), (1, 1), (1, 1))
        p = problem(geometry, *draw.choice(counts))
        if operation.supports(p):
            return p


def test_each_rule_has_a_sentence() -> None:
    assert set(_core.CONV_RULES) == set(CONV_SENTENCES)
    assert len(_core.CONV_RULES) == len(CONV_SENTENCES)
    assert not set(_core.CONV_RULES) & set(_core.OPERAND_RULES)


def test_a_rule_without_a_sentence_is_refused_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(CONV_SENTENCES, "pixels")
    described = TensorDescription(cutlass.float16, cutlass.TensorNHWC, 1)
    wanted = ConvOperand("A", "activation", described, (2, 3, 4, 8), 2**31, False)
    view = TensorView(PLACE, "float16", (2, 3, 4, 8), (96, 32, -8, 1), 0, "numpy", None)
    with pytest.raises(PyCutlassError, match=r"A breaks a rule that has no sentence, 'pixels'.*bug of pycutlass"):
        conv_tensor_of(wanted, view)


def test_numbers_that_no_memory_has() -> None:
    described = TensorDescription(cutlass.float16, cutlass.TensorNHWC, 1)
    wanted = ConvOperand("A", "activation", described, (2, 3, 4, 8), 2**31, False)
    for step in (2**70, 2**62):  # those of more than 64 bits are taken for one another, and span too much all the same
        for of_rows in (1, 2):
            view = TensorView(0, "float16", wanted.extent, (12 * step, 4 * step * of_rows, step, 1), None, "spec", None)
            with pytest.raises(ArgumentError, match=r"must span less than|packed pixel by pixel"):
                conv_tensor_of(wanted, view)
    for shape in ((2**70,), (2**70, 3, 4, 8)):
        with pytest.raises(ArgumentError, match="operand A"):
            conv_tensor_of(wanted, TensorView(0, "float16", shape, (1,) * len(shape), None, "spec", None))
