"""What the model knows of GPUs: which file is whose, and the constants of queued launches."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from recorded_gemms import described, tnt

import pycutlass
from pycutlass import cutlass
from pycutlass.device import Device
from pycutlass.errors import ArgumentError
from pycutlass.plan import candidates, ranking
from pycutlass.plan.constants import Constants, constants_of, shipped
from pycutlass.plan.model import Model

FILES = Path(pycutlass.__file__).parent / "plan" / "gpus"
H200 = Device(0, "NVIDIA H200", 90, 132)
H100 = Device(0, "NVIDIA H100 80GB HBM3", 90, 132)
A100 = Device(0, "NVIDIA A100-SXM4-80GB", 80, 108)
UNKNOWN = Device(0, "NVIDIA of another kind", 120, 170)


def test_constants_of_gpus() -> None:
    names = [constants.name for constants in shipped()]
    assert len(set(names)) == len(names)
    assert constants_of(H200).name == "NVIDIA H200"
    assert constants_of(A100).name == "NVIDIA A100"
    assert constants_of(H100).name == "NVIDIA H100"
    assert constants_of(Device(0, "NVIDIA GeForce RTX 4090", 89, 128)).sm_count == 128
    assert constants_of(UNKNOWN).sm_count == 170
    assert all(constants.sources for constants in shipped())
    with pytest.raises(ArgumentError, match="missing or unknown"):
        Constants.of({"name": "another"})


def test_constants_of_queued_launches() -> None:
    """Where none are known, those of calls alone serve for both; each is made once, as models are kept by identity."""
    constants = constants_of(H200)
    queued = constants.when_queued
    assert queued is constants.when_queued is queued.when_queued
    assert queued.native["start_us"] < constants.native["start_us"], (
        "a launch that waits behind another is hidden by it"
    )
    assert queued.correction is None
    assert queued.ampere == constants.ampere
    assert constants_of(A100).when_queued is constants_of(A100)
    half = constants.of_size(66)
    assert half.when_queued.dram_gb_per_s == queued.dram_gb_per_s / 2
    assert half.when_queued.sm_count == 66
    record = json.loads((FILES / "h200.json").read_text())
    with pytest.raises(ArgumentError, match=r"what differs of queued launches.*\['clock_ghz'\]"):
        Constants.of({**record, "queued": {"clock_ghz": 1.0}})


def test_what_was_not_measured_alone_is_predicted_as_queued() -> None:
    """Ampere-style kernels and kinds without a correction, whose constants were fitted to launches back to back."""
    constants = constants_of(H200)
    tf32 = described(cutlass.tfloat32, cutlass.float32)
    for kind in (tf32, pycutlass.Gemm(*(pycutlass.TensorSpec((64, 64), "float64"),) * 2).kind):
        of_queued = Model(kind, candidates(kind, 90), constants.when_queued).predict(512, 640, 768).microseconds
        times = sorted(each.microseconds for each in ranking(kind, 512, 640, 768, gpu=H200))
        assert times and set(times) <= set(of_queued.tolist())
    alone = Model(tnt(), candidates(tnt(), 90), constants).predict(512, 640, 768).microseconds
    assert ranking(tnt(), 512, 640, 768, gpu=H200)[0].microseconds == alone.min()
