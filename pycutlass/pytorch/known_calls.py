"""Calls of operators like earlier ones: launched again, without the functions that chose their kernels.

An operator that always launches the same for what looks the same is called twice: once by its function, while its
launches are recorded, and from then on by these launches alone. Tensors that a launch takes are those that the call is
given, views of them, or new ones. All else that happens to tensors, such as a copy, cannot be made again so, and such a
call is not kept.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from functools import partial, wraps
from typing import Any

import torch

from pycutlass import _core
from pycutlass.plan import conv_call, shortcut
from pycutlass.plan.allocation import allocated
from pycutlass.pytorch.spans import span_of

__all__ = ["KnownCalls", "served"]

Tensor = torch.Tensor
_PLAIN = (torch.Tensor, torch.nn.Parameter)


#: How float32 is computed, by who asks for that.
_SETTINGS = {"products": shortcut.precision_of_float32, "convolutions": conv_call.precision_of_float32}


class KnownCalls:
    """Those of one operator.

    Parameters
    ----------
    schema : FunctionSchema
        The operator's.

    Attributes
    ----------
    calls : KnownCalls
        What serves them. It keeps launches, and no tensor.
    """

    def __init__(self, schema: Any) -> None:
        self.arguments = schema.arguments
        self._names = tuple(each.name for each in self.arguments)
        self._positional = sum(not each.kwarg_only for each in self.arguments)
        self._defaults = tuple(each.default_value if each.has_default_value() else ... for each in self.arguments)
        kinds = [str(each.type) for each in schema.returns]
        self._container = tuple if len(kinds) > 1 else list if kinds == ["List[Tensor]"] else None
        written = sum(each.is_write for each in self.arguments)
        self._read = len(self._names) - written
        self.calls = _core.KnownCalls(self._names, self._positional, written, self._defaults, _SETTINGS)

    def served(self, kernel: Callable[..., Any]) -> Callable[..., Any]:
        """Return the operator's kernel, which the dispatcher calls: known calls are launched at once."""
        made: Callable[..., Any] = _core.served_kernel(self.recorded(kernel), self.calls)
        return made

    def recorded(self, call: Callable[..., Any]) -> Callable[..., Any]:
        """Return what does the same as a function that calls the operator, and keeps what it launches."""

        @wraps(call)
        def recorded(*args: Any, **named: Any) -> Any:
            with _core.Recording() as recording:
                result = call(*args, **named)
            if recording.is_complete:
                self._keep(recording, args, named, result)
            return result

        return recorded

    def takes(self, named: dict[str, Any]) -> bool:
        """Return whether what the operator writes is given, and by these names."""
        return all(name in named for name in self._names[self._read :])

    def _keep(self, recording: Any, args: tuple[Any, ...], named: dict[str, Any], result: Any) -> None:
        values, launches, settings = self._values(args, named), recording.launches, dict(recording.answers)
        is_settled = all(settings[who] == answer for who, answer in recording.answers)
        returned = [] if result is None else list(result) if isinstance(result, list | tuple) else [result]
        if values is None or not launches or not is_settled:
            return
        read = list(_tensors_of(values[: self._read]))
        written = list(_tensors_of(values[self._read :]))
        if not all(type(each) in _PLAIN for each in (*read, *written, *returned)):  # which may be asked nothing
            return
        if torch.is_grad_enabled() and any(each.requires_grad for each in read + written):
            return
        found = _Found(read, written, returned)
        operands = found.operands(launches)
        if operands is None:
            return
        first = len(read) + len(written)
        numbers: Any = range(first, first + len(returned))
        numbers = None if result is None else first if self._container is None else self._container(numbers)
        kept = [(pool, each) for (pool, _, _), each in zip(launches, operands, strict=True)]
        self.calls.keep(values, tuple(found.makers()), kept, numbers, settings or None)

    def _values(self, args: tuple[Any, ...], named: dict[str, Any]) -> tuple[Any, ...] | None:
        """Return the values of all parameters; None of a call that does not fit."""
        if len(args) > self._positional or any(name not in self._names[len(args) :] for name in named):
            return None
        given = dict(zip(self._names, self._defaults, strict=True))
        values = tuple({**given, **dict(zip(self._names, args, strict=False)), **named}.values())
        return None if any(each is ... for each in values) else values


def served(operator: Any, known: Sequence[KnownCalls], recorded: Callable[..., Any]) -> Any:
    """Return an operator of torch whose known calls do without its dispatcher, where that would do nothing else.

    `recorded` is called in its place where no call is known.
    """
    return _core.served_operator(operator, tuple(each.calls for each in known), recorded)


def _tensors_of(values: Sequence[Any]) -> Iterator[Tensor]:
    for each in values:
        if isinstance(each, Tensor):
            yield each
        elif isinstance(each, list | tuple):
            yield from (one for one in each if isinstance(one, Tensor))


class _Found:
    """Where the tensors of launches come from: those that a call is given, those that it returns, and new ones."""

    def __init__(self, read: list[Tensor], written: list[Tensor], returned: list[Tensor]) -> None:
        self.tensors = [*read, *written, *returned]
        self._given = len(read) + len(written)
        self._is_read = len(read)
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
        new = range(
            self._given + self._returned, len(self.tensors)
        )  # which somebody else may have launched for himself
        is_used = self._used >= {*range(self._is_read), *new}
        return found if is_used and self._made >= {*range(self._is_read, len(self.tensors))} else None

    def makers(self) -> Iterator[Callable[[], Any]]:
        """Yield what makes the tensors behind those that are given."""
        for each in self.tensors[self._given :]:
            lies = {"stride": each.stride(), "device": each.device}
            yield partial(allocated, torch.empty_strided, tuple(each.shape), each.dtype, **lies)

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
        whole = self.tensors[at]
        if whole.dtype is not tensor.dtype or _storage(whole) != _storage(tensor):
            return None
        if is_written and (at < self._is_read or whole.numel() != tensor.numel()):
            return None
        if not is_written and at >= self._is_read and at not in self._made:
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
