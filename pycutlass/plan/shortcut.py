"""What a product of tensors like others did before: looked up by a few attributes, without looking at it again."""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from pycutlass import _core
from pycutlass.epilogue import EpilogueScalars
from pycutlass.errors import PyCutlassError
from pycutlass.imported import imported, is_of
from pycutlass.integers import attribute
from pycutlass.operation import GemmProblemSize
from pycutlass.plan.candidate import Candidate
from pycutlass.plan.forms import Columns, maker_of, new_tensor
from pycutlass.plan.gemm import Gemm
from pycutlass.plan.gradients import tensors_among
from pycutlass.plan.launches import Launch, scalars_of
from pycutlass.plan.measured import generation
from pycutlass.tensor import TensorView, has_tangent, wrap

__all__ = [
    "Seen",
    "Shortcut",
    "as_matrices",
    "by_kind",
    "known",
    "precision_of",
    "precision_of_float32",
    "products",
    "seen",
]

#: Shortcuts by what was seen of matrices: a bounded number, since programs may go through ever other shapes.
_known: dict[Any, Shortcut] = {}
_MOST = 256
_lock = threading.Lock()
_ACCESS = 15  # bits of an address that alignment depends on


class Seen(NamedTuple):
    """A product of plain tensors, as far as others may be like it.

    Attributes
    ----------
    tensors : tuple
        What tells A, B, C and D apart from others.
    options : tuple
        alpha, beta, epilogue, out_dtype, accumulator_dtype and precision, as the caller gave them, but for scalars that
        are tensors of torch: of these it is `by_kind`.
    is_bias : bool
        Whether C was given as a bias.
    precision : str or None
        How float32 is multiplied.
    numbers : tuple
        What tells values of alpha and beta apart that are equal, such as 0.0 and -0.0.
    """

    tensors: tuple[Any, ...]
    options: tuple[Any, ...]
    is_bias: bool
    precision: str | None
    numbers: tuple[Any, ...]


class _ScalarKind(NamedTuple):
    """All that a kernel is chosen by of a scalar in device memory."""

    kind: type
    dtype: Any
    device: Any
    shape: tuple[int, ...]


def by_kind(scalar: Any) -> Any:
    """Return what tells products apart by a scalar: of a tensor of torch, which is in device memory, its kind.

    Programs may compute another tensor for each product.
    """
    if not is_of(scalar, "torch", "Tensor"):
        return scalar
    return _ScalarKind(type(scalar), scalar.dtype, scalar.device, tuple(scalar.shape))


def precision_of(a: Any) -> str | None:
    """Return how float32 is multiplied where the caller does not say: as torch's setting says of its tensors."""
    if a is None or attribute(a, "dtype") is not imported("torch", "float32"):
        return None
    return precision_of_float32()


def precision_of_float32() -> str | None:
    """Return how torch multiplies float32."""
    setting = imported("torch.backends.cuda", "matmul", "fp32_precision")
    if not isinstance(setting, str) or setting == "none":
        setting = "tf32" if imported("torch.backends.cuda", "matmul", "allow_tf32") is True else None
    precision = "tf32" if setting == "tf32" else None
    _core.Recording.note_answer("products", precision)
    return precision


#: Launches of products that wait for the next one, for the whole process: `matmul` is one function.
products = _core.KnownProducts(precision_of)


def seen(*tensors: Any) -> tuple[Any, ...] | None:
    """Return what tells tensors apart, None unless all are plain ones without a gradient: C may be a vector."""
    torch_tensor = imported("torch", "Tensor")
    found: list[tuple[Any, ...] | None] = []
    for index, each in enumerate(tensors):
        if each is None:
            found.append(None)
            continue
        is_array, is_tensor = type(each) is np.ndarray, type(each) is torch_tensor
        if not (is_array or is_tensor) or not (each.ndim == 2 or (each.ndim == 1 and index == _SOURCE)):
            return None
        if is_array:
            found.append((each.shape, each.strides, each.dtype, each.ctypes.data & _ACCESS))
        elif not each.requires_grad and not has_tangent(each):
            try:
                found.append((each.shape, each.stride(), each.dtype, each.device, each.data_ptr() & _ACCESS))
            except RuntimeError:  # a sparse one, or one that torch traces
                return None
        else:
            return None
    return tuple(found)


_SOURCE = 2  # where C is among the tensors


def as_matrices(a: Any, b: Any, c: Any, out: Any, columns_of_d: Columns) -> tuple[Any, Any] | None:
    """Return A and D as matrices of all rows of a stack that B is multiplied with, where a view of torch's is enough.

    None of all others, such as those that do not fit.
    """
    torch_tensor = imported("torch", "Tensor")
    if (
        type(a) is not torch_tensor
        or type(b) is not torch_tensor
        or (out is not None and type(out) is not torch_tensor)
    ):
        return None
    try:
        shape, columns = a.shape, b.shape[-1]
        fits = len(shape) > 2 and b.ndim == 2 and shape[-1] == b.shape[0] and a.numel() and columns
        if not fits or not a.is_contiguous() or (c is not None and c.ndim != 1):
            return None
        of_d = columns_of_d(columns)
        if out is not None and not (out.is_contiguous() and out.shape == (*shape[:-1], of_d)):
            return None
        return a.view(-1, shape[-1]), None if out is None else out.view(-1, of_d)
    except Exception:  # of tensors that torch traces, and of whatever C is: who looks closer says so
        return None


def known(key: Seen) -> Shortcut | None:
    """Return the shortcut for what was seen, if there is one, and nothing was measured since."""
    found = _known.get(key)
    return None if found is None or found.generation != generation.number else found


class Shortcut:
    """A plan for matrices that need no other form, with all that does not depend on what is in them.

    It keeps no tensor: a launch waits for others without those that it had, or is made for each product.
    """

    __slots__ = ("_candidate", "_last", "_plan", "_scalars", "_shape", "_size", "_view", "generation")

    def __init__(self, key: Seen, plan: Gemm, a: Any, b: Any) -> None:
        self.generation = generation.number
        view = wrap("a", a)
        (m, k), n = a.shape, b.shape[1]
        self._plan, self._candidate = plan, plan._compiled(m)
        self._size: GemmProblemSize = self._candidate.size(m, n, k)
        self._shape = (m, plan.kind.epilogue.columns(n))
        self._view: TensorView = replace(view, owner=None)
        self._scalars: EpilogueScalars = scalars_of(self._candidate, plan._scalars)
        self._last = plan._device_scalars  # those of the last product
        with _lock:
            while len(_known) >= _MOST:
                _known.pop(next(iter(_known)))
            _known[key] = self

    @property
    def candidate(self) -> Candidate:
        """The kernel with the options of its launch."""
        return self._candidate

    def run(
        self, key: Seen, options: tuple[Any, ...], a: Any, b: Any, c: Any, out: Any, stream: Any, as_given: bool
    ) -> Any:
        """Compute D and return it; None, and nothing was launched, where something does not fit.

        `options` are those of `key`; whether the caller gave these very objects is `as_given`, without which nobody
        would find the launch.
        """
        dtype_name, make = self._plan.kind.D.type.dtype_name, None
        if out is None:
            out = new_tensor(a, self._view, self._shape, dtype_name)
            make = maker_of(a, self._view, self._shape, dtype_name)
        scalars, tensors = self._scalars, tensors_among({"alpha": options[0], "beta": options[1]})
        try:
            if any(scalars.pointers):  # whose tensors may be others, or have other memory by now
                scalars = scalars_of(self._candidate, self._plan._scalars | tensors)
            launch = Launch(self._candidate, self._size, (a, b, c, out), scalars, {})
        except PyCutlassError:  # which is raised again, in the words of `matmul`
            return None
        launch.run(stream)
        launch.finish()
        last, self._last = self._last, tensors
        is_repeated = all(last.get(name) is tensor for name, tensor in tensors.items())
        is_found = stream is None and is_repeated and as_given
        waitable = launch.waitable((a, b, c, out)) if is_found else None
        if waitable is not None:  # launches wait for the very scalars
            how = (options, key.is_bias, key.precision, make, self.generation)
            if products.keep(waitable, (a, b, c, out), *how):
                launch.hand_over()
        return out
