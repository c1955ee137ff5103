"""Bundles that are made to fill memory, and what is no file at all: both are refused."""

from __future__ import annotations

import contextlib
import os
import struct
import subprocess
import sys
import zipfile
from collections.abc import Mapping
from pathlib import Path

import pytest
from cached import kernel

from pycutlass.cache import KernelCache
from pycutlass.errors import CacheError


def write_bomb(path: Path, members: Mapping[str, int], claimed: int | None = None) -> None:
    """Write a zip file of zeros: names and sizes, or the size that it claims for each."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        for name, size in members.items():
            with archive.open(name, "w") as member:
                for _ in range(size >> 20):
                    member.write(bytes(1 << 20))
    if claimed is not None:
        content = bytearray(path.read_bytes())
        for mark, offset in ((b"PK\x03\x04", 22), (b"PK\x01\x02", 24)):
            at = -1
            while (at := content.find(mark, at + 1)) >= 0:
                struct.pack_into("<I", content, at + offset, claimed)
        path.write_bytes(content)


READS = """
import resource, sys
from pathlib import Path
from pycutlass.cache.bundle import read_bundle
from pycutlass.errors import CacheError
resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))
try:
    list(read_bundle(Path(sys.argv[1])))
except CacheError as error:
    print(error)
"""


@pytest.mark.parametrize("claimed", [None, 1000], ids=["honest", "lying"])
@pytest.mark.parametrize("member", ["manifest.json", "0" * 64 + ".cubin"])
def test_a_bundle_that_would_fill_memory_is_refused(tmp_path: Path, member: str, claimed: int | None) -> None:
    """1.2 GiB of zeros are 5 MB in a zip file; the process that reads it may take 1 GiB in all."""
    path = tmp_path / "kernels.zip"
    write_bomb(path, {"manifest.json": 0, member: 1200 << 20}, claimed)
    assert path.stat().st_size < 8 << 20
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run([sys.executable, "-c", READS, path], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert str(path) in done.stdout


def test_a_kernel_beyond_every_bound_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with contextlib.closing(KernelCache(tmp_path / "cache")) as cache:
        cache.put(kernel())
        cache.export(tmp_path / "kernels.zip")
        monkeypatch.setattr("pycutlass.cache.bundle.LARGEST_KERNEL", 2999)
        with pytest.raises(CacheError, match=r"\.cubin is larger than the 2,999 bytes that it may have"):
            cache.import_(tmp_path / "kernels.zip")


@pytest.mark.parametrize("path", [os.devnull, "/dev/zero"])
def test_a_device_is_no_bundle(cache: KernelCache, path: str) -> None:
    with pytest.raises(CacheError, match="it is not a file"):
        cache.import_(path)


def test_a_pipe_is_no_bundle(cache: KernelCache, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(CacheError, match="it is not a file"):
        cache.import_(tmp_path / "pipe")
