"""f16 GEMMs on torch tensors: inputs that do not stay in the L2 cache, and the check against a reference."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from benchmarks.common import BenchmarkError
from benchmarks.kernels import summing
from benchmarks.timing import Loop, cycling
from pycutlass import GemmArguments, GemmOperationUniversal, RasterOrder, ReductionArguments, cutlass

if TYPE_CHECKING:
    import torch

    from benchmarks.builds import NativeGemm

__all__ = ["Problem", "input_sets"]

Size = tuple[int, int, int]
Mode = cutlass.gemm.Mode

_MOST_SETS = 32
_TOLERANCE = 1e-3  # relative, in the Frobenius norm; rounding the result to f16 makes about 2e-4


class Problem:
    """One GEMM with several sets of random normal inputs, used in turn.

    Parameters
    ----------
    size : tuple of 3 int
        M, N, K.
    sets : int, optional
        How many; by default so many that all of them together are twice as large as the L2 cache.
    """

    def __init__(self, size: Size, sets: int | None = None) -> None:
        import torch

        m, n, k = self.size = size
        cache = torch.cuda.get_device_properties(0).L2_cache_size
        count = input_sets(2 * (m * k + k * n + m * n), cache) if sets is None else sets
        generator = torch.Generator("cuda").manual_seed(m + 3 * n + 5 * k)

        def normal(rows: int, columns: int) -> torch.Tensor:
            return torch.randn(rows, columns, device="cuda", dtype=torch.float16, generator=generator)

        self.sets = [
            (normal(m, k), normal(n, k).t(), torch.empty(m, n, device="cuda", dtype=torch.float16))
            for _ in range(count)
        ]
        a, b, _ = self.sets[0]
        self._reference = a.double() @ b.double()

    @property
    def operations(self) -> float:
        """Multiplications and additions."""
        m, n, k = self.size
        return 2.0 * m * n * k

    def rate(self, microseconds: float) -> float:
        """Return TFLOP/s."""
        return self.operations / microseconds / 1e6

    def torch_mm(self) -> Loop:
        """Return a loop over torch.mm, which is cuBLAS."""
        import torch

        return self._checked("torch.mm", [functools.partial(torch.mm, a, b, out=d) for a, b, d in self.sets])

    def pycutlass(
        self,
        operation: GemmOperationUniversal,
        raster_order: RasterOrder = RasterOrder.Heuristic,
        *,
        launch_with_pdl: bool = True,
        slices: int = 1,
    ) -> Loop:
        """Return a loop over an operation of PyCUTLASS; slices are added up by another kernel, but for stream-K."""
        options: dict[str, Any] = {"raster_order": raster_order, "launch_with_pdl": launch_with_pdl}
        options |= {"split_k_slices": slices} if slices > 1 else {}
        calls: list[Any] = []
        if slices > 1 and not operation.is_stream_k:
            calls = [self._in_parallel(operation, tensors, options) for tensors in self.sets]
            return self._checked(f"{operation.procedural_name()} in {slices} slices", calls)
        for a, b, d in self.sets:
            arguments = GemmArguments(operation, self.size, a, b, None, d, **options)
            calls.append(functools.partial(operation.run, arguments))
        return self._checked(operation.procedural_name(), calls)

    def _in_parallel(self, operation: GemmOperationUniversal, tensors: Any, options: dict[str, Any]) -> Any:
        """Return a call that makes partial sums, and adds them up."""
        a, b, d = tensors
        arguments = GemmArguments(operation, self.size, a, b, None, d, Mode.GemmSplitKParallel, **options)
        reduction = summing()
        sums = ReductionArguments(reduction, self.size[:2], options["split_k_slices"], arguments.ptr_D, d)

        def call() -> None:
            operation.run(arguments)
            reduction.run(sums)

        return call

    def native(self, gemm: NativeGemm, schedule: tuple[int, int] = (1, 2)) -> Loop:
        """Return a loop over a GEMM that nvcc compiled as a whole."""
        import torch

        stream = torch.cuda.current_stream().cuda_stream
        calls = []
        for tensors in self.sets:
            a, b, d = (tensor.data_ptr() for tensor in tensors)
            calls.append(gemm.prepare(self.size, (a, b, d), stream, schedule))
        return self._checked("the GEMM in C++", calls)

    def _checked(self, name: str, calls: Sequence[Any]) -> Loop:
        """Return the loop after the first of `calls` has computed what the reference did, in every element."""
        target = self.sets[0][2]
        target.fill_(float("nan"))
        calls[0]()
        error = float((target.double() - self._reference).norm() / self._reference.norm())
        if not error <= _TOLERANCE:
            raise BenchmarkError(f"{name} is wrong at {self.size}: relative error {error:.2e}, NaN where not written")
        return cycling(calls)


def input_sets(set_bytes: int, cache_bytes: int) -> int:
    """Return how many sets of inputs are needed so that none is still in the cache when its turn comes again."""
    return max(1, min(_MOST_SETS, -(-2 * cache_bytes // set_bytes)))
