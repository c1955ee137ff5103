"""Work of several threads on streams of their own."""

from __future__ import annotations

import threading
from collections.abc import Callable


def on_two_streams(work: Callable[[], None]) -> None:
    """Call `work` in two threads at the same time, each with a current stream of torch's; raise what either raises."""
    import torch

    failures: list[BaseException] = []

    def guarded() -> None:
        try:
            with torch.cuda.stream(torch.cuda.Stream()):
                work()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=guarded) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]
