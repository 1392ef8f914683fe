SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
VENV := .venv

.PHONY: help venv lint crds test unit demo clean

help: ## Show this list
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | column -t -s $$'\t'

venv: $(VENV)/.locked ## Make the development environment from the lock

$(VENV)/.locked: requirements/dev.txt pyproject.toml
	hack/venv $(VENV) dev

