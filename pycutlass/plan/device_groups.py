"""Groups whose sizes the device alone knows: tables of them are made there, behind what computes offs, and not read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

import numpy as np

from pycutlass.arguments import GemmGroupedArguments
from pycutlass.epilogue import Epilogue, Port
from pycutlass.errors import ArgumentError, ArgumentTypeError
from pycutlass.imported import imported, is_of
from pycutlass.integers import shape_of
from pycutlass.library import TensorDescription
from pycutlass.operands import Matrix, check_writable, empty_matrix, matrix, vector
from pycutlass.operands.epilogue import port_operand
from pycutlass.operands.overlaps import check_overlaps, renamed
from pycutlass.operation.group_support import count_tiles
from pycutlass.operation.support import check_k
from pycutlass.plan.group import Group
from pycutlass.plan.group_candidates import GroupCandidate
from pycutlass.plan.group_parts import Divided, Part, Stacked, Vectors
from pycutlass.plan.kind import GemmKind
from pycutlass.plan.launches import workspace_of
from pycutlass.plan.readings import place

__all__ = ["DeviceGroup", "DeviceLaunch", "leaves_zeros"]

_NO_PORTS: Mapping[str, Any] = MappingProxyType({})
_REMEDY = "pass offs=offs.tolist(), which waits for the GPU"


@dataclass(frozen=True)
class _Placed:
    """Where the matrices of an operand are: the first, and the steps from one to the next, in bytes.

    One step is multiplied with the number of a problem, the other with the row or column where it begins.
    """

    pointer: int
    of_problem: int
    of_start: int
    ld: int


class DeviceGroup:
    """A group that offs on the device divides, checked as far as the host can see.

    Ends outside of the matrix, or before those of the group before, are taken as the nearest that are not, so that
    whatever offs holds, no kernel reads or writes beside the tensors.

    Parameters
    ----------
    kind : GemmKind
        What each problem is.
    group : Group
        The operands.
    target : Part
        D.
    stream : optional
        What the caller named: refused, since tables are made on the current one.
    ports : mapping
        Tensors of the epilogue, by name: matrices and columns that rows are divided of as of D; of rows and numbers
        one for each group.
    zeroes_rest : bool
        Whether the kernel writes zeros behind the last group: as one more problem, with a K of 0. Its epilogue is one
        that `leaves_zeros`.

    Raises
    ------
    ArgumentError, ArgumentTypeError, AlignmentError
        Something does not fit.
    """

    def __init__(
        self,
        kind: GemmKind,
        group: Group,
        target: Part,
        stream: Any,
        ports: Mapping[str, Any] = _NO_PORTS,
        zeroes_rest: bool = False,
    ) -> None:
        assert group.offsets is not None
        assert group.axis is not None
        if group.offsets.is_spec:
            raise ArgumentError(
                f"offs is a {type(group.offsets.tensor).__name__}, which has no memory: pass the ends of groups"
            )
        if not is_of(group.offsets.tensor, "torch", "Tensor"):
            raise ArgumentTypeError(f"offs is on the GPU, where tables are made of tensors of torch alone: {_REMEDY}")
        if stream is not None:
            raise ArgumentError(
                "stream is given, and offs is on the GPU, where tables are made of it on torch's current stream: call "
                "it under torch.cuda.stream(stream)"
            )
        if group.bias is not None:
            raise ArgumentError(
                f"offs is on the GPU, and a bias beside cs, or of results by columns, is a tensor of the epilogue, "
                f"whose tables the host makes: add the bias to cs and give the sum, with results by rows, or {_REMEDY}"
            )
        _check_ports(kind, group)
        self.kind, self._group, self._offs = kind, group, group.offsets.tensor
        self._has_rest = zeroes_rest and group.axis in (0, 1)
        self._count = len(group) + self._has_rest
        check_k(kind.epilogue, int(group.A.last_extents[1]))
        parts = {"A": group.A, "B": group.B, "C": group.C, "D": target}
        whole = {letter: self._whole(letter, part) for letter, part in parts.items() if part is not None}
        beside = {port.name: self._beside(port, ports[port.name]) for port in kind.epilogue.ports}
        whole |= beside
        for letter, each in whole.items():
            if each.view.device != group.offsets.device:
                raise ArgumentError(
                    f"offs is on {place(group.offsets.device)}, and {getattr(parts.get(letter), 'name', letter)} is on "
                    f"{place(each.view.device)}: move one, or {_REMEDY}"
                )
        written = ("D", *(port.name for port in kind.epilogue.outputs))
        for name in written:
            check_writable(whole[name])
        try:
            check_overlaps(whole, written, kind.epilogue.matrices_read)
        except ArgumentError as error:
            raise renamed(error, {letter: part.name for letter, part in parts.items() if part is not None}) from None
        self._numbers = {port.name: ports[port.name] for port in kind.epilogue.ports if port.form == "number"}
        self.placed = {letter: _place(parts[letter], whole[letter]) for letter in whole if letter not in beside}
        for port in kind.epilogue.ports:
            if port.form != "number":  # which are a table themselves
                self.placed[port.name] = _place_beside(port, beside[port.name])

    def _whole(self, letter: str, part: Part) -> Matrix:
        """Return all matrices of an operand as one, or as a batch, checked against the kind."""
        described = getattr(self.kind, letter)
        if isinstance(part, Vectors):
            return _vectors(letter, part, described)
        if not isinstance(part, Divided | Stacked):
            raise ArgumentError(
                f"{part.name} is a list, and offs is on the GPU, where the addresses of its matrices are not: pass "
                f"torch.stack({part.name}), or {_REMEDY.removeprefix('pass ')}"
            )
        shape = part.view.shape or ()
        batch = shape[0] if isinstance(part, Stacked) else 1
        given = part.tensor[0] if isinstance(part, Stacked) and batch == 1 else part.tensor
        if 0 in shape:
            return empty_matrix(letter, described, given, shape[-2], shape[-1], batch)
        return matrix(letter, described, given, shape[-2], shape[-1], batch, written=letter == "D")

    def _beside(self, port: Port, given: Any) -> Matrix:
        """Return a tensor of the epilogue: all that groups have of it as one, or as a batch, checked against its port.

        `_check_ports` has seen that rows are divided.
        """
        _, n, _ = self._group.sizes[0].tolist()
        count, total = len(self._group), self._group.axis_total
        by_group = port.form in ("row", "number")
        wanted = {"row": (count, port.columns(n)), "number": (count,), "column": (total,)}
        shape = wanted.get(port.form, (total, port.columns(n)))
        is_column = port.form == "column" and shape_of(given) == (total, 1)
        if isinstance(given, list | tuple) or (shape_of(given) != shape and not is_column):
            got = "a list" if isinstance(given, list | tuple) else f"shape {shape_of(given)}"
            what = "with one for each group" if by_group else "divided as the results are"
            raise ArgumentError(
                f"offs is on the GPU, and {port.name}, a {port.form} of the epilogue, must be one tensor of {shape}, "
                f"{what}; got {got}: pass such a tensor, or {_REMEDY.removeprefix('pass ')}"
            )
        is_one = by_group and count == 1 and port.form == "row"
        written = port in self.kind.epilogue.outputs
        return port_operand(
            port.beside(self.kind.D), given[0] if is_one else given, total, n, count if by_group else 1, written=written
        )

    @property
    def key(self) -> tuple[Any, ...]:
        """What arguments depend on that cannot be exchanged."""
        return self._count, tuple((letter, each.ld) for letter, each in self.placed.items())

    def most_tiles(self, candidate: GroupCandidate) -> int:
        """Return how many output tiles there are at most, whatever the device knows."""
        group, single = self._group, candidate.operation.single
        m, n, k = group.sizes[0].tolist()
        if group.axis == 2:
            return len(group) * count_tiles(single, np.array([[m, n, k]], np.int32))
        # Each group leaves the rest of one tile empty.
        tile = max(single.tile_description.threadblock_shape[:2])
        total = group.axis_total + self._count * tile
        size = [total, n, k] if group.axis == 0 else [m, total, k]
        return count_tiles(single, np.array([size], np.int32))

    def tables(self) -> dict[str, Any]:
        """Return the tables of sizes and addresses, made on the device."""
        sizes, made = self._tables(list(self.placed.values()))
        return {"problem_sizes": sizes, **dict(zip(self.placed, made, strict=True)), **self._numbers}

    def tables_and_strides(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return these tables and those of leading dimensions, made on the device."""
        lds = [_Placed(each.ld, 0, 0, 0) for each in self.placed.values()]
        sizes, made = self._tables([*self.placed.values(), *lds])
        addresses = dict(zip(self.placed, made, strict=False))
        strides = {_ld_of(letter): table for letter, table in zip(self.placed, made[len(lds) :], strict=True)}
        return {"problem_sizes": sizes, **addresses, **self._numbers}, {"ldc": None, **strides}

    def _tables(self, wanted: Sequence[_Placed]) -> tuple[Any, Sequence[Any]]:
        """Return the sizes, and tables of a number and of steps with each problem, or with where it begins.

        All tables are made at once: kernels that do so little take as long as it takes to launch them.
        """
        torch: Any = imported("torch")
        numbers = torch.arange(self._count + 1, device=self._offs.device)
        sizes, starts = self._divided(torch, numbers)
        numbers = numbers[:-1]
        if self._has_rest:
            numbers[-1:].fill_(0)  # of which nothing is read: a matrix that there is
        made = torch._foreach_mul(
            [numbers if each.of_problem else starts for each in wanted],
            [each.of_problem or each.of_start for each in wanted],
        )
        torch._foreach_add_(made, [each.pointer for each in wanted])
        return sizes, made

    def _divided(self, torch: Any, numbers: Any) -> tuple[Any, Any]:
        """Return M, N and K of all problems, and where each begins along the axis that offs divides."""
        group, total = self._group, self._group.axis_total
        ends = numbers * total  # first a 0, and last, where there is a rest, at least where that ends
        ends[1 : len(group) + 1].copy_(self._offs)
        bounds = ends.cummax(0).values.clamp_(max=total)
        m, n, k = group.sizes[0].tolist()
        sizes = torch.full((self._count, 3), k, dtype=torch.int32, device=bounds.device)
        if self._has_rest:
            sizes[-1:, 2].fill_(0)
        for axis, extent in ((0, m), (1, n)):
            if axis != group.axis and extent != k:
                sizes[:, axis].fill_(extent)
        torch.sub(bounds[1:], bounds[:-1], out=sizes[:, group.axis])
        return sizes, bounds[:-1]

    def epilogue_of(self, tables: Mapping[str, Any], strides: Mapping[str, Any]) -> dict[str, Any]:
        """Return the tables of the epilogue's tensors, as arguments take them: of matrices with leading dimensions."""
        return {
            port.name: (tables[port.name], strides[_ld_of(port.name)]) if port.form == "matrix" else tables[port.name]
            for port in self.kind.epilogue.ports
        }

    @property
    def is_captured(self) -> bool:
        """Whether the current stream is being captured into a graph."""
        torch: Any = imported("torch")
        return bool(torch.cuda.is_current_stream_capturing())


class DeviceLaunch:
    """A candidate with tables on the device.

    Parameters
    ----------
    candidate : GroupCandidate
        The kernel, compiled, with the scheduler on the device.
    group : DeviceGroup
        The group.
    scalars : mapping
        Those of the epilogue, by name.
    most_tiles : int
        Output tiles at most.
    """

    __slots__ = ("_arguments", "_operation", "_strides", "_tensors")

    def __init__(
        self, candidate: GroupCandidate, group: DeviceGroup, scalars: Mapping[str, Any], most_tiles: int
    ) -> None:
        self._operation = candidate.operation
        tables, self._strides = group.tables_and_strides()
        with workspace_of(takes_torch_memory=True):
            self._arguments = GemmGroupedArguments.from_device(
                self._operation,
                len(tables["problem_sizes"]),
                tables["problem_sizes"],
                *(tables.get(letter) for letter in "ABCD"),
                **{name: self._strides[name] for name in ("lda", "ldb", "ldc", "ldd")},
                output_op=self._operation.epilogue_type(**scalars),
                most_tiles=most_tiles,
                epilogue=group.epilogue_of(tables, self._strides) or None,
            )
        self._tensors = group

    def exchange(self, group: DeviceGroup) -> None:
        """Take other tensors and other ends of as many groups, or raise and change nothing that is launched."""
        tables = group.tables()
        beside = group.epilogue_of(tables, self._strides)
        others = {name: table for name, table in tables.items() if name not in beside}
        self._arguments.update(**others, epilogue=beside or None)
        self._tensors = group

    def run(self) -> None:
        """Launch the kernel on torch's current stream, which is that of the tables."""
        self._operation.run(self._arguments)


def leaves_zeros(epilogue: Epilogue, scalars: Mapping[str, Any]) -> bool:
    """Return whether D is zero wherever all sums are: an epilogue that reads a tensor, or a scalar there, may not."""
    given = epilogue.epilogue_type(**scalars)
    if given.needs_source or any(given.pointers) or epilogue.ports:
        return False
    sums = np.zeros((1, 2), epilogue.accumulator.dtype)  # two columns, which an epilogue may combine
    values = dict(zip(epilogue.scalar_names, given.values, strict=True))
    with np.errstate(all="ignore"):  # infinities and what they are multiplied with
        return not epilogue.evaluate(sums, None, values, {})["D"].any()


def _vectors(letter: str, part: Vectors, described: TensorDescription) -> Matrix:
    """Return vectors that are equally far from each other as a batch of them."""
    first = vector(letter, described, part.tensors[0], 1, int(part.extents()[0, 1]))
    pointers = [view.pointer for view in part.views]
    step = pointers[1] - pointers[0] if len(pointers) > 1 else 0
    if step < 0 or any(pointer != pointers[0] + number * step for number, pointer in enumerate(pointers)):
        raise ArgumentError(
            f"the vectors of {part.name} are not equally far from each other in memory, and offs is on the GPU, where "
            f"their addresses are not: pass torch.stack({part.name}), or {_REMEDY.removeprefix('pass ')}"
        )
    return replace(first, batch=len(pointers), batch_stride=step * 8 // described.type.bits)


def _place(part: Part | None, whole: Matrix) -> _Placed:
    """Return where the matrices of an operand are."""
    bytes_of = whole.description.type.bytes_of
    if isinstance(part, Divided):
        step = (part.view.strides or ())[part.axis]
        return _Placed(whole.view.pointer, 0, bytes_of(step), whole.ld)
    return _Placed(whole.view.pointer, bytes_of(whole.batch_stride), 0, whole.ld)


def _place_beside(port: Port, whole: Matrix) -> _Placed:
    """Return where the parts of a tensor of the epilogue are, where rows are divided."""
    bytes_of = whole.description.type.bytes_of
    if port.form == "row":
        return _Placed(whole.view.pointer, bytes_of(whole.batch_stride), 0, 0)
    return _Placed(whole.view.pointer, 0, bytes_of(whole.ld if port.form == "matrix" else 1), whole.ld)


def _ld_of(letter: str) -> str:
    """Return the name of a table of leading dimensions."""
    return f"ld{letter.lower()}" if letter in ("A", "B", "C", "D") else f"ld of {letter}"


def _check_ports(kind: GemmKind, group: Group) -> None:
    """Raise ArgumentError for tensors of an epilogue that can be divided on the host alone."""
    if not kind.epilogue.ports:
        return
    if group.axis != 0 or not kind.D.is_row_major:
        raise ArgumentError(
            f"offs is on the GPU, and the epilogue {kind.epilogue!r} has tensors of its own, which are divided there "
            f"with rows of results that lie by rows: {_REMEDY}"
        )
    reduced = [port.name for port in kind.epilogue.outputs if port.form != "matrix"]
    if reduced:
        raise ArgumentError(
            f"offs is on the GPU, and the epilogue {kind.epilogue!r} makes {', '.join(reduced)} of many elements, for "
            f"which the host divides memory among the groups: {_REMEDY}"
        )
