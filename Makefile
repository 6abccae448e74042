# One command each; `make` lists them. Paths are relative, so a checkout may live under any name.
.DEFAULT_GOAL := help
.SUFFIXES:
MAKEFLAGS += --no-builtin-rules --no-print-directory

# Settings, e.g. `make dev PORT=8080`, `make setup PYTHON=/usr/bin/python3.12`
KIND ?=
CLICKHOUSE ?=
FILES ?=
JOBS ?= 2
PG_BINDIR ?=
PORT ?=
PYTHON ?=
QUICK ?=
SEARCH ?=
TESTS ?= tests
UPGRADE ?=
VERSION ?=
WHERE ?=
WIPE ?=
export PYTHON VERSION

COMPOSE = docker compose $(if $(wildcard .env),--env-file .env) -f infra/docker-compose.yml
# Two processes, each with a PostgreSQL of its own; a file, and a search server, stays with one of them (tests/conftest.py).
RUN_PYTEST = .venv/bin/python -m pytest
PYTEST = $(RUN_PYTEST) --numprocesses "$(JOBS)"
# Variables, because a comma would end an argument of $(if).
BENCH_QUICK = --rows 50000 --repeat 1 --growth 10000,100000 --name quick
BENCH_WHOLE = --growth 10000,100000,1000000,10000000
# How marts are written, who may do what, and the migrations: the statements that differ between versions of PostgreSQL.
# Patterns that the shell expands, so that one without a file is an error of pytest.
DEPENDS_ON_VERSION = $(foreach name,batches_of databases deletes derived_keys doctor first_loads full_loads guarantees history hot_updates \
	incremental_loads init key_ranges leases marts odd_keys ranged reader_sessions refused_loads replaced_marts rights session sqlguard_queries \
	standby table_options upgrades,tests/integration/test_$(name)*.py)
COMPILE = .venv/bin/uv pip compile --quiet --universal --generate-hashes --no-header --no-annotate \
	--python-version 3.11 $(if $(UPGRADE),--upgrade)

.PHONY: help
help: ## List the commands
	@awk 'BEGIN {FS = ":.*## "} /^[a-z-]+:.*## / {printf "  make %-14s %s\n", $$1, $$2}' Makefile

.PHONY: setup
setup: ## Make .venv with everything in it, and the console (done by the other commands when needed)
	@$(MAKE) --jobs=2 environment bundle

.PHONY: environment bundle
environment:
	@./scripts/setup-environment
bundle:
	@./scripts/build-console

.PHONY: demo
demo: setup $(if $(CLICKHOUSE),clickhouse-packages) ## Make the demo cinema, run its pipelines, show the marts (SEARCH=1, CLICKHOUSE=1: there too)
	@$(if $(SEARCH),./scripts/install-system-packages java)
	@$(if $(CLICKHOUSE),PYTHONPATH="$(CURDIR)/.clickhouse") exec .venv/bin/vitrina demo $(if $(SEARCH),--search) $(if $(CLICKHOUSE),--clickhouse)

.PHONY: dev
dev: setup ## Serve the API and run pipelines until Ctrl-C (PORT=8000; SEARCH=1 adds a search server)
	@$(if $(SEARCH),./scripts/install-system-packages java)
	@exec .venv/bin/vitrina dev $(if $(PORT),--port "$(PORT)") $(if $(SEARCH),--search)

.PHONY: search
search: setup ## Start a search server that goes on running (KIND=opensearch-2; `vitrina search stop` ends it)
	@./scripts/install-system-packages java
	@exec .venv/bin/vitrina search start $(if $(KIND),--kind "$(KIND)")

.PHONY: console
console: ## Build the web console
	@CONSOLE_REQUIRED=1 ./scripts/build-console

.PHONY: test
test: check ## Check the code and run every test (TESTS=tests/unit for a part)
	@$(if $(filter tests tests/chaos% tests/search%,$(TESTS)),./scripts/install-system-packages java)
	@$(if $(filter tests tests/integration%,$(TESTS)),./scripts/install-system-packages pgbouncer)
	@$(PYTEST) $(TESTS)
	@$(if $(filter tests,$(TESTS)),$(MAKE) test-frames docs test-console)

.PHONY: test-search
test-search: setup ## Search targets on Elasticsearch 8 and 9, OpenSearch 2 and 3 (`make test` runs two of them)
	@./scripts/install-system-packages java
	@VITRINA_TEST_SEARCH=all $(PYTEST) tests/search

.PHONY: test-frames
test-frames: setup ## Steps written with pandas and polars, which are installed beside .venv for it
	@.venv/bin/uv pip install --quiet --require-hashes --target .frames --requirements requirements/frames.txt
	@PYTHONPATH=.frames VITRINA_TEST_FRAMES=1 $(RUN_PYTEST) tests/frames

.PHONY: clickhouse-packages
clickhouse-packages: setup
	@.venv/bin/uv pip install --quiet --require-hashes --target .clickhouse --requirements requirements/clickhouse.txt

.PHONY: test-clickhouse
test-clickhouse: clickhouse-packages ## ClickHouse as a target, on its engine, which is installed beside .venv for it
	@PYTHONPATH=.clickhouse VITRINA_TEST_CLICKHOUSE=1 $(PYTEST) tests/clickhouse

.PHONY: chaos-clickhouse
chaos-clickhouse: clickhouse-packages ## Kill and stop runners that fill ClickHouse tables: two hundred faults, nothing lost or doubled
	@PYTHONPATH=.clickhouse VITRINA_TEST_CLICKHOUSE=1 VITRINA_CHAOS=long .venv/bin/python -m pytest -s tests/clickhouse/test_kills.py
.PHONY: test-lake
test-lake: setup ## Targets of Parquet files, with DuckDB and a real S3 server, which are installed beside .venv for it
	@.venv/bin/uv pip install --quiet --require-hashes --target .lake --requirements requirements/lake.txt
	@./scripts/install-s3-server
	@PYTHONPATH="$(CURDIR)/.lake" VITRINA_TEST_LAKE=1 $(PYTEST) $(or $(filter tests/lake%,$(TESTS)),tests/lake)

.PHONY: test-spark
test-spark: setup ## Loads that executors of a real Spark cluster bring, installed beside .venv (QUICK=1: without a million rows and 30 kills)
	@./scripts/install-system-packages java
	@.venv/bin/uv pip install --quiet --require-hashes --target .spark --requirements requirements/spark.txt
	@PYTHONPATH="$(CURDIR)/.spark" VITRINA_TEST_SPARK=1 $(if $(QUICK),,VITRINA_CHAOS=long) $(RUN_PYTEST) -s $(or $(filter tests/spark%,$(TESTS)),tests/spark)

.PHONY: chaos-spark
chaos-spark: ## Kill Python processes, executors, driver and runner thirty times while a cluster brings a million rows
	@$(MAKE) --no-print-directory test-spark TESTS=tests/spark/test_kills.py

.PHONY: test-airflow
test-airflow: setup ## The provider in a real Airflow, installed beside .venv (VERSION=2.11: on that line)
	@./scripts/setup-airflow
	@VITRINA_TEST_AIRFLOW="$(or $(VERSION),3)" $(RUN_PYTEST) tests/airflow/test_tasks.py tests/airflow/test_kills.py

.PHONY: test-console
test-console: setup ## The console: types, units, and the whole platform driven in a browser
	@./scripts/install-system-packages chromium
	@./scripts/build-console --packages
	@cd console && npm run --silent types && npm run --silent unit && npm run --silent browser

.PHONY: screenshots
screenshots: setup ## Draw the console's pages again for the documentation (docs/images)
	@./scripts/install-system-packages chromium fonts
	@./scripts/build-console --packages
	@cd console && npm run --silent screenshots

.PHONY: test-postgres
test-postgres: setup ## The tests that touch SQL, on the PostgreSQL whose programs are in PG_BINDIR (QUICK=1: those that depend on its version)
	@# Left out: what is about another server, about commands and processes whose SQL is the API's and the runner's,
	@# and about the form of requests, the processes of steps and outside observers.
	@./scripts/install-system-packages pgbouncer
	@VITRINA_TEST_PG_BINDIR="$(PG_BINDIR)" $(PYTEST) tests/contracts $(if $(QUICK),$(DEPENDS_ON_VERSION),tests/integration \
		$(foreach name,embedded cli cli_dev cli_steps containers api_openapi api_limits step_workers traces lineage bench_cpu,--ignore tests/integration/test_$(name).py))

.PHONY: chaos
chaos: setup ## Kill, stop, cut and crash everything, for half an hour: nothing lost, doubled or stuck
	@./scripts/install-system-packages java
	@VITRINA_CHAOS=long .venv/bin/python -m pytest -s tests/chaos --ignore tests/chaos/test_history.py

.PHONY: chaos-history
chaos-history: setup ## A thousand runs of a history for each of ten seeds, with killed runners and late commits, for hours
	@VITRINA_CHAOS=long .venv/bin/python -m pytest -s tests/chaos/test_history.py

.PHONY: chaos-ranges
chaos-ranges: setup ## Kill workers and runners thirty times while they load a million rows in ranges, copied and with steps
	@VITRINA_CHAOS=long .venv/bin/python -m pytest -s tests/chaos/test_ranged_load.py

.PHONY: chaos-lake
chaos-lake: ## The tests of files and Iceberg tables with all their kills, and readers that poll during fifty loads
	@VITRINA_CHAOS=long $(MAKE) --no-print-directory test-lake

.PHONY: chaos-airflow
chaos-airflow: setup ## Kill workers, triggerer and API under tasks of a real Airflow: two hundred faults, one run for each task
	@./scripts/setup-airflow
	@VITRINA_TEST_AIRFLOW=3 VITRINA_CHAOS=long .venv/bin/python -m pytest -s tests/airflow/test_kills.py

.PHONY: soak
soak: setup ## An hour of steady work: memory, connections and lag stay flat (MINUTES=60)
	@.venv/bin/python -m tests.chaos.soak --minutes "$(or $(MINUTES),60)"

.PHONY: bench
bench: setup ## Measure loads against hand-written SQL, dlt and ingestr: half an hour (QUICK=1: three minutes; HARD=1, BINDIR=)
	@.venv/bin/python -m bench.postgres --peers dlt,ingestr $(if $(HARD),--setting hard) $(if $(BINDIR),--bindir "$(BINDIR)") \
		$(if $(QUICK),$(BENCH_QUICK),$(BENCH_WHOLE))
	@$(if $(QUICK)$(HARD),,.venv/bin/python -m bench.start)

.PHONY: check
check: setup ## Lint, formatting, types, import contracts
	@.venv/bin/ruff check .
	@.venv/bin/ruff format --check --quiet .
	@.venv/bin/mypy
	@.venv/bin/lint-imports --no-logo

.PHONY: prose
prose: setup ## Print how the prose reads: words to avoid, docstrings that begin with a verb (FILES=1, WHERE=docs/how-to)
	@.venv/bin/python scripts/prose.py $(if $(FILES),--files) $(if $(WHERE),--where $(WHERE))

.PHONY: format
format: setup ## Put the code into its standard form
	@.venv/bin/ruff check --fix --quiet .
	@.venv/bin/ruff format --quiet .

.PHONY: docs
docs: setup ## Build the documentation's site into site/; broken links and other warnings fail it
	@.venv/bin/uv pip install --quiet --require-hashes --target .docs --requirements requirements/docs.txt
	@PYTHONPATH=.docs NO_MKDOCS_2_WARNING=1 .venv/bin/python -m mkdocs build --strict --site-dir site

.PHONY: test-docs
test-docs: setup ## The part of `make test` that types every command of tutorial, guides, README and demo script
	@./scripts/install-system-packages java
	@$(PYTEST) tests/docs tests/search/test_tutorial.py

.PHONY: reference
reference: setup ## Write the pages of docs/reference that come from the code
	@.venv/bin/python scripts/reference.py
	@.venv/bin/python scripts/steps_reference.py

.PHONY: dist
dist: console environment ## Build the source archive and the wheel, with the console in them, into dist/
	@.venv/bin/python -m hatchling build --clean

.PHONY: lock
lock: setup ## Renew requirements/*.txt after a change in pyproject.toml (UPGRADE=1 takes newer versions)
	@$(COMPILE) --extra all --group dev -o requirements/dev.txt pyproject.toml
	@$(COMPILE) --extra all -o requirements/runtime.txt pyproject.toml
	@$(COMPILE) --group build -o requirements/build.txt
	@$(COMPILE) --group frames -o requirements/frames.txt
	@$(COMPILE) --group clickhouse --constraints requirements/dev.txt -o requirements/clickhouse.txt
	@$(COMPILE) --group lake --constraints requirements/dev.txt -o requirements/lake.txt
	@$(COMPILE) --group spark --constraints requirements/dev.txt -o requirements/spark.txt
	@$(COMPILE) --group docs -o requirements/docs.txt
	@$(COMPILE) --group airflow -o requirements/airflow.txt

.PHONY: migrate-db
migrate-db: setup ## Bring the metastore of VITRINA_DATABASE_URL up to date
	@exec .venv/bin/vitrina migrate

.PHONY: up
up: ## Start the whole platform in containers
	@$(COMPOSE) up --detach --build

.PHONY: down
down: ## Stop the containers (WIPE=1 deletes their data and passwords too)
	@$(COMPOSE) down $(if $(WIPE),--volumes)

.PHONY: logs
logs: ## Follow the containers' logs
	@$(COMPOSE) logs --follow --tail=100

.PHONY: clean
clean: ## Remove caches and build results (.venv and .vitrina stay)
	@rm -rf .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis build dist
	@find src tests -name __pycache__ -type d -prune -exec rm -rf {} +
