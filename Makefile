# `make demo` and `make test` need nothing but Python 3.11 or newer: the first run makes .venv.

PYTHON ?= python3
BIN := .venv/bin
INSTALLED := .venv/.installed
APART := tests/heterps/ tests/runtime/

.PHONY: help install demo test lint format
.DEFAULT_GOAL := help

help:
	@echo "make demo     the whole loop on this machine, in minutes"
	@echo "make test     lint, types, import floors and all tests"
	@echo "make lint     everything of 'make test' but the tests"
	@echo "make format   format the code and mend what can be mended"

install: $(INSTALLED)

# torch goes first: it is by far the largest, and a failure there should come at once.
$(INSTALLED): pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install -c constraints.txt torch
	$(BIN)/python -m pip install -c constraints.txt -e ".[hf,dev]"
	touch $@

demo: $(INSTALLED)
	$(BIN)/heterps demo

lint: $(INSTALLED)
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports

# Tests that compute and start nothing run on two cores; those that start processes, one by one.
test: lint
	$(BIN)/python -m pytest -n 2 --dist loadfile $(filter-out $(APART), $(wildcard tests/*/))
	$(BIN)/python -m pytest $(APART)

format: $(INSTALLED)
	$(BIN)/ruff format
	$(BIN)/ruff check --fix
