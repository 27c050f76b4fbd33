# Needs Python 3.11 or newer and make; everything else goes into .venv, which the targets build themselves.

PYTHON ?= python3
BIN := .venv/bin
DEMO := .venv/demo-ready
READY := .venv/ready
INSTALL := PIP_DISABLE_PIP_VERSION_CHECK=1 $(BIN)/python -m pip install -qq -c constraints.txt -e

# Two pytest workers, one thread each: small networks gain nothing from a second thread.
WORKERS ?= 2
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(WORKERS)

.DEFAULT_GOAL := help
.PHONY: help demo quick test nightly lint docs results bench clean

help:
	@echo "make demo    prune and train a small network on digits, and print the comparison"
	@echo "make quick   run the fast tests"
	@echo "make test    run the tests that every change has to pass"
	@echo "make nightly run everything: also browsers, model families, the tutorial, the wheel, coverage and the site"
	@echo "make lint    check style, format, types and the order of imports"
	@echo "make docs    build the documentation site into build/site, and check its links"
	@echo "make results fill the tables of the pages from the records in results/"
	@echo "make bench   measure speed and memory of pruning"
	@echo "make clean   remove .venv, caches and built packages"

demo: $(DEMO)
	@$(BIN)/barebones demo

quick: $(READY)
	@$(PYTEST) -m "not slow and not nightly" tests

test: $(READY)
	@$(PYTEST) --dist loadscope -m "not nightly"

nightly: $(READY) docs
	@$(PYTEST) --dist loadscope -rs --cov --cov-report=term
	@BAREBONES_FUZZ=2000 $(PYTEST) tests/test_random_networks.py

lint: $(READY)
	@$(BIN)/ruff check
	@$(BIN)/ruff format --check
	@$(BIN)/mypy
	@$(BIN)/lint-imports

docs: $(READY)
	@$(BIN)/python docs/website.py
	@echo "The site is in build/site. Its search needs a server: $(PYTHON) -m http.server -d build/site"

results: $(READY)
	@$(BIN)/python docs/tables.py

bench: $(READY)
	@$(BIN)/python benchmarks/core.py

clean:
	rm -rf .venv .cache .hypothesis .mypy_cache .pytest_cache .ruff_cache build dist
	find src tests -name __pycache__ -type d -prune -exec rm -rf {} +

$(DEMO): pyproject.toml constraints.txt src/barebones/version.py
	@$(PYTHON) -c 'import sys; sys.exit("barebones needs Python 3.11 or newer: make PYTHON=python3.x" if sys.version_info < (3, 11) else 0)'
	@echo "Setting up .venv: torch, scikit-learn for the digits, matplotlib for the picture"
	@$(PYTHON) -m venv .venv
	@$(INSTALL) '.[demo,figures]'
	@touch $@

$(READY): $(DEMO)
	@echo "Adding to .venv what the tests, the checks and the documentation need (a few minutes the first time)"
	@$(INSTALL) '.[dev]'
	@touch $@
