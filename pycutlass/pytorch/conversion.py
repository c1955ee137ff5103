"""The layers of a model, replaced by ours where ours compute the same."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.fx import GraphModule

from pycutlass.calls import counted, public, shown
from pycutlass.errors import ArgumentError, ArgumentTypeError
from pycutlass.pytorch.modules import Conv2d, Linear
from pycutlass.pytorch.partitions import Partition

__all__ = ["Conversion", "convert"]

_OURS: Mapping[type[nn.Module], type[nn.Module]] = {nn.Linear: Linear, nn.Conv2d: Conv2d}
_TYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
_LEAST_CAPABILITY = (8, 0)
#: Modules with products that no module here computes, and why.
_OTHERS: tuple[tuple[type[nn.Module], str], ...] = (
    (Partition, "is partitioned already, and has regions in the place of layers: convert the model before"),
    (torch.jit.ScriptModule, "is compiled by TorchScript already: convert the model that was scripted"),
    (nn.MultiheadAttention, "multiplies by its weights itself, inside of torch's attention"),
    (nn.RNNBase, "multiplies by its weights itself, step by step"),
    (nn.RNNCellBase, "multiplies by its weights itself"),
    (nn.Bilinear, "is no product of two matrices"),
    (nn.Conv1d, "convolves along one axis, and kernels convolve images"),
    (nn.Conv3d, "convolves along three axes, and kernels convolve images"),
    (nn.ConvTranspose1d, "convolves along one axis, and kernels convolve images"),
    (nn.ConvTranspose2d, "is a transposed convolution, which is in torch.ops.pycutlass.conv2d_input, without a module"),
    (nn.ConvTranspose3d, "convolves along three axes, and kernels convolve images"),
    (nn.LazyLinear, "has no shape yet: call the model once before it is converted"),
    (nn.LazyConv2d, "has no shape yet: call the model once before it is converted"),
)


@dataclass(frozen=True)
class Conversion:
    """What `convert` did.

    Attributes
    ----------
    model : Module
        What was converted.
    replaced : tuple of str
        Names of modules that are ours now, as ``named_modules`` has them.
    left : mapping
        For each module with products that stayed what it was, by its name, why.

    Examples
    --------
    >>> import torch, pycutlass.pytorch
    >>> model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Conv1d(8, 8, 3))
    >>> print(pycutlass.pytorch.convert(model))
    1 module replaced, 1 left
      replaced 0: Linear
      left     1: Conv1d convolves along one axis, and kernels convolve images
    """

    model: nn.Module
    replaced: tuple[str, ...]
    left: Mapping[str, str]

    def __str__(self) -> str:
        """Return a line for each module."""
        kinds = {name: _kind(module) for name, module in self.model.named_modules()}
        lines = [f"{counted(len(self.replaced), 'module')} replaced, {len(self.left)} left"]
        lines += [f"  replaced {name or '(the model)'}: {kinds[name]}" for name in self.replaced]
        lines += [f"  left     {name or '(the model)'}: {reason}" for name, reason in self.left.items()]
        return "\n".join(lines)


@public
def convert(model: nn.Module, *, filter_fn: Callable[[nn.Module, str], bool] | None = None) -> Conversion:
    """Replace the linear layers and convolutions of a model, in place.

    Modules stay the objects that they are, with their parameters, buffers and hooks, so optimizers, tied weights and
    checkpoints go on working; only what computes them is another. Weights of convolutions are put into the memory
    format channels_last, which gives them new memory: share it with other processes or tensors afterwards.

    Parameters
    ----------
    model : Module
        The model, or a single layer.
    filter_fn : function, optional
        Called with each module that can be replaced, and its name; where it returns False, the module is left.

    Returns
    -------
    Conversion
        The names of what was replaced, and the reason for each module with products that was left.

    Raises
    ------
    ArgumentError
        The model is partitioned already.
    ArgumentTypeError
        The model is no ``torch.nn.Module``, or `filter_fn` cannot be called.

    Examples
    --------
    >>> import torch, pycutlass.pytorch
    >>> model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 8))
    >>> pycutlass.pytorch.convert(model).replaced
    ('0', '2')
    """
    if not isinstance(model, nn.Module):
        raise ArgumentTypeError(f"model must be a torch.nn.Module, got {shown(model)}")
    if isinstance(model, Partition):
        raise ArgumentError(
            f"model must have layers that can be replaced, and this one is partitioned already, with "
            f"{counted(len(model.regions), 'region')} in their place: use it as it is, or convert the model that was "
            f"partitioned, and partition it again"
        )
    if filter_fn is not None and not callable(filter_fn):
        raise ArgumentTypeError(f"filter_fn must be a function of a module and its name, got {shown(filter_fn)}")
    chosen: dict[str, nn.Linear | nn.Conv2d] = {}
    left, not_called = {}, set[nn.Module]()
    for name, module in model.named_modules():
        if module in not_called or type(module) in _OURS.values():
            continue
        other = next((why for kind, why in _OTHERS if isinstance(module, kind)), None)
        if other is None and _is_captured(module):
            other = "is a graph of operators, which has no layers any more: convert the model that was captured"
        if other is not None:
            left[name] = f"{_kind(module)} {other}"
            not_called |= set(module.modules())  # its parts, whose weights it reads
        elif isinstance(module, nn.Linear | nn.Conv2d):
            reason = _why_not(module)
            if reason is None and filter_fn is not None and not filter_fn(module, name):
                reason = "filter_fn left it"
            if reason is None:
                chosen[name] = module
            else:
                left[name] = reason
    for module in chosen.values():  # once all are chosen, so that what `filter_fn` raises leaves the model as it was
        _replace(module)
    return Conversion(model, tuple(chosen), left)


def _kind(module: nn.Module) -> str:
    """Return the name of a module's class; torch makes one for each graph."""
    of_graph = (each for each in (Partition, GraphModule) if isinstance(module, each))
    return next(of_graph, type(module)).__name__


def _is_captured(module: nn.Module) -> bool:
    """Return whether a module calls operators as torch.export writes them, and not layers."""
    graph = module.graph if isinstance(module, GraphModule) else None
    return graph is not None and any(isinstance(node.target, torch._ops.OpOverload) for node in graph.nodes)


def _replace(module: nn.Linear | nn.Conv2d) -> None:
    """Make a layer one of ours, with all that it has."""
    object.__setattr__(module, "__class__", _OURS[type(module)])
    if isinstance(module, Conv2d):
        module.to(memory_format=torch.channels_last)  # type: ignore[call-overload]


def _why_not(module: nn.Linear | nn.Conv2d) -> str | None:
    """Return why a layer cannot be replaced, None where it can."""
    kind = type(module)
    if kind not in _OURS:
        return f"{kind.__name__} is a class of its own, and may compute something else than its base class"
    if "forward" in vars(module):
        return "its forward was replaced, so it may compute something else"
    if hasattr(module, "activation"):
        return "it has an attribute activation of its own, and a layer here applies what is called so"
    weight: Any = getattr(module, "weight", None)
    if type(weight) not in (torch.Tensor, nn.Parameter) or weight.layout is not torch.strided:
        kept = type(weight).__name__ if type(weight) is not nn.Parameter else str(weight.layout)
        return f"its weight is a {kept}, and kernels read plain tensors"
    if weight.dtype not in _TYPES:
        names = ", ".join(str(each).removeprefix("torch.") for each in _TYPES)
        return f"its weight is of {weight.dtype}, and layers are computed in {names}"
    if weight.device.type not in ("cpu", "cuda", "meta"):
        return f"its weight is on {weight.device}, and kernels are for CUDA"
    if weight.device.type == "cuda" and torch.cuda.get_device_capability(weight.device) < _LEAST_CAPABILITY:
        has = ".".join(map(str, torch.cuda.get_device_capability(weight.device)))
        return f"its GPU has compute capability {has}, and kernels need {'.'.join(map(str, _LEAST_CAPABILITY))}"
    return None
