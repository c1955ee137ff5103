"""What every operation has: a source text, a name that no other operation has, and the artifacts made from it.

The parts that it is described with are checked in ``checked_parts``.
"""

from __future__ import annotations

import hashlib
import threading
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn

from pycutlass import _core
from pycutlass.calls import (
    counted,
    mistaken,
    no_attribute,
    no_such_field,
    public,
    suggestion,
    unknown_keywords,
)
from pycutlass.epilogue import Epilogue, EpilogueScalars
from pycutlass.errors import ArgumentError, ArgumentTypeError
from pycutlass.operation.hints import ELSEWHERE, FOR_ALL, INSTEAD
from pycutlass.source import KernelSource

if TYPE_CHECKING:
    from typing import Self

    from pycutlass.cache import Artifact

__all__ = ["ARGUMENTS_OF", "EARLIER", "FEW_SUMS", "MAX_UNBOUNDED_THREADS", "Operation"]

#: Threads of a threadblock that may take 255 registers each, of the 65536 that all GPUs have for one.
MAX_UNBOUNDED_THREADS = 256
#: Sums of a thread of a GEMM of CUDA cores up to which it is held to the registers of 512 threads (gemm_universal.h).
FEW_SUMS = 64

#: Keywords of earlier scripts, and what they are called now.
EARLIER = {"arch": "compute_capability"}

#: What each operation's arguments are.
ARGUMENTS_OF = {
    "Conv2dOperation": "Conv2dArguments",
    "GemmOperationGrouped": "GemmGroupedArguments",
    "GemmOperationUniversal": "GemmArguments",
    "ReductionOperation": "ReductionArguments",
}


class _Artifacts(dict[str, "Artifact"]):
    """What the compiler has made of one text, by target.

    Attributes
    ----------
    loaded : dict
        What was loaded last on each GPU. It stays there as long as an operation with this text does.
    """

    def __init__(self) -> None:
        super().__init__()
        self.loaded: dict[int, _core.DeviceKernel] = {}


# By the name that only this text has. Equal operations find the same artifacts here, so that compiling one of them is
# compiling all; when the last of them goes, so do the artifacts.
_artifacts: weakref.WeakValueDictionary[str, _Artifacts] = weakref.WeakValueDictionary()
_lock = threading.Lock()


@partial(public, but=("run",))
class Operation(ABC):
    """A described kernel.

    Operations are values: equal descriptions are equal operations, with the same text, name and cache key. What the
    compiler makes of one is kept in `artifacts`, by target, which equal operations share.
    """

    #: Fields that make up the value, in the order of the constructor.
    _FIELDS: ClassVar[tuple[str, ...]] = ()
    #: Attributes that follow from them.
    _FURTHER: ClassVar[tuple[str, ...]] = ()

    #: Whether the kernel is built for what the others of a call are built for.
    follows: ClassVar[bool] = False
    #: The oldest GPU that the kernel runs on: 80, 90, ...
    compute_capability: int
    epilogue_functor: Epilogue
    _source: KernelSource | None = None
    _artifacts: _Artifacts | None = None
    #: Whether a plan compiles the kernel where there is a GPU, so that nobody has to be told to.
    _is_compiled_when_used: bool = False
    #: What arguments have prepared for the launches to come, one for each GPU.
    _prepared: tuple[Any, ...] = ()

    @abstractmethod
    def body(self) -> str:
        """Return the generated C++ without the line that names the kernel."""

    @abstractmethod
    def configuration_name(self) -> str:
        """Return the readable part of the kernel's name."""

    @property
    @abstractmethod
    def is_sm90(self) -> bool:
        """Whether the kernel uses features of exactly one architecture (``sm_90a``)."""

    @property
    @abstractmethod
    def is_bounded(self) -> bool:
        """Whether the compiler is told how many threads will run (``__launch_bounds__``).

        A kernel of CUTLASS 2.x is not, as in CUTLASS: the compiler then weighs registers against occupancy. Above 256
        threads the 255 registers that each may take would not fit, and a GEMM of CUDA cores with few sums is held to
        those of 512 threads, which keep them busy.
        """

    def procedural_name(self) -> str:
        """Return the kernel's symbol.

        The readable part follows CUTLASS's names; the digest at the end covers the generated text, but for the line
        that has the name and follows from the rest, so that no two different operations share a name.
        """
        return self.source().name

    @property
    def artifacts(self) -> _Artifacts:
        """What has been compiled, by target: this operation's, and that of every other with the same text."""
        if self._artifacts is None:
            name = self.source().name
            with _lock:
                object.__setattr__(self, "_artifacts", _artifacts.setdefault(name, _Artifacts()))
        assert self._artifacts is not None
        return self._artifacts

    @property
    def loaded(self) -> dict[int, _core.DeviceKernel]:
        """What was loaded last on each GPU. It stays there as long as an operation with this text does."""
        return self.artifacts.loaded

    def emit(self) -> str:
        """Return the whole generated C++ text."""
        return self.source().text

    def source(self) -> KernelSource:
        """Return what the compiler needs: name, text and what the text may be compiled for."""
        source = self._source
        if source is None:  # made once: it follows from fields that do not change
            body = self.body()
            name = f"{self.configuration_name()}_{hashlib.sha256(body.encode()).hexdigest()[:12]}"
            macro = "PYCUTLASS_BOUNDED_KERNEL" if self.is_bounded else "PYCUTLASS_KERNEL"
            text = f"{body}\n{macro}({name}, Operation)\n"
            source = KernelSource(name, text, self.compute_capability, self.is_sm90)
            object.__setattr__(self, "_source", source)
        return source

    def parts(self, operations: Sequence[Any]) -> list[Any]:
        """Return what has to be compiled so that this operation can run beside the other `operations` of one call."""
        return [self]

    @property
    def arch(self) -> int:
        """The compute capability, under the name that the original used."""
        return self.compute_capability

    @property
    def epilogue_type(self) -> Callable[..., EpilogueScalars]:
        """What makes the scalars of a launch: ``output_op = operation.epilogue_type(alpha, beta)``."""
        return self.epilogue_functor.epilogue_type

    @property
    def switched(self) -> bool:
        """False: A and B stay as they are described. The original exchanged them for a column-major C."""
        return False

    @property
    def rt_module(self) -> Operation:
        """The part that emits source, under the name that the guide's scripts use."""
        return self

    def run(self, arguments: Any = None, stream: Any = None, *further: Any, **unknown: Any) -> None:
        """Launch the kernel with `arguments`, on `stream` or on the current stream of the tensors' library.

        Returns at once; ``arguments.sync()`` waits. Without a GPU the operation's meaning is executed on the host.

        Parameters
        ----------
        arguments : Arguments
            Made for this operation.
        stream : optional
            An integer handle, or a stream of torch, cupy or cuda.core.

        Raises
        ------
        ArgumentError
            The arguments were made for another operation.
        NotCompiledError
            The operation was not given to ``pycutlass.compiler.add_module``.
        DriverError
            The launch failed.
        """
        try:
            owner, launch = arguments.operation, arguments._run
        except Exception:  # it is something else, was never made, or its class raises what it likes
            owner = launch = None
        if owner is not self or further or unknown:
            self._check_run(arguments, owner, further, unknown)
        launch(stream)

    if not TYPE_CHECKING:  # to type checkers it is the function
        run = _core.fast_run(run)

    if not TYPE_CHECKING:  # type checkers say so themselves

        def __call__(self, *args: Any, **kwargs: Any) -> NoReturn:
            """Say how a kernel is launched."""
            kind = ARGUMENTS_OF.get(type(self).__name__, "arguments")
            raise ArgumentTypeError(
                f"an operation is not called: make its arguments, {kind}(operation, ...), and write "
                f"operation.run(arguments)"
            )

    def _refuse(self, unknown: Mapping[str, Any], *further: str) -> NoReturn:
        """Raise ArgumentTypeError for keywords beyond the fields and `further` ones."""
        raise unknown_keywords(type(self).__name__, unknown, self._FIELDS, ELSEWHERE, further)

    def _check_run(self, arguments: Any, owner: Any, further: tuple[Any, ...], unknown: Mapping[str, Any]) -> None:
        """Raise unless the call is right, and `arguments` were made for an operation equal to this one."""
        if not isinstance(owner, Operation) and further:
            kind = ARGUMENTS_OF.get(type(self).__name__, "arguments")
            raise ArgumentTypeError(
                f"run takes arguments and a stream, and no tensors: make {kind} first, and call run(arguments); got "
                f"{type(arguments).__name__} and {counted(len(further) + 1, 'argument')} more"
            )
        if further or unknown:
            raise mistaken("run", further, unknown, ("arguments", "stream"))
        if not isinstance(owner, Operation):
            raise ArgumentTypeError(
                f"run needs arguments made for this operation, got "
                f"{'none' if arguments is None else type(arguments).__name__}: make them, and call run(arguments)"
            )
        if owner != self:
            raise ArgumentError(
                f"these arguments were made for {owner.procedural_name()}, not for {self.procedural_name()}: make new "
                f"ones with operation= this one"
            )

    def _value(self) -> tuple[Any, ...]:
        return tuple(getattr(self, name) for name in self._FIELDS)

    def replace(self, **changes: Any) -> Self:
        """Return an operation that is described as this one but for `changes`, and checked as every other.

        A C that is exchanged is D's as well, unless D is described apart from it. ``copy.replace`` does the same from
        Python 3.13 on. Descriptions are dataclasses: of these, ``dataclasses.replace`` changes fields.

        Parameters
        ----------
        changes
            Parameters of the constructor, by name.

        Raises
        ------
        ArgumentTypeError
            An unknown name.
        DescriptionError
            What comes of it is no kernel.

        Examples
        --------
        >>> import pycutlass
        >>> from pycutlass import cutlass
        >>> f16, f32 = cutlass.float16, cutlass.float32
        >>> instruction = pycutlass.MathInstruction([16, 8, 16], f16, f16, f32, cutlass.OpClass.TensorOp)
        >>> tile = pycutlass.TileDescription([128, 128, 32], 3, [2, 2, 1], instruction)
        >>> row = pycutlass.TensorDescription(f16, cutlass.RowMajor, 8)
        >>> functor = pycutlass.LinearCombination(f16, 8, f32, f32)
        >>> operation = pycutlass.GemmOperationUniversal(80, tile, row, row, row, functor)
        >>> operation.replace(swizzling_functor=cutlass.IdentitySwizzle4).swizzle_size
        4
        """
        unknown = {name: value for name, value in changes.items() if name not in self._FIELDS}
        if unknown:
            self._refuse(unknown)
        return type(self)(**dict(zip(self._FIELDS, self._value(), strict=False)) | changes)

    if not TYPE_CHECKING:  # what ``copy.replace`` of Python 3.13 calls

        def __replace__(self, /, **changes: Any) -> Any:
            return self.replace(**changes)

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and isinstance(other, Operation) and self._value() == other._value()

    def __hash__(self) -> int:
        return hash((type(self), self._value()))

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), self._value()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(map(_spell, self._value()))})"

    def __getattr__(self, name: str) -> NoReturn:
        """Raise what Python raises for an attribute that operations lack, with what is near."""
        owner, known = type(self).__name__, [each for each in (*self.__dict__, *dir(type(self))) if each[0] != "_"]
        near = "" if name[0] == "_" else INSTEAD.get((owner, name)) or FOR_ALL.get(name) or suggestion(name, known)
        raise no_attribute(owner, name, near)

    def _describe(self, **fields: Any) -> None:
        """Set what describes a new operation: hundreds are tried for a plan, and `__setattr__` looks at each field."""
        first, *_ = fields
        try:  # not __dict__: Python 3.12 finds `run` more slowly once that has been made
            object.__getattribute__(self, first)
        except AttributeError:
            pass  # it is described now
        else:
            raise AttributeError(f"{first} of an operation cannot change: describe another operation")
        for name, value in fields.items():
            object.__setattr__(self, name, value)

    def __setattr__(self, name: str, value: Any) -> None:
        if name in self._FIELDS or name in self._FURTHER:
            try:  # as above
                object.__getattribute__(self, name)
            except AttributeError:
                pass
            else:
                raise AttributeError(f"{name} of an operation cannot change: describe another operation")
        if name[0] != "_" and name not in self._FIELDS and not hasattr(type(self), name) and name not in self._FURTHER:
            raise no_such_field(self, name, self._FIELDS)
        object.__setattr__(self, name, value)

    def __delattr__(self, name: str) -> None:
        """Refuse to lose what describes it."""
        if name in self._FIELDS or name in self._FURTHER:
            raise AttributeError(f"{name} of an operation cannot be deleted: describe another operation")
        object.__delattr__(self, name)


def _spell(value: Any) -> str:
    """Return `value` as it would be typed: classes of the ``cutlass`` namespace by their name there."""
    return f"cutlass.{value.__name__}" if isinstance(value, type) else repr(value)
