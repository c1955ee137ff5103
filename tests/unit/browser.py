"""A browser for tests of pages: Chromium without a window, told what to do through a pair of pipes."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

__all__ = ["Tab", "opened", "program"]

_OPTIONS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"),
    *("--disable-background-networking", "--disable-component-update", "--window-size=1300,900"),
    "--remote-debugging-pipe",
)
_NAMES = ("chromium", "chromium-browser", "google-chrome")


def program() -> str | None:
    """Return the browser that is here."""
    return next(filter(None, map(shutil.which, _NAMES)), None)


class Tab:
    """A page in the browser, by the protocol of its developer tools."""

    def __init__(self, reads: int, writes: int) -> None:
        self._reads, self._writes = os.fdopen(reads, "rb", 0), os.fdopen(writes, "wb", 0)
        self._numbers, self._rest, self._session = itertools.count(1), b"", ""
        self.events: list[dict[str, Any]] = []

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """Call a method and return its result."""
        number = next(self._numbers)
        message: dict[str, Any] = {"id": number, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        self._writes.write(json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == number:
                assert "error" not in answer, answer
                return dict(answer["result"])
            self.events.append(answer)

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._rest:
            piece = self._reads.read(1 << 16)
            assert piece, "the browser has ended"
            self._rest += piece
        first, _, self._rest = self._rest.partition(b"\0")
        return dict(json.loads(first))

    def open(self, url: str) -> None:
        """Open a page and wait until it is loaded."""
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")
        self.call("Page.navigate", url=url)
        while not any(each.get("method") == "Page.loadEventFired" for each in self.events):
            self.events.append(self._next())

    def value(self, expression: str) -> Any:
        """Return what an expression of the page is."""
        return self.call("Runtime.evaluate", expression=expression, returnByValue=True)["result"].get("value")

    def click(self, selector: str) -> None:
        """Click in the middle of the first element, as a mouse does."""
        element = f"document.querySelector({json.dumps(selector)})"
        self.value(f"{element}.scrollIntoView({{block: 'center'}})")
        middle = f"(box => [box.x + box.width / 2, box.y + box.height / 2])({element}.getBoundingClientRect())"
        x, y = self.value(middle)
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)


@contextlib.contextmanager
def opened(page: Path, profile: Path) -> Iterator[Tab]:
    """Open a file, with an empty profile."""
    browser = program()
    assert browser is not None
    (there, writes), (reads, back) = os.pipe(), os.pipe()
    command = shlex.join([browser, *_OPTIONS, f"--user-data-dir={profile}"])
    # The browser reads from descriptor 3 and writes to 4.
    process = subprocess.Popen(
        ["bash", "-c", f"exec {command} 3<&{there} 4>&{back}"],
        pass_fds=(there, back),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    os.close(there)
    os.close(back)
    tab = Tab(reads, writes)
    try:
        tab.open(page.as_uri())
        yield tab
    finally:
        process.terminate()
        process.wait(30)
        tab._reads.close()
        tab._writes.close()
