# The two commands of the README are `make reproduce` and `make test`; `make setup` does their set-up alone.
PYTHON ?= python3
# Name PyTorch's CPU index here to keep pip from fetching a CUDA build:
#   make setup TORCH_INDEX=<address of the CPU wheels>
TORCH_INDEX ?=
BIN := .venv/bin
MARK := .venv/.ready
RUN := PATH="$(CURDIR)/$(BIN):$$PATH"

# Two workers; the tests of a file share what its fixtures made, slow files come first.
WORKERS := -n 2 --dist loadfile --no-loadscope-reorder

.PHONY: help setup reproduce smoke test soak gpu check format lint types docs lock clean

help:
	@sed -n 's/^## //p' $(MAKEFILE_LIST)

## make setup       create .venv and install the pinned dependencies
setup: $(MARK)

$(MARK): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is required; name one with make PYTHON=python3.11")'
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	@echo "Installing PyTorch, then the other dependencies, into .venv: about 2 minutes"
	$(BIN)/python -m pip install --quiet --disable-pip-version-check $(if $(TORCH_INDEX),--index-url $(TORCH_INDEX)) "$$(grep '^torch==' constraints.txt)"
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[experiments,dev,docs]'
	touch $(MARK)

## make reproduce   train, evaluate and report every study at the quick scale
reproduce: setup
	$(RUN) snakemake reproduce $(ARGS)
	@$(BIN)/python -m experiments where -- $(ARGS)

## make smoke       the same at the smallest scale: at most 300 core-seconds of runs and computations, and the pages
smoke: ARGS = --config scale=smoke
smoke: reproduce

## make test        run the tests, and print the slowest twenty
test: setup
	$(RUN) $(BIN)/python -m pytest $(WORKERS) --durations=20 --durations-min=1

## make soak        masks on four ranks, beside those on two
soak: setup
	$(RUN) SOAK=1 $(BIN)/python -m pytest tests/sparse_lib/core/test_distributed.py

## make gpu         masks and speed of sparse training on a GPU, in five minutes (without one, CPU twins)
gpu: setup
	$(RUN) timeout 300 sh -ec ' \
	  python -m pytest -q tests/sparse_lib/test_gpu.py; \
	  python -m benchmarks.gpu'

## make check       lint, types, workflow lint and the fast tests
check: setup lint types
	$(RUN) $(BIN)/python -m pytest $(WORKERS) -m "not slow"

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/snakefmt --check Snakefile workflow
	$(RUN) snakemake --lint

types: setup
	$(BIN)/mypy

## make docs        build the documentation into site/, warnings as errors
docs: setup
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet
	@echo "The site is site/index.html"

## make lock        write requirements.lock, the hashes of what constraints.txt pins (needs uv)
lock:
	echo 'torch; sys_platform == "none"' > .override.txt
	echo networkx | uv pip compile --quiet --universal --generate-hashes --no-annotate --python-version 3.11 \
	  --extra experiments --extra dev --extra docs --constraints constraints.txt --overrides .override.txt \
	  --no-emit-package torch --custom-compile-command "make lock" pyproject.toml - --output-file requirements.lock
	rm .override.txt

## make format      rewrite the code in the house style
format: setup
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	$(BIN)/snakefmt Snakefile workflow

## make clean       remove what runs made; results/reference and .venv stay
clean:
	rm -rf state logs resources reports/smoke reports/quick reports/small reports/gpu reports/paper .snakemake
	rm -rf results/smoke results/quick results/small results/gpu results/paper
