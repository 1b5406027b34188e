# Every target does its own set-up: Python, make and a package index are enough.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
TYPED := sqla_jobs sqla_jobs_pytest.py tests/support tests/conftest.py \
	$(wildcard tests/chaos tests/chaos.py examples benchmarks)

# How long `make chaos` goes on, and what the other targets pass through.
MINUTES ?= 10
ARGS ?=
# Where `make demo` and `make chaos` run: postgresql or sqlite.
DB ?= postgresql

.DEFAULT_GOAL := help
.PHONY: help demo test check format bench bench-backfill chaos clean

help: ## say what can be made
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

# The stamp is older than pyproject.toml when the dependencies may have changed. It is
# written last, so an interrupted installation is done again.
$(STAMP): pyproject.toml
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[dev]'
	@touch $(STAMP)

demo: $(STAMP) ## import weather readings, kill a worker, verify (DB=sqlite ARGS=--json)
	$(BIN)/python -m examples.weather.demo --db $(DB) $(ARGS)

test: $(STAMP) ## run all tests, on a real PostgreSQL 18 (ARGS='-k name')
	$(BIN)/python -m pytest $(ARGS)

check: $(STAMP) ## lint, format, types, layers
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy $(TYPED)
	@# Without its cache, which does not see that an imported module is new.
	$(BIN)/lint-imports --no-cache

format: $(STAMP) ## let ruff format and fix what it can
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: $(STAMP) ## measure jobs/s and the shares of claim, execute and settle
	$(BIN)/python -m benchmarks $(ARGS)

bench-backfill: $(STAMP) ## backfills against loops written by hand (ARGS='--rows 200000')
	$(BIN)/python -m benchmarks.backfill $(ARGS)

chaos: $(STAMP) ## kill and freeze workers for MINUTES=10 (DB=sqlite)
	$(BIN)/python -m tests.chaos --db $(DB) --minutes $(MINUTES) $(ARGS)

clean: ## remove the virtual environment and all caches
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
