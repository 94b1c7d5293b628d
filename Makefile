# Needs Python 3.11 or newer with venv, and make. Everything else is installed into .venv here.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.PHONY: help venv other-venvs test quick long lint typing unit others demo bench bench-peers simulate pictures vendored churn audit fmt clean

VERSION := import sys; print("%d.%d" % sys.version_info[:2])
SUPPORTED := 3.11 3.12 3.13 3.14
# One more than there are cores: half of the suite waits for the processes that it has started.
WORKERS ?= $(shell expr $$(nproc 2>/dev/null || echo 2) + 1)
ARGS ?=
BIN := .venv/bin
# What is never imported needs no byte code, and that is most of what is installed.
PIP_FLAGS := --quiet --quiet --disable-pip-version-check --retries 5 --no-compile
# The suite starts hundreds of programs, and each worker reads every test: without byte code each would compile it all anew.
unexport PYTHONDONTWRITEBYTECODE
# In the order of the folders, and not the files with the most tests first: the longest files have few tests, and what runs
# last would run alone. The last ones in tests/unit are short.
PYTEST_FLAGS := -n $(WORKERS) --dist loadfile --no-loadscope-reorder --max-worker-restart 0
# The files of the tests lie in memory where there are 4 GiB for them: what only a power cut can tell apart needs no disk, and
# to wait for one takes longer than the tests. The benchmarks stay on the disk.
test others quick long: export TMPDIR ?= $(shell df -k --output=avail /dev/shm 2>/dev/null | awk 'NR == 2 && $$1 > 4194304 {print "/dev/shm"}')
# The suite that proves the rules on every Python; crash, acceptance and slow tests run on the main one.
PORTABLE := tests/unit tests/contract tests/properties
# What those between the oldest and the newest run: they differ from both in little. `make others NARROW="$(PORTABLE)"` is all of it.
NARROW := tests/contract tests/properties tests/unit/test_manager_define.py tests/unit/test_manager_enqueue.py tests/unit/test_manager_keys.py tests/unit/test_manager_limits.py tests/unit/test_manager_run.py tests/unit/test_manager_control.py tests/unit/test_manager_wait.py

# One heading per step.
say = printf '\n=== %s\n' "$(1)"

# "X.Y PATH" for the first working interpreter of each supported version: PATH, then pyenv. A pyenv shim may exist and not run,
# and a Python built without ssl, sqlite3 or venv cannot be used; both are passed over.
define interpreters
found() { \
  for version in $(SUPPORTED); do \
    for candidate in "$$(command -v python3)" "$$(command -v python$$version)" "$$HOME"/.pyenv/versions/$$version*/bin/python3 "$${PYENV_ROOT:-/nonexistent}"/versions/$$version*/bin/python3; do \
      [ -x "$$candidate" ] || continue; \
      [ "$$("$$candidate" -c 'import ensurepip, sqlite3, ssl, sys, venv; print("%d.%d" % sys.version_info[:2])' 2>/dev/null)" = "$$version" ] || continue; \
      echo "$$version $$candidate"; break; \
    done; \
  done; \
}
endef

# $(call make_venv,DIR,PYTHON,EXTRA): create or refresh, only when the interpreter is gone or pyproject.toml is newer than the last install.
# uv does in 3 seconds of the processor what takes pip 30. Where it cannot be had, or does not reach the index, pip does it.
define make_venv
if ! $(1)/bin/python -c pass 2>/dev/null; then rm -rf $(1); $(2) -m venv $(1); fi; \
if [ ! -e $(1)/.installed ] || [ pyproject.toml -nt $(1)/.installed ]; then \
  $(call say,install into $(1)); \
  { { $(1)/bin/python -m pip install $(PIP_FLAGS) uv && $(1)/bin/uv pip install --quiet --python $(1)/bin/python --editable '.[$(3)]'; } \
    || $(1)/bin/python -m pip install $(PIP_FLAGS) --editable '.[$(3)]'; } && touch $(1)/.installed; \
fi
endef

# `main`: the version of .venv, or that which it will have.
define main_version
main="$$({ $(BIN)/python -c '$(VERSION)' || python3 -c '$(VERSION)'; } 2>/dev/null || true)"; \
found | grep "^$$main " >/dev/null || main="$$(found | awk 'NR == 1 {print $$1}')"
endef

help:  ## This list
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  make %-11s %s\n", $$1, $$2}' $(firstword $(MAKEFILE_LIST))

venv:  ## Create or refresh .venv with the library and its development tools
	@$(interpreters); \
	main="$$(python3 -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null || true)"; \
	line="$$(found | grep "^$$main " || found | head -n 1)"; \
	[ -n "$$line" ] || { echo "No Python 3.11 or newer with venv, ssl and sqlite3 was found (on Debian: apt-get install python3-venv)" >&2; exit 1; }; \
	$(call make_venv,.venv,"$${line#* }",dev)

# These need nothing of .venv: `make -j2` installs all of them at the same time, as .ci/run does.
other-venvs:
	@$(interpreters); $(main_version); \
	found | { while read -r version python; do \
	  [ "$$version" != "$$main" ] || continue; \
	  $(call make_venv,.venv-$$version,"$$python",portable) & \
	done; wait; }

lint: venv  ## ruff, and mypy --strict on the package
	@$(call say,ruff check); $(BIN)/ruff check .
	@$(call say,ruff format --check); $(BIN)/ruff format --check .
	@$(call say,mypy --strict taskmanager); $(BIN)/mypy --strict taskmanager

typing: venv  ## The public types, as two checkers see them
	@$(call say,mypy --strict tests/typing/api.py); $(BIN)/mypy --strict tests/typing/api.py
	@$(call say,basedpyright tests/typing/api.py); $(BIN)/basedpyright --pythonpath $(BIN)/python tests/typing/api.py

test: lint others  ## All but the long tests: style, every Python found, and the full suite with the types last
	@$(call say,pytest: the full suite); $(BIN)/pytest $(PYTEST_FLAGS) $(ARGS)

# The other Pythons go first, so that the closing line of the full suite is the last line.
others: venv other-venvs  ## The portable part of the suite on each other supported Python that is installed
	@$(interpreters); $(main_version); \
	newest="$$(found | grep -v "^$$main " | tail -n 1)"; \
	found | while read -r version python; do \
	  [ "$$version" != "$$main" ] || continue; \
	  $(call make_venv,.venv-$$version,"$$python",portable); \
	  if [ "$$version $$python" = "$$newest" ]; then \
	    paths="$(PORTABLE)"; \
	    $(call say,mypy on Python $$version); .venv-$$version/bin/mypy --strict --python-version $$version --cache-dir .mypy_cache/$$version tests/typing/api.py; \
	  else paths="$(NARROW)"; fi; \
	  $(call say,pytest on Python $$version); HYPOTHESIS_PROFILE=brief .venv-$$version/bin/pytest -q $(PYTEST_FLAGS) -m 'not slow and not long' -p no:cacheprovider $$paths </dev/null; \
	done

quick: venv  ## The suite without the slow tests, on one Python, for while you work
	@$(BIN)/pytest $(PYTEST_FLAGS) -m "not slow and not long" --ignore tests/crash --ignore tests/acceptance $(ARGS)

long: venv  ## The bad days of servers: restarts, failovers, poolers, kills, copies that are cut short; some ten minutes
	@$(call say,pytest: the bad days of servers); $(BIN)/pytest $(PYTEST_FLAGS) -m long $(ARGS)

demo: venv  ## The five-minute tour, on your own files
	@$(BIN)/taskmanager demo $(ARGS)

bench: venv  ## Every question in benchmarks/, and which targets are reached; ARGS=--quick for a first look
	@$(BIN)/python benchmarks $(ARGS)

# All libraries on one Python: the first of these that is installed. The oldest is too old for one of them.
bench-peers: venv  ## The same no-op in other libraries (ARGS="--quick --only huey"); a whole run writes docs/benchmarks.md
	@$(interpreters); \
	python="$$(found | awk '{of[$$1] = $$2} END {for (n = split("3.13 3.14 3.12 3.11", order); i++ < n;) if (order[i] in of) {print of[order[i]]; exit}}')"; \
	$(BIN)/python -m benchmarks.peers.run --python "$$python" --write docs/benchmarks.md $(ARGS)

simulate: venv  ## The seeded simulator: thousands of programs with faults, on virtual time
	@$(call say,simulation); $(BIN)/python -m tests.simulation --seeds 2000 --workers $(WORKERS) $(ARGS)

pictures: venv  ## The pictures of the dashboard in docs/, made anew with the browser that is installed
	@$(BIN)/python -m tests.browser.pictures

churn: venv  ## Kill it again and again: 500 rounds of random signals, then the count
	@$(call say,churn); $(BIN)/python -m tests.crash.churn --rounds 500 $(ARGS)

vendored: venv  ## Fetch the files of the dashboard that come from npm again, and compare
	@$(BIN)/python -m tests.vendored

audit: venv  ## Which requirements have no test
	@$(BIN)/python -m tests.requirements $(ARGS)

fmt: venv  ## Put imports and layout in order
	@$(BIN)/ruff check --quiet --fix-only . && $(BIN)/ruff format .

clean:  ## Remove every virtual environment and cache
	@rm -rf .venv .venv-* .mypy_cache .ruff_cache .pytest_cache .hypothesis dist build
