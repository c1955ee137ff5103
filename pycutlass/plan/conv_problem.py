"""The problem that the operands of a convolution make, with the options of torch's functions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pycutlass import _core
from pycutlass.calls import shown
from pycutlass.errors import ArgumentError, ArgumentTypeError
from pycutlass.integers import several
from pycutlass.operands.conv_operand import Extent
from pycutlass.operands.convolutions import conv2d_problem_size, pair_of
from pycutlass.plan.pixels import extent_of
from pycutlass.spec import TensorSpec
from pycutlass.tensor import TensorView

__all__ = ["Geometry", "channels_in_group", "direction_of", "extents_of", "problem_of", "with_images"]

_Operator = _core.ConvOperator
_NCHW = (0, 2, 3, 1)


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
    (name_a, (a, view_a)), (name_b, (b, view_b)) = operands.items()
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
    if direction is _Operator.fprop:
        return _size(a, b, view_b, name_b, geometry)
    made = _result(result_size, view_a, "input_size" if direction is _Operator.dgrad else "weight_size")
    view = TensorView(0, made.dtype, made.shape, made.strides, None, "spec", made)
    if direction is _Operator.dgrad:
        problem = _size(made, _as_spec(name_b, view_b), view_b, name_b, geometry)
    else:
        problem = _size(_as_spec(name_b, view_b), made, view, "weight_size", geometry)
    found, wanted = extent_of(name_a, view_a), (problem.N, problem.P, problem.Q, problem.K)
    if found != wanted:
        raise ArgumentError(
            f"{name_a} must be of {_shown(wanted, view_a)}, the output of such a convolution; got {view_a.shape}"
        )
    return problem


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


def _size(x: Any, w: Any, view: TensorView, name: str, geometry: Geometry) -> _core.Conv2dProblemSize:
    stride, dilation = pair_of("stride", geometry.stride), pair_of("dilation", geometry.dilation)
    padding = _padding(geometry.padding, extent_of(name, view), stride, dilation, view.library == "torch")
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
