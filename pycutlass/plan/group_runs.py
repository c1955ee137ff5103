"""What a plan of groups keeps of its runs: the last arguments of each thread, and those that graphs read."""

from __future__ import annotations

import functools
import threading
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from pycutlass.errors import PyCutlassError
from pycutlass.imported import imported
from pycutlass.integers import attribute
from pycutlass.plan.device_groups import DeviceGroup, DeviceLaunch, leaves_zeros
from pycutlass.plan.gradients import kept_scalars, tensors_among
from pycutlass.plan.group_candidates import GroupCandidate
from pycutlass.plan.group_launches import GroupLaunch, Problems
from pycutlass.plan.group_results import new_matrix
from pycutlass.plan.kind import GemmKind
from pycutlass.plan.measured import generation
from pycutlass.tensor import TensorView, in_forward_mode

__all__ = ["Runs"]

#: Kernels for which a thread keeps its arguments, and with them the tensors of the last run.
_KEPT = 4


class Runs:
    """Launches of a plan of groups.

    Parameters
    ----------
    kind : GemmKind
        What each problem is.
    scalars : mapping
        Those of the epilogue, by name.
    reads_c : bool
        Whether there is a C.
    """

    def __init__(self, kind: GemmKind, scalars: Mapping[str, Any], reads_c: bool) -> None:
        self._kind, self._scalars, self._reads_c = kind, scalars, reads_c
        self._device_scalars = tensors_among(scalars)
        self._captured: list[Any] = []
        self.reset()

    def reset(self) -> None:
        """Let go of all arguments but those that graphs read."""
        self._local = threading.local()

    def run(self, candidate: GroupCandidate, problems: Problems, stream: Any, is_kept: bool, chosen_in: int) -> None:
        """Launch a candidate, with arguments that later runs of this thread may use where they are kept.

        `chosen_in` is the generation in which the candidate was chosen.
        """
        kept_scalars(self._device_scalars, "product")  # of which torch may follow one since
        kept = self._kept
        launch = kept.get(candidate) if is_kept else None
        if launch is not None:
            try:
                launch.exchange(problems)
            except PyCutlassError:  # new arguments say better what does not fit, if it does not fit there either
                launch = None
        if launch is None:
            launch = GroupLaunch(candidate, problems, self._scalars)
            self._keep(candidate, launch, is_kept)
        if is_kept:
            self._local.last = _Repeated.of(launch, problems, chosen_in)
        self._launch(launch, problems.is_host, stream)

    def run_on_device(self, candidate: GroupCandidate, group: DeviceGroup, is_kept: bool) -> None:
        """Do the same with a group whose sizes the device alone knows.

        While a graph is captured, tables and what the kernel writes to are memory of that graph, for no other launch.
        Nothing here keeps them: the graph does.
        """
        kept_scalars(self._device_scalars, "product")
        is_kept = is_kept and not group.is_captured
        most = group.most_tiles(candidate)
        key = candidate, most, group.key
        launch = self._kept.get(key) if is_kept else None
        if launch is None:
            launch = DeviceLaunch(candidate, group, self._scalars, most)
            self._keep(key, launch, is_kept)
        else:
            launch.exchange(group)
        launch.run()

    def again(self, xs: list[Any], ws: Any, cs: Any, out: Any, stream: Any) -> Any:
        """Launch lists of tensors of the very extents of this thread's last lists, and return what they are written to.

        None where they are something else: arguments look at all that launches depend on, and much faster, but say less
        well what does not fit.
        """
        last: _Repeated | None = getattr(self._local, "last", None)
        if (
            last is None
            or last.chosen_in != generation.number
            or (cs is None) is self._reads_c
            or not last.is_like(xs, ws)
            or _are_followed(xs, ws, cs, out, [*self._device_scalars.values()])
        ):
            return None
        made = last.new_results(self._kind, xs[0]) if out is None else out
        try:
            last.launch.exchange_tensors(xs, ws, cs, made)
        except PyCutlassError:
            return None
        self._launch(last.launch, last.is_host, stream)
        return made

    @functools.cached_property
    def leave_zeros(self) -> bool:
        """Whether results of sums of nothing are zeros, so that the kernel can write those that belong to no group."""
        return not self._reads_c and leaves_zeros(self._kind.epilogue, self._scalars)

    @property
    def _kept(self) -> dict[Any, Any]:
        """The arguments that this thread keeps, by what they depend on that cannot be exchanged."""
        found: dict[Any, Any] = self._local.__dict__.setdefault("launches", {})
        return found

    def _keep(self, key: Any, launch: Any, is_kept: bool) -> None:
        """Keep arguments for the thread's next tensors, and let go of those that were made first."""
        if not is_kept:
            return
        kept = self._kept
        kept.pop(key, None)
        while len(kept) >= _KEPT:
            kept.pop(next(iter(kept)))
        kept[key] = launch

    def _launch(self, launch: GroupLaunch, is_host: bool, stream: Any) -> None:
        launch.run(stream)
        if launch.is_captured:
            self._leave_to_graph(launch)
        if is_host:
            launch.sync()

    def _leave_to_graph(self, launch: Any) -> None:
        """Keep what a graph has captured as long as there is the plan, and have later runs use memory of their own."""
        self._captured.append(launch)
        kept = self._kept
        for key in [key for key, each in kept.items() if each is launch]:
            del kept[key]
        self._local.last = None


def _are_followed(*operands: Any) -> bool:
    """Return whether autograd of torch follows tensors, which the closer look refuses."""
    if in_forward_mode():  # any of them may have a tangent
        return True
    is_enabled = imported("torch", "is_grad_enabled")
    if not callable(is_enabled) or not is_enabled():
        return False
    lists = [given for given in operands if isinstance(given, list | tuple)]
    return any(attribute(each, "requires_grad") is True for given in lists for each in given)


@dataclass(frozen=True)
class _Repeated:
    """The launch of lists of matrices, for others of the same extents.

    Attributes
    ----------
    launch : GroupLaunch
        Of all problems, of which each has results.
    extents : list
        Shapes of xs[i] and ws[i], one behind the other.
    kind : type
        Of xs[0], in whose library results are made.
    view : TensorView
        How xs[0] looked.
    is_host : bool
        Whether results are in host memory.
    chosen_in : int
        The generation in which the kernel was chosen: after something was measured another one may be.
    """

    launch: GroupLaunch
    extents: list[tuple[int, ...]]
    kind: type
    view: TensorView
    is_host: bool
    chosen_in: int

    @classmethod
    def of(cls, launch: GroupLaunch, problems: Problems, chosen_in: int) -> _Repeated | None:
        """Return it for problems that were launched, None of others than such lists."""
        if not problems.are_lists:
            return None
        extents: list[tuple[int, ...]] = [(m, k, k, n) for m, n, k in problems.sizes.tolist()]
        tensor, view = problems.like
        return cls(launch, extents, type(tensor), replace(view, owner=None), problems.is_host, chosen_in)

    def is_like(self, xs: list[Any], ws: Any) -> bool:
        """Return whether these are lists of the same extents, as far as their shapes say."""
        try:
            return type(xs[0]) is self.kind and self.extents == [
                (*x.shape, *w.shape) for x, w in zip(xs, ws, strict=True)
            ]
        except Exception:  # of whatever was given, which the closer look explains
            return False

    def new_results(self, kind: GemmKind, like: Any) -> list[Any]:
        """Return new memory for the results."""
        columns = kind.epilogue.columns
        return [new_matrix(kind, like, self.view, (m, columns(n))) for m, _, _, n in self.extents]
