"""What a tuner is told: a frozen value, whose names are those of the TVM flow where that has them."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pycutlass.calls import public, shown, suggestion
from pycutlass.errors import ArgumentError, ArgumentTypeError
from pycutlass.integers import as_int, items_of
from pycutlass.trials.values import at_least, positive

__all__ = ["DISTRIBUTIONS", "TuningOptions", "directory_of", "seconds_of", "slices_of", "threads_of"]

DISTRIBUTIONS = ("normal", "uniform", "integers", "zeros")
_FLAGS = (
    "use_3xtf32",
    "profile_all_alignments",
    "find_first_valid",
    "use_multiprocessing",
    "cold_l2",
    "again",
    "vendor",
)
_UNITS = {"": 1.0, "s": 1.0, "ms": 1e-3, "min": 60.0, "m": 60.0, "h": 3600.0}
_MOST_SLICES = 32


@public
@dataclass(frozen=True)
class TuningOptions:
    """How kernels are chosen for measuring, compiled and measured.

    Parameters
    ----------
    use_3xtf32 : bool
        Whether problems that compute float32 by 3xTF32 are tuned as such. False measures one TF32 product instead,
        which is faster and keeps 10 bits of each factor. Other kinds are not concerned.
    split_k_slices : sequence of int, optional
        Into how many slices K may be divided; ``(1,)`` leaves split-K out. Default: whatever candidates have.
    profile_all_alignments : bool
        Whether kernels for lesser alignments of A and B than they have are measured too. They are seldom faster; plans
        take those that are.
    find_first_valid : bool
        Whether to take the first candidate, in the order of the prediction, that compiles and is right, rather than to
        look for the fastest. Where the database has one that is right, nothing is measured.
    use_multiprocessing : bool
        Whether several kernels are compiled at once.
    tmp_dir : path, optional
        Where processes that measure leave what they print to stderr; the files are removed if all goes well. Default:
        the system's directory for temporary files.
    threads : int
        How many compilers run at once; -1 for as many as cores and memory allow, or as ``PYCUTLASS_JOBS`` says.
    most_candidates : int
        How many candidates of a problem are compiled: the best by the prediction, or, where they are measured again,
        the fastest of those that the database has, and then these.
    cold_l2 : bool
        Whether each launch finds an empty L2 cache, as in a program whose other kernels have filled it.
    distribution : str
        Of the operands: ``"normal"``, ``"uniform"`` between -1 and 1, ``"integers"`` from -2 to 2, or ``"zeros"``.
        Zeros take less power than any real data, so the clock is higher. The database keeps times of each apart: plans
        look at those of another one than ``"normal"`` only where there are none of that.
    seed : int
        Of the operands, and of the order in which candidates are measured.
    least_rounds, most_rounds : int
        How many times a candidate is measured before it is judged, and at most.
    timeout : float
        Seconds after which a launch counts as hanging.
    again : bool
        Whether to measure what the database knows already.
    vendor : bool
        Whether to measure the vendor's library, called by torch, in the rounds of the candidates: cuBLAS, and cuDNN of
        convolutions. The report has its time, or says why there is none.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        A value out of range, or of another kind.

    Examples
    --------
    >>> from pycutlass.tuning import TuningOptions
    >>> TuningOptions(split_k_slices=[1, 2, 4], most_candidates=8).split_k_slices
    (1, 2, 4)
    """

    use_3xtf32: bool = True
    split_k_slices: tuple[int, ...] | None = None
    profile_all_alignments: bool = False
    find_first_valid: bool = False
    use_multiprocessing: bool = True
    tmp_dir: Any = None
    threads: int = -1
    most_candidates: int = 16
    cold_l2: bool = True
    distribution: str = "normal"
    seed: int = 0
    least_rounds: int = 5
    most_rounds: int = 60
    timeout: float = 10.0
    again: bool = False
    vendor: bool = False

    def __post_init__(self) -> None:
        for name in _FLAGS:
            if not isinstance(getattr(self, name), bool):
                raise ArgumentTypeError(f"{name} must be True or False, got {shown(getattr(self, name))}")
        least = {"most_candidates": 1, "seed": 0, "least_rounds": 3, "most_rounds": 3}
        checked: dict[str, Any] = {name: at_least(bound, name, getattr(self, name)) for name, bound in least.items()}
        checked["threads"] = threads_of(self.threads)
        checked["timeout"] = positive("timeout", "seconds", self.timeout)
        checked["split_k_slices"] = None if self.split_k_slices is None else slices_of(self.split_k_slices)
        checked["tmp_dir"] = directory_of(self.tmp_dir)
        if checked["most_rounds"] < checked["least_rounds"]:
            raise ArgumentError(
                f"most_rounds must be at least least_rounds, got {self.most_rounds} and {self.least_rounds}"
            )
        if self.distribution not in DISTRIBUTIONS:
            known = ", ".join(map(repr, DISTRIBUTIONS))
            near = suggestion(self.distribution, DISTRIBUTIONS) if isinstance(self.distribution, str) else ""
            raise ArgumentError(f"distribution must be one of {known}; got {shown(self.distribution)}.{near}")
        for name, value in checked.items():
            object.__setattr__(self, name, value)

    @property
    def condition(self) -> str:
        """What the database calls the state of the L2 cache, and operands that are not of a normal distribution."""
        state = "cold" if self.cold_l2 else "warm"
        return state if self.distribution == "normal" else f"{state}, {self.distribution}"

    @property
    def jobs(self) -> int | None:
        """How many compilers run at once; None where cores, memory and ``PYCUTLASS_JOBS`` say so."""
        if not self.use_multiprocessing:
            return 1
        return None if self.threads == -1 else self.threads

    def changed(self, **changes: Any) -> TuningOptions:
        """Return these options with others in some places.

        Raises
        ------
        ArgumentError, ArgumentTypeError
            A name that options lack, or as for a new one.
        """
        known = list(self.__dataclass_fields__)
        for name in changes:
            if name not in known:
                raise ArgumentTypeError(
                    f"{name!r} is no option of the tuner: there are {', '.join(known)}.{suggestion(name, known)}"
                )
        return replace(self, **changes)


def seconds_of(budget: Any) -> float:
    """Return the seconds that a budget is: a number of them, or text such as ``"60s"``, ``"5min"`` or ``"1h"``.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        It is neither, or not positive.
    """
    if not isinstance(budget, str):
        return positive("budget", "seconds", budget)
    text = budget.strip().lower()
    number = text.rstrip("abcdefghijklmnopqrstuvwxyz").rstrip()
    unit = text[len(number) :].strip()
    try:
        return positive("budget", "seconds", float(number) * _UNITS[unit])
    except (KeyError, ValueError) as error:
        if isinstance(error, ArgumentError):
            raise
        raise ArgumentError(
            f"budget must be seconds, or text such as '60s', '5min' or '1h'; got {shown(budget)}"
        ) from None


def threads_of(value: Any) -> int:
    """Return how many compilers run at once, -1 for as many as possible; raise where it is none."""
    number = as_int(value, "threads")
    if number is None:
        raise ArgumentTypeError(f"threads must be an integer, got {shown(value)}")
    if number != -1 and number < 1:
        raise ArgumentError(f"threads must be at least 1, or -1 for as many as cores and memory allow; got {number}")
    return number


def slices_of(values: Any) -> tuple[int, ...]:
    """Return numbers of slices of K; raise where they are none."""
    items = items_of(values, _MOST_SLICES)
    if items is None or not items:
        raise ArgumentTypeError(f"split_k_slices must be one or several integers in a list, got {shown(values)}")
    return tuple(at_least(1, "each of split_k_slices", each) for each in items)


def directory_of(value: Any) -> Path | None:
    """Return an existing directory, or None; raise where it is none."""
    if value is None:
        return None
    if not isinstance(value, str | os.PathLike):
        raise ArgumentTypeError(f"tmp_dir must be a path, got {shown(value)}")
    path = Path(os.fsdecode(value)).absolute()
    if not path.is_dir():
        raise ArgumentError(f"tmp_dir must be a directory, and {path} is none: make it first")
    return path
