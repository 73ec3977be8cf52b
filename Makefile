# Two commands: `make serve` and `make test`. Both set up .venv the first time and reuse it afterwards.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
CONFIG ?= $(or $(LLAMAPOOL_CONFIG),config/default.yaml)

.PHONY: serve test check bench docs clean

serve: $(VENV)/.installed
	exec env LLAMAPOOL_CONFIG=$(CONFIG) $(BIN)/python -m server

# Format, lint, types, import contracts, dead code, then every test. CI runs this.
test: $(VENV)/.installed-dev check $(VENV)/.templates
	LLAMA_CPP_TEMPLATES="$$(test -e $(VENV)/.templates && echo $(CURDIR)/$(VENV)/templates)" $(BIN)/python -m pytest -q

check: $(VENV)/.installed-dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache
	$(BIN)/vulture

# 20 to 25 minutes on a quiet machine; a run that was cut off goes on where it was.
bench: $(VENV)/.installed-bench
	$(BIN)/python -m benchmarks.compare --json build/bench.json
	-$(BIN)/python -m benchmarks.plots build/bench.json
	$(BIN)/python -m benchmarks.report build/bench.json --readme

docs: $(VENV)/.installed-dev
	$(BIN)/python -m server docs --write

# The chat templates of llama-cpp-python's source distribution; where it can't be had, the tests of them are skipped.
$(VENV)/.templates: $(VENV)/.installed-dev
	-mkdir -p $(VENV)/templates && \
	$(BIN)/pip download --quiet --no-deps --no-binary llama-cpp-python --dest $(VENV)/sdist "$$($(BIN)/python -c \
	  "from importlib.metadata import version; print('llama-cpp-python==' + version('llama-cpp-python'))")" && \
	tar xzf $(VENV)/sdist/llama_cpp_python-*.tar.gz -C $(VENV)/templates --strip-components=5 --wildcards \
	  '*/vendor/llama.cpp/models/templates/*' && rm -r $(VENV)/sdist && touch $@

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

$(VENV)/.installed-bench: pyproject.toml $(VENV)/.installed-dev
	$(BIN)/pip install --quiet --editable '.[dev,bench]'
	@touch $@

clean:
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
