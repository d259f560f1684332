# Two commands: `make demo` and `make test`; both set up what they need. `make help` lists the rest.
#
#   PYTHON=python3.12   interpreter to build .venv with (default: the first of python3, python3.14 ... that is >= 3.11)
#   ARGS="..."          passed on to `repairgym demo`, pytest, the benchmarks or `uv pip compile`
#   COVERAGE=1          `make test` measures coverage and refuses too little of it
#   TORCH_INDEX=URL     one more index for torch only, e.g. one with CPU or CUDA wheels

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory
# Many tests start processes; without byte code on disk each of them would compile torch and transformers again. What is
# never imported needs none: environments are installed with --no-compile.
unexport PYTHONDONTWRITEBYTECODE

IS_NEW_ENOUGH := -c 'import sys; sys.exit(sys.version_info < (3, 11))'
PYTHON ?= $(shell for python in python3 python3.14 python3.13 python3.12 python3.11; do \
	$$python $(IS_NEW_ENOUGH) 2>/dev/null && echo $$python && break; done)
ARGS ?=
TORCH_INDEX ?=

VENV := .venv
PARITY := .venv-parity
PARITY_PINS := requirements-torch.txt requirements-parity.txt
PARITY_STAMP := $(PARITY)/.setup-$(shell cat $(PARITY_PINS) | sha256sum | cut -c 1-16)
RAY := .venv-ray
RAY_PINS := requirements.lock requirements-torch.txt pyproject.toml requirements-ray.txt
RAY_STAMP := $(RAY)/.setup-$(shell cat $(RAY_PINS) | sha256sum | cut -c 1-16)
TRL := .venv-trl
TRL_PINS := requirements-torch.txt requirements-trl.txt
TRL_STAMP := $(TRL)/.setup-$(shell cat $(TRL_PINS) pyproject.toml | sha256sum | cut -c 1-16)
CLIENTS := .venv-clients
CLIENTS_PINS := requirements.lock requirements-torch.txt requirements-clients.txt
CLIENTS_STAMP := $(CLIENTS)/.setup-$(shell cat $(CLIENTS_PINS) | sha256sum | cut -c 1-16)
QUICKSTARTS := .venv-quickstarts
QUICKSTARTS_PINS := requirements-quickstarts.txt
QUICKSTARTS_STAMP := $(QUICKSTARTS)/.setup-$(shell cat $(QUICKSTARTS_PINS) | sha256sum | cut -c 1-16)
VLLM := .venv-vllm
VLLM_PINS := requirements-torch.txt requirements-vllm.txt
VLLM_STAMP := $(VLLM)/.setup-$(shell cat $(VLLM_PINS) pyproject.toml | sha256sum | cut -c 1-16)
VERL := .venv-verl
VERL_PINS := $(if $(GPU),requirements-verl-gpu.txt,requirements-torch.txt requirements-verl.txt)
VERL_STAMP := $(VERL)/.setup-$(shell cat $(VERL_PINS) pyproject.toml | sha256sum | cut -c 1-16)
BIN := $(VENV)/bin
PINS := requirements.lock requirements-torch.txt pyproject.toml
# The stamp is keyed to what the pins say, not to when they were written: a fresh clone and a switched branch both work.
STAMP := $(VENV)/.setup-$(shell cat $(PINS) | sha256sum | cut -c 1-16)
TORCH := $(shell sed -n 's/^torch==//p' requirements-torch.txt)
PIP := $(BIN)/python -m pip --disable-pip-version-check install --no-input --no-compile
TORCH_PIP := $(PIP) $(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX))

.PHONY: help setup tools demo examples dist site words test long parity ray ray-env trl trl-env clients quickstarts verl verl-env vllm engines lint format types contracts check bench gpu docs lock clean

help: ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /\1\t/' | expand -t 12

setup: $(STAMP) ## build .venv with the locked packages, torch and this project
	@:

tools: ## bubblewrap, podman and chromium from Debian's packages, as root (for the tests that need them)
	@scripts/install_tools

demo: setup ## the whole loop on real packages, ends with a report (ARGS="--minutes 60")
	@$(BIN)/repairgym demo $(ARGS)

# Coverage (a fifth of the time) is measured on the whole suite only, and when asked for, as CI does.
test: setup ## the default tests (ARGS="tests/config -x" for a selection, COVERAGE=1 to measure coverage)
	@OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q $(if $(ARGS),$(ARGS),-n auto --dist worksteal --durations=5 \
		$(if $(COVERAGE),--cov --cov-report=term:skip-covered))

long: setup ## tests that are slow, need a package index or a GPU: hours, for a schedule (ARGS="-n 2 --dist worksteal")
	@OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -m "slow or network or gpu" tests $(ARGS)

parity: $(PARITY_STAMP) ## our losses against TRL's and verl's own functions, in .venv-parity
	@OMP_NUM_THREADS=1 PYTHONPATH=src $(PARITY)/bin/python -m pytest -q -m parity --confcutdir=tests/learning/parity \
		tests/learning/parity $(ARGS)

ray-env: $(RAY_STAMP) ## build .venv-ray: Ray next to the packages of .venv
	@:

ray: ray-env ## episodes on Ray clusters of this machine, one node killed on the way, in .venv-ray
	@OMP_NUM_THREADS=1 PYTHONPATH=src $(RAY)/bin/python -m pytest -q -m ray tests/bridges/ray --durations=0 $(ARGS)

trl-env: $(TRL_STAMP) ## build .venv-trl: TRL and verifiers with this project
	@:

trl: trl-env ## TRL's trainer and verifiers on our tasks, on a CPU; some minutes
	@OMP_NUM_THREADS=1 $(TRL)/bin/python -m pytest -q -m "trl or verifiers" tests/bridges/trl tests/bridges/verifiers $(ARGS)

clients: $(CLIENTS_STAMP) ## clients of `repairgym serve-tasks`, and a server of tools, with the SDK of MCP, in .venv-clients
	@OMP_NUM_THREADS=1 PYTHONPATH=src $(CLIENTS)/bin/python -m pytest -q -m mcp tests/bridges/clients tests/rollout/external $(ARGS)

quickstarts: setup $(QUICKSTARTS_STAMP) ## quick starts of litellm, pydantic-ai, smolagents, inspect-ai and LangChain against `repairgym serve`
	@OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -m quickstarts tests/serving/quickstarts $(ARGS)

vllm: $(VLLM_STAMP) ## our policy and RL against a real vLLM on this CPU, in .venv-vllm
	@OMP_NUM_THREADS=1 $(VLLM)/bin/python -m pytest -q -m vllm tests/training/vllm_cpu $(ARGS)

verl-env: $(VERL_STAMP) ## build .venv-verl, where `repairgym train verl` runs (GPU=1: with vLLM)
	@:

verl: verl-env ## verl on Ray with two FSDP2 workers, three GRPO steps on our episodes, on a CPU; some minutes
	@OMP_NUM_THREADS=1 $(VERL)/bin/python -m pytest -q -m verl tests/bridges/verl $(ARGS)

engines: ## trl, ray, vllm and verl one after the other, for a schedule; says what ran and how long it took (ARGS="trl vllm")
	@.ci/engines $(ARGS)

lint: setup ## ruff: rules and formatting
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .

format: setup ## ruff: fix what can be fixed
	@$(BIN)/ruff check --fix --quiet . ; $(BIN)/ruff format .

types: setup ## mypy --strict
	@$(BIN)/mypy

contracts: setup ## imports go down the layers only
	@$(BIN)/lint-imports --no-logo

docs: setup ## links, documented commands and override keys are right; builds the site in build/site
	@$(BIN)/python scripts/check_docs.py
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet --site-dir build/site

site: setup ## the documentation in a browser, rebuilt at every change
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs serve

words: setup ## standard terms and plain sentences (docs/glossary.md); the shape of the source tree
	@$(BIN)/python scripts/check_words.py
	@$(BIN)/python scripts/measure_house.py --check > /dev/null

check: lint types contracts words docs ## all of lint, types, contracts, words, docs

examples: setup ## the three scripts that the documentation begins with
	@$(BIN)/python scripts/example_repository.py texttable build/texttable
	@for call in hello.py rl_loop.py "your_package.py build/texttable --sources texttable.py --tests tests.py"; do \
		echo "== examples/$$call"; OMP_NUM_THREADS=1 $(BIN)/python examples/$$call; done

dist: setup ## build the wheel and the sdist, check them, try them in a clean environment (ARGS=--no-demo)
	@scripts/check_dist $(BIN)/python $(ARGS)

bench: setup ## the benchmarks, each under a minute (ARGS="--json")
	@for script in benchmarks/*.py; do \
		[ -e "$$script" ] || { echo "no benchmarks here yet"; break; }; \
		echo "== $$script"; OMP_NUM_THREADS=1 $(BIN)/python "$$script" --quick $(ARGS); done

gpu: setup ## one GPU in ten minutes: log-prob gap, contexts, DAPO steps, a saved state; needs requirements-gpu.txt for vLLM
	@$(BIN)/python benchmarks/gpu.py --write docs/reference/benchmarks.md $(ARGS)

lock: setup ## resolve requirements.lock again (ARGS=--upgrade for newer versions)
	@$(BIN)/uv pip compile pyproject.toml --constraint requirements-torch.txt --extra dev --universal \
		--python-version 3.11 --generate-hashes --no-annotate --custom-compile-command "make lock" \
		--output-file requirements.lock --quiet $(ARGS)

clean: ## remove .venv and what tools left; runs and the layer store stay
	@rm -rf $(VENV) $(PARITY) $(RAY) $(TRL) $(CLIENTS) $(QUICKSTARTS) $(VERL) $(VLLM) .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache .coverage build dist
	@find src tests -name __pycache__ -type d -prune -exec rm -rf {} +

# pip of the environment $(@D), which is created first.
INSTALL_THERE = $(@D)/bin/python -m pip install -qq --no-compile $(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX))

# Ray, and the packages of .venv by a path file: no dependency of the project pulls Ray in.
PURELIB := import sysconfig; purelib = sysconfig.get_path("purelib")
$(RAY_STAMP): $(STAMP) $(RAY_PINS)
	@$(BIN)/python -m venv --clear $(RAY)
	@$(BIN)/python -c '$(PURELIB); print(f"import site; site.addsitedir({purelib!r})")' \
		> "$$($(RAY)/bin/python -c '$(PURELIB); print(purelib)')/packages_of_venv.pth"
	@$(INSTALL_THERE) -r requirements-ray.txt
	@touch $@

# The locked packages and those of clients.
$(CLIENTS_STAMP): $(CLIENTS_PINS)
	@$(PYTHON) -m venv --clear $(CLIENTS)
	@$(CLIENTS)/bin/python -m pip install -qq --no-compile --require-hashes --no-deps -r requirements.lock
	@$(INSTALL_THERE) -r requirements-torch.txt -r requirements-clients.txt
	@touch $@

# Outside clients alone: nothing of this project, whose pins some of them contradict.
$(QUICKSTARTS_STAMP): $(QUICKSTARTS_PINS)
	@$(PYTHON) -m venv --clear $(QUICKSTARTS)
	@$(INSTALL_THERE) -r $(QUICKSTARTS_PINS)
	@touch $@

$(TRL_STAMP): $(TRL_PINS) pyproject.toml
	@$(PYTHON) -m venv --clear $(TRL)
	@$(INSTALL_THERE) $(addprefix -r ,$(TRL_PINS)) --editable '.[train]'
	@touch $@

# vLLM brings torchvision and others whose builds need CUDA and break the import of transformers on a machine without it.
$(VLLM_STAMP): $(VLLM_PINS) pyproject.toml
	@$(PYTHON) -m venv --clear $(VLLM)
	@$(INSTALL_THERE) $(addprefix -r ,$(VLLM_PINS)) --editable .
	@$(VLLM)/bin/python -m pip uninstall -qq -y torchvision torchaudio torchcodec triton
	@touch $@

$(PARITY_STAMP): $(PARITY_PINS)
	@$(PYTHON) -m venv --clear $(PARITY)
	@$(INSTALL_THERE) $(addprefix -r ,$(PARITY_PINS))
	@touch $@

$(VERL_STAMP): $(VERL_PINS) pyproject.toml
	@$(PYTHON) -m venv --clear $(VERL)
	@$(INSTALL_THERE) $(addprefix -r ,$(VERL_PINS)) pytest pytest-asyncio --editable '.[train,datasets]'
	@$(if $(GPU),$(VERL)/bin/python -m pip install -qq --no-build-isolation flash-attn==2.8.3)
	@touch $@

# --- setup ---------------------------------------------------------------------------------------------------------

$(STAMP): $(PINS)
	@[ "$$(uname -s)" = Linux ] || { echo "error: RepairGym runs on Linux, this is $$(uname -s)"; exit 1; }
	@[ -n "$(PYTHON)" ] || { echo "error: Python 3.11 or newer is needed, found: $$(python3 --version 2>&1);" \
		"install one, or name it: make setup PYTHON=/path/to/python3.12"; exit 1; }
	@$(PYTHON) $(IS_NEW_ENOUGH) 2>/dev/null || { echo "error: $(PYTHON) is $$($(PYTHON) --version 2>/dev/null || echo 'not there')," \
		"Python 3.11 or newer is needed; name one: make setup PYTHON=/path/to/python3.12"; exit 1; }
	@$(PYTHON) -c 'import venv, ensurepip' 2>/dev/null || { echo "error: $(PYTHON) has no venv module;" \
		"install it (Debian, Ubuntu: apt install python3-venv), or name another interpreter: make setup PYTHON=..."; exit 1; }
	@echo "setup: $(VENV) from $$($(PYTHON) --version) (minutes the first time, nothing after that)"
	@[ -x $(BIN)/python ] && $(BIN)/python $(IS_NEW_ENOUGH) && $(BIN)/python -m pip --version > /dev/null 2>&1 \
		|| $(PYTHON) -m venv --clear $(VENV)
	@echo "setup: locked packages, hashes checked"
	@$(PIP) -qq --require-hashes --no-deps --requirement requirements.lock
	@echo "setup: torch $(TORCH)$(if $(wildcard /dev/nvidiactl),, (no GPU here: the CPU build where your index has one))"
	@$(INSTALL_TORCH)
	@$(PIP) -qq --no-deps --no-build-isolation --editable .
	@rm -f $(VENV)/.setup-* && touch $@
	@echo "setup: done"

# pip prefers 2.x.y+cpu to plain 2.x.y where an index offers both: right without a GPU, wrong with one.
ifeq ($(wildcard /dev/nvidiactl),)
INSTALL_TORCH = $(TORCH_PIP) -qq --requirement requirements-torch.txt
else
INSTALL_TORCH = $(TORCH_PIP) -qq "torch==$(TORCH),!=$(TORCH)+cpu" || $(TORCH_PIP) -qq --requirement requirements-torch.txt
endif
