"""Calls of fused operators like earlier ones: launched without looking at their tensors again in Python."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from pycutlass.plan.base import Plan
from pycutlass.pytorch.images import as_rows, new_images
from pycutlass.pytorch.operators import plain

__all__ = ["BIAS", "SOURCE", "KnownCall", "KnownCalls", "KnownPixels"]

Tensor = torch.Tensor
#: What C and a bias are called among tensors of an epilogue, whose names are words.
SOURCE, BIAS = "C!", "bias!"


@dataclass(frozen=True)
class KnownCall:
    """What an earlier call of a product or a convolution has done.

    Parameters
    ----------
    plan : Plan
        What computed it.
    reads : tuple of str
        What the plan calls the tensors that are read: tensors of its epilogue, `SOURCE` or `BIAS`.
    writes : tuple of (str, tuple of int, dtype)
        Name, shape and type of each result; D is called so.
    """

    plan: Plan[Any, Any]
    reads: tuple[str, ...]
    writes: tuple[tuple[str, tuple[int, ...], torch.dtype], ...]

    def run(self, a: Tensor, b: Tensor, tensors: Sequence[Tensor]) -> list[Tensor] | None:
        """Return the results; None, and nothing was done, where tensors are of other forms than those before."""
        if len(tensors) != len(self.reads) or not self.plan.has_waiting:
            return None
        results = [_new(a, shape, dtype) for _, shape, dtype in self.writes]
        ports = {name: made for (name, _, _), made in zip(self.writes, results, strict=True)}
        ports |= {name: plain(each) for name, each in zip(self.reads, tensors, strict=True)}
        source, bias, target = ports.pop(SOURCE, None), ports.pop(BIAS, None), ports.pop("D")
        return results if self.plan.run_waiting(plain(a), plain(b), source, target, ports, bias) else None


@dataclass(frozen=True)
class KnownPixels:
    """What an earlier call of a convolution of single pixels has done, which is a product of matrices.

    Parameters
    ----------
    of_rows : KnownCall
        The product.
    images : tuple of int
        N, K, P and Q of the result.
    shapes : tuple of Size
        Of the tensors that were read. As rows of a product, images of other extents may look the same.
    are_images : tuple of bool
        Which of the results are images, whose pixels are rows of the product.
    """

    of_rows: KnownCall
    images: tuple[int, int, int, int]
    shapes: tuple[torch.Size, ...]
    are_images: tuple[bool, ...]

    def run(self, a: Tensor, b: Tensor, tensors: Sequence[Tensor]) -> list[Tensor] | None:
        """Return the results; None, and nothing was done, where tensors are of other forms than those before."""
        if tuple(each.shape for each in tensors) != self.shapes:
            return None
        n, k, p, q = self.images
        rows = [as_rows(each) if each.dim() == 4 else each for each in tensors]
        found = self.of_rows.run(as_rows(a), b.reshape(k, -1).t(), rows)
        if found is None:
            return None
        return [
            each.view(n, p, q, k).permute(0, 3, 1, 2) if is_image else each
            for each, is_image in zip(found, self.are_images, strict=True)
        ]


def _new(like: Tensor, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Return memory for a result: of four extents, for images."""
    return new_images(like, shape, dtype) if len(shape) == 4 else like.new_empty(shape, dtype=dtype)


class KnownCalls:
    """Calls by all that may differ of those whose tensors look alike. It keeps plans, and no tensor.

    Launches wait for tensors (csrc/launch_pool.h), and one that takes them has looked at all of them: types, strides,
    alignments, devices, gradients and overlaps.
    """

    _MOST = 256

    def __init__(self) -> None:
        self._calls: dict[Any, KnownCall | KnownPixels] = {}
        self._lock = threading.Lock()

    @staticmethod
    def key_of(a: Tensor, b: Tensor, epilogue: str | None, scalars: Sequence[float], *more: Any) -> Any:
        """Return what tells calls apart; `more` is what else a kernel is chosen by."""
        # 0.0 and -0.0 are equal, and not the same.
        numbers = tuple(float(each).hex() for each in scalars)
        return epilogue, numbers, a.shape, b.shape, a.dtype, b.dtype, a.device, *more

    def get(self, key: Any) -> KnownCall | KnownPixels | None:
        """Return the call with a key, if there is one."""
        return self._calls.get(key)

    def keep(self, key: Any, call: KnownCall | KnownPixels) -> None:
        """Keep a call, the last of its key; of so many, the first go."""
        with self._lock:
            while len(self._calls) >= self._MOST:
                self._calls.pop(next(iter(self._calls)))
            self._calls[key] = call
