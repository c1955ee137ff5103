"""What products and convolutions in one line check and keep alike."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Generic, TypeVar

import numpy as np

from pycutlass.calls import shown
from pycutlass.epilogue import Epilogue
from pycutlass.epilogue.given_scalars import frozen, scalar_key
from pycutlass.errors import ArgumentError, ArgumentTypeError
from pycutlass.plan.readings import is_same_scalar

__all__ = [
    "OF_KERNELS",
    "KeptPlans",
    "bad_options",
    "check_allow_copy",
    "check_with_plan",
    "scalars_among",
    "without_tensors",
]

_Kept = TypeVar("_Kept")
#: Options of calls in one line that say which kernel is meant: a plan has its own.
OF_KERNELS = ("alpha", "beta", "epilogue", "out_dtype", "accumulator_dtype", "precision")
_USUAL: Mapping[str, float] = MappingProxyType({"alpha": 1, "beta": 0})  # where an epilogue has none


class KeptPlans(Generic[_Kept]):
    """Plans by all that tells calls apart.

    Those of a program that runs for long with ever other shapes must not fill memory: of more than `most` the first
    that was made is dropped.
    """

    def __init__(self, most: int, who: str) -> None:
        self._most, self._who = most, who
        self._lock, self._plans = threading.Lock(), dict[Any, _Kept]()

    def __len__(self) -> int:
        return len(self._plans)

    def get(self, key: Any, make: Callable[[], _Kept]) -> _Kept:
        """Return the plan of a key, made where there is none."""
        try:
            kept = self._plans.get(key)
        except Exception as error:  # scalars in device memory, or types of the user's own
            raise bad_options(self._who, error) from error
        if kept is not None:
            return kept
        made = make()
        with self._lock:
            while len(self._plans) >= self._most:
                self._plans.pop(next(iter(self._plans)))
            return self._plans.setdefault(key, made)


def bad_options(who: str, error: Exception, options: Mapping[str, Any] = MappingProxyType({})) -> ArgumentTypeError:
    """Return the exception for options that cannot be told apart: those that have no hash are named."""
    for name, value in options.items():
        try:
            hash(value)
        except Exception:  # of arrays, lists, or whoever wrote the class
            single = f": pass {name}.item()" if hasattr(value, "item") else ""
            return ArgumentTypeError(
                f"{name} of {who} must be a number, a type or an epilogue, got {shown(value)}{single}"
            )
    return ArgumentTypeError(f"the options of {who} must be numbers, types and epilogues: {shown(error)}")


def check_allow_copy(value: Any) -> None:
    """Raise ArgumentTypeError for what is neither True nor False, such as the text "no"."""
    if not isinstance(value, bool):
        raise ArgumentTypeError(f"allow_copy must be True or False, got {shown(value)}")


def scalars_among(epilogue: Any, inputs: Mapping[str, Any] | None) -> tuple[Any, ...] | None:
    """Return what tells the scalars among inputs of an epilogue apart, which a plan keeps; it does not keep tensors.

    None where one is no number of Python's or NumPy's, as in device memory, whatever its shape: plans with such are for
    one call. So they are with arrays and tensors on the host, which may change meanwhile.
    """
    if not inputs:
        return ()
    scalars = {
        name: frozen(value) if isinstance(value, np.generic) else value
        for name, value in inputs.items()
        if not _is_tensor(epilogue, name)
    }
    if not all(type(value) in (int, float) for value in scalars.values()):
        return None
    return tuple((name, scalar_key(value)) for name, value in scalars.items())


def without_tensors(epilogue: Any, inputs: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """Return the inputs of an epilogue with None for tensors, which `run` is given in the shape that plans take."""
    if inputs is None:
        return None
    return {name: None if _is_tensor(epilogue, name) else value for name, value in inputs.items()}


def _is_tensor(epilogue: Any, name: str) -> bool:
    """Return whether an input of an epilogue, with its types or without, is a tensor: functors have scalars alone."""
    graph = getattr(epilogue, "graph", None)
    if graph is not None:
        return all(each.name != name for each in graph.of_form("scalar"))
    return isinstance(epilogue, Epilogue) and any(port.name == name for port in epilogue.ports)


def check_with_plan(plan: Any, kind: type, options: Mapping[str, Any], inputs: Mapping[str, Any]) -> None:
    """Refuse what a plan says itself.

    Parameters
    ----------
    plan : Plan
        What the caller gives.
    kind : class
        What it has to be.
    options : mapping
        What else is given, by name, with alpha and beta: None where it is left out.
    inputs : mapping
        Inputs of the epilogue, of which the plan has the scalars.
    """
    if not isinstance(plan, kind):
        raise ArgumentTypeError(f"plan must be a pycutlass.{kind.__name__}, got {shown(plan)}")
    made: Any = plan
    said = [name for name, value in options.items() if name not in _USUAL and value is not None]
    ports = {port.name for port in made.kind.epilogue.ports}
    said += [f"{name} in epilogue_inputs" for name in inputs if name not in ports]
    if said:
        raise ArgumentError(
            f"{', '.join(map(str, said))} and a plan are given, and the plan has its own: make the plan with them"
        )
    for name, own in _scalars_of(made).items():
        value = options[name]
        if value is not None and not is_same_scalar(value, own):
            raise ArgumentError(
                f"{name} and a plan are given, and {name} is {shown(value)}, and that of the plan {shown(own)}: leave "
                f"{name} out, or make the plan with it"
            )


def _scalars_of(plan: Any) -> dict[str, Any]:
    """Return alpha and beta of a plan: as it was made with, or else what they are of its epilogue."""
    defaults = {scalar.name: scalar.default for scalar in plan.kind.epilogue.scalar_table}
    return {name: plan._scalars.get(name, defaults.get(name, usual)) for name, usual in _USUAL.items()}
