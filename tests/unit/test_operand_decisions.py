"""The extension decides whether a tensor fits an operand, as Python did, and Python has a sentence for each refusal."""

from __future__ import annotations

import collections
import functools
import random

import numpy as np
import pytest
from operand_decisions import Decision, decide_matrix, decide_vector

from pycutlass import TensorDescription, _core, cutlass
from pycutlass.errors import ArgumentError, PyCutlassError
from pycutlass.operands import Matrix, MisalignedError, matrix_of, vector_of
from pycutlass.operands.refusals import SENTENCES, refusal
from pycutlass.tensor import TensorView

PLACE = 1 << 20
TYPES = [cutlass.float16, cutlass.float32, cutlass.float64, cutlass.int8]
LAYOUTS = [cutlass.RowMajor, cutlass.ColumnMajor] * 4
LAYOUTS += [cutlass.ColumnMajorInterleaved32, cutlass.RowMajorInterleaved32]
NAMES = ["A", "B", "C", "D", "A[3]", "B[0]", "C[1]", "D[2]", "destination", "source", "aux"]

#: What matrices and vectors are to be: rows, columns, batch and the tensor's shape and strides.
Extents = tuple[int, int, int, tuple[int, ...] | None, tuple[int, ...] | None]


def drawn_extents(draw: random.Random, row_major: bool) -> Extents:
    """Return extents and a tensor that is sometimes that, and often something near it."""
    pick = draw.choice
    rows, columns = (pick([0, 1, 1, 2, 3, 4, 5, 7, 8, 8, 16, 32, 33, 64]) for _ in "MN")
    if draw.random() < 0.03:
        rows, columns = pick([(2**31 - 1, columns), (rows, 2**31 - 8), (2**30, 2**30)])
    batch = pick([1, 1, 1, 2, 3, 5, 8])
    line, lines = (columns, rows) if row_major else (rows, columns)
    kind = draw.random()
    if kind < 0.05:
        return rows, columns, batch, None, None
    if kind < 0.2:
        whole = rows * columns
        elements = pick([whole * batch, whole, line, line * batch, lines, whole * batch + 1, 1, 0])
        return rows, columns, batch, (elements,), (pick([1, 1, 1, 2, 0, -1]),)
    if kind < 0.35:
        step = pick([line, line + 8, 0, 1, -3])
        shape, strides = pick(
            [
                ((line,), (1,)),
                ((1, line), (step, 1)),
                ((batch, line), (step, 1)),
                ((batch, 1, line), (step, 7, pick([1, 1, 2]))),
                ((line, 1), (1, 1)),
                ((line, 1), (3, pick([1, 2]))),
            ]
        )
        return rows, columns, batch, shape, strides
    pitch = pick([line, line, line, line + 1, line + 8, line * 2, line - 1, 0, 1, -line, 2**31, 2**31 + 8])
    adjacent = pick([1] * 7 + [0, 2, -1, pitch])
    shape = pick([(rows, columns)] * 6 + [(columns, rows), (rows + 1, columns), (rows, columns + 1)])
    strides = (pitch, adjacent) if row_major else (adjacent, pitch)
    kind = draw.random()
    if kind < 0.15 and 0 < rows < 100:  # dimensions that are rows, or are not
        outer = pick([each for each in (1, 2, 4, 8, rows) if rows % each == 0])
        apart = strides[0] * (rows // outer)
        return rows, columns, batch, (outer, rows // outer, columns), (pick([apart, apart, apart + 1, 0, 7]), *strides)
    if kind < 0.5:
        extent = (lines - 1) * pitch + line
        steps = [0, 1, line, extent, extent + 3, extent + 8, extent - 1, pitch // 2, pitch * 2, pitch * lines, -extent]
        shape = (pick([batch, batch, batch, 1, 2]), *shape)
        strides = (pick([*steps, draw.randrange(1, 100)]), *strides)
    elif kind < 0.6:
        shape, strides = (1, pick([1, batch, 2]), *shape), (pick([0, 5, 99]), pick([0, 5, 100]), *strides)
    elif kind < 0.62:
        shape, strides = (), ()
    return rows, columns, batch, shape, strides


@pytest.mark.parametrize("seed", range(4))
def test_the_extension_decides_as_python_did(seed: int) -> None:
    draw = random.Random(seed)
    seen: collections.Counter[str] = collections.Counter()
    for _ in range(5000):
        element, name = draw.choice(TYPES), draw.choice(NAMES)
        bits = np.dtype(TensorDescription(element, cutlass.RowMajor, 1).type.dtype).itemsize * 8
        alignment = draw.choice([each for each in (1, 1, 2, 4, 8) if each * bits <= 128])
        described = TensorDescription(element, draw.choice(LAYOUTS), alignment)
        rows, columns, batch, shape, strides = drawn_extents(draw, described.is_row_major)
        pointer = draw.choice([0, PLACE, PLACE, PLACE, PLACE + bits // 8, PLACE + draw.randrange(64)])
        view = TensorView(pointer, described.type.dtype_name, shape, strides, 0, "torch", None)
        given, written = (described, view, rows, columns, batch), draw.random() < 0.2
        wanted = decide_matrix(name, *given, written=written)
        assert decision(name, *given, vector=False, written=written) == wanted, (name, given)
        as_vector = decide_vector(*given, written=written)
        assert decision("C", *given, vector=True, written=written) == as_vector, given
        seen.update(each if isinstance(each, str) else "fits" for each in (wanted, as_vector))
    assert set(seen) == {*SENTENCES, "fits"}, "the draw has something of each"
    assert seen["fits"] > 500


def decision(
    name: str,
    described: TensorDescription,
    view: TensorView,
    rows: int,
    columns: int,
    batch: int,
    *,
    vector: bool,
    written: bool,
) -> Decision:
    """Return what the extension decides, and check that the operand is that, or is refused in its rule's words."""
    order = described.order
    rule = _core.OperandRule(order.is_row_major, described.type.bits, described.alignment, interleave=order.interleave)
    given = (view.pointer, view.shape, view.strides, rows, columns, batch, written or name == "D")
    ld, step, broken = rule.check_vector(*given) if vector else rule.check_matrix(*given, name[0] != "B")
    make = functools.partial(vector_of if vector else matrix_of, written=written)
    if not broken:
        operand = make(name, described, view, rows, columns, batch)
        assert (operand.ld, operand.batch_stride) == (ld, step)
        return ld, step
    with pytest.raises(ArgumentError) as caught:
        make(name, described, view, rows, columns, batch)
    operand = Matrix(name, described, view, rows, columns, ld, batch, step)
    assert str(caught.value) == str(refusal(operand, broken))
    assert isinstance(caught.value, MisalignedError) == broken.endswith("alignment")
    return broken


def test_each_rule_has_a_sentence() -> None:
    assert set(_core.OPERAND_RULES) == set(SENTENCES)
    assert len(_core.OPERAND_RULES) == len(SENTENCES)


def test_a_rule_without_a_sentence_is_refused_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(SENTENCES, "reversed")
    described = TensorDescription(cutlass.float16, cutlass.RowMajor, 1)
    view = TensorView(PLACE, "float16", (4, 8), (-8, 1), 0, "torch", None)
    with pytest.raises(PyCutlassError, match=r"A breaks a rule that has no sentence, 'reversed'.*bug of pycutlass"):
        matrix_of("A", described, view, 4, 8)


def test_numbers_that_no_memory_has() -> None:
    described = TensorDescription(cutlass.float16, cutlass.RowMajor, 1)
    for stride, said in ((2**70, "leading dimension"), (-(2**70), "negative")):
        with pytest.raises(ArgumentError, match=said):
            matrix_of("A", described, TensorView(0, "float16", (4, 8), (stride, 1), None, "spec", None), 4, 8)
    with pytest.raises(ArgumentError, match="must have shape"):
        matrix_of("A", described, TensorView(0, "float16", (2**70, 8), (8, 1), None, "spec", None), 4, 8)
    with pytest.raises(ArgumentError, match="elements"):
        matrix_of("A", described, TensorView(0, "float16", (2**70,), (1,), None, "spec", None), 4, 8)


@pytest.mark.parametrize("seed", range(4))
def test_batches_share_memory_where_numpy_says_so(seed: int) -> None:
    """Steps that are equal, that are not, and lines that run side by side."""
    draw, answers = random.Random(seed), collections.Counter[bool]()
    for _ in range(1500):
        one, other = drawn_batch(draw), drawn_batch(draw)
        if draw.random() < 0.5:
            other = (*other[:3], *one[3:])
        begin = PLACE + draw.randrange(-200, 200)
        wanted = bool(np.shares_memory(as_bytes(PLACE, one), as_bytes(begin, other)))
        assert _core.share_memory(numbers(PLACE, one), numbers(begin, other)) == wanted, (one, other, begin)
        assert _core.share_memory(numbers(begin, other), numbers(PLACE, one)) == wanted, (one, other, begin)
        answers[wanted] += 1
    assert min(answers.values()) > 100


#: Bytes of a line, lines, matrices, bytes from line to line, and from matrix to matrix.
Batch = tuple[int, int, int, int, int]


def drawn_batch(draw: random.Random) -> Batch:
    line, lines = draw.choice([1, 2, 4, 8]), draw.choice([1, 1, 2, 3, 5])
    pitch = draw.choice([16, 24, 32, 33, line + 8])
    step = draw.choice([line, 2 * line, 8, 48, pitch * lines, pitch, 7, 1])
    return line, lines, draw.choice([1, 2, 3, 6]), pitch, step


def numbers(begin: int, batch: Batch) -> tuple[int, int, int, int, int, int]:
    line, lines, count, pitch, step = batch
    return begin, (lines - 1) * pitch + line, line, pitch if lines > 1 else 0, count, step


class Described:
    def __init__(self, interface: dict[str, object]) -> None:
        self.__array_interface__ = interface


def as_bytes(begin: int, batch: Batch) -> np.ndarray:
    line, lines, count, pitch, step = batch
    shape, strides = (count, lines, line), (step, pitch, 1)
    return np.asarray(
        Described({"version": 3, "typestr": "|u1", "shape": shape, "strides": strides, "data": (begin, True)})
    )


def test_more_than_memory_holds_is_no_number_too_large() -> None:
    """Addresses say nothing of how much is there, and a large problem may go beyond all that there is."""
    small = (1 << 50, 64, 64, 0, 1, 0)
    assert _core.share_memory((PLACE, 2**70, 2**35, 2**36, 1, 0), small)
    assert _core.share_memory((PLACE, 2**40, 2**40, 0, 2**31, 2**40), small)
    assert _core.share_memory((PLACE, 2**40, 2**40, 0, 2**20, 2**80), small)
    assert not _core.share_memory((2 << 50, 2**70, 2**70, 0, 1, 0), small)
