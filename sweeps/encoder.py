"""The encoder that a sweep measures: a variant's checkpoints, an external model, or the newest finished run."""

import argparse
import shlex
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from ablations.launch.flags import DEFAULT_RUNS, MODEL_HELP, add_common_flags, trusts_code
from neobert.command_line import seed
from neobert.errors import EXIT_DONE, MissingData
from neobert.files import is_there, matching

if TYPE_CHECKING:
    from ablations.ladders import Ladder
    from ablations.launch.execute import Workspace
    from ablations.plan import VariantRow
    from ablations.recipe_runs import EmbeddingChoice
    from neobert.recipe import Grid
    from neobert.runs.layout import Layout


def add_encoder_flags(parser: argparse.ArgumentParser, shown: str) -> None:
    """Add the flags for the encoder and the seeds, and the common flags; `shown` is what a dry run prints."""
    measured = parser.add_mutually_exclusive_group()
    measured.add_argument("--variant", metavar="NAME", help="a pre-trained variant (default: the newest finished run)")
    measured.add_argument("--model", metavar="DIR_OR_ID", help=MODEL_HELP)
    seeds = "seeds of fine-tuning (default: that of pre-training)"
    parser.add_argument("--seed", type=seed, nargs="+", action="extend", metavar="N", help=seeds)
    parser.add_argument(
        "--pretraining-seed", type=seed, default=0, metavar="N", help="seed of pre-training (default: 0)"
    )
    add_common_flags(parser, f"{shown} and their states,")


def measure(options: argparse.Namespace, ladder: "Ladder", sweep: "Callable[[Workspace, bool], int]") -> int:
    """Call `sweep` with the workspace of the encoder that the flags name; return the exit code.

    The second argument of `sweep` is True if it may have to pre-train the encoder. `--model list` prints the models of
    the paper instead.

    Raises:
        ValueError: flags contradict each other.
        MissingData: a folder is not there.
    """
    from ablations.launch.execute import open_workspace
    from ablations.paper_models import LISTED, print_paper_models
    from neobert.runs.layout import Layout

    if options.model == LISTED:
        print_paper_models(options.data or "synthetic", as_json=options.json)
        return EXIT_DONE
    trusts_code(options)  # refuses a flag before anything is opened
    if options.model is not None and options.pretraining_seed:
        raise ValueError("--pretraining-seed belongs to a variant: leave it out with --model")
    pretrains = options.variant is None and options.model is None
    pretrains = pretrains and _take_newest_run(options, ladder, Layout(options.runs.resolve()))
    return sweep(open_workspace(ladder, options), pretrains)


def _take_newest_run(options: argparse.Namespace, ladder: "Ladder", layout: "Layout") -> bool:
    """Set variant, scale, data and seed to those of the run that finished last.

    Returns True if there is none, so that the sample of the ladder has to be pre-trained at its default scale.

    Raises:
        MissingData: there is no folder of runs.
        ValueError: a flag names one of these values, or the run is of another ladder or of a scale that it had.
    """
    from neobert.console import logs
    from neobert.runs.run_file import read_run_file

    given = {"scale": options.given_scale, "data": options.data, "pretraining-seed": options.pretraining_seed}
    if named := [flag for flag, value in given.items() if value]:
        raise ValueError(f"--{named[0]} goes with --variant or --model: without either the last finished run sets it")
    if options.runs != DEFAULT_RUNS and not is_there(layout.root):
        raise MissingData(
            f"--runs {options.runs} does not exist, so there is no finished run to sweep: name the folder that run.py "
            "filled, or a variant to pre-train there with `python ablations/run.py`"
        )
    finished = sorted(matching(layout.root, "pretraining/*/done.json"), key=lambda path: path.stat().st_mtime)
    if not finished:
        sample = ladder.sample.name
        options.variant, options.data = sample, "synthetic"
        said = f"{layout.root} has no finished run: {sample} is pre-trained at {options.scale} scale first"
        logs().print(said, markup=False)
        return True
    run_file = read_run_file(finished[-1].parent)
    theirs = run_file.labels.get("ladder", "")
    if theirs != ladder.name:
        raise ValueError(
            f"{run_file.id}, the run that finished last, is of {f'the ladder {theirs}' if theirs else 'the paper'}: "
            "name that with --ladder, or a variant with --variant"
        )
    options.variant = run_file.labels["variants"][0]
    options.scale, options.data = run_file.labels["scale"], run_file.source.name
    ladder.refuse_scale(options.scale)
    options.pretraining_seed = run_file.run.seed
    logs().print(f"on {options.variant}, the run that finished last ({run_file.id})", markup=False)
    return False


def variant_row(
    workspace: "Workspace",
    stages: "Sequence[str]",
    *,
    pretrains: bool,
    grid: "Grid | None" = None,
    choice: "EmbeddingChoice | None" = None,
) -> "VariantRow":
    """Plan the variant that the flags name, with another grid if given.

    Its pre-training must be done, except in a dry run or if the sweep `pretrains` it.

    Raises:
        MissingData, ValueError: as `plan`; the variant is not pre-trained.
    """
    from ablations.names import at_scale, one_variant
    from ablations.plan import plan
    from ablations.recipe_runs import EVERYTHING

    options, ladder = workspace.options, workspace.ladder
    variant = at_scale(ladder, one_variant(ladder, options.variant), options.scale)
    if grid is not None:
        recipe = variant.recipe.model_copy(update={"grid": grid})
        variant = replace(variant, recipe=recipe, parent=None, modifications=())
    (row,) = plan(
        ladder,
        [variant],
        [options.pretraining_seed],
        options.scale,
        workspace.source,
        workspace.layout,
        stages,
        finetuning_seeds=list(dict.fromkeys(options.seed or [])) or None,
        choice=choice or EVERYTHING,
    )
    states = {planned.run.id: planned.state for planned in row.planned}
    for stage in row.stages if not (pretrains or options.dry_run) else ():
        if states[stage.id] != "done":
            flags = f"--variant {row.name} --seed {row.seed} --scale {options.scale} --data {shlex.quote(options.data)}"
            flags += f" --stages pretraining --runs {shlex.quote(str(options.runs))}{ladder.flag}"
            command = f"python ablations/run.py {flags}"
            raise MissingData(f"{row.name} is not pre-trained ({states[stage.id]}): run `{command}` first")
    return row
