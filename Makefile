# Samite's commands. Everything needs only git, make and Python 3.11+; the environment is made on first use from uv.lock.
#
#   make demo       train a tiny K3-style model on two nodes, lose one, recover, and see the report
#   make test       the whole suite;  make drills the long recovery drills;  make soak-local random kills, 20 rounds
#   make demo-kubernetes   the same on a real Kubernetes;  make cluster-tools builds one in a box,  make test-cluster tests in it
#   make lint       format check, lint, types, import contracts
#   make bench      benchmarks (ratios in one run);  make bench-checkpoint saves and loads against other writers
#   make test-gpu   kernels and the small model on one CUDA GPU;  make bench-gpu times the kernels there

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.synced
export RAY_ENABLE_UV_RUN_RUNTIME_ENV := 0
export RAY_USAGE_STATS_ENABLED := 0

.PHONY: help setup demo demo-kubernetes test test-fast drills lint format bench soak-local test-gpu bench-gpu clean
help:
	@sed -n '2,10s/^# \{0,1\}//p' Makefile

setup: $(STAMP)

# uv.lock pins everything; bytecode is compiled now, because the first import of torch and ray takes half a minute otherwise.
$(STAMP): uv.lock pyproject.toml
	@$(PYTHON) -c 'import sys; v = sys.version_info; sys.exit(0 if v >= (3, 11) else f"Samite needs Python 3.11 or newer; {sys.executable} is {v.major}.{v.minor}. Try: make PYTHON=python3.12 ...")'
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@test -x $(BIN)/uv || $(BIN)/python -m pip install --quiet --disable-pip-version-check "uv>=0.9"
	@echo "Installing Samite and its locked dependencies into $(VENV) (about 7 GB with CUDA torch) ..."
	@VIRTUAL_ENV=$(abspath $(VENV)) $(BIN)/uv sync --quiet --frozen --active --inexact --all-extras --compile-bytecode
	@touch $(STAMP)

demo: setup
	@$(BIN)/python examples/quickstart/demo.py

# The same on Kubernetes: in the cluster of KUBECONFIG, or in a cluster in a box (Linux, root, Go; make cluster-tools builds it once).
demo-kubernetes: setup
	@$(BIN)/python examples/kubernetes/demo.py

# First what shares the machine well, on two workers; then the tests that start Ray clusters, one at a time.
test: setup
	@$(BIN)/python -m pytest -q -n 2 --dist loadfile -m "not ray and not cluster and not boards"
	@$(BIN)/python -m pytest -q -m "ray and not drill and not cluster and not boards"

# The longer drills of the local engine: a sleeping rank, a poisoned gradient, lost decay products, suspend and resume.
drills: setup
	@$(BIN)/python -m pytest -v -m drill

# Without the tests that start Ray clusters: for the inner loop.
test-fast: setup
	@$(BIN)/python -m pytest -q -n 2 --dist loadfile -m "not ray and not slow and not cluster and not boards"

lint: setup
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/mypy
	@PYTHONPATH=platform:operators:workloads:kernels $(BIN)/lint-imports --no-cache

format: setup
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

bench: setup
	@$(BIN)/python benchmarks/local.py

# Against a server in memory; FsspecWriter and the S3 connector take part where s3fs and s3torchconnector[dcp] are installed.
.PHONY: bench-checkpoint
bench-checkpoint: setup
	@$(BIN)/python benchmarks/checkpoint.py $(BENCH)

soak-local: setup
	@$(BIN)/python tests/e2e/soak_local.py --rounds $(or $(ROUNDS),20)

test-gpu:
	@$(MAKE) -C kernels test-gpu
	@$(PYTHON) workloads/gpu_smoke.py

bench-gpu:
	@$(MAKE) -C kernels bench-gpu

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache

# Boards, alerts and names before a real Prometheus, fed by real runs (a quarter of an hour on two cores). Its binary is built once, 2 minutes with Go.
.PHONY: test-boards
test-boards: setup
	@command -v prometheus >/dev/null || $(BIN)/python tests/cluster/box build --also prometheus
	@timeout -k 30 2700 $(BIN)/python -m pytest -v -m boards

# What signals cost of a step: on CPU here, on one GPU with BENCH="--device cuda".
.PHONY: bench-signals
bench-signals: setup
	@$(BIN)/python benchmarks/signals.py $(BENCH)

# The chart's README, from the comments of its values.
.PHONY: helm-docs
helm-docs: setup
	@$(BIN)/python helm/readme.py

# The cluster in a box, tests/cluster/README.md: its tools, built once from source with progress shown, and the tests that break it.
.PHONY: cluster-tools test-cluster test-cluster-short
cluster-tools: setup
	@$(BIN)/python tests/cluster/box build

# One box fits on a machine: first the file that brings boxes up and down, then all that share one, then the drills (an hour on two cores). The limits
# are hard; a guard sweeps a killed box.
test-cluster: setup
	@timeout -k 30 600 $(BIN)/python -m pytest -v -m cluster tests/cluster/test_box_lifecycle.py
	@timeout -k 30 2700 $(BIN)/python -m pytest -v -m cluster tests/cluster --ignore=tests/cluster/test_box_lifecycle.py --ignore=tests/cluster/drills
	@timeout -k 30 5400 $(BIN)/python -m pytest -v -s -m cluster tests/cluster/drills

# A quarter of an hour on two cores with the tools built (root, no container engine): a lost node in the engine alone; forgotten history and rotated
# keys touch nothing; a killed driver and a node without network are recovered from.
SHORT := lost_node or forgotten or rotated or drill_7 or drill_10
test-cluster-short: setup
	@timeout -k 30 1500 $(BIN)/python -m pytest -v -s -m cluster -k "$(SHORT)" tests/cluster/test_kuberay_engine.py \
		tests/cluster/drills/test_drill_untouched.py tests/cluster/drills/test_drill_recovery.py
