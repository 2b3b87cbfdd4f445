# Two commands: `make demo` and `make test`. Both make .venv and install what they need.

PYTHON ?= python3
BIN := .venv/bin
export PIP_DISABLE_PIP_VERSION_CHECK := 1
# What is imported is compiled once, also where that is switched off; what is never imported, never.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo test lint docs benchmark clean

demo: .venv/.run
	$(BIN)/fedkin demo

test: lint
	$(BIN)/pytest -n 3 --dist loadfile --no-loadscope-reorder

lint: .venv/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

docs: .venv/.run
	$(BIN)/python -m fedkin.costs > costs.new && mv costs.new fedkin/costs.csv
	$(BIN)/python -c "from fedkin.report.methods import markdown; print(markdown(), end='')" > docs/methods.md
	$(BIN)/python -c "from fedkin.report.algebra_page import markdown; print(markdown(), end='')" > docs/algebra.md
	$(BIN)/python -c "from fedkin.report.algebra_page import svg; print(svg(), end='')" > docs/images/mixing.svg
	$(BIN)/fedkin reproduce page

benchmark: .venv/.run
	$(BIN)/python benchmarks/overhead.py
	$(BIN)/python benchmarks/server.py
	$(BIN)/python benchmarks/clock.py
	$(BIN)/python benchmarks/steps.py

.venv/.run: pyproject.toml constraints.txt
	@$(PYTHON) -c "import sys; sys.exit('fedkin needs Python 3.11 or newer; choose one with: make PYTHON=python3.12' if sys.version_info < (3, 11) else 0)"
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --no-compile --constraint constraints.txt --editable .
	@touch $@

.venv/.dev: .venv/.run
	$(BIN)/python -m pip install --quiet --no-compile --constraint constraints.txt --editable ".[dev]"
	@touch $@

clean:
	rm -rf .venv build dist *.egg-info .mypy_cache .pytest_cache .ruff_cache
