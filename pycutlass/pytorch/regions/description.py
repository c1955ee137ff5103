"""What is said of a region."""

from __future__ import annotations

from typing import Any

import torch

from pycutlass.pytorch.images import Geometry, as_rows, is_product
from pycutlass.pytorch.regions.extents import extents_of, tensor_form
from pycutlass.pytorch.regions.growth import Grown
from pycutlass.pytorch.regions.products import value_of
from pycutlass.pytorch.regions.region import Problem, Region, RegionInput, RegionOutput, TensorForm
from pycutlass.pytorch.regions.tracing import Beside, Epilogue
from pycutlass.pytorch.regions.writing import Written

__all__ = ["described", "folded"]


def described(
    region: Grown, epilogue: Epilogue, made: Written, name: str, gain: float | None, *, is_measured: bool
) -> Region:
    """Return what is said of a region."""
    product = region.product
    outputs = tuple(
        RegionOutput(epilogue.same[node], node.name, _dtype(value_of(node)), extents_of(value_of(node).shape))
        for node in made.outputs
    )
    return Region(
        name,
        product.kind,
        product.node.name,
        tuple(node.name for node in region.members[1:]),
        epilogue.function,
        _problem(region),
        tuple(map(_input, epilogue.inputs)),
        tuple(sorted(outputs, key=lambda each: each.name != "D")),
        _source(product.node.meta.get("stack_trace")),
        gain,
        made.handle,
        is_measured,
    )


def _dtype(value: torch.Tensor) -> str:
    return str(value.dtype).removeprefix("torch.")


def _input(beside: Beside) -> RegionInput:
    name = beside.node.name + (f".{beside.part}" if beside.part else "")
    if beside.form is None:
        return RegionInput(beside.name, "scalar", name, "float64", ())
    shape = value_of(beside.node).shape if beside.form.shape is None else beside.form.shape
    return RegionInput(beside.name, beside.form.name, name, str(beside.dtype).removeprefix("torch."), extents_of(shape))


def _problem(region: Grown) -> Problem:
    product = region.product
    a, b = value_of(product.a), value_of(product.b)
    if product.kind == "grouped":
        forms = tensor_form(a), tensor_form(b), tensor_form(value_of(product.node))
        return Problem("grouped", *forms, ranges=_ranges(a, b))
    if product.kind != "conv2d":
        axes = 2 if product.kind == "mm" else 3
        a, b = folded(a, axes), folded(b.t() if product.is_turned else b, axes)
        d = value_of(product.node)
        d = d.new_empty((*a.shape[:-1], b.shape[-1]))
        return Problem(product.kind, tensor_form(a), tensor_form(b), tensor_form(d), ranges=_ranges(a, b))
    if is_product(Geometry(**product.geometry), b):
        rows, turned, sums = as_rows(a), b.reshape(b.shape[0], -1).t(), as_rows(value_of(product.node))
        forms = tensor_form(rows.contiguous()), tensor_form(turned), tensor_form(sums.contiguous())
        return Problem("mm", *forms, ranges=_ranges(a, b))
    images, filters, made = (_as_images(tensor_form(each)) for each in (a, b, value_of(product.node)))
    return Problem("conv2d", images, filters, made, **product.geometry, ranges=_ranges(a, b))


def folded(value: torch.Tensor, axes: int) -> torch.Tensor:
    """Return a tensor of tracing with so many axes, of which the first has all rows."""
    return value if value.dim() == axes else value.reshape(-1, *value.shape[value.dim() - axes + 1 :])


def _as_images(form: TensorForm) -> TensorForm:
    """Return how a kernel has images: with adjacent channels, whatever they were."""
    channels = form.shape[1]
    alignment = {"float64": 2, "float32": 4, "int8": 16}.get(form.dtype, 8)
    while alignment > 1 and not (isinstance(channels, int) and channels % alignment == 0):
        alignment //= 2
    return TensorForm(form.dtype, form.shape, (0, 2, 3, 1), alignment)


def _ranges(*values: torch.Tensor) -> tuple[tuple[str, int, int | None], ...]:
    """Return the least and the greatest number of each symbol in extents."""
    found: dict[str, tuple[str, int, int | None]] = {}
    for value in values:
        for each in value.shape:
            if not isinstance(each, torch.SymInt):
                continue
            known: Any = each.node.shape_env.var_to_range
            for symbol in each.node.expr.free_symbols:
                low, high = known[symbol].lower, known[symbol].upper
                least, most = (int(each) if each.is_Integer else None for each in (low, high))
                found[str(symbol)] = (str(symbol), least or 0, most)
    return tuple(found[name] for name in sorted(found))


def _source(trace: Any) -> str:
    """Return the last place of a stack trace, with its line."""
    lines = [line.strip() for line in (trace or "").strip().splitlines()]
    places = [at for at, line in enumerate(lines) if line.startswith("File ")]
    own = [at for at in places if "/torch/nn/modules/" not in lines[at]] or places
    if not own:
        return ""
    at = own[-1]
    text = lines[at + 1] if at + 1 < len(lines) and at + 1 not in places else ""
    return f"{lines[at].removeprefix('File ')}: {text}" if text else lines[at].removeprefix("File ")
