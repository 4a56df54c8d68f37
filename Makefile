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

run: $(VENV)/.installed
	@exec $(BIN)/appliance serve --data-dir $(DATA) --port $(PORT) --slots 1

# Figures. In a virtual environment of its own: what the tests install would be imported, and counted, with the broker.
#   make bench                        all cases, five rounds, about 20 minutes; keeps a page in benchmarks/results
#   make bench CASE=latency ROUNDS=3  one case, kept in the cache only
#   make bench QUICK=1 ROUNDS=1       a short look at all
#   make bench BROKERS=appliance,mock,kafka
#   make profile CASE=requests_50     a flame graph of each process
BENCH   := .cache/bench/venv
ROUNDS  ?= 5
BROKERS ?= appliance,mock

$(BENCH)/.installed: pyproject.toml
	$(PYTHON) -m venv $(BENCH)
	$(BENCH)/bin/python -m pip install --quiet --disable-pip-version-check --editable '.[bench]'
	touch $@

bench: $(BENCH)/.installed
	@scripts/install-librdkafka.sh
	@$(BENCH)/bin/python -m benchmarks run $(CASE) --rounds $(ROUNDS) --brokers $(BROKERS) $(if $(QUICK),--quick)

profile: $(BENCH)/.installed
	@$(BENCH)/bin/python -m benchmarks profile $(CASE)
