"""Problems by names are what plans of such tensors are, in files and on the command line."""

from __future__ import annotations

import pickle
import sys
from pathlib import Path
from typing import Any

import pytest
from tuned import GPU

import pycutlass
from pycutlass import cutlass
from pycutlass.epilogue import fusions, gelu
from pycutlass.errors import ArgumentError, ArgumentTypeError
from pycutlass.tuning import TuningOptions, conv2d_problem_of, group_problem_of, problem_of, read_problems
from pycutlass.tuning.files import named_problem
from pycutlass.tuning.named import DTYPES, EPILOGUES, LAYOUTS
from pycutlass.tuning.problems import considered, problems_of

SPEC = pycutlass.TensorSpec
STORED = {"tf32": "float32", "3xtf32": "float32", "float_e4m3": "float8_e4m3fn"}


@pytest.mark.parametrize("size", [(512, 256, 384), (100, 36, 72)])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_what_is_measured_of_a_name_is_what_plans_look_up(dtype: str, layout: str, size: tuple[int, int, int]) -> None:
    m, n, k = size
    stored = STORED.get(dtype, dtype)
    a = SPEC((m, k), stored, None if layout[0] == "t" else (1, m))
    b = SPEC((k, n), stored, None if layout[1] == "t" else (1, k))
    plan = pycutlass.Gemm(a, b, precision=dtype if dtype.endswith("tf32") else None)
    assert problem_of(m, n, k, dtype=dtype, layout=layout) == problems_of(plan)[0]


@pytest.mark.parametrize("epilogue", EPILOGUES)
def test_epilogues_by_name_have_kernels_in_all_families_that_have_them(epilogue: str) -> None:
    options = TuningOptions(most_candidates=2)
    problems: list[Any] = [problem_of(512, 256, 384, epilogue=epilogue)]
    problems.append(group_problem_of([64, 0, 128], 256, 384, epilogue=epilogue))
    if "glu" not in epilogue:  # which write half as many columns
        problems.append(conv2d_problem_of(4, 14, 14, 32, 64, 3, 3, padding=1, epilogue=epilogue))
    for problem in problems:
        assert problem.name.endswith(f", {epilogue}") and considered(problem, options, GPU)


def test_epilogues_by_name_are_those_of_plans() -> None:
    a, b, c = SPEC((64, 128), "float16"), SPEC((128, 256), "float16", (1, 128)), SPEC((64, 256), "float16")
    bias = SPEC((256,), "float16")
    plans = {
        ("bias_gelu", ""): pycutlass.Gemm(a, b, epilogue=fusions.bias_gelu),
        ("gelu", ""): pycutlass.Gemm(a, b, epilogue=gelu),
        ("gelu", "bias"): pycutlass.Gemm(a, b, bias=bias, epilogue=gelu),
        ("gelu", "matrix"): pycutlass.Gemm(a, b, c, beta=1, epilogue=gelu),
        ("", "matrix"): pycutlass.Gemm(a, b, c, beta=1),
        ("swiglu", ""): pycutlass.Gemm(a, b, epilogue=fusions.swiglu),
    }
    for (epilogue, source), plan in plans.items():
        assert problem_of(64, 256, 128, epilogue=epilogue, source=source) == problems_of(plan)[0]
    named = problem_of(64, 256, 128, epilogue="gelu", source="bias").name
    assert named == "64x256x128 f16 x f16 -> f16 + bias, gelu"
    batched = problem_of(64, 256, 128, 3, source="matrix")
    assert batched.batch == 3 and batched.source == "matrix"
    int8 = problem_of(64, 256, 128, dtype="int8", out_dtype="bfloat16", epilogue="dequantize")
    assert int8.kind.D.element is cutlass.bfloat16


def test_groups_by_name_are_those_of_plans() -> None:
    rows = (8, 0, 100)
    xs, ws = [SPEC((m, 64), "bfloat16") for m in rows], [SPEC((64, 256), "bfloat16", (1, 64))] * 3
    plan = pycutlass.GroupedGemm(xs, ws)
    by_rows = group_problem_of(rows, 256, 64, dtype="bfloat16")
    assert by_rows == problems_of(plan)[0]
    assert group_problem_of([(m, 256, 64) for m in rows], dtype="bfloat16") == by_rows
    for source, options in (("matrix", {"cs": [SPEC((m, 256), "bfloat16") for m in rows]}),
                            ("bias", {"bias": [SPEC((256,), "bfloat16")] * 3})):  # fmt: skip
        plan = pycutlass.GroupedGemm(xs, ws, beta=1, **options)
        problem = group_problem_of(rows, 256, 64, dtype="bfloat16", source=source)
        assert problem == problems_of(plan)[0] and problem.source == source


@pytest.mark.parametrize("kind", ["fprop", "dgrad", "wgrad"])
def test_convolutions_take_a_c_by_name(kind: str) -> None:
    problem = conv2d_problem_of(2, 8, 9, 16, 24, 3, 3, kind, padding=(1, 2), source="matrix", epilogue="relu")
    assert problem.source == "matrix" and problem.name.endswith(", padding 1x2, f16 x f16 -> f16 + C, relu")
    assert considered(problem, TuningOptions(most_candidates=2), GPU)


FILES = {
    "groups": (
        "problem_sizes,n,k,dtype\n64 2*8 0,256,128,bfloat16\n",
        lambda: [group_problem_of([64, 8, 8, 0], 256, 128, dtype="bfloat16")],
    ),
    "groups of any sizes": (
        '"problem-sizes",epilogue\n"[64x256x128, 8x512x64]",bias_relu\n64x8x8;2*16x8x8,\n',
        lambda: [
            group_problem_of([(64, 256, 128), (8, 512, 64)], epilogue="bias_relu"),
            group_problem_of([(64, 8, 8), (16, 8, 8), (16, 8, 8)]),
        ],
    ),
    "GEMMs with epilogues": (
        "m,n,k,epilogue,source\n64,128,256,bias_gelu,\n64,128,256,gelu,bias\n",
        lambda: [
            problem_of(64, 128, 256, epilogue="bias_gelu"),
            problem_of(64, 128, 256, epilogue="gelu", source="bias"),
        ],
    ),
    "convolutions as CUTLASS's profiler calls them": (
        "n,h,w,c,k,r,s,pad,stride,conv_kind\n2,8,9,16,24,3,3,1x2,2,dgrad\n2,8,9,16,24,3,3,same,,\n",
        lambda: [
            conv2d_problem_of(2, 8, 9, 16, 24, 3, 3, "dgrad", padding=(1, 2), stride=2),
            conv2d_problem_of(2, 8, 9, 16, 24, 3, 3, padding=1),
        ],
    ),
}


@pytest.mark.parametrize("name", FILES)
def test_files(name: str, tmp_path: Path) -> None:
    text, problems = FILES[name]
    (tmp_path / "problems.csv").write_text(text)
    assert read_problems(tmp_path / "problems.csv") == problems()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("problem_sizes,n,k\n64 x8,8,8\n", r"line 2, column problem_sizes: it must be M or MxNxK .* got 'x8'"),
        ("problem_sizes,n,k\n64 8x8,8,8\n", r"line 2, column problem_sizes: .* got '8x8'"),
        ("problem_sizes,n,k\n100001*8,8,8\n", r"line 2, column problem_sizes: it must have at most 100,000 products"),
        (f"problem_sizes,n,k\n{'9' * 5000},8,8\n", r"line 2, column problem_sizes: it must be M or MxNxK "),
        (f"m,n,k\n8,8,{'9' * 5000}\n", r"line 2, column k: it must be an integer, such as 512; got "),
        ("problem_sizes,n,k\n,8,8\n", r"line 2, column problem_sizes: it is empty, and groups need it"),
        ("problem_sizes,n,k\n8,8,eight\n", r"line 2, column k: it must be an integer, such as 512; got 'eight'"),
        ("problem_sizes\n8\n", r"line 2: problem_sizes\[0\] is 8, M alone: give n and k, for all products"),
        ("problem_sizes,n\n8x8x8,8\n", r"line 2: problem_sizes\[0\] has M, N and K, and n or k is given too"),
        ("problem_sizes,n,k\n0,8,8\n", r"line 2: no product of the group has elements"),
        ("problem_sizes,m\n8,8\n", r"needs the columns problem_sizes, .* it has problem_sizes, m\. "),
        ("problem_sizes,layuot\n8,tn\n", r"Did you mean layout\?"),
        ("m,n,k,m\n1,2,3,4\n", r"m is there twice"),
        ("m,n,k,epilogue\n8,8,8,bias_gleu\n", r"line 2: epilogue must be one of .*Did you mean bias_gelu\?"),
        ("m,n,k,source\n8,8,8,row\n", r"line 2: source must be one of matrix, bias; got 'row'"),
        ("m,n,k,epilogue,source\n8,8,8,bias_gelu,bias\n", r"line 2: source='bias' is for linear .*leave source out"),
        ("n,h,w,c,k,r,s,groups\n2,8,8,8,8,3,3,3\n", r"line 2: groups must divide c and k; got groups=3, c=8 and k=8$"),
        ("n,h,w,c,k,r,s\n2,2,8,8,8,3,3\n", r"line 2: the dilated filter must fit .* the padded input has 2$"),
        ("n,h,w,c,k,r,s,pad\n2,8,8,8,8,3,3,1x\n", r"line 2, column padding: it must be an integer, or two for .*'1x'"),
    ],
)
def test_lines_that_are_no_problems(text: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "problems.csv").write_text(text)
    with pytest.raises(ArgumentError, match=said):
        read_problems(tmp_path / "problems.csv")


def test_names_of_a_command_line() -> None:
    def asked(**given: str) -> Any:
        return named_problem(given, lambda name: f"--{name.replace('_', '-')}")

    assert asked(m="64", n="128", k="256", epilogue="relu") == problem_of(64, 128, 256, epilogue="relu")
    assert asked(problem_sizes="8 8", n="64", k="64") == group_problem_of([8, 8], 64, 64)
    for given, said in (
        ({"m": "8", "n": "8"}, r"GEMMs need --k too \(convolutions have --n, --h, .*; groups have --problem-sizes\)"),
        ({"n": "8", "h": "8"}, r"convolutions need --w, --c, --k, --r, --s too"),
        (
            {"problem_sizes": "8", "stride": "1"},
            r"groups have no --stride: leave it out; they have --problem-sizes, --n",
        ),
        ({"m": "8", "n": "8", "k": "x"}, r"^--k must be an integer, such as 512; got 'x'"),
    ):
        with pytest.raises(ArgumentError, match=said):
            asked(**given)


def test_sizes_that_are_no_group() -> None:
    with pytest.raises(ArgumentTypeError, match="problem_sizes must be a list of M, or of M, N and K each; got 'abc'"):
        group_problem_of("abc")
    with pytest.raises(ArgumentTypeError, match=r"problem_sizes\[1\] must be an integer, got 'x'"):
        group_problem_of([8, "x"], 8, 8)
    with pytest.raises(ArgumentError, match=r"problem_sizes\[0\] must be at least 0, got -1"):
        group_problem_of([-1], 8, 8)


OWN = """
import pycutlass
from pycutlass.epilogue import Row

@pycutlass.epilogue_function
def shifted(accum, shift: Row):
    return pycutlass.relu(accum + shift)

plain = 3
"""


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file with epilogue functions, which is a module as well."""
    file = tmp_path / "own_epilogues.py"
    file.write_text(OWN)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "own_epilogues", raising=False)
    return file


@pytest.mark.parametrize("where", ["own_epilogues", "own_epilogues.py", "./own_epilogues.py"])
def test_functions_of_users_are_found(own: Path, where: str) -> None:
    """A problem is that of a plan, also in the process that measures, which does not find the module."""
    (own.parent / "list.csv").write_text(f"m,n,k,epilogue\n64,256,128,{where}:shifted\n64,256,128,gelu\n")
    first, second = read_problems(own.parent / "list.csv")
    namespace: dict[str, Any] = {}
    exec(compile(OWN, str(own), "exec"), namespace)
    spec = pycutlass.TensorSpec
    plan = pycutlass.Gemm(
        spec((64, 128), "float16"), spec((128, 256), "float16", (1, 128)), epilogue=namespace["shifted"]
    )
    assert first == problems_of(plan)[0] and second.name.endswith("gelu")
    assert pickle.loads(pickle.dumps(first)) == first and considered(first, TuningOptions(), GPU)
    assert first.name == "64x256x128 f16 x f16 -> f16, shifted"


@pytest.mark.parametrize(
    ("name", "error", "said"),
    [
        ("own_epilogues.py:shifte", ArgumentError, "own_epilogues.py has no shifte; .* shifted. Did you mean shifted"),
        ("own_epilogues:plain", ArgumentTypeError, "must be an epilogue function, and it is 3: decorate it"),
        ("nowhere.py:shifted", ArgumentError, "cannot be imported: FileNotFoundError: there is no file"),
        ("no.such.module:shifted", ArgumentError, "cannot be imported: ModuleNotFoundError"),
        ("ends.py:shifted", ArgumentError, "cannot be imported: SystemExit"),
        ("wrong.py:shifted", ArgumentError, "cannot be imported: ZeroDivisionError"),
        ("mute.py:shifted", ArgumentError, "cannot be imported: Mute. Write"),
        ("replaced_module:shifted", ArgumentError, "replaced_module has no shifted"),
        (":shifted", ArgumentError, "a function of no module, which cannot be imported"),
    ],
)
def test_what_is_no_function_of_a_user(
    own: Path, name: str, error: type[Exception], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (own.parent / "mute.py").write_text("class Mute(Exception):\n    def __str__(self): raise ValueError\nraise Mute")
    (own.parent / "replaced_module.py").write_text("import sys\nsys.modules[__name__] = 3")
    monkeypatch.syspath_prepend(str(own.parent))
    (own.parent / "ends.py").write_text("raise SystemExit(3)")
    (own.parent / "wrong.py").write_text("1 / 0")
    with pytest.raises(error, match=said):
        problem_of(64, 256, 128, epilogue=name)
    (own.parent / "list.csv").write_text(f"m,n,k,epilogue\n64,256,128,{name}\n")
    with pytest.raises(ArgumentError, match=f"list.csv, line 2: .*{said}"):
        read_problems(own.parent / "list.csv")


@pytest.mark.parametrize("wrong", [cutlass.float16, 3, ["float16"]])
@pytest.mark.parametrize("what", ["dtype", "out_dtype", "source", "layout", "epilogue"])
def test_what_is_no_name_is_refused_as_that(what: str, wrong: Any) -> None:
    with pytest.raises(ArgumentTypeError, match=rf"^{what} must be "):
        problem_of(64, 64, 64, **{what: wrong})
