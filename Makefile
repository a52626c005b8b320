# One word each. Needs Python 3.11 and GNU make; nothing else is assumed to be there.

SHELL := /bin/sh
VENV := .venv
BIN := $(VENV)/bin
UV_VERSION := 0.13.8
PYTHON_VERSION_OK := import sys; sys.exit(sys.version_info[:2] != (3, 11))

# The name of a stamp carries what it stands for, so a changed lock or a moved checkout makes a new environment
# and an interrupted installation never looks complete.
LOCKED := $(VENV)/.locked-$(shell { grep == requirements.lock; pwd; } | cksum | tr ' ' -)
INSTALLED := $(VENV)/.installed-$(shell cksum < pyproject.toml | tr ' ' -)
OURS := $(VENV)/.made-by-make

.PHONY: help env demo test test-faults check format lab app bench peers lock clean

help: ## say what there is
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-11s %s\n", $$1, $$2 }' Makefile

env: $(INSTALLED) ## make .venv from requirements.lock
	@:

demo: env ## data, the training notebook, then where to look
	@$(BIN)/labkit demo

test: env ## every test, then the notebooks; ARGS="-k resume" goes to pytest
	@# Two files at a time, in the order of tests/conftest.py. Local clusters and the browser have the machine alone.
	@set -e; if [ -z "$(ARGS)" ]; then \
	    $(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder -m "not (alone or faults or thorough)"; \
	    $(BIN)/python -m pytest -m "(alone and not (faults or thorough)) or faults_core"; \
	else \
	    $(BIN)/python -m pytest -m "not (faults or thorough) or faults_core" $(ARGS); \
	fi
	@# Cells are read once as tests; what they write goes into a home of their own, not among the user's runs.
	@# nbval passes no parameters: the variable keeps them from a download and from training a large network.
	@set -e; if [ -z "$(ARGS)" ] && ls notebooks/*.ipynb >/dev/null 2>&1; then \
	    home=$$(mktemp -d); trap 'rm -rf "$$home"' EXIT; trap 'exit 130' INT TERM; \
	    LABKIT_HOME="$$home" LABKIT_PARAMETERS='{"dataset": "shapes", "num_layers": 8, "train_batch_size": 32, "train_steps": 40}' \
	        $(BIN)/python -m pytest --nbval-lax --nbval-cell-timeout=600 --timeout=660 notebooks; \
	fi

test-faults: env ## kill, freeze and stop clusters, all cases, and what else takes long; LABKIT_FAULTS_TABLE=FILE gets the table
	@$(BIN)/python -m pytest -m "faults or thorough" $(ARGS)

check: env ## lint, format, types, who imports whom
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports --no-logo

format: env ## put imports and layout right
	@$(BIN)/ruff check --select I --fix .
	@$(BIN)/ruff format .

lab: env ## JupyterLab on the training notebook
	@$(BIN)/jupyter lab notebooks/train.ipynb

app: env ## the dashboard, on this machine only
	@$(BIN)/streamlit run app/main.py --server.address=127.0.0.1

bench: env ## every benchmark, one after another; ARGS="train_step --repeats 9" goes to it
	@$(BIN)/python -m benchmarks $(ARGS)

peers: env ## PyTorch into .venv, for benchmarks; ARGS="--extra-index-url https://download.pytorch.org/whl/cpu" without CUDA
	@$(BIN)/python -m pip install --disable-pip-version-check $(ARGS) -r benchmarks/peers.txt

lock: ## resolve pyproject.toml anew into requirements.lock; ARGS=--upgrade takes newer versions
	@set -e; $(find_python); tools=$$(mktemp -d); trap 'rm -rf "$$tools"' EXIT; trap 'exit 130' INT TERM; \
	"$$python" -m venv "$$tools/uv"; "$$tools/uv/bin/pip" install --quiet uv==$(UV_VERSION); \
	cp requirements.lock "$$tools/" 2>/dev/null || true; \
	"$$tools/uv/bin/uv" pip compile pyproject.toml --extra dev --universal --fork-strategy fewest \
	    --python-version 3.11 --generate-hashes --no-emit-index-url --quiet \
	    --custom-compile-command "make lock" $(ARGS) --output-file "$$tools/requirements.lock"; \
	mv "$$tools/requirements.lock" requirements.lock

clean: ## remove .venv and caches; data and runs stay
	@if [ -e $(OURS) ]; then $(discard); fi
	@rm -rf build dist *.egg-info .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis
	@find labkit app tests benchmarks -name __pycache__ -type d -prune -exec rm -rf {} +

# Sets $$python to the interpreter to build with: PYTHON=... if given, else the first 3.11 on the path.
find_python = python=; for candidate in $(or $(PYTHON),python3.11 python3 python); do \
	if "$$candidate" -c '$(PYTHON_VERSION_OK)' >/dev/null 2>&1; then python=$$candidate; break; fi; done; \
	if [ -z "$$python" ]; then \
	    echo "labkit needs Python 3.11; none among: $(or $(PYTHON),python3.11 python3 python). Install it, or name it: make env PYTHON=/path/to/python3.11" >&2; \
	    exit 1; fi

# Renamed before it is removed: half of an environment under its own name would look like a whole one.
discard = rm -rf $(VENV).discarded; if [ -e $(VENV) ]; then mv $(VENV) $(VENV).discarded; rm -rf $(VENV).discarded; fi

$(LOCKED):
	@set -e; $(find_python); \
	rmdir $(VENV) 2>/dev/null || true; \
	if [ -e $(VENV) ] && [ ! -e $(OURS) ]; then \
	    echo "$(VENV) was not made by make: move it away (mv $(VENV) $(VENV).old), then run make env again" >&2; exit 1; fi; \
	if ! "$$python" -c 'import ensurepip, venv' >/dev/null 2>&1; then \
	    echo "$$python can't make virtual environments: install its venv module (Debian, Ubuntu: apt-get install python3.11-venv)" >&2; \
	    exit 1; fi; \
	echo "Making $(VENV) from requirements.lock (3 GB, a few minutes)"; \
	$(discard); mkdir $(VENV); touch $(OURS); "$$python" -m venv $(VENV); \
	$(BIN)/python -m pip install --disable-pip-version-check --no-input $$([ -t 1 ] || echo --quiet) \
	    --require-hashes -r requirements.lock || { \
	    echo "The installation did not finish; what was downloaded is kept: run make env again" >&2; exit 1; }
	@touch $@

$(INSTALLED): $(LOCKED)
	@rm -f $(VENV)/.installed-*
	@$(BIN)/python -m pip install --disable-pip-version-check --quiet --no-index --no-deps --no-build-isolation --editable .
	@touch $@
