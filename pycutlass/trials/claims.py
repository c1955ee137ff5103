"""Who measures what just now: rows that name a process, and do not outlive it.

A lock of the operating system would end with its process, too, but not every file system that hosts share has them, and
each would be a file beside a database that the user names. So the row says which process made it. Where that runs on
this host, the host knows whether it still does; that of another host is believed until its claim expires.
"""

from __future__ import annotations

import contextlib
import os
import platform
import secrets
import time
from collections.abc import Iterator
from pathlib import Path

from pycutlass.cache import make_key
from pycutlass.cache.schema import CLAIMS
from pycutlass.cache.store import Store
from pycutlass.errors import CacheError
from pycutlass.trials import rows
from pycutlass.trials.storage import Storage
from pycutlass.trials.values import Machine, key_of

__all__ = ["claimed"]

_PROC = Path("/proc")
_GONE = frozenset("XZ")  # states of a process that has ended and was not waited for


@contextlib.contextmanager
def claimed(
    storage: Storage, problem: str, candidate: str, machine: Machine, condition: str, *, again: bool, seconds: float
) -> Iterator[bool]:
    """Give whether this thread is to measure; problem and candidate are canonical JSON."""
    key = key_of(problem, machine)
    subject = make_key({"claim": key, "candidate": candidate, "condition": condition})

    def take(store: Store) -> str | None:
        with store.transaction():  # so that what another process has just measured is either seen or claimed
            if not again and rows.select(store, key=key, candidate=candidate, condition=condition):
                return None
            return _take(store, subject, seconds)

    process, owner = os.getpid(), storage.write(take)
    try:
        yield owner is not None
    finally:
        if owner is not None and os.getpid() == process:  # a child that was forked inside has no claim to give back
            with contextlib.suppress(CacheError):  # it expires
                storage.write(lambda store: _release(store, subject, owner))


def _take(store: Store, subject: str, seconds: float) -> str | None:
    """Claim `subject` for so many seconds and return who does, or None where another one has it."""
    now = time.time()
    for owner, expires in store.run(f"SELECT owner, expires FROM {CLAIMS} WHERE subject = ?", subject):
        if isinstance(expires, float) and now < expires and not _is_gone(owner):
            return None
    store.run(f"DELETE FROM {CLAIMS} WHERE NOT (typeof(expires) = 'real' AND expires > ?)", now)
    owner = f"{_here()} {_process(os.getpid())} {secrets.token_hex(8)}"
    store.run(f"INSERT OR REPLACE INTO {CLAIMS} VALUES (?, ?, ?)", subject, owner, now + seconds)
    return owner


def _release(store: Store, subject: str, owner: str) -> None:
    """Give a claim back, unless it has expired and is another's now."""
    store.run(f"DELETE FROM {CLAIMS} WHERE subject = ? AND owner = ?", subject, owner)


def _is_gone(owner: object) -> bool:
    """Return whether the process that wrote this is known to have ended."""
    words = str(owner).split(" ")
    if len(words) != 4 or words[0] != _here():
        return False
    process = words[1]
    return not process.isdecimal() or _process(int(process)) != " ".join(words[1:3])


def _here() -> str:
    """Return where process numbers mean what they mean here: this host since it was started, in this container."""
    boot = space = ""
    with contextlib.suppress(OSError):
        boot = (_PROC / "sys/kernel/random/boot_id").read_text().strip()
    with contextlib.suppress(OSError):
        space = str((_PROC / "self/ns/pid").readlink())
    return f"{platform.node()}/{boot}/{space}".replace(" ", "_")


def _process(number: int) -> str:
    """Return a process with the time when it started, since its number will be that of another one; "" without one."""
    try:
        fields = (_PROC / str(number) / "stat").read_text().rpartition(")")[2].split()
    except (OSError, UnicodeDecodeError):
        return ""
    return "" if fields[0] in _GONE else f"{number} {fields[19]}"
