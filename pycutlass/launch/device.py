"""Launches on a GPU."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Self

import numpy as np

from pycutlass import _core, kernel
from pycutlass.allocators import chosen
from pycutlass.deferred_release import release_after
from pycutlass.epilogue import EpilogueScalars
from pycutlass.errors import ArgumentError, PoolError
from pycutlass.kernel import PreparedKernel
from pycutlass.launch.options import USUAL, LaunchOptions
from pycutlass.launch.prepared import Inputs, Prepared
from pycutlass.launch.problem import Problem, guards, libraries_of
from pycutlass.launch.streams import follow_streams, run_joined, run_with_buffers
from pycutlass.memory import DeviceBuffer
from pycutlass.operands import Operand
from pycutlass.operation import Operation
from pycutlass.operation.support import check_grid
from pycutlass.tensor import Guard, check_seen

__all__ = ["DeviceLaunch", "written"]

#: Buffers that are for launches alone, whatever their operands are: not of host memory.
_OF_LAUNCHES = frozenset(("workspace", "sums A", "sums D"))


class DeviceLaunch:
    """A problem on a GPU: kernel, call record, buffers of host operands, and workspace."""

    #: Buffers by name, and places of host operands in one of them.
    _buffers: Mapping[str, DeviceBuffer] = MappingProxyType({})
    _inputs = Inputs({})
    _host_outputs: Mapping[str, Any] = MappingProxyType({})
    _host_guards: Sequence[tuple[str, Guard]] = ()
    _libraries: Mapping[str, type] = MappingProxyType({})
    _joined: Sequence[Callable[[], _core.Stream]] = ()
    #: Buffers that were too small for an update. They go last: captured graphs may still use them.
    _outgrown: tuple[DeviceBuffer, ...] = ()

    #: What is asked of every launch; ordinary arguments ask nothing.
    _options = USUAL

    def __init__(self, operation: Operation, problem: Problem, ordinal: int, options: LaunchOptions = USUAL) -> None:
        self.ordinal = ordinal
        self._options = options
        self._operation = operation
        #: Where all of its buffers come from, also those that an update needs; None is the pool of RMM.
        self._allocator = chosen.get().allocator
        self.call = self._new_call(problem)
        self.update(problem)

    @classmethod
    def of(
        cls,
        operation: Operation,
        prepared: PreparedKernel,
        make: Callable[..., Any],
        tensors: tuple[Any, Any, Any, Any],
        output_op: Any,
        how: tuple[Any, ...],
    ) -> tuple[Self, EpilogueScalars] | None:
        """Return the launch of tensors that C++ sees are right, and its scalars; None of all others.

        What is plainly right there is right by the checks in Python, too, and makes the same call record. They decide
        on all else, and explain.

        Parameters
        ----------
        prepared : PreparedKernel
            Of the operation.
        make : callable
            Makes its calls, of the tensors and of `how`: they lack device memory at most, and all tensors are on the
            GPU and of one library.

        Raises
        ------
        PoolError
            No memory for what the call lacks.
        ArgumentError
            A tensor was moved while that memory was taken.
        """
        packed = prepared.packed(output_op)
        if packed is None or operation._artifacts != prepared.artifacts:
            return None
        scalars, epilogue, reads_source = packed
        if tensors[2] is not None and (output_op is None or (not reads_source and scalars.drops_source)):
            return None
        made = make(*tensors, *how, epilogue, reads_source)
        if made is None:
            return None
        call, libraries = made
        launch = object.__new__(cls)
        launch.__dict__.update(
            ordinal=prepared.ordinal,
            _operation=operation,
            _allocator=chosen.get().allocator,
            call=call,
            _libraries=libraries,
        )
        if call.device_bytes:
            if not launch._provide(call.device_bytes):
                return None
            call.check_unmoved()  # by the user's allocator
        return launch, scalars

    def _provide(self, size: int) -> bool:
        """Have the workspace that a call of ordinary tensors lacks; False where CUTLASS refuses it then."""
        workspace = self._new_workspace(size, self.call.current_stream)
        self.call.set_workspace(workspace.pointer)
        self._buffers = {"workspace": workspace}
        return self.call.plan() == 0

    def hold(self, name: str, buffer: DeviceBuffer) -> None:
        """Keep a buffer that somebody else has made, and give it back like those of its own."""
        self._buffers = {**self._buffers, name: buffer}

    @property
    def run(self) -> Callable[..., None]:
        """What launches, with a stream or None. Looked up once for many launches: this is their hot path.

        It does not lead back here: buffers go with the last reference and do not wait for the garbage collector.
        """
        if self._joined:
            return functools.partial(run_joined, self.call, self._joined, bool(self._buffers))
        return functools.partial(run_with_buffers, self.call) if self._buffers else self.call.bound_run

    @property
    def try_exchange(self) -> Callable[..., bool]:
        """What takes tensors of the same form in place of the present ones, or returns False."""
        return self.call.bound_update

    def update(self, problem: Problem) -> None:
        """Go over to a problem of the same size.

        All that can fail is done beside what there is: where something does, nothing has changed.
        """
        prepared = self._begin(problem)
        self._prepare(prepared)
        self._check_unmoved(problem)
        self.call.check_unused()
        self._fill_inputs(prepared)
        self._commit(prepared)

    def sync(self) -> None:
        """Wait for the stream of the last launch; bring back what it has written and is host memory."""
        stream = self.call.last_stream
        if not self._host_outputs or not self.call.launched:
            stream.synchronize()
            return
        for name, each in self._host_guards:
            each.check(name)
        outputs = self._host_outputs
        packed = {name: np.empty(operand.packed_bytes, np.uint8) for name, operand in outputs.items()}
        for name, memory in packed.items():
            _core.copy_to_host(memory, self._buffers[written(name)].pointer, stream)
        stream.synchronize()
        for name, operand in outputs.items():
            operand.unpack(packed[name])

    @property
    def own_memory(self) -> tuple[DeviceBuffer, ...] | None:
        """Memory that launches need beside their operands, where the call and that are all of it.

        None of one with copies of host memory, or with a stream of another library to be ordered against.
        """
        if self._joined or self._outgrown or not self._buffers.keys() <= _OF_LAUNCHES:
            return None
        return tuple(self._buffers.values())

    def hand_over(self) -> None:
        """Leave the buffers to whoever has them: they are given back there."""
        self._buffers = {}

    @property
    def writes_to_host(self) -> bool:
        """Whether `sync` brings something back."""
        return bool(self._host_outputs)

    @property
    def launched(self) -> bool:
        """Whether there was a launch."""
        return self.call.launched

    @property
    def ends_elsewhere(self) -> bool:
        """Whether there was a launch on a stream of the caller's, which the tensors' library does not know of."""
        return self.call.explicit_end is not None

    def defer_release(self, owners: tuple[Any, ...]) -> None:
        """Let go of `owners`: not before a launch on a stream of the caller's has finished with them."""
        if self.call.explicit_end is not None:
            release_after((*owners, self.call.take_storages()), self.call.explicit_end)

    def release(self, owners: tuple[Any, ...]) -> None:
        """Let go of everything, ordered behind the last launch."""
        self._let_go(*self._buffers.values(), *self._outgrown)
        self.defer_release(owners)

    def operand(self, name: str) -> tuple[int, int]:
        """Return the address and the leading dimension that the kernel gets for an operand."""
        pointer, ld, _ = self.call.operand(_core.ROLES[name])
        return pointer, ld

    def _new_call(self, problem: Problem) -> _core.Call:
        loaded = kernel.load(self._operation, self.ordinal)
        self._layout = kernel.epilogue_layout(loaded)
        call = problem.make_call(loaded)
        self._options.apply(call, self.ordinal)
        return call

    def _begin(self, problem: Problem) -> Prepared:
        """Return a call on the current streams of the tensors' libraries."""
        call = self._new_call(problem)
        prepared = Prepared(problem, call, follow_streams(call, libraries_of(problem), self.ordinal))
        if prepared.libraries != self._libraries:  # behind what was done on the stream of those before
            before, after = self.call.current_stream, prepared.stream
            if after != before and (self.call.launched or self._buffers) and not after.is_capturing():
                after.follow(before)
        return prepared

    def _prepare(self, prepared: Prepared) -> None:
        """Bring operands and sizes into the record, and make the kernel's parameters."""
        problem, call = prepared.problem, prepared.call
        sizes: dict[str, int] = {}
        for name, operand in problem.operands.items():
            if operand.view.device is None and name not in problem.written:
                sizes[name] = operand.packed_bytes
            addresses = operand.addresses(0)
            if addresses is not None:
                sizes[f"addresses of {name}"] = 8 * len(addresses)
        self._reserve_inputs(prepared, sizes)
        for name, operand in problem.operands.items():
            self._place(prepared, name, operand)
        self._set_epilogue(prepared)
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
            inputs.buffer = prepared.buffers["inputs"] = self._take(inputs.size, prepared.stream)

    @staticmethod
    def _check_unmoved(problem: Problem) -> None:
        """Raise ArgumentError where an operand was moved since it was looked at.

        What was called meanwhile, such as the user's allocator, may have done that. Guards have begun to watch the
        tensors by now, perhaps at places that the record does not have.
        """
        for operand in problem.operands.values():
            for part in operand.parts:
                check_seen(part.name, part.view)

    def _fill_inputs(self, prepared: Prepared) -> None:
        """Copy host operands to the GPU. Those that a launch may still need are overwritten at the very last."""
        inputs, stream = prepared.inputs, prepared.stream
        if inputs.buffer is None:
            return
        if "inputs" in prepared.buffers:
            inputs.fill(inputs.buffer, stream)
            return
        staged = self._take(inputs.size, stream)
        inputs.fill(staged, stream)
        _core.copy_on_device(inputs.buffer.pointer, staged.pointer, inputs.size, stream)

    def _commit(self, prepared: Prepared) -> None:
        """Go over to what was prepared. Nothing here can fail."""
        self.call.adopt(prepared.call)
        before, after = self._buffers, {**self._buffers, **prepared.buffers}
        if prepared.inputs.buffer is None:
            after.pop("inputs", None)
        self._buffers = after
        for name, held in before.items():
            if after.get(name) is not held:
                self._release_later(name, held)
        self._inputs = prepared.inputs
        self._host_outputs, self._host_guards = prepared.host_outputs, prepared.host_guards
        self._joined, self._libraries = prepared.joined, prepared.libraries

    def _release_later(self, name: str, buffer: DeviceBuffer) -> None:
        """Let go of a buffer that another has taken the place of."""
        if name.startswith("sums"):  # of the user's other arguments
            self._let_go(buffer)
        else:
            self._outgrown = (*self._outgrown, buffer)

    def _let_go(self, *buffers: DeviceBuffer) -> None:
        """Give buffers back behind the last launch that uses them."""
        call, end = self.call, self.call.explicit_end
        for buffer in buffers:
            if call.launched and not call.was_named:
                buffer.stream = call.last_stream
        if end is not None and not end.done:
            release_after(buffers, end)

    def _place(self, prepared: Prepared, name: str, operand: Operand) -> None:
        """Point the record at an operand. Host memory is in a buffer, and will be copied to it if it is read."""
        call, description = prepared.call, operand.description
        on_host = operand.view.device is None
        if not on_host:
            pointer, ld, step, size = operand.view.pointer, operand.ld, operand.batch_stride, operand.bytes
        else:
            ld, step, size = operand.packed_ld, operand.packed_batch_stride, operand.packed_bytes
            if name in prepared.problem.written:
                pointer = self._buffer(prepared, written(name), size)
                prepared.host_outputs[name] = operand
                prepared.host_guards += guards({name: operand}, (name,))
            else:
                pointer = prepared.inputs.address(name)
                prepared.inputs.put(name, operand)
        addresses, form = operand.addresses(pointer), operand.form
        if addresses is not None:
            table, key = np.array(addresses, np.int64), f"addresses of {name}"
            pointer, size = prepared.inputs.address(key), table.nbytes
            prepared.inputs.put(key, table.view(np.uint8))
        if isinstance(operand.view.owner, DeviceBuffer):  # partial sums: given back like our own buffers
            prepared.buffers[f"sums {name}"] = operand.view.owner
        if name not in _core.ROLES:
            prepared.tensors[name] = pointer, (ld, step), size
            return
        call.set_operand(
            _core.ROLES[name], pointer, (ld, step), size, description.alignment_bytes, description.type.code, form
        )
        if not on_host and addresses is None:
            call.remember(name, operand.view.owner, operand.name)
        elif not on_host:
            for part in operand.parts:
                call.watch(part.view.owner, part.name, name == "D")

    def _set_epilogue(self, prepared: Prepared) -> None:
        """Pack scalars and tensors of the epilogue as the kernel takes them, and know the tensors."""
        self._pack_epilogue(prepared)
        problem, call, tensors = prepared.problem, prepared.call, prepared.tensors
        for name, (_, steps, size) in tensors.items():
            operand, field = problem.operands[name], self._layout.tensors[name]
            self._layout.check(name, operand.description.type.short, name in problem.written)
            alignment = operand.description.alignment_bytes
            call.set_epilogue_tensor(name, field.offset, steps, size, alignment, field.written)
            if operand.view.device is not None and operand.addresses(0) is None:
                call.remember(name, operand.view.owner, operand.name)
            elif operand.view.device is not None:
                for part in operand.parts:
                    call.watch(part.view.owner, part.name, name in problem.written)

    def _pack_epilogue(self, prepared: Prepared) -> None:
        """Pack scalars and tensors of the epilogue as the kernel takes them."""
        addresses = {name: pointer for name, (pointer, _, _) in prepared.tensors.items()}
        strides = {name: steps for name, (_, steps, _) in prepared.tensors.items()}
        scalars = prepared.problem.scalars
        prepared.call.set_epilogue(scalars.packed(self._layout, addresses, strides))
        for name, (tensor, find) in scalars.followed(self.ordinal).items():  # at its address of now
            prepared.call.follow_scalar(name, tensor, find)

    def _buffer(self, prepared: Prepared, name: str, size: int) -> int:
        """Return the address of the buffer that goes by `name`, made at first use and whenever it is too small."""
        held = self._buffers.get(name)
        if held is None or held.size < size:
            held = prepared.buffers[name] = self._take(size, prepared.stream)
        return held.pointer

    def _take(self, size: int, stream: _core.Stream) -> DeviceBuffer:
        return DeviceBuffer(self.ordinal, size, stream, self._allocator)

    def _plan(self, problem: Problem, call: _core.Call) -> None:
        status = call.plan()
        if status != 0:
            raise ArgumentError(
                f"CUTLASS cannot implement {problem.what} with {self._operation.procedural_name()}: "
                f"cutlass::Status {status}"
            )
        check_grid(problem.what, call.grid)

    def _make_workspace(self, prepared: Prepared, size: int) -> None:
        held = self._buffers.get("workspace")
        if held is None or held.size < size:
            held = prepared.buffers["workspace"] = self._new_workspace(size, prepared.stream)
        prepared.call.set_workspace(held.pointer)

    def _new_workspace(self, size: int, stream: _core.Stream) -> DeviceBuffer:
        free, total = _core.memory_info(self.ordinal)
        if size > total:
            raise PoolError(size, total - free, total, gpu=self.ordinal)
        workspace = self._take(size, stream)
        _core.fill(workspace.pointer, 0, size, stream)
        return workspace


def written(name: str) -> str:
    """Return what the buffer of an output in host memory goes by.

    Outputs of epilogues are called as users like, also as one of our own buffers is.
    """
    return f"written {name}"
