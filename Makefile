# Every target makes the virtual environment it needs first, once.
VENV   := .venv
BIN    := $(VENV)/bin
PYTHON ?= $(shell for p in python3 python3.13 python3.12 python3.11; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)
PIP    := $(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt

.PHONY: help install quickstart ladder test test-all docs check check-infra format lock bench bench-instances bench-training bench-startup gpu screens reference dashboards clean
help: ## print this
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 17

install: $(VENV)/.run ## install the command rungwise in .venv/bin

quickstart: $(VENV)/.run ## pretrain, fine-tune, evaluate and register a small BERT (minutes, offline)
	$(BIN)/rungwise run workflows/finetune.py workflows/configs/quickstart.yaml

ladder: $(VENV)/.run ## train and compare the history of pretraining, from n-grams to ModernBERT (13 to 26 minutes, offline)
	$(BIN)/rungwise run workflows/ladder.py workflows/configs/ladder.yaml

# Files of tests go to three processes, each with one thread, on two cores: tests/ray mostly waits.
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest

test: $(VENV)/.dev ## run the tests, without the slow ones
	$(PYTEST) -m "not slow" -n 3 --dist loadfile

test-all: $(VENV)/.dev ## run every test, on new random inputs; the slow ones one by one, since some measure memory
	$(PYTEST) -m "not slow" -n 3 --dist loadfile --hypothesis-profile=search
	$(PYTEST) -m slow

docs: $(VENV)/.dev ## build the documentation as a site in dist/docs; a dead link is an error
	$(BIN)/mkdocs build --quiet

check: $(VENV)/.dev ## check format, lint and types
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/basedpyright

check-infra: $(VENV)-checkov/.ready ## check format and security of infra/terraform
	terraform fmt -check -recursive infra/terraform
	$(VENV)-checkov/bin/checkov --directory infra/terraform --framework terraform --skip-download --compact --quiet

format: $(VENV)/.dev ## fix what a tool can of the faults that check finds
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

lock: ## write uv.lock anew, with the versions of constraints.txt; needs uv
	uv lock --default-index https://pypi.org/simple $$(grep == constraints.txt | grep -v '^pip==' | sed 's/^/--upgrade-package /')

bench: $(VENV)/.dev ## measure the numbers that the README states
	$(BIN)/python benchmarks/quickstart.py

bench-instances: $(VENV)/.bench ## compare building and reading instances with other libraries
	$(BIN)/python -m benchmarks.instances

gpu: ## on a GPU machine with PyTorch: tests, rates beside others, exact resume; at most 25 minutes
	PYTHONPATH=platform:. python3 -m benchmarks.gpu

bench-training: $(VENV)/.bench ## compare training steps and runs with other libraries
	$(BIN)/python -m benchmarks.training

bench-startup: $(VENV)/.bench ## compare what commands take beside their floors
	$(BIN)/python -m benchmarks.startup

screens: $(VENV)/.dev ## take pictures of the newest pages into dist/screens (needs Chromium)
	PYTHONPATH=. $(BIN)/python -m benchmarks.screens dist/screens

reference: $(VENV)/.run ## write docs/reference/recipe.md from the configuration classes
	$(BIN)/python docs/reference/generate.py > docs/reference/recipe.md

dashboards: $(VENV)/.dev ## write boards, their page and metrics.md from dashboards/boards.py
	PYTHONPATH=. $(BIN)/python -m dashboards.generate

clean: ## remove what was built: artifacts, the MLflow store in them, the environment
	rm -rf artifacts $(VENV) $(VENV)-checkov .pytest_cache .ruff_cache .hypothesis

$(VENV)/.run: pyproject.toml constraints.txt
	@test -n "$(PYTHON)" || { echo "rungwise needs Python 3.11 or newer; none was found"; exit 2; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) -e .
	@touch $@

$(VENV)/.dev: $(VENV)/.run
	$(PIP) -e '.[test,check]'
	@touch $@

# Apart, because checkov pins packages that others need newer.
$(VENV)-checkov/.ready:
	$(PYTHON) -m venv $(VENV)-checkov
	$(VENV)-checkov/bin/pip install --quiet --disable-pip-version-check checkov==3.3.30
	@touch $@

$(VENV)/.bench: $(VENV)/.dev
	$(PIP) -e '.[test,check,bench]'
	@touch $@
