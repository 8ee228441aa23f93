# `make demo` and `make test` need nothing but Python 3.11 or newer: the first run makes .venv.

PYTHON ?= python3
BIN := .venv/bin
INSTALLED := .venv/.installed
# Those of other floors are quick and even out the end; the files that start processes take long.
TESTS := tests/runtime tests/heterps tests/agents tests/envs tests/configs tests/benchmarks tests/house
PARALLEL := -n 2 --dist loadfile --no-loadscope-reorder
ALONE := $(shell grep -rl --include='test_*.py' 'mark\.alone' tests)

# Where it is set, every process translates all modules anew: for seconds, in hundreds of processes.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help install demo check test lint format docs
.DEFAULT_GOAL := help

help:
	@echo "make demo     the whole loop on this machine, in minutes"
	@echo "make check    lint, types, contracts, and the tests that start no process: for every change"
	@echo "make test     the same with all tests"
	@echo "make lint     everything of 'make test' but the tests"
	@echo "make docs     guides and Python reference, as pages: site/index.html"
	@echo "make format   format the code and mend what can be mended"

install: $(INSTALLED)

# torch goes first: it is by far the largest, and a failure there should come at once. pip would
# translate modules in one process: two do it here, as they do what kernels need. A few files of other
# packages are no Python of this version, hence the "-".
$(INSTALLED): pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --no-compile -c constraints.txt torch
	$(BIN)/python -m pip install --no-compile -c constraints.txt -e ".[hf,dev]"
	-$(BIN)/python -m compileall -qq -j 2 -x '/tests?/|/transformers/models/' .venv/lib configs envs agents runtime heterps
	$(BIN)/heterps compile
	touch $@

demo: $(INSTALLED)
	$(BIN)/heterps demo

lint: $(INSTALLED)
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy --num-workers 2
	$(BIN)/lint-imports

check: lint
	$(BIN)/python -m pytest -m "not slow and not alone" $(PARALLEL) $(TESTS)

# Two at a time, but for those that measure time: these run with nothing beside them.
test: lint
	$(BIN)/python -m pytest -m "not alone" $(PARALLEL) $(TESTS)
	$(BIN)/python -m pytest -m alone $(ALONE)

docs: $(INSTALLED)
	$(BIN)/python -m pip install -q -c constraints.txt -e ".[docs]"
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build -q

format: $(INSTALLED)
	$(BIN)/ruff format
	$(BIN)/ruff check --fix
