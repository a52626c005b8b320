# Needs GNU make and Python 3.11, 3.12 or 3.13. CI runs 3.11.

SHELL := /bin/sh
VENV := .venv
BIN := $(VENV)/bin
# In this order, unless PYTHON names one. 3.11 comes first because CI tests it.
PYTHONS := $(or $(PYTHON),python3.11 python3.12 python3.13 python3 python)
PYTHON_VERSION_OK := import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))

# Stamp files, written when an installation is complete. Their names contain a checksum of what was installed, so a
# changed lock or a moved checkout gets a new environment.
LOCKED := $(VENV)/.locked-$(shell { grep == requirements.lock; pwd; } | cksum | tr ' ' -)
INSTALLED := $(VENV)/.installed-$(shell cksum < pyproject.toml | tr ' ' -)
OURS := $(VENV)/.made-by-make

# Where it is set, as in many containers, each of the hundreds of processes that tests start would compile labkit.
unexport PYTHONDONTWRITEBYTECODE

# Two files of tests at a time, in the order of tests/conftest.py.
two_at_a_time = $(BIN)/python -m pytest -n 2 --max-worker-restart 0 --dist loadfile --no-loadscope-reorder

# The notebooks of the repository. A notebook that isn't in git keeps its outputs.
NOTEBOOKS = $(shell git ls-files 'notebooks/*.ipynb' 2>/dev/null || ls notebooks/*.ipynb 2>/dev/null)

.PHONY: help env demo test test-long test-faults soak check format lab course app bench peers lock clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-11s %s\n", $$1, $$2 }' Makefile

env: $(INSTALLED) ## make .venv from requirements.lock; PYTHON=python3.12 chooses the Python (after make clean)
	@:

demo: env ## prepare data, run the training notebook, show where its results are
	@$(BIN)/labkit demo

test: env ## run the tests, then the notebooks; ARGS="-k resume" is passed to pytest
	@# What notebooks write goes into a home of its own, not among the user's runs, and the proxy that isn't there keeps
	@# them from downloading CIFAR-10 for that home.
	@trap 'exit 130' INT TERM; \
	if [ -n "$(ARGS)" ]; then exec $(BIN)/python -m pytest -m "not long" $(ARGS); fi; failed=; \
	$(two_at_a_time) -m "not long" || failed=", the tests"; \
	if ls notebooks/*.ipynb >/dev/null 2>&1; then \
	    home=$$(mktemp -d) || exit 1; trap 'rm -rf "$$home"' EXIT; \
	    LABKIT_HOME="$$home" https_proxy=http://127.0.0.1:9 $(two_at_a_time) --nbval-lax notebooks/ \
	        || failed="$$failed, the notebooks"; \
	fi; \
	if [ -n "$$failed" ]; then echo "make test: failed:$${failed#,}" >&2; exit 1; fi

test-long: env ## run the long tests; ARGS="-k browser" is passed to pytest
	@trap 'exit 130' INT TERM; \
	if [ -n "$(ARGS)" ]; then exec $(BIN)/python -m pytest -m long $(ARGS); fi; failed=; \
	$(two_at_a_time) -m "long and not alone" || failed=", the tests that run two at a time"; \
	$(BIN)/python -m pytest -m "alone and (not faults or core)" || failed="$$failed, the tests that run alone"; \
	if [ -n "$$failed" ]; then echo "make test-long: failed:$${failed#,}" >&2; exit 1; fi

test-faults: env ## run all tests that hurt clusters; LABKIT_FAULTS_TABLE=FILE writes a table
	@$(BIN)/python -m pytest -m faults $(ARGS)

soak: env ## hurt clusters at random for hours, as root; ARGS="--minutes 10 --seed 7 --output soak.md"
	@$(BIN)/python -m tests.faults.soak $(ARGS)

check: env ## check lint, formatting, types, the import contracts, and that notebooks have no outputs
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports --no-logo
	@$(BIN)/python -m course.site strip --check $(NOTEBOOKS)

format: env ## sort imports, format the code, and remove the outputs of notebooks/
	@$(BIN)/ruff check --select I --fix .
	@$(BIN)/ruff format .
	@$(BIN)/python -m course.site strip $(NOTEBOOKS)

lab: env ## open your copies of the lessons, in lessons/, in JupyterLab
	@$(BIN)/labkit lesson start
	@$(BIN)/jupyter lab --ServerApp.root_dir="$(CURDIR)" --LabApp.default_url=/lab/tree/lessons/00_tour.ipynb

course: env ## run all lessons and build their site in build/course; ARGS=04_replicas runs one, the others stay
	@$(BIN)/python -m course.site build $(ARGS)

app: env ## start the dashboard on 127.0.0.1
	@$(BIN)/streamlit run app/main.py --server.address=127.0.0.1

bench: env ## run the benchmarks that need no browser, no root and no hours; ARGS="train_step --repeats 9" runs one
	@$(BIN)/python -m benchmarks $(ARGS)

peers: env ## install PyTorch and OpenVINO for the benchmarks, on Linux with CUDA: several GB; benchmarks/README.md has the build for CPUs
	@$(BIN)/python -m pip install --disable-pip-version-check --require-hashes --only-binary :all: $(ARGS) -r benchmarks/peers.lock

lock: ## update requirements.lock from pyproject.toml, and benchmarks/peers.lock; ARGS=--upgrade takes newer versions
	@set -e; $(find_python); tools=$$(mktemp -d); trap 'rm -rf "$$tools"' EXIT; trap 'exit 130' INT TERM; \
	"$$python" -m venv "$$tools/uv"; "$$tools/uv/bin/pip" install --quiet --require-hashes --only-binary :all: -r .ci/uv.txt; \
	cp requirements.lock "$$tools/" 2>/dev/null || true; \
	"$$tools/uv/bin/uv" pip compile pyproject.toml --extra dev --universal --fork-strategy fewest \
	    --python-version 3.11 --generate-hashes --no-emit-index-url --quiet \
	    --custom-compile-command "make lock" $(ARGS) --output-file "$$tools/requirements.lock"; \
	mv "$$tools/requirements.lock" requirements.lock; \
	cp benchmarks/peers.lock "$$tools/"; \
	"$$tools/uv/bin/uv" pip compile benchmarks/peers.txt --universal --python-version 3.11 --generate-hashes \
	    --no-emit-index-url --no-annotate --constraint requirements.lock --quiet \
	    --custom-compile-command "make lock" $(ARGS) --output-file "$$tools/peers.lock"; \
	mv "$$tools/peers.lock" benchmarks/peers.lock

clean: ## remove .venv and caches; keeps data and runs
	@if [ -e $(OURS) ]; then $(discard); fi
	@rm -rf build dist *.egg-info .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis
	@find labkit app course tests benchmarks -name __pycache__ -type d -prune -exec rm -rf {} +

# Sets $$python to the first of $(PYTHONS) that runs and has a supported version, else to one that uv knows. Each is
# run, because a pyenv shim can be on the PATH for a version that isn't selected.
find_python = python=; for candidate in $(PYTHONS); do \
	if "$$candidate" -c '$(PYTHON_VERSION_OK)' >/dev/null 2>&1; then python=$$candidate; break; fi; done; \
	if [ -z "$$python" ] && [ -z "$(PYTHON)" ]; then \
	    python=$$(uv python find --system --no-python-downloads '>=3.11,<3.14' 2>/dev/null) || python=; fi; \
	if [ -z "$$python" ]; then \
	    echo "labkit needs Python 3.11, 3.12 or 3.13; none among: $(PYTHONS). Name one: make env PYTHON=/path/to/python3.11" >&2; \
	    echo "or let uv fetch one: uv python install 3.11, then make env (how to get uv: https://docs.astral.sh/uv/)" >&2; \
	    exit 1; fi

# Renamed first, so that an interrupted removal doesn't leave a broken environment under the name .venv.
discard = rm -rf $(VENV).discarded; if [ -e $(VENV) ]; then mv $(VENV) $(VENV).discarded; rm -rf $(VENV).discarded; fi

# Three at a time: pip uses one core. The lock has all that is needed, so nothing is resolved (--no-deps).
$(LOCKED):
	@set -e; $(find_python); \
	rmdir $(VENV) 2>/dev/null || true; \
	if [ -e $(VENV) ] && [ ! -e $(OURS) ]; then \
	    echo "$(VENV) was not made by make: move it away (mv $(VENV) $(VENV).old), then run make env again" >&2; exit 1; fi; \
	if ! "$$python" -c 'import ensurepip, venv' >/dev/null 2>&1; then \
	    package=$$("$$python" -c 'import sys; print("python%d.%d-venv" % sys.version_info[:2])'); \
	    echo "$$python can't make virtual environments: install its venv module (Debian, Ubuntu: apt-get install $$package)" >&2; \
	    exit 1; fi; \
	echo "Making $(VENV) from requirements.lock (3.5 GB, 1 to 3 minutes)"; \
	$(discard); mkdir $(VENV); touch $(OURS); "$$python" -m venv $(VENV); \
	parts=$$(mktemp -d); trap 'rm -rf "$$parts"' EXIT; trap 'exit 130' INT TERM; \
	awk -v parts="$$parts" '/^[^ #]/ { part = /^tensorflow==/ ? 1 : 2 + n++ % 2 } part { print > (parts "/" part) }' requirements.lock; \
	ls "$$parts"/* | xargs -P 3 -n 1 $(BIN)/python -m pip install --disable-pip-version-check --no-input --progress-bar off \
	    $$([ -t 1 ] || echo --quiet) --require-hashes --only-binary :all: --no-deps -r || { \
	    echo "The installation did not finish; what was downloaded is kept: run make env again" >&2; exit 1; }
	@touch $@

$(INSTALLED): $(LOCKED)
	@rm -f $(VENV)/.installed-*
	@$(BIN)/python -m pip install --disable-pip-version-check --quiet --no-index --no-deps --no-build-isolation --editable .
	@touch $@
