# What people type. Each target does its own set-up; ARGS passes further arguments on:
#   make run ARGS="--config tidegate.toml"      make test ARGS="tests/gateway -x"
PYTHON ?= python3
ARGS ?=
BIN := .venv/bin

.DEFAULT_GOAL := help
# Most tests wait, for disks and for processes: twice as many workers as the two cores they are for.
WORKERS ?= 4
# Python keeps what it compiled, whatever the machine's environment says: pytest rewrites the asserts
# of 350 files, ten seconds in each worker.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: help setup compiled run test long lint format audit demo bench crash soak fuzz clean

help:  ## list these targets
	@sed -n 's/^\([a-z]*\):.*## \(.*\)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 16

setup:  ## bootstrap uv and install every room into .venv (does nothing if that is current)
	@$(PYTHON) scripts/bootstrap.py

run: setup  ## start the gateway with its embedded default configuration
	@exec $(BIN)/tidegate run $(ARGS)

# Compiled once, in two processes: without this, in a fresh clone, each worker does it for itself.
compiled: setup
	@ls tests/gateway/__pycache__/*-pytest-*.pyc >/dev/null 2>&1 || { \
		$(BIN)/pytest -q --collect-only tests/plugins tests/protocols >/dev/null & \
		$(BIN)/pytest -q --collect-only --ignore tests/plugins --ignore tests/protocols tests >/dev/null; \
		wait; }

test: compiled  ## run all tests except the long ones, in WORKERS processes
	@exec $(BIN)/pytest -n $(WORKERS) --dist worksteal --hypothesis-profile=quick $(ARGS)

long: setup  ## run the long tests: gateways killed under load, models on PostgreSQL
	@exec $(BIN)/pytest -m "long and not fuzz" -n $(WORKERS) --dist loadgroup --timeout 600 $(ARGS)

lint: setup  ## run ruff, pyright and codespell
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/pyright
	$(BIN)/codespell

format: setup  ## fix and format with ruff
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

audit: setup  ## check installed packages for known vulnerabilities (needs a network)
	@exec $(BIN)/python scripts/audit.py $(ARGS)

demo: setup  ## run the demo, from real input to a real table; KILL=1 also kills the gateway; FORMAT=iceberg or parquet
	@exec $(BIN)/python examples/demo/demo.py $(if $(KILL),--kill) $(if $(FORMAT),--format $(FORMAT)) $(ARGS)

bench: setup  ## measure messages per second, next to the other brokers installed here
	@exec $(BIN)/python benchmarks/bench.py $(ARGS)

crash: setup  ## test power cuts, flipped bits and killed gateways, by seed; reports in build/; LONG=1: more of each
	@TIDEGATE_CRASH_LONG=$(LONG) exec $(BIN)/pytest -m crash --timeout 900 $(ARGS)

soak: setup  ## run sustained load for some minutes
	@exec $(BIN)/pytest -m soak --timeout 1800 $(ARGS)

fuzz: setup  ## run the property tests for longer
	@exec $(BIN)/pytest -m "fuzz or hypothesis" --hypothesis-profile=thorough --timeout 3600 $(ARGS)

clean:  ## remove what setup and tools created; never data
	rm -rf .venv .uv-env .ruff_cache .pytest_cache .hypothesis build dist
	find . -name __pycache__ -prune -exec rm -rf {} +
