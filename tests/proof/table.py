"""Every tile that the rules accept, one for all that have the same iterators; run as a program, it proves them all.

Tiles are up to 256 along M, N and K, and have up to 16 warps: the rules refuse others.
"""

from __future__ import annotations

import argparse
import itertools
import math
import os
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

_HERE = Path(__file__).parent
sys.path[:0] = [str(_HERE.parent / "emulation"), str(_HERE.parent / "unit")]  # emulator.py, descriptions.py

from descriptions import COLUMN, ROW  # noqa: E402
from prover import RIGHT, Prover  # noqa: E402
from tile_cases import (  # noqa: E402
    COLUMNS32,
    EPILOGUES,
    MAINLOOPS,
    ROWS32,
    SIMT_KERNELS,
    Case,
    Epilogue,
    Interleaved,
    Kind,
    Mainloop,
    Shape,
    Simt,
)

MOST, MOST_WARPS = 256, 16
#: Cases of one program: each takes a compiler some tenths of a second.
TOGETHER = 60
_LAYOUTS = list(itertools.product((ROW, COLUMN), repeat=2))
#: Warps along M, N and K.
WARPS = [counts for counts in itertools.product(range(1, MOST_WARPS + 1), repeat=3) if math.prod(counts) <= MOST_WARPS]


def mainloops(kind: Kind, warps: Shape) -> Iterator[Mainloop]:
    """Yield accepted mainloops, of which each has an operand that none before had."""
    known: set[Any] = set()
    depth = 2 * kind.instruction[2] * warps[2]
    steps = kind.instruction[0] * warps[0], kind.instruction[1] * warps[1]
    for both, stages, k, axis in itertools.product(_layouts(kind), (2, 3), range(depth, MOST + 1, depth), (0, 1)):
        for extent in range(steps[axis], MOST + 1, steps[axis]):
            for other in (steps[1 - axis] * times for times in (1, 2, 3, 4, 8, 16)):
                if other > MOST:
                    break
                rows, columns = (extent, other) if axis == 0 else (other, extent)
                case = Mainloop(kind, both, (rows, columns, k), warps, stages)
                if case.sides[axis] not in known and case.is_accepted():
                    known.update(case.sides)
                    yield case
                    break


def epilogues(kind: Kind, warps: Shape) -> Iterator[Epilogue]:
    """Yield accepted epilogues. Rows come in steps of 8 of each warp: one or two instructions along M are enough."""
    outputs = [output for other, output in EPILOGUES if other == kind]
    for output, alignment, times in itertools.product(outputs, (1, 2, 4, 8, 16), (1, 2)):
        for columns in range(8 * warps[1], MOST + 1, 8 * warps[1]):
            case = Epilogue(kind, output, alignment, (times * kind.instruction[0] * warps[0], columns), warps)
            if case.shape[0] <= MOST and case.is_accepted():
                yield case


def simt_kernels(kind: Kind, warps: Shape) -> Iterator[Simt]:
    """Yield accepted SIMT kernels, of which each has an operand, warps or an epilogue that none before had."""
    known: set[Any] = set()
    depth = 2 * kind.instruction[2] * warps[2]
    shapes = itertools.product(
        *(range(16 * count, MOST + 1, 16 * count) for count in warps[:2]), range(depth, MOST + 1, depth)
    )
    for shape, both, stages, output in itertools.product(shapes, _LAYOUTS, (2, 3), dict(SIMT_KERNELS)[kind]):
        case = Simt(kind, output, both, shape, warps, stages)
        if case.is_accepted() and not known.issuperset(case.sides):
            known.update(case.sides)
            yield case


def interleaved_kernels(kind: Kind, warps: Shape) -> Iterator[Interleaved]:
    """Yield accepted kernels of interleaved layouts, whatever their K: mainloops have been proven already."""
    for times, convolution in itertools.product((1, 2, 3, 4), (False, True)):
        rows = times * kind.instruction[0] * warps[0]
        for columns in range(32 * warps[1], MOST + 1, 32 * warps[1]):
            cases = (
                Interleaved(kind, (rows, columns, k), warps, stages, convolution)
                for k, stages in itertools.product((32, 64, 128), (2, 3))
            )
            yield from itertools.islice((case for case in cases if case.is_accepted()), 1)


#: What there is to enumerate: a function, a kind and warps make one part of the table.
_PARTS: list[tuple[Callable[[Kind, Shape], Iterator[Case]], list[Kind]]] = [
    (mainloops, MAINLOOPS),
    (epilogues, list(dict.fromkeys(kind for kind, _ in EPILOGUES))),
    (simt_kernels, [kind for kind, _ in SIMT_KERNELS]),
    (interleaved_kernels, [kind for kind in MAINLOOPS if kind.operands == ("s8", "s8")]),
]


def parts(drawn: random.Random) -> list[tuple[Callable[[Kind, Shape], Iterator[Case]], Kind, Shape]]:
    """Return all parts of the table, in any order."""
    all_of = [(function, kind, warps) for function, kinds in _PARTS for kind, warps in itertools.product(kinds, WARPS)]
    drawn.shuffle(all_of)
    return all_of


def draw(drawn: random.Random, function: Callable[[Kind, Shape], Iterator[Case]]) -> Case:
    """Return any accepted case of those that `function` enumerates, also of more stages and rows."""
    kinds = dict(_PARTS)[function]
    while True:
        kind, warps = drawn.choice(kinds), drawn.choice(WARPS)
        steps = [
            count * max(least, step) for count, least, step in zip(warps, (8, 8, 2), kind.instruction, strict=True)
        ]
        if max(steps) > MOST:
            continue
        m, n, k = (step * drawn.randint(1, MOST // step) for step in steps)
        stages = drawn.choice((2, 3, 3, 4, 5))
        case: Case
        if function is mainloops:
            layouts = drawn.choice(_layouts(kind))
            case = Mainloop(kind, layouts, (m, n, k), warps, stages)
        elif function is epilogues:
            output = drawn.choice([output for other, output in EPILOGUES if other == kind])
            case = Epilogue(kind, output, drawn.choice((1, 2, 4, 8, 16)), (m, n), warps)
        elif function is simt_kernels:
            output = drawn.choice(dict(SIMT_KERNELS)[kind])
            case = Simt(kind, output, drawn.choice(_LAYOUTS), (m, n, k), warps, stages)
        else:
            case = Interleaved(kind, (m, n, k), warps, stages, drawn.random() < 0.5)
        if case.is_accepted():
            return case


def _layouts(kind: Kind) -> list[tuple[Any, Any]]:
    return [(ROW, COLUMN), (COLUMNS32, ROWS32)] if kind.operands == ("s8", "s8") else _LAYOUTS


def _enumerated(part: tuple[Callable[[Kind, Shape], Iterator[Case]], Kind, Shape]) -> list[Case]:
    function, kind, warps = part
    return list(function(kind, warps))


def enumerate_all(jobs: int) -> list[Case]:
    """Return the whole table, in an order that only the table decides and that spreads what takes long."""
    with ProcessPoolExecutor(jobs) as pool:
        cases = list(itertools.chain.from_iterable(pool.map(_enumerated, parts(random.Random(0)))))
    random.Random(0).shuffle(cases)
    return cases


def prove_all(cases: Sequence[Case], jobs: int) -> dict[Case, str]:
    """Prove `cases`, say how far it has come, and return what was wrong with some."""
    batches = [cases[begin : begin + TOGETHER] for begin in range(0, len(cases), TOGETHER)]
    wrong: dict[Case, str] = {}
    begun, done = time.monotonic(), 0
    with tempfile.TemporaryDirectory() as directory, ThreadPoolExecutor(jobs) as pool:
        prover = Prover(Path(directory))
        for ended in as_completed([pool.submit(prover.prove, batch) for batch in batches]):
            done += len(ended.result())
            some = {case: said for case, said in ended.result().items() if said != RIGHT}
            wrong |= some
            for case, said in some.items():
                print(f"WRONG {case}: {said}", flush=True)
            print(f"{done} of {len(cases)}, {len(wrong)} wrong, {time.monotonic() - begun:.0f} s", flush=True)
    return wrong


def prove_shard(jobs: int, part: int, count: int) -> dict[Case, str]:
    """Prove one of so many parts of the table, end with a line that sums it up, and return what was wrong."""
    cases = enumerate_all(jobs)[part - 1 :: count]
    wrong = prove_all(cases, jobs)
    kinds = Counter(type(case).__name__ for case in cases)
    counts = ", ".join(f"{number} {name}" for name, number in sorted(kinds.items()))
    proven = len(cases) - len(wrong)
    print(f"part {part} of {count}: {proven} of {len(cases)} accepted tiles proven ({counts}), {len(wrong)} wrong")
    return wrong


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="compilers at a time; as many as cores")
    parser.add_argument("--shard", default="1/1", help="which part of the table, such as 2/8")
    given = parser.parse_args()
    part, count = map(int, given.shard.split("/"))
    sys.exit(bool(prove_shard(given.jobs, part, count)))


if __name__ == "__main__":
    main()
