"""Operators in C++: what they are, what they refuse, and what a library of kernels is given by them.

They are registered for a whole process, so each test has one of its own. A library of kernels is written in C for them
(host_library.py); it does on the host what it says.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

import forked_programs
import pytest
from host_library import host_library
from native_operators import handed_out, of_host_tensors
from native_operators import shipped as shipped_operators

from pycutlass.errors import ArgumentError, ArgumentTypeError, CompileError, NotCompiledError
from pycutlass.pytorch import build_native, load_native
from pycutlass.pytorch.native import _built

BEGIN = """
import hashlib
import os
import torch
import pycutlass.pytorch
from pycutlass.pytorch import load_native

kernels, later, another, empty, *more, operators = LIBRARIES
load_native(operators)
ops = torch.ops.pycutlass_kernels


def refused(message, call):
    try:
        call()
    except Exception as error:
        assert message in str(error), error
    else:
        raise AssertionError(message)


a, b = torch.ones(2, 4), torch.full((2, 4), 2.0)
out = torch.zeros(2, 4)
"""
AS_IT_SHIPS = """
schema = "pycutlass_kernels::run(str library, str plan, Tensor[] read, Tensor(a!)[] written, float[] scalars=[]) -> ()"
assert str(ops.run.default._schema) == schema
rest = schema.partition("str plan")[2]
of_bytes = f"pycutlass_kernels::run_embedded(Tensor library, str digest, str plan{rest}"
assert str(ops.run_embedded.default._schema) == of_bytes
load_native("elsewhere.so")  # which does nothing where they are loaded
assert ops.manifest(kernels) == '{"plans": 3}'
refused("sum runs on GPUs, and one of its tensors is on another device", lambda: ops.run(kernels, "sum", [a, b], [out]))
refused("none.so cannot be opened", lambda: ops.run("none.so", "sum", [a], [out]))
refused("is no library of kernels: it lacks pycutlass_get_library", lambda: ops.run(operators, "sum", [a], [out]))
refused("has no plan product: it has sum, sums, shape", lambda: ops.run(kernels, "product", [a], [out]))
refused("has version 7 of the interface, and these operators are for version 1", lambda: ops.manifest(later))
missing = "this build of torch is without CUDA" if torch.version.cuda is None else "no GPU can be used"
if not torch.cuda.is_available():
    refused(missing, lambda: ops.load(kernels, "sum"))
library, digest = pycutlass.pytorch.embedded(kernels)
run_embedded = ops.run_embedded
refused("has no plan product: it has sum, sums", lambda: run_embedded(library, digest, "product", [a], [out]))
refused("sum runs on GPUs, and one of", lambda: run_embedded(library, digest, "sum", [a, b], [out]))
changed = library.clone()
changed[100] += 1
other = digest[::-1]  # the library of the right digest is open, and its bytes are read no more
refused(f"have the SHA-256 {digest}, and digest is {other}", lambda: run_embedded(library, other, "sum", [a], [out]))
refused(f", and digest is {other}: pass both as", lambda: run_embedded(changed, other, "sum", [a], [out]))
for wrong in (library.float(), library[::2], library[None], library.to(torch.int8)):
    refused("library must be the bytes that", lambda: run_embedded(wrong, other, "sum", [a], [out]))
for size in (0, 1, 55, 56, 63, 64, 65, 1000):  # of blocks of 64, of which the last has 9 bytes of its own
    some = torch.arange(size).to(torch.uint8)
    made = hashlib.sha256(bytes(some.tolist())).hexdigest()
    refused("which the program carries, cannot be opened", lambda: run_embedded(some, made, "sum", [a], [out]))
of_none = pycutlass.pytorch.embedded(empty)
refused("it lacks pycutlass_get_library", lambda: run_embedded(*of_none, "sum", [a], [out]))
refused("has version 7 of", lambda: run_embedded(*pycutlass.pytorch.embedded(later), "sum", [a], [out]))
refused("none.so cannot be read: No such file", lambda: pycutlass.pytorch.embedded("none.so"))
mixed = "run and run_embedded are given tensors on the meta device, which have no memory, and others that have"
refused(mixed, lambda: run_embedded(library.to("meta"), digest, "sum", [a, b], [out]))
refused(mixed, lambda: ops.run(kernels, "sum", [a, b.to("meta")], [out]))
ops.run(kernels, "sum", [a.to("meta"), b.to("meta")], [out.to("meta")])
asking = a.clone().requires_grad_()
message = "a tensor of read requires a gradient, and pycutlass_kernels.run"
refused(message, lambda: ops.run(kernels, "sum", [asking, b], [out]))


class Model(torch.nn.Module):
    def forward(self, a, b):
        out = torch.empty_like(a)
        ops.run(kernels, "sum", [a, b], [out], [2.0])
        return out + 1


program = torch.export.export(Model(), (a, b), dynamic_shapes=({0: torch.export.Dim("m")}, {0: torch.export.Dim("m")}))
assert "pycutlass_kernels.run" in program.graph_module.code


class Carrying(torch.nn.Module):
    def forward(self, a, b):
        out = torch.empty_like(a)
        ops.run_embedded(library, digest, "sum", [a, b], [out], [2.0])
        return out + 1


program = torch.export.export(Carrying(), (a, b))
[constant] = program.constants.values()
assert torch.equal(constant, library)
"""
WITH_HOST_TENSORS = """
refused("the kernels of sum are for sm_90a, and GPU 0 is sm_80", lambda: ops.load(kernels, "sum"))
ops.run(kernels, "sum", [a, b], [out])
assert out.eq(9).all()
library, digest = pycutlass.pytorch.embedded(kernels)
copied = library.clone()
for scale in (1.0, 2.0):  # the bytes are read once
    ops.run_embedded(copied, digest, "sum", [a, b], [out], [scale])
    assert out.eq(3 * scale).all()
    copied.zero_()
later_library = pycutlass.pytorch.embedded(another)  # whose file in memory must not be taken for the first one's
ops.run_embedded(*later_library, "sum", [a, b], [out])
assert out.eq(15).all()
ops.run_embedded(library, digest, "sum", [a, b], [out])
assert out.eq(9).all()
files = len(os.listdir("/proc/self/fd"))
for number in range(3):  # whose files get the same number, one after the other
    kept = pycutlass.pytorch.embedded(more[number])
    ops.run_embedded(*kept, "sum", [a, b], [out])
    assert out.eq(3 * (6 + number)).all(), out
of_none = pycutlass.pytorch.embedded(empty)
refused("it lacks pycutlass_get_library", lambda: ops.run_embedded(*of_none, "sum", [a], [out]))
assert len(os.listdir("/proc/self/fd")) == files
ops.run(kernels, "sum", [a.T.contiguous().T, b], [out], [0.5])
assert out.eq(1.5).all()
outs = [torch.zeros(2, 4), torch.zeros(1, 4)]
ops.run(kernels, "sums", [a, b, b[:1], b[:1]], outs, [1.0])
assert outs[0].eq(3).all() and outs[1].eq(4).all()
saved = (asked := a.clone().requires_grad_()) * out
ops.run(kernels, "sum", [a, b], [out])
refused("modified by an inplace operation", lambda: saved.sum().backward())
with torch.inference_mode():
    inferred = torch.zeros(2, 4)
ops.run(kernels, "sum", [a, b], [inferred])
assert inferred.eq(9).all()
found = torch.zeros(8, dtype=torch.int64)
images = torch.ones(2, 3, 5, 6, dtype=torch.bool).to(memory_format=torch.channels_last)
ops.run(kernels, "shape", [images], [found])
assert found.tolist() == [2, 5, 6, 3, 90, 18, 3, 1]
refused("M is 9, and the plan takes 8 at most", lambda: ops.run(kernels, "sum", [torch.ones(9, 4)] * 2, [out]))
refused("sum reads 2 and writes 1 tensors, and 1 and 1 are given", lambda: ops.run(kernels, "sum", [a], [out]))
refused("sums reads 2 and writes 1 tensors for each problem", lambda: ops.run(kernels, "sums", [a, b, b], outs))
refused("sum has 1 scalars, and 2 are given", lambda: ops.run(kernels, "sum", [a, b], [out], [1.0, 2.0]))
refused("a is of a type that no kernel takes", lambda: ops.run(kernels, "sum", [a.cfloat(), b], [out]))
refused("a of sum has 5 dimensions", lambda: ops.run(kernels, "sum", [torch.ones([1] * 5), b], [out]))


def model(a, b):
    out = torch.empty_like(a)
    ops.run(kernels, "sum", [a, b], [out], [2.0])
    return out + 1


compiled = torch.compile(model, backend="aot_eager", fullgraph=True, dynamic=True)
for rows in (2, 3):
    assert compiled(torch.ones(rows, 4), torch.ones(rows, 4)).eq(5).all()
"""


@pytest.fixture(scope="module")
def libraries(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Three libraries of kernels, of which the second speaks a later version of the interface, and the third differs
    in a number, as three more do; and a shared object that is none."""
    folder = tmp_path_factory.mktemp("kernels")
    kernels, another = host_library(folder / "kernels.so"), host_library(folder / "another.so", scale="5.0")
    subprocess.run(["gcc", "-shared", "-x", "c", "/dev/null", "-o", str(folder / "empty.so")], check=True)
    later = host_library(folder / "later.so", version="7")
    more = [host_library(folder / f"{scale}.so", scale=f"{scale}.0") for scale in (6, 7, 8)]
    return [kernels, later, another, str(folder / "empty.so"), *more]


@pytest.fixture(scope="module")
def shipped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The operators as they ship."""
    return shipped_operators(tmp_path_factory)


def passes(script: str, libraries: list[str], operators: Path) -> None:
    text = BEGIN.replace("LIBRARIES", repr([*libraries, str(operators)])) + script
    done = forked_programs.run(text)
    assert done.returncode == 0, done.stderr


def test_registration_and_errors(libraries: list[str], shipped: Path) -> None:
    passes(AS_IT_SHIPS, libraries, shipped)


def test_what_a_library_is_given(libraries: list[str], tmp_path_factory: pytest.TempPathFactory) -> None:
    passes(WITH_HOST_TENSORS, libraries, of_host_tensors(tmp_path_factory))


def test_it_is_for_all_torch_since_2_10(shipped: Path) -> None:
    """Nothing of torch is used but the C functions of its stable ABI."""
    names = subprocess.run(["nm", "-D", "--undefined-only", str(shipped)], capture_output=True, text=True, check=True)
    symbols = [line.split()[-1].partition("@")[0] for line in names.stdout.splitlines()]
    assert any(name.startswith("aoti_torch_") for name in symbols)
    assert not [name for name in symbols if "c10" in name or "3at" in name or name.startswith("_ZN5torch")]


def test_it_takes_nothing_from_others(shipped: Path) -> None:
    """It shows no symbol, so none in the process takes the place of its own, and is bound as a whole when loaded."""
    shown = subprocess.run(["nm", "-D", "--defined-only", str(shipped)], capture_output=True, text=True, check=True)
    assert shown.stdout == ""
    dynamic = subprocess.run(["readelf", "-d", str(shipped)], capture_output=True, text=True, check=True)
    assert "NOW" in dynamic.stdout


def test_its_file_stays_for_as_long_as_the_process(
    shipped: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CXX", handed_out(shipped, tmp_path))
    script = """
from pathlib import Path
from pycutlass.pytorch import load_native
load_native()
(path,) = {line.split(maxsplit=5)[5] for line in Path("/proc/self/maps").read_text().splitlines() if "_kernels" in line}
print(path)
assert Path(path).is_file(), path
"""
    done = forked_programs.run(script)
    assert done.returncode == 0, done.stderr
    assert not Path(done.stdout.strip()).parent.exists()


def test_other_and_damaged_shared_objects_are_refused(libraries: list[str], tmp_path: Path) -> None:
    """Of a file that is cut off, the loader dies by a signal; of another, torch has no such operator."""
    cut = tmp_path / "cut.so"
    cut.write_bytes(Path(libraries[0]).read_bytes()[:8192])
    script = f"""
from pycutlass.errors import ArgumentError
from pycutlass.pytorch import load_native
for path in ({str(cut)!r}, {libraries[0]!r}):
    try:
        load_native(path)
    except ArgumentError as error:
        print(error)
"""
    done = forked_programs.run(script)
    assert done.returncode == 0, done.stderr
    first, second = done.stdout.splitlines()
    assert "its end is missing" in first and "has no operators pycutlass_kernels" in second


#: What names no file.
UNFIT = [
    (3, "path must be a path"),
    (b"x", "path must be a path"),
    ("a\0b", "without NUL"),
    ("a\ud800", "halves of surrogate pairs"),
    ("", "path must name the file"),
]


def test_what_cannot_be_built_or_loaded(
    shipped: Path, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(CompileError, match="failed with exit status 1 on the operators in C"):
        _built(tmp_path / "operators.so", "-DPYCUTLASS_LIBRARY_H")
    monkeypatch.setenv("CXX", handed_out(shipped, tmp_path_factory.mktemp("compiler")))
    with pytest.raises(CompileError, match=r"cannot be written to .*absent/operators.so: No such file or directory"):
        build_native(tmp_path / "absent" / "operators.so")
    with pytest.raises(ArgumentError, match=r"there is no file .*: write it with pycutlass.pytorch.build_native"):
        load_native(tmp_path / "operators.so")
    (tmp_path / "operators.so").write_text("no library")
    with pytest.raises(ArgumentError, match="cannot be loaded as the operators in C"):
        load_native(tmp_path / "operators.so")
    for path, message in UNFIT:
        with pytest.raises((ArgumentError, ArgumentTypeError), match=message):
            build_native(path)
    with pytest.raises(CompileError, match="Is a directory"):
        build_native(tmp_path)
    assert not [each for each in tmp_path.parent.iterdir() if each.name.startswith(".pycutlass")]
    for path in (*(path for path, _ in UNFIT), "x" * 5000, "/"):
        with pytest.raises((ArgumentError, ArgumentTypeError)):
            load_native(path)
    monkeypatch.setenv("PYCUTLASS_NO_COMPILE", "1")
    with pytest.raises(NotCompiledError, match="PYCUTLASS_NO_COMPILE is set"):
        build_native(tmp_path / "operators.so")
