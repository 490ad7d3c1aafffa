# One venv, made once by tests/set_up.py. ripgrep and bubblewrap are optional: what uses them is slower, or its tests are
# skipped.
PYTHON ?= $(shell for p in python3 python3.13 python3.12 python3.11; do \
  $$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)
VENV   ?= .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
BYTECODE := $(VENV)/.compiled
SOAK   ?= 1
# The tests in a browser need a large package: only those who have Chromium get it.
BROWSER := $(shell command -v chromium >/dev/null 2>&1 && echo ,browser)
STOP_AFTER ?=
PYTEST := env -u PYTHONDONTWRITEBYTECODE $(BIN)/python -m pytest
# Byte code is kept: without it each worker compiles four hundred test modules anew.

.PHONY: demo test test-all test-times check check-types check-rest bench soak fmt dist release clean setup
.DEFAULT_GOAL := test

setup: $(BYTECODE)

$(STAMP): pyproject.toml
	@test -n "$(PYTHON)" || { echo "Callboard needs Python 3.11 or newer: install it, or name it: make PYTHON=/path/to/python"; exit 1; }
	@$(PYTHON) tests/set_up.py $(VENV) '.[dev$(BROWSER)]'
	@touch $@

# The packages' byte code takes seconds on all processors, and `check` needs little of it. Some packages hold files for
# other versions of Python: what cannot be compiled is left.
$(BYTECODE): $(STAMP)
	@$(BIN)/python -m compileall -qq -j 0 $(VENV)/lib || true
	@touch $@

demo: setup
	@$(BIN)/callboard demo

check: $(STAMP)
	@$(MAKE) --no-print-directory -j 2 --output-sync=target check-types check-rest

check-types:
	@$(BIN)/python tests/check_types.py

check-rest:
	@$(BIN)/ruff format --check runtime tests bench
	@$(BIN)/ruff check runtime tests bench
	@$(PYTEST) tests/test_architecture.py tests/test_docs.py

test: setup
	@$(PYTEST) -n 6

# With the tests that take long, which `test` leaves out.
test-all: setup
	@$(PYTEST) -n 6 --all

test-times: setup
	@$(PYTEST) -n 6 -p tests.times

soak: setup
	@SOAK=$(SOAK) $(PYTEST) -n 2 -m soak $(if $(STOP_AFTER),--stop-after $(STOP_AFTER))

bench: setup
	@for b in bench/step.py bench/start.py bench/context_growth.py bench/context_cost.py bench/herd.py bench/idle.py bench/bus.py bench/storage.py bench/policy.py bench/mcp_calls.py; do env -u PYTHONDONTWRITEBYTECODE $(BIN)/python $$b || exit 1; done

fmt: $(STAMP)
	@$(BIN)/ruff check --fix -q runtime tests bench; $(BIN)/ruff format -q runtime tests bench

dist: setup
	@$(BIN)/python -m build --outdir dist
	@$(BIN)/python -m twine check --strict dist/*

# What PyPI gets: only a clean commit that passes all tests. The upload itself needs the token of a maintainer.
release: setup
	@test -z "$$(git status --porcelain)" || { echo "Commit or remove these changes first:"; git status --short; exit 1; }
	@rm -rf dist
	@$(MAKE) --no-print-directory check test-all dist
	@echo "To upload: $(BIN)/python -m twine upload dist/*"

clean:
	rm -rf $(VENV) dist .pytest_cache .ruff_cache .hypothesis
