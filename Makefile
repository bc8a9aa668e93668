# Needs Python 3.11 or newer and make; everything else goes into .venv.
PYTHON ?= python3
BIN := .venv/bin
INSTALLED := .venv/.installed

# One thread a process: two that spin on shared cores are many times slower than one.
export OMP_NUM_THREADS ?= 1

.PHONY: install demo test mutants lint benchmark clean
install: $(INSTALLED)

$(INSTALLED): pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	touch $@

demo: $(INSTALLED)  ## the whole pipeline on the tiny task; the report is in runs/demo/report
	$(BIN)/fbt-rl run tiny --run-dir runs/demo

test: $(INSTALLED)
	$(BIN)/python -m pytest --numprocesses 2 --dist loadfile --no-loadscope-reorder

mutants: $(INSTALLED)  ## do the tests bite? makes every mistake listed in tests/mutants/table.txt; not part of CI
	$(BIN)/python tests/mutants/mutate.py

lint: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright

clean:
	rm -rf .venv runs build dist *.egg-info
