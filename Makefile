# `make test` on a fresh clone needs Python 3.11+ and make; a C compiler makes the layers faster.

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip --disable-pip-version-check --quiet install -c constraints.txt

# Worker processes of pytest: two cores give two. `make test PYTEST="-k neumann"` passes options on.
WORKERS ?= auto
PYTEST  ?=
MATRIX  ?=

SOURCES := $(wildcard steadygrad/kernels/c/*.[ch])
INPUTS := pyproject.toml constraints.txt setup.py $(SOURCES)

.PHONY: help demo setup check format test test-matrix bench results clean
.DEFAULT_GOAL := help

help:  ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-11s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: setup  ## a network that remembers beside two that forget, in half a minute once installed
	$(BIN)/steadygrad reproduce demo --out runs
	@echo 'Open runs/demo/copy/report.html in a browser to look around.'

setup: $(VENV)/.dev  ## create .venv and install the package into it, editable

check: setup  ## ruff, mypy and clang-format
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/clang-format --dry-run --Werror $(SOURCES)

format: setup  ## let ruff and clang-format rewrite what `make check` would refuse
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	$(BIN)/clang-format -i $(SOURCES)

test: setup  ## run the tests
	$(BIN)/python -m pytest -n $(WORKERS) --maxprocesses 4 $(PYTEST)

test-matrix: setup  ## run the numeric tests in every environment that changes rounding; MATRIX="--whole" runs all
	$(BIN)/python tests/environments.py --workers $(WORKERS) $(MATRIX)

bench: setup $(VENV)/.bench  ## measure speed and memory against peers
	$(BIN)/python benchmarks/speed.py $(BENCH)

results: setup  ## write docs/results.md from results/
	$(BIN)/python docs/results.py

clean:  ## remove the environment and everything that was built
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis
	rm -f steadygrad/kernels/_native.*.so
	find steadygrad tests benchmarks -name __pycache__ -prune -exec rm -rf {} + 2>/dev/null || true

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo 'steadygrad needs Python 3.11 or newer: make setup PYTHON=python3.11' >&2; exit 1; }
	$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); exit 1; }

# The build backend comes from constraints.txt too, hence no isolated build environment.
$(VENV)/.dev: $(INPUTS) | $(BIN)/python
	@echo 'Installing steadygrad and its tools into $(VENV) (the first time takes a minute or two) ...'
	@$(PIP) setuptools
	@$(PIP) --no-build-isolation --editable '.[dev]'
	@test -e steadygrad/kernels/_native$$($(BIN)/python -c 'import sysconfig as s; print(s.get_config_var("EXT_SUFFIX"))') && \
		echo 'Done, with the C kernel.' || \
		echo 'Done, but the C kernel was not built, so layers run slower (is there a C compiler?).'
	@touch $@

$(VENV)/.bench: $(INPUTS) | $(VENV)/.dev
	@echo 'Installing the peers that the benchmarks compare with ...'
	@$(PIP) --no-build-isolation --editable '.[bench]'
	@touch $@
