"""Calls of operators like earlier ones, launched again: what their schemas say of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from pycutlass import _core
from pycutlass.plan import conv_call, known_calls, shortcut

__all__ = ["KnownCalls", "served"]

_SETTINGS = {"products": shortcut.precision_of_float32, "convolutions": conv_call.precision_of_float32}


class KnownCalls(known_calls.KnownCalls):
    """Those of one operator.

    Parameters
    ----------
    schema : FunctionSchema
        The operator's.
    """

    def __init__(self, schema: Any) -> None:
        arguments = schema.arguments
        kinds = [str(each.type) for each in schema.returns]
        super().__init__(
            [each.name for each in arguments],
            sum(not each.kwarg_only for each in arguments),
            [each.default_value if each.has_default_value() else ... for each in arguments],
            _SETTINGS,
            written=sum(each.is_write for each in arguments),
            container=tuple if len(kinds) > 1 else list if kinds == ["List[Tensor]"] else None,
        )

    def served(self, kernel: Callable[..., Any]) -> Callable[..., Any]:
        """Return the operator's kernel, which the dispatcher calls: known calls are launched at once."""
        made: Callable[..., Any] = _core.served_kernel(self.recorded(kernel), self.calls)
        return made


def served(operator: Any, known: Sequence[KnownCalls], recorded: Callable[..., Any]) -> Any:
    """Return an operator of torch whose known calls do without its dispatcher, where that would do nothing else.

    `recorded` is called in its place where no call is known.
    """
    return _core.served_operator(operator, tuple(each.calls for each in known), recorded)
