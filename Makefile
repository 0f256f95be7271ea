# Everything goes through .venv; the first command that needs it makes it.
PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/installed
DEMO := .venv/installed-for-demo

.PHONY: setup demo test slow check format bench audit hashes clean

setup: $(STAMP)

.venv/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "Python 3.11 or newer is needed; found $$($(PYTHON) --version). Use: make PYTHON=python3.12 ..."; exit 1; }
	$(PYTHON) -m venv .venv

$(STAMP): pyproject.toml constraints.txt | .venv/bin/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[server,hub,dev]'
	touch $(DEMO) $(STAMP)

# The demo runs in one process: it needs neither Flower nor tools.
$(DEMO): pyproject.toml constraints.txt | .venv/bin/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[research]'
	touch $(DEMO)

demo: $(DEMO)
	@rm -rf runs/demo
	@$(BIN)/catchment run experiments/demo/standalone.toml --out runs/demo/standalone
	@$(BIN)/catchment run experiments/demo/fedgkt.toml --out runs/demo/fedgkt
	@$(BIN)/catchment run experiments/demo/centralized.toml --out runs/demo/centralized
	@echo
	@$(BIN)/catchment report runs/demo/standalone runs/demo/fedgkt runs/demo/centralized --out runs/demo/report.html

test: setup
	$(BIN)/python -m pytest -n auto --dist worksteal -m "not slow"

slow: setup
	$(BIN)/python -m pytest -m slow

check: setup
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

format: setup
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

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
	rm -rf .venv build *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
