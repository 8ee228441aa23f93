# `make demo` and `make test` need nothing but Python 3.11 or newer: the first run makes .venv.

PYTHON ?= python3
BIN := .venv/bin
INSTALLED := .venv/.installed
# Those of other floors are quick and even out the end; the files that start processes take long.
TESTS := tests/runtime tests/heterps tests/agents tests/envs tests/configs tests/benchmarks tests/house
PARALLEL := -n 2 --dist loadfile --no-loadscope-reorder

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

# torch goes first: it is by far the largest, and a failure there should come at once. What the tests
# would compile is compiled here, in two processes.
$(INSTALLED): pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install -c constraints.txt torch
	$(BIN)/python -m pip install -c constraints.txt -e ".[hf,dev]"
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
	$(BIN)/python -m pytest -m alone $(TESTS)

docs: $(INSTALLED)
	$(BIN)/python -m pip install -q -c constraints.txt -e ".[docs]"
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build -q

format: $(INSTALLED)
	$(BIN)/ruff format
	$(BIN)/ruff check --fix
