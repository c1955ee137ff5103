"""A convolution in one line: tensors that kernels take, and the plan that computes it."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import fields
from typing import Any

from pycutlass import _core
from pycutlass.epilogue.given_scalars import scalar_key
from pycutlass.errors import ArgumentError
from pycutlass.imported import imported
from pycutlass.operands.conv_operand import Extent
from pycutlass.operands.overlaps import renamed
from pycutlass.plan.added import told_apart
from pycutlass.plan.conv2d import Conv2d, check_bias_of
from pycutlass.plan.conv_options import geometry_in
from pycutlass.plan.conv_problem import Geometry, direction_of, extents_of, problem_of
from pycutlass.plan.forms import packed_vector
from pycutlass.plan.gradients import check_gradients, kept_scalars
from pycutlass.plan.kinds import Wanted, check_epilogue, check_types, is_gated
from pycutlass.plan.matmul import matmul
from pycutlass.plan.options import (
    OF_KERNELS,
    KeptPlans,
    check_allow_copy,
    check_with_plan,
    scalars_among,
    without_tensors,
)
from pycutlass.plan.pixels import (
    check_shape,
    checked_step,
    copied_pixels,
    extent_of,
    matrix_of_filters,
    matrix_of_pixels,
    new_pixels,
    pixel_step,
)
from pycutlass.plan.readings import element_of, named_inputs
from pycutlass.tensor import TensorView, wrap

__all__ = ["Call", "precision_of", "precision_of_float32"]

_Operator = _core.ConvOperator
_ACCESS = 16  # of an address, what alignment depends on
#: Plans that convolutions in one line made, by all that tells kinds of convolutions apart.
_plans: KeptPlans[Conv2d] = KeptPlans(256, "conv2d")
#: Those with scalars of an epilogue function: ever other scalars drop none of the others.
_plans_of_scalars: KeptPlans[Conv2d] = KeptPlans(64, "conv2d")


class Call:
    """A convolution in one line, with tensors that kernels take.

    Parameters
    ----------
    kind : str
        Which of the three.
    operands : dict
        A and B by the names that the caller has for them.
    result_size, c, bias
        As the caller gives them.
    options : mapping
        All options, by name.
    named : collection of str
        Those of them that are not left out.
    """

    def __init__(
        self,
        kind: str,
        operands: dict[str, Any],
        result_size: Any,
        c: Any,
        bias: Any,
        options: dict[str, Any],
        named: Collection[str],
    ) -> None:
        check_epilogue(options["epilogue"])
        check_allow_copy(options["allow_copy"])
        self._kind, self._direction, self._geometry = kind, direction_of(kind), geometry_in(options)
        self._result_size, self._inputs = result_size, named_inputs(options["epilogue_inputs"]) or None
        options = options | kept_scalars({name: options[name] for name in ("alpha", "beta")}, "convolution")
        self._said, self._named, self._names = options, named, tuple(operands)
        given = {**operands, "c": c, "bias": bias, "out": options["out"]}
        views = {name: wrap(name, tensor) for name, tensor in given.items() if tensor is not None or name in operands}
        if told_apart(views.get("c"), views.get("bias"))[0] is None and c is not None:  # a vector
            given["c"], given["bias"], views["bias"] = None, c, views.pop("c")
        check_gradients(views, "convolution")
        (name_a, a), (name_b, _) = operands.items()
        #: What the caller calls the parameters of plans.
        self._called = {"a": name_a, "b": name_b, "bias": "c" if bias is None else "bias"}
        check_types(element_of(name_a, views[name_a]), element_of(name_b, views[name_b]), (name_a, name_b))
        self._precision = precision_of(options["precision"], a)
        self._taken, self._views, self._out = given, views, None
        self._like = a, views[name_a]
        self._problem: _core.Conv2dProblemSize | None = None
        self._new: list[Conv2d] = []
        if options["plan"] is None:  # before strides: what does not fit is of more interest than how it lies in memory
            of_names = {name: (tensor, views[name]) for name, tensor in operands.items()}
            self._problem = problem_of(self._direction, of_names, result_size, self._geometry)
        for name in views:
            self._take(name)

    def _take(self, name: str) -> None:
        """Copy a tensor that no kernel takes, where that is allowed, or raise."""
        tensor, view = self._taken[name], self._views[name]
        if name == "bias":
            self._taken[name] = packed_vector(name, tensor, view, self._said["allow_copy"])
            self._views[name] = wrap(name, self._taken[name])
            return
        if pixel_step(name, view) is not None:
            return
        if not self._said["allow_copy"] or (name == "out" and view.library == "dlpack"):
            checked_step(name, view)  # which raises
        if name == "out":  # written back at the end
            self._out = tensor
            self._taken[name] = new_pixels(tensor, view, extent_of(name, view), str(view.dtype_name))
        else:
            self._taken[name] = copied_pixels(name, tensor, view)
        self._views[name] = wrap(name, self._taken[name])

    def run(self) -> Any:
        """Compute the result and return it."""
        try:
            return self._written(self._computed())
        except ArgumentError as error:
            raise renamed(error, self._called) from error.__cause__

    def _computed(self) -> Any:
        """Return what a plan has computed, or a product of matrices."""
        plan, stream = self._said["plan"], self._said["stream"]
        a, b, c, bias, out = (self._taken[name] for name in (*self._names, "c", "bias", "out"))
        if self._problem is None:
            self._check_plan(plan)
        else:
            extent = extents_of(self._direction, self._problem)[2]
            if self._inputs is None and _is_product(self._problem) and not is_gated(self._said["epilogue"]):
                return self._multiplied(extent, stream)
            plan = self._plan(self._problem)
        a_and_b = self._views[self._names[0]], self._views[self._names[1]]
        ports = plan.beside(*a_and_b, self._inputs, self._said["allow_copy"]) if self._inputs else {}
        for each in self._new:  # before anything is compiled
            each.check_ports(ports)
        return plan.run_once(a, b, c, out, stream, ports, bias)

    def _written(self, result: Any) -> Any:
        """Return the result: what the caller gave, with a copy written back to it, or the new one."""
        if self._out is None:
            return result
        self._out[...] = result
        return self._out

    def _check_plan(self, plan: Conv2d) -> None:
        """Refuse a plan of another direction, and options that it has itself."""
        said = {name: self._said[name] for name in OF_KERNELS}
        said |= {field.name: field.name for field in fields(Geometry) if field.name in self._named}
        check_with_plan(plan, Conv2d, said, self._inputs or {})
        if plan.kind.direction is not self._direction:
            raise ArgumentError(f"the plan is of {plan.kind.direction.name}, and this is {self._kind}: make another")

    def _plan(self, problem: _core.Conv2dProblemSize) -> Conv2d:
        """Return the plan that was kept for such tensors, or make it."""
        of_kernels = {name: self._said[name] for name in OF_KERNELS} | {"precision": self._precision}
        inputs, taken = self._inputs, self._taken

        def make() -> Conv2d:
            made = Conv2d(
                *(taken[name] for name in (*self._names, "c")),
                kind=self._kind,
                result_size=self._result_size,
                stride=(problem.stride_h, problem.stride_w),
                padding=(problem.pad_h, problem.pad_w),
                dilation=(problem.dilation_h, problem.dilation_w),
                groups=problem.groups,
                epilogue_inputs=without_tensors(of_kernels["epilogue"], inputs),
                out=taken["out"],
                bias=taken["bias"],
                **of_kernels,
            )
            self._new.append(made)
            return made

        scalars = scalars_among(of_kernels["epilogue"], inputs)
        if scalars is None:
            return make()
        seen = tuple(_seen(self._views.get(name)) for name in (*self._names, "c", "bias", "out"))
        names = None if inputs is None else tuple(inputs)
        numbers = scalar_key(of_kernels["alpha"]), scalar_key(of_kernels["beta"])
        key = (self._kind, seen, repr(problem), tuple(of_kernels.values()), numbers, names, scalars)
        return (_plans_of_scalars if scalars else _plans).get(key, make)

    def _multiplied(self, extent: Extent, stream: Any) -> Any:
        """Return a convolution of single pixels, which is a product of matrices: GEMMs have more kernels."""
        said, is_filter = self._said, self._direction is _Operator.wgrad
        a, b = (matrix_of_pixels(name, self._taken[name], self._views[name]) for name in self._names)
        c, bias, out = (self._taken[name] for name in ("c", "bias", "out"))
        if self._direction is _Operator.fprop:
            b = b.T
        elif is_filter:
            a = a.T
        as_matrix = matrix_of_filters if is_filter else matrix_of_pixels
        if bias is not None:
            check_bias_of(self._direction, extent, self._views["bias"])
        if c is not None:
            check_shape("c", self._views["c"], extent)
            c = as_matrix("c", c, self._views["c"])
        of_a = element_of(self._names[0], self._views[self._names[0]])
        if out is None:
            of_out = Wanted(said["epilogue"], said["out_dtype"]).output(of_a)
            out = new_pixels(*self._like, extent, of_out.dtype_name)
        view = wrap("out", out)
        check_shape("out", view, extent)
        # As it was decided here: torch has another setting for products.
        precision = "float32" if self._precision is None and of_a.short == "f32" else self._precision
        matmul(
            *(a, b, c),
            bias=bias,
            out=as_matrix("out", out, view),
            stream=stream,
            **{name: said[name] for name in OF_KERNELS} | {"precision": precision},
        )
        return out


def _is_product(p: _core.Conv2dProblemSize) -> bool:
    """Return whether each output is made of one pixel."""
    of_one = (p.R, p.S, p.stride_h, p.stride_w, p.groups) == (1, 1, 1, 1, 1)
    return of_one and (p.pad_h, p.pad_w) == (0, 0)


def _seen(view: TensorView | None) -> Any:
    """Return what a plan depends on of a tensor."""
    if view is None:
        return None
    return view.shape, view.strides, view.dtype_name, view.device, view.library, view.pointer % _ACCESS


def precision_of(given: str | None, x: Any) -> str | None:
    """Return how float32 is multiplied: as was said, or as somebody has told torch for its tensors.

    ``torch.backends.cudnn.conv.fp32_precision`` is "tf32" from the start. The settings above it are "none" until they
    are set.
    """
    if given is not None or getattr(x, "dtype", None) is not imported("torch", "float32") or x is None:
        return given
    return precision_of_float32()


def precision_of_float32() -> str | None:
    """Return how torch convolves float32."""
    above = (
        imported("torch", "backends", "fp32_precision"),
        imported("torch", "backends", "cudnn", "fp32_precision"),
    )
    of_convolutions = imported("torch", "backends", "cudnn", "conv", "fp32_precision")
    precision = "tf32" if "tf32" in above and of_convolutions == "tf32" else None
    _core.Recording.note_answer("convolutions", precision)
    return precision
