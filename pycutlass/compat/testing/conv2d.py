"""Testbed of convolutions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from pycutlass import _core
from pycutlass.arguments import Conv2dArguments, ReductionArguments
from pycutlass.arguments.given import check_operation
from pycutlass.compat.reference_modules import Conv2dReferenceModule
from pycutlass.compat.testing.launcher import Launcher
from pycutlass.compat.testing.operands import nothing_left
from pycutlass.enums import StrideSupport
from pycutlass.operation import Conv2dOperation, ReductionOperation

__all__ = ["Conv2dLauncher", "test_all_conv2d"]

_Algorithm, _Operator, _SplitK = _core.IteratorAlgorithm, _core.ConvOperator, _core.SplitKMode
#: Extents that every kernel for 64 channels is run on: N, H, W, C, K, R, S, padding and stride along both axes.
_DEFAULT = (
    (1, 1, 1, 64, 8, 1, 1, 0, 0, 1, 1),
    (1, 1, 1, 64, 8, 1, 1, 1, 1, 1, 1),
    (1, 1, 8, 64, 8, 1, 3, 1, 1, 1, 1),
    (1, 7, 8, 64, 8, 3, 3, 1, 1, 1, 1),
    (1, 7, 9, 64, 8, 4, 4, 1, 1, 1, 1),
    (2, 7, 9, 64, 8, 5, 5, 1, 1, 1, 1),
    (3, 7, 9, 64, 8, 6, 5, 1, 1, 1, 1),
    (3, 7, 9, 64, 8, 6, 6, 1, 1, 1, 1),
    (3, 7, 9, 64, 8, 7, 7, 1, 1, 1, 1),
    (1, 11, 7, 64, 64, 3, 5, 2, 1, 1, 1),
    (4, 2, 3, 256, 328, 3, 5, 1, 2, 1, 1),
    (1, 13, 11, 64, 96, 3, 3, 1, 1, 2, 2),
    (1, 15, 19, 128, 192, 1, 1, 1, 1, 2, 2),
    (2, 15, 19, 128, 64, 5, 3, 2, 1, 2, 3),
    (1, 16, 24, 64, 96, 3, 3, 1, 1, 3, 5),
    (1, 20, 14, 64, 64, 5, 5, 11, 7, 3, 2),
    (1, 8, 8, 192, 160, 3, 3, 0, 0, 1, 2),
    (1, 55, 51, 64, 64, 3, 2, 0, 3, 4, 3),
)
#: The one that is run with slices of split-K: many products for few outputs.
_SPLIT = (1, 17, 11, 288, 160, 3, 3, 1, 1, 1, 1)
_SLICES = (1, 2, 3, 4, 201)


class Conv2dLauncher(Launcher):
    """Runs a convolution on problems of any size, and compares bit by bit with the reference.

    Parameters
    ----------
    operation : Conv2dOperation
        What to run.
    seed, interleaved, verification, profiling, warmup_iterations, iterations, sleep
        As for `pycutlass.compat.testing.launcher.Launcher`.
    """

    def __init__(self, operation: Conv2dOperation, *given: Any, **named: Any) -> None:
        super().__init__(operation, operation.splits_k, *given, **named)

    def run(
        self, problem_size: _core.Conv2dProblemSize, split_k_mode: Any = None, alpha: float = 1.0, beta: float = 0.0
    ) -> Any:
        """Run one problem; return whether D is right, or milliseconds where the launcher measures.

        Parameters
        ----------
        problem_size : cutlass.conv.Conv2dProblemSize
            Extents, and slices of split-K.
        split_k_mode : cutlass.conv.SplitKMode
            ``Serial`` (by default) or ``Parallel``.
        alpha, beta : float
            Scalars.
        """
        with nothing_left(f"{problem_size!r} with {split_k_mode}"):
            return self._run(problem_size, _SplitK.Serial if split_k_mode is None else split_k_mode, alpha, beta)

    def _run(self, problem_size: _core.Conv2dProblemSize, mode: Any, alpha: float, beta: float) -> Any:
        operation, kind = self.operation, self.operation.conv_kind
        counts = (
            _core.implicit_gemm_tensor_a_size(kind, problem_size),
            _core.implicit_gemm_tensor_b_size(kind, problem_size),
            _core.implicit_gemm_tensor_c_size(kind, problem_size),
        )
        A, B, C, D = self._operands(counts, of_convolution=True)
        scalars = operation.epilogue_type(alpha, beta)
        arguments = Conv2dArguments(operation, problem_size, A, B, C, D, scalars, mode)
        sums = None
        if mode == _SplitK.Parallel:
            product = _core.implicit_gemm_problem_size(kind, problem_size)
            extents, slices = [product.m(), product.n()], problem_size.split_k_slices
            reduction = check_operation(self.reduction_operation, ReductionOperation)
            sums = ReductionArguments(reduction, extents, slices, arguments.ptr_D, D, C, output_op=scalars)

        def expected() -> Any:
            reference = Conv2dReferenceModule(operation.A, operation.B, operation.C, kind)
            return reference.run(A, B, C, problem_size, alpha, beta)

        return self._outcome(arguments, sums, D, expected, f"{problem_size!r} in {mode}")


def test_all_conv2d(
    operation: Conv2dOperation, conv_test_sizes: Iterable[_core.Conv2dProblemSize] = (), interleaved: bool = False
) -> bool:
    """Return whether a convolution is right for a set of problems, with and without split-K.

    Parameters
    ----------
    operation : Conv2dOperation
        What to run; it is compiled here.
    conv_test_sizes : sequence of cutlass.conv.Conv2dProblemSize
        More problems.
    interleaved : bool
        As in the original; the operation's layouts say the same.
    """
    launcher = Conv2dLauncher(operation, interleaved=interleaved)
    tested: list[_core.Conv2dProblemSize] = []
    passed = True
    for size in (*map(_size, _DEFAULT), *conv_test_sizes):
        if size not in tested and _concerns(operation, size):
            tested.append(size)
            passed &= launcher.run(size)
    return passed and all(launcher.run(size, mode, 2.0, 2.0) for size, mode in _divided(operation))


test_all_conv2d.__test__ = False  # type: ignore[attr-defined]  # for test runners that find functions by their names


def _size(extents: tuple[int, ...]) -> _core.Conv2dProblemSize:
    n, h, w, c, k, r, s, pad_h, pad_w, stride_h, stride_w = extents
    return _core.Conv2dProblemSize(
        *(n, h, w, c, k, r, s), pad_h=pad_h, pad_w=pad_w, stride_h=stride_h, stride_w=stride_w
    )


def _concerns(operation: Conv2dOperation, size: _core.Conv2dProblemSize) -> bool:
    """Return whether an operation is for such problems. What it should take and does not is no reason to leave it out.

    Strided dgrad is run with strides alone: for others there is Unity.
    """
    unity = (size.stride_h, size.stride_w) == (1, 1)
    if operation.conv_kind is _Operator.dgrad and unity != (operation.stride_support is StrideSupport.Unity):
        return False
    if operation.is_interleaved:
        return size.C % 32 == 0 and size.K % 32 == 0
    if operation.iterator_algorithm is _Algorithm.fixed_channels:
        return size.C == operation.A.alignment
    return operation.iterator_algorithm is not _Algorithm.few_channels or size.C % operation.A.alignment == 0


def _divided(operation: Conv2dOperation) -> Iterator[tuple[_core.Conv2dProblemSize, Any]]:
    if operation.splits_k:
        for mode in (_SplitK.Parallel, _SplitK.Serial):
            for slices in _SLICES:
                yield _size(_SPLIT).reset_split_k_slices(slices), mode
