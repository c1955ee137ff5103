"""What is said of kernels that are not as fast as they should be, and whether they are refused."""

from __future__ import annotations

from collections.abc import Iterable

from pycutlass.cache import Artifact
from pycutlass.calls import counted
from pycutlass.errors import BuildReportError
from pycutlass.log import say_once
from pycutlass.report import BuildReport

__all__ = ["judge", "warn"]


def judge(artifacts: Iterable[Artifact], strict: bool) -> None:
    """Warn of kernels with a problem, also those that come from the cache; refuse them in strict mode."""
    judged = [(artifact, _problems(artifact)) for artifact in artifacts]
    listed = [f"  {artifact.name}: {problem}" for artifact, problems in judged for problem in problems]
    if strict and listed:
        bad = sum(bool(problems) for _, problems in judged)
        raise BuildReportError(
            "\n".join([f"strict mode refuses {bad} of {counted(len(judged), 'kernel')}:", *listed])
            + "\nDescribe them differently, or pass strict=False and unset PYCUTLASS_STRICT to use them as they are."
        )
    for artifact, problems in judged:
        if problems:
            warn(artifact, problems)


def warn(artifact: Artifact, problems: Iterable[str]) -> None:
    """Say what is wrong with a kernel, once per process: whoever uses it should know, not only who compiled it."""
    for problem in problems:
        say_once(f"{artifact.name} for {artifact.target}: {problem}")


def _problems(artifact: Artifact) -> list[str]:
    try:
        return BuildReport.from_json(artifact.report).problems()
    except ValueError as error:
        return [f"its build report in the cache is not whole, so nothing is known of it: {error}"]
