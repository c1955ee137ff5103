"""A grouped GEMM on a GPU: many operands, and a table of them all."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pycutlass import _core, kernel
from pycutlass.arguments.group import GroupProblem, Sizes
from pycutlass.arguments.overlaps import span
from pycutlass.errors import ArgumentError
from pycutlass.launch import DeviceLaunch, guards, run_joined
from pycutlass.memory import DeviceBuffer
from pycutlass.operands import Matrix

__all__ = ["GroupedLaunch", "operand_rule"]

_LETTERS = "ABCD"
_ALIGNMENT = 256  # of each host operand's place in the buffer that all share; more than any kernel asks for


class GroupedLaunch(DeviceLaunch):
    """A group on a GPU: kernel, call record, buffers of host operands, and the table that the kernel reads."""

    call: _core.GroupedCall
    _host_parts: list[tuple[Matrix, int]]

    @property
    def run(self) -> Callable[..., None]:
        """What launches. The call itself orders launches on different streams: they bring the table along."""
        return functools.partial(run_joined, self.call, self._joined) if self._joined else self.call.bound_run

    def update(self, problem: Any) -> None:
        """Bring problems, of any number and sizes, into the call record; where that fails nothing has changed."""
        with self._following(problem):
            groups = problem.groups if isinstance(problem, GroupProblem) else {}
            shares = {letter: _Share(matrices) for letter, matrices in groups.items()}
            if any(share.parts for share in shares.values()):
                self._host_stream()  # raises under capture, where nothing can be copied
            sizes = {letter: share.size for letter, share in shares.items()}
            self._reserve({**sizes, "table": self._table_bytes(problem)})

            self._host_parts = []
            self._set_scalars(problem.scalars)
            for table in () if groups else problem.operands.values():
                self.call.watch(table.view.owner, table.name, False)
            problem.configure(self.call)
            for letter, matrices in groups.items():
                self._place_group(letter, matrices, shares[letter], problem.bias)
            if "table" in self._buffers:
                table = self._buffers["table"]
                self.call.set_table(table.pointer, table.size)
            self._plan(problem, self.call)

    def resize(self, sizes: Sizes, A: Any, B: Any, C: Any, D: Any) -> bool:
        """Take other sizes, and tuples of tensors that they fit; None keeps an operand.

        False, and nothing has changed, where `update` is to have a closer look: tensors of another library or type than
        before, anything that is not plainly right, or a table that must grow.
        """
        return self.call.resize(sizes, A, B, C, D)

    def sync(self) -> None:
        """Wait for the stream of the last launch; bring every D back that is host memory."""
        stream = self.call.last_stream
        if not self._host_parts or not self.call.launched:
            stream.synchronize()
            return
        for name, each in self._host_guards:
            each.check(name)
        buffer = self._buffers["D"]
        packed = np.empty(buffer.size, np.uint8)
        _core.copy_to_host(packed, buffer.pointer, stream)
        stream.synchronize()
        for target, offset in self._host_parts:
            target.unpack(packed[offset : offset + target.packed_bytes])

    def operand(self, name: str) -> tuple[int, int]:
        """Return the address and the leading dimension that the kernel gets for ``A[0]``, ``A[1]``, ..."""
        return self.call.entry(_LETTERS.index(name[0]), int(name[2:-1]))

    def _table_bytes(self, problem: Any) -> int:
        """Return the device memory that the table and the kernel's own need, by a plan that is thrown away."""
        probe = problem.make_call(kernel.load(self._operation, self.ordinal))
        probe.set_scalars(problem.scalars.values, problem.scalars.pointers)
        problem.configure(probe)
        self._plan(problem, probe)
        return int(probe.table_bytes)

    def _reserve(self, sizes: Mapping[str, int]) -> None:
        """Have buffers of at least these sizes; without memory for one of them all stay as they are."""
        held = {name: buffer.size for name, buffer in self._buffers.items()}
        grown = {name: size for name, size in sizes.items() if size > held.get(name, 0)}
        if "table" in grown and "table" in held:  # what has grown once will again: `resize` finds room
            grown["table"] *= 2
        if not grown:
            return
        stream = self._host_stream()
        made = {name: DeviceBuffer(self.ordinal, size, stream) for name, size in grown.items()}
        old = [self._buffers[name] for name in grown if name in self._buffers]
        self._let_go(*old)
        if self.call.captured:
            self._outgrown += old
        self._buffers.update(made)
        self.call.join(stream)  # memory from the pool is the launch's once `stream` has come this far

    def _place_group(self, letter: str, matrices: tuple[Matrix, ...], share: _Share, bias: bool | None) -> None:
        """Point the record at one operand of all problems. Host memory is in a buffer, copied to it unless it is D."""
        places = {each.name: offset for each, offset in share.parts}
        base = self._buffers[letter].pointer if share.parts else 0
        if letter == "D":
            self._host_parts = share.parts
            self._host_guards = guards({each.name: each for each, _ in share.parts})
        elif share.parts:
            self._copy_in_group(base, share)
        entries = np.empty((len(matrices), 5), np.uint64)
        for number, each in enumerate(matrices):
            pointer, length, line, pitch = span(each)
            ld = each.ld
            if each.name in places:
                pointer, length, ld = base + places[each.name], each.packed_bytes, each.packed_ld
                pitch = line if pitch else 0
            entries[number] = (pointer, length, line, pitch, ld)
        owners = tuple(None if each.view.device is None else each.view.owner for each in matrices)
        self.call.set_entries(_LETTERS.index(letter), operand_rule(letter, matrices[0], bias), entries, owners)

    def _copy_in_group(self, pointer: int, share: _Share) -> None:
        packed: NDArray[Any] = np.empty(share.size, np.uint8)
        for each, offset in share.parts:
            packed[offset : offset + each.packed_bytes] = each.packed()
        stream = self._host_stream()
        self.call.join(stream)
        _core.copy_to_device(pointer, packed, stream)

    def _host_stream(self) -> _core.Stream:
        """Return the stream on which memory is taken and filled: the current one, which must not be under capture."""
        stream = self.call.current_stream
        if stream.is_capturing():
            raise ArgumentError(
                "a group needs device memory for its table and for numpy operands, which cannot be had while a graph "
                "is captured: make the arguments, or give them more or larger problems, before the capture begins"
            )
        return stream


def operand_rule(letter: str, matrix: Matrix, bias: bool | None) -> _core.OperandRule:
    """Return what tensors must be to take the place of such a matrix without `update`'s closer look.

    `bias` is that of the arguments. Interleaved operands always get that look.
    """
    described = matrix.description
    plain = described.order.interleave == 1
    may_be_matrix = plain and (letter != "C" or not bias)
    may_be_bias = plain and letter == "C" and bias is not False
    return _core.OperandRule(
        described.is_row_major, described.type.bits // 8, described.alignment, may_be_matrix, may_be_bias
    )


class _Share:
    """The part of one operand that is host memory: where each matrix goes in the buffer that they share."""

    def __init__(self, matrices: tuple[Matrix, ...]) -> None:
        self.parts: list[tuple[Matrix, int]] = []
        self.size = 0
        for each in matrices:
            if each.view.device is None and each.bytes:
                self.parts.append((each, self.size))
                self.size += -(-each.packed_bytes // _ALIGNMENT) * _ALIGNMENT
