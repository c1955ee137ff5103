"""What measured times say beside the model: of which GPUs, within which bounds, and that it is learned from times."""

from __future__ import annotations

import dataclasses
import random
import sys
from pathlib import Path

import numpy as np
import pytest

import pycutlass
from pycutlass import cutlass
from pycutlass.device import Device
from pycutlass.plan.constants import constants_of, shipped
from pycutlass.plan.correction import OF_CANDIDATES, OF_PROBLEMS, Correction, of_candidates
from pycutlass.plan.model import Model

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tools")]

from benchmarks.pick_cases import kind  # noqa: E402
from benchmarks.pick_shapes import FITTED, Shape  # noqa: E402
from pycutlass.plan import candidates  # noqa: E402

H100 = Device(0, "NVIDIA H100 80GB HBM3", 90, 132)
SIZES = [(1, 4096, 4096), (17, 129, 64), (4096, 4096, 4096), (3, 2, 1), (16384, 512, 50000)]


BF16 = next(each for each in FITTED if (each.operands, each.layouts) == ("bf16", "tnt"))


def model_of(shape: Shape = BF16) -> Model:
    listed = candidates(kind(shape), 90)
    return Model(kind(shape), listed, constants_of(H100))


def network(weight: float) -> Correction:
    inputs = len(OF_CANDIDATES) + len(OF_PROBLEMS)
    scaling = {"classes": ["f16"], "mean": [0.0] * inputs, "scale": [1.0] * inputs}
    return Correction.of({**scaling, "hidden": [[0.5, -0.25]] * inputs, "bias": [0.1, 0.0], "weights": [weight] * 2})


def test_it_belongs_to_the_gpu_that_was_measured() -> None:
    assert [each.name for each in shipped() if each.correction is not None] == ["NVIDIA H200", "NVIDIA H100"]
    assert constants_of(H100).correction is not None
    assert constants_of(dataclasses.replace(H100, sm_count=114)).correction is None


@pytest.mark.parametrize("size", SIZES)
def test_a_prediction_is_corrected_within_bounds_and_the_same_each_time(size: tuple[int, int, int]) -> None:
    model = model_of()
    plain = model.with_constants(dataclasses.replace(model.constants, correction=None))
    factors = model.predict(*size).microseconds / plain.predict(*size).microseconds
    assert np.isfinite(factors).all() and np.all((factors > 0.66) & (factors < 1.5))
    assert len(set(np.round(factors, 6))) > 10
    assert np.array_equal(factors, model.predict(*size).microseconds / plain.predict(*size).microseconds)


def test_a_network_is_what_its_formula_says() -> None:
    model = model_of()
    found, inputs = model.read(300, 512, 1000, 2)
    own = of_candidates(model.features, model.kind)
    assert own.shape == (len(model.candidates), len(OF_CANDIDATES))
    assert inputs.shape == (len(model.candidates), len(OF_PROBLEMS))
    made = network(0.05)
    scaled = np.clip(np.concatenate([own, inputs], axis=1), -4, 4).sum(axis=1)
    units = np.tanh(np.outer(scaled, [0.5, -0.25]) + np.array([0.1, 0.0]))
    expected = np.exp(np.clip(0.05 * units.sum(axis=1), -0.4, 0.4))
    np.testing.assert_allclose(made.factors(made.begun(own), inputs), expected, rtol=1e-4)
    corrected = model.with_constants(dataclasses.replace(model.constants, correction=made)).predict(300, 512, 1000, 2)
    np.testing.assert_allclose(corrected.microseconds, found.microseconds * expected, rtol=1e-4)


def test_rows_that_begin_within_a_line_of_memory_are_counted() -> None:
    """Of f16, rows of 1000 begin anywhere but in one of eight; of A by rows, B by columns and D by rows."""
    for size, expected in (
        ((512, 1024, 1000), (0.875, 0.875, 0)),
        ((1000, 1000, 1024), (0, 0, 0.875)),
        ((8, 32, 96), (0.5, 0.5, 0.5)),
        ((64, 64, 64), (0, 0, 0)),
    ):
        _, inputs = model_of().read(*size)
        places = [OF_PROBLEMS.index(f"split lines of {name}") for name in "ABD"]
        assert np.array_equal(inputs[:, places], np.broadcast_to(expected, (len(inputs), 3)))
    tnt, ttt = (model_of(dataclasses.replace(BF16, layouts=layouts)) for layouts in ("tnt", "ttt"))
    place = OF_CANDIDATES.index("pieces of columns")
    pieces = [of_candidates(each.features, each.kind)[:, place] for each in (tnt, ttt)]
    columns, swapped = ttt.features.columns, ttt.features.is_transposed
    assert not pieces[0].any() and not pieces[1][swapped].any(), "K is what a line holds"
    for extent, times in ((192, 1), (160, 2), (176, 4), (80, 4)):
        of_extent = pieces[1][(columns == extent) & ~swapped]
        assert len(of_extent) and np.allclose(np.exp(of_extent), times)
    s8 = next(each for each in FITTED if each.operands == "s8")
    _, inputs = model_of(s8).read(100, 512, 1000)
    assert np.all(inputs[:, OF_PROBLEMS.index("split lines of A")] == 1 - 8 / 128)


def test_what_was_never_measured_is_predicted_without() -> None:
    correction = constants_of(H100).correction
    assert correction is not None and correction.classes == {"f16", "f8", "s8"}
    constant = correction.scale == np.float32(1e9)
    names = np.array([*OF_CANDIDATES, *OF_PROBLEMS])
    unmeasured = {"A by columns", "D by columns", *(f"split lines of {name}" for name in "ABD"), "pieces of columns"}
    assert set(names[constant]) == unmeasured, "layouts of which nothing was measured, and what was not read then"
    bf16 = kind(BF16)
    a, b, d = (dataclasses.replace(each, alignment=2) for each in (bf16.A, bf16.B, bf16.D))
    functor = pycutlass.LinearCombination(cutlass.bfloat16, 2, cutlass.float32, cutlass.float32)
    tf32 = next(kind(each) for each in FITTED if each.operands == "tf32")
    for each in (dataclasses.replace(bf16, C=d, D=d, epilogue=functor), dataclasses.replace(bf16, A=a, B=b), tf32):
        model = Model(each, candidates(each, 90), constants_of(H100))
        plain = model.with_constants(dataclasses.replace(model.constants, correction=None))
        assert len(model.candidates)
        assert np.array_equal(model.predict(512, 640, 768).microseconds, plain.predict(512, 640, 768).microseconds)
    assert Model(bf16, (), constants_of(H100)).predict(512, 640, 768).microseconds.shape == (0,)


def test_groups_and_convolutions_are_predicted_without() -> None:
    model = model_of()
    plain = model.with_constants(dataclasses.replace(model.constants, correction=None))
    sizes, counts = np.array([[100.0, 512.0, 256.0]]), np.array([3.0])
    found, expected = (each.predict_group(sizes, counts).microseconds for each in (model, plain))
    assert np.array_equal(found, expected)


def test_what_times_say_is_learned(monkeypatch: pytest.MonkeyPatch) -> None:
    """Times that are the model's, but for pingpong kernels, which take 1.3 times as long."""
    pytest.importorskip("torch")
    import fit_correction
    from fit_model import Observed

    monkeypatch.setattr(fit_correction, "_STEPS", 300)
    monkeypatch.setattr(fit_correction, "_SEEDS", (0,))
    constants = dataclasses.replace(constants_of(H100), correction=None)
    drawn, problems = random.Random(1), []
    model = model_of().with_constants(constants)
    for _ in range(40):
        m, n, k = (int(2 ** drawn.uniform(6, 13)) for _ in range(3))
        times = model.predict(m, n, k).microseconds * np.where(model.features.is_pingpong, 0.8, 1.0)
        places = np.argsort(times)[:60]
        problems.append(Observed(dataclasses.replace(BF16, m=m, n=n, k=k), model, places, np.log(times[places])))
    made = fit_correction.trained(problems[:30], constants)

    def error(correction: Correction | None) -> float:
        corrected, missed = model.with_constants(dataclasses.replace(constants, correction=correction)), []
        for each in problems[30:]:
            found = corrected.predict(each.shape.m, each.shape.n, each.shape.k)
            missed.append(np.log(found.microseconds)[each.places] - each.times)
        return float(np.sqrt(np.mean(np.concatenate(missed) ** 2)))

    assert error(None) > 0.1 > 2 * error(made)
