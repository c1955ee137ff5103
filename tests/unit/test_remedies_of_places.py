"""Where operands and memory are: what messages tell to do is done, in one round, and leads to what is taken."""

from __future__ import annotations

import re
from types import SimpleNamespace

import pytest
from test_memory import FREE, gpu  # noqa: F401 (a fixture among them)

import pycutlass
from pycutlass import _core, memory
from pycutlass.errors import ArgumentError, PoolError
from pycutlass.launch import problem


class Tensor:
    """A tensor that is somewhere: None is the CPU."""

    def __init__(self, place: int | None, library: str = "torch") -> None:
        self.place, self.library = place, library

    def cuda(self, place: int = 0) -> Tensor:
        assert self.library == "torch"
        return Tensor(place)


def operands_of(tensors: dict[str, object]) -> dict[str, SimpleNamespace]:
    """Return operands as they are checked: lists under one name, with a part for each tensor."""
    made = {}
    for name, given in tensors.items():
        listed = given if isinstance(given, list) else [given]
        names = [f"{name}[{number}]" for number in range(len(listed))] if isinstance(given, list) else [name]
        parts = [
            SimpleNamespace(name=each, view=SimpleNamespace(library=tensor.library, device=tensor.place, pointer=0))
            for each, tensor in zip(names, listed, strict=True)
        ]
        made[name] = SimpleNamespace(name=name, parts=parts)
    return made


CASES = {
    "one on the CPU": ({"A": None, "B": 0, "D": 0}, 0),
    "all on the CPU": ({"A": None, "B": None, "D": None}, 0),
    "D alone on a GPU": ({"A": None, "B": None, "C": 0, "D": 1}, 1),
    "D elsewhere": ({"A": 0, "B": 0, "D": 1}, 1),
    "on the CPU and elsewhere": ({"A": None, "B": 0, "D": 1}, 1),
    "D on the CPU": ({"A": 1, "B": 1, "D": None}, 1),
    "lists": ({"A": [None, 1], "B": [1, 1], "D": [1, 0]}, 1),
}


def tensors_of(places: dict[str, object]) -> dict[str, object]:
    return {
        name: [Tensor(each) for each in place] if isinstance(place, list) else Tensor(place)
        for name, place in places.items()
    }


@pytest.mark.parametrize("case", CASES)
def test_all_that_is_to_move_is_said_at_once_and_where_results_are_stays_known(monkeypatch, case):
    monkeypatch.setattr("pycutlass.device.current", lambda: 0)
    places, ordinal = CASES[case]
    tensors = tensors_of(places)
    with pytest.raises(ArgumentError) as caught:
        problem.ordinal_of(operands_of(tensors))
    exec(str(caught.value).rpartition(": ")[2], tensors)
    del tensors["__builtins__"]
    assert problem.ordinal_of(operands_of(tensors)) == ordinal


def test_many_tensors_are_not_all_listed():
    for places, words in (([None] * 100, "and|92 others .*with .cuda"), ([0] * 100 + [1], "92 others to GPU 1$")):
        with pytest.raises(ArgumentError, match=words) as caught:
            problem.ordinal_of(operands_of(tensors_of({"A": places[:-1], "D": places[-1:]})))
        assert len(str(caught.value)) < 400


def test_tensors_of_other_libraries_have_no_such_method():
    tensors = {"A": Tensor(0, "cupy"), "D": Tensor(1, "cupy"), "C": Tensor(None, "numpy")}
    with pytest.raises(ArgumentError, match=r"got A on GPU 0, D on GPU 1; move A to GPU 1$"):
        problem.ordinal_of(operands_of(tensors))


# Memory.


@pytest.mark.usefixtures("gpu")
def test_what_helps_a_pool_that_is_full():
    for remedy in ("Free arguments", "larger max_pool_size"):
        pycutlass.get_memory_pool(0, 1024)
        kept = [memory.DeviceBuffer(0, 1000)]
        with pytest.raises(PoolError, match=remedy):
            memory.DeviceBuffer(0, 500)
        kept.clear()
        if remedy == "larger max_pool_size":
            pycutlass.get_memory_pool(0, 2048)
            kept.append(memory.DeviceBuffer(0, 1000))
        kept.append(memory.DeviceBuffer(0, 500))
        kept.clear()


def test_a_larger_pool_is_not_what_a_full_gpu_lacks(monkeypatch):
    for error in (PoolError(2, 1, 3, gpu=0), PoolError(4, 1, 3, gpu=0)):
        assert "pool" not in str(error) and re.match("GPU 0 cannot give", str(error))
    assert "Free arguments" in str(PoolError(2, 1, 3, gpu=0))
    assert "Free" not in str(PoolError(4, 1, 3, gpu=0)), "it has not as much"


@pytest.mark.usefixtures("gpu")
def test_a_pool_that_may_grow_to_what_others_have_taken(monkeypatch):
    pool = pycutlass.get_memory_pool(0, FREE)
    monkeypatch.setattr(pool.mr, "allocate", lambda size, stream: (_ for _ in ()).throw(MemoryError()))
    monkeypatch.setattr(_core, "memory_info", lambda ordinal: (100, FREE))
    with pytest.raises(PoolError, match=rf"^GPU 0 cannot give 500 bytes: {FREE - 100:,} of at most {FREE:,} bytes"):
        memory.DeviceBuffer(0, 500)
