SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
VENV := .venv
RUN := $(VENV)/bin
CLUSTER := hack/cluster/cluster
CONTEXT ?=
# not the other layers: they share one cluster, and tell times
IN_TWO := --numprocesses 2 --dist loadfile
PYTHON_SOURCES := operator runtime_image tests hack

.PHONY: help demo test unit lint bench format crds dashboards venv clean

help: ## Show this list
	@sed -n 's/^\([a-z]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | column -t -s $$'\t'

demo: venv ## Show the main job end to end, on the local cluster or on CONTEXT=<kube context>
	CONTEXT='$(CONTEXT)' hack/demo

test: lint ## Set everything up and run every test
	hack/images build
	hack/models >/dev/null
	hack/source-servers >/dev/null
	hack/chromium >/dev/null
	hack/qemu-user >/dev/null
	$(RUN)/pytest tests/unit $(IN_TWO)
	$(RUN)/pytest tests/apiserver tests/cluster tests/e2e tests/gpu

unit: venv ## Run the tests that need no cluster
	$(RUN)/pytest tests/unit $(IN_TWO)

lint: venv ## Check style, types, imports, shell scripts, the chart and drift of the CRDs
	hack/lint

bench: venv ## Measure what serving, watching, preparing and preflight cost, as ratios within one run
	$(RUN)/python bench/server/bench.py
	$(RUN)/python bench/sidecar/bench.py
	$(RUN)/python bench/sidecar/latency.py
	$(RUN)/python bench/pipeline/bench.py
	$(RUN)/python bench/preflight/bench.py

format: venv ## Format the Python code
	$(RUN)/ruff format $(PYTHON_SOURCES)
	$(RUN)/ruff check --fix $(PYTHON_SOURCES)

crds: venv ## Generate crds/ and the chart's copy from the typed API
	hack/crds

dashboards: venv ## Generate the chart's Grafana dashboards
	$(RUN)/python -m hack.monitoring.dashboards

venv: $(VENV)/.locked .venv-openvino/.locked .venv-gpu/.locked ## Make the Python environments from their locks

$(VENV)/.locked: requirements/dev.txt
	hack/venv $(VENV) dev

.venv-openvino/.locked: requirements/runtime-openvino.txt
	hack/venv .venv-openvino runtime-openvino

.venv-gpu/.locked: requirements/runtime-gpu.txt
	hack/venv .venv-gpu runtime-gpu

clean: ## Remove the local cluster and the environments; caches stay
	$(CLUSTER) down
	rm -rf $(VENV) .venv-openvino .venv-gpu
