"""A kernel's key follows the headers of CUDA that it may include, and no others that lie beside them."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import pytest
from tool_trees import key_now, same_size_and_time, script

from pycutlass import toolkit
from pycutlass.cache import KernelCache
from pycutlass.toolkit import Toolkit

pytestmark = pytest.mark.usefixtures("private_session")


@pytest.fixture
def cuda(monkeypatch, tmp_path) -> Path:
    """A small tree that stands for a CUDA toolkit with its C++ library, and the variable that names it."""
    include = tmp_path / "cuda" / "include"
    for folder in ("crt", "nv", "cooperative_groups", "cccl/cuda/std", "cccl/thrust", "cccl/nv"):
        (include / folder).mkdir(parents=True)
    for name in CUDA_HEADERS:
        (include / name).write_text("// one")
    monkeypatch.setenv("CUDA_HOME", str(tmp_path / "cuda"))
    script(tmp_path / "nvcc", "exit 1")
    (tmp_path / "cuda" / "bin").mkdir()
    (tmp_path / "nvcc").rename(tmp_path / "cuda" / "bin" / "nvcc")
    return include


CUDA_HEADERS = (
    *("cuda_runtime.h", "cuda_fp16.h", "cuda_fp16.hpp", "vector_types.h", "mma.h", "crt/mma.hpp", "nv/target"),
    *("cooperative_groups/reduce.h", "cccl/cuda/std/utility", "cccl/nv/target", "cuComplex.h", "sm_80_intrinsics.h"),
)


def cuda_digest_now() -> str:
    """Return the digest of CUDA's headers as the cache remembers it."""
    with contextlib.closing(KernelCache()) as cache:
        return toolkit.find_nvcc(cache.memo).digest(cache.memo)


@pytest.mark.parametrize("name", CUDA_HEADERS)
def test_a_header_of_cuda_that_changed_within_its_size_and_time_is_found(cuda, name):
    before = cuda_digest_now()
    same_size_and_time(cuda / name, "// two")
    between = cuda_digest_now()
    (cuda / name).with_name("cuda_new.h").write_text("// new")
    assert len({before, between, cuda_digest_now()}) == 3


def test_headers_of_other_libraries_beside_cuda_make_no_other_kernel(cuda):
    before = cuda_digest_now()
    for name in ("cublas_v2.h", "cudnn.h", "cupti.h", "curand_kernel.h", "nccl.h", "nvrtc.h", "cccl/thrust/sort.h"):
        (cuda / name).write_text("// of another library")
    (cuda / "nvtx3").mkdir()
    (cuda / "nvtx3" / "nvToolsExt.h").write_text("// of another library")
    (cuda / "cuda_gone.h").symlink_to("/nowhere")
    os.mkfifo(cuda / "cuda_pipe.h")
    assert cuda_digest_now() == before


@pytest.mark.parametrize("name", ["stdio.h", "cstdint", "cccl/cstdint", "cuchar", "sys/types.h", "nv"])
def test_a_header_that_comes_before_one_of_the_system_is_found(cuda, name):
    """Kernels are compiled with these directories before those of the system."""
    before = cuda_digest_now()
    (cuda / name).parent.mkdir(exist_ok=True)
    (cuda / name / "new" if name == "nv" else cuda / name).write_text("#error nobody has asked for this one")
    assert cuda_digest_now() != before


def test_headers_of_cuda_are_in_the_key(monkeypatch, tmp_path):
    before = key_now()
    monkeypatch.setattr(Toolkit, "digest", lambda self, *given: "another")
    assert key_now() != before
