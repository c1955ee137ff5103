"""Where the results of a group go, and whether its tensors are those of a plan."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from pycutlass.errors import AlignmentError, ArgumentError
from pycutlass.library import TensorDescription
from pycutlass.plan.forms import Columns, new_tensor
from pycutlass.plan.group import Group
from pycutlass.plan.group_parts import Listed, Part, element_of_all
from pycutlass.plan.kind import GemmKind
from pycutlass.plan.kinds import Wanted
from pycutlass.plan.readings import element_of
from pycutlass.tensor import TensorView, wrap

__all__ = ["check_fits", "new_matrix", "new_results", "result_of_nothing"]


def new_results(kind: GemmKind, group: Group, stream: Any, zeroes_rest: bool) -> tuple[Any, Part]:
    """Return new memory for the results of a group, in the library of xs, as what is returned and as an operand.

    Behind the last group it is zero, unless the kernel is to write zeros there.
    """
    columns = kind.epilogue.columns
    shape = group.shape(columns)
    if shape is None:
        made = [new_matrix(kind, *group.like, (m, columns(n))) for m, n, _ in group.sizes.tolist()]
        return made, Listed("out", made)
    tensor = new_matrix(kind, *group.like, shape)
    if group.rest:
        if stream is not None:  # which the zeros are not ordered against
            raise ArgumentError(
                f"groups end before {'xs' if group.axis == 0 else 'ws'} does, by {group.rest}: a new result is zero "
                f"there, which is written on the current stream, and stream is given. Pass out, or make that stream "
                f"the current one"
            )
        behind = slice(group.axis_total - group.rest, None)
        if not zeroes_rest:
            tensor[behind if group.axis == 0 else (slice(None), behind)] = 0
    return tensor, group.result(tensor, columns)


def new_matrix(kind: GemmKind, like: Any, view: TensorView, shape: tuple[int, ...]) -> Any:
    """Return memory for D, packed as the kind has it, in the library of `like`, whose view is given."""
    if kind.D.is_row_major:
        return new_tensor(like, view, shape, kind.D.type.dtype_name)
    turned = new_tensor(like, view, (*shape[:-2], shape[-1], shape[-2]), kind.D.type.dtype_name)
    return turned.swapaxes(-1, -2)


def result_of_nothing(group: Group, columns: Columns, wanted: Wanted) -> Any:
    """Return the new result of a group without problems: an empty list, or zeros, where nothing is computed."""
    shape = group.shape(columns)
    if shape is None:
        return []
    like, view = group.like
    tensor = new_tensor(like, view, shape, wanted.output(element_of("xs" if group.A.views else "ws", view)).dtype_name)
    tensor[...] = 0
    return tensor


def check_fits(kind: GemmKind, group: Group, target: Part | None) -> None:
    """Raise unless tensors are of the types and layouts of a plan, and as aligned.

    Raises
    ------
    ArgumentError
        Another type or layout.
    AlignmentError
        Less aligned.
    """
    _check(group.A, kind.A, group.summed)
    _check(group.B, kind.B, group.summed)
    if group.C is not None:
        _check(group.C, kind.C, group.used)
    if target is not None:
        _check(target, kind.D, group.used)


def _check(part: Part, described: TensorDescription, used: NDArray[np.bool_]) -> None:
    for name, view in part.named_views():
        if not view.pointer and 0 not in (view.shape or ()):  # which says that it has no memory
            wrap(name, view.owner)
    if not part.views:
        return
    element = element_of_all(part)
    if element.dtype_name != described.type.dtype_name:
        raise ArgumentError(
            f"this plan is for {part.name} of {described.type.dtype_name}, got {element.dtype_name}: convert it, or "
            f"make another plan"
        )
    form = part.form(element.bits, used, described.is_row_major)
    if form is None:
        raise ArgumentError(
            f"this plan is for {part.name} with adjacent elements along "
            f"{'rows' if described.is_row_major else 'columns'}, and not all lie so: pass a copy that does, or make "
            f"another plan"
        )
    if form.alignment % described.alignment:
        raise AlignmentError(
            f"this plan is for {part.name} whose addresses, lines and steps are multiples of {described.alignment} "
            f"elements, and they are multiples of {form.alignment}: make another plan, or pass copies that are padded"
        )
