"""Run the GLUE grid of a pre-trained variant: every point once, MNLI before the tasks that start from it.

python sweeps/glue_grid.py --task cola                       on the newest finished run
python sweeps/glue_grid.py --task all --variant M5 --workers 2
python sweeps/glue_grid.py --task rte --variant M9 --grid extended --seed 0 1 2
python sweeps/glue_grid.py --task all --model DIR --scale paper    any encoder that AutoModel loads, same protocol
optuna-dashboard sqlite:///runs/optuna.db                    to look at the studies
"""

import argparse
import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

if __name__ == "__main__":  # a script's own folder is on sys.path, the repository with the packages is not
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

from ablations.flags import MODEL_HELP, add_trust_flags, trust_of
from neobert.command_line import guarded, parser_from
from neobert.errors import EXIT_DONE, EXIT_RUN_FAILED
from sweeps.flags import add_common_flags

if TYPE_CHECKING:
    from ablations.execute import Workplace
    from neobert.runs.layout import Layout
    from neobert.runs.optuna_view import OptunaView
    from neobert.runs.specifications import GlueStudy, Run
    from sweeps.planning import Sweep


def build_parser() -> argparse.ArgumentParser:
    """The command's flags."""
    parser = parser_from("python sweeps/glue_grid.py", __doc__)
    add = parser.add_argument
    add("--task", nargs="+", action="extend", required=True, metavar="NAME", help="GLUE tasks, or all")
    measured = parser.add_mutually_exclusive_group()
    measured.add_argument("--variant", metavar="NAME", help="a pre-trained variant (default: the newest finished run)")
    measured.add_argument("--model", metavar="DIR_OR_ID", help=MODEL_HELP)
    add(
        "--grid",
        choices=("limited", "extended"),
        help="six or sixty points at paper scale (default: the variant's; limited)",
    )
    add("--storage", metavar="WHERE", help="of the Optuna study: sqlite (default), journal, or postgresql://…")
    add("--retry-failed", action="store_true", help="run failed points again")
    add_trust_flags(parser)
    add_common_flags(parser, "points")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; returns its exit code (0 done, 1 a trial failed, 2 refused, 3 missing data or run)."""
    options = build_parser().parse_args(arguments)
    return guarded("glue_grid.py", lambda: _run(options), options.runs)


def _run(options: argparse.Namespace) -> int:
    from ablations.execute import open_workplace, report_failures
    from ablations.prefetch import LISTED, print_paper_models
    from ablations.scales import execution_at
    from ablations.submit import place_of
    from neobert.runs.layout import Layout
    from sweeps.outcome import print_outcome
    from sweeps.planning import sweep_of_model, sweep_of_variant, take_newest_run, wanted_tasks

    if options.model == LISTED:
        print_paper_models(options.data or "synthetic")
        return EXIT_DONE
    trust_of(options)  # a flag too many is told before anything is opened, as is a wrong name
    layout = Layout(options.runs.resolve())
    wanted_tasks(options.task)
    pretrains = options.variant is None and options.model is None and take_newest_run(options, layout)
    workplace = open_workplace(options, execution_at(options.scale))
    source = workplace.source
    if options.model is not None:
        sweep = sweep_of_model(options, layout, source)
    else:
        sweep = sweep_of_variant(options, layout, source, pretrains=pretrains)
    if options.dry_run:
        print_outcome(layout, sweep.title, sweep.studies, source, as_json=options.json)
        return EXIT_DONE
    if place_of(options) == "slurm":
        return _submit(workplace, sweep)
    runs = sweep.unfinished(layout)
    code = _carry_out(workplace, sweep, runs)
    print_outcome(layout, sweep.title, sweep.studies, source, as_json=options.json)
    return report_failures(layout, runs) if code == EXIT_RUN_FAILED else code


def _carry_out(workplace: "Workplace", sweep: "Sweep", runs: "Sequence[Run]") -> int:
    """Run what is missing, seen by Optuna; a storage that cannot be reached is refused before anything is written."""
    from ablations.execute import work_here
    from neobert.runs.optuna_view import STORAGE_VARIABLE

    mirror = _mirror(workplace, sweep, workplace.options.storage)
    environment = {} if mirror is None else {STORAGE_VARIABLE: mirror.address}
    code = work_here(workplace, sweep, runs, flags=["--leave-failed"], environment=environment)
    if mirror is not None:
        mirror.close()
    return code


def _submit(workplace: "Workplace", sweep: "Sweep") -> int:
    """Send what is missing to SLURM and return at once. Optuna's study is a journal there unless another is named."""
    from ablations.execute import send
    from ablations.submit import dispatch_of
    from neobert.runs.optuna_view import STORAGE_VARIABLE

    options = workplace.options
    dispatch, execution = dispatch_of(options, workplace.layout, workplace.execution)
    mirror = _mirror(workplace, sweep, options.storage or "journal")
    if mirror is not None:
        os.environ[STORAGE_VARIABLE] = mirror.address  # jobs inherit it; an sbatch file would show its password
        mirror.close()
    return send(workplace, sweep, replace(dispatch, leave_failed=True), execution)


def _mirror(workplace: "Workplace", sweep: "Sweep", storage: str | None) -> "OptunaView | None":
    """Optuna's view of the points, opened before anything is written; then failures are treated as the flags say."""
    from neobert.runs.optuna_view import view_for_command

    mirror = view_for_command(storage, workplace.layout, sweep.studies)
    _treat_failures(workplace.layout, sweep.studies, retry=workplace.options.retry_failed)
    return mirror


def _treat_failures(layout: "Layout", studies: "Sequence[GlueStudy]", *, retry: bool) -> None:
    from neobert.console import logs
    from neobert.runs.index import errors_of, set_failures_aside

    if retry:
        count = sum(set_failures_aside(layout, study) for study in studies)
        logs().print(f"{count} failed point(s) run again; their errors are kept as errors/<trial>.<n>.json")
    elif any(True for study in studies for _ in errors_of(layout, study)):
        logs().print("points that failed before stay failed: --retry-failed runs them again", markup=False)


if __name__ == "__main__":
    sys.exit(main())
