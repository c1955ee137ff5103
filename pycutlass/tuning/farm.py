"""Executors of libraries whose own have another form than those of `concurrent.futures`.

A process pool, ``client.get_executor()`` of Dask and ``MPIPoolExecutor`` of mpi4py need nothing of this.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Any

from pycutlass.calls import public, shown
from pycutlass.errors import ArgumentError, ArgumentTypeError, ToolkitError

__all__ = ["RayExecutor", "check_executor", "submitted", "told_by"]


def submitted(executor: Any, function: Callable[..., Any], *arguments: Any) -> Future[Any]:
    """Return the future of a job.

    Raises
    ------
    ArgumentTypeError
        `executor` is none.
    ToolkitError
        It takes no jobs.
    """
    check_executor(executor)
    try:
        future = executor.submit(function, *arguments)
    except Exception as error:  # of the farm, whatever library it is
        raise ToolkitError(
            f"the executor takes no jobs ({type(error).__name__}: {error}): give one that is not shut down, and whose "
            f"workers are alive"
        ) from error
    if not isinstance(future, Future):  # as a client of Dask returns
        raise _no_executor(executor)
    return future


def told_by(error: Exception) -> str:
    """Return what a job that failed says: of Ray, what was raised in the worker, and not its traceback."""
    cause = getattr(error, "cause", None)
    raised = cause if isinstance(cause, Exception) else error
    try:
        return f"{type(raised).__name__}: {raised}"
    except Exception:  # of whoever wrote the class
        return type(raised).__name__


def check_executor(executor: Any) -> None:
    """Raise ArgumentTypeError for what is no executor, as far as it can be seen before it has a job."""
    if not callable(getattr(executor, "submit", None)):
        raise _no_executor(executor)


def _no_executor(executor: Any) -> ArgumentTypeError:
    return ArgumentTypeError(
        f"executor must have `submit` as those of concurrent.futures have, got {shown(executor)}; of a client of Dask "
        f"it is client.get_executor()"
    )


@public
class RayExecutor(Executor):
    """Jobs as tasks of Ray, which has to be installed.

    Parameters
    ----------
    **options
        Of each task, as ``ray.remote(...)`` takes them: ``num_cpus=4``, for example.

    Raises
    ------
    ArgumentError
        Ray is not installed.

    Examples
    --------
    >>> from pycutlass.tuning import RayExecutor, tune
    >>> def tuned(problem):
    ...     with RayExecutor(num_cpus=1) as farm:
    ...         return tune(problem, executor=farm)
    """

    def __init__(self, **options: Any) -> None:
        try:
            import ray
        except ImportError as error:
            raise ArgumentError(
                f"Ray cannot be imported ({error}): pip install ray, or use another executor"
            ) from error
        self._ray, self._options, self._references = ray, options, list[Any]()
        if not ray.is_initialized():
            ray.init()

    def submit(self, function: Callable[..., Any], /, *args: Any, **keywords: Any) -> Future[Any]:
        """Start a task, and return its future; to cancel that is to cancel the task, which Ray's own does not do."""
        task = self._ray.remote(**self._options)(function) if self._options else self._ray.remote(function)
        reference = task.remote(*args, **keywords)
        self._references.append(reference)
        future: Future[Any] = reference.future()
        future.add_done_callback(lambda done: self._ray.cancel(reference) if done.cancelled() else None)
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Wait for the tasks, or cancel them; Ray itself stays as it is."""
        if cancel_futures:
            for reference in self._references:
                self._ray.cancel(reference)
        elif wait and self._references:
            self._ray.wait(self._references, num_returns=len(self._references))
        self._references.clear()
