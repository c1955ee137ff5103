"""A kernel of a library in the place of a region's operator."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from pycutlass.exports import LoadedPlan
from pycutlass.pytorch.fused_shapes import Extents, folded, given_scalars, is_aligned, laid, result_shape, unfolded
from pycutlass.pytorch.handles import Fused, fused
from pycutlass.pytorch.images import Geometry, new_images
from pycutlass.pytorch.native import Embedded, native_run
from pycutlass.pytorch.regions.plans import precision_for

__all__ = ["LibraryKernel"]

_ACCESS = 16  # bytes of the widest access of a kernel
_ops: Any = torch.ops.pycutlass


class LibraryKernel(nn.Module):
    """A kernel of a library, called as the operators ``fused_mm`` and ``fused_conv2d`` are.

    Parameters
    ----------
    plan : LoadedPlan
        Of the library.
    layouts : mapping
        How A and B lie, by the library's manifest: ``"rows"``, ``"columns"`` or ``"pixels"``.
    precision : str, optional
        How it multiplies float32. Where torch's setting is another at a call, the operator computes it.
    embedded : Embedded, optional
        The library, which programs that are exported carry. Kernels of one library share it.
    """

    def __init__(
        self,
        plan: LoadedPlan,
        layouts: Mapping[str, str],
        precision: str | None = None,
        embedded: Embedded | None = None,
    ) -> None:
        super().__init__()
        self.plan, self.layouts, self.precision = plan, dict(layouts), precision
        library, self.digest = embedded or (None, "")
        self.register_buffer("library", library, persistent=False)

    def _apply(self, fn: Any, recurse: bool = True) -> LibraryKernel:
        """Do nothing where a model moves: the bytes of the library stay on the host, one tensor for all kernels."""
        return self

    def forward(self, a: torch.Tensor, b: torch.Tensor, *rest: Any) -> list[torch.Tensor]:
        """Return what the operator returns: of tensors of a GPU by the library, and by the operator elsewhere."""
        is_images = self.layouts["a"] == "pixels"
        if not self.is_for(a):
            operator = _ops.fused_conv2d if is_images else _ops.fused_mm
            found: list[torch.Tensor] = operator(a, b, *rest)
            return found
        return self._images(a, b, *rest) if is_images else self._matrices(a, b, *rest)

    def is_for(self, tensor: torch.Tensor) -> bool:
        """Return whether the library's kernels run where a tensor is, and multiply as torch's settings say."""
        is_images = self.layouts["a"] == "pixels"
        return tensor.is_cuda and precision_for(tensor, is_images) == self.precision

    def _matrices(
        self, a: torch.Tensor, b: torch.Tensor, handle: str, tensors: list[torch.Tensor], scalars: Any = ()
    ) -> list[torch.Tensor]:
        made = fused(handle, a.dtype)
        whole = extents = Extents(tuple(a.shape[:-2]), a.shape[-2], b.shape[-1])
        if extents.batch:
            a, b, tensors, extents = folded(made, a, b, tensors, extents)
        given = {read.name: laid(read, each, extents) for read, each in zip(made.reads, tensors, strict=True)}
        if extents.batch:  # a number for each matrix is a line of one there
            numbers = {read.name for read in made.reads if read.form == "number" and given[read.name].numel() > 1}
            given |= {name: given[name].unsqueeze(-1) for name in numbers}
        given |= {"a": _lying(a, self.layouts["a"]), "b": _lying(b, self.layouts["b"])}
        written = {each.name: a.new_empty(result_shape(each, extents), dtype=each.dtype) for each in made.writes}
        self._run(given, written, _all_scalars(made, scalars))
        return [unfolded(written[each.name], each, whole) for each in made.writes]

    def _images(
        self,
        a: torch.Tensor,
        b: torch.Tensor,
        stride: Any,
        padding: Any,
        dilation: Any,
        groups: Any,
        handle: str,
        tensors: list[torch.Tensor],
        scalars: Any = (),
    ) -> list[torch.Tensor]:
        made = fused(handle, a.dtype)
        n, k, p, q = Geometry(stride, padding, dilation, groups).output(a.shape, b.shape)
        extents = Extents((), n * p * q, k, (n, k, p, q))
        given = {read.name: laid(read, each, extents) for read, each in zip(made.reads, tensors, strict=True)}
        given |= {"a": _pixels(a), "b": _pixels(b)}
        written = {
            each.name: new_images(a, extents.images, each.dtype)
            if each.form == "matrix"
            else a.new_empty(result_shape(each, extents), dtype=each.dtype)
            for each in made.writes
        }
        self._run(given, written, _all_scalars(made, scalars))
        return [written[each.name] for each in made.writes]

    def _run(self, given: dict[str, torch.Tensor], written: dict[str, torch.Tensor], scalars: dict[str, float]) -> None:
        results = {"out" if name == "D" else name: each for name, each in written.items()}
        if torch.compiler.is_exporting():
            self._export(given, results, scalars)
        else:
            self.plan.run(**{name: each.detach() for name, each in given.items()}, **results, scalars=scalars)

    def _export(
        self, given: dict[str, torch.Tensor], results: dict[str, torch.Tensor], scalars: dict[str, float]
    ) -> None:
        """Write the operator in C++ into the program that is exported: it runs the library without Python."""
        plan = self.plan
        read = [given[name] for name in plan.tensors if name not in results]
        written = [results[name] for name in plan.tensors if name in results]
        numbers = [{**plan.scalars, **scalars}[name] for name in plan.scalars]
        native_run()(self.library, self.digest, plan.name, read, written, numbers)


def _all_scalars(made: Fused, scalars: Any) -> dict[str, float]:
    """Return scalars by name with their defaults, which a library's plan does not know by the function."""
    given = given_scalars(made, scalars)
    return {name: default for name, default in made.scalars if default is not None} | given


def _lying(tensor: torch.Tensor, layout: str) -> torch.Tensor:
    """Return matrices that lie by rows or by columns, as kernels load them; copied where they do not."""
    rows = tensor if layout == "rows" else tensor.mT
    step = _ACCESS // rows.element_size()
    is_padded = rows.stride(-1) == 1 and all(each > 0 and each % step == 0 for each in rows.stride()[:-1])
    if is_aligned(rows) and (is_padded or rows.is_contiguous()):
        return tensor
    packed = rows.clone(memory_format=torch.contiguous_format)
    return packed if layout == "rows" else packed.mT


def _pixels(tensor: torch.Tensor) -> torch.Tensor:
    """Return images or filters in channels_last, as kernels load them; copied where they do not lie so."""
    if tensor.is_contiguous(memory_format=torch.channels_last) and is_aligned(tensor):
        return tensor
    return tensor.permute(0, 2, 3, 1).clone(memory_format=torch.contiguous_format).permute(0, 3, 1, 2)
