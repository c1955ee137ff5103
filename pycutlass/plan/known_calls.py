"""Calls of functions like earlier ones: launched again, without the functions that chose their kernels.

A function that always launches the same for what looks the same is called twice: once itself, while its launches are
recorded, and from then on by these launches alone. Tensors that a launch takes are those that the call is given, views
of them, or new ones. All else that happens to tensors, such as a copy, cannot be made again so, and such a call is not
kept. So it is for tensors of torch.
"""

from __future__ import annotations

import inspect
import itertools
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial, wraps
from types import MappingProxyType
from typing import Any, TypeVar

from pycutlass import _core, cutlass
from pycutlass.epilogue import EpilogueFunction
from pycutlass.library import Value
from pycutlass.plan.allocation import allocated
from pycutlass.plan.composed import Composed, TypedFunction
from pycutlass.plan.spans import span_of

__all__ = ["KnownCalls", "repeated"]

Tensor = Any

#: Frozen values that options of products and convolutions are.
_CONSTANTS = (Value, EpilogueFunction, Composed, TypedFunction, type(cutlass.float16))
_Function = TypeVar("_Function", bound=Callable[..., Any])


class KnownCalls:
    """Those of one function.

    Parameters
    ----------
    names : sequence of str
        Its parameters.
    positional : int
        How many of them may be given without a name.
    defaults : sequence
        What each is where it is not given; Ellipsis where it must be.
    settings : mapping
        What returns how torch wants float32 to be computed, by who asks for that.
    constants : sequence of class
        Of frozen values, which are equal where they are the same.
    written : int, optional
        How many of the last parameters are written, which all are, and may require a gradient where none is followed;
        by default any tensor may be that requires none.
    container : class, optional
        Of what is returned: a list, a tuple, or one tensor.

    Attributes
    ----------
    calls : KnownCalls
        What serves them. It keeps launches, and no tensor.
    """

    def __init__(
        self,
        names: Sequence[str],
        positional: int,
        defaults: Sequence[Any],
        settings: dict[str, Callable[[], Any]],
        *,
        constants: Sequence[type] = (),
        written: int | None = None,
        container: type | None = None,
    ) -> None:
        self._names, self._positional, self._defaults = tuple(names), positional, tuple(defaults)
        self._container = container
        self._read = None if written is None else len(self._names) - written
        self.calls = _core.KnownCalls(
            self._names, positional, self._defaults, settings, tuple(constants), written is not None
        )

    def recorded(self, call: Callable[..., Any]) -> Callable[..., Any]:
        """Return what does the same as a function, and keeps what it launches."""

        @wraps(call)
        def recorded(*args: Any, **named: Any) -> Any:
            with _core.Recording() as recording:
                result = call(*args, **named)
            if recording.is_complete and recording.launches and sys.modules.get("torch") is not None:
                self._keep(recording, args, named, result)
            return result

        return recorded

    def takes(self, named: dict[str, Any]) -> bool:
        """Return whether what the function writes is given, and by these names."""
        return all(name in named for name in self._names[self._read :])

    def _keep(self, recording: Any, args: tuple[Any, ...], named: dict[str, Any], result: Any) -> None:
        import torch

        values, launches, settings = self._values(args, named), recording.launches, dict(recording.answers)
        is_settled = all(settings[who] == answer for who, answer in recording.answers)
        if values is None or not is_settled:
            return
        read = list(_tensors_among(values[: self._read]))
        written = [] if self._read is None else list(_tensors_among(values[self._read :]))
        given = read + written
        results = [] if result is None else list(result) if isinstance(result, list | tuple) else [result]
        made = [each for each in results if not any(each is other for other in given)]
        if not all(type(each) in (torch.Tensor, torch.nn.Parameter) for each in (*given, *made)):
            return  # which may be asked nothing
        if torch.is_grad_enabled() and any(each.requires_grad for each in given):
            return
        found = _Found(given, made, None if self._read is None else len(read))
        operands = found.operands(launches)
        if operands is None:
            return
        at = [next(number for number, each in enumerate(found.tensors) if each is one) for one in results]
        numbers: Any = None if result is None else at[0] if self._container is None else self._container(at)
        kept = [(pool, each) for (pool, _, _), each in zip(launches, operands, strict=True)]
        self.calls.keep(values, found.written, tuple(found.makers()), kept, numbers, settings or None)

    def _values(self, args: tuple[Any, ...], named: dict[str, Any]) -> tuple[Any, ...] | None:
        """Return the values of all parameters; None of a call that does not fit."""
        if len(args) > self._positional or any(name not in self._names[len(args) :] for name in named):
            return None
        given = dict(zip(self._names, self._defaults, strict=True))
        values = tuple({**given, **dict(zip(self._names, args, strict=False)), **named}.values())
        return None if any(each is ... for each in values) else values


def repeated(
    function: _Function, settings: dict[str, Callable[[], Any]], more: Mapping[str, Any] = MappingProxyType({})
) -> _Function:
    """Return a function whose calls of torch's tensors are launched at once where they are like earlier ones.

    Parameters
    ----------
    function : function
        Whose calls these are.
    settings : mapping
        As of `KnownCalls`.
    more : mapping
        Defaults of keywords that it takes beside those of its signature.
    """
    parameters = [each for each in inspect.signature(function).parameters.values() if each.kind is not each.VAR_KEYWORD]
    defaults = {each.name: ... if each.default is each.empty else each.default for each in parameters} | dict(more)
    positional = sum(each.kind is each.POSITIONAL_OR_KEYWORD for each in parameters)
    known = KnownCalls(tuple(defaults), positional, tuple(defaults.values()), settings, constants=_CONSTANTS)
    made: _Function = _core.served_kernel(known.recorded(function), known.calls)
    return made


def _tensors_among(values: Sequence[Any]) -> Iterator[Tensor]:
    """Yield tensors of torch, also those in lists and dictionaries."""
    tensor = sys.modules["torch"].Tensor
    for each in values:
        parts = each.values() if isinstance(each, dict) else each if isinstance(each, list | tuple) else (each,)
        yield from (one for one in parts if isinstance(one, tensor))


class _Found:
    """Where the tensors of launches come from: those that a call is given, those that it returns, and new ones.

    Of the given ones those behind `read` are written, all of them, and no other; any of them where that is None.
    """

    def __init__(self, given: list[Tensor], returned: list[Tensor], read: int | None) -> None:
        self.tensors = [*given, *returned]
        self._given = len(given)
        self._read = read
        self._returned = len(returned)
        self._spans = [span_of(each) for each in self.tensors]
        self._used: set[int] = set()  # numbers of tensors that a launch reads
        self._made: set[int] = set()  # and writes

    def operands(self, launches: list[Any]) -> list[tuple[Any, ...]] | None:
        """Return what each launch takes, by numbers of tensors; None where that does not say how all are made."""
        if not self._are_apart():
            return None
        found = []
        for _, tensors, written in launches:
            taken = [self._operand(*each) for each in zip(tensors, written, strict=True)]
            if any(each is None for each in taken):
                return None
            self._made |= {each[0] for each, is_written in zip(taken, written, strict=True) if each and is_written}
            found.append(tuple(each or None for each in taken))
        return found if self._is_all() else None

    @property
    def written(self) -> list[int]:
        """Numbers of the given tensors that launches write."""
        return sorted(each for each in self._made if each < self._given)

    def makers(self) -> Iterator[Callable[[], Any]]:
        """Yield what makes the tensors behind those that are given."""
        import torch

        for each in self.tensors[self._given :]:
            lies = {"stride": each.stride(), "device": each.device}
            yield partial(allocated, torch.empty_strided, tuple(each.shape), each.dtype, **lies)

    def _is_all(self) -> bool:
        """Return whether launches read all that is given and new, and write all that is to be written.

        Else what was given may have been read in another way, and somebody may have launched what is new for himself.
        """
        behind = range(self._given + self._returned, len(self.tensors))
        if self._read is None:
            return self._used | self._made >= {*range(len(self.tensors))} and self._used >= {*behind}
        to_write = {*range(self._read, len(self.tensors))}
        return self._used >= {*range(self._read), *behind} and self._made >= to_write

    def _are_apart(self) -> bool:
        """Return whether no two tensors have memory in common, and all have some: each place is in one of them."""
        spans = sorted(self._spans)
        is_apart = all(end <= begin for (_, end), (begin, _) in itertools.pairwise(spans))
        return is_apart and all(begin < end for begin, end in spans)

    def _operand(self, tensor: Tensor | None, is_written: bool) -> Any:
        """Return the number of the tensor that a launch's is, or is a view of, and which view; False without one.

        None where it is neither given, nor returned, nor was it written before.
        """
        if tensor is None:
            return False
        begin, end = span_of(tensor)
        at = next((at for at, (first, last) in enumerate(self._spans) if first <= begin and end <= last), None)
        if at is None:
            if not is_written or begin == end:
                return None
            self.tensors.append(tensor)
            self._spans.append((begin, end))
            if not self._are_apart():
                return None
            return len(self.tensors) - 1, None
        whole, is_given = self.tensors[at], at < (self._given if self._read is None else self._read)
        if whole.dtype is not tensor.dtype or _storage(whole) != _storage(tensor):
            return None
        if is_written and ((is_given and self._read is not None) or whole.numel() != tensor.numel()):
            return None
        if not is_written and not is_given and at not in self._made:
            return None
        if not is_written:
            self._used.add(at)
        lies = tensor.shape, tensor.stride(), tensor.storage_offset()
        if lies == (whole.shape, whole.stride(), whole.storage_offset()):
            return at, None
        return at, (tuple(lies[0]), lies[1], lies[2] - whole.storage_offset())


def _storage(tensor: Tensor) -> int:
    """Return which memory a tensor is in."""
    address: int = tensor.untyped_storage()._cdata
    return address
