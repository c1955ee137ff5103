"""Wrong arguments everywhere: only our exceptions come out, nothing hangs, nothing warns."""

from __future__ import annotations

import collections
import faulthandler
import inspect
import itertools
import os
from collections.abc import Iterator

import numpy as np
import pytest
from attempts import Call, attempt
from misuse import CALLS
from wrong_values import WRONG, random_value

import pycutlass
from pycutlass import PyCutlassError, cutlass

pytestmark = pytest.mark.usefixtures("without_gpu", "nothing_compiles")

#: `make thorough` tries every value for every parameter and draws others by a fresh seed; `make test` one of so many.
_THOROUGH = os.environ.get("HYPOTHESIS_PROFILE") == "thorough"
_SHARE = 1.0 if _THOROUGH else 0.1
_RANDOM = 30_000 if _THOROUGH else 1500
_SEED = int(os.environ.get("MISUSE_SEED", int.from_bytes(os.urandom(4)) if _THOROUGH else 1))
_made: collections.Counter[str] = collections.Counter()


@pytest.fixture(scope="module")
def nothing_compiles(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Kernels would have to be built, and must not be; a call that ends the interpreter shows where it was."""
    faulthandler.dump_traceback_later(600, exit=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYCUTLASS_NO_COMPILE", "1")
        patch.setenv("PYCUTLASS_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
        yield
    faulthandler.cancel_dump_traceback_later()


def _check(what: str, call: Call, problems: list[str], **changed: object) -> None:
    _made[call.name] += 1
    outcome = attempt(call, **changed)
    if outcome.problem:
        problems.append(f"{what}{call.name}({', '.join(changed)}) {outcome.problem}")


def test_calls_are_right_before_something_is_wrong():
    for call in CALLS:
        outcome = attempt(call)
        assert outcome.problem is None, (call.name, outcome.problem)


def test_wrong_values():
    print(f"MISUSE_SEED={_SEED}")
    rng = np.random.default_rng(_SEED)
    problems: list[str] = []
    for kind, call in itertools.product(WRONG, CALLS):
        for name in call.keywords():
            if rng.random() < _SHARE:
                _check(f"{kind}: ", call, problems, **{name: WRONG[kind]()})
    assert not problems, "\n".join([f"MISUSE_SEED={_SEED}: {len(problems)} foreign outcomes", *problems])
    assert _made.total() >= 5000


def test_random_values():
    print(f"MISUSE_SEED={_SEED}")
    rng = np.random.default_rng(_SEED)
    problems: list[str] = []
    for _ in range(_RANDOM):
        call = CALLS[rng.integers(len(CALLS))]
        names = list(call.keywords())
        chosen = [name for name in names if rng.random() < 1.5 / len(names)]
        _check("", call, problems, **{name: random_value(rng) for name in chosen})
    assert not problems, "\n".join([f"MISUSE_SEED={_SEED}: {len(problems)} foreign outcomes", *problems])


def test_unknown_keywords_and_too_many_arguments():
    # run is called once for each launch: Python checks its two parameters
    calls = [call for call in CALLS if not call.name.endswith((".run", "="))]
    problems: list[str] = []
    for call in calls:
        try:
            call.function(**call.keywords(), no_such_keyword=1)
            problems.append(f"{call.name} takes no_such_keyword")
        except PyCutlassError:
            pass
        except Exception as error:
            problems.append(f"{call.name}: {error!r}")
    for call in calls:
        try:
            if not call.name.endswith("update"):  # takes keywords alone
                call.function(*[None] * 40)
                problems.append(f"{call.name} takes 40 arguments")
        except PyCutlassError:
            pass
        except Exception as error:
            problems.append(f"{call.name}: {error!r}")
    assert not problems, "\n".join(problems)


def test_every_public_name_is_called():
    called = {call.name for call in CALLS} | {call.name.split(" ")[0] for call in CALLS}
    beside = {"PyCutlassError", "compiler", "cutlass"}
    choices = {"GroupMode", "KernelSchedule", "MathOperation", "RasterOrder", "SchedulerMode", "StrideSupport"}
    # names of the original are made when a script asks for them
    public = {name for name in pycutlass.__all__ if name in vars(pycutlass)} | {"compiler"}
    assert public - called == beside | choices - called
    for space in (cutlass, cutlass.gemm, cutlass.conv):
        for name in space.__all__:
            assert name in called or inspect.ismodule(getattr(space, name)), name


@pytest.mark.parametrize("space", [cutlass, cutlass.gemm, cutlass.conv], ids=lambda space: space.__name__)
def test_names_that_a_module_imports_for_itself_are_not_public(space):
    leaked = {name for name in vars(space) if not name.startswith("_")} - {*space.__all__, "annotations"}
    assert not {name for name in leaked if not name.startswith("_") and name not in ("conv", "gemm")}
    with pytest.raises(AttributeError):
        _ = space.Any
