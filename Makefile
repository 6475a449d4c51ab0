# The two commands of the README are `make run` and `make test`; CONTRIBUTING.md has the others. Everything they install
# goes into .venv, except system packages, which come through apt where that is allowed. The package and the C++ tests
# are built in one tree, build/default. VERBOSE=1 shows what is otherwise only shown when it fails.

PYTHON ?= python3
PROMPT ?= Tell me a short story about a lighthouse.
JOBS ?= $(shell nproc)
VENV := .venv
BIN := $(VENV)/bin
BUILD := build/default
PHASE := tools/phase.sh
# CMake and Ninja: the system's, else what the requirements brought.
WITH_TOOLS := env PATH="$(if $(wildcard $(BIN)/cmake),$(CURDIR)/$(BIN):)$$PATH:$(CURDIR)/$(BIN)"

# Kernels for the GPUs that are here; where there is none, for every generation that the package supports.
ifndef CUDAARCHS
CUDAARCHS := $(shell nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null \
               | tr -d . | sed 's/^90$$/90a/; s/$$/-real/' | sort -u | paste -sd';')
endif
export CUDAARCHS

.PHONY: run triton test test-programs test-cpp test-python lint sanitize alone stubs clean

# What the package is made of; a change rebuilds it.
PACKAGE_SOURCES := $(shell find cpp csrc python cmake triton_backend -type f -not -name '*.pyi' -not -path '*/__pycache__/*') \
                   CMakeLists.txt pyproject.toml VERSION

run: $(VENV)/.package
	@$(BIN)/quire run "$(PROMPT)"

# Triton Inference Server with model_repository/, on ports 8000 (HTTP), 8001 (gRPC) and 8002 (metrics).
triton: $(VENV)/.package
	@$(BIN)/quire triton --repository model_repository

# Python's packages come while the compiler is at work.
PROGRAMS := test-programs
test: lint
	@$(MAKE) --no-print-directory -j2 $(VENV)/.tests $(PROGRAMS)
	@$(MAKE) --no-print-directory PROGRAMS= test-cpp test-python

$(VENV)/.created: tools/setup.sh
	@$(PHASE) "Python environment" sh -c 'tools/setup.sh python && $(PYTHON) -m venv $(VENV)'
	@touch $@

$(VENV)/.build: $(VENV)/.created pyproject.toml
	@$(PHASE) "Compiler and build tools" sh -c \
	  'tools/setup.sh base && $(BIN)/python tools/install_requirements.py build serve'
	@touch $@

$(VENV)/.lint: $(VENV)/.created pyproject.toml
	@$(PHASE) "Linters" $(BIN)/python tools/install_requirements.py lint
	@touch $@

$(VENV)/.system: $(VENV)/.build
	@$(PHASE) "System packages of the tests" tools/setup.sh test
	@touch $@

$(VENV)/.tests: $(VENV)/.lint pyproject.toml
	@$(PHASE) "Python packages of the tests" $(BIN)/python tools/install_requirements.py test
	@touch $@

# install_package(QUIRE_CUDA, more options). The build directory is this tree's, so that only what changed is compiled.
install_package = $(PHASE) "Compiling and installing the package" env CMAKE_BUILD_PARALLEL_LEVEL=$(JOBS) \
  $(BIN)/python -m pip install -v --disable-pip-version-check --root-user-action=ignore --no-build-isolation --no-deps \
  -Cbuild-dir=$(BUILD) -Ccmake.define.QUIRE_CUDA=$(1) $(2) .

# To be used here: where there is no GPU, nobody waits for its code.
$(VENV)/.package: $(VENV)/.build $(PACKAGE_SOURCES)
	@$(call install_package,$(if $(CUDAARCHS),AUTO,OFF))
	@touch $@

# As pip would install it: with CUDA wherever nvcc is. Warnings are errors, as for the tests, or these would compile all of
# it again.
$(VENV)/.package-full: $(VENV)/.build $(PACKAGE_SOURCES)
	@$(call install_package,AUTO,-Ccmake.define.QUIRE_WERROR=ON)
	@touch $@ $(VENV)/.package

# The package first: it configures the tree for this Python.
test-programs: $(VENV)/.system $(VENV)/.package-full
	@$(PHASE) "Compiling the tests" $(WITH_TOOLS) sh -c \
	  'cmake --preset default && cmake --build $(BUILD) -j $(JOBS)'

# On the CPU, whatever else is here: tests/run_gpu.sh is for devices.
test-cpp: $(PROGRAMS)
	@$(PHASE) "C++ tests" $(WITH_TOOLS) ctest --preset default -j $(JOBS)

test-python: $(VENV)/.tests $(PROGRAMS)
	@CUDA_VISIBLE_DEVICES= QUIRE_BUILD_DIR=$(BUILD) VERBOSE=1 $(PHASE) "Python tests" $(BIN)/python -m pytest

lint: $(VENV)/.lint
	@$(PHASE) "Format of C++" sh -c \
	  "git ls-files '*.cpp' '*.cc' '*.h' '*.cu' '*.cuh' ':!*/generated/*' | xargs -P $(JOBS) -n 40 $(BIN)/clang-format --dry-run --Werror"
	@$(PHASE) "Format of CMake" sh -c "git ls-files '*CMakeLists.txt' '*.cmake' | xargs $(BIN)/gersemi --check"
	@$(PHASE) "Format and lint of Python" sh -c '$(BIN)/ruff check . && $(BIN)/ruff format --check .'
	@$(PHASE) "Types of Python" $(BIN)/mypy

# The C++ tests under AddressSanitizer and UndefinedBehaviorSanitizer with the fuzz targets, and under ThreadSanitizer.
sanitize: sanitize-asan sanitize-tsan
sanitize-%: $(VENV)/.system
	@$(PHASE) "Compiling for $*" $(WITH_TOOLS) sh -c 'cmake --preset $* && cmake --build --preset $* -j $(JOBS)'
	@$(PHASE) "C++ tests under $*" $(WITH_TOOLS) ctest --preset $* -j $(JOBS)

# The trees that CI builds compile several files at once, and would not see what one of them forgets to include.
alone: $(VENV)/.system
	@$(PHASE) "Each file by itself" $(WITH_TOOLS) sh -c 'cmake --preset cpu && $(BIN)/python tools/compile_alone.py'

# Regenerates the committed type stubs, the pages of what they and all doors know of requests, arguments, models and
# checkpoints, and the pictures of performance.
stubs: $(VENV)/.package $(VENV)/.tests
	$(BIN)/python -m nanobind.stubgen -q -m quire._core -o python/quire/_core.pyi
	$(BIN)/python tools/request_fields.py
	$(BIN)/python tools/structured_output_page.py
	$(BIN)/python tools/from_vllm.py
	$(BIN)/python tools/models_page.py
	$(BIN)/python tools/checkpoints_page.py
	$(BIN)/python tools/performance_page.py

clean:
	rm -rf build $(VENV)
