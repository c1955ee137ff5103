"""Which kind of GEMM the problems of a group are, and what belongs to that."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pycutlass.calls import counted
from pycutlass.errors import ArgumentError
from pycutlass.plan.added import Added, Addition
from pycutlass.plan.gradients import check_gradients
from pycutlass.plan.group import Group
from pycutlass.plan.group_parts import Part, element_of_all, form_of_all
from pycutlass.plan.kind import GemmKind
from pycutlass.plan.kinds import Wanted, check_columns, check_types, columns_of, is_gated, kind_of
from pycutlass.plan.readings import check_port, device_of
from pycutlass.tensor import TensorView

__all__ = [
    "about_added",
    "addition_to",
    "check_gradients_of_group",
    "check_listed_ports",
    "check_pairs",
    "device_of_group",
    "kind_of_group",
]

_NO_PORTS: Mapping[str, TensorView] = MappingProxyType({})


def addition_to(group: Group, target: Part | None, epilogue: Any, beta: Any) -> Addition:
    """Return where kernels have what is added to a group, and its epilogue and beta; a bias is put there.

    Parameters
    ----------
    target : Part or None
        D: where it lies by columns, along which no bias is read as C, that is a tensor of the epilogue.

    Raises
    ------
    ArgumentError
        There is no problem; or something would not be read, or is missing.
    """
    for part in (group.A, group.B, group.C, group.bias, target):
        if part is not None and not part.views:
            raise ArgumentError(f"{part.name} is an empty list: a plan of groups is made from one problem or more")
    by_rows = True
    if target is not None and group.has_bias:
        by_rows = form_of_all(target, element_of_all(target).bits, group.used).is_row_major
    addition = Addition.decided(group.has_matrices, group.has_bias, epilogue, beta, by_rows, "cs")
    if addition.added.bias == "port":
        group.put_bias_beside()
    return addition


def about_added(added: Added, group: Group) -> str:
    """Return what to do about a C or a bias that is missing, or that is not read."""
    read = [name for name, is_read in (("cs", added.takes_c), ("bias", bool(added.bias))) if is_read]
    given = [name for name, is_given in (("cs", group.has_matrices), ("bias", group.has_bias)) if is_given]
    if not read:
        return f"this plan was made without cs and bias, and {' and '.join(given)} is given: leave it out"
    return (
        f"this plan was made with {' and '.join(read)}, and {' and '.join(given) or 'neither'} is given: give what it "
        f"was made with, or make another plan"
    )


def check_pairs(group: Group, epilogue: Any) -> None:
    """Raise ArgumentError where an epilogue combines pairs of columns that groups divide, or that have no neighbour."""
    if group.axis == 1 and is_gated(epilogue):
        raise ArgumentError(
            "the epilogue combines pairs of columns, and offs divides the columns of ws: give lists of xs and ws"
        )
    written = zip(group.sizes[:, 1].tolist(), group.used.tolist(), strict=True)
    for number, (columns, are_written) in enumerate(written if is_gated(epilogue) else ()):
        check_columns(epilogue, columns, f"ws[{number}]", are_written=are_written)


def kind_of_group(group: Group, target: Part | None, wanted: Wanted) -> GemmKind:
    """Return the kind of GEMM that the problems of a group are, with D as `target` lies, or packed."""
    check_pairs(group, wanted.epilogue)
    columns = columns_of(wanted.epilogue)
    elements = group.elements()
    check_types(*elements, ("xs", "ws"))
    of_a, of_b = group.forms()
    if target is None:
        of_d = group.form_of_new(wanted.output(elements[0]), columns)
    else:
        element = element_of_all(target)
        wanted = wanted.into(element)
        of_d = form_of_all(target, element.bits, group.used)
    return kind_of(*elements, (of_a, of_b, group.form_of_c(of_d), of_d), wanted, ("xs", "ws"))


def check_listed_ports(kind: GemmKind, sizes: NDArray[np.int32], inputs: Mapping[str, Any]) -> None:
    """Raise for lists of tensors of the epilogue that do not fit the problems of a group, as a launch would.

    What is left out, None in a list too, and one tensor that holds those of all problems is looked at when the plan is
    run.
    """
    for port in kind.epilogue.ports:
        tensors, is_written = inputs.get(port.name), port in kind.epilogue.outputs
        if not isinstance(tensors, list | tuple):
            continue
        if len(tensors) != len(sizes):
            raise ArgumentError(
                f"{port.name} in epilogue_inputs has {counted(len(tensors), 'tensor')}, and the group has "
                f"{counted(len(sizes), 'problem')}: give a tensor for each"
            )
        for number, (m, n, _) in enumerate(sizes.tolist()):
            if tensors[number] is not None and m and n:
                of_one = replace(port.beside(kind.D), name=f"{port.name}[{number}]")
                check_port(of_one, tensors[number], (m, n), written=is_written)


def check_gradients_of_group(group: Group, target: Part | None, ports: Mapping[str, TensorView] = _NO_PORTS) -> None:
    """Refuse tensors whose gradients would be lost, as `check_gradients` does: the first of each operand is named."""
    parts = [part for part in (group.A, group.B, group.C, group.bias, target) if part is not None]
    asking = [found for part in parts for found in part.requiring_grad()[:1]]
    of_ports: dict[str, tuple[str, TensorView]] = {}
    for label, view in ports.items():
        if view.requires_grad or view.has_tangent:
            of_ports.setdefault(label.partition("[")[0], (label, view))
    check_gradients(dict([*asking, *of_ports.values()]), "product")


def device_of_group(group: Group) -> int | None:
    """Return the GPU of a group's tensors, as `device_of` does."""
    return device_of(dict([*group.A.named_views(), *group.B.named_views()]))
