# Everything a person types. The first command that is run does all set-up: a virtual environment in .venv, jars in .local/jars.

.DEFAULT_GOAL := help
.SUFFIXES:
SHELL := /bin/bash

PYTHON ?= $(shell command -v python3.11 || command -v python3)
BIN := .venv/bin
PYTEST := PYTHONPATH=lib $(BIN)/pytest
WORKERS ?= 2
PARALLEL = -n $(WORKERS) --dist loadfile --no-loadscope-reorder  # a file stays together: its tests share clusters; long ones come first
VENV := .venv/.ready
JARS := .local/jars/.ready
ARCHIVES := .local/jars/.archived

##@ Use

.PHONY: help
help:  ## What there is
	@awk 'BEGIN {FS = ":.*## "} /^##@/ {printf "\n%s\n", substr($$0, 5)} /^[a-z-]+:.*## / {printf "  %-16s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: demo
demo: setup  ## Mirror two real local clusters, move consumer groups over, look at the history (three minutes)
	@PYTHONPATH=lib $(BIN)/python demo/demo.py

.PHONY: clusters
clusters: setup  ## Start two local Kafka clusters (a and b) and leave them running
	@PYTHONPATH=lib $(BIN)/python -m mirrorlake.local start

.PHONY: clusters-stop
clusters-stop: setup  ## Stop them; their data stays until make clean
	@PYTHONPATH=lib $(BIN)/python -m mirrorlake.local stop

##@ Check

.PHONY: test
test: setup  ## Every test, against real brokers, on WORKERS processes side by side (2)
	@$(PYTEST) $(PARALLEL) tests/kafka tests/notebooks tests/spark tests/unit tests/bundle

.PHONY: test-unit
test-unit: setup  ## Pure functions, seconds
	@$(PYTEST) tests/unit

.PHONY: test-spark
test-spark: setup  ## Spark SQL and Delta, no brokers
	@$(PYTEST) tests/spark

.PHONY: test-kafka
test-kafka: setup  ## Real brokers: exactly once, faults, groups
	@$(PYTEST) $(PARALLEL) tests/kafka

.PHONY: test-notebooks
test-notebooks: setup  ## The notebooks, run by papermill
	@$(PYTEST) tests/notebooks

.PHONY: test-bundle
test-bundle: setup  ## databricks.yml and workflows/ against schema and code
	@$(PYTEST) tests/bundle

.PHONY: lint
lint: setup  ## ruff, and notebooks without outputs
	@$(BIN)/ruff check . && $(BIN)/ruff format --check . && PYTHONPATH=lib $(BIN)/python tools/check_notebooks.py

.PHONY: bench
bench: setup  ## Records per second, beside a record-by-record loop on the same clusters
	@PYTHONPATH=lib $(BIN)/python bench/throughput.py

.PHONY: bench-memory
bench-memory: setup  ## The most memory a copying task takes, while the backlog grows
	@PYTHONPATH=lib $(BIN)/python bench/memory.py

##@ Set-up

.PHONY: setup
setup: $(VENV) $(JARS) $(ARCHIVES)  ## Python packages and jars; done by every other target

.PHONY: clean
clean:  ## Stop local clusters and delete everything that was installed or made
	@if [ -x $(BIN)/python ]; then PYTHONPATH=lib $(BIN)/python -m mirrorlake.local stop; fi
	@rm -rf .venv .local

$(VENV): requirements.txt constraints.txt
	@tools/prerequisites.sh "$(PYTHON)"
	@echo "setting up: Python packages into .venv (a minute or two)"
	@"$(PYTHON)" -m venv .venv
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements.txt -c constraints.txt
	@touch $@

$(JARS): pom.xml
	@tools/prerequisites.sh "$(PYTHON)"
	@echo "setting up: jars for Spark and Kafka into .local/jars (a minute)"
	@rm -rf .local/jars && mkdir -p .local/jars
	@set -o pipefail; for profile in spark kafka; do echo "  $$profile"; mvn --quiet --batch-mode -P $$profile dependency:copy-dependencies 2>&1 | sed 's/\x1b\[[0-9;]*m//g' || exit 1; done
	@touch $@

$(ARCHIVES): $(VENV) $(JARS)
	@echo "setting up: class archives, so that Spark and Kafka start faster (half a minute)"
	@PYTHONPATH=lib $(BIN)/python -m mirrorlake.local archive
	@touch $@
