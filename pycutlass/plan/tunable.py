"""What plans of all families offer of the tuner."""

from __future__ import annotations

import importlib
from typing import Any

from pycutlass import device
from pycutlass.calls import public
from pycutlass.errors import DeviceError

__all__ = ["TunablePlan"]


@public
class TunablePlan:
    """A plan that can be tuned."""

    _device: int | None

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
            There is no GPU; or the plan is for another one than the first, on which is measured, and of another kind.
        """
        self._check_measured_where_it_runs()
        tune = importlib.import_module("pycutlass.tuning").tune  # when it is asked for: it knows plans
        return tune(self, budget, **options)[0]

    def _check_measured_where_it_runs(self) -> None:
        """Raise DeviceError for a plan that would not look up what is measured on the first GPU."""
        if not self._device:
            return
        mine, first = device.describe(self._device), device.describe(0)
        if (mine.name, mine.sm_count) != (first.name, first.sm_count):
            raise DeviceError(
                f"the plan is for GPU {self._device}, {mine.name}, and the tuner measures on the first one, "
                f"{first.name}: set CUDA_VISIBLE_DEVICES so that the GPU that is meant is the first"
            )
