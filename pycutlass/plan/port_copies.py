"""Copies of tensors that an epilogue reads, where these lie as no kernel takes them and copies are allowed."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from pycutlass import _core
from pycutlass.epilogue import Epilogue, Port
from pycutlass.errors import AlignmentError, ArgumentError, PyCutlassError
from pycutlass.integers import shape_of
from pycutlass.operands.convolutions import conv_tensor_of
from pycutlass.operands.epilogue import is_plain_number, port_name, port_operand_of
from pycutlass.operation import Conv2dOperation
from pycutlass.operation.conv2d_support import port_operand_of as conv_port_of
from pycutlass.plan.forms import copied
from pycutlass.plan.group import Group
from pycutlass.plan.kind import GemmKind
from pycutlass.plan.pixels import can_be_copied, copied_pixels, through_cupy
from pycutlass.plan.readings import check_port
from pycutlass.plan.stacks import Product
from pycutlass.spec import view_of
from pycutlass.tensor import TensorView
from pycutlass.types import ELEMENTS

__all__ = ["beside_convolution", "beside_group", "beside_product"]

_ACCESS = 16  # bytes of the widest access of a kernel
_OPERAND = np.dtype([("", np.void, _ACCESS)])
_Check = Callable[[Any], object]


def beside_product(product: Product, kind: GemmKind, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the tensors of the epilogue of a product as a plan takes them.

    Copies are made where the product allows them.

    Raises
    ------
    ArgumentError, AlignmentError
        A tensor that would have to be copied.
    """
    size, batch = (product.rows_of_gemm, product.columns), product.count if product.is_batched else 1
    taken: dict[str, Any] = {}
    for port, written in _among(kind.epilogue, inputs):
        name, of_d = port_name(port, written=written), port.beside(kind.D)

        def laid(tensor: Any, name: str = name, port: Port = port) -> Any:
            return product.beside(name, port.form, tensor, port.columns(product.columns))

        def check(tensor: Any, name: str = name, of_d: Port = of_d, laid: Callable[[Any], Any] = laid) -> None:
            port_operand_of(of_d, view_of(name, laid(tensor)), *size, batch, written=False)

        given = inputs[port.name]
        if not written and not product.is_empty:
            given = _packed_if_needed(name, given, check, of_d.is_by_columns, product.allows_copies)
        taken[port.name] = laid(given)
    return taken


def beside_group(kind: GemmKind, group: Group, inputs: Mapping[str, Any], allow_copy: bool) -> dict[str, Any]:
    """Return the tensors of the epilogue of a group, copies where kernels take none of them and that is allowed.

    Raises
    ------
    ArgumentError, AlignmentError
        A tensor that would have to be copied.
    """
    taken: dict[str, Any] = {}
    sizes = group.sizes.tolist()
    for port, written in _among(kind.epilogue, inputs):
        given, of_d = inputs[port.name], port.beside(kind.D)
        if written or not sizes:
            pass
        elif isinstance(given, list | tuple):
            if len(given) == len(sizes) and not group.is_on_device:  # whose lists are refused
                given = [
                    _packed_if_needed(
                        port_name(one, written=False), tensor, _of_one(one, m, n), of_d.is_by_columns, allow_copy
                    )
                    for one, tensor, (m, n, _) in zip(_numbered(of_d, len(sizes)), given, sizes, strict=True)
                ]
        else:
            given = _packed_if_needed(
                port_name(port, written=False), given, _of_all(group, of_d), of_d.is_by_columns, allow_copy
            )
        taken[port.name] = given
    return taken


def beside_convolution(
    operation: Conv2dOperation,
    problem: _core.Conv2dProblemSize,
    size: tuple[int, int],
    inputs: Mapping[str, Any],
    allow_copy: bool,
) -> dict[str, Any]:
    """Return the tensors of the epilogue of a convolution, copies where no kernel takes them and that is allowed.

    Parameters
    ----------
    size : tuple of 2 int
        Of the result as a matrix, of whose rows and columns vectors are.

    Raises
    ------
    ArgumentError, AlignmentError
        A tensor that would have to be copied.
    """
    taken: dict[str, Any] = {}
    for port, written in _among(operation.epilogue_functor, inputs):
        given = inputs[port.name]
        if not written and port.form == "matrix":
            given = _pixels_if_needed(port, given, operation, problem, allow_copy)
        elif not written:

            def check(tensor: Any, port: Port = port) -> None:
                check_port(port, tensor, size, written=False)

            given = _packed_if_needed(port_name(port, written=False), given, check, False, allow_copy)
        taken[port.name] = given
    return taken


def _among(epilogue: Epilogue, inputs: Mapping[str, Any]) -> list[tuple[Port, bool]]:
    """Return the tensors of an epilogue that are given, and whether kernels write them."""
    written = epilogue.outputs
    return [(port, port in written) for port in epilogue.ports if port.name in inputs]


def _numbered(port: Port, count: int) -> list[Port]:
    return [replace(port, name=f"{port.name}[{number}]") for number in range(count)]


def _of_one(port: Port, m: int, n: int) -> _Check:
    """Return what raises unless a kernel takes a tensor of one problem."""

    def check(tensor: Any) -> None:
        if m and n:
            check_port(port, tensor, (m, n), written=False)

    return check


def _of_all(group: Group, port: Port) -> _Check:
    """Return what raises unless a kernel takes the parts of a tensor that has those of all problems of a group."""

    def on_device(tensor: Any) -> None:
        count, columns = len(group), group.sizes[0].tolist()[1]
        if port.form in ("row", "number"):
            is_line = count == 1 and port.form == "row" and len(shape_of(tensor) or ()) == 2
            one = tensor[0] if is_line and hasattr(tensor, "__getitem__") else tensor  # DLPack alone has no parts
            check_port(port, one, (group.axis_total, columns), count, written=False)
        else:
            check_port(port, tensor, (group.axis_total, columns), written=False)

    def check(tensor: Any) -> None:
        parts = zip(group.port(port, tensor, False), group.sizes.tolist(), strict=True)
        for part, (m, n, _) in parts:
            _of_one(port, m, n)(part)

    return on_device if group.is_on_device else check


def _packed_if_needed(name: str, tensor: Any, check: _Check, by_columns: bool, allow_copy: bool) -> Any:
    """Return a tensor, or where kernels do not take it as it lies, and would take a packed one, its packed copy."""
    view = _looked_at(name, tensor)
    if view is None:
        return tensor
    shape = view.shape or ()
    by_rows = not by_columns or len(shape) < 2
    strides = _packed(shape if by_rows else (*shape[:-2], shape[-1], shape[-2]))
    strides = strides if by_rows else (*strides[:-2], 1, shape[-2])
    if view.strides == strides and not view.pointer % _ACCESS:
        return tensor
    element = next((row for row in ELEMENTS if row.dtype_name == view.dtype_name), None)
    if element is None:
        return tensor

    def stand_in() -> Any:
        """Return what looks as a copy would, of which nothing is read."""
        memory, step = np.empty(1, _OPERAND).view(np.uint8), element.dtype.itemsize
        at = memory[:step].view(element.dtype)
        return np.lib.stride_tricks.as_strided(at, shape, tuple(each * step for each in strides), writeable=False)

    def copy() -> Any:
        return copied(name, tensor, view, shape, by_rows)

    packed = "clone(memory_format=torch.contiguous_format)"
    packed = f"torch.from_dlpack({name}).{packed if by_rows else f'mT.{packed}.mT'}"
    return _taken(tensor, check, stand_in, copy, allow_copy, _remedy(view, packed))


def _pixels_if_needed(
    port: Port, tensor: Any, operation: Conv2dOperation, problem: _core.Conv2dProblemSize, allow_copy: bool
) -> Any:
    """Return images beside the result of a convolution, as `_packed_if_needed` does."""
    wanted = conv_port_of(port, operation, problem)
    view = _looked_at(port_name(port, written=False), tensor)
    if view is None or len(view.shape or ()) != 4:
        return tensor
    shape = view.shape or ()
    strides = _packed(shape)
    if view.library == "torch":  # (N, C, H, W)
        n, c, h, w = shape
        of_images, of_rows, of_pixels, of_channels = _packed((n, h, w, c))
        strides = of_images, of_channels, of_rows, of_pixels

    def check(given: Any) -> None:
        conv_tensor_of(wanted, given)

    def copy() -> Any:
        return copied_pixels(wanted.name, tensor, view)

    packed, remedy = replace(view, pointer=0, strides=strides), _remedy(view, through_cupy(wanted.name))
    made = _taken(view, check, lambda: packed, copy, allow_copy, remedy)
    return tensor if made is view else made


def _looked_at(name: str, tensor: Any) -> TensorView | None:
    """Return how a tensor looks; None of what is none, of which a launch says more, and of one without elements."""
    if tensor is None or is_plain_number(tensor):
        return None
    try:
        view = view_of(name, tensor)
    except PyCutlassError:
        return None
    is_tensor = view.shape is not None and view.strides is not None and view.library != "spec"
    return view if is_tensor and 0 not in (view.shape or ()) else None


def _packed(shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(math.prod(shape[axis + 1 :]) for axis in range(len(shape)))


def _remedy(view: TensorView, packed: str) -> str:
    """Return what to do about a tensor that has to be copied; `packed` does so where DLPack is all there is."""
    if can_be_copied(view):
        return "With allow_copy=True it is copied"
    return f"Its library is known by DLPack alone and copies nothing: pass {packed}"


def _taken(
    given: Any, check: _Check, stand_in: Callable[[], Any], copy: Callable[[], Any], allow_copy: bool, remedy: str
) -> Any:
    """Return what is given where it passes a check, or where its copy alone does, that copy, or say the remedy.

    What a copy does not mend is returned as it is: a launch says what is wrong with it.
    """
    try:
        check(given)
    except ArgumentError as error:
        try:
            check(stand_in())
        except PyCutlassError:
            return given
        if allow_copy:
            return copy()
        kind = AlignmentError if isinstance(error, AlignmentError) else ArgumentError
        raise kind(f"{str(error).rstrip('.')}. {remedy}.") from None
    except PyCutlassError:
        return given
    return given
