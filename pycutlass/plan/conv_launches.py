"""A candidate of convolutions with tensors: the arguments of its kernels, one group of channels after the other."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pycutlass import _core
from pycutlass.arguments import Conv2dArguments, ReductionArguments
from pycutlass.memory import DeviceBuffer
from pycutlass.operands.conv_operand import is_ambiguous
from pycutlass.plan.conv_candidate import GROUPED_PORTS, Conv2dCandidate
from pycutlass.plan.conv_problem import extents_of
from pycutlass.plan.launches import PlanLaunch, Waitable, workspace_of
from pycutlass.plan.pixels import checked_step, matrix_of_filters, matrix_of_pixels, rank_of
from pycutlass.tensor import wrap

__all__ = ["Conv2dLaunch"]

_Operator, _Mode = _core.ConvOperator, _core.SplitKMode
_Tensors = tuple[Any, Any, Any, Any]
#: Along which axis, as (N, H, W, C), groups of channels follow one another: in weights, along K.
_GROUPED_AXES = {
    _Operator.fprop: {"a": 3, "b": 0, "c": 3, "out": 3},
    _Operator.dgrad: {"a": 3, "b": 0, "c": 3, "out": 3},
    _Operator.wgrad: {"a": 3, "b": 3, "c": 0, "out": 0},
}
_NAMES = ("a", "b", "c", "out")


class Conv2dLaunch(PlanLaunch):
    """A candidate of convolutions with tensors.

    Parameters
    ----------
    candidate : Conv2dCandidate
        The kernel, compiled where there is a GPU.
    problem : cutlass.conv.Conv2dProblemSize
        The problem.
    tensors : tuple
        A, B, C and D, as the candidate's kind describes them; C may be None.
    scalars : mapping
        Those of the epilogue, by name.
    ports : mapping
        Tensors that the epilogue has beside C and D, by name.
    """

    __slots__ = ("_candidate", "_groups", "_is_ambiguous", "_parts")

    def __init__(
        self,
        candidate: Conv2dCandidate,
        problem: _core.Conv2dProblemSize,
        tensors: _Tensors,
        scalars: Mapping[str, Any],
        ports: Mapping[str, Any],
    ) -> None:
        self._candidate = candidate
        self._groups = problem.groups if candidate.is_by_group else 1
        direction = candidate.operation.conv_kind
        # Arguments take either order of dimensions where one alone fits; here each library has its own.
        self._is_ambiguous = any(map(is_ambiguous, extents_of(direction, problem)))
        _check_orders(tensors)
        size = candidate.size(problem)
        self._steps, self._ends = [], []
        #: Arguments of each group, with those of the reduction where there is one.
        self._parts: list[tuple[Conv2dArguments, ReductionArguments | None]] = []
        super().__init__(candidate, tensors[3])
        with workspace_of(self._takes_torch_memory):
            for group in range(self._groups):
                self._make(size, self._of_group(tensors, group), scalars, self._ports_of_group(ports, group))

    def _make(
        self,
        size: _core.Conv2dProblemSize,
        tensors: _Tensors,
        scalars: Mapping[str, Any],
        ports: Mapping[str, Any],
    ) -> None:
        """Make the arguments of one group, or of all where the kernel takes them at once."""
        operation, reduction = self._candidate.operation, self._candidate.reduction
        a, b, c, out = tensors
        further: dict[str, Any] = {"epilogue": dict(ports)} if ports else {}
        bias = _is_bias(c) or None
        if reduction is None:
            output_op = operation.epilogue_type(**scalars)
            made = Conv2dArguments(operation, size, a, b, c, out, output_op, bias=bias, **further)
            self._steps.append((operation, made))
            self._ends.append(made)
            self._parts.append((made, None))
            return
        partial = Conv2dArguments(operation, size, a, b, split_k_mode=_Mode.Parallel)
        product = _core.implicit_gemm_problem_size(operation.conv_kind, size)
        ends = ReductionArguments(
            reduction,
            [product.m(), product.n()],
            size.split_k_slices,
            partial.ptr_D,
            self._as_matrix("out", out),
            self._as_matrix("c", c),
            output_op=reduction.epilogue_type(**scalars),
            bias=bias,
            **further,
        )
        self._steps += [(operation, partial), (reduction, ends)]
        self._ends.append(ends)
        self._parts.append((partial, ends))

    @property
    def memory(self) -> tuple[DeviceBuffer, ...] | None:
        """What it has beside its operands; None where other tensors need more than C++ does for them.

        That is so where only Python tells orders of dimensions, or takes the channels of groups apart.
        """
        return None if self._is_ambiguous or self._groups > 1 else super().memory

    def waitable(self, tensors: _Tensors) -> Waitable | None:
        """Return what may wait for tensors like those that it has; None where there is no such thing."""
        found = super().waitable(tensors)
        if found is not None and len(found.steps) > 1:
            call, _ = found.steps[-1]
            for name, tensor in zip("CD", tensors[2:], strict=True):  # which it knows as matrices
                if tensor is not None:
                    call.remember(name, tensor, name)
        return found

    def exchange(self, a: Any, b: Any, c: Any, out: Any, ports: Mapping[str, Any]) -> None:
        """Take other tensors of the same shapes, types and layouts, or raise and change nothing that is launched."""
        tensors = a, b, c, out
        if self._is_ambiguous:
            _check_orders(tensors)
        for group, (arguments, ends) in enumerate(self._parts):
            a, b, c, out = self._of_group(tensors, group)
            further: dict[str, Any] = {"epilogue": self._ports_of_group(ports, group)} if ports else {}
            if ends is None:
                arguments.update(A=a, B=b, C=c, D=out, **further)
                continue
            arguments.update(A=a, B=b)
            ends.update(C=self._as_matrix("c", c), D=self._as_matrix("out", out), **further)

    def _of_group(self, tensors: _Tensors, group: int) -> _Tensors:
        """Return the channels of one group; of a launch for all groups, the tensors as they are."""
        if self._groups == 1:
            return tensors
        axes = _GROUPED_AXES[self._candidate.operation.conv_kind]
        a, b, c, out = (
            _slice(tensor, axes[name], group, self._groups) for name, tensor in zip(_NAMES, tensors, strict=True)
        )
        return a, b, c, out

    def _ports_of_group(self, ports: Mapping[str, Any], group: int) -> Mapping[str, Any]:
        """Return the tensors of the epilogue for one group of channels, as `_of_group` does."""
        if self._groups == 1:
            return ports
        operation = self._candidate.operation
        axes = GROUPED_PORTS[operation.conv_kind]
        forms = {port.name: port.form for port in operation.epilogue_functor.ports}
        return {
            name: _slice(tensor, axes[forms[name]], group, self._groups) if forms.get(name) in axes else tensor
            for name, tensor in ports.items()
        }

    def _as_matrix(self, name: str, tensor: Any) -> Any:
        """Return a tensor as a reduction takes it: rows of the matrix product that the convolution is."""
        if tensor is None or _is_bias(tensor):
            return tensor
        is_filter = self._candidate.operation.conv_kind is _Operator.wgrad
        return (matrix_of_filters if is_filter else matrix_of_pixels)(name, tensor, wrap(name, tensor))


def _is_bias(tensor: Any) -> bool:
    return tensor is not None and rank_of("c", tensor) == 1


def _check_orders(tensors: _Tensors) -> None:
    """Raise unless images have adjacent channels in the order of their library."""
    for name, tensor in zip(_NAMES, tensors, strict=True):
        if tensor is not None and not _is_bias(tensor):
            checked_step(name, wrap(name, tensor))


def _slice(tensor: Any, axis: int, group: int, groups: int) -> Any:
    """Return the part of a tensor that belongs to one group; a bias has one element for each channel."""
    if tensor is None:
        return None
    if _is_bias(tensor):
        axis = 0
    elif axis == 3 and wrap("tensor", tensor).library == "torch":
        axis = 1
    count = tensor.shape[axis] // groups
    part = slice(group * count, (group + 1) * count)
    return tensor[(slice(None),) * axis + (part,)]
