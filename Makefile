# Two commands: `make run` serves, `make test` is the gate. Everything installs itself into .venv.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
PORT   ?= 9092
DATA   ?= ./data

# Byte code must be kept: without it every start compiles the house again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: run test test-all bench profile format lint types contracts unit docs clean

$(VENV)/.installed: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable .
	touch $@

$(VENV)/.installed-test: pyproject.toml $(VENV)/.installed
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[test]'
	touch $@

$(VENV)/.installed-bench: pyproject.toml $(VENV)/.installed
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[bench]'
	touch $@

run: $(VENV)/.installed
	@exec $(BIN)/appliance serve --data-dir $(DATA) --port $(PORT) --slots 1

