"""Kernels as one file: there and back, and forgeries."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import random
import socket
import threading
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from cached import FIELDS, REPORT, edit, kernel

from pycutlass.cache import KernelCache
from pycutlass.cache.bundle import read_bundle
from pycutlass.errors import ArgumentError, ArgumentTypeError, CacheError


@pytest.fixture
def bundle(tmp_path: Path, cache: KernelCache) -> Path:
    for number in range(3):
        cache.put(kernel(number))
    cache.export(tmp_path / "kernels.zip")
    return tmp_path / "kernels.zip"


def rewritten(bundle: Path, change: Callable[[dict[str, bytes]], Mapping[str, bytes] | None]) -> Path:
    """Return `bundle` with its members changed."""
    with zipfile.ZipFile(bundle) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    changed = change(members)
    with zipfile.ZipFile(bundle, "w") as archive:
        for name, content in (members if changed is None else changed).items():
            archive.writestr(name, content)
    return bundle


def with_manifest(change: Callable[[dict[str, Any]], None]) -> Callable[[dict[str, bytes]], None]:
    """Return a change to the members that is one to the parsed manifest."""

    def apply(members: dict[str, bytes]) -> None:
        manifest = json.loads(members["manifest.json"])
        change(manifest)
        members["manifest.json"] = json.dumps(manifest).encode()

    return apply


def test_a_bundle_carries_kernels_to_another_machine(bundle: Path, tmp_path: Path) -> None:
    there = KernelCache(tmp_path / "there")
    result = there.import_(bundle)
    assert sorted(result.added) == sorted(kernel(number).key for number in range(3))
    assert (result.present, result.in_memory) == ([], [])
    assert there.find(kernel=f"{2:064d}", target="sm_90a") == kernel(2)
    assert there.verify() == []


def test_what_is_here_already_stays(bundle: Path, cache: KernelCache) -> None:
    before = cache.entries()
    assert len(cache.import_(bundle).present) == 3
    assert cache.entries() == before


def test_a_damaged_kernel_is_replaced_by_the_imported_one(bundle: Path, cache: KernelCache, directory: Path) -> None:
    edit(directory, "UPDATE artifact_v1 SET cubin = x'00' WHERE name = 'cutlass_gemm_1'")
    assert cache.import_(bundle).added == [kernel(1).key]
    assert cache.verify() == []


def test_the_same_kernels_give_the_same_bytes(bundle: Path, tmp_path: Path) -> None:
    there = KernelCache(tmp_path / "there")
    for number in (2, 0, 1):
        there.put(kernel(number))
    there.export(tmp_path / "again.zip")
    assert (tmp_path / "again.zip").read_bytes() == bundle.read_bytes()


def test_some_kernels_can_be_exported(cache: KernelCache, bundle: Path) -> None:
    exported = cache.export(bundle, ["cutlass_gemm_0", kernel(1).key])
    assert {entry.name for entry in exported} == {"cutlass_gemm_0", "cutlass_gemm_1"}
    assert {artifact.name for artifact in read_bundle(bundle)} == {"cutlass_gemm_0", "cutlass_gemm_1"}
    with pytest.raises(CacheError, match="cutlass_gemm_9"):
        cache.export(bundle, ["cutlass_gemm_9"])


def test_an_export_is_filtered_by_prefix_and_target(cache: KernelCache, tmp_path: Path) -> None:
    for number, target in enumerate(["sm_80", "sm_90a", "sm_80"]):
        cache.put(kernel(number, target=target))
    path = tmp_path / "kernels.zip"

    def exported(*keys: str, **filters: str) -> list[str]:
        cache.export(path, keys or None, **filters)
        return sorted(artifact.name for artifact in read_bundle(path))

    assert exported(target="sm_80") == ["cutlass_gemm_0", "cutlass_gemm_2"]
    assert exported(prefix="cutlass_gemm_1") == ["cutlass_gemm_1"]
    assert exported(prefix="cutlass", target="sm_90a") == ["cutlass_gemm_1"]
    assert exported("cutlass_gemm_0", "cutlass_gemm_1", target="sm_80") == ["cutlass_gemm_0"]
    with pytest.raises(CacheError, match="built for sm_86; there are kernels for sm_80, sm_90a"):
        cache.export(path, prefix="cutlass", target="sm_86")
    with pytest.raises(CacheError, match=r"name that begins with 'x'$"):
        cache.export(path, prefix="x")
    for wrong in ({"prefix": 5}, {"target": ["sm_80", 5]}, {"prefix": None}):
        with pytest.raises(ArgumentTypeError, match=r"(prefix|target) must be a string, or a list of strings"):
            cache.export(path, **wrong)


def test_a_damaged_kernel_is_not_exported(cache: KernelCache, directory: Path, bundle: Path, tmp_path: Path) -> None:
    edit(directory, "UPDATE artifact_v1 SET host = x'00' WHERE name = 'cutlass_gemm_1'")
    with pytest.raises(CacheError, match="cutlass_gemm_1"):
        cache.export(tmp_path / "other.zip")
    assert not (tmp_path / "other.zip").exists()


def test_an_empty_cache_has_nothing_to_export(cache: KernelCache, tmp_path: Path) -> None:
    with pytest.raises(CacheError, match="no kernel to export"):
        cache.export(tmp_path / "kernels.zip")


def test_a_bundle_that_cannot_be_written(cache: KernelCache, tmp_path: Path) -> None:
    cache.put(kernel())
    (tmp_path / "taken").mkdir()
    for path in (tmp_path / "missing" / "kernels.zip", tmp_path / "taken"):
        with pytest.raises(CacheError, match="cannot be written"):
            cache.export(path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["cache", "taken"]


def test_files_beside_the_bundle_stay(cache: KernelCache, tmp_path: Path) -> None:
    cache.put(kernel())
    (tmp_path / "kernels.zip.partial").write_text("mine")
    cache.export(tmp_path / "kernels.zip")
    assert (tmp_path / "kernels.zip.partial").read_text() == "mine"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["cache", "kernels.zip", "kernels.zip.partial"]


@pytest.mark.parametrize("kind", ["link", "link to nothing", "pipe", "socket", "device", "directory"])
def test_a_bundle_replaces_nothing_but_a_file(cache: KernelCache, tmp_path: Path, kind: str) -> None:
    cache.put(kernel())
    (tmp_path / "precious").write_text("mine")
    path = tmp_path / "kernels.zip"
    if kind.startswith("link"):
        path.symlink_to(tmp_path / ("nothing" if "nothing" in kind else "precious"))
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind == "socket":
        with contextlib.chdir(tmp_path), socket.socket(socket.AF_UNIX) as bound:
            bound.bind(path.name)
    elif kind == "directory":
        path.mkdir()
    else:
        path = Path(os.devnull)
    before = path.lstat()
    with pytest.raises(CacheError, match=f"that is a {kind.split()[0]}. Give the name of a file"):
        cache.export(path)
    assert path.lstat().st_mode == before.st_mode and path.lstat().st_ino == before.st_ino
    assert (tmp_path / "precious").read_text() == "mine"
    assert not list(tmp_path.glob(".pycutlass*"))


def test_a_bundle_has_the_mode_of_other_files(cache: KernelCache, tmp_path: Path) -> None:
    cache.put(kernel())
    before = os.umask(0o027)
    try:
        cache.export(tmp_path / "kernels.zip")
    finally:
        os.umask(before)
    assert (tmp_path / "kernels.zip").stat().st_mode & 0o777 == 0o640


def test_an_export_that_is_interrupted_leaves_the_old_bundle(
    cache: KernelCache, bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = bundle.read_bytes()

    def interrupted(*arguments: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(zipfile.ZipFile, "writestr", interrupted)
    with pytest.raises(KeyboardInterrupt):
        cache.export(bundle)
    assert bundle.read_bytes() == old
    assert not list(bundle.parent.glob(".pycutlass*"))


def test_exporters_to_one_file_do_not_tear_it(cache: KernelCache, tmp_path: Path) -> None:
    """Readers meet one whole bundle or the other at every moment."""
    for number in range(6):
        cache.put(kernel(number, size=30_000))
    path, stop, problems = tmp_path / "kernels.zip", threading.Event(), []
    whole = [{f"cutlass_gemm_{number}" for number in part} for part in (range(6), range(2))]

    def export(names: set[str]) -> None:
        while not stop.is_set():
            cache.export(path, sorted(names))

    cache.export(path)
    threads = [threading.Thread(target=export, args=(names,)) for names in whole for _ in range(2)]
    for thread in threads:
        thread.start()
    for _ in range(60):
        names = {artifact.name for artifact in read_bundle(path)}
        if names not in whole:
            problems.append(names)
    stop.set()
    for thread in threads:
        thread.join()
    assert problems == []
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["cache", "kernels.zip"]


def test_a_cache_in_memory_takes_a_bundle_too(bundle: Path, tmp_path: Path) -> None:
    memory_only = KernelCache(bundle / "below-a-file")
    assert len(memory_only.import_(bundle).in_memory) == 3
    assert memory_only.find(kernel=f"{2:064d}") == kernel(2)
    memory_only.export(tmp_path / "again.zip")
    assert (tmp_path / "again.zip").read_bytes() == bundle.read_bytes()


def change_entry(**values: Any) -> Callable[[dict[str, bytes]], None]:
    return with_manifest(lambda manifest: manifest["kernels"][1].update(values))


def with_other_fields(manifest: dict[str, Any]) -> None:
    """Give a kernel the fields of another one, and the digest that it has with them."""
    entry = manifest["kernels"][1]
    (original,) = [kernel(number) for number in range(3) if kernel(number).key == entry["key"]]
    entry["fields"] = FIELDS
    entry["digest"] = dataclasses.replace(original, fields=FIELDS).digest


FORGERIES: dict[str, Callable[[dict[str, bytes]], Mapping[str, bytes] | None]] = {
    "cubin": lambda members: {k: b"forged" if k == sorted(members)[2] else v for k, v in members.items()},
    "name": change_entry(name="forged"),
    "target": change_entry(target="sm_80"),
    "report": change_entry(report=REPORT | {"registers": 1}),
    "empty report": change_entry(report={}),
    "report without registers": change_entry(report={k: v for k, v in REPORT.items() if k != "registers"}),
    "report without warnings": change_entry(report={k: v for k, v in REPORT.items() if k != "warnings"}),
    "report with text for registers": change_entry(report=REPORT | {"registers": "255"}),
    "report with true for registers": change_entry(report=REPORT | {"registers": True}),
    "report with spills below 0": change_entry(report=REPORT | {"spill_load_bytes": -1}),
    "report with one text for warnings": change_entry(report=REPORT | {"warnings": "none"}),
    "report with 1 for a flag": change_entry(report=REPORT | {"wgmma_serialized": 1}),
    "digest": change_entry(digest="0" * 64),
    "fields": change_entry(fields=FIELDS | {"flags": "-O0"}),
    "fields and digest": with_manifest(with_other_fields),
    "fields of another form": change_entry(fields={"flags": 3}),
    "no fields": change_entry(fields=None),
    "key with a path": change_entry(key="../../../../tmp/evil"),
    "short key": change_entry(key="abcd"),
    "twice": with_manifest(lambda manifest: manifest["kernels"].append(manifest["kernels"][0])),
    "one less": with_manifest(lambda manifest: manifest["kernels"].pop()),
    "no list": with_manifest(lambda manifest: manifest.update(kernels={})),
    "not an entry": with_manifest(lambda manifest: manifest["kernels"].append("x")),
    "later format": with_manifest(lambda manifest: manifest.update(format="pycutlass-bundle-3", record="x")),
    "other format": with_manifest(lambda manifest: manifest.update(format=["pycutlass-bundle-2"])),
    "no record": with_manifest(lambda manifest: manifest.pop("record")),
    "record of before": with_manifest(lambda manifest: manifest.update(record=2)),
    "format of before": with_manifest(lambda manifest: manifest.update(format="pycutlass-bundle-1")),
    "manifest is a list": lambda members: members | {"manifest.json": b"[]"},
    "manifest is not JSON": lambda members: members | {"manifest.json": b"{"},
    "manifest is too deep": lambda members: members | {"manifest.json": b"[" * 100_000},
    "no manifest": lambda members: {name: content for name, content in members.items() if "manifest" not in name},
    "zip slip": lambda members: members | {"../../evil.so": b"\x7fELF"},
    "absolute path": lambda members: members | {"/etc/evil": b"x"},
    "missing cubin": lambda members: {k: v for k, v in members.items() if k != sorted(members)[0]},
}


@pytest.mark.parametrize("forgery", FORGERIES)
def test_a_forged_bundle_is_refused_whole(bundle: Path, tmp_path: Path, forgery: str) -> None:
    there = KernelCache(tmp_path / "there")
    with pytest.raises(CacheError, match=str(bundle)):
        there.import_(rewritten(bundle, FORGERIES[forgery]))
    assert there.entries() == []
    assert sorted(path.name for path in tmp_path.iterdir()) == ["cache", "kernels.zip", "there"]


@pytest.mark.parametrize(("version", "record"), [("format of before", 3), ("record of before", 2)])
def test_a_bundle_for_another_call_record_is_refused_by_its_version(
    bundle: Path, cache: KernelCache, version: str, record: int
) -> None:
    with pytest.raises(
        CacheError, match=f"made for call record {record}, and this PyCUTLASS has 4: compile them again"
    ):
        cache.import_(rewritten(bundle, FORGERIES[version]))


@pytest.mark.parametrize("forgery", ["name", "fields", "fields and digest", "cubin"])
def test_a_refusal_names_the_kernel(bundle: Path, cache: KernelCache, forgery: str) -> None:
    with pytest.raises(CacheError, match=r"kernel [0-9a-f]{64} \((cutlass_gemm_\d|forged)\)"):
        cache.import_(rewritten(bundle, FORGERIES[forgery]))


@pytest.mark.parametrize("content", [b"", b"PK", b"no zip file" * 100, None])
def test_what_is_no_bundle_is_refused(cache: KernelCache, tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "kernels.zip"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(CacheError, match="cannot be read as a bundle"):
        cache.import_(path)


@pytest.mark.parametrize("share", [0.01, 0.3, 0.7, 0.95, 0.999])
def test_a_truncated_bundle_is_refused(bundle: Path, cache: KernelCache, share: float) -> None:
    whole = bundle.read_bytes()
    bundle.write_bytes(whole[: int(len(whole) * share)])
    with pytest.raises(CacheError, match="cannot be read as a bundle"):
        cache.import_(bundle)


@pytest.mark.parametrize("seed", range(60))
def test_no_flipped_byte_in_a_bundle_makes_a_wrong_kernel(tmp_path: Path, seed: int) -> None:
    cache = KernelCache(tmp_path / "cache")
    cache.put(kernel(size=200))
    bundle = tmp_path / "kernels.zip"
    cache.export(bundle)
    cache.close()
    content, noise = bytearray(bundle.read_bytes()), random.Random(seed)
    for _ in range(1 + seed % 3):
        content[noise.randrange(len(content))] ^= 1 << noise.randrange(8)
    bundle.write_bytes(content)
    try:
        kernels = list(read_bundle(bundle))
    except CacheError:
        return
    assert kernels == [kernel(size=200)]


def test_paths_may_be_text(directory: Path, tmp_path: Path) -> None:
    cache, bundle = KernelCache(str(directory)), str(tmp_path / "bundle")
    cache.put(kernel())
    assert cache.path == directory / "kernels.db"
    assert cache.export(bundle) == cache.entries()
    assert KernelCache(directory).import_(bundle).present == [kernel().key]
    cache.close()


@pytest.mark.parametrize("wrong", [5, b"/tmp", ["/tmp"]], ids=repr)
def test_what_is_no_path_is_refused(cache: KernelCache, wrong: Any) -> None:
    cache.put(kernel())
    for name, use in (("directory", KernelCache), ("path", cache.export), ("path", cache.import_)):
        with pytest.raises(ArgumentTypeError) as caught:
            use(wrong)
        assert all(word in str(caught.value) for word in (f"{name} must be a path", "str", repr(wrong)))


@pytest.mark.parametrize("name", ["", ".", "/"])
def test_a_bundle_has_a_name(cache: KernelCache, name: str) -> None:
    cache.put(kernel())
    with pytest.raises(CacheError, match=r"that is a directory. Give a file name"):
        cache.export(name)
    with pytest.raises(ArgumentError, match=r"without NUL"):
        cache.export("bundle\0")
