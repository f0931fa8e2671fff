# `make demo` and `make test` work on a fresh machine: each builds .venv on first use.
#   FREESCALE_CUDA=1   install the CUDA builds of torch and fbgemm instead of the CPU ones
#   DATA=<folder>      run the demo on your own Parquet files
# `make gpu` measures and tests all that needs a CUDA device, and writes benchmarks/results/gpu/*.json. It runs with what
# is installed (.venv if there is one, else python3 with its own torch), and ends at once where there is no GPU.
#   PARTS="kernels probes"   only these parts: environment, kernels, transports, probes, contention, exactness
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
SEEDS ?= 0 10000
DEMO_ARGS := $(if $(DATA),--data $(DATA)) $(ARGS)

.PHONY: demo test test-all test-times test-without breaks faults kernels matrix gpu check docs package figures format clean

# Some images keep Python from writing bytecode, and pip installs without: then each process compiles torch and torchrec.
unexport PYTHONDONTWRITEBYTECODE

# torch first and by itself: with it in place nothing that depends on torch pulls another build.
# fbgemm x.y goes with one torch minor (1.8 with 2.13). torchrec comes without its declared dependencies,
# because they name the CUDA fbgemm; what it really needs stands in requirements/torchrec.txt.
ifdef FREESCALE_CUDA
FBGEMM := fbgemm-gpu==1.8.0
else
FBGEMM := fbgemm-gpu-cpu==1.8.0
endif

# Python compiles what it imports, which is a small part of what is installed.
PIP := $(BIN)/pip --disable-pip-version-check install -q --no-compile

$(READY): pyproject.toml requirements/torchrec.txt
	$(PYTHON) -m venv $(VENV)
	$(PIP) torch==2.13.0
	$(PIP) $(FBGEMM) -r requirements/torchrec.txt
	$(PIP) --no-deps torchrec==1.9.2
	$(PIP) -e '.[dev]'
	touch $@

# Large libraries, for the examples of one page.
TRAINERS := $(VENV)/.trainers
$(TRAINERS): $(READY)
	$(PIP) -e '.[trainers]' || echo "not installed: Lightning and others; the tests of docs/trainers.md are skipped"
	touch $@

demo: $(READY)
	$(BIN)/freescale demo $(DEMO_ARGS)

# Kernels are compiled once, by one process, and anew when one of them changes: numba does not notice a changed function
# of another file that a kernel calls.
COMPILED := $(CURDIR)/build/numba
KERNELS := $(COMPILED)/.ready
$(KERNELS) test test-all test-times test-without breaks faults: export NUMBA_CACHE_DIR := $(COMPILED)
$(KERNELS) test test-all test-times test-without breaks faults: export OMP_NUM_THREADS := 1

$(KERNELS): $(READY) $(shell grep -rl --include=*.py "import kernel$$" fsdata fscomm tools)
	rm -rf $(COMPILED)
	$(BIN)/python tests/compile_kernels.py
	touch $@

kernels: $(KERNELS)

# One process has the tests that need several ranks (they share one world of each size), the other one has the rest.
PYTEST := $(BIN)/pytest -n 2 --dist loadgroup

test: $(KERNELS) $(TRAINERS)
	$(PYTEST) -m 'not long'

test-all: $(KERNELS) $(TRAINERS)
	$(PYTEST) --hypothesis-profile=long
	$(BIN)/python tests/without.py

# Runs the tests of a core, fsdata's or fscomm's, in copies from which one extension is deleted: all of them one after
# another, or WITHOUT="balance bags"; WITHOUT=--some is a quick run for two of them, which the commit chooses.
test-without: $(KERNELS)
	$(BIN)/python tests/without.py $(WITHOUT)

# How long each folder of tests takes, as a table for CONTRIBUTING.md.
test-times: $(KERNELS)
	$(PYTEST) -m 'not long' --junitxml=build/tests.xml
	$(BIN)/python tests/times.py build/tests.xml

# Makes deliberate breaks of the product, one after another, and says which the tests do not find: about half an hour.
breaks: $(KERNELS)
	$(BIN)/python tests/breaks.py

# Plays ranks that end, stop, fail or are late, and broken connections, as the seeds say. SEEDS="4711 4712" replays one.
faults: $(KERNELS)
	$(BIN)/python tests/faults/play.py $(SEEDS)

# Tries other versions of torch, fbgemm, torchrec and Python: tests/versions/matrix.py. VERSIONS="2.9 2.14" chooses rows,
# KEEP=<folder> keeps their environments. It writes docs/versions.md.
matrix: $(READY)
	$(BIN)/python tests/versions/matrix.py $(if $(KEEP),--keep $(KEEP)) $(VERSIONS)
	$(MAKE) figures

# Machines with a GPU may have no network, so nothing is installed unless FREESCALE_CUDA=1 asks for it.
gpu: $(if $(FREESCALE_CUDA),$(READY))
	$(if $(FREESCALE_CUDA)$(wildcard $(BIN)/python),$(BIN)/python,$(PYTHON)) benchmarks/gpu.py $(PARTS)

check: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	mkdir -p build/mypy && ln -sfn ../../tools build/mypy/freescale_tools
	$(BIN)/mypy

docs: $(READY)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict
	@echo built: build/site/index.html

# The source distribution, and the wheel built from it.
package: $(READY)
	$(BIN)/python -m build --outdir build/package

# The measured figures and the pictures of README and docs, from benchmarks/results: see benchmarks/figures; and the
# command reference. They are written in any case; it fails if a figure of README.md or docs/index.md is old. EXAMPLES=1
# also runs the shell commands whose output a page shows, which takes minutes.
figures: $(READY)
	PYTHONPATH=benchmarks $(BIN)/python -m figures.pictures
	$(BIN)/cog -r -P -I benchmarks -p "from figures import *" README.md docs/*.md
	PYTHONPATH=benchmarks $(BIN)/python -m figures.ages

format: $(READY)
	$(BIN)/ruff check --fix . ; $(BIN)/ruff format .

# KEEP_KERNELS=1 keeps what was compiled.
clean:
	$(if $(KEEP_KERNELS),find build -mindepth 1 -maxdepth 1 ! -name numba -exec rm -rf {} +,rm -rf build)
	rm -rf $(VENV) *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
