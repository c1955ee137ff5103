"""Modules whose products are ours: in the place of torch's own, with the same parameters."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional

from pycutlass.calls import public
from pycutlass.errors import ArgumentError
from pycutlass.pytorch.activations import activation_of
from pycutlass.pytorch.convolutions import CONV2D
from pycutlass.pytorch.gated import SWIGLU
from pycutlass.pytorch.groups import GROUPED_MM
from pycutlass.pytorch.interleaved import INTERLEAVED_SWIGLU, interleave, taken_apart
from pycutlass.pytorch.products import LINEAR

__all__ = ["Conv2d", "GroupedLinear", "Linear", "SwiGLU"]


class _Traced(nn.Module):
    """What all layers here share."""

    def __prepare_scriptable__(self) -> Any:
        """Raise ArgumentError: ``torch.jit.script`` asks for what it can compile instead."""
        raise ArgumentError(
            f"{type(self).__name__} cannot be compiled by torch.jit.script: call torch.jit.trace, torch.export.export "
            f"or torch.compile, which record the operators that a layer calls"
        )


class _Activated(_Traced):
    """What layers share that are constructed with an activation, or made by `convert` of those without one."""

    activation: str | None = None

    def __setattr__(self, name: str, value: Any) -> None:
        """Set an attribute; an activation must have a name, and a module would hide behind that of the class."""
        if name == "activation":
            activation_of(value)
        super().__setattr__(name, value)

    def extra_repr(self) -> str:
        """Return the options as ``print`` shows them."""
        named = activation_of(self.activation)
        if named is None:
            return super().extra_repr()
        shown = named.kind if named.is_function else self.activation
        return f"{super().extra_repr()}, activation={shown!r}"


class Linear(_Activated, nn.Linear):
    """``torch.nn.Linear`` with an activation in the same kernel; parameters and state dict are those of torch's.

    Parameters
    ----------
    in_features, out_features, bias, device, dtype
        As of ``torch.nn.Linear``.
    activation : str, optional
        Its name, or for a layer that is not trained what `epilogue_handle` returns of a function of the accumulator.
        ``"gelu"``, ``"gelu_tanh"``, ``"hardswish"``, ``"relu"``, ``"sigmoid"``, ``"silu"`` or ``"tanh"``.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        No activation of such a name.

    Examples
    --------
    >>> import torch, pycutlass.pytorch
    >>> layer = pycutlass.pytorch.Linear(16, 32, activation="gelu")
    >>> layer(torch.ones(4, 16)).shape
    torch.Size([4, 32])
    >>> layer.load_state_dict(torch.nn.Linear(16, 32).state_dict())
    <All keys matched successfully>
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        device: Any = None,
        dtype: Any = None,
        *,
        activation: str | None = None,
    ) -> None:
        activation_of(activation)
        super().__init__(in_features, out_features, bias, device, dtype)
        self.activation = activation

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Return activation(input @ weight.T + bias)."""
        made: torch.Tensor = LINEAR(input, self.weight, self.bias, self.activation)
        return made


class Conv2d(_Activated, nn.Conv2d):
    """``torch.nn.Conv2d`` with an activation in the same kernel; parameters and state dict are those of torch's.

    Weights are kept in the memory format channels_last, and results are in it. Images in another one are copied.

    Parameters
    ----------
    in_channels, out_channels, kernel_size, stride, padding, dilation, groups, bias, padding_mode, device, dtype
        As of ``torch.nn.Conv2d``.
    activation : str, optional
        Its name, or for a layer that is not trained what `epilogue_handle` returns of a function of the accumulator.
        As of `Linear`.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        No activation of such a name.

    Examples
    --------
    >>> import torch, pycutlass.pytorch
    >>> layer = pycutlass.pytorch.Conv2d(8, 16, 3, padding="same", activation="relu")
    >>> images = torch.ones(2, 8, 5, 5).to(memory_format=torch.channels_last)
    >>> layer(images).shape
    torch.Size([2, 16, 5, 5])
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Any,
        stride: Any = 1,
        padding: Any = 0,
        dilation: Any = 1,
        groups: int = 1,
        bias: bool = True,
        padding_mode: Any = "zeros",
        device: Any = None,
        dtype: Any = None,
        *,
        activation: str | None = None,
    ) -> None:
        activation_of(activation)
        options = (stride, padding, dilation, groups, bias, padding_mode, device, dtype)
        super().__init__(in_channels, out_channels, kernel_size, *options)
        self.activation = activation
        self.weight = nn.Parameter(self.weight.detach().contiguous(memory_format=torch.channels_last))

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Return activation(conv2d(input, weight) + bias), of one image or of a batch of them."""
        images = input[None] if input.dim() == 3 else input
        before, behind = self._paddings()
        if self.padding_mode != "zeros" or before != behind:  # kernels pad with zeros, both sides alike
            (top, left), (bottom, right) = before, behind
            mode = "constant" if self.padding_mode == "zeros" else self.padding_mode
            images, before = functional.pad(images, (left, right, top, bottom), mode), (0, 0)
        geometry = (self.stride, before, self.dilation, self.groups)
        made: torch.Tensor = CONV2D(images, self.weight, self.bias, *geometry, self.activation)
        return made[0] if input.dim() == 3 else made

    def _paddings(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return how many rows and columns are added before the image and behind it."""
        if self.padding == "valid":
            return (0, 0), (0, 0)
        if isinstance(self.padding, str):  # "same", which may be odd
            both = [step * (taps - 1) for step, taps in zip(self.dilation, self.kernel_size, strict=True)]
            return tuple(each // 2 for each in both), tuple(each - each // 2 for each in both)
        return self.padding, self.padding


class GroupedLinear(_Traced):
    """Linear layers of a mixture of experts, in one launch: rows of the input are divided among the weights.

    Parameters
    ----------
    num_groups : int
        Layers, each with weights of its own.
    in_features, out_features, bias, device, dtype
        As of ``torch.nn.Linear``, of each of them.

    Attributes
    ----------
    weight : Parameter
        Of (num_groups, out_features, in_features).
    bias : Parameter or None
        Of (num_groups, out_features).

    Examples
    --------
    >>> import torch, pycutlass.pytorch
    >>> experts = pycutlass.pytorch.GroupedLinear(3, 16, 32)
    >>> tokens, offs = torch.ones(10, 16), torch.tensor([4, 4, 10], dtype=torch.int32)
    >>> experts(tokens, offs).shape
    torch.Size([10, 32])
    """

    def __init__(
        self,
        num_groups: int,
        in_features: int,
        out_features: int,
        bias: bool = True,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        self.num_groups, self.in_features, self.out_features = num_groups, in_features, out_features
        options = {"device": device, "dtype": dtype}
        self.weight = nn.Parameter(torch.empty(num_groups, out_features, in_features, **options))
        self.register_parameter(
            "bias", nn.Parameter(torch.empty(num_groups, out_features, **options)) if bias else None
        )
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw parameters as ``torch.nn.Linear`` draws them."""
        bound = self.in_features**-0.5 if self.in_features else 0.0
        for parameter in self.parameters():
            nn.init.uniform_(parameter, -bound, bound)

    def forward(self, input: torch.Tensor, offs: torch.Tensor | None = None) -> torch.Tensor:
        """Return the rows of each group times its weights, plus its bias.

        Parameters
        ----------
        input : tensor
            Of (rows, in_features) with `offs`, or of (num_groups, rows, in_features) without.
        offs : tensor of int32, optional
            Where the rows of each group end. On a GPU it stays there.
        """
        made: torch.Tensor = GROUPED_MM(input, self.weight.mT, offs=offs, bias=self.bias)
        return made

    def extra_repr(self) -> str:
        """Return the options as ``print`` shows them."""
        sizes = f"num_groups={self.num_groups}, in_features={self.in_features}, out_features={self.out_features}"
        return f"{sizes}, bias={self.bias is not None}"


class SwiGLU(_Traced):
    """The gated layer of transformers, ``down_proj(silu(gate_proj(x)) * up_proj(x))``, without biases.

    The gate is applied in the kernel of a product. The state dict is that of three ``torch.nn.Linear``. Where
    `gate_proj` or `up_proj` is replaced, parametrized, or has a bias, an activation or hooks, both are called instead.

    With `interleaved`, one kernel computes both products and the gate: in the place of `gate_proj` and `up_proj` there
    is `gate_up_proj`, whose weight has their rows by turns. The state dict stays that of three layers.

    Parameters
    ----------
    in_features : int
        Of the input.
    hidden_features : int
        Between the products.
    out_features : int, optional
        Of the result; by default `in_features`.
    device, dtype
        As of ``torch.nn.Linear``.
    interleaved : bool
        Whether the weights of both products are one.

    Examples
    --------
    >>> import torch, pycutlass.pytorch
    >>> layer = pycutlass.pytorch.SwiGLU(16, 64)
    >>> layer(torch.ones(4, 16)).shape
    torch.Size([4, 16])
    >>> sorted(layer.state_dict())
    ['down_proj.weight', 'gate_proj.weight', 'up_proj.weight']
    >>> faster = pycutlass.pytorch.SwiGLU(16, 64, interleaved=True)
    >>> faster.load_state_dict(layer.state_dict())
    <All keys matched successfully>
    """

    def __init__(
        self,
        in_features: int,
        hidden_features: int,
        out_features: int | None = None,
        device: Any = None,
        dtype: Any = None,
        *,
        interleaved: bool = False,
    ) -> None:
        super().__init__()
        result = in_features if out_features is None else out_features
        self.interleaved = interleaved
        if interleaved:
            self.gate_up_proj = Linear(in_features, 2 * hidden_features, False, device, dtype)
            hooks: Any = self
            hooks.register_state_dict_post_hook(_with_three_weights)
            hooks.register_load_state_dict_pre_hook(_with_two_weights)
        else:
            self.gate_proj = Linear(in_features, hidden_features, False, device, dtype)
            self.up_proj = Linear(in_features, hidden_features, False, device, dtype)
        self.down_proj = Linear(hidden_features, result, False, device, dtype)

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Return the layer's result."""
        made: torch.Tensor = self.down_proj(self._gated(input))
        return made

    def _gated(self, input: torch.Tensor) -> Any:
        """Return what `down_proj` takes."""
        if self.interleaved:
            both = self.gate_up_proj
            if _only_multiplies(both):
                return INTERLEAVED_SWIGLU(input, both.weight)
            sums = both(input)
            return functional.silu(sums[..., 0::2]) * sums[..., 1::2]
        gate, up = self.gate_proj, self.up_proj
        if _only_multiplies(gate) and _only_multiplies(up):
            return SWIGLU(input, gate.weight, up.weight)
        return functional.silu(gate(input)) * up(input)


_BOTH, _GATE, _UP, _DOWN = (f"{name}_proj.weight" for name in ("gate_up", "gate", "up", "down"))


def _with_three_weights(_: nn.Module, state: dict[str, Any], prefix: str, __: Any) -> None:
    """Have the state dict of an interleaved layer be that of three."""
    both = state.pop(prefix + _BOTH, None)
    if both is None:
        return
    gate, up = (each.contiguous() for each in taken_apart(both))
    down = state.pop(prefix + _DOWN, None)
    state |= {prefix + _GATE: gate, prefix + _UP: up} | ({} if down is None else {prefix + _DOWN: down})


def _with_two_weights(_: nn.Module, state: dict[str, Any], prefix: str, *__: Any) -> None:
    """Have an interleaved layer take the state dict of three."""
    gate, up = state.get(prefix + _GATE), state.get(prefix + _UP)
    if gate is None or up is None or gate.shape != up.shape:  # torch says what is missing, or does not fit
        return
    del state[prefix + _GATE], state[prefix + _UP]
    state[prefix + _BOTH] = interleave(gate, up)


def _only_multiplies(layer: nn.Module) -> bool:
    """Return whether all that a layer does is a product with its weight."""
    if type(layer) not in (Linear, nn.Linear) or "forward" in vars(layer):
        return False
    hooks = (layer._forward_pre_hooks, layer._forward_hooks, layer._backward_pre_hooks, layer._backward_hooks)
    return layer.bias is None and getattr(layer, "activation", None) is None and not any(hooks)


for _module in (Linear, Conv2d, GroupedLinear, SwiGLU):  # `forward` is traced, and called with each batch
    public(_module, but=("forward", "extra_repr"))
