"""The parameters that a partition shares with its model, and whether the model still has them.

Nothing of them is kept but the tensors themselves, which are followed where they are changed in place. A model that is
given another tensor goes on with that one, and its partition would with the one from before.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn

from pycutlass.errors import ArgumentError

__all__ = ["SharedParameter", "check_shared", "places_of", "shared_with"]


@dataclass(frozen=True, eq=False)
class SharedParameter:
    """A parameter of a model that its partition has as well.

    Attributes
    ----------
    name : str
        In the model.
    own : str
        In the partition, which has tied parameters once.
    owner : weakref
        The module of the model that has it, which lives as long as the user's program wants.
    tensor : weakref
        The parameter that both had when the model was partitioned.
    """

    name: str
    own: str
    owner: Any
    tensor: Any

    def __deepcopy__(self, _: Any) -> SharedParameter:
        """Return this: a copy of a partition has parameters of its own, of which it does not speak."""
        return self


#: For each parameter the module of the partition and its name there, and what it is in the model. Modules, and not
#: their dicts: torch.export puts others in the place of these.
Places = Sequence[tuple[nn.Module, str, Any, str, SharedParameter]]


def shared_with(model: Any, made: nn.Module) -> tuple[SharedParameter, ...]:
    """Return the parameters that a partition shares with a model; none of a program, which is no module."""
    if not isinstance(model, nn.Module):
        return ()
    own = {id(each): name for name, each in made.named_parameters()}
    return tuple(
        SharedParameter(name, own[id(each)], weakref.ref(owner), weakref.ref(each))
        for name, owner, each in _parameters(model)
        if id(each) in own
    )


def _parameters(model: nn.Module) -> Iterator[tuple[str, nn.Module, nn.Parameter]]:
    """Yield parameters with their names and the modules that have them, tied ones once for each place."""
    for path, module in model.named_modules():
        for name, each in module._parameters.items():
            if each is not None:
                yield f"{path}.{name}".lstrip("."), module, each


def places_of(made: nn.Module, shared: Sequence[SharedParameter]) -> Places:
    """Return where shared parameters are in a partition and in its model, so that each call need not look for them.

    What somebody has taken out of the partition's graph, and of its submodules, is nowhere.
    """
    modules, found = dict(made.named_modules(remove_duplicate=False)), []
    for each in shared:
        path, _, name = each.own.rpartition(".")
        if path in modules:
            found.append((modules[path], name, each.owner, each.name.rpartition(".")[2], each))
    return found


def _is_for_good(tensor: Any) -> bool:
    """Return whether a model computes with a tensor from now on.

    It does not with what `torch.func.functional_call` puts there for a call, perhaps of another thread, which are no
    parameters, nor with parameters on the meta device, where models go whose memory is to be free.
    """
    return isinstance(tensor, nn.Parameter) and not tensor.is_meta


def check_shared(places: Places) -> None:
    """Raise ArgumentError where a model has been given another parameter and its partition still has the one before."""
    for mine, name, owner, of_model, shared in places:
        module, now = owner(), mine._parameters.get(name)
        if module is None or now is None:
            continue
        theirs = module._parameters.get(of_model, now)  # what was deleted computes nothing
        if theirs is now or (theirs is not None and not _is_for_good(theirs)):
            continue
        if now is shared.tensor():  # else the partition was given another one as well
            raise ArgumentError(
                f"{shared.name} of the model was replaced by another tensor after the model was partitioned, and the "
                f"partition still has the one from before, {shared.own}: change parameters in place, as by "
                f"load_state_dict without assign=True, or partition the model again"
            )
