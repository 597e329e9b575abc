# make demo   train on four ranks inside a notebook, from nothing
# make lab    JupyterLab on the same environment
# make test   everything: lint, types, native tests (plain, ASan+UBSan, TSan, fuzzer), Python, Jupyter, browser, notebooks, wheel
# make bench  the figures of docs/performance.md
# make clean  remove what make made
.DEFAULT_GOAL := help
.PHONY: help demo lab test lint native pytest nbval wheel bench clean system
SHELL := /bin/bash
NATIVE := $(wildcard native/CMakeLists.txt native/*/*.cc native/*/*.h native/*/*.cu native/*/*.cuh native/*/*.cmake)
SETTINGS := pyproject.toml .ci/constraints.txt .ci/setup
NBVAL_RUNS ?= 2
PYTEST := .venv/bin/python -P -m pytest

help:
	@sed -n 's/^# \(make .*\)/\1/p' Makefile

build/.demo: $(SETTINGS) $(NATIVE)
	@bash .ci/setup torch,lab && mkdir -p build && touch $@

build/.test: $(SETTINGS) $(NATIVE)
	@bash .ci/setup torch,lab,test && mkdir -p build && touch build/.demo $@

demo: build/.demo
	@.venv/bin/python notebooks/demo.py

lab: build/.demo
	@.venv/bin/jupyter lab --notebook-dir=notebooks $(if $(filter 0,$(shell id -u)),--allow-root) $(LAB_ARGS)

system:
	@bash .ci/system

lint: build/.test native-plain
	@bash .ci/lint

native-%: build/.test | system
	@bash .ci/native $*

native: native-plain native-asan native-tsan native-fuzz

pytest: build/.test | system
	@$(PYTEST)

nbval: build/.test
	@.venv/bin/python -P -c "import matplotlib.font_manager" # without its cache it complains in the notebook, if it is slow
	@for run in $$(seq $(NBVAL_RUNS)); do \
	  echo "notebooks, run $$run of $(NBVAL_RUNS)"; \
	  $(PYTEST) -q --nbval --nbval-sanitize-with notebooks/nbval_sanitize.cfg -p no:cacheprovider --timeout 300 notebooks || exit 1; \
	done

wheel: build/.test
	@bash .ci/wheel

test:
	@$(MAKE) --no-print-directory build/.test system
	@$(MAKE) --no-print-directory native lint
	@$(MAKE) --no-print-directory nbval wheel
	@$(MAKE) --no-print-directory pytest

bench: build/.test
	@for each in start cell telemetry; do echo "$$each:"; .venv/bin/python tests/bench/$$each.py || exit 1; done

clean:
	rm -rf build .venv
