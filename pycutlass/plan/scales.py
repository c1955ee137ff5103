"""Scales of a product's operands: numbers, which are factors of alpha, and tensors, which an epilogue reads."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from pycutlass.calls import shown
from pycutlass.errors import ArgumentError, ArgumentTypeError
from pycutlass.integers import real, shape_of
from pycutlass.plan.composed import both_given, composed
from pycutlass.plan.forms import as_strided, copied, stacked
from pycutlass.plan.readings import element_of, place
from pycutlass.plan.stacks import Product
from pycutlass.tensor import TensorView, wrap
from pycutlass.types import Element

__all__ = ["NO_SCALES", "Scales"]

_NAMES = ("scales[0]", "scales[1]")
_SHORT = ("f32", "f16", "bf16")


@dataclass(frozen=True)
class Scales:
    """The scales of A and B.

    Attributes
    ----------
    factor : float
        What those that are numbers make of alpha.
    tensors : tuple of 2
        Those that are tensors, None in the place of numbers.
    views : dict
        Views of the tensors, by what messages call them.
    """

    factor: float
    tensors: tuple[Any, Any]
    views: dict[str, TensorView]

    @classmethod
    def of(cls, given: Any) -> Scales:
        """Return scales as they were given to `matmul`.

        Raises
        ------
        ArgumentTypeError
            No pair, or something else than numbers and tensors in it.
        """
        if type(given) not in (tuple, list) or len(given) != 2:
            raise ArgumentTypeError(f"scales must be a pair, (scale_a, scale_b), got {shown(given)}")
        factor, tensors, views = 1.0, list(given), {}
        for index, (name, value) in enumerate(zip(_NAMES, given, strict=True)):
            if isinstance(value, bool | np.bool_) or value is None:
                raise ArgumentTypeError(f"{name} must be a number or a tensor, got {shown(value)}: 1.0 has no effect")
            if isinstance(value, int | float | np.generic):
                number = real(value, name)
                if number is None:
                    raise ArgumentTypeError(f"{name} must be a real number or a tensor, got {shown(value)}")
                factor, tensors[index] = factor * number, None
            else:
                views[name] = wrap(name, value)
        return cls(factor, (tensors[0], tensors[1]), views)

    def times(self, alpha: Any, epilogue: Any) -> Any:
        """Return alpha, None where it was left out, times the scales that are numbers.

        Raises
        ------
        ArgumentError, ArgumentTypeError
            Alpha is in memory, or an epilogue function may do something else with it.
        """
        if self.factor == 1.0:
            return alpha
        if hasattr(epilogue, "graph"):
            raise both_given("scales", epilogue)
        number = 1.0 if alpha is None else None if shape_of(alpha) else real(alpha, "alpha")
        if number is None:
            raise ArgumentTypeError(f"alpha must be a number where scales are numbers, got {shown(alpha)}")
        return number * self.factor

    def check_output(self, out: Element) -> None:
        """Raise ArgumentError for a result that has no fractions, unless it is limited to 8 bits."""
        if out.is_integer and not out.is_byte:
            raise ArgumentError(
                f"scales make fractions of the product, and the result is of {out.dtype_name}: pass "
                f"out_dtype=cutlass.float32 or cutlass.bfloat16"
            )

    def epilogue(
        self, epilogue: Any, product: Product, where: int | None, operand: Element
    ) -> tuple[Any, dict[str, Any]]:
        """Return the epilogue with those that are tensors, and these by the names that they have there.

        Parameters
        ----------
        epilogue : optional
            An activation, or None.
        product : Product
            Whose rows and columns they are for.
        where : int or None
            The GPU of the operands.
        operand : Element
            The type of A.

        Raises
        ------
        ArgumentError
            Another shape, type or device than scales may have.
        """
        ports: dict[str, Any] = {}
        types: list[tuple[str, Any]] = []
        lines = (product.rows, product.columns)
        for index, (name, tensor) in enumerate(zip(_NAMES, self.tensors, strict=True)):
            if tensor is None:
                continue
            view = self.views[name]
            kind = self._checked(name, view, where, operand)
            if product.allows_copies and not _is_packed(view):
                tensor = copied(name, tensor, view, view.shape or ())
                view = wrap(name, tensor)
            shape, strides, is_single = _placed(name, view, product, lines[index], index)
            port = ("scale_a", "scale_b")[index] if is_single else ("row_scale", "column_scale")[index]
            ports[port] = tensor if product.is_empty else as_strided(name, tensor, view, shape, strides)
            types.append((port, kind.tag))
        return composed(epilogue, what="scales", scales=tuple(types)), ports

    @staticmethod
    def _checked(name: str, view: TensorView, where: int | None, operand: Element) -> Element:
        """Return the type of a scale."""
        if view.shape is None or view.strides is None:
            raise ArgumentTypeError(f"{name} is an address, which says neither shape nor type: pass a tensor")
        kind = element_of(name, view)
        if kind.short not in (*_SHORT, *(["f64"] if operand.short == "f64" else [])):
            raise ArgumentError(f"{name} must be of float32, float16 or bfloat16, got {kind.dtype_name}: convert it")
        if view.device != where:
            here = f"{name} is on {place(view.device)}, and a is on {place(where)}"
            one = ", or pass the number, which waits for it: float(...)" if _count(view) == 1 else ""
            raise ArgumentError(f"{here}: move it to where a is{one}")
        return kind


#: Of a product without scales.
NO_SCALES = Scales(1.0, (None, None), {})


def _count(view: TensorView) -> int:
    count = 1
    for extent in view.shape or ():
        count *= extent
    return count


def _is_packed(view: TensorView) -> bool:
    """Return whether the elements of a scale follow one another."""
    shape, strides = view.shape or (), view.strides or ()
    lasting = [(extent, step) for extent, step in zip(shape, strides, strict=True) if extent > 1]
    found = stacked(tuple(extent for extent, _ in lasting), tuple(step for _, step in lasting))
    return found is not None and (not lasting or found[1] == 1)


def _placed(
    name: str, view: TensorView, product: Product, line: int, index: int
) -> tuple[tuple[int, ...], tuple[int, ...], bool]:
    """Return shape and strides of a scale as an epilogue takes it, and whether it is one for all.

    `line` are the rows of one matrix, of which A has a scale each, or the columns, of which B has; `index` is which of
    the two it is.
    """
    assert view.shape is not None and view.strides is not None
    if _count(view) == 1:
        return (1,), (1,), True
    shape, strides = view.shape, view.strides
    at = len(shape) - 2 + index  # where (M, 1) and (1, N) have their extent
    if len(shape) > 1 and shape[at] == line and shape[at + 1 - 2 * index] == 1:
        lead, steps, step = shape[:-2], strides[:-2], strides[at]
    else:
        lead, steps, step = shape[:-1], strides[:-1], strides[-1] if strides else 1
        if not shape or shape[-1] != line:
            lead = (-1,)
    is_folded = product.is_folded and index == 0
    if lead not in ((product.batch,) if is_folded else ((), product.batch)):
        of, alone = (
            ("row of a", f"({line},) or ({line}, 1)") if index == 0 else ("column of b", f"({line},) or (1, {line})")
        )
        if product.batch:
            alone += f", behind the batch {product.batch}"
        turned = shape[::-1] if len(shape) == 2 else ()
        hint = f": pass {name}.T" if turned in ((line, 1), (1, line)) else ""
        raise ArgumentError(f"{name} must be one number, or one for each {of}, of shape {alone}; got {shape}{hint}")
    as_one = is_folded or not lead
    if line == 1:  # which says nothing about the step
        step = 1
    if _count(view) == 0:  # whose strides say nothing
        return ((0,), (1,), False) if as_one else ((0, line), (line, 1), False)
    found = stacked((*lead, line), (*steps, step)) if as_one else stacked(lead, steps)
    if found is None or (found[1] if as_one else step) != 1:
        raise ArgumentError(
            f"{name} of shape {shape} has strides {strides}, and must be contiguous: pass a copy, or allow_copy=True"
        )
    return ((found[0],), (1,), False) if as_one else ((found[0], line), (found[1], 1), False)
