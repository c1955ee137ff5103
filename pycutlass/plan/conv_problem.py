"""The problem that the operands of a convolution make, with the options of torch's functions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from pycutlass import _core
from pycutlass.calls import shown
from pycutlass.errors import ArgumentError, ArgumentTypeError, PyCutlassError
from pycutlass.integers import as_int, several
from pycutlass.log import silent
from pycutlass.operands.conv_operand import Extent
from pycutlass.operands.convolutions import conv2d_problem_size, pair_of
from pycutlass.plan.conv_meant import Part, other_groups, other_order, other_roles
from pycutlass.plan.pixels import extent_of
from pycutlass.spec import TensorSpec, view_of
from pycutlass.tensor import TensorView

__all__ = ["Geometry", "channels_in_group", "direction_of", "extents_of", "problem_of", "with_images"]

_Operator = _core.ConvOperator
_NCHW = (0, 2, 3, 1)
#: Which of A, B and the result are the weights.
_FILTER = {_Operator.fprop: 1, _Operator.dgrad: 1, _Operator.wgrad: 2}


@dataclass(frozen=True)
class Geometry:
    """How a filter goes over an activation, as the caller says it.

    Attributes
    ----------
    stride, padding, dilation : int or pair of int
        For both axes, or for height and width; a padding may be ``"valid"`` or ``"same"`` as well.
    groups : int
        Groups of channels.
    """

    stride: Any = 1
    padding: Any = 0
    dilation: Any = 1
    groups: Any = 1


def direction_of(kind: Any) -> _core.ConvOperator:
    """Return the direction of a name, or raise."""
    found = _Operator.__members__.get(kind) if isinstance(kind, str) else kind
    if not isinstance(found, _Operator):
        raise ArgumentTypeError(f"kind must be 'fprop', 'dgrad' or 'wgrad', got {shown(kind)}")
    return found


def problem_of(
    direction: _core.ConvOperator,
    operands: Mapping[str, tuple[Any, TensorView]],
    result_size: Any,
    geometry: Geometry,
) -> _core.Conv2dProblemSize:
    """Return the problem of two operands.

    Parameters
    ----------
    direction : cutlass.conv.Operator
        Which of the three convolutions.
    operands : mapping
        A and B with their views, by the names that the caller has for them: activation and filter, output gradient and
        filter, or output gradient and activation.
    result_size : sequence of 4 int, or None
        Shape of a gradient, in the order of the operands' library.
    geometry : Geometry
        How the filter goes over the activation.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        Options that are none, or operands that do not fit each other.
    """
    (name_a, (_, view_a)), (name_b, (_, view_b)) = operands.items()
    extent_of(name_a, view_a), extent_of(name_b, view_b)
    if (
        view_a.library != "spec"
        and view_b.library != "spec"
        and (view_a.library == "torch") != (view_b.library == "torch")
    ):
        raise ArgumentError(
            f"{name_a} is of {view_a.library} and {name_b} of {view_b.library}, which order dimensions otherwise: pass "
            f"both of one library"
        )
    made = None if direction is _Operator.fprop else _result(result_size, view_a, _name_of_result(direction))
    try:
        return _problem(direction, operands, made, geometry)
    except ArgumentError as error:
        said = str(error).partition(". x was read as")[0]
        meant = _meant(direction, operands, result_size, geometry)
        raise type(error)(f"{meant}. As given, {said}" if meant else said) from None


def _problem(
    direction: _core.ConvOperator,
    operands: Mapping[str, tuple[Any, TensorView]],
    made: TensorSpec | None,
    geometry: Geometry,
) -> _core.Conv2dProblemSize:
    """Return the problem of two operands and the shape of a gradient, or raise where they do not fit each other."""
    (name_a, (a, view_a)), (name_b, (b, view_b)) = operands.items()
    if made is None:
        return _size((name_a, a, view_a), (name_b, b, view_b), geometry)
    result = _name_of_result(direction)
    view = TensorView(0, made.dtype, made.shape, made.strides, None, "spec", made)
    of_result, of_b = (result, made, view), (name_b, _as_spec(name_b, view_b), view_b)
    problem = _size(*((of_result, of_b) if direction is _Operator.dgrad else (of_b, of_result)), geometry)
    found, wanted = extent_of(name_a, view_a), (problem.N, problem.P, problem.Q, problem.K)
    if found != wanted:
        raise ArgumentError(
            f"{name_a} must be of {_shown(wanted, view_a)}, the output of such a convolution; got {view_a.shape}"
        )
    return problem


def _meant(
    direction: _core.ConvOperator,
    operands: Mapping[str, tuple[Any, TensorView]],
    result_size: Any,
    geometry: Geometry,
) -> str:
    """Return what would fit in the place of operands that do not fit each other; "" where nothing near does."""
    parts = _parts(direction, operands, result_size)

    def fits(extents: Sequence[Extent], groups: Any = geometry.groups) -> bool:
        a, b, *result = (TensorSpec(extent, "float32") for extent in extents)
        given = {name: (spec, view_of(name, spec)) for name, spec in (("a", a), ("b", b))}
        try:
            with silent():  # nobody asked for these
                _problem(direction, given, result[0] if result else None, replace(geometry, groups=groups))
        except PyCutlassError:
            return False
        return True

    found = "" if direction is _Operator.fprop else other_roles(parts, fits)
    found = found or other_order(parts, fits)
    if found:
        return found
    read = [each.read for each in parts]
    x = {_Operator.fprop: 0, _Operator.dgrad: 2, _Operator.wgrad: 1}[direction]
    return other_groups(read[x], read[_FILTER[direction]], partial(fits, read))


def _parts(
    direction: _core.ConvOperator, operands: Mapping[str, tuple[Any, TensorView]], result_size: Any
) -> list[Part]:
    """Return the operands, and the size of a gradient, as they were given."""
    views = {name: view for name, (_, view) in operands.items()}
    is_torch = [view.library == "torch" for view in views.values()]
    given = [(name, tuple(view.shape or ()), view.library) for name, view in views.items()]
    if direction is not _Operator.fprop:
        given.append((_name_of_result(direction), tuple(several(result_size, 4) or ()), "size"))
        is_torch.append(is_torch[0])  # as `_result` reads it
    return [
        Part(name, "weights" if at == _FILTER[direction] else "images", shape, library, of_torch)
        for at, ((name, shape, library), of_torch) in enumerate(zip(given, is_torch, strict=True))
    ]


def _name_of_result(direction: _core.ConvOperator) -> str:
    return "input_size" if direction is _Operator.dgrad else "weight_size"


def extents_of(direction: _core.ConvOperator, p: _core.Conv2dProblemSize) -> tuple[Extent, Extent, Extent]:
    """Return the extents of A, B and D as (N, H, W, C)."""
    x, w, y = (p.N, p.H, p.W, p.C), (p.K, p.R, p.S, p.C // p.groups), (p.N, p.P, p.Q, p.K)
    return {_Operator.fprop: (x, w, y), _Operator.dgrad: (y, w, x), _Operator.wgrad: (y, x, w)}[direction]


def channels_in_group(direction: _core.ConvOperator, p: _core.Conv2dProblemSize) -> tuple[int, int, int]:
    """Return how many channels of A, B and D belong to one group."""
    c, k = p.C // p.groups, p.K // p.groups
    return (c, c, k) if direction is _Operator.fprop else (k, c, c)


def with_images(problem: _core.Conv2dProblemSize, count: int) -> _core.Conv2dProblemSize:
    """Return the same problem with another number of images."""
    size = problem.reset_split_k_slices(1)
    size.N = count
    return size


def _size(
    of_x: tuple[str, Any, TensorView], of_w: tuple[str, Any, TensorView], geometry: Geometry
) -> _core.Conv2dProblemSize:
    """Return the problem of an activation and a filter, each with its name and its view."""
    (name_x, x, view_x), (name_w, w, view_w) = of_x, of_w
    channels, of_filter = extent_of(name_x, view_x)[3], extent_of(name_w, view_w)[3]
    if as_int(geometry.groups) == 1 and channels != of_filter:
        raise ArgumentError(
            f"{name_w} must have the channels of {name_x}, {channels}, divided by groups=1; got {of_filter}"
        )
    stride, dilation = pair_of("stride", geometry.stride), pair_of("dilation", geometry.dilation)
    padding = _padding(geometry.padding, extent_of(name_w, view_w), stride, dilation, view_w.library == "torch")
    return conv2d_problem_size(x, w, stride=stride, padding=padding, dilation=dilation, groups=geometry.groups)


def _padding(
    given: Any, filter_extent: Extent, stride: tuple[int, int], dilation: tuple[int, int], is_torch: bool
) -> Any:
    """Return a padding as numbers: kernels pad as much before as after."""
    if type(given) is not str:  # one of the user's own compares as it likes
        return given
    if given == "valid":
        return 0
    if given != "same":
        raise ArgumentError(f"padding must be an integer, a pair of them, 'valid' or 'same'; got {shown(given)}")
    if stride != (1, 1):
        raise ArgumentError(f"padding='same' is for a stride of 1, got stride={stride}: give the padding as numbers")
    down, across = (step * (taps - 1) for step, taps in zip(dilation, filter_extent[1:3], strict=True))
    if down % 2 or across % 2:
        rows, columns = ((each // 2, each - each // 2) for each in (down, across))
        pad = f"np.pad(x, ((0, 0), {rows}, {columns}, (0, 0)))"
        if is_torch:
            pad = f"torch.nn.functional.pad(x, {columns + rows})"
        raise ArgumentError(
            f"padding='same' of a filter of {filter_extent[1]} x {filter_extent[2]} with dilation={dilation} pads more "
            f"behind than before, and kernels pad both sides alike: pass {pad} and padding=0"
        )
    return max(0, down // 2), max(0, across // 2)


def _result(size: Any, view: TensorView, name: str) -> TensorSpec:
    """Return the shape of a gradient as (N, H, W, C) without memory."""
    order = "(N, C, H, W)" if view.library == "torch" else "(N, H, W, C)"
    if name == "weight_size":
        order = "(K, C / groups, R, S)" if view.library == "torch" else "(K, R, S, C / groups)"
    if size is None:
        raise ArgumentError(
            f"{name} is missing, which a plan calls result_size: the shape of the gradient, {order}, does not follow "
            f"from the operands"
        )
    found = several(size, 4)
    if found is None:
        raise ArgumentTypeError(f"{name} must be four integers, {order}; got {shown(size)}")
    shape = tuple(found[axis] for axis in _NCHW) if view.library == "torch" else tuple(found)
    return TensorSpec(shape, view.dtype_name)


def _as_spec(name: str, view: TensorView) -> TensorSpec:
    return TensorSpec(extent_of(name, view), view.dtype_name)


def _shown(extent: Extent, view: TensorView) -> str:
    n, h, w, c = extent
    return str((n, c, h, w)) if view.library == "torch" else str(extent)
