"""Kernels that are compiled already, taken without compiling any: for whoever may choose among several."""

from __future__ import annotations

from collections.abc import Sequence

from pycutlass.compiler.session import Supply, checked, judge, requests, strictly
from pycutlass.errors import PyCutlassError
from pycutlass.source import Compilable

__all__ = ["Present"]


class Present:
    """What the cache and the installed package have, looked through once for several questions."""

    def __init__(self) -> None:
        self._supply: Supply | None = None

    def take(self, operations: Sequence[Compilable], target: str | None = None) -> bool:
        """Give operations their kernels where all are compiled already, and return whether they are.

        It is True as well where `add_module` may refuse kernels, or would say that nothing can be found: then it is to
        say so of the operations that come first.

        Parameters
        ----------
        operations, target
            As of `add_module`.
        """
        try:
            if strictly(None):
                return True
            supply = self._supply = self._supply or Supply()
            asked = requests(checked(operations, "add_module"), target, "add_module")
            kernels = [kernel for each in asked for request in each for kernel in request.kernels]
            found = {want: supply.look_up(want) for _, want in kernels}
            if not supply.confirmed():
                found = {want: supply.look_up(want) for want in found}
            artifacts = {want: artifact or supply.installed(want) for want, artifact in found.items()}
            taken = [artifact for artifact in artifacts.values() if artifact is not None]
            if len(taken) < len(artifacts):
                return False
            judge(taken, strict=False)
        except PyCutlassError:
            return True
        for operation, want in kernels:
            if (artifact := artifacts[want]) is not None:
                operation.artifacts[want.target] = artifact
        return True
