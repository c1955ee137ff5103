"""Names and modules of the original: there for scripts that ask for them, and nowhere else."""

from __future__ import annotations

import importlib
import json
import sys

import ml_dtypes
import numpy as np
import pytest
from descriptions import run_python

import pycutlass
from pycutlass import compat, cutlass, errors

MODULES = {
    "conv2d_operation": ["Conv2dArguments", "Conv2dOperation"],
    "gemm_operation": ["GemmArguments", "GemmGroupedArguments", "GemmOperationGrouped", "GemmOperationUniversal"],
    "memory_manager": ["PoolMemoryManager", "get_allocated_size", "todevice", "device_mem_alloc", "align_size"],
    "test": [
        "GpuTimer",
        "GemmUniversalLauncher",
        "test_all_gemm",
        "Conv2dLauncher",
        "test_all_conv2d",
        "TestbedGrouped",
    ],
    "test.conv2d_testbed": ["Conv2dLauncher", "test_all_conv2d"],
    "test.gemm_grouped_testbed": ["TestbedGrouped"],
    "test.gemm_testbed": ["GemmUniversalLauncher", "test_all_gemm"],
    "test.profiler": ["GpuTimer"],
    "utils": ["SubstituteTemplate", "device_cc"],
    "utils.device": ["check_cuda_errors", "device_cc"],
    "utils.reference_model": ["Conv2dReferenceModule", "ReferenceModule"],
}


@pytest.mark.parametrize("name", MODULES)
def test_modules_are_found_and_have_their_names(name):
    module = importlib.import_module(f"pycutlass.{name}")
    assert module.__name__ == f"pycutlass.{name}"
    assert "/compat/modules/" in str(module.__file__)
    for each in MODULES[name]:
        value = getattr(module, each)
        assert getattr(pycutlass, each, value) is value, "one thing under two names, not two things"


def test_modules_are_attributes_too():
    done = run_python(
        "import pycutlass; print(pycutlass.utils.device.device_cc, pycutlass.test, pycutlass.memory_manager)"
    )
    assert "device_cc" in done


@pytest.mark.parametrize("name", compat.NAMES)
def test_the_star_import_brings_every_name(name):
    namespace = {}
    exec("from pycutlass import *", namespace)
    assert namespace[name] is not None
    assert name in pycutlass.__all__


def test_names_of_other_libraries():
    assert pycutlass.np is np
    assert pycutlass.bfloat16 is ml_dtypes.bfloat16
    assert pycutlass.os is sys.modules["os"] and pycutlass.re is sys.modules["re"]


def test_torch_and_rmm_are_imported_when_they_are_used():
    program = """
import json, sys
from pycutlass import *
before = "torch" in sys.modules, "rmm" in sys.modules
print(json.dumps([before, str(torch.float16), repr(torch), "torch" in sys.modules, "rmm" in sys.modules]))
"""
    assert json.loads(run_python(program)) == [
        [False, False],
        "torch.float16",
        "<module 'torch', imported on first use>",
        True,
        False,
    ]


def test_rmm_has_what_it_had():
    """Allocators have modules of their own in RMM by now; scripts know them as names of RMM."""
    from rmm.allocators.torch import rmm_torch_allocator

    assert pycutlass.rmm.rmm_torch_allocator is rmm_torch_allocator
    assert callable(pycutlass.rmm.rmm_cupy_allocator)
    assert pycutlass.rmm.mr.PoolMemoryResource
    with pytest.raises(AttributeError, match="rmm"):
        _ = pycutlass.rmm.no_such_name


def test_torch_is_torch_where_it_has_been_imported():
    import torch

    assert pycutlass.torch is torch


def test_importing_the_library_imports_nothing_of_it():
    program = (
        "import json, sys, pycutlass; print(json.dumps([n for n in sys.modules if n.startswith('pycutlass.compat')]))"
    )
    assert json.loads(run_python(program)) == []


@pytest.mark.parametrize("name", ["nothing_of_the_kind", "frontend", "__wrapped__"])
def test_other_names_are_not_there(name):
    with pytest.raises(AttributeError, match=name):
        getattr(pycutlass, name)
    with pytest.raises(AttributeError, match=name):
        getattr(cutlass, name)
    with pytest.raises(AttributeError, match=name):
        getattr(cutlass.gemm, name)


def test_sizes_of_element_types():
    sizes = pycutlass.DataTypeSize
    assert {sizes[getattr(cutlass, name)] for name in ("int32", "float32", "tfloat32")} == {32}
    assert (sizes[cutlass.int8], sizes[cutlass.bfloat16], sizes[cutlass.float64]) == (8, 16, 64)
    assert (sizes[cutlass.dtype.b1], sizes[cutlass.dtype.s4], sizes[cutlass.dtype.cf64]) == (1, 4, 128)
    assert pycutlass.ShortDataTypeNames[cutlass.float16] == "h"
    assert pycutlass.GemmKind.Universal is not pycutlass.GemmKind.Grouped


@pytest.mark.parametrize(
    ("template", "values", "text"),
    [
        ("${a}-${b}", {"a": "1", "b": "2"}, "1-2"),
        ("${a}", {"a": "${b}", "b": "deep"}, "deep"),
        ("${a} ${other}", {"a": r"\1 \g<0>"}, r"\1 \g<0> ${other}"),
        ("$a {a}", {"a": "1"}, "$a {a}"),
    ],
)
def test_templates(template, values, text):
    assert pycutlass.SubstituteTemplate(template, values) == text


def test_templates_without_an_end():
    with pytest.raises(errors.ArgumentError, match="leads back to itself"):
        pycutlass.SubstituteTemplate("${a}", {"a": "${a}x"})
    with pytest.raises(errors.ArgumentTypeError):
        pycutlass.SubstituteTemplate("${a}", {"a": 1})


def test_results_of_the_runtime():
    class Code:
        value, name = 2, "cudaErrorMemoryAllocation"

    check = importlib.import_module("pycutlass.utils.device").check_cuda_errors
    assert check((0,)) is None
    assert check((0, "one")) == "one"
    assert check((0, "one", "two")) == ("one", "two")
    with pytest.raises(errors.DeviceError, match="cudaErrorMemoryAllocation"):
        check((Code(), None))


def test_device_cc_without_a_gpu_is_that_of_the_named_target(monkeypatch, without_gpu):
    for target, capability in (("sm_80", 80), ("sm_90a", 90)):
        monkeypatch.setenv("PYCUTLASS_TARGET", target)
        assert pycutlass.device_cc() == capability
    for nothing in ("", "volta"):
        monkeypatch.setenv("PYCUTLASS_TARGET", nothing)
        with pytest.raises(errors.DeviceError, match=r"no GPU .* PYCUTLASS_TARGET .* sm_80"):
            pycutlass.device_cc()


def test_memory(without_gpu):
    module = importlib.import_module("pycutlass.memory_manager")
    assert module.PoolMemoryManager(2**20, 2**22).get_allocated_size() == module.get_allocated_size() == 0
    assert [module.align_size(size) for size in (0, 1, 256, 257)] == [0, 256, 256, 512]
    with pytest.raises(errors.DeviceError):
        module.todevice([1.0, 2.0])
    with pytest.raises(errors.ArgumentTypeError, match="list or an array"):
        module.todevice("text")
    with pytest.raises(errors.ArgumentTypeError, match="number of bytes"):
        module.device_mem_alloc(-1)
