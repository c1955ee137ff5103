"""benchmarks/fusion_compile.py, as far as it compiles nothing: what it compares with what."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT))  # the benchmarks are not installed with the package

from benchmarks import fusion_compile as benchmark  # noqa: E402
from pycutlass.epilogue import fusions  # noqa: E402

PLAIN = benchmark.PLAIN


def test_every_ready_made_function_is_compiled_and_int8_ones_for_int8() -> None:
    for family in ("ampere", "hopper"):
        assert benchmark.functors(family).keys() == fusions.ALL.keys()
    assert {*benchmark.functors("int8"), *benchmark.functors("int8_D")} == {
        name for name in fusions.ALL if name.startswith(("dequantize", "requantize"))
    }


@pytest.mark.parametrize("family", benchmark.FAMILIES)
def test_a_function_changes_nothing_but_the_epilogue(family: str) -> None:
    plain = benchmark.operation(family, PLAIN)
    for name in benchmark.functors(family):
        made = benchmark.operation(family, name)
        assert made.epilogue_functor.name == name
        for part in ("tile_description", "A", "B", "C", "D", "swizzling_functor", "compute_capability"):
            assert getattr(made, part) == getattr(plain, part)


def test_every_function_has_plain_kernels_before_and_behind() -> None:
    names = [f"f{number}" for number in range(7)]
    order = list(benchmark.turns(names, 3, 2))
    assert order[0] == order[-1] == PLAIN
    assert all(order.count(name) == 3 for name in names)
    runs = " ".join(order).split(PLAIN)
    assert max(len(run.split()) for run in runs) == 2
    firsts = {run.split()[0] for run in runs if run}
    assert len(firsts) > 1, "not the same one always follows the plain kernel"


def test_a_function_is_compared_with_the_plain_kernels_around_it() -> None:
    """A machine that becomes slower says nothing about a function."""
    times = [(PLAIN, 10.0), ("f", 11.0), (PLAIN, 12.0), ("g", 30.0), ("f", 24.2), (PLAIN, 32.0), (PLAIN, 1.0)]
    samples = [{"name": name, "processor": seconds} for name, seconds in times]
    found = benchmark.ratios(samples, "processor")
    assert found["f"] == [pytest.approx(1.0), pytest.approx(1.1)]
    assert found["g"] == [pytest.approx(30 / 22)]


def test_samples_are_compared_again(tmp_path: Path) -> None:
    def sample(name: str, seconds: float) -> dict[str, object]:
        return {"name": name, "processor": seconds, "elapsed": seconds / 2}

    earlier = tmp_path / "earlier.json"
    raw = [sample(PLAIN, 10), sample("bias", 11), sample("bias_gelu", 12), sample(PLAIN, 10)]
    earlier.write_text(json.dumps({"environment": {"date": "then"}, "raw": {"ampere": raw}}))
    status = benchmark.main(["--out", str(tmp_path), "--again", str(earlier), "--only", "ampere"])
    made = json.loads((tmp_path / "fusion_compile.json").read_text())
    assert status == 1 and made["complete"] and made["environment"] == {"date": "then"}
    verdicts = {check["what"]: (check["value"], check["passed"]) for check in made["checks"]}
    assert verdicts["ampere, bias: of the plain kernel"] == (pytest.approx(1.1), True)
    assert verdicts["ampere, bias_gelu: of the plain kernel"] == (pytest.approx(1.2), False)
