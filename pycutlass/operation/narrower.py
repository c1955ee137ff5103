"""What to describe an operation with, where tensors are less aligned or of another layout: only what is accepted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from pycutlass.epilogue import FunctionEpilogue
from pycutlass.errors import AlignmentError, ArgumentError, ArgumentTypeError, PyCutlassError
from pycutlass.families.other_family import as_ampere
from pycutlass.families.sm90_register_a import loads_a
from pycutlass.integers import attribute, shape_of
from pycutlass.library import TensorDescription
from pycutlass.log import silent
from pycutlass.operands import MisalignedError, OtherLayoutError, OtherTypeError
from pycutlass.remedies import EpilogueName, alignment_of
from pycutlass.spec import view_of
from pycutlass.types import Element, element_of_dtype

__all__ = ["explained", "narrower"]

_STAGES = " and give the tile stages=2, since deeper pipelines load at least 4 bytes at a time"
_CLUSTER = " and give the tile cluster_shape=[1, 1], since cp.async, by which they are loaded then, shares nothing"
#: The extents of the operands of a GEMM, by rows and columns.
_EXTENTS = {"A": "MK", "B": "KN", "C": "MN"}


_DESCRIBED = {"D": "C", "destination": "C", "source": "C"}


@silent()  # other descriptions are tried
def explained(
    operation: Any,
    error: MisalignedError | OtherLayoutError | OtherTypeError,
    given: Mapping[str, Any] = MappingProxyType({}),
) -> PyCutlassError:
    """Return what is said to users of `operation`: the rule, and each remedy that they have.

    `given` are the tensors, by operand, as far as they are known.
    """
    if isinstance(error, OtherTypeError):
        return ArgumentTypeError(error.text(_with_type(operation, error, given)))
    letter = error.name.partition("[")[0]
    described = _DESCRIBED.get(letter, letter)
    if isinstance(error.name, EpilogueName) or described not in _EXTENTS:
        return _of_epilogue(operation, error)
    if isinstance(error, OtherLayoutError):
        return ArgumentError(_with_layout(operation, error, letter, described, given))
    alignments = {described: error.fits}
    if error.extent is not None and hasattr(operation, "A") and operation.A.order.rank == 2:
        along = _line(operation, described)
        shared = {name for name in _EXTENTS if _line(operation, name) == along} - {described}
        alignments |= {name: alignment_of(8, 0, error.extent) for name in shared}
    remedy = narrower(operation, alignments, described, letter == "D")
    if operation.is_sm90 and not remedy:
        needs, changes = "as TMA needs 16-byte alignment", ""
        if hasattr(operation, "loads_by_cp_async"):  # which a group lacks
            by_threads = described != "C" and not _loads_a(operation)  # which goes to registers by TMA alone
            needs += ", and cp.async 4-byte alignment" if by_threads else ""
            changes = _ampere(operation, alignments, letter == "D")
        return AlignmentError(f"{error.rule}, {needs}. {error.padded}{changes and f', or {changes}'}.")
    return AlignmentError(error.text(remedy))


def _of_epilogue(operation: Any, error: MisalignedError | OtherLayoutError) -> PyCutlassError:
    """Return what is said of a matrix of an epilogue, which a function may describe otherwise."""
    if isinstance(error, MisalignedError):
        return AlignmentError(error.text(_redescribed(operation, error.name, alignment=error.fits)))
    offer = _redescribed(operation, error.name, layout=error.layout)
    return ArgumentError(error.described.replace(error.OFFER, offer) if offer else error.alone)


def _redescribed(operation: Any, name: str, **changes: Any) -> str:
    """Return how to describe a matrix of an epilogue function otherwise; nothing where it cannot be."""
    functor = operation.epilogue_functor
    port = next((port for port in functor.ports if port.name == name and port.form == "matrix"), None)
    if port is None or type(functor) is not FunctionEpilogue or not all(changes.values()):
        return ""
    most = {} if "alignment" in changes else {"alignment": 128 // port.type.bits}
    types = dict(functor.types) | {port.name: replace(port.description, **changes, **most)}
    made = replace(functor, types=tuple(types.items()))
    apart = getattr(operation, "is_apart", False)
    fields = {name: getattr(operation, name) for name in operation._FIELDS if name != "D" or apart}
    try:
        type(operation)(**fields | {"epilogue_functor": made})
    except PyCutlassError:
        return ""
    kind = dict(made.types)[port.name]
    return f"describe it, {port.name}={kind if isinstance(kind, TensorDescription) else port.type}"


def _count(listed: Any) -> int:
    """Return how many matrices there are in a list, or in a tensor that holds them along its first dimension."""
    return len(listed) if isinstance(listed, list | tuple) else (shape_of(listed) or (0,))[0]


def _with_layout(operation: Any, error: OtherLayoutError, letter: str, described: str, given: Mapping[str, Any]) -> str:
    """Return the message about an operand of another layout, with the description that takes it if there is one.

    It must take all that it describes: whole lists, and C beside D.
    """
    apart = getattr(operation, "is_apart", False)
    if letter != error.name and _count(given.get(letter)) != 1:
        return error.alone
    beside = None if apart or described != "C" else _beside(letter, given)
    if beside is not None and not _has_layout(beside, error.layout.__name__ == "RowMajor"):
        return error.alone
    described = letter if apart and letter == "D" else described
    fields = {name: getattr(operation, name) for name in operation._FIELDS if name != "D" or apart}
    fields[described] = replace(fields[described], layout=error.layout)
    try:
        type(operation)(**fields)
    except (PyCutlassError, TypeError):  # TypeError: an epilogue of the user's, which is no dataclass
        return error.alone
    return error.text(described, apart)


def _with_type(operation: Any, error: OtherTypeError, given: Mapping[str, Any]) -> str:
    """Return the description that takes a C or D of another type; nothing where there is none.

    A and B are of the type that the math instruction multiplies, and with another one hardly anything would stay. Of a
    list, nobody knows whether the others are of that type too.
    """
    kind, name = element_of_dtype(error.view.dtype_name or ""), error.name
    if kind is None or name not in ("C", "D", "source", "destination"):
        return ""
    is_target, apart = name[0] in "Dd", getattr(operation, "is_apart", False)
    described = "D" if apart and is_target else "C"
    other = _beside(name, given)
    if not apart and other is not None and _dtype_name(other) != error.view.dtype_name:
        return ""
    strides = [step for step in error.view.strides or () if step != 1]
    shape = [extent for extent in error.view.shape or () if extent]
    inner = [extent for extent, step in zip(shape, error.view.strides or (), strict=False) if step == 1]
    fits = alignment_of(kind.bits, error.view.pointer, *strides, *inner)
    alignment = min(fits or 128 // kind.bits, 128 // kind.bits)
    fields = {each: getattr(operation, each) for each in operation._FIELDS if each != "D" or apart}
    functor = fields["epilogue_functor"]
    while alignment:
        try:
            fields[described] = replace(fields[described], element=kind.tag, alignment=alignment)
            fields["epilogue_functor"] = replace(functor, element_output=kind.tag, epilogue_vector_length=alignment)
            if "count" in fields:  # of a reduction
                fields["count"] = alignment
            made = type(operation)(**fields)
        except (PyCutlassError, TypeError):  # TypeError: an epilogue of the user's, which is no dataclass
            alignment //= 2
            continue
        if getattr(made, described).alignment == alignment:
            return _typed(described, kind, alignment, is_target and described == "C", "count" in fields)
        alignment //= 2
    return ""


def _typed(described: str, kind: Element, alignment: int, follows: bool, of_reduction: bool) -> str:
    which = f"{described}, which D follows," if follows else described
    if of_reduction:
        which = "C of the reduction"
    count = f" and the reduction count={alignment}" if of_reduction else ""
    return (
        f"describe {which} as {kind} with alignment {alignment}, and give the epilogue functor "
        f"element_output={kind} and epilogue_vector_length={alignment}{count}"
    )


def _beside(name: str, given: Mapping[str, Any]) -> Any:
    """Return the C that is added to the D called `name`, or the other way round; None where there is none."""
    beside = ("C", "source") if name[0] in "Dd" else ("D", "destination")
    return next((given[each] for each in beside if given.get(each) is not None), None)


def _has_layout(tensor: Any, row_major: bool) -> bool:
    """Return whether rows, or columns, of a matrix are adjacent."""
    tensor = tensor[0] if isinstance(tensor, list | tuple) and len(tensor) == 1 else tensor
    try:
        strides = view_of("C", tensor).strides or ()
    except PyCutlassError:
        return False
    return len(strides) > 1 and strides[-1 if row_major else -2] == 1


def _dtype_name(tensor: Any) -> str:
    """Return the name of the element type of what may be a tensor."""
    return str(attribute(tensor, "dtype")).removeprefix("torch.")


def narrower(operation: Any, alignments: Mapping[str, int], least: str = "", is_target: bool = False) -> str:
    """Return the descriptions that make do with these alignments, as a remedy; nothing where there are none.

    Parameters
    ----------
    alignments : mapping
        What the memory of A, B and C has, in elements; 0 for none at all. What an operand needs no more than stays.
    least : str
        The operand that is narrowed in any case.
    is_target : bool
        Whether C is named because D follows it.
    """
    chosen = _chosen(operation, alignments, least)
    if not all(alignments.values()) or (getattr(operation, "is_apart", False) and (is_target or "C" in chosen)):
        return ""
    changes: list[tuple[dict[str, Any], str]] = [({}, "")]
    if hasattr(operation, "tile_description"):  # which a reduction lacks
        changes.append(({"cluster_shape": (1, 1, 1)}, _CLUSTER) if operation.is_sm90 else ({"stages": 2}, _STAGES))
    for change, said in changes:
        if _is_accepted(operation, chosen, change):
            return _text(chosen, is_target) + said
    return ""


def _loads_a(operation: Any) -> bool:
    parts = operation.family.parts_of(operation)
    return loads_a(parts.A, parts.B)


def _chosen(operation: Any, alignments: Mapping[str, int], least: str) -> dict[str, int]:
    """Return the alignments that are less than what is described, and that of operand `least`."""
    return {
        name: alignments[name]
        for name in "ABC"
        if name in alignments and (name == least or alignments[name] < getattr(operation, name).alignment)
    }


def _ampere(operation: Any, alignments: Mapping[str, int], is_target: bool) -> str:
    """Return how to describe a Hopper-native operation as an Ampere-style one with these alignments, if it can be."""
    if not all(alignments.values()) or getattr(operation, "is_apart", False):
        return ""
    chosen = _chosen(operation, alignments, "")
    try:
        changes = as_ampere(operation.tile_description, operation, **_fields(operation, chosen))
    except (PyCutlassError, TypeError):  # TypeError: an epilogue of the user's, which is no dataclass
        return ""
    return f"for an Ampere-style kernel {changes}, and {_text(chosen, is_target)}" if changes else ""


def _fields(operation: Any, alignments: Mapping[str, int]) -> dict[str, Any]:
    """Return operands with other alignments, and the epilogue that goes with them."""
    fields = {name: replace(getattr(operation, name), alignment=alignment) for name, alignment in alignments.items()}
    if "C" in alignments:
        functor = replace(operation.epilogue_functor, epilogue_vector_length=alignments["C"])
        fields |= {"epilogue_functor": functor}
        if "D" in operation._FIELDS:
            fields |= {"D": fields["C"]}
    return fields


def _line(operation: Any, name: str) -> str:
    """Return the extent along which the elements of an operand are adjacent."""
    return _EXTENTS[name][1 if getattr(operation, name).is_row_major else 0]


def _is_accepted(operation: Any, alignments: Mapping[str, int], of_tile: Mapping[str, Any]) -> bool:
    """Return whether there is such an operation with other alignments, and another tile."""
    apart = getattr(operation, "is_apart", False)
    fields = {name: getattr(operation, name) for name in operation._FIELDS if name != "D" or apart}
    try:
        changed = _fields(operation, alignments)
        if not apart:
            changed.pop("D", None)
        fields |= changed
        if "C" in alignments and "count" in fields:  # of a reduction
            fields["count"] = alignments["C"]
        if of_tile:
            fields["tile_description"] = replace(fields["tile_description"], **of_tile)
        made = type(operation)(**fields)
    except (PyCutlassError, TypeError):  # TypeError: an epilogue of the user's, which is no dataclass
        return False
    return all(getattr(made, name).alignment == alignment for name, alignment in alignments.items())


def _text(alignments: Mapping[str, int], is_target: bool) -> str:
    by_alignment: dict[int, list[str]] = {}
    for name, alignment in alignments.items():
        by_alignment.setdefault(alignment, []).append(name)
    text = "describe " + " and ".join(
        f"{' and '.join(names)} with alignment {alignment}" for alignment, names in by_alignment.items()
    )
    if "C" not in alignments:
        return text
    if is_target:
        text = text.replace("C with", "C, which D follows, with", 1)
    return f"{text} and give the epilogue functor epilogue_vector_length={alignments['C']}"
