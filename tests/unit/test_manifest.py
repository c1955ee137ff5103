"""Manifests: kernels as a file of their texts."""

from __future__ import annotations

import copy
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from descriptions import ampere, hopper

import pycutlass
from pycutlass import ReductionOperation, compiler, cutlass
from pycutlass.errors import ArgumentError, ArgumentTypeError, CacheError

ROW = pycutlass.TensorDescription(cutlass.float16, cutlass.RowMajor, 8)
GEMM, HOPPER = ampere("f16", alignment=8), hopper()
REDUCTION = ReductionOperation(cutlass.MatrixCoord(4, 256), ROW, cutlass.float32, count=8)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Let nothing be compiled, and see what would be."""
    calls: list[Any] = []
    monkeypatch.setattr("pycutlass.compiler.ahead.add_module", lambda kernels, **options: calls.append(kernels))
    return calls


def test_a_manifest_has_all_that_is_launched(asked: list[Any], tmp_path: Path) -> None:
    path = tmp_path / "kernels.json"
    assert compiler.write_manifest(path, [GEMM, HOPPER, REDUCTION, GEMM]) == 5
    compiler.warm(path)
    [kernels] = asked
    assert [each.source() for each in kernels] == [
        each.source() for each in (GEMM, GEMM.partial, HOPPER, HOPPER.partial, REDUCTION)
    ], "the kernels of partial sums are there, since there is a reduction"
    assert [each.follows for each in kernels] == [False, False, False, False, True]


def test_several_manifests_are_one(asked: list[Any], tmp_path: Path) -> None:
    path = tmp_path / "kernels.json"
    compiler.write_manifest(path, [GEMM])
    compiler.warm([path, str(path), compiler.manifest([HOPPER, GEMM])], target=["sm_90a"], strict=True)
    assert [each.source() for each in asked[0]] == [GEMM.source(), HOPPER.source()]


def test_the_same_kernels_make_the_same_manifest() -> None:
    again = json.loads(json.dumps(compiler.manifest([GEMM, REDUCTION])))
    assert again == compiler.manifest([GEMM, REDUCTION])


CHANGES: dict[str, Any] = {
    "a text": lambda kernel: kernel.update(text=kernel["text"].replace("128", "64", 1)),
    "another name": lambda kernel: kernel.update(name="other"),
    "the name of both": lambda kernel: kernel.update(
        text=kernel["text"].replace(kernel["name"], "other"), name="other"
    ),
    "code behind it": lambda kernel: kernel.update(text=kernel["text"] + "#include </etc/passwd>\n"),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_kernel_that_was_changed_is_refused(change: Any, asked: list[Any]) -> None:
    manifest = compiler.manifest([HOPPER, GEMM])
    change(manifest["kernels"][1])
    with pytest.raises(ArgumentError, match=r"kernel 1 of the manifest, .*, was changed"):
        compiler.warm(manifest)
    assert not asked


@pytest.mark.parametrize(
    ("field", "value"),
    [("native", 1), ("compute_capability", "80"), ("compute_capability", True), ("text", None), ("follows", 0)],
)
def test_a_field_of_another_type_is_refused(field: str, value: Any, asked: list[Any]) -> None:
    manifest = compiler.manifest([GEMM])
    manifest["kernels"][0][field] = value
    with pytest.raises(ArgumentError, match=f"{field} of kernel 0 of the manifest must be of type"):
        compiler.warm(manifest)
    assert not asked


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is not JSON"),
        (b"\xff\xfe{", "is not JSON"),
        (b"[" * 100_000, "is not JSON"),
        (b"[]", "lacks the line that says 'pycutlass manifest'"),
        (b'{"format": "pycutlass manifest", "version": 2, "kernels": []}', "of version 2, and this PyCUTLASS reads"),
        (b'{"format": "pycutlass manifest", "version": 1, "kernels": {}}', "lacks its list of kernels"),
        (b'{"format": "pycutlass manifest", "version": 1, "kernels": [3]}', "must have the fields name, text"),
        (b'{"format": "pycutlass manifest", "version": 1, "kernels": [{"name": "x"}]}', r"got \['name'\]"),
    ],
)
def test_a_file_that_is_no_manifest_is_refused(content: bytes, message: str, asked: list[Any], tmp_path: Path) -> None:
    path = tmp_path / "kernels.json"
    path.write_bytes(content)
    with pytest.raises(ArgumentError, match=message):
        compiler.warm(path)
    assert not asked


def test_a_file_that_cannot_be_read(asked: list[Any], tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match=r"nowhere\.json cannot be read: No such file"):
        compiler.warm(tmp_path / "nowhere.json")
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(CacheError, match="cannot be read as a manifest: it is not a file"):
        compiler.warm(tmp_path / "pipe")
    with pytest.raises(ArgumentError, match="warm takes manifests or paths of them, got 3"):
        compiler.warm(3)  # type: ignore[arg-type]
    with pytest.raises(ArgumentTypeError, match="manifest must be a path"):
        compiler.warm([3])  # type: ignore[list-item]


def test_a_manifest_of_something_else() -> None:
    with pytest.raises(ArgumentTypeError, match="manifest takes a list of operations"):
        compiler.manifest([3])  # type: ignore[list-item]
    with pytest.raises(ArgumentTypeError, match="write manifest"):
        compiler.manifest(GEMM)  # type: ignore[arg-type]


@pytest.mark.compile
def test_a_program_compiles_nothing_after_warm(tmp_path: Path) -> None:
    """The command fills a cache from the file alone, and the operation is found there where nothing is compiled."""
    path, cache = tmp_path / "kernels.json", tmp_path / "cache"
    manifest = compiler.manifest([GEMM])
    path.write_text(json.dumps(manifest))
    environment = {**os.environ, "PYCUTLASS_CACHE_DIR": str(cache)}
    command = [sys.executable, "-m", "pycutlass", "warm", str(path), "--target", "sm_80"]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert ended.stdout == f"1 kernel in the cache {cache / 'kernels.db'}\n", ended.stdout
    program = (
        f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r})\n"
        "from descriptions import ampere\nfrom pycutlass import compiler\n"
        "operation = ampere('f16', alignment=8)\n"
        "print(compiler.add_module([operation], target='sm_80')[0].name == operation.procedural_name())\n"
    )
    environment["PYCUTLASS_NO_COMPILE"] = "1"
    ended = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True)
    assert ended.stdout == "True\n"


def test_a_manifest_is_not_changed_by_warm(asked: list[Any]) -> None:
    manifest = compiler.manifest([GEMM])
    before = copy.deepcopy(manifest)
    compiler.warm(manifest)
    assert manifest == before
