"""`add_module`: targets, compilers, failures, strict mode. The kernels are trivial and compile in 0.2 s."""

from __future__ import annotations

import ctypes
import dataclasses
import itertools
import logging
import os
import re
import subprocess

import pytest
from trivial_kernels import ON_THE_STACK, Operation

import pycutlass
from pycutlass import compiler, config, toolkit
from pycutlass.cache import KernelCache, make_key
from pycutlass.compiler import tools
from pycutlass.compiler.choice import choose_target
from pycutlass.compiler.schedule import make_processes
from pycutlass.cubin import kernel_names
from pycutlass.errors import ArgumentError, ArgumentTypeError, BuildReportError, CompileError, ToolkitError
from pycutlass.toolchain import Processes, reproduce

pytestmark = pytest.mark.usefixtures("private_session")


# What a kernel is built for.


@pytest.mark.parametrize(
    ("capability", "native", "wanted", "target"),
    [
        (80, False, None, "sm_80"),
        (90, True, None, "sm_90a"),
        (80, False, "sm_90", "sm_90"),
        (80, False, "sm_90a", "sm_90a"),
        (80, False, "sm_86", "sm_86"),
        (90, True, "sm_90", "sm_90a"),
        (90, True, "sm_90a", "sm_90a"),
        (80, False, "sm_120", "sm_120"),
    ],
)
def test_targets(capability, native, wanted, target):
    assert choose_target(Operation("k", compute_capability=capability, native=native).source(), wanted) == target


@pytest.mark.parametrize(
    ("capability", "native", "wanted", "words"),
    [
        (80, False, "sm_75", ["compute capability 80", "target is sm_75", "target='sm_80'"]),
        (90, True, "sm_80", ["compute capability 90", "target is sm_80", "target='sm_90a'"]),
        (90, True, "sm_100", ["for that architecture only", "sm_100"]),
        (80, False, "sm80", ["target is 'sm80'", "sm_90a"]),
        (80, False, "compute_80", ["none"]),
        (80, False, "", ["target is ''"]),
        (80, False, "sm_８０", ["none"]),  # noqa: RUF001 - digits of another alphabet
    ],
)
def test_targets_that_do_not_fit(capability, native, wanted, words):
    with pytest.raises(ArgumentError) as caught:
        choose_target(Operation("k", compute_capability=capability, native=native).source(), wanted)
    assert all(word in str(caught.value) for word in words)


def test_where_the_target_comes_from(monkeypatch):
    source = Operation("k").source()
    monkeypatch.setattr("pycutlass.device.current_target", lambda: "sm_89")
    assert choose_target(source) == "sm_89"
    monkeypatch.setenv("PYCUTLASS_TARGET", "sm_86")
    assert choose_target(source) == "sm_86"
    assert choose_target(source, "sm_90") == "sm_90"
    monkeypatch.setenv("PYCUTLASS_TARGET", "sm_75")
    with pytest.raises(ArgumentError, match="PYCUTLASS_TARGET is sm_75"):
        choose_target(source)
    monkeypatch.delenv("PYCUTLASS_TARGET")
    monkeypatch.setattr("pycutlass.device.current_target", lambda: "sm_75")
    with pytest.raises(ArgumentError, match="the present GPU is sm_75"):
        choose_target(source)


def test_an_untried_target_is_noted(caplog):
    choose_target(Operation("k").source(), "sm_100")
    assert "sm_100 is not among" in caplog.text


# One kernel.


def test_an_operation_gets_its_artifact(tmp_path):
    operation = Operation("kernel_a")
    (artifact,) = compiler.add_module([operation])
    assert operation.artifacts == {"sm_80": artifact}
    assert (artifact.name, artifact.target, artifact.key) == ("kernel_a", "sm_80", make_key(artifact.fields))
    assert kernel_names(artifact.cubin) == ("kernel_a",)
    (tmp_path / "host.so").write_bytes(artifact.host)
    info = (ctypes.c_uint32 * 2)()
    ctypes.CDLL(str(tmp_path / "host.so")).pycutlass_describe(info)
    assert list(info) == [1, 16]
    assert artifact.report["registers"] > 0 and artifact.report["cubin_bytes"] == len(artifact.cubin)
    assert artifact.report["compiler"].startswith("nvrtc 1")
    assert KernelCache().get(artifact.key) == artifact


def test_targets_of_one_operation_are_kept_apart():
    operation = Operation("kernel_a")
    compiler.add_module([operation])
    compiler.add_module([operation], target="sm_90")
    assert set(operation.artifacts) == {"sm_80", "sm_90"}
    assert operation.artifacts["sm_80"].cubin != operation.artifacts["sm_90"].cubin


@pytest.mark.parametrize("wrong", [Operation("k"), [Operation("k"), "kernel"], ["kernel"], None, 80, [Operation]])
def test_what_is_no_list_of_operations_is_refused(wrong):
    with pytest.raises(ArgumentTypeError, match="list of operations"):
        compiler.add_module(wrong)


def test_a_list_without_an_end_is_refused_at_its_first_wrong_item():
    for call in (compiler.add_module, compiler.compile_many):
        with pytest.raises(ArgumentTypeError, match="item 0 is 1"):
            call(itertools.count(1))


def test_a_class_is_no_operation():
    with pytest.raises(
        ArgumentTypeError, match=r"item 1 is the class ReductionOperation: .*ReductionOperation\(\.\.\.\)"
    ):
        compiler.add_module([Operation("k"), pycutlass.ReductionOperation])


@pytest.mark.parametrize("target", [80, b"sm_80", ["sm_80", 90], 0, {}, {"sm_80"}, False, [None]], ids=repr)
def test_a_target_is_a_string_or_a_list_of_them(target):
    rule = f"'sm_80', a list of them, or None for the present GPU; got {target!r}"
    with pytest.raises(ArgumentTypeError, match=re.escape(rule)):
        compiler.add_module([Operation("k")], target=target)


def test_several_targets_in_one_call(builds):
    first, second = Operation("kernel_a"), Operation("kernel_b")
    artifacts = compiler.add_module([first, second], target=["sm_80", "sm_90"])
    assert [(artifact.name, artifact.target) for artifact in artifacts] == [
        (name, target) for name in ("kernel_a", "kernel_b") for target in ("sm_80", "sm_90")
    ]
    assert first.artifacts == dict(zip(("sm_80", "sm_90"), artifacts[:2], strict=True))
    assert len(builds) == 4
    assert compiler.add_module([first], target=("sm_90",)) == artifacts[1:2]
    assert len(builds) == 4
    with pytest.raises(ArgumentError, match="target is an empty list"):
        compiler.add_module([first], target=[])
    with pytest.raises(ArgumentError, match="target is sm_75"):
        compiler.add_module([first], target=["sm_80", "sm_75"])


def test_a_reduction_is_built_for_what_its_gemms_are_built_for(monkeypatch):
    def reduction() -> Operation:
        behind = Operation("reduction", compute_capability=75)
        behind.follows = True
        return behind

    assert pycutlass.ReductionOperation.follows and not pycutlass.GemmOperationUniversal.follows
    alone, behind, hopper = reduction(), reduction(), Operation("hopper", compute_capability=90, native=True)
    assert [artifact.target for artifact in compiler.add_module([alone])] == ["sm_75"]
    gemm = Operation("gemm")
    assert [artifact.target for artifact in compiler.add_module([gemm, behind, hopper])] == ["sm_80", "sm_80", "sm_90a"]
    assert set(behind.artifacts) == {"sm_80"}
    both = reduction()
    made = compiler.add_module([gemm, Operation("later", compute_capability=86), both])
    assert [artifact.target for artifact in made] == ["sm_80", "sm_86", "sm_86"] and set(both.artifacts) == {
        "sm_80",
        "sm_86",
    }
    named = reduction()
    assert [artifact.target for artifact in compiler.add_module([gemm, named], target="sm_90")] == ["sm_90", "sm_90"]
    monkeypatch.setattr("pycutlass.device.current_target", lambda: "sm_90")
    assert [artifact.target for artifact in compiler.add_module([gemm, reduction()])] == ["sm_90", "sm_90"]


def test_an_artifact_is_shown_in_a_line():
    [artifact] = compiler.add_module([Operation("kernel_a")])
    assert repr(artifact).startswith(f"<Artifact {artifact.key[:12]}: kernel_a for sm_80, ")
    assert "registers" in repr(artifact) and len(repr(artifact)) < 120


@pytest.mark.parametrize("strict", ["no", 0, 1, [], "1"], ids=repr)
def test_strict_is_a_flag(strict):
    with pytest.raises(ArgumentTypeError, match=re.escape(f"PYCUTLASS_STRICT says; got {strict!r}")):
        compiler.add_module([Operation("k")], strict=strict)


@pytest.mark.parametrize("name", ["PYCUTLASS_NO_COMPILE", "PYCUTLASS_STRICT"])
def test_a_variable_that_says_neither_yes_nor_no_is_refused(monkeypatch, builds, name):
    monkeypatch.setenv(name, "ture")
    with pytest.raises(ArgumentError, match=f"{name} must be one of 1, true, yes, on, 0, false, no, off; it is 'ture'"):
        compiler.add_module([Operation("kernel_a")])
    assert builds == []
    for said, means in [("1", True), ("TRUE", True), ("on", True), ("0", False), ("Off", False), ("", False)]:
        monkeypatch.setenv(name, said)
        assert config.flag(name) is means


def test_a_cache_in_the_home_of_nobody_is_in_memory(monkeypatch, caplog, builds):
    monkeypatch.setenv("PYCUTLASS_CACHE_DIR", "~nobody-of-this-name/cache")
    for _ in range(2):
        compiler.add_module([Operation("kernel_a")])
    assert builds == ["kernel_a"]
    assert "absolute path, not ~nobody-of-this-name/cache: correct or unset PYCUTLASS_CACHE_DIR" in caplog.text


def test_an_empty_module_is_nothing():
    assert compiler.add_module([]) == []


def test_equal_operations_are_compiled_once(builds):
    first, second, other = Operation("kernel_a"), Operation("kernel_a"), Operation("kernel_b")
    artifacts = compiler.add_module([first, second, other, first])
    assert sorted(builds) == ["kernel_a", "kernel_b"]
    assert [artifact.name for artifact in artifacts] == ["kernel_a", "kernel_a", "kernel_b", "kernel_a"]
    assert first.artifacts == second.artifacts


def test_kernels_of_one_name_and_different_text_live_together(builds):
    first, second = Operation("kernel_a"), Operation("kernel_a", body="params.out[0] = 2;")
    one, two = compiler.add_module([first, second])
    assert one.key != two.key and one.cubin != two.cubin and len(builds) == 2


def test_sides_that_disagree_are_refused(tmp_path):
    broken = Operation("kernel_a", extra="\n#ifdef __CUDACC__\nint more[4];\n#endif\n")
    with pytest.raises(CompileError, match=r"kernel_a.* 32 bytes .* 16\b"):
        compiler.add_module([broken])
    assert broken.artifacts == {} and KernelCache().entries() == []


# Which device compiler.


def test_backend_is_nvcc_where_there_is_one(monkeypatch):
    monkeypatch.delenv("PYCUTLASS_BACKEND")

    def present(memo):
        return toolkit.find_nvrtc()

    def missing(memo):
        raise ToolkitError("not here")

    monkeypatch.setattr(tools, "_FINDERS", {"nvcc": present, "nvrtc": missing})
    assert compiler.backend() == "nvcc"
    monkeypatch.setattr(tools, "_FINDERS", {"nvcc": missing, "nvrtc": present})
    assert compiler.backend() == "nvrtc"
    monkeypatch.setattr(tools, "_FINDERS", {"nvcc": missing, "nvrtc": missing})
    with pytest.raises(ToolkitError, match="there is no device compiler"):
        compiler.backend()


def test_backend_is_chosen_by_call_before_variable(monkeypatch):
    monkeypatch.setattr(tools, "_FINDERS", dict.fromkeys(["nvcc", "nvrtc"], lambda memo: toolkit.find_nvrtc()))
    monkeypatch.setenv("PYCUTLASS_BACKEND", "nvcc")
    assert compiler.backend() == "nvcc"
    compiler.nvrtc()
    assert compiler.backend() == "nvrtc"
    compiler.nvcc()
    assert compiler.backend() == "nvcc"


def test_an_unknown_backend_is_refused(monkeypatch):
    monkeypatch.setenv("PYCUTLASS_BACKEND", "clang")
    with pytest.raises(ArgumentError, match=r"one of nvcc, nvrtc; it is 'clang'"):
        compiler.add_module([Operation("kernel_a")])


def test_the_log_says_once_who_compiles(caplog):
    with caplog.at_level(logging.INFO, "pycutlass"):
        compiler.add_module([Operation("kernel_a")])
        compiler.add_module([Operation("kernel_b")])
    assert caplog.text.count("kernels are compiled by nvrtc 1") == 1


def test_an_untried_cutlass_is_noted_once(monkeypatch, caplog):
    known = toolkit.find_cutlass()
    monkeypatch.setattr(tools, "find_cutlass", lambda: dataclasses.replace(known, version="4.9.0"))
    compiler.add_module([Operation("kernel_a")])
    compiler.add_module([Operation("kernel_a")])
    assert caplog.text.count("version 4.9.0; PyCUTLASS is written for") == 1


# Failures.


def test_a_failure_has_log_source_and_command_and_leaves_nothing(tmp_path):
    operation = Operation("kernel_a", body="params.out[0] = it's wrong \\n;")
    with pytest.raises(CompileError) as caught:
        compiler.add_module([operation])
    error = caught.value
    assert "kernel_a for sm_80" in str(error) and "error" in error.log and error.source == operation.source().text
    assert f"4 | {error.source.splitlines()[3]}" in str(error)
    assert operation.artifacts == {}
    assert KernelCache().entries() == []
    assert {path.name.partition("-")[0] for path in (tmp_path / "cache").iterdir() if path.is_file()} == {"kernels.db"}


@pytest.mark.parametrize("side", ["device", "host"])
def test_the_command_in_a_failure_reproduces_it(side, tmp_path):
    condition = "#ifdef" if side == "device" else "#ifndef"
    operation = Operation("kernel_a", extra=f"\n{condition} __CUDACC__\nint quote = 'a' + undefined_name;\n#endif\n")
    with pytest.raises(CompileError) as caught:
        compiler.add_module([operation])
    done = subprocess.run(
        ["sh", "-c", caught.value.command], capture_output=True, text=True, env={**os.environ, "TMPDIR": str(tmp_path)}
    )
    assert done.returncode == 1
    assert "undefined_name" in done.stdout + done.stderr and "undefined_name" in caught.value.log
    mended = caught.value.command.replace("'a' + undefined_name", "'a'")
    subprocess.run(["sh", "-c", mended], check=True, capture_output=True, env={**os.environ, "TMPDIR": str(tmp_path)})


def test_a_command_survives_its_own_end_mark(tmp_path):
    text = "END_OF_KERNEL\nEND_OF_KERNEL_\n$HOME `ls` \\ 'quoted'"
    shown = subprocess.run(
        ["sh", "-c", reproduce(["cat", "kernel.cu"], text)],
        check=True, capture_output=True, text=True, env={**os.environ, "TMPDIR": str(tmp_path)},
    )  # fmt: skip
    assert shown.stdout == text + "\n"


def test_the_others_of_a_call_are_kept_and_every_failure_is_told(builds):
    good, bad, worse = Operation("good"), Operation("bad", body="bad_name;"), Operation("worse", body="worse_name;")
    with pytest.raises(CompileError) as caught:
        compiler.add_module([bad, good, worse])
    for part in ("2 of 3 kernels", "kernel bad for", "bad_name", "kernel worse for", "worse_name", "To reproduce"):
        assert part in str(caught.value)
    assert "bad_name" in caught.value.log and caught.value.command
    assert [entry.name for entry in KernelCache().entries()] == ["good"]
    builds.clear()
    compiler.add_module([good])
    assert builds == []


@pytest.mark.parametrize("jobs", ["0", "many", "9" * 10, "9" * 5000], ids=len)
def test_jobs_that_nobody_has_are_refused(monkeypatch, jobs):
    monkeypatch.setenv("PYCUTLASS_JOBS", jobs)
    with pytest.raises(ArgumentError, match=r"PYCUTLASS_JOBS is the most compilers to run at once, 1 to 999999999"):
        make_processes()


def test_a_program_that_cannot_start_is_a_toolkit_error(tmp_path):
    with pytest.raises(ToolkitError, match="/nowhere/nvcc cannot be started"):
        Processes(1, 1).run(["/nowhere/nvcc"], tmp_path, memory=1, group="")


# Strict mode.


def test_a_bad_kernel_is_logged_and_refused_in_strict_mode(caplog, builds, monkeypatch):
    operation = Operation("kernel_a", body=ON_THE_STACK)
    compiler.add_module([operation])
    assert operation.artifacts["sm_80"].report["stack_bytes"] >= 256
    assert caplog.text.count("stack frame of 256 bytes") == 1
    strict = Operation("kernel_a", body=ON_THE_STACK)
    for ask in (lambda: compiler.add_module([strict], strict=True), lambda: compiler.add_module([strict])):
        monkeypatch.setenv("PYCUTLASS_STRICT", "1")
        with pytest.raises(BuildReportError, match=r"strict mode refuses the kernel:\n  kernel_a: .*256 bytes"):
            ask()
    assert strict.artifacts == {}
    compiler.add_module([strict], strict=False)
    assert "sm_80" in strict.artifacts
    assert builds == ["kernel_a"], "whether a kernel is refused is not part of its key"


def test_a_bad_kernel_is_logged_when_it_comes_from_the_cache(caplog, builds, monkeypatch):
    compiler.add_module([Operation("kernel_a", body=ON_THE_STACK)])
    monkeypatch.setattr("pycutlass.log._said", set())  # as another process would begin
    caplog.clear()
    for _ in range(2):
        compiler.add_module([Operation("kernel_a", body=ON_THE_STACK)])
    assert builds == ["kernel_a"]
    assert caplog.text.count("kernel_a for sm_80: each thread has a stack frame of 256 bytes") == 1


def test_a_good_kernel_passes_strict_mode():
    operation = Operation("kernel_a")
    compiler.add_module([operation], strict=True)
    assert "sm_80" in operation.artifacts
