"""Where device memory for workspaces and copies of host arrays comes from: a pool of RMM, torch, cupy, or the user.

What is here neither knows who needs memory nor keeps any: `pycutlass.memory` asks the allocator that was current when
arguments were made, and gives back to the same one.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Protocol

from pycutlass import _core
from pycutlass.calls import public, shown, suggestion
from pycutlass.errors import ArgumentError, ArgumentTypeError, PoolError, PyCutlassError, ToolkitError
from pycutlass.imported import imported
from pycutlass.integers import attribute

__all__ = [
    "Allocator",
    "Chosen",
    "CupyAllocator",
    "TorchAllocator",
    "allocating_with",
    "chosen",
    "may_give_back",
    "set_allocator",
    "take",
]

_LEGACY = (0, 1)  # handles of the legacy default stream
_ALIGNMENT = 256  # what CUDA's own functions give, and what is laid out in a buffer counts on


class Allocator(Protocol):
    """What device memory can be taken from, in the order of streams.

    A stream has ``ordinal``, its GPU, and ``handle``, an integer. Both methods may be called by any thread, whichever
    GPU is current, and must leave that one current.
    """

    def allocate(self, size: int, stream: _core.Stream) -> int:
        """Return the address of `size` bytes on the stream's GPU, aligned to 256 bytes and usable on `stream`.

        Raises
        ------
        MemoryError
            There are not that many.
        """

    def deallocate(self, pointer: int, size: int, stream: _core.Stream) -> None:
        """Give memory back, once what is on `stream` now has run; it need not be the one that it was taken on."""


class _OfLibrary:
    """Memory of a tensor library: an object of its own for each address, which is free when that goes."""

    def __init__(self) -> None:
        self._held: dict[int, tuple[Any, _core.Stream]] = {}

    def deallocate(self, pointer: int, size: int, stream: _core.Stream) -> None:
        """Give memory back, once what is on `stream` now has run."""
        memory, taken_on = self._held.pop(pointer)
        if stream != taken_on:  # the library takes it for free on that one
            taken_on.follow(stream)
        del memory

    def _hold(self, memory: Any, pointer: int, stream: _core.Stream) -> int:
        self._held[pointer] = (memory, stream)
        return pointer


@public
class TorchAllocator(_OfLibrary):
    """Takes memory from torch's caching allocator; while a graph is captured on the stream, from the graph's pool.

    Raises
    ------
    ToolkitError
        torch is not installed.

    Examples
    --------
    >>> import pycutlass
    >>> def arguments_in_torch(*given):
    ...     with pycutlass.allocating_with(pycutlass.TorchAllocator()):
    ...         return pycutlass.GemmArguments(*given)
    """

    def __init__(self) -> None:
        super().__init__()
        self._torch = _imported("torch")

    def allocate(self, size: int, stream: _core.Stream) -> int:
        """Return the address of `size` bytes, usable on `stream`.

        Raises
        ------
        PoolError
            torch has no such memory.
        """
        torch = self._torch
        try:
            with self._current(stream):  # which makes its GPU current for as long
                memory = torch.empty(size, dtype=torch.uint8, device=torch.device("cuda", stream.ordinal))
        except (torch.cuda.OutOfMemoryError, torch.AcceleratorError) as error:
            if not isinstance(error, torch.cuda.OutOfMemoryError) and "out of memory" not in str(error):
                raise
            free, total = _core.memory_info(stream.ordinal)
            raise PoolError(size, total - free, total, gpu=stream.ordinal) from error
        return self._hold(memory, int(memory.data_ptr()), stream)

    def _current(self, stream: _core.Stream) -> Any:
        """Return what makes `stream` torch's current one for a while."""
        cuda, ordinal = self._torch.cuda, stream.ordinal
        present = cuda.current_stream(ordinal)
        if present.cuda_stream == stream.handle:
            return cuda.stream(present)
        if stream.handle in _LEGACY:  # of which torch would make a stream of its own
            return cuda.stream(cuda.default_stream(ordinal))
        return cuda.stream(cuda.ExternalStream(stream.handle, device=ordinal))


@public
class CupyAllocator(_OfLibrary):
    """Takes memory from cupy's current allocator, by default its memory pool.

    Raises
    ------
    ToolkitError
        cupy is not installed.

    Examples
    --------
    >>> import pycutlass
    >>> def arguments_in_cupy(*given):
    ...     with pycutlass.allocating_with(pycutlass.CupyAllocator()):
    ...         return pycutlass.GemmArguments(*given)
    """

    def __init__(self) -> None:
        super().__init__()
        self._cuda = _imported("cupy").cuda

    def allocate(self, size: int, stream: _core.Stream) -> int:
        """Return the address of `size` bytes, usable on `stream`.

        Raises
        ------
        PoolError
            cupy has no such memory.
        """
        cuda = self._cuda
        try:
            theirs = cuda.ExternalStream(stream.handle, stream.ordinal) if stream.handle else cuda.Stream.null
            with cuda.Device(stream.ordinal), theirs:
                memory = cuda.alloc(size)
        except cuda.memory.OutOfMemoryError as error:
            free, total = _core.memory_info(stream.ordinal)
            raise PoolError(size, total - free, total, gpu=stream.ordinal) from error
        return self._hold(memory, int(memory.ptr), stream)


_BY_NAME: dict[str, Callable[[], Allocator | None]] = {
    "rmm": lambda: None,
    "torch": TorchAllocator,
    "cupy": CupyAllocator,
}


@dataclass
class Chosen:
    """The allocator of what is made now; None for RMM's pool."""

    allocator: Allocator | None


# One for the process, as torch and cupy have theirs, and what stands in for it in a ``with`` block.
_of_process = Chosen(None)
chosen: ContextVar[Chosen] = ContextVar("pycutlass_allocator", default=_of_process)


@public
def set_allocator(allocator: Allocator | str | None) -> None:
    """Take device memory from `allocator` from now on, in the whole process.

    Arguments that were made before go on with the one that they were made with.

    Parameters
    ----------
    allocator : Allocator, or "rmm", "torch", "cupy", or None
        An object with ``allocate(size, stream)`` and ``deallocate(pointer, size, stream)``, or a library's memory. None
        and ``"rmm"`` are the pool of RMM that each GPU has.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        Another name, or an object without these methods.
    ToolkitError
        The library is not installed.

    Examples
    --------
    >>> import pycutlass
    >>> pycutlass.set_allocator("rmm")
    """
    _of_process.allocator = _meant(allocator)


@public
def allocating_with(allocator: Allocator | str | None) -> contextlib.AbstractContextManager[None]:
    """Take device memory from `allocator` in a ``with`` block, in this thread or task alone.

    Parameters and exceptions are those of `set_allocator`. What is made in the block keeps the allocator.

    Examples
    --------
    >>> import pycutlass
    >>> with pycutlass.allocating_with("rmm"):
    ...     pass
    """
    return _scope(_meant(allocator))


@contextlib.contextmanager
def _scope(allocator: Allocator | None) -> Iterator[None]:
    token = chosen.set(Chosen(allocator))
    try:
        yield
    finally:
        chosen.reset(token)


def take(allocator: Allocator, size: int, stream: _core.Stream) -> int:
    """Return the address of `size` bytes from `allocator`, checked.

    Raises
    ------
    PoolError
        The allocator lacks the memory.
    ArgumentError, ArgumentTypeError
        It raises something else, or returns what is no address, or one that is not aligned.
    """
    name = type(allocator).__name__
    try:
        pointer = allocator.allocate(size, stream)
    except PyCutlassError:
        raise
    except MemoryError as error:
        free, total = _core.memory_info(stream.ordinal)
        raise PoolError(size, total - free, total, gpu=stream.ordinal) from error
    except Exception as error:
        raise ArgumentError(f"the allocator {name} cannot give {size:,} bytes: {shown(error)}") from error
    if not isinstance(pointer, int) or isinstance(pointer, bool) or pointer <= 0:
        raise ArgumentTypeError(f"allocate of {name} must return an address, got {shown(pointer)}")
    if pointer % _ALIGNMENT:
        allocator.deallocate(pointer, size, stream)
        raise ArgumentError(f"allocate of {name} must return addresses aligned to {_ALIGNMENT}, got {pointer:#x}")
    return pointer


def may_give_back(allocator: Allocator, pointer: int, stream: _core.Stream) -> bool:
    """Return whether memory may go back to `allocator` now, which is behind what is on `stream`.

    It may not where a stream is captured that would have to be marked, or to wait for such a mark. Torch marks nothing
    where the memory was taken on that stream, and has to have it when the capture ends: what is alive then in a graph's
    pool is a tensor that somebody uses, as `torch.compile` sees it.
    """
    taken_on = allocator._held[pointer][1] if isinstance(allocator, _OfLibrary) else stream
    if taken_on == stream and isinstance(allocator, TorchAllocator):
        return True
    return not stream.is_capturing() and (taken_on == stream or not taken_on.is_capturing())


def _meant(allocator: Any) -> Allocator | None:
    if allocator is None:
        return None
    if isinstance(allocator, str):
        name = str.__str__(allocator)  # a class that is derived from str may refuse to be compared
        if name not in _BY_NAME:
            near = suggestion(name, _BY_NAME)
            raise ArgumentError(f"an allocator is one of {', '.join(_BY_NAME)}, or an object; got {name!r}.{near}")
        return _BY_NAME[name]()
    fits = all(callable(attribute(allocator, name)) for name in ("allocate", "deallocate"))
    if isinstance(allocator, type) and fits:
        raise ArgumentTypeError(f"an allocator is an object, got {shown(allocator)}: make one, {allocator.__name__}()")
    if not fits:
        raise ArgumentTypeError(
            f"an allocator has the methods allocate(size, stream) and deallocate(pointer, size, stream), or is one of "
            f"{', '.join(_BY_NAME)}; got {shown(allocator)}"
        )
    made: Allocator = allocator
    return made


def _imported(library: str) -> Any:
    try:
        if library == "torch":
            import torch  # noqa: F401 (found by its name below)
        else:
            import cupy  # noqa: F401
    except ImportError as error:
        raise ToolkitError(f"memory of {library} needs {library}, which is not installed: {error}") from error
    if imported(library, "cuda") is None:
        raise ToolkitError(
            f"memory of {library} needs {library}.cuda, which the module {library} of this process lacks"
        )
    return imported(library)
