# make demo       train on four ranks inside a notebook, from nothing
# make lab        JupyterLab on the same environment
# make test       every promise once: lint, types, native tests under ASan, Python, Jupyter, browser, notebooks, wheel
# make test-all   everything, in shards: make test-all SHARD=native|multiprocess|jupyter|browser|faults|elastic|frameworks|platforms|spark|ray|calm
# make changed    lint and the tests of what differs from HEAD
# make page       build widgets/static, what a browser gets, from widgets/js (needs Node.js)
# make docs       build the documentation site: build/docs/html/index.html
# make release    dist/: sdist and manylinux wheels for every CPython here, checked and tried in empty environments
# make bench      the figures of docs/performance.md
# make clean      remove what make made
.DEFAULT_GOAL := help
.PHONY: help demo lab test test-all changed ci lint native pytest bench docs release clean system page
SHELL := /bin/bash
NATIVE := $(wildcard native/CMakeLists.txt native/CMakePresets.json $(foreach depth,* */*,native/$(depth)/*.cc native/$(depth)/*.h native/$(depth)/*.cu native/$(depth)/*.cuh native/$(depth)/*.cmake))
SETTINGS := pyproject.toml .ci/constraints.txt .ci/setup
SHARDS := native multiprocess jupyter browser faults elastic frameworks platforms spark ray
SUITE := .venv/bin/python -P tools/suite

help:
	@sed -n 's/^# \(make .*\)/\1/p' Makefile

build/.demo: $(SETTINGS) $(NATIVE)
	@WHEELS=dist bash .ci/setup torch,lab && mkdir -p build && touch $@

build/.test: $(SETTINGS) $(NATIVE)
	@begin=$$SECONDS; { bash .ci/system $(if $(CI),java) && bash .ci/js install; } & system=$$!; bash .ci/docs env & docs=$$!; \
	  bash .ci/setup torch,lab,test && wait $$system && wait $$docs && \
	  echo $$((SECONDS - begin)) >build/setup.seconds && touch build/.demo $@

demo: build/.demo
	@.venv/bin/python notebooks/demo.py

lab: build/.demo
	@.venv/bin/jupyter lab --notebook-dir=notebooks $(if $(filter 0,$(shell id -u)),--allow-root) $(LAB_ARGS)

system:
	@bash .ci/system

page:
	@bash .ci/js build

docs:
	@bash .ci/docs

test: build/.test
	@$(SUITE) default

test-all: build/.test
	@status=0; for shard in $(or $(SHARD),$(SHARDS)); do $(SUITE) shard $$shard || status=1; done; exit $$status

changed: build/.test
	@$(SUITE) changed

ci: build/.test
	@$(SUITE) ci

lint native: build/.test
	@$(SUITE) default $@

pytest: build/.test
	@$(SUITE) default unit gpu multiprocess frameworks platforms jupyter faults elastic spark on_ray browser notebooks docs

bench: build/.test
	@for each in start cell telemetry; do echo "$$each:"; .venv/bin/python tools/bench/$$each.py || exit 1; done

release:
	@bash .ci/release

clean:
	rm -rf build .venv
