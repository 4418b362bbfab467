PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
# Thousands of processes would compile what they import.
unexport PYTHONDONTWRITEBYTECODE
# Two fifths of what is installed, which nothing of ours imports; what is imported after all is compiled then.
NOT_COMPILED := /(tests|transformers/models|ray/(rllib|data|serve|tune|dashboard|llm|train)|torch/(_inductor|testing/_internal|onnx)|mypyc)/
COMPILE := $(BIN)/python -m compileall -q -x '$(NOT_COMPILED)'
# Real jobs mostly wait: more workers than cores.
WORKERS := -n 8 --dist loadscope --no-loadscope-reorder
QUICK := tests/rules tests/logs tests/incidents tests/floors tests/unit/analyze tests/unit/model tests/unit/show

.DEFAULT_GOAL := help
.PHONY: help setup demo check test test-gpu record lint bench pages docs changelog wheel clean

help:  ## List the commands
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

setup: $(READY)  ## Make the environment in .venv (plain pip)

$(READY): pyproject.toml constraints.txt
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "installing into $(VENV) (torch is large: this takes a minute or two) ..."
	@$(BIN)/pip install --quiet --no-compile --disable-pip-version-check -c constraints.txt torch numpy 2>&1 | grep -v '^WARNING: Location' || true
	@$(COMPILE) $(VENV)/lib >/dev/null 2>&1 & \
	$(BIN)/pip install --quiet --no-compile --disable-pip-version-check -c constraints.txt -e '.[dev,stacks]' 2>&1 | grep -v '^WARNING: Location'; \
	wait
	@$(COMPILE) -j 0 $(VENV)/lib >/dev/null 2>&1 || true # pip would do so on one core
	@$(BIN)/python -c 'import torch, unhang, pytest, py_spy' 2>/dev/null || $(BIN)/python -c 'import torch, unhang, pytest'
	@touch $(READY)

demo: setup  ## Start a real job that hangs, and see it named
	@$(BIN)/unhang demo

check: setup  ## Before each commit, a minute: lint of what changed, and the tests that start no jobs
	@changed=$$(git diff --name-only --diff-filter=d HEAD -- '*.py'; git ls-files --others --exclude-standard '*.py'); \
	if [ -n "$$changed" ]; then $(BIN)/ruff check $$changed && $(BIN)/ruff format --check -q $$changed; fi
	@$(BIN)/lint-imports --no-cache >/dev/null || $(BIN)/lint-imports --no-cache
	@$(BIN)/python -m pytest -q $(WORKERS) $(QUICK)

test: setup  ## Run all tests
	@$(BIN)/python -m pytest -q --rerun-show-tracebacks $(WORKERS)

record: setup  ## Run every job of the tests' table anew, and keep what it leaves for the tests to judge (ten minutes)
	@$(BIN)/python -m tests.ranks.recordings

test-gpu: setup  ## Tests that need a GPU (skipped without one)
	@$(BIN)/python -m pytest -q tests/gpu

lint: setup  ## Style, types, floors
	@$(BIN)/ruff check src tests benchmarks examples
	@$(BIN)/ruff format --check -q src tests benchmarks examples
	@$(BIN)/mypy
	@$(BIN)/lint-imports --no-cache

bench: setup  ## Measure latency, overhead, attribution on 50,000 random jobs, and the peer; whole tables of tests (hours)
	@$(BIN)/python -m pytest -q $(WORKERS) -m whole
	@$(BIN)/python benchmarks/detection_latency.py
	@$(BIN)/python benchmarks/healthy_soak.py
	@$(BIN)/python benchmarks/hangbench/run.py
	@$(BIN)/python benchmarks/record_overhead.py
	@$(BIN)/python benchmarks/random_jobs.py
	@$(BIN)/python benchmarks/nccl_jobs.py
	@$(BIN)/python benchmarks/versus_torchfrtrace.py

pages: setup  ## Write the tables and pages that are generated from the sources
	@$(BIN)/python docs/make_lines.py
	@$(BIN)/python docs/make_rules.py
	@$(BIN)/python docs/make_tree.py
	@$(BIN)/python docs/make_lint.py
	@$(BIN)/python docs/make_coverage.py
	@$(BIN)/python docs/make_report.py
	@$(BIN)/python docs/make_commands.py
	@$(BIN)/python docs/make_messages.py

docs: pages  ## The same, and build the site into build/site
	@$(BIN)/python docs/make_site.py
	@$(BIN)/zensical build --strict --clean

changelog: setup  ## Write CHANGELOG.md from changes/
	@$(BIN)/python docs/make_changelog.py

wheel: setup  ## Build wheel and sdist into dist, and check them
	@$(BIN)/pip install --quiet --disable-pip-version-check build twine 2>&1 | grep -v '^WARNING: Location' || true
	@$(BIN)/python -m build --outdir dist >/dev/null
	@$(BIN)/python -m twine check --strict dist/*

clean:  ## Remove what setup made
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache unhang-reports dist
