# `make demo` and `make test` set up what they need: all it takes is Python 3.11, 3.12 or 3.13, and g++.
#
#   make demo       what this machine has, and two examples: no GPU and no nvcc needed
#   make test       all tests that need no GPU, but for those that take minutes, on all cores
#   make thorough   those as well, examples and the guide without precompiled headers, and the rules of tiles: every tile
#                   proven (core-hours), misuse, and kernels emulated for MINUTES=10
#   make proof      the rules of tiles: every tile proven, on all cores, or a part of them: SHARD=1/8
#   make test-gpu   the tests that need a GPU, with $(PYTHON), where PyCUTLASS must be installed
#   make fuzz-gpu   random kernels of every family on random problems, from SEED=1, for MINUTES=6, with $(PYTHON)
#   make bundle     the package pycutlass-kernels: default kernels compiled for all targets, which takes hours, or for
#                   TARGETS=sm_90a, and of each the first MOST=40; what was compiled before is not compiled again.
#                   BUNDLE_ARGS="--jobs 4" is passed on to the tool
#   make lint       ruff, mypy and clang-format; `make format` mends what can be mended
#   make clean      delete everything that these made
#
# PYTHON=python3.12 chooses the Python; PYTEST_ARGS="-k cache" is passed on to pytest.

PYTHON ?= python3
PYTEST_ARGS ?=
SHARD ?= 1/1
MINUTES ?= 10
SEED ?= 1
MOST ?= 400
OUT ?= results
# Files of tests are shared out one by one, in the order of tests/conftest.py, where those that compile come first.
IN_PARALLEL := -n $(shell nproc) --dist loadfile --no-loadscope-reorder
# Those of tests/gpu are not collected by every worker, only to be left out: tests/unit/test_gpu_shards.py collects them.
WITHOUT_GPU := --ignore=tests/gpu
VENV := .venv
BIN := $(VENV)/bin

# Python files are used where they are; when one of these changes, the extension is built again.
SOURCES := setup.py pyproject.toml $(wildcard csrc/*.cpp csrc/*.h csrc/*.map) pycutlass/include/pycutlass/abi.h
CPP := $(wildcard csrc/*.cpp csrc/*.h pycutlass/include/pycutlass/*.h $(addprefix pycutlass/exports/c/*,.c .h .cu) $(addprefix pycutlass/pytorch/cpp/*,.cpp .h) examples/embed_in_cpp/*.cpp $(addprefix tests/emulation/*,.cpp .h) tests/proof/*.h $(addprefix tests/unit/fake_gpu/*,.c .cpp .h))

# Tests start hundreds of Pythons, each of which would compile all modules again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help demo test thorough proof test-gpu fuzz-gpu bundle lint format clean
.DELETE_ON_ERROR:

help:
	@sed -n 's/^# \{0,1\}//p' Makefile | sed '/^PYTHON=/q'

demo: $(VENV)/.base
	$(BIN)/pycutlass doctor
	$(BIN)/python examples/01_gemm_numpy.py
	$(BIN)/python examples/03_inspect_kernel.py

test: $(VENV)/.dev
	$(BIN)/python -m pytest $(WITHOUT_GPU) -m "not gpu and not thorough" $(IN_PARALLEL) $(PYTEST_ARGS)

thorough: $(VENV)/.dev
	HYPOTHESIS_PROFILE=thorough $(BIN)/python -m pytest tests/unit/test_rules.py tests/unit/test_misuse.py $(PYTEST_ARGS)
	$(BIN)/python -m pytest -m "thorough and not gpu" $(PYTEST_ARGS)
	HEADERS=plain $(BIN)/python -m pytest -m "compile and not gpu" tests/examples tests/unit/test_docs.py $(PYTEST_ARGS)
	PROOF=whole $(BIN)/python -m pytest tests/proof $(PYTEST_ARGS)
	$(BIN)/python tests/proof/table.py --shard $(SHARD)
	$(BIN)/python tests/emulation/tiles.py --minutes $(MINUTES)

proof: $(VENV)/.dev
	$(BIN)/python tests/proof/table.py --shard $(SHARD)

test-gpu:
	$(PYTHON) -c 'from pycutlass import device; device.require()'
	$(PYTHON) -m pytest tests/gpu tests/examples tests/unit/test_docs.py::test_page_on_a_gpu $(PYTEST_ARGS)

# Ends with a table; counts and failures are in $(OUT)/fuzz-$(SEED).json. FUZZ_ARGS="--case 1:17:3" runs one case again.
fuzz-gpu: MINUTES = 6
fuzz-gpu:
	$(PYTHON) -c 'from pycutlass import device; device.require()'
	$(PYTHON) -m tools.fuzz --seed $(SEED) --minutes $(MINUTES) --out $(OUT) $(FUZZ_ARGS)

bundle: $(VENV)/.dev
	$(BIN)/python -m tools.make_bundle --most $(MOST) $(if $(TARGETS),--targets $(TARGETS)) $(BUNDLE_ARGS)

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy --strict pycutlass
	$(BIN)/python tools/stubs.py --check
	$(BIN)/clang-format --dry-run -Werror $(CPP)

format: $(VENV)/.dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	$(BIN)/clang-format -i $(CPP)

clean:
	rm -rf packages/*/build packages/*/*.egg-info packages/*/pycutlass_kernels/*.zip packages/*/pycutlass_kernels/kernels.json
	rm -rf $(VENV) build dist *.egg-info pycutlass/_core*.so .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# Stamps: an environment is made once, and PyCUTLASS installed again only when its C++ or its metadata change.

$(BIN)/python:
	@$(PYTHON) -c 'import sys; v = sys.version_info[:2]; (3, 11) <= v <= (3, 13) or sys.exit("PyCUTLASS needs \
	Python 3.11, 3.12 or 3.13, and $(PYTHON) is %d.%d: choose another with PYTHON=python3.12" % v)'
	$(PYTHON) -m venv $(VENV)

# nvdisasm shows machine instructions, for an example and `pycutlass inspect`; the library itself needs none.
$(VENV)/.base: $(SOURCES) | $(BIN)/python
	$(BIN)/python -m pip install --quiet --editable . nvidia-cuda-nvdisasm
	@touch $@

$(VENV)/.dev: $(SOURCES) | $(BIN)/python
	$(BIN)/python -m pip install --quiet --editable '.[dev]' nvidia-cuda-nvdisasm
	@touch $(VENV)/.base $@
