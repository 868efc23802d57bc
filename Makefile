# Everything runs in .venv, which is made when it is missing and refreshed when the requirements change.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt

TRACES ?=

# Hundreds of processes import this package: it is compiled once for all, whatever is usual on this machine.
unexport PYTHONDONTWRITEBYTECODE

# Tests are processes that wait for each other, mostly: more run at once than there are cores.
TESTS_AT_ONCE ?= 4

# Runs of `make test-busy`.
TIMES ?= 5

# Versions of Python that `make test-pythons` looks for; those that are missing are skipped.
PYTHONS ?= 3.11 3.12 3.13

.PHONY: demo test test-all test-busy coverage test-pythons check bench paper soak docs clean
demo: $(VENV)/.runtime
	$(BIN)/codedreduce race

test: $(VENV)/.development # all that is quick, and what happens to real processes, once
	$(BIN)/python -m pytest -n $(TESTS_AT_ONCE) --dist worksteal -m "not rest"

test-all: $(VENV)/.development # beside that labs, clusters, fuzzing, and every other way in which things go wrong
	$(BIN)/python -m pytest -n $(TESTS_AT_ONCE) --dist worksteal --durations=30

test-busy: $(VENV)/.development # all tests, TIMES times, while other processes keep every core busy
	$(BIN)/python -m tests.busy --times $(TIMES)

coverage: $(VENV)/.development # by tier: what is reached without processes, and what only with them
	$(BIN)/python -m tests.coverage_by_tier -n $(TESTS_AT_ONCE)

test-pythons: | $(BIN)/python # the commands and some tests on each version, without torch; at most two minutes each
	@$(BIN)/python tests/pythons.py $(PYTHONS)

check: $(VENV)/.development
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -m pytest --doctest-modules src/codedreduce --ignore src/codedreduce/torch/device/kernels.py # needs Triton

bench: $(VENV)/.bench
	$(BIN)/python -m bench.mathematics --out bench/results/mathematics.json
	$(BIN)/python -m bench.simulator --out bench/results/simulator.json
	$(BIN)/python -m bench.head_start --out bench/results/head_start.json
	$(BIN)/python -m bench.local --out bench/results/local.json
	$(BIN)/python -m bench.steps 4 --out bench/results/steps.json

paper: $(VENV)/.bench # as root; about three hours; make paper TRACES=DIR for measured latencies
	$(BIN)/python -m bench.paper --again $(if $(TRACES),--traces $(TRACES))

soak: $(VENV)/.development
	$(BIN)/python -m tests.simulation.soak --runs 60000
	$(BIN)/python -m tests.simulation.soak --runs 25000 --draw ranks
	$(BIN)/python -m tests.simulation.soak --runs 5000 --draw failing
	$(BIN)/python -m tests.simulation.soak --runs 5000 --draw leaving
	$(BIN)/python -m tests.simulation.soak --runs 5000 --draw units
	$(BIN)/python -m tests.fuzz.fuzzing --frames 900000
	$(BIN)/python -m tests.fuzz.members --frames 100000
	$(BIN)/python -m tests.fuzz.insiders --frames 200000
	$(BIN)/python -m tests.simulation.soak --runs 5000 --draw late
	$(BIN)/python -m tests.simulation.soak --runs 5000 --draw one-way
	$(BIN)/python -m tests.simulation.soak --runs 5000 --draw audits
	$(BIN)/python -m tests.simulation.soak --runs 5000 --draw wrong

docs: $(VENV)/.development
	$(BIN)/python -m tests.simulation.diagrams
	$(BIN)/python -m tests.reference

$(VENV)/.bench: $(VENV)/.development
	@echo "installing the peers that benchmarks compare with ..."
	@$(PIP) --editable '.[dev,lightning,transformers,ray,bench]'
	@touch $@

clean:
	rm -rf $(VENV) .pythons report .pytest_cache .mypy_cache .ruff_cache .hypothesis

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
	@$(PIP) --editable '.[dev,lightning,transformers,ray]'
	@touch $@ $(VENV)/.runtime
