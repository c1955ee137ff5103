"""The command line, called inside the process of the tests."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import NamedTuple

import pytest
from cached import REPORT

from pycutlass import cli
from pycutlass.cache import Artifact, KernelCache, make_key

__all__ = ["Result", "Run", "put_kernels", "runner"]


class Result(NamedTuple):
    code: int | str | None
    out: str
    err: str


Run = Callable[..., Result]


def runner(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Return a function that runs the command line with its arguments, and returns how that ended."""

    def run(*arguments: object) -> Result:
        monkeypatch.setattr(sys, "argv", ["pycutlass", *map(str, arguments)])
        with pytest.raises(SystemExit) as end:
            cli.main()
        return Result(end.value.code, *capsys.readouterr())

    return run


def put_kernels() -> list[Artifact]:
    """Put three kernels into the cache that the environment names, and return them."""
    cache, made = KernelCache(), []
    for number, target in enumerate(["sm_80", "sm_90a", "sm_90a"]):
        fields = {"kernel": str(number), "target": target}
        made.append(Artifact(make_key(fields), f"gemm_[{number}]", target, fields, os.urandom(40_000), b"", REPORT))
        cache.put(made[-1])
    cache.close()
    return made
