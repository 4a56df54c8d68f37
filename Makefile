# Two commands: `make run` serves, `make test` is the gate. Everything installs itself into .venv. `make help` lists all.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
PORT   ?= 9092
DATA   ?= ./data

# Byte code must be kept: without it every start compiles the house again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help run test-systemd compiled pure wheels deb test-packages build compiled-build system-a-c system-d-k system-l-r system-s-z system-waits crash installation test quick test-all test-compiled test-zookeeper zookeeper-first zookeeper-second checker bench bench-all bench-scaling bench-log bench-plan bench-publish bench-cases bench-wakes budget profile spark-archive demo-spark demo-exactly-once bench-spark check format lint types contracts compiles unit unit-pure unit-processes unit-waits unit-native unit-control unit-rooms unit-spark system clients clients-a-j clients-k-z judges java-archive reformat

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z][a-z-]*:.*## / { printf "  make %-16s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

# Installs the compiled build of these sources, once for each state of them (decision 0080).
run: ## serve on 127.0.0.1:$(PORT), data in $(DATA); PORT=9192 DATA=/srv/log; Ctrl-C stops it
	@$(PYTHON) scripts/install.py $(VENV)
	@exec $(BIN)/appliance serve --data-dir $(DATA) --port $(PORT) --slots 1

pure: ## run the sources of this tree uncompiled from now on; a change takes effect at the next start
	@$(PYTHON) scripts/install.py $(VENV) --pure

# The tools of packages, in a virtual environment of their own: a clone needs nothing of the tests to build a package.
PACKAGING := .cache/packaging/venv

$(PACKAGING)/.installed-packages: pyproject.toml
	@$(PYTHON) scripts/install.py $(PACKAGING) --pure --extras packages
	@touch $@

wheels: $(PACKAGING)/.installed-packages ## a wheel with the compiled modules for each CPython of this machine, into dist; minutes each
	@$(PACKAGING)/bin/python scripts/wheels.py

deb: $(PACKAGING)/.installed-packages ## a Debian package for this release's Python, into dist; needs debhelper and dpkg-dev
	@scripts/install-debian.sh binutils debhelper dpkg-dev lintian
	@$(PACKAGING)/bin/python scripts/deb.py

compiled: ## undo `make pure`: run the compiled build again
	@$(PYTHON) scripts/install.py $(VENV) --auto

build: ## make the compiled build that `make test` tests, and print its path
	@$(PYTHON) scripts/install.py $(VENV)
	@$(BIN)/python scripts/build.py compiled

# For a tree that is installed already.
compiled-build:
	@$(BIN)/python scripts/build.py compiled

# The tests' own needs, beside the build that `make run` runs.
$(VENV)/.installed-test: pyproject.toml
	@$(PYTHON) scripts/install.py $(VENV)
	@DIST_EXTRA_CONFIG=$(CURDIR)/scripts/wheels.cfg $(PYTHON) scripts/install.py $(VENV) --extras test,frames,oauth,telemetry,spark,spark-java
	@touch $@

# The unit tests over the compiled modules, but those that replace or step through what these do not let them.
test-systemd: $(VENV)/.installed-test ## boot a Debian root with systemd and check the units in it; needs root
	@$(BIN)/python scripts/systemd/boot.py $(if $(ONLY),--only $(ONLY))

test-compiled: judges
	$(COMPILED) -q -m "not slow and not interpreted" $(addprefix --ignore=,$(SHIPPED))

# The gate, quick checks first. One step alone: `make lint`, `make unit`, `make clients CLIENT=kcat`.
# Against Apache Kafka, the judge of the client tests: `make clients APPLIANCE_JUDGE=kafka`. Against three slots, with a
# replica of each topic on every one: `make clients SLOTS=3`.
SOURCES := appliance spark_connector pyspark_appliance benchmarks tests examples/guarantees/demo.py
PYTEST  := $(BIN)/python -m pytest
CLIENT  ?=
SLOTS   ?= 1

# Of the gate alone: a test in which processes take part is run once more when it failed, three of a run at the most, and
# the run's end names it (decision 0045).
SECOND_TRY := --reruns 1 --max-suite-reruns 3

# Rooms whose tests have no process that serves, and wait for no time.
PURE := $(addprefix tests/,access audit config control/coordinator delivery log properties protocol requests sasl services)

# `make quick`: what one wants to know after each small change. Left out is what tries every crash of a long script or
# hundreds of examples of its own, reads the whole tree, forks for each test, or starts a JVM.
# tests/architecture/test_quick.py keeps both lists honest.
QUICK_ROOMS := $(addprefix tests/,architecture config control/coordinator delayed delivery log protocol services)
QUICK_LEFT_OUT := $(addprefix tests/,architecture/test_no_import_circles.py config/test_principal_rules.py \
	$(addprefix control/coordinator/,test_compacted_transactions.py test_transaction_crashes.py test_transactional_offsets.py) \
	delayed/test_purgatory_process.py \
	$(addprefix log/,test_every_write.py test_failing_cuts.py test_only_segment.py test_shares.py) \
	services/test_exact_lane.py)

# Rooms that test what is shipped: the compiled build, made once for each state of the sources. The other rooms test the
# sources as they are.
SHIPPED  := $(addprefix tests/,checker clients crash spark system)
COMPILED := scripts/on-compiled.sh $(PYTEST) --import-mode=append

# Of these the time passes in windows of quotas, lives of tokens and timeouts, with the processors idle. In the gate they
# run beside the parts that are counted.
SYSTEM_WAITS := $(addprefix tests/system/test_,oauthbearer.py quotas.py sasl.py tls.py)
UNIT_WAITS   := tests/native/test_quotas.py tests/control/keys tests/control/test_supervisor_systemd.py

# The system tests wait for most of their time. They are several targets, so that these can run side by side, or alone.
SYSTEM_REST := $(filter-out $(SYSTEM_WAITS),$(wildcard tests/system/test_*.py))
SYSTEM_A_C := $(filter $(wildcard tests/system/test_[a-c]*.py),$(SYSTEM_REST))
SYSTEM_D_K := $(filter $(wildcard tests/system/test_[d-k]*.py),$(SYSTEM_REST))
SYSTEM_L_R := $(filter $(wildcard tests/system/test_[l-r]*.py),$(SYSTEM_REST))
SYSTEM_S_Z := $(filter-out $(SYSTEM_A_C) $(SYSTEM_D_K) $(SYSTEM_L_R),$(SYSTEM_REST))

# Two halves of the client tests, for the gate; `clients` runs both, or one client's.
CLIENTS_A_J := $(wildcard tests/clients/test_[a-j]*.py)
CLIENTS_K_Z := $(filter-out $(CLIENTS_A_J),$(wildcard tests/clients/test_*.py))

# The two largest rooms of unit tests with processes; `unit-rooms` has the others.
LARGE_ROOMS := tests/control tests/native

# Compiles for half a minute, so it does not run beside tests with bounds on time.
CLIENT_WHEEL := tests/native/test_wheel.py

STEP = @echo "== make test, step $(1): $(2) (`date +%H:%M:%S`) =="

# Several parts at a time (`scripts/side_by_side.py`), on two cores. Each run of pytest has ports and directories of its own.
# Steps 2 and 3 compute and have no bounds on time to keep: checks, the tests that wait for nothing, installations by pip,
# and the clients and Spark, each with a broker of its own. The parts of step 4 keep bounds, use half a core each
# and wait for the rest of their time: three at a time, and nothing that computes runs beside them. Longest first. Beside
# them run the tests that do little but wait.
SIDE_BY_SIDE := @MAKE="$(MAKE)" $(BIN)/python scripts/side_by_side.py

test: ## the gate: format, lint, types, contracts, and every test that is not marked slow; about 30 minutes
	$(call STEP,1 of 4,install the tests' needs: 1.6 GB at the first time)
	@$(MAKE) --no-print-directory $(VENV)/.installed-test
	$(call STEP,2 of 4,fetch the judges and check beside the compiled build: two minutes unless these sources were compiled before)
	$(SIDE_BY_SIDE) compiled-build "java-archive check"
	$(call STEP,3 of 4,the Kafka clients and Spark beside installations and the unit tests without processes)
	$(SIDE_BY_SIDE) --at-once 3 unit-pure clients-k-z unit-spark clients-a-j installation
	$(call STEP,4 of 4,the system and the unit tests with processes and the crash and checker tests)
	$(SIDE_BY_SIDE) --at-once 3 --beside "system-waits unit-waits" system-s-z system-l-r unit-native system-a-c system-d-k unit-control unit-rooms crash
	@echo "== make test: passed (`date +%H:%M:%S`) =="

# Adds what is marked slow, examples that the gate does not try, librdkafka's own test-runner, all clients against three
# slots, the controller and the system on a ZooKeeper, and all but the clients over the compiled modules.
test-all: check judges ## the gate and what is marked slow, more clients, ZooKeeper, systemd (as root); hours
	scripts/install-librdkafka.sh
	$(PYTEST) --hypothesis-profile=explore $(addprefix --ignore=,$(SHIPPED))
	$(COMPILED) --hypothesis-profile=explore $(SHIPPED)
	APPLIANCE_SLOTS=3 $(COMPILED) -q tests/clients
	@$(MAKE) --no-print-directory test-zookeeper
	@$(MAKE) --no-print-directory test-compiled
	@$(MAKE) --no-print-directory test-systemd

# What depends on the metadata store, once more with all of it on a ZooKeeper. The two halves go side by side, for they mostly
# wait; each starts a ZooKeeper. Left out is what is about the embedded store's file (its damage, a disk without room for it),
# what chooses its store itself and is in `make test-all` anyhow, and fuzzing for minutes, which comes near no store.
ON_ZOOKEEPER := $(filter-out $(addprefix tests/,control/controller/test_damage.py control/controller/test_zookeeper.py \
	system/test_full_disk.py system/test_adoption_zookeeper.py system/test_kafkas_tree.py system/test_restored_metadata.py \
	system/test_zookeeper.py system/test_zookeeper_ensemble.py),$(wildcard tests/control/controller/test_*.py tests/system/test_*.py)) \
	tests/crash/test_supervision_of_the_appliance.py
FIRST_HALF := $(filter-out tests/system/%,$(ON_ZOOKEEPER)) $(filter $(wildcard tests/system/test_[a-h]*.py),$(ON_ZOOKEEPER))
SECOND_HALF := $(filter-out $(FIRST_HALF),$(ON_ZOOKEEPER))

NOT_ON_ZOOKEEPER := --deselect tests/control/controller/test_configs.py::test_a_full_disk_refuses_the_change_and_nothing_has_changed \
	--deselect tests/system/test_hostile_fuzz.py::test_requests_of_all_kinds_disturb_nobody_for_minutes

test-zookeeper: judges
	@$(MAKE) --no-print-directory --jobs=2 zookeeper-first zookeeper-second

zookeeper-first: judges
	APPLIANCE_STORE=zookeeper $(COMPILED) -q $(FIRST_HALF) $(NOT_ON_ZOOKEEPER)

zookeeper-second: judges
	APPLIANCE_STORE=zookeeper $(COMPILED) -q $(SECOND_HALF) $(NOT_ON_ZOOKEEPER)

check: format lint types contracts

format: $(VENV)/.installed-test ## check the format; `make reformat` corrects it
	$(BIN)/ruff format --check --quiet

lint: $(VENV)/.installed-test ## ruff, typing errors (codespell), and words of the old prose (scripts/prose.py)
	$(BIN)/ruff check --quiet
	$(BIN)/codespell
	$(BIN)/python scripts/prose.py

types: $(VENV)/.installed-test
	$(BIN)/mypy $(SOURCES)

contracts: $(VENV)/.installed-test
	$(BIN)/lint-imports

# What mypyc makes of the hot modules, read by the C compiler and not built: a quarter of the time of `make build`.
compiles: $(VENV)/.installed-test
	$(BIN)/python -m scripts.compiles

unit: unit-pure unit-processes installation ## the unit tests, on the sources as they are

# Two processes, and few examples of each property: the gate tries all of them. Files in memory (3 MB), so that nothing
# waits for the disk. Without pytest-rerunfailures, whose workers wait 40 ms for a socket before each test.
quick: $(VENV)/.installed-test ## 4,100 unit tests that need no broker and no JVM, in 45 seconds; after each small change
	PYTEST_DEBUG_TEMPROOT=/dev/shm $(PYTEST) -q -x -p no:rerunfailures -n 2 --dist worksteal -o tmp_path_retention_policy=failed --hypothesis-profile=quick -m "not slow" $(QUICK_ROOMS) $(addprefix --ignore=,$(QUICK_LEFT_OUT))

unit-pure: judges
	$(PYTEST) -q -m "not slow" $(PURE)

unit-processes: unit-native unit-control unit-rooms unit-waits

unit-native: judges
	$(PYTEST) -q -m "not slow" $(SECOND_TRY) tests/native $(addprefix --ignore=,$(CLIENT_WHEEL) $(UNIT_WAITS))

unit-control: judges
	$(PYTEST) -q -m "not slow" $(SECOND_TRY) tests/control $(addprefix --ignore=,$(PURE) $(UNIT_WAITS))

unit-rooms: judges
	$(PYTEST) -q -m "not slow" $(SECOND_TRY) $(addprefix --ignore=,$(SHIPPED) $(PURE) $(LARGE_ROOMS) tests/installation)

unit-waits: judges
	$(PYTEST) -q -m "not slow" $(SECOND_TRY) $(UNIT_WAITS)

installation: judges ## each kind of installation, made by pip
	$(PYTEST) -q -m "not slow" tests/installation $(CLIENT_WHEEL)

# Fetches a gigabyte, compiles for each Python, and takes most of an hour. Root, because it makes Debian systems.
test-packages: judges ## wheels, the Debian package, the image, uv and pipx, each installed and tried; as root
	@$(BIN)/python -c 'import auditwheel, pipx, uv' 2>/dev/null || $(PYTHON) scripts/install.py $(VENV) --extras packages
	@scripts/install-debian.sh binutils buildah debhelper debootstrap dpkg-dev lintian
	$(PYTEST) -q tests/installation

system: judges ## the system, crash and checker tests, on the compiled build
	$(COMPILED) -q -m "not slow" $(SECOND_TRY) $(filter-out tests/clients tests/spark,$(SHIPPED))

system-a-c: judges
	$(COMPILED) -q -m "not slow" $(SECOND_TRY) $(SYSTEM_A_C)

system-d-k: judges
	$(COMPILED) -q -m "not slow" $(SECOND_TRY) $(SYSTEM_D_K)

system-l-r: judges
	$(COMPILED) -q -m "not slow" $(SECOND_TRY) $(SYSTEM_L_R)

system-s-z: judges
	$(COMPILED) -q -m "not slow" $(SECOND_TRY) $(SYSTEM_S_Z)

system-waits: judges
	$(COMPILED) -q -m "not slow" $(SECOND_TRY) $(SYSTEM_WAITS)

crash: judges ## the crash and checker tests, on the compiled build
	$(COMPILED) -q -m "not slow" $(SECOND_TRY) tests/crash tests/checker

unit-spark: judges ## the Spark tests, on the compiled build
	$(COMPILED) -q -m "not slow" $(SECOND_TRY) tests/spark

clients: judges ## the client tests, on the compiled build; CLIENT=kcat SLOTS=3
	APPLIANCE_SLOTS=$(SLOTS) $(COMPILED) -q -m "not slow" $(SECOND_TRY) tests/clients$(if $(CLIENT),/test_$(CLIENT).py)

clients-a-j: judges
	$(COMPILED) -q -m "not slow" $(SECOND_TRY) $(CLIENTS_A_J)

clients-k-z: judges
	$(COMPILED) -q -m "not slow" $(SECOND_TRY) $(CLIENTS_K_Z)

# Random faults under load by hand; seed and faults are told, and what was found: `make checker MINUTES=60 SLOTS=3`.
MINUTES ?= 5

checker: $(VENV)/.installed-test ## random faults under load on the compiled build; MINUTES=60 SLOTS=3
	scripts/on-compiled.sh $(BIN)/python -m tests.checker --slots $(SLOTS) --duration-s $$(( $(MINUTES) * 60 ))

judges: $(VENV)/.installed-test
	@scripts/install-judges.sh

# With it a JVM starts in a third of the processor time. Whoever tests without it makes it, too.
java-archive: judges
	@$(BIN)/python -m tests.support.java_archive

reformat: $(VENV)/.installed-test ## format the sources
	$(BIN)/ruff check --quiet --fix
	$(BIN)/ruff format --quiet

# The connector as the one file of `spark-submit --py-files`.
spark-archive: $(VENV)/.installed-test ## the Spark connector as one file for `spark-submit --py-files`
	@$(BIN)/python -m spark_connector.archive dist/log-appliance-spark.zip

# A broker, a Kafka client's events, a stream in windows, a join, Parquet, a table and a plot: half a minute.
demo-spark: $(VENV)/.installed-test ## a broker, a stream, a table and a plot in half a minute
	@$(BIN)/python -c 'import matplotlib' 2>/dev/null || $(BIN)/python -m pip install --quiet --disable-pip-version-check 'matplotlib>=3.9'
	@$(BIN)/python -m spark_connector.demo

demo-exactly-once: ## three programs, each killed ten times: what at most once, at least once and exactly once cost; two minutes
	@$(PYTHON) scripts/install.py $(VENV)
	@$(BIN)/python examples/guarantees/demo.py

# Figures. In a virtual environment of its own: what the tests install would be imported, and counted, with the broker.
# Everything is installed by itself; the appliance is measured as builds of its own under .cache, never this work tree.
#   make bench                        beside Apache Kafka and a mock in C, 25 to 45 minutes; kept
#   make bench CASE=latency ROUNDS=3  one case, kept in the cache only; `make bench-cases` lists them
#   make bench QUICK=1 ROUNDS=1       a short look at all
#   make bench ALSO=failover_1,failover_1000,catch_up     all, and these of the cases that run only by name; kept
#   make bench BROKERS=appliance,pure,kafka
#   make bench-scaling                growth with partitions, topics, connections, bytes, slots and I/O workers, 9 to 13 minutes; kept
#   make bench-log                    the log by itself: append, group commit, lookup, recovery, compaction, 5 to 10 minutes; kept
#   make bench-spark                  the Spark connector beside spark-sql-kafka, Parquet and a ceiling, 15 minutes; kept
#   make bench-plan                   what it would do, with the time of each case
#   make bench-wakes                  how soon a core is woken here, by what idle cores do (docs/latency.md)
#   make bench-publish                README, docs/scaling.md and pages again from the newest kept runs
#   make bench-all                    the log by itself, every case, the heavy ones and Spark's too
#   make budget                       µs of one produce and one fetch from socket to socket, by process and by step; KEEP=1: into benchmarks/README.md
#   make profile CASE=requests_64     a flame graph of each process of the pure build; NATIVE=1: of the compiled one;
#                                     SETTING=pinned, fsync or slots
BENCH   := .cache/bench/venv
ROUNDS  ?= 5
BROKERS ?= appliance,mock,kafka

$(BENCH)/.installed-bench: pyproject.toml
	@$(PYTHON) scripts/install.py $(BENCH) --pure --extras bench
	@touch $@

ifneq ($(filter spark_%,$(CASE)),)
bench: bench-spark
else
bench: $(BENCH)/.installed-bench ## compare with Apache Kafka and a mock in C, 25 to 45 minutes; CASE=latency ROUNDS=3
	@scripts/install-librdkafka.sh
	@$(BENCH)/bin/python -m benchmarks run $(CASE) --rounds $(ROUNDS) --brokers $(BROKERS) $(if $(QUICK),--quick) $(if $(ALL),--all) $(if $(ALSO),--also $(ALSO))
endif

# What fell in the log's page is told there, and keeps nobody from the run beside Kafka.
bench-all:
	-@$(MAKE) --no-print-directory bench-log
	@$(MAKE) --no-print-directory bench ALL=1
	@$(MAKE) --no-print-directory bench-spark

bench-scaling: $(BENCH)/.installed-bench
	@scripts/install-librdkafka.sh
	@$(BENCH)/bin/python -m benchmarks run --scaling --rounds 1 --brokers appliance,kafka

bench-log: $(VENV)/.installed-test
	@$(BIN)/python -m benchmarks log

# Also as `make bench CASE="spark_count spark_window"`. In the tests' environment, which has Spark.
bench-spark: $(VENV)/.installed-test
	@scripts/install-librdkafka.sh
	@scripts/install-spark-kafka.sh || true # the page says that it is missing
	@$(BIN)/python -m benchmarks.spark.run $(filter spark_%,$(CASE))

bench-plan: $(BENCH)/.installed-bench ## what `make bench` would do, and how long it takes
	@$(BENCH)/bin/python -m benchmarks plan $(CASE) --rounds $(ROUNDS) --brokers $(BROKERS) $(if $(QUICK),--quick) $(if $(ALL),--all) $(if $(ALSO),--also $(ALSO))

bench-wakes: $(BENCH)/.installed-bench
	@$(BENCH)/bin/python -m benchmarks wakes

bench-publish: $(BENCH)/.installed-bench ## write README, docs/scaling.md and pages from the newest kept runs
	@$(BENCH)/bin/python -m benchmarks publish

bench-cases: $(BENCH)/.installed-bench
	@$(BENCH)/bin/python -m benchmarks cases

budget: $(BENCH)/.installed-bench
	@$(BENCH)/bin/python -m benchmarks.micro.budget $(if $(KEEP),--keep)

profile: $(BENCH)/.installed-bench
	@scripts/install-librdkafka.sh
	@$(BENCH)/bin/python -m benchmarks profile $(CASE) $(if $(NATIVE),--native) $(if $(SETTING),--setting $(SETTING))
