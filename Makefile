# Two commands: `make demo` and `make test`. Both make .venv and install what they need.

PYTHON ?= python3
BIN := .venv/bin
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.PHONY: demo test lint benchmark clean

demo: .venv/.run
	$(BIN)/fedkin demo

test: lint
	$(BIN)/pytest

lint: .venv/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

benchmark: .venv/.run
	$(BIN)/python benchmarks/overhead.py

.venv/.run: pyproject.toml constraints.txt
	@$(PYTHON) -c "import sys; sys.exit('fedkin needs Python 3.11 or newer; choose one with: make PYTHON=python3.12' if sys.version_info < (3, 11) else 0)"
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable .
	@touch $@

.venv/.dev: .venv/.run
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[dev]"
	@touch $@

clean:
	rm -rf .venv build dist *.egg-info .mypy_cache .pytest_cache .ruff_cache
