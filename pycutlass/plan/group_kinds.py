"""Which kind of GEMM the problems of a group are, and what belongs to that."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from pycutlass.errors import ArgumentError
from pycutlass.plan.group import Columns, Group
from pycutlass.plan.group_parts import Part, Vectors, element_of_all, form_of_all
from pycutlass.plan.kind import GemmKind
from pycutlass.plan.kinds import Wanted, kind_of
from pycutlass.plan.readings import about_c, device_of, is_number, needs_source

__all__ = ["checked_beta", "columns_of", "device_of_group", "kind_of_group"]


def checked_beta(group: Group, epilogue: Any, beta: Any) -> Any:
    """Return beta, which is 1 for a bias where none is said; raise unless there is a C where the epilogue reads one."""
    beta = 1 if isinstance(group.C, Vectors) and is_number(beta, 0) else beta
    if (group.C is not None) != needs_source(epilogue, beta):
        raise ArgumentError(about_c(group.C is not None, beta, epilogue, "cs" if group.C is None else group.C.name))
    return beta


def columns_of(epilogue: Any) -> Columns:
    """Return what says how many columns D has, of an epilogue with or without its types."""
    if getattr(getattr(epilogue, "graph", None), "is_gated", False):
        return lambda n: n // 2
    return lambda n: n


def kind_of_group(group: Group, target: Part | None, wanted: Wanted) -> GemmKind:
    """Return the kind of GEMM that the problems of a group are, with D as `target` lies, or packed."""
    columns = columns_of(wanted.epilogue)
    if group.axis == 1 and columns(2) < 2:
        raise ArgumentError(
            "the epilogue combines pairs of columns, and offs divides the columns of ws: give lists of xs and ws"
        )
    elements = group.elements()
    of_a, of_b = group.forms()
    if target is None:
        of_d = group.form_of_new(wanted.output(elements[0]), columns)
    else:
        element = element_of_all(target)
        if wanted.out_dtype is None and not hasattr(wanted.epilogue, "output"):  # an epilogue with types has its own
            wanted = replace(wanted, out_dtype=element.tag)
        of_d = form_of_all(target, element.bits, group.used)
    return kind_of(*elements, (of_a, of_b, group.form_of_c(of_d), of_d), wanted, ("xs", "ws"))


def device_of_group(group: Group) -> int | None:
    """Return the GPU of a group's tensors, as `device_of` does."""
    return device_of(dict([*group.A.named_views(), *group.B.named_views()]))
