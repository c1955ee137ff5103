"""Arguments of a convolution."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from pycutlass import _core
from pycutlass.arguments.base import SLOTS, Arguments
from pycutlass.arguments.given import check_operation, check_source, refuse_unknown
from pycutlass.calls import member_meant, public, shown
from pycutlass.epilogue import EpilogueScalars, Port
from pycutlass.errors import ArgumentError, ArgumentTypeError
from pycutlass.imported import is_of
from pycutlass.kernel import KnownConvolution, PreparedConvolutions, prepared_on
from pycutlass.launch import DeviceLaunch
from pycutlass.launch.conv2d import Conv2dProblem
from pycutlass.launch.split_k import new_planes
from pycutlass.log import say_once
from pycutlass.operands import Matrix, check_bias, check_count, check_writable
from pycutlass.operands.convolutions import channel_bias, conv_tensor, is_channel_bias
from pycutlass.operands.epilogue import check_sums, given_ports, is_plain_number, port_operand
from pycutlass.operands.overlaps import check_overlaps
from pycutlass.operands.reordered import UNCHANGED, Reordering
from pycutlass.operation.conv2d import Conv2dOperation
from pycutlass.operation.conv2d_support import (
    extent_of,
    launched_size,
    operand_of,
    port_operand_of,
    products,
    takes_bias,
    why_never,
)
from pycutlass.operation.support import check_serial_sums
from pycutlass.tensor import TensorView

__all__ = ["Conv2dArguments"]

_Mode, _Operator = _core.SplitKMode, _core.ConvOperator
_LETTERS = ("A", "B", "C", "D")
_set_operation, _set_run, _set_exchange = SLOTS
_KEYWORDS = (
    *("operation", "problem_size", "A", "B", "C", "D", "output_op", "split_k_mode", "split_k_slices"),
    "bias",
    "launch_priority",
    "reordered",
    "epilogue",
)


@partial(public, but=("update",))
class Conv2dArguments(Arguments):
    """The arguments of one convolution launch.

    Everything is checked here, before any launch, and packed into the kernel's parameters once; ``operation.run`` may
    then be called any number of times. The tensors are kept alive as long as the arguments, and until the last launch
    with them has finished.

    Parameters
    ----------
    operation : Conv2dOperation
        Compiled with ``pycutlass.compiler.add_module`` where there is a GPU.
    problem_size : cutlass.conv.Conv2dProblemSize
        What ``operation.supports``; with `FastLinearCombinationClamp` also longer sums of small elements in host
        memory. It is copied, never changed. N, C or K may be 0: without elements of D there is nothing to do, and sums
        without products are zero.
    A, B, C, D : tensor
        Activation (N, H, W, C), filter (K, R, S, C) and output (N, P, Q, K), or their gradients, as the operation's
        kind says. Tensors of torch may have these shapes, or (N, C, H, W) and (K, C, R, S) in ``channels_last``, which
        they have where both are the same numbers, as no other array has then; slices of channels are taken without a
        copy. Flat tensors and device pointers are packed. numpy arrays are copied to the GPU here, and D comes back
        with `sync`. `C` may be None where beta is 0, may be D itself, and may be a bias of one element for each channel
        of D. Interleaved kernels read B as `pycutlass.reorder_filter` returns it.
    output_op : EpilogueScalars, optional
        ``operation.epilogue_type(alpha, beta)``; by default alpha=1 and beta=0; passing C then raises.
        ``SplitKMode.Parallel`` leaves C, D and the scalars to the reduction.
    split_k_mode : cutlass.conv.SplitKMode
        ``Serial`` (slices take turns adding to D, in D's type) or ``Parallel`` (their sums go to a workspace, `ptr_D`,
        in the accumulator's type, and a `ReductionOperation` adds them up).
    split_k_slices : int, optional
        Slices of split-K; by default those of `problem_size`. Strided dgrad has no serial slices: it is computed in
        one, which is said once.
    bias : bool, optional
        Take `C` as a bias. A tensor with just the elements of one is recognised without it.
    launch_priority : int, optional
        Priority of the kernel among work that waits for multiprocessors, as the streams of CUDA have it: of two, the
        lower number goes first, and 0 is the usual one. Left out, that of the stream counts.
    reordered : bool, optional
        Interleaved kernels: whether B is what `reorder_filter` returned. Left out, its memory tells, and
        copies are refused. A B that is not is reordered here: host memory when it is read, a tensor on a GPU into a
        copy, which `update` renews.
    epilogue : mapping, optional
        Tensors that the epilogue has beside C and D, by their names: a `Tensor` has the shape of D, a `Row` one element
        for each of its channels, a `Column` one for each pixel.

    Raises
    ------
    ArgumentError, ArgumentTypeError, AlignmentError
        Something does not fit; the message names the operand, the value, what is needed and the remedy.
    NotCompiledError
        There is a GPU and the operation has not been compiled for it.
    PoolError
        No memory for the buffers of numpy operands or for the workspace.

    Examples
    --------
    >>> import numpy as np, pycutlass
    >>> from pycutlass import cutlass
    >>> f32, nhwc = cutlass.float32, pycutlass.TensorDescription(cutlass.float32, cutlass.TensorNHWC)
    >>> instruction = pycutlass.MathInstruction([1, 1, 1], f32, f32, f32)
    >>> tile = pycutlass.TileDescription([128, 128, 8], 4, [4, 2, 1], instruction)
    >>> operation = pycutlass.Conv2dOperation(
    ...     cutlass.conv.Operator.fprop, cutlass.conv.IteratorAlgorithm.optimized, 80, tile, nhwc, nhwc, nhwc,
    ...     pycutlass.StrideSupport.Strided, pycutlass.LinearCombination(f32, 1),
    ... )
    >>> x, w = np.ones((1, 4, 4, 3), np.float32), np.ones((5, 3, 3, 3), np.float32)
    >>> y = np.empty((1, 4, 4, 5), np.float32)
    >>> pycutlass.compiler.add_module([operation])  # doctest: +SKIP
    >>> size = pycutlass.conv2d_problem_size(x, w, padding=1)
    >>> arguments = pycutlass.Conv2dArguments(operation, size, x, w, None, y)
    >>> operation.run(arguments)
    >>> arguments.sync()
    >>> float(y[0, 1, 1, 0]), float(y[0, 0, 0, 0])
    (27.0, 12.0)
    """

    operation: Conv2dOperation
    _SHOWN, _LAST_NEEDED = ("problem_size", "split_k_mode", "split_k_slices"), "D"

    def __init__(
        self,
        operation: Conv2dOperation,
        problem_size: _core.Conv2dProblemSize,
        A: Any,
        B: Any,
        C: Any = None,  # which no launch reads where beta is 0
        D: Any = None,  # which partial sums of parallel split-K leave to their reduction
        output_op: EpilogueScalars | None = None,
        split_k_mode: _core.SplitKMode = _Mode.Serial,
        split_k_slices: int | None = None,
        *,
        bias: bool | None = None,
        launch_priority: int | None = None,
        reordered: bool | None = None,
        epilogue: Mapping[str, Any] | None = None,
        **unknown: Any,
    ) -> None:
        tensors, size = (A, B, C, D), (problem_size, split_k_mode, split_k_slices)
        known = not unknown and reordered is None and epilogue is None and launch_priority is None
        if known and self._start_known(operation, tensors, output_op, size, bias):
            return
        refuse_unknown("Conv2dArguments", unknown, _KEYWORDS)
        self.operation = operation = check_operation(operation, Conv2dOperation)
        self.split_k_mode = _split_k_mode(split_k_mode)
        self._asked = self._checked_size(problem_size, split_k_slices)
        self._size = self._supported(launched_size(operation, self._asked))
        self.split_k_slices = self._size.split_k_slices
        if self.split_k_mode is not _Mode.Parallel:
            check_serial_sums(operation, self.split_k_slices)
        self._bias = check_bias(bias)
        self._share(launch_priority)
        self._reordering = Reordering(operation.B, reordered)
        launched = operation.partial if self._makes_partial_sums else operation
        given = {"A": A, "B": B, "C": C, "D": D}
        given |= given_ports(operation.epilogue_functor, {} if epilogue is None else epilogue)
        self._start(launched, given, output_op)
        self._keep_problem()

    def _start_known(
        self,
        operation: Any,
        tensors: tuple[Any, Any, Any, Any],
        output_op: Any,
        size: tuple[Any, Any, Any],
        bias: Any,
    ) -> bool:
        """Make the launch of a problem that is known, and of tensors that C++ sees are right; False of all others."""
        if type(operation) is not Conv2dOperation or "_execution" in self.__dict__:
            return False
        if type(size[0]) is not _core.Conv2dProblemSize or type(size[1]) is not _Mode:
            return False
        prepared: tuple[PreparedConvolutions, ...] = operation._prepared
        for each in prepared:
            found: KnownConvolution | None = each.problems.find(*size)
            if found is None or (found.is_ambiguous and not is_of(tensors[3], "torch", "Tensor")):
                continue  # C++ takes tensors of one library alone, so that D tells for all
            made = DeviceLaunch.of(operation, each, found.make, tensors, output_op, (bias,))
            if made is None:
                continue
            execution, scalars = made
            _set_operation(self, operation)
            _set_run(self, execution.run)
            _set_exchange(self, execution.call.bound_update)
            self.__dict__.update(
                split_k_mode=size[1],
                split_k_slices=found.split_k_slices,
                _asked=found.size,
                _size=found.size,
                _bias=bias,
                _launched=operation,
                output_op=scalars,
                _given=dict(zip(_LETTERS, tensors, strict=True)),
                _execution=execution,
            )
            return True
        return False

    def _keep_problem(self) -> None:
        """Have the operation know the problem, which it supports, where nothing else of it has to be looked at."""
        operation, execution, max_k = self.operation, self._execution, self.operation.epilogue_functor.max_k
        if not isinstance(execution, DeviceLaunch) or self._makes_partial_sums or operation.is_interleaved:
            return
        if operation.epilogue_functor.is_tree:
            return
        if not self._products or (max_k is not None and self._products > max_k):
            return
        wanted = (operand_of(name, operation, self._size) for name in "ABCD")
        prepared_on(operation, execution.ordinal, PreparedConvolutions).keep(self._size, self.split_k_mode, *wanted)

    @property
    def problem_size(self) -> _core.Conv2dProblemSize:
        """A copy of the problem, with the slices of split-K: what is done to it changes no launch."""
        return self._asked.reset_split_k_slices(self.split_k_slices)

    # Checks

    @property
    def _makes_partial_sums(self) -> bool:
        return self.split_k_mode is _Mode.Parallel

    def _checked_size(self, given: Any, split_k_slices: int | None) -> _core.Conv2dProblemSize:
        """Return a copy of the problem, with the slices of split-K, that the operation supports."""
        if not isinstance(given, _core.Conv2dProblemSize):
            raise ArgumentTypeError(
                f"problem_size must be a cutlass.conv.Conv2dProblemSize, got {type(given).__name__}"
            )
        slices = given.split_k_slices if split_k_slices is None else check_count("split_k_slices", split_k_slices)
        if split_k_slices is not None and given.split_k_slices not in (1, slices):
            raise ArgumentError(
                f"split_k_slices={slices} disagrees with the problem_size, which has {given.split_k_slices}: give one"
            )
        if slices > 1 and self.split_k_mode is _Mode.NoSplit:
            instead = "choose Serial or Parallel" if self.operation.splits_k else "pass split_k_slices=1"
            raise ArgumentError(f"split_k_mode is NoSplit, got {slices} slices: {instead}")
        if self.split_k_mode is _Mode.Parallel and not self.operation.splits_k:
            raise ArgumentError(
                f"{self.operation.procedural_name()} does not split K: use SplitKMode.Serial with one slice"
            )
        if slices > 1 and self.operation.is_strided_dgrad and self.split_k_mode is _Mode.Serial:
            say_once(f"strided dgrad does not split K: split_k_slices={slices} is taken as 1")
            slices = 1
        return self._supported(given.reset_split_k_slices(slices))

    def _supported(self, size: _core.Conv2dProblemSize) -> _core.Conv2dProblemSize:
        if reason := why_never(self.operation, size):
            raise ArgumentError(f"{self.operation.procedural_name()} cannot compute {size!r}: {reason}")
        return size

    @property
    def _products(self) -> int:
        return products(self.operation, self._asked)

    def _problem(self, given: dict[str, Any], scalars: EpilogueScalars) -> Conv2dProblem:
        """Return the problem with every operand checked."""
        self._reordering.begin()
        operands = {name: self._tensor(name, given) for name in "AB"}
        is_empty = 0 in extent_of("D", self.operation, self._size)
        if not self._products and not is_empty:
            operands.update(self._zeros())
        if self._makes_partial_sums:
            return self._partial_problem(operands)
        check_sums(self.operation.epilogue_functor, operands["A"], operands["B"], self._products)
        operands["D"] = self._tensor("D", given)
        if scalars.needs_source:
            check_source(given["C"], self.operation.epilogue_functor)
            operands["C"] = self._tensor("C", given)
        self._check_target(operands["D"])
        functor = self.operation.epilogue_functor
        operands.update({port.name: self._port(port, given.get(port.name)) for port in functor.ports})
        written = [port.name for port in functor.outputs]
        for name in written:
            check_writable(operands[name])
        if not is_empty:  # else nothing is written, and where D would begin is anywhere
            check_overlaps(operands, ("D", *written), functor.matrices_read)
        return Conv2dProblem(self.operation, self._size, self.split_k_mode, operands, scalars)

    def _port(self, port: Port, tensor: Any) -> Matrix:
        """Return a tensor of the epilogue, checked."""
        product = _core.implicit_gemm_problem_size(self.operation.conv_kind, self._size)
        m, n = product.m(), product.n()
        written = port in self.operation.epilogue_functor.outputs
        if port.form != "matrix" or tensor is None or is_plain_number(tensor):
            return port_operand(port, tensor, m, n, 1, written=written)
        made = conv_tensor(port_operand_of(port, self.operation, self._size), tensor)
        # A filter gradient, which has no gaps, is a matrix of one row for each of K.
        return replace(made, rows=m, columns=n, ld=n) if self.operation.conv_kind is _Operator.wgrad else made

    def _zeros(self) -> dict[str, Matrix]:
        """Return an A and a B of zeros, of a few products for each sum: what a sum over no products is."""
        zeros = {}
        for name in "AB":
            wanted = operand_of(name, self.operation, self._size)
            zeros[name] = conv_tensor(wanted, np.zeros(math.prod(wanted.extent), wanted.description.type.dtype))
        return zeros

    def _tensor(self, name: str, given: dict[str, Any]) -> Matrix:
        wanted, tensor = operand_of(name, self.operation, self._asked, self._bias), given[name]
        if tensor is None:
            raise ArgumentError(f"operand {name}, the {wanted.role}, is missing: give a tensor of {wanted.extent}")
        if 0 in wanted.extent:
            return conv_tensor(wanted, tensor)
        if name == "C" and takes_bias(self.operation, tensor, wanted.extent, self._bias):
            return channel_bias(name, wanted.description, tensor, wanted.extent)
        reorder = self._reordering if name == "B" else UNCHANGED
        return reorder.operand(lambda given: conv_tensor(wanted, given), tensor)

    @property
    def bias(self) -> bool:
        """Whether C is taken as a bias: as was said, or as its number of elements tells."""
        extent, C = extent_of("C", self.operation, self.problem_size), self._given["C"]
        return self._bias is True or (self._bias is None and C is not None and is_channel_bias(C, extent))

    def _check_target(self, target: Matrix) -> None:
        if target.view.writable:
            check_writable(target)
        else:
            extent = extent_of("D", self.operation, self._size)
            raise ArgumentError(
                f"operand D is a read-only {target.view.library} array, and the result is written to it: pass "
                f"np.empty({extent}, {target.description.type.dtype_name!r})"
            )

    def _partial_problem(self, operands: dict[str, Matrix]) -> Conv2dProblem:
        """Return the problem whose D are the partial sums of all slices, in the accumulator's type."""
        partial, size = self.operation.partial, self._size
        product = _core.implicit_gemm_problem_size(partial.conv_kind, size)
        n, h, w, c = extent = extent_of("D", partial, size)
        scalars = partial.epilogue_type(1.0, 0.0)
        if 0 in extent:
            nowhere = TensorView(0, None, None, None, None, "workspace", None)
            planes = Matrix("D", partial.C, nowhere, n * h * w, c, c)
            return Conv2dProblem(partial, size, self.split_k_mode, {**operands, "D": planes}, scalars)
        if self._partials is None:
            self._partials = new_planes(partial.C, product.m(), product.n(), self.split_k_slices, dict(operands), self)
        planes = replace(self._partials.operand(), rows=n * h * w, columns=c, ld=c)
        return Conv2dProblem(partial, size, self.split_k_mode, {**operands, "D": planes}, scalars)


def _split_k_mode(mode: Any) -> _core.SplitKMode:
    if isinstance(mode, _core.SplitKMode):
        return mode
    raise ArgumentTypeError(
        f"split_k_mode must be cutlass.conv.SplitKMode.Serial, Parallel or NoSplit, got {shown(mode)}"
        f"{member_meant(mode, _core.SplitKMode, 'cutlass.conv.SplitKMode')}"
    )
