# Every target makes its own environment first; `make help` lists them all.
SHELL       := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help
# Set in many containers. Every process would compile torch, this project and its tests anew.
unexport PYTHONDONTWRITEBYTECODE

PYTHON ?= python3
TORCH  ?= pinned
ARGS   ?=
SUITE  ?= quick
NET    ?= resnet50
NS3    ?=
DEVICE ?= cpu

INPUTS := pyproject.toml constraints.txt $(addprefix scripts/,setup.py steps.py wheels.py horovod_wheel.py deepspeed_wheel.py)
READY  := .venv/.ready-$(TORCH)-$(shell cat $(INPUTS) | sha256sum | cut -c1-12)
BIN    := .venv/bin
BENCH  := $(BIN)/crossover-bench

.PHONY: help setup doctor test faults test-gpu check paper report figures regress fuzz benchmark oracle-networks profile clean

help:            ## this list
	@awk -F ':.*## ' '/^[a-z%-]+:.*## / {printf "  make %-15s %s\n", $$1, $$2}' Makefile
	@echo "  Variables: TORCH=pinned|system  PYTHON=python3  ARGS='…' (passed on)  SUITE=quick  NET=resnet50  DEVICE=cpu|cuda"

setup: $(READY)  ## virtual environment with torch, the project and Horovod
$(READY):
	@$(PYTHON) scripts/setup.py --torch $(TORCH) --stamp $@

doctor: $(READY) ## what this machine can do, and what to do about what it cannot
	$(BENCH) doctor $(ARGS)

test: $(READY)   ## all tests, in three processes: on two cores, since many wait for others
	$(BIN)/python -m pytest -n 3 --dist loadfile --no-loadscope-reorder $(ARGS)

faults: $(READY) ## every signal on every kind of process, full disks; about half an hour
	$(BIN)/python -m pytest tests/faults $(ARGS)

test-gpu: $(READY) ## strategies, links and turns on a GPU, beside the same on the CPU
	$(BIN)/python -m pytest tests/gpu $(ARGS)

check: $(READY)  ## lint, format, types, import rules
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench-%: $(READY) ## run one suite, e.g. make bench-quick
	$(BENCH) run $* $(ARGS)

paper: $(READY)  ## all suites at reference size, then figures, report and claims; killed, it goes on
	$(BENCH) paper $(ARGS)

report: $(READY) ## report.html from the records of the last runs
	$(BENCH) report $(ARGS)

figures: $(READY) ## the figures alone, PNG and PDF
	$(BENCH) report --figures $(ARGS)

regress: $(READY) ## compare the last runs of SUITE with its reference records (of another machine: ARGS=--allow-different)
	$(BENCH) compare results/reference/$(SUITE) runs/$(SUITE)/latest $(ARGS)

fuzz: $(READY)     ## bad input, 20,000 of each kind: no traceback, nothing over 10 s
	$(BIN)/python -m scripts.fuzz $(ARGS)

benchmark: $(READY) ## hot paths and compressors once; docs/guide/regressions.md compares
	$(BIN)/python -m pytest benchmarks --benchmark-enable --benchmark-autosave $(ARGS)

oracle-networks: $(READY) ## the flow engine beside SimGrid (Debian: python3-simgrid), TCP beside ns-3 (NS3=program)
	$(BIN)/python benchmarks/oracle_networks.py $(ARGS)
	@if [ -n "$(NS3)" ]; then $(BIN)/python benchmarks/oracle_tcp.py $(NS3); else echo "ns-3: not compared; docs/guide/networks.md says how its program is built, then NS3=./ns3_dumbbell"; fi

profile: $(READY) ## record the layer times of NET on DEVICE
	$(BIN)/python -m models.profile $(NET) --device $(DEVICE) $(ARGS)

clean:           ## remove the environment and caches; records stay
	rm -rf .venv build ./*.egg-info .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
