"""The command line of the kernel cache: what ``pycutlass cache`` prints, deletes, exports and takes in."""

from __future__ import annotations

import json
import sqlite3
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace

import pytest
from cached import REPORT
from command_line import Result, Run

from pycutlass.cache import Artifact, KernelCache, make_key
from pycutlass.errors import ArgumentTypeError
from pycutlass.toolkit import find_cutlass, own_headers_digest


def test_ls_lists_kernels(run: Run, kernels: list[Artifact]) -> None:
    result = run("cache", "ls")
    assert result.code == 0
    header, *lines = result.out.splitlines()
    assert header.split() == ["key", "kernel", "target", "compiler", "size", "built", "used", "stale"]
    assert len(lines) == 3
    for line, kernel in zip(lines, reversed(kernels), strict=True):
        assert line.split()[:5] == [kernel.key[:12], kernel.name, kernel.target, "39.1", "KiB"]
        assert line.count("seconds ago") == 2


def test_ls_says_which_compiler_made_a_kernel(run: Run, kernels: list[Artifact]) -> None:
    fields = {"device_compiler": "nvcc 13.0.88, ptxas 13.0.88", "host_compiler": "g++ 13.3.0"}
    KernelCache().put(replace(kernels[0], key=make_key(fields), fields=fields))
    lines = run("cache", "ls").out.splitlines()
    assert [line.split()[3:5] for line in lines if "nvcc" in line] == [["nvcc", "13.0.88"]]
    assert len(lines) == 5


def test_ls_marks_kernels_whose_headers_have_changed(
    run: Run, kernels: list[Artifact], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    cutlass = find_cutlass()
    here = {"headers": own_headers_digest(), "cutlass": f"{cutlass.version} {cutlass.digest()}"}
    made = {
        "here": (here, ""),
        "ours": ({**here, "headers": "0" * 64}, "other PyCUTLASS"),
        "theirs": ({**here, "cutlass": "4.1.0 " + "0" * 64}, "other CUTLASS"),
        "both": ({"headers": "0" * 64, "cutlass": "4.1.0 " + "0" * 64}, "other PyCUTLASS, CUTLASS"),
        "cuda": ({**here, "cuda_headers": "12.0 " + "0" * 64}, "other CUDA"),
        "bare": ({"kernel": "with no headers in its key"}, ""),
    }
    for name, (fields, _) in made.items():
        KernelCache().put(Artifact(make_key(fields), name, "sm_80", fields, b"x", b"", REPORT))

    def said() -> dict[str, str]:
        listed = json.loads(run("cache", "ls", "--json").out)
        printed = run("cache", "ls").out.splitlines()
        stale = {entry["name"]: entry["stale"] for entry in listed if entry["name"] in made}
        for name, words in stale.items():
            [line] = [line for line in printed if line.split()[1] == name]
            assert line.endswith(words or "ago")
        return stale

    assert said() == {name: words for name, (_, words) in made.items()}
    monkeypatch.setenv("CUTLASS_PATH", str(tmp_path))
    monkeypatch.setenv("CUDA_HOME", str(tmp_path))
    assert said() == dict.fromkeys(made, "") | {"ours": "other PyCUTLASS", "both": "other PyCUTLASS"}


def test_headers_beside_another_device_compiler_are_not_stale(
    run: Run, kernels: list[Artifact], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As NVRTC's are that come in a package of their own, where nvcc is installed elsewhere."""
    of_nvrtc = SimpleNamespace(headers_version="13.0", digest=lambda memo: "n" * 64)
    of_nvcc = SimpleNamespace(headers_version="13.1", digest=lambda memo: "c" * 64)
    monkeypatch.setattr(
        import_module("pycutlass.cli.stale"),
        "find_device_compiler",
        lambda wanted, memo: ("", of_nvrtc if wanted == "nvrtc" else of_nvcc),
    )
    for number, (compiler, headers) in enumerate([("nvrtc 13.0.88", "n"), ("nvcc 13.1.20", "c"), ("nvrtc 13.0", "c")]):
        version = "13.0 " if headers == "n" else "13.1 "
        fields = {"device_compiler": compiler, "cuda_headers": version + headers * 64}
        KernelCache().put(Artifact(make_key(fields), f"k{number}", "sm_80", fields, b"x", b"", REPORT))
    stale = {entry["name"]: entry["stale"] for entry in json.loads(run("cache", "ls", "--json").out)}
    assert [stale[name] for name in ("k0", "k1", "k2")] == ["", "", "other CUDA"]


def test_ls_takes_prefix_and_target(run: Run, kernels: list[Artifact]) -> None:
    def names(*options: str) -> list[str]:
        return [line.split()[1] for line in run("cache", "ls", *options).out.splitlines()[1:]]

    everything = [kernel.name for kernel in reversed(kernels)]
    assert names() == names("--prefix", "gemm_") == names("--target", "sm_90a,sm_80") == everything
    assert names("--prefix", "gemm_[1],gemm_[2]") == everything[:2]
    for target in ("sm_80", "sm_90a"):
        expected = [kernel.name for kernel in reversed(kernels) if kernel.target == target]
        assert names("--target", target) == expected
        listed = json.loads(run("cache", "ls", "--json", "--target", target).out)
        assert [entry["name"] for entry in listed] == expected
    result = run("cache", "ls", "--target", "sm_75")
    assert result.code == 1 and "was built for sm_75; there are kernels for sm_80, sm_90a" in result.err
    assert run("cache", "ls", "--prefix", "").code == 2


def test_filters_of_an_empty_cache_list_nothing(run: Run) -> None:
    assert json.loads(run("cache", "ls", "--json", "--target", "sm_80", "--prefix", "gemm").out) == []


def test_rm_takes_prefix_and_target(run: Run, kernels: list[Artifact]) -> None:
    assert run("cache", "rm", "--all", "--target", "sm_80").code == 2
    result = run("cache", "rm", "--target", "sm_75")
    assert result.code == 1 and "was built for sm_75" in result.err
    result = run("cache", "rm", "gemm_[1]", "--prefix", "gemm_[2]")
    assert result.code == 1 and "has a name that begins with 'gemm_[2]'" in result.err
    assert len(KernelCache().entries()) == 3
    left = [kernel.name for kernel in kernels if kernel.target != "sm_90a"]
    assert f"{3 - len(left)} kernels deleted" in run("cache", "rm", "--target", "sm_90a").out
    assert [entry.name for entry in KernelCache().entries()] == left
    assert "1 kernel deleted" in run("cache", "rm", *left, "--prefix", "gemm_").out


def test_ls_and_info_print_json(run: Run, kernels: list[Artifact], tmp_path: Path) -> None:
    listed = json.loads(run("cache", "ls", "--json").out)
    assert {entry["key"] for entry in listed} == {kernel.key for kernel in kernels}
    assert listed[0]["fields"] == kernels[2].fields
    assert listed[0]["report"] == REPORT
    facts = json.loads(run("cache", "info", "--json").out)
    assert facts["kernels"] == 3
    assert facts["directory"] == str(tmp_path / "cache")
    assert facts["kernel_bytes"] == sum(entry["size"] for entry in listed) < facts["file_bytes"]


def test_ls_and_info_of_a_new_cache(run: Run, tmp_path: Path) -> None:
    assert json.loads(run("cache", "ls", "--json").out) == []
    result = run("cache", "info")
    assert result.code == 0
    rows = dict(line.split(maxsplit=1) for line in result.out.splitlines())
    assert rows["directory"].strip() == str(tmp_path / "cache")
    assert rows["state"].strip() == "not made yet" and not (tmp_path / "cache").exists()
    KernelCache().memo("kind", "subject", "state", str)
    assert "read-write" in run("cache", "info").out


def test_rm_deletes_by_name_and_key(run: Run, kernels: list[Artifact]) -> None:
    result = run("cache", "rm", "gemm_[0]", kernels[1].key[:10])
    assert result.code == 0
    assert "2 kernels deleted" in result.out
    assert [entry.name for entry in KernelCache().entries()] == ["gemm_[2]"]
    assert run("cache", "rm", "--all").code == 0
    assert KernelCache().entries() == []


def test_rm_wants_to_know_what(run: Run, kernels: list[Artifact]) -> None:
    assert run("cache", "rm").code == 2
    assert run("cache", "rm", "--all", "gemm_[0]").code == 2
    result = run("cache", "rm", "gemm_[7]")
    assert result.code == 1
    assert result.err.startswith("pycutlass: no kernel in ")
    assert "'gemm_[7]'" in result.err
    assert len(KernelCache().entries()) == 3


@pytest.mark.parametrize(
    ("size", "left"),
    [("1GiB", 3), ("0.1 MB", 2), ("80kib", 2), ("79 KiB", 2), ("41000", 1), ("41kB", 1), ("0", 0), ("0.0", 0)],
)
def test_prune_keeps_what_fits(run: Run, kernels: list[Artifact], size: str, left: int) -> None:
    result = run("cache", "prune", "--max-size", size)
    assert result.code == 0
    assert f"{3 - left} kernel{'s' * (left != 2)} deleted" in result.out
    assert len(KernelCache().entries()) == left


@pytest.mark.parametrize(("size", "left"), [("1GiB", 3), ("80kib", 2), ("0", 0)])
def test_prune_shows_what_it_would_delete(run: Run, kernels: list[Artifact], size: str, left: int) -> None:
    shown = run("cache", "prune", "--max-size", size, "--dry-run")
    assert shown.code == 0 and f"{3 - left} kernel{'s' * (left != 2)} would be deleted" in shown.out
    assert len(KernelCache().entries()) == 3
    done = run("cache", "prune", "--max-size", size)
    assert done.out == shown.out.replace("would be deleted", "deleted")
    assert len(KernelCache().entries()) == left


@pytest.mark.parametrize("size", ["2", "1023", "0.5", "500"])
def test_prune_wants_a_unit(run: Run, kernels: list[Artifact], size: str) -> None:
    """``2`` was meant to be 2 GiB, and would delete everything."""
    result = run("cache", "prune", "--max-size", size)
    assert result.code == 2
    assert f"'{size}' has no unit" in result.err and f"{size}GiB" in result.err
    assert len(KernelCache().entries()) == 3


@pytest.mark.parametrize("size", ["9" * 400, "9" * 5000, "9" * 400 + ".5 GiB"], ids=len)
def test_prune_takes_any_size(run: Run, kernels: list[Artifact], size: str) -> None:
    result = run("cache", "prune", "--max-size", size)
    assert (result.code, result.err) == (0, "")
    assert "0 kernels deleted" in result.out


@pytest.mark.parametrize("file", ["", ".", "/"])
def test_export_wants_a_file(run: Run, kernels: list[Artifact], file: str) -> None:
    result = run("cache", "export", file)
    assert result.code == 1
    assert result.err.startswith("pycutlass: the bundle cannot be written to ")
    assert "Give a file name" in result.err


@pytest.mark.parametrize("size", ["much", "3 XB", "-1", "", "1e3", "GiB"])
def test_prune_refuses_what_is_no_size(run: Run, kernels: list[Artifact], size: str) -> None:
    result = run("cache", "prune", f"--max-size={size}")
    assert result.code == 2
    assert "KiB" in result.err
    assert len(KernelCache().entries()) == 3


def test_export_and_import(run: Run, kernels: list[Artifact], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bundle = tmp_path / "kernels.zip"
    assert "1 kernel written" in run("cache", "export", bundle, "gemm_[1]").out
    assert "3 kernels written" in run("cache", "export", bundle).out
    monkeypatch.setenv("PYCUTLASS_CACHE_DIR", str(tmp_path / "there"))
    assert run("cache", "import", bundle).out.startswith("3 kernels taken in, 0 here already")
    assert run("cache", "import", bundle).out.startswith("0 kernels taken in, 3 here already")
    assert KernelCache().find(kernel="1") == kernels[1]


def test_import_that_is_not_kept_is_a_failure(
    run: Run, kernels: list[Artifact], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle = tmp_path / "kernels.zip"
    run("cache", "export", bundle)
    monkeypatch.setenv("PYCUTLASS_CACHE_DIR", str(bundle))
    result = run("cache", "import", bundle)
    assert result.code == 1
    assert "3 kernels could not be written" in result.err


@pytest.mark.parametrize("command", ["import", "export"])
def test_a_file_that_does_not_serve(run: Run, kernels: list[Artifact], tmp_path: Path, command: str) -> None:
    result = run("cache", command, tmp_path / "missing" / "kernels.zip")
    assert result.code == 1
    assert result.err.startswith("pycutlass: ")
    assert "kernels.zip" in result.err


def test_export_and_inspect_say_what_is_stale(run: Run, tmp_path: Path) -> None:
    bundle, store = tmp_path / "kernels.zip", KernelCache()
    for name, headers in [("ours", own_headers_digest()), ("old", "0"), ("older", "1")]:
        fields = {"headers": headers, "name": name, "target": "sm_80"}
        store.put(Artifact(make_key(fields), name, "sm_80", fields, b"x", b"", REPORT))
    assert "stale" not in run("cache", "export", bundle, "ours").out
    assert run("cache", "export", bundle, "ours", "old").out.splitlines()[-1].startswith("1 of them is stale")
    line = run("cache", "export", bundle).out.splitlines()[-1]
    assert line == "2 of them are stale, not found here any more: other PyCUTLASS"
    for name, why in [("ours", ""), ("old", "other PyCUTLASS")]:
        [facts] = json.loads(run("inspect", name, "--json").out)
        assert facts["stale"] == why
        assert ("other PyCUTLASS" in run("inspect", name).out) == bool(why)


def test_export_takes_prefix_and_target(run: Run, kernels: list[Artifact], tmp_path: Path) -> None:
    assert "2 kernels written" in run("cache", "export", tmp_path / "a.zip", "--target", "sm_90a").out
    assert "3 kernels written" in run("cache", "export", tmp_path / "a.zip", "--prefix", "gemm_").out
    result = run("cache", "export", tmp_path / "a.zip", "--prefix", "gemm_[0]", "--target", "sm_90a")
    assert result.code == 1 and "was built for sm_90a; there are kernels for sm_80" in result.err


def test_export_takes_options_more_than_once(run: Run, kernels: list[Artifact], tmp_path: Path) -> None:
    file = tmp_path / "a.zip"
    for options in ("--target=sm_90a --target=sm_80", "--target sm_90a,sm_80", "--target=sm_80,sm_90a --target=sm_80"):
        result = run("cache", "export", file, *options.split())
        assert "3 kernels written" in result.out
        lines = {kernel.key[:12]: f"{kernel.name}  {kernel.target}" for kernel in kernels}
        assert {tuple(line.split("  ", 1)) for line in result.out.splitlines()[:3]} == set(lines.items())
    assert "2 kernels written" in run("cache", "export", file, "--prefix", "gemm_[0]", "--prefix", "gemm_[1]").out
    for options, wrong in (("--target sm_80,sm_75", "sm_75"), ("--prefix gemm_ --prefix conv", "'conv'")):
        result = run("cache", "export", file, *options.split())
        assert result.code == 1 and wrong in result.err
    assert run("cache", "export", file, "--target", "").code == 2
    assert len(KernelCache().export(file, prefix=["gemm_[0]"], target=["sm_80", "sm_80"])) == 1
    for wrong_ in (5, [5], b"sm_80"):
        with pytest.raises(ArgumentTypeError, match="target must be a string, or a list of strings"):
            KernelCache().export(file, target=wrong_)  # type: ignore[arg-type]


def test_prune_takes_one_size(run: Run, kernels: list[Artifact]) -> None:
    result = run("cache", "prune", "--max-size", "1GiB", "--max-size", "0")
    assert result.code == 2 and "2 times" in result.err
    assert len(KernelCache().entries()) == 3


def test_verify_names_what_is_damaged(run: Run, kernels: list[Artifact], tmp_path: Path) -> None:
    assert run("cache", "verify") == Result(0, "3 kernels, as built\n", "")
    connection = sqlite3.connect(tmp_path / "cache" / "kernels.db", isolation_level=None)
    connection.execute("UPDATE artifact_v1 SET cubin = x'00' WHERE key = ?", [kernels[1].key])
    connection.close()
    result = run("cache", "verify")
    assert result.code == 1
    assert kernels[1].key in result.err
