# Two commands: `make run` trains the chat recipe from nothing, `make test` runs the tests.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin

.PHONY: run test test-slow check install ui clean

install: $(VENV)/.installed

$(VENV)/.installed: pyproject.toml infra/constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --constraint infra/constraints.txt --editable ".[dev]"
	touch $@

run: install
	$(BIN)/ratchet run chat

test: install
	$(BIN)/python -m pytest

test-slow: install
	$(BIN)/python -m pytest -m slow

check: install
	$(BIN)/ruff check flows tasks components tests
	$(BIN)/pyright --pythonpath $(BIN)/python

ui: install
	$(BIN)/ratchet ui

clean:
	rm -rf out $(VENV)
