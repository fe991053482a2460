SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.PHONY: help setup quickstart learn test check soak bench docs lock format clean

PYTHON ?= $(shell command -v python3.11 || command -v python3)
# gVisor (with QEMU beside it), QEMU alone, or bubblewrap for development. Never chosen for you.
DRIVER ?= gvisor
BIN := .venv/bin
SETUP := $(PYTHON) scripts/setup.py --driver $(DRIVER)

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: ## Prepare everything: .venv, Debian packages, engines, model, tasks
	@$(SETUP)

quickstart: ## Set up, then train a coding agent and measure whether it got better
	@$(SETUP)
	@$(BIN)/journeyman quickstart

learn: ## The long form, with controls
	@$(SETUP)
	@$(BIN)/journeyman learn

test: ## Set up what is missing, check, run all tests
	@$(SETUP) --tasks small
	@$(MAKE) --no-print-directory check
	@$(BIN)/python -m pytest

check: ## Lint, formatting, types, import rules, generated docs
	@$(SETUP) --only-packages
	@$(BIN)/python scripts/check.py

soak: ## What takes long: thousands of sandboxes, long chaos
	@$(SETUP) --tasks small
	@$(BIN)/python -m pytest -m soak --timeout 3600

bench: ## Measure the speed of the loop
	@$(SETUP)
	@$(BIN)/journeyman bench loop --json

docs: ## Write the generated reference pages again
	@$(SETUP) --only-packages
	@$(BIN)/python scripts/generate_docs.py

lock: ## Resolve the newest allowed versions into requirements.lock
	@$(PYTHON) scripts/lock.py

format: ## Format the code and mend what the linter can
	@$(BIN)/ruff check --fix . && $(BIN)/ruff format .

clean: ## Remove .venv, caches and build outputs (models and tasks stay)
	rm -rf .venv build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
