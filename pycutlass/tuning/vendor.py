"""What cuBLAS and cuDNN take for a problem, called by torch, in the process that measures candidates."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from pycutlass import _core, cutlass
from pycutlass.errors import ArgumentError
from pycutlass.imported import imported
from pycutlass.library import TensorDescription
from pycutlass.tuning.conv2d_problem import Conv2dProblem
from pycutlass.tuning.tunable import Launch, Tunable

__all__ = ["Vendor", "vendor_work"]

_Operator = _core.ConvOperator
_KNOWN = "the candidates' times were known before; measure them anew with again=True, or --again"


@dataclass
class Vendor:
    """The vendor's library beside the candidates of a problem, and what is known of it.

    Attributes
    ----------
    name : str
        ``"cuBLAS"`` or ``"cuDNN"``.
    times : list of float
        Microseconds, measured in the rounds of the candidates.
    reason : str
        Why there are none.
    """

    name: str
    times: list[float] = field(default_factory=list)
    reason: str = _KNOWN

    @classmethod
    def of(cls, problem: Tunable) -> Vendor:
        """Return the library that computes a problem."""
        return cls("cuDNN" if isinstance(problem, Conv2dProblem) else "cuBLAS")


def vendor_work(problem: Tunable, a: Sequence[int], b: Sequence[int]) -> Launch:
    """Return what computes a problem without its epilogue by torch, of packed operands at these addresses.

    Raises
    ------
    ArgumentError
        Torch is not there, or does not compute this; the message says why.
    """
    torch = imported("torch")
    if torch is None:
        raise ArgumentError("it is called by torch, which is not installed")
    if not torch.cuda.is_available():
        raise ArgumentError(f"it is called by torch, and torch {torch.__version__} sees no GPU")
    is_tf32 = problem.kind.element_a is cutlass.tfloat32
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = is_tf32
    torch.backends.cudnn.benchmark = True
    try:
        if isinstance(problem, Conv2dProblem):
            run = _convolution(torch, problem, a[0], b[0])
        else:
            run = _products(torch, problem, a, b)
        run()
    except ArgumentError:
        raise
    except Exception as error:  # whatever torch raises
        said = str(error).strip().splitlines()
        raise ArgumentError(f"torch does not compute it: {said[0] if said else type(error).__name__}") from error
    return run


def _products(torch: Any, problem: Tunable, a: Sequence[int], b: Sequence[int]) -> Launch:
    """Return what makes one product after the other, as a group has several."""
    kind, shapes = problem.kind, problem.work().shapes
    works = []
    for number, each in enumerate(shapes):
        A, B = _matrix(torch, a[number], kind.A, each.a), _matrix(torch, b[number], kind.B, each.b)
        D = torch.empty(_lying(each.c, kind.D.is_row_major), dtype=_dtype(torch, kind.D), device=A.device)
        works.append((A, B, D if kind.D.is_row_major else D.mT))
    multiply = _multiplier(torch, problem, works[0][0].device)
    if len(works) == 1:
        return lambda: multiply(*works[0])
    return lambda: [multiply(*each) for each in works]


def _multiplier(torch: Any, problem: Tunable, where: Any) -> Callable[[Any, Any, Any], Any]:
    """Return torch's function for A, B and D of these types, or raise ArgumentError where it has none."""
    kind = problem.kind
    a, b, d = kind.A.type, kind.B.type, kind.D.type
    is_batch = len(problem.work().shapes[0].a) > 2
    if a is b is d and not a.is_integer and not a.is_float8:
        return lambda A, B, D: torch.matmul(A, B, out=D)
    if is_batch and (a.is_float8 or a.is_byte):
        raise ArgumentError(f"torch has no batches of products of {a.dtype_name}")
    if a.is_float8 and b.is_float8:
        if not kind.A.is_row_major or kind.B.is_row_major:
            raise ArgumentError("torch multiplies floats of 8 bits where elements of K are adjacent in A and B alone")
        one = torch.ones((), device=where)
        return lambda A, B, D: torch._scaled_mm(A, B, one, one, out_dtype=D.dtype, out=D)
    if a.short == b.short == "s8" and d.short == "s32":
        return lambda A, B, D: torch._int_mm(A, B, out=D)
    if a is b and a.bits == 16 and d.short == "f32":
        multiply = torch.bmm if is_batch else torch.mm
        return lambda A, B, D: multiply(A, B, out_dtype=torch.float32, out=D)
    raise ArgumentError(f"torch does not multiply {a.dtype_name} and {b.dtype_name} to {d.dtype_name}")


def _convolution(torch: Any, problem: Conv2dProblem, a: int, b: int) -> Launch:
    """Return torch's convolution, or the gradient that is meant, of images whose channels are adjacent."""
    kind, p = problem.kind, problem.problem_size
    if kind.A.type is not kind.D.type or kind.A.type.is_integer:
        raise ArgumentError(f"torch does not convolve {kind.A.type.dtype_name} to {kind.D.type.dtype_name}")
    if p.mode is not _core.ConvMode.cross_correlation:
        raise ArgumentError("torch correlates, and does not turn filters around")
    shapes = problem.work().shapes[0]
    A, B = (
        _matrix(torch, address, described, shape).permute(0, 3, 1, 2)
        for address, described, shape in ((a, kind.A, shapes.a), (b, kind.B, shapes.b))
    )
    stride, padding, dilation = (p.stride_h, p.stride_w), (p.pad_h, p.pad_w), (p.dilation_h, p.dilation_w)
    if kind.direction is _Operator.fprop:
        return lambda: torch.nn.functional.conv2d(A, B, None, stride, padding, dilation, p.groups)
    is_dgrad = kind.direction is _Operator.dgrad
    beside = _like(torch, A, (p.N, p.H, p.W, p.C) if is_dgrad else (p.K, p.R, p.S, p.C // p.groups))
    x, w = (beside, B) if is_dgrad else (B, beside)
    given = (A, x, w, None, stride, padding, dilation, False, (0, 0), p.groups, (is_dgrad, not is_dgrad, False))
    return lambda: torch.ops.aten.convolution_backward(*given)


def _like(torch: Any, tensor: Any, shape: tuple[int, ...]) -> Any:
    """Return a tensor of which only the shape counts, with channels in the last place of memory."""
    return torch.empty(shape, dtype=tensor.dtype, device=tensor.device).permute(0, 3, 1, 2)


def _matrix(torch: Any, address: int, described: TensorDescription, shape: tuple[int, ...]) -> Any:
    """Return packed memory as a tensor of torch."""
    size, by_rows = described.type.bytes_of(math.prod(shape)), described.is_row_major
    found = _bytes_at(torch, address, size).view(_dtype(torch, described)).reshape(_lying(shape, by_rows))
    return found if by_rows else found.mT


def _bytes_at(torch: Any, address: int, size: int) -> Any:
    """Return memory as bytes, since not all types pass between libraries."""
    return torch.as_tensor(_Memory(address, size), device="cuda")


@dataclass(frozen=True)
class _Memory:
    """Memory of a GPU as torch takes it, whose tensors keep this object; the memory is somebody else's."""

    address: int
    size: int

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {"shape": (self.size,), "typestr": "|u1", "data": (self.address, False), "strides": None, "version": 3}


def _lying(shape: tuple[int, ...], by_rows: bool) -> tuple[int, ...]:
    """Return the shape of a matrix in memory, the last dimension adjacent."""
    return shape if by_rows else (*shape[:-2], shape[-1], shape[-2])


def _dtype(torch: Any, described: TensorDescription) -> Any:
    return getattr(torch, described.type.dtype_name)
