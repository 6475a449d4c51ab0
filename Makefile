# The two commands of the README are `make run` and `make test`. Everything they install goes into .venv, except
# system packages, which come through apt where that is allowed.

PYTHON ?= python3
PROMPT ?= Tell me a short story about a lighthouse.
VENV := .venv
BIN := $(VENV)/bin
JOBS ?= $(shell nproc)

.PHONY: run triton test test-cpp test-python lint sanitize stubs bench clean

# What the package is made of; a change rebuilds it.
PACKAGE_SOURCES := $(shell find cpp csrc python cmake triton_backend -type f -not -name '*.pyi' -not -path '*/__pycache__/*') \
                   CMakeLists.txt pyproject.toml VERSION

run: $(VENV)/.package
	$(BIN)/quire run "$(PROMPT)"

# Triton Inference Server with model_repository/, on ports 8000 (HTTP), 8001 (gRPC) and 8002 (metrics).
triton: $(VENV)/.package
	$(BIN)/quire triton --repository model_repository

test: lint test-cpp test-python

$(VENV)/.created: tools/setup.sh
	tools/setup.sh base
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -q --upgrade pip
	touch $@

$(VENV)/.package: $(VENV)/.created $(PACKAGE_SOURCES)
	$(BIN)/python -m pip install -q .
	touch $@

$(VENV)/.tools: $(VENV)/.created pyproject.toml
	tools/setup.sh test
	$(BIN)/python tools/install_extras.py test dev
	touch $@

# CMake and Ninja: the system's, else from PyPI.
build/%/CMakeCache.txt: $(VENV)/.tools CMakePresets.json
	PATH="$$PATH:$(CURDIR)/$(BIN)" cmake --preset $*

test-cpp: build/cpu/CMakeCache.txt
	PATH="$$PATH:$(CURDIR)/$(BIN)" cmake --build --preset cpu -j $(JOBS)
	PATH="$$PATH:$(CURDIR)/$(BIN)" ctest --preset cpu -j $(JOBS)

test-python: $(VENV)/.tools $(VENV)/.package test-cpp
	$(BIN)/python -m pytest

lint: $(VENV)/.tools $(VENV)/.package
	git ls-files '*.cpp' '*.cc' '*.h' '*.cu' '*.cuh' | xargs $(BIN)/clang-format --dry-run --Werror
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# The C++ tests under AddressSanitizer + UBSan, then ThreadSanitizer; each fuzz target for ten seconds.
sanitize: build/asan/CMakeCache.txt build/tsan/CMakeCache.txt
	PATH="$$PATH:$(CURDIR)/$(BIN)" cmake --build --preset asan -j $(JOBS)
	PATH="$$PATH:$(CURDIR)/$(BIN)" ctest --preset asan -j $(JOBS)
	PATH="$$PATH:$(CURDIR)/$(BIN)" cmake --build --preset tsan -j $(JOBS)
	PATH="$$PATH:$(CURDIR)/$(BIN)" ctest --preset tsan -j $(JOBS)

# Regenerates the committed type stubs.
stubs: $(VENV)/.package
	$(BIN)/python -m nanobind.stubgen -q -m quire._core -o python/quire/_core.pyi

clean:
	rm -rf build $(VENV)
