"""Build reports from what nvcc and NVRTC print."""

from __future__ import annotations

import json

import pytest

from pycutlass.report import NO_PROBLEMS, BuildReport

NVCC = """ptxas info    : 11 bytes gmem, 88 bytes cmem[4]
ptxas info    : Compiling entry function 'gemm' for 'sm_80'
ptxas info    : Function properties for gemm
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 246 registers, used 1 barriers, 256 bytes smem, 720 bytes cmem[0]
ptxas info    : Compile time = 429.141 ms
"""
NVRTC = """cute/arch/copy_sm90_desc.hpp is compiled with the alignment of cuda.h
ptxas info    : 20326 bytes gmem
ptxas info    : Compiling entry function 'gemm' for 'sm_90a'
ptxas info    : Function properties for gemm
ptxas         .     0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 168 registers, used 2 barriers
"""
SERIALIZED = (
    "ptxas info    : (C7510) Potential Performance Loss: wgmma.mma_async instructions are serialized due to the "
    "presence of Extern calls in the function 'gemm'\n"
)


def read(log: str, kernel: str = "gemm") -> BuildReport:
    return BuildReport.from_log(
        log,
        kernel,
        constant_bytes=720,
        seconds_device=2.5,
        seconds_host=1.25,
        cubin_bytes=40_000,
        compiler="nvcc 13.0.88",
    )


@pytest.mark.parametrize(("log", "registers", "shared"), [(NVCC, 246, 256), (NVRTC, 168, 0)], ids=["nvcc", "nvrtc"])
def test_a_good_kernel(log, registers, shared):
    report = read(log)
    assert (report.registers, report.static_shared_bytes, report.constant_bytes) == (registers, shared, 720)
    assert (report.stack_bytes, report.spill_store_bytes, report.spill_load_bytes) == (0, 0, 0)
    assert (report.warnings, report.wgmma_serialized, report.problems()) == ((), False, [])
    assert f"{registers} registers, no spills" in report.summary()


def test_spills_and_a_stack_frame_are_problems():
    spilled = NVRTC.replace(
        "0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads",
        "48 bytes stack frame, 24 bytes spill stores, 36 bytes spill loads",
    )
    report = read(spilled)
    assert (report.stack_bytes, report.spill_store_bytes, report.spill_load_bytes) == (48, 24, 36)
    first, second = report.problems()
    assert "24" in first and "36" in first and "168 registers" in first
    assert "48 bytes" in second
    assert "60 bytes of spills" in report.summary()


def test_serialized_wgmma_is_a_problem():
    report = read(SERIALIZED + SERIALIZED + NVRTC)
    assert report.wgmma_serialized
    assert len(report.warnings) == 1 and report.warnings[0].startswith("(C7510)")
    assert any("serialised" in problem for problem in report.problems())


@pytest.mark.parametrize(
    "line",
    [
        "ptxas info    : (C7504) Potential Performance Loss: 'setmaxnreg' ignored to maintain compatibility.",
        "ptxas warning : Registers are spilled to local memory in function 'gemm', 8 bytes spill stores",
    ],
)
def test_other_warnings_of_the_assembler_are_problems(line):
    report = read(f"{line}\n{NVCC}")
    assert report.warnings == (line.split(" : ", 1)[1],)
    assert not report.wgmma_serialized
    assert line.split(" : ", 1)[1] in report.problems()[0]


@pytest.mark.parametrize("name", NO_PROBLEMS)
def test_whatever_makes_a_problem_is_looked_for(name):
    sound = read(NVCC).as_json()
    assert NO_PROBLEMS.items() <= sound.items() and not BuildReport.from_json(sound).problems()
    bad = {int: 8, bool: True, list: ["something"]}[type(NO_PROBLEMS[name])]
    assert BuildReport.from_json({**sound, name: bad}).problems()


def test_a_remark_is_no_warning():
    remark = "ptxas info    : Disabling default position-independent-code(pic) compilation mode\n"
    assert read(remark + NVRTC).problems() == []


def test_each_kernel_has_its_own_numbers():
    other = NVCC.replace("gemm", "other").replace("246", "32").replace("0 bytes spill stores", "4 bytes spill stores")
    both = NVCC + other
    assert (read(both).registers, read(both).spill_store_bytes) == (246, 0)
    assert (read(both, "other").registers, read(both, "other").spill_store_bytes) == (32, 4)


def test_a_log_without_the_kernel_does_not_pass_for_a_good_one():
    assert any("does not say" in problem for problem in read("").problems())
    assert any("does not say" in problem for problem in read(NVCC, "another").problems())


@pytest.mark.parametrize("log", [NVCC, SERIALIZED + NVRTC, ""])
def test_json_round_trip(log):
    report = read(log)
    assert BuildReport.from_json(json.loads(json.dumps(report.as_json()))) == report


def test_functions_that_the_kernel_calls_are_not_the_kernel():
    helper = """ptxas info    : Function properties for helper
    80 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
"""
    begin = "ptxas info    : Compiling entry function 'gemm' for 'sm_80'\n"
    assert read(NVCC + helper).stack_bytes == 0
    assert read(NVCC.replace(begin, begin + helper)).stack_bytes == 0
