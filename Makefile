# Every target makes the environment it needs. PYTHON picks the interpreter (3.11 or newer), VENV the folder.
PYTHON ?= python3
VENV ?= .venv
BIN = $(VENV)/bin
PIP = $(BIN)/python -m pip --disable-pip-version-check install --quiet --constraint constraints.txt

OLDEST = build/oldest
BARE = build/bare

.PHONY: quickstart native oldest distributions newest test test-all lint fix types docs wheel clean

quickstart: $(VENV)/installed
	$(BIN)/stablernn quickstart

# The compiled kernels of training; needs a C compiler. Everything works without them.
native: $(VENV)/installed
	@command -v "$${CC:-cc}" > /dev/null || { echo "No C compiler: install gcc or clang, or set CC=; stablernn works without." >&2; exit 1; }
	$(BIN)/python -m pip --disable-pip-version-check install --quiet --force-reinstall --no-deps ./native

# Exported graphs in the oldest ONNX Runtime that runs them, in an environment of its own; needs Python 3.11 or 3.12.
oldest: $(VENV)/installed
	$(PYTHON) -m venv --clear $(OLDEST)
	$(OLDEST)/bin/python -m pip --disable-pip-version-check install --quiet onnxruntime==1.17.0 numpy==1.26.4
	$(BIN)/python tests/support/engines/oldest_runtime.py write $(OLDEST)/models
	$(OLDEST)/bin/python tests/support/engines/oldest_runtime.py run $(OLDEST)/models

# Registry, runtime, server and client, each installed alone from its wheel, without torch.
distributions: $(VENV)/installed
	rm -rf $(BARE)
	$(BIN)/python tests/support/bare_environments.py $(BARE)

# The quick tests with the newest releases of everything, in an environment of its own.
newest:
	$(PYTHON) -m venv --clear build/newest
	build/newest/bin/python -m pip --disable-pip-version-check install --quiet --editable '.[dev]' --editable papers
	build/newest/bin/python -m pytest -m "not slow" -n auto --dist worksteal

test: $(VENV)/installed-dev
	$(BIN)/python -m pytest -m "not slow" -n auto --dist worksteal

test-all: $(VENV)/installed-dev
	$(BIN)/python -m pytest -n auto --dist worksteal

lint: $(VENV)/installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

fix: $(VENV)/installed-dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

types: $(VENV)/installed-dev
	$(BIN)/mypy
	$(BIN)/pyright --pythonpath $(BIN)/python

# The catalogs that commands read, and the documentation as a site in build/site; PORT=8000 serves it.
docs: $(VENV)/installed-dev
	$(BIN)/python tools/catalogs.py
	$(BIN)/python tools/build_site.py $(if $(PORT),--serve $(PORT))

# The wheels of all distributions; they require each other by version, so that pip finds them in this folder.
wheel: $(VENV)/installed-dev
	for project in client registry runtime server . papers; do \
	  (cd $$project && STABLERNN_PINS=1 $(CURDIR)/$(BIN)/hatchling build --target wheel --directory $(CURDIR)/dist) || exit 1; \
	done

clean:
	rm -rf $(VENV) build dist .mypy_cache .pytest_cache .ruff_cache

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit("Python 3.11 or newer is needed, %s is %d.%d; set PYTHON=" % ((sys.executable,) + sys.version_info[:2]) if sys.version_info < (3, 11) else 0)'
	$(PYTHON) -m venv $(VENV)

$(VENV)/installed: pyproject.toml papers/pyproject.toml constraints.txt | $(VENV)/bin/python
	$(PIP) --editable . --editable papers
	@touch $@

$(VENV)/installed-dev: pyproject.toml papers/pyproject.toml constraints.txt | $(VENV)/bin/python
	$(PIP) --editable '.[dev]' --editable papers
	@touch $@ $(VENV)/installed
