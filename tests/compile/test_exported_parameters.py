"""What an exported library launches: the very parameters that Python makes, of real kernels' host sides."""

from __future__ import annotations

import fake_gpu
import pytest
from exported_plans import FORMS
from marks import thorough_but

pytestmark = [pytest.mark.compile, pytest.mark.usefixtures("quick_host_sides")]

_PROGRAM = """
import tempfile
from pathlib import Path
from exported_plans import FORMS, distances, host_sides, recorded
from pycutlass.exports.library import described, linked
from pycutlass.exports.loaded import load_library

use(0)
plan, tensors, inputs = FORMS[NAME][1]()
artifacts = host_sides(plan.candidate.kernels)
on_device = {name: Array(0, each) for name, each in tensors.items()}
beside = {name: Array(0, each) for name, each in inputs.items()}

kernels = plan.candidate.kernels
by_python = recorded(driver, kernels, lambda: plan.run(**on_device, epilogue_inputs=beside))

folder = Path(tempfile.mkdtemp())
(folder / "kernels.so").write_bytes(linked(folder, [described(plan, "plan")], artifacts, "kernels"))
library = load_library(folder / "kernels.so")
by_library = recorded(driver, kernels, lambda: library["plan"].run(**on_device, **beside))

# Only where the workspace is may differ: all addresses in it by the same distance.
most = int(plan.candidate.has_workspace)
for one, other in zip(by_python, by_library):
    assert one.grid == other.grid
    assert len(one.record) > 300
    assert len(distances(one.record, other.record)) <= most
    # CUTLASS's host code leaves tensor maps that a Hopper-native kernel does not read as it finds them on the stack.
    if not kernels[0].is_sm90:
        assert len(distances(one.params, other.params)) <= most
print(len(by_python))
driver.fake_only_record(0)
"""
#: Those that are tried each time: one of each kind of kernel, of what is launched beside it, and of what it is given.
USUAL = (
    "f16 with a C and parallel split-K",
    "stream-K",
    "f16 with a C and an activation",
    "few rows",
    "a batch with one b",
    "a function with a residual",
    "a reduction of rows, 90",
    "pairs of columns",
    "few rows for Hopper",
    "fprop with a bias",
    "wgrad",
)


@pytest.mark.parametrize("name", thorough_but(USUAL, FORMS))
def test_a_library_makes_the_parameters_that_python_makes(name):
    program = _PROGRAM.replace("NAME", repr(name))
    said = fake_gpu.run(program, seconds=300, capability=FORMS[name][0])
    assert int(said) == (2 if "parallel" in name else int(said))
