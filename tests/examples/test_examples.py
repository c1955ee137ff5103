"""Every example runs, says that it passed, and warns of nothing."""

from __future__ import annotations

import os
import runpy
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from marks import thorough

from pycutlass import _core, compiler

EXAMPLES = Path(__file__).parents[2] / "examples"
RUNS = [*((path.name,) for path in sorted(EXAMPLES.glob("[0-9]*.py"))), ("03_inspect_kernel.py", "--hopper")]
#: Those whose headers g++ reads as they are: of convolutions. A command below has those of GEMMs and reductions, and
#: tests/compile/test_hopper_classes.py of Hopper-native ones. Device compilers do so always, and `make thorough` in all
#: examples.
WITH_PLAIN_HEADERS = (("09_conv2d_fprop.py",),)
#: Those that `make test` runs without compilers, since others and tests/compile have such kernels; `make thorough`
#: compiles them, and so do tests on a GPU.
WITHOUT_COMPILERS = (
    "02_gemm_cupy.py",
    "04_gemm_split_k_parallel.py",
    "05_gemm_batched_and_array.py",
    "06_gemm_grouped.py",
    "07_int8_interleaved.py",
    "08_activations_and_bias.py",
    "10_conv2d_backward.py",
    "11_conv2d_split_k.py",
    "12_mixture_of_experts.py",
    "13_hopper_gemms.py",
)
LATER = (*((name,) for name in WITHOUT_COMPILERS), ("03_inspect_kernel.py", "--hopper"))
CUSTOMIZABLE = ("gemm.py", "gemm_grouped.py", "conv2d.py")
#: Commands for the customizable examples, by name: of every kind that the original's were documented with.
COMMANDS: dict[str, list[str]] = {
    name: shlex.split(command)
    for name, command in (
        line.split(": ", 1)
        for line in (Path(__file__).parent / "commands.txt").read_text().splitlines()
        if line and not line.startswith("#")
    )
}
#: Those that are compiled as well. The others differ in what tests/compile and tests/gpu have of all kernels.
COMPILED = (
    "f16, parallel split-K",
    "f16, serial split-K",
    "a batch",
    "bf16, bias and gelu",
    "int8, K too large for the fast clamp",
)
#: Of these, those that `make test` compiles, beside SIMT's: a GEMM and its reduction. What the others do apart from
#: compiling is tested below; kernels of their types and epilogues are compiled as examples.
COMPILED_ALWAYS = COMPILED[:1]
#: The original's defaults, spelled out.
SIMT = "gemm.py -i 1 1 1 -op Simt -b 128 128 8 -s 4 -w 4 2 1 -p 512 256 128 -alpha 1.0 -beta 0.5 -gm Gemm -k 1"
#: int8 in groups of 32, whose sizes are in a file of their own.
INTERLEAVED = (
    "gemm_grouped.py -i 16 8 32 -ta int8 -tb int8 -tc int8 -tacc int32 -op TensorOp -b 64 64 64 -s 6 -w 2 2 1 "
    "-la ColumnMajorInterleaved32 -aa 16 -lb RowMajorInterleaved32 -ab 16 -lc ColumnMajorInterleaved32 -ac 8 "
    "-ep FastLinearCombinationClamp -alpha 1.0 -beta 2.0"
)
# What PyCUTLASS may say of the machine in its log, which is no word about the example.
ABOUT_THE_MACHINE = ("no GPU (", "the CUDA toolkit in ")


@pytest.fixture
def on_the_host(monkeypatch, tmp_path):
    """Return a function that runs a command here, without compiler and GPU, and returns the kernels it asked for."""
    kernels = []
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(_core, "device_count", lambda: 0)

    def add_module(operations, target=None):
        assert target in (None, "sm_90a")
        kernels.extend(each.emit() for each in operations)

    monkeypatch.setattr(compiler, "add_module", add_module)

    def run(script, *options):
        monkeypatch.setattr(sys, "argv", [script, *options])
        runpy.run_path(str(EXAMPLES / script), run_name="__main__")
        return kernels

    return run


def test_the_examples_are_found():
    assert {"00_gemm_torch.py", "01_gemm_numpy.py", "02_gemm_cupy.py", "03_inspect_kernel.py"} <= {
        run[0] for run in RUNS
    }
    assert {command[0] for command in COMMANDS.values()} == set(CUSTOMIZABLE)


@pytest.mark.compile
@pytest.mark.parametrize("run", [thorough(run) if run in LATER else run for run in RUNS], ids=" ".join)
def test_example(run, tmp_path, quick_host_compiler):
    assert {*WITH_PLAIN_HEADERS, *LATER} < set(RUNS)
    passes(run, tmp_path, {} if run in WITH_PLAIN_HEADERS else quick_host_compiler)


@pytest.mark.parametrize("name", WITHOUT_COMPILERS)
def test_example_without_compilers(name, on_the_host, capsys):
    on_the_host(name)
    assert capsys.readouterr().out.rstrip().endswith("Passed.")


@pytest.mark.compile
@pytest.mark.parametrize(
    "command",
    [
        pytest.param(SIMT.split(), id="simt"),
        *(
            pytest.param(COMMANDS[name], id=name, marks=() if name in COMPILED_ALWAYS else pytest.mark.thorough)
            for name in COMPILED
        ),
    ],
)
def test_commands_as_programs(command, tmp_path, quick_host_compiler):
    passes((*command, "--print_cuda"), tmp_path, {} if command == COMMANDS[COMPILED_ALWAYS[0]] else quick_host_compiler)


@pytest.mark.parametrize("name", COMMANDS)
def test_commands_on_the_host(name, on_the_host, capsys):
    """Everything but the compilers: flags, description, text, operands, the operation's meaning, the comparison."""
    command = COMMANDS[name]
    kernels = on_the_host(*command)
    assert capsys.readouterr().out.rstrip().endswith("Passed.")
    assert len(kernels) == (2 if {"GemmSplitKParallel", "Parallel"} & set(command) else 1)


@pytest.mark.parametrize("name", ["fprop SIMT, parallel split-K", "wgrad SIMT, serial split-K"])
def test_simt_convolutions_load_single_elements(name, on_the_host):
    """The original's commands ask for 4 at a time."""
    assert "-aa 4 -ab 4" in " ".join(COMMANDS[name])
    text = on_the_host(*COMMANDS[name])[0]
    assert text.count("cutlass::layout::TensorNHWC, 1>") == 3
    assert "OpClassSimt" in text


def test_a_strided_dgrad_does_not_split_k(on_the_host, capsys):
    on_the_host(*COMMANDS["dgrad tf32, strided with two slices"])
    assert "cannot split K: 1 slice instead of 2" in capsys.readouterr().out


@pytest.mark.parametrize("mode", ["Device", "Host"])
def test_an_interleaved_group(mode, on_the_host, tmp_path, capsys):
    (tmp_path / "sizes.csv").write_text("32,32,32\n1,544,224\n0,64,32\n130,32,256\n64,96,64\n")
    [text] = on_the_host(*INTERLEAVED.split(), "-p", "sizes.csv", "-pm", mode)
    assert "5 problems" in capsys.readouterr().out
    assert text.count("ColumnMajorInterleaved<32>") == 2
    assert text.count("RowMajorInterleaved<32>") == 1


@pytest.mark.parametrize("options", [[], ["-bias"]])
def test_a_group_with_empty_problems(options, on_the_host, tmp_path, capsys):
    (tmp_path / "sizes.csv").write_text("0,64,32\n7,0,5\n3,4,0\n9,8,7\n")
    on_the_host("gemm_grouped.py", "-p", "sizes.csv", "-beta", "1.0", *options)
    assert capsys.readouterr().out.rstrip().endswith("Passed.")


#: What the parsers offer and the library has no kernel for, and words of what is said of it.
REFUSED = [
    (["-te", "bfloat16"], ["DescriptionError: element_epilogue must be one of f16, f32, f64 and s32", "bfloat16"]),
    (["-te", "int8"], ["DescriptionError: element_epilogue", "cutlass.int8"]),
    (["-ta", "int32", "-tb", "int32"], ["DescriptionError: there is no math instruction Simt s32 x s32"]),
    (["-tb", "float64"], ["DescriptionError: element_a and element_b must be the same type"]),
    (["-tc", "tfloat32"], ["DescriptionError", "can write f32, f16, bf16, s8; got cutlass.tfloat32"]),
    (["-tacc", "int8"], ["DescriptionError: there is no math instruction", "-> s8"]),
    (["-cc", "120"], ["DescriptionError: compute_capability", "got 120", "compute_capability=89"]),
    (["-i", "8", "8", "4", "-op", "TensorOp", "-ta", "float16", "-tb", "float16"], ["DescriptionError", "is Volta's"]),
]


@pytest.mark.parametrize("script", CUSTOMIZABLE)
@pytest.mark.parametrize(("options", "words"), REFUSED, ids=[" ".join(options) for options, _ in REFUSED])
def test_what_is_no_kernel_ends_with_a_sentence(script, options, words, on_the_host):
    with pytest.raises(SystemExit) as caught:
        on_the_host(script, *options)
    assert all(word in str(caught.value) for word in words), str(caught.value)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["-pad", "4", "1", "5", "0"], ["There is no such problem", "padding must be the same before and after"]),
        (["-co", "dgrad", "-st", "Unity", "-stride", "2", "2"], ["The kernel cannot compute this problem"]),
    ],
    ids=str,
)
def test_what_is_no_convolution_ends_with_a_sentence(options, words, on_the_host):
    with pytest.raises(SystemExit) as caught:
        on_the_host("conv2d.py", *options)
    assert all(word in str(caught.value) for word in words), str(caught.value)


def test_a_refusal_has_no_traceback(tmp_path):
    done = run(("gemm_grouped.py", "-te", "bfloat16"), tmp_path, {})
    assert done.returncode == 1
    [line] = done.stderr.splitlines()
    assert line.startswith("DescriptionError: element_epilogue must be one of")


def passes(command, tmp_path, variables):
    done = run(command, tmp_path, variables)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.rstrip().endswith("Passed."), done.stdout
    said = [line for line in done.stderr.splitlines() if not line.startswith(ABOUT_THE_MACHINE)]
    assert said == []
    assert list(tmp_path.iterdir()) == [], "an example leaves nothing behind"


def run(command, tmp_path, variables):
    script, *options = command
    deprecated = "ignore:`torch.jit:DeprecationWarning"  # what torch 2.11's own compiler uses
    return subprocess.run(
        [sys.executable, "-W", "error", "-W", deprecated, EXAMPLES / script, *options],
        cwd=tmp_path,
        # torch makes the directory of its compiler's cache when it is imported, in TMPDIR unless one is named.
        env={
            **os.environ,
            "TMPDIR": str(tmp_path),
            "TORCHINDUCTOR_CACHE_DIR": str(tmp_path.parent / "inductor"),
            **variables,
        },
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
