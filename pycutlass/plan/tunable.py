"""What plans of all families offer of the tuner."""

from __future__ import annotations

import importlib
from typing import Any

from pycutlass.calls import public

__all__ = ["TunablePlan"]


@public
class TunablePlan:
    """A plan that can be tuned."""

    def tune(self, budget: float | str = "60s", **options: Any) -> Any:
        """Measure which kernel is the fastest for the problem that the plan was made with, as `pycutlass.tune` does.

        This plan, and others of the process, choose anew afterwards.

        Parameters
        ----------
        budget : float or str
            Seconds, or text such as ``"60s"``, ``"5min"`` or ``"1h"``.
        **options
            What `pycutlass.tune` takes besides.

        Returns
        -------
        ProblemReport
            The ranking.

        Raises
        ------
        ArgumentError, ArgumentTypeError
            As `pycutlass.tune` raises.
        DeviceError
            There is no GPU.
        """
        tune = importlib.import_module("pycutlass.tuning").tune  # when it is asked for: it knows plans
        return tune(self, budget, **options)[0]
