"""A plan: which kernel computes a convolution, made once and run with any tensors of the same kind."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from pycutlass import _core
from pycutlass.calls import public
from pycutlass.errors import ArgumentError
from pycutlass.operands.conv_operand import Extent
from pycutlass.operation import Conv2dOperation
from pycutlass.plan import picture
from pycutlass.plan.added import Added
from pycutlass.plan.base import Plan
from pycutlass.plan.conv_candidate import Conv2dCandidate
from pycutlass.plan.conv_checking import checked_conv
from pycutlass.plan.conv_choices import Conv2dChoices
from pycutlass.plan.conv_kind import Conv2dKind, conv_kind_of
from pycutlass.plan.conv_launches import Conv2dLaunch
from pycutlass.plan.conv_pick import conv2d_ranking, conv2d_refused
from pycutlass.plan.conv_problem import (
    Geometry,
    channels_in_group,
    direction_of,
    extents_of,
    problem_of,
    with_images,
)
from pycutlass.plan.kept import ResultForm
from pycutlass.plan.kinds import Wanted, check_epilogue
from pycutlass.plan.options import source_of
from pycutlass.plan.pixels import aligned, check_shape, checked_step, extent_of, new_pixels
from pycutlass.plan.predicted import Ranked
from pycutlass.plan.readings import about_c, device_of, element_of, given_scalars, needs_source, place
from pycutlass.spec import view_of
from pycutlass.tensor import TensorView
from pycutlass.types import Element

__all__ = ["Conv2d"]

_Operator = _core.ConvOperator
_Size = _core.Conv2dProblemSize


@public
class Conv2d(Plan[Conv2dCandidate, _Size]):
    """A plan of a convolution: the kernel for a kind of convolution, and how it is launched.

    =========  ===============  ==========  ===========================
    kind       a                b           result
    =========  ===============  ==========  ===========================
    fprop      activation       weights     output
    dgrad      output gradient  weights     gradient of the activation
    wgrad      output gradient  activation  gradient of the weights
    =========  ===============  ==========  ===========================

    Tensors of torch are (N, C, H, W) in the memory format channels_last, weights (K, C / groups, R, S); those of other
    libraries, and TensorSpecs, are (N, H, W, C) and (K, R, S, C / groups).

    It is for any number of images of one size: ranges of it have kernels of their own, which are chosen and compiled
    when they are first needed. Plans are safe for threads, can be pickled and copied as a choice, without what was
    compiled, and keep the tensors of a few last runs of each thread alive until `reset_operands` is called.

    Parameters
    ----------
    a, b : tensor or TensorSpec
        As the table has them.
    c : tensor or TensorSpec, optional
        What is added, of the shape of the result; a vector is a bias of one number for each of its channels.
    kind : str
        ``"fprop"``, ``"dgrad"`` or ``"wgrad"``.
    result_size : sequence of 4 int
        Shape of a gradient, in the order of `a`; `out` says it as well.
    stride, padding, dilation : int or pair of int
        For both axes, or for height and width. A padding may also be ``"valid"``, or ``"same"`` where both sides are
        padded alike.
    groups : int
        Groups of channels.
    alpha, beta : number
        The scalars. A `c` needs a `beta` other than 0.
    epilogue : optional
        An epilogue functor, an activation, or an epilogue function, with or without its types.
    epilogue_inputs : mapping, optional
        Tensors and scalars that it has beside C and D, by name: scalars are kept, tensors are given to `run` as well.
    out : tensor or TensorSpec, optional
        The result.
    out_dtype, accumulator_dtype : element type, optional
        What is written, and summed up in.
    precision : str, optional
        How float32 is multiplied: ``"float32"`` (the default), ``"tf32"`` or ``"3xtf32"``.
    bias : tensor or TensorSpec, optional
        A vector of one number for each channel of the result, in the place of `c`.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        Tensors that do not fit each other, or for which there is no kernel; the message names the remedy.

    Examples
    --------
    >>> import numpy as np, pycutlass
    >>> x, w = np.ones((2, 8, 8, 16), np.float16), np.ones((4, 3, 3, 16), np.float16)
    >>> plan = pycutlass.Conv2d(x, w, padding=1)
    >>> plan.run(x, w)[0, 1, 1, 0]
    np.float16(144.0)
    >>> dx = pycutlass.Conv2d(plan.run(x, w), w, kind="dgrad", result_size=x.shape, padding=1)
    >>> dx.operation.conv_kind.name
    'dgrad'
    """

    _line = "channel"

    def __init__(
        self,
        a: Any,
        b: Any,
        c: Any = None,
        *,
        kind: str = "fprop",
        result_size: Any = None,
        stride: Any = 1,
        padding: Any = 0,
        dilation: Any = 1,
        groups: Any = 1,
        alpha: Any = 1,
        beta: Any = 0,
        epilogue: Any = None,
        epilogue_inputs: Mapping[str, Any] | None = None,
        out: Any = None,
        out_dtype: Any = None,
        accumulator_dtype: Any = None,
        precision: str | None = None,
        bias: Any = None,
    ) -> None:
        check_epilogue(epilogue)
        c, beta = source_of(c, bias, beta, "channel")
        direction = direction_of(kind)
        views = {"a": view_of("a", a), "b": view_of("b", b)}
        views |= {name: view_of(name, given) for name, given in (("c", c), ("out", out)) if given is not None}
        if direction is not _Operator.fprop and result_size is None and out is not None:
            result_size = views["out"].shape
        operands = {"a": (a, views["a"]), "b": (b, views["b"])}
        self._problem = problem_of(direction, operands, result_size, Geometry(stride, padding, dilation, groups))
        wanted = Wanted(epilogue, out_dtype, accumulator_dtype, precision)
        if out is not None and out_dtype is None and not hasattr(epilogue, "output"):
            wanted = replace(wanted, out_dtype=element_of("out", views["out"]).tag)
        if (c is not None) != needs_source(epilogue, beta):
            raise ArgumentError(about_c(c, beta))
        self.kind: Conv2dKind = _kind(direction, self._problem, views, wanted)
        self._device = device_of(views)
        self._scalars = given_scalars(self.kind.epilogue, alpha, beta, epilogue_inputs)
        is_bias = c is not None and len(views["c"].shape or ()) == 1
        self._added = Added(c is not None, c is not None and not is_bias, "c" if is_bias else "")
        self._choices = Conv2dChoices(self.kind, self._problem, self._device, self.source)
        self._choices.of(self._problem.N)  # which says what to change where there is no kernel
        self._start()

    # What users ask of a plan

    @property
    def problem_size(self) -> _core.Conv2dProblemSize:
        """A copy of the problem that the plan was made with."""
        return with_images(self._problem, self._problem.N)

    @property
    def operation(self) -> Conv2dOperation:
        """The kernel for the number of images that the plan was made with."""
        return self.candidate.operation

    def candidates(self) -> tuple[Ranked[Conv2dCandidate], ...]:
        """Return all kernels that take the problem, the likely fastest first."""
        return conv2d_ranking(self.kind, self._problem, self._choices.gpu)

    def explain(self) -> str:
        """Return, as text, which kernels were considered, what is predicted of them, and why one was chosen."""
        gpu = self._choices.gpu
        refused = conv2d_refused(self.kind, self._problem, gpu)
        return picture.explained_conv(self.candidate, self.candidates(), refused, self._problem, gpu)

    def check(self, seed: int = 0) -> float:
        """Run the kernel on random numbers and compare D with float64; look at what lies around D.

        Returns
        -------
        float
            The largest error, in parts of what a right kernel may have: at most 1.

        Raises
        ------
        ArgumentError
            D is wrong, or something was written beside it; or the epilogue has tensors of its own.
        """
        return checked_conv(self, seed)

    # How it is done

    @property
    def _extent(self) -> int:
        return self._problem.N

    def _problem_of(self, a: Any, b: Any, view_a: TensorView, view_b: TensorView) -> tuple[_Size, int]:
        of_a, of_b = extent_of("a", view_a), extent_of("b", view_b)
        problem = with_images(self._problem, of_a[0])
        wanted = extents_of(self.kind.direction, problem)
        if (of_a, of_b) != wanted[:2]:
            raise ArgumentError(
                f"this plan is for a of {wanted[0]} with any number of images and b of {wanted[1]}, as (N, H, W, C); "
                f"got {of_a} and {of_b}: make another plan"
            )
        return problem, problem.N

    def _output_shape(self, problem: _Size) -> tuple[int, ...]:
        return extents_of(self.kind.direction, problem)[2]

    def _launch(
        self, candidate: Conv2dCandidate, problem: _Size, tensors: tuple[Any, Any, Any, Any], ports: Mapping[str, Any]
    ) -> Conv2dLaunch:
        return Conv2dLaunch(candidate, problem, tensors, self._scalars, ports)

    def _new(self, a: Any, like: ResultForm) -> Any:
        view, shape = like
        return new_pixels(a, view, shape, self.kind.D.type.dtype_name)

    def __reduce__(self) -> tuple[Any, ...]:
        state = (self.kind, self._problem, self._device, self._scalars, self._added)
        return _restored, (*state, *self._choices.state())

    def __repr__(self) -> str:
        return f"<Conv2d {self.kind.direction.name} of {self._problem!r}, on {place(self._device)}>"


def _kind(direction: _core.ConvOperator, problem: _Size, views: Mapping[str, TensorView], wanted: Wanted) -> Conv2dKind:
    """Return the kind of convolution that tensors make, of which all that have memory are looked at."""
    a, b = element_of("a", views["a"]), element_of("b", views["b"])
    out = wanted.output(a)
    extent = extents_of(direction, problem)[2]
    of_a, of_b, channels = channels_in_group(direction, problem)  # of which every group begins aligned
    packed = TensorView(0, None, extent, None, None, "spec", None)
    of_d = aligned(packed, out.bits, channels, extent[3], math.prod(extent[:3]))
    for name in ("c", "out"):
        if name in views:
            of_d = min(of_d, _of_result(name, views[name], extent, out, channels, direction is _Operator.wgrad))
    alignments = _alignment("a", views["a"], a, of_a), _alignment("b", views["b"], b, of_b), of_d
    return conv_kind_of(direction, a, b, alignments, wanted, problem.groups > 1)


def _alignment(name: str, view: TensorView, of: Element, channels: int) -> int:
    """Return how many elements of a tensor kernels can load at once."""
    return aligned(view, of.bits, channels, checked_step(name, view), math.prod(extent_of(name, view)[:3]))


def _of_result(name: str, view: TensorView, extent: Extent, of: Element, channels: int, is_filter: bool) -> int:
    """Return the alignment of C or D, or raise where it is none of the problem."""
    all_channels = extent[3]
    if name == "c" and view.dtype_name != of.dtype_name:
        raise ArgumentError(
            f"c is {view.dtype_name} and the result {of.dtype_name}, and convolutions add what is of the type of the "
            f"result: convert c, or pass out_dtype"
        )
    if name == "c" and view.shape is not None and len(view.shape) == 1:
        if is_filter:
            raise ArgumentError("gradients of weights take no bias: give a c of their shape")
        if view.shape != (all_channels,):
            raise ArgumentError(f"a bias has one number for each of {all_channels} channels, got shape {view.shape}")
        return aligned(view, of.bits, channels, all_channels, 1)
    check_shape(name, view, extent)
    return _alignment(name, view, of, channels)


def _restored(kind: Any, problem: Any, where: Any, scalars: Any, added: Added, chosen: Any, measured: Any) -> Conv2d:
    """Return the plan that was pickled or copied, with what was chosen."""
    plan = Conv2d.__new__(Conv2d)
    plan.kind, plan._problem, plan._device = kind, problem, where
    plan._scalars, plan._added = scalars, added
    plan._choices = Conv2dChoices(kind, problem, where, plan.source, chosen, measured)
    plan._start()
    return plan
