"""The problems that the default pick is judged by, and others that its model is fitted to.

All are drawn with a fixed seed, and none is in two sets. What is judged by was committed before anything was fitted.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

__all__ = ["FITTED", "HELD_OUT", "LIKELY_FITTED", "MORE_FITTED", "RECORDED", "SEED", "Shape"]

_T = TypeVar("_T")

SEED = 20261125
_FIT_SEED, _MORE_SEED, _LONG_SEED, _SCORES_SEED, _LINES_SEED, _BYTES_SEED, _MEDIUM_SEED = range(7, 14)
#: Types of A and B, with how often they are drawn.
_TYPES = {"f16": 3, "bf16": 4, "tf32": 1, "e4m3": 2, "s8": 1}
#: Layouts of A, B and D, t for row-major and n for column-major. A and B of 8 bits lie along K.
_LAYOUTS = {"tnt": 4, "ttt": 2, "nnt": 1, "ntt": 1, "tnn": 1, "ttn": 1, "nnn": 1, "ntn": 1}
#: N and K of the layers of language models.
_LAYERS = (
    *((4096, 4096), (6144, 4096), (14336, 4096), (4096, 14336), (28672, 4096), (8192, 8192), (28672, 8192)),
    *((8192, 28672), (7168, 2048), (2048, 7168), (4608, 7168), (24576, 1536), (1536, 7168), (5120, 5120)),
    *((13824, 5120), (5120, 13824), (11008, 4096), (4096, 11008), (3072, 768), (768, 3072), (1280, 5120)),
)
_DECODED = (1, 2, 3, 4, 8, 12, 16, 24, 32, 48, 64, 96, 128)
_PREFILLED = (192, 256, 384, 512, 777, 1000, 1024, 1536, 2048, 3000, 4096, 6000, 8192, 16384)
_SKINNY = (16, 32, 64, 96, 128, 192, 256)
_TOKENS, _HEADS = (512, 1024, 1536, 2048, 3072, 4096), (64, 80, 96, 128, 192, 256)
#: Extents are multiples of this, which all types load 16 bytes of, and so are those beside the usual sizes.
_STEP = 16
#: How many problems of medium size there are, by types and layouts.
_OF_MEDIUM = {"bf16-tnt": 24, "bf16-ttt": 24, "f16-tnt": 20, "f16-ttt": 20, "e4m3-tnt": 16, "s8-tnt": 12}
_MOST_PRODUCTS = 2**43  # of a problem: more takes so long that no other is measured in the meantime
_MOST_SCORES = 2**27  # elements of a batch
#: Extents that benchmarks.gemm measures, and those that benchmarks.gemm_classes does.
_USUAL = (
    *((1024, 1024, 1024), (2048, 2048, 2048), (4096, 4096, 4096), (8192, 8192, 8192), (16384, 16384, 16384)),
    *((2048, 1280, 5120), (3072, 768, 2304), (512, 512, 65536), (4096, 14336, 4096), (4096, 4096, 14336)),
    *((1, 4096, 4096), (16, 4096, 4096), (64, 14336, 4096), (128, 8192, 8192)),
    *((512, 512, 512), (1000, 3000, 1600), (256, 11008, 4096), (6000, 1024, 8192)),
)
_USUAL_OF_CLASSES = ((8192, 8192, 8192), (4096, 4096, 4096), (2048, 1280, 5120))


@dataclass(frozen=True)
class Shape:
    """A problem: types of A and B, layouts, extents, and the number of matrices where it is a batch."""

    operands: str
    layouts: str
    m: int
    n: int
    k: int
    batch: int | None = None

    @property
    def name(self) -> str:
        """How tables call it."""
        of = "" if self.batch is None else f"{self.batch} of "
        return f"{self.operands} {self.layouts} {of}{self.m}x{self.n}x{self.k}"


def _drawn(seed: int, counts: dict[str, int]) -> list[Shape]:
    """Return so many shapes of each kind, all different."""
    rng = random.Random(seed)
    kinds = {"decode": _decode, "prefill": _prefill, "odd": _odd, "skinny": _skinny, "square": _square, "batch": _batch}
    shapes: dict[Shape, None] = {}
    for kind, count in counts.items():
        wanted = len(shapes) + count
        while len(shapes) < wanted:
            m, n, k, batch = kinds[kind](rng)
            operands = _weighted(rng, _TYPES)
            layouts = "tnt" if operands in ("e4m3", "s8") else _weighted(rng, _LAYOUTS)
            # Where D or A lies along M, M is a multiple as well.
            m = m if layouts in ("tnt", "ttt") else -(-m // _STEP) * _STEP
            if m * n * k * (batch or 1) <= _MOST_PRODUCTS:
                shapes[Shape(operands, layouts, m, n, k, batch)] = None
    return list(shapes)


def _decode(rng: random.Random) -> tuple[int, int, int, int | None]:
    n, k = _one(rng, _LAYERS)
    return _one(rng, _DECODED), n, k, None


def _prefill(rng: random.Random) -> tuple[int, int, int, int | None]:
    n, k = _one(rng, _LAYERS)
    return _one(rng, _PREFILLED), n, k, None


def _odd(rng: random.Random) -> tuple[int, int, int, int | None]:
    """Return extents that no tile divides."""
    return 1 + int(rng.random() * 8192), _multiple(rng, 512, 28672), _multiple(rng, 512, 16384), None


def _skinny(rng: random.Random) -> tuple[int, int, int, int | None]:
    return _one(rng, _PREFILLED), _multiple(rng, 512, 16384), _one(rng, _SKINNY), None


def _square(rng: random.Random) -> tuple[int, int, int, int | None]:
    """Return extents of the same order, and some with a K that is far longer."""
    m, n = _multiple(rng, 256, 6144), _multiple(rng, 256, 6144)
    return m, n, _multiple(rng, 16384, 65536) if m * n < 2**21 else _multiple(rng, 256, 8192), None


def _long(seed: int, count: int) -> Iterator[Shape]:
    """Yield so many shapes of few tiles and a long K, in turns of the types and layouts that are corrected."""
    rng = random.Random(seed)
    for operands, layouts in (("f16", "tnt"), ("f16", "ttt"), ("e4m3", "tnt"), ("s8", "tnt")) * (count // 4):
        m = _multiple(rng, 192, 4096)
        n = _multiple(rng, 192, min(4096, 2**21 // m))
        yield Shape(operands, layouts, m, n, _multiple(rng, 6144, 49152))


def _scores(seed: int, count: int, operands: str = "bf16", kinds: tuple[str, ...] = ("tnt", "ttt")) -> Iterator[Shape]:
    """Yield so many batches as attention has: in turns queries with keys, and what comes of these with values."""
    rng = random.Random(seed)
    for layouts in kinds * (count // len(kinds)):
        rows, columns = (
            _one(rng, _TOKENS) if rng.random() < 0.5 else _multiple(rng, 256, 4096) for _ in ("queries", "keys")
        )
        head, batch = _one(rng, _HEADS), _one(rng, (4, 8, 16, 32, 64, 128))
        batch = max(2, min(batch, 2 ** int(math.log2(_MOST_SCORES / (rows * columns)))))
        n, k = (columns, head) if layouts == "tnt" else (head, columns)
        yield Shape(operands, layouts, rows, n, k, batch)


def _lines(seed: int, count: int) -> Iterator[Shape]:
    """Yield so many problems of which rows begin anywhere in lines of memory: extents are multiples of 8."""
    rng = random.Random(seed)
    for layouts in ("tnt", "ttt") * (count // 2):
        m, n, k = (int(256 * 16 ** rng.random()) // 8 * 8 for _ in "mnk")
        yield Shape("bf16", layouts, m, n, k)


def _medium(seed: int, counts: dict[str, int]) -> Iterator[Shape]:
    """Yield problems of few tiles, so that how these fit the multiprocessors is what decides; so many of each part."""
    rng = random.Random(seed)
    for part, count in counts.items():
        operands, layouts = part.split("-")
        step = 8 if operands.endswith("16") else _STEP
        for _ in range(count):
            m, n, k = (int(least * 12 ** rng.random()) // step * step for least in (240, 240, 360))
            yield Shape(operands, layouts, m, n, k)


def _batch(rng: random.Random) -> tuple[int, int, int, int | None]:
    m, n = _multiple(rng, 64, 2048), _multiple(rng, 64, 2048)
    return m, n, _multiple(rng, 64, 1024), _one(rng, (2, 4, 8, 16, 32, 64))


def _multiple(rng: random.Random, least: int, most: int) -> int:
    """Return a multiple of 16, of which small ones are as likely as large ones."""
    value: float = least * (most / least) ** rng.random()
    return max(_STEP, int(value) // _STEP * _STEP)


def _one(rng: random.Random, items: Sequence[_T]) -> _T:
    return items[int(rng.random() * len(items))]


def _weighted(rng: random.Random, weights: dict[str, int]) -> str:
    return _one(rng, [name for name, weight in weights.items() for _ in range(weight)])


def _apart(shapes: list[Shape], others: Sequence[Shape]) -> Iterator[Shape]:
    taken = set(others)
    return (shape for shape in shapes if shape not in taken)


#: What the pick is judged by.
HELD_OUT: tuple[Shape, ...] = tuple(
    _drawn(SEED, {"decode": 90, "prefill": 90, "odd": 50, "skinny": 30, "square": 40, "batch": 40})
)
#: What its model is fitted to.
FITTED: tuple[Shape, ...] = tuple(
    _apart(
        _drawn(_FIT_SEED, {"decode": 40, "prefill": 40, "odd": 40, "skinny": 15, "square": 40, "batch": 15}),
        list(HELD_OUT),
    )
)
#: What it is fitted to as well, with some of the candidates of each: constants need many problems rather than all that
#: could compute one of them.
MORE_FITTED: tuple[Shape, ...] = tuple(
    _apart(
        _drawn(_MORE_SEED, {"decode": 180, "prefill": 180, "odd": 250, "skinny": 80, "square": 250, "batch": 60}),
        (*HELD_OUT, *FITTED),
    )
) + tuple(_apart(list(_long(_LONG_SEED, 48)), (*HELD_OUT, *FITTED)))
#: What it is fitted to as well, with the likely candidates of each: kinds of problems that the others have few of.
LIKELY_FITTED: tuple[Shape, ...] = tuple(
    _apart(
        [
            *(*_scores(_SCORES_SEED, 60), *_lines(_LINES_SEED, 60), *_scores(_BYTES_SEED, 30, "s8", ("tnt",))),
            *_medium(_MEDIUM_SEED, _OF_MEDIUM),
        ],
        (*HELD_OUT, *FITTED, *MORE_FITTED),
    )
)
#: What it is fitted to as well: the usual problems, of which other benchmarks have measured the best few kernels.
RECORDED: tuple[Shape, ...] = (
    *(Shape("f16", "tnt", *size) for size in _USUAL),
    *(
        Shape(operands, layouts, *size)
        for operands, layouts in (("bf16", "tnt"), ("f16", "ttt"))
        for size in _USUAL_OF_CLASSES
    ),
    *(Shape("e4m3", "tnt", *size) for size in _USUAL_OF_CLASSES[:2]),
)
