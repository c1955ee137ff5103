"""A kernel of groups with tensors: arguments that take other tensors and other sizes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import NoneType
from typing import Any

import numpy as np

from pycutlass.arguments import GemmGroupedArguments
from pycutlass.epilogue import Epilogue
from pycutlass.errors import ArgumentError
from pycutlass.operands.overlaps import renamed
from pycutlass.operation.group_support import Sizes
from pycutlass.plan.group import Group
from pycutlass.plan.group_candidates import GroupCandidate
from pycutlass.plan.group_parts import Listed, Part

__all__ = ["GroupLaunch", "Problems"]


class Problems:
    """The problems of a group that have work, with their tensors.

    Attributes
    ----------
    sizes : array of shape (problems, 3)
        M, N and K.
    tensors : dict
        Lists of tensors under A, B, C and D; C may be None.
    ports : dict
        Lists of tensors that the epilogue has beside them, by name.
    are_lists : bool
        Whether lists of matrices were given, which all have results, and are read and written alone.
    is_host : bool
        Whether results are in host memory.
    like : tuple of tensor and TensorView
        What new results are like.
    """

    def __init__(self, group: Group, target: Part, epilogue: Epilogue, ports: Mapping[str, Any]) -> None:
        taken = group.used
        if any(port.form != "matrix" for port in epilogue.outputs):  # which problems without elements have as well
            taken = np.ones_like(taken)
        whole = bool(taken.all())

        def of_these(tensors: Sequence[Any]) -> list[Any]:
            return list(tensors) if whole else [tensors[number] for number in np.flatnonzero(taken).tolist()]

        self.sizes: Sizes = group.sizes[taken].astype(np.int32)
        parts: dict[str, Part | None] = {"A": group.A, "B": group.B, "C": group.C, "D": target}
        self.tensors: dict[str, Any] = {
            name: None if part is None else of_these(part.matrices()) for name, part in parts.items()
        }
        self.is_host, self.like = any(view.device is None for view in target.views), group.like
        self.are_lists = (
            whole and not epilogue.ports and all(type(each) in (Listed, NoneType) for each in parts.values())
        )
        self.ports = {name: of_these(each) for name, each in group.ports(epilogue, ports).items()}
        self._taken, self._parts, self._bias, self._given = taken, parts, group.bias, ports

    def names(self) -> dict[str, str]:
        """Return what users call the tensors of arguments, by the names that these have for them, such as A[0]."""
        called = {name: (name, isinstance(given, list | tuple)) for name, given in self._given.items()}
        parts = self._parts if self._bias is None else self._parts | {"bias": self._bias}
        called |= {name: (part.name, part.has_indices) for name, part in parts.items() if part is not None}
        return {
            f"{name}[{place}]": f"{user}[{number}]" if has_indices else user
            for name, (user, has_indices) in called.items()
            for place, number in enumerate(np.flatnonzero(self._taken).tolist())
        }


class GroupLaunch:
    """A candidate with tensors.

    It belongs to one thread: arguments have one set of operands at a time.

    Parameters
    ----------
    candidate : GroupCandidate
        The kernel, compiled where there is a GPU.
    problems : Problems
        Of the candidate's kind.
    scalars : mapping
        Those of the epilogue, by name.
    """

    __slots__ = ("_arguments", "_operation", "_sizes")

    def __init__(self, candidate: GroupCandidate, problems: Problems, scalars: Mapping[str, Any]) -> None:
        self._operation, self._sizes = candidate.operation, problems.sizes
        further: dict[str, Any] = {"epilogue": problems.ports} if problems.ports else {}
        output_op = self._operation.epilogue_type(**scalars)
        try:
            self._arguments = GemmGroupedArguments(
                self._operation, problems.sizes, **problems.tensors, output_op=output_op, **further
            )
        except ArgumentError as error:
            raise renamed(error, problems.names()) from error.__cause__

    def exchange(self, problems: Problems) -> None:
        """Take other problems, of any number and sizes, or raise and change nothing that is launched."""
        further: dict[str, Any] = {"epilogue": problems.ports} if problems.ports else {}
        if not np.array_equal(problems.sizes, self._sizes):
            further["problem_sizes"] = problems.sizes
        self._arguments.update(**problems.tensors, **further)
        self._sizes = problems.sizes

    def exchange_tensors(self, xs: list[Any], ws: Any, cs: Any, out: Any) -> None:
        """Take other tensors of the same extents, or raise and change nothing that is launched."""
        self._arguments.update(A=xs, B=ws, C=cs, D=out)

    def run(self, stream: Any) -> None:
        """Launch the kernel on `stream`, or on the current stream of the tensors' library."""
        self._operation.run(self._arguments, stream)

    def sync(self) -> None:
        """Wait for the results, and bring those in host memory back."""
        self._arguments.sync()

    @property
    def is_captured(self) -> bool:
        """Whether a graph has captured a launch: it reads the arguments' memory whenever it is replayed."""
        return bool(getattr(getattr(self._arguments._execution, "call", None), "captured", False))
