"""Two ways to execute a problem: on a GPU, and on the host where there is none.

Nothing here knows what a GEMM or a convolution is. A `Problem` holds the checked operands and scalars of one launch,
fills its family's part of the call record, and can be computed on the host.
"""

from __future__ import annotations

import contextlib
import functools
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from pycutlass import _core, device, kernel
from pycutlass.epilogue import EpilogueScalars
from pycutlass.errors import ArgumentError, DeviceError, PoolError
from pycutlass.library import TensorDescription
from pycutlass.log import say_once
from pycutlass.memory import DeviceBuffer
from pycutlass.operation import Operation
from pycutlass.retirement import retire
from pycutlass.tensor import Guard, TensorView, current_stream_source, guard

__all__ = [
    "DeviceLaunch",
    "HostLaunch",
    "NoLaunch",
    "Operand",
    "Problem",
    "check_on_host",
    "follow_streams",
    "guards",
    "ordinal_of",
    "run_joined",
]

_OPERANDS = ("A", "B", "C", "D")
_GRID_LIMIT = 65535  # along y and z


class Operand(Protocol):
    """A checked tensor: what the user gave as A, B, C or D."""

    @property
    def name(self) -> str:
        """A, B, C or D."""

    @property
    def description(self) -> TensorDescription:
        """Element type, layout and alignment."""

    @property
    def view(self) -> TensorView:
        """The memory."""

    @property
    def parts(self) -> Sequence[Operand]:
        """What it is made of, with a tensor each."""

    @property
    def ld(self) -> int:
        """Leading dimension in elements."""

    @property
    def batch_stride(self) -> int:
        """Step between matrices of a batch in elements."""

    @property
    def bytes(self) -> int:
        """Bytes from the first element to the end of the last."""

    @property
    def packed_ld(self) -> int:
        """Leading dimension of a contiguous copy."""

    @property
    def packed_batch_stride(self) -> int:
        """Batch stride of a contiguous copy."""

    @property
    def packed_bytes(self) -> int:
        """Bytes of a contiguous copy."""

    def packed(self) -> NDArray[Any]:
        """Return host memory as contiguous bytes in the declared layout."""

    def unpack(self, packed: NDArray[Any]) -> None:
        """Write contiguous bytes in the declared layout into host memory."""

    def addresses(self, base: int) -> list[int] | None:
        """Return the table of addresses that the kernel wants, given that of a packed copy; None for plain operands."""

    def host_array(self) -> NDArray[Any]:
        """Return host memory as an array of matrices."""

    def store(self, values: NDArray[Any]) -> None:
        """Write an array of the shape of `host_array` to host memory."""


class Problem(ABC):
    """Everything that one launch is about, checked.

    Attributes
    ----------
    operands : mapping
        By name; C is absent where it is not read.
    scalars : EpilogueScalars
        alpha, beta and what the activation needs.
    """

    operands: Mapping[str, Operand]
    scalars: EpilogueScalars

    @property
    def is_empty(self) -> bool:
        """Whether D has no elements, so that there is nothing to launch."""
        return False

    @property
    @abstractmethod
    def what(self) -> str:
        """The problem in words, for messages."""

    @abstractmethod
    def make_call(self, loaded: _core.DeviceKernel) -> _core.Call:
        """Return a call of the family's class."""

    @abstractmethod
    def configure(self, call: Any) -> None:
        """Fill the family's part of the call record: sizes and modes."""

    @abstractmethod
    def compute(self) -> None:
        """Execute the meaning on the host: read the operands there, write D."""


class DeviceLaunch:
    """A problem on a GPU: kernel, call record, buffers of host operands, and workspace."""

    def __init__(self, operation: Operation, problem: Problem, ordinal: int) -> None:
        self.ordinal = ordinal
        self.call = problem.make_call(kernel.load(operation, ordinal))
        self._operation = operation
        self._buffers: dict[str, DeviceBuffer] = {}
        self._host_D: Operand | None = None
        self._host_guards: list[tuple[str, Guard]] = []
        self._libraries: Mapping[str, type] = {}
        self._joined: list[Callable[[], _core.Stream]] = []
        #: Buffers that were too small for an update. They go last: captured graphs may still use them.
        self._outgrown: list[DeviceBuffer] = []
        self.update(problem)

    @property
    def run(self) -> Callable[..., None]:
        """What launches, with a stream or None. Looked up once for many launches: this is their hot path.

        It does not lead back here: buffers go with the last reference and do not wait for the garbage collector.
        """
        if self._joined:
            return functools.partial(run_joined, self.call, self._joined, bool(self._buffers))
        return functools.partial(_run_with_buffers, self.call) if self._buffers else self.call.bound_run

    @property
    def try_exchange(self) -> Callable[[Any, Any, Any, Any], bool]:
        """What takes tensors of the same form in place of the present ones, or returns False."""
        return self.call.bound_update

    def update(self, problem: Problem) -> None:
        """Bring a problem of the same size into the call record and make the kernel's parameters."""
        call = self.call
        with self._following(problem):
            self._set_scalars(problem.scalars)
            for name, operand in problem.operands.items():
                self._place(name, operand)
            problem.configure(call)
            self._plan(problem, call)
            if call.workspace_bytes and "workspace" not in self._buffers:
                self._make_workspace(call.workspace_bytes)
                self._plan(problem, call)

    def sync(self) -> None:
        """Wait for the stream of the last launch; bring D back where it is host memory."""
        stream = self.call.last_stream
        if self._host_D is None or not self.call.launched:
            stream.synchronize()
            return
        for name, each in self._host_guards:
            each.check(name)
        packed = np.empty(self._host_D.packed_bytes, np.uint8)
        _core.copy_to_host(packed, self._buffers["D"].pointer, stream)
        stream.synchronize()
        self._host_D.unpack(packed)

    @property
    def launched(self) -> bool:
        """Whether there was a launch."""
        return self.call.launched

    @property
    def ends_elsewhere(self) -> bool:
        """Whether there was a launch on a stream of the caller's, which the tensors' library does not know of."""
        return self.call.explicit_end is not None

    def give_up(self, owners: tuple[Any, ...]) -> None:
        """Let go of `owners`: not before a launch on a stream of the caller's has finished with them."""
        if self.call.explicit_end is not None:
            retire((*owners, self.call.take_storages()), self.call.explicit_end)

    def release(self, owners: tuple[Any, ...]) -> None:
        """Let go of everything, ordered behind the last launch."""
        self._let_go(*self._buffers.values(), *self._outgrown)
        self.give_up(owners)

    def operand(self, name: str) -> tuple[int, int]:
        """Return the address and the leading dimension that the kernel gets for an operand."""
        pointer, ld, _ = self.call.operand(_OPERANDS.index(name))
        return pointer, ld

    @contextlib.contextmanager
    def _following(self, problem: Problem) -> Iterator[None]:
        """Launch from now on where the libraries of these tensors say; where something fails, as before."""
        before = self._libraries
        self._follow({each.view.library: type(each.view.owner) for each in problem.operands.values()})
        try:
            yield
        except BaseException:
            self._follow(before)
            raise

    def _follow(self, libraries: Mapping[str, type]) -> None:
        """Follow the current streams of these libraries, behind what was done on the one before."""
        if libraries == self._libraries:
            return
        call = self.call
        before = call.current_stream
        self._joined, self._libraries = follow_streams(call, libraries, self.ordinal), libraries
        after = call.current_stream
        if after != before and (call.launched or self._buffers) and not after.is_capturing():
            after.follow(before)

    def _let_go(self, *buffers: DeviceBuffer) -> None:
        """Give buffers back behind the last launch that uses them."""
        call, end = self.call, self.call.explicit_end
        for buffer in buffers:
            if call.launched and not call.was_named:
                buffer.stream = call.last_stream
        if end is not None and not end.done:
            retire(buffers, end)

    def _set_scalars(self, scalars: EpilogueScalars) -> None:
        """Bring alpha, beta and the rest into the record."""
        self.call.unwatch()
        self.call.set_scalars(scalars.values, scalars.pointers)
        for name, pointer, owner in zip(("alpha", "beta"), scalars.pointers, scalars.owners, strict=False):
            if pointer:
                self.call.watch(owner, name, False)

    def _place(self, name: str, operand: Operand) -> None:
        """Point the record at an operand. Host memory gets a buffer, and is copied to it unless it is D."""
        index, alignment = _OPERANDS.index(name), operand.description.alignment_bytes
        if operand.view.device is not None:
            pointer, ld, step, size = operand.view.pointer, operand.ld, operand.batch_stride, operand.bytes
            if name == "D":
                self._host_D = None
        else:
            pointer, ld, step = self._copy_in(name, operand), operand.packed_ld, operand.packed_batch_stride
            size = operand.packed_bytes
        addresses = operand.addresses(pointer)
        if addresses is not None:
            table = np.array(addresses, np.int64)
            pointer, size = self._buffer(f"addresses of {name}", table.nbytes), table.nbytes
            _core.copy_to_device(pointer, table.view(np.uint8), self.call.current_stream)
        if isinstance(operand.view.owner, DeviceBuffer):  # partial sums: given back like our own buffers
            self._buffers[f"sums {name}"] = operand.view.owner
        self.call.set_operand(index, pointer, ld, step, size, alignment)
        if operand.view.device is not None and addresses is None:
            self.call.remember(index, operand.view.owner, operand.name)
        elif operand.view.device is not None:
            for part in operand.parts:
                self.call.watch(part.view.owner, part.name, name == "D")

    def _copy_in(self, name: str, operand: Operand) -> int:
        """Return the address of the buffer of a host operand, filled unless it is D."""
        pointer = self._buffer(name, operand.packed_bytes)
        if name == "D":
            self._host_D, self._host_guards = operand, guards({name: operand})
        else:
            _core.copy_to_device(pointer, operand.packed(), self.call.current_stream)
        return pointer

    def _buffer(self, name: str, size: int) -> int:
        """Return the address of the buffer that goes by `name`, made at first use and whenever it is too small."""
        held = self._buffers.get(name)
        if held is None or held.size < size:
            self._buffers[name] = DeviceBuffer(self.ordinal, size, self.call.current_stream)
            if held is not None:
                self._outgrown.append(held)
        return self._buffers[name].pointer

    def _plan(self, problem: Problem, call: _core.Call) -> None:
        status = call.plan()
        if status != 0:
            raise ArgumentError(
                f"CUTLASS cannot implement {problem.what} with {self._operation.procedural_name()}: "
                f"cutlass::Status {status}"
            )
        _, y, z = call.grid
        if y > _GRID_LIMIT or z > _GRID_LIMIT:
            remedy = (
                "use a threadblock_shape with more columns"
                if y > _GRID_LIMIT
                else "batches go along x with swizzling_functor=cutlass.BatchedIdentitySwizzle, and slices of K can be "
                "fewer"
            )
            raise ArgumentError(
                f"{problem.what} needs a grid of {call.grid} threadblocks, CUDA has at most {_GRID_LIMIT} along y "
                f"and z: {remedy}"
            )

    def _make_workspace(self, size: int) -> None:
        free, total = _core.memory_info(self.ordinal)
        if size > total:
            raise PoolError(size, total - free, total)
        pointer = self._buffer("workspace", size)
        _core.fill(pointer, 0, size, self.call.current_stream)
        self.call.set_workspace(pointer)


class NoLaunch:
    """A problem whose D has no elements: a grid would have no threadblocks, which CUDA refuses."""

    ends_elsewhere = False

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        #: Whether it was run.
        self.launched = False

    def run(self, stream: Any = None) -> None:
        """Do nothing; `stream` is ignored."""
        self.launched = True

    def update(self, problem: Problem) -> None:
        """Take other operands of the same shapes."""
        self.problem = problem

    def operand(self, name: str) -> tuple[int, int]:
        """Return the address and the leading dimension of an operand."""
        operand = self.problem.operands.get(name)
        return (0, 0) if operand is None else (operand.view.pointer, operand.ld)

    def try_exchange(self, *operands: Any) -> bool:
        """Return False: there is no shortcut around `update`."""
        return False

    def sync(self) -> None:
        """Do nothing: nothing was launched."""

    def give_up(self, owners: tuple[Any, ...]) -> None:
        """Do nothing: nothing is in flight."""

    release = give_up


class HostLaunch:
    """A problem on the host, by its reference: what there is without a GPU."""

    ends_elsewhere = False

    def __init__(self, operation: Operation, problem: Problem) -> None:
        self._operation = operation
        self._problem = problem
        self._guards = guards(problem.operands)
        #: Whether there was a launch.
        self.launched = False

    def run(self, stream: Any = None) -> None:
        """Compute D. There are no streams here; `stream` is ignored."""
        reason = _core.driver_problem() or "the driver sees no GPU"
        say_once(f"no GPU ({reason}): operations are executed on the host by pycutlass.reference", cause="no GPU")
        if not self._operation.artifacts:
            say_once(
                f"{self._operation.procedural_name()} runs on the host without having been compiled, which no GPU will "
                f"do: call pycutlass.compiler.add_module([operation]) first"
            )
        for name, each in self._guards:
            each.check(name)
        self._problem.compute()
        for _, each in self._guards:
            each.count_write()
        self.launched = True

    def update(self, problem: Problem) -> None:
        """Take other operands of the same shapes."""
        self._problem, self._guards = problem, guards(problem.operands)

    def operand(self, name: str) -> tuple[int, int]:
        """Return the address and the leading dimension of an operand."""
        operand = self._problem.operands.get(name)
        return (0, 0) if operand is None else (operand.view.pointer, operand.ld)

    def try_exchange(self, *operands: Any) -> bool:
        """Return False: on the host there is no shortcut around `update`."""
        return False

    def sync(self) -> None:
        """Do nothing: `run` has finished when it returns."""

    def give_up(self, owners: tuple[Any, ...]) -> None:
        """Do nothing: nothing is in flight."""

    release = give_up


def guards(operands: Mapping[str, Operand]) -> list[tuple[str, Guard]]:
    """Return what watches the tensors of all operands, with their names; launches write to those of D."""
    parts = [(name[0] == "D", part) for name, operand in operands.items() for part in operand.parts]
    watching = [(part.name, guard(part.view, written=written)) for written, part in parts]
    return [(name, each) for name, each in watching if each is not None]


def ordinal_of(operands: Mapping[str, Operand]) -> int:
    """Return the GPU that all operands are on; the current one where none says so.

    Raises
    ------
    ArgumentError
        Operands on different GPUs, or host tensors of torch.
    """
    places: dict[str, int] = {}
    for operand in (part for each in operands.values() for part in each.parts):
        name, view = operand.name, operand.view
        if view.library == "torch" and view.device is None:
            raise ArgumentError(
                f"operand {operand.name} is a torch tensor on the CPU; move it with {operand.name}.cuda()"
            )
        if view.library == "pointer":
            known = _core.pointer_device(view.pointer)
            if known < 0:
                raise ArgumentError(
                    f"operand {operand.name} is {view.pointer:#x}, which is no memory that a GPU can reach"
                )
            places[name] = known
        elif view.device is not None:
            places[name] = view.device
    if len(set(places.values())) > 1:
        listed = ", ".join(f"{name} on GPU {ordinal}" for name, ordinal in places.items())
        raise ArgumentError(f"all operands must be on one GPU, got {listed}; move them with .to()")
    return next(iter(places.values())) if places else device.current()


def check_on_host(problem: Problem) -> None:
    """Raise DeviceError where something is device memory: without a GPU nothing can read it."""
    operands = problem.operands.values()
    elsewhere = [f"operand {operand.name}" for operand in operands if operand.view.device is not None]
    elsewhere += [name for name, pointer in zip(("alpha", "beta"), problem.scalars.pointers, strict=False) if pointer]
    if elsewhere:
        reason = _core.driver_problem() or "the driver sees none"
        raise DeviceError(
            f"{' and '.join(elsewhere)} given as device memory, and there is no GPU ({reason}): pass numpy arrays, CPU "
            f"tensors and numbers to execute on the host"
        )


def follow_streams(call: Any, libraries: Mapping[str, type], ordinal: int) -> list[Callable[[], _core.Stream]]:
    """Make `call` follow the current stream of the tensors' library; return those of further libraries.

    `libraries` has the type of a tensor of each.
    """
    known = [name for name in ("torch", "cupy") if name in libraries]
    if not known:
        return []
    tensor_type = libraries[known[0]]
    if hasattr(tensor_type, "__dlpack_c_exchange_api__"):
        call.follow_library(tensor_type)
    else:
        call.follow_callable(current_stream_source(known[0], ordinal))
    return [functools.partial(_current_stream, current_stream_source(name, ordinal), ordinal) for name in known[1:]]


def _current_stream(source: Callable[[], int], ordinal: int) -> _core.Stream:
    return _core.Stream(ordinal, source())


def run_joined(
    call: _core.Call, joined: Sequence[Callable[[], _core.Stream]], has_buffers: bool = False, stream: Any = None
) -> None:
    """Launch on the first library's stream, ordered against the current streams of the others.

    On a named stream, against the first library's as well where buffers were filled there.
    """
    filled = call.current_stream
    launched = filled if stream is None else _core.named_stream(stream, filled.ordinal)
    streams = {*(source() for source in joined), *([filled] if has_buffers else [])}
    others = [other for other in streams if other != launched]
    for other in others:
        launched.follow(other)
    call.run(stream)
    for other in others:
        other.follow(launched)


def _run_with_buffers(call: _core.Call, stream: Any = None) -> None:
    """Launch; on a named stream behind what filled the buffers, and before what fills them again.

    They are filled on the current stream. Under capture that is the caller's to order: a graph cannot wait for what is
    outside it.
    """
    if stream is None:
        call.run(None)
        return
    filled = call.current_stream
    named = _core.named_stream(stream, filled.ordinal)
    if named == filled or named.is_capturing():
        call.run(stream)
        return
    named.follow(filled)
    call.run(stream)
    filled.follow(named)
