# Everything goes through .venv; the first command that needs it makes it.
PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/installed
DEMO := .venv/installed-for-demo

.PHONY: setup demo test docs slow check lint coverage format pages site bench audit hashes clean

setup: $(STAMP)

.venv/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "Python 3.11 or newer is needed; found $$($(PYTHON) --version). Use: make PYTHON=python3.12 ..."; exit 1; }
	$(PYTHON) -m venv .venv

$(STAMP): pyproject.toml constraints.txt | .venv/bin/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[server,hub,dev,docs]'
	touch $(DEMO) $(STAMP)

# The demo runs in one process: it needs neither Flower nor tools.
$(DEMO): pyproject.toml constraints.txt | .venv/bin/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[research]'
	touch $(DEMO)

demo: $(DEMO)
	@rm -rf runs/demo
	@$(BIN)/catchment study experiments/demo.toml --out runs/demo

SUITE := $(BIN)/python -m pytest -n auto --dist worksteal --durations 30

test: setup
	$(SUITE) -m "not slow and not docs"

docs: setup
	$(SUITE) -m "docs and not slow"

slow: setup
	$(BIN)/python -m pytest -m slow

check: lint
	@if [ -f .coverage ]; then $(BIN)/coverage report; \
	  else echo "coverage: not measured yet; make coverage measures it"; fi

lint: setup
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

# The lines that the quick suite reaches, in all its processes; twice the time of make test.
coverage: setup
	rm -f .coverage .coverage.*
	$(BIN)/coverage run -m pytest -n auto --dist worksteal -m "not slow"
	$(BIN)/coverage combine --quiet
	$(BIN)/coverage report

format: setup
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

# Tables and pictures of the docs, and what catchment plan advises, from committed results.
pages: setup
	$(BIN)/python benchmarks/pages.py
	$(BIN)/python benchmarks/found.py

# The documentation as a site. Material announces its end of life (2027) at every build.
site: setup
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build

bench: setup
	$(BIN)/python benchmarks/engine.py

# Known vulnerabilities of the pinned versions. It asks PyPI, and fails if it cannot: what was not audited is not fine.
audit: | .venv/bin/python
	$(BIN)/python -m venv .venv/audit
	.venv/audit/bin/python -m pip install --quiet --disable-pip-version-check pip-audit
	.venv/audit/bin/pip-audit --strict --no-deps --disable-pip --requirement constraints.txt

# What an install takes on a machine of this kind, with hashes: make hashes EXTRA=server
EXTRA ?= device
hashes: setup
	$(BIN)/python .ci/hashes.py $(EXTRA)

clean:
	rm -rf .venv build *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis .coverage*
