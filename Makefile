# make demo: set up and show the main job.   make test: set up, then lint, types and tests.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: demo test lint types clean

demo: .venv/installed
	$(BIN)/anydevice devices

test: lint types
	$(BIN)/python -m pytest -q

lint: .venv/installed
	$(BIN)/ruff check
	$(BIN)/ruff format --check

types: .venv/installed
	$(BIN)/mypy

# torch comes in through the constraints alone: anything else could pull a second, multi-gigabyte build.
.venv/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	@touch $@

clean:
	rm -rf .venv .mypy_cache .pytest_cache .ruff_cache
