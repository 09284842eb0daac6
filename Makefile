# Everything below works on a fresh machine that has python3 >= 3.11 and make.
PYTHON ?= python3
BIN := .venv/bin
RUNS ?= runs
SMOKE_RUNS ?= reports/out/smoke-runs
IN_PARALLEL := -n $$((2 * $$(getconf _NPROCESSORS_ONLN))) --maxprocesses 9 --dist loadfile --no-loadscope-reorder
IMPORTED_BY_TESTS := neobert.executors.glue, neobert.executors.pretraining, transformers.trainer, torch._inductor
export PIP_DISABLE_PIP_VERSION_CHECK = 1
# DeepSpeed installs in seconds as plain Python; nothing of it is compiled.
export DS_BUILD_OPS = 0
# Modules are compiled once, not by each of the hundreds of processes that the tests start.
export PYTHONDONTWRITEBYTECODE =

.PHONY: demo smoke-figures test test-slurm test-gpu test-slow drills bench lint coverage lock environment

## the main job on embedded data: M0, M1 and M2 at demo size, the GLUE grid, Figure 1; installs what these need and no more
demo: .venv/demo
	$(BIN)/python ablations/run.py --ladder examples/demo.py --variant all --cluster here --runs $(RUNS)
	$(BIN)/python reports/make_figures.py --ladder examples/demo.py --runs $(RUNS)
	@cp reports/out/demo-synthetic/figure1.png reports/out/figure1.png
	@echo 'studies of Optuna: $(RUNS)/optuna.journal'
	@echo 'Figure 1: reports/out/figure1.png'

## environment and the tests; two processes a core, as many tests wait for processes of their own
test: environment
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest $(IN_PARALLEL)

## on a real SLURM with emulated nodes, started for the tests; as root, skipped with the reason where it cannot start
test-slurm: environment
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m "slurm and not drill" -rs tests/slurm

## claims about GPUs, on one or several; values in build/test-gpu.xml. CUDA has warnings of its own, which are no errors
test-gpu: environment
	$(BIN)/python -m pytest -m gpu -rs -W default --junitxml=build/test-gpu.xml \
		-o faulthandler_timeout=600 -o faulthandler_exit_on_timeout=true

## half an hour on two cores: the ladder at smoke scale by this commit, its records, and the figure and table of docs/pipeline-check.md
smoke-figures: environment
	$(BIN)/python ablations/run.py --variant all --scale smoke --cluster here --runs $(SMOKE_RUNS)
	$(BIN)/python ablations/run.py --variant M5 --seed 1 2 --scale smoke --cluster here --runs $(SMOKE_RUNS)
	$(BIN)/python reports/collect.py --runs $(SMOKE_RUNS) --out reports/pipeline_check
	$(BIN)/python reports/make_figures.py --runs reports/pipeline_check --out reports/out/smoke
	cp reports/out/smoke/smoke-synthetic/figure1.png docs/figure1-smoke.png
	cp reports/out/smoke/smoke-synthetic/table3.md docs/table3-smoke.md
	$(BIN)/python -m pytest tests/reports/test_smoke_records.py

## half an hour on two cores: does pre-training pay at smoke scale?
test-slow: environment
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m slow

## long fault injection
drills: environment
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m "drill and not slurm" -n $$(getconf _NPROCESSORS_ONLN) --dist worksteal
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m "drill and slurm"

## measurements side by side; results and table in benchmarks/. DATA=folder has tasks for one of them
bench: environment
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[dev,export]'
	OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks $(if $(DATA),--data $(DATA))

## formatter, linters, type checker
lint: environment
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/lint-imports --no-logo --no-cache
	$(BIN)/mypy

## how much of the code the tests execute; processes that they start count too
coverage: environment
	$(BIN)/python -m pip install --quiet -c constraints.txt coverage
	OMP_NUM_THREADS=1 $(BIN)/python -m coverage run -m pytest $(IN_PARALLEL)
	$(BIN)/python -m coverage combine --quiet
	$(BIN)/python -m coverage report --skip-covered

## uv.lock from pyproject.toml, by uv; torch's own index joins it where `uv lock` can read that
lock:
	uv lock --no-sources

environment: .venv/installed

.venv/installed: .venv/demo
	$(BIN)/python -c 'import $(IMPORTED_BY_TESTS)' & \
		$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[dev]' && wait
	touch $@

# Modules are compiled at their first import; to compile all of torch would take longer than to install it. Those that
# every test process needs are imported once while the rest is installed, not compiled by all processes at once.
.venv/demo: pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit("python3 >= 3.11 is needed, not " + sys.version.split()[0] if sys.version_info < (3, 11) else 0)'
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --no-compile -c constraints.txt -e '.[reports]'
	touch $@
