"""What a sweep runs: the studies of a variant's checkpoints or of a model from elsewhere, and those they start from."""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass, replace

from ablations.execute import PlannedRows
from ablations.flags import trust_of
from ablations.ladder import EXTENDED_GRID, LIMITED_GRID
from ablations.plan import Baseline, PlannedUnit, Row, chosen_variants, plan, plan_baseline
from ablations.prefetch import folder_or_repository
from ablations.submit import NamedRun
from ablations.variant import Variant
from neobert.console import logs
from neobert.data.sources import Source
from neobert.errors import MissingData
from neobert.external import adopt
from neobert.glue.tasks import TASKS, task_named
from neobert.runs.layout import Layout
from neobert.runs.specifications import Execution, GlueStudy, Run, read_run_file
from neobert.runs.specifications import Source as SourceSpecification
from sweeps.flags import DEFAULT_RUNS

GRIDS = {"limited": LIMITED_GRID, "extended": EXTENDED_GRID}


@dataclass(frozen=True)
class Sweep:
    """A plan, cut down to the wanted tasks. `title` says what is measured."""

    title: str
    plan: Row | Baseline

    @property
    def studies(self) -> list[GlueStudy]:
        """The studies, each behind the one it starts from."""
        return [unit.run for unit in self.plan.units if isinstance(unit.run, GlueStudy)]

    @property
    def _work(self) -> PlannedRows | Baseline:
        return PlannedRows([self.plan]) if isinstance(self.plan, Row) else self.plan

    def unfinished(self, layout: Layout) -> list[Run]:
        """What is left to do."""
        return self._work.unfinished(layout)

    def named_runs(self) -> list[NamedRun]:
        """The runs with a word for names of jobs."""
        return [(name.replace("@", "-"), run) for name, run in self._work.named_runs()]

    def write(self, layout: Layout, source: Source, specification: SourceSpecification, execution: Execution) -> None:
        """Write the run.json of every unit."""
        self._work.write(layout, source, specification, execution)


def wanted_tasks(names: Sequence[str]) -> list[str]:
    """The tasks of `--task`.

    Raises:
        ValueError: one is none of GLUE's.
    """
    return list(TASKS) if "all" in names else [task_named(name).name for name in names]


def take_newest_run(options: argparse.Namespace, layout: Layout) -> bool:
    """Take variant, scale, data and seed from the run that finished last. True where there is none, so that M7 has to
    be pre-trained at smoke scale.

    Raises:
        MissingData: a folder of runs was named that does not exist.
    """
    if options.runs != DEFAULT_RUNS and not layout.root.exists():
        raise MissingData(
            f"--runs {options.runs} does not exist, so there is no finished run to sweep: name the folder that run.py "
            "filled, or a variant to pre-train there with `python ablations/run.py`"
        )
    finished = sorted(layout.root.glob("pretraining/*/done.json"), key=lambda path: path.stat().st_mtime)
    if not finished:
        options.variant, options.scale, options.data = "M7", "smoke", "synthetic"
        logs().print(f"{layout.root} holds no finished run: M7 is pre-trained at smoke scale first", markup=False)
        return True
    run_file = read_run_file(finished[-1].parent)
    assert run_file.pretraining is not None
    options.variant = run_file.labels["variants"][0]
    options.scale, options.data = run_file.labels["scale"], run_file.source.name
    options.pretraining_seed = run_file.pretraining.recipe.seed
    logs().print(f"on {options.variant}, the run that finished last ({run_file.id})", markup=False)
    return False


def sweep_of_model(options: argparse.Namespace, layout: Layout, source: Source) -> Sweep:
    """The wanted studies of `--model`, and those they start from.

    Raises:
        MissingData, ValueError: the model is not there or no encoder, or a task has no data.
    """
    if options.pretraining_seed:
        raise ValueError("--pretraining-seed belongs to a variant: leave it out with --model")
    _require_data(options.task, {task: reason for task, reason in source.tasks().items() if reason}, source.label)
    model = adopt(layout, folder_or_repository(options.model, options.data), trust_of(options))
    baseline = plan_baseline(
        model,
        GRIDS[options.grid or "limited"],
        options.scale,
        options.seed or [0],
        source,
        layout,
    )
    title = f"{model.name} ({model.id}), {options.scale} scale"
    return Sweep(title, replace(baseline, units=_wanted(baseline.units, wanted_tasks(options.task))))


def sweep_of_variant(options: argparse.Namespace, layout: Layout, source: Source, *, pretrains: bool) -> Sweep:
    """The wanted studies of the variant, and those they start from; its pre-training only where it may be run.

    Raises:
        MissingData: the variant named is not pre-trained, or a task has no data.
    """
    (variant,) = chosen_variants([options.variant])
    (row,) = plan(
        [_with_grid(variant, options.grid)],
        [options.pretraining_seed],
        options.scale,
        source,
        layout,
        finetuning_seeds=list(dict.fromkeys(options.seed or [])) or None,
    )
    _require_data(options.task, row.skipped, source.label)
    pretraining = [unit for unit in row.units if not isinstance(unit.run, GlueStudy)]
    unfinished = [unit for unit in pretraining if unit.state != "done"]
    if unfinished and not pretrains:
        command = f"python ablations/run.py --variant {variant.name} --scale {options.scale} --runs {options.runs}"
        raise MissingData(f"{variant.name} is not pre-trained ({unfinished[0].state}): run `{command}` first")
    title = f"{variant.name}, seed {row.seed}, {row.scale} scale"
    return Sweep(title, replace(row, units=(*unfinished, *_wanted(row.units, wanted_tasks(options.task)))))


def _require_data(names: Sequence[str], skipped: dict[str, str], data: str) -> None:
    unavailable = [f"{task}: {skipped[task]}" for task in wanted_tasks(names) if task in skipped]
    if unavailable and "all" not in names:
        raise MissingData(f"cannot fine-tune on {data} data: {'; '.join(unavailable)}")


def _wanted(units: Sequence[PlannedUnit], tasks: Sequence[str]) -> tuple[PlannedUnit, ...]:
    """The studies of some tasks, and before them those they start from."""
    studies = [unit for unit in units if isinstance(unit.run, GlueStudy) and unit.run.task in tasks]
    needed = {unit.run.starts_from.study for unit in studies if isinstance(unit.run, GlueStudy)}
    return (*(unit for unit in units if unit.run.id in needed and unit not in studies), *studies)


def _with_grid(variant: Variant, grid: str | None) -> Variant:
    if grid is None:
        return variant
    recipe = variant.recipe.model_copy(update={"grid": GRIDS[grid]})
    return replace(variant, recipe=recipe, parent=None, modifications=())
