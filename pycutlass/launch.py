"""Two ways to execute a problem: on a GPU, and on the host where there is none.

Nothing here knows what a GEMM or a convolution is. A `Problem` holds the checked operands and scalars of one launch,
fills its family's part of the call record, and can be computed on the host.
"""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
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
    "Inputs",
    "NoLaunch",
    "Operand",
    "Prepared",
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
    def compiled_as(self) -> str:
        """The list that add_module takes to compile its kernel, for messages."""
        return "[operation]"

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


class Inputs:
    """Device copies of operands that the host has and a kernel reads, one behind the other in one buffer."""

    _ALIGNMENT = 256  # of each place; more than any kernel asks for

    def __init__(self, sizes: Mapping[str, int]) -> None:
        #: Where each begins; two with the same places can stand for each other.
        self.places: dict[str, tuple[int, int]] = {}
        self.size = 0
        for name, size in sizes.items():
            self.places[name] = (self.size, size)
            self.size += -(-size // self._ALIGNMENT) * self._ALIGNMENT
        self.buffer: DeviceBuffer | None = None
        self._contents: list[tuple[int, NDArray[Any]]] = []

    def address(self, name: str) -> int:
        """Return where an operand will be."""
        assert self.buffer is not None
        return self.buffer.pointer + self.places[name][0]

    def put(self, name: str, content: NDArray[Any], offset: int = 0) -> None:
        """Have contiguous bytes be copied to the place of `name`, `offset` bytes behind its beginning."""
        self._contents.append((self.places[name][0] + offset, content))

    def fill(self, buffer: DeviceBuffer, stream: _core.Stream) -> None:
        """Copy everything to `buffer`."""
        for offset, content in self._contents:
            _core.copy_to_device(buffer.pointer + offset, content, stream)
        self._contents = []


class Prepared:
    """What a launch goes over to once all of it is there.

    Attributes
    ----------
    call : Call
        With a record of its own.
    stream : Stream
        Where memory is taken and filled.
    buffers : dict
        New ones, by name.
    inputs : Inputs
        Host memory that the kernel reads.
    host_D : Operand, or None
        D where it is host memory.
    """

    def __init__(self, problem: Problem, call: Any, joined: list[Callable[[], _core.Stream]]) -> None:
        self.problem, self.call, self.joined = problem, call, joined
        self.stream: _core.Stream = call.current_stream
        self.libraries = _libraries(problem)
        self.buffers: dict[str, DeviceBuffer] = {}
        self.inputs = Inputs({})
        self.host_D: Any = None
        self.host_guards: list[tuple[str, Guard]] = []


class DeviceLaunch:
    """A problem on a GPU: kernel, call record, buffers of host operands, and workspace."""

    def __init__(self, operation: Operation, problem: Problem, ordinal: int) -> None:
        self.ordinal = ordinal
        self._operation = operation
        self.call = self._new_call(problem)
        self._buffers: dict[str, DeviceBuffer] = {}
        self._inputs = Inputs({})
        self._host_D: Any = None
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
        """Go over to a problem of the same size.

        All that can fail is done beside what there is: where something does, nothing has changed.
        """
        prepared = self._begin(problem)
        self._prepare(prepared)
        self._fill_inputs(prepared)
        self._commit(prepared)

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

    def _new_call(self, problem: Problem) -> _core.Call:
        return problem.make_call(kernel.load(self._operation, self.ordinal))

    def _begin(self, problem: Problem) -> Prepared:
        """Return a call with the scalars, on the current streams of the tensors' libraries."""
        call = self._new_call(problem)
        prepared = Prepared(problem, call, follow_streams(call, _libraries(problem), self.ordinal))
        if prepared.libraries != self._libraries:  # behind what was done on the stream of those before
            before, after = self.call.current_stream, prepared.stream
            if after != before and (self.call.launched or self._buffers) and not after.is_capturing():
                after.follow(before)
        scalars = problem.scalars
        call.set_scalars(scalars.values, scalars.pointers)
        for name, pointer, owner in zip(("alpha", "beta"), scalars.pointers, scalars.owners, strict=False):
            if pointer:
                call.watch(owner, name, False)
        return prepared

    def _prepare(self, prepared: Prepared) -> None:
        """Bring operands and sizes into the record, and make the kernel's parameters."""
        problem, call = prepared.problem, prepared.call
        sizes: dict[str, int] = {}
        for name, operand in problem.operands.items():
            if operand.view.device is None and name != "D":
                sizes[name] = operand.packed_bytes
            addresses = operand.addresses(0)
            if addresses is not None:
                sizes[f"addresses of {name}"] = 8 * len(addresses)
        self._reserve_inputs(prepared, sizes)
        for name, operand in problem.operands.items():
            self._place(prepared, name, operand)
        problem.configure(call)
        self._plan(problem, call)
        if call.workspace_bytes:
            self._make_workspace(prepared, call.workspace_bytes)
            self._plan(problem, call)

    def _reserve_inputs(self, prepared: Prepared, sizes: Mapping[str, int]) -> None:
        """Have a buffer for host operands: the present one where the places are the same, which graphs may know."""
        inputs = prepared.inputs = Inputs(sizes)
        if not inputs.size:
            return
        if prepared.stream.is_capturing():
            raise ArgumentError(
                "host operands and tables of addresses are copied to the GPU when arguments are made or updated, which "
                "cannot be done while a graph is captured: do it before the capture begins"
            )
        if inputs.places == self._inputs.places:
            inputs.buffer = self._inputs.buffer
        else:
            inputs.buffer = prepared.buffers["inputs"] = DeviceBuffer(self.ordinal, inputs.size, prepared.stream)

    def _fill_inputs(self, prepared: Prepared) -> None:
        """Copy host operands to the GPU. Those that a launch may still need are overwritten at the very last."""
        inputs, stream = prepared.inputs, prepared.stream
        if inputs.buffer is None:
            return
        if "inputs" in prepared.buffers:
            inputs.fill(inputs.buffer, stream)
            return
        staged = DeviceBuffer(self.ordinal, inputs.size, stream)
        inputs.fill(staged, stream)
        _core.copy_on_device(inputs.buffer.pointer, staged.pointer, inputs.size, stream)

    def _commit(self, prepared: Prepared) -> None:
        """Go over to what was prepared. Nothing here can fail."""
        self.call.adopt(prepared.call)
        for name, buffer in prepared.buffers.items():
            held = self._buffers.get(name)
            self._buffers[name] = buffer
            if held is not None and held is not buffer:
                self._retire_buffer(name, held)
        if prepared.inputs.buffer is None and "inputs" in self._buffers:
            self._retire_buffer("inputs", self._buffers.pop("inputs"))
        self._inputs = prepared.inputs
        self._host_D, self._host_guards = prepared.host_D, prepared.host_guards
        self._joined, self._libraries = prepared.joined, prepared.libraries

    def _retire_buffer(self, name: str, buffer: DeviceBuffer) -> None:
        """Let go of a buffer that another has taken the place of."""
        if name.startswith("sums"):  # of the user's other arguments
            self._let_go(buffer)
        else:
            self._outgrown.append(buffer)

    def _let_go(self, *buffers: DeviceBuffer) -> None:
        """Give buffers back behind the last launch that uses them."""
        call, end = self.call, self.call.explicit_end
        for buffer in buffers:
            if call.launched and not call.was_named:
                buffer.stream = call.last_stream
        if end is not None and not end.done:
            retire(buffers, end)

    def _place(self, prepared: Prepared, name: str, operand: Operand) -> None:
        """Point the record at an operand. Host memory is in a buffer, and will be copied to it unless it is D."""
        call, index, alignment = prepared.call, _OPERANDS.index(name), operand.description.alignment_bytes
        on_host = operand.view.device is None
        if not on_host:
            pointer, ld, step, size = operand.view.pointer, operand.ld, operand.batch_stride, operand.bytes
        else:
            ld, step, size = operand.packed_ld, operand.packed_batch_stride, operand.packed_bytes
            if name == "D":
                pointer = self._buffer(prepared, name, size)
                prepared.host_D, prepared.host_guards = operand, guards({name: operand})
            else:
                pointer = prepared.inputs.address(name)
                prepared.inputs.put(name, operand.packed())
        addresses = operand.addresses(pointer)
        if addresses is not None:
            table, key = np.array(addresses, np.int64), f"addresses of {name}"
            pointer, size = prepared.inputs.address(key), table.nbytes
            prepared.inputs.put(key, table.view(np.uint8))
        if isinstance(operand.view.owner, DeviceBuffer):  # partial sums: given back like our own buffers
            prepared.buffers[f"sums {name}"] = operand.view.owner
        call.set_operand(index, pointer, ld, step, size, alignment)
        if not on_host and addresses is None:
            call.remember(index, operand.view.owner, operand.name)
        elif not on_host:
            for part in operand.parts:
                call.watch(part.view.owner, part.name, name == "D")

    def _buffer(self, prepared: Prepared, name: str, size: int) -> int:
        """Return the address of the buffer that goes by `name`, made at first use and whenever it is too small."""
        held = self._buffers.get(name)
        if held is None or held.size < size:
            held = prepared.buffers[name] = DeviceBuffer(self.ordinal, size, prepared.stream)
        return held.pointer

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

    def _make_workspace(self, prepared: Prepared, size: int) -> None:
        free, total = _core.memory_info(self.ordinal)
        if size > total:
            raise PoolError(size, total - free, total)
        pointer = self._buffer(prepared, "workspace", size)
        if "workspace" in prepared.buffers:
            _core.fill(pointer, 0, size, prepared.stream)
        prepared.call.set_workspace(pointer)


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
                f"do: call pycutlass.compiler.add_module({self._problem.compiled_as}) first"
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


def _libraries(problem: Problem) -> dict[str, type]:
    """Return the libraries of a problem's tensors, with the type of a tensor of each."""
    return {each.view.library: type(each.view.owner) for each in problem.operands.values()}


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
