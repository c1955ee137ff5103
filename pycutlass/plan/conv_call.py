"""A convolution in one line: tensors that kernels take, and the plan that computes it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from pycutlass import _core
from pycutlass.errors import ArgumentError
from pycutlass.imported import imported
from pycutlass.operands.conv_operand import Extent
from pycutlass.plan.conv2d import Conv2d
from pycutlass.plan.conv_problem import Geometry, direction_of, extents_of, problem_of
from pycutlass.plan.kinds import Wanted, check_epilogue, check_types
from pycutlass.plan.matmul import matmul
from pycutlass.plan.options import KeptPlans, check_gradients, check_with_plan, has_scalars, source_of
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
from pycutlass.plan.readings import element_of, is_number, named_inputs
from pycutlass.tensor import TensorView, wrap

__all__ = ["Call", "Options"]

_Operator = _core.ConvOperator
_ACCESS = 16  # of an address, what alignment depends on
#: Plans that convolutions in one line made, by all that tells kinds of convolutions apart.
_plans: KeptPlans[Conv2d] = KeptPlans(256, "conv2d")


@dataclass(frozen=True)
class Options:
    """What all convolutions in one line take beside tensors and geometry, as `conv2d` documents it."""

    alpha: Any = 1
    beta: Any = 0
    epilogue: Any = None
    out_dtype: Any = None
    accumulator_dtype: Any = None
    precision: str | None = None


class Call:
    """A convolution in one line, with tensors that kernels take."""

    def __init__(
        self,
        kind: str,
        tensors: dict[str, Any],
        result_size: Any,
        geometry: Geometry,
        options: Options,
        inputs: Mapping[str, Any] | None,
        allow_copy: bool,
    ) -> None:
        check_epilogue(options.epilogue)
        self._kind, self._direction, self._geometry = kind, direction_of(kind), geometry
        self._result_size, self._inputs, self._allow_copy = result_size, named_inputs(inputs) or None, allow_copy
        (name_a, a), (name_b, b), *_ = tensors.items()
        views = {name_a: wrap(name_a, a), name_b: wrap(name_b, b)}
        self._said, self._names = options, (name_a, name_b)
        c, beta = source_of(tensors["c"], tensors.get("bias"), options.beta, "channel")
        given = {name_a: a, name_b: b, "c": c, "out": tensors["out"]}
        views |= {name: wrap(name, given[name]) for name in ("c", "out") if given[name] is not None}
        check_gradients(views, "convolution")
        check_types(element_of(name_a, views[name_a]), element_of(name_b, views[name_b]), self._names)
        self._beta, self._precision = beta, _precision(options.precision, a)
        self._taken, self._views, self._out = given, views, None
        self._like = a, views[name_a]
        for name in views:
            self._take(name)

    def _take(self, name: str) -> None:
        """Copy a tensor that no kernel takes, where that is allowed, or raise."""
        tensor, view = self._taken[name], self._views[name]
        if name == "c" and view.shape is not None and len(view.shape) == 1:
            return
        if pixel_step(name, view) is not None:
            return
        if not self._allow_copy:
            checked_step(name, view)  # which raises
        if name == "out":  # written back at the end
            self._out = tensor
            self._taken[name] = new_pixels(tensor, view, extent_of(name, view), str(view.dtype_name))
        else:
            self._taken[name] = copied_pixels(name, tensor, view)
        self._views[name] = wrap(name, self._taken[name])

    def run(self, plan: Conv2d | None, stream: Any) -> Any:
        """Compute the result and return it."""
        a, b = (self._taken[name] for name in self._names)
        c, out = self._taken["c"], self._taken["out"]
        if plan is not None:
            self._check_plan(plan)
        else:
            operands = {name: (self._taken[name], self._views[name]) for name in self._names}
            problem = problem_of(self._direction, operands, self._result_size, self._geometry)
            extent = extents_of(self._direction, problem)[2]
            if self._inputs is None and _is_product(problem):
                return self._written(self._multiplied(extent, stream))
            plan = self._plan(problem)
        inputs = {} if self._inputs is None else self._inputs
        ports = {port.name: inputs[port.name] for port in plan.kind.epilogue.ports if port.name in inputs}
        return self._written(plan.run_once(a, b, c, out, stream, ports))

    def _written(self, result: Any) -> Any:
        """Return the result: what the caller gave, with a copy written back to it, or the new one."""
        if self._out is None:
            return result
        self._out[...] = result
        return self._out

    def _check_plan(self, plan: Conv2d) -> None:
        """Refuse a plan of another direction, and options that it has itself."""
        said = {field.name: getattr(self._said, field.name) for field in fields(Options)}
        usual = Geometry()
        for name in (field.name for field in fields(Geometry)):
            said[name] = None if is_number(getattr(self._geometry, name), getattr(usual, name)) else name
        check_with_plan(plan, Conv2d, said, self._inputs or {})
        if plan.kind.direction is not self._direction:
            raise ArgumentError(f"the plan is of {plan.kind.direction.name}, and this is {self._kind}: make another")

    def _plan(self, problem: _core.Conv2dProblemSize) -> Conv2d:
        """Return the plan that was kept for such tensors, or make it."""
        said, inputs = self._said, self._inputs
        options = (said.alpha, self._beta, said.epilogue, said.out_dtype, said.accumulator_dtype, self._precision)
        taken = self._taken

        def make() -> Conv2d:
            return Conv2d(
                *(taken[name] for name in (*self._names, "c")),
                kind=self._kind,
                result_size=self._result_size,
                stride=(problem.stride_h, problem.stride_w),
                padding=(problem.pad_h, problem.pad_w),
                dilation=(problem.dilation_h, problem.dilation_w),
                groups=problem.groups,
                alpha=said.alpha,
                beta=self._beta,
                epilogue=said.epilogue,
                epilogue_inputs=inputs,
                out=taken["out"],
                out_dtype=said.out_dtype,
                accumulator_dtype=said.accumulator_dtype,
                precision=self._precision,
            )

        if has_scalars(inputs):
            return make()
        seen = tuple(_seen(self._views.get(name)) for name in (*self._names, "c", "out"))
        key = (self._kind, seen, repr(problem), options, None if inputs is None else tuple(inputs))
        return _plans.get(key, make)

    def _multiplied(self, extent: Extent, stream: Any) -> Any:
        """Return a convolution of single pixels, which is a product of matrices: GEMMs have more kernels."""
        said, is_filter = self._said, self._direction is _Operator.wgrad
        a, b = (matrix_of_pixels(name, self._taken[name], self._views[name]) for name in self._names)
        c, out = self._taken["c"], self._taken["out"]
        if self._direction is _Operator.fprop:
            b = b.T
        elif is_filter:
            a = a.T
        as_matrix = matrix_of_filters if is_filter else matrix_of_pixels
        if c is not None and len(self._views["c"].shape or ()) != 1:
            check_shape("c", self._views["c"], extent)
            c = as_matrix("c", c, self._views["c"])
        elif c is not None and is_filter:
            raise ArgumentError("gradients of weights take no bias: give a c of their shape")
        of_a = element_of(self._names[0], self._views[self._names[0]])
        if out is None:
            of_out = Wanted(said.epilogue, said.out_dtype).output(of_a)
            out = new_pixels(*self._like, extent, of_out.dtype_name)
        view = wrap("out", out)
        check_shape("out", view, extent)
        # As it was decided here: torch has another setting for products.
        precision = "float32" if self._precision is None and of_a.short == "f32" else self._precision
        matmul(
            *(a, b, c),
            alpha=said.alpha,
            beta=self._beta,
            epilogue=said.epilogue,
            out=as_matrix("out", out, view),
            out_dtype=said.out_dtype,
            accumulator_dtype=said.accumulator_dtype,
            precision=precision,
            stream=stream,
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


def _precision(given: str | None, x: Any) -> str | None:
    """Return how float32 is multiplied: as was said, or as somebody has told torch for its tensors.

    ``torch.backends.cudnn.conv.fp32_precision`` is "tf32" from the start. The settings above it are "none" until they
    are set.
    """
    if given is not None or getattr(x, "dtype", None) is not imported("torch", "float32") or x is None:
        return given
    above = (
        imported("torch", "backends", "fp32_precision"),
        imported("torch", "backends", "cudnn", "fp32_precision"),
    )
    of_convolutions = imported("torch", "backends", "cudnn", "conv", "fp32_precision")
    return "tf32" if "tf32" in above and of_convolutions == "tf32" else None
