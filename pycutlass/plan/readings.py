"""What a plan reads of tensors: the problem that they make, types, forms and the device that they are on."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from pycutlass import device
from pycutlass.calls import shown, suggestion
from pycutlass.epilogue import Epilogue, Port
from pycutlass.epilogue.given_scalars import frozen
from pycutlass.errors import ArgumentError, ArgumentTypeError
from pycutlass.integers import real
from pycutlass.library import TensorDescription
from pycutlass.operands.epilogue import is_plain_number, port_name, port_operand, port_operand_of
from pycutlass.plan.forms import Form, form_of
from pycutlass.plan.gradients import kept_scalars
from pycutlass.remedies import typed
from pycutlass.spec import view_of
from pycutlass.tensor import TensorView
from pycutlass.types import ELEMENTS, Element

__all__ = [
    "about_c",
    "batches",
    "check_port",
    "check_ports",
    "checked_form",
    "device_of",
    "element_of",
    "form_of_c",
    "given_scalars",
    "is_same_scalar",
    "is_usual",
    "named_inputs",
    "needs_source",
    "packed_form",
    "place",
    "range_of",
    "size_of",
]

_BY_NAME: Mapping[str, Element] = {row.dtype_name: row for row in reversed(ELEMENTS) if row.short != "tf32"}


def range_of(m: int) -> int:
    """Return the largest M of the range that `m` is in: ranges are an eighth of their power of two wide."""
    step = 1 << max(0, (m - 1).bit_length() - 4) if m > 1 else 1
    return -(-m // step) * step


def size_of(a: TensorView, b: TensorView) -> tuple[tuple[int, int, int], int | None]:
    """Return M, N, K and the number of matrices, None where there is no batch."""
    if a.shape is None or b.shape is None or not {len(a.shape), len(b.shape)} <= {2, 3}:
        raise ArgumentError(
            f"a plan takes a and b of two dimensions, or of three in a batch; got shapes {a.shape} and {b.shape}. "
            f"pycutlass.matmul takes others"
        )
    found = {view.shape[0] for view in (a, b) if view.shape is not None and len(view.shape) == 3}
    if a.shape[-1] != b.shape[-2] or len(found) > 1:
        raise ArgumentError(
            f"a of (M, K) and b of (K, N) must have one K, and one batch where both have; got {a.shape} and {b.shape}"
        )
    size = a.shape[-2], b.shape[-1], a.shape[-1]
    return size, found.pop() if found else None


def element_of(name: str, view: TensorView) -> Element:
    """Return the element type of a tensor, or raise."""
    found = _BY_NAME.get(view.dtype_name or "")
    if found is None:
        raise ArgumentError(
            f"{name} is of {view.dtype_name or 'no known type'}, which kernels do not take: {_in_its_place(name, view)}"
        )
    return found


def _in_its_place(name: str, view: TensorView) -> str:
    """Return what to pass instead of a tensor of a type that kernels do not take."""
    given, usual = view.dtype_name or "", "float32"
    if name.startswith("out"):
        return f"make {name} of one that they write, such as {usual}"
    if given.startswith("complex"):
        return f"they multiply real numbers, so pass contiguous copies of {name}.real and of {name}.imag"
    if not given.startswith(("bool", "int", "uint", "float")):
        return f"pass numbers, for example of {usual}"
    types = "they multiply floats of 8, 16, 32 and 64 bits, int8 and uint8"
    if view.library not in ("numpy", "cupy", "torch") or not name.isidentifier():
        return f"{types}. Convert it, for example to {usual}"
    cast = "to" if view.library == "torch" else "astype"
    return f"{types}. Convert it, for example {name}.{cast}({typed(view.library, usual)})"


def checked_form(name: str, view: TensorView, of: Element, by_rows_if_either: bool | None = None) -> Form:
    """Return the form of a tensor that kernels take as it is, or raise with the remedy.

    A single row or column lies by rows and by columns: it is taken as asked for, or so that more of it is aligned.
    """
    if view.shape is None or len(view.shape) < 2:
        raise ArgumentError(f"{name} must be a matrix or a batch of matrices, got shape {view.shape}")
    found = form_of(view, of.bits, by_rows_if_either)
    if found is None:
        raise ArgumentError(
            f"{name} of shape {view.shape} has strides {view.strides}, and kernels take adjacent elements along rows "
            f"or columns: pass a contiguous copy, or allow_copy=True to pycutlass.matmul"
        )
    return found


def form_of_c(view: TensorView, size: tuple[int, int, int], batch: int | None, of_d: Form) -> Form:
    """Return the form of C: a vector is added to each row of D."""
    if view.shape is None or view.strides is None:
        raise ArgumentTypeError("c is an address, which says neither shape nor type: pass a tensor")
    if len(view.shape) > 1:
        of = element_of("c", view)
        return form_of(view, of.bits, of_d.is_row_major) or checked_form("c", view, of)
    if view.shape != (size[1],):
        raise ArgumentError(f"c is a vector, and so a bias of {size[1]} elements; got shape {view.shape}")
    if not of_d.is_row_major:
        raise ArgumentError(
            "c is a vector, which is added to each row, and out lies by columns, along which kernels read vectors: "
            "pass an out whose rows are adjacent"
        )
    as_row = replace(view, shape=(1, *view.shape), strides=(0, *view.strides))
    found = checked_form("c", as_row, element_of("c", view))
    return Form(of_d.is_row_major, found.alignment)


def packed_form(columns: int, out: Element) -> Form:
    """Return the form of packed rows."""
    alignment = 128 // out.bits
    while columns % alignment:
        alignment //= 2
    return Form(True, alignment)


def is_usual(value: Any, number: float) -> bool:
    """Return whether a scalar was left out, which is None, or is the number of Python that it would be then."""
    return value is None or (isinstance(value, int | float) and bool(value == number))


def is_same_scalar(value: Any, other: Any) -> bool:
    """Return whether two scalars are one object, or equal numbers on the host."""
    value, other = frozen(value), frozen(other)
    numbers = int | float | np.integer | np.floating
    if value is other or not isinstance(value, numbers) or not isinstance(other, numbers):
        return value is other
    try:
        return real(value) == real(other)
    except ArgumentError:  # beyond float64, of which a launch says more
        return bool(value == other)


def named_inputs(given: Any) -> dict[str, Any]:
    """Return the inputs of an epilogue by name; raise ArgumentTypeError for anything but a mapping of names."""
    if given is None:
        return {}
    try:
        inputs = dict(given) if isinstance(given, Mapping) else None
    except Exception:  # of whoever wrote the mapping
        inputs = None
    if inputs is None or not all(type(name) is str for name in inputs):
        raise ArgumentTypeError(f"epilogue_inputs must be a mapping of names, got {shown(given)}")
    return inputs


def needs_source(epilogue: Any, beta: Any) -> bool:
    """Return whether C is read."""
    reads = getattr(epilogue, "reads_source", None)
    if reads is None and hasattr(epilogue, "graph"):
        return any(each.form == "source" for each in epilogue.graph.inputs)
    return not is_usual(beta, 0) if reads is None else bool(reads)


def about_c(is_given: bool, beta: Any, epilogue: Any, name: str = "c") -> str:
    """Return what to do about a C that is missing, or that would not be read."""
    if getattr(epilogue, "reads_source", None) is not None or hasattr(epilogue, "graph"):  # which says so itself
        if not is_given:
            source = _source_of(epilogue)
            return (
                f"{name} is missing, and the epilogue {shown(epilogue)} reads it: give {name}"
                f"{f', which its parameter {source} stands for, beside epilogue_inputs' if source else ''}"
            )
        how = "give it a parameter of Source"
        if getattr(getattr(epilogue, "graph", None), "is_gated", False):  # which Source does not go with
            how = (
                f"kernels that combine pairs of columns read no C, so give the function a parameter of Tensor, of "
                f"(M, N / 2) behind pairs or of (M, N) before them, and pass {name} in epilogue_inputs"
            )
        if name == "bias":
            own = {each.name for each in getattr(getattr(epilogue, "graph", None), "inputs", ())}
            if "bias" in own:
                return (
                    f"bias is given, and the epilogue {shown(epilogue)} reads one of its own: pass it in "
                    f'epilogue_inputs={{"bias": bias}}'
                )
            how = (
                "give it a parameter of Row, or take a ready-made function with a bias, and pass it in epilogue_inputs"
            )
        return f"{name} is given, and the epilogue {shown(epilogue)} does not read it: {how}, or leave {name} out"
    if not is_given:
        return f"{name} is missing, and would be read: beta is {shown(beta)}. Give {name}, or leave out beta"
    return f"{name} is given and beta is 0: it would not be read. Pass beta=1 to add it, or leave {name} out"


def _source_of(epilogue: Any) -> str:
    """Return what an epilogue function calls C; "" where it does not read it, or is no function."""
    inputs = getattr(getattr(epilogue, "graph", None), "inputs", ())
    return next((each.name for each in inputs if each.form == "source"), "")


def about_ports(epilogue: Epilogue, wanted: Collection[str], given: Collection[str]) -> str:
    """Return what to do about tensors of an epilogue that are missing, or that it does not have."""
    names, got = ", ".join(wanted), ", ".join(given) or "none"
    scalars = ", ".join(name for name in given if name in epilogue.scalar_names)
    of_plan = f". A plan takes scalars, {scalars}, where it is made" if scalars else ""
    if not names:
        return f"the epilogue has no tensors, and epilogue_inputs has {got}: leave these out{of_plan}"
    unknown = [name for name in given if name not in wanted and name not in epilogue.scalar_names]
    near = "".join(dict.fromkeys(suggestion(name, wanted) for name in unknown))
    lacking = [port.name for port in epilogue.outputs if port.name in wanted and port.name not in given]
    if lacking and not unknown:
        of_plan += (
            f". {', '.join(lacking)} {'is' if len(lacking) == 1 else 'are'} written: pass memory that you make, of the "
            f"shapes and types that plan.operation.outputs(problem_size) says, of groups epilogue_outputs"
        )
    told = f"pass each by its name{of_plan}{near and '.'}{near}"
    return f"the epilogue has the tensors {names}, and epilogue_inputs has {got}: {told}"


def given_scalars(epilogue: Epilogue, alpha: Any, beta: Any, inputs: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the scalars of an epilogue among what it is given, which a plan keeps; it does not keep tensors.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        Something that the epilogue does not take, two values of one scalar, one whose gradient would be lost, or a
        default that becomes 0 or infinite in the type that is computed in.
    """
    names, known = {port.name for port in epilogue.ports}, tuple(epilogue.scalar_names)
    given = named_inputs(inputs)
    unknown = sorted(set(given) - names - set(known))
    if unknown:
        takes = (*sorted(names), *known)
        near = dict.fromkeys(suggestion(name, takes) for name in unknown)
        raise ArgumentTypeError(
            f"epilogue_inputs has {', '.join(unknown)}, and the epilogue {epilogue!r} takes "
            f"{', '.join(takes) or 'none'}.{''.join(near)}{_about_source(epilogue, unknown)}"
        )
    scalars = {name: value for name, value in given.items() if name in known}
    for name, value, usual in (("alpha", alpha, 1), ("beta", beta, 0)):
        if name in known:
            if value is not None:
                if not is_same_scalar(scalars.setdefault(name, value), value):
                    raise ArgumentError(
                        f"{name} is {shown(value)}, and epilogue_inputs has {name}={shown(scalars[name])}: give it "
                        f"once, as {name}="
                    )
            elif not hasattr(epilogue, "graph"):  # a function has defaults of its own
                scalars.setdefault(name, usual)
        elif not is_usual(value, usual):
            raise ArgumentError(f"{name}={shown(value)} has no effect: the epilogue {epilogue!r} lacks it")
    lost = next(filter(None, (epilogue.lost_default(name) for name in known if name not in scalars)), "")
    if lost:
        raise ArgumentError(lost)
    return kept_scalars(scalars, "launch")


def _about_source(epilogue: Epilogue, unknown: Collection[str]) -> str:
    """Return where C belongs, if it is among inputs that are not known by the name of a Source."""
    source = _source_of(epilogue)
    return f" {source} is a Source, which stands for c (of groups cs): give it as that." if source in unknown else ""


def check_ports(
    epilogue: Epilogue, D: TensorDescription, given: Mapping[str, Any], size: tuple[int, int], batch: int = 1
) -> None:
    """Raise for tensors of an epilogue that do not fit a product of M x N, as a launch would.

    What is left out is looked at when the plan is run.

    Raises
    ------
    ArgumentError, ArgumentTypeError, AlignmentError
        Another shape, type or strides.
    """
    for port in epilogue.ports:
        if (tensor := given.get(port.name)) is not None:
            check_port(port.beside(D), tensor, size, batch, written=port in epilogue.outputs)


def check_port(port: Port, tensor: Any, size: tuple[int, int], batch: int = 1, *, written: bool) -> None:
    """Raise for one tensor of an epilogue as `check_ports` does."""
    if is_plain_number(tensor) or (port.form == "number" and real(tensor) is not None):  # of which a launch says more
        port_operand(port, tensor, *size, batch, written=written)
    view = view_of(port_name(port, written=written), tensor)
    port_operand_of(port, view, *size, batch, written=written)


def device_of(views: Mapping[str, TensorView]) -> int | None:
    """Return the GPU of the tensors; of those in host memory, and without memory, the current one if there is one."""
    found = {name: view.device for name, view in views.items() if view.device is not None and view.device >= 0}
    if len(set(found.values())) > 1:
        where = ", ".join(f"{name} on GPU {ordinal}" for name, ordinal in found.items())
        raise ArgumentError(f"tensors must be on one device, got {where}: move one")
    if found:
        return next(iter(found.values()))
    return device.current() if device.available() else None


def place(ordinal: int | None) -> str:
    """Return a device in words."""
    return "the host" if ordinal is None else f"GPU {ordinal}"


def batches(batch: int | None) -> str:
    """Return a number of matrices in words."""
    return "no batch" if batch is None else f"a batch of {batch}"
