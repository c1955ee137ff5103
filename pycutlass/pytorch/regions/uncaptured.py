"""Why ``torch.export`` could not capture a model, in terms of what `partition` was given."""

from __future__ import annotations

import inspect
import re
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from pycutlass.calls import shown, suggestion
from pycutlass.errors import ArgumentError, ArgumentTypeError, PyCutlassError
from pycutlass.pytorch.options import Options

__all__ = ["uncaptured"]

_BREAKS = "torch.compile(model, backend='pycutlass') takes models whose graph breaks"
#: Where torch's texts turn to its own settings and pages.
_BOILERPLATE = re.compile(r"\.?\s*(\n\n|For more information|To register a custom|Alternatively, you could)")

#: Lines of torch about extents that it has found to be fixed.
_CONFLICT = re.compile(r"^\s*- (.*(?:constant|specialized).*)$", re.MULTILINE)


def uncaptured(
    error: Exception, model: nn.Module, args: tuple[Any, ...], named: Mapping[str, Any], dynamic: Any
) -> PyCutlassError:
    """Return the exception for a model that could not be captured.

    Parameters
    ----------
    error : Exception
        What torch, or the model itself, has raised.
    model, args, named, dynamic
        What was to be captured.
    """
    if isinstance(dynamic, Options):
        return ArgumentTypeError("the third argument is dynamic, and got Options: pass them as options=")
    kind = type(model).__name__
    signature = _signature_of(model.forward)
    try:
        given = signature.bind(*args, **named).arguments
    except TypeError as reason:
        got = ", ".join([*map(_told, args), *(f"{name}={_told(value)}" for name, value in named.items())])
        return ArgumentError(
            f"{kind} is called as forward({', '.join(signature.parameters)}), and the inputs are {got or 'none'}: "
            f"{reason}. Pass the tensors that the model is called with, as a tuple, or as a dict by these names"
        )
    inputs = ", ".join(f"{name} {_told(value)}" for name, value in given.items()) or "no inputs"
    unknown = [name for name in dynamic if name not in given] if isinstance(dynamic, Mapping) else []
    if unknown:
        return _no_inputs(unknown, list(given), kind)
    said, layer = _BOILERPLATE.split(str(error))[0].strip().rstrip("."), _layer_of(error, model)
    inferred = [each.partition(". If you")[0].strip(". ") for each in _CONFLICT.findall(str(error))]
    if layer is None and inferred and any(0 in shape or 1 in shape for shape in _shapes_of(args, named)):
        return ArgumentError(
            f"dynamic={shown(dynamic)} has an extent that torch fixes, in {kind} with {inputs}: {'; '.join(inferred)}. "
            f"torch fixes extents of 0 and 1: pass inputs with 2 or more along each axis that changes"
        )
    if layer is None and not (dynamic is None or isinstance(dynamic, bool)):
        return ArgumentError(
            f"dynamic={shown(dynamic)} cannot be the dynamic_shapes of {kind} with {inputs}: {said}. Pass True for the "
            f"first axis of every tensor, or such as {{{next(iter(given), 'x')!r}: {{0: torch.export.Dim.AUTO}}}} with "
            f"all inputs"
        )
    where = f"{layer}: " if layer else ""
    if isinstance(error, PyCutlassError):  # of an operator of ours, which says what to do
        return ArgumentError(f"torch.export cannot capture {kind} with {inputs} as one graph: {where}{said}")
    return ArgumentError(
        f"torch.export cannot capture {kind} with {inputs} as one graph: {where}{said or type(error).__name__}. Pass "
        f"inputs that the model itself can be called with; {_BREAKS}"
    )


def _shapes_of(*given: Any) -> list[tuple[int, ...]]:
    leaves = torch.utils._pytree.tree_leaves(given)
    return [tuple(each.shape) for each in leaves if isinstance(each, torch.Tensor) and not each.is_nested]


def _no_inputs(unknown: list[str], known: list[str], kind: str) -> PyCutlassError:
    """Return the exception for names in `dynamic` that no input has: options perhaps, in the place of dynamic."""
    names, options = ", ".join(map(str, unknown)), list(Options.__dataclass_fields__)
    if any(name in options or suggestion(str(name), options) for name in unknown):
        hints = "".join(suggestion(str(name), options) for name in unknown if name not in options)
        return ArgumentError(
            f"the third argument is dynamic, which says which extents may change, and got {names}: pass "
            f"options={{...}}.{hints}"
        )
    return ArgumentError(
        f"dynamic has {names}, and the inputs of {kind} are {', '.join(known) or 'none'}: name these."
        f"{''.join(suggestion(str(name), known) for name in unknown)}"
    )


def _signature_of(forward: Any) -> inspect.Signature:
    try:
        return inspect.signature(forward)
    except (TypeError, ValueError):  # no function, or one in C that does not say it
        return inspect.signature(lambda *inputs, **named: None)


def _told(value: Any) -> str:
    """Return an input for a message: of tensors shape and type."""
    if isinstance(value, torch.Tensor) and value.is_nested:
        return f"a nested tensor of {str(value.dtype).removeprefix('torch.')}"
    if isinstance(value, torch.Tensor):
        return f"{tuple(value.shape)} {str(value.dtype).removeprefix('torch.')}"
    return shown(value) if value is None or isinstance(value, int | float | str) else type(value).__name__


def _layer_of(error: BaseException, model: nn.Module) -> str | None:
    """Return the innermost layer whose forward raised, or the line of the model's own; None where it was not called."""
    names = {id(module): name for name, module in model.named_modules()}
    found = None
    for frame, line in traceback.walk_tb(error.__traceback__):
        module = frame.f_locals.get("self")
        if isinstance(module, nn.Module) and id(module) in names and frame.f_code.co_name == "forward":
            name = names[id(module)]
            has_layers = next(module.children(), None) is not None  # whose lines are many
            layer = f"in layer {name}, {type(module).__name__ if has_layers else shown(module)}"
            found = layer if name else f"in line {line} of {Path(frame.f_code.co_filename).name}"
    return found
