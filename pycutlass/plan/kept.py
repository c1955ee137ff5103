"""What a plan keeps for its next run: launches, with or without tensors, and what results look like."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any

from pycutlass import _core
from pycutlass.plan.launches import PlanLaunch
from pycutlass.plan.measured import generation
from pycutlass.tensor import TensorView, has_tangent

__all__ = ["KeptLaunches", "ResultForm"]

#: Shapes of tensors for which a thread keeps launches that have memory of their own, and with them the tensors of the
#: last run: programs alternate between few, and what is kept here is memory that the program cannot use elsewhere.
_KEPT = 4
#: Shapes of tensors for which a plan knows what D looks like.
_MOST_RESULTS = 256
#: What a new D is like: a view of A without the tensor, and the shape.
ResultForm = tuple[TensorView, tuple[int, ...]]


class KeptLaunches:
    """The launches that a plan has made, until something is measured: another kernel may be chosen then.

    A launch of torch's tensors waits without them for the next tensors that look the same, whichever thread has those.
    So does one with memory of its own, such as partial sums, while that is not much. What has copies of host memory, or
    is not read by C++, is kept with its tensors, for each thread.

    Parameters
    ----------
    ports : tuple of str
        Tensors that the epilogue has beside C and D.
    bias : str
        Where a bias is, as `Added` says.

    Attributes
    ----------
    waiting : LaunchPool
        Launches without tensors.
    """

    def __init__(self, ports: tuple[str, ...], bias: str) -> None:
        places = {"c": 2, "port": 4 + ports.index("bias") if bias == "port" else -1}
        self.waiting = _core.LaunchPool(ports, places.get(bias, -1))
        self._ports = ports
        self._lock = threading.Lock()
        self._results: dict[Any, ResultForm] = {}
        self._generation = generation.number
        self.forget_tensors()

    def forget_tensors(self) -> None:
        """Let go of all tensors."""
        self._local = threading.local()

    def begin(self, a: Any, b: Any, c: Any, ports: Mapping[str, Any]) -> tuple[ResultForm | None, PlanLaunch | None]:
        """Return what D is like for tensors like these, and the launch that this thread keeps for them."""
        if self._generation != generation.number:
            self._generation = generation.number
            self.forget_tensors()
        key = _key_of(a, b, c, *ports.values())
        return (None, None) if key is None else (self._results.get(key), self._of_thread.get(key))

    def run_waiting(self, tensors: tuple[Any, Any, Any, Any], stream: Any, ports: Mapping[str, Any]) -> bool:
        """Compute D with a launch that waits for such tensors; False where there is none, and nothing was launched."""
        if stream is not None or tensors[3] is None:
            return False
        return self.waiting.run(*tensors, *map(ports.get, self._ports))

    def keep(
        self,
        launch: PlanLaunch,
        tensors: tuple[Any, Any, Any, Any],
        stream: Any,
        ports: Mapping[str, Any],
        form: ResultForm,
        make_result: Callable[[], Any] | None,
        chosen_in: int,
        with_tensors: bool,
    ) -> None:
        """Keep a launch, which was launched on `stream`, for the next tensors of these shapes.

        Parameters
        ----------
        form : tuple
            What D is like.
        make_result : callable
            Makes such a D; None where Python has to.
        chosen_in : int
            The generation in which the kernel was chosen.
        with_tensors : bool
            Whether it may be kept with its tensors.
        """
        key = _key_of(*tensors[:3], *ports.values())
        if key is not None:
            with self._lock:
                _put(self._results, key, form, _MOST_RESULTS)
        if stream is not None and launch.memory == ():  # another one is made quickly
            return
        waitable = launch.waitable(tensors) if stream is None else None
        if waitable is not None:
            beside = map(ports.get, self._ports)
            if self.waiting.keep(waitable, (*tensors, *beside), chosen_in, make_result):
                launch.hand_over()
                return
        if chosen_in != generation.number:
            return
        if with_tensors and key is not None and not launch.is_of_graph(stream):
            _put(self._of_thread, key, launch, _KEPT)

    @property
    def _of_thread(self) -> dict[Any, PlanLaunch]:
        """Launches of this thread with their tensors, by the type of A and by shapes."""
        launches: dict[Any, PlanLaunch] = self._local.__dict__.setdefault("launches", {})
        return launches


def _key_of(a: Any, b: Any, c: Any, *ports: Any) -> tuple[Any, ...] | None:
    """Return what tells runs apart: of a batch either operand may be a single matrix, and C a bias.

    None where a library shows shapes otherwise, or a gradient is required, and all is made anew.
    """
    try:
        shapes = a.shape, b.shape, None if c is None else c.shape
        if any(getattr(each, "requires_grad", False) or has_tangent(each) for each in (a, b, c, *ports)):
            return None
    except Exception:  # of whatever it is; the first launch says so
        return None
    return (type(a), *shapes) if all(shape is None or isinstance(shape, tuple) for shape in shapes) else None


def _put(mapping: dict[Any, Any], key: Any, value: Any, most: int) -> None:
    """Put a value into a mapping of at most so many, of which the earliest goes."""
    while len(mapping) >= most:
        mapping.pop(next(iter(mapping)), None)
    mapping[key] = value
