"""What torch cannot trace, and says in errors of its own, or by ending the process: it is refused before anything."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.export import ExportedProgram
from torch.fx.experimental.proxy_tensor import ProxyTorchDispatchMode

from pycutlass.errors import ArgumentError

__all__ = ["check_traceable"]

_TRACERS = (FakeTensorMode, ProxyTorchDispatchMode)
_COMPRESSED = (torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc)


def check_traceable(model: Any, inputs: Any) -> None:
    """Raise ArgumentError where a model is traced already, or has tensors that torch cannot trace.

    Parameters
    ----------
    model : Module or ExportedProgram
        What is to be captured.
    inputs
        What it is called with, in any structure.
    """
    if tracing := _tracing():
        raise ArgumentError(
            f"partition traces a model, and torch does not trace while {tracing} is active: call partition outside of "
            f"it, where example_inputs and weights may be fake tensors that were made inside, and use the result there"
        )
    for name, value in _tensors(model, inputs):
        if value.requires_grad and value.layout in _COMPRESSED:  # torch ends the process, as of 2.13
            raise ArgumentError(
                f"{name} is of {value.layout} and requires a gradient, and torch traces no gradients of compressed "
                f"tensors: call requires_grad_(False) on it before it is partitioned, or make it dense by to_dense()"
            )


def _tracing() -> str:
    """Return which tracer of torch is at work, or ""."""
    modes: Any = torch.utils._python_dispatch
    active = [type(each).__name__ for each in modes._get_current_dispatch_mode_stack() if isinstance(each, _TRACERS)]
    return active[-1] if active else ""


def _tensors(model: Any, inputs: Any) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the tensors that are traced, with names for messages."""
    named = dict[str, Any]()
    if isinstance(model, nn.Module):
        named = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    elif isinstance(model, ExportedProgram):
        named, inputs = {**model.state_dict, **model.constants}, model.example_inputs
    tree: Any = torch.utils._pytree
    leaves = tree.tree_leaves(inputs)
    named |= {f"input {at}": value for at, value in enumerate(leaves)}
    yield from ((name, value) for name, value in named.items() if isinstance(value, torch.Tensor))
