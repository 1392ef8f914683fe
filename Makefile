SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
VENV := .venv
RUN := $(VENV)/bin
CLUSTER := hack/cluster/cluster
CONTEXT ?=
OPTIONS ?=
# what `make test` leaves out, and why: tests/support/thorough.py; `make test-all` sets THOROUGH
SELECTED := $(if $(THOROUGH),,-m 'not thorough')
# one process per test file: some files start their own cluster
IN_TWO := --numprocesses 2 --dist loadfile
# three more than the smallest machine's processors: integration tests wait for other processes more than half of the
# time; the tests of a file that share nothing need not run in one process
IN_FIVE := --numprocesses 5 --dist loadgroup
PYTHON_SOURCES := operator runtime_image tests hack
# bytecode is cached: thousands of processes import the same modules
export PYTHONDONTWRITEBYTECODE :=

.PHONY: help demo test test-all programs images unit integration apiserver e2e lint bench bench-scale bench-serving bench-truth bench-verdicts format crds docs site dashboards venv clean

help: ## Show this list
	@sed -n 's/^\([a-z0-9-]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | column -t -s $$'\t'

demo: ## Show the main job end to end, on the local cluster or on CONTEXT=<kube context>
	CONTEXT='$(CONTEXT)' hack/demo

test: ## Set everything up and run the tests: 20 minutes, 40 on a fresh machine
	$(MAKE) --no-print-directory unit
	hack/chromium >/dev/null
	hack/qemu-user >/dev/null
	# image builds wait for network and disk, linters use one processor: the tests use the rest
	$(MAKE) --jobs --no-print-directory images lint integration
	# a cluster with pods waits for its kubelets half of the time: the API server's tests use the rest
	$(MAKE) --jobs --no-print-directory e2e apiserver

test-all: ## Run every test, with all examples of properties: before a release; 75 minutes
	THOROUGH=1 $(MAKE) --no-print-directory test

programs: # the local cluster's and Helm, which tests and linters need: a build within a test would exceed its time limit
	$(CLUSTER) helm version >/dev/null

images: ## Build the container images that are missing
	nice hack/images build

unit: venv ## Run the pure tests: seconds
	$(RUN)/pytest tests/unit $(SELECTED) --numprocesses 2 --dist worksteal

integration: venv programs ## Run the tests that start processes, servers and engines, without a cluster
	hack/models >/dev/null
	hack/source-servers >/dev/null
	hack/go-program hack/conformance github.com/summerwind/h2spec/cmd/h2spec >/dev/null
	$(RUN)/pytest tests/integration $(SELECTED) $(IN_FIVE)

apiserver: venv programs ## Run the tests on a kube-apiserver, and those of the local cluster itself
	nice -n 5 $(RUN)/pytest tests/apiserver tests/cluster $(SELECTED) $(IN_TWO)

e2e: venv programs images ## Run the tests on a complete cluster with the chart installed, and those on a GPU if there is one
	$(RUN)/pytest tests/e2e tests/gpu $(SELECTED)

lint: venv programs ## Check style, types, imports, shell scripts, the chart and generated files
	nice hack/lint

bench: bench-serving bench-truth bench-verdicts bench-scale ## Measure the cost of serving, the control plane, verification, preparation and preflight, as ratios within one run, the power of the proof of outputs, and verdicts on real models
	$(RUN)/python bench/sidecar/bench.py
	$(RUN)/python bench/sidecar/latency.py
	$(RUN)/python bench/pipeline/bench.py
	$(RUN)/python bench/preflight/bench.py
	$(RUN)/python bench/operator_memory.py

bench-serving: venv ## Measure the cost of serving beside other model servers: 30 min; OPTIONS=--quick, '--soak 10', '--runs 2', --hostile
	$(RUN)/python -m bench.serving $(OPTIONS)

bench-scale: venv ## Measure what the control plane costs at thousands of models, on a cluster of simulated nodes: 40 min; OPTIONS='--models 100 --new'
	$(RUN)/python -m bench.scale $(OPTIONS)

bench-truth: venv ## Measure which lies about outputs the proof finds, beside other comparators: 15 min; OPTIONS=--quick, '--models nudenet'
	$(RUN)/python -m bench.truth $(OPTIONS)

bench-verdicts: venv ## Compare preflight's verdicts on real models with those of the bare tools: 40 min; OPTIONS='--models magika silero', --missing, --again
	$(RUN)/python -m bench.verdicts $(OPTIONS)

format: venv ## Format the Python code
	$(RUN)/ruff format $(PYTHON_SOURCES)
	$(RUN)/ruff check --fix $(PYTHON_SOURCES)

crds: venv ## Generate crds/ and the chart's copy from the typed API
	hack/crds

docs: venv ## Generate the tables and the picture of a page in docs/ from the code
	hack/docs
	.venv/bin/python -m hack.pictures

site: venv ## Build the documentation's site into build/site
	hack/site

dashboards: venv ## Generate the chart's Grafana dashboards
	$(RUN)/python -m hack.monitoring.dashboards

venv: $(VENV)/.locked .venv-openvino/.locked .venv-gpu/.locked .venv-clients/.locked .venv-release/.locked ## Create the Python environments from their lock files

$(VENV)/.locked: requirements/dev.txt
	hack/venv $(VENV) dev

.venv-openvino/.locked: requirements/runtime-openvino.txt
	hack/venv .venv-openvino runtime-openvino

.venv-gpu/.locked: requirements/runtime-gpu.txt
	hack/venv .venv-gpu runtime-gpu

.venv-clients/.locked: requirements/clients.txt
	hack/venv .venv-clients clients

.venv-release/.locked: requirements/release.txt
	hack/venv .venv-release release

clean: ## Remove the local cluster and the environments, but no caches
	$(CLUSTER) down
	rm -rf $(VENV) .venv-openvino .venv-gpu .venv-clients .venv-release
