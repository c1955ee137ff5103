"""What a launch goes over to: a call record, device memory, and copies of what the host has."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pycutlass import _core
from pycutlass.launch.problem import Problem, libraries_of
from pycutlass.memory import DeviceBuffer
from pycutlass.operands import Operand
from pycutlass.tensor import Guard, check_seen

__all__ = ["Inputs", "Prepared"]


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
        self._contents: list[tuple[int, NDArray[Any] | Operand]] = []

    def address(self, name: str) -> int:
        """Return where an operand will be."""
        assert self.buffer is not None
        return self.buffer.pointer + self.places[name][0]

    def put(self, name: str, content: NDArray[Any] | Operand, offset: int = 0) -> None:
        """Have contiguous bytes, or an operand's in host memory, be copied to the place of `name`.

        They begin `offset` bytes behind its beginning.
        """
        self._contents.append((self.places[name][0] + offset, content))

    def fill(self, buffer: DeviceBuffer, stream: _core.Stream) -> None:
        """Copy everything to `buffer`.

        Raises
        ------
        ArgumentError
            The memory of an operand was moved since it was looked at, and may have been freed.
        """
        for offset, content in self._contents:
            if not isinstance(content, np.ndarray):
                for part in content.parts:
                    check_seen(part.name, part.view)
                content = content.packed()
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
    host_outputs : dict
        What is written and is host memory, by name.
    tensors : dict
        Address, strides and bytes of the tensors of the epilogue, by name.
    """

    def __init__(self, problem: Problem, call: Any, joined: list[Callable[[], _core.Stream]]) -> None:
        self.problem, self.call, self.joined = problem, call, joined
        self.stream: _core.Stream = call.current_stream
        self.libraries = libraries_of(problem)
        self.buffers: dict[str, DeviceBuffer] = {}
        self.inputs = Inputs({})
        self.host_outputs: dict[str, Any] = {}
        self.tensors: dict[str, tuple[int, tuple[int, ...], int]] = {}
        self.host_guards: list[tuple[str, Guard]] = []
