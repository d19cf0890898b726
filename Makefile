# make run    sets up .venv and runs the main job        make test   sets up .venv and passes the tests
# Quick the second time: the set-up is repeated only when pyproject.toml or a constraints file has changed.

PYTHON ?= python3
EXTRA ?=
ARGS ?=
# One process more than cores: many tests wait for a process of their own.
PYTEST_ARGS ?= -n $(shell expr $$(nproc) + 1) --maxprocesses 5 --dist loadgroup
# Tests that time on a GPU and want it for themselves: behind the others, one after the other, and only where there is one.
TIMED := tests/test_timing_gpu.py tests/test_profiling_gpu.py tests/test_choosing_gpu.py tests/test_block_gpu.py
# Packages for opwise, installed where PYTHONPATH shows them to their tests alone; the suite's own take up the op by its name.
PLUGINS := rmsnorm cutile helion
# A -k of the caller's may fit no test of a plugin: pytest ends with 5 then.
NONE_IS_FINE = $(if $(filter command,$(firstword $(origin PYTEST_ARGS))),|| [ $$? -eq 5 ])
RANGE ?=
BASE ?= main
HEAD ?= HEAD

VENV := .venv
SEEN = $(CURDIR)/$(VENV)/plugin
BIN := $(VENV)/bin
PINS := pyproject.toml constraints.txt constraints-cuda12.txt constraints-cuda13.txt

.PHONY: help run test history dashboard gate lint format site dist clean same-extra
.DEFAULT_GOAL := help
unexport PYTHONDONTWRITEBYTECODE  # each process that a test starts would compile opwise, and each worker rewrite all tests

help:  ## what can be made
	@sed -n 's/^\([a-z]*\):.*## /\1\t/p' Makefile | expand -t 10
	@echo 'EXTRA=cuda12|cuda13 overrides what nvidia-smi says, PYTHON=python3.12 picks the interpreter,'
	@echo "ARGS='softmax --set smoke' goes to opwise run, PYTEST_ARGS='-k softmax' to pytest, RANGE=v0.1..main to asv run."

run: same-extra $(VENV)/.ready  ## set up, then check and time every op in every backend (opwise run)
	@$(BIN)/opwise run $(ARGS)

test: same-extra $(VENV)/.ready-test  ## set up, then run the tests
	@$(BIN)/python -m pytest tests/test_dispatch_cost.py tests/test_choose_start.py
	@$(BIN)/python -m pytest $(PYTEST_ARGS)
	@rm -rf $(SEEN) && $(BIN)/python -m pip install -q --disable-pip-version-check --no-build-isolation --no-deps -c constraints.txt \
		--target $(SEEN) cuda-tile helion $(PLUGINS:%=./plugins/opwise-%)
	@set -e; for name in $(PLUGINS); do PYTHONPATH=$(SEEN) $(BIN)/python -m pytest plugins/opwise-$$name/tests -m 'not slow' $(PYTEST_ARGS) $(NONE_IS_FINE); done
	@PYTHONPATH=$(SEEN) $(BIN)/python -m pytest tests/test_implementations.py tests/test_protocol.py $(PYTEST_ARGS) -k rmsnorm
	@if nvidia-smi -L >/dev/null 2>&1; then $(BIN)/python -m pytest $(TIMED); fi

mutate: same-extra $(VENV)/.ready-test  ## plant one fault after another in the kernels: does the suite notice each? (docs/checking.md)
	@$(BIN)/python scripts/mutate.py $(ARGS)

history: same-extra $(VENV)/.ready-asv  ## measure the commits that this machine lacks, the newest first (asv run)
	@$(BIN)/python scripts/history.py $(if $(RANGE),--range '$(RANGE)') $(ARGS)

dashboard: same-extra $(VENV)/.ready-asv  ## the history as a web page (asv publish), served until Ctrl-C (asv preview)
	@$(BIN)/python asv_offline.py || true
	@$(BIN)/python -m asv publish
	@$(BIN)/python -m asv preview $(ARGS)

gate: same-extra $(VENV)/.ready-asv  ## is HEAD slower than BASE? both measured now, in turns; fails if so (docs/ci.md)
	@$(BIN)/python scripts/gate.py '$(BASE)' '$(HEAD)' $(ARGS)

lint: same-extra $(VENV)/.ready-test  ## ruff and mypy --strict
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy --strict src
	MYPYPATH=src:plugins/opwise-rmsnorm/src $(BIN)/mypy --strict plugins/opwise-rmsnorm/src

format: same-extra $(VENV)/.ready-test  ## let ruff rewrite what it can
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

site: same-extra $(VENV)/.ready-test  ## the documentation as pages, site/index.html
	@NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build -q && echo "site/index.html: python3 -m http.server -d site shows it, with search"

dist: same-extra $(VENV)/.ready-test  ## wheel and sdist into dist/
	$(BIN)/python -m build --no-isolation

clean:  ## remove .venv, caches and built archives; recorded runs stay
	rm -rf $(VENV) dist build .pytest_cache .mypy_cache .ruff_cache

# An environment holds one GPU extra: cupy-cuda12x and cupy-cuda13x install the same module over each other.
same-extra:
	@[ -z '$(EXTRA)' ] || [ ! -s $(VENV)/.extra ] || [ '$(EXTRA)' = "$$(cat $(VENV)/.extra)" ] || \
		{ echo "$(VENV) was set up for $$(cat $(VENV)/.extra), not $(EXTRA): make clean first" >&2; exit 1; }

# $(1): one more extra. What .venv was first set up for stays, whatever nvidia-smi says later.
define install
	@chosen='$(EXTRA)'; [ -n "$$chosen" ] || [ ! -s $(VENV)/.extra ] || chosen=$$(cat $(VENV)/.extra); \
	extras=$$($(PYTHON) scripts/choose_extra.py --extra "$$chosen") && gpu=$${extras%%,*} && echo "$$gpu" > $(VENV)/.extra && \
	$(BIN)/python -m pip install --disable-pip-version-check -c constraints.txt -c constraints-$$gpu.txt -e ".[$$extras$(1:%=,%)]"
endef

$(VENV)/.ready: $(PINS) | $(BIN)/python
	$(call install)
	@touch $@

$(VENV)/.ready-test: $(PINS) | $(BIN)/python
	$(call install,test)
	@touch $(VENV)/.ready $(VENV)/.ready-asv $@

$(VENV)/.ready-asv: $(PINS) | $(BIN)/python
	$(call install,asv)
	@touch $(VENV)/.ready $@

$(BIN)/python:
	@command -v $(PYTHON) >/dev/null || \
		{ echo 'opwise needs Python 3.11 or later and there is no $(PYTHON): install it, or make PYTHON=<interpreter>' >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.version_info >= (3, 11) or sys.exit(f"opwise needs Python 3.11 or later, $(PYTHON) is " \
		f"{sys.version.split()[0]}: make PYTHON=<newer interpreter>")'
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || \
		{ echo '$(PYTHON) lacks the venv module: install it (Debian, Ubuntu: apt install python3-venv)' >&2; exit 1; }
	@echo 'setting up $(VENV): torch and the GPU libraries, several GB the first time'
	@$(PYTHON) -m venv $(VENV)
