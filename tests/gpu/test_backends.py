"""Both compilers, the guard between device and host side, and a machine without any compiler."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from cases import HOPPER, OPERATIONS, assert_matches, poisoned, random_matrix

import pycutlass
from pycutlass import compiler, kernel
from pycutlass.errors import CacheError

M, N, K = 264, 136, 200


@pytest.mark.parametrize("name", ["f16_tnt", "bf16_nnt", "f32_simt_tnt", "hopper_pingpong", "hopper_cooperative_2x1"])
def test_both_compilers(name: str) -> None:
    described = OPERATIONS[name]
    before = compiler.backend()
    try:
        for backend in ("nvcc", "nvrtc"):
            operation = type(described)(*(getattr(described, field) for field in described._FIELDS))
            getattr(compiler, backend)()
            compiler.add_module([operation])
            (artifact,) = operation.artifacts.values()
            assert backend in artifact.report["compiler"]
            A, B = random_matrix(operation.A, M, K), random_matrix(operation.B, K, N)
            C, D = random_matrix(operation.C, M, N), poisoned(operation.C, M, N)
            arguments = pycutlass.GemmArguments(
                operation, (M, N, K), A, B, C, D, output_op=operation.epilogue_type(-1.0, 0.5)
            )
            operation.run(arguments)
            arguments.sync()
            assert_matches(operation, A, B, C, D, -1.0, 0.5)
    finally:
        getattr(compiler, before)()


def test_sides_of_different_kernels_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = OPERATIONS["f16_tnt"], HOPPER["hopper_pingpong"]
    (own,), (other,) = first.artifacts.values(), second.artifacts.values()
    monkeypatch.setitem(first.artifacts, own.target, replace(own, host=other.host, key="0" * 64))
    with pytest.raises(CacheError, match="different headers"):
        kernel.load(first, 0)


def test_registers_reported_are_those_of_the_loaded_kernel() -> None:
    for name in ("f16_tnt", "hopper_cooperative_2x1"):
        operation = OPERATIONS[name]
        (artifact,) = operation.artifacts.values()
        assert kernel.load(operation, 0).registers == artifact.report["registers"]


PROGRAM = """
import os, sys
import numpy as np
import pycutlass
from pycutlass import compiler, cutlass
from pycutlass.cache import KernelCache
from cases import ampere, f16, f32
if sys.argv[1] == "export":
    operation = ampere(f16, f32, f16)
    compiler.add_module([operation])
    KernelCache().export(sys.argv[2])
else:
    KernelCache().import_(sys.argv[2])
    operation = ampere(f16, f32, f16)
    compiler.add_module([operation])
    A = np.random.default_rng().standard_normal((64, 64)).astype(np.float16)
    D = np.full((64, 64), np.nan, np.float16)
    arguments = pycutlass.GemmArguments(operation, (64, 64, 64), A, A.T, None, D)
    operation.run(arguments)
    arguments.sync()
    np.testing.assert_allclose(D.astype(float), A.astype(float) @ A.T.astype(float), rtol=2e-3, atol=2e-3)
    print("ran without a compiler")
"""


def test_a_machine_without_any_compiler_runs_from_a_bundle(tmp_path: Path) -> None:
    bundle = tmp_path / "kernels.pycutlass"
    path = os.pathsep.join([str(Path(__file__).parent), *filter(None, [os.environ.get("PYTHONPATH")])])

    def run(mode: str, **environment: str) -> str:
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM, mode, str(bundle)],
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
            env={**os.environ, "PYTHONPATH": path, "PYCUTLASS_CACHE_DIR": str(tmp_path / mode), **environment},
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    run("export")
    # Nothing is named, and there is no g++: a variable that names what does not work would be an error.
    unset = dict.fromkeys(("CUDA_HOME", "CUDA_INSTALL_PATH", "CXX", "PYCUTLASS_BACKEND"), "")
    output = run("import", PATH=str(tmp_path / "nowhere"), PYCUTLASS_NO_COMPILE="1", **unset)
    assert "ran without a compiler" in output
