"""Grouped GEMMs: checked groups, of the host's lists or the device's tables, and how they are launched on a GPU."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pycutlass import _core, device, reference
from pycutlass.epilogue import EpilogueScalars
from pycutlass.errors import ArgumentError
from pycutlass.launch.device import DeviceLaunch, written
from pycutlass.launch.prepared import Prepared
from pycutlass.launch.problem import Problem, guards
from pycutlass.launch.streams import run_joined
from pycutlass.memory import DeviceBuffer
from pycutlass.operands import Matrix
from pycutlass.operands.overlaps import span
from pycutlass.operation.group_support import Sizes
from pycutlass.operation.grouped import GemmOperationGrouped
from pycutlass.tensor import TensorView

__all__ = ["TABLES", "GroupProblem", "GroupedLaunch", "Table", "TableProblem", "operand_rule"]

_LETTERS = "ABCD"
#: What users call the table that is given under a name.
TABLES = {
    **{"problem_sizes": "problem_sizes", "A": "ptr_A", "B": "ptr_B", "C": "ptr_C", "D": "ptr_D"},
    **{"lda": "lda", "ldb": "ldb", "ldc": "ldc", "ldd": "ldd"},
}
_ALIGNMENT = 256  # of each host operand's place in the buffer that all share; more than any kernel asks for


@dataclass(frozen=True)
class GroupProblem(Problem):
    """The problems of a group, checked.

    Attributes
    ----------
    operation : GemmOperationGrouped
        What to compute.
    sizes : int32 array of shape (problems, 3)
        M, N, K of each.
    groups : dict
        The operands of all problems, by letter, then those of the epilogue by name; C is absent where it is not read.
    operands : dict
        The same one by one, by name: ``A[0]``, ``A[1]``, ...
    bias : bool or None
        Whether every C is a bias; None where each tells.
    """

    operation: GemmOperationGrouped
    sizes: Sizes
    groups: Mapping[str, tuple[Matrix, ...]]
    operands: dict[str, Matrix]
    scalars: EpilogueScalars
    bias: bool | None

    @property
    def written(self) -> tuple[str, ...]:
        """D, and what the epilogue writes beside it."""
        return ("D", *(port.name for port in self.operation.epilogue_functor.outputs))

    @property
    def what(self) -> str:
        """The problem in words, for messages."""
        m, n, k = (int(extent) for extent in self.sizes.max(axis=0))
        return f"a group of {len(self.sizes)} GEMMs of at most M={m}, N={n}, K={k}"

    def make_call(self, loaded: _core.DeviceKernel) -> _core.GroupedCall:
        """Return a call for one grouped kernel."""
        return _core.GroupedCall(loaded)

    def configure(self, call: _core.GroupedCall) -> None:
        """Give the record the sizes of all problems; their operands follow."""
        call.set_sizes(self.sizes)

    def compute(self) -> None:
        """Execute the meaning on the host."""
        if self.operation.epilogue_functor.is_tree:
            self._compute_outputs()
            return
        A, B, D = (self.groups[name] for name in "ABD")
        C = self.groups.get("C")
        results = reference.gemm_grouped(
            self.operation,
            [_values(each) for each in A],
            [_values(each) for each in B],
            None if C is None else [_values(each) for each in C],
            *self.scalars.values,
        )
        for target, values in zip(D, results, strict=True):
            if target.bytes:
                target.store(values)

    def _compute_outputs(self) -> None:
        """Execute the reference of an epilogue with tensors of its own, problem by problem."""
        functor = self.operation.epilogue_functor
        scalars = dict(zip(functor.scalar_names, self.scalars.values, strict=True))
        for number, (m, n, _) in enumerate(self.sizes.tolist()):
            if not m or not n:
                continue
            arrays = {
                name: _values(matrices[number]) for name, matrices in self.groups.items() if name not in self.written
            }
            for name, values in reference.gemm_outputs(self.operation.single, arrays, scalars).items():
                self.groups[name][number].store(values)


@dataclass(frozen=True)
class Table:
    """A checked table."""

    name: str
    view: TensorView

    @property
    def parts(self) -> tuple[Table, ...]:
        """The table itself."""
        return (self,)


@dataclass(frozen=True)
class TableProblem(Problem):
    """A group that its tables describe. What they hold is the user's word.

    Attributes
    ----------
    operation : GemmOperationGrouped
        What to compute, with the scheduler on the device.
    count : int
        Number of problems.
    most_tiles : int
        Output tiles that there are at most; 0 where nobody knows.
    operands : dict
        The tables, by name.
    """

    operation: GemmOperationGrouped
    count: int
    most_tiles: int
    operands: dict[str, Any]
    scalars: EpilogueScalars

    @property
    def written(self) -> tuple[str, ...]:
        """D, and what the epilogue writes beside it."""
        return ("D", *(port.name for port in self.operation.epilogue_functor.outputs))

    @property
    def what(self) -> str:
        """The problem in words, for messages."""
        return f"a group of {self.count} GEMMs whose sizes are on the device"

    def make_call(self, loaded: _core.DeviceKernel) -> _core.GroupedCall:
        """Return a call for one grouped kernel."""
        return _core.GroupedCall(loaded)

    def configure(self, call: _core.GroupedCall) -> None:
        """Give the record the addresses of all tables."""
        # The kernel looks C's address up whether it reads C or not; D's will do where there is none.
        stand_in = {"C": "D", "ldc": "ldd"}
        tables = [self.operands.get(name) or self.operands[stand_in[name]] for name in TABLES]
        call.set_device_tables(self.count, self.most_tiles, [table.view.pointer for table in tables])

    def compute(self) -> None:
        """Raise DeviceError: the host cannot read what the tables hold."""
        device.require()


def _no_exchange(*tensors: Any) -> bool:
    """Return False, whatever the tensors."""
    return False


class GroupedLaunch(DeviceLaunch):
    """A group on a GPU: kernel, call record, buffers of host operands, and the table that the kernel reads."""

    call: _core.GroupedCall

    @property
    def run(self) -> Callable[..., None]:
        """What launches. The call itself orders launches on different streams: they bring the table along."""
        return functools.partial(run_joined, self.call, self._joined) if self._joined else self.call.bound_run

    @property
    def try_exchange(self) -> Callable[..., bool]:
        """What takes tensors of the same form; nothing where what takes their place may lie over the epilogue's."""
        return _no_exchange if self._operation.epilogue_functor.ports else self.call.bound_update

    def _prepare(self, prepared: Prepared) -> None:
        """Bring problems, of any number and sizes, into the record, and make the kernel's parameters."""
        problem: Any = prepared.problem
        groups = problem.groups if isinstance(problem, GroupProblem) else {}
        shares = {name: _Share(matrices) for name, matrices in groups.items()}
        self._reserve_inputs(
            prepared, {name: share.size for name, share in shares.items() if share.size and name not in problem.written}
        )
        for name in problem.written:
            if name in shares and shares[name].size:
                prepared.host_outputs[name] = shares[name].parts
                prepared.host_guards += guards({each.name: each for each, _ in shares[name].parts}, problem.written)
        for table in () if groups else problem.operands.values():
            prepared.call.watch(table.view.owner, table.name, False)
        entries = {name: self._entries(prepared, name, matrices, shares[name]) for name, matrices in groups.items()}
        self._place_ports(prepared, {name: each for name, each in entries.items() if name not in _LETTERS})
        self._set_epilogue(prepared)
        problem.configure(prepared.call)
        for letter in entries.keys() & {*_LETTERS}:
            self._place_group(prepared, letter, groups[letter], entries[letter], problem.bias)
        self._plan(problem, prepared.call)
        self._make_table(prepared)
        if prepared.buffers or prepared.inputs.buffer is not None:
            self.call.join(prepared.stream)  # memory is the launch's once `stream` has come this far

    def _provide(self, size: int) -> bool:
        """Have memory for the table of a call of ordinary tensors; False while a graph is captured, or as CUTLASS."""
        stream = self.call.current_stream
        if stream.is_capturing():
            return False
        table = self._take(size, stream)
        self._buffers = {"table": table}
        self.call.set_table(table.pointer, table.size)
        self.call.join(stream)
        return self.call.plan() == 0

    def _make_table(self, prepared: Prepared) -> None:
        """Have device memory for the table and what the kernel alone writes to."""
        size, held = int(prepared.call.device_bytes), self._buffers.get("table")
        if not size:
            return
        if held is not None and held.size < size:
            size *= 2  # what has grown once will again: `resize` finds room
        # Memory of a chosen allocator may be a graph's own. What the host sends there has to outlive the graph, too.
        is_of_graph = self._allocator is not None and isinstance(prepared.problem, TableProblem)
        if not is_of_graph and (held is None or held.size < size):
            self._check_stream(prepared)
        self._buffer(prepared, "table", size)
        table = prepared.buffers.get("table") or self._buffers["table"]
        prepared.call.set_table(table.pointer, table.size)
        self._plan(prepared.problem, prepared.call)

    def _release_later(self, name: str, buffer: DeviceBuffer) -> None:
        """Let go of a buffer that another has taken the place of; graphs have its address."""
        self._let_go(buffer)
        if self.call.captured:
            self._outgrown = (*self._outgrown, buffer)

    def resize(self, sizes: Sizes, A: Any, B: Any, C: Any, D: Any) -> bool:
        """Take other sizes, and tuples of tensors that they fit; None keeps an operand.

        False, and nothing has changed, where `update` is to have a closer look: tensors of another library or type than
        before, anything that is not plainly right, or a table that must grow.
        """
        return self.call.resize(sizes, A, B, C, D)

    def sync(self) -> None:
        """Wait for the stream of the last launch; bring every D back that is host memory."""
        stream = self.call.last_stream
        if not self._host_outputs or not self.call.launched:
            stream.synchronize()
            return
        for name, each in self._host_guards:
            each.check(name)
        outputs = self._host_outputs
        packed = {name: np.empty(self._buffers[written(name)].size, np.uint8) for name in outputs}
        for name, memory in packed.items():
            _core.copy_to_host(memory, self._buffers[written(name)].pointer, stream)
        stream.synchronize()
        for name, parts in outputs.items():
            for target, offset in parts:
                target.unpack(packed[name][offset : offset + target.packed_bytes])

    def operand(self, name: str) -> tuple[int, int]:
        """Return the address and the leading dimension that the kernel gets for ``A[0]``, ``A[1]``, ..."""
        return self.call.entry(_LETTERS.index(name[0]), int(name[2:-1]))

    def _entries(
        self, prepared: Prepared, name: str, matrices: tuple[Matrix, ...], share: _Share
    ) -> NDArray[np.uint64]:
        """Return where an operand is in all problems: address, bytes, bytes of a line, those between lines, and ld.

        Host memory is in a buffer, copied to it unless it is written.
        """
        places, base = {each.name: offset for each, offset in share.parts}, 0
        if share.size and name in prepared.problem.written:
            self._check_stream(prepared)
            base = self._buffer(prepared, written(name), share.size)
        elif share.size:
            base = prepared.inputs.address(name)
            for each, offset in share.parts:
                prepared.inputs.put(name, each, offset)
        entries = np.empty((len(matrices), 5), np.uint64)
        for number, each in enumerate(matrices):
            pointer, length, line, pitch = span(each)
            ld = each.ld
            if each.name in places:
                pointer, length, ld = base + places[each.name], each.packed_bytes, each.packed_ld
                pitch = line if pitch else 0
            entries[number] = (pointer, length, line, pitch, ld)
        return entries

    def _place_group(
        self, prepared: Prepared, letter: str, matrices: tuple[Matrix, ...], entries: Any, bias: bool | None
    ) -> None:
        """Point the record at one operand of all problems."""
        owners = tuple(None if each.view.device is None else each.view.owner for each in matrices)
        rule, element = operand_rule(letter, matrices[0], bias), matrices[0].description.type.code
        prepared.call.set_entries(_LETTERS.index(letter), element, rule, entries, owners)

    def _place_ports(self, prepared: Prepared, entries: Mapping[str, NDArray[np.uint64]]) -> None:
        """Have tables of the epilogue's tensors on the device: addresses, then leading dimensions.

        They are new ones each time: captured graphs know those of before.
        """
        problem: Any = prepared.problem
        if isinstance(problem, TableProblem):
            for port in problem.operation.epilogue_functor.ports:
                strides, table = problem.operands.get(f"ld of {port.name}"), problem.operands[port.name].view
                if table.dtype_name == port.type.dtype_name:  # the numbers themselves, one behind the other
                    prepared.tensors[port.name] = table.pointer, (0, 1), port.type.bytes_of(problem.count)
                    continue
                place = table.pointer, (strides.view.pointer if strides else 0, 0)
                prepared.tensors[port.name] = *place, 8 * problem.count
            return
        if not entries:
            return
        self._check_stream(prepared)
        tables = np.stack([each[:, column] for each in entries.values() for column in (0, 4)])
        buffer = prepared.buffers["epilogue"] = self._take(tables.nbytes, prepared.stream)
        _core.copy_to_device(buffer.pointer, tables.view(np.uint8).reshape(-1), prepared.stream)
        step = tables.strides[0]
        for number, name in enumerate(entries):
            first = buffer.pointer + 2 * number * step
            prepared.tensors[name] = first, (first + step, 0), step
            for each in problem.groups[name]:
                if each.view.device is not None:
                    prepared.call.watch(each.view.owner, each.name, name in problem.written)

    def _set_epilogue(self, prepared: Prepared) -> None:
        """Pack scalars, and tables of the epilogue's tensors, as the kernel takes them."""
        problem: Any = prepared.problem
        for port in problem.operation.epilogue_functor.ports:
            self._layout.check(port.name, port.type.short, port.name in problem.written)
        self._pack_epilogue(prepared)

    def _check_stream(self, prepared: Prepared) -> None:
        """Raise ArgumentError where memory is needed and the current stream is under capture."""
        if prepared.stream.is_capturing():
            raise ArgumentError(
                "a group needs device memory for its table and for numpy operands, which cannot be had while a graph "
                "is captured: make the arguments, or give them more or larger problems, before the capture begins"
            )


def operand_rule(letter: str, matrix: Matrix, bias: bool | None) -> _core.OperandRule:
    """Return what tensors must be to take the place of such a matrix without `update`'s closer look.

    `bias` is that of the arguments. Interleaved operands always get that look, and so do elements smaller than a byte.
    """
    described = matrix.description
    plain = described.order.interleave == 1 and described.type.bits >= 8
    may_be_matrix = plain and (letter != "C" or not bias)
    may_be_bias = plain and letter == "C" and bias is not False
    return _core.OperandRule(
        described.is_row_major, described.type.bits, described.alignment, may_be_matrix, may_be_bias
    )


def _values(operand: Matrix) -> NDArray[Any]:
    """Return an operand in host memory as an array, also where it has no elements."""
    if operand.rows and operand.columns:
        return operand.host_array()
    return np.empty((operand.rows, operand.columns), operand.description.type.dtype)


class _Share:
    """The part of one operand that is host memory: where each matrix goes in the buffer that they share."""

    def __init__(self, matrices: tuple[Matrix, ...]) -> None:
        self.parts: list[tuple[Matrix, int]] = []
        self.size = 0
        for each in matrices:
            if each.view.device is None and each.bytes:
                self.parts.append((each, self.size))
                self.size += -(-each.packed_bytes // _ALIGNMENT) * _ALIGNMENT
