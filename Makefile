# Needs Python 3.11 or newer and make; everything else goes into .venv, which the targets build themselves.

PYTHON ?= python3
BIN := .venv/bin
READY := .venv/ready

# Two pytest workers, one thread each: small networks gain nothing from a second thread.
WORKERS ?= 2

.DEFAULT_GOAL := help
.PHONY: help demo test quick lint docs results bench clean

help:
	@echo "make demo    prune and train small networks on digits, and print the comparison"
	@echo "make test    run all tests and measure how much of the source they cover"
	@echo "make quick   run the tests that are not slow, in about a minute"
	@echo "make lint    check style, format, types and the order of imports"
	@echo "make docs    build the documentation site into build/site, and check its links"
	@echo "make results fill the tables of the pages from the records in results/"
	@echo "make bench   measure speed and memory of pruning"
	@echo "make clean   remove .venv, caches and built packages"

demo: $(READY)
	@$(BIN)/barebones demo

test: $(READY)
	@OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(WORKERS) --cov --cov-report=term

quick: $(READY)
	@OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(WORKERS) -m "not slow"

lint: $(READY)
	@$(BIN)/ruff check
	@$(BIN)/ruff format --check
	@$(BIN)/mypy
	@$(BIN)/lint-imports

docs: $(READY)
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict
	@echo "The site is in build/site; open build/site/index.html"

results: $(READY)
	@$(BIN)/python docs/tables.py

bench: $(READY)
	@$(BIN)/python benchmarks/core.py

clean:
	rm -rf .venv .hypothesis .mypy_cache .pytest_cache .ruff_cache build dist
	find src tests -name __pycache__ -type d -prune -exec rm -rf {} +

$(READY): pyproject.toml constraints.txt src/barebones/version.py
	@$(PYTHON) -c 'import sys; sys.exit("barebones needs Python 3.11 or newer: make PYTHON=python3.x" if sys.version_info < (3, 11) else 0)'
	@echo "Setting up .venv (a few minutes the first time)"
	@$(PYTHON) -m venv .venv
	@PIP_DISABLE_PIP_VERSION_CHECK=1 $(BIN)/python -m pip install -qq -c constraints.txt -e '.[dev]'
	@touch $@
