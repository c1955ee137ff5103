"""Candidates for groups, and which of them is picked: by tiles of all problems, whichever group came first."""

from __future__ import annotations

import json
import random
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pycutlass
from pycutlass import SchedulerMode, TensorDescription, cutlass
from pycutlass.device import Device
from pycutlass.errors import ArgumentError
from pycutlass.plan import Candidate, GemmKind, GroupCandidate, group_candidates
from pycutlass.plan.constants import constants_of
from pycutlass.plan.group_pick import pick_group, rank_group, typical
from pycutlass.plan.model import Model

H200, A100 = Device(0, "NVIDIA H200", 90, 132), Device(0, "NVIDIA A100", 80, 108)
F16, F32 = cutlass.float16, cutlass.float32
RESULTS = Path(__file__).resolve().parents[2] / "docs" / "gpu-results"


def kind(b: Any = cutlass.ColumnMajor, alignment: int = 8, element: Any = F16, out: Any = F16) -> GemmKind:
    A, B = TensorDescription(element, cutlass.RowMajor, alignment), TensorDescription(element, b, alignment)
    D = TensorDescription(out, cutlass.RowMajor, alignment)
    functor = pycutlass.LinearCombination(out, alignment, F32, F32)
    return GemmKind(A, B, D, D, element, element, F32, pycutlass.MathOperation.multiply_add, functor)


def sizes_of(*sizes: tuple[int, int, int]) -> Any:
    return np.array(sizes, np.int32)


@pytest.mark.parametrize(
    ("described", "capability", "is_native"),
    [
        (kind(), 90, True),
        (kind(), 80, False),
        (kind(), 89, False),
        (kind(cutlass.RowMajor), 90, False),
        (kind(alignment=4), 90, False),
        (kind(element=cutlass.bfloat16, out=F32, alignment=4), 90, False),
    ],
)
def test_families_are_those_whose_rules_allow_it(described: GemmKind, capability: int, is_native: bool) -> None:
    found = group_candidates(described, capability)
    assert len(found) > 20
    assert {each.operation.is_sm90 for each in found} == {is_native}
    modes = {each.operation.precompute_mode for each in found}
    assert modes == ({SchedulerMode.Device} if is_native else {*SchedulerMode})
    assert len({each.name for each in found}) == len(found) == len(set(found))


@pytest.mark.parametrize("capability", [80, 90])
def test_candidates_are_written_as_json_without_their_kind(capability: int) -> None:
    for each in group_candidates(kind(), capability):
        assert GroupCandidate.of(kind(), json.loads(json.dumps(each.choice()))) == each
    with pytest.raises(ArgumentError, match="no choice of a kernel"):
        GroupCandidate.of(kind(), {"threadblock": [128, 128, 32]})
    with pytest.raises(ArgumentError, match="compute capability 80 or newer"):
        group_candidates(kind(), 70)


def test_a_group_of_one_size_takes_as_long_as_a_batch() -> None:
    for gpu in (H200, A100):
        singles = tuple(Candidate(each.operation.single) for each in group_candidates(kind(), gpu.compute_capability))
        model = Model(kind(), singles, constants_of(gpu).when_queued)
        for m, n, k, count in ((100, 512, 256, 8), (1, 4096, 4096, 64), (3000, 128, 64, 3)):
            batch = model.predict(m, n, k, count)
            group = model.predict_group(np.array([[m, n, k]], np.float64), np.array([float(count)]))
            apart = model.predict_group(np.array([[m, n, k]] * count, np.float64), np.ones(count))
            for found in (group, apart):
                np.testing.assert_allclose(found.microseconds, batch.microseconds, rtol=1e-9)
                np.testing.assert_array_equal(found.waves, batch.waves)


def test_tiles_of_all_problems_are_counted() -> None:
    candidates = group_candidates(kind(), 80)
    model = Model(kind(), tuple(Candidate(each.operation.single) for each in candidates), constants_of(A100))
    sizes = [(5, 300, 64), (700, 64, 128), (64, 64, 4096)]
    waves = model.predict_group(np.array(sizes, np.float64), np.array([1.0, 20.0, 2.0])).waves
    for place, each in enumerate(candidates):
        rows, columns, _ = each.operation.tile_description.threadblock_shape
        tiles = sum(
            count * -(-m // rows) * -(-n // columns) for count, (m, n, _) in zip((1, 20, 2), sizes, strict=True)
        )
        at_once = int(model.features.occupancy[place]) * A100.sm_count
        assert waves[place] == -(-tiles // at_once), each.name


def test_few_rows_have_smaller_tiles_than_many() -> None:
    def rows(m: int, gpu: Device) -> int:
        sizes = sizes_of(*[(m, 4096, 4096)] * 16)
        return pick_group(kind(), sizes, typical(sizes), gpu).operation.tile_description.threadblock_shape[0]

    assert rows(4, H200) == 64
    assert rows(4, H200) < rows(2000, H200)
    assert rows(4, A100) <= 32 < rows(2000, A100)


def test_groups_that_differ_in_m_alone_are_alike() -> None:
    rng = np.random.default_rng(0)
    lengths = rng.multinomial(4096, [1 / 64] * 64)
    sizes = sizes_of(*[(int(m), 512, 256) for m in lengths])
    others = sizes_of(*[(int(m), 512, 256) for m in rng.permutation(lengths)])
    assert typical(sizes) == typical(others)
    assert sum(count * m for count, m, _, _ in typical(sizes)) == pytest.approx(4096, rel=0.02)
    assert typical(sizes_of(*[(64, 512, 256)] * 64)) == ((64.0, 64, 512, 256),)
    assert typical(sizes_of((3, 512, 256), (3, 256, 512))) == ((1.0, 3, 256, 512), (1.0, 3, 512, 256))
    assert {each[2:] for each in typical(sizes)} == {(512, 256)}
    deep = typical(sizes_of((8, 16, 100), (8, 16, 0), (8, 16, 50)), axis=2)
    assert {each[1:3] for each in deep} == {(8, 16)}
    assert sum(count * k for count, _, _, k in deep) == pytest.approx(150, rel=0.1)


def test_what_the_device_knows_is_scheduled_there() -> None:
    sizes = sizes_of(*[(40, 256, 128)] * 8)
    for on_device in (True, False):
        found = pick_group(kind(cutlass.RowMajor), sizes, typical(sizes), A100, on_device)
        assert found.operation.precompute_mode is SchedulerMode.Device


def test_what_no_kernel_takes_is_explained() -> None:
    sizes = sizes_of((8, 8, 12))
    with pytest.raises(ArgumentError, match=r"no kernel takes this group of 1 GEMMs; the nearest lack: .*alignment 8"):
        pick_group(kind(), sizes, typical(sizes), H200)
    by_columns = TensorDescription(F16, cutlass.ColumnMajor, 8)
    apart = GemmKind(**{**vars(kind()), "C": by_columns})
    assert group_candidates(apart, 90) == ()
    with pytest.raises(ArgumentError, match="there is no kernel for groups of GEMMs of this kind") as refused:
        pick_group(apart, sizes, typical(sizes), H200)
    assert str(refused.value).endswith(f"The kind has {apart}")
    assert "C of cutlass.float16 in cutlass.ColumnMajor, aligned to 8 elements, D of cutlass.f" in str(apart)


def test_rankings_are_the_same_each_time() -> None:
    sizes = sizes_of((100, 512, 256), (7, 512, 256))
    first = rank_group(kind(), sizes, typical(sizes), H200)
    assert first == rank_group(kind(), sizes, typical(sizes), H200)
    times = [each.microseconds for each in first]
    assert times == sorted(times)
    assert pick_group(kind(), sizes, typical(sizes), H200) == first[0].candidate


def recorded() -> dict[tuple[int, int], dict[str, float]]:
    """Return the microseconds of kernels for the two groups of benchmarks/grouped.py, by least and most M."""
    tables = json.loads((RESULTS / "grouped.json").read_text())["tables"]
    found: dict[tuple[int, int], dict[str, float]] = {}
    for table in tables:
        if between := re.fullmatch(r"Grouped, M from (\d+) to (\d+), .*", table["title"]):
            times = re.findall(r"([^:;]+): ([\d,.]+)", table["note"].removeprefix("Tried first, in us: ").rstrip("."))
            found[int(between[1]), int(between[2])] = {
                name.strip(): float(time.replace(",", "")) for name, time in times
            }
    return found


@pytest.mark.parametrize("between", recorded())
def test_what_is_picked_is_near_the_best_recorded(between: tuple[int, int]) -> None:
    """The recorded groups have 64 problems, whose M were drawn, on an H200."""
    times = recorded()[between]
    drawn = random.Random(between[1])
    sizes = sizes_of(*[(drawn.randint(*between), 4096, 2048) for _ in range(64)])
    names = {each.name for each in group_candidates(kind(), 90)}
    assert len(names & set(times)) >= 8
    assert times[pick_group(kind(), sizes, typical(sizes), H200).name] <= 1.06 * min(times.values())
    exact = tuple((1.0, *size) for size in sizes.tolist())
    for each in rank_group(kind(), sizes, exact, H200):  # type: ignore[arg-type]
        if each.candidate.name in times:
            assert 0.78 <= each.microseconds / times[each.candidate.name] <= 1.02, each
