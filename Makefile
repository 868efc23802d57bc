# Everything runs in .venv, which is made when it is missing and refreshed when the requirements change.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt

.PHONY: demo test check bench soak docs clean
demo: $(VENV)/.runtime
	$(BIN)/codedreduce simulate --rounds 60 --report report

test: $(VENV)/.development
	$(BIN)/python -m pytest -n 2

check: $(VENV)/.development
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -m pytest --doctest-modules src/codedreduce

bench: $(VENV)/.development
	$(BIN)/python -m bench.mathematics --out bench/results/mathematics.json

soak: $(VENV)/.development
	$(BIN)/python -m tests.simulation.soak --runs 100000

docs: $(VENV)/.development
	$(BIN)/python -m tests.simulation.diagrams

clean:
	rm -rf $(VENV) report .pytest_cache .mypy_cache .ruff_cache .hypothesis

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	    { echo "codedreduce needs Python 3.11 or newer; name one with: make PYTHON=python3.11"; exit 1; }
	@echo "making $(VENV) ..."
	@$(PYTHON) -m venv $(VENV)

$(VENV)/.runtime: pyproject.toml constraints.txt | $(BIN)/python
	@echo "installing codedreduce ..."
	@$(PIP) --editable .
	@touch $@

$(VENV)/.development: pyproject.toml constraints.txt | $(BIN)/python
	@echo "installing codedreduce and its development tools ..."
	@$(PIP) --editable '.[dev]'
	@touch $@ $(VENV)/.runtime
