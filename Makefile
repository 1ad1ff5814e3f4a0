# A fresh clone needs Python 3.11+ and make. A C compiler is optional and makes the layers faster.

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip --disable-pip-version-check --quiet install -c constraints.txt

# Number of pytest worker processes; auto means one per core. PYTEST holds further options: `make test PYTEST="-k neumann"`.
WORKERS ?= auto
PYTEST  ?=
MATRIX  ?=

SOURCES := $(wildcard steadygrad/kernels/c/*.[ch])
INPUTS := pyproject.toml constraints.txt setup.py $(SOURCES)

# Platform tags of the wheels, of those in setup.py.
WHEELS ?= manylinux_2_17_x86_64 manylinux_2_17_aarch64 macosx_11_0_arm64 win_amd64

# Wall time of `make campaign`.
MINUTES ?= 10

.PHONY: help demo setup check format test test-matrix test-lowest campaign sanitize bench results wheels clean
.DEFAULT_GOAL := help

help:  ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: setup  ## train three networks on the copy task and draw their curves (about 20 seconds after setup)
	$(BIN)/steadygrad reproduce demo --out runs
	@echo 'Open runs/demo/copy/report.html in a browser.'

setup: $(VENV)/.dev  ## create .venv and install the package in editable mode

check: setup  ## run ruff, mypy and clang-format
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/clang-format --dry-run --Werror $(SOURCES)

format: setup  ## let ruff and clang-format fix what they can of the errors of `make check`
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	$(BIN)/clang-format -i $(SOURCES)

test: setup  ## run the tests
	$(BIN)/python -m pytest -n $(WORKERS) --maxprocesses 4 $(PYTEST)

test-matrix: setup  ## run the numeric tests in every environment that changes rounding; MATRIX="--whole" runs all tests
	$(BIN)/python tests/environments.py --workers $(WORKERS) $(MATRIX)

test-lowest: setup  ## run the numeric tests with the lowest torch that pyproject.toml allows, in build/lowest
	$(BIN)/python tests/lowest.py --workers $(WORKERS)

campaign: setup  ## try faults, bad files and odd input at random: make campaign MINUTES=60
	$(BIN)/python -m tests.campaigns --minutes $(MINUTES) $(CAMPAIGN)

sanitize: setup  ## run the C kernels under AddressSanitizer, UndefinedBehaviorSanitizer and ThreadSanitizer
	$(BIN)/python tests/sanitize.py

bench: setup $(VENV)/.bench  ## measure speed and memory against peers
	$(BIN)/python benchmarks/speed.py $(BENCH)

results: setup  ## write docs/results.md from results/
	$(BIN)/python docs/results.py

wheels: setup $(VENV)/.release  ## write the source distribution and the wheels of all platforms to dist/
	rm -rf dist build/lib build/bdist.* $(addprefix build/,$(WHEELS))
	@$(BIN)/python -c 'from setuptools.build_meta import build_sdist; build_sdist("dist")' >/dev/null
	@for tag in $(WHEELS); do \
		STEADYGRAD_WHEEL=$$tag $(BIN)/python -m pip --disable-pip-version-check wheel --quiet --no-deps \
			--no-build-isolation --wheel-dir dist . || exit 1; \
	done
	@ls -l dist

clean:  ## remove .venv and all build products
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis
	rm -f steadygrad/kernels/_native*
	find steadygrad tests benchmarks -name __pycache__ -prune -exec rm -rf {} + 2>/dev/null || true

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo 'steadygrad needs Python 3.11 or newer: make setup PYTHON=python3.11' >&2; exit 1; }
	$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); exit 1; }

# constraints.txt pins the build backend too, so there is no isolated build environment.
$(VENV)/.dev: $(INPUTS) | $(BIN)/python
	@echo 'Installing steadygrad and its tools into $(VENV) (one or two minutes the first time) ...'
	@$(PIP) setuptools
	@$(PIP) --no-build-isolation --editable '.[dev]'
	@test -e steadygrad/kernels/_native.so && \
		echo 'Done, with the C kernel.' || \
		echo 'Done, but without the C kernel, so layers run slower. Install a C compiler to build it.'
	@touch $@

$(VENV)/.release: $(INPUTS) | $(VENV)/.dev
	@echo 'Installing the compiler of the wheels ...'
	@$(PIP) --no-build-isolation --editable '.[release]'
	@touch $@

$(VENV)/.bench: $(INPUTS) | $(VENV)/.dev
	@echo 'Installing the packages that the benchmarks compare with ...'
	@$(PIP) --no-build-isolation --editable '.[bench]'
	@touch $@
