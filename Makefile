# Everything a person types. The first command that is run does all set-up: a virtual environment in .venv, jars in .local/jars.

.DEFAULT_GOAL := help
.SUFFIXES:
SHELL := /bin/bash
unexport PYTHONDONTWRITEBYTECODE  # processes start by the dozen here; each would compile the package anew

PYTHON ?= $(shell command -v python3.11 || command -v python3)
BIN := .venv/bin
PYTEST := PYTHONPATH=lib $(BIN)/pytest
WORKERS ?= 3
PARALLEL = -n $(WORKERS) --dist loadfile --no-loadscope-reorder  # a file stays together: its tests share clusters; long ones come first
BENCH := PYTHONPATH=lib $(BIN)/python -m bench
RESULTS ?= .local/bench/results.json
VENV := .venv/.ready
JARS := .local/jars/.ready
AUDIT := .local/audit
DOCS := .local/docs
LOCK := .local/lock/bin/uv pip compile --quiet --universal --generate-hashes --no-header --no-annotate --no-emit-index-url
# The versions of Databricks Runtime 18 LTS, in an environment of their own. Without Python 3.12, tests run on .venv alone.
PYTHON_OF_RUNTIME ?= $(shell for found in python3.12 $${PYENV_ROOT:-$$HOME/.pyenv}/versions/3.12.*/bin/python; do "$$found" -c 'import venv, ensurepip' 2>/dev/null && echo "$$found" && break; done)
RUNTIME := .local/runtime
RUNTIME_READY := $(if $(PYTHON_OF_RUNTIME),$(RUNTIME)/.ready)
RUNTIME_PYTEST := PYTHONPATH=lib $(if $(PYTHON_OF_RUNTIME),$(RUNTIME),.venv)/bin/pytest
SPARK_LOG := .local/test-spark.log
WITHOUT_RUNTIME = echo "no Python 3.12 here: tests/spark runs on the packages of .venv, not on those of Databricks Runtime"
ARCHIVES := .local/jars/.archived
REGISTRY := .local/jars/registry/.ready
OLDER := $(patsubst %,.local/jars/kafka-%/.ready,2.7.2 2.8.2 3.9.1)  # each test run refuses the first, and mirrors between the others
VERSIONS ?= 2.8.2 3.3.2 3.7.2 3.9.1 4.0.0

##@ Use

.PHONY: help
help:  ## What there is
	@awk 'BEGIN {FS = ":.*## "} /^##@/ {printf "\n%s\n", substr($$0, 5)} /^[a-z-]+:.*## / {printf "  %-16s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: demo
demo: setup  ## Mirror two real local clusters, move consumer groups over, look at the history (three minutes)
	@PYTHONPATH=lib $(BIN)/python -m mirrorlake.cli demo

.PHONY: clusters
clusters: setup  ## Start two local Kafka clusters (a and b) and leave them running
	@PYTHONPATH=lib $(BIN)/python -m mirrorlake.local start

.PHONY: clusters-stop
clusters-stop: setup  ## Stop them; their data stays until make clean
	@PYTHONPATH=lib $(BIN)/python -m mirrorlake.local stop

.PHONY: sql
sql: export WAREHOUSE ?= .local/warehouse
sql: export SCHEMA ?= mirrorlake
sql: export QUERY ?=
sql: setup  ## SQL on the tables and views of WAREHOUSE and SCHEMA: a prompt, or one statement (QUERY="SELECT ...")
	@PYTHONPATH=lib $(BIN)/python -m mirrorlake.local.sql

.PHONY: report
report: setup  ## A web page about all flows (or FLOWS) of WAREHOUSE and SCHEMA, in the last HOURS (24): .local/report.html
	@PYTHONPATH=lib $(BIN)/python -m mirrorlake.cli report --warehouse '$(or $(WAREHOUSE),.local/warehouse)' --schema '$(or $(SCHEMA),mirrorlake)' --hours '$(or $(HOURS),24)' --flows '$(FLOWS)' --until '$(UNTIL)'

.PHONY: quickstart
quickstart: export MIRRORLAKE_CONFIG = $(CONFIG)
quickstart: export MIRRORLAKE_FLOW = $(FLOW)
quickstart: config-named setup  ## Look at your own clusters: CONFIG, a MirrorMaker 2 property file (and FLOW, if it has several); changes nothing
	@PYTHONPATH=lib $(BIN)/python -m mirrorlake.cli doctor || test $$? -eq 8
	@PYTHONPATH=lib $(BIN)/python -m mirrorlake.cli assess

.PHONY: config-named
config-named:
	@$(if $(CONFIG),:,$(error name your property file: make quickstart CONFIG=mm2.properties))

##@ Check

# tests/spark has an environment of its own, so it is a process beside the workers; its output follows at the end.
.PHONY: test
test: test-setup browser prometheus  ## Every test, against real brokers, on WORKERS processes side by side (3)
	@$(if $(PYTHON_OF_RUNTIME),:,$(WITHOUT_RUNTIME))
	@$(RUNTIME_PYTEST) tests/spark >$(SPARK_LOG) 2>&1 & spark=$$!; trap "kill $$spark" INT TERM; failed=; \
	$(PYTEST) $(PARALLEL) tests/kafka tests/fidelity tests/notebooks tests/unit tests/bundle || failed=1; \
	if wait $$spark; then tail -n 1 $(SPARK_LOG); else failed=1; cat $(SPARK_LOG); fi; test -z "$$failed"

.PHONY: test-runtime
test-runtime: setup $(RUNTIME_READY)  ## tests/spark and tests/unit on the versions of Databricks Runtime 18 LTS (Python 3.12)
	@$(if $(PYTHON_OF_RUNTIME),:,echo "Python 3.12 is missing: install it, or make PYTHON_OF_RUNTIME=/path/to/python3.12" >&2; exit 1)
	@$(RUNTIME_PYTEST) $(PARALLEL) tests/spark tests/unit

.PHONY: test-versions
test-versions: setup $(patsubst %,.local/jars/kafka-%/.ready,2.7.2 $(VERSIONS))  ## Source and target of older releases: VERSIONS
	@MIRRORLAKE_TEST_VERSIONS='$(VERSIONS)' $(PYTEST) tests/kafka/test_versions.py

.PHONY: test-upgrade
test-upgrade: setup  ## Jobs of an earlier version (FROM, a revision of a full clone) and of this one, one after the other and at the same time
	@MIRRORLAKE_TEST_UPGRADE_FROM='$(FROM)' $(PYTEST) tests/upgrade

.PHONY: test-unit
test-unit: setup  ## Pure functions, seconds
	@$(PYTEST) tests/unit

.PHONY: test-spark
test-spark: setup  ## Spark SQL and Delta, no brokers
	@$(PYTEST) tests/spark

.PHONY: test-kafka
test-kafka: setup $(REGISTRY) $(OLDER) browser prometheus  ## Real brokers: exactly once, faults, groups
	@$(PYTEST) $(PARALLEL) tests/kafka

.PHONY: test-fidelity
test-fidelity: setup  ## Generated logs of every sort, record by record: CASES of them (200), from SEED (1)
	@MIRRORLAKE_FIDELITY_CASES=$(or $(CASES),200) MIRRORLAKE_FIDELITY_SEED=$(or $(SEED),1) $(PYTEST) --timeout=3600 tests/fidelity

.PHONY: test-notebooks
test-notebooks: setup browser  ## The notebooks, run by papermill
	@$(PYTEST) tests/notebooks

.PHONY: pictures
pictures: setup browser prometheus  ## Take the pictures of pages in docs/ anew
	@MIRRORLAKE_TEST_PICTURES=1 $(PYTEST) tests/notebooks/test_report.py tests/kafka/test_monitoring.py -k 'page_of or report_says'

.PHONY: test-bundle
test-bundle: setup  ## databricks.yml and workflows/ against schema and code; the wheel, installed
	@$(PYTEST) tests/bundle

.PHONY: protocol
protocol: $(VENV)  ## Explore the model of the protocol, and print what each of its rules prevents (docs/protocol.md)
	@$(BIN)/python -m tools.protocol

.PHONY: audit-trace
audit-trace: export WAREHOUSE ?= .local/warehouse
audit-trace: export SCHEMA ?= mirrorlake
audit-trace: export CONFIG ?=
audit-trace: export FLOW ?=
audit-trace: setup  ## Hold real flows against the protocol's invariants: WAREHOUSE and SCHEMA, or CONFIG and FLOW (reads the topic)
	@PYTHONPATH=lib $(BIN)/python -m mirrorlake.local.audit_trace

.PHONY: chaos-failover
chaos-failover: setup  ## Groups at work, a source killed at a drawn moment, and a judge of every journal: SEED, or SEEDS of them (10) from FROM (1)
	@PYTHONPATH=lib:. $(BIN)/python -m chaos.failover --seed $(or $(SEED),0) --first $(or $(FROM),1) --seeds $(or $(SEEDS),10) $(if $(ENDING),--ending $(ENDING))

.PHONY: mutants
mutants: setup  ## Break one promise of the code at a time, and name the test that notices (ONLY=part of a name, or of a test's)
	@PYTHONPATH=tools:lib $(BIN)/python -m mutants --only '$(ONLY)' --workers 2

.PHONY: chaos
chaos: setup  ## Faults drawn from seeds, and a checker that shares no code: SEED, or SEEDS of them (20) FROM (1)
	@PYTHONPATH=lib $(BIN)/python -m chaos --from $(or $(SEED),$(FROM),1) --seeds $(or $(if $(SEED),1),$(SEEDS),20)

.PHONY: lint
lint: $(VENV)  ## ruff, the layers of the packages, types, and notebooks without outputs
	@$(BIN)/ruff check . && $(BIN)/ruff format --check .
	@PYTHONPATH=lib $(BIN)/lint-imports
	@$(BIN)/mypy --no-error-summary
	@PYTHONPATH=lib $(BIN)/python tools/check_notebooks.py

.PHONY: audit
audit: setup $(AUDIT)/.ready  ## A list of all packages and jars (.local/sbom.json), and known advisories about packages
	@$(AUDIT)/bin/cyclonedx-py environment .venv --of JSON --sv 1.6 --output-reproducible -o $(AUDIT)/packages.json
	@$(AUDIT)/bin/python tools/sbom.py $(AUDIT)/packages.json .local/jars .local/sbom.json
	@$(AUDIT)/bin/python tools/advisories.py $(AUDIT)/bin/pip-audit requirements.lock tools/accepted_advisories.txt

.PHONY: docs
docs: $(DOCS)/.ready  ## The documentation as a site that loads nothing from elsewhere (.local/site/index.html); fails for a link that leads nowhere
	@set -o pipefail; NO_MKDOCS_2_WARNING=true $(DOCS)/bin/mkdocs build --strict 2>&1 | { grep -v ^INFO || true; }  # --quiet would hide the warnings from --strict, too

.PHONY: bench
bench: setup  ## MirrorMaker 2 and mirrorlake side by side (two hours): CASES of them (default, axes, field, far, all, or names), ROUNDS (3), RESUME=1 to go on
	@$(BENCH).side_by_side --cases $(or $(CASES),default) --rounds $(or $(ROUNDS),3) --results $(RESULTS) $(if $(RESUME),--resume)

.PHONY: bench-check
bench-check: setup  ## Hold bench/limits.json against RESULTS (.local/bench/results.json) of make bench
	@$(BENCH).check --results $(RESULTS)

.PHONY: bench-report
bench-report: setup  ## Put the figures of RESULTS into docs/performance.md, and draw its picture
	@$(BENCH).report --results $(RESULTS)

.PHONY: bench-verification
bench-verification: setup  ## Records per second of a verification
	@$(BENCH).verification

.PHONY: bench-memory
bench-memory: setup  ## The most memory a copying task takes, while the backlog grows
	@$(BENCH).memory

.PHONY: bench-growth
bench-growth: setup  ## What starts and micro-batches cost with many partitions and slots
	@$(BENCH).growth

.PHONY: bench-linger
bench-linger: setup  ## What commits cost where 200 partitions get few records, with and without mirrorlake.linger.ms
	@$(BENCH).linger

.PHONY: bench-folding
bench-folding: setup  ## What a source with many small transactions leaves in the ledger, folded and not
	@$(BENCH).folding

.PHONY: bench-barrier
bench-barrier: setup  ## How long records take beside a slow slot
	@$(BENCH).barrier

.PHONY: bench-quota
bench-quota: setup  ## The share of a quota that a mirror job uses while a cluster throttles it
	@$(BENCH).quota

.PHONY: bench-failing-slot
bench-failing-slot: setup  ## The throughput that remains to a slot while another one fails for ever
	@$(BENCH).failing_slot

.PHONY: soak
soak: setup  ## Mirror and checkpoint notebooks for MINUTES (60) with bursts and restarts: nothing may grow (.local/soak)
	@$(BENCH).soak --minutes $(or $(MINUTES),60)

.PHONY: bench-ledger
bench-ledger: setup  ## How large the ledger gets, and how long translation takes
	@$(BENCH).ledger

##@ Set-up

.PHONY: setup
setup: $(VENV) $(JARS) $(ARCHIVES)  ## Python packages and jars; done by every other target

.PHONY: lock
lock:  ## Pin what requirements.txt, requirements-runtime.txt, tools/audit.txt and tools/docs.txt pull in, with hashes, into files with .lock
	@"$(PYTHON)" -m venv .local/lock && .local/lock/bin/pip install --quiet --disable-pip-version-check uv==0.13.9
	@$(LOCK) --python-version 3.11 requirements.txt --output-file requirements.lock
	@$(LOCK) --python-version 3.12 requirements.txt --override requirements-runtime.txt --output-file requirements-runtime.lock
	@$(LOCK) --python-version 3.11 tools/audit.txt --output-file tools/audit.lock
	@$(LOCK) --python-version 3.11 tools/docs.txt --output-file tools/docs.lock

.PHONY: test-setup
test-setup: setup $(REGISTRY) $(OLDER) $(RUNTIME_READY)  ## Jars and packages that only make test needs; done by it, too

.PHONY: browser
browser:
	@tools/chromium.sh

.PHONY: prometheus
prometheus:
	@tools/prometheus.sh

.PHONY: clean
clean:  ## Stop local clusters and delete everything that was installed or made
	@if [ -e $(VENV) ]; then PYTHONPATH=lib $(BIN)/python -m mirrorlake.local stop; fi
	@rm -rf .venv .local dist

$(VENV): requirements.lock
	@tools/prerequisites.sh "$(PYTHON)"
	@echo "setting up: Python packages into .venv (a minute or two)"
	@"$(PYTHON)" -m venv .venv
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile --require-hashes -r requirements.lock
	@touch $@

$(RUNTIME)/.ready: requirements-runtime.lock
	@echo "setting up: Python packages of Databricks Runtime into $(RUNTIME) (a minute or two)"
	@"$(PYTHON_OF_RUNTIME)" -m venv $(RUNTIME)
	@$(RUNTIME)/bin/python -m pip install --quiet --disable-pip-version-check --no-compile --require-hashes -r requirements-runtime.lock
	@touch $@

$(AUDIT)/.ready: tools/audit.lock
	@echo "setting up: the tools of make audit into $(AUDIT)"
	@"$(PYTHON)" -m venv $(AUDIT)
	@$(AUDIT)/bin/pip install --quiet --disable-pip-version-check --no-compile --require-hashes -r tools/audit.lock
	@touch $@

$(DOCS)/.ready: tools/docs.lock
	@echo "setting up: the tools of make docs into $(DOCS)"
	@"$(PYTHON)" -m venv $(DOCS)
	@$(DOCS)/bin/pip install --quiet --disable-pip-version-check --no-compile --require-hashes -r tools/docs.lock
	@touch $@

$(JARS): pom.xml lib/mirrorlake/local/hadoop_defaults.py | $(VENV)
	@PYTHONPATH=lib $(BIN)/python -m mirrorlake.local jars

$(REGISTRY): $(JARS)
	@echo "setting up: a schema registry for tests into .local/jars/registry"
	@set -o pipefail; mvn --quiet --batch-mode -P registry dependency:unpack-dependencies 2>&1 | sed 's/\x1b\[[0-9;]*m//g'
	@touch $@

.local/jars/kafka-%/.ready: $(JARS)
	@echo "setting up: brokers of Kafka $* for tests"
	@set -o pipefail; mvn --quiet --batch-mode -P older -Dolder.version=$* dependency:copy-dependencies 2>&1 | sed 's/\x1b\[[0-9;]*m//g'
	@touch $@

$(ARCHIVES): $(VENV) $(JARS)
	@PYTHONPATH=lib $(BIN)/python -m mirrorlake.local archive
