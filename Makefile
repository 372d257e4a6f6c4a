# `make run` starts a swarm, `make test` checks everything; both set up .venv first, once.
#
# torch: with the default package index a Linux machine gets torch's CUDA build (several GB). For the CPU build, set
# PIP_EXTRA_INDEX_URL to the CPU index that PyTorch's installation page names, or PIP_FIND_LINKS to a directory that
# holds the wheel, before the first make.

ROUNDS ?= 8
NODES  ?= 3
DIR    ?= .swarmd
SEEDS  ?= 200
STOPS  ?= 200
WORKERS ?= 2

PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV   := .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready

.DEFAULT_GOAL := help
.PHONY: help setup run test check lint types layers drift unit e2e packaging dist charts bench bench-long soak lock format reset clean

help: ## list the targets
	@grep -hE '^[a-z0-9-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z0-9-]+):[^#]*## (.*)/  make \1\t\2/' | expand -t 24

$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "swarmd needs Python 3.11 or newer, $(PYTHON) is older; try: make PYTHON=/path/to/python3.11" >&2; exit 1; }
	@echo "setting up $(VENV) (a few minutes, once)"
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@

setup: $(READY) ## make .venv with the pinned dependencies

run: $(READY) ## run three nodes on this machine (ROUNDS=8, ROUNDS=0 until Ctrl-C)
	@$(BIN)/swarmd local --rounds $(ROUNDS) --nodes $(NODES) --dir $(DIR)

test: check unit e2e ## everything CI checks

check: lint types layers drift ## what needs no running node: style, types, layers, generated files

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
	$(BIN)/swarmd chart --write build/charts
	diff -r build/charts docs/charts
	@rm -rf build/packaging
	$(BIN)/python -m swarmd.cli.manual build/packaging
	diff build/packaging/swarmd.1 packaging/swarmd.1
	diff -r build/packaging/completion packaging/completion

# A Unix socket's path has at most 107 bytes, so tests write to a short one; what failed tests wrote stays. `--again`: see
# tests/again.py.
define pytest
	@begun=$$(date +%s); written=$$(mktemp -d /tmp/t.XXXXXX); \
	$(BIN)/pytest --again --durations=15 --basetemp="$$written" $(1) \
	  && { rm -rf "$$written"; echo "make $@: $$(($$(date +%s) - begun)) s"; } \
	  || { echo "make $@ failed after $$(($$(date +%s) - begun)) s; what its tests wrote is in $$written" >&2; exit 1; }
endef

unit: $(READY) ## fast tests, in two processes (WORKERS=2)
	$(call pytest,-m 'not e2e' -n $(WORKERS) --dist worksteal)

e2e: $(READY) ## tests with whole nodes (minutes)
	$(call pytest,-m e2e -v)

packaging: $(READY) ## write the manual page and the completion scripts
	$(BIN)/python -m swarmd.cli.manual packaging

dist: $(READY) ## build wheel and sdist into dist
	$(BIN)/python -m build --no-isolation --outdir dist .

charts: $(READY) ## draw the statecharts into docs/charts
	$(BIN)/swarmd chart --write docs/charts

bench: $(READY) ## the benchmarks, as tables
	$(BIN)/python -m bench

bench-long: $(READY) ## the trainer over 200 stages, and with a KL term and adapters
	$(BIN)/python -m bench trainer-memory trainer-kinds

soak: $(READY) ## many seeds of the simulator (SEEDS=200), many stops of a real node (STOPS=200)
	$(BIN)/swarmd sim --seeds $(SEEDS)
	$(BIN)/python -m tests.soak --stops $(STOPS)

lock: $(READY) ## write constraints.txt from what is installed
	@{ echo '# Exact versions of everything that swarmd installs, development tools included; `make lock` writes this file.'; \
	  $(BIN)/python -m pip freeze --exclude-editable | grep -E '^[A-Za-z0-9._-]+==' | sed -E 's/\+[a-z0-9.]+$$//'; } > constraints.txt

reset: ## forget the local swarm: its logs, checkpoints and identities
	rm -rf $(DIR)

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
unit e2e: $(CONTRACTS_READY)
