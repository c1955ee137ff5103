"""What `partition` and the backend of ``torch.compile`` are told: a frozen value."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from pycutlass.cache.files import as_path
from pycutlass.calls import public, shown, suggestion
from pycutlass.errors import ArgumentError, ArgumentTypeError
from pycutlass.trials import Database
from pycutlass.trials.values import at_least, positive
from pycutlass.tuning.options import directory_of, seconds_of, slices_of, threads_of

__all__ = ["Options"]

_FLAGS = ("use_3xtf32", "profile_all_alignments", "find_first_valid", "use_multiprocessing", "use_fast_math")
_RESTS = ("inductor", "eager")
_MODES = ("default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs")


@public
@dataclass(frozen=True)
class Options:
    """Which regions of a model are taken, and how their kernels are chosen and compiled.

    Names are those of Apache TVM's CUTLASS target, and mean here what they mean in `pycutlass.tuning.TuningOptions`.

    Parameters
    ----------
    sm : int, optional
        Compute capability of the GPU for which gains are predicted, 90 for 9.0. Default: that of the first GPU, and 90
        on a machine without one. TVM's default is 80.
    use_3xtf32 : bool
        Whether kernels for float32 by 3xTF32 are tuned as such. Which float32 is multiplied so, torch's own settings
        say. TVM's default is True as well, and there it says also that float32 is multiplied so.
    split_k_slices : sequence of int
        Into how many slices the tuner may divide K; ``(1,)`` leaves split-K out.
    profile_all_alignments : bool
        Whether the tuner measures kernels for lesser alignments than operands have, too.
    find_first_valid : bool
        Whether the tuner takes the first candidate, in the order of the prediction, that compiles and is right. TVM's
        default is False.
    use_multiprocessing : bool
        Whether several kernels are compiled at once. TVM's default is False.
    threads : int
        How many compilers run at once; -1 for as many as cores and memory allow.
    use_fast_math : bool
        Whether gelu, in its form with the error function, may be computed by its approximation with tanh, which takes
        fewer instructions and differs by up to 5e-4.
    tmp_dir : path, optional
        Where processes leave temporary files. Default: the system's directory for them; TVM's is ``./tmp``.
    budget : number or str, optional
        How long the tuner may take for a model: seconds, or text such as ``"5min"``.
    database : path or database, optional
        Where measured times are, of regions as well: where it has none, their gains are predicted. Default: that of the
        kernel cache.
    min_gain : float
        Which share of the time of torch's own operators a region must save, as measured or predicted. 0 takes every
        region, without a prediction.
    rest : str
        What compiles the rest of a graph for ``torch.compile``: ``"inductor"``, or ``"eager"`` for nothing.
    mode : str, optional
        The mode of Inductor, such as ``"reduce-overhead"`` for CUDA graphs. ``torch.compile`` refuses a mode beside
        options; here it can be one of them.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        A value out of range, or of another kind.

    Examples
    --------
    >>> from pycutlass.pytorch import Options
    >>> Options(split_k_slices=[1, 2], min_gain=0).split_k_slices
    (1, 2)
    """

    sm: int | None = None
    use_3xtf32: bool = True
    split_k_slices: tuple[int, ...] = (1,)
    profile_all_alignments: bool = False
    find_first_valid: bool = True
    use_multiprocessing: bool = True
    threads: int = -1
    use_fast_math: bool = False
    tmp_dir: Any = None
    budget: Any = None
    database: Any = None
    min_gain: float = 0.02
    rest: str = "inductor"
    mode: str | None = None

    def __post_init__(self) -> None:
        for name in _FLAGS:
            if not isinstance(getattr(self, name), bool):
                raise ArgumentTypeError(f"{name} must be True or False, got {shown(getattr(self, name))}")
        _one_of("rest", self.rest, _RESTS)
        if self.mode is not None:
            _one_of("mode", self.mode, _MODES)
            if self.rest == "eager":
                raise ArgumentError(
                    f"mode={self.mode!r} is of Inductor, which rest='eager' leaves out: drop one of them"
                )
        checked: dict[str, Any] = {
            "sm": None if self.sm is None else at_least(80, "sm", self.sm),
            "split_k_slices": slices_of(self.split_k_slices),
            "threads": threads_of(self.threads),
            "tmp_dir": directory_of(self.tmp_dir),
            "min_gain": _share(self.min_gain),
            "database": _database(self.database),
        }
        if isinstance(self.budget, str):
            seconds_of(self.budget)  # which refuses other text before anything is tuned
        elif self.budget is not None:
            checked["budget"] = positive("budget", "seconds", self.budget)
        for name, value in checked.items():
            object.__setattr__(self, name, value)

    @classmethod
    def of(cls, given: Any) -> Options:
        """Return the options that a mapping has by name, as ``torch.compile`` hands them over; None has the defaults.

        Raises
        ------
        ArgumentError, ArgumentTypeError
            A name that options lack, or as for new ones.
        """
        if given is None:
            return cls()
        if isinstance(given, Options):
            return given
        if not isinstance(given, Mapping):
            raise ArgumentTypeError(f"options must be pycutlass.pytorch.Options or a dict, got {shown(given)}")
        names = [name for name in given if not isinstance(name, str)]
        if names:
            raise ArgumentTypeError(f"options have names, which are text, and {shown(names[0])} is none")
        return cls().changed(**dict(given))

    @property
    def of_regions(self) -> tuple[Any, ...]:
        """What says which regions a graph has, and what compiles the rest: all others are about their kernels."""
        return self.sm, self.use_fast_math, self.min_gain, self.rest, self.mode

    def check_beside(self, partitioned: Options) -> None:
        """Raise ArgumentError where a partition, made with other options, has decided something otherwise."""
        if self.use_fast_math != partitioned.use_fast_math:
            raise ArgumentError(
                f"use_fast_math={self.use_fast_math} says what regions compute, and the model was partitioned with "
                f"use_fast_math={partitioned.use_fast_math}: partition it again with the other"
            )

    def changed(self, **changes: Any) -> Options:
        """Return these options with others in some places.

        Raises
        ------
        ArgumentError, ArgumentTypeError
            A name that options lack, or as for new ones.
        """
        known = list(self.__dataclass_fields__)
        for name in changes:
            if name not in known:
                raise ArgumentTypeError(
                    f"{name!r} is no option of a partition: there are {', '.join(known)}.{suggestion(name, known)}"
                )
        return replace(self, **changes)


def _database(value: Any) -> Any:
    if value is None or isinstance(value, Database):
        return value
    if isinstance(value, str | os.PathLike):
        return as_path("database", value).absolute()  # wherever the process goes
    raise ArgumentTypeError(f"database must be a path or a pycutlass.trials.Database, got {shown(value)}")


def _share(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ArgumentTypeError(f"min_gain must be a share, a number from 0 to below 1; got {shown(value)}")
    if not 0 <= value < 1:
        raise ArgumentError(f"min_gain must be a share, from 0 (every region) to below 1; got {value}")
    return float(value)


def _one_of(name: str, value: Any, known: tuple[str, ...]) -> None:
    is_text = isinstance(value, str)
    if not is_text or value not in known:
        words = f"{', '.join(repr(each) for each in known[:-1])} or {known[-1]!r}"
        raise ArgumentError(f"{name} must be {words}, got {shown(value)}.{suggestion(value, known) if is_text else ''}")
