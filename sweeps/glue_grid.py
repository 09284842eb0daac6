"""Run the GLUE grid of a pre-trained variant: every point once, MNLI before the tasks that start from it.

python sweeps/glue_grid.py --task cola                       on the newest finished run
python sweeps/glue_grid.py --task all --variant M5 --workers 2
python sweeps/glue_grid.py --task rte --variant M9 --grid extended --seed 0 1 2
optuna-dashboard sqlite:///runs/optuna.db                    to look at the studies
"""

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

if __name__ == "__main__":  # a script's own folder is on sys.path, the repository with the packages is not
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

from neobert.command_line import count, guarded, parser_from, whole_number
from neobert.errors import EXIT_DONE, EXIT_RUN_FAILED, MissingData

if TYPE_CHECKING:
    from ablations.plan import Row
    from ablations.variant import Variant
    from neobert.data.corpora import Source
    from neobert.layout import Layout
    from neobert.specifications import GlueStudy, PretrainingRun, RunFile
    from neobert.specifications import Source as SourceSpecification


def build_parser() -> argparse.ArgumentParser:
    """The command's flags."""
    parser = parser_from("python sweeps/glue_grid.py", __doc__)
    add = parser.add_argument
    add("--task", nargs="+", action="extend", required=True, metavar="NAME", help="GLUE tasks, or all")
    add("--variant", metavar="NAME", help="a pre-trained variant (default: the newest finished run)")
    add("--grid", choices=("limited", "extended"), help="six or sixty points at paper scale (default: the variant's)")
    add("--scale", choices=("smoke", "proxy", "paper"), default="smoke", help="of the variant (default: smoke)")
    add("--data", default="synthetic", metavar="SOURCE", help="synthetic, hub, or a folder (default: synthetic)")
    add(
        "--seed",
        type=whole_number,
        nargs="+",
        action="extend",
        metavar="N",
        help="of fine-tuning (default: as trained)",
    )
    add("--pretraining-seed", type=whole_number, default=0, metavar="N", help="of the variant (default: 0)")
    add("--workers", type=count, metavar="N", help="processes side by side (default: cores / threads of the scale)")
    add("--runs", type=Path, default=Path("runs"), help="folder of runs (default: ./runs)")
    add("--storage", metavar="WHERE", help="of the Optuna study: sqlite (default), journal, or postgresql://…")
    add("--prune", action="store_true", help="give up points that fall behind (not the paper's protocol)")
    add("--retry-failed", action="store_true", help="run failed points again")
    add("--dry-run", action="store_true", help="print the points and their states, and stop")
    add("--json", action="store_true", help="print JSON on stdout")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; returns its exit code (0 done, 1 a trial failed, 2 refused, 3 missing data or run)."""
    options = build_parser().parse_args(arguments)
    return guarded("glue_grid.py", lambda: _run(options), options.runs)


def _run(options: argparse.Namespace) -> int:
    from ablations.execution import report_failures, unfinished_runs
    from ablations.scales import synthetic_documents
    from neobert.data.preparation import open_specified, specify
    from neobert.layout import Layout
    from sweeps.outcome import print_outcome

    layout = Layout(options.runs.resolve())
    tasks = _tasks(options.task)
    pretrains = options.variant is None and _take_newest_run(options, layout)
    specification = specify(options.data, synthetic_documents(options.scale))
    source = open_specified(specification)
    row = _planned(options, layout, source, tasks, pretrains=pretrains)
    if options.dry_run:
        print_outcome(layout, row, source, as_json=options.json)
        return EXIT_DONE
    runs = unfinished_runs(layout, [row])
    code = _carry_out(options, layout, row, runs, source, specification)
    print_outcome(layout, row, source, as_json=options.json)
    return report_failures(layout, runs) if code == EXIT_RUN_FAILED else code


def _carry_out(
    options: argparse.Namespace,
    layout: "Layout",
    row: "Row",
    runs: "list[PretrainingRun | GlueStudy]",
    source: "Source",
    specification: "SourceSpecification",
) -> int:
    """Run what is missing, seen by Optuna; a storage that cannot be reached is refused before anything is written."""
    from ablations.execution import carry_out, write_run_files
    from ablations.scales import execution_at, workers_here
    from neobert.grid.mirror import mirror_for_command
    from neobert.grid.storages import STORAGE_VARIABLE
    from neobert.progress import trial_files
    from neobert.specifications import GlueStudy

    studies = [unit.run for unit in row.units if isinstance(unit.run, GlueStudy)]
    points = [files.grid_point for study in studies for files in trial_files(layout, study)]
    mirror = mirror_for_command(options.storage, layout, points)
    _treat_failures(layout, studies, retry=options.retry_failed)
    execution = execution_at(options.scale)
    workers = workers_here(options.workers, execution)
    code = EXIT_DONE
    if runs:
        write_run_files(layout, [row], source, specification, execution)
        environment = {} if mirror is None else {STORAGE_VARIABLE: mirror.address}
        code = carry_out(
            layout,
            runs,
            workers=workers,
            threads=execution.threads,
            flags=["--leave-failed"],
            environment=environment,
        )
    if mirror is not None:
        mirror.close()
    return code


def _treat_failures(layout: "Layout", studies: "Sequence[GlueStudy]", *, retry: bool) -> None:
    from neobert.console import logs
    from neobert.progress import errors_of, set_failures_aside

    if retry:
        count = sum(set_failures_aside(layout, study) for study in studies)
        logs().print(f"{count} failed point(s) run again; their errors are kept as errors/<trial>.<n>.json")
    elif any(True for study in studies for _ in errors_of(layout, study)):
        logs().print("points that failed before stay failed: --retry-failed runs them again", markup=False)


def _tasks(names: Sequence[str]) -> list[str]:
    from neobert.glue.tasks import TASKS, task_named

    return list(TASKS) if "all" in names else [task_named(name).name for name in names]


def _take_newest_run(options: argparse.Namespace, layout: "Layout") -> bool:
    """Take variant, scale, data and seed from the run that finished last. True where there is none, so that M7 has to
    be pre-trained at smoke scale."""
    from neobert.console import logs
    from neobert.specifications import read_run_file

    finished = sorted(layout.root.glob("pretraining/*/done.json"), key=lambda path: path.stat().st_mtime)
    if not finished:
        options.variant, options.scale, options.data = "M7", "smoke", "synthetic"
        logs().print(f"{layout.root} holds no finished run: M7 is pre-trained at smoke scale first", markup=False)
        return True
    run_file: RunFile = read_run_file(finished[-1].parent)
    assert run_file.pretraining is not None
    options.variant = run_file.labels["variants"][0]
    options.scale, options.data = run_file.labels["scale"], run_file.source.name
    options.pretraining_seed = run_file.pretraining.recipe.seed
    logs().print(f"on {options.variant}, the run that finished last ({run_file.id})", markup=False)
    return False


def _planned(
    options: argparse.Namespace, layout: "Layout", source: "Source", tasks: Sequence[str], *, pretrains: bool
) -> "Row":
    """The wanted studies of the variant, and those they start from; its pre-training only where it may be run.

    Raises:
        MissingData: the variant named is not pre-trained, or a task has no data.
    """
    from ablations.plan import chosen_variants, plan
    from ablations.protocol import PRUNING
    from neobert.specifications import GlueStudy

    (variant,) = chosen_variants([options.variant])
    (row,) = plan(
        [_with_grid(variant, options.grid)],
        [options.pretraining_seed],
        options.scale,
        source,
        layout,
        finetuning_seeds=list(dict.fromkeys(options.seed or [])) or None,
        pruning=PRUNING if options.prune else None,
    )
    unavailable = [f"{task}: {row.skipped[task]}" for task in tasks if task in row.skipped]
    if unavailable and "all" not in options.task:
        raise MissingData(f"cannot fine-tune {'; '.join(unavailable)}")
    pretraining = [unit for unit in row.units if not isinstance(unit.run, GlueStudy)]
    unfinished = [unit for unit in pretraining if unit.state != "done"]
    if unfinished and not pretrains:
        command = f"python ablations/run.py --variant {variant.name} --scale {options.scale} --runs {options.runs}"
        raise MissingData(f"{variant.name} is not pre-trained ({unfinished[0].state}): run `{command}` first")
    studies = [unit for unit in row.units if isinstance(unit.run, GlueStudy) and unit.run.task in tasks]
    needed = {unit.run.starts_from.study for unit in studies if isinstance(unit.run, GlueStudy)}
    first = [unit for unit in row.units if unit.run.id in needed and unit not in studies]
    return replace(row, units=(*unfinished, *first, *studies))


def _with_grid(variant: "Variant", grid: str | None) -> "Variant":
    from ablations.protocol import EXTENDED_GRID, LIMITED_GRID

    if grid is None:
        return variant
    chosen = {"limited": LIMITED_GRID, "extended": EXTENDED_GRID}[grid]
    return replace(variant, recipe=variant.recipe.model_copy(update={"grid": chosen}), parent=None, modifications=())


if __name__ == "__main__":
    sys.exit(main())
