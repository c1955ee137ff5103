"""Ready-made functions for a D of 8 bits: scales in device memory, saturation, and the magnitude before them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hopper_classes import FAST, described, of_tma

import pycutlass
from pycutlass import GemmArguments, GemmOperationUniversal, cutlass
from pycutlass.epilogue import fusions

E4M3, S8, S32 = cutlass.float_e4m3, cutlass.int8, cutlass.int32
KERNELS = {
    "e4m3, by tensor": described("e4m3", C=of_tma("e4m3"), functor=fusions.quantize_tensor(E4M3, 16), operation=FAST),
    "e4m3, by row": described("e4m3", C=of_tma("e4m3"), functor=fusions.quantize_rows(E4M3, 16), operation=FAST),
    "int8, by row": described("s8", None, "s32", C=of_tma("s8"), functor=fusions.quantize_rows(S8, 16, S32)),
}


@pytest.fixture(scope="module", autouse=True)
def compiled() -> None:
    pycutlass.compiler.add_module([*KERNELS.values()])


def scales(operation: GemmOperationUniversal, m: int, n: int) -> dict[str, torch.Tensor]:
    """Return powers of two, which change no digits, for what scales the product."""
    named = {port.name for port in operation.epilogue_functor.inputs}
    extents = {"scale_a": (1,), "scale_b": (1,), "row_scale": (m,), "column_scale": (n,)}
    return {
        name: 2.0 ** torch.randint(-1, 2, shape, device="cuda").float()
        for name, shape in extents.items()
        if name in named
    }


@pytest.mark.parametrize("output_scale", [0.25, 64.0])
@pytest.mark.parametrize("size", [(16, 16, 16), (144, 272, 80), (400, 528, 512)])
@pytest.mark.parametrize("name", KERNELS)
def test_d_saturates_and_absmax_does_not(name: str, size: tuple[int, int, int], output_scale: float) -> None:
    operation, (m, n, k) = KERNELS[name], size
    dtype = {"e4m3": torch.float8_e4m3fn, "s8": torch.int8}[operation.A.type.short]
    a, b = (torch.randint(-1, 2, shape, device="cuda").double() for shape in ((m, k), (k, n)))
    given: dict[str, Any] = scales(operation, m, n)
    bias = torch.randint(-3, 4, (n,), device="cuda").float()
    exact = a @ b
    for scaled_by, scale in given.items():
        exact = exact * (scale.double()[:, None] if scaled_by == "row_scale" else scale.double())
    exact += bias.double()
    D = torch.full((m, n), 99.0, device="cuda").to(dtype)
    absmax = torch.full((1,), float("nan"), device="cuda").reshape(operation.outputs(size)["absmax"].shape)
    given |= {"bias": bias, "output_scale": torch.tensor([output_scale], device="cuda"), "absmax": absmax}
    B = b.to(dtype).mT.contiguous().mT
    arguments = GemmArguments(operation, size, a.to(dtype), B, None, D, epilogue=given)
    operation.run(arguments)
    arguments.sync()
    assert absmax.double().item() == exact.abs().max().item()
    scaled = (exact * output_scale).clamp(*operation.D.type.limits)
    wanted = (scaled.round() if dtype is torch.int8 else scaled.float()).to(dtype)
    assert torch.equal(D.double(), wanted.double())
