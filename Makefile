# Everything runs in a virtual environment that these targets make in the checkout.
#
#   PYTHON  the interpreter that makes the environment (3.11 or later)
#   TORCH   what pip installs as torch; without a GPU, the CPU build is far smaller:
#           make demo TORCH='torch==2.13.0 --extra-index-url https://download.pytorch.org/whl/cpu'
PYTHON ?= python3
TORCH ?= torch==2.13.0
VENV ?= .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check -q
WORKERS ?= 2

.PHONY: demo test test-all test-gpu check bench docs clean

# One stamp for each set of extras; pyproject.toml or another TORCH makes them stale.
STAMP = $(VENV)/.installed-$(1)-$(shell printf '%s' '$(TORCH)' | cksum | cut -d' ' -f1)
RUN_STAMP := $(call STAMP,run)
TEST_STAMP := $(call STAMP,test)
DEV_STAMP := $(call STAMP,dev)

$(BIN)/python:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or later is needed; set PYTHON=")'
	$(PYTHON) -m venv $(VENV)

$(RUN_STAMP): pyproject.toml | $(BIN)/python
	@echo "installing into $(VENV) (torch: $(TORCH))"
	$(PIP) install $(TORCH)
	$(PIP) install -e '.[train,tokenizers]'
	@touch $@

$(TEST_STAMP): $(RUN_STAMP)
	$(PIP) install -e '.[train,tokenizers,test]'
	@touch $@

$(DEV_STAMP): $(TEST_STAMP)
	$(PIP) install -e '.[train,tokenizers,test,lint,reference]'
	@touch $@

demo: $(RUN_STAMP)  ## Check, build and train specs/tiny.yaml on the standard library's source
	$(BIN)/gptoss-check specs
	$(BIN)/gptoss-prepare stdlib build/data/stdlib
	$(BIN)/gptoss-build specs/tiny.yaml
	rm -rf runs/demo
	$(BIN)/gptoss-train build/tiny-cpu --run runs/demo

test: $(TEST_STAMP)  ## The tests that CI runs first: no GPU, under ten minutes on two cores
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(WORKERS) -m 'not slow and not gpu' tests

test-all: $(DEV_STAMP)  ## All tests; those marked gpu skip with a reason where there is none
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(WORKERS) tests

test-gpu: $(TEST_STAMP)  ## The tests that need a GPU, four processes on one card
	$(BIN)/python -m pytest -n 4 --dist loadgroup tests/gpu

check: $(DEV_STAMP)  ## Lint, format, types, import direction, our own rules on our own source
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/gptoss-check specs gptoss_builder checkers

bench: $(RUN_STAMP)  ## The kernel and the layer against their alternatives; needs a GPU
	$(BIN)/python -m benchmarks.w1w3 --cases all
	$(BIN)/python -m benchmarks.moe_layer --cases all

docs: $(RUN_STAMP)  ## Write the generated pages and schemas again
	$(BIN)/python -m gptoss_builder.spec.json_schema
	$(BIN)/python -m gptoss_builder.plan.json_schema
	$(BIN)/python -m gptoss_builder.cards_page
	$(BIN)/python -m checkers.docs

clean:
	rm -rf build runs .pytest_cache .mypy_cache .ruff_cache .import_linter_cache
