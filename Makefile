# Everything runs in .venv, which each target makes if it is not there.
#
#   make demo            a real training breaks twice, and is put right
#   make test            the tests (minutes)
#   make test-all        the slow tier as well
#   make test-boards     the mirrors that need an environment of their own
#   make test-deepspeed  DeepSpeed's engines, likewise; it is compiled once (minutes)
#   make proof           the long proofs, resumable (hours)
#   make lint            format, lint, types (pyright fetches itself through npm once)
#   make bench           cost, as ratios
#
# Where torch's wheel must not come from the default index (it may be a build of several
# gigabytes for GPUs there), name another one:
#
#   make demo TORCH_INDEX=https://download.pytorch.org/whl/cpu

PYTHON ?= python3
TORCH_INDEX ?=
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet
TORCH := $(shell grep '^torch==' constraints.txt)
STAMP := $(VENV)/.installed
FORESHOCK_SEEDS ?= 10
FORESHOCK_FUZZ_MINUTES ?= 60
# One thread for each of the two workers: torch's own threads would fight over the cores.
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n 2

.PHONY: demo test test-all test-boards test-deepspeed proof lint bench clean

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

$(STAMP): $(BIN)/python pyproject.toml constraints.txt
	$(PIP) install $(if $(TORCH_INDEX),--index-url $(TORCH_INDEX)) '$(TORCH)'
	$(PIP) install --constraint constraints.txt --editable '.[torch,report,logs,storage,dev]'
	touch $@

demo: $(STAMP)
	$(BIN)/foreshock demo

lint: $(STAMP)
	$(BIN)/ruff format --check src tests benchmarks tools docs
	$(BIN)/ruff check src tests benchmarks tools docs
	PYRIGHT_PYTHON_IGNORE_WARNINGS=1 $(BIN)/pyright --project pyproject.toml

test: $(STAMP)
	$(PYTEST)

test-all: test
	$(PYTEST) -m slow

# MLflow, trackio and SwanLab need another protobuf than wandb does.
BOARDS := .venv-boards
BOARDS_PIP := $(BOARDS)/bin/python -m pip --disable-pip-version-check --quiet

$(BOARDS)/.installed: pyproject.toml constraints-boards.txt
	$(PYTHON) -m venv $(BOARDS)
	$(BOARDS_PIP) install $(if $(TORCH_INDEX),--index-url $(TORCH_INDEX)) '$(TORCH)'
	$(BOARDS_PIP) install --constraint constraints-boards.txt --editable '.[torch,mlflow,trackio,swanlab]' \
		sqlalchemy alembic pytest hypothesis
	touch $@

test-boards: $(BOARDS)/.installed
	OMP_NUM_THREADS=1 $(BOARDS)/bin/python -m pytest -q tests/sinks/test_mlflow.py \
		tests/sinks/test_local_boards.py tests/sinks/test_contract.py tests/sinks/test_guarded.py

# DeepSpeed builds an operator of its own for CPUs, and would bring another torch by itself.
DEEPSPEED := .venv-deepspeed
DEEPSPEED_PIP := $(DEEPSPEED)/bin/python -m pip --disable-pip-version-check --quiet

$(DEEPSPEED)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(DEEPSPEED)
	$(DEEPSPEED_PIP) install $(if $(TORCH_INDEX),--index-url $(TORCH_INDEX)) '$(TORCH)'
	$(DEEPSPEED_PIP) install --constraint constraints.txt --editable '.[torch]' pytest hypothesis setuptools \
		ninja einops hjson msgpack psutil py-cpuinfo pydantic tqdm
	DS_BUILD_OPS=0 DS_ACCELERATOR=cpu $(DEEPSPEED_PIP) install --no-deps --no-build-isolation \
		$(shell grep '^deepspeed==' constraints.txt)
	touch $@

# DEEPSPEED_TIER='not slow and not proof' is its core: every stage, on one rank (a minute).
DEEPSPEED_TIER ?= not proof

test-deepspeed: export TORCH_EXTENSIONS_DIR := $(CURDIR)/$(DEEPSPEED)/extensions
test-deepspeed: $(DEEPSPEED)/.installed
	OMP_NUM_THREADS=1 DS_ACCELERATOR=cpu $(DEEPSPEED)/bin/python -m pytest -q -m '$(DEEPSPEED_TIER)' \
		tests/integrations/test_deepspeed.py tests/test_flat_groups.py

proof: $(STAMP)
	$(PYTEST) -m proof
	$(BIN)/python -m benchmarks.demo_seeds --seeds $(FORESHOCK_SEEDS) --json docs/measurements/demo-seeds.json
	$(BIN)/python -m benchmarks.detection --synthetic --json docs/measurements/detection-synthetic.json
	OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks.recovery --json docs/measurements/recovery.json
	$(BIN)/python -m tools.fuzz_readers --minutes $(FORESHOCK_FUZZ_MINUTES)

bench: $(STAMP)
	$(BIN)/python -m benchmarks.step_cost --json
	$(BIN)/python -m benchmarks.overhead
	$(BIN)/python -m benchmarks.paper_cost
	$(BIN)/python -m benchmarks.attention
	$(BIN)/python -m benchmarks.storage
	$(BIN)/python -m benchmarks.reading
	$(BIN)/python -m benchmarks.detectors
	OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks.integrations

clean:
	rm -rf $(VENV) $(BOARDS) $(DEEPSPEED) dist build .pytest_cache .ruff_cache .hypothesis
