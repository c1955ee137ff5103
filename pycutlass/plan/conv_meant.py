"""What may be meant by operands of a convolution that do not fit each other: another order, or groups."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pycutlass.operands.conv_operand import Extent

__all__ = ["Part", "other_groups", "other_order", "other_roles"]

_NHWC, _NCHW = (0, 1, 2, 3), (0, 2, 3, 1)  # where N, H, W and C are
_LETTERS = {"images": ("(N, H, W, C)", "(N, C, H, W)"), "weights": ("(K, R, S, C)", "(K, C, R, S)")}
_Fits = Callable[[Sequence[Extent]], bool]


@dataclass(frozen=True)
class Part:
    """An operand of a convolution, or the size of its result, as it was given.

    Attributes
    ----------
    name : str
        What the caller has for it.
    what : str
        ``"images"`` or ``"weights"``.
    shape : tuple of 4 int
        In the order of its library.
    library : str
        As of a view; ``"size"`` where it is a shape alone.
    is_torch : bool
        Whether it is read as torch orders dimensions.
    """

    name: str
    what: str
    shape: tuple[int, ...]
    library: str
    is_torch: bool

    @property
    def read(self) -> Extent:
        """Its extent as (N, H, W, C), as it is read."""
        return self._extent(_NCHW if self.is_torch else _NHWC)

    @property
    def turned(self) -> Extent:
        """Its extent if it has the order of the other libraries."""
        return self._extent(_NHWC if self.is_torch else _NCHW)

    @property
    def is_either(self) -> bool:
        """Whether both orders are the same numbers."""
        return len(set(self.shape[1:])) == 1

    @property
    def may_be_turned(self) -> bool:
        """Whether the other order is likely: few filters are not square, and fewer look as if they were."""
        (_, r, s, _), (_, of_rows, of_columns, _) = self.turned, self.read
        return not self.is_either and (self.what == "images" or r == s or of_rows != of_columns)

    @property
    def reading(self) -> str:
        """In which order it is read, and in which it fits."""
        last, first = _LETTERS[self.what]
        read, fits = (first, last) if self.is_torch else (last, first)
        return f"{self.name} of {self.shape} is read as {read}, and fits as {fits}"

    @property
    def remedy(self) -> str:
        """What to pass instead."""
        n, h, w, c = self.turned
        if self.library in ("size", "spec"):
            shape = (n, c, h, w) if self.is_torch else (n, h, w, c)
            return f"{self.name}={shape}" if self.library == "size" else f"a TensorSpec of shape {shape} as {self.name}"
        if self.is_torch:
            return f"{self.name}.permute(0, 3, 1, 2)"
        moved = f"{self.name}.transpose(0, 2, 3, 1)"
        module = {"numpy": "np", "cupy": "cupy"}.get(self.library)
        return moved if module is None else f"{module}.ascontiguousarray({moved})"

    def _extent(self, axes: tuple[int, ...]) -> Extent:
        n, h, w, c = (self.shape[axis] for axis in axes)
        return n, h, w, c


def other_order(parts: Sequence[Part], fits: _Fits) -> str:
    """Return which parts fit with their dimensions in another order, the fewest; "" where none do."""
    may_be = [each for each in parts if each.may_be_turned]
    for count in range(1, len(may_be) + 1):
        for turned in itertools.combinations(may_be, count):
            if fits([each.turned if each in turned else each.read for each in parts]):
                readings = "; ".join(each.reading for each in turned)
                either = "".join(f". {each.name} reads either way: see to it, too" for each in parts if each.is_either)
                return f"{readings}: pass {' and '.join(each.remedy for each in turned)}{either}"
    return ""


def other_roles(parts: Sequence[Part], fits: _Fits) -> str:
    """Return that two operands fit if they are exchanged; "" where they do not."""
    a, b, *rest = parts
    if not fits([each.read for each in (b, a, *rest)]):
        return ""
    return (
        f"{a.name} of {a.shape} and {b.name} of {b.shape} fit if they are exchanged: the gradient of the output comes "
        f"first"
    )


def other_groups(x: Extent, w: Extent, fits: Callable[[int], bool]) -> str:
    """Return of how many groups of channels a filter would be; "" where it would not be of any."""
    groups = x[3] // w[3] if w[3] and x[3] % w[3] == 0 else 1
    return f"the filter has {w[3]} of {x[3]} channels: pass groups={groups}" if groups > 1 and fits(groups) else ""
