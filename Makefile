# Every target makes and refreshes .venv by itself, and leaves it alone when it is up to date.
.PHONY: setup lab test check bench proof
PYTHON ?= python3
BIN := .venv/bin
INSTALLED := .venv/.installed

setup: $(INSTALLED)

$(INSTALLED): pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	@touch $@

lab: setup          ## the main job: trains, evaluates, prints a table
	$(BIN)/headway lab

test: setup         ## everything that runs in minutes
	OMP_NUM_THREADS=1 HEADWAY_THREADS=1 $(BIN)/pytest --quiet --numprocesses auto --dist loadfile

check: setup        ## style and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright

bench: setup        ## ours beside plain references
	$(BIN)/headway bench

proof: setup        ## heavy proofs and long runs
	$(BIN)/pytest --quiet -m slow
