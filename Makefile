# Everything a developer or CI runs. Nothing here asks a question.
# PYTHON chooses the interpreter of a new .venv; FUZZ_SECONDS bounds `make fuzz`; DEMO has options of `headrace demo`.

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

PYTHON ?= python3
FUZZ_SECONDS ?= 30
WORKERS ?= 2
DEMO ?=

VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
RUNTIME := $(VENV)/.installed-runtime

export PIP_NO_INPUT := 1
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.PHONY: help demo setup system-deps test lint docs-check format docs bench fuzz pins clean

help: ## Print this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-8s %s\n", $$1, $$2 }' Makefile

demo: $(RUNTIME) ## Set up, and show a table that stays equal to its bucket through a crash; DEMO=--exit ends it
	@tools/system-deps java
	$(BIN)/headrace demo $(DEMO)

setup: $(STAMP) system-deps ## Make .venv with everything in it; does work only when a list changed

$(BIN)/pip:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	    echo "headrace needs Python 3.11 or later, and '$(PYTHON)' is not that:" \
	        "$$($(PYTHON) --version 2>&1 || true). Try: make setup PYTHON=python3.12" >&2; exit 1; }
	@$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); \
	    echo "cannot make a virtual environment (on Debian: apt-get install python3-venv)" >&2; exit 1; }

# What a user needs, and no more: for the demo.
$(RUNTIME): pyproject.toml constraints.txt | $(BIN)/pip
	@echo "Installing headrace with Spark and Delta into $(VENV); Spark alone is 450 MB." >&2
	$(BIN)/pip install --quiet --constraint constraints.txt hatchling editables setuptools wheel
	$(BIN)/pip install --quiet --constraint constraints.txt --no-build-isolation --editable '.[delta,node,spark]'
	@touch $@

# The build backends come first and by their pins, ours and pyspark's: an isolated build would fetch the newest ones.
$(STAMP): pyproject.toml constraints.txt | $(BIN)/pip
	$(BIN)/pip install --quiet --constraint constraints.txt hatchling editables setuptools wheel
	$(BIN)/pip install --quiet --constraint constraints.txt --no-build-isolation --editable '.[dev]'
	@touch $@

system-deps:
	@tools/system-deps

test: lint docs-check ## Lint, check the generated docs, run the tests; wire, history and protocol must be wholly covered
	$(BIN)/pytest -n $(WORKERS) --hypothesis-profile=ci --cov=headrace --cov-branch --cov-report=
	$(BIN)/coverage report
	$(BIN)/coverage report --include='src/headrace/wire/*,src/headrace/history/*,src/headrace/protocol/*' --fail-under=100

lint: setup ## ruff, mypy, import-linter
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports

docs-check: setup
	@if [ -f tools/generate_docs.py ]; then $(BIN)/python tools/generate_docs.py --check; fi

format: setup ## Format, and fix what ruff can fix
	$(BIN)/ruff check --fix-only
	$(BIN)/ruff format

docs: setup ## Write the generated reference pages
	$(BIN)/python tools/generate_docs.py

bench: setup ## Measure decoding, the store, the node beside memcached, its streams, and Spark: some 30 minutes
	$(BIN)/python benchmarks/decode.py
	$(BIN)/python benchmarks/store.py
	$(BIN)/python benchmarks/kv.py
	$(BIN)/python benchmarks/stream.py
	$(BIN)/python benchmarks/spark.py

fuzz: setup ## Fuzz the decoder for FUZZ_SECONDS (30)
	@mkdir -p .fuzz
	@if $(BIN)/python -c 'import importlib.util as u, sys; sys.exit(not u.find_spec("atheris"))'; then \
	    $(BIN)/python fuzz/decode.py -max_total_time=$(FUZZ_SECONDS) -artifact_prefix=.fuzz/; \
	else echo "fuzz: atheris has no wheel for this platform; skipped" >&2; fi

pins: setup ## Resolve the dependencies anew and write constraints.txt
	$(BIN)/python tools/pin.py

clean: ## Remove .venv and all that was built or cached
	rm -rf $(VENV) dist build htmlcov .fuzz .hypothesis .coverage .coverage.*
	rm -rf .pytest_cache .ruff_cache .mypy_cache .import_linter_cache
	find . -name .git -prune -o -name __pycache__ -type d -prune -exec rm -rf {} +
