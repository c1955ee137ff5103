"""Operand B of interleaved kernels, which read its columns in an order of their own (`pycutlass.reorder_column`)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pycutlass import _core
from pycutlass.device import current_stream_source
from pycutlass.errors import ArgumentError, ArgumentTypeError
from pycutlass.interleave import is_reordered, permute_columns
from pycutlass.library import TensorDescription
from pycutlass.log import say_once
from pycutlass.operands import Matrix
from pycutlass.tensor import TensorView

__all__ = ["UNCHANGED", "Reordering"]

_LIBRARIES = ("numpy", "torch", "cupy")


class Reordering:
    """How arguments come from the B that they are given to the B that kernels read.

    Parameters
    ----------
    description : TensorDescription, optional
        Of B, where there is one.
    reordered : bool, optional
        Whether B is in the order of kernels; None looks for the mark that `pycutlass.reorder_column` leaves.

    Raises
    ------
    ArgumentTypeError
        `reordered` is something else.
    ArgumentError
        `reordered` is given, and B is not interleaved.
    """

    def __init__(self, description: TensorDescription | None, reordered: bool | None) -> None:
        self._copied: list[tuple[str, Any, tuple[int, int]]] = []
        self._reordered = reordered
        self.is_needed = description is not None and description.order.interleave > 1
        if reordered is not None and not isinstance(reordered, bool):
            raise ArgumentTypeError(f"reordered must be True, False or None (B's mark tells), got {reordered!r}")
        if reordered is not None and description is not None and not self.is_needed:
            raise ArgumentError(
                f"reordered says how the columns of an interleaved B are ordered, and this B is {description.order}: "
                f"leave it out"
            )

    @property
    def takes_anything(self) -> bool:
        """Whether another B may take the place of this one without a look at its order."""
        return not self.is_needed or self._reordered is True

    def begin(self) -> None:
        """Forget the tensors of the problem before this one."""
        self._copied = []

    def operand(self, make: Callable[[Any], Matrix], tensor: Any) -> Matrix:
        """Return B as kernels read it: what `make` makes of `tensor`, or of a reordered copy.

        Host memory is reordered when it is read, a tensor on a GPU now.

        Raises
        ------
        ArgumentError
            An address, or a tensor that cannot be read while a stream captures, without a word about its order.
        """
        operand = make(tensor)
        if not self.is_needed or self._reordered:
            return operand
        name, view = operand.name, operand.view
        if view.library not in _LIBRARIES:
            raise ArgumentError(
                f"operand {name} is {operand.description.order}, and nobody can see whether a {view.library} has its "
                f"columns in the order of the kernel: pass reordered=True if reorder_column has been applied, else a "
                f"tensor of numpy, torch or cupy"
            )
        if self._reordered is None:
            if view.device is not None and _stream_of(view).is_capturing():
                raise ArgumentError(
                    f"the contents of operand {name} cannot be read while a stream captures: pass reordered=True or "
                    f"reordered=False, or make the arguments before"
                )
            marked = is_reordered(tensor, name)
            if marked and view.device is not None:
                self._watch(name, view, tensor)
                return operand
            if marked:
                return _Unsaid(**vars(operand))
            say_once(
                f"operand {name} is {operand.description.order}, and its memory is not what reorder_column returned: "
                f"its columns are reordered for the kernel. Pass reordered=True if they have been already, "
                f"reordered=False if not; reorder_column does it once for many launches.",
                cause="reordered",
            )
        if view.device is None:
            return _Plain(**vars(operand)) if self._reordered is False else _Unsaid(**vars(operand))
        copy = permute_columns(tensor.reshape(-1))
        stream = _stream_of(view)
        if not stream.is_capturing():  # else the copy is captured, and comes before the launch in the graph
            stream.synchronize()  # as for numpy operands: a launch may be on another stream
        self._watch(name, view, tensor)
        return make(copy)

    def _watch(self, name: str, view: TensorView, tensor: Any) -> None:
        """Look at `tensor` before each launch: what has been copied, or seen to be reordered, may be written."""
        if view.library == "torch" and not tensor.is_inference():  # which knows of no version
            self._copied.append((name, tensor, _state(tensor)))

    def guarded(self, run: Callable[..., None]) -> Callable[..., None]:
        """Return `run`, with a look before each launch at the tensors whose order was seen."""
        if not self._copied:
            return run
        copied = self._copied

        def run_unchanged(stream: Any = None) -> None:
            for name, tensor, state in copied:
                if _state(tensor) != state:
                    raise ArgumentError(
                        f"operand {name} has been written since these arguments looked at the order of its columns: "
                        f"pass it again, arguments.update(B=B), or make new arguments with what reorder_column returns"
                    )
            run(stream)

        return run_unchanged

    def exchanging(self, try_exchange: Callable[..., bool]) -> Callable[..., bool]:
        """Return `try_exchange` for tensors that need no look at their order: another B is checked like the first."""
        if self.takes_anything:
            return try_exchange
        return lambda A, B, *others: B is None and try_exchange(A, None, *others)


#: Of arguments without a B that could be interleaved.
UNCHANGED = Reordering(None, None)


class _Plain(Matrix):
    """B in host memory whose columns are reordered whenever they are read."""

    def _host_lines(self) -> NDArray[Any]:
        lines = super()._host_lines()
        groups = lines.reshape(*lines.shape[:2], -1, 4, 4, 2, self.description.order.interleave)
        return np.ascontiguousarray(groups.swapaxes(3, 4)).reshape(lines.shape)


class _Unsaid(_Plain):
    """B in host memory, where the order of its columns is looked for whenever they are read."""

    def _host_lines(self) -> NDArray[Any]:
        if is_reordered(self.view.owner, self.name):
            return Matrix._host_lines(self)
        return super()._host_lines()


def _state(tensor: Any) -> tuple[int, int]:
    """Return what changes when a tensor of torch is written, or gets other memory."""
    return tensor._version, tensor.data_ptr()


def _stream_of(view: TensorView) -> _core.Stream:
    """Return the current stream of the library of a tensor on a GPU."""
    assert view.device is not None
    return _core.Stream(view.device, current_stream_source(view.library, view.device)())
