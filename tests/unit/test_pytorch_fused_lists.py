"""Tensors in the lists of operators with an epilogue of the caller's, and images without channels: what is refused."""

# mypy: disable-error-code="valid-type,operator"
# Annotations of epilogue functions say what a parameter stands for, which is no type of Python's.

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.autograd import forward_ad
from torch_operators import numbers, ops

from pycutlass import epilogue_function
from pycutlass.epilogue import Row, Source
from pycutlass.errors import ArgumentError, ArgumentTypeError
from pycutlass.pytorch import epilogue_handle


def random(*shape: int) -> torch.Tensor:
    return numbers(*shape).detach().to(torch.float64)


@epilogue_function
def biased(accum: Any, bias: Row) -> Any:
    return accum + bias


@epilogue_function
def added(accum: Any, c: Source) -> Any:
    return accum + c


# torch's decompositions for dual tensors are scripted.
@pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning")
def test_tensors_of_lists_are_looked_at() -> None:
    """Without memory they are refused, and with a tangent, which would be lost."""
    a, b, offs = random(4, 8), random(8, 6), torch.tensor([2, 4], dtype=torch.int32)
    handle, of_source = epilogue_handle(biased), epilogue_handle(added)
    images = random(1, 16, 3, 3), random(16, 16, 3, 3), [1, 1], [0, 0], [1, 1], 1
    calls: list[tuple[Any, Any]] = [
        (lambda bias: ops.fused_mm(a, b, handle, [bias]), random(6)),
        (lambda bias: ops.fused_mm.out(a, b, handle, [bias], out=[random(4, 6)]), random(6)),
        (lambda bias: ops.fused_conv2d(*images, handle, [bias]), random(16)),
        (lambda bias: ops.fused_conv2d(images[0], random(16, 16, 1, 1), *images[2:], handle, [bias]), random(16)),
        (lambda bias: ops.fused_grouped_mm(a, random(2, 8, 6), offs, handle, [bias]), random(2, 6)),
        (lambda c: ops.fused_mm(a, b, of_source, [c]), random(4, 6)),
        (lambda x: ops.fused_conv2d(x, random(16, 16, 1, 1), *images[2:], "relu", []), random(1, 16, 3, 3)),
    ]
    for call, tensor in calls:
        with pytest.raises(ArgumentError, match="meta"):
            call(tensor.to("meta"))
        with forward_ad.dual_level(), pytest.raises(ArgumentError, match="forward mode"):
            call(forward_ad.make_dual(tensor, tensor))
        odd = torch.stack((tensor, tensor), dim=-1)[..., 0]  # whose copy would read it
        for each, size in ((tensor, 8 * tensor.numel() - 8), (odd, 0)):
            each.untyped_storage().resize_(size)
            with pytest.raises(ArgumentTypeError, match="storage"):
                call(each)


def test_pixels_without_channels() -> None:
    for channels, filters in ((0, 16), (16, 0)):
        x, w = random(1, channels, 3, 3), random(filters, channels, 1, 1)
        (found,) = ops.fused_conv2d(x, w, [1, 1], [0, 0], [1, 1], 1, "relu", [])
        assert torch.equal(found, torch.zeros(1, filters, 3, 3, dtype=x.dtype))
