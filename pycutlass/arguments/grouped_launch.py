"""A grouped GEMM on a GPU: many operands, and a table of them all."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pycutlass import _core
from pycutlass.arguments.group import GroupProblem, span
from pycutlass.errors import ArgumentError
from pycutlass.launch import DeviceLaunch, run_joined
from pycutlass.memory import DeviceBuffer, retire
from pycutlass.operands import Matrix

__all__ = ["GroupedLaunch"]

_LETTERS = "ABCD"
_ALIGNMENT = 256  # of each host operand's place in the buffer that all share; more than any kernel asks for


class GroupedLaunch(DeviceLaunch):
    """A group on a GPU: kernel, call record, buffers of host operands, and the table that the kernel reads."""

    call: _core.GroupedCall
    _host_parts: list[tuple[Matrix, int]]

    @property
    def run(self) -> Callable[..., None]:
        """What launches. The call itself orders launches on different streams: they bring the table along."""
        return functools.partial(run_joined, self.call, self._joined) if self._joined else self.call.run

    def update(self, problem: Any) -> None:
        """Bring problems, of any number and sizes, into the call record and make the kernel's parameters."""
        self._host_parts = []
        self.call.set_scalars(problem.scalars.values, problem.scalars.pointers)
        problem.configure(self.call)
        if isinstance(problem, GroupProblem):
            for letter, matrices in problem.groups.items():
                self._place_group(letter, matrices)
        self._plan(problem)
        size = self.call.table_bytes
        if size and self._reserve("table", size):
            self.call.set_table(self._buffers["table"].pointer)
            self._plan(problem)

    def sync(self) -> None:
        """Wait for the stream of the last launch; bring every D back that is host memory."""
        stream = self.call.last_stream
        if not self._host_parts or not self.call.launched:
            _core.synchronize(stream)
            return
        buffer = self._buffers["D"]
        packed = np.empty(buffer.size, np.uint8)
        _core.copy_to_host(packed, buffer.pointer, stream)
        _core.synchronize(stream)
        for target, offset in self._host_parts:
            target.unpack(packed[offset : offset + target.packed_bytes])

    def release(self, owners: tuple[Any, ...]) -> None:
        """Let go of everything, ordered behind the last launch."""
        self._let_go(*self._buffers.values())
        self.give_up(owners)

    def operand(self, name: str) -> tuple[int, int]:
        """Return the address and the leading dimension that the kernel gets for ``A[0]``, ``A[1]``, ..."""
        return self.call.entry(_LETTERS.index(name[0]), int(name[2:-1]))

    def _place_group(self, letter: str, matrices: tuple[Matrix, ...]) -> None:
        """Point the record at one operand of all problems. Host memory gets a buffer, and is copied to it unless D."""
        index = _LETTERS.index(letter)
        host: list[tuple[Matrix, int]] = []
        size = 0
        for each in matrices:
            if each.view.device is None and each.bytes:
                host.append((each, size))
                size += -(-each.packed_bytes // _ALIGNMENT) * _ALIGNMENT
        places = {each.name: offset for each, offset in host}
        base = self._copy_in_group(letter, host, size) if host else 0
        for number, each in enumerate(matrices):
            pointer, length, line, pitch = span(each)
            ld = each.ld
            if each.name in places:
                pointer, length, ld = base + places[each.name], each.packed_bytes, each.packed_ld
                pitch = line if pitch else 0
            self.call.set_entry(index, number, pointer, ld, length, line, pitch, each.description.alignment_bytes)
            if each.view.device is not None:
                self.call.remember_entry(index, number, each.view.owner)

    def _copy_in_group(self, letter: str, host: list[tuple[Matrix, int]], size: int) -> int:
        """Return the address of the buffer of host operands, filled unless they are D."""
        self._reserve(letter, size)
        pointer = self._buffers[letter].pointer
        if letter == "D":
            self._host_parts = host
            return pointer
        packed: NDArray[Any] = np.empty(size, np.uint8)
        for each, offset in host:
            packed[offset : offset + each.packed_bytes] = each.packed()
        stream = self._host_stream()
        self.call.join(stream)
        _core.copy_to_device(pointer, packed, stream)
        return pointer

    def _reserve(self, name: str, size: int) -> bool:
        """Make a buffer of at least `size` bytes where there is none; return whether one was made."""
        present = self._buffers.get(name)
        if present is not None and present.size >= size:
            return False
        stream = self._host_stream()
        _core.activate(self.ordinal)
        if present is not None:
            self._let_go(present)
        self._buffers[name] = DeviceBuffer(self.ordinal, size, stream)
        self.call.join(stream)  # memory from the pool is the launch's once `stream` has come this far
        return True

    def _host_stream(self) -> int:
        """Return the stream on which memory is taken and filled: the current one, which must not be under capture."""
        stream = self.call.current_stream
        if _core.is_capturing(stream):
            raise ArgumentError(
                "a group needs device memory for its table and for numpy operands, which cannot be had while a graph "
                "is captured: make the arguments, or give them more or larger problems, before the capture begins"
            )
        return stream

    def _let_go(self, *buffers: DeviceBuffer) -> None:
        """Give buffers back behind the last launch that uses them."""
        call, end = self.call, self.call.explicit_end
        for buffer in buffers:
            if call.launched and not call.was_named:
                buffer.stream = call.last_stream
        if end is not None and not end.done:
            retire(buffers, end)
