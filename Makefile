# make demo and make test do all the set-up; `make help` lists the rest.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV   := .venv
SCRIPTS := $(if $(filter Windows_NT,$(OS)),Scripts,bin)
BIN    := $(VENV)/$(SCRIPTS)
PIP    := $(BIN)/python -m pip install --quiet --disable-pip-version-check

# For pip's build environments as well, which a -c on the command line does not reach.
export PIP_CONSTRAINT := $(CURDIR)/constraints.txt

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-all test-library browser lint coverage fuzz bench figures drawings docs dist wheels clean

help: ## list the commands
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-8s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

# One stamp per set of packages: a second run starts at once, a changed pin installs again.
$(BIN)/python:
	@test -n "$(PYTHON)" && $(PYTHON) -c "import sys; sys.exit(sys.version_info < (3, 11))" || \
		{ echo "Python 3.11 or later is needed: make PYTHON=path/to/python3.11 $(MAKECMDGOALS)"; exit 1; }
	$(PYTHON) -m venv $(VENV)

$(VENV)/.demo: $(BIN)/python pyproject.toml constraints.txt
	$(PIP) -e ".[onnx,studies]"
	@touch $@ $(VENV)/.kernels

$(VENV)/.test: $(BIN)/python pyproject.toml constraints.txt
	$(PIP) -e ".[test]"
	@touch $@ $(VENV)/.demo $(VENV)/.docs $(VENV)/.kernels

$(VENV)/.docs: $(BIN)/python pyproject.toml constraints.txt
	$(PIP) -e ".[docs,onnx]"
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

# Tables of times are not written into the pages: copy each from runs/figures to the page that names its command,
# then `make drawings`. IMAGES is the folder of chest_160.npz and oct_96.npz, for the commands that need real images.
FIGURES := runs/figures
figures: $(VENV)/.heavy $(VENV)/.kernels ## measure every time in README and docs again, then make drawings; an hour or more
	mkdir -p $(FIGURES)
	$(BIN)/tpl bench --rounds 11 --out $(FIGURES)/bench
	$(BIN)/python benchmarks/orthogonal.py --rounds 5 > $(FIGURES)/orthogonal.txt
	$(BIN)/python benchmarks/compiled.py --rounds 15 > $(FIGURES)/compiled.txt
	$(BIN)/python benchmarks/oct_training.py > $(FIGURES)/oct_training.txt
	$(BIN)/python benchmarks/jobs.py --rounds 2 --epochs 8 > $(FIGURES)/jobs.txt
	$(BIN)/python benchmarks/mpca.py --rounds 3 > $(FIGURES)/mpca.txt
	KERAS_BACKEND=tensorflow $(BIN)/python benchmarks/keras_layer.py gradient --rounds 7 > $(FIGURES)/keras_gradient.txt
	KERAS_BACKEND=jax $(BIN)/python benchmarks/keras_layer.py accuracy > $(FIGURES)/keras_accuracy.txt
	for backend in tensorflow jax torch; do KERAS_BACKEND=$$backend $(BIN)/python benchmarks/keras_layer.py \
		training --rounds 21 --batch 50 > $(FIGURES)/keras_training_$$backend.txt || exit 1; done
	$(if $(IMAGES),$(BIN)/python benchmarks/chest_cache.py --data $(IMAGES)/chest_160.npz > $(FIGURES)/chest_cache.txt)
	$(if $(IMAGES),$(BIN)/python benchmarks/mpca_batches.py --data $(IMAGES)/oct_96.npz > $(FIGURES)/mpca_batches.txt)
	$(MAKE) drawings

# The long runs are not repeated: docs/results has their rows.
drawings: $(VENV)/.test $(VENV)/.kernels ## every drawing and table of README and docs that rows and tables in the repository give
	$(BIN)/python docs/_ext/evidence.py
	$(BIN)/python docs/_ext/drawings/hero.py
	for run in oct=base,avg,tpl1,tpl1-block3,tpl1-dct,tcl chest-quarter=base,tpl,tpl-mpca,tcl \
		kvasir=base,tpl,tpl-dct,tpl-blur,tpl-aggressive; do \
		$(BIN)/tpl report docs/results/$${run%=*} --models $${run#*=} --out $(FIGURES)/$${run%=*} && \
		cp $(FIGURES)/$${run%=*}/figures/overview.png docs/images/$${run%=*}.png || exit 1; done

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
