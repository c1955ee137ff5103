"""A plan: which kernel computes a convolution, made once and run with any tensors of the same kind."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Unpack

from pycutlass import _core
from pycutlass.calls import public
from pycutlass.errors import ArgumentError
from pycutlass.operands.conv_operand import Extent
from pycutlass.operands.convolutions import conv_tensor_of
from pycutlass.operands.epilogue import is_plain_number
from pycutlass.operation import Conv2dOperation
from pycutlass.operation.conv2d_support import port_operand_of
from pycutlass.plan import picture
from pycutlass.plan.added import Added, Addition, check_added_type, check_bias, told_apart
from pycutlass.plan.base import Plan
from pycutlass.plan.conv_candidate import Conv2dCandidate
from pycutlass.plan.conv_checking import checked_conv
from pycutlass.plan.conv_choices import Conv2dChoices
from pycutlass.plan.conv_kind import Conv2dKind, conv_kind_of
from pycutlass.plan.conv_launches import Conv2dLaunch
from pycutlass.plan.conv_options import PlanOptions, completed, geometry_in, takes
from pycutlass.plan.conv_pick import conv2d_ranking, conv2d_refused
from pycutlass.plan.conv_problem import (
    channels_in_group,
    direction_of,
    extents_of,
    problem_of,
    with_images,
)
from pycutlass.plan.kept import ResultForm
from pycutlass.plan.kinds import Wanted, check_epilogue
from pycutlass.plan.pixels import aligned, check_shape, checked_step, extent_of, new_pixels
from pycutlass.plan.port_copies import beside_convolution
from pycutlass.plan.predicted import Ranked
from pycutlass.plan.readings import check_port, device_of, element_of, given_scalars, named_inputs, place
from pycutlass.spec import view_of
from pycutlass.tensor import TensorView
from pycutlass.types import Element

__all__ = ["Conv2d", "check_bias_of", "conv2d_of_kind"]

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
    alpha, beta : number, optional
        The scalars: 1 and 0 if left out, or what an epilogue function has as its defaults. A `c` needs a `beta` other
        than 0.
    epilogue : optional
        An epilogue functor, an activation, or an epilogue function, with or without its types.
    epilogue_inputs : mapping, optional
        Tensors and scalars that it has beside C and D, by name: scalars are kept. Tensors are checked, and given to
        `run` as well; a TensorSpec stands for one.
    out : tensor or TensorSpec, optional
        The result.
    out_dtype, accumulator_dtype : element type, optional
        What is written, and summed up in.
    precision : str, optional
        How float32 is multiplied: ``"float32"`` (the default), ``"tf32"`` or ``"3xtf32"``.
    bias : tensor or TensorSpec, optional
        A vector of one number for each channel of the result, which is added beside `c` or alone, as `conv2d` adds it.

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

    @takes(PlanOptions)
    def __init__(
        self,
        a: Any,
        b: Any,
        c: Any = None,
        *,
        kind: str = "fprop",
        result_size: Any = None,
        bias: Any = None,
        **options: Unpack[PlanOptions],
    ) -> None:
        given = completed("Conv2d", options, PlanOptions, "a", "b", "c", "kind", "result_size", "bias")
        epilogue, out = given["epilogue"], given["out"]
        check_epilogue(epilogue)
        direction = direction_of(kind)
        views = {"a": view_of("a", a), "b": view_of("b", b)}
        added = told_apart(*(None if each is None else view_of(name, each) for name, each in _named(c, bias)))
        views |= {name: view for name, view in _named(*added) if view is not None}
        views |= {} if out is None else {"out": view_of("out", out)}
        if direction is not _Operator.fprop and result_size is None and out is not None:
            result_size = views["out"].shape
        operands = {"a": (a, views["a"]), "b": (b, views["b"])}
        self._problem = problem_of(direction, operands, result_size, geometry_in(given))
        addition = _addition(direction, self._problem, views, epilogue, given["beta"])
        wanted = Wanted(addition.epilogue, given["out_dtype"], given["accumulator_dtype"], given["precision"])
        if out is not None:
            wanted = wanted.into(element_of("out", views["out"]))
        self.kind: Conv2dKind = _kind(direction, self._problem, views, wanted)
        self._device = device_of(views)
        self._scalars = given_scalars(self.kind.epilogue, given["alpha"], addition.beta, given["epilogue_inputs"])
        self._added = addition.added
        self._choices = Conv2dChoices(self.kind, self._problem, self._device, self.source)
        self._choices.of(self._problem.N)  # which says what to change where there is no kernel
        self.check_ports(named_inputs(given["epilogue_inputs"]))
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
        why = self._choices.why(self._extent, "N")
        return picture.explained_conv(self.candidate, self.candidates(), refused, self._problem, gpu, why, self.kind)

    def check(self, seed: int = 0) -> float:
        """Run the kernel on random numbers and compare D with float64; look at what lies around D.

        Returns
        -------
        float
            The largest error as a share of what rounding explains: at most 1.

        Raises
        ------
        ArgumentError
            D is wrong, or something was written beside it; or the epilogue has tensors of its own.
        """
        return checked_conv(self, seed)

    # How it is done

    def check_ports(self, given: Mapping[str, Any]) -> None:
        """Raise for tensors of the epilogue that do not fit, as a launch would; what is left out comes with `run`."""
        epilogue, size = self.kind.epilogue, self._size_of(self._problem)
        for port in epilogue.ports:
            tensor = given.get(port.name)
            if tensor is None:
                continue
            if port.form == "matrix" and not is_plain_number(tensor):  # of which a launch says more
                wanted = port_operand_of(port, self.operation, self._problem)
                conv_tensor_of(wanted, view_of(wanted.name, tensor))
            else:
                check_port(port, tensor, size, written=port in epilogue.outputs)

    def beside(self, a: TensorView, b: TensorView, given: Mapping[str, Any], allow_copy: bool) -> Mapping[str, Any]:
        """Return the tensors of the epilogue, copies where no kernel takes them beside some a and b, if allowed."""
        problem, _ = self._problem_of(None, None, a, b)
        return beside_convolution(self.operation, problem, self._size_of(problem), given, allow_copy)

    def _size_of(self, problem: _Size) -> tuple[int, int]:
        """Return the rows and columns of the result as a matrix."""
        extent = extents_of(self.kind.direction, problem)[2]
        lines = 1 if self.kind.direction is _Operator.wgrad else 3  # of its axes, the others are columns
        return math.prod(extent[:lines]), math.prod(extent[lines:])

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


def check_bias_of(direction: _core.ConvOperator, extent: Extent, bias: TensorView) -> None:
    """Raise ArgumentError unless a bias has one number for each channel of a result of `extent`."""
    if direction is _Operator.wgrad:
        raise ArgumentError("gradients of weights take no bias: give a c of their shape")
    check_bias(bias, extent[3], line="channel")


def _named(c: Any, bias: Any) -> tuple[tuple[str, Any], tuple[str, Any]]:
    return ("c", c), ("bias", bias)


def _addition(
    direction: _core.ConvOperator, problem: _Size, views: Mapping[str, TensorView], epilogue: Any, beta: Any
) -> Addition:
    """Return where the kernel has what is added; a bias is read as C, whose rows are equal then, where it is alone."""
    if (bias := views.get("bias")) is not None:
        check_bias_of(direction, extents_of(direction, problem)[2], bias)
    return Addition.decided("c" in views, bias is not None, epilogue, beta)


def _kind(direction: _core.ConvOperator, problem: _Size, views: Mapping[str, TensorView], wanted: Wanted) -> Conv2dKind:
    """Return the kind of convolution that tensors make, of which all that have memory are looked at."""
    a, b = element_of("a", views["a"]), element_of("b", views["b"])
    out = wanted.output(a)
    extent = extents_of(direction, problem)[2]
    of_a, of_b, channels = channels_in_group(direction, problem)  # of which every group begins aligned
    packed = TensorView(0, None, extent, None, None, "spec", None)
    of_d = aligned(packed, out.bits, channels, extent[3], math.prod(extent[:3]))
    for name in ("c", "bias", "out"):
        if name in views:
            of_d = min(of_d, _of_result(name, views[name], extent, out, channels))
    alignments = _alignment("a", views["a"], a, of_a), _alignment("b", views["b"], b, of_b), of_d
    return conv_kind_of(direction, a, b, alignments, wanted, problem.groups > 1)


def _alignment(name: str, view: TensorView, of: Element, channels: int) -> int:
    """Return how many elements of a tensor kernels can load at once."""
    return aligned(view, of.bits, channels, checked_step(name, view), math.prod(extent_of(name, view)[:3]))


def _of_result(name: str, view: TensorView, extent: Extent, of: Element, channels: int) -> int:
    """Return the alignment of C, a bias or D, or raise where it is none of the problem."""
    if name != "out":
        check_added_type(name, view, of)
    if name == "bias":
        return aligned(view, of.bits, channels, extent[3], 1)
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


def conv2d_of_kind(kind: Conv2dKind, problem: _Size, where: int | None, scalars: Any, added: Added) -> Conv2d:
    """Return the plan of a problem whose kind is known, as `Conv2d` makes it of tensors."""
    return _restored(kind, problem, where, scalars, added, {}, {})
