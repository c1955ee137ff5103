"""Kernels of whole models on a GPU: measured, explained with their times, and run from a library."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("torch")

import torch
from torch import nn

import pycutlass.pytorch

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning"),
]


class Images(nn.Module):
    """A convolution with a batch norm and a residual, products of batches, and linear layers."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.norm = nn.Conv2d(16, 32, 3, padding=1, bias=False), nn.BatchNorm2d(32)
        self.body = nn.Conv2d(32, 32, 3, padding=1)
        self.head = nn.Sequential(nn.Linear(32, 64), nn.SiLU(), nn.Linear(64, 16))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return logits."""
        x = self.norm(self.stem(images)).relu()
        x = (self.body(x) + x).relu()
        rows = x.flatten(2).transpose(1, 2)
        mixed = (rows @ rows.mT).softmax(-1) @ rows
        logits: torch.Tensor = self.head(mixed.mean(1))
        return logits


@pytest.fixture(scope="module")
def where(tmp_path_factory) -> Any:
    """A cache and a database of their own."""
    with pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.mktemp("cache")
        patch.setenv("PYCUTLASS_CACHE_DIR", str(folder))
        yield folder


@pytest.fixture(scope="module")
def model(where) -> Any:
    torch.manual_seed(0)
    made = Images().cuda().half().eval().to(memory_format=torch.channels_last)
    images = torch.randn(8, 16, 8, 8, device="cuda", dtype=torch.float16).to(memory_format=torch.channels_last)
    return pycutlass.pytorch.partition(made, images, options={"min_gain": 0}), made, images


def test_tuning_finds_kernels_that_regions_take(model):
    partitioned, plain, images = model
    report = pycutlass.pytorch.tune(partitioned, {"budget": "4min"})
    assert len(report) == len(partitioned.regions) == 6, str(report)
    assert all(each.kernel and each.microseconds > 0 and each.speedup > 0 for each in report.regions), str(report)
    explained = pycutlass.pytorch.explain(partitioned)
    for tuned, facts in zip(report.regions, explained.regions, strict=True):
        assert facts.kernel == tuned.kernel and facts.measured == pytest.approx(tuned.microseconds, rel=1e-3)
    with torch.no_grad():
        torch.testing.assert_close(partitioned(images), plain(images), atol=2e-2, rtol=2e-2)


def test_pages_have_what_was_compiled(model):
    partitioned, _, images = model
    with torch.no_grad():
        partitioned(images)
    made = pycutlass.pytorch.explain(partitioned)
    assert all(kernel.report for each in made.regions for kernel in each.kernels)


def test_a_library_computes_what_the_regions_compute(model, tmp_path):
    partitioned, plain, images = model
    path = pycutlass.pytorch.build(partitioned, path=tmp_path / "kernels.so")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYCUTLASS_NO_COMPILE", "1")
        loaded = pycutlass.pytorch.load(path, partitioned)
        with torch.no_grad():
            found = loaded(images)
    with torch.no_grad():
        torch.testing.assert_close(found, partitioned(images), atol=2e-3, rtol=2e-3)
        torch.testing.assert_close(found, plain(images), atol=2e-2, rtol=2e-2)


@pytest.mark.parametrize("rows", [3, 16, 100])
def test_a_library_takes_any_number_of_rows(where, tmp_path, rows):
    torch.manual_seed(0)
    made = nn.Sequential(nn.Linear(64, 96), nn.GELU(), nn.Linear(96, 32)).cuda().half().eval()
    x = torch.randn(16, 64, device="cuda", dtype=torch.float16)
    partitioned = pycutlass.pytorch.partition(made, x, dynamic=True, options={"min_gain": 0})
    loaded = pycutlass.pytorch.load(pycutlass.pytorch.build(partitioned, path=tmp_path / "kernels.so"), partitioned)
    with torch.no_grad():
        given = torch.randn(rows, 64, device="cuda", dtype=torch.float16)
        torch.testing.assert_close(loaded(given), made(given), atol=1e-2, rtol=1e-2)
