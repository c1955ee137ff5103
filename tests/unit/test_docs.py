"""The documentation is true: its code runs, its commands, links, paths and names exist, its tables are the code's."""

from __future__ import annotations

import ast
import importlib
import os
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import pages
import pytest
from typer.testing import CliRunner

from pycutlass import cli, device, errors
from pycutlass.compiler.tools import find_tools
from pycutlass.source import KernelSource
from pycutlass.toolkit import without_memo

KINDS = {"python", "python gpu", "pycon", "sh", "text"}
GENERATED = {"docs/gpu-results.md"}  # by a tool, on a machine with a GPU
COMPILES = re.compile(r"\b(add_module|pycutlass\.export|export_library|pytorch\.build)\(")
#: Pages whose kernels `make test` does not compile, since examples and other pages have such: `make thorough` does, and
#: so do tests on a GPU.
DESCRIBED = {
    "arguments-and-launching.md",
    "convolution.md",
    "epilogues.md",
    "fusion.md",
    "gemm-modes.md",
    "grouped-gemm.md",
    "torch.md",
}
COMMANDS = [
    pytest.param(line, id=f"{page.name}: {line}")
    for page in pages.PAGES
    for block in pages.blocks(page)
    if block.kind == "sh"
    for line in block.text.splitlines()
]


def page_name(page: Path) -> str:
    return page.name


def kinds(page: Path) -> set[str]:
    return {block.kind for block in pages.blocks(page)}


def marked(page: Path) -> object:
    """A page that compiles a kernel is marked so."""
    compiles = any(COMPILES.search(block.text) for block in pages.blocks(page) if block.kind == "python")
    later = [pytest.mark.thorough] if page.name in DESCRIBED else []
    return pytest.param(page, marks=[pytest.mark.compile, *later] if compiles else [], id=page.name)


def run_page(page: Path, folder: Path, *options: str, **variables: str) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", pages.__file__, page, *options],
        cwd=folder,
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("page", pages.PAGES, ids=page_name)
def test_every_block_says_what_it_is(page):
    assert kinds(page) <= KINDS
    assert page.read_text().count("\n```") == 2 * len(pages.blocks(page))


@pytest.mark.parametrize("page", [marked(page) for page in pages.PAGES if kinds(page) & {"python", "pycon"}])
def test_page_on_the_host(page, tmp_path, request):
    # As examples have them, so that a kernel which both show is compiled once.
    compiles = request.node.get_closest_marker("compile")
    variables = request.getfixturevalue("quick_host_compiler") if compiles else {}
    run_page(page, tmp_path, CUDA_VISIBLE_DEVICES="", **variables)


@pytest.mark.parametrize("name", sorted(DESCRIBED))
def test_page_without_compilers(name, tmp_path):
    [page] = [each for each in pages.PAGES if each.name == name]
    assert pytest.mark.compile in marked(page).marks, "it compiles nothing"
    run_page(page, tmp_path, "described", CUDA_VISIBLE_DEVICES="")


@pytest.mark.gpu
@pytest.mark.skipif(not device.available(), reason="needs a GPU: run make test-gpu on a machine with one")
@pytest.mark.parametrize("page", [page for page in pages.PAGES if kinds(page) & {"python", "pycon"}], ids=page_name)
def test_page_on_a_gpu(page, tmp_path):
    if page.name == "hopper.md" and device.compute_capability() != 90:
        pytest.skip("needs a Hopper GPU")
    run_page(page, tmp_path, "gpu")


@pytest.mark.parametrize("line", COMMANDS)
def test_commands_exist(line):
    program, *words = shlex.split(line)
    if program == "pycutlass":
        group = [word for word in words[:2] if re.fullmatch("[a-z]+", word)]
        assert CliRunner().invoke(cli.app, [*group, "--help"]).exit_code == 0
        assert set(re.findall(r"--[a-z-]+", line)) <= options_of(group)
    elif program == "make":
        targets = re.findall(r"^([a-z-]+):", (pages.ROOT / "Makefile").read_text(), re.MULTILINE)
        assert words[0] in targets
    elif [program, *words[:2]] == ["python3", "-m", "tools.fuzz"]:
        from tools.fuzz.__main__ import _options

        assert set(re.findall(r"--[a-z-]+", line)) <= set(re.findall(r"--[a-z-]+", _options().format_help()))
    else:
        assert [program, words[0]] == ["pip", "install"], "a command that this test does not know"
        extras = tomllib.loads((pages.ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
        assert {extra for word in words for extra in re.findall(r"\[(\w+)\]", word)} <= extras.keys()


def options_of(group: list[str]) -> set[str]:
    text = CliRunner().invoke(cli.app, [*group, "--help"], env={"COLUMNS": "200", "NO_COLOR": "1"}).output
    return set(re.findall(r"--[a-z-]+", text))


@pytest.mark.parametrize("page", [*pages.PAGES, pages.ROOT / "CHANGELOG.md"], ids=page_name)
def test_links_lead_somewhere(page):
    for link in re.findall(r"\]\(([^)#]+)", page.read_text()):
        target = (page.parent / link).resolve()
        assert target.exists() or str(target.relative_to(pages.ROOT)) in GENERATED, link


@pytest.mark.parametrize("page", pages.PAGES, ids=page_name)
def test_files_and_names_exist(page):
    for name in re.findall(r"`([\w./]+)`", page.read_text()):
        if re.match(r"(pycutlass|csrc|docs|examples|tests|benchmarks|tools|third_party)/", name):
            assert (pages.ROOT / name).exists() or name in GENERATED, name
        elif name.startswith("pycutlass."):
            assert resolves(name), name


def resolves(dotted: str) -> bool:
    parts = dotted.split(".")
    for length in range(len(parts), 0, -1):
        try:
            thing = importlib.import_module(".".join(parts[:length]))
        except ModuleNotFoundError:
            continue
        return all((thing := getattr(thing, part, None)) is not None for part in parts[length:])
    return False


def test_the_floors_are_those_of_the_layering_test():
    tree = ast.parse((pages.ROOT / "tests" / "unit" / "test_layering.py").read_text())
    assigned = {ast.unparse(node.target): node.value for node in tree.body if isinstance(node, ast.AnnAssign)}
    floors = [set(rooms.split()) for rooms in ast.literal_eval(assigned["FLOORS"])]
    rows = re.findall(r"^\| (\d+) \| (.*?) \|", (pages.ROOT / "docs" / "architecture.md").read_text(), re.MULTILINE)
    assert [int(number) for number, _ in rows] == list(range(len(floors)))
    assert [set(re.findall(r"`(\w+)`", rooms)) for _, rooms in rows] == floors


def test_the_exceptions_are_those_of_the_code():
    text = (pages.ROOT / "docs" / "guide" / "troubleshooting.md").read_text()
    rows = dict(re.findall(r"^\| `(\w+)` \| `(\w+)` \|", text, re.MULTILINE))
    assert rows.keys() == {*errors.__all__} - {"PyCutlassError"}
    for name, also in rows.items():
        assert also in {base.__name__ for base in getattr(errors, name).__mro__[1:]}


@pytest.mark.compile
def test_the_fields_of_the_key_are_those_that_the_compiler_makes():
    text = (pages.ROOT / "docs" / "architecture.md").read_text()
    table = text.partition("| field | what |")[2].partition("\n\n")[0]
    listed = re.findall(r"`(\w+)`", "".join(row.split("|")[1] for row in table.splitlines() if row))
    source = KernelSource("kernel", "", 80, native=False)
    made = [find_tools(backend, without_memo).key_fields(source, "sm_80") for backend in ("nvcc", "nvrtc")]
    assert sorted(listed) == sorted({*made[0], *made[1], "host_includes"})  # which is there where CXX names files
