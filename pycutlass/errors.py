"""Every exception that PyCUTLASS raises.

::

    PyCutlassError
    ├── DescriptionError (ValueError)        a description that cannot be a kernel
    ├── ArgumentError (ValueError)           arguments that do not fit the operation
    │   ├── AlignmentError                   a pointer, extent or stride that is not aligned
    │   └── UnknownNameError (KeyError)      a name in brackets that is not there
    ├── ArgumentTypeError (TypeError)        an object or keyword of the wrong kind
    ├── NotCompiledError (RuntimeError)      an operation is launched before it was compiled
    ├── ToolkitError (RuntimeError)          a compiler, header or library is missing
    ├── CompileError (RuntimeError)          a compiler refused the generated source
    │   └── BuildReportError                 it compiled, but the strict switch refuses the result
    ├── CacheError (RuntimeError)            the kernel cache, or a database of trials, cannot be used
    ├── DeviceError (RuntimeError)           no driver, no GPU, or a GPU that cannot run the kernel
    │   └── DriverError                      a CUDA driver call failed
    ├── AllocationError (MemoryError)        a library, or the host, lacks the memory for a result or a copy
    └── PoolError (MemoryError)              the memory pool cannot hold what was asked for

A message states the rule, both values, both names and the remedy. What a program may want to act on is kept in
attributes as well. Each of them can be pickled, copied and raised in another process.

What an argument itself raises when it is asked for its number, its items or its memory becomes the ``__cause__`` of one
of these. Python's own protocols keep Python's exceptions: ``AttributeError`` for a name that an object lacks or that
cannot be set, ``IndexError`` for an index out of range, ``TypeError`` for an operator or a hash that a value lacks.
"""

from typing import Any as _Any

__all__ = [
    "AlignmentError",
    "AllocationError",
    "ArgumentError",
    "ArgumentTypeError",
    "BuildReportError",
    "CacheError",
    "CompileError",
    "DescriptionError",
    "DeviceError",
    "DriverError",
    "NotCompiledError",
    "PoolError",
    "PyCutlassError",
    "ToolkitError",
    "UnknownNameError",
]


class PyCutlassError(Exception):
    """Base of everything that PyCUTLASS raises on purpose."""

    def __reduce__(self) -> tuple[_Any, ...]:
        """Come back with message and attributes: a constructor may take other things than the message it makes."""
        return _restored, (type(self), self.args), self.__dict__.copy()


class DescriptionError(PyCutlassError, ValueError):
    """A description (math instruction, tile, tensor, epilogue, operation) cannot be a kernel."""


class ArgumentError(PyCutlassError, ValueError):
    """Tensors or sizes do not fit the operation that they were given to."""


class AlignmentError(ArgumentError):
    """A pointer, an extent or a leading dimension is less aligned than the operation needs."""


class UnknownNameError(ArgumentError, KeyError):
    """What was looked up in brackets, a member of an enumeration perhaps, is not there."""

    __str__ = Exception.__str__  # a KeyError shows its message as a literal


class ArgumentTypeError(PyCutlassError, TypeError):
    """An argument is an object of the wrong kind, or a keyword does not exist."""


class NotCompiledError(PyCutlassError, RuntimeError):
    """An operation is to be launched and was never compiled for this device."""


class ToolkitError(PyCutlassError, RuntimeError):
    """A compiler, a header directory or a library was looked for and not found, or does not work.

    Parameters
    ----------
    message : str
        What was looked for and where, and the remedy.
    absent : bool
        Whether it is not installed, in which case a cached kernel serves as well. False where something was named, by
        a variable, or is there, and does not work.
    """

    def __init__(self, message: str, *, absent: bool = False) -> None:
        self.absent = absent
        super().__init__(message)


class CompileError(PyCutlassError, RuntimeError):
    """A compiler refused the generated source.

    Parameters
    ----------
    message : str
        One sentence: which kernel, which compiler.
    log : str
        What the compiler printed.
    source : str
        The source as it was given to the compiler.
    command : str
        A shell command that reproduces the failure.
    """

    def __init__(self, message: str, *, log: str = "", source: str = "", command: str = "") -> None:
        self.log = log
        self.source = source
        self.command = command
        parts = [message]
        if log:
            parts.append("Log:\n" + _shorten_log(log))
        if source:
            parts.append("Source:\n" + _number_lines(source))
        if command:
            parts.append("To reproduce:\n" + command)
        super().__init__("\n\n".join(parts))


class BuildReportError(CompileError):
    """The kernel compiled, but spills, has a stack frame or a serialised wgmma, and strict mode is on."""


class CacheError(PyCutlassError, RuntimeError):
    """The kernel cache, a database of trials, or a file exported from one of them, cannot be used."""


class DeviceError(PyCutlassError, RuntimeError):
    """There is no driver or GPU, or the GPU cannot run this kernel."""


class DriverError(DeviceError):
    """A call to the CUDA driver failed.

    Parameters
    ----------
    call : str
        Name of the driver function.
    code : int
        The ``CUresult``.
    meaning : str
        What the driver says about it.
    """

    def __init__(self, call: str, code: int, meaning: str) -> None:
        self.call = call
        self.code = code
        super().__init__(f"{call} failed with CUresult {code}: {meaning}")


class AllocationError(PyCutlassError, MemoryError):
    """NumPy, torch or CuPy lacks the memory for a result or a copy, or the host that for what it computes."""


class PoolError(PyCutlassError, MemoryError):
    """The memory pool, or the GPU itself, cannot hold what was asked for.

    Parameters
    ----------
    requested, used, limit : int
        Bytes asked for, in use, and allowed.
    gpu : int, optional
        The GPU, where it is the one that lacks the memory, or another allocator than the pool: a larger pool would not
        help.
    """

    def __init__(self, requested: int, used: int, limit: int, *, gpu: int | None = None) -> None:
        self.requested = requested
        self.used = used
        self.limit = limit
        remedy = "Free arguments and tensors that are no longer needed."
        if gpu is None:
            remedy = (
                "Free arguments that are no longer needed, or call pycutlass.get_memory_pool(init_pool_size, "
                "max_pool_size) with a larger max_pool_size before the first kernel."
            )
        elif requested > limit:
            remedy = "Divide the problem, or its split-K among fewer slices."
        super().__init__(
            f"{'the memory pool' if gpu is None else f'GPU {gpu}'} cannot give {requested:,} bytes: {used:,} of at "
            f"most {limit:,} bytes are in use. {remedy}"
        )


def _restored(kind: type[PyCutlassError], args: tuple[_Any, ...]) -> PyCutlassError:
    """Return an exception that was pickled or copied; its attributes are set behind this."""
    return Exception.__new__(kind, *args)  # the constructor may take other things, and MemoryError's own refuses us


def _number_lines(source: str) -> str:
    """Return `source` with a line number before each line."""
    lines = source.splitlines()
    width = len(str(len(lines)))
    return "\n".join(f"{number:>{width}} | {line}" for number, line in enumerate(lines, 1))


def _shorten_log(log: str, max_characters: int = 4000, max_lines: int = 12, width: int = 400) -> str:
    """Return `log` where it is short, else the beginnings of its lines with errors: CUTLASS's types fill pages."""
    if len(log) <= max_characters:
        return log.rstrip()
    errors = [line for line in log.splitlines() if "error" in line.lower()][:max_lines]
    shown = [line if len(line) <= width else line[:width] + " ..." for line in errors]
    return "\n".join([*shown, f"({len(log):,} characters in all: see the log attribute of this exception)"])
