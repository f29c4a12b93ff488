# make demo and make test do all the set-up; `make help` lists the rest.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV   := .venv
SCRIPTS := $(if $(filter Windows_NT,$(OS)),Scripts,bin)
BIN    := $(VENV)/$(SCRIPTS)
PIP    := $(BIN)/python -m pip install --quiet --disable-pip-version-check

# For pip's build environments as well, which a -c on the command line does not reach.
export PIP_CONSTRAINT := $(CURDIR)/constraints.txt

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-all test-library browser lint coverage fuzz bench docs dist wheels clean

help: ## list the commands
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-8s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

# One stamp per set of packages: a second run starts at once, a changed pin installs again.
$(BIN)/python:
	@test -n "$(PYTHON)" && $(PYTHON) -c "import sys; sys.exit(sys.version_info < (3, 11))" || \
		{ echo "Python 3.11 or later is needed: make PYTHON=path/to/python3.11 $(MAKECMDGOALS)"; exit 1; }
	$(PYTHON) -m venv $(VENV)

$(VENV)/.demo: $(BIN)/python pyproject.toml constraints.txt
	$(PIP) -e ".[studies]"
	@touch $@ $(VENV)/.kernels

$(VENV)/.test: $(BIN)/python pyproject.toml constraints.txt
	$(PIP) -e ".[test]"
	@touch $@ $(VENV)/.demo $(VENV)/.docs $(VENV)/.kernels

$(VENV)/.docs: $(BIN)/python pyproject.toml constraints.txt
	$(PIP) -e ".[docs]"
	@touch $@ $(VENV)/.demo $(VENV)/.kernels

# What only tests marked heavy need: gigabytes, so not for `make test`.
$(VENV)/.heavy: $(VENV)/.test
	$(PIP) -e ".[heavy]"
	@touch $@

# An installation compiles them, if it finds a compiler; this is for what changed since.
KERNELS := src/tensorprojection/ops/kernels
$(VENV)/.kernels: $(wildcard $(KERNELS)/csrc/*.[ch]) $(KERNELS)/../limits.py
	@$(BIN)/python $(KERNELS)/build.py || echo "Without compiled kernels, slower."
	@touch $@

setup: $(VENV)/.test $(VENV)/.kernels ## create .venv and install everything, for working on the project

demo: $(VENV)/.demo $(VENV)/.kernels ## 90 seconds: speed, a swap with export, gradients, and what was found on real images
	$(BIN)/tpl demo

lint: $(VENV)/.test $(VENV)/.kernels ## style and types
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

# By worksteal each process has its tests in a row: what the tests of a file share is made once.
test: lint ## lint, types and the tests, without those marked heavy
	$(BIN)/pytest -n 2 --dist worksteal -m "not heavy"

# For the tests of the report page. No failure stops make: without a browser they are skipped with a reason.
browser:
	@command -v chromium > /dev/null && command -v chromedriver > /dev/null || \
		{ test "$$(id -u)" = 0 && command -v apt-get > /dev/null && \
			{ apt-get update -qq; DEBIAN_FRONTEND=noninteractive \
				apt-get install -y -qq --no-install-recommends chromium chromium-driver; }; } || \
		echo "Without Chromium and chromedriver, the tests of the page in a browser are skipped."

# 5: no test is marked so. What failed has a second try, alone: these tests kill processes and wait for
# others, and may fail on a busy machine for no other reason.
test-all: test browser $(VENV)/.heavy ## make test, then the heavy tests; "make test test-all" repeats nothing
	$(BIN)/pytest -n 2 -m heavy || test $$? -eq 5 || $(BIN)/pytest --last-failed -m heavy

# An environment of its own, with the pins of all other packages. "newest" is what pip finds.
TORCH ?= newest
OTHER := .venv-torch-$(TORCH)
test-library: ## the library's tests with another torch; TORCH=2.8.0
	$(PYTHON) -m venv $(OTHER)
	grep -v "^torch==" constraints.txt > $(OTHER)/constraints.txt
	PIP_CONSTRAINT=$(CURDIR)/$(OTHER)/constraints.txt $(OTHER)/$(SCRIPTS)/python -m pip install --quiet \
		--disable-pip-version-check torch$(if $(filter-out newest,$(TORCH)),==$(TORCH)) -e ".[test]"
	$(OTHER)/$(SCRIPTS)/python -m pytest -n 2 --dist worksteal -m "not heavy" tests \
		--ignore tests/studies --ignore tests/cli --ignore tests/docs

coverage: $(VENV)/.test $(VENV)/.kernels ## what the tests of make test reach, by file; TESTS=tests/nn for some of them
	$(BIN)/pytest -n 2 --dist worksteal -m "not heavy" --cov --cov-report=term:skip-covered $(TESTS)

fuzz: $(VENV)/.test $(VENV)/.kernels ## random layers on random tensors, against float64; MINUTES=5
	cd tests && ../$(BIN)/python -m fuzz --minutes $(or $(MINUTES),5)

bench: $(VENV)/.test $(VENV)/.kernels ## speed side by side with the peers, as ratios
	$(BIN)/tpl bench

docs: $(VENV)/.docs $(VENV)/.kernels ## the documentation in docs/_build/html, its notebooks executed
	$(BIN)/sphinx-build -q -W --keep-going -E -d docs/_build/doctrees docs docs/_build/html
	@echo "Open docs/_build/html/index.html in a browser."

# Tools that know nothing of the project: no stamp of theirs depends on pyproject.toml.
$(VENV)/.dist: $(BIN)/python constraints.txt
	$(PIP) build cibuildwheel twine
	@touch $@

dist: $(VENV)/.dist ## the sdist and this machine's wheel in dist/, each tried in an empty environment
	rm -rf dist
	$(BIN)/python -m build
	$(BIN)/twine check --strict dist/*
	$(BIN)/python tests/dist dist/*

wheels: $(VENV)/.dist ## wheels for a release in dist/, by cibuildwheel; needs Docker
	$(BIN)/cibuildwheel --platform linux --output-dir dist

clean: ## remove the environment and what runs leave behind
	rm -rf $(VENV) .venv-torch-* runs dist docs/_build .pytest_cache .mypy_cache .ruff_cache .hypothesis .coverage*
