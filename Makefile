# Two commands: `make serve` and `make test`. Both set up .venv the first time and reuse it afterwards.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
CONFIG ?= $(or $(LLAMAPOOL_CONFIG),config/default.yaml)

.PHONY: serve test check bench docs clean

serve: $(VENV)/.installed
	exec env LLAMAPOOL_CONFIG=$(CONFIG) $(BIN)/python -m server

# Format, lint, types, import contracts, dead code, then every test. CI runs this.
test: $(VENV)/.installed-dev check
	$(BIN)/python -m pytest -q

check: $(VENV)/.installed-dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache
	$(BIN)/vulture

bench: $(VENV)/.installed-dev
	$(BIN)/python -m benchmarks.compare

docs: $(VENV)/.installed-dev
	$(BIN)/python -m server docs --write

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --upgrade pip

# llama-cpp-python is compiled here once (about 15 minutes on two cores) and kept in pip's cache.
$(VENV)/.installed: pyproject.toml | $(VENV)/bin/python
	@echo "Installing; the first time llama-cpp-python is compiled, which takes about 15 minutes on two cores."
	$(BIN)/pip install --quiet --editable .
	@touch $@

$(VENV)/.installed-dev: pyproject.toml $(VENV)/.installed
	$(BIN)/pip install --quiet --editable '.[dev]'
	@touch $@

clean:
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
