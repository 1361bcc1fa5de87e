# Everything happens in .venv. Needs make and Python 3.10, 3.11 or 3.12; nothing else.

VENV := .venv
PY := $(VENV)/bin/python
INSTALLED := $(VENV)/.installed

# The first interpreter that is new enough, not too new, and able to make an environment.
PYTHON ?= $(shell for p in python3.11 python3.12 python3.10 python3; do \
  $$p -c 'import ensurepip, sys, venv; sys.exit(not (3, 10) <= sys.version_info[:2] < (3, 13))' \
  >/dev/null 2>&1 && echo $$p && break; done)

MODEL_DIR ?= runs/digits
PYTEST_ARGS ?=
JOBS ?= 2

# No test and no demo asks a cloud metadata server anything, and TensorFlow says only what went wrong.
export GCE_METADATA_IP ?= 127.0.0.1:9
export TF_CPP_MIN_LOG_LEVEL ?= 3

PYTEST := $(PY) -m pytest $(PYTEST_ARGS)
PARALLEL := -n $(JOBS) --dist loadfile

.PHONY: help demo test test-slow soak faults-report trainer-features lint bench clean

help:
	@echo "make demo       train a small network on real handwritten digits, into $(MODEL_DIR)"
	@echo "make test       the suite"
	@echo "make test-slow  kills, clusters, training to a result"
	@echo "make soak       the long ones, with seeded kill points"
	@echo "make faults-report  asks this trainer and its peer about known faults, into docs/reliability.md"
	@echo "make trainer-features  what other trainers do and the tests of it, into docs/trainer_features.md"
	@echo "make lint       ruff and mypy"
	@echo "make bench      speed against other trainers"
	@echo "make clean      remove caches and build folders (keeps .venv and runs)"

demo: $(INSTALLED)
	$(PY) -m official_trainer.train --experiment=digits/cnn --mode=train_and_eval --model_dir=$(MODEL_DIR)

# The tests without TensorFlow answer in seconds: they come first, and their part fails when one imports it.
test: $(INSTALLED)
	$(PYTEST) --tensorflow=without -m "not slow and not soak"
	$(PYTEST) --tensorflow=with -m "not slow and not soak" $(PARALLEL)

test-slow: $(INSTALLED)
	$(PYTEST) -m "slow and not soak" --durations=10

soak: $(INSTALLED)
	SOAK_REPORT=docs/reliability.md $(PYTEST) -m soak -s

faults-report: $(INSTALLED)
	$(PY) -m tools.faults_report

trainer-features: $(INSTALLED)
	$(PY) -m tools.trainer_features

lint: $(INSTALLED)
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m mypy

bench: $(INSTALLED)
	$(PY) benchmarks/step_overhead.py
	$(PY) benchmarks/parameter_server.py

clean:
	rm -rf build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache
	find official_trainer experiments tests benchmarks -name __pycache__ -prune -exec rm -rf {} + 2>/dev/null || true

$(PY):
	@test -n "$(PYTHON)" || { echo "No Python 3.10, 3.11 or 3.12 with venv found. Set one: make PYTHON=/path/to/python3.11"; exit 1; }
	$(PYTHON) -m venv $(VENV)

# The stamp makes the second call free; a changed requirement installs again.
$(INSTALLED): setup.py pyproject.toml constraints.txt | $(PY)
	PIP_DISABLE_PIP_VERSION_CHECK=1 $(PY) -m pip install --quiet --use-pep517 -c constraints.txt -e ".[test]"
	@touch $@
