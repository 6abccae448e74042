# One command each; `make` lists them. Paths are relative, so a checkout may live under any name.
.DEFAULT_GOAL := help
.SUFFIXES:
MAKEFLAGS += --no-builtin-rules --no-print-directory

# Settings, e.g. `make dev PORT=8080`, `make setup PYTHON=/usr/bin/python3.12`
PORT ?=
PYTHON ?=
TESTS ?= tests
UPGRADE ?=
export PYTHON

COMPOSE = docker compose -f infra/docker-compose.yml
COMPILE = .venv/bin/uv pip compile --quiet --universal --generate-hashes --no-header --no-annotate \
	--python-version 3.11 $(if $(UPGRADE),--upgrade)

.PHONY: help
help: ## List the commands
	@awk 'BEGIN {FS = ":.*## "} /^[a-z-]+:.*## / {printf "  make %-11s %s\n", $$1, $$2}' Makefile

.PHONY: setup
setup: ## Make .venv with everything in it (done by the other commands when needed)
	@./scripts/setup-environment

.PHONY: demo
demo: setup ## Make the demo cinema, run its pipelines, show the marts
	@.venv/bin/vitrina demo

.PHONY: dev
dev: setup ## Serve the API and run pipelines until Ctrl-C (PORT=8000)
	@.venv/bin/vitrina dev $(if $(PORT),--port "$(PORT)")

.PHONY: test
test: check ## Check the code and run every test (TESTS=tests/unit for a part)
	@.venv/bin/python -m pytest $(TESTS)

.PHONY: check
check: setup ## Lint, formatting, types, import contracts
	@.venv/bin/ruff check .
	@.venv/bin/ruff format --check --quiet .
	@.venv/bin/mypy
	@.venv/bin/lint-imports --no-logo

.PHONY: format
format: setup ## Put the code into its standard form
	@.venv/bin/ruff check --fix --quiet .
	@.venv/bin/ruff format --quiet .

.PHONY: lock
lock: setup ## Renew requirements/*.txt after a change in pyproject.toml (UPGRADE=1 takes newer versions)
	@$(COMPILE) --extra all --group dev -o requirements/dev.txt pyproject.toml
	@$(COMPILE) --extra all -o requirements/runtime.txt pyproject.toml
	@$(COMPILE) --group build -o requirements/build.txt

.PHONY: clean
clean: ## Remove caches and build results (.venv and .vitrina stay)
	@rm -rf .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis build dist
	@find src tests -name __pycache__ -type d -prune -exec rm -rf {} +
