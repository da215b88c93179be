PYTHON ?= python3.11
VENV := .venv
BIN := $(VENV)/bin

.PHONY: test check lint

$(VENV)/.installed: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install -q -e '.[dev]'
	touch $@

test: $(VENV)/.installed
	$(BIN)/python -m pytest

check: $(VENV)/.installed
	$(BIN)/python -m pytest -m "not slow"

lint: $(VENV)/.installed
	$(BIN)/ruff check .
	$(BIN)/basedpyright
