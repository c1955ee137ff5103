"""Which stream a launch goes to, and what it is ordered against."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pycutlass import _core
from pycutlass.device import current_stream_source

__all__ = ["follow_streams", "run_joined", "run_with_buffers"]


def follow_streams(call: Any, libraries: Mapping[str, type], ordinal: int) -> list[Callable[[], _core.Stream]]:
    """Make `call` follow the current stream of the tensors' library; return those of further libraries.

    `libraries` has the type of a tensor of each.
    """
    known = [name for name in ("torch", "cupy") if name in libraries]
    if not known:
        return []
    tensor_type = libraries[known[0]]
    if hasattr(tensor_type, "__dlpack_c_exchange_api__"):
        call.follow_library(tensor_type)
    else:
        call.follow_callable(current_stream_source(known[0], ordinal))
    return [functools.partial(_current_stream, current_stream_source(name, ordinal), ordinal) for name in known[1:]]


def _current_stream(source: Callable[[], int], ordinal: int) -> _core.Stream:
    return _core.Stream(ordinal, source())


def run_joined(
    call: _core.Call, joined: Sequence[Callable[[], _core.Stream]], has_buffers: bool = False, stream: Any = None
) -> None:
    """Launch on the first library's stream, ordered against the current streams of the others.

    On a named stream, against the first library's as well where buffers were filled there.
    """
    filled = call.current_stream
    launched = filled if stream is None else _core.named_stream(stream, filled.ordinal)
    streams = {*(source() for source in joined), *([filled] if has_buffers else [])}
    others = [other for other in streams if other != launched]
    for other in others:
        launched.follow(other)
    call.run(stream)
    for other in others:
        other.follow(launched)


def run_with_buffers(call: _core.Call, stream: Any = None) -> None:
    """Launch; on a named stream behind what filled the buffers, and before what fills them again.

    They are filled on the current stream. Under capture that is the caller's to order: a graph cannot wait for what is
    outside it.
    """
    if stream is None:
        call.run(None)
        return
    filled = call.current_stream
    named = _core.named_stream(stream, filled.ordinal)
    if named == filled or named.is_capturing():
        call.run(stream)
        return
    named.follow(filled)
    call.run(stream)
    filled.follow(named)
